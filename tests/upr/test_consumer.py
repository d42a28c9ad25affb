"""The consumer's side: a manager adds streams, a producer's frames come in.

Source: UPR reference 2.2, 2.3, 2.10, 4.7, 5, 8; row P16.
"""

from __future__ import annotations

import struct
from typing import Any

import pytest

from tests.contents import table_of
from tests.upr.peer import (
    ACK,
    ACTIVE,
    ADD_STREAM,
    BUFFER_ACK,
    CLOSE_STREAM,
    CONTROL,
    DEAD,
    DELETION,
    DISK,
    EXISTS,
    EXPIRATION,
    FAILOVER_LOG,
    FLUSH,
    INVALID,
    LATER,
    MARKER,
    MAX,
    MEMORY,
    NOOP,
    NOT_FOUND,
    NOT_MY_VBUCKET,
    OK,
    PENDING,
    RANGE,
    REPLICA,
    ROLLBACK,
    SET_STATE,
    STREAM_END,
    STREAM_REQUEST,
    UNSUPPORTED,
    Frame,
    Peer,
    Rig,
    bystander,
    fill,
    frame,
    kinds,
    marker,
    mutation,
    only,
    response,
    seqnos,
    untouched,
    upr_rig,
    uuid_of,
)
from uprmc.model import FailoverEntry, Life, SnapshotRange

LOG = [(0xB, 100), (0xA, 0)]
LOG_VALUE = b"".join(struct.pack(">QQ", *entry) for entry in LOG)


@pytest.fixture
def rig() -> Rig:
    rig = upr_rig()
    for number in (0, 1):
        rig.bucket.set_state(number, REPLICA)
    return rig


def add_stream(vbucket: int = 0, flags: int = 0, opaque: int = 0xADD) -> bytes:
    extras = struct.pack(">I", flags)
    return frame(ADD_STREAM, extras=extras, vbucket=vbucket, opaque=opaque)


def consumer(rig: Rig, name: bytes = b"repl") -> Peer:
    return Peer.open(rig, name, 0)


def reading(rig: Rig, vbucket: int = 0, log: bytes = LOG_VALUE) -> tuple[Peer, int]:
    """A consumer with a stream that the producer has agreed to; and the stream's opaque."""
    peer = consumer(rig)
    (asked,) = only(peer.say(add_stream(vbucket)), STREAM_REQUEST)
    peer.say(response(STREAM_REQUEST, opaque=asked.opaque, value=log))
    peer.received.clear()
    return peer, asked.opaque


def fields(asked: Frame) -> tuple[int, ...]:
    """Flags, start, end, uuid, snapshot start, snapshot end."""
    flags, reserved, *rest = struct.unpack(">IIQQQQQ", asked.extras)
    assert reserved == 0
    return flags, *rest


def table(rig: Rig, vbucket: int = 0) -> dict[bytes, Any]:
    return table_of(rig.bucket.vbuckets[vbucket])


# --- adding a stream ------------------------------------------------------------------------------


def test_adding_a_stream_sends_controls_and_a_request_and_answers_later(rig: Rig) -> None:
    peer = consumer(rig)
    frames = peer.say(add_stream(1, flags=0x20))
    assert kinds(frames) == [CONTROL] * 6 + [STREAM_REQUEST]
    assert [(each.key, each.value) for each in frames[:6]] == [
        (b"connection_buffer_size", b"%d" % rig.settings.upr.consumer_buffer),
        (b"enable_noop", b"true"),
        (b"max_marker_version", b"2.2"),
        (b"uprmc_terms", b"true"),
        (b"uprmc_vbucket_facts", b"true"),
        (b"uprmc_origins", b"true"),
    ]
    assert [each.opaque for each in frames] == [1, 2, 0, 0, 0, 0, 3]
    asked = frames[6]
    assert asked.vbucket == 1
    assert fields(asked) == (0x20, 0, MAX, uuid_of(rig, 1), 0, 0)
    assert not any(each.is_reply for each in frames)
    answer = peer.ask(response(STREAM_REQUEST, opaque=asked.opaque, value=LOG_VALUE))
    assert (answer.opcode, answer.status, answer.opaque) == (ADD_STREAM, OK, 0xADD)
    assert answer.extras == struct.pack(">I", asked.opaque)


