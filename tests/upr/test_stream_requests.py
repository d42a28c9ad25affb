"""Stream requests: what is accepted, what is refused with which status, and in which order.

Source: UPR reference 2.3, 2.4, 2.5, 4.8; rows D24 to D26, D33, P07 to P12.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.support import Node, SlowTransport
from tests.upr.peer import (
    ACTIVE,
    CLOSE_STREAM,
    DEAD,
    DISK_ONLY,
    EXISTS,
    FAILOVER_LOG,
    INVALID,
    LATER,
    LATEST,
    MARKER,
    MAX,
    NO_STREAM,
    NOT_FOUND,
    NOT_MY_VBUCKET,
    OK,
    PENDING,
    RANGE,
    REPLICA,
    ROLLBACK,
    STREAM_END,
    STREAM_REQUEST,
    TAKEOVER,
    Peer,
    Rig,
    bystander,
    check_stream,
    fill,
    frame,
    kinds,
    only,
    opening,
    seqnos,
    split,
    stream_request,
    upr_rig,
    uuid_of,
    write,
)
from uprmc.engine.failover_log import branched
from uprmc.kv.session import Negotiation
from uprmc.model import FailoverEntry, SnapshotRange


@pytest.fixture
def rig() -> Rig:
    return upr_rig()


def with_log(rig: Rig, *entries: tuple[int, int], vbucket: int = 0) -> None:
    """Give a vBucket this failover log, newest first."""
    log = tuple(FailoverEntry(*entry) for entry in entries)
    rig.bucket.vbuckets[vbucket].failover_log = log


# --- what is answered -----------------------------------------------------------------------------


@pytest.mark.acceptance("P11")
def test_an_accepted_request_carries_the_whole_failover_log(rig: Rig) -> None:
    fill(rig, 0, 150)
    with_log(rig, (0xB, 100), (0xA, 0))
    peer = Peer.open(rig)
    answer = peer.say(stream_request(0, opaque=0x1001))[0]
    assert (answer.opcode, answer.status, answer.opaque) == (STREAM_REQUEST, OK, 0x1001)
    assert answer.log == [(0xB, 100), (0xA, 0)]
    assert answer.extras == b""


def test_the_failover_log_of_an_accepted_request_is_never_empty(rig: Rig) -> None:
    for number in range(4):
        (answer,) = Peer.open(rig, b"%d" % number).say(stream_request(number))
        assert len(answer.log) == 1
        assert answer.log[0][0] > 0


@pytest.mark.acceptance("P11")
def test_the_opaque_is_in_every_frame_of_the_stream(rig: Rig) -> None:
    fill(rig, 1, 3)
    frames = Peer.open(rig).stream(1, 0, 3, opaque=0xCAFE0001)
    assert kinds(frames) == [MARKER, 0x57, 0x57, 0x57, STREAM_END]
    assert {each.opaque for each in frames} == {0xCAFE0001}
    assert {each.vbucket for each in frames} == {1}


def test_the_answer_comes_before_the_first_frame(rig: Rig) -> None:
    fill(rig, 0, 3)
    fill(rig, 1, 3)
    peer = Peer.open(rig)
    frames = peer.say(stream_request(0, opaque=1), stream_request(1, opaque=2))
    answered: set[int] = set()
    for each in frames:
        if each.is_reply:
            answered.add(each.opaque)
        else:
            assert each.opaque in answered
    assert seqnos(frames, 0) == seqnos(frames, 1) == [1, 2, 3]


@pytest.mark.acceptance("D24")
def test_failover_logs_are_answered_for_vbuckets_that_are_here(rig: Rig) -> None:
    with_log(rig, (7, 5), (3, 0), vbucket=1)
    peer = Peer.open(rig)
    frames = peer.say(*(frame(FAILOVER_LOG, vbucket=n, opaque=n) for n in (0, 1, 900, 2, 901)))
    assert [(each.opaque, each.status) for each in frames] == [
        (0, OK),
        (1, OK),
        (900, NOT_MY_VBUCKET),
        (2, OK),
        (901, NOT_MY_VBUCKET),
    ]
    assert frames[1].log == [(7, 5), (3, 0)]


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.acceptance("D26")
@pytest.mark.parametrize("state", [PENDING, DEAD])
def test_only_active_and_replica_vbuckets_are_streamed(rig: Rig, state: Any) -> None:
    undisturbed = bystander(rig)
    rig.bucket.set_state(0, state)
    peer = Peer.open(rig)
    assert peer.ask(stream_request(0)).status == NOT_MY_VBUCKET
    assert peer.ask(stream_request(77)).status == NOT_MY_VBUCKET
    assert not peer.closed
    undisturbed()


@pytest.mark.acceptance("D25")
def test_a_replica_is_served_unless_an_active_one_is_asked_for(rig: Rig) -> None:
    fill(rig, 0, 2)
    rig.bucket.set_state(0, REPLICA)
    peer = Peer.open(rig)
    assert peer.ask(stream_request(0, flags=0x10)).status == NOT_MY_VBUCKET
    assert seqnos(peer.stream(0)) == [1, 2]
    fill(rig, 1, 2)
    assert seqnos(peer.stream(1, flags=0x10)) == [1, 2]


@pytest.mark.acceptance("D26")
def test_four_mistakes_have_four_statuses(rig: Rig) -> None:
    fill(rig, 0, 10)
    peer = Peer.open(rig)
    uuid = uuid_of(rig)
    assert peer.ask(stream_request(9)).status == NOT_MY_VBUCKET
    assert peer.ask(stream_request(0, 9, 3, uuid=uuid)).status == RANGE
    ahead = peer.ask(stream_request(0, 60, uuid=uuid))
    assert (ahead.status, ahead.value) == (ROLLBACK, (10).to_bytes(8, "big"))
    stranger = peer.ask(stream_request(0, 5, uuid=0xDEAD))
    assert (stranger.status, stranger.value) == (ROLLBACK, bytes(8))


@pytest.mark.parametrize(
    ("start", "end", "snapshot"),
    [(9, 3, (9, 9)), (9, MAX, (10, 12)), (9, MAX, (3, 8)), (5, 0, (5, 5)), (0, MAX, (1, 1))],
)
def test_seqnos_that_contradict_each_other_are_out_of_range(
    rig: Rig, start: int, end: int, snapshot: tuple[int, int]
) -> None:
    undisturbed = bystander(rig)
    fill(rig, 0, 50)
    peer = Peer.open(rig)
    asked = stream_request(0, start, end, uuid=uuid_of(rig), snapshot=snapshot)
    answer = peer.ask(asked)
    assert answer.status == RANGE
    assert not peer.closed
    undisturbed()


@pytest.mark.acceptance("P08")
@pytest.mark.parametrize(
    ("uuid", "start", "snapshot", "expected"),
    [
        (0xA, 50, (50, 50), None),
        (0xA, 90, (90, 90), None),
        (0xA, 130, (130, 130), 100),
        (0xA, 110, (90, 120), 90),
        (0xA, 95, (90, 100), None),
        (0xB, 150, (150, 150), None),
        (0xB, 160, (160, 160), 150),
        (0, 20, (20, 20), 0),
        (0xD, 20, (20, 20), 0),
        (0xB, 170, (140, 170), 150),
    ],
)
def test_how_far_to_fall_back_is_told(
    rig: Rig, uuid: int, start: int, snapshot: tuple[int, int], expected: int | None
) -> None:
    fill(rig, 0, 150)
    with_log(rig, (0xB, 100), (0xA, 0))
    peer = Peer.open(rig)
    frames = peer.say(stream_request(0, start, uuid=uuid, snapshot=snapshot))
    if expected is None:
        assert frames[0].status == OK
        assert check_stream(frames[1:], start) in (start, 150)
    else:
        assert (frames[0].status, frames[0].value) == (ROLLBACK, expected.to_bytes(8, "big"))
        assert len(frames) == 1


@pytest.mark.acceptance("P12")
@pytest.mark.parametrize("uuid", [0, 1, 0xDEAD, MAX])
def test_since_0_is_always_accepted(rig: Rig, uuid: int) -> None:
    fill(rig, 0, 3)
    assert seqnos(Peer.open(rig).stream(0, 0, uuid=uuid)) == [1, 2, 3]


def test_a_strict_request_wants_a_uuid_that_is_known_even_at_0(rig: Rig) -> None:
    peer = Peer.open(rig)
    assert peer.ask(stream_request(0, uuid=0xDEAD, flags=0x20)).status == ROLLBACK
    assert peer.ask(stream_request(0, uuid=0, flags=0x20)).status == OK


def test_before_warm_up_is_over_nothing_is_streamed() -> None:
    peer = Peer.open(upr_rig(warm=False))
    assert peer.ask(stream_request(0)).status == LATER


# --- the order of the checks ----------------------------------------------------------------------

#: What is wrong, and what is answered if nothing before it in the table is wrong too.
WRONGS: list[tuple[str, int]] = [
    ("value", INVALID),
    ("vbucket", NOT_MY_VBUCKET),
    ("range", RANGE),
    ("repeated", EXISTS),
    ("history", ROLLBACK),
]


def wrong_request(rig: Rig, peer: Peer, wrongs: list[str]) -> bytes:
    fill(rig, 0, 10)
    fields: dict[str, Any] = {"start": 5, "uuid": uuid_of(rig), "snapshot": (5, 5)}
    if "repeated" in wrongs:
        peer.stream(0)
    if "vbucket" in wrongs:
        rig.bucket.set_state(0, REPLICA)
        fields["flags"] = 0x10
    if "range" in wrongs:
        fields["snapshot"] = (6, 7)
    if "history" in wrongs:
        fields["uuid"] = 0xDEAD
    if "value" in wrongs:
        fields["value"] = b"{"
    return stream_request(0, **fields)


@pytest.mark.parametrize("first", range(5))
def test_the_checks_come_in_the_order_of_todays_servers(rig: Rig, first: int) -> None:
    peer = Peer.open(rig)
    peer.controls(uprmc_versions=b"true")
    wrongs = [name for name, _ in WRONGS[first:]]
    if "vbucket" in wrongs:
        wrongs.remove("repeated")  # the change of state would end the stream
    asked = wrong_request(rig, peer, wrongs)
    assert peer.ask(asked).status == WRONGS[first][1]


def test_a_repeated_stream_of_an_absent_vbucket_is_not_there_any_more(rig: Rig) -> None:
    peer = Peer.open(rig)
    peer.stream(0)
    rig.bucket.set_state(0, DEAD)
    assert [each.reason for each in only(peer.drain(), STREAM_END)] == [2]
    assert peer.ask(stream_request(0)).status == NOT_MY_VBUCKET


def test_todays_rule_looks_at_history_before_it_applies_latest(rig: Rig) -> None:
    fill(rig, 0, 50)
    peer = Peer.open(rig)
    asked = stream_request(0, 60, uuid=uuid_of(rig), flags=LATEST)
    assert peer.ask(asked).status == ROLLBACK


# --- where a stream ends --------------------------------------------------------------------------


@pytest.mark.parametrize("start", [0, 5])
def test_a_stream_that_is_at_its_end_ends_at_once(rig: Rig, start: int) -> None:
    fill(rig, 0, 5)
    (end,) = Peer.open(rig).stream(0, start, start)
    assert (end.opcode, end.reason, end.vbucket) == (STREAM_END, 0, 0)


def test_a_stream_to_an_end_inside_a_snapshot_ends_after_that_snapshot(rig: Rig) -> None:
    for _ in range(101):
        write(rig, 0, b"key")
    frames = Peer.open(rig).stream(0, 0, 100)
    assert kinds(frames) == [MARKER, 0x57, STREAM_END]
    assert seqnos(frames) == [101]
    assert frames[-1].reason == 0


@pytest.mark.parametrize("on_disk", [False, True])
def test_the_last_item_is_in_the_snapshot_that_holds_the_end(rig: Rig, on_disk: bool) -> None:
    fill(rig, 0, 20)
    if on_disk:
        rig.flush()
    frames = Peer.open(rig).stream(0, 0, 12)
    assert check_stream(frames) == 20
    assert frames[-1].opcode == STREAM_END


def test_a_stream_waits_for_an_end_that_is_to_come(rig: Rig) -> None:
    fill(rig, 0, 3)
    peer = Peer.open(rig)
    assert STREAM_END not in kinds(peer.stream(0, 0, 5))
    write(rig, 0, b"a")
    assert STREAM_END not in kinds(peer.drain())
    write(rig, 0, b"b")
    assert kinds(peer.drain()) == [MARKER, 0x57, STREAM_END]
    write(rig, 0, b"c")
    assert peer.drain() == []


def test_latest_ends_at_what_is_there_now(rig: Rig) -> None:
    fill(rig, 0, 5)
    peer = Peer.open(rig)
    frames = peer.stream(0, 0, flags=LATEST)
    assert seqnos(frames) == [1, 2, 3, 4, 5]
    assert frames[-1].opcode == STREAM_END
    assert kinds(peer.stream(0, 5, flags=LATEST)) == [STREAM_END]


def test_disk_only_ends_at_what_is_persisted_now(rig: Rig) -> None:
    peer = Peer.open(rig)
    fill(rig, 0, 5)
    assert kinds(peer.stream(0, 0, flags=DISK_ONLY)) == [STREAM_END]
    rig.flush()
    frames = peer.stream(0, 0, flags=DISK_ONLY)
    assert seqnos(frames) == [1, 2, 3, 4, 5]
    assert frames[-1].opcode == STREAM_END


def test_from_latest_begins_at_what_is_there_now(rig: Rig) -> None:
    fill(rig, 0, 5)
    with_log(rig, (0xB, 3), (0xA, 0))
    peer = Peer.open(rig)
    assert peer.stream(0, 2, uuid=0xDEAD, flags=0x40) == []
    write(rig, 0, b"new")
    assert seqnos(peer.drain()) == [6]


# --- closing --------------------------------------------------------------------------------------


def test_a_closed_stream_sends_nothing_more_and_no_end(rig: Rig) -> None:
    peer = Peer.open(rig)
    peer.stream(0)
    assert peer.ask(frame(CLOSE_STREAM, vbucket=0, opaque=9)).status == OK
    write(rig, 0, b"k")
    assert peer.drain() == []
    assert peer.ask(frame(CLOSE_STREAM, vbucket=0)).status == NOT_FOUND


def test_a_peer_that_asked_for_it_gets_an_end_after_the_answer(rig: Rig) -> None:
    peer = Peer.open(rig)
    peer.controls(send_stream_end_on_client_close_stream=b"true")
    peer.stream(0, opaque=0x77)
    answer, end = peer.say(frame(CLOSE_STREAM, vbucket=0, opaque=9))
    assert (answer.opcode, answer.status) == (CLOSE_STREAM, OK)
    assert (end.opcode, end.reason, end.opaque) == (STREAM_END, 1, 0x77)


def test_an_unknown_stream_has_a_status_of_its_own_on_request(rig: Rig) -> None:
    peer = Peer.open(rig)
    assert peer.ask(frame(CLOSE_STREAM, vbucket=0)).status == NOT_FOUND
    peer.controls(v7_dcp_status_codes=b"true")
    assert peer.ask(frame(CLOSE_STREAM, vbucket=0)).status == NO_STREAM


def test_a_stream_that_ended_by_itself_cannot_be_closed(rig: Rig) -> None:
    peer = Peer.open(rig)
    peer.stream(0, 0, 0)
    assert peer.ask(frame(CLOSE_STREAM, vbucket=0)).status == NOT_FOUND


@pytest.mark.parametrize("budget", [1, 4_096, 65_536])
def test_a_close_after_the_first_frame_is_honoured_before_the_end(rig: Rig, budget: int) -> None:
    """As the suite of 2014 does with 1,000 items and a kernel that takes everything."""
    fill(rig, 0, 1_000, b"x" * 100)
    rig.flush()
    peer = Peer.open(rig)
    peer.send(stream_request(0))
    heard = peer.turn(budget)
    while not only(heard, 0x57):
        heard += peer.turn(budget)
    peer.send(frame(CLOSE_STREAM, vbucket=0))
    rest = peer.drain()
    assert [each.status for each in rest if each.is_reply] == [OK]
    assert len(seqnos(peer.received)) < 500
    assert STREAM_END not in kinds(peer.received)
    assert rig.services.upr.backfills.used == 0


def test_every_stream_begins_gently_also_the_second_one(rig: Rig) -> None:
    fill(rig, 0, 1_000, b"x" * 200)
    peer = Peer.open(rig)
    peer.stream(0)
    peer.say(frame(CLOSE_STREAM, vbucket=0))
    peer.send(stream_request(0))
    for _ in range(4):
        assert len(seqnos(peer.turn())) < 50


def test_a_gentle_start_goes_on_after_the_transport_was_blocked(rig: Rig) -> None:
    """A turn that was missed, because the transport took nothing, must not be the last."""
    fill(rig, 0, 200, b"x" * 200)
    peer = Peer.open(rig)
    peer.send(stream_request(0))
    taken = b"".join(peer.session.data_to_send(65_536))
    assert taken
    peer._woken = False  # the wake-up came while the transport was blocked
    frames = split(taken)[0] + peer.drain()
    assert check_stream(frames) == 200


def test_through_the_real_adapter_a_stream_goes_on_and_a_close_is_heard(rig: Rig) -> None:
    fill(rig, 0, 1_000, b"x" * 300)
    node = Node(lambda wake: Negotiation(rig.services, wake, by_key=False))
    protocol = node.connect(SlowTransport(limit=3_000))
    protocol.dataReceived(opening() + stream_request(0))
    for _ in range(3):
        node.turn()
        protocol.transport.drain()
    some = seqnos(split(protocol.transport.value())[0])
    assert 0 < len(some) < 200
    for _ in range(200):
        node.turn()
        protocol.transport.drain()
    assert seqnos(split(protocol.transport.value())[0]) == list(range(1, 1_001))
    protocol.dataReceived(frame(CLOSE_STREAM) + stream_request(0))
    node.turn()
    protocol.dataReceived(frame(CLOSE_STREAM))
    for _ in range(200):
        node.turn()
        protocol.transport.drain()
    assert len(seqnos(split(protocol.transport.value())[0])) < 1_200


def test_a_stream_can_be_closed_and_opened_again_in_one_piece(rig: Rig) -> None:
    fill(rig, 0, 100)
    rig.flush()
    peer = Peer.open(rig)
    peer.controls(send_stream_end_on_client_close_stream=b"true")
    peer.send(stream_request(0, opaque=1))
    peer.turn(600)
    frames = peer.say(frame(CLOSE_STREAM, vbucket=0), stream_request(0, opaque=2))
    assert [each.status for each in frames if each.is_reply] == [OK, OK]
    assert [each.opaque for each in only(frames, STREAM_END)] == [1]
    assert check_stream([each for each in frames if each.opaque == 2 and not each.is_reply]) == 100


# --- changes of state -----------------------------------------------------------------------------


@pytest.mark.acceptance("D33")
@pytest.mark.parametrize("state", [REPLICA, PENDING, DEAD])
def test_a_change_of_state_ends_the_stream(rig: Rig, state: Any) -> None:
    fill(rig, 0, 100, b"x" * 200)
    undisturbed = bystander(rig)
    peer = Peer.open(rig)
    peer.controls(connection_buffer_size=b"500")
    peer.stream(0, opaque=0x55)
    rig.bucket.set_state(0, state)
    peer.controls(connection_buffer_size=b"0")
    (end,) = only(peer.received, STREAM_END)
    assert (end.reason, end.opaque, end.vbucket) == (2, 0x55, 0)
    assert len(seqnos(peer.received)) < 10
    undisturbed()


@pytest.mark.acceptance("D33")
def test_a_deleted_vbucket_ends_the_stream_too(rig: Rig) -> None:
    peer = Peer.open(rig)
    peer.stream(1)
    rig.bucket.set_state(1, DEAD)
    assert [each.reason for each in only(peer.drain(), STREAM_END)] == [2]
    rig.bucket.set_state(2, REPLICA)
    peer.stream(2)
    rig.bucket.vbuckets[2].reset(99)
    assert [each.reason for each in only(peer.drain(), STREAM_END)] == [2]
    assert peer.ask(stream_request(2)).status == OK


def test_a_state_that_does_not_change_ends_nothing(rig: Rig) -> None:
    peer = Peer.open(rig)
    peer.stream(0)
    rig.bucket.set_state(0, ACTIVE)
    assert peer.drain() == []


@pytest.mark.parametrize(("modern", "reason"), [(True, 5), (False, 2)])
def test_reasons_above_2_are_for_peers_of_today(rig: Rig, modern: bool, reason: int) -> None:
    fill(rig, 0, 100, b"x" * 200)
    rig.flush()
    peer = (Peer.modern if modern else Peer.open)(rig)
    peer.send(stream_request(0))
    peer.turn()
    for view in list(rig.store._views):
        view.close()
    assert [each.reason for each in only(peer.drain(), STREAM_END)] == [reason]
    assert rig.services.upr.backfills.used == 0
    assert not peer.closed


def test_a_store_that_opens_no_view_ends_the_stream_and_not_the_connection(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    from uprmc.errors import StoreError

    fill(rig, 0, 3)
    rig.flush()

    def refuse() -> None:
        raise StoreError("no reader's place is left")

    monkeypatch.setattr(rig.store, "view", refuse)
    peer = Peer.modern(rig)
    assert [each.reason for each in peer.stream(0)] == [5]
    assert rig.services.upr.backfills.used == 0
    monkeypatch.undo()
    assert seqnos(peer.stream(0)) == [1, 2, 3]


@pytest.mark.parametrize(
    ("start", "purged", "reasons"), [(5, 90, [6]), (0, 100, []), (0, 105, [6])]
)
def test_dropped_deletions_that_a_slow_stream_would_miss_end_it(
    rig: Rig, start: int, purged: int, reasons: list[int]
) -> None:
    """Who began with nothing holds nothing that was deleted before its first reading ended (R5)."""
    fill(rig, 0, 100, b"x" * 200)
    rig.flush()
    peer = Peer.modern(rig)
    peer.controls(connection_buffer_size=b"3000")
    peer.stream(0, start)
    assert start < peer.side.feed.streams[0].last_seqno < 90
    peer.side.feed.readings.release_all()
    write(rig, 0, *(b"more%d" % n for n in range(10)))
    rig.bucket.vbuckets[0].purge_seqno = purged
    peer.controls(connection_buffer_size=b"0")
    assert [each.reason for each in only(peer.received, STREAM_END)] == reasons
    assert (seqnos(peer.received)[-1] == 110) is not bool(reasons)


def test_who_does_not_mind_dropped_deletions_goes_on(rig: Rig) -> None:
    fill(rig, 0, 100)
    rig.flush()
    rig.bucket.vbuckets[0].purge_seqno = 90
    peer = Peer.modern(rig)
    assert peer.ask(stream_request(0, 50, uuid=uuid_of(rig))).status == ROLLBACK
    assert seqnos(peer.stream(0, 50, flags=0x80))[-1] == 100


# --- what the value says --------------------------------------------------------------------------


def test_a_value_that_was_not_negotiated_is_ignored_or_refused(rig: Rig) -> None:
    assert Peer.open(rig, b"old").say(stream_request(0, value=b"{}"))[0].status == OK
    assert Peer.modern(rig, b"new").ask(stream_request(0, value=b"{}")).status == INVALID
    assert Peer.modern(rig, b"new too").ask(stream_request(0)).status == OK


@pytest.mark.acceptance("P07")
@pytest.mark.parametrize(
    "value",
    [
        b"{",
        b"[]",
        {"unknown": 1},
        {"log": "half"},
        {"known_versions": [{"id": "1", "seq": 0}]},
        {"known_versions": [{"id": "000000000000000b", "seq": -1}]},
        {"known_versions": [{"id": "000000000000000c", "seq": 0}]},
        {"known_versions": [{"id": "000000000000000b", "seq": 0}] * 2},
        {"lease": "0000000000000001"},
        b'{"log":"full"}' + b" " * 16_384,
    ],
)
def test_a_value_that_makes_no_sense_is_refused(rig: Rig, value: Any) -> None:
    undisturbed = bystander(rig)
    peer = Peer.open(rig)
    peer.controls(uprmc_versions=b"true")
    assert peer.ask(stream_request(0, uuid=0xB, value=value)).status == INVALID
    assert not peer.closed
    undisturbed()


@pytest.mark.acceptance("P07", "P11")
def test_the_log_can_be_trimmed_to_the_current_version(rig: Rig) -> None:
    with_log(rig, (0xB, 0), (0xA, 0))
    peer = Peer.open(rig)
    peer.controls(uprmc_versions=b"true")
    (trimmed,) = peer.say(stream_request(0, value={"log": "current"}))
    assert trimmed.log == [(0xB, 0)]
    (whole,) = peer.say(stream_request(1, value={"log": "full"}))
    assert len(whole.log) == 1


@pytest.mark.acceptance("P07", "P09")
def test_several_known_versions_give_a_better_point(rig: Rig) -> None:
    fill(rig, 0, 100)
    with_log(rig, (0xC, 60), (0xA, 0))
    peer = Peer.open(rig)
    peer.controls(uprmc_versions=b"true")
    alone = peer.ask(stream_request(0, 70, uuid=0xB))
    assert (alone.status, alone.value) == (ROLLBACK, bytes(8))
    known = [{"id": f"{0xB:016x}", "seq": 55}, {"id": f"{0xA:016x}", "seq": 0}]
    better = peer.ask(stream_request(0, 70, uuid=0xB, value={"known_versions": known}))
    assert (better.status, better.value) == (ROLLBACK, (55).to_bytes(8, "big"))


@pytest.mark.acceptance("P07")
def test_more_known_versions_than_are_read_are_refused() -> None:
    rig = upr_rig(upr__known_versions=3)
    peer = Peer.open(rig)
    peer.controls(uprmc_versions=b"true")

    def versions(count: int) -> dict[str, Any]:
        entries = [{"id": f"{n + 1:016x}", "seq": 0} for n in range(count)]
        return {"known_versions": entries}

    assert peer.ask(stream_request(0, uuid=1, value=versions(4))).status == INVALID
    assert peer.ask(stream_request(0, uuid=1, value=versions(3))).status == OK


@pytest.mark.acceptance("P09")
def test_a_client_that_missed_a_branch_catches_up_from_where_it_was_sent(rig: Rig) -> None:
    fill(rig, 0, 100)
    part = rig.bucket.vbuckets[0]
    old = part.failover_log[0].uuid
    part.failover_log = branched(part.failover_log, 0xB, 80, 25)
    peer = Peer.open(rig)
    refused = peer.ask(stream_request(0, 90, uuid=old))
    assert (refused.status, refused.value) == (ROLLBACK, (80).to_bytes(8, "big"))
    assert check_stream(peer.stream(0, 80, uuid=old), 80) == 100


# --- replicas that are being filled ---------------------------------------------------------------


def test_a_half_received_snapshot_is_not_passed_on(rig: Rig) -> None:
    from uprmc.engine.replica import apply
    from uprmc.model import Item

    rig.bucket.set_state(0, REPLICA)
    part = rig.bucket.vbuckets[0]
    peer = Peer.open(rig)
    assert peer.stream(0) == []
    whole = SnapshotRange(1, 2)
    apply(part, Item(b"a", b"v", 0, 0, 1, 1, 1, 0), whole)
    assert peer.drain() == []
    apply(part, Item(b"b", b"v", 0, 0, 1, 2, 1, 0), whole)
    frames = peer.drain()
    assert seqnos(frames) == [1, 2]
    assert len(only(frames, MARKER)) == 1


def test_a_takeover_of_an_absent_vbucket_is_refused_like_any_stream(rig: Rig) -> None:
    assert Peer.open(rig).ask(stream_request(9, flags=TAKEOVER)).status == NOT_MY_VBUCKET


def test_a_refused_request_leaves_no_trace(rig: Rig) -> None:
    fill(rig, 0, 5)
    peer = Peer.open(rig)
    peer.ask(stream_request(0, 9, uuid=uuid_of(rig)))
    peer.ask(stream_request(0, 9, 1))
    assert rig.bucket.vbuckets[0].watchers == []
    assert peer.side.feed.streams == {}
    assert peer.ask(frame(CLOSE_STREAM)).status == NOT_FOUND


@pytest.mark.parametrize(("limit", "kept"), [(4, [0, 1, 2, 3]), (3, [1, 2, 3])])
def test_so_many_ended_streams_are_remembered(
    monkeypatch: pytest.MonkeyPatch, limit: int, kept: list[int]
) -> None:
    monkeypatch.setattr("uprmc.upr.feed._ENDED_STREAMS", limit)
    peer = Peer.open(upr_rig())
    for number in range(4):
        peer.say(stream_request(number, 0, 0))
    feed = peer.side.feed
    assert list(feed.ended_streams) == kept
    assert not feed.streams
    peer.say(stream_request(2))
    assert list(feed.ended_streams) == [number for number in kept if number != 2]
    peer.lose()
    assert not feed.ended_streams
