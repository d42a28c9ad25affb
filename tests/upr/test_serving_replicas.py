"""What a producer adds for replicas: purge seqnos in markers, word of what is persisted, rollbacks.

Source: UPR reference 2.6, 2.7; `docs/extensions.md`.
"""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.upr.peer import (
    ACK,
    CHECKPOINT,
    DISK,
    INVALID,
    LATER,
    LEASE_ACQUIRE,
    MARKER,
    MAX,
    MEMORY,
    MUTATION,
    NO_STREAM,
    NOT_FOUND,
    NOTIFIER,
    OK,
    REPLICA,
    ROLLBACK,
    SEQNO_ACKNOWLEDGED,
    STREAM_END,
    TAKEOVER,
    UNKNOWN,
    Frame,
    Peer,
    Rig,
    ack,
    bystander,
    fill,
    first_generation_request,
    frame,
    kinds,
    only,
    seqnos,
    stream_request,
    untouched,
    upr_rig,
    uuid_of,
    write,
)
from uprmc.engine.replica import Rewind, apply, roll_back
from uprmc.engine.vbucket import VBucket
from uprmc.model import FailoverEntry, Item, SnapshotRange

OPAQUE = 0x1001


@pytest.fixture
def rig() -> Rig:
    return upr_rig()


# --- markers of version 2.2 ---------------------------------------------------------------------


def versioned(rig: Rig, **options: bytes) -> Peer:
    peer = Peer.open(rig, b"repl")
    for name, value in {"max_marker_version": b"2.2", **options}.items():
        peer.controls(**{name: value})
    return peer


def told(each: Frame) -> tuple[int, int, int, int]:
    """Start, end, type bits and purge seqno of a marker of version 2.2, read by hand."""
    assert each.extras == b"\x02"
    assert len(each.value) == 52
    start, end, kind, visible, completed, purged, prepared = struct.unpack(">QQIQQQQ", each.value)
    assert visible == end, "without synchronous writes everything is visible"
    assert (completed, prepared) == (0, 0)
    return start, end, kind, purged


def test_who_has_not_asked_gets_the_marker_of_2014(rig: Rig) -> None:
    fill(rig, 0, 3)
    (mark,) = only(Peer.open(rig).stream(0), MARKER)
    assert (len(mark.extras), mark.value) == (20, b"")


@pytest.mark.parametrize("on_disk", [False, True])
@pytest.mark.parametrize("count", [3, 100])
def test_a_marker_of_today_tells_the_purge_seqno(rig: Rig, on_disk: bool, count: int) -> None:
    fill(rig, 0, count)
    if on_disk:
        rig.flush()
    rig.bucket.vbuckets[0].purge_seqno = 2
    frames = versioned(rig).stream(0)
    kind = DISK if on_disk else MEMORY | CHECKPOINT
    assert [told(each) for each in only(frames, MARKER)] == [(0, count, kind, 2)]
    assert seqnos(frames) == list(range(1, count + 1))


def test_each_marker_tells_the_purge_seqno_of_its_own_time(rig: Rig) -> None:
    fill(rig, 0, 3)
    peer = versioned(rig)
    peer.stream(0)
    rig.bucket.vbuckets[0].purge_seqno = 3
    write(rig, 0, b"k")
    assert [told(each)[3] for each in only(peer.drain(), MARKER)] == [3]


def test_a_marker_of_a_takeover_asks_for_its_answer_in_either_form(rig: Rig) -> None:
    fill(rig, 0, 1)
    (mark,) = only(versioned(rig).stream(0, flags=TAKEOVER, opaque=OPAQUE), MARKER)
    assert told(mark) == (0, 1, MEMORY | CHECKPOINT | ACK, 0)


def test_the_first_generation_has_markers_without_anything(rig: Rig) -> None:
    fill(rig, 0, 1)
    peer = versioned(rig)
    _, mark, _ = peer.say(first_generation_request(0))
    assert (mark.opcode, mark.extras, mark.value) == (MARKER, b"", b"")


def test_a_marker_of_today_counts_77_bytes(rig: Rig) -> None:
    fill(rig, 0, 2)
    peer = versioned(rig, connection_buffer_size=b"78")
    assert kinds(peer.stream(0)) == [MARKER, MUTATION], "after the marker there is room for a byte"
    peer.lose()
    peer = versioned(rig, connection_buffer_size=b"77")
    assert kinds(peer.stream(0)) == [MARKER]
    assert kinds(peer.say(ack(77))) == [MUTATION, MUTATION]