def test_the_controls_are_sent_once_for_a_connection(rig: Rig) -> None:
    peer = consumer(rig)
    peer.say(add_stream(0))
    assert kinds(peer.say(add_stream(1))) == [STREAM_REQUEST]


def test_the_request_says_where_the_replica_stands(rig: Rig) -> None:
    part = rig.bucket.vbuckets[0]
    peer, opaque = reading(rig)
    peer.say(marker(0, opaque, 1, 10), mutation(0, opaque, 4, b"k"))
    assert part.receiving == SnapshotRange(0, 10)
    peer.lose()
    (asked,) = only(consumer(rig).say(add_stream(0)), STREAM_REQUEST)
    assert fields(asked) == (0, 4, MAX, 0xB, 0, 10)


@pytest.mark.acceptance("P16")
def test_the_producers_log_becomes_the_replicas(rig: Rig) -> None:
    reading(rig)
    assert [tuple(each) for each in rig.bucket.vbuckets[0].failover_log] == LOG
    rig.flush()
    header = rig.store.view().header(0)
    assert header is not None
    assert [tuple(each) for each in header.failover_log] == LOG


def test_a_log_beyond_the_limit_loses_its_oldest_entries(rig: Rig) -> None:
    entries = [(n + 1, 100 - n) for n in range(30)]
    reading(rig, log=b"".join(struct.pack(">QQ", *each) for each in entries))
    log = rig.bucket.vbuckets[0].failover_log
    assert [tuple(each) for each in log] == entries[:25]


def test_what_cannot_be_added_is_refused_at_once(rig: Rig) -> None:
    peer = consumer(rig)
    assert peer.ask(add_stream(77)).status == NOT_MY_VBUCKET
    assert peer.ask(add_stream(2)).status == NOT_MY_VBUCKET, "active"
    peer.say(add_stream(0))
    assert peer.ask(add_stream(0)).status == EXISTS
    assert peer.received[-1].opcode == ADD_STREAM
    assert not peer.closed


@pytest.mark.parametrize("state", [REPLICA, PENDING, DEAD])
def test_any_vbucket_that_is_not_active_may_be_filled(rig: Rig, state: Any) -> None:
    rig.bucket.set_state(3, state)
    assert STREAM_REQUEST in kinds(consumer(rig).say(add_stream(3)))


def test_warming_up_nothing_is_added() -> None:
    assert consumer(upr_rig(warm=False)).ask(add_stream(0)).status == LATER


@pytest.mark.parametrize("status", [NOT_MY_VBUCKET, RANGE, 0x82, 0x86, 0xFFFF])
def test_the_producers_refusal_is_the_managers_answer(rig: Rig, status: int) -> None:
    peer = consumer(rig)
    (asked,) = only(peer.say(add_stream(0)), STREAM_REQUEST)
    answer = peer.ask(response(STREAM_REQUEST, status, opaque=asked.opaque, value=b"text"))
    assert (answer.opcode, answer.status, answer.opaque) == (ADD_STREAM, status, 0xADD)
    assert answer.extras == b""
    assert STREAM_REQUEST in kinds(peer.say(add_stream(0))), "it may be tried again"


@pytest.mark.parametrize("value", [b"", b"x" * 15, b"x" * 17])
def test_an_acceptance_without_a_log_ends_the_connection(rig: Rig, value: bytes) -> None:
    undisturbed = bystander(rig)
    peer = consumer(rig)
    (asked,) = only(peer.say(add_stream(0)), STREAM_REQUEST)
    assert peer.say(response(STREAM_REQUEST, opaque=asked.opaque, value=value)) == []
    assert peer.closed
    assert len(rig.misuse) == 1
    undisturbed()


# --- rollback -------------------------------------------------------------------------------------


