"""What happens to a node of many items now and then, and how long each keeps the reactor.

One node, its items in 1,024 vBuckets and on disk; no load, so what is measured is the event alone.
Beside the timer of `lateness` each **turn** of the reactor is measured in CPU time of its thread:
from the timers that are due to the last socket served. CPU time does not count a neighbour who has
the processor, nor a worker that has the interpreter; the timer counts both.
"""

from __future__ import annotations

import gc
import resource
import socket
import struct
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from bench import common
from bench.common import BenchError
from interop.server_process import Address
from interop.upr_wire import STREAM_REQUEST, UprWire
from interop.wire import frame
from uprmc.columnar.access import Access
from uprmc.columnar.lease import acquire
from uprmc.connecting import connected
from uprmc.places import parsed

#: Names of the events in the order in which they come; each leaves what the next one needs.
EVENTS = (
    "stats sizes",
    "stats, all groups",
    "metadump all",
    "mgdump all",
    "10 scrapes, 51,200 streams",
    "rows counted, 64 each",
    "rows counted, all",
    "9,000 connect",
    "9,000 connections",
    "9,000 hang up",
    "warm-up",
    "300,000 due at once",
    "values ejected",
    "tombstones purged",
    "flush_all",
)

_CLIENTS = 9_000
_DUE_ITEMS = 300_000
_CONSUMERS, _SCRAPES = 50, 10
_SETTLE_S = 0.3
_CONNECTIONS_S = 3.0
_GROUPS = (
    "",
    "settings",
    "items",
    "slabs",
    "conns",
    "vbucket",
    "vbucket-details",
    "vbucket-seqno",
    "failovers",
    "checkpoint",
    "hash",
    "tap",
    "upr",
    "leases",
    "replication",
    "timings",
    "memory",
    "uprmc",
)


class Turns:
    """Measures the turns of a reactor, between `start` and `longest_ms`."""

    def __init__(self, reactor: Any) -> None:
        self._first, self._last = reactor.runUntilCurrent, reactor.doIteration
        reactor.runUntilCurrent, reactor.doIteration = self._begin, self._end
        self._began = time.thread_time()
        self._longest_s = self._used_at = 0.0

    def start(self) -> None:
        self._began = self._used_at = time.thread_time()
        self._longest_s = 0.0

    def longest_ms(self) -> float:
        return self._longest_s * 1e3

    def used_ms(self) -> float:
        """Return what the reactor's thread has used since `start`."""
        return (time.thread_time() - self._used_at) * 1e3

    def _begin(self) -> None:
        self._began = time.thread_time()
        self._first()

    def _end(self, delay: float | None) -> None:
        self._last(delay)
        self._longest_s = max(self._longest_s, time.thread_time() - self._began)


