"""Barrier cookies as frames: limits, order, both ways of counting.

Source: seed 000 "Barrier cookies"; UPR reference 7; rows D34 to D38.
"""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.upr.peer import (
    BARRIER_ADD,
    BARRIER_REACHED,
    CLOSE_STREAM,
    DEAD,
    EXISTS,
    INVALID,
    LATER,
    NOT_FOUND,
    OK,
    PARTITION_START,
    ROUND_COMPLETE,
    TOO_BIG,
    UNKNOWN,
    Frame,
    Peer,
    Rig,
    bystander,
    control,
    fill,
    frame,
    items,
    kinds,
    only,
    stream_request,
    upr_rig,
    write,
)

ROUNDS = [False, True]


@pytest.fixture
def rig() -> Rig:
    return upr_rig()


def with_barriers(rig: Rig, *, rounds: bool, name: bytes = b"idx:1", vbuckets: int = 4) -> Peer:
    peer = Peer.open(rig, name)
    peer.controls(uprmc_barrier=b"true")
    if rounds:
        peer.controls(uprmc_rounds=b"true")
    for number in range(vbuckets):
        peer.stream(number, rig.bucket.vbuckets[number].high_seqno)
    return peer


def cookie(text: bytes, opaque: int = 0) -> bytes:
    return frame(BARRIER_ADD, key=text, opaque=opaque)


def returned(frames: list[Frame]) -> list[bytes]:
    return [each.key for each in only(frames, BARRIER_REACHED)]


@pytest.mark.acceptance("D38")
@pytest.mark.parametrize("rounds", ROUNDS)
def test_with_nothing_to_send_a_cookie_returns_at_once(rig: Rig, rounds: bool) -> None:
    peer = with_barriers(rig, rounds=rounds)
    peer.send(cookie(b"now", 0x77))
    answer, reached = peer.turn()
    assert (answer.opcode, answer.status, answer.opaque) == (BARRIER_ADD, OK, 0x77)
    assert len(answer.extras) == 8
    assert (reached.opcode, reached.key, reached.opaque) == (BARRIER_REACHED, b"now", 0x77)
    assert (reached.cycle, reached.frames) == (0, 0)
    assert len(peer.side.feed.barriers) == 0


@pytest.mark.acceptance("D36")
@pytest.mark.parametrize("rounds", ROUNDS)
def test_what_was_written_before_a_cookie_is_sent_before_it_returns(rig: Rig, rounds: bool) -> None:
    peer = with_barriers(rig, rounds=rounds)
    for number in (0, 2, 3):
        fill(rig, number, 10, b"x" * 1_000)
    peer.send(cookie(b"after all"))
    peer.turn(4_000)
    assert len(peer.side.feed.barriers) == 1
    assert returned(peer.received) == []
    write(rig, 1, b"later")
    peer.drain()
    place = kinds(peer.received).index(BARRIER_REACHED)
    before = items(peer.received[:place])
    for number in (0, 2, 3):
        assert [each.seqno for each in before if each.vbucket == number] == list(range(1, 11))
    assert len(peer.side.feed.barriers) == 0


@pytest.mark.acceptance("D37")
def test_a_cookie_that_comes_within_a_snapshot_waits_until_that_vbucket_was_passed_again(
    rig: Rig,
) -> None:
    peer = with_barriers(rig, rounds=True)
    fill(rig, 1, 20, b"x" * 500)
    write(rig, 3, b"k")
    peer.turn(3_000)
    assert [f.vbucket for f in only(peer.received, PARTITION_START)] == [1]
    write(rig, 1, b"behind the snapshot")
    (answer, *_) = peer.say(cookie(b"c"))
    assert answer.extras == bytes.fromhex("00000000 0001 0000"), "cycle 0, vBucket 1"
    frames = [each for each in peer.received if not each.is_reply]
    shown = [
        each.opcode if each.opcode != PARTITION_START else (each.cycle, each.vbucket)
        for each in frames
        if each.opcode in (PARTITION_START, ROUND_COMPLETE, BARRIER_REACHED)
    ]
    assert shown.index(BARRIER_REACHED) > shown.index((1, 1))
    assert shown[:4] == [(0, 1), (0, 3), ROUND_COMPLETE, (1, 1)]


