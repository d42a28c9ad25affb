"""Requests as fast as a node takes them, over several connections from one or more processes.

Each connection sends a batch of requests, waits for all replies, and sends the next. What would
slow the generator down is made once: keys, and all of a request but the value.
"""

from __future__ import annotations

import selectors
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import islice
from multiprocessing import get_context
from multiprocessing.connection import Connection
from random import Random
from typing import Protocol, Self

from uprmc.cli.node_access import NodeAccess
from uprmc.cli.ping import about
from uprmc.client.connection import NodeConnection, NodeError
from uprmc.model import vbucket_of
from uprmc.places import parsed
from uprmc.protocol.binary import ARITHMETIC_EXTRAS, STORE_EXTRAS, TOUCH_EXTRAS
from uprmc.protocol.header import pack_request, unpack_response
from uprmc.protocol.opcodes import (
    HEADER_BYTES,
    MAGIC_REQUEST,
    MAGIC_RESPONSE,
    Opcode,
    Status,
    status_text,
)
from uprmc.remote.blocking import put
from uprmc.remote.directory import Directory, conduct

# --- how long things took -------------------------------------------------------------------------


_NANOS = 1_000_000_000

#: Binary digits that a time keeps: 128 steps for each doubling.
_BINARY_DIGITS = 8

#: Name of a percentile -> its share.
PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99_9": 0.999}


class Latencies:
    """Times by how often they were met.

    There are few numbers, and percentiles come out of them within one percent.
    """

    __slots__ = ("count", "counts", "max_ns", "sum_ns")

    def __init__(self) -> None:
        self.count = 0  # how many there are
        self.sum_ns = 0
        self.max_ns = 0
        # By nanoseconds, rounded down to `_BINARY_DIGITS` binary digits.
        self.counts: dict[int, int] = {}

    def add(self, time_ns: int, times: int = 1) -> None:
        """Count a time, met once or several times."""
        shift = max(0, time_ns.bit_length() - _BINARY_DIGITS)
        step = time_ns >> shift << shift
        self.counts[step] = self.counts.get(step, 0) + times
        self.count += times
        self.sum_ns += time_ns * times
        self.max_ns = max(self.max_ns, time_ns)

    def merge(self, other: Self) -> None:
        """Count what another has counted."""
        for step, times in other.counts.items():
            self.counts[step] = self.counts.get(step, 0) + times
        self.count += other.count
        self.sum_ns += other.sum_ns
        self.max_ns = max(self.max_ns, other.max_ns)

    def at(self, share: float) -> float:
        """Return the seconds within which this share was done, 0 if there is nothing."""
        left = share * self.count
        for step in sorted(self.counts):
            left -= self.counts[step]
            if left <= 0:
                return step / _NANOS
        return self.max_ns / _NANOS

    def summary_ms(self) -> dict[str, float]:
        """Return mean, percentiles and maximum in milliseconds."""
        mean_ms = self.sum_ns / max(1, self.count) / 1e6
        some = {name: self.at(share) * 1e3 for name, share in PERCENTILES.items()}
        return {"avg_ms": mean_ms, **_named(some), "max_ms": self.max_ns / 1e6}


def _named(values: dict[str, float]) -> dict[str, float]:
    return {f"{name}_ms": value for name, value in values.items()}


# --- two protocols --------------------------------------------------------------------------------


GET, SET, INCR, TOUCH, DEL, PING = "get", "set", "incr", "touch", "del", "ping"
TESTS = (GET, SET, INCR, TOUCH, DEL, PING)

#: Reasons beside the words of a refusal.
DONE, MISSING = "", "missing"

#: One request: what comes before the value, and the value.
Request = tuple[bytes, bytes]

#: How many replies there were to requests of a test, by what they say.
Replies = dict[tuple[str, str], int]

_LOGIN_LINE_MAX = 4_096

_OPCODES = {
    GET: Opcode.GET,
    SET: Opcode.SET,
    INCR: Opcode.INCREMENT,
    TOUCH: Opcode.TOUCH,
    DEL: Opcode.DELETE,
    PING: Opcode.NOOP,
}

