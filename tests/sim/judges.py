"""Judges: they know what was promised, keep their own books, and share no code with `uprmc`.

They are told what happens (commits, operations, lives of the node) and look at what the node shows;
a judge that finds a promise broken raises `Verdict`. The judge of what clients see of one key is in
`linearity`, the one of how a connection is answered in `client`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn

from tests.sim import codec
from tests.sim.codec import Frame
from tests.sim.world import EPOCH_S, World

# --- what clients did -----------------------------------------------------------------------------
# What clients did and what they were told, in the order in which it happened.
#
# Every operation has the place of its invocation and of its end in one count of events: that order
# is what judges reason about. An operation whose connection ended first has no reply: it may have
# happened before that end, or never.


@dataclass(slots=True, eq=False)
class Op:
    """One operation of one client."""

    kind: str  # ``set``, ``get``, ...; names of this simulation
    key: bytes
    vbucket: int
    client: str
    connection: int
    opcode: int
    opaque: int  # the client's number for it
    value: bytes = b""
    cas: int = 0
    flags: int = 0
    exptime: int = 0
    delta: int = 0
    initial: int = 0
    quiet: bool = False
    lock_status: bool = False
    life: int = 0  # in which life of the node it began
    # began, ended: places in the count of events; `ended` is ``None`` while it is under way
    began: int = 0
    ended: int | None = None
    began_at: float = 0.0  # began_at, ended_at: Unix times of the same
    ended_at: float = 0.0
    reply: Frame | None = None  # what came back; ``None`` for a silent or an unanswered one
    silent: bool = False  # a quiet operation that, by a later reply, is known to have gone as hoped
    uuid: int = 0

    @property
    def answered(self) -> bool:
        """Whether its outcome is known."""
        return self.silent or self.reply is not None

    @property
    def status(self) -> int | None:
        """The outcome; ``None`` if it is not known."""
        if self.reply is not None:
            return self.reply.status
        if self.silent:
            return 0x01 if self.kind == "get" else 0x00
        return None

    def __repr__(self) -> str:
        outcome = f"{self.status:#04x}" if self.answered else "?"
        return (
            f"[{self.began}-{self.ended} {self.client}/{self.connection} {self.kind} {self.key!r} "
            f"{self.value[:24]!r} cas={self.cas} exptime={self.exptime} -> {outcome} {self.reply}]"
        )


class History:
    """All operations of a run, and who wants to know of them."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._count = 0
        self.ops: list[Op] = []
        self.on_begin: list[Callable[[Op], None]] = []
        self.on_end: list[Callable[[Op], None]] = []
        self.life = 0

    def begins(self, op: Op) -> None:
        """An operation is on its way."""
        self._count += 1
        op.began, op.began_at, op.life = self._count, EPOCH_S + self._world.now, self.life
        self.ops.append(op)
        for observer in self.on_begin:
            observer(op)

    def ends(self, op: Op) -> None:
        """Its outcome is known, or never will be."""
        self._count += 1
        op.ended, op.ended_at = self._count, EPOCH_S + self._world.now
        self._world.note(f"{op!r}")
        for observer in self.on_end:
            observer(op)

    def of_life(self, life: int) -> list[Op]:
        """Return the operations begun in one life of the node."""
        return [op for op in self.ops if op.life == life]


# --- judges ---------------------------------------------------------------------------------------


LIVE = 0

#: The state of a vBucket that takes writes.
ACTIVE = 1


class Verdict(AssertionError):
    """A promise is broken."""


@contextmanager
def naming(seed: int, log: Sequence[str], again: str) -> Iterator[None]:
    """Have what is found wrong say its seed, how to run it again, and the last events."""
    try:
        yield
    except AssertionError as error:
        last = "\n".join(log[-30:])
        raise Verdict(f"seed {seed} ({again} {seed}): {error}\nthe last events:\n{last}") from error


def complain(what: str) -> NoReturn:
    """Raise a verdict."""
    raise Verdict(what)


# --- what is on disk ----------------------------------------------------------------------------


