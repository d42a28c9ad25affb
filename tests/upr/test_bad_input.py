"""Bad input: the status or the disconnect that the reference names, and nobody else notices.

Each wrong frame is sent on a connection beside a bystander, who goes on. A connection that is
closed is reported once; one that is not goes on to serve.

Source: UPR reference 1.1, 2, 8.
"""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.upr.peer import (
    ADD_STREAM,
    BARRIER_ADD,
    BUFFER_ACK,
    CLOSE_STREAM,
    CONTROL,
    DELETION,
    EXPIRATION,
    FAILOVER_LOG,
    FLUSH,
    HEADER,
    INVALID,
    LEASE_ACQUIRE,
    LEASE_RELEASE,
    LEASE_RENEW,
    MARKER,
    MUTATION,
    NOOP,
    NOTIFIER,
    OK,
    OPEN,
    PRODUCER,
    SEQNO_ACKNOWLEDGED,
    SET_STATE,
    STREAM_END,
    STREAM_REQUEST,
    UNKNOWN,
    Peer,
    Rig,
    ack,
    bystander,
    control,
    fill,
    frame,
    hello,
    opening,
    response,
    seqnos,
    stream_request,
    untouched,
    upr_rig,
)

#: A well-formed frame of each opcode.
WELL_FORMED = {
    OPEN: opening(b"n"),
    ADD_STREAM: frame(ADD_STREAM, extras=bytes(4)),
    CLOSE_STREAM: frame(CLOSE_STREAM),
    STREAM_REQUEST: stream_request(),
    FAILOVER_LOG: frame(FAILOVER_LOG),
    STREAM_END: frame(STREAM_END, extras=bytes(4)),
    MARKER: frame(MARKER, extras=bytes(20)),
    MUTATION: frame(MUTATION, extras=bytes(31), key=b"k", value=b"v"),
    DELETION: frame(DELETION, extras=bytes(18), key=b"k"),
    EXPIRATION: frame(EXPIRATION, extras=bytes(18), key=b"k"),
    FLUSH: frame(FLUSH),
    SET_STATE: frame(SET_STATE, extras=b"\x01"),
    NOOP: frame(NOOP),
    BUFFER_ACK: frame(BUFFER_ACK, extras=bytes(4)),
    CONTROL: control(b"enable_noop", b"true"),
    SEQNO_ACKNOWLEDGED: frame(SEQNO_ACKNOWLEDGED, extras=bytes(8)),
}

#: Who may send what, reference 2.
TO_PRODUCER = {
    CLOSE_STREAM, STREAM_REQUEST, FAILOVER_LOG, BUFFER_ACK, CONTROL, NOOP, SEQNO_ACKNOWLEDGED,
}  # fmt: skip
TO_CONSUMER = {
    ADD_STREAM, CLOSE_STREAM, STREAM_END, MARKER, MUTATION, DELETION, EXPIRATION, FLUSH, SET_STATE,
    NOOP,
}  # fmt: skip


@pytest.fixture
def rig() -> Rig:
    return upr_rig()


def still_serves(peer: Peer) -> None:
    """A connection that was not closed goes on."""
    assert not peer.closed
    assert peer.ask(frame(0x0A)).status == OK
    if peer.side.__class__.__name__ == "Producer" and 1 not in peer.side.feed.streams:
        assert peer.say(stream_request(1))[0].status == OK


@pytest.mark.parametrize("opcode", sorted(set(WELL_FORMED) - TO_PRODUCER))
@pytest.mark.parametrize("flags", [PRODUCER, NOTIFIER])
def test_a_producer_hangs_up_on_what_is_for_consumers(rig: Rig, opcode: int, flags: int) -> None:
    undisturbed = bystander(rig)
    fill(rig, 0, 3)
    peer = Peer.open(rig, flags=flags)
    assert peer.say(WELL_FORMED[opcode]) == []
    assert peer.closed
    assert len(rig.misuse) == 1
    undisturbed()