#: Lines of the text protocol: requests, their first bytes, and what replies mean.
_LINES = {
    GET: b"get %(key)s\r\n",
    SET: b"set %(key)s 0 %(expiry)d %(bytes)d\r\n",
    INCR: b"ma %(key)s N%(expiry)d J0 D1\r\n",
    TOUCH: b"touch %(key)s %(expiry)d\r\n",
    DEL: b"delete %(key)s\r\n",
    PING: b"mn\r\n",
}
_BEGINNINGS = {line[:2]: test for test, line in _LINES.items()}
_REASONS = {
    **dict.fromkeys((b"STORED", b"HD", b"MN", b"TOUCHED", b"DELETED"), DONE),
    **dict.fromkeys((b"END", b"NOT_FOUND", b"NF"), MISSING),
}
_REFUSALS = (b"SERVER_ERROR", b"CLIENT_ERROR", b"ERROR", b"NOT_STORED", b"NS")
_VALUE, _END = b"VALUE ", b"\r\nEND\r\n"


class BenchWire(Protocol):
    """What the generator needs of a protocol."""

    def connected(self, access: NodeAccess) -> NodeConnection:
        """Connect and log in; raises `NodeError`."""

    def request(self, test: str, key: bytes, value: bytes, expiry: int) -> Request:
        """Return a request."""

    def take(self, buffer: bytearray, sent: Sequence[Request]) -> Replies:
        """Take complete replies out of a buffer; raises `ValueError` for what is none.

        Args:
            sent: requests that are not answered yet.
        """


class Binary:
    """The binary protocol, to the listener that was named."""

    def __init__(self, vbuckets: int) -> None:
        self._vbuckets = vbuckets
        self._tests = {int(opcode): test for test, opcode in _OPCODES.items()}

    def connected(self, access: NodeAccess) -> NodeConnection:
        """See `BenchWire`."""
        return access.connected()

    def request(self, test: str, key: bytes, value: bytes, expiry: int) -> Request:
        """See `BenchWire`."""
        extras = {
            SET: STORE_EXTRAS.pack(0, expiry),
            INCR: ARITHMETIC_EXTRAS.pack(1, 0, expiry),
            TOUCH: TOUCH_EXTRAS.pack(expiry),
        }.get(test, b"")
        body_bytes = len(extras) + len(key) + len(value)
        where = vbucket_of(key, self._vbuckets) if key else 0
        head = pack_request(
            MAGIC_REQUEST,
            _OPCODES[test],
            *(len(key), len(extras), 0, where, body_bytes, 0, 0),
        )
        return head + extras + key, value

    def take(self, buffer: bytearray, sent: Sequence[Request]) -> Replies:
        """See `BenchWire`."""
        found: dict[tuple[int, int], int] = {}
        texts: dict[int, str] = {}
        at, end = 0, len(buffer)
        while end - at >= HEADER_BYTES:
            magic, opcode, _, _, _, status, body_bytes, _, _ = unpack_response(buffer, at)
            if magic != MAGIC_RESPONSE:
                raise ValueError(magic)
            if at + HEADER_BYTES + body_bytes > end:
                break
            at += HEADER_BYTES + body_bytes
            if status and status not in texts:
                texts[status] = buffer[at - body_bytes : at].decode("utf-8", "replace")
            kind = opcode, status
            found[kind] = found.get(kind, 0) + 1
        del buffer[:at]
        return {
            (
                self._tests.get(opcode, f"opcode {opcode}"),
                _reason(status, texts.get(status, "")),
            ): times
            for (opcode, status), times in found.items()
        }


@lru_cache
def _reason(status: int, text: str) -> str:
    if status == Status.KEY_NOT_FOUND:
        return MISSING
    if text.isprintable() and text:
        return f"{text} ({status:04x})"
    return status_text(status) if status else DONE


