"""Requests as fast as a node takes them, over several connections from one process.

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
from functools import lru_cache
from itertools import islice
from random import Random

from uprmc.cli.about_node import about
from uprmc.cli.bench_wire import DEL, GET, INCR, MISSING, PING, SET, Binary, Request, Text, Wire
from uprmc.cli.latencies import Latencies
from uprmc.cli.node_access import NodeAccess
from uprmc.client.connection import NodeConnection, NodeError
from uprmc.model import VBucketState, vbucket_of
from uprmc.protocol.header import RequestFrame
from uprmc.protocol.management import VBUCKET_SEQNOS_EXTRAS, decode_vbucket_seqnos
from uprmc.protocol.opcodes import Opcode

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
    """What is asked for.

    Attributes:
        connections: how many, each with its own batch.
        depth: requests of a batch.
        requests: how many in all, 0 = as many as fit into `duration_s`.
        duration_s: for how long, 0 = until all requests are done.
        sets: which share of them are sets, of a mixture of gets and sets.
        prefix: what keys begin with.
        keys: how many keys there are.
        value: of each document.
        expiry: of each document, as a node takes it.
        seed: of the choice of keys and commands.
        test: the only command that is sent, empty = a mixture.
    """

    connections: int
    depth: int
    requests: int
    duration_s: float
    sets: float
    prefix: bytes
    keys: int
    value: bytes
    expiry: int
    seed: int
    test: str = ""


@dataclass
class Outcome:
    """What came of it.

    Attributes:
        elapsed_s: from the first request to the last reply.
        waited_s: how much of that the generator had nothing to do but wait for the node.
        latencies: by command.
        misses: requests for documents that do not exist.
        refused: how often the node refused, by its reason.
        error: why it ended early.
        interrupted: it was ended with Ctrl-C.
    """

    elapsed_s: float = 0.0
    waited_s: float = 0.0
    latencies: dict[str, Latencies] = field(default_factory=dict)
    misses: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    error: str = ""
    interrupted: bool = False

    def add(self, test: str, reason: str, time_ns: int, times: int) -> None:
        """Count replies of one kind that came together."""
        self.latencies.setdefault(test, Latencies()).add(time_ns, times)
        if reason == MISSING:
            self.misses += times
        elif reason:
            self.refused[reason] += times

    def merge(self, other: Outcome) -> None:
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

    def __init__(self, plan: Plan, vbuckets: int, active: frozenset[int], wire: Wire) -> None:
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
    extras = VBUCKET_SEQNOS_EXTRAS.pack(VBucketState.ACTIVE)
    seqnos = connection.ask(RequestFrame(Opcode.GET_ALL_VB_SEQNOS, extras=extras))
    vbuckets = connection.vbuckets()
    if seqnos.status or not vbuckets:
        why = f": {seqnos.reason}" if seqnos.status else ""
        raise NodeError(f"the node at {connection.place} does not tell its vBuckets{why}")
    active = frozenset(number for number, _ in decode_vbucket_seqnos(seqnos.value))
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

    def __init__(self, connection: NodeConnection, wire: Wire) -> None:
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

    def receive(self, outcome: Outcome) -> None:
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


def run(access: NodeAccess, plan: Plan, frames: Frames, seed: int) -> Outcome:
    """Put a node under load until the plan is done, the node is lost, or Ctrl-C."""
    outcome, left = Outcome(), plan.requests
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
    outcome: Outcome,
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
    outcome: Outcome,
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


def passed(access: NodeAccess, frames: Frames, requests: Iterator[Request]) -> Outcome:
    """Send requests that are not measured: those that load and delete."""
    outcome = Outcome()
    with frames.wire.connected(access) as connection:
        line = _Line(connection, frames.wire)
        while some := list(islice(requests, _LOAD_DEPTH)):
            line.send(some)
            while line.outstanding:
                line.receive(outcome)
    return outcome
