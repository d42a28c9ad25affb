"""Where a batch read begins and ends in every vBucket: words, JSON or a manifest made into ranges.

A stream has more to do with its positions; see `batch_planner`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from uprmc.columnar.errors import RolledBack, VBucketsChanged
from uprmc.columnar.nodes import BulkNodes, NodeStanding
from uprmc.columnar.read_state import COLUMN_SEQNO_MAX, Range, ReadState
from uprmc.columnar.reading import read
from uprmc.columnar.schema import Columns
from uprmc.model import SEQNO_MAX, FailoverEntry
from uprmc.remote.ranges import VBUCKETS_MAX
from uprmc.rollback import history_of, shared_until
from uprmc.spark.offsets import Offset, OffsetPosition, starting_at
from uprmc.spark.options import ReadOptions


def starts_of(
    text: str, vbuckets: Iterable[int], standings: Mapping[int, NodeStanding], count: int
) -> dict[int, Range]:
    """Return the range of each vBucket from where option ``startingOffsets`` says.

    Raises:
        BadOption, BadFile: the text makes no sense, or names no manifest that can be used.
        VBucketsChanged: it is about another number of vBuckets.
    """
    offset = _offset(text, count, standings)
    return {number: range_from(number, offset.at(number)) for number in vbuckets}


def ends_of(
    text: str, ranges: Mapping[int, Range], standings: Mapping[int, NodeStanding], count: int
) -> dict[int, Range]:
    """Return the ranges up to where option ``endingOffsets`` says, without those that are empty.

    Raises:
        As `starts_of`, and RolledBack: the end is not in the history of its vBucket any more.
    """
    offset = _offset(text, count, standings)
    found = {}
    for number, each in ranges.items():
        end = offset.at(number)
        _check_end(number, end, standings[number])
        if end.seqno > each.start:
            found[number] = replace(each, end=end.seqno)
    return found


def current(nodes: BulkNodes) -> str:
    """Return how far all active vBuckets are, as JSON; see `api.current_offsets`."""
    return latest(nodes.vbuckets, nodes.standings()).to_json()


def _offset(text: str, count: int, standings: Mapping[int, NodeStanding]) -> Offset:
    offset = starting_at(text, count)
    if offset is None:
        return latest(count, standings)
    if offset.vbuckets != count:
        raise VBucketsChanged(
            f"the offsets are of {offset.vbuckets} vBuckets, the nodes have {count}"
        )
    return offset


def latest(count: int, standings: Mapping[int, NodeStanding]) -> Offset:
    """Return how far vBuckets are, as an offset."""
    positions = {
        number: OffsetPosition(history_of(each.log, each.high_seqno), each.high_seqno)
        for number, each in standings.items()
        if each.high_seqno
    }
    return Offset(count, positions)


def range_from(number: int, position: OffsetPosition) -> Range:
    """Return everything of a vBucket above a position."""
    start, end = position.snapshot or (position.seqno, position.seqno)
    return Range(number, position.seqno, position.uuid, start, end)


def _check_end(number: int, end: OffsetPosition, standing: NodeStanding) -> None:
    theirs = (FailoverEntry(end.uuid, 0),)
    shared = shared_until(standing.log, standing.high_seqno, theirs, SEQNO_MAX) if end.seqno else 0
    if shared is None or end.seqno > shared:
        raise RolledBack(number, end.seqno, shared or 0, "endingOffsets are of a lost history")


# --- a point in time ----------------------------------------------------------------------------
# Where a read begins that starts at a point in time: option ``startingTimestamp``.
#
# The time of a version is its CAS, the column `_time`: seqnos rise with it where a node makes the
# versions itself, but not where XDCR, a restore or `append-meta` brings versions that were made
# elsewhere. So nothing can be bisected: keys and metadata of a lease are read once, without
# values and without keeping any of it, and each vBucket begins before the first seqno whose
# change is at or after the time. No such change is left out. Changes behind that place come with
# it, whatever their time.


_COLUMNS = Columns(("_vb", "_seq", "_time"))


@dataclass(frozen=True)
class Begin:
    """Where one vBucket begins."""

    position: OffsetPosition  # all that is older lies at or below it
    purge_seqno: int  # deletions up to here may be missing

    @property
    def lossy(self) -> bool:
        """Whether deletions above it may be missing."""
        return 0 < self.position.seqno < self.purge_seqno


def begins(
    options: ReadOptions, vbuckets: Iterable[int], lease: str | None = None
) -> dict[int, Begin]:
    """Return where vBuckets begin at `ReadOptions.starting_timestamp`; raises as `reading.read`.

    `lease` is the token of the lease to look at; ``None`` = one of its own, of now.
    """
    assert options.starting_timestamp is not None
    places = _Places(options.starting_timestamp)
    batches = read(
        options.access,
        [Range(number) for number in vbuckets],
        _COLUMNS,
        lease=lease,
        batch_rows=options.batch_rows,
        no_value=True,
        on_done=places.end,
        lease_s=options.lease_s,
    )
    for batch in batches:
        places.look(*(batch.column(n).to_numpy(zero_copy_only=False) for n in range(3)))
    return places.found()


class _Places:
    """By vBucket the first seqno that is new enough, and the last one before it."""

    def __init__(self, moment_us: int) -> None:
        self._moment = np.datetime64(moment_us, "us")
        self._first: Any = np.full(VBUCKETS_MAX, COLUMN_SEQNO_MAX, np.int64)
        self._before: Any = np.zeros(VBUCKETS_MAX, np.int64)
        self._ended: list[ReadState] = []

    def look(self, vbucket: Any, seqno: Any, time: Any) -> None:
        """Take rows in; seqnos of a vBucket rise from call to call."""
        new = time >= self._moment
        np.minimum.at(self._first, vbucket[new], seqno[new])
        before = seqno < self._first[vbucket]
        np.maximum.at(self._before, vbucket[before], seqno[before])

    def end(self, state: ReadState) -> None:
        """All of a vBucket has come, or will have with the next call."""
        self._ended.append(state)

    def found(self) -> dict[int, Begin]:
        """Return where each vBucket begins; without a change that is new enough, at its end."""
        return {each.vbucket: self._begin(each) for each in self._ended}

    def _begin(self, state: ReadState) -> Begin:
        is_there = self._first[state.vbucket] < COLUMN_SEQNO_MAX
        seqno = int(self._before[state.vbucket]) if is_there else state.end
        uuid = history_of(state.log, seqno)
        return Begin(OffsetPosition(uuid, seqno), state.purge_seqno)