#: A record's numbers before and after its key.
_FRONT, _TAIL = struct.Struct(">BBBIBQQ"), struct.Struct(">QI")

#: Where a version was first accepted: between key and tail, if the kind says so.
_ORIGIN, _HAS_ORIGIN = struct.Struct(">QQ"), 0x08


@dataclass(frozen=True, slots=True)
class Record:
    """One version, as it stands in a batch or a store."""

    key: bytes
    value: bytes | None
    flags: int
    expiry: int
    cas: int
    seqno: int
    rev: int
    life: int
    origin: tuple[int, int] | None = None

    @classmethod
    def read(cls, record: bytes) -> Record:
        """Read a packed record, with a layout of our own; one that is `ABSENT` has no value."""
        _, kind, _, expiry, key_length, rev, seqno = _FRONT.unpack_from(record)
        at = _FRONT.size + key_length
        key = record[_FRONT.size : at]
        origin: tuple[int, int] | None = None
        if kind & _HAS_ORIGIN:
            origin = _ORIGIN.unpack_from(record, at)
            at += _ORIGIN.size
        cas, flags = _TAIL.unpack_from(record, at)
        value: bytes | None = record[at + _TAIL.size :]
        if kind & 0x07:
            value = None
        return cls(key, value, flags, expiry, cas, seqno, rev, kind & 0x03, origin)

    @classmethod
    def of(cls, item: Any) -> Record:
        """Copy an item's fields."""
        return cls(
            item.key,
            item.value,
            item.flags,
            item.expiry,
            item.cas,
            item.seqno,
            item.rev,
            int(item.life),
            None if item.origin is None else tuple(item.origin),
        )


@dataclass(frozen=True, slots=True)
class Stored:
    """Everything on a disk: vBucket -> (header, key -> record), and the local documents."""

    vbuckets: dict[int, tuple[Any, dict[bytes, Record]]] = field(default_factory=dict)
    local: dict[bytes, bytes] = field(default_factory=dict)

    def after(self, batch: Any) -> Stored:
        """Return what a batch makes of it."""
        vbuckets = {} if batch.reset_all else dict(self.vbuckets)
        for change in batch.changes:
            _, records = vbuckets.pop(change.vbucket, (None, {}))
            if change.header is None:
                continue
            records = {} if change.reset else dict(records)
            if change.rewind is not None:
                records = {
                    key: each for key, each in records.items() if each.seqno <= change.rewind
                }
            for key in change.forget:
                records.pop(key, None)
            for key, seqno in change.drop:
                if key in records and records[key].seqno == seqno:
                    del records[key]
            new = map(Record.read, change.records)
            records.update((record.key, record) for record in new)
            vbuckets[change.vbucket] = (change.header, records)
        local = dict(self.local)
        for name, document in batch.local.items():
            local.pop(name, None)
            if document is not None:
                local[name] = document
        return Stored(vbuckets, local)


