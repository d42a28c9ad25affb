"""OPEN: names, flags, the second connection of a name, and what a closed one leaves behind.

Source: UPR reference 2.1, 2.5, 8; row D32.
"""

from __future__ import annotations

import gc
import struct

import pytest

from tests.upr.peer import (
    CONTROL,
    DELETION,
    EXISTS,
    FAILOVER_LOG,
    HELLO,
    INVALID,
    MUTATION,
    NOT_FOUND,
    NOTIFIER,
    OK,
    OPEN,
    PRODUCER,
    STREAM_END,
    STREAM_REQUEST,
    TAKEOVER,
    Peer,
    Rig,
    ack,
    bystander,
    control,
    fill,
    frame,
    hello,
    items,
    marked,
    opening,
    response,
    seqnos,
    stream_request,
    untouched,
    upr_rig,
    write,
)
from uprmc.upr.consumer import Consumer
from uprmc.upr.producer import Producer


@pytest.fixture
def rig() -> Rig:
    return upr_rig()


def test_an_open_is_answered_with_its_opaque(rig: Rig) -> None:
    peer = Peer(rig)
    (answer,) = peer.say(opening(opaque=0xDEADBEEF))
    assert (answer.opcode, answer.status, answer.opaque) == (OPEN, OK, 0xDEADBEEF)
    assert (answer.extras, answer.key, answer.value) == (b"", b"", b"")


@pytest.mark.parametrize(
    ("flags", "side", "notifies"),
    [(0, Consumer, None), (1, Producer, False), (2, Producer, True), (3, Producer, False)],
)
def test_the_flags_say_what_we_are(rig: Rig, flags: int, side: type, notifies: bool | None) -> None:
    peer = Peer.open(rig, b"any", flags)
    assert type(peer.side) is side
    if notifies is not None:
        assert peer.side.is_notifier is notifies


def test_an_empty_name_is_refused_and_the_connection_stays_as_it_was(rig: Rig) -> None:
    peer = Peer(rig)
    assert peer.ask(opening(b"")).status == INVALID
    assert not peer.closed
    assert peer.ask(opening(b"now")).status == OK


def test_a_name_of_200_bytes_is_the_longest(rig: Rig) -> None:
    assert Peer(rig).ask(opening(b"n" * 200)).status == OK
    assert Peer(rig).ask(opening(b"n" * 201)).status == INVALID


@pytest.mark.parametrize("bit", [0x10, 0x100, 0x200, 0x80000000])
def test_unknown_flags_are_ignored_for_peers_of_2014_and_refused_to_those_of_today(
    rig: Rig, bit: int
) -> None:
    assert Peer(rig).ask(opening(b"old", PRODUCER | bit)).status == OK
    _, answer = Peer(rig).say(hello(), opening(b"new", PRODUCER | bit))
    assert answer.status == INVALID


def test_the_notifier_bit_is_accepted_from_everybody(rig: Rig) -> None:
    _, answer = Peer(rig).say(hello(), opening(b"new", NOTIFIER))
    assert answer.status == OK


def test_the_json_value_of_an_open_is_ignored(rig: Rig) -> None:
    extras = struct.pack(">II", 0, 0)
    asked = frame(OPEN, key=b"c", extras=extras, value=b'{"consumer_name":"x"}')
    assert Peer(rig).ask(asked).status == OK


def test_a_newer_connection_of_the_same_name_takes_it(rig: Rig) -> None:
    fill(rig, 0, 3)
    first = Peer.open(rig, b"same")
    first.stream(0, 3)
    wakes = first.wakes
    second = Peer.open(rig, b"same")
    assert first.wakes > wakes, "the older one is to be looked at at once"
    assert first.turn() == []
    assert first.closed
    assert not second.closed
    assert seqnos(second.stream(0)) == [1, 2, 3]
    assert rig.misuse == [], "taking a name is nobody's fault"
    assert rig.services.upr.producers[b"same"] is second.side
    first.lose()
    assert rig.services.upr.producers[b"same"] is second.side


