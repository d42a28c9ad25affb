"""A connection that this node has dialled: handshake, streams, and how it ends.

Source: UPR reference 2, 4.6, 4.7, 5; docs/extensions.md.
"""

from __future__ import annotations

import gc
import json
import struct
import weakref
from typing import Any

import pytest

from tests.codec.frames import HEADER
from tests.contents import table_of
from tests.upr.link_rig import (
    ALL_SEQNOS,
    SEQNO_ACK,
    Pair,
    Script,
    failover_log,
    replica_rig,
)
from tests.upr.peer import (
    ACK,
    ACTIVE,
    BUFFER_ACK,
    CLOSE_STREAM,
    CONTROL,
    DEAD,
    DELETION,
    DISK,
    HELLO,
    INVALID,
    LATER,
    MARKER,
    MAX,
    MEMORY,
    MUTATION,
    NOOP,
    NOT_MY_VBUCKET,
    OPEN,
    STREAM_END,
    STREAM_REQUEST,
    UNKNOWN,
    Rig,
    fill,
    frame,
    kinds,
    marker,
    mutation,
    only,
    untouched,
    upr_rig,
    write,
)
from uprmc.model import SnapshotRange


@pytest.fixture
def pair() -> Pair:
    return Pair(upr_rig(), replica_rig())


@pytest.fixture
def target() -> Rig:
    return replica_rig()


@pytest.fixture
def script(target: Rig) -> Script:
    """An open link whose other end says what a test wants."""
    script = Script(target)
    assert script.owner.take() == [("opened",)]
    return script


def contents(rig: Rig, number: int = 0) -> dict[bytes, tuple[object, ...]]:
    table = table_of(rig.bucket.vbuckets[number])
    return {key: item._fields() for key, item in table.items() if not item.life}


def versioned_marker(opaque: int, start: int, end: int, purged: int) -> bytes:
    value = struct.pack(">QQIQQQQ", start, end, DISK, end, 0, purged, 0)
    return frame(MARKER, extras=b"\x02", value=value, opaque=opaque)


# --- the handshake --------------------------------------------------------------------------------


def test_everything_that_begins_a_conversation_goes_out_in_one_piece(target: Rig) -> None:
    script = Script(target, grant=False)
    asked = script.sent()
    assert kinds(asked) == [HELLO, OPEN] + [CONTROL] * 11
    assert asked[1].key == b"repl"
    assert asked[1].extras == struct.pack(">II", 0, 0x21)
    options = {each.key: each.value for each in asked[2:]}
    assert options[b"connection_buffer_size"] == b"%d" % target.settings.upr.consumer_buffer
    assert options[b"enable_noop"] == b"true"
    assert options[b"max_marker_version"] == b"2.2"
    assert script.owner.take() == []
    for each in asked[:-1]:
        script.answer(each)
        assert not script.link.open
    script.answer(asked[-1])
    assert script.owner.take() == [("opened",)]
    assert script.link.open


@pytest.mark.parametrize("key", [b"repl", b"connection_buffer_size", b"enable_noop"])
def test_without_what_it_needs_the_link_hangs_up(target: Rig, key: bytes) -> None:
    script = Script(target, grant=False)
    script.greet({key: INVALID})
    assert script.link.closing
    assert key.decode() in script.link.error
    script.link.connection_lost()
    assert script.owner.take() == [("closed", script.link.error)]


def test_what_older_servers_do_not_know_is_done_without(target: Rig) -> None:
    script = Script(target, grant=False)
    wanted = (b"uprmc", b"max_marker_version", b"uprmc_versions", b"uprmc_persisted")
    script.greet(dict.fromkeys(wanted, UNKNOWN))
    assert script.owner.take() == [("opened",)]
    script.link.follow([0])
    (asked,) = script.sent()
    assert asked.value == b""


@pytest.mark.parametrize(
    "strange", [b"ERROR\r\n" + b" " * 30, b"\x15\x03\x03" + bytes(30), b"HTTP/1.1 400 Bad Request"]
)
def test_a_wrong_port_is_named(target: Rig, strange: bytes) -> None:
    script = Script(target, grant=False)
    script.sent()
    assert script.say(strange) == []
    assert script.link.closing
    assert repr(strange[:16]) in script.link.error


