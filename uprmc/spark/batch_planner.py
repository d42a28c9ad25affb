"""What the next batch of a stream reads: pure rules, no wire, no clock.

A batch reads from a **lease**, all vBuckets as they are at one moment: exact, and the same however
often Spark repeats it. Its end is then a *complete state*: what the sink holds is what the node
held. With a limit several batches read from one lease, and only the last ends in a complete state;
the ones before lie inside of a snapshot, and going on after a branch of history is judged so.

A lease may be gone when a task reads: the node was restarted, or Spark repeats a batch the next
day. The task then reads what there is *now*, everything above the batch's beginning, also beyond
its end: a key that was written again since has left the place where it was. Nothing is missing, and
what came too early comes again. But the end of such a batch is not a complete state (rows above it
were handed over, rows below it perhaps not), and the driver does not see what its tasks did. So
**the end of a batch counts as complete only once the lease is seen to have outlived it**. Until
then it is a place inside of a snapshot of unknown end:

- it is no boundary to go back to;
- if history branches meanwhile, what was read beyond the end may be gone, although the end itself
  is not: the stream goes back. Excepted is a node that was killed once and is still the owner: it
  kept what was on its disk, and a task ends only after all that it read is (`following`).

`settled` judges the last batch, `carried_on` takes the next part of a lease, `advanced` begins a
new one, `slices` says what tasks are to read.

See `docs/streams.md`, rollback.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from uprmc import rollback
from uprmc.columnar.errors import DataLost, NoVBucket, RolledBack, VBucketsChanged
from uprmc.model import FailoverLog, SnapshotRange
from uprmc.remote.history import newest_boundary
from uprmc.spark.offsets import Offset, OffsetPosition, thinned

#: By vBucket, after which seqno and how many rows; and up to which seqno there were how many.
Wanted = Mapping[int, tuple[int, int]]
Reached = Mapping[int, tuple[int, int]]

#: Counts rows in the lease of an offset; ``None`` = its nodes cannot.
Count = Callable[[Offset, Wanted], Reached | None]

#: Rounds of counting for one batch.
_ROUNDS_MAX = 8

FAIL, REWIND, RESTART = "fail", "rewind", "restart"

_ADVICE = (
    "history branched below; set onRollback=rewind (a control row tells what to undo) or "
    "onRollback=restart (this vBucket again from the beginning)"
)


@dataclass(frozen=True)
class PlanRules:
    """What is to happen when history branched, and when something cannot be had any more."""

    on_rollback: str = FAIL  # `FAIL`, `REWIND` or `RESTART`
    fail_on_data_loss: bool = True  # a vBucket that is on no node is an error
    # `FAIL` or `RESTART` where deletions were dropped before they were read, ``None`` = the former
    # if a loss is an error.
    on_purged: str | None = None

    @property
    def fail_on_purge(self) -> bool:
        """Whether it is an error that deletions were dropped before they were read."""
        return self.fail_on_data_loss if self.on_purged is None else self.on_purged == FAIL


@dataclass(frozen=True)
class Seen:
    """What a node has of a vBucket, now or at the moment of a lease."""

    log: FailoverLog  # failover log, newest first
    high_seqno: int  # of its newest change
    purge_seqno: int = 0  # of the newest deletion that was dropped for good
    place: str = ""  # the node
    told: str = ""  # what it said of the deletions that were dropped, as words


@dataclass(frozen=True)
class SettledBatch:
    """A stream's place between two batches."""

    offset: Offset  # without what only the last batch needed; its lease too, unless it is to go on
    # vBuckets whose end is not known to be complete, and the node of their lease.
    unsure: Mapping[int, str]