class StoreJudge:
    """A reopened store shows one of the committed states, none older than was promised.

    It also holds every batch to the order of seqnos: one that is written later must be higher,
    unless the vBucket began anew.
    """

    def __init__(self) -> None:
        self.keeps_every_commit = True  # whether each commit is forced to the device
        self.found = Stored()  # what the store showed when it was last reopened
        self._states = [Stored()]  # the synced one first, then what was committed since
        self._begun: Any = None

    @property
    def newest(self) -> Stored:
        """What the disk holds now."""
        return self._states[-1]

    def begins(self, batch: Any) -> None:
        """A commit begins; until it is `committed` a crash may show it or not."""
        self._begun = batch
        for change in batch.changes:
            self._check_change(change)

    def committed(self, batch: Any) -> None:
        self._begun = None
        self._states.append(self.newest.after(batch))
        if self.keeps_every_commit:
            self.synced()

    def synced(self) -> None:
        """Nothing committed until now can be lost any more."""
        del self._states[:-1]

    def reopened(
        self, view: Any, local: Callable[[bytes], bytes | None], *, power_lost: bool
    ) -> None:
        """Judge what a store shows after the end of a process or of power."""
        allowed = list(self._states) if power_lost else [self.newest]
        if self._begun is not None:
            allowed.append(self.newest.after(self._begun))
            self._begun = None
        vbuckets = {
            number: (header, _both_indexes(view, number))
            for number, header in view.headers().items()
        }
        for state in reversed(allowed):
            if state.vbuckets == vbuckets and all(
                local(name) == state.local.get(name)
                for name in {name for each in allowed for name in each.local}
            ):
                # The end of a process alone makes nothing safer against a power loss.
                self._states = [state] if power_lost else [*self._states, state]
                self.found = state
                return
        complain(f"the store shows none of the {len(allowed)} states it may show: {vbuckets}")

    def _check_change(self, change: Any) -> None:
        if change.rewind is not None:
            self._check_rewind(change)
            return
        header, _ = self.newest.vbuckets.get(change.vbucket, (None, {}))
        fresh = header is None or change.reset
        last = 0 if fresh else header.high_seqno
        for item in map(Record.read, change.records):
            if item.seqno <= last:
                complain(f"vBucket {change.vbucket}: {item} is committed after seqno {last}")
            last = item.seqno
        if change.header is None:
            return
        if change.header.high_seqno != last:
            complain(f"vBucket {change.vbucket}: {change.header} is stored with items up to {last}")
        dropped = max((seqno for _, seqno in change.drop), default=0)
        if change.header.purge_seqno < dropped:
            complain(f"vBucket {change.vbucket}: {change.header} drops deletions up to {dropped}")
        if not fresh and change.header.high_seqno < header.high_seqno:
            complain(f"vBucket {change.vbucket}: {change.header} follows {header}")

    def _check_rewind(self, change: Any) -> None:
        """What a replica gets back may lie below what it holds; nothing above the header's end."""
        _, records = self.newest.after(Batch(change)).vbuckets[change.vbucket]
        highest = max((record.seqno for record in records.values()), default=0)
        if change.header.high_seqno < highest:
            complain(f"vBucket {change.vbucket}: {change.header} is stored with items to {highest}")


class Batch:
    """A batch of one change, for `Stored.after`."""

    reset_all = False

    def __init__(self, change: Any) -> None:
        self.changes = [change]
        self.local: dict[bytes, bytes | None] = {}


def _both_indexes(view: Any, number: int) -> dict[bytes, Record]:
    """Return a vBucket's records; by-seq must rise, name a key once, and agree with by-id."""
    records: dict[bytes, Record] = {}
    last = 0
    for item in view.changes_after(number, 0):
        if item.seqno <= last:
            complain(f"vBucket {number}: by-seq has {item.seqno} after {last}")
        last = item.seqno
        if item.key in records:
            complain(f"vBucket {number}: by-seq has {item.key!r} twice")
        records[item.key] = Record.of(item)
    for key, record in records.items():
        stored = view.get(number, key)
        if stored is None or Record.read(stored) != record:
            complain(f"vBucket {number}: by-id has another {key!r} than by-seq")
    return records


# --- histories ----------------------------------------------------------------------------------


def last_complete(header: Any) -> int:
    """Return up to where a stored vBucket is a consistent state: history may only branch there."""
    incomplete = header.high_seqno < header.snapshot.end
    return int(header.snapshot.start if incomplete else header.high_seqno)


def remembered(log: tuple[Any, ...], limit: int) -> tuple[Any, ...]:
    """Return what is left of a failover log of (uuid, seqno).

    Beyond the limit branches go that hold nothing, the oldest first, then the oldest of all; not
    the one before the newest.
    """
    while len(log) > limit:
        empty = [n for n in range(2, len(log)) if log[n][1] == log[n - 1][1]]
        gone = empty[-1] if empty else len(log) - 1
        log = log[:gone] + log[gone + 1 :]
    return log


