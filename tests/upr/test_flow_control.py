"""Flow control: how many bytes may be unacknowledged, and what counts.

Source: UPR reference 4.6.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.upr.peer import (
    BARRIER_REACHED,
    CLOSE_STREAM,
    DELETION,
    MARKER,
    MUTATION,
    NOOP,
    OK,
    PARTITION_START,
    ROUND_COMPLETE,
    SNAPSHOT_END,
    STREAM_END,
    TAKEOVER,
    Frame,
    Peer,
    Rig,
    ack,
    bystander,
    check_stream,
    control,
    fill,
    frame,
    kinds,
    only,
    response,
    seqnos,
    stream_request,
    upr_rig,
    write,
)

BUFFER = b"connection_buffer_size"
COUNTED = {STREAM_END, MARKER, MUTATION, DELETION, 0x5B, *range(0xE8, 0xED)}


@pytest.fixture
def rig() -> Rig:
    return upr_rig()


def limited(rig: Rig, size: int, **options: bytes) -> Peer:
    peer = Peer.open(rig)
    peer.controls(connection_buffer_size=b"%d" % size, **options)
    return peer


def counted(frames: list[Frame]) -> int:
    return sum(each.size for each in frames if not each.is_reply and each.opcode in COUNTED)


def test_without_a_size_nothing_is_held_back_or_counted(rig: Rig) -> None:
    fill(rig, 0, 1_000)
    peer = Peer.open(rig)
    assert len(seqnos(peer.stream(0))) == 1_000
    assert peer.side.feed.unacked_bytes == 0


def test_a_size_of_0_is_no_flow_control(rig: Rig) -> None:
    fill(rig, 0, 1_000)
    assert len(seqnos(limited(rig, 0).stream(0))) == 1_000


def test_a_buffer_of_128_stalls_on_5_small_items(rig: Rig) -> None:
    """As the suite of 2014: marker 44, then items of 55 + key + value until 128 are reached."""
    for n in range(5):
        write(rig, 0, b"key%d" % n, value=b"data")
    peer = limited(rig, 128)
    assert kinds(peer.stream(0, 0, 5)) == [MARKER, MUTATION, MUTATION]
    assert peer.side.feed.unacked_bytes == 44 + 63 + 63
    assert peer.drain() == []
    heard = peer.received
    for _ in range(5):
        peer.say(ack(128))
    assert seqnos(heard) == [1, 2, 3, 4, 5]
    assert heard[-1].opcode == STREAM_END


def test_a_frame_is_sent_whatever_its_size_while_less_than_the_buffer_is_out(rig: Rig) -> None:
    write(rig, 0, b"k", value=b"x" * 5_000)
    write(rig, 0, b"l", value=b"y")
    peer = limited(rig, 45)
    assert kinds(peer.stream(0)) == [MARKER, MUTATION]
    assert peer.side.feed.unacked_bytes == 44 + 56 + 5_000


@pytest.mark.parametrize(("size", "expected"), [(44, [MARKER]), (45, [MARKER, MUTATION])])
def test_the_buffer_is_full_at_its_size_exactly(rig: Rig, size: int, expected: list[int]) -> None:
    write(rig, 0, b"k")
    assert kinds(limited(rig, size).stream(0)) == expected


@given(
    st.integers(1, 700),
    st.lists(st.integers(0, 200), min_size=1, max_size=30),
    st.lists(st.integers(1, 900), max_size=40),
    st.booleans(),
)
def test_no_frame_is_begun_while_the_buffer_is_full(
    size: int, values: list[int], acks: list[int], rounds: bool
) -> None:
    """The rule of 4.6 replayed frame by frame; a round's start goes with its marker."""
    rig = upr_rig()
    for number, length in enumerate(values):
        write(rig, number % 2, b"k%d" % number, value=b"v" * length)
    options = {"uprmc_rounds": b"true"} if rounds else {}
    peer = limited(rig, size, uprmc_snapshot_end=b"true", **options)
    out = 0

    def account(frames: list[Frame]) -> None:
        nonlocal out
        before = 0
        for each in frames:
            if each.is_reply:
                continue
            if before != PARTITION_START:
                assert out < size, "a frame was begun beyond the buffer"
            out += each.size
            before = each.opcode

    account(peer.say(stream_request(0), stream_request(1)))
    for taken in acks:
        out = max(0, out - taken)
        account(peer.say(ack(taken)))
        assert peer.side.feed.unacked_bytes == out
    while out:
        taken, out = out, 0
        account(peer.say(ack(taken)))
    for number in (0, 1):
        end = rig.bucket.vbuckets[number].high_seqno
        assert check_stream(of(peer, number)) == end


def of(peer: Peer, vbucket: int) -> list[Frame]:
    return [f for f in peer.received if not f.is_reply and f.vbucket == vbucket]


def test_more_may_be_acknowledged_than_is_out(rig: Rig) -> None:
    write(rig, 0, b"k")
    peer = limited(rig, 100)
    peer.stream(0)
    assert peer.say(ack(0xFFFFFFFF)) == []
    assert peer.side.feed.unacked_bytes == 0
    assert not peer.closed
    for n in range(20):
        write(rig, 0, b"more%d" % n)
    frames = peer.drain()
    assert 100 <= counted(frames) < 100 + 70, "a huge ack is no credit"


def test_an_ack_without_flow_control_changes_nothing(rig: Rig) -> None:
    undisturbed = bystander(rig)
    peer = Peer.open(rig)
    assert peer.say(ack(1), ack(0xFFFFFFFF), ack(0)) == []
    assert not peer.closed
    assert peer.side.acked_bytes == 0x100000000
    undisturbed()