def test_before_it_is_open_nothing_is_asked_for(target: Rig) -> None:
    script = Script(target, grant=False)
    script.sent()
    script.link.follow([0])
    assert script.sent() == []
    assert script.owner.take() == [("ended", 0, "the connection is not open", True)]


# --- streams --------------------------------------------------------------------------------------


@pytest.mark.acceptance("D51")
def test_a_replica_follows_its_active(pair: Pair) -> None:
    fill(pair.source, 0, 1_000)
    assert pair.run() == [("opened",)]
    pair.link.follow([0])
    assert pair.run() == [("began", 0)]
    assert contents(pair.source) == contents(pair.target)
    write(pair.source, 0, b"later")
    assert pair.run() == []
    assert contents(pair.source) == contents(pair.target)
    ours, theirs = (rig.bucket.vbuckets[0] for rig in (pair.target, pair.source))
    assert ours.failover_log == theirs.failover_log
    assert (ours.high_seqno, ours.receiving) == (1_001, None)
    pair.target.check()


@pytest.mark.parametrize("cut", [1, 7, 24, 55, 333, 4_096])
def test_it_does_not_matter_where_bytes_are_cut(cut: int) -> None:
    pair = Pair(upr_rig(), replica_rig(), cut=cut)
    for number in (0, 1):
        fill(pair.source, number, 120, value=b"x" * 100)
        for key in range(0, 120, 7):
            pair.source.bucket.vbuckets[number].delete(b"key%06d" % key)
    pair.run()
    pair.link.follow([0, 1])
    pair.run()
    for number in (0, 1):
        assert contents(pair.source, number) == contents(pair.target, number)
        high = pair.source.bucket.vbuckets[number].high_seqno
        assert pair.target.bucket.vbuckets[number].high_seqno == high


def test_what_cannot_be_filled_is_said_at_once(script: Script, target: Rig) -> None:
    target.bucket.set_state(1, ACTIVE)
    script.link.follow([1, 77])
    assert script.owner.take() == [
        ("ended", 1, "it is active here", False),
        ("ended", 77, "there is no such vBucket here", False),
    ]
    assert script.sent() == []


def test_the_request_names_every_history_it_knows(script: Script, target: Rig) -> None:
    script.follow(log=failover_log((0xB, 100), (0xA, 0)))
    script.link.leave([0])
    script.sent()
    script.link.follow([0])
    (asked,) = script.sent()
    names = [(one["id"], one["seq"]) for one in json.loads(asked.value)["known_versions"]]
    assert names == [("000000000000000b", 100), ("000000000000000a", 0)]
    assert struct.unpack(">IIQQQQQ", asked.extras) == (0, 0, 0, MAX, 0xB, 0, 0)


@pytest.mark.parametrize(
    ("status", "retry"), [(NOT_MY_VBUCKET, True), (LATER, True), (INVALID, False), (UNKNOWN, False)]
)
def test_a_refused_stream_is_told_with_what_may_help(
    script: Script, status: int, retry: bool
) -> None:
    script.link.follow([0])
    asked = script.sent()
    while asked:
        asked = script.answer(asked[0], status)
    ((event, number, why, again),) = script.owner.take()
    assert (event, number, again) == ("ended", 0, retry)
    assert why.startswith("the source refuses: ")
    assert script.link.streams == {}
    assert not script.link.closing


def test_an_ended_stream_may_be_asked_for_again(script: Script) -> None:
    opaque = script.follow()
    script.say(frame(STREAM_END, extras=struct.pack(">I", 2), opaque=opaque))
    assert script.owner.take() == [
        ("ended", 0, "the source has ended the stream: state changed", True)
    ]
    assert script.follow() != opaque


