"""TAP clients by name: who takes over, who is resumed, who is forgotten."""

from __future__ import annotations

import pytest

from tests.tap_adapter.names_rig import LIVE, REGISTERED, FakeProducer, Place, moved, why
from uprmc.config import TapSettings
from uprmc.errors import InvalidArguments, TemporaryFailure
from uprmc.model import SnapshotRange
from uprmc.protocol.tap import ConnectFlag
from uprmc.tap_adapter.cursor import (
    CHECKPOINTS_KEPT,
    CHECKPOINTS_LEAST,
    CHECKPOINTS_OF_A_CLIENT,
    TapCursor,
)
from uprmc.tap_adapter.names import NAME_BYTES_MAX

# --- names ----------------------------------------------------------------------------------------


def test_a_new_name_has_no_position() -> None:
    known = Place().connect(b"node1", vbuckets=(3, 5), last_closed={3: 9})
    assert (known.name, known.flags, known.cursors) == (b"node1", LIVE, {})
    assert known.connect.vbuckets == (3, 5)
    assert known.connect.last_closed == {3: 9}
    assert known.gone_at is None
    assert not known.anonymous


def test_clients_without_a_name_get_a_fresh_one_each() -> None:
    place = Place(keepalive_s=100.0)
    first, second = place.connect(b""), place.connect(b"")
    assert (first.name, second.name) == (b"anon_1", b"anon_2")
    assert first.connect.name == b"anon_1"
    assert first.anonymous


def test_a_fresh_name_is_not_one_that_a_client_has_given_itself() -> None:
    place = Place()
    place.connect(b"anon_1")
    assert place.connect(b"").name == b"anon_2"


@pytest.mark.parametrize("flags", [LIVE, REGISTERED])
def test_a_client_without_a_name_is_never_resumed(flags: int) -> None:
    place = Place(keepalive_s=100.0)
    known = place.connect(b"", flags)
    assert not known.registered
    moved(known)
    place.leave(known)
    assert len(place.names) == 0
    assert place.connect(b"anon_1").cursors == {}
    assert place.keeper.documents == {}


def test_the_longest_name_is_taken_and_one_byte_more_is_not() -> None:
    place = Place()
    place.connect(b"n" * NAME_BYTES_MAX)
    with pytest.raises(InvalidArguments):
        place.connect(b"n" * (NAME_BYTES_MAX + 1))
    assert len(place.names) == 1


def test_as_many_names_as_allowed_are_taken_and_one_more_is_refused() -> None:
    place = Place(TapSettings(names=2))
    place.connect(b"a")
    place.connect(b"b")
    with pytest.raises(TemporaryFailure):
        place.connect(b"c")
    with pytest.raises(TemporaryFailure):
        place.connect(b"")
    assert place.connect(b"a").name == b"a"  # not one more
    assert len(place.names) == 2


def test_known_names_count_until_they_are_forgotten() -> None:
    place = Place(TapSettings(names=1, keepalive_s=10.0))
    place.leave(place.connect(b"a"))
    with pytest.raises(TemporaryFailure):
        place.connect(b"b")
    place.now += 10.0
    place.connect(b"b")


def test_a_refused_connect_disconnects_nobody() -> None:
    place = Place(TapSettings(names=1))
    known = place.connect(b"a")
    with pytest.raises(TemporaryFailure):
        place.connect(b"b")
    assert why(known) == ""
    assert place.names.find(b"a") is known


# --- the same name again --------------------------------------------------------------------------


@pytest.mark.acceptance("D56")
def test_the_same_name_takes_the_stream_over_and_the_old_connection_is_closed() -> None:
    place = Place(keepalive_s=30.0)
    old = place.connect(b"node1")
    served_by = old.producer
    cursor = moved(old)
    new = place.connect(b"node1")
    assert isinstance(served_by, FakeProducer)
    assert "taken" in served_by.why
    assert new.cursors == {3: cursor}
    assert place.names.find(b"node1") is new
    assert len(place.names) == 1


def test_what_an_old_connection_still_hears_moves_nothing() -> None:
    place = Place(keepalive_s=30.0)
    old = place.connect(b"node1")
    cursor = moved(old)
    old.ring.add(3, 0, 5, [b"a"])
    new = place.connect(b"node1")
    cursor.acked, cursor.closed[1] = 20, 20
    old.ring.forget(3)
    told: list[bool] = []
    old.save(told.append)
    place.leave(old, finished=True)
    assert told == [False]
    assert (new.cursors[3].acked, new.cursors[3].closed) == (10, {})
    assert new.ring.above(3, 0) == [b"a"]
    assert place.names.find(b"node1") is new


def test_a_name_that_went_a_moment_ago_is_resumed_and_one_that_is_gone_too_long_is_not() -> None:
    place = Place(keepalive_s=30.0)
    known = place.connect(b"node1")
    cursor = moved(known)
    place.leave(known)
    assert known.gone_at == place.now
    place.now += 29.9
    known = place.connect(b"node1")
    assert known.cursors == {3: cursor}
    place.leave(known)
    place.now += 30.0
    assert place.connect(b"node1").cursors == {}


def test_a_gone_name_is_forgotten_in_time() -> None:
    place = Place(keepalive_s=30.0)
    place.leave(place.connect(b"node1"))
    place.tick(29.0)
    assert place.names.find(b"node1") is not None
    place.tick(1.0)
    assert place.names.find(b"node1") is None
    assert len(place.names) == 0


