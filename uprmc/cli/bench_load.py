"""Gets and sets as fast as a node takes them, over several connections from one process.

Each connection sends a batch of requests, waits for all replies, and sends the next. What would
slow the generator down is made once: keys with their vBuckets, and the fixed parts of frames.
"""

from __future__ import annotations

import contextlib
import selectors
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from random import Random

from uprmc.cli.latencies import Latencies
from uprmc.cli.node_access import NodeAccess
from uprmc.client.connection import NodeConnection, NodeError
from uprmc.consume.cluster_map import parsed_map
from uprmc.model import VBucketState, vbucket_of
from uprmc.protocol.binary import STORE_EXTRAS
from uprmc.protocol.header import RequestFrame, pack_request, unpack_response
from uprmc.protocol.management import VBUCKET_SEQNOS_EXTRAS, decode_vbucket_seqnos
from uprmc.protocol.opcodes import HEADER_BYTES, MAGIC_REQUEST, MAGIC_RESPONSE, Opcode, Status

#: Keys whose frames are kept ready.
_READY_KEYS = 200_000

_READ_BYTES = 256 * 1024

#: Requests of a batch that loads or deletes.
_LOAD_DEPTH = 64

#: Digits of a key's number.
_DIGITS = 10

GET, SET, DELETE = int(Opcode.GET), int(Opcode.SET), int(Opcode.DELETE)

#: One request: its opcode, and its parts.
_Request = tuple[bytes, bytes]