class Text:
    """The text protocol, to a node's listener for memcached's clients.

    Args:
        place: of that listener.
    """

    def __init__(self, place: str) -> None:
        self._place = place

    def connected(self, access: NodeAccess) -> NodeConnection:
        """See `BenchWire`; the password goes in clear, so only where nobody can listen."""
        credentials = access.credentials
        if credentials and not (access.tls or parsed(self._place).is_local):
            raise NodeError(
                f"{self._place}: the text protocol sends passwords in clear: use TLS, "
                "or leave --text out"
            )
        connection = NodeConnection(self._place, access.timeout_s, access.tls)
        try:
            if credentials:
                data = f"{credentials.username} {credentials.password}".encode()
                connection.send_some(memoryview(b"set login 0 0 %d\r\n%s\r\n" % (len(data), data)))
                said = b""
                while b"\n" not in said and len(said) < _LOGIN_LINE_MAX:
                    said += connection.receive_some(_LOGIN_LINE_MAX)
                if said != b"STORED\r\n":
                    words = said.decode("latin-1").strip()
                    raise NodeError(f"the node at {self._place} refuses the login: {words}")
        except BaseException:
            connection.close()
            raise
        return connection

    def request(self, test: str, key: bytes, value: bytes, expiry: int) -> Request:
        """See `BenchWire`."""
        fields = {b"key": key, b"expiry": expiry, b"bytes": len(value)}
        return _LINES[test] % fields, value + b"\r\n" if test == SET else b""

    def take(self, buffer: bytearray, sent: Sequence[Request]) -> Replies:
        """See `BenchWire`."""
        found: Replies = {}
        at = 0
        for head, _ in sent:
            end = buffer.find(b"\r\n", at)
            if end < 0:
                break
            line = bytes(buffer[at:end])
            after, reason = end + 2, _REASONS.get(line)
            if line.startswith(_VALUE):
                last = end + 2 + int(line.rsplit(b" ", 1)[1])
                after, reason = last + len(_END), DONE
                if after > len(buffer):
                    break
                if buffer[last:after] != _END:
                    raise ValueError(line)
            elif reason is None:
                if not line.startswith(_REFUSALS):
                    raise ValueError(line)
                reason = line.decode("latin-1")
            at = after
            kind = _BEGINNINGS[head[:2]], reason
            found[kind] = found.get(kind, 0) + 1
        del buffer[:at]
        return found


# --- the load -------------------------------------------------------------------------------------


#: So many requests are kept ready.
_READY_REQUESTS = 400_000

_READ_BYTES = 256 * 1024

#: Requests of a batch that loads or deletes.
_LOAD_DEPTH = 64

#: Digits of a key's number.
_DIGITS = 10

#: Keys of counters have this in place of the first digit.
_COUNTER = b"n"


@dataclass(frozen=True)
class Plan:
    """What is asked for."""

    connections: int  # how many, each with its own batch
    depth: int  # requests of a batch
    requests: int  # how many in all, 0 = as many as fit into `duration_s`
    duration_s: float  # for how long, 0 = until all requests are done
    sets: float  # which share of them are sets, of a mixture of gets and sets
    prefix: bytes  # what keys begin with
    keys: int  # how many keys there are
    value: bytes  # of each document
    expiry: int  # of each document, as a node takes it
    seed: int  # of the choice of keys and commands
    test: str = ""  # the only command that is sent, empty = a mixture


@dataclass
class BenchOutcome:
    """What came of it."""

    elapsed_s: float = 0.0  # from the first request to the last reply
    waited_s: float = 0.0  # how much of that the generator had nothing to do but wait for the node
    latencies: dict[str, Latencies] = field(default_factory=dict)  # by command
    misses: int = 0  # requests for documents that do not exist
    # how often the node refused, by its reason.
    refused: Counter[str] = field(default_factory=Counter)
    error: str = ""  # why it ended early
    interrupted: bool = False  # it was ended with Ctrl-C

    def add(self, test: str, reason: str, time_ns: int, times: int) -> None:
        """Count replies of one kind that came together."""
        self.latencies.setdefault(test, Latencies()).add(time_ns, times)
        if reason == MISSING:
            self.misses += times
        elif reason:
            self.refused[reason] += times

    def merge(self, other: BenchOutcome) -> None:
        """Add what another process did meanwhile."""
        self.elapsed_s = max(self.elapsed_s, other.elapsed_s)
        self.waited_s = max(self.waited_s, other.waited_s)
        for test, latencies in other.latencies.items():
            self.latencies.setdefault(test, Latencies()).merge(latencies)
        self.misses += other.misses
        self.refused += other.refused
        self.error = self.error or other.error
        self.interrupted |= other.interrupted


