"""Where a batch read begins and ends in every vBucket: words, JSON or a manifest made into ranges.

A stream has more to do with its positions; see `batch_planner`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from uprmc.columnar.errors import RolledBack, VBucketsChanged
from uprmc.columnar.nodes import BulkNodes, NodeStanding
from uprmc.columnar.read_state import Range
from uprmc.model import SEQNO_MAX, FailoverEntry
from uprmc.rollback import history_of, shared_until
from uprmc.spark.offsets import Offset, OffsetPosition, starting_at


def starts_of(
    text: str, vbuckets: Iterable[int], standings: Mapping[int, NodeStanding], count: int
) -> dict[int, Range]:
    """Return the range of each vBucket from where option ``startingOffsets`` says.

    Args:
        text: the option.
        vbuckets: which are read.
        standings: of those that are active.
        count: how many vBuckets the nodes have in all.

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