class Events:
    """See the module docstring. `play` is a Deferred's work and gives the figures."""

    def __init__(self, reactor: Any, directory: Path, items: int, timer: Callable[[], Any]) -> None:
        self._reactor = reactor
        self._directory = directory
        self._items = items
        self._new_timer = timer
        self._turns = Turns(reactor)
        self._figures: dict[str, float] = {}
        self._node: Any = None
        self._stopped_node: Any = None
        self._keys = [common.key_of(number) for number in range(items)]

    def play(self) -> Generator[Any, Any, dict[str, float]]:
        from twisted.internet.threads import deferToThread

        yield from self._start()
        yield from self._fill()
        address = self._node.addresses()["memcached"]
        for name, groups in (("stats sizes", ("sizes",)), ("stats, all groups", _GROUPS)):
            yield from self._during(name, deferToThread, _ask_all, address, groups)
        for word in ("metadump", "mgdump"):
            yield from self._during(f"{word} all", deferToThread, _dump, address, word.encode())
        yield from self._scrapes()
        yield from self._rows()
        yield from self._connections(address)
        yield self._node.stop()
        yield from self._during("warm-up", self._warm_node)
        address = self._node.addresses()["memcached"]
        yield from self._expiry()
        yield from self._ejection()
        yield from self._purge()
        yield from self._during("flush_all", deferToThread, _flush_all, address)
        yield self._node.stop()
        return self._figures

    def _rows(self) -> Generator[Any, Any, None]:
        """Count rows in a lease of all vBuckets, as a stream of Spark with a limit does."""
        from twisted.internet.threads import deferToThread

        access = Access((self._node.addresses()["upr"],))
        lease = yield deferToThread(acquire, access, None, 600)
        for name, rows in (("64 each", 64), ("all", self._items)):
            wanted = dict.fromkeys(lease.held, (0, rows))
            yield from self._during(f"rows counted, {name}", deferToThread, lease.reached, wanted)
        yield deferToThread(lease.release)

    def _connections(self, address: str) -> Generator[Any, Any, None]:
        from twisted.internet.threads import deferToThread

        sockets: list[socket.socket] = []

        def current() -> int:
            count: int = self._node.connections.current
            return count

        def hang_up() -> Any:
            closing = deferToThread(_close, sockets)
            return closing.addCallback(lambda _: self._when(lambda: not current()))

        yield from self._during("9,000 connect", deferToThread, _connect, address, sockets)
        yield from self._until(lambda: current() == _CLIENTS)
        yield from self._during("9,000 connections", self._pause, _CONNECTIONS_S)
        yield from self._during("9,000 hang up", hang_up)

    def _scrapes(self) -> Generator[Any, Any, None]:
        from twisted.internet.threads import deferToThread

        vbuckets = self._node.bucket.vbuckets.values()
        starts = b"".join(_start_of(one) for one in vbuckets)
        consumers: list[UprWire] = []
        address = Address.parse(self._node.addresses()["upr"])
        yield deferToThread(_follow, address, starts, len(vbuckets), consumers)
        name = f"{_SCRAPES} scrapes, {_CONSUMERS * len(vbuckets):,} streams"
        yield from self._during(name, deferToThread, _scrape, self._node.addresses()["http"])
        for consumer in consumers:
            consumer.close()

    def _warm_node(self) -> Any:
        from twisted.internet.defer import inlineCallbacks

        self._stopped_node = self._node  # freeing it would count as the new one's
        gc.freeze()
        started = inlineCallbacks(self._start)()
        return started.addCallback(lambda _: self._when(lambda: self._node.bucket.warm))

    def _start(self) -> Generator[Any, Any, None]:
        from uprmc.config import build
        from uprmc.server.node import Node

        listeners = {f"server.{name}": "127.0.0.1:0" for name in ("memcached", "upr", "http")}
        quiet = {
            "server.views": "off",
            "log.level": "warn",
            "memory.quota": 4 << 30,
        }
        place = {"storage.data": str(self._directory), "server.listen_backlog": 10_000}
        quiet["engine.expiry_interval_s"] = 1.0
        self._node = Node(self._reactor, build(listeners | quiet | place))
        yield self._node.start()

    def _fill(self) -> Generator[Any, Any, None]:
        yield from self._store(self._keys, 0)

    def _store(self, keys: list[bytes], expiry: int) -> Generator[Any, Any, None]:
        """Accept documents as fast as the disk takes them, and wait until all are there."""
        bucket = self._node.bucket
        for start in range(0, len(keys), 1_000):
            for key in keys[start : start + 1_000]:
                bucket.of_key(key).store(key, b"%064d" % start, 0, expiry)
            yield self._pause(0)
        yield from self._persisted()

    def _persisted(self) -> Generator[Any, Any, None]:
        flusher = self._node.bucket.flusher
        yield from self._until(lambda: not (flusher.pending or flusher.queued))

    def _expiry(self) -> Generator[Any, Any, None]:
        stats = self._node.bucket.stats
        due = int(time.time()) + 25
        count = min(_DUE_ITEMS, self._items)
        yield from self._store(self._keys[:count], due)
        before = stats.expired_pager
        if time.time() > due - 1:
            raise BenchError("the machine is too slow: documents expired before all were stored")
        yield self._pause(due - 0.5 - time.time())
        yield from self._during(
            "300,000 due at once", self._when, lambda: stats.expired_pager - before == count
        )
        yield from self._persisted()

    def _ejection(self) -> Generator[Any, Any, None]:
        bucket = self._node.bucket
        quota = bucket.account.quota
        resident = bucket.account.used

        def squeeze() -> Any:
            bucket.account.set_quota(int(resident / 0.855), bucket.settings.memory)
            return self._when(lambda: bucket.account.used <= bucket.account.low_mark + (1 << 20))

        yield from self._during("values ejected", squeeze)
        bucket.account.set_quota(quota, bucket.settings.memory)

    def _purge(self) -> Generator[Any, Any, None]:
        from uprmc.engine.tombstones import PurgeRule

        bucket = self._node.bucket
        left = list(bucket.vbuckets)

        def compact() -> Any:
            for number in bucket.vbuckets:
                bucket.compact(number, PurgeRule(every=True), lambda _: left.pop())
            return self._when(lambda: not left)

        yield from self._during("tombstones purged", compact)

    def _during(
        self, name: str, work: Callable[..., Any], *words: Any
    ) -> Generator[Any, Any, None]:
        yield self._pause(_SETTLE_S)
        timer = self._new_timer()
        self._turns.start()
        timer.start()
        began = time.perf_counter()
        yield work(*words)
        elapsed_s = time.perf_counter() - began
        yield self._pause(_SETTLE_S)
        timer.pause()
        found = timer.figures()
        self._figures |= {
            f"{name}: turn_ms": self._turns.longest_ms(),
            f"{name}: cpu_ms": self._turns.used_ms(),
            f"{name}: p99_ms": found["p99_ms"],
            f"{name}: max_ms": found["max_ms"],
            f"{name}: s": elapsed_s,
        }

    def _pause(self, seconds: float) -> Any:
        from twisted.internet.task import deferLater

        return deferLater(self._reactor, max(0.0, seconds))

    def _until(self, over: Callable[[], bool]) -> Generator[Any, Any, None]:
        while not over():
            yield self._pause(0.02)

    def _when(self, over: Callable[[], bool]) -> Any:
        from twisted.internet.defer import inlineCallbacks

        return inlineCallbacks(self._until)(over)