class Frames:
    """Requests for numbered keys, of those vBuckets that the node has active."""

    def __init__(self, plan: Plan, vbuckets: int, active: frozenset[int], wire: BenchWire) -> None:
        self._plan = plan
        self.wire = wire
        self._of = lru_cache(_READY_REQUESTS)(self._made)
        everything = range(plan.keys)
        self.numbers: Sequence[int] = (
            everything
            if len(active) == vbuckets
            else [
                number for number in everything if vbucket_of(self._key(number), vbuckets) in active
            ]
        )

    def chosen(self, random: Random, test: str) -> Iterator[Request]:
        """Yield random requests without end: of one command, or a mixture."""
        draw, sets, numbers, of = random.random, self._plan.sets, self.numbers, self._of
        count = len(numbers)
        while test:
            yield of(test, numbers[int(draw() * count)])
        while True:
            number = numbers[int(draw() * count)]
            yield of(SET if draw() < sets else GET, number)

    def stored(self) -> Iterator[Request]:
        """Yield a set for each key."""
        return (self._of(SET, number) for number in self.numbers)

    def deleted(self, *, counters: bool) -> Iterator[Request]:
        """Yield a deletion for each key, and of each counter."""
        for number in self.numbers:
            yield self.wire.request(DEL, self._key(number), b"", 0)
            if counters:
                yield self.wire.request(DEL, self._counter(number), b"", 0)

    def _made(self, test: str, number: int) -> Request:
        key = b"" if test == PING else self._key(number)
        if test == INCR:
            key = self._counter(number)
        value = self._plan.value if test == SET else b""
        return self.wire.request(test, key, value, self._plan.expiry)

    def _key(self, number: int) -> bytes:
        return b"%s%0*d" % (self._plan.prefix, _DIGITS, number)

    def _counter(self, number: int) -> bytes:
        return b"%s%s%0*d" % (self._plan.prefix, _COUNTER, _DIGITS - 1, number)


def frames_for(connection: NodeConnection, plan: Plan, *, text: bool = False) -> Frames:
    """Ask a node for its vBuckets, and of text, for the listener; raises `NodeError`."""
    directory = Directory([connection.place], learns=False)
    conduct(directory.survey(), partial(put, connection=connection))
    for silent in directory.silent.values():
        raise NodeError(silent.words)
    vbuckets, active = directory.vbuckets, frozenset(directory.claimed())
    if not vbuckets:
        raise NodeError(f"the node at {connection.place} does not tell its vBuckets")
    frames = Frames(plan, vbuckets, active, _text(connection) if text else Binary(vbuckets))
    if not frames.numbers:
        raise NodeError(
            f"none of the keys belong to a vBucket that is active at {connection.place}"
        )
    return frames


def _text(connection: NodeConnection) -> Text:
    place = about(connection).memcached
    if not place:
        raise NodeError(
            f"the node at {connection.place} does not tell a listener for the text protocol: "
            "leave --text out"
        )
    return Text(place)


class _Line:
    """One connection with the batch that is on its way."""

    def __init__(self, connection: NodeConnection, wire: BenchWire) -> None:
        self.connection = connection
        self.outstanding = 0
        self._wire = wire
        self._sent: Sequence[Request] = ()
        self._sent_ns = 0
        self._buffer = bytearray()

    def send(self, requests: Sequence[Request]) -> None:
        """Send a batch."""
        data = memoryview(b"".join([part for request in requests for part in request]))
        self._sent, self.outstanding = requests, len(requests)
        self._sent_ns = time.perf_counter_ns()
        while data:
            data = data[self.connection.send_some(data) :]

    def receive(self, outcome: BenchOutcome) -> None:
        """Wait for replies, and count them."""
        self._buffer += self.connection.receive_some(_READ_BYTES)
        took_ns = time.perf_counter_ns() - self._sent_ns
        place = self.connection.place
        try:
            found = self._wire.take(self._buffer, self._sent[len(self._sent) - self.outstanding :])
        except ValueError:
            raise NodeError(f"what answers at {place} is no node of ours") from None
        for (test, reason), times in found.items():
            outcome.add(test, reason, took_ns, times)
        self.outstanding -= sum(found.values())
        if self.outstanding < 0 or (self._buffer and not self.outstanding):
            raise NodeError(f"the node at {place} answers more than it is asked")