def settled(
    start: Offset, confirmed: bool, places: Mapping[int, str], rules: PlanRules
) -> SettledBatch:
    """Return what is known of a place once the batch that ended there is over.

    `confirmed`: its lease still holds everything, at nodes that still own the vBuckets. `places`
    are the nodes of the lease. With losses allowed, a task may have begun a vBucket again.
    """
    positions = {number: each.quiet() for number, each in start.positions.items()}
    if confirmed or start.lease is None:
        return SettledBatch(replace(start, positions=positions, lease=None), {})
    unsure = {
        number: places.get(number, "") for number, each in start.positions.items() if each.moved
    }
    for number in unsure:
        if positions[number].snapshot is None:
            positions[number] = _reopened(positions[number])
        if not rules.fail_on_purge:
            positions[number] = _bare(positions[number])
    return SettledBatch(replace(start, positions=positions, lease=None), unsure)


def _reopened(position: OffsetPosition) -> OffsetPosition:
    """Return a place that may or may not be a complete state as one inside of a snapshot."""
    older = position.boundaries
    snapshot = (older[0] if older else 0, position.seqno)
    return replace(position, snapshot=snapshot, boundaries=older[1:])


def _bare(position: OffsetPosition) -> OffsetPosition:
    """Return a place from which there is no way back but to the beginning."""
    assert position.snapshot is not None
    return replace(position, snapshot=(0, position.snapshot[1]), boundaries=())


def unchanged(here: SettledBatch, seen: Mapping[int, Seen], rules: PlanRules) -> bool:
    """Return whether a batch from here would have nothing to read, to undo or to complain of."""
    if rules.fail_on_data_loss and not set(here.offset.positions) <= set(seen):
        return False
    return all(_still(here, number, each) for number, each in seen.items())


def _still(here: SettledBatch, number: int, seen: Seen) -> bool:
    position = here.offset.at(number)
    if position.snapshot is not None and number not in here.unsure:
        return False
    return seen.high_seqno == position.seqno and _shared(here, number, seen) is None


def at_rest(here: SettledBatch) -> Offset:
    """Return a place at which nothing changed: it has turned out to be complete.

    No node had anything above it, so no task can have read beyond it.
    """
    positions = {
        number: each if each.snapshot is None else _closed(each)
        for number, each in here.offset.positions.items()
    }
    return replace(here.offset, positions=positions)


def _closed(position: OffsetPosition) -> OffsetPosition:
    return _ending(position, position.boundary, position.boundaries, position.seqno, None)


# --- a new lease ----------------------------------------------------------------------------------


def checked(start: Offset, vbuckets: int) -> None:
    """Raise `VBucketsChanged` if a place belongs to another number of vBuckets."""
    if start.vbuckets != vbuckets:
        raise VBucketsChanged(
            f"the nodes have {vbuckets} vBuckets, this stream began with {start.vbuckets}: keys "
            "belong to other vBuckets now; begin again with a new checkpoint"
        )


def advanced(
    here: SettledBatch,
    seen: Mapping[int, Seen],
    lease: str,
    rules: PlanRules,
    rows: int | None = None,
    count: Count | None = None,
) -> Offset:
    """Return the end of a batch that begins to read a new lease.

    Args:
        seen: what the lease holds.
        rows: which the batch may have; ``None`` = as many as there are.
        count: counts rows of the lease; without it, rows are taken for as many as seqnos.

    Raises:
        RolledBack, DataLost, NoVBucket: as the rules want it.
    """
    gone = sorted(set(here.offset.positions) - set(seen))
    if gone and rules.fail_on_data_loss:
        raise NoVBucket(
            f"vb={gone[0]} is active on no node (failOnDataLoss=false would wait for it)"
        )
    opened = {number: here.offset.at(number) for number in gone}
    for number, each in seen.items():
        opened[number] = _opened(here, number, each, rules)
    return _taken(replace(here.offset, positions=opened, lease=lease), rows, count)


def _opened(here: SettledBatch, number: int, seen: Seen, rules: PlanRules) -> OffsetPosition:
    """Return a position as it enters a new lease: nothing of it was read, perhaps it went back."""
    position = here.offset.at(number)
    point = _shared(here, number, seen)
    if point is not None:
        return _gone_back(position, number, seen, point, rules)
    if position.seqno == seen.high_seqno:
        return position if position.snapshot is None else _closed(position)
    snapshot = (position.boundary, seen.high_seqno)
    return replace(position, uuid=rollback.history_of(seen.log, seen.high_seqno), snapshot=snapshot)