def test_a_cookie_tells_the_cycle_and_how_many_frames_have_come_since(rig: Rig) -> None:
    peer = with_barriers(rig, rounds=True)
    write(rig, 0, b"k")
    peer.drain()
    fill(rig, 1, 3)
    frames = peer.say(cookie(b"c"))
    place = kinds(frames).index(BARRIER_REACHED)
    assert frames[place].frames == place - 1, "all but the answer"
    assert frames[place].cycle in (1, 2)


@pytest.mark.acceptance("D35")
@pytest.mark.parametrize("rounds", ROUNDS)
@settings(max_examples=20)
@given(seed=st.integers(0, 2**32))
def test_many_cookies_return_in_the_order_in_which_they_came(rounds: bool, seed: int) -> None:
    rig, random = upr_rig(), Random(seed)
    peer = with_barriers(rig, rounds=rounds)
    sent: list[bytes] = []
    written = dict.fromkeys(range(4), 0)
    due: dict[bytes, dict[int, int]] = {}
    for _ in range(100):
        for _ in range(random.randrange(3)):
            number = random.randrange(4)
            written[number] = write(rig, number, b"%d" % random.randrange(4))
        if random.random() < 0.5:
            peer.turn(random.randrange(1, 500))
        text = b"cookie %d" % len(sent)
        sent.append(text)
        due[text] = dict(written)
        peer.send(cookie(text))
    peer.drain()
    assert returned(peer.received) == sent
    assert len(peer.side.feed.barriers) == 0
    held = dict.fromkeys(range(4), 0)
    for each in peer.received:
        if not each.is_reply and each.opcode in (0x57, 0x58):
            held[each.vbucket] = each.seqno
        elif each.opcode == BARRIER_REACHED:
            assert all(held[n] >= seqno for n, seqno in due[each.key].items())


@pytest.mark.acceptance("D34")
@pytest.mark.parametrize(
    ("text", "status"),
    [(b"c", OK), (b"c" * 128, OK), (b"c" * 129, TOO_BIG), (b"c" * 250, TOO_BIG), (b"", INVALID)],
)
def test_a_cookie_has_1_to_128_bytes(rig: Rig, text: bytes, status: int) -> None:
    peer = with_barriers(rig, rounds=False)
    assert peer.say(cookie(text))[0].status == status
    assert not peer.closed


@pytest.mark.acceptance("D34")
@pytest.mark.parametrize("rounds", ROUNDS)
def test_a_cookie_is_unique_among_the_pending_ones_of_its_connection(
    rig: Rig, rounds: bool
) -> None:
    undisturbed = bystander(rig)
    peer = with_barriers(rig, rounds=rounds)
    other = with_barriers(rig, rounds=rounds, name=b"other")
    write(rig, 0, b"k")
    peer.send(cookie(b"same"), cookie(b"same"))
    other.send(cookie(b"same"))
    statuses = [each.status for each in peer.drain() if each.is_reply]
    assert statuses == [OK, EXISTS]
    assert [each.status for each in other.drain() if each.is_reply] == [OK]
    assert returned(peer.received) == returned(other.received) == [b"same"]
    assert peer.say(cookie(b"same"))[0].status == OK, "it has been forgotten"
    undisturbed()


@pytest.mark.parametrize("rounds", ROUNDS)
def test_cookies_beyond_the_limit_are_for_later(rounds: bool) -> None:
    rig = upr_rig(upr__barriers=3)
    peer = with_barriers(rig, rounds=rounds)
    write(rig, 0, b"k")
    peer.send(*(cookie(b"%d" % n) for n in range(4)))
    frames = peer.drain()
    assert [each.status for each in frames if each.is_reply] == [OK, OK, OK, LATER]
    assert returned(frames) == [b"0", b"1", b"2"]
    assert peer.say(cookie(b"3"))[0].status == OK


@pytest.mark.parametrize("rounds", ROUNDS)
def test_without_a_stream_no_cookie_is_taken(rig: Rig, rounds: bool) -> None:
    peer = with_barriers(rig, rounds=rounds, vbuckets=0)
    assert peer.ask(cookie(b"c")).status == NOT_FOUND


def test_without_negotiation_a_cookie_is_an_unknown_command(rig: Rig) -> None:
    undisturbed = bystander(rig)
    peer = Peer.open(rig)
    peer.stream(0)
    assert peer.ask(cookie(b"c")).status == UNKNOWN
    assert Peer(rig).ask(cookie(b"c")).status == UNKNOWN
    assert Peer.open(rig, b"consumer", 0).ask(cookie(b"c")).status == UNKNOWN
    assert not peer.closed
    undisturbed()