def test_a_stream_that_was_left_may_still_be_heard(script: Script, target: Rig) -> None:
    opaque = script.follow()
    script.say(marker(0, opaque, 1, 9), mutation(0, opaque, 1, b"a"))
    script.link.leave([0])
    (closing,) = script.sent()
    assert (closing.opcode, closing.vbucket) == (CLOSE_STREAM, 0)
    again = script.follow()
    assert again != opaque
    script.say(mutation(0, opaque, 2, b"stale"), marker(0, opaque, 3, 3))
    script.answer(closing)
    script.say(frame(STREAM_END, extras=struct.pack(">I", 1), opaque=opaque))
    assert not script.link.closing
    assert script.owner.take() == []
    assert script.link._left == {}
    script.say(marker(0, again, 1, 9), mutation(0, again, 2, b"b"), mutation(0, opaque, 3, b"c"))
    assert sorted(table_of(target.bucket.vbuckets[0])) == [b"a", b"b"]
    assert "which has no stream" in script.link.error


def test_a_stream_that_was_left_is_not_begun_by_a_late_answer(script: Script, target: Rig) -> None:
    before = target.bucket.vbuckets[0].failover_log
    script.link.follow([0])
    script.link.leave([0])
    asked, _ = script.sent()
    script.answer(asked, value=failover_log((0xB, 0)))
    assert script.owner.take() == []
    assert target.bucket.vbuckets[0].failover_log == before


@pytest.mark.parametrize(
    ("state", "retry"), [(ACTIVE, False), (DEAD, True)], ids=["active", "dead"]
)
def test_a_vbucket_that_somebody_else_changes_is_filled_no_more(
    script: Script, target: Rig, state: Any, retry: bool
) -> None:
    opaque = script.follow()
    script.say(marker(0, opaque, 1, 9), mutation(0, opaque, 1, b"a"))
    target.bucket.set_state(0, state)
    ((event, number, why, again),) = script.owner.take()
    assert (event, number, again) == ("ended", 0, retry)
    assert "something else" in why
    assert kinds(script.sent()) == [CLOSE_STREAM]
    script.say(mutation(0, opaque, 2, b"b"))
    assert list(table_of(target.bucket.vbuckets[0])) == [b"a"]
    assert not script.link.closing


def test_a_vbucket_that_is_emptied_here_is_asked_for_anew(script: Script, target: Rig) -> None:
    opaque = script.follow()
    script.say(marker(0, opaque, 1, 1), mutation(0, opaque, 1, b"a"))
    target.bucket.flush(0, lambda _: None)
    assert [event[::3] for event in script.owner.take()] == [("ended", True)]
    script.sent()
    script.link.follow([0])
    (asked,) = script.sent()
    assert struct.unpack_from(">Q", asked.extras, 8) == (0,)


# --- snapshots ------------------------------------------------------------------------------------


def test_a_snapshot_that_is_announced_again_is_whole_at_its_later_end(
    script: Script, target: Rig
) -> None:
    part = target.bucket.vbuckets[0]
    opaque = script.follow()
    script.say(marker(0, opaque, 1, 10), *(mutation(0, opaque, n, b"%d" % n) for n in (1, 4)))
    assert part.receiving == SnapshotRange(0, 10)
    script.say(marker(0, opaque, 1, 12), mutation(0, opaque, 10, b"10"))
    assert part.receiving == SnapshotRange(0, 12)
    script.say(mutation(0, opaque, 12, b"12"))
    assert part.receiving is None
    assert not script.link.error


def test_resumed_in_mid_snapshot_it_is_whole_no_earlier_than_was_announced(
    script: Script, target: Rig
) -> None:
    part = target.bucket.vbuckets[0]
    opaque = script.follow()
    script.say(marker(0, opaque, 1, 10), mutation(0, opaque, 4, b"a"))
    script.say(frame(STREAM_END, extras=struct.pack(">I", 4), opaque=opaque))
    script.link.follow([0])
    (asked,) = script.sent()
    assert struct.unpack(">IIQQQQQ", asked.extras)[2:] == (4, MAX, 0xA, 0, 10)
    script.answer(asked, value=failover_log((0xA, 0)))
    script.say(marker(0, asked.opaque, 5, 7), mutation(0, asked.opaque, 7, b"b"))
    assert part.receiving == SnapshotRange(0, 10)
    script.say(marker(0, asked.opaque, 8, 11), mutation(0, asked.opaque, 8, b"c"))
    assert part.receiving == SnapshotRange(0, 11)
    script.say(mutation(0, asked.opaque, 11, b"d"))
    assert part.receiving is None