def test_a_rollback_to_the_start_empties_the_vbucket_and_asks_again(rig: Rig) -> None:
    peer, opaque = reading(rig)
    peer.say(marker(0, opaque, 1, 2), mutation(0, opaque, 1, b"a"), mutation(0, opaque, 2, b"b"))
    peer.lose()
    follower = Peer.open(rig, b"follower")
    follower.stream(0)
    peer = consumer(rig)
    (asked,) = only(peer.say(add_stream(0)), STREAM_REQUEST)
    assert fields(asked)[1] == 2
    frames = peer.say(response(STREAM_REQUEST, ROLLBACK, opaque=asked.opaque, value=bytes(8)))
    assert kinds(frames) == [STREAM_REQUEST], "the manager waits on"
    assert frames[0].opaque == asked.opaque
    assert fields(frames[0])[1:3] == (0, MAX)
    assert table(rig) == {}
    assert [each.reason for each in only(follower.drain(), STREAM_END)] == [2]
    answer = peer.ask(response(STREAM_REQUEST, opaque=asked.opaque, value=LOG_VALUE))
    assert (answer.opcode, answer.status) == (ADD_STREAM, OK)


def sent_back(rig: Rig, seqno: int) -> tuple[Peer, Frame, list[Frame]]:
    """A consumer that holds two seqnos and is sent back; its stream request, and what it says."""
    peer, opaque = reading(rig, log=struct.pack(">QQ", 0xA, 0))
    peer.say(marker(0, opaque, 1, 1), mutation(0, opaque, 1, b"a", b"old"))
    peer.say(marker(0, opaque, 2, 2), mutation(0, opaque, 2, b"b", b"new"))
    rig.flush()
    peer.lose()
    peer = consumer(rig)
    (asked,) = only(peer.say(add_stream(0)), STREAM_REQUEST)
    value = struct.pack(">Q", seqno)
    return (
        peer,
        asked,
        peer.say(response(STREAM_REQUEST, ROLLBACK, opaque=asked.opaque, value=value)),
    )


def test_a_rollback_undoes_what_lies_above_and_asks_again(rig: Rig) -> None:
    peer, asked, frames = sent_back(rig, 1)
    log = struct.pack(">QQQQ", 0xB, 1, 0xA, 0)
    (wanted,) = only(frames, FAILOVER_LOG)
    (version,) = only(peer.say(response(FAILOVER_LOG, opaque=wanted.opaque, value=log)), 0xE7)
    assert (version.key, version.extras) == (b"b", struct.pack(">Q", 1))
    (wanted,) = only(peer.say(response(0xE7, NOT_FOUND, opaque=version.opaque)), FAILOVER_LOG)
    assert peer.say(response(FAILOVER_LOG, opaque=wanted.opaque, value=log)) == []
    assert sorted(table(rig)) == [b"a"]
    rig.flush()
    (again,) = peer.drain()
    assert again.opaque == asked.opaque
    assert fields(again)[1:4] == (1, MAX, 0xB)


def test_an_answer_as_large_as_any_document_is_read(rig: Rig) -> None:
    peer, _, frames = sent_back(rig, 1)
    (wanted,) = only(frames, FAILOVER_LOG)
    log = struct.pack(">QQQQ", 0xB, 1, 0xA, 0)
    (version,) = only(peer.say(response(FAILOVER_LOG, opaque=wanted.opaque, value=log)), 0xE7)
    value = bytes(rig.settings.kv.max_item_bytes)
    extras = struct.pack(">QQIIB", 1, 1, 0, 0, 0)
    answer = frame(0xE7, extras=extras, value=value, opaque=version.opaque, cas=9, magic=0x81)
    assert kinds(peer.say(answer)) == [FAILOVER_LOG]
    assert 0 < peer.side.undos.held_bytes - len(value) < 1_000  # the key, and bookkeeping