def test_negotiation_can_be_taken_back(rig: Rig) -> None:
    peer = with_barriers(rig, rounds=False)
    peer.controls(uprmc_barrier=b"false")
    assert peer.ask(cookie(b"c")).status == UNKNOWN
    assert peer.ask(control(b"uprmc_barrier", b"yes")).status == INVALID


@pytest.mark.parametrize("rounds", ROUNDS)
@pytest.mark.parametrize("how", ["closed", "ended"])
def test_a_cookie_does_not_wait_for_a_stream_that_is_gone(rig: Rig, rounds: bool, how: str) -> None:
    peer = with_barriers(rig, rounds=rounds)
    fill(rig, 1, 30, b"x" * 500)
    peer.send(cookie(b"c"))
    peer.turn(2_000)
    assert returned(peer.received) == []
    if how == "closed":
        peer.say(frame(CLOSE_STREAM, vbucket=1))
    else:
        rig.bucket.set_state(1, DEAD)
        peer.drain()
    assert returned(peer.received) == [b"c"]


@pytest.mark.parametrize("rounds", ROUNDS)
def test_cookies_of_the_last_stream_return_when_it_is_closed(rig: Rig, rounds: bool) -> None:
    peer = with_barriers(rig, rounds=rounds, vbuckets=1)
    write(rig, 0, b"k")
    frames = peer.say(cookie(b"c"), frame(CLOSE_STREAM), control(b"uprmc_rounds", b"true"))
    assert [each.status for each in frames if each.is_reply] == [OK, OK, OK]
    assert returned(frames) == [b"c"]


def test_a_stream_that_is_opened_later_is_not_waited_for(rig: Rig) -> None:
    hub = rig.services.upr
    peer = with_barriers(rig, rounds=False, vbuckets=2)
    fill(rig, 3, 5)
    rig.flush()
    hub.backfills.used = hub.backfills.limit
    write(rig, 0, b"k")
    peer.say(cookie(b"c"), stream_request(3))
    assert returned(peer.received) == [b"c"]


@pytest.mark.parametrize("rounds", ROUNDS)
def test_a_cookie_waits_for_a_backfill_that_has_not_begun(rig: Rig, rounds: bool) -> None:
    hub = rig.services.upr
    fill(rig, 1, 5)
    rig.flush()
    hub.backfills.used = hub.backfills.limit
    peer = Peer.open(rig)
    peer.controls(uprmc_barrier=b"true")
    if rounds:
        peer.controls(uprmc_rounds=b"true")
    peer.stream(1)
    peer.say(cookie(b"c"))
    assert returned(peer.received) == []
    hub.backfills.free(lambda: False)
    peer.drain()
    assert returned(peer.received) == [b"c"]
    assert len(items(peer.received)) == 5


def test_frames_that_only_we_send_are_unknown_commands_from_a_peer(rig: Rig) -> None:
    peer = with_barriers(rig, rounds=True)
    for opcode, extras, key in (
        (BARRIER_REACHED, bytes(8), b"c"),
        (PARTITION_START, bytes(20), b""),
        (ROUND_COMPLETE, bytes(12), b""),
        (0xEC, bytes(12), b""),
    ):
        assert peer.ask(frame(opcode, extras=extras, key=key)).status == UNKNOWN
    assert not peer.closed


@pytest.mark.acceptance("D36", "D37")
def test_a_cookie_waits_for_a_stream_that_was_closed_in_its_turn_and_asked_for_again() -> None:
    """It is served in the next round only, and the cookie must not count this one for it."""
    rig = upr_rig(engine__vbuckets=4, upr__backfills=1)
    for number in (1, 2):
        fill(rig, number, 10)
    rig.flush()
    other = Peer.open(rig, b"holds the permit")
    other.send(stream_request(2))
    other.turn(100)
    peer = Peer.open(rig)
    peer.controls(uprmc_barrier=b"true", uprmc_rounds=b"true")
    peer.say(stream_request(1))  # its turn, and nothing may be sent
    peer.say(frame(CLOSE_STREAM, vbucket=1), stream_request(1), cookie(b"c"))
    assert returned(peer.received) == []
    other.drain()
    peer.drain(100)  # little by little: a cookie too early would overtake the items
    place = kinds(peer.received).index(BARRIER_REACHED)
    assert [each.seqno for each in items(peer.received[:place])] == list(range(1, 11))