class BranchJudge:
    """Failover logs: seqnos never rise from newest to oldest; how a life ended leaves a trace."""

    def __init__(self, *, may_fall: bool = False) -> None:
        """Make it; a high seqno may fall where a replica takes something back (see `truth`)."""
        self._may_fall = may_fall
        # per vBucket the uuid of each first entry seen, in the order of appearance. A flush begins
        # a new generation: seqno 0 and a log of one entry.
        self.generations: dict[int, list[int]] = {}
        # per vBucket the generation it is in, as a place in that list
        self.current: dict[int, int] = {}
        self._generation_of: dict[tuple[int, int], int] = {}
        self._high: dict[int, tuple[int, int]] = {}
        self._shown: dict[int, tuple[Any, int]] = {}  # nothing has changed since

    def look(self, vbuckets: Iterable[Any]) -> None:
        """Look at every vBucket of a running node; call it after each step."""
        for vbucket in vbuckets:
            number, log = vbucket.id, vbucket.failover_log
            shown = (log, vbucket.high_seqno)
            if self._shown.get(number) == shown:
                continue
            self._shown[number] = shown
            seqnos = [entry.seqno for entry in log]
            if seqnos != sorted(seqnos, reverse=True):
                complain(f"vBucket {number}: seqnos of the failover log rise: {log}")
            if len({entry.uuid for entry in log}) != len(log):
                complain(f"vBucket {number}: the failover log names a branch twice: {log}")
            root = log[-1].uuid
            known = self.generations.setdefault(number, [])
            if root not in known:
                known.append(root)
            place = self.current[number] = known.index(root)
            for entry in log:
                self._generation_of[number, entry.uuid] = place
            before = self._high.get(number)
            fell = before and before[0] == root and vbucket.high_seqno < before[1]
            if before and fell and not self._may_fall:
                complain(f"vBucket {number}: seqno {vbucket.high_seqno} follows {before[1]}")
            self._high[number] = (root, vbucket.high_seqno)

    def life_begins(self) -> None:
        """Forget how high seqnos were: what was not on disk is gone."""
        self._high.clear()
        self._shown.clear()

    def generation(self, number: int, uuid: int) -> int | None:
        """Return which generation a branch belongs to."""
        return self._generation_of.get((number, uuid))

    def restarted(self, stored: Stored, vbuckets: Iterable[Any], *, clean: bool) -> None:
        """Judge the logs of a node that has just come up from `stored`."""
        for vbucket in vbuckets:
            if vbucket.id not in stored.vbuckets:
                continue
            header = stored.vbuckets[vbucket.id][0]
            old, new = tuple(header.failover_log), tuple(vbucket.failover_log)
            if clean or header.state != ACTIVE:
                if new != old:
                    complain(f"vBucket {vbucket.id}: a clean restart made {new} of {old}")
                continue
            at = last_complete(header)
            kept = tuple(entry for entry in old if entry.seqno <= at)
            if new[0].seqno != at or new != remembered((new[0], *kept), len(new)):
                complain(f"vBucket {vbucket.id}: an unclean restart at {at} made {new} of {old}")
            if new[0].uuid in {entry.uuid for entry in old}:
                complain(f"vBucket {vbucket.id}: the new branch has an old name: {new}")


class MemoryJudge:
    """The memory account is what its documents add up to, and nothing dirty is ejected."""

    def __init__(self, overhead_bytes: int) -> None:
        self._overhead_bytes = overhead_bytes

    def look(self, vbuckets: Iterable[Any], accounted: int) -> None:
        """Look at a running node; call it after each step."""
        total = 0
        for vbucket in vbuckets:
            for each in vbucket.table.records():
                item = Record.read(each)
                total += len(item.key) + len(each) + self._overhead_bytes
                on_disk = item.seqno <= vbucket.persisted_seqno or vbucket.rewinding
                if item.value is None and not item.life and not on_disk:
                    complain(f"{item} has no value and is not on disk")
        if total != accounted:
            complain(f"{accounted} bytes are accounted, {total} are used")


# --- what clients were told ---------------------------------------------------------------------


def is_change(op: Op) -> bool:
    """Tell whether an operation, when it succeeds, certainly takes a seqno."""
    return op.kind in ("set", "add", "replace", "append", "incr", "delete")


