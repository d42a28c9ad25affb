"""Time, files and a voice for the links of a node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from twisted.internet.task import LoopingCall

from uprmc.config import UprSettings
from uprmc.errors import ConfigError
from uprmc.ports import Dial, Dialled, MakeSession
from uprmc.server.dialer import trust_root
from uprmc.server.log import Log, Throttle
from uprmc.upr.hub import Hub
from uprmc.xdcr.links import Links
from uprmc.xdcr.received import Received
from uprmc.xdcr.world import World

#: How often it is looked what is due.
TICK_S = 0.1

_TROUBLE_LOG_S = 1.0

#: A password file is not longer.
_PASSWORD_MAX_BYTES = 4_096

#: What a setting of the node is called where a link has it.
_OPTION = ("upr.dial_ca", "--tls-ca")

_log = Log("xdcr")


class XdcrDriver:
    """Drives one node's links from `start` to `stop`, and logs what becomes of them.

    Attributes:
        links: the links.
    """

    def __init__(
        self,
        reactor: Any,
        hub: Hub,
        bucket_uuid: int,
        dialer: Callable[[Any], Dial],
        on_event: Callable[[str, dict[str, object]], None],
    ) -> None:
        """Prepare it.

        Args:
            reactor: calls when it is time.
            hub: of the node.
            bucket_uuid: of its data.
            dialer: makes a `Dial` that trusts what `trust_root` returns.
            on_event: see `World`.
        """
        self._monotonic = hub.bucket.clock.monotonic
        self._trouble_log = Throttle(_TROUBLE_LOG_S, self._monotonic)
        self._settings = hub.settings
        self._dialer = dialer
        received = Received(hub.bucket, lambda why: self._trouble("", why))
        world = World(
            hub,
            bucket_uuid,
            received,
            self._dial,
            reactor.callLater,
            _password,
            on_event,
            self._trouble,
        )
        self.links = Links(world)
        self._ticker = LoopingCall(self._tick)
        self._ticker.clock = reactor

    def start(self) -> None:
        """Go on with the links of before; call it when warm-up is over."""
        self.links.start()
        self._ticker.start(TICK_S, now=False)

    def stop(self) -> None:
        """Hang up everywhere; harmless when it was never started."""
        if self._ticker.running:
            self._ticker.stop()
        self.links.close()

    def _tick(self) -> None:
        try:
            self.links.tick(self._monotonic())
        except Exception:  # a bug of ours must not end the links for good
            _log.failure("tick_failed")

    def _dial(self, authorities: str) -> Dial:
        """Return how to reach a target; raises `ConfigError` for a file that cannot be used."""
        dial = self._dialer(_trust(self._settings, authorities))

        def of_link(place: str, make: MakeSession, failed: Callable[[str], None]) -> Dialled:
            return dial(place, make, lambda why: failed(why.replace(*_OPTION)))

        return of_link

    def _trouble(self, link: str, reason: str) -> None:
        held_back = self._trouble_log.passed()
        if held_back is not None:
            _log.warn("trouble", link=link, reason=reason, unlogged=held_back)


def _trust(settings: UprSettings, authorities: str) -> Any:
    try:
        return trust_root(replace(settings, dial_ca=authorities))
    except ConfigError as error:
        raise ConfigError(str(error).replace(*_OPTION)) from None


def _password(path: str) -> str:
    """Read a password: the first line of a file; raises `ConfigError`."""
    try:
        with Path(path).open("rb") as file:
            text = file.read(_PASSWORD_MAX_BYTES)
        return text.splitlines()[0].decode() if text else ""
    except OSError as error:
        raise ConfigError(f"--password-file: {path} cannot be read: {error.strerror}") from None
    except ValueError:
        raise ConfigError(f"--password-file: {path} is not UTF-8") from None