@given(limit=st.integers(1, 400), count=st.integers(1, 6), on_disk=st.booleans())
def test_pulls_of_any_size_give_the_same_frames(limit: int, count: int, on_disk: bool) -> None:
    rig = upr_rig(engine__vbuckets=1)
    fill(rig, 0, count)
    if on_disk:
        rig.flush()
    peer = versioned(rig, uprmc_rounds=b"true")
    peer.send(stream_request(0))
    frames = [each for each in peer.drain(limit) if not each.is_reply]
    assert [each for each in kinds(frames) if each < 0xE0] == [MARKER, *[MUTATION] * count]


# --- what is persisted --------------------------------------------------------------------------


def persisted(seqno: int, *, vbucket: int = 0, opaque: int = OPAQUE) -> bytes:
    extras = struct.pack(">Q", seqno)
    return frame(SEQNO_ACKNOWLEDGED, extras=extras, vbucket=vbucket, opaque=opaque)


def replica(rig: Rig, *, items: int = 5) -> Peer:
    """A peer with a stream of vBucket 0 that has been sent so many items."""
    fill(rig, 0, items)
    peer = Peer.open(rig, b"repl")
    peer.controls(uprmc_persisted=b"true")
    peer.stream(0, opaque=OPAQUE)
    return peer


def heard(peer: Peer) -> int:
    return peer.side.feed.streams[0].persisted_seqno  # type: ignore[no-any-return]


def test_word_of_what_is_persisted_is_kept_and_not_answered(rig: Rig) -> None:
    peer = replica(rig)
    assert heard(peer) == 0
    assert peer.say(persisted(3)) == []
    assert heard(peer) == 3
    assert peer.say(persisted(5)) == []
    assert heard(peer) == 5


def test_less_than_before_changes_nothing(rig: Rig) -> None:
    peer = replica(rig)
    assert peer.say(persisted(4), persisted(2)) == []
    assert heard(peer) == 4


@pytest.mark.parametrize("seqno", [6, MAX])
def test_what_was_not_sent_cannot_be_persisted(rig: Rig, seqno: int) -> None:
    undisturbed = bystander(rig)
    peer = replica(rig)
    peer.say(persisted(2))
    assert peer.ask(persisted(seqno)).status == INVALID
    assert heard(peer) == 2
    assert not peer.closed
    undisturbed()


def test_who_resumes_may_have_persisted_what_he_began_with(rig: Rig) -> None:
    fill(rig, 0, 5)
    peer = Peer.open(rig)
    peer.controls(uprmc_persisted=b"true", connection_buffer_size=b"1")
    peer.stream(0, 3, opaque=OPAQUE)
    assert peer.say(persisted(3)) == []
    assert peer.ask(persisted(4)).status == INVALID, "only the marker was sent"


def test_of_a_stream_that_is_not_there_nothing_is_heard(rig: Rig) -> None:
    peer = replica(rig)
    assert peer.ask(persisted(1, vbucket=1)).status == NOT_FOUND
    assert peer.ask(persisted(1, opaque=OPAQUE + 1)).status == NOT_FOUND
    peer.controls(v7_dcp_status_codes=b"true")
    assert peer.ask(persisted(1, vbucket=1)).status == NO_STREAM
    assert heard(peer) == 0


def test_it_has_to_be_negotiated(rig: Rig) -> None:
    fill(rig, 0, 5)
    peer = Peer.open(rig)
    peer.stream(0, opaque=OPAQUE)
    assert peer.ask(persisted(3)).status == UNKNOWN
    assert heard(peer) == 0
    assert not peer.closed


# --- rollbacks ----------------------------------------------------------------------------------

LOG = (FailoverEntry(0xB, 2), FailoverEntry(0xA, 0))


def follower(rig: Rig, count: int, *, whole: bool = True) -> VBucket:
    """Make vBucket 0 a replica that holds a snapshot of so many items, or all but its last."""
    rig.bucket.set_state(0, REPLICA)
    part = rig.bucket.vbuckets[0]
    receive(part, 1, count, count if whole else count + 1)
    return part


def receive(part: VBucket, first: int, last: int, end: int) -> None:
    for seqno in range(first, last + 1):
        apply(part, version(seqno), SnapshotRange(first, end))


def version(seqno: int, key: bytes = b"") -> Item:
    return Item(key or b"key%06d" % seqno, b"v", 0, 0, 1000 + seqno, seqno, 1)


def go_back(rig: Rig, seqno: int, later_seqno: int = 0) -> None:
    rewind = Rewind(seqno, LOG, (), later_seqno)
    roll_back(rig.bucket, rig.bucket.vbuckets[0], rewind, lambda _: None)