@pytest.mark.parametrize("flags", [(0, PRODUCER), (PRODUCER, 0), (0, 0), (NOTIFIER, 0)])
def test_a_name_is_used_once_among_all_kinds_of_connections(
    rig: Rig, flags: tuple[int, int]
) -> None:
    first = Peer.open(rig, b"same", flags[0])
    second = Peer.open(rig, b"same", flags[1])
    first.turn()
    assert first.closed
    assert not second.closed
    first.lose()
    second.lose()
    untouched(rig)


def test_another_name_disturbs_nobody(rig: Rig) -> None:
    first, _ = Peer.open(rig, b"a"), Peer.open(rig, b"b")
    first.turn()
    assert not first.closed


def test_a_second_open_closes_the_connection_without_an_answer(rig: Rig) -> None:
    undisturbed = bystander(rig)
    peer = Peer.open(rig)
    assert peer.say(opening(b"other")) == []
    assert peer.closed
    assert len(rig.misuse) == 1
    undisturbed()


def test_what_is_pipelined_behind_an_open_is_heard(rig: Rig) -> None:
    fill(rig, 0, 2)
    frames = Peer(rig).say(
        opening(), control(b"connection_buffer_size", b"1000"), stream_request(opaque=7)
    )
    assert [each.opcode for each in frames[:3]] == [OPEN, CONTROL, STREAM_REQUEST]
    assert seqnos(frames) == [1, 2]


def test_frames_arriving_byte_by_byte_mean_the_same(rig: Rig) -> None:
    fill(rig, 0, 2)
    peer = Peer(rig)
    for byte in opening() + stream_request(opaque=7) + ack(1):
        peer.send(bytes([byte]))
        peer.drain()
    assert [each.opcode for each in peer.received[:2]] == [OPEN, STREAM_REQUEST]
    assert seqnos(peer.received) == [1, 2]


def test_ordinary_commands_go_on_after_an_open(rig: Rig) -> None:
    peer = Peer.open(rig)
    put = frame(0x01, key=b"k", value=b"v", extras=bytes(8), vbucket=2)
    assert peer.ask(put).status == OK
    assert peer.ask(frame(0x00, key=b"k", vbucket=2)).value == b"v"
    assert peer.ask(frame(0x00, key=b"none", vbucket=2)).status == NOT_FOUND


@pytest.mark.parametrize("greeted", [False, True])
def test_a_failover_log_before_open_is_for_peers_of_today(rig: Rig, greeted: bool) -> None:
    undisturbed = bystander(rig)
    peer = Peer(rig)
    if greeted:
        assert peer.ask(hello()).opcode == HELLO
        answer = peer.ask(frame(FAILOVER_LOG, vbucket=1))
        assert answer.log == [tuple(rig.bucket.vbuckets[1].failover_log[0])]
        assert not peer.closed
    else:
        assert peer.say(frame(FAILOVER_LOG, vbucket=1)) == []
        assert peer.closed
        assert len(rig.misuse) == 1
    undisturbed()


def busy(rig: Rig, name: bytes = b"busy") -> Peer:
    """A connection with one of everything: streams, a held reading, a cookie, a lease's reader."""
    for number in range(4):
        fill(rig, number, 40, b"x" * 1_000)
    rig.flush()
    write(rig, 1, b"queued")
    peer = Peer.open(rig, name)
    peer.controls(uprmc_barrier=b"true", uprmc_leases=b"true", connection_buffer_size=b"9000")
    grant = peer.ask(frame(0xE4, extras=struct.pack(">I", 60)))
    lease = grant.extras[:8].hex()
    peer.send(stream_request(0), stream_request(1), stream_request(2, flags=TAKEOVER))
    peer.send(stream_request(3, value={"lease": lease}))
    peer.send(frame(0xE8, key=b"cookie"))
    peer.drain()
    assert items(peer.received)
    assert peer.side.feed.readings.from_disk >= 2
    assert len(peer.side.feed.barriers) == 1
    return peer