def test_a_producer_that_knows_no_versions_makes_the_vbucket_start_over(rig: Rig) -> None:
    peer, asked, frames = sent_back(rig, 1)
    (wanted,) = only(frames, FAILOVER_LOG)
    log = struct.pack(">QQQQ", 0xB, 1, 0xA, 0)
    (version,) = only(peer.say(response(FAILOVER_LOG, opaque=wanted.opaque, value=log)), 0xE7)
    (again,) = peer.say(response(0xE7, 0x81, opaque=version.opaque, value=b"Unknown command"))
    assert (again.opaque, fields(again)[1]) == (asked.opaque, 0)
    assert table(rig) == {}


@pytest.mark.parametrize("seqno", [2, 3, MAX])
def test_a_rollback_to_what_is_not_below_ends_the_connection(rig: Rig, seqno: int) -> None:
    peer, _, frames = sent_back(rig, seqno)
    assert frames == []
    assert peer.closed
    assert len(rig.misuse) == 1
    assert len(table(rig)) == 2


def test_a_rollback_of_nothing_is_passed_on_instead_of_asked_again_for_ever(rig: Rig) -> None:
    peer = consumer(rig)
    (asked,) = only(peer.say(add_stream(0, flags=0x20)), STREAM_REQUEST)
    answer = peer.ask(response(STREAM_REQUEST, ROLLBACK, opaque=asked.opaque, value=bytes(8)))
    assert (answer.opcode, answer.status) == (ADD_STREAM, ROLLBACK)


def test_a_rollback_without_a_seqno_ends_the_connection(rig: Rig) -> None:
    peer, opaque = reading(rig)
    peer.say(marker(0, opaque, 1, 1), mutation(0, opaque, 1, b"a"))
    peer.lose()
    peer = consumer(rig)
    (asked,) = only(peer.say(add_stream(0)), STREAM_REQUEST)
    peer.say(response(STREAM_REQUEST, ROLLBACK, opaque=asked.opaque, value=b"1234567"))
    assert peer.closed
    assert len(rig.misuse) == 1
    assert len(table(rig)) == 1


@pytest.mark.parametrize(
    "strange",
    [
        response(STREAM_REQUEST, opaque=999, value=LOG_VALUE),
        response(CONTROL, 4, opaque=1),
        response(0x57, 0, opaque=3),
        response(NOOP),
        response(0xFF, 0xFFFF, value=b"?" * 1_000),
    ],
)
def test_answers_that_nobody_waits_for_are_ignored(rig: Rig, strange: bytes) -> None:
    peer = consumer(rig)
    peer.say(add_stream(0))
    assert peer.say(strange) == []
    assert not peer.closed


def test_an_answer_counts_once(rig: Rig) -> None:
    peer, opaque = reading(rig)
    peer.say(marker(0, opaque, 1, 1), mutation(0, opaque, 1, b"a"))
    assert peer.say(response(STREAM_REQUEST, ROLLBACK, opaque=opaque, value=bytes(8))) == []
    assert len(table(rig)) == 1


# --- data -----------------------------------------------------------------------------------------


def test_versions_are_taken_as_they_are(rig: Rig) -> None:
    peer, opaque = reading(rig)
    frames = peer.say(
        marker(0, opaque, 1, 9),
        mutation(0, opaque, 3, b"k", b"v", rev=7, cas=99, flags=0xCAFE, expiry=2_000_000_000),
        frame(DELETION, key=b"d", extras=struct.pack(">QQH", 5, 8, 0), opaque=opaque, cas=100),
        frame(DELETION, key=b"t", extras=struct.pack(">QQIB", 6, 2, 77, 0), opaque=opaque, cas=101),
        frame(EXPIRATION, key=b"e", extras=struct.pack(">QQI", 9, 1, 88), opaque=opaque, cas=102),
    )
    assert frames == [], "data is not answered"
    item = table(rig)[b"k"]
    assert (item.seqno, item.rev, item.cas, item.flags) == (3, 7, 99, 0xCAFE)
    assert (item.value, item.expiry, item.life) == (b"v", 2_000_000_000, Life.LIVE)
    gone = {key: (i.seqno, i.rev, i.cas, i.life) for key, i in table(rig).items() if i.life}
    assert gone == {
        b"d": (5, 8, 100, Life.DELETED),
        b"t": (6, 2, 101, Life.DELETED),
        b"e": (9, 1, 102, Life.EXPIRED),
    }
    assert table(rig)[b"t"].expiry == 77
    assert table(rig)[b"e"].expiry == 88
    part = rig.bucket.vbuckets[0]
    assert (part.high_seqno, part.receiving) == (9, None)
    rig.check()