def _dial(address: str) -> socket.socket:
    return connected(parsed(address), 60)


def _ask_all(address: str, groups: tuple[str, ...]) -> None:
    with _dial(address) as wire:
        for group in groups:
            wire.sendall(b"stats " + group.encode() + b"\r\n")
            answer = b""
            while not answer.endswith(b"END\r\n"):
                answer = answer[-10:] + wire.recv(1 << 16)


def _dump(address: str, word: bytes) -> None:
    """List all keys; `lru_crawler` ends a list with END or EN."""
    with _dial(address) as wire:
        wire.sendall(b"lru_crawler %b all\r\n" % word)
        end = b""
        while not end.endswith((b"\nEND\r\n", b"\nEN\r\n")):
            end = end[-10:] + wire.recv(1 << 20)


def _start_of(vbucket: Any) -> bytes:
    """Return a request for what is new in a vBucket."""
    seqno, uuid = vbucket.high_seqno, vbucket.failover_log[0].uuid
    numbers = (0, 0, seqno, 2**64 - 1, uuid, seqno, seqno)
    return frame(STREAM_REQUEST, extras=struct.pack(">IIQQQQQ", *numbers), vbucket=vbucket.id)


def _follow(address: Address, starts: bytes, count: int, consumers: list[UprWire]) -> None:
    for number in range(_CONSUMERS):
        consumer = UprWire(address, 60)
        consumers.append(consumer)
        consumer.open(b"scraped-%d" % number)
        consumer.send(starts)
        for _ in range(count):
            if consumer.frame().number:
                raise BenchError("a stream was refused")


def _scrape(address: str) -> None:
    for _ in range(_SCRAPES):
        with urlopen(f"http://{address}/metrics", timeout=60) as answer:
            answer.read()


def _flush_all(address: str) -> None:
    with _dial(address) as wire:
        wire.sendall(b"flush_all\r\n")
        if wire.recv(100) != b"OK\r\n":
            raise BenchError("flush_all was refused")


def _connect(address: str, sockets: list[socket.socket]) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    sockets += [_dial(address) for _ in range(_CLIENTS)]


def _close(sockets: list[socket.socket]) -> None:
    for each in sockets:
        each.close()
