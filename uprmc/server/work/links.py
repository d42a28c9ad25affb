"""Time, files and a voice for the links of a node.

Who makes a link names files by their paths, over the wire. They are read only from the folder that
the node's settings name, in a thread, and only if they are ordinary ones: nobody reads another file
by making a link, or learns whether there is one, and no pipe keeps the node waiting.
"""

# mypy: allow-untyped-calls

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.threads import deferToThreadPool
from twisted.python.failure import Failure
from twisted.python.threadpool import ThreadPool

from uprmc.errors import ConfigError
from uprmc.login.credentials import Credentials, password_of
from uprmc.ports import Dial, Dialled
from uprmc.regular import NotRegular, open_regular
from uprmc.server.log import Log, Throttle
from uprmc.server.net.dialer import trust_of
from uprmc.server.work.turns import Ticker
from uprmc.upr.hub import Hub
from uprmc.xdcr.links import Links
from uprmc.xdcr.received import ReceivedRecords
from uprmc.xdcr.spec import LinkSpec
from uprmc.xdcr.world import LinkDial, MakeLinkSession, World

#: How often it is looked what is due.
TICK_S = 0.1

_TROUBLE_LOG_S = 1.0

#: A file of a link is not larger.
FILE_MAX_BYTES = 1024 * 1024

_THREADS = 4

#: What a setting of the node is called where a link has it.
_OPTION = ("upr.dial_ca", "--tls-ca")

_log = Log("xdcr")


class XdcrDriver:
    """Drives one node's links from `start` to `stop`, and logs what becomes of them."""

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
        self._folder = hub.bucket.settings.xdcr.files
        self._reactor = reactor
        self._dialer = dialer
        self._pool = ThreadPool(minthreads=0, maxthreads=_THREADS, name="uprmc-links")
        received = ReceivedRecords(hub.bucket, lambda why: self._trouble("", why))
        world = World(
            hub,
            bucket_uuid,
            received,
            self._dial,
            self._check,
            reactor.callLater,
            on_event,
            self._trouble,
        )
        self.links = Links(world)  # the links
        self._ticker = Ticker(
            reactor,
            TICK_S,
            lambda: self.links.tick(self._monotonic()),
            lambda: _log.failure("tick_failed"),
        )

    def start(self) -> None:
        """Go on with the links of before; call it when warm-up is over."""
        self.links.start()
        self._ticker.start()

    def stop(self) -> None:
        """Hang up everywhere; harmless when it was never started."""
        self._ticker.stop()
        self.links.close()
        if self._pool.started:
            self._pool.stop()

    def _dial(self, spec: LinkSpec) -> LinkDial:
        return partial(_Reaching, self._dialer, lambda: self._read(spec))

    def _check(self, spec: LinkSpec, checked: Callable[[str], None]) -> None:
        reading = self._read(spec)
        if reading is None:
            checked("")
        else:
            reading.addCallbacks(lambda _: checked(""), lambda failure: checked(_reason(failure)))

    def _read(self, spec: LinkSpec) -> Deferred[_Found] | None:
        """Read the files of a link in a thread, ``None`` if it has none."""
        if not (spec.tls_ca or spec.user):
            return None
        if not self._pool.started:
            self._pool.start()
        return deferToThreadPool(self._reactor, self._pool, _found, self._folder, spec)

    def _trouble(self, link: str, reason: str) -> None:
        held_back = self._trouble_log.passed()
        if held_back is not None:
            _log.warn("trouble", link=link, reason=reason, unlogged=held_back)


#: Whom to trust, and who to log in as.
_Found = tuple[Any, Credentials | None]


class _Reaching:
    """A connection that is made once the files of its link have been read; see `LinkDial`."""

    def __init__(
        self,
        dialer: Callable[[Any], Dial],
        read: Callable[[], Deferred[_Found] | None],
        place: str,
        make: MakeLinkSession,
        failed: Callable[[str], None],
        unusable: Callable[[str], None],
    ) -> None:
        self._dialled: Dialled | None = None
        self._abandoned = False

        def go_on(found: _Found) -> None:
            if self._abandoned:
                return
            trust, credentials = found
            self._dialled = dialer(trust)(
                place, partial(make, credentials), lambda why: failed(why.replace(*_OPTION))
            )

        def give_up(failure: Failure) -> None:
            if not self._abandoned:
                unusable(_reason(failure))

        reading = read()
        if reading is None:
            go_on((None, None))
        else:
            reading.addCallbacks(go_on, give_up)

    def abandon(self) -> None:
        """See `ports.Dialled`."""
        self._abandoned = True
        if self._dialled is not None:
            self._dialled.abandon()


def _reason(failure: Failure) -> str:
    return str(failure.value) or type(failure.value).__name__


def _found(folder: str, spec: LinkSpec) -> _Found:
    """Read what a link names; raises `ConfigError`. For a thread."""
    trust = credentials = None
    if spec.tls_ca:
        text = read_in(folder, spec.tls_ca, "--tls-ca")
        trust = trust_of(text, f"--tls-ca: {spec.tls_ca}")
    if spec.user:
        text = read_in(folder, spec.password_file, "--password-file")
        password = password_of(text, f"--password-file: {spec.password_file}")
        credentials = Credentials(spec.user, password)
    return trust, credentials


def read_in(folder: str, name: str, option: str) -> bytes:
    """Read a regular file in a folder; its name may have the folder's path before it.

    Raises:
        ConfigError: there is no such file, or it is none; of what lies elsewhere nothing is said.
    """
    if not folder:
        raise ConfigError(
            f"{option}: this node has no folder for the files of links: set xdcr.files to one, put "
            "the file there, and start the node again"
        )
    root = os.path.abspath(folder)
    elsewhere = ConfigError(f"{option}: {name} is not in {root}, the folder xdcr.files of the node")
    path = os.path.normpath(os.path.join(root, name))
    if not path.startswith(os.path.join(root, "")):
        raise elsewhere
    try:
        real = os.path.realpath(path, strict=True)
        if not real.startswith(os.path.join(os.path.realpath(root), "")):
            raise elsewhere
        descriptor = open_regular(real, os.O_RDONLY | os.O_NOFOLLOW)
        with os.fdopen(descriptor, "rb") as file:
            text = file.read(FILE_MAX_BYTES + 1)
    except NotRegular:
        raise ConfigError(f"{option}: {name} is no regular file") from None
    except OSError as error:
        raise ConfigError(f"{option}: {name} cannot be read: {error.strerror}") from None
    except ValueError:
        raise ConfigError(f"{option}: {name!r} is no path") from None
    if len(text) > FILE_MAX_BYTES:
        raise ConfigError(f"{option}: {name} is larger than {FILE_MAX_BYTES} bytes")
    return text