def test_a_frame_says_its_vbucket_on_the_memcached_listener_too(rig: Rig) -> None:
    """There the vBucket of a client's request follows from its key; not that of a change."""
    peer = Peer.open(rig, b"repl", 0, by_key=True)
    keys = [b"k%d" % number for number in range(8)]
    for number in (0, 1):
        (asked,) = only(peer.say(add_stream(number)), STREAM_REQUEST)
        peer.say(response(STREAM_REQUEST, opaque=asked.opaque, value=LOG_VALUE))
        changes = [mutation(number, asked.opaque, at, key) for at, key in enumerate(keys, 1)]
        assert peer.say(marker(number, asked.opaque, 1, 8), *changes) == []
        assert sorted(table(rig, number)) == keys


def test_replication_never_resolves_conflicts(rig: Rig) -> None:
    peer, opaque = reading(rig)
    peer.say(
        marker(0, opaque, 1, 2),
        mutation(0, opaque, 1, b"k", b"high", rev=9, cas=9),
        mutation(0, opaque, 2, b"k", b"low", rev=1, cas=1),
    )
    assert (table(rig)[b"k"].value, table(rig)[b"k"].rev) == (b"low", 1)


def test_extended_metadata_is_cut_off(rig: Rig) -> None:
    peer, opaque = reading(rig)
    peer.say(marker(0, opaque, 1, 2), mutation(0, opaque, 1, b"k", b"value+meta", nmeta=5))
    assert table(rig)[b"k"].value == b"value"
    bad = peer.ask(mutation(0, opaque, 2, b"l", b"xy", nmeta=3))
    assert bad.status == INVALID
    assert b"l" not in table(rig)


def test_a_snapshot_counts_from_its_first_item(rig: Rig) -> None:
    part = rig.bucket.vbuckets[0]
    peer, opaque = reading(rig)
    peer.say(marker(0, opaque, 1, 3))
    assert part.receiving is None
    peer.say(mutation(0, opaque, 1, b"a"))
    assert part.receiving == SnapshotRange(0, 3)
    peer.say(mutation(0, opaque, 3, b"b"))
    assert part.receiving is None


@pytest.mark.parametrize("seqno", [4, 5, 11, 0])
def test_a_seqno_that_does_not_rise_or_lies_outside_is_dropped(rig: Rig, seqno: int) -> None:
    undisturbed = bystander(rig)
    peer, opaque = reading(rig)
    peer.say(marker(0, opaque, 1, 10), mutation(0, opaque, 5, b"a"))
    answer = peer.ask(mutation(0, opaque, seqno, b"b"))
    assert (answer.opcode, answer.status, answer.opaque) == (0x57, RANGE, opaque)
    assert b"b" not in table(rig)
    assert peer.say(mutation(0, opaque, 6, b"c")) == []
    undisturbed()


def test_an_item_without_a_marker_is_out_of_range(rig: Rig) -> None:
    peer, opaque = reading(rig)
    assert peer.ask(mutation(0, opaque, 1, b"a")).status == RANGE


def test_a_marker_whose_start_lies_above_its_end_is_out_of_range(rig: Rig) -> None:
    peer, opaque = reading(rig)
    assert peer.ask(marker(0, opaque, 5, 4)).status == RANGE