def _shared(here: SettledBatch, number: int, seen: Seen) -> int | None:
    """Return up to where history is shared at most, ``None`` if the stream may go on."""
    position = here.offset.at(number)
    begin, end = position.snapshot or (position.seqno, position.seqno)
    if begin == position.seqno:
        end = begin
    place = rollback.ConsumerPosition(position.seqno, SnapshotRange(begin, end), position.uuid)
    held = rollback.VBucketHoldings(seen.log, seen.high_seqno, seen.purge_seqno)
    point = rollback.rollback_point(place, held)
    if point is None and position.seqno and number in here.unsure:
        newer = [uuid for uuid, _ in seen.log].index(position.uuid)
        if newer and not (newer == 1 and here.unsure[number] == seen.place):
            return position.seqno
    return point


def _gone_back(
    position: OffsetPosition, number: int, seen: Seen, point: int, rules: PlanRules
) -> OffsetPosition:
    purged = 0 < position.seqno < seen.purge_seqno
    if purged and rules.fail_on_purge:
        raise _lost(number, position.seqno, seen)
    if rules.on_rollback == FAIL and not purged:
        raise RolledBack(number, position.seqno, point, _ADVICE)
    target = _target(point, position.whole, position.origin, rules)
    if target < seen.purge_seqno:
        target = 0  # deletions above the boundary are not to be had any more
    return OffsetPosition(
        uuid=seen.log[0][0],
        seqno=target,
        snapshot=(target, seen.high_seqno),
        boundaries=tuple(each for each in position.boundaries if each < target),
        rewound_to=target,
        origin=min(position.origin, target),
    )


def _lost(vbucket: int, seqno: int, seen: Seen) -> DataLost:
    told = f" ({seen.told})" if seen.told else ""
    return DataLost(
        f"vb={vbucket} checkpoint={seqno}: deletions up to {seen.purge_seqno} were dropped for "
        f"good before this stream saw them{told}; onPurged=restart begins this vBucket again"
    )


def _target(point: int, boundaries: Iterable[int], origin: int, rules: PlanRules) -> int:
    """Return where to go back to: at or below an origin nothing was ever handed over."""
    whole = 0 if rules.on_rollback == RESTART else newest_boundary(point, boundaries)
    return max(whole, min(origin, point))


# --- parts of a lease -----------------------------------------------------------------------------


def carried_on(start: Offset, rows: int | None = None, count: Count | None = None) -> Offset:
    """Return the end of a batch that goes on reading the lease of the one before."""
    positions = {number: each.quiet() for number, each in start.positions.items()}
    return _taken(replace(start, positions=positions), rows, count)


def _taken(opened: Offset, rows: int | None, count: Count | None) -> Offset:
    lags = {
        number: each.snapshot[1] - each.seqno
        for number, each in opened.positions.items()
        if each.snapshot is not None
    }
    parts = None
    if count is not None and rows is not None and sum(lags.values()) > rows:
        parts = _counted(opened, lags, rows, partial(count, opened))
    if parts is None:
        parts = shares(lags, rows)
    positions = {
        number: each if number not in parts else _read(each, parts[number])
        for number, each in opened.positions.items()
    }
    return replace(opened, positions=positions)


def _counted(
    opened: Offset, lags: Mapping[int, int], rows: int, count: Callable[[Wanted], Reached | None]
) -> dict[int, int] | None:
    """Return how many seqnos of each vBucket have this number of rows together.

    What a vBucket lacks of its share goes to the others, so a batch has fewer rows only at the end
    of the lease or after `_ROUNDS_MAX` rounds.
    """
    parts = dict.fromkeys(lags, 0)
    left, open_lags = max(1, rows), dict(lags)
    for _ in range(_ROUNDS_MAX):
        wanted = {
            number: (opened.at(number).seqno + parts[number], share)
            for number, share in shares(open_lags, left).items()
            if share
        }
        found = count(wanted) if wanted else {}
        if found is None:
            return None
        for number, (seqno, got) in found.items():
            parts[number] = min(lags[number], seqno - opened.at(number).seqno)
            left -= got
        open_lags = {n: lags[n] - parts[n] for n in lags if lags[n] > parts[n]}
        if left <= 0 or not open_lags:
            break
    return parts


