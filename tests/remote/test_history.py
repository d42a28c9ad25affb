"""Failover logs as they are told: which are believed, and what follows for a reader."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uprmc.errors import RemoteProtocolError
from uprmc.model import SEQNO_MAX, FailoverEntry, SnapshotRange
from uprmc.protocol.upr import FAILOVER_ENTRY, encode_failover_log
from uprmc.remote.history import (
    LOG_MAX_ENTRIES,
    check_presentable,
    newest_boundary,
    newest_entries,
    read_log,
)
from uprmc.rollback import ConsumerPosition, VBucketHoldings, rollback_point, shared_until

LOG = (FailoverEntry(3, 20), FailoverEntry(2, 10), FailoverEntry(1, 0))
ENTRY = FAILOVER_ENTRY.size

seqnos = st.integers(0, 12)


@st.composite
def logs(draw: st.DrawFn) -> tuple[FailoverEntry, ...]:
    begins = sorted(draw(st.lists(seqnos, max_size=3)))
    uuids = draw(st.permutations(range(1, 6)))
    return tuple(FailoverEntry(uuids[n], begin) for n, begin in enumerate([0, *begins]))[::-1]


def test_a_log_is_read_as_it_was_told() -> None:
    assert read_log(encode_failover_log(LOG)) == LOG


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b"", "0 bytes"),
        (bytes(ENTRY + 1), f"{ENTRY + 1} bytes"),
        (encode_failover_log(LOG[::-1]), "not newest first"),
        (bytes(ENTRY * (LOG_MAX_ENTRIES + 1)), "1001 entries"),
    ],
)
def test_what_is_no_failover_log_is_refused(value: bytes, why: str) -> None:
    with pytest.raises(RemoteProtocolError, match=why):
        read_log(value)


def test_the_longest_log_that_is_believed_is_read() -> None:
    assert len(read_log(bytes(ENTRY * LOG_MAX_ENTRIES))) == LOG_MAX_ENTRIES


def test_of_a_log_that_is_too_long_the_newest_entries_are_taken_but_not_of_a_torn_one() -> None:
    value = encode_failover_log(LOG)
    assert newest_entries(value, 2) == LOG[:2]
    assert newest_entries(value, 3) == newest_entries(value, 9) == LOG
    with pytest.raises(RemoteProtocolError, match="47 bytes"):
        newest_entries(value[:-1], 2)


@pytest.mark.parametrize("bad", [((0, 5), (1, 0)), ((1, 5), (1, 0)), ((2, 5), (1, 6))])
def test_a_log_that_no_server_made_is_not_shown_to_others(bad: tuple[tuple[int, int], ...]) -> None:
    with pytest.raises(RemoteProtocolError, match="makes no sense"):
        check_presentable(tuple(FailoverEntry(*entry) for entry in bad))
    check_presentable(LOG)


@given(logs(), seqnos, st.lists(seqnos, min_size=3, max_size=3), st.integers(1, 6))
def test_going_back_to_a_boundary_is_accepted_the_next_time(
    log: tuple[FailoverEntry, ...], more: int, place: list[int], uuid: int
) -> None:
    held = VBucketHoldings(log, log[0].seqno + more, 0)
    first, start, last = sorted(place)
    point = rollback_point(ConsumerPosition(start, SnapshotRange(first, last), uuid), held)
    if point is not None:
        back = newest_boundary(point, [first, 3, 7])
        assert back <= point
        again = ConsumerPosition(back, SnapshotRange(back, back), log[0].uuid)
        assert rollback_point(again, held) is None


def test_a_boundary_above_the_point_does_not_count() -> None:
    assert newest_boundary(10, [12, 8, 3]) == 8
    assert newest_boundary(2, [12, 8, 3]) == 0
    assert newest_boundary(8, [12, 8, 3]) == 8


def test_a_history_is_shared_up_to_where_the_next_one_begins() -> None:
    def shared(uuid: int) -> int | None:
        return shared_until(LOG, 30, (FailoverEntry(uuid, 0),), SEQNO_MAX)

    assert [shared(uuid) for uuid in (3, 2, 1, 9)] == [30, 20, 10, None]