@pytest.mark.parametrize("opcode", sorted(set(WELL_FORMED) - TO_CONSUMER))
def test_a_consumer_hangs_up_on_what_is_for_producers(rig: Rig, opcode: int) -> None:
    undisturbed = bystander(rig)
    peer = Peer.open(rig, flags=0)
    assert peer.say(WELL_FORMED[opcode]) == []
    assert peer.closed
    assert len(rig.misuse) == 1
    undisturbed()


@pytest.mark.parametrize("opcode", sorted(set(WELL_FORMED) - {OPEN}))
def test_before_open_the_connection_is_closed_without_an_answer(rig: Rig, opcode: int) -> None:
    undisturbed = bystander(rig)
    peer = Peer(rig)
    assert peer.say(WELL_FORMED[opcode]) == []
    assert peer.closed
    assert len(rig.misuse) == 1
    assert rig.bucket.vbuckets[0].watchers == []
    undisturbed()


def test_what_is_for_a_producer_is_answered_by_one(rig: Rig) -> None:
    peer = Peer.open(rig)
    for opcode in sorted(TO_PRODUCER):
        frames = peer.say(WELL_FORMED[opcode])
        assert len(frames) == (0 if opcode == BUFFER_ACK else 1)
    assert not peer.closed
    assert rig.misuse == []


def test_what_came_before_the_misuse_is_answered_still(rig: Rig) -> None:
    fill(rig, 0, 3)
    peer = Peer.open(rig)
    frames = peer.say(frame(FAILOVER_LOG), opening(), frame(FAILOVER_LOG))
    assert [(each.opcode, each.status) for each in frames] == [(FAILOVER_LOG, OK)]
    assert peer.closed


# --- lengths --------------------------------------------------------------------------------------


def reshaped(packet: bytes, *, extras: int = 0, key: int = 0, value: int = 0) -> bytes:
    """The same frame with parts longer (or shorter) by so many bytes."""
    magic, opcode, key_length, extras_length, datatype, place, _, opaque, cas = HEADER.unpack_from(
        packet
    )
    rest = packet[24:]
    parts = [
        resized(rest[:extras_length], extras),
        resized(rest[extras_length : extras_length + key_length], key),
        resized(rest[extras_length + key_length :], value),
    ]
    head = HEADER.pack(
        magic,
        opcode,
        len(parts[1]),
        len(parts[0]),
        datatype,
        place,
        sum(map(len, parts)),
        opaque,
        cas,
    )
    return head + b"".join(parts)


def resized(part: bytes, by: int) -> bytes:
    return part + b"\x01" * by if by >= 0 else part[:by]


_MAY_HAVE_VALUES = (OPEN, STREAM_REQUEST, MARKER, MUTATION, DELETION, EXPIRATION, CONTROL)

WRONG_SHAPES = [
    (opcode, how)
    for opcode in WELL_FORMED
    for how in ("extras+1", "extras-1", "key", "value")
    if not (how == "extras-1" and HEADER.unpack_from(WELL_FORMED[opcode])[3] == 0)
    and not (how == "key" and HEADER.unpack_from(WELL_FORMED[opcode])[2])
    and not (how == "value" and opcode in _MAY_HAVE_VALUES)
]


@pytest.mark.parametrize(("opcode", "how"), WRONG_SHAPES)
@pytest.mark.parametrize("flags", [PRODUCER, 0, None])
def test_a_frame_of_the_wrong_shape_is_invalid_before_anything_else_is_looked_at(
    rig: Rig, opcode: int, how: str, flags: int | None
) -> None:
    undisturbed = bystander(rig)
    peer = Peer(rig) if flags is None else Peer.open(rig, flags=flags)
    name, by = (how[:-2], int(how[-2:])) if how[-1] == "1" else (how, 1)
    answer = peer.ask(reshaped(WELL_FORMED[opcode], **{name: by}))
    assert (answer.opcode, answer.status) == (opcode, INVALID)
    assert not peer.closed
    undisturbed()