class SeqnoJudge:
    """Seqnos rise with accepted changes, one each; refused ones take none.

    It sees the seqnos of those clients that asked for them; the others are counted.
    """

    def __init__(self) -> None:
        self._seen: dict[tuple[int, int, int], Op] = {}
        self._highest: dict[tuple[int, int], int] = {}
        self._known_at_begin: dict[Op, dict[tuple[int, int], int]] = {}

    def began(self, op: Op) -> None:
        """Remember what was known when an operation began."""
        if is_change(op):
            self._known_at_begin[op] = dict(self._highest)

    def ended(self, op: Op) -> None:
        known = self._known_at_begin.pop(op, {})
        if op.reply is None or op.reply.token is None:
            return
        uuid, seqno = op.reply.token
        if op.reply.status != codec.OK:
            complain(f"{op} was refused and took seqno {seqno}")
        branch = (op.vbucket, uuid)
        if seqno <= known.get(branch, 0):
            complain(f"{op} began when seqno {known[branch]} was known, and got {seqno}")
        first = self._seen.setdefault((*branch, seqno), op)
        if first is not op:
            complain(f"seqno {seqno} was given to {first} and to {op}")
        self._highest[branch] = max(self._highest.get(branch, 0), seqno)

    def count(self, ops: list[Op], rise: int, by_itself: int) -> None:
        """Compare how far seqnos rose in all with what was accepted.

        Args:
            ops: all operations of one life, none of them a flush.
            rise: how much higher the sum of all high seqnos is at the end.
            by_itself: changes that the node made on its own: expiries.
        """
        certain = sum(is_change(op) and op.status == codec.OK for op in ops)
        perhaps = sum(
            (is_change(op) and not op.answered)
            or (op.kind == "touch" and op.status in (codec.OK, None))
            for op in ops
        )
        if not certain <= rise <= certain + perhaps + by_itself:
            complain(
                f"seqnos rose by {rise}; {certain} changes were accepted, {perhaps} perhaps, "
                f"{by_itself} came from expiry"
            )


class CasJudge:
    """A CAS names one content of one document, for ever, whatever crashes in between."""

    def __init__(self) -> None:
        self._content: dict[int, tuple[str, bytes, bytes | None]] = {}

    def saw(self, cas: int, key: bytes, value: bytes | None, where: object) -> None:
        """Take note of a document with its CAS."""
        self._note(cas, ("document", key, value), where)

    def ended(self, op: Op) -> None:
        """Take note of what a reply says."""
        reply = op.reply
        if reply is None or reply.status != codec.OK or reply.cas in (0, codec.CAS_HIDDEN):
            return
        if op.kind in ("set", "add", "replace"):
            self.saw(reply.cas, op.key, op.value, op)
        elif op.kind == "get":
            self.saw(reply.cas, op.key, reply.value, op)
        elif op.kind == "getl":
            self._note(reply.cas, (f"lock {op.opaque}", op.key, op.client.encode()), op)

    def _note(self, cas: int, content: tuple[str, bytes, bytes | None], where: object) -> None:
        known = self._content.setdefault(cas, content)
        if known != content:
            complain(f"CAS {cas} names {known} and, in {where}, {content}")