@pytest.mark.parametrize(("modern", "reason"), [(True, 6), (False, 2)])
def test_a_rollback_ends_the_streams_of_a_replica(rig: Rig, modern: bool, reason: int) -> None:
    follower(rig, 5)
    peer = (Peer.modern if modern else Peer.open)(rig)
    assert seqnos(peer.stream(0)) == [1, 2, 3, 4, 5]
    go_back(rig, 2)
    (end,) = peer.drain()
    assert (end.opcode, end.reason) == (STREAM_END, reason)
    assert peer.side.feed.streams == {}


def test_a_rollback_ends_a_stream_in_mid_snapshot_and_nothing_is_left(rig: Rig) -> None:
    follower(rig, 50)
    rig.flush()
    peer = Peer.modern(rig)
    peer.controls(connection_buffer_size=b"200")
    peer.stream(0)
    assert rig.services.upr.backfills.used == 1
    go_back(rig, 2)
    (end,) = peer.say(ack(1000))
    assert (end.opcode, end.reason) == (STREAM_END, 6)
    peer.lose()
    untouched(rig)


def test_until_a_rollback_is_on_disk_nobody_is_let_in(rig: Rig) -> None:
    undisturbed = bystander(rig)
    follower(rig, 5)
    rig.flush()
    go_back(rig, 2)
    producer, notifier = Peer.open(rig), Peer.open(rig, b"n", NOTIFIER)
    lease = frame(LEASE_ACQUIRE, extras=struct.pack(">I", 60), value=b"\x00\x00")
    for _ in range(2):
        assert producer.ask(stream_request(0)).status == LATER
        assert notifier.ask(stream_request(0)).status == LATER
        assert producer.ask(lease).status == LATER
    rig.flush()
    assert producer.ask(lease).status == OK
    assert seqnos(producer.stream(0)) == [1, 2]
    undisturbed()


@pytest.mark.acceptance("P18", "P19")
def test_who_had_what_was_rolled_back_is_sent_back_too(rig: Rig) -> None:
    follower(rig, 5)
    lost = uuid_of(rig)
    rig.bucket.vbuckets[0].failover_log = (FailoverEntry(0xA, 0),)
    rig.flush()
    go_back(rig, 2)
    rig.flush()
    peer = Peer.open(rig)
    answer = peer.ask(stream_request(0, 4, uuid=0xA))
    assert (answer.status, answer.value) == (ROLLBACK, struct.pack(">Q", 2))
    answer = peer.ask(stream_request(0, 4, uuid=lost))
    assert (answer.status, answer.value) == (ROLLBACK, bytes(8))


# --- a replica that holds half of a snapshot ----------------------------------------------------


@pytest.mark.acceptance("P10")
def test_nobody_falls_back_to_a_place_inside_of_a_half_received_snapshot(rig: Rig) -> None:
    """What a replica lacks there the consumer would take for deleted."""
    part = follower(rig, 5)
    receive(part, 6, 8, 10)
    peer = Peer.open(rig)
    beyond = stream_request(0, 20, uuid=uuid_of(rig))
    assert peer.ask(beyond).status == LATER
    receive(part, 9, 10, 10)
    answer = peer.ask(beyond)
    assert (answer.status, answer.value) == (ROLLBACK, struct.pack(">Q", 10))


def test_below_it_everybody_may_fall_back_and_go_on(rig: Rig) -> None:
    part = follower(rig, 5)
    part.failover_log = LOG
    receive(part, 6, 8, 10)
    peer = Peer.open(rig)
    answer = peer.ask(stream_request(0, 4, uuid=0xA))
    assert (answer.status, answer.value) == (ROLLBACK, struct.pack(">Q", 2))
    assert peer.stream(0, 7, uuid=0xB) == []
    receive(part, 9, 10, 10)
    assert seqnos(peer.drain()) == [8, 9, 10]


def test_after_a_rollback_that_needs_more_nobody_is_sent_anywhere_until_it_has_come(
    rig: Rig,
) -> None:
    part = follower(rig, 5)
    go_back(rig, 2, later_seqno=4)
    rig.flush()
    peer = Peer.open(rig)
    asked = stream_request(0, 4, uuid=0xA)
    assert peer.ask(asked).status == LATER
    apply(part, version(4), SnapshotRange(3, 4))
    answer = peer.ask(asked)
    assert (answer.status, answer.value) == (ROLLBACK, struct.pack(">Q", 2))