@pytest.mark.parametrize("opcode", [OPEN, MUTATION, DELETION, EXPIRATION, CONTROL, BARRIER_ADD])
def test_a_key_that_must_be_there_must_be_there(rig: Rig, opcode: int) -> None:
    packet = WELL_FORMED.get(opcode) or frame(opcode, key=b"c")
    length = HEADER.unpack_from(packet)[2]
    peer = Peer.open(rig)
    assert peer.ask(reshaped(packet, key=-length)).status == INVALID
    still_serves(peer)


def test_a_control_without_a_value_is_invalid(rig: Rig) -> None:
    peer = Peer.open(rig)
    assert peer.ask(control(b"enable_noop", b"")).status == INVALID
    still_serves(peer)


def test_lengths_that_contradict_each_other_close_the_connection(rig: Rig) -> None:
    undisturbed = bystander(rig)
    peer = Peer.open(rig)
    torn = HEADER.pack(0x80, STREAM_REQUEST, 0, 48, 0, 0, 47, 0, 0) + bytes(47)
    (answer,) = peer.say(torn)
    assert answer.status == UNKNOWN
    assert peer.closed
    assert len(rig.misuse) == 1
    undisturbed()


@pytest.mark.parametrize("magic", [0x00, 0x08, 0x18, 0x82, 0x83, 0xFF])
def test_an_unknown_magic_closes_the_connection(rig: Rig, magic: int) -> None:
    undisturbed = bystander(rig)
    peer = Peer.open(rig)
    assert peer.say(frame(NOOP, magic=magic)) == []
    assert peer.closed
    assert len(rig.misuse) == 1
    undisturbed()


def test_a_response_before_open_closes_the_connection(rig: Rig) -> None:
    peer = Peer(rig)
    peer.say(hello(), response(NOOP))
    assert peer.closed
    assert len(rig.misuse) == 1


def test_a_frame_beyond_the_frame_limit_closes_the_connection(rig: Rig) -> None:
    undisturbed = bystander(rig)
    peer = Peer.open(rig)
    peer.send(HEADER.pack(0x81, NOOP, 0, 0, 0, 0, 0xFFFFFFFF, 0, 0))
    assert peer.closed
    assert len(rig.misuse) == 1
    undisturbed()


def test_a_long_answer_is_dropped_unread(rig: Rig) -> None:
    peer = Peer.open(rig)
    long = response(MARKER, value=b"x" * 70_000)
    for at in range(0, len(long), 9_000):
        peer.send(long[at : at + 9_000])
    still_serves(peer)


def test_an_answer_that_is_cut_anywhere_is_understood(rig: Rig) -> None:
    peer = Peer.open(rig)
    for byte in response(MARKER, 1, opaque=7, value=b"text") + frame(FAILOVER_LOG):
        peer.send(bytes([byte]))
    (answer,) = peer.drain()
    assert answer.status == OK


@pytest.mark.parametrize("opcode", [0x4C, 0x5F, 0x60, 0x62, 0x67, 0xBD])
@pytest.mark.parametrize("flags", [PRODUCER, 0])
def test_opcodes_that_nobody_serves_are_unknown_commands(rig: Rig, opcode: int, flags: int) -> None:
    peer = Peer.open(rig, flags=flags)
    assert peer.ask(frame(opcode, extras=bytes(9), key=b"k", value=b"v")).status == UNKNOWN
    still_serves(peer)


@pytest.mark.parametrize(
    "packet",
    [
        frame(LEASE_ACQUIRE, extras=bytes(3)),
        frame(LEASE_RENEW, extras=bytes(8)),
        frame(LEASE_RELEASE, extras=bytes(8), key=b"k"),
        frame(BARRIER_ADD, key=b"c", value=b"v"),
        frame(BARRIER_ADD, key=b"c", extras=b"e"),
    ],
)
def test_our_own_frames_have_shapes_too(rig: Rig, packet: bytes) -> None:
    peer = Peer.open(rig)
    assert peer.ask(packet).status == INVALID
    still_serves(peer)