@pytest.mark.acceptance("D32")
def test_a_lost_connection_leaves_nothing_behind(rig: Rig) -> None:
    peer = busy(rig)
    peer.lose()
    hub = rig.services.upr
    assert [lease.readers for lease in hub.leases.open.values()] == [{}]
    hub.leases.release_views()
    untouched(rig)


def test_a_connection_that_is_closed_for_misuse_leaves_nothing_behind_either(rig: Rig) -> None:
    peer = busy(rig)
    peer.send(opening(b"again"))
    assert peer.closed
    peer.lose()
    rig.services.upr.leases.release_views()
    untouched(rig)


def test_losing_a_connection_twice_is_harmless(rig: Rig) -> None:
    peer = busy(rig)
    session = peer.session
    peer.lose()
    session.connection_lost()
    write(rig, 0, b"later")
    session.receive_data(stream_request(0))
    assert session.data_to_send(1_000) == []
    rig.services.upr.leases.release_views()
    untouched(rig)


@pytest.mark.parametrize("how", ["lost", "streamed", "consumer", "failed"])
def test_nothing_is_left_for_the_cyclic_collector(rig: Rig, how: str) -> None:
    gc.collect()
    gc.disable()
    try:
        if how == "lost":
            busy(rig).lose()
            rig.services.upr.leases.release_views()
        elif how == "streamed":
            fill(rig, 0, 5)
            peer = Peer.open(rig)
            assert peer.stream(0, 0, 5)[-1].opcode == STREAM_END
            peer.lose()
            del peer
        elif how == "consumer":
            rig.bucket.create(3, rig.bucket.vbuckets[3].state.__class__.REPLICA)
            peer = Peer.open(rig, flags=0)
            peer.say(frame(0x51, extras=bytes(4), vbucket=3, opaque=5))
            peer.say(response(STREAM_REQUEST, opaque=3, value=struct.pack(">QQ", 9, 0)))
            peer.lose()
            del peer
        else:
            fill(rig, 0, 50, b"x" * 1_000)
            rig.flush()
            peer = Peer.modern(rig)
            peer.send(stream_request(0))
            peer.turn()
            next(iter(rig.store._views)).close()
            assert peer.drain()[-1].opcode == STREAM_END
            peer.lose()
            del peer
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        left = [
            each
            for each in gc.garbage
            if type(each).__module__.startswith(
                ("uprmc.upr", "uprmc.kv", "uprmc.engine", "tests.upr")
            )
        ]
        traces = [each for each in gc.garbage if isinstance(each, BaseException)]
        assert left == []
        assert traces == []
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def test_deletions_come_in_the_form_that_the_open_asked_for(rig: Rig) -> None:
    write(rig, 0, b"gone")
    rig.bucket.vbuckets[0].delete(b"gone")
    plain, timed = Peer.open(rig, b"plain"), Peer.open(rig, b"timed", PRODUCER | 0x20)
    (short,), (long,) = items(plain.stream(0)), items(timed.stream(0))
    assert (short.opcode, len(short.extras)) == (DELETION, 18)
    assert (long.opcode, len(long.extras)) == (DELETION, 21)
    assert long.deleted_at == int(rig.clock.time)


@pytest.mark.parametrize("flag", [0x08, 0x40])
def test_values_stay_away_when_the_open_says_so(rig: Rig, flag: int) -> None:
    write(rig, 0, b"k", value=b"long")
    frames = Peer.open(rig, b"no values", PRODUCER | flag).stream(0)
    (item,) = items(frames)
    assert (item.opcode, item.key, item.value) == (MUTATION, b"k", b"")
    assert marked(frames)[0][1] == 1


def test_misuse_is_reported_once_for_each_connection(rig: Rig) -> None:
    peer = Peer.open(rig)
    peer.send(opening(), opening(), frame(0x51, extras=bytes(4)))
    peer.drain()
    peer.send(opening())
    assert len(rig.misuse) == 1


def test_a_stream_is_open_once(rig: Rig) -> None:
    peer = Peer.open(rig)
    peer.stream(0)
    assert peer.ask(stream_request(0)).status == EXISTS