@pytest.mark.parametrize("wrong", ["opaque", "vbucket", "closed", "ended"])
def test_data_for_a_stream_that_is_not_there_is_refused(rig: Rig, wrong: str) -> None:
    undisturbed = bystander(rig)
    peer, opaque = reading(rig)
    peer.say(marker(0, opaque, 1, 9))
    vbucket = 0
    if wrong == "opaque":
        opaque += 1
    elif wrong == "vbucket":
        vbucket = 1
    elif wrong == "closed":
        assert peer.ask(frame(CLOSE_STREAM)).status == OK
    else:
        peer.say(frame(STREAM_END, extras=bytes(4), opaque=opaque))
    asked = [
        mutation(vbucket, opaque, 1, b"a"),
        marker(vbucket, opaque, 1, 9),
        frame(STREAM_END, extras=bytes(4), vbucket=vbucket, opaque=opaque),
        frame(SET_STATE, extras=b"\x03", vbucket=vbucket, opaque=opaque),
    ]
    assert [each.status for each in peer.say(*asked)] == [NOT_FOUND] * 4
    assert table(rig) == {}
    assert rig.bucket.vbuckets[0].state == REPLICA
    undisturbed()


@pytest.mark.parametrize("numbers", [{"seqno": 2**63}, {"cas": 2**63}, {"rev": 2**64 - 1}])
def test_numbers_that_leave_no_room_end_the_connection(rig: Rig, numbers: dict[str, int]) -> None:
    """Taking them would stop this node's counters; dropping them would leave a gap."""
    undisturbed = bystander(rig)
    peer, opaque = reading(rig)
    numbers = {"seqno": 1, **numbers}
    peer.say(marker(0, opaque, 1, MAX), mutation(0, opaque, numbers.pop("seqno"), b"k", **numbers))
    assert peer.closed
    assert table(rig) == {}
    assert len(rig.misuse) == 1
    undisturbed()


def test_a_document_above_the_limit_ends_the_connection(rig: Rig) -> None:
    """Left out it would be missed by nobody."""
    limit = rig.settings.kv.max_item_bytes
    peer, opaque = reading(rig)
    peer.say(marker(0, opaque, 1, 2), mutation(0, opaque, 1, b"a", bytes(limit)))
    assert not peer.closed
    peer.say(mutation(0, opaque, 2, b"b", bytes(limit + 1)))
    assert peer.closed
    assert list(table(rig)) == [b"a"]


def test_a_flush_on_a_stream_is_not_supported(rig: Rig) -> None:
    peer, opaque = reading(rig)
    assert peer.ask(frame(FLUSH, opaque=opaque)).status == UNSUPPORTED
    assert peer.ask(frame(FLUSH, opaque=opaque + 1)).status == NOT_FOUND


def test_a_closed_stream_may_be_added_again(rig: Rig) -> None:
    peer, opaque = reading(rig)
    assert peer.ask(frame(CLOSE_STREAM)).status == OK
    assert peer.ask(frame(CLOSE_STREAM)).status == NOT_FOUND
    assert rig.bucket.vbuckets[0].watchers == []
    (asked,) = only(peer.say(add_stream(0)), STREAM_REQUEST)
    assert asked.opaque != opaque


def test_a_stream_that_ended_may_be_added_again(rig: Rig) -> None:
    peer, opaque = reading(rig)
    assert peer.say(frame(STREAM_END, extras=bytes(4), opaque=opaque)) == []
    assert STREAM_REQUEST in kinds(peer.say(add_stream(0)))


@pytest.mark.parametrize("state", [ACTIVE, DEAD])
def test_a_vbucket_that_somebody_else_changes_is_filled_no_more(rig: Rig, state: Any) -> None:
    peer, opaque = reading(rig)
    peer.say(marker(0, opaque, 1, 9), mutation(0, opaque, 1, b"a"))
    rig.bucket.set_state(0, state)
    assert peer.ask(mutation(0, opaque, 2, b"b")).status == NOT_FOUND
    assert list(table(rig)) == [b"a"]


# --- answers that are asked for -------------------------------------------------------------------


def test_a_marker_that_asks_for_it_is_answered_after_its_last_item(rig: Rig) -> None:
    peer, opaque = reading(rig)
    assert peer.say(marker(0, opaque, 1, 3, MEMORY | ACK), mutation(0, opaque, 1, b"a")) == []
    answer = peer.ask(mutation(0, opaque, 3, b"b"))
    assert (answer.opcode, answer.status, answer.opaque) == (MARKER, OK, opaque)
    assert peer.say(marker(0, opaque, 4, 4, DISK), mutation(0, opaque, 4, b"c")) == []