# --- anything -------------------------------------------------------------------------------------

NUMBERS = st.sampled_from([0, 1, 2, 3, 4, 5, 99, 2**32, 2**63, 2**64 - 1])
REQUESTS = st.builds(
    lambda vbucket, flags, numbers, value: frame(
        STREAM_REQUEST,
        extras=struct.pack(">IIQQQQQ", flags, 0, *numbers),
        value=value,
        vbucket=vbucket,
    ),
    st.sampled_from([0, 1, 2, 3, 4, 65_535]),
    st.sampled_from([0, 1, 2, 4, 5, 6, 0x10, 0x20, 0x40, 0x80, 0xFF, 0xFFFFFFFF]),
    st.lists(NUMBERS, min_size=5, max_size=5),
    st.sampled_from([b"", b"", b"{}", b"{", b'{"lease":"0000000000000001"}']),
)
ANYTHING = st.one_of(
    REQUESTS,
    st.sampled_from([packet for opcode, packet in WELL_FORMED.items() if opcode != OPEN]),
    st.builds(ack, st.sampled_from([0, 1, 100, 2**32 - 1])),
    st.builds(
        control,
        st.sampled_from(
            [b"connection_buffer_size", b"uprmc_rounds", b"uprmc_barrier", b"uprmc_leases",
             b"enable_noop", b"backfill_order", b"uprmc_snapshot_end"]
        ),
        st.sampled_from([b"true", b"false", b"0", b"1", b"128", b"sequential"]),
    ),
    st.builds(lambda key: frame(BARRIER_ADD, key=key), st.sampled_from([b"a", b"b", b"c" * 129])),
    st.builds(
        lambda opcode, opaque: response(opcode, opaque=opaque),
        st.sampled_from([MARKER, SET_STATE, NOOP, STREAM_REQUEST]),
        st.integers(0, 3),
    ),
    st.builds(lambda vbucket: frame(CLOSE_STREAM, vbucket=vbucket), st.integers(0, 4)),
    st.just(b"write"),
    st.just(b"flush"),
    st.just(b"give up"),
    st.just(b"pull"),
)  # fmt: skip


@given(st.lists(ANYTHING, max_size=40), st.sampled_from([PRODUCER, NOTIFIER, 0]), st.booleans())
def test_nothing_that_a_peer_says_raises_or_disturbs_others(
    said: list[bytes], flags: int, modern: bool
) -> None:
    rig = upr_rig()
    rig.bucket.set_state(1, rig.bucket.vbuckets[1].state.__class__.REPLICA)
    fill(rig, 0, 20, b"x" * 100)
    undisturbed = bystander(rig)
    peer = (Peer.modern if modern else Peer.open)(rig, b"anybody", flags)
    now = 1.0
    for packet in said:
        now += 7.0
        if packet == b"write":
            fill(rig, 0, 5)
        elif packet == b"flush":
            rig.flush()
        elif packet == b"give up":
            rig.services.upr.release_views()
        elif packet == b"pull":
            peer.turn(500)
        else:
            peer.send(packet)
        peer.session.tick(now)
    peer.drain()
    assert len(rig.misuse) <= 1
    peer.lose()
    undisturbed()
    rig.check()
    for name in list(rig.services.upr.producers):
        assert name == b"bystander"
    assert rig.services.upr.backfills.used == 0
    assert not list(rig.store._views)


def test_a_hundred_bad_connections_leave_a_good_one_alone(rig: Rig) -> None:
    fill(rig, 0, 3)
    good = Peer.open(rig, b"good")
    assert seqnos(good.stream(0)) == [1, 2, 3]
    for n in range(100):
        bad = Peer.open(rig, b"%d" % n)
        bad.stream(0)
        bad.say(opening())
        assert bad.closed
        bad.lose()
    assert len(rig.misuse) == 100
    fill(rig, 0, 1)
    assert seqnos(good.drain()) == [4]
    good.lose()
    untouched(rig)