def test_without_keepalive_the_old_stream_is_dropped_and_a_new_one_is_made() -> None:
    place = Place()
    old = place.connect(b"node1")
    served_by = old.producer
    moved(old)
    new = place.connect(b"node1", LIVE | ConnectFlag.REQUEST_KEYS_ONLY)
    assert isinstance(served_by, FakeProducer)
    assert served_by.why
    assert new.cursors == {}
    assert new.connect.has(ConnectFlag.REQUEST_KEYS_ONLY)


def test_a_stream_that_has_finished_is_not_resumed() -> None:
    place = Place(keepalive_s=30.0)
    known = place.connect(b"node1")
    moved(known)
    place.leave(known, finished=True)
    assert place.connect(b"node1").cursors == {}


def test_a_stream_that_has_finished_and_still_hangs_on_is_not_taken_over() -> None:
    place = Place(keepalive_s=30.0)
    known = place.connect(b"node1")
    moved(known)
    assert isinstance(known.producer, FakeProducer)
    known.producer.done = True
    assert place.connect(b"node1").cursors == {}


def test_flags_of_the_first_connect_stay_in_force_but_for_five() -> None:
    place = Place(keepalive_s=30.0)
    first = ConnectFlag.SUPPORT_ACK | ConnectFlag.REQUEST_KEYS_ONLY | ConnectFlag.BACKFILL
    place.connect(b"node1", first, oldest_entry_s=5, vbuckets=(1,))
    again = (
        ConnectFlag.CHECKPOINT
        | ConnectFlag.TAKEOVER_VBUCKETS
        | ConnectFlag.DUMP
        | ConnectFlag.LIST_VBUCKETS
        | ConnectFlag.FIX_FLAG_BYTEORDER
        | ConnectFlag.REGISTERED_CLIENT
    )
    known = place.connect(
        b"node1", again, vbuckets=(2, 3), last_closed={2: 8}, closed_only=True, oldest_entry_s=0
    )
    assert known.flags == (
        ConnectFlag.SUPPORT_ACK
        | ConnectFlag.REQUEST_KEYS_ONLY
        | ConnectFlag.LIST_VBUCKETS
        | ConnectFlag.FIX_FLAG_BYTEORDER
        | ConnectFlag.REGISTERED_CLIENT
    )
    assert known.connect.vbuckets == (2, 3)
    assert known.connect.oldest_entry_s == 0
    assert known.connect.last_closed == {2: 8}
    assert known.registered
    assert known.closed_only
    third = place.connect(b"node1", 0)
    assert third.flags == ConnectFlag.SUPPORT_ACK | ConnectFlag.REQUEST_KEYS_ONLY
    assert not third.registered


# --- checkpoints ----------------------------------------------------------------------------------


def test_the_newest_closed_checkpoints_are_remembered() -> None:
    known = Place().connect(b"node1")
    known.cursors[3] = cursor = TapCursor()
    for number in range(1, CHECKPOINTS_KEPT + 1):
        known.closed(3, number, number * 10)
    assert len(cursor.closed) == CHECKPOINTS_KEPT
    assert cursor.closed[1] == 10
    known.closed(3, CHECKPOINTS_KEPT + 1, 5)
    assert len(cursor.closed) == CHECKPOINTS_KEPT
    assert 1 not in cursor.closed
    assert cursor.closed[CHECKPOINTS_KEPT + 1] == 5


def test_a_client_with_many_vbuckets_keeps_fewer_of_each() -> None:
    known = Place().connect(b"node1")
    for vbucket in range(1_024):
        known.cursors[vbucket] = TapCursor()
        for number in range(1, 10):
            known.closed(vbucket, number, number)
    total = sum(len(cursor.closed) for cursor in known.cursors.values())
    assert total < CHECKPOINTS_OF_A_CLIENT * 3
    assert list(known.cursors[1_023].closed) == [6, 7, 8, 9]


def test_the_last_two_are_remembered_in_any_case() -> None:
    known = Place().connect(b"node1")
    known.cursors = {vbucket: TapCursor() for vbucket in range(CHECKPOINTS_OF_A_CLIENT)}
    for number in range(1, 10):
        known.closed(3, number, number)
    assert list(known.cursors[3].closed) == [8, 9]
    assert CHECKPOINTS_LEAST == 2


def test_a_checkpoint_that_is_closed_twice_is_the_newest_again() -> None:
    cursor = TapCursor(closed={1: 10, 2: 20})
    cursor.close_checkpoint(1, 11, kept=2)
    assert list(cursor.closed.items()) == [(2, 20), (1, 11)]


def test_the_checkpoint_of_a_vbucket_that_is_not_wanted_any_more_is_not_noted() -> None:
    known = Place().connect(b"node1")
    known.closed(3, 1, 10)
    assert known.cursors == {}


def test_above_a_branch_of_history_no_place_is_left_to_resume_from() -> None:
    cursor = TapCursor(
        acked=30,
        snapshot=SnapshotRange(20, 40),
        sent=35,
        checkpoint_id=4,
        closed={1: 10, 2: 15, 3: 20},
        checkpoint_after=20,
    )
    cursor.branched(15)
    assert (cursor.acked, cursor.snapshot, cursor.sent) == (15, SnapshotRange(15, 15), 35)
    assert (cursor.closed, cursor.checkpoint_id, cursor.checkpoint_after) == ({1: 10, 2: 15}, 4, 15)


def test_a_branch_above_what_is_acknowledged_moves_no_position() -> None:
    cursor = TapCursor(acked=10, snapshot=SnapshotRange(5, 20), sent=18)
    cursor.branched(15)
    assert (cursor.acked, cursor.snapshot) == (10, SnapshotRange(5, 20))