def _read(position: OffsetPosition, count: int) -> OffsetPosition:
    """Return the end of reading this number of seqnos more."""
    assert position.snapshot is not None
    boundary, target = position.snapshot
    seqno = position.seqno + count
    ended = _ending(position, boundary, position.boundaries, seqno, target)
    return replace(ended, moved=count > 0)


def _ending(
    position: OffsetPosition, boundary: int, older: tuple[int, ...], seqno: int, target: int | None
) -> OffsetPosition:
    if target is None or seqno == target:
        kept = () if boundary == seqno else (boundary,)
        return replace(position, seqno=seqno, snapshot=None, boundaries=thinned((*kept, *older)))
    return replace(position, seqno=seqno, snapshot=(boundary, target), boundaries=older)


def shares(lags: Mapping[int, int], rows: int | None) -> dict[int, int]:
    """Return how many seqnos of each vBucket a batch reads: in proportion to how far it is behind.

    The sum is `rows`, or all there is; at least one in any case, so that every batch gets on.
    """
    total = sum(lags.values())
    if rows is None or total <= rows:
        return dict(lags)
    rows = max(1, rows)
    parts = {number: rows * lag // total for number, lag in lags.items()}
    left = rows - sum(parts.values())
    for number in sorted(lags, key=lambda each: (parts[each] - lags[each], each))[:left]:
        parts[number] += 1
    return parts


# --- what tasks read ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Slice:
    """What a task reads of one vBucket."""

    vbucket: int
    start: int  # rows above this; `snapshot` is what it lies in
    snapshot: tuple[int, int]
    uuid: int  # the history of `start`
    end: int  # rows up to this, when they are read from the lease
    # a control row comes first and says that everything above this is undone.
    control: int | None = None
    # the batch before read from the same lease: deletions that the lease does not have were not
    # missed.
    resumed: bool = False

    @property
    def only_control(self) -> bool:
        """Whether there is nothing to read: its end would not be judged if a task read beyond."""
        return self.end <= self.start

    def found_again(self, seen: Seen, rules: PlanRules) -> Slice | None:
        """Return what is to be read in place of this where its lease is gone.

        A history that is gone takes the end along: there is nothing to be read, and the driver will
        go back before it plans the next batch. What a control row undoes is undone in any case.

        Raises:
            RolledBack, DataLost: to fail.
        """
        place = rollback.ConsumerPosition(self.start, SnapshotRange(*self.snapshot), self.uuid)
        shared = rollback.rollback_point(
            place, rollback.VBucketHoldings(seen.log, seen.high_seqno, 0)
        )
        if shared is not None:
            if rules.on_rollback == FAIL:
                raise RolledBack(self.vbucket, self.start, shared, _ADVICE)
            return None
        if 0 < self.start < seen.purge_seqno:
            if rules.fail_on_purge:
                raise _lost(self.vbucket, self.start, seen)
            return replace(self, start=0, snapshot=(0, 0), control=0)
        return self


def slices(start: Offset, end: Offset) -> list[Slice]:
    """Return what the batch from `start` to `end` reads, by vBucket; nothing to read, no slice."""
    found = []
    resumed = start.lease is not None and start.lease == end.lease
    for number, after in sorted(end.positions.items()):
        before = start.at(number)
        if after.rewound_to is not None:
            target = after.rewound_to
            found.append(Slice(number, target, (target, target), after.uuid, after.seqno, target))
        elif after.seqno > before.seqno:
            snapshot = before.snapshot or (before.seqno, before.seqno)
            found.append(
                Slice(number, before.seqno, snapshot, before.uuid, after.seqno, resumed=resumed)
            )
    return found
