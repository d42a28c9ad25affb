"""A running node: everything is wired here and nowhere else.

Start: open the data directory, listen, warm up, let clients in. The listeners accept from the first
moment on, so that statistics and health can be asked for during warm-up; commands that need data
get temporary failure until it is over. Stop: accept no more, hang up, persist everything that was
accepted, leave the clean mark, close.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from socket import gethostname
from typing import Any

from twisted.internet.defer import Deferred, inlineCallbacks
from twisted.python.threadpool import ThreadPool

from uprmc import MEMCACHED_VERSION
from uprmc.config import Settings, unix_mode
from uprmc.engine.bucket import Bucket
from uprmc.engine.vbucket import VBucket
from uprmc.engine.warmup import Warmup, WarmupState
from uprmc.kv.cluster_map import ServedMap
from uprmc.kv.services import Control, Services
from uprmc.kv.session import Negotiation
from uprmc.model import VBucketState, conflict_rule
from uprmc.ports import Session
from uprmc.remote.registering import name_tag
from uprmc.server import system
from uprmc.server.http.changes import Changes
from uprmc.server.http.endless import Endless, EventStream, Live
from uprmc.server.http.site import gate, known_hosts, node_site, reserved_files, role_of_page
from uprmc.server.log import LEVELS, Events, Log, Throttle, set_level
from uprmc.server.net.access import Audit, UserAccess
from uprmc.server.net.adapter import SessionFactory
from uprmc.server.net.connections import Connections, raise_file_limit
from uprmc.server.net.dialer import Dialer, dialling_as, trust_root
from uprmc.server.net.listener import (
    Listener,
    https_options,
    listen,
    listen_private,
    several,
    tls_options,
)
from uprmc.server.net.transport import adopt_directly
from uprmc.server.stats import health
from uprmc.server.stats.consumers import ConsumerLags
from uprmc.server.stats.health import Health
from uprmc.server.stats.panels import PANELS
from uprmc.server.stats.statistics import Statistics
from uprmc.server.system import SystemClock, SystemEntropy
from uprmc.server.work.disk import DiskWork
from uprmc.server.work.index import IndexDriver
from uprmc.server.work.links import XdcrDriver
from uprmc.server.work.periodic import Housekeeping, ReplicationDriver, TapDriver
from uprmc.server.work.turns import LongWork, WakeList
from uprmc.storage.directory import open_directory
from uprmc.tap_adapter.node_tap import NodeTap
from uprmc.upr.hub import Hub
from uprmc.upr.replication import Replication
from uprmc.web import LimitedSite

# --- what the log says of a data directory --------------------------------------------------------
# What the log says of a data directory: that it is rewritten, or begins a new history.


_EVERY_S = 5.0

_storage_log = Log("storage")


def upgrade_log(directory: str, monotonic: Callable[[], float]) -> Callable[[int, int], None]:
    """Return what `open_directory` tells of an upgrade."""
    throttle = Throttle(_EVERY_S, monotonic)
    began: list[float] = []

    def told(done: int, total: int) -> None:
        if not began:
            began.append(monotonic())
            throttle.passed()
            _storage_log.info("upgrade_began", directory=directory, entries=total)
        elif done == total:
            _storage_log.info(
                "upgraded", directory=directory, seconds=round(monotonic() - began[0], 1)
            )
        elif throttle.passed() is not None:
            _storage_log.info("upgrade_progress", done=done, entries=total)

    return told


def log_new_history(directory: str, reason: str, uuid: int) -> None:
    """Say why a data directory begins a new history, and under which uuid."""
    _storage_log.warn("new_history", directory=directory, reason=reason, uuid=f"{uuid:032x}")


# --- the node -------------------------------------------------------------------------------------


#: How long clients may take to read their last replies at shutdown.
_FAREWELL_S = 2.0

#: The listener of the index; it has no logins, because only the node's own user can open it.
_PRIVATE = "index"
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
_EVERYWHERE = frozenset({"0.0.0.0", "[::]"})

_MISUSE_LOG_S = 1.0
#: What ``verbosity`` 0, 1 and 2 show at least; the setting ``log.level`` may show more.
_VERBOSITY_LEVELS = ("error", "info", "debug")

_log = Log("node")


class Node:
    """One node on one reactor. `start` it, later `stop` it; each once."""

    def __init__(self, reactor: Any, settings: Settings) -> None:
        """Open the data directory.

        Raises:
            StoreError, ConfigError: the directory or the TLS files cannot be used.
        """
        self._reactor = reactor
        self._clock = SystemClock()
        entropy = SystemEntropy()
        self._tls = tls_options(settings.server)
        self._https = https_options(settings.server, self._tls)
        trust = trust_root(settings.upr)
        store = open_directory(
            Path(settings.storage.data),
            uuid=entropy.uuid48(),
            vbuckets=settings.engine.vbuckets or None,
            conflict_rule=conflict_rule(settings.engine.conflict_resolution),
            settings=settings.storage,
            sync=settings.flush.sync,
            on_upgrade=upgrade_log(settings.storage.data, self._clock.monotonic),
        )
        identity = store.identity()
        if store.new_history:
            log_new_history(settings.storage.data, store.new_history, identity.uuid)
        self.uuid = identity.uuid
        engine = replace(
            settings.engine,
            vbuckets=identity.vbuckets,
            conflict_resolution=identity.conflict_rule.value,
        )
        self.settings = settings = replace(settings, engine=engine)
        self.bucket = Bucket(settings, store, self._clock, entropy)
        self.bucket.on_deposed = _log_deposed
        self.audit = Audit(settings.log.audit, self._clock.now)
        self.access = self._new_access(reactor)
        self.events = Events(self._clock.now)
        self.bucket.on_event = self.events.tell
        self.upr = Hub(self.bucket, settings.upr)
        self.upr.credentials = dialling_as(settings.upr)
        self.upr.instance = b"node-%012x" % self.uuid
        self.warmup = Warmup(self.bucket)
        self.warmup_s = 0.0
        self.verbosity = 0
        self.origins: dict[str, str] = {}
        reserved = reserved_files(settings)
        limit = raise_file_limit(settings.server.max_connections, reserved)
        self.connections = Connections(
            limit, self._clock.monotonic, settings.server.buffer_bytes, self.bucket.stats
        )
        self.connections.reserved_files = reserved
        self._work = LongWork(reactor, system.collect_young)
        self.statistics = Statistics(self)
        life = f"{entropy.uuid48():012x}"
        panels = {name: partial(panel, self) for name, panel in PANELS.items()}
        self._endless = Endless(
            {
                b"/live": Live(reactor, self._work, panels, settings.http),
                b"/changes": Changes(
                    reactor,
                    self._adopt,
                    self.bucket.vbuckets,
                    settings.http,
                    self.connections.buffers,
                ),
            },
            {b"/events": EventStream(reactor, self.events, life, settings.http)},
        )
        self._started_at = self._clock.monotonic()
        threads = 3 + settings.flush.fetch_rounds  # a flush, a compaction, a stream
        self.disk_pool = ThreadPool(minthreads=1, maxthreads=threads, name="uprmc-disk")
        self._disk_work = DiskWork(reactor, self.disk_pool, self.bucket, settings.flush, self._work)
        self.upr.preread = self._disk_work.preread
        self.consumer_lags = ConsumerLags(self.upr, self._clock.monotonic)
        self.health = Health()
        self._housekeeping = Housekeeping(reactor, self.bucket, self.upr, self._looks, self._work)
        self.on_taken: Callable[[Exception], None] = lambda _: None
        self._disk_work.on_taken = self._housekeeping.on_taken = lambda error: self.on_taken(error)
        self._control = Control(
            ServedMap(
                self.addresses,
                tls=self._tls is not None,
                https=self._https is not None,
                uuid=self.uuid,
            ),
            self._housekeeping.expire_every,
        )
        self._control.crawler.expire_now = self._housekeeping.expire_now
        self.crawler = self._control.crawler
        self.tap = self._new_tap() if settings.tap.enabled else None
        self._tap_driver: TapDriver | None = None
        if self.tap is not None:
            self._tap_driver = TapDriver(
                reactor, self.tap.registry, self.tap.trouble, self._clock.monotonic
            )
        self._wake_list = WakeList(reactor, self._work.budget)
        self.replication = self._replication(reactor, trust)
        self._replication_driver = ReplicationDriver(
            reactor, self.replication, self._clock.monotonic
        )
        self._xdcr_driver = self._new_xdcr(reactor)
        self.links = self._xdcr_driver.links
        self.index = IndexDriver(
            reactor, settings, self._open_private, self.events.tell, self._clock.monotonic
        )
        self._misuse_log = Throttle(_MISUSE_LOG_S, self._clock.monotonic)
        self._listeners: dict[str, list[Listener]] = {}
        self._warming: Generator[None, None, None] | None = None
        self._stopping = False

    # --- life -----------------------------------------------------------------------------------

    @inlineCallbacks
    def start(self) -> Generator[Deferred[Any], Any, None]:
        """Listen and warm up; fires when the node serves, never if it is stopped before.

        Fails with `ConfigError` or `StoreError`; then `stop` cleans up.
        """
        system.take_collector_over()
        self.disk_pool.start()
        yield from self._listen()
        if self._stopping:
            yield Deferred()  # for ever
        yield from self._warm_up()
        self.connections.start(self._reactor, self._work)
        self._housekeeping.start()
        self._replication_driver.start()
        self._xdcr_driver.start()
        self.index.start()
        if self._tap_driver is not None:
            self._tap_driver.start()

    @inlineCallbacks
    def stop(self) -> Generator[Deferred[Any], Any, None]:
        """Stop in order: everything accepted is persisted, the clean mark is left.

        Raises:
            StoreError: not everything could be persisted; the mark is not left.
        """
        self._stopping = True
        orderly = self._interrupt_warm_up() or self.bucket.warm
        for listener in chain.from_iterable(self._listeners.values()):
            yield listener.stop()
        yield self.index.stop()
        self._endless.stop()
        self._housekeeping.stop()
        self._replication_driver.stop()
        self._xdcr_driver.stop()
        if self._tap_driver is not None:
            self._tap_driver.stop()
        self.connections.stop()
        yield self.connections.close_all(self._reactor, _FAREWELL_S)
        self.bucket.watermarks.write_all()
        self.bucket.shut_traffic_out()
        self.upr.release_views()
        try:
            yield self._disk_work.stop(orderly=orderly)
        finally:
            if self.disk_pool.started:
                self.disk_pool.stop()
            if self.access is not None:
                self.access.stop()
            self.audit.close()
            self._wake_list.close()
            self._work.stop()
            self.bucket.store.close()
            system.give_collector_back()

    def _listen(self) -> Generator[Deferred[Any], Any, None]:
        server = self.settings.server
        mode = unix_mode(server.unix_mode, "server.unix_mode")
        if server.http != "off":
            listener = yield listen(
                self._reactor,
                server.http,
                self._site(),
                setting="server.http",
                backlog=server.listen_backlog,
                tls=self._https,
                mode=mode,
            )
            self._listeners["http"] = [listener]
        for name, texts, by_key in (
            ("memcached", several(server.memcached), True),
            ("upr", [server.upr], False),
        ):
            self._listeners[name] = opened = []
            for text in texts:
                listener = yield listen(
                    self._reactor,
                    text,
                    self._session_factory(name, by_key),
                    setting=f"server.{name}",
                    backlog=server.listen_backlog,
                    tls=self._tls,
                    mode=mode,
                    alone=len(texts) == 1,
                )
                opened.append(listener)
        self.upr.tag = name_tag(f"{gethostname()} {self._listeners['upr'][0].address}")
        yield self.index.listen()

    def _site(self) -> LimitedSite:
        site = node_site(
            self.statistics,
            self._reactor,
            self._endless,
            self._work,
            self.settings.http,
            self.connections.buffers,
            known_hosts(self.settings.server),
        )
        if self.access is not None:
            gate(site, self.access, "http", role_of_page)
        return site

    def _open_private(self, path: str) -> Listener:
        return listen_private(self._reactor, path, self._session_factory(_PRIVATE, by_key=False))

    def _adopt(self, socket: Any) -> None:
        """Make a socket a connection of the node's own, without a login."""
        adopt_directly(self._reactor, socket, self._session_factory(_PRIVATE, by_key=False))

    def _warm_up(self) -> Generator[Deferred[Any], Any, None]:
        self._warming = self._timed_warm_up()
        yield self._work.do(self._warming)
        if self._stopping:
            yield Deferred()  # for ever
        self._warming = None
        _log.info(
            "warmed_up",
            keys=self.warmup.keys,
            values=self.warmup.values,
            seconds=round(self.warmup_s, 3),
            clean=self.warmup.was_clean,
        )

    def _timed_warm_up(self) -> Generator[None, None, None]:
        began = self._clock.monotonic()
        for _ in self.warmup.steps():
            self.warmup_s = self._clock.monotonic() - began
            yield
        self.warmup_s = self._clock.monotonic() - began

    def _interrupt_warm_up(self) -> bool:
        """End a warm-up that is under way; say whether there was one.

        Nobody was let in, so what is on disk is all there is: the node may leave the clean mark,
        provided that the branches of an unclean start are on disk, which comes first of all.
        """
        steps, self._warming = self._warming, None
        if steps is None:
            return False
        self._work.stop()
        steps.close()
        return self.warmup.state in (WarmupState.KEY_DUMP, WarmupState.LOAD_VALUES)

    # --- wiring ---------------------------------------------------------------------------------

    def _dialer(self, reactor: Any, trust: Any) -> Dialer:
        timeout_s = self.settings.upr.dial_timeout_s
        return Dialer(reactor, self.connections, self._wake_list, timeout_s, trust)

    def _replication(self, reactor: Any, trust: Any) -> Replication:
        replication = Replication(self.upr, self._dialer(reactor, trust))
        replication.is_own = self._is_own
        return replication

    def _new_xdcr(self, reactor: Any) -> XdcrDriver:
        dialer = partial(self._dialer, reactor)
        driver = XdcrDriver(reactor, self.upr, self.uuid, dialer, self.events.tell)
        driver.links.is_own = self._is_own
        return driver

    def _new_tap(self) -> NodeTap:
        tap = NodeTap(
            self.upr,
            self.settings.tap,
            self._clock.monotonic,
            lambda: self._control.cluster_map.text(self.bucket),
        )
        tap.registry.statistics = self.statistics.group
        return tap

    def _is_own(self, place: str) -> bool:
        """Tell whether dialling `place` would certainly come back here."""
        host, _, port = place.rpartition(":")
        own = [each.rpartition(":")[::2] for each in self.addresses().values()]
        return (host, port) in own or (
            host in _LOOPBACK
            and any(there in _LOOPBACK | _EVERYWHERE and each == port for there, each in own)
        )

    def _new_access(self, reactor: Any) -> UserAccess | None:
        server = self.settings.server
        if not server.users:
            return None
        stats, timeout_s = self.bucket.stats, server.login_timeout_s
        return UserAccess(reactor, server.users, stats, self.audit, timeout_s)

    def _session_factory(self, listener: str, by_key: bool) -> SessionFactory:
        access = None if listener == _PRIVATE else self.access

        def make_session(peer: str, wake: Callable[[], None]) -> Session:
            services = self._services(peer, by_key)
            if access is not None:
                services.door = access.door(peer, listener, tls=self._tls is not None)
            return Negotiation(services, wake, by_key=by_key)

        return SessionFactory(
            make_session,
            self.connections,
            self._wake_list,
            listener,
            self.settings.server.idle_timeout_s,
            self.settings.server.login_timeout_s,
        )

    def _services(self, peer: str, by_key: bool = True) -> Services:
        return Services(
            bucket=self.bucket,
            settings=self.settings.kv,
            version=MEMCACHED_VERSION.encode(),
            stats=self.statistics.group_in_slices,
            reset_stats=self.statistics.reset,
            set_verbosity=self._set_verbosity,
            report_misuse=lambda reason: self._report_misuse(peer, reason),
            upr=self.upr,
            replication=self.replication,
            control=self._control,
            tap=self.tap,
            xdcr=self.links,
            pads_counters=by_key,
            pause=self._reactor.callLater,
        )

    def _set_verbosity(self, level: int) -> None:
        self.verbosity = min(level, 2)
        chosen = self.settings.log.level
        asked = _VERBOSITY_LEVELS[self.verbosity]
        set_level(min(chosen, asked, key=LEVELS.index))

    def reload(self, settings: Settings) -> None:
        """Take over the log's level, the certificate and users; the rest waits for a restart.

        The audit log is opened again.

        Raises:
            ConfigError: one of the files cannot be used; the others may have changed.
        """
        if self._tls is not None:
            self._tls.reload(settings.server)
        if self.access is not None:
            self.access.reload(self.settings.server.users)
        self.audit.reopen(self.settings.log.audit)
        self.index.reload(settings.server)
        self.settings = replace(
            self.settings, log=replace(self.settings.log, level=settings.log.level)
        )
        self._set_verbosity(self.verbosity)

    def _report_misuse(self, peer: str, reason: str) -> None:
        self.bucket.stats.protocol_errors += 1
        held_back = self._misuse_log.passed()
        if held_back is not None:
            _log.warn("misuse", peer=peer, reason=reason, unlogged=held_back)

    @property
    def is_new(self) -> bool:
        """Whether the data directory is as it was made."""
        vbuckets = self.bucket.vbuckets.values()
        return all(each.state == VBucketState.ACTIVE and not each.high_seqno for each in vbuckets)

    def follow_if_new(self, place: str) -> None:
        """Follow a node with everything, if this data directory is as it was made.

        Raises:
            CommandError: it cannot be followed; the text says why.
        """
        if self.is_new:
            self.replication.follow(place, None, demote=False, done=lambda _: None)

    # --- what others may ask --------------------------------------------------------------------

    def _looks(self) -> Generator[None, None, None]:
        yield from self.consumer_lags.steps()
        health.look(self)

    def addresses(self) -> dict[str, str]:
        """Return where each listener really listens; several places are separated by commas."""
        found = {
            name: ",".join(each.address for each in opened)
            for name, opened in self._listeners.items()
        }
        return found if self.index.state == "off" else {**found, "views": self.index.address}

    def uptime_s(self) -> float:
        """Return seconds since the node was made."""
        return self._clock.monotonic() - self._started_at


def _log_deposed(vbucket: VBucket) -> None:
    _log.warn(
        "vbucket_deposed", vbucket=vbucket.id, term=vbucket.term, known_term=vbucket.known_term
    )