@pytest.mark.parametrize(("number", "state"), [(1, ACTIVE), (2, REPLICA), (3, PENDING), (4, DEAD)])
def test_the_producer_sets_the_state_without_a_new_branch(
    rig: Rig, number: int, state: Any
) -> None:
    peer, opaque = reading(rig)
    log = rig.bucket.vbuckets[0].failover_log
    assert peer.say(frame(SET_STATE, extras=bytes([number]), opaque=opaque)) == []
    rig.flush()
    (answer,) = peer.drain()
    assert (answer.opcode, answer.status, answer.opaque) == (SET_STATE, OK, opaque)
    assert rig.bucket.vbuckets[0].state == state
    assert (
        rig.bucket.vbuckets[0].failover_log
        == log
        == (
            FailoverEntry(0xB, 100),
            FailoverEntry(0xA, 0),
        )
    )
    end = frame(STREAM_END, extras=bytes(4), opaque=opaque)
    assert peer.say(end) == [], "the stream outlives its own change"


@pytest.mark.parametrize("number", [0, 5, 255])
def test_a_state_that_is_none_is_refused(rig: Rig, number: int) -> None:
    peer, opaque = reading(rig)
    assert peer.ask(frame(SET_STATE, extras=bytes([number]), opaque=opaque)).status == INVALID


def test_keep_alives_are_answered_with_their_opaque(rig: Rig) -> None:
    answer = consumer(rig).ask(frame(NOOP, opaque=0x99))
    assert (answer.opcode, answer.status, answer.opaque) == (NOOP, OK, 0x99)


# --- acknowledging --------------------------------------------------------------------------------


@pytest.fixture
def small() -> Rig:
    rig = upr_rig(upr__consumer_buffer=65_536)
    rig.bucket.set_state(0, REPLICA)
    return rig


def test_a_fifth_of_the_buffer_is_acknowledged_to_the_byte(small: Rig) -> None:
    peer, opaque = reading(small)
    data = [marker(0, opaque, 1, 100)]
    data += [mutation(0, opaque, n + 1, b"k", b"x" * 1_000) for n in range(12)]
    assert peer.say(*data) == []
    last = mutation(0, opaque, 13, b"k", b"x" * 1_000)
    frames = peer.say(last)
    assert kinds(frames) == [BUFFER_ACK]
    assert frames[0].extras == struct.pack(">I", sum(map(len, [*data, last])))


def test_what_is_left_is_acknowledged_after_5_seconds(small: Rig) -> None:
    peer, opaque = reading(small)
    peer.session.tick(100.0)
    data = marker(0, opaque, 1, 5)
    peer.say(data)
    peer.session.tick(104.0)
    acked = only(peer.drain(), BUFFER_ACK)
    peer.session.tick(105.1)
    acked += only(peer.drain(), BUFFER_ACK)
    assert [each.extras for each in acked] == [struct.pack(">I", len(data))]
    peer.session.tick(200.0)
    assert peer.drain() == []


def test_what_is_refused_counts_as_processed(small: Rig) -> None:
    peer, opaque = reading(small)
    data = [mutation(0, opaque, 1, b"k", b"x" * 13_200), mutation(1, 77, 1, b"k")]
    frames = peer.say(*data)
    assert [each.status for each in frames if each.is_reply] == [RANGE, NOT_FOUND]
    assert [each.extras for each in only(frames, BUFFER_ACK)] == [struct.pack(">I", len(data[0]))]


def test_while_memory_is_short_nothing_is_acknowledged(small: Rig) -> None:
    peer, opaque = reading(small)
    account = small.bucket.account
    account.used += account.write_limit + 1
    data = mutation(0, opaque, 1, b"k", b"x" * 20_000)
    peer.say(marker(0, opaque, 1, 9), data)
    assert only(peer.received, BUFFER_ACK) == []
    assert peer.side.window.backoffs == 1
    assert b"k" in table(small), "what was sent is taken"
    account.used -= account.write_limit + 1
    peer.session.tick(1_000.0)
    (acked,) = only(peer.drain(), BUFFER_ACK)
    assert acked.extras == struct.pack(">I", 44 + len(data))