class PromiseJudge:
    """What clients were told is on disk survives; a flush that was acknowledged is never undone.

    Promises come from OBSERVE, OBSERVE_SEQNO, the reply to flush, and a clean stop. They are kept
    as floors and compared with what a reopened store shows; what it shows is the next floor.
    """

    def __init__(self, branches: BranchJudge, cas: CasJudge) -> None:
        self._branches = branches
        self._cas = cas
        self._acked: dict[tuple[int, int, int], Op] = {}  # (vBucket, generation, seqno)
        self._cas_floor: dict[bytes, tuple[int, int, int]] = {}  # vBucket, generation, CAS
        self._gone_floor: dict[bytes, tuple[int, int, int]] = {}  # vBucket, generation, seqno
        self._high_floor: dict[int, tuple[int, int]] = {}  # generation, seqno
        self._flush_floor: dict[int, int] = {}  # generation
        self._generations_at_begin: dict[Op, dict[int, int]] = {}
        self._flushes_open: set[int] = set()  # their `began`
        self._flushed_values: set[tuple[bytes, bytes]] = set()
        self._values: list[tuple[int, bytes, bytes]] = []  # (ended, key, value)

    # --- while the node runs --------------------------------------------------------------------

    def began(self, op: Op) -> None:
        """Remember which generations there were."""
        if op.kind == "observe":
            self._generations_at_begin[op] = dict(self._branches.current)
        elif op.kind == "flush":
            self._flushes_open.add(op.began)
            self._generations_at_begin[op] = {
                number: len(known) for number, known in self._branches.generations.items()
            }

    def ended(self, op: Op) -> None:
        """Learn of a promise."""
        generations = self._generations_at_begin.pop(op, {})
        if op.status != codec.OK:
            return
        assert op.ended is not None
        if op.reply is not None and op.reply.token is not None:
            uuid, seqno = op.reply.token
            generation = self._branches.generation(op.vbucket, uuid)
            if generation is None:
                complain(f"{op} names a branch that there is not")
            self._acked[op.vbucket, generation, seqno] = op
        if op.kind in ("set", "add", "replace"):
            self._values.append((op.ended, op.key, op.value))
        elif op.kind == "flush":
            self._flushed(op, generations)
        elif op.kind == "observe":
            self._observed(op, generations)
        elif op.kind == "observe_seqno":
            self._persisted_upto(op)

    def _flushed(self, op: Op, generations: dict[int, int]) -> None:
        for number, generation in generations.items():
            floor = self._flush_floor.get(number, 0)
            self._flush_floor[number] = max(floor, generation)
        self._flushes_open = {began for began in self._flushes_open if began > op.began}
        before = [each for each in self._values if each[0] < op.began]
        self._flushed_values.update((key, value) for _, key, value in before)
        self._values = [each for each in self._values if each[0] >= op.began]

    def _observed(self, op: Op, generations: dict[int, int]) -> None:
        assert op.reply is not None
        generation = generations.get(op.vbucket, 0)
        for number, key, state, cas in codec.observed(op.reply.value):
            if state == codec.PERSISTED:
                self._raise(self._cas_floor, key, (number, generation, cas))
            elif state == codec.ABSENT and not self._flushes_open:
                # With a flush under way "absent" means only that memory has forgotten it.
                for (vbucket, place, seqno), acked in self._acked.items():
                    assert acked.ended is not None
                    if vbucket == number and acked.key == key and acked.ended < op.began:
                        self._raise(self._gone_floor, key, (number, place, seqno))

    def _persisted_upto(self, op: Op) -> None:
        assert op.reply is not None
        report = codec.seqno_report(op.reply.value)
        if report.persisted > report.current:
            complain(f"{op}: more is on disk than there is: {report}")
        generation = self._branches.generation(report.vbucket, report.uuid)
        if generation is None:
            complain(f"{op} names a branch that there is not: {report}")
        if report.persisted:  # nothing is promised of nothing
            self._raise(self._high_floor, report.vbucket, (generation, report.persisted))

    @staticmethod
    def _raise(floors: dict[Any, Any], place: Any, floor: Any) -> None:
        floors[place] = max(floors.get(place, floor), floor)

    # --- ends of lives --------------------------------------------------------------------------

    def stopped_clean(self) -> None:
        """A clean stop promises everything that was acknowledged."""
        for (number, generation, seqno), op in self._acked.items():
            self._raise(self._gone_floor, op.key, (number, generation, seqno))

    def reopened(self, stored: Stored, *, promises_hold: bool) -> None:
        """Judge what a store shows; `promises_hold` is false after a power loss without sync."""
        if promises_hold:
            self._check_floors(stored)
        else:
            self._flush_floor.clear()
            self._flushed_values.clear()
        self._check_records(stored)
        self._start_again(stored)

    def _shown(self, stored: Stored, number: int) -> tuple[int, int, dict[bytes, Record]]:
        """Return (generation, high seqno, records) of a vBucket on disk."""
        if number not in stored.vbuckets:
            return -1, 0, {}
        header, records = stored.vbuckets[number]
        generation = self._branches.generation(number, header.failover_log[0].uuid)
        if generation is None:
            complain(f"vBucket {number}: a branch is stored that nobody saw: {header}")
        return generation, header.high_seqno, records

    def _check_floors(self, stored: Stored) -> None:
        for number, floor in self._flush_floor.items():
            if self._shown(stored, number)[0] < floor:
                complain(f"vBucket {number}: a flush that was acknowledged is undone")
        for number, (generation, seqno) in self._high_floor.items():
            shown, high, records = self._shown(stored, number)
            if (shown, high) < (generation, seqno):
                complain(f"vBucket {number}: {high} is stored; {seqno} was reported as on disk")
            if shown == generation:
                for (vbucket, place, at), op in self._acked.items():
                    if (vbucket, place) == (number, generation) and at <= seqno:
                        _at_least(records, op, at, "was below the seqno reported as on disk")
        for key, (number, generation, cas) in self._cas_floor.items():
            shown, _, records = self._shown(stored, number)
            record = records.get(key)
            if shown < generation or (shown == generation and (record is None or record.cas < cas)):
                complain(f"{key!r} was observed on disk with CAS {cas}; stored is {record}")
        for key, (number, generation, seqno) in self._gone_floor.items():
            shown, _, records = self._shown(stored, number)
            record = records.get(key)
            if shown < generation or (
                shown == generation and (record is None or record.seqno < seqno)
            ):
                complain(f"{key!r}: seqno {seqno} was promised; stored is {record}")

    def _check_records(self, stored: Stored) -> None:
        for number in stored.vbuckets:
            generation, high, records = self._shown(stored, number)
            for record in records.values():
                if record.seqno > high:
                    complain(f"vBucket {number}: {record} lies above the high seqno {high}")
                if record.life == LIVE:
                    assert record.value is not None
                    self._cas.saw(record.cas, record.key, record.value, "the store")
                    if (record.key, record.value) in self._flushed_values:
                        complain(f"{record} had been flushed")
                op = self._acked.get((number, generation, record.seqno))
                if op is not None:
                    _same(record, op)
            complete = last_complete(stored.vbuckets[number][0])
            for (vbucket, place, seqno), op in self._acked.items():
                if (vbucket, place) == (number, generation) and seqno <= complete:
                    _at_least(records, op, seqno, f"lies below the last complete seqno {complete}")

    def _start_again(self, stored: Stored) -> None:
        self._cas_floor.clear()
        self._gone_floor.clear()
        self._high_floor.clear()
        self._flushes_open.clear()
        shown = {number: self._shown(stored, number) for number in stored.vbuckets}
        for number, (generation, high, records) in shown.items():
            self._high_floor[number] = (generation, high)
            for key, record in records.items():
                self._cas_floor[key] = (number, generation, record.cas)
        # What is not there now was lost, and not promised. It may lie below the high seqno all the
        # same: a flush in several commits takes the newest version of a key only.
        self._acked = {
            place: op
            for place, op in self._acked.items()
            if place[0] in shown and _holds(*shown[place[0]], op, place)
        }


def _holds(
    generation: int, high: int, records: dict[bytes, Record], op: Op, place: tuple[int, int, int]
) -> bool:
    """Tell whether a change, or a later one of its document, is among the records."""
    record = records.get(op.key)
    return place[1] == generation and record is not None and place[2] <= record.seqno <= high


def _at_least(records: dict[bytes, Record], op: Op, seqno: int, why: str) -> None:
    record = records.get(op.key)
    if record is None or record.seqno < seqno:
        complain(f"{op} {why}; stored is {record}")


def _same(record: Record, op: Op) -> None:
    assert op.reply is not None
    same = record.key == op.key and (op.kind == "delete") == (record.life != LIVE)
    if op.kind in ("set", "add", "replace"):
        same = same and (record.value, record.flags) == (op.value, op.flags)
    if op.kind != "delete":
        same = same and record.cas == op.reply.cas
    if not same:
        complain(f"{op} got the seqno of {record}")
