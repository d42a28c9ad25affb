"""Snapshots on the wire: markers, what they hold, readings that are given up half way.

Source: UPR reference 2.7, 4.2, 4.3; rows D28, D39, D40, P13.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.contents import table_of
from tests.upr.peer import (
    CHECKPOINT,
    CLOSE_STREAM,
    DISK,
    MARKER,
    MAX,
    MEMORY,
    MUTATION,
    STREAM_END,
    Frame,
    Peer,
    Rig,
    check_stream,
    fill,
    frame,
    items,
    kinds,
    marked,
    only,
    seqnos,
    split,
    stream_request,
    upr_rig,
    write,
)


@pytest.fixture
def rig() -> Rig:
    return upr_rig()


def test_the_first_marker_from_memory_opens_a_checkpoint(rig: Rig) -> None:
    fill(rig, 0, 3)
    peer = Peer.open(rig)
    assert marked(peer.stream(0)) == [(0, 3, MEMORY | CHECKPOINT)]
    write(rig, 0, b"k")
    assert marked(peer.drain()) == [(4, 4, MEMORY)]


def test_a_marker_says_disk_and_nothing_else_when_the_disk_was_read(rig: Rig) -> None:
    fill(rig, 0, 3)
    rig.flush()
    write(rig, 0, b"queued")
    frames = Peer.open(rig).stream(0)
    assert marked(frames) == [(0, 4, DISK)]
    assert seqnos(frames) == [1, 2, 3, 4]


def test_after_5000_items_a_checkpoint_begins(rig: Rig) -> None:
    peer = Peer.open(rig)
    peer.stream(0)
    seen = []
    for _ in range(51):
        fill(rig, 0, 100)
        seen += [kind for _, _, kind in marked(peer.drain())]
    assert [n for n, kind in enumerate(seen) if kind & CHECKPOINT] == [0, 50]
    assert set(seen) == {1, 5}


@pytest.mark.parametrize(
    ("start", "snapshot", "expected"),
    [(5, (5, 5), 5), (5, (3, 8), 3), (5, (5, 8), 5), (0, (0, 0), 0)],
)
@pytest.mark.parametrize("on_disk", [False, True])
def test_the_first_marker_begins_where_the_consumers_snapshot_does(
    rig: Rig, start: int, snapshot: tuple[int, int], expected: int, on_disk: bool
) -> None:
    fill(rig, 0, 10)
    if on_disk:
        rig.flush()
    peer = Peer.open(rig)
    frames = peer.stream(0, start, snapshot=snapshot)
    assert marked(frames)[0][:2] == (expected, 10)
    write(rig, 0, b"later")
    assert marked(peer.drain())[0][:2] == (11, 11)


@pytest.mark.acceptance("D40")
@pytest.mark.parametrize("on_disk", [False, True])
def test_writes_after_the_marker_are_not_in_that_snapshot(rig: Rig, on_disk: bool) -> None:
    fill(rig, 0, 50, b"x" * 100)
    if on_disk:
        rig.flush()
    peer = Peer.open(rig)
    peer.send(stream_request(0))
    peer.turn(500)
    assert marked(peer.received)[0][1] == 50
    assert len(seqnos(peer.received)) < 50
    write(rig, 0, b"key000049", b"new")
    peer.drain()
    frames = [each for each in peer.received if not each.is_reply]
    assert seqnos(frames) == list(range(1, 53))
    assert [each[1] for each in marked(frames)] == [50, 52]
    assert check_stream(frames) == 52


@pytest.mark.acceptance("D28")
def test_nothing_new_means_no_marker(rig: Rig) -> None:
    fill(rig, 0, 3)
    peer = Peer.open(rig)
    assert peer.stream(0, 3) == []
    rig.flush()
    assert peer.drain() == []
    write(rig, 1, b"elsewhere")
    assert peer.drain() == []


def test_a_key_written_often_comes_once_at_its_newest_place(rig: Rig) -> None:
    write(rig, 0, b"a", b"b", b"a", b"c", b"a")
    frames = Peer.open(rig).stream(0)
    assert [(each.key, each.seqno, each.rev) for each in items(frames)] == [
        (b"b", 2, 1),
        (b"c", 4, 1),
        (b"a", 5, 3),
    ]


def test_a_stream_follows_from_disk_to_memory_and_back(rig: Rig) -> None:
    fill(rig, 0, 5)
    rig.flush()
    peer = Peer.open(rig)
    frames = peer.stream(0)
    stream = peer.side.feed.streams[0]
    write(rig, 0, b"live")
    frames += peer.drain()
    assert stream.state.value == "in-memory"
    for n in range(40):  # the peer is not served meanwhile, and the queue empties
        write(rig, 0, b"missed%d" % n)
    rig.flush()
    peer.send(frame(0x5D, extras=bytes(4)))
    frames += peer.turn(300)
    assert stream.state.value == "backfilling"
    frames += peer.drain()
    write(rig, 0, b"live again")
    frames += peer.drain()
    assert stream.state.value == "in-memory"
    assert [kind & 3 for _, _, kind in marked(frames)] == [DISK, MEMORY, DISK, MEMORY]
    assert seqnos(frames) == list(range(1, 48))
    assert check_stream(frames) == 47
    assert (stream.from_disk, stream.from_memory) == (45, 2)


def test_a_hot_vbucket_does_not_starve_the_others(rig: Rig) -> None:
    fill(rig, 0, 2_000, b"x" * 200)
    fill(rig, 1, 3)
    fill(rig, 2, 3)
    peer = Peer.open(rig)
    peer.send(stream_request(0), stream_request(1), stream_request(2))
    heard: list[Frame] = []
    for _ in range(8):
        heard += peer.turn()
    assert seqnos(heard, 1) == seqnos(heard, 2) == [1, 2, 3]
    assert len(seqnos(heard, 0)) < 500
    write(rig, 1, b"live")
    for _ in range(8):
        heard += peer.turn()
    assert seqnos(heard, 1) == [1, 2, 3, 4], "a write elsewhere waits for one portion, not for all"
    assert len(seqnos(heard, 0)) < 1_000


def test_two_hot_streams_share_the_connection_evenly(rig: Rig) -> None:
    for number in (0, 1):
        fill(rig, number, 2_000, b"x" * 200)
    peer = Peer.open(rig)
    peer.send(stream_request(0), stream_request(1))
    while len(seqnos(peer.received)) < 2_000:
        peer.turn()
    first, second = len(seqnos(peer.received, 0)), len(seqnos(peer.received, 1))
    assert abs(first - second) < 100


@pytest.mark.acceptance("D39")
def test_each_stream_knows_how_far_it_has_come(rig: Rig) -> None:
    fill(rig, 0, 10)
    fill(rig, 1, 4)
    peer, other = Peer.open(rig, b"a"), Peer.open(rig, b"b")
    peer.stream(0)
    peer.stream(1)
    other.stream(0, 10)
    assert {n: s.last_seqno for n, s in peer.side.feed.streams.items()} == {0: 10, 1: 4}
    assert {n: s.last_seqno for n, s in other.side.feed.streams.items()} == {0: 10}


# --- readings that are given up -------------------------------------------------------------------


def half_way(rig: Rig, peer: Peer, *, on_disk: bool, count: int = 60) -> None:
    """Open a stream of vBucket 0 and stop somewhere in its first snapshot."""
    fill(rig, 0, count, b"x" * 100)
    if on_disk:
        rig.flush()
    peer.controls(connection_buffer_size=b"2000")
    peer.stream(0)
    assert 0 < len(seqnos(peer.received)) < count
    assert len(peer.side.feed.readings._open_since) == 1


def give_up_by_time(rig: Rig, peer: Peer) -> None:
    peer.session.tick(1_000.0)
    peer.session.tick(1_000.0 + rig.settings.upr.reading_max_s)
    assert peer.side.feed.streams[0].reading is not None, "not before its time is over"
    peer.session.tick(1_000.1 + rig.settings.upr.reading_max_s)


def give_up_by_items(rig: Rig, peer: Peer) -> None:
    for n in range(rig.settings.upr.reading_items + 1):
        write(rig, 0, b"replaced", b"%d" % n)
        rig.flush()
        if n == rig.settings.upr.reading_items - 1:
            peer.session.tick(1.0)
    peer.session.tick(2.0)


def give_up_for_the_store(rig: Rig, peer: Peer) -> None:
    rig.services.upr.release_views()


@pytest.mark.parametrize("on_disk", [False, True])
@pytest.mark.parametrize("give_up", [give_up_by_time, give_up_for_the_store])
def test_a_reading_given_up_half_way_is_announced_again_with_a_later_end(
    rig: Rig, on_disk: bool, give_up: Callable[[Rig, Peer], None]
) -> None:
    peer = Peer.open(rig)
    half_way(rig, peer, on_disk=on_disk)
    stream = peer.side.feed.streams[0]
    write(rig, 0, b"key000059", b"later", value=b"new")
    give_up(rig, peer)
    assert stream.reading is None
    assert stream.let_go == 1
    assert not list(rig.store._views)
    assert rig.bucket.vbuckets[0].queue.retired == 0
    peer.controls(connection_buffer_size=b"0")
    frames = [each for each in peer.received if not each.is_reply]
    assert [each[:2] for each in marked(frames)] == [(0, 60), (0, 62)]
    assert seqnos(frames) == [*range(1, 60), 61, 62]
    assert check_stream(frames) == 62


def test_a_reading_that_holds_too_many_replaced_items_is_given_up() -> None:
    rig = upr_rig(upr__reading_items=5)
    peer = Peer.open(rig)
    half_way(rig, peer, on_disk=False, count=40)
    part = rig.bucket.vbuckets[0]
    for n in range(6):  # the reading holds the version that is replaced
        write(rig, 0, b"key%06d" % (39 - n))
        peer.session.tick(1.0 + n)
        released = peer.side.feed.streams[0].reading is None
        assert released is (n == 5), f"{part.queue.retired} held"
    assert part.queue.retired == 0
    peer.controls(connection_buffer_size=b"0")
    assert check_stream([each for each in peer.received if not each.is_reply]) == 46


def test_the_first_tick_of_a_connection_gives_nothing_up(rig: Rig) -> None:
    """The clock of ticks is monotonic and begins anywhere."""
    peer = Peer.open(rig)
    half_way(rig, peer, on_disk=True)
    peer.session.tick(987_654.0)
    assert peer.side.feed.streams[0].let_go == 0


def test_between_snapshots_nothing_is_held_and_nothing_given_up(rig: Rig) -> None:
    fill(rig, 0, 5)
    rig.flush()
    peer = Peer.open(rig)
    peer.stream(0)
    peer.session.tick(1.0)
    peer.session.tick(1e9)
    assert peer.side.feed.streams[0].let_go == 0
    assert not list(rig.store._views)
    assert peer.drain() == []


def test_a_reading_may_be_given_up_again_and_again(rig: Rig) -> None:
    peer = Peer.open(rig)
    half_way(rig, peer, on_disk=True)
    for n in range(10):
        write(rig, 0, b"more%d" % n)
        rig.services.upr.release_views()
        peer.say(frame(0x5D, extras=(400).to_bytes(4, "big")))
    peer.controls(connection_buffer_size=b"0")
    frames = [each for each in peer.received if not each.is_reply]
    assert seqnos(frames) == list(range(1, 71))
    assert check_stream(frames) == 70
    assert {each[0] for each in marked(frames)} == {0}


def test_a_stream_closed_half_way_lets_its_reading_go(rig: Rig) -> None:
    peer = Peer.open(rig)
    half_way(rig, peer, on_disk=True)
    peer.say(frame(CLOSE_STREAM))
    assert not list(rig.store._views)
    assert rig.bucket.vbuckets[0].queue.retired == 0
    assert rig.services.upr.backfills.used == 0


# --- anything at any time -------------------------------------------------------------------------

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(0, 7), st.integers(0, 120)),
        st.tuples(st.just("delete"), st.integers(0, 7), st.just(0)),
        st.tuples(st.just("flush"), st.just(0), st.just(0)),
        st.tuples(st.just("pull"), st.just(0), st.integers(1, 400)),
        st.tuples(st.just("give up"), st.just(0), st.just(0)),
        st.tuples(st.just("ack"), st.just(0), st.integers(1, 400)),
    ),
    max_size=60,
)


@pytest.mark.acceptance("D28", "P13")
@given(STEPS, st.sampled_from([0, 150, 600]))
def test_whatever_happens_every_stream_keeps_the_rules_of_snapshots(
    steps: list[tuple[str, int, int]], buffer: int
) -> None:
    rig = upr_rig()
    part = rig.bucket.vbuckets[0]
    peer = Peer.open(rig)
    peer.controls(connection_buffer_size=b"%d" % buffer, uprmc_snapshot_end=b"true")
    peer.send(stream_request(0))
    for what, number, size in steps:
        key = b"key%d" % number
        if what == "write":
            write(rig, 0, key, value=b"v" * size)
        elif what == "delete" and part.find(key) is not None:
            part.delete(key)
        elif what == "flush":
            rig.flush()
        elif what == "pull":
            peer.turn(size)
        elif what == "give up":
            rig.services.upr.release_views()
        elif what == "ack":
            peer.say(frame(0x5D, extras=size.to_bytes(4, "big")))
    peer.controls(connection_buffer_size=b"0")
    frames = [each for each in peer.received if not each.is_reply]
    assert check_stream(frames) == part.high_seqno
    held = {each.key: each for each in items(frames)}
    live = {key: each.value for key, each in held.items() if each.opcode == MUTATION}
    assert live == {key: item.value for key, item in table_of(part).items() if not item.life}
    ends = only(frames, 0xEC)
    assert sum(each.items for each in ends) == len(items(frames))
    assert [each.end for each in ends] == sorted({each.end for each in ends})
    assert not list(rig.store._views)


@given(st.lists(st.integers(1, 3_000), min_size=1, max_size=40))
def test_frames_come_whole_whatever_the_transport_takes(budgets: list[int]) -> None:
    rig = upr_rig()
    fill(rig, 0, 100, b"x" * 50)
    peer = Peer.open(rig)
    peer.send(stream_request(0))
    data = b""
    for budget in budgets:
        pieces = peer.session.data_to_send(budget)
        assert sum(map(len, pieces)) <= budget + 24 + 31 + 9 + 50 + 44
        data += b"".join(pieces)
    data += b"".join(b"".join(iter_pieces(peer)) for _ in range(1))
    frames, rest = split(data)
    assert rest == b""
    assert seqnos(frames) == list(range(1, 101))


def iter_pieces(peer: Peer) -> list[bytes]:
    pieces, idle = [], 0
    while idle < 3:
        taken = peer.session.data_to_send(10_000)
        idle = 0 if taken else idle + 1
        pieces += taken
    return pieces


def test_a_stream_to_its_end_is_marker_items_end(rig: Rig) -> None:
    fill(rig, 0, 2)
    assert kinds(Peer.open(rig).stream(0, 0, 2)) == [MARKER, MUTATION, MUTATION, STREAM_END]
    assert MAX > 2