def run(access: NodeAccess, plan: Plan, frames: Frames, seed: int) -> BenchOutcome:
    """Put a node under load until the plan is done, the node is lost, or Ctrl-C."""
    outcome, left = BenchOutcome(), plan.requests
    requests = frames.chosen(Random(seed), plan.test)
    deadline = time.monotonic() + plan.duration_s if plan.duration_s else None
    endless = not plan.requests

    def batch() -> list[Request]:
        nonlocal left
        if deadline is not None and time.monotonic() >= deadline:
            return []
        size = plan.depth if endless else min(plan.depth, left)
        left -= size
        return list(islice(requests, size))

    with ExitStack() as stack:
        try:
            wire = frames.wire
            lines = [
                _Line(stack.enter_context(wire.connected(access)), wire)
                for _ in range(plan.connections)
            ]
            _drive(lines, batch, outcome, access)
        except NodeError as error:
            outcome.error = str(error)
    return outcome


def _drive(
    lines: Iterable[_Line],
    batch: Callable[[], list[Request]],
    outcome: BenchOutcome,
    access: NodeAccess,
) -> None:
    """Keep a batch on its way on every connection until there are no more."""
    began_s = time.perf_counter()
    with selectors.DefaultSelector() as ready:
        try:
            for line in lines:
                if some := batch():
                    line.send(some)
                    ready.register(line.connection, selectors.EVENT_READ, line)
            while ready.get_map():
                _turn(ready, batch, outcome, access)
        except KeyboardInterrupt:
            outcome.interrupted = True
        finally:
            outcome.elapsed_s = time.perf_counter() - began_s


def _turn(
    ready: selectors.BaseSelector,
    batch: Callable[[], list[Request]],
    outcome: BenchOutcome,
    access: NodeAccess,
) -> None:
    """Wait for replies; a connection whose batch is complete gets the next one."""
    began_s = time.perf_counter()
    found = ready.select(access.timeout_s)
    outcome.waited_s += time.perf_counter() - began_s
    if not found:
        raise NodeError(f"the node at {access.place} says nothing for {access.timeout_s:g} s")
    for key, _ in found:
        line: _Line = key.data
        line.receive(outcome)
        if line.outstanding:
            continue
        if some := batch():
            line.send(some)
        else:
            ready.unregister(line.connection)


def passed(access: NodeAccess, frames: Frames, requests: Iterator[Request]) -> BenchOutcome:
    """Send requests that are not measured: those that load and delete."""
    outcome = BenchOutcome()
    with frames.wire.connected(access) as connection:
        line = _Line(connection, frames.wire)
        while some := list(islice(requests, _LOAD_DEPTH)):
            line.send(some)
            while line.outstanding:
                line.receive(outcome)
    return outcome


# --- several processes: one alone uses one core ---------------------------------------------------


@dataclass(frozen=True)
class _Work:
    access: NodeAccess
    frames: Frames
    plan: Plan

    def __call__(self) -> BenchOutcome:
        return run(self.access, self.plan, self.frames, self.plan.seed)


def run_all(access: NodeAccess, plans: list[Plan], frames: Frames) -> BenchOutcome:
    """Run each plan in a process of its own, the first in this one, and add their outcomes."""
    forked = get_context("fork")  # credentials and TLS contexts cannot be sent to a process
    children = []
    for plan in plans[1:]:
        here, there = forked.Pipe(duplex=False)
        child = forked.Process(target=_sent, args=(there, _Work(access, frames, plan)), daemon=True)
        child.start()
        there.close()
        children.append((child, here))
    outcome = _Work(access, frames, plans[0])()
    for child, here in children:
        outcome.merge(_received(here))
        child.join()
    return outcome


def _sent(there: Connection, work: Callable[[], BenchOutcome]) -> None:
    there.send(work())


def _received(here: Connection) -> BenchOutcome:
    try:
        found: BenchOutcome = here.recv()
    except EOFError:
        return BenchOutcome(error="a process of the load generator was killed")
    return found
