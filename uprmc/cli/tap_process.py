"""The stand-alone TAP adapter: a listener, its registry, and a connection for each client.

Every TAP client has a UPR connection of its own to the upstream, named after it. One that cannot be
made closes the client's connection, which comes back by its name; the process goes on. Whether the
upstream is there at all is tried once at the start, to have it in the log.

Note: clients of another adapter may get the same generated names (``anon_1``), and the upstream
disconnects the older of two connections with one name. So generated names end in a token of the
process.
"""

# mypy: allow-untyped-calls
from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

from twisted.internet.defer import Deferred, inlineCallbacks
from twisted.internet.threads import deferToThreadPool

from uprmc import __version__
from uprmc.cli.process import Process
from uprmc.client.state import StateRefused
from uprmc.client.tap_state import FileKeeper, MemoryKeeper, TapState
from uprmc.client.tap_upstream import RemoteUpstream, connection_name
from uprmc.config import Settings, unix_mode
from uprmc.errors import ConfigError
from uprmc.ports import Session
from uprmc.server.log import Log, Throttle, set_level, start_logging
from uprmc.server.net.adapter import SessionFactory
from uprmc.server.net.connections import Connections, raise_file_limit
from uprmc.server.net.dialer import Dialer, dialling_as, trust_root
from uprmc.server.net.listener import Listener, listen, tls_options
from uprmc.server.system import SystemClock
from uprmc.server.work.periodic import TapDriver
from uprmc.server.work.turns import LongWork, WakeList
from uprmc.tap_adapter.names import Names
from uprmc.tap_adapter.producer import all_clients
from uprmc.tap_adapter.session import TapRegistry, TapSession
from uprmc.tap_adapter.upstream import Upstream, UpstreamVBucket

#: Whoever has not taken his last bytes by then is cut off.
_FAREWELL_S = 5.0

#: What strangers can cause is logged so often.
_LOG_S = 1.0

#: How `Names` calls those who did not say.
_ANONYMOUS = b"anon_"

_log = Log("tap_adapter")


