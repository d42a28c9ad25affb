"""What a task of a stream does: its part of a batch, from the batch's lease or, if that is gone, as
things are now.

A task is a plain value that Spark pickles or the local feed keeps; it may run any number of times,
and each time gives the rows of the same changes. Control rows come first.

Without the lease the task takes one of its own, reads everything above its beginning and waits
until the node has all of that on its disk: a node that is killed afterwards still has what was
handed over, though the batch's end lies below it. `batch_planner` says why that is right.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from uprmc.columnar.errors import LeaseEnded
from uprmc.columnar.lease import KeptLease, LeaseContents, logs_of
from uprmc.columnar.nodes import BulkNodes
from uprmc.columnar.read_state import Range, ReadState
from uprmc.columnar.reading import OnDone
from uprmc.columnar.schema import Columns
from uprmc.remote.errors import NodeUnreachable
from uprmc.spark.batch import rows
from uprmc.spark.batch_planner import PlanRules, Seen, Slice
from uprmc.spark.options import ReadOptions

#: What a control row has as `_op`.
ROLLBACK = "rollback"

#: Leases of its own that a task takes before it gives up; each is lost with its node.
LEASES_MAX = 3

_ASK_AGAIN_S = 0.02


@dataclass(frozen=True)
class BatchTask:
    """One task's part of a batch."""

    slices: tuple[Slice, ...]  # what it reads
    lease: str | None  # the batch's; ``None`` = that is gone
    reader: bytes = b""  # the id under which the stream is registered, empty if it is not


def rules_of(options: ReadOptions) -> PlanRules:
    """Return what a stream does about branches and losses."""
    return PlanRules(options.on_rollback, options.fail_on_data_loss, options.on_purged)


def run(options: ReadOptions, task: BatchTask) -> Iterator[Any]:
    """Yield the Arrow batches of a task.

    Raises:
        RolledBack, DataLost: the history that it should read is gone.
        NodeUnreachable: the task is to be run again.
        NoVBucket, KeyNotText, ...
    """
    yield from _control_rows(options.columns, task.slices)
    left = {each.vbucket: each for each in task.slices if not each.only_control}
    untouched = True
    if task.lease is not None:
        ranges = [_range(each, each.end) for each in left.values()]
        try:
            for batch in rows(options, ranges, lease=task.lease, on_done=_strike_out(left)):
                untouched = False
                yield batch
            return
        except (LeaseEnded, NodeUnreachable):
            if not left:
                return
    yield from _as_of_now(options, left, task.reader, untouched)


def _as_of_now(
    options: ReadOptions, left: dict[int, Slice], reader: bytes, untouched: bool
) -> Iterator[Any]:
    """Yield everything above where slices begin; no slice is left at the end."""
    for _ in range(LEASES_MAX):
        try:
            with _Now(options, left, reader) as now:
                again = now.planned(rules_of(options))
                if not untouched and again != list(left.values()):
                    raise NodeUnreachable(
                        "history branched in the middle of a task: it begins again"
                    )
                kept = {each.vbucket: each for each in again}
                changed = [each for each in again if each != left[each.vbucket]]
                yield from _control_rows(options.columns, changed)
                left.clear()
                left.update(kept)
                ends: list[ReadState] = []
                for batch in now.rows(again, _both(_strike_out(left), ends.append)):
                    untouched = False
                    yield batch
                now.wait_until_on_disk(ends)
                return
        except LeaseEnded:
            if not untouched:
                raise NodeUnreachable(
                    "a lease ended in the middle of a task: it begins again"
                ) from None
    raise NodeUnreachable(f"{LEASES_MAX} leases ended before anything was read of them")


class _Now:
    """A lease of the task's own, over what it has left."""

    def __init__(self, options: ReadOptions, left: Mapping[int, Slice], reader: bytes) -> None:
        self._options, self._left, self._reader = options, left, reader

    def __enter__(self) -> _Now:
        options = self._options
        self._nodes = BulkNodes(options.access)
        try:
            self._kept = KeptLease(options.access, self._left, options.lease_s, reader=self._reader)
            self._kept.__enter__()
        except BaseException:
            self._nodes.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._kept.close()
        finally:
            self._nodes.close()

    def planned(self, rules: PlanRules) -> list[Slice]:
        """Return what of the slices can be read now."""
        seen = seen_of(self._nodes, self._kept.lease.held)
        again = (each.found_again(seen[each.vbucket], rules) for each in self._left.values())
        return [each for each in again if each is not None]

    def rows(self, slices: Iterable[Slice], on_done: OnDone) -> Iterator[Any]:
        """Yield everything that the lease holds of them."""
        ranges = [replace(_range(each, None), resumed=False) for each in slices]
        return rows(self._options, ranges, lease=self._kept.token, on_done=on_done)

    def wait_until_on_disk(self, ends: Iterable[ReadState]) -> None:
        """Return once all that was read would outlive the node.

        Raises:
            NodeUnreachable: history branched meanwhile, or the node's disk is too slow.
        """
        deadline = time.monotonic() + self._options.access.read_timeout_s
        for done in ends:
            held = self._kept.lease.held[done.vbucket]
            while self._nodes.persisted(done.vbucket, held.uuid) < held.high_seqno:
                if seen_of(self._nodes, {done.vbucket: held}) and time.monotonic() > deadline:
                    raise NodeUnreachable(
                        f"{held.place} does not write vb={done.vbucket} to its disk"
                    )
                time.sleep(_ASK_AGAIN_S)


def seen_of(nodes: BulkNodes, held: Mapping[int, LeaseContents]) -> dict[int, Seen]:
    """Return what a lease holds together with the failover logs that belong to it.

    Raises:
        LeaseEnded: a vBucket has got another history or another node meanwhile.
    """
    logs = logs_of(nodes, held)
    return {
        number: Seen(logs[number], each.high_seqno, each.purge_seqno, each.place)
        for number, each in held.items()
    }


def _range(part: Slice, end: int | None) -> Range:
    return Range(part.vbucket, part.start, part.uuid, *part.snapshot, end, part.resumed)


def _strike_out(left: dict[int, Slice]) -> OnDone:
    def struck(done: ReadState) -> None:
        del left[done.vbucket]

    return struck


def _both(first: OnDone, second: OnDone) -> OnDone:
    def told(done: ReadState) -> None:
        first(done)
        second(done)

    return told


def _control_rows(columns: Columns, slices: Iterable[Slice]) -> Iterator[Any]:
    """Yield rows that say what a sink has to undo; what they do not say is NULL."""
    undone = [each for each in slices if each.control is not None]
    if not undone:
        return
    found: dict[str, list[Any]] = {
        "_op": [ROLLBACK] * len(undone),
        "_vb": [each.vbucket for each in undone],
        "_seq": [each.control for each in undone],
        "_vbuuid": [f"{each.uuid:016x}" for each in undone],
    }
    nothing = [None] * len(undone)
    arrays = [pa.array(found.get(name, nothing), columns.type_of(name)) for name in columns.names]
    yield pa.RecordBatch.from_arrays(arrays, schema=columns.schema)
