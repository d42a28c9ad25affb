"""Writes without end, on one node or two, that remembers what was acknowledged.

A `Load` is a thread that stores and deletes documents at a rate, in small pipelined batches, on
connections of its own. Every acknowledgement names the seqno and the history that the change got
(mutation tokens). It lives with everything that may happen to a node: a lost connection is dialled
again, what was under way then may or may not have had an effect; a node that is not there, or not
responsible any more, is left for the other one, and the change is sent there.

A key is written by one thread only and each value is different, so a value names its write.
"""

from __future__ import annotations

import contextlib
import struct
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from types import TracebackType
from typing import NamedTuple

from interop import wire as w
from interop.comparison import HELLO, TEMPORARY_FAILURE, Holding, Version
from interop.replica_pair import Log
from interop.server_process import Address
from interop.upr_wire import NOT_MY_VBUCKET
from interop.wire import ClosedError, Reply, Wire, frame, store

_MUTATION_SEQNO = 0x04
_PAUSE_S = 0.002
_BATCH_S = 0.01  # so much of the rate is one batch
_UNLIMITED_BATCH = 100


class Acknowledged(NamedTuple):
    """A change that a node said it has carried out; ``value`` is ``None`` for a deletion."""

    vbucket: int
    key: bytes
    value: bytes | None
    flags: int
    cas: int
    seqno: int
    uuid: int


@dataclass(slots=True)
class _Change:
    vbucket: int
    key: bytes
    value: bytes | None
    flags: int
    expiration: int

    def request(self) -> bytes:
        if self.value is None:
            return frame(w.DELETE, self.key, vbucket=self.vbucket)
        return store(
            w.SET,
            self.key,
            self.value,
            flags=self.flags,
            expiration=self.expiration,
            vbucket=self.vbucket,
        )


@dataclass(slots=True)
class Outage:
    """How long a vBucket took no writes: from the first refusal to the next acknowledgement."""

    longest_s: float = 0.0
    since: float | None = field(default=None)


class Load(threading.Thread):
    """Use it in a ``with`` statement: it writes from entering to leaving, or to `finish`.

    Attributes:
        acknowledged: in the order of acknowledgement.
        sent: every value that was ever on its way, by (vBucket, key); ``None`` is a deletion.
        outages: by vBucket, of those that refused a write.
        broken: connections lost so far.
    """

    def __init__(
        self,
        nodes: Sequence[Address],
        vbuckets: int,
        *,
        rate: float | None = None,
        keys: int = 2_000,
        seed: int = 1,
        value_bytes: int = 120,
        deletions: float = 0.15,
        expiring: float = 0.1,
    ) -> None:
        super().__init__(name="load", daemon=True)
        self.acknowledged: list[Acknowledged] = []
        self.sent: dict[tuple[int, bytes], set[bytes | None]] = {}
        self.outages: dict[int, Outage] = {}
        self.broken = 0
        self._nodes = list(nodes)
        self._vbuckets = vbuckets
        self._rate = rate
        self._seed, self._random = seed, Random(seed)
        self._keys = [(n % vbuckets, b"load-%d" % n) for n in range(keys)]
        self._value_bytes = value_bytes
        self._deletions, self._expiring = deletions, expiring
        self._route = [0] * vbuckets
        self._wires: list[Wire | None] = [None] * len(self._nodes)
        self._version = 0
        self._again: list[_Change] = []
        self._ending = threading.Event()
        self._paused = threading.Event()
        self._resumed = threading.Event()
        self._idle = threading.Event()
        self._failure: BaseException | None = None

    def finish(self) -> None:
        """Stop writing; raises what went wrong in the thread, if anything did."""
        self._ending.set()
        self._resumed.set()
        self.join(60)
        assert not self.is_alive(), "the load did not end"
        if self._failure:
            raise self._failure

    def pause(self) -> None:
        """Stop writing; when this returns nothing is under way."""
        self._resumed.clear()
        self._idle.clear()
        self._paused.set()
        assert self._idle.wait(60) or self._failure, "the load did not pause"

    def resume(self) -> None:
        self._paused.clear()
        self._resumed.set()

    def __enter__(self) -> Load:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.finish()
        else:
            with contextlib.suppress(BaseException):
                self.finish()

    # --- the thread -----------------------------------------------------------------------------

    def run(self) -> None:
        began, made = time.monotonic(), 0
        try:
            while not self._ending.is_set():
                if self._paused.is_set():
                    self._idle.set()
                    self._resumed.wait(1.0)
                    began, made = time.monotonic(), 0
                    continue
                count = self._count(time.monotonic() - began, made)
                made += count
                changes = [*self._again, *(self._change() for _ in range(count))]
                self._again = []
                if not changes or not self._write(changes):
                    self._ending.wait(_PAUSE_S)
        except BaseException as error:
            self._failure = error
        finally:
            self._idle.set()
            for wire in self._wires:
                if wire:
                    wire.close()

    def _count(self, elapsed: float, made: int) -> int:
        """How many changes are due."""
        if self._rate is None:
            return _UNLIMITED_BATCH if not self._again else 0
        due = int(elapsed * self._rate) - made
        return min(due, max(1, int(self._rate * _BATCH_S)) * 5) if not self._again else 0

    def _change(self) -> _Change:
        random = self._random
        # A few keys take a third of all writes.
        vbucket, key = random.choice(self._keys if random.random() > 0.3 else self._keys[:50])
        self._version += 1
        value = None
        if random.random() >= self._deletions:
            value = (b"%s #%d.%d " % (key, self._seed, self._version)).ljust(
                random.randrange(self._value_bytes)
            )
        expiration = 3_600 if random.random() < self._expiring else 0
        return _Change(vbucket, key, value, self._version % 1_000, expiration)

    def _write(self, changes: list[_Change]) -> bool:
        """Send changes and read what is answered; ``False``: a pause would do good."""
        fine = True
        for number in range(len(self._nodes)):
            mine = [each for each in changes if self._route[each.vbucket] == number]
            changes = [each for each in changes if self._route[each.vbucket] != number]
            if mine and not self._write_to(number, mine):
                fine = False
        self._again.extend(changes)  # whose route has changed meanwhile
        return fine

    def _write_to(self, number: int, changes: list[_Change]) -> bool:
        try:
            wire = self._wires[number] or self._connect(number)
        except (OSError, ClosedError, AssertionError):
            self._again.extend(changes)
            self._leave(number, changes)
            return False
        for each in changes:
            self.sent.setdefault((each.vbucket, each.key), set()).add(each.value)
        fine = True
        try:
            wire.send(*(each.request() for each in changes))
            for each in changes:
                fine &= self._answered(number, each, wire.reply())
        except (OSError, ClosedError):
            self.broken += 1
            wire.close()
            self._wires[number] = None
            return False
        return fine

    def _connect(self, number: int) -> Wire:
        wire = Wire(self._nodes[number], timeout_s=30)
        try:
            features = struct.pack(">H", _MUTATION_SEQNO)
            assert wire.ask(frame(HELLO, b"load", features)).value == features
        except BaseException:
            wire.close()
            raise
        self._wires[number] = wire
        return wire

    def _answered(self, number: int, change: _Change, reply: Reply) -> bool:
        if reply.status == w.OK:
            uuid, seqno = struct.unpack(">QQ", reply.extras)
            self.acknowledged.append(
                Acknowledged(
                    change.vbucket, change.key, change.value, change.flags, reply.cas, seqno, uuid
                )
            )
            self._works_again(change.vbucket)
            return True
        if reply.status == w.NOT_FOUND and change.value is None:
            self._works_again(change.vbucket)
            return True
        assert reply.status in (NOT_MY_VBUCKET, TEMPORARY_FAILURE), (change, reply)
        outage = self.outages.setdefault(change.vbucket, Outage())
        if outage.since is None:
            outage.since = time.monotonic()
        if reply.status == NOT_MY_VBUCKET:
            self._leave(number, [change])
        self._again.append(change)
        return False

    def _leave(self, number: int, changes: list[_Change]) -> None:
        """Try the next node for what this one does not take."""
        for each in changes:
            if self._route[each.vbucket] == number:
                self._route[each.vbucket] = (number + 1) % len(self._nodes)

    def _works_again(self, vbucket: int) -> None:
        outage = self.outages.get(vbucket)
        if outage and outage.since is not None:
            outage.longest_s = max(outage.longest_s, time.monotonic() - outage.since)
            outage.since = None