# --- how it ends ----------------------------------------------------------------------------------


def test_a_lost_consumer_leaves_nothing_behind(rig: Rig) -> None:
    peer, opaque = reading(rig)
    peer.say(marker(0, opaque, 1, 9), mutation(0, opaque, 1, b"a"), add_stream(1))
    peer.lose()
    assert rig.bucket.vbuckets[0].receiving == SnapshotRange(0, 9)
    untouched(rig)


def test_a_peer_that_never_reads_what_it_causes_is_given_up(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("uprmc.upr.receiver._WAITING_FRAMES", 10)
    undisturbed = bystander(rig)
    peer, opaque = reading(rig)
    for n in range(1, 20):
        peer.send(marker(0, opaque, n, n, MEMORY | ACK), mutation(0, opaque, n, b"k"))
        assert len(peer.side._frames) <= 10
    assert not rig.services.upr.consumers
    peer.turn()
    assert peer.closed
    undisturbed()


def test_streams_that_come_and_go_unanswered_leave_nothing_behind(rig: Rig) -> None:
    peer, _, _ = sent_back(rig, 1)
    for _ in range(20):
        peer.say(frame(CLOSE_STREAM))
        (asked,) = only(peer.say(add_stream(0)), STREAM_REQUEST)
        peer.say(response(STREAM_REQUEST, ROLLBACK, opaque=asked.opaque, value=b"\0" * 7 + b"\1"))
    assert len(peer.side.undos._running) == 1
    assert len(peer.side.undos._waiting) == 0
    assert len(table(rig)) == 2


def test_a_peer_that_never_answers_is_given_up(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    peer, _, _ = sent_back(rig, 1)
    unanswered = len(peer.side.questions)
    monkeypatch.setattr("uprmc.upr.receiver._WAITING_FRAMES", unanswered + 1)
    peer.say(add_stream(1))
    assert not peer.closed
    rig.bucket.set_state(2, REPLICA)
    peer.say(add_stream(2))
    assert peer.closed


def test_until_august_2014_streams_were_added_to_active_vbuckets_too() -> None:
    rig = upr_rig(upr__add_stream_on_active=True)
    fill(rig, 0, 3)
    (asked,) = only(consumer(rig).say(add_stream(0)), STREAM_REQUEST)
    assert fields(asked)[1] == 3


@pytest.fixture
def active_rig() -> Rig:
    rig = upr_rig(upr__add_stream_on_active=True)
    fill(rig, 0, 3)
    return rig


def test_an_active_vbucket_keeps_its_log_and_its_producers_whatever_fills_it(
    active_rig: Rig,
) -> None:
    part = active_rig.bucket.vbuckets[0]
    log = part.failover_log
    follower = Peer.open(active_rig, b"follower")
    follower.stream(0)
    peer, opaque = reading(active_rig)
    assert part.failover_log == log
    peer.say(marker(0, opaque, 4, 10), mutation(0, opaque, 4, b"from elsewhere"))
    assert part.receiving is None
    follower.received.clear()
    fill(active_rig, 0, 1)
    follower.drain()
    assert STREAM_END not in kinds(follower.received)
    assert seqnos(follower.received) == [4, 5]


@pytest.mark.parametrize("seqno", [0, 2])
def test_an_active_vbucket_is_never_sent_back(active_rig: Rig, seqno: int) -> None:
    part = active_rig.bucket.vbuckets[0]
    log = part.failover_log
    peer = consumer(active_rig)
    (asked,) = only(peer.say(add_stream(0)), STREAM_REQUEST)
    back = response(STREAM_REQUEST, ROLLBACK, opaque=asked.opaque, value=struct.pack(">Q", seqno))
    (answer,) = peer.say(back)
    assert (answer.opcode, answer.status) == (ADD_STREAM, ROLLBACK)
    assert (part.high_seqno, part.failover_log, len(table_of(part))) == (3, log, 3)