def test_resumed_in_mid_snapshot_the_first_marker_belongs_to_it_wherever_it_begins(
    script: Script, target: Rig
) -> None:
    opaque = script.follow()
    script.say(marker(0, opaque, 1, 10), mutation(0, opaque, 4, b"a"))
    script.link.leave([0])
    script.sent()
    again = script.follow()
    script.say(marker(0, again, 11, 20), mutation(0, again, 11, b"b"))
    assert target.bucket.vbuckets[0].receiving == SnapshotRange(0, 20)


def test_what_is_purged_at_the_source_comes_with_the_first_item(
    script: Script, target: Rig
) -> None:
    part = target.bucket.vbuckets[0]
    opaque = script.follow()
    script.say(versioned_marker(opaque, 1, 9, 5))
    assert part.purge_seqno == 0
    script.say(mutation(0, opaque, 6, b"a"))
    assert part.purge_seqno == 5
    script.say(mutation(0, opaque, 9, b"b"))
    script.say(versioned_marker(opaque, 10, 10, 3), mutation(0, opaque, 10, b"c"))
    assert part.purge_seqno == 5, "it never falls"
    target.flush()
    view = target.store.view()
    header = view.header(0)
    view.close()
    assert header is not None
    assert header.purge_seqno == 5


def test_a_marker_that_asks_for_it_is_answered_once_its_items_are_taken(script: Script) -> None:
    opaque = script.follow()
    frames = [marker(0, opaque, 1, 2, MEMORY | ACK), mutation(0, opaque, 1, b"a")]
    assert script.say(*frames) == []
    (answer,) = script.say(mutation(0, opaque, 2, b"b"))
    assert (answer.is_reply, answer.opcode, answer.opaque) == (True, MARKER, opaque)


def test_deletions_are_taken_with_their_time(script: Script, target: Rig) -> None:
    opaque = script.follow()
    extras = struct.pack(">QQIB", 3, 2, 77, 0)
    script.say(
        marker(0, opaque, 1, 3),
        mutation(0, opaque, 1, b"k"),
        frame(DELETION, key=b"k", extras=extras, opaque=opaque, cas=9),
    )
    tombstone = table_of(target.bucket.vbuckets[0])[b"k"]
    assert (tombstone.life, tombstone.expiry, tombstone.seqno, tombstone.cas) == (1, 77, 3, 9)


@pytest.mark.parametrize(("sent", "kept"), [(0, 0), (1, 1), (2, 0), (3, 1), (255, 1)])
def test_of_the_datatype_only_what_we_asked_for_is_kept(
    script: Script, target: Rig, sent: int, kept: int
) -> None:
    opaque = script.follow()
    extras = struct.pack(">QQIIIHB", 1, 1, 0, 0, 0, 0, 0)
    script.say(
        marker(0, opaque, 1, 1),
        frame(MUTATION, key=b"k", value=b"{}", extras=extras, opaque=opaque, datatype=sent),
    )
    assert table_of(target.bucket.vbuckets[0])[b"k"].datatype == kept