class TapProcess:
    """One adapter and the process's reactor."""

    def __init__(
        self,
        reactor: Any,
        read_settings: Callable[[], Settings],
        upstream: str,
        place: str,
        state: Path | None,
        buffer_bytes: int,
    ) -> None:
        """Open the state.

        Args:
            reactor: the process's, not running yet.
            read_settings: reads those of ``tap``, ``log``, and of ``server`` and ``upr`` what
                connections need; called again after a SIGHUP.
            upstream: the producer, HOST:PORT.
            place: where to listen, as listener settings say it.
            state: file of registered clients; ``None`` = they end with the process.
            buffer_bytes: what is received ahead of each client.

        Raises:
            ConfigError: the state, or a file of TLS, cannot be used.
        """
        settings = read_settings()
        self._process = Process(reactor)
        self._process.heed_signals(read_settings, self._reload, _log)
        start_logging(settings.log)
        self._reactor = reactor
        self._settings = settings
        self._upstream_place = upstream
        self._place = place
        self._buffer_bytes = buffer_bytes
        self._token = b"@" + secrets.token_hex(4).encode()
        self._clock = SystemClock()
        self._tls = tls_options(settings.server)
        trust = trust_root(settings.upr)
        self._credentials = dialling_as(settings.upr)
        limit = raise_file_limit(settings.server.max_connections)
        self._connections = Connections(limit, self._clock.monotonic, settings.server.buffer_bytes)
        self._work = LongWork(reactor)
        self._wake_list = WakeList(reactor, self._work.budget)
        self._dialer = Dialer(
            reactor, self._connections, self._wake_list, settings.upr.dial_timeout_s, trust
        )
        self._misuse_log = Throttle(_LOG_S, self._clock.monotonic)
        self._state_log = Throttle(_LOG_S, self._clock.monotonic)
        self._state = _opened(state)
        self._keeper = self._new_keeper()
        self._door = self._new_door()
        self._driver = TapDriver(
            reactor, self._door, self._door.names.refused_documents, self._clock.monotonic
        )
        self._listener: Listener | None = None
        self._probe: RemoteUpstream | None = None

    def _new_keeper(self) -> FileKeeper | MemoryKeeper:
        if self._state is None:
            return MemoryKeeper()
        return FileKeeper(self._state, self._in_worker, self._state_failed)

    def _new_door(self) -> TapRegistry:
        try:
            names = Names(self._settings.tap, self._keeper)
        except StateRefused as error:
            raise ConfigError(str(error)) from None
        registry = TapRegistry(
            self._settings.tap, names, self._upstream, self._clock, self._clock.monotonic
        )
        registry.statistics = self._statistics
        return registry

    # --- life -----------------------------------------------------------------------------------

    def run(self) -> int:
        """Serve until stopped; returns the exit code or raises what went wrong."""
        return self._process.run(self._start, self._stop)

    def _start(self) -> None:
        factory = SessionFactory(self._session, self._connections, self._wake_list, "tap")
        listen(
            self._reactor,
            self._place,
            factory,
            setting="--listen",
            backlog=self._settings.server.listen_backlog,
            tls=self._tls,
            mode=unix_mode(self._settings.server.unix_mode, "server.unix_mode"),
        ).addCallbacks(self._ready, self._process.failed)

    def _ready(self, listener: Listener) -> None:
        self._listener = listener
        self._connections.start(self._reactor, self._work)
        self._driver.start()
        self._look_for_upstream()
        words = f"tap={listener.address} upstream={self._upstream_place} pid={os.getpid()}"
        sys.stdout.write(f"uprmc ready {words}\n")
        sys.stdout.flush()

    def _reload(self, settings: Settings) -> None:
        if self._tls is not None:
            self._tls.reload(settings.server)
        set_level(settings.log.level)

    @inlineCallbacks
    def _stop(self) -> Generator[Deferred[Any], Any, None]:
        if self._listener is not None:
            yield self._listener.stop()
        self._driver.stop()
        if self._probe is not None:
            self._probe.close()
        self._connections.stop()
        yield self._connections.close_all(self._reactor, _FAREWELL_S)
        if isinstance(self._keeper, FileKeeper):
            written: Deferred[None] = Deferred()
            self._keeper.when_idle(lambda: written.callback(None))
            yield written
        if self._state is not None:
            self._state.close()
        self._wake_list.close()

    # --- connections ----------------------------------------------------------------------------

    def _session(self, peer: str, wake: Callable[[], None]) -> Session:
        return TapSession(self._door, wake, lambda reason: self._misused(peer, reason))

    def _misused(self, peer: str, reason: str) -> None:
        held_back = self._misuse_log.passed()
        if held_back is not None:
            _log.warn("misuse", peer=peer, reason=reason, unlogged=held_back)

    def _upstream(self, name: bytes, values: bool, wake: Callable[[], None]) -> Upstream:
        suffix = self._token if name.startswith(_ANONYMOUS) else b""
        return self._dial(connection_name(name, suffix), wake, values=values)

    def _dial(
        self,
        name: bytes,
        wake: Callable[[], None],
        *,
        values: bool = True,
        lost: Callable[[str], None] = lambda _: None,
    ) -> RemoteUpstream:
        return RemoteUpstream(
            self._dialer,
            self._upstream_place,
            name,
            values,
            wake,
            buffer_bytes=self._buffer_bytes,
            lost=lost,
            credentials=self._credentials,
            tls=bool(self._settings.upr.dial_ca),
        )

    def _look_for_upstream(self) -> None:
        """Say whether the upstream is there, for whoever has just started us."""

        def surveyed(found: dict[int, UpstreamVBucket]) -> None:
            _log.info("upstream_reached", upstream=self._upstream_place, vbuckets=len(found))
            if self._probe is not None:
                self._probe.close()

        def lost(reason: str) -> None:
            _log.warn("upstream_unreachable", reason=reason, advice="tried again for each client")

        self._probe = self._dial(b"uprmc-tap-adapter" + self._token, lambda: None, lost=lost)
        self._probe.survey(None, surveyed)

    def _statistics(self, words: str) -> Iterator[tuple[str, str]] | None:
        """Carry out ``stats`` and ``stats tap``."""
        return self._rows() if words in ("", "tap") else None

    def _rows(self) -> Iterator[tuple[str, str]]:
        registry = self._door
        yield "pid", str(os.getpid())
        yield "version", __version__
        yield "uprmc_tap_upstream", self._upstream_place
        yield "ep_tap_count", str(sum(known.gone_at is None for known in registry.names))
        yield "uprmc_tap_clients", str(len(registry.names))
        yield "uprmc_tap_connects", str(registry.connects)
        yield "uprmc_tap_refusals", str(registry.refusals)
        yield "uprmc_tap_pushes_refused", str(registry.pushes_refused)
        failures = self._keeper.failures if isinstance(self._keeper, FileKeeper) else 0
        yield "uprmc_tap_state_failures", str(failures)
        yield from all_clients(registry.names, registry.unix_minus_monotonic_s)

    # --- the state ------------------------------------------------------------------------------

    def _in_worker(
        self, work: Callable[[], None], ended: Callable[[Exception | None], None]
    ) -> None:
        working: Deferred[None] = deferToThreadPool(
            self._reactor, self._reactor.getThreadPool(), work
        )
        working.addCallbacks(lambda _: ended(None), lambda failure: ended(failure.value))
        working.addErrback(lambda failure: _log.failure("keeper_failed", failure))

    def _state_failed(self, reason: str) -> None:
        held_back = self._state_log.passed()
        if held_back is not None:
            _log.error("state_failed", reason=reason, unlogged=held_back)


def _opened(path: Path | None) -> TapState | None:
    if path is None:
        return None
    try:
        return TapState(path)
    except StateRefused as error:
        raise ConfigError(f"--state: {error}") from None