@dataclass(frozen=True)
class Plan:
    """What is asked for.

    Attributes:
        connections: how many, each with its own batch.
        depth: requests of a batch.
        requests: how many in all, 0 = as many as fit into `duration_s`.
        duration_s: for how long, 0 = until all requests are done.
        sets: which share of them are sets.
        prefix: what keys begin with.
        keys: how many keys there are.
        value: of each document.
        expiry: of each document, as a node takes it.
        seed: of the choice of keys and commands.
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


@dataclass
class Outcome:
    """What came of it.

    Attributes:
        elapsed_s: from the first request to the last reply.
        waited_s: how much of that the generator had nothing to do but wait for the node.
        latencies: of gets and sets by opcode.
        misses: gets of documents that do not exist.
        refused: how often the node refused, by status.
        error: why it ended early.
    """

    elapsed_s: float = 0.0
    waited_s: float = 0.0
    latencies: dict[int, Latencies] = field(default_factory=dict)
    misses: int = 0
    refused: Counter[int] = field(default_factory=Counter)
    error: str = ""

    def add(self, opcode: int, status: int, time_ns: int, times: int) -> None:
        """Count replies of one kind that came together."""
        self.latencies.setdefault(opcode, Latencies()).add(time_ns, times)
        if status == Status.KEY_NOT_FOUND:
            self.misses += times
        elif status:
            self.refused[status] += times

    def merge(self, other: Outcome) -> None:
        """Add what another process did meanwhile."""
        self.elapsed_s = max(self.elapsed_s, other.elapsed_s)
        self.waited_s = max(self.waited_s, other.waited_s)
        for opcode, latencies in other.latencies.items():
            self.latencies.setdefault(opcode, Latencies()).merge(latencies)
        self.misses += other.misses
        self.refused += other.refused
        self.error = self.error or other.error


class Frames:
    """Requests for numbered keys, of those vBuckets that the node has active."""

    def __init__(self, plan: Plan, vbuckets: int, active: frozenset[int]) -> None:
        self._plan = plan
        self._vbuckets = vbuckets
        self._extras = STORE_EXTRAS.pack(0, plan.expiry)
        self._of = lru_cache(_READY_KEYS)(self._made)
        everything = range(plan.keys)
        self.numbers: Sequence[int] = (
            everything
            if len(active) == vbuckets
            else [number for number in everything if self._vbucket(self._key(number)) in active]
        )

    def chosen(self, random: Random) -> Iterator[_Request]:
        """Yield the parts of random requests without end."""
        draw, sets, numbers, frames = random.random, self._plan.sets, self.numbers, self._of
        count, value = len(numbers), self._plan.value
        while True:
            get, store = frames(numbers[int(draw() * count)])
            yield (store, value) if draw() < sets else (get, b"")

    def stored(self) -> Iterator[_Request]:
        """Yield a set for each key."""
        return ((self._of(number)[1], self._plan.value) for number in self.numbers)

    def deleted(self) -> Iterator[_Request]:
        """Yield a deletion for each key."""
        return ((self._frame(DELETE, self._key(number), b"", 0), b"") for number in self.numbers)

    def _made(self, number: int) -> tuple[bytes, bytes]:
        key = self._key(number)
        store = self._frame(SET, key, self._extras, len(self._plan.value))
        return self._frame(GET, key, b"", 0), store

    def _key(self, number: int) -> bytes:
        return b"%s%0*d" % (self._plan.prefix, _DIGITS, number)

    def _vbucket(self, key: bytes) -> int:
        return vbucket_of(key, self._vbuckets)

    def _frame(self, opcode: int, key: bytes, extras: bytes, value_bytes: int) -> bytes:
        body_bytes = len(extras) + len(key) + value_bytes
        where, sizes = self._vbucket(key), (len(key), len(extras))
        head = pack_request(MAGIC_REQUEST, opcode, *sizes, 0, where, body_bytes, 0, 0)
        return head + extras + key


def frames_for(connection: NodeConnection, plan: Plan) -> Frames:
    """Ask a node for its vBuckets; raises `NodeError` if it has none of the keys."""
    answer = connection.ask(RequestFrame(Opcode.GET_CLUSTER_CONFIG))
    extras = VBUCKET_SEQNOS_EXTRAS.pack(VBucketState.ACTIVE)
    seqnos = connection.ask(RequestFrame(Opcode.GET_ALL_VB_SEQNOS, extras=extras))
    for each in (answer, seqnos):
        if each.status:
            raise NodeError(
                f"the node at {connection.place} does not tell its vBuckets: {each.reason}"
            )
    try:
        vbuckets = parsed_map(answer.value).vbuckets
    except ValueError as error:
        raise NodeError(f"the node at {connection.place} has {error}") from None
    active = frozenset(number for number, _ in decode_vbucket_seqnos(seqnos.value))
    frames = Frames(plan, vbuckets, active)
    if not frames.numbers:
        raise NodeError(
            f"none of the keys belong to a vBucket that is active at {connection.place}"
        )
    return frames


class _Line:
    """One connection with the batch that is on its way."""

    def __init__(self, connection: NodeConnection) -> None:
        self.connection = connection
        self.outstanding = 0
        self._sent_ns = 0
        self._buffer = bytearray()

    def send(self, requests: Sequence[_Request]) -> None:
        """Send a batch."""
        data = memoryview(b"".join([part for request in requests for part in request]))
        self.outstanding = len(requests)
        self._sent_ns = time.perf_counter_ns()
        while data:
            data = data[self.connection.send_some(data) :]

    def receive(self, outcome: Outcome) -> int:
        """Wait for replies, count them, and return how many there were."""
        self._buffer += self.connection.receive_some(_READ_BYTES)
        took_ns = time.perf_counter_ns() - self._sent_ns
        found = self._replies()
        for (opcode, status), times in found.items():
            outcome.add(opcode, status, took_ns, times)
        count = sum(found.values())
        self.outstanding -= count
        if self.outstanding < 0:
            raise NodeError(f"the node at {self.connection.place} answers more than it is asked")
        return count

    def _replies(self) -> dict[tuple[int, int], int]:
        """Take complete replies from the buffer; return how many of each opcode and status."""
        found: dict[tuple[int, int], int] = {}
        buffer, at, end = self._buffer, 0, len(self._buffer)
        while end - at >= HEADER_BYTES:
            magic, opcode, _, _, _, status, body_bytes, _, _ = unpack_response(buffer, at)
            if magic != MAGIC_RESPONSE:
                raise NodeError(f"what answers at {self.connection.place} is no node of ours")
            if at + HEADER_BYTES + body_bytes > end:
                break
            at += HEADER_BYTES + body_bytes
            kind = opcode, status
            found[kind] = found.get(kind, 0) + 1
        del buffer[:at]
        return found


def run(access: NodeAccess, plan: Plan, frames: Frames, seed: int) -> Outcome:
    """Put a node under load until the plan is done, the node is lost, or Ctrl-C."""
    outcome, left = Outcome(), plan.requests
    requests = frames.chosen(Random(seed))
    deadline = time.monotonic() + plan.duration_s if plan.duration_s else None
    endless = not plan.requests

    def batch() -> list[_Request]:
        nonlocal left
        if deadline is not None and time.monotonic() >= deadline:
            return []
        size = plan.depth if endless else min(plan.depth, left)
        left -= size
        return list(islice(requests, size))

    with ExitStack() as stack:
        try:
            lines = [
                _Line(stack.enter_context(access.connected())) for _ in range(plan.connections)
            ]
            _drive(lines, batch, outcome, access)
        except NodeError as error:
            outcome.error = str(error)
    return outcome


def _drive(
    lines: Iterable[_Line],
    batch: Callable[[], list[_Request]],
    outcome: Outcome,
    access: NodeAccess,
) -> None:
    """Keep a batch on its way on every connection until there are no more."""
    began_s = time.perf_counter()
    with selectors.DefaultSelector() as ready, contextlib.suppress(KeyboardInterrupt):
        try:
            for line in lines:
                if some := batch():
                    line.send(some)
                    ready.register(line.connection, selectors.EVENT_READ, line)
            while ready.get_map():
                _turn(ready, batch, outcome, access)
        finally:
            outcome.elapsed_s = time.perf_counter() - began_s


def _turn(
    ready: selectors.BaseSelector,
    batch: Callable[[], list[_Request]],
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


def passed(connection: NodeConnection, requests: Iterator[_Request]) -> Outcome:
    """Send requests that are not measured: those that load and delete."""
    outcome, line = Outcome(), _Line(connection)
    while some := list(islice(requests, _LOAD_DEPTH)):
        line.send(some)
        while line.outstanding:
            line.receive(outcome)
    return outcome