def test_a_document_in_a_thousand_pieces_is_looked_at_once(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []
    run = script.link._run
    monkeypatch.setattr(script.link, "_run", lambda data: (looks.append(len(data)), run(data)))
    opaque = script.follow()
    script.say(marker(0, opaque, 1, 1))
    del looks[:]
    data = mutation(0, opaque, 1, b"k", bytes(1_000_000))
    for at in range(0, len(data), 1_000):
        script.link.receive_data(data[at : at + 1_000])
    assert len(looks) == 2
    assert script.link.items == 1


# --- bad input ------------------------------------------------------------------------------------


def bad_frames(opaque: int) -> dict[str, list[bytes]]:
    """What a source must not send to a stream that holds seqno 5 of a snapshot from 1 to 10."""
    long_key = mutation(0, opaque, 6, b"k" * 251)
    end = struct.pack(">I", 0)
    return {
        "marker behind the last one": [mutation(0, opaque, 10, b"a"), marker(0, opaque, 1, 9)],
        "before the marker": [marker(0, opaque, 8, 10), mutation(0, opaque, 7, b"b")],
        "marker backwards": [marker(0, opaque, 9, 8)],
        "snapshot that shrinks": [marker(0, opaque, 1, 9)],
        "purged beyond its end": [versioned_marker(opaque, 1, 10, 11)],
        "marker of no version": [frame(MARKER, extras=b"\x07", value=bytes(52), opaque=opaque)],
        "another vbucket": [mutation(1, opaque, 6, b"b")],
        "absent vbucket": [mutation(999, opaque, 6, b"b")],
        "another opaque": [mutation(0, opaque + 999, 6, b"b")],
        "end of no stream": [frame(STREAM_END, extras=end, vbucket=3, opaque=opaque)],
        "long key": [long_key],
        "CAS": [mutation(0, opaque, 6, b"b", cas=2**63)],
        "revision": [mutation(0, opaque, 6, b"b", rev=2**63)],
        "metadata": [mutation(0, opaque, 6, b"b", b"xy", nmeta=3)],
        "handed over": [frame(0x5B, extras=b"\x01", opaque=opaque)],
        "flush": [frame(0x5A, opaque=opaque)],
        "unknown frame": [frame(0x5F, extras=bytes(13), opaque=opaque)],
        "a client's request": [frame(0x00, key=b"k")],
        "endless": [HEADER.pack(0x80, 0x57, 1, 31, 0, 0, 2**32 - 1, opaque, 0)],
        "lengths": [HEADER.pack(0x80, 0x57, 9, 31, 0, 0, 31, opaque, 0) + bytes(31)],
    }


@pytest.mark.parametrize("kind", bad_frames(0))
@pytest.mark.parametrize("cut", [0, 1])
def test_what_breaks_the_protocol_is_named_and_costs_nothing_that_was_received(
    target: Rig, kind: str, cut: int
) -> None:
    script = Script(target)
    opaque = script.follow()
    script.say(marker(0, opaque, 1, 10), mutation(0, opaque, 5, b"a"))
    data = b"".join(bad_frames(opaque)[kind])
    held = (10, None) if kind == "marker behind the last one" else (5, (0, 10))
    for at in range(0, len(data), cut or len(data)):
        script.link.receive_data(data[at : at + (cut or len(data))])
    link = script.link
    assert link.closing
    assert len(link.error) > 10
    part = target.bucket.vbuckets[0]
    assert list(table_of(part)) == [b"a"]
    assert (part.high_seqno, part.receiving) == held
    link.receive_data(mutation(0, opaque, 6, b"late"))
    link.connection_lost()
    assert script.owner.take() == [("closed", link.error)]
    assert list(table_of(part)) == [b"a"]
    untouched(target)
    target.check()


def test_a_document_above_the_limit_is_named(target: Rig) -> None:
    limit = target.settings.kv.max_item_bytes
    script = Script(target)
    opaque = script.follow()
    script.say(marker(0, opaque, 1, 2), mutation(0, opaque, 1, b"a", bytes(limit)))
    assert not script.link.closing
    script.say(mutation(0, opaque, 2, b"b", bytes(limit + 1)))
    assert "kv.max_item_bytes" in script.link.error


@pytest.mark.parametrize(
    "value",
    [
        b"",
        bytes(15),
        failover_log((0, 0)),
        failover_log((0xA, 1), (0xB, 2)),
        failover_log((0xA, 2), (0xA, 1)),
    ],
    ids=["empty", "torn", "nameless", "rising", "twice"],
)
def test_a_failover_log_that_is_none_is_named(script: Script, target: Rig, value: bytes) -> None:
    before = target.bucket.vbuckets[0].failover_log
    script.link.follow([0])
    (asked,) = script.sent()
    script.answer(asked, value=value)
    assert "failover log" in script.link.error
    assert target.bucket.vbuckets[0].failover_log == before


def test_of_an_endless_failover_log_the_newest_entries_are_kept(
    script: Script, target: Rig
) -> None:
    entries = [(n + 1, 200_000 - n) for n in range(100_000)]
    script.follow(log=failover_log(*entries))
    log = target.bucket.vbuckets[0].failover_log
    assert [tuple(each) for each in log] == entries[: target.settings.engine.max_failover_entries]
    assert not script.link.closing


def test_data_before_the_stream_is_granted_is_refused(script: Script, target: Rig) -> None:
    script.link.follow([0])
    (asked,) = script.sent()
    script.say(marker(0, asked.opaque, 1, 1), mutation(0, asked.opaque, 1, b"a"))
    assert script.link.closing
    assert table_of(target.bucket.vbuckets[0]) == {}


# --- flow control and time ------------------------------------------------------------------------


@pytest.fixture
def small() -> Script:
    return Script(replica_rig(upr__consumer_buffer=65_536))


def test_a_fifth_of_the_buffer_is_acknowledged_to_the_byte(small: Script) -> None:
    opaque = small.follow()
    small.link.tick(1.0)
    small.sent()
    data = [marker(0, opaque, 1, 100)]
    data += [mutation(0, opaque, n, b"k%d" % n, b"x" * 1_000) for n in range(1, 13)]
    assert small.say(*data) == []
    data.append(mutation(0, opaque, 13, b"k", b"x" * 1_000))
    (ack,) = small.say(data[-1])
    assert ack.opcode == BUFFER_ACK
    assert ack.extras == struct.pack(">I", sum(map(len, data)))


def test_while_memory_is_short_nothing_is_acknowledged_and_soon_after_it_is(
    small: Script,
) -> None:
    account = small.target.bucket.account
    pressed: list[int] = []
    account.on_pressure = lambda: pressed.append(1)
    opaque = small.follow()
    small.link.tick(1.0)
    small.sent()
    account.used += account.write_limit + 1
    assert small.say(marker(0, opaque, 1, 9), mutation(0, opaque, 1, b"k", bytes(20_000))) == []
    assert pressed, "the pager is told"
    small.link.tick(1.5)
    assert only(small.sent(), BUFFER_ACK) == []
    assert small.link.window.backoffs == 1
    account.used -= account.write_limit + 1
    small.link.tick(1.6)
    assert len(only(small.sent(), BUFFER_ACK)) == 1


def test_a_source_that_sends_on_unacknowledged_is_not_read(small: Script) -> None:
    rig = small.target
    rig.bucket.account.write_limit = -1
    opaque = small.follow()
    small.say(marker(0, opaque, 1, 10**6))
    limit = rig.settings.upr.consumer_buffer + rig.settings.kv.max_frame_bytes
    sent = seqno = 0
    while sent < limit - 2_000_000:
        seqno += 1
        data = mutation(0, opaque, seqno, b"%d" % seqno, bytes(900_000))
        small.link.receive_data(data)
        sent += len(data)
    assert not small.link.input_full
    for _ in range(4):
        seqno += 1
        small.link.receive_data(mutation(0, opaque, seqno, b"%d" % seqno, bytes(900_000)))
    assert small.link.input_full
    small.link.tick(1.0)
    small.link.tick(1_000.0)
    assert not small.link.closing, "it is we who do not listen"
    rig.bucket.account.write_limit = 2**40
    small.link.tick(1_001.0)
    assert not small.link.input_full


def test_a_silent_source_is_given_up(script: Script, target: Rig) -> None:
    patience = target.settings.upr.dial_timeout_s
    script.link.tick(100.0)
    script.link.tick(100.0 + patience)
    assert not script.link.closing
    script.link.tick(100.1 + patience)
    assert script.link.closing
    assert "said nothing" in script.link.error


def test_a_source_is_given_the_time_to_be_asked_in_whatever_a_dial_may_take() -> None:
    script = Script(replica_rig(**{"upr.dial_timeout_s": 0.1}))
    script.link.tick(100.0)
    script.link.tick(104.0)
    assert not script.link.closing
    script.link.tick(104.1)
    assert script.link.closing


def test_keep_alives_are_answered_and_are_a_sign_of_life(script: Script, target: Rig) -> None:
    patience = target.settings.upr.dial_timeout_s
    script.link.tick(100.0)
    (answer,) = [each for each in script.say(frame(NOOP, opaque=9)) if each.is_reply]
    assert (answer.opcode, answer.opaque, answer.status) == (NOOP, 9, 0)
    script.link.tick(100.0 + patience)
    script.link.tick(100.5 + patience)
    assert not script.link.closing


def test_what_is_on_disk_is_told_when_it_moved(script: Script, target: Rig) -> None:
    opaque = script.follow()
    script.say(marker(0, opaque, 1, 2), mutation(0, opaque, 1, b"a"), mutation(0, opaque, 2, b"b"))
    script.link.tick(1.0)
    assert only(script.sent(), SEQNO_ACK) == []
    target.flush()
    script.link.tick(1.05)
    assert only(script.sent(), SEQNO_ACK) == [], "not so often"
    script.link.tick(1.15)
    (told,) = only(script.sent(), SEQNO_ACK)
    assert (told.vbucket, told.opaque, told.extras) == (0, opaque, struct.pack(">Q", 2))
    script.link.tick(2.0)
    assert only(script.sent(), SEQNO_ACK) == [], "it did not move"


def test_how_far_behind_is_known(script: Script) -> None:
    opaque = script.follow()
    script.link.tick(10.0)
    (asked,) = only(script.sent(), ALL_SEQNOS)
    script.answer(asked, value=struct.pack(">HQHQ", 0, 7, 1, 99))
    assert script.link.lag_items == 7
    script.link.tick(12.5)
    (asked,) = only(script.sent(), ALL_SEQNOS)
    script.say(marker(0, opaque, 1, 7), mutation(0, opaque, 7, b"a"))
    script.answer(asked, value=struct.pack(">HQ", 0, 7))
    assert script.link.lag_items == 0


def test_the_source_learns_what_is_on_disk_here(pair: Pair) -> None:
    fill(pair.source, 0, 10)
    pair.run()
    pair.link.follow([0])
    pair.run()
    pair.tick(1.0)
    pair.run()
    (producer,) = pair.source.services.upr.producers.values()
    assert producer.feed.streams[0].persisted_seqno == 10
    assert pair.link.source_seqnos[0] == 10


# --- how it ends ----------------------------------------------------------------------------------


def test_a_lost_link_leaves_nothing_behind(pair: Pair) -> None:
    fill(pair.source, 0, 10)
    pair.run()
    pair.link.follow([0, 1])
    pair.run()
    assert pair.lose() == [("closed", "the connection was lost")]
    pair.link.connection_lost()
    assert pair.owner.take() == []
    untouched(pair.target)


def test_a_lost_link_is_in_no_reference_cycle(pair: Pair) -> None:
    pair.run()
    pair.link.follow([0])
    pair.run()
    pair.link.leave([0])
    pair.link.follow([1])
    gc.collect()
    gc.disable()
    try:
        gone = weakref.ref(pair.link)
        pair.lose()
        del pair.link
        assert gone() is None
    finally:
        gc.enable()


def test_the_owner_may_end_the_link_whenever_it_is_told_something(target: Rig) -> None:
    for moment in range(4):
        script = Script(target, grant=False)
        link, told = script.link, [0]

        def hang_up(*_: object, link: Any = link, told: list[int] = told, at: int = moment) -> None:
            told[0] += 1
            if told[0] > at:
                link.connection_lost()

        for name in ("opened", "began", "ended"):
            setattr(script.owner, name, hang_up)
        script.greet()
        link.follow([0, 1, 77, 2])
        for asked in only(script.sent(), STREAM_REQUEST):
            script.answer(asked, value=failover_log((0xA, 0)))
        link.receive_data(frame(MUTATION))
        link.connection_lost()
        untouched(target)


def test_the_flusher_knows_that_a_link_is_far_behind(script: Script, target: Rig) -> None:
    flusher = target.bucket.flusher
    script.follow()
    script.link.source_seqnos = {0: 30_000}
    script.link.tick(1.0)
    assert not flusher.filling
    script.link.source_seqnos = {0: 30_001}
    script.link.tick(2.0)
    script.link.tick(3.0)
    assert flusher.filling == 1
    script.link.connection_lost()
    assert not flusher.filling


def test_a_link_that_has_caught_up_is_no_longer_far_behind(script: Script, target: Rig) -> None:
    script.follow()
    script.link.source_seqnos = {0: 30_001}
    script.link.tick(1.0)
    script.link.source_seqnos = {0: 3}
    script.link.tick(2.0)
    assert not target.bucket.flusher.filling
