"""Registered TAP clients: what is kept of them, where, and for how long."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.tap_adapter.names_rig import LIVE, REGISTERED, UNIX, Place, moved, why
from uprmc.config import TapSettings
from uprmc.errors import TemporaryFailure
from uprmc.model import SnapshotRange
from uprmc.protocol.tap import ConnectFlag
from uprmc.tap_adapter.cursor import TapCursor, decode_position, encode_position


@pytest.mark.acceptance("D56")
@pytest.mark.parametrize("keepalive_s", [0.0, 30.0])
def test_a_registered_clients_position_outlives_connection_and_process(keepalive_s: float) -> None:
    place = Place(keepalive_s=keepalive_s)
    known = place.connect(b"backup", REGISTERED)
    cursor = moved(known)
    place.leave(known)
    place.tick(86_400.0)
    known = place.connect(b"backup", REGISTERED)
    assert known.cursors == {3: cursor}
    place.leave(known)
    place.restart()
    assert len(place.names) == 1
    assert place.connect(b"backup", REGISTERED).cursors == {3: cursor}


def test_a_registered_client_that_was_gone_for_long_chooses_its_flags_anew() -> None:
    place = Place(keepalive_s=30.0)
    place.leave(place.connect(b"backup", REGISTERED))
    place.now += 30.0
    known = place.connect(b"backup", REGISTERED | ConnectFlag.REQUEST_KEYS_ONLY)
    assert known.connect.has(ConnectFlag.REQUEST_KEYS_ONLY)


def test_what_was_saved_before_a_crash_is_found_after_it() -> None:
    place = Place()
    known = place.connect(b"backup", REGISTERED)
    cursor = moved(known)
    told: list[bool] = []
    known.save(told.append)
    assert told == [True]
    cursor.sent = 99  # never saved
    place.restart()
    assert place.connect(b"backup", REGISTERED).cursors == {3: replace(cursor, sent=15)}


def test_after_a_restart_the_ring_knows_that_it_knows_nothing_of_what_was_sent() -> None:
    place = Place()
    known = place.connect(b"backup", REGISTERED)
    moved(known)
    known.ring.add(3, 0, 15, [b"k"])
    place.leave(known)
    assert place.connect(b"backup", REGISTERED).ring.above(3, 12) == [b"k"]
    place.restart()
    ring = place.connect(b"backup", REGISTERED).ring
    ring.add(3, 10, 18, [b"l"])
    assert ring.above(3, 14) is None
    assert ring.above(3, 15) == [b"l"]


def test_a_save_that_fails_is_told() -> None:
    place = Place()
    known = place.connect(b"backup", REGISTERED)
    place.keeper.works = False
    told: list[bool] = []
    known.save(told.append)
    assert told == [False]


def test_saving_who_is_not_registered_costs_nothing() -> None:
    place = Place()
    told: list[bool] = []
    place.connect(b"node1").save(told.append)
    assert told == [True]
    assert place.keeper.writes == 0


@pytest.mark.acceptance("D56")
def test_a_registered_position_expires() -> None:
    place = Place(TapSettings(registered_expiry_s=1_000.0))
    known = place.connect(b"backup", REGISTERED)
    moved(known)
    place.leave(known)
    place.now += 999.0
    known = place.connect(b"backup", REGISTERED)
    assert known.cursors
    place.leave(known)
    place.now += 1_000.0
    assert place.connect(b"backup", REGISTERED).cursors == {}


def test_a_slow_disk_prolongs_no_position() -> None:
    place = Place()
    known = place.connect(b"backup", REGISTERED)
    place.keeper.patient = True
    known.save(bool)
    left_at = place.unix_now
    place.leave(known)
    place.tick(50.0)
    place.keeper.finish_all()
    assert decode_position(place.keeper.documents[b"backup"]).seen_s == left_at


def test_an_expired_position_is_removed_from_disk() -> None:
    place = Place(TapSettings(registered_expiry_s=1_000.0))
    place.leave(place.connect(b"backup", REGISTERED))
    place.tick(999.0)
    assert b"backup" in place.keeper.documents
    place.tick(11.0)
    assert place.keeper.documents == {}
    assert len(place.names) == 0


def test_a_position_expires_over_a_restart() -> None:
    place = Place(TapSettings(registered_expiry_s=1_000.0))
    known = place.connect(b"backup", REGISTERED)
    moved(known)
    place.leave(known)
    place.restart()
    place.now += 994.0
    place.tick()
    assert len(place.names) == 1
    place.tick(10.0)
    assert len(place.names) == 0
    assert place.keeper.documents == {}


def test_who_stays_connected_for_long_does_not_expire_by_a_crash() -> None:
    place = Place(TapSettings(registered_expiry_s=1_000.0))
    known = place.connect(b"backup", REGISTERED)
    cursor = moved(known)
    for _ in range(200):
        place.tick(10.0)
    place.restart()
    place.now += 800.0
    place.tick()
    assert place.connect(b"backup", REGISTERED).cursors == {3: cursor}
    assert place.keeper.writes < 30


def test_a_clock_that_was_wrong_keeps_nobody_for_ever() -> None:
    place = Place(TapSettings(registered_expiry_s=1_000.0))
    document = encode_position({3: TapCursor()}, UNIX * 2)
    place.keeper.documents[b"backup"] = document
    place.restart()
    place.tick()
    place.tick(1_000.0)
    assert len(place.names) == 0


@pytest.mark.acceptance("D56")
def test_deregister_drops_the_position_and_hangs_up() -> None:
    place = Place(keepalive_s=30.0)
    known = place.connect(b"backup", REGISTERED)
    moved(known)
    known.save(bool)
    place.names.deregister(b"backup")
    assert why(known) == "deregistered"
    place.leave(known)
    assert place.keeper.documents == {}
    assert len(place.names) == 0
    assert place.connect(b"backup", REGISTERED).cursors == {}


@pytest.mark.parametrize("wait_s", [0.0, 60.0])
def test_deregister_drops_who_is_not_connected(wait_s: float) -> None:
    place = Place(keepalive_s=30.0)
    place.leave(place.connect(b"backup", REGISTERED))
    place.tick(wait_s)
    place.names.deregister(b"backup")
    assert place.keeper.documents == {}
    assert len(place.names) == 0


def test_deregister_of_nobody_is_fine() -> None:
    Place().names.deregister(b"nobody")


def test_who_comes_back_while_its_document_is_being_dropped_keeps_the_new_one() -> None:
    place = Place()
    place.leave(place.connect(b"backup", REGISTERED))
    place.keeper.patient = True
    place.names.deregister(b"backup")
    known = place.connect(b"backup", REGISTERED)
    cursor = moved(known)
    told: list[bool] = []
    known.save(told.append)
    place.keeper.finish_all()
    assert told == [True]
    assert place.on_disk(b"backup") == {3: cursor}


def test_a_document_that_could_not_be_dropped_is_dropped_later() -> None:
    place = Place()
    place.leave(place.connect(b"backup", REGISTERED))
    place.keeper.works = False
    place.names.deregister(b"backup")
    assert place.keeper.documents
    place.keeper.works = True
    place.tick(10.0)
    assert place.keeper.documents == {}


def test_who_is_registered_no_longer_goes_on_and_its_document_goes_before_data_does() -> None:
    place = Place()
    known = place.connect(b"backup", REGISTERED)
    cursor = moved(known)
    place.leave(known)
    place.keeper.patient = True
    known = place.connect(b"backup", LIVE)
    assert known.cursors == {3: cursor}
    told: list[bool] = []
    known.save(told.append)
    assert told == []
    place.keeper.finish()
    assert told == [True]
    assert place.keeper.documents == {}


def test_who_is_registered_no_longer_and_goes_at_once_leaves_no_document() -> None:
    place = Place()
    place.leave(place.connect(b"backup", REGISTERED))
    place.leave(place.connect(b"backup", LIVE))
    assert place.keeper.documents == {}


def test_a_registered_client_that_was_refused_keeps_nothing() -> None:
    place = Place()
    known = place.connect(b"backup", REGISTERED)
    moved(known)
    place.leave(known, finished=True)
    assert place.keeper.documents == {}
    assert len(place.names) == 0


@pytest.mark.acceptance("D56")
def test_a_dump_neither_takes_nor_touches_the_position_of_its_name() -> None:
    place = Place()
    known = place.connect(b"backup", REGISTERED)
    cursor = moved(known)
    place.leave(known)
    dump = place.connect(b"backup", REGISTERED | ConnectFlag.DUMP)
    assert dump.cursors == {}
    assert not dump.registered
    told: list[bool] = []
    dump.save(told.append)
    assert told == [True]
    place.leave(dump, finished=True)
    assert place.on_disk(b"backup") == {3: cursor}
    assert place.connect(b"backup", REGISTERED).cursors == {3: cursor}


def test_a_dump_of_a_parked_name_counts_as_one_more() -> None:
    place = Place(TapSettings(names=1))
    place.leave(place.connect(b"backup", REGISTERED))
    with pytest.raises(TemporaryFailure):
        place.connect(b"backup", ConnectFlag.DUMP)


def test_a_dump_of_a_connected_name_counts_as_one_more_if_that_stays_known() -> None:
    place = Place(TapSettings(names=1))
    known = place.connect(b"backup", REGISTERED)
    with pytest.raises(TemporaryFailure):
        place.connect(b"backup", ConnectFlag.DUMP)
    assert why(known) == ""
    place.leave(known, finished=True)
    place.connect(b"backup", LIVE)
    place.connect(b"backup", ConnectFlag.DUMP)


@pytest.mark.acceptance("D56")
def test_a_registered_client_of_closed_checkpoints_restarts_its_current_one() -> None:
    place = Place()
    known = place.connect(b"backup", REGISTERED, closed_only=True)
    cursor = moved(known, acked=14)
    cursor.open_checkpoint(4, 12)
    cursor.closed[3] = 12
    place.leave(known)
    again = place.connect(b"backup", REGISTERED, closed_only=True).cursors[3]
    assert (again.acked, again.snapshot, again.checkpoint_id) == (12, SnapshotRange(12, 12), 4)
    assert again.sent == 15


def test_a_checkpoint_that_is_closed_is_not_restarted() -> None:
    place = Place()
    known = place.connect(b"backup", REGISTERED, closed_only=True)
    cursor = moved(known, acked=14)
    cursor.open_checkpoint(4, 12)
    cursor.closed[4] = 14
    place.leave(known)
    assert place.connect(b"backup", REGISTERED, closed_only=True).cursors[3].acked == 14


@pytest.mark.parametrize("flags", [REGISTERED, LIVE])
def test_who_takes_open_checkpoints_goes_on_in_the_middle(flags: int) -> None:
    place = Place(keepalive_s=30.0)
    known = place.connect(b"backup", flags)
    moved(known, acked=14).open_checkpoint(4, 12)
    place.leave(known)
    assert place.connect(b"backup", flags).cursors[3].acked == 14


def test_a_backfill_is_no_checkpoint_to_restart() -> None:
    cursor = TapCursor(acked=14)
    cursor.restart_checkpoint()
    assert cursor.acked == 14


def test_a_document_that_cannot_be_read_makes_the_name_unknown() -> None:
    place = Place()
    whole = encode_position({3: TapCursor()}, UNIX)
    place.keeper.documents = {b"torn": whole[:-1], b"\xff": b"", b"good": whole}
    place.restart()
    assert [known.name for known in place.names] == [b"good"]
    assert len(place.names.refused_documents) == 2
    assert all("\n" not in line for line in place.names.refused_documents)
    assert "'torn'" in place.names.refused_documents[0]
    assert place.connect(b"torn", REGISTERED).cursors == {}


def test_a_document_that_cannot_be_read_stays_until_its_client_comes() -> None:
    place = Place()
    place.keeper.documents = {b"newer": b"uprmc-tap-position 2 00000000\n"}
    place.restart()
    place.tick(10.0)
    place.leave(place.connect(b"newer", ConnectFlag.DUMP), finished=True)
    place.tick(10.0)
    assert place.keeper.documents
    told: list[bool] = []
    place.connect(b"newer").save(told.append)
    assert told == [True]
    assert place.keeper.documents == {}


def test_a_document_that_cannot_be_read_goes_with_its_name() -> None:
    place = Place()
    place.keeper.documents = {b"torn": b""}
    place.restart()
    place.names.deregister(b"torn")
    assert place.keeper.documents == {}


def test_more_documents_than_names_are_kept_and_nobody_new_is_taken() -> None:
    place = Place(TapSettings(names=1))
    place.keeper.documents = {name: encode_position({}, UNIX) for name in (b"a", b"b")}
    place.restart()
    assert len(place.names) == 2
    assert place.connect(b"b", REGISTERED).registered
    with pytest.raises(TemporaryFailure):
        place.connect(b"c")


def test_starting_over_takes_the_position_from_who_is_not_connected() -> None:
    place = Place(keepalive_s=30.0)
    for name, flags in ((b"gone", LIVE), (b"parked", REGISTERED), (b"here", LIVE)):
        known = place.connect(name, flags)
        moved(known)
        if name != b"here":
            place.leave(known)
    place.names.start_over()
    assert place.on_disk(b"parked") == {}
    assert [bool(known.cursors) for known in place.names] == [True, False, False]