def test_an_ack_is_not_answered_even_if_it_wakes(rig: Rig) -> None:
    fill(rig, 0, 5)
    peer = limited(rig, 44)
    assert kinds(peer.stream(0)) == [MARKER]
    frames = peer.say(ack(44))
    assert frames
    assert not any(each.is_reply for each in frames)


def test_the_size_may_be_changed_later(rig: Rig) -> None:
    fill(rig, 0, 50)
    peer = limited(rig, 44)
    assert kinds(peer.stream(0)) == [MARKER]
    frames = peer.say(control(BUFFER, b"200"))
    assert (frames[0].is_reply, frames[0].status) == (True, OK)
    assert 200 <= 44 + counted(frames) < 200 + 70
    assert peer.say(control(BUFFER, b"100"))[1:] == []
    assert peer.say(ack(100))[0:] == [] or peer.side.feed.unacked_bytes >= 100
    peer.say(control(BUFFER, b"0"))
    assert check_stream(of(peer, 0)) == 50


def test_an_end_of_a_stream_counts_and_waits(rig: Rig) -> None:
    peer = limited(rig, 28)
    (end,) = peer.stream(0, 0, 0)
    assert (end.opcode, end.size) == (STREAM_END, 28)
    assert peer.side.feed.unacked_bytes == 28
    assert peer.stream(1, 0, 0) == []
    (waited,) = peer.say(ack(1))
    assert (waited.opcode, waited.vbucket) == (STREAM_END, 1)


def test_a_takeovers_state_counts(rig: Rig) -> None:
    peer = limited(rig, 1_000)
    (state,) = peer.stream(0, 0, flags=TAKEOVER)
    assert (state.opcode, peer.side.feed.unacked_bytes) == (0x5B, 25)


def test_replies_and_keep_alives_do_not_count_and_are_not_held_back(rig: Rig) -> None:
    fill(rig, 0, 5)
    peer = limited(rig, 44, enable_noop=b"true", set_noop_interval=b"1")
    peer.stream(0)
    out = peer.side.feed.unacked_bytes
    peer.session.tick(1.0)
    peer.session.tick(2.5)
    assert kinds(peer.drain()) == [NOOP]
    assert peer.ask(frame(0x54)).status == OK
    assert peer.ask(frame(CLOSE_STREAM)).status == OK
    assert peer.side.feed.unacked_bytes == out


def test_our_own_frames_count_too(rig: Rig) -> None:
    write(rig, 0, b"k")
    peer = limited(
        rig, 10_000, uprmc_rounds=b"true", uprmc_barrier=b"true", uprmc_snapshot_end=b"true"
    )
    frames = peer.stream(0)
    frames += peer.say(frame(0xE8, key=b"cookie"))[1:]
    assert kinds(frames) == [
        PARTITION_START,
        MARKER,
        MUTATION,
        SNAPSHOT_END,
        ROUND_COMPLETE,
        BARRIER_REACHED,
    ]
    assert peer.side.feed.unacked_bytes == sum(each.size for each in frames)


def test_a_stalled_connection_costs_no_memory_for_its_items(rig: Rig) -> None:
    peer = limited(rig, 44)
    peer.stream(0)
    for n in range(1_000):
        write(rig, 0, b"same", value=b"%d" % n)
        peer.drain()
    assert rig.bucket.vbuckets[0].queue.retired <= 1
    assert len(peer.side.feed._frames) == 0


def test_other_connections_are_not_held_back(rig: Rig) -> None:
    undisturbed = bystander(rig)
    fill(rig, 0, 100)
    limited(rig, 44).stream(0)
    undisturbed()


def test_ends_that_nobody_takes_are_limited(rig: Rig) -> None:
    """A peer whose buffer is full can cause frames that wait; not any number of them."""
    peer = limited(rig, 1)
    peer.stream(0, 0, 0)
    statuses = [peer.ask(stream_request(0, 0, 0)).status for _ in range(4_100)]
    assert statuses[:4_096] == [OK] * 4_096
    assert set(statuses[4_096:]) == {0x86}
    assert len(peer.side.feed._frames) == 4_096
    peer.say(control(BUFFER, b"0"))
    assert len(only(peer.received, STREAM_END)) == 4_097
    assert peer.say(stream_request(0, 0, 0))[0].status == OK


def test_cookies_that_nobody_takes_are_limited() -> None:
    rig = upr_rig(upr__barriers=10)
    peer = limited(rig, 1, uprmc_barrier=b"true")
    peer.stream(0)
    write(rig, 0, b"k")
    assert kinds(peer.drain()) == [MARKER]
    statuses = [peer.ask(frame(0xE8, key=b"c%d" % n)).status for n in range(12)]
    assert statuses == [OK] * 10 + [0x86] * 2
    for n in range(50):
        peer.say(ack(1_000))
        peer.say(*(frame(0xE8, key=b"d%d.%d" % (n, each)) for each in range(5)))
        assert len(peer.side.feed._frames) <= 10
    peer.say(control(BUFFER, b"0"))
    returned = [each.key for each in only(peer.received, BARRIER_REACHED)]
    assert returned[:10] == [b"c%d" % n for n in range(10)]
    assert len(returned) == len(set(returned))


def test_marker_answers_of_the_peer_do_not_count(rig: Rig) -> None:
    write(rig, 0, b"k")
    peer = limited(rig, 1_000)
    peer.stream(0, 0, flags=TAKEOVER, opaque=5)
    out = peer.side.feed.unacked_bytes
    peer.send(response(MARKER, opaque=77))
    assert peer.side.feed.unacked_bytes == out