# --- judging ------------------------------------------------------------------------------------


def lost(loads: Sequence[Load], held: Holding, logs: Mapping[int, Log]) -> list[str]:
    """What a node should hold of loads that followed one another, and does not.

    Its failover logs say which of the acknowledged changes belong to the histories it went through.
    Those have to be there, or a later change of the same key. A change that was under way may be
    there or not; one that never was sent must not be.
    """
    complaints = []
    newest: dict[tuple[int, bytes], Acknowledged] = {}
    by_seqno: dict[tuple[int, int], Acknowledged] = {}
    ends = {number: _ends(log) for number, log in logs.items()}
    sent: dict[tuple[int, bytes], set[bytes | None]] = {}
    for load in loads:
        for name, values in load.sent.items():
            sent.setdefault(name, set()).update(values)
    for each in (each for load in loads for each in load.acknowledged):
        if each.seqno <= ends[each.vbucket].get(each.uuid, -1):
            by_seqno[each.vbucket, each.seqno] = newest[each.vbucket, each.key] = each
    for name, promised in newest.items():
        version = held.get(name)
        if version is None or version.seqno < promised.seqno:
            complaints.append(f"{name}: {promised} was promised, {version} is there")
    for name, version in held.items():
        value = version.value if version.is_document else None
        if name in sent and value not in sent[name]:
            complaints.append(f"{name}: {version} was never sent")
        known = by_seqno.get((name[0], version.seqno))
        if known and not _same(known, name, version):
            complaints.append(f"{name}: {known} was acknowledged at this seqno, not {version}")
    return complaints


def _ends(log: Log) -> dict[int, float]:
    """The last seqno of each history, by its uuid; the newest has no end yet."""
    ends, end = {}, float("inf")
    for uuid, since in log:
        ends[uuid] = end
        end = since
    return ends


def _same(known: Acknowledged, name: tuple[int, bytes], version: Version) -> bool:
    if known.key != name[1] or version.is_document != (known.value is not None):
        return False
    return not version.is_document or (known.value, known.flags, known.cas) == (
        version.value,
        version.flags,
        version.cas,
    )
