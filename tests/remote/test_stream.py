"""One stream: which markers and items may come next, and what completes a snapshot."""

from __future__ import annotations

import pytest

from uprmc.model import FailoverEntry, SnapshotRange
from uprmc.protocol.upr import Marker
from uprmc.remote.stream import NOTHING, StreamFault, StreamState, judge


def stream_at(seqno: int, snapshot: tuple[int, int] | None = None) -> StreamState:
    """A stream that was accepted and goes on after a seqno."""
    found = StreamState(5, 1, seqno, SnapshotRange(*(snapshot or (seqno, seqno))))
    found.accept((FailoverEntry(9, 20), FailoverEntry(8, 0)))
    return found


def marker(start: int, end: int) -> Marker:
    return Marker(start, end, 1)


def test_nothing_may_come_before_a_marker() -> None:
    stream = stream_at(3)
    assert stream.low == NOTHING
    assert "before any snapshot" in str(stream.fault(4, stream.low, stream.high))


@pytest.mark.parametrize("strict", [True, False])
def test_a_snapshot_may_be_announced_again_with_a_later_end(strict: bool) -> None:
    stream = stream_at(3)
    stream.announce(marker(4, 9), strict=strict)
    stream.seqno = stream.low = 5
    assert stream.announce(marker(4, 12), strict=strict) is None
    assert (stream.low, stream.high, stream.start) == (5, 12, 4)


def test_tolerant_a_marker_behind_the_end_completes_the_snapshot_before() -> None:
    stream = stream_at(3)
    stream.announce(marker(4, 9))
    stream.seqno = stream.low = 5
    assert stream.announce(marker(10, 12)) == 9
    assert (stream.low, stream.high, stream.start) == (9, 12, 10)


def test_strict_every_snapshot_ends_with_its_last_item() -> None:
    stream = stream_at(3)
    stream.announce(marker(4, 9), strict=True)
    stream.seqno = stream.low = 5
    with pytest.raises(StreamFault, match=r"vBucket 5: the snapshot 4\.\.9 was cut short at 5"):
        stream.announce(marker(10, 12), strict=True)


def test_strict_a_snapshot_begins_right_behind_the_last_item() -> None:
    stream = stream_at(3)
    with pytest.raises(StreamFault, match=r"a snapshot 5\.\.9 leaves a hole behind seqno 3"):
        stream.announce(marker(5, 9), strict=True)
    assert stream_at(3).announce(marker(5, 9)) is None


@pytest.mark.parametrize("strict", [True, False])
def test_one_that_is_complete_may_be_followed_by_any_behind_it(strict: bool) -> None:
    assert not judge(5, 9, (4, 9), marker(10, 12), strict=strict)
    with pytest.raises(StreamFault, match="behind seqno 9"):
        judge(5, 9, (4, 9), marker(4, 9), strict=strict)


def test_strict_a_snapshot_that_is_announced_again_does_not_shrink() -> None:
    assert not judge(5, 5, (4, 9), marker(4, 8), strict=False)
    with pytest.raises(StreamFault, match=r"cut short at 5 by 4\.\.8"):
        judge(5, 5, (4, 9), marker(4, 8), strict=True)


def test_a_snapshot_is_not_cut_short_in_its_middle() -> None:
    stream = stream_at(3)
    stream.announce(marker(4, 9))
    stream.seqno = stream.low = 5
    with pytest.raises(StreamFault, match=r"cut short at 5 by 6\.\.8"):
        stream.announce(marker(6, 8))


def test_a_stream_that_goes_on_inside_of_a_snapshot_begins_with_that_one() -> None:
    stream = stream_at(5, (3, 9))
    assert stream.announce(marker(4, 9)) is None
    assert (stream.low, stream.high) == (5, 9)
    with pytest.raises(StreamFault, match="cut short"):
        stream_at(5, (3, 9)).announce(marker(10, 12))


def test_a_snapshot_may_not_lie_behind_what_has_come() -> None:
    with pytest.raises(StreamFault, match=r"a snapshot 1\.\.3 behind seqno 3"):
        stream_at(3).announce(marker(1, 3))


def test_the_end_of_a_snapshot_is_told_once() -> None:
    stream = stream_at(3)
    stream.announce(marker(4, 9))
    assert stream.complete() == 9
    assert stream.complete() is None


def test_each_seqno_belongs_to_the_branch_in_which_it_was_given() -> None:
    stream = stream_at(3)
    assert [stream.history_of(seqno) for seqno in (1, 20, 21)] == [8, 8, 9]
