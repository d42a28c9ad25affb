"""TAP clients by name: who takes over, who is resumed, who is forgotten."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.tap_adapter.fake_keeper import FakeKeeper
from uprmc.config import TapSettings
from uprmc.errors import InvalidArguments, TemporaryFailure
from uprmc.model import SnapshotRange
from uprmc.protocol.tap import Connect, ConnectFlag
from uprmc.tap_adapter.course import (
    CHECKPOINTS_KEPT,
    CHECKPOINTS_LEAST,
    CHECKPOINTS_OF_A_CLIENT,
    Course,
)
from uprmc.tap_adapter.names import NAME_BYTES_MAX, Names, TapName
from uprmc.tap_adapter.position_document import decode, encode

LIVE = ConnectFlag.SUPPORT_ACK | ConnectFlag.CHECKPOINT
REGISTERED = LIVE | ConnectFlag.REGISTERED_CLIENT
UNIX = 1_700_000_000.0


class FakeProducer:
    """What serves a name."""

    def __init__(self) -> None:
        self.done = False
        self.why = ""

    def disconnect(self, why: str) -> None:
        self.why = why


class Place:
    """Names, a clock for both times, and a disk."""

    def __init__(self, settings: TapSettings | None = None, *, keepalive_s: float = 0.0) -> None:
        self.settings = settings or TapSettings(keepalive_s=keepalive_s)
        self.keeper = FakeKeeper()
        self.now = 100.0
        self.names = Names(self.settings, self.keeper)

    @property
    def unix_now(self) -> float:
        return UNIX + self.now

    def connect(self, name: bytes, flags: int = LIVE, **rest: object) -> TapName:
        asked = Connect(name, flags)._replace(**rest)  # type: ignore[arg-type]
        known = self.names.connect(asked, self.now, self.unix_now)
        known.producer = FakeProducer()
        return known

    def leave(self, known: TapName, *, finished: bool = False) -> None:
        self.names.left(known, self.now, self.unix_now, finished=finished)

    def tick(self, seconds: float = 0.0) -> None:
        self.now += seconds
        self.names.tick(self.now, self.unix_now)

    def restart(self) -> None:
        self.keeper.pending.clear()
        self.names = Names(self.settings, self.keeper)
        self.now = 5.0 + self.now

    def on_disk(self, name: bytes) -> dict[int, Course]:
        return decode(self.keeper.documents[name]).courses


def moved(known: TapName, acked: int = 10) -> Course:
    """Have a client acknowledge something."""
    course = Course(uuid=7, acked=acked, snapshot=SnapshotRange(0, 20), sent=15, backfilled=True)
    known.courses[3] = course
    return course


def why(known: TapName) -> str:
    assert isinstance(known.producer, FakeProducer)
    return known.producer.why


# --- names ----------------------------------------------------------------------------------------


def test_a_new_name_has_no_position() -> None:
    known = Place().connect(b"node1", vbuckets=(3, 5), last_closed={3: 9})
    assert (known.name, known.flags, known.courses) == (b"node1", LIVE, {})
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
    assert place.connect(b"anon_1").courses == {}
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
    course = moved(old)
    new = place.connect(b"node1")
    assert isinstance(served_by, FakeProducer)
    assert "taken" in served_by.why
    assert new.courses == {3: course}
    assert place.names.find(b"node1") is new
    assert len(place.names) == 1


def test_what_an_old_connection_still_hears_moves_nothing() -> None:
    place = Place(keepalive_s=30.0)
    old = place.connect(b"node1")
    course = moved(old)
    old.ring.add(3, 0, 5, [b"a"])
    new = place.connect(b"node1")
    course.acked, course.closed[1] = 20, 20
    old.ring.forget(3)
    told: list[bool] = []
    old.save(told.append)
    place.leave(old, finished=True)
    assert told == [False]
    assert (new.courses[3].acked, new.courses[3].closed) == (10, {})
    assert new.ring.above(3, 0) == [b"a"]
    assert place.names.find(b"node1") is new


def test_a_name_that_went_a_moment_ago_is_resumed_and_one_that_is_gone_too_long_is_not() -> None:
    place = Place(keepalive_s=30.0)
    known = place.connect(b"node1")
    course = moved(known)
    place.leave(known)
    assert known.gone_at == place.now
    place.now += 29.9
    known = place.connect(b"node1")
    assert known.courses == {3: course}
    place.leave(known)
    place.now += 30.0
    assert place.connect(b"node1").courses == {}


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
    assert new.courses == {}
    assert new.connect.has(ConnectFlag.REQUEST_KEYS_ONLY)


def test_a_stream_that_has_finished_is_not_resumed() -> None:
    place = Place(keepalive_s=30.0)
    known = place.connect(b"node1")
    moved(known)
    place.leave(known, finished=True)
    assert place.connect(b"node1").courses == {}


def test_a_stream_that_has_finished_and_still_hangs_on_is_not_taken_over() -> None:
    place = Place(keepalive_s=30.0)
    known = place.connect(b"node1")
    moved(known)
    assert isinstance(known.producer, FakeProducer)
    known.producer.done = True
    assert place.connect(b"node1").courses == {}


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


# --- registered clients ---------------------------------------------------------------------------


@pytest.mark.acceptance("D56")
@pytest.mark.parametrize("keepalive_s", [0.0, 30.0])
def test_a_registered_clients_position_outlives_connection_and_process(keepalive_s: float) -> None:
    place = Place(keepalive_s=keepalive_s)
    known = place.connect(b"backup", REGISTERED)
    course = moved(known)
    place.leave(known)
    place.tick(86_400.0)
    known = place.connect(b"backup", REGISTERED)
    assert known.courses == {3: course}
    place.leave(known)
    place.restart()
    assert len(place.names) == 1
    assert place.connect(b"backup", REGISTERED).courses == {3: course}


def test_a_registered_client_that_was_gone_for_long_chooses_its_flags_anew() -> None:
    place = Place(keepalive_s=30.0)
    place.leave(place.connect(b"backup", REGISTERED))
    place.now += 30.0
    known = place.connect(b"backup", REGISTERED | ConnectFlag.REQUEST_KEYS_ONLY)
    assert known.connect.has(ConnectFlag.REQUEST_KEYS_ONLY)


def test_what_was_saved_before_a_crash_is_found_after_it() -> None:
    place = Place()
    known = place.connect(b"backup", REGISTERED)
    course = moved(known)
    told: list[bool] = []
    known.save(told.append)
    assert told == [True]
    course.sent = 99  # never saved
    place.restart()
    assert place.connect(b"backup", REGISTERED).courses == {3: replace(course, sent=15)}


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
    assert known.courses
    place.leave(known)
    place.now += 1_000.0
    assert place.connect(b"backup", REGISTERED).courses == {}


def test_a_slow_disk_prolongs_no_position() -> None:
    place = Place()
    known = place.connect(b"backup", REGISTERED)
    place.keeper.patient = True
    known.save(bool)
    left_at = place.unix_now
    place.leave(known)
    place.tick(50.0)
    place.keeper.finish_all()
    assert decode(place.keeper.documents[b"backup"]).seen_s == left_at


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
    course = moved(known)
    for _ in range(200):
        place.tick(10.0)
    place.restart()
    place.now += 800.0
    place.tick()
    assert place.connect(b"backup", REGISTERED).courses == {3: course}
    assert place.keeper.writes < 30


def test_a_clock_that_was_wrong_keeps_nobody_for_ever() -> None:
    place = Place(TapSettings(registered_expiry_s=1_000.0))
    document = encode({3: Course()}, UNIX * 2)
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
    assert place.connect(b"backup", REGISTERED).courses == {}


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
    course = moved(known)
    told: list[bool] = []
    known.save(told.append)
    place.keeper.finish_all()
    assert told == [True]
    assert place.on_disk(b"backup") == {3: course}


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
    course = moved(known)
    place.leave(known)
    place.keeper.patient = True
    known = place.connect(b"backup", LIVE)
    assert known.courses == {3: course}
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
    course = moved(known)
    place.leave(known)
    dump = place.connect(b"backup", REGISTERED | ConnectFlag.DUMP)
    assert dump.courses == {}
    assert not dump.registered
    told: list[bool] = []
    dump.save(told.append)
    assert told == [True]
    place.leave(dump, finished=True)
    assert place.on_disk(b"backup") == {3: course}
    assert place.connect(b"backup", REGISTERED).courses == {3: course}


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
    course = moved(known, acked=14)
    course.open_checkpoint(4, 12)
    course.closed[3] = 12
    place.leave(known)
    again = place.connect(b"backup", REGISTERED, closed_only=True).courses[3]
    assert (again.acked, again.snapshot, again.checkpoint_id) == (12, SnapshotRange(12, 12), 4)
    assert again.sent == 15


def test_a_checkpoint_that_is_closed_is_not_restarted() -> None:
    place = Place()
    known = place.connect(b"backup", REGISTERED, closed_only=True)
    course = moved(known, acked=14)
    course.open_checkpoint(4, 12)
    course.closed[4] = 14
    place.leave(known)
    assert place.connect(b"backup", REGISTERED, closed_only=True).courses[3].acked == 14


@pytest.mark.parametrize("flags", [REGISTERED, LIVE])
def test_who_takes_open_checkpoints_goes_on_in_the_middle(flags: int) -> None:
    place = Place(keepalive_s=30.0)
    known = place.connect(b"backup", flags)
    moved(known, acked=14).open_checkpoint(4, 12)
    place.leave(known)
    assert place.connect(b"backup", flags).courses[3].acked == 14


def test_a_backfill_is_no_checkpoint_to_restart() -> None:
    course = Course(acked=14)
    course.restart_checkpoint()
    assert course.acked == 14


def test_a_document_that_cannot_be_read_makes_the_name_unknown() -> None:
    place = Place()
    whole = encode({3: Course()}, UNIX)
    place.keeper.documents = {b"torn": whole[:-1], b"\xff": b"", b"good": whole}
    place.restart()
    assert [known.name for known in place.names] == [b"good"]
    assert len(place.names.refused_documents) == 2
    assert all("\n" not in line for line in place.names.refused_documents)
    assert "'torn'" in place.names.refused_documents[0]
    assert place.connect(b"torn", REGISTERED).courses == {}


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
    place.keeper.documents = {name: encode({}, UNIX) for name in (b"a", b"b")}
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
    assert [bool(known.courses) for known in place.names] == [True, False, False]


# --- checkpoints ----------------------------------------------------------------------------------


def test_the_newest_closed_checkpoints_are_remembered() -> None:
    known = Place().connect(b"node1")
    known.courses[3] = course = Course()
    for number in range(1, CHECKPOINTS_KEPT + 1):
        known.closed(3, number, number * 10)
    assert len(course.closed) == CHECKPOINTS_KEPT
    assert course.closed[1] == 10
    known.closed(3, CHECKPOINTS_KEPT + 1, 5)
    assert len(course.closed) == CHECKPOINTS_KEPT
    assert 1 not in course.closed
    assert course.closed[CHECKPOINTS_KEPT + 1] == 5


def test_a_client_with_many_vbuckets_keeps_fewer_of_each() -> None:
    known = Place().connect(b"node1")
    for vbucket in range(1_024):
        known.courses[vbucket] = Course()
        for number in range(1, 10):
            known.closed(vbucket, number, number)
    total = sum(len(course.closed) for course in known.courses.values())
    assert total < CHECKPOINTS_OF_A_CLIENT * 3
    assert list(known.courses[1_023].closed) == [6, 7, 8, 9]


def test_the_last_two_are_remembered_in_any_case() -> None:
    known = Place().connect(b"node1")
    known.courses = {vbucket: Course() for vbucket in range(CHECKPOINTS_OF_A_CLIENT)}
    for number in range(1, 10):
        known.closed(3, number, number)
    assert list(known.courses[3].closed) == [8, 9]
    assert CHECKPOINTS_LEAST == 2


def test_a_checkpoint_that_is_closed_twice_is_the_newest_again() -> None:
    course = Course(closed={1: 10, 2: 20})
    course.close_checkpoint(1, 11, kept=2)
    assert list(course.closed.items()) == [(2, 20), (1, 11)]


def test_the_checkpoint_of_a_vbucket_that_is_not_wanted_any_more_is_not_noted() -> None:
    known = Place().connect(b"node1")
    known.closed(3, 1, 10)
    assert known.courses == {}


def test_above_a_branch_of_history_no_place_is_left_to_resume_from() -> None:
    course = Course(
        acked=30,
        snapshot=SnapshotRange(20, 40),
        sent=35,
        checkpoint_id=4,
        closed={1: 10, 2: 15, 3: 20},
        checkpoint_after=20,
    )
    course.branched(15)
    assert (course.acked, course.snapshot, course.sent) == (15, SnapshotRange(15, 15), 35)
    assert (course.closed, course.checkpoint_id, course.checkpoint_after) == ({1: 10, 2: 15}, 4, 15)


def test_a_branch_above_what_is_acknowledged_moves_no_position() -> None:
    course = Course(acked=10, snapshot=SnapshotRange(5, 20), sent=18)
    course.branched(15)
    assert (course.acked, course.snapshot) == (10, SnapshotRange(5, 20))
