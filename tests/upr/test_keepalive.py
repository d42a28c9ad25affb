"""Keep-alives: when one goes out, and when a peer is given up.

Source: UPR reference 2.11, 4.7.
"""

from __future__ import annotations

import pytest

from tests.server.support import Node
from tests.upr.peer import (
    NOOP,
    OK,
    Peer,
    Rig,
    control,
    fill,
    frame,
    kinds,
    opening,
    response,
    seqnos,
    stream_request,
    untouched,
    upr_rig,
    write,
)
from uprmc.kv.session import Negotiation

T0 = 5_000.0


@pytest.fixture
def rig() -> Rig:
    return upr_rig()


def alive(rig: Rig, interval: bytes = b"20") -> Peer:
    peer = Peer.open(rig)
    peer.controls(enable_noop=b"true", set_noop_interval=interval)
    peer.session.tick(T0)
    return peer


def at(peer: Peer, seconds: float) -> list[int]:
    """Pass the time on; return what comes."""
    peer.session.tick(T0 + seconds)
    return kinds(peer.drain())


def test_no_keep_alive_is_sent_unasked(rig: Rig) -> None:
    peer = Peer.open(rig)
    for seconds in range(0, 100_000, 100):
        assert at(peer, seconds) == []
    assert not peer.closed


def test_a_keep_alive_goes_out_after_an_interval_without_a_frame(rig: Rig) -> None:
    peer = alive(rig)
    assert at(peer, 19.9) == []
    assert at(peer, 20.0) == [NOOP]
    probe = peer.received[-1]
    assert (probe.is_reply, probe.size) == (False, 24)
    assert at(peer, 30.0) == [], "one at a time"


def test_an_answered_keep_alive_is_followed_by_the_next(rig: Rig) -> None:
    peer = alive(rig)
    for n in range(1, 6):
        assert at(peer, 20.0 * n) == [NOOP]
        assert peer.say(response(NOOP, opaque=peer.received[-1].opaque)) == []
        assert at(peer, 20.0 * n + 19.0) == []
    assert not peer.closed


def test_a_peer_that_does_not_answer_for_another_interval_is_given_up(rig: Rig) -> None:
    fill(rig, 0, 3)
    peer = alive(rig)
    peer.stream(0)
    at(peer, 1.0)
    assert at(peer, 21.0) == [NOOP]
    assert at(peer, 40.9) == []
    assert not peer.closed
    assert at(peer, 41.0) == []
    assert peer.closed
    assert rig.bucket.stats.upr_dead == 1
    assert at(peer, 99.0) == []
    assert rig.bucket.stats.upr_dead == 1, "a peer dies once"
    assert rig.misuse == []
    peer.lose()
    untouched(rig)


def test_frames_put_the_next_keep_alive_off(rig: Rig) -> None:
    peer = alive(rig)
    peer.stream(0)
    for n in range(10):
        write(rig, 0, b"%d" % n)
        assert NOOP not in at(peer, 15.0 * n)
        peer.drain()
    assert at(peer, 15.0 * 9 + 15) == []
    assert NOOP in at(peer, 15.0 * 9 + 36)


def test_frames_are_no_answer(rig: Rig) -> None:
    peer = alive(rig)
    peer.stream(0)
    assert at(peer, 20.0) == [NOOP]
    for n in range(4):
        write(rig, 0, b"%d" % n)
        at(peer, 24.0 + 4 * n)
    assert not peer.closed
    at(peer, 41.0)
    assert peer.closed


def test_other_traffic_of_the_peer_is_no_answer_either(rig: Rig) -> None:
    """The peer owes an answer to the keep-alive; reference 4.7."""
    peer = alive(rig)
    assert at(peer, 20.0) == [NOOP]
    assert peer.ask(frame(0x54)).status == OK
    at(peer, 41.0)
    assert peer.closed


def test_a_stalled_connection_is_kept_alive(rig: Rig) -> None:
    fill(rig, 0, 9)
    peer = alive(rig)
    peer.controls(connection_buffer_size=b"44")
    peer.stream(0)
    at(peer, 0.0)
    assert at(peer, 20.0) == [NOOP]
    peer.say(response(NOOP))
    assert at(peer, 40.0) == [NOOP]
    assert seqnos(peer.received) == []


def test_the_default_interval_is_the_servers(rig: Rig) -> None:
    peer = Peer.open(rig)
    peer.controls(enable_noop=b"true")
    peer.session.tick(T0)
    assert at(peer, 179.9) == []
    assert at(peer, 180.0) == [NOOP]


def test_an_interval_alone_enables_nothing(rig: Rig) -> None:
    peer = Peer.open(rig)
    peer.controls(set_noop_interval=b"1")
    assert at(peer, 0) == at(peer, 100) == []


def test_who_takes_keep_alives_back_owes_no_answer(rig: Rig) -> None:
    peer = alive(rig)
    assert at(peer, 20.0) == [NOOP]
    peer.controls(enable_noop=b"false")
    assert at(peer, 100.0) == []
    assert not peer.closed
    peer.controls(enable_noop=b"true")
    assert at(peer, 101.0) == []
    assert at(peer, 121.0) == [NOOP]
    assert not peer.closed


def test_a_keep_alive_of_the_peer_is_answered(rig: Rig) -> None:
    answer = Peer.open(rig).ask(frame(NOOP, opaque=0x77))
    assert (answer.opcode, answer.status, answer.opaque) == (NOOP, OK, 0x77)


def test_a_consumer_gives_up_a_producer_that_is_silent_for_two_intervals(rig: Rig) -> None:
    from uprmc.model import VBucketState

    rig.bucket.set_state(0, VBucketState.REPLICA)
    peer = Peer.open(rig, b"replica", 0)
    at(peer, 0.0)
    assert at(peer, 100_000.0) == [], "before its first stream nothing is expected"
    assert not peer.closed
    peer.say(frame(0x51, extras=bytes(4), opaque=1))
    at(peer, 100_000.0)
    at(peer, 100_359.0)
    assert peer.say(frame(NOOP, opaque=5))[0].status == OK
    at(peer, 100_360.0)
    at(peer, 100_720.0)
    assert not peer.closed
    at(peer, 100_721.0)
    assert peer.closed
    assert rig.bucket.stats.upr_dead == 1


def test_a_dead_peer_whose_socket_is_full_is_cut_off(rig: Rig) -> None:
    """Its keep-alive was never taken either; waiting for it to take the rest would be for ever."""
    fill(rig, 0, 5_000, b"x" * 200)
    node = Node(lambda wake: Negotiation(rig.services, wake, by_key=False))
    protocol = node.connect()
    protocol.dataReceived(
        opening() + control(b"enable_noop", b"true") + control(b"set_noop_interval", b"20")
    )
    protocol.tick(node.clock.seconds())
    protocol.dataReceived(stream_request(0))
    for _ in range(100):
        node.turn()
    assert node.states() == ["output-full"]
    for _ in range(75):
        node.clock.advance(1.0)
        protocol.tick(node.clock.seconds())
    assert rig.bucket.stats.upr_dead == 1
    assert protocol.transport.aborted
    protocol.connectionLost()
    untouched(rig)
