"""Producers that send what none may send: a named error, nothing applied, the state as it was."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.client.consumer_world import CrashingState, Mirror
from tests.client.fake_producer import FakeProducer, Joined, accepted, rollback
from tests.upr import peer
from tests.upr.peer import Frame, frame, marker, mutation
from uprmc.client.errors import ClientError, NotANode, OpenRefused, ProducerError
from uprmc.client.state import MemoryState
from uprmc.protocol.opcodes import FRAME_MAX_BYTES
from uprmc.remote.history import LOG_MAX_ENTRIES

GOOD = 3  # the seqno that each test begins with, a whole snapshot


def _begun(mirror: Mirror) -> tuple[Joined, int]:
    """Return a consumer that has 1 to 3, and the opaque of its stream."""

    def stream(asked: Frame) -> bytes:
        first = [mutation(0, asked.opaque, n, b"k%d" % n, b"v") for n in (1, 2, 3)]
        return accepted(asked, then=marker(0, asked.opaque, 0, GOOD) + b"".join(first))

    joined = Joined(mirror, FakeProducer(stream), noop_interval_s=1.0)
    joined.settle()
    assert [change.seqno for change in mirror.changes] == [1, 2, 3]
    (asked,) = joined.producer.asked(peer.STREAM_REQUEST)
    return joined, asked.opaque


Frames = Callable[[int], list[bytes]]

#: What it sends after the good beginning, and what the error says.
NONSENSE: dict[str, tuple[Frames, str]] = {
    "an item below its snapshot": (
        lambda o: [marker(0, o, 6, 9), mutation(0, o, 5, b"a")],
        "seqno 5",
    ),
    "an item without a snapshot": (lambda o: [mutation(0, o, 4, b"a")], "seqno 4 outside"),
    "a deletion outside": (
        lambda o: [frame(peer.DELETION, key=b"k", extras=struct.pack(">QQH", 9, 1, 0), opaque=o)],
        "seqno 9 outside",
    ),
    "a marker that is turned round": (lambda o: [marker(0, o, 9, 4)], "9 to 4"),
    "a snapshot that is cut short": (
        lambda o: [marker(0, o, 4, 9), mutation(0, o, 5, b"a"), marker(0, o, 7, 12)],
        "cut short",
    ),
    "a snapshot end that is none": (
        lambda o: [marker(0, o, 4, 9), frame(0xEC, extras=struct.pack(">QI", 8, 0), opaque=o)],
        "the end 8",
    ),
    "a stream that nobody asked for": (lambda o: [marker(0, 99, 4, 9)], "never requested"),
    "another vBucket in the stream": (
        lambda o: [marker(0, o, 4, 9), mutation(5, o, 5, b"a")],
        "vBucket 5",
    ),
    "another vBucket's marker": (lambda o: [marker(5, o, 4, 9)], "vBucket 5 in a stream"),
    "an item without a key": (lambda o: [marker(0, o, 4, 9), mutation(0, o, 5, b"")], "torn item"),
    "more extended metadata than value": (
        lambda o: [marker(0, o, 4, 9), mutation(0, o, 5, b"a", b"v", nmeta=50)],
        "torn item",
    ),
    "a torn marker": (lambda o: [frame(peer.MARKER, extras=b"12345", opaque=o)], "marker of 5"),
    "a torn stream end": (lambda o: [frame(peer.STREAM_END, extras=b"", opaque=o)], "0x55"),
    "a torn deletion": (lambda o: [frame(peer.DELETION, key=b"k", opaque=o)], "0x58"),
    "a takeover": (lambda o: [frame(peer.SET_STATE, extras=b"\1", opaque=o)], "for replicas"),
    "an enormous frame": (
        lambda o: [peer.HEADER.pack(0x80, 0x57, 1, 31, 0, 0, FRAME_MAX_BYTES + 1, o, 0)],
        "with a body of",
    ),
}


@pytest.mark.parametrize("name", NONSENSE)
def test_nonsense_is_a_named_error_and_changes_nothing(name: str) -> None:
    frames, words = NONSENSE[name]
    mirror = Mirror()
    joined, opaque = _begun(mirror)
    saved, ring = joined.state.load(), joined.state.ring()
    with pytest.raises(ProducerError, match=words) as caught:
        joined.say(*frames(opaque))
    assert "fake:1" in str(caught.value)
    assert "intact" in str(caught.value)
    assert (joined.state.load(), joined.state.ring()) == (saved, ring)
    assert [change.seqno for change in mirror.changes] == [1, 2, 3]


def test_a_frame_of_the_greatest_size_is_waited_for() -> None:
    joined, opaque = _begun(Mirror())
    joined.say(peer.HEADER.pack(0x80, 0x57, 1, 31, 0, 0, FRAME_MAX_BYTES, opaque, 0))


def test_what_is_no_frame_is_no_node() -> None:
    joined, _ = _begun(Mirror())
    with pytest.raises(NotANode, match="an HTTP server answers"):
        joined.say(b"HTTP/1.1 400 Bad Request\r\n\r\n")


@pytest.mark.parametrize(
    ("first", "words"),
    [
        (lambda asked: marker(0, asked.opaque, 0, 1), "not been accepted"),
        (accepted, "before any snapshot"),
    ],
)
def test_an_item_before_its_stream_or_any_marker_is_nonsense(
    first: Callable[[Frame], bytes], words: str
) -> None:
    def stream(asked: Frame) -> bytes:
        return first(asked) + mutation(0, asked.opaque, 1, b"k")

    with pytest.raises(ProducerError, match=words):
        Joined(Mirror(), FakeProducer(stream)).settle()


def test_frames_of_a_stream_that_has_ended_are_dropped() -> None:
    mirror = Mirror()
    joined, opaque = _begun(mirror)
    end = frame(peer.STREAM_END, extras=struct.pack(">I", 2), opaque=opaque)
    joined.say(end, marker(0, opaque, 4, 4), mutation(0, opaque, 4, b"late"))
    assert len(mirror.changes) == 3


@pytest.mark.acceptance("D44")
@pytest.mark.parametrize("kind", ["own file", "shared transaction", "memory"])
def test_what_comes_together_with_the_end_of_its_stream_can_be_undone(kind: str) -> None:
    state = MemoryState() if kind == "memory" else CrashingState()
    if kind == "shared transaction":
        state.shared = True  # type: ignore[attr-defined]
    asked: list[Frame] = []

    def stream(request: Frame) -> bytes:
        asked.append(request)
        return accepted(request, then=marker(0, request.opaque, 0, 1) if len(asked) == 1 else b"")

    joined = Joined(Mirror(), FakeProducer(stream), state)
    joined.settle()
    opaque = asked[0].opaque
    end = frame(peer.STREAM_END, extras=struct.pack(">I", 2), opaque=opaque)
    joined.say(mutation(0, opaque, 1, b"k"), end)
    assert (1, b"k") in joined.core.writer.state.ring_after(0, 0)


# --- answers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("entries", [LOG_MAX_ENTRIES, LOG_MAX_ENTRIES + 1, 100_000])
def test_a_failover_log_is_believed_up_to_a_length(entries: int) -> None:
    log = [(number + 1, entries - number) for number in range(entries - 1)] + [(entries, 0)]
    joined = Joined(Mirror(), FakeProducer(lambda asked: accepted(asked, *log)))
    if entries > LOG_MAX_ENTRIES:
        with pytest.raises(ProducerError, match=f"a failover log of {entries} entries"):
            joined.settle()
    else:
        joined.settle()


@pytest.mark.parametrize("value", [b"", b"torn", struct.pack(">QQQQ", 1, 5, 2, 9)])
def test_a_failover_log_that_is_none_is_nonsense(value: bytes) -> None:
    def stream(asked: Frame) -> bytes:
        return peer.response(peer.STREAM_REQUEST, opaque=asked.opaque, value=value)

    with pytest.raises(ProducerError, match="failover log"):
        Joined(Mirror(), FakeProducer(stream)).settle()


@pytest.mark.parametrize("seqno", [GOOD, GOOD + 1, 2**64 - 1])
def test_a_rollback_above_what_we_have_is_nonsense_and_undoes_nothing(seqno: int) -> None:
    mirror = Mirror()
    joined, _ = _begun(mirror)
    saved = joined.state.load()
    again = Joined(mirror, FakeProducer(lambda asked: rollback(asked, seqno)), joined.state)
    with pytest.raises(ProducerError, match=f"a rollback to {seqno}, we are at 3"):
        again.settle()
    assert joined.state.load() == saved
    assert mirror.told("rollback") == mirror.told("undo") == []


def test_a_rollback_of_who_has_nothing_is_nonsense() -> None:
    """Every rollback is lower than the one before, or zero, and zero is never refused."""
    joined = Joined(Mirror(), FakeProducer(lambda asked: rollback(asked, 0)))
    with pytest.raises(ProducerError, match="a rollback to 0, we are at 0"):
        joined.settle()


def test_a_stream_that_is_refused_is_asked_for_again_later() -> None:
    refusals = iter([peer.LATER, peer.NOT_MY_VBUCKET, peer.EXISTS])

    def stream(asked: Frame) -> bytes:
        status = next(refusals, peer.OK)
        if status:
            return peer.response(peer.STREAM_REQUEST, status, opaque=asked.opaque)
        return accepted(asked)

    joined = Joined(Mirror(), FakeProducer(stream))
    for _ in range(100):
        joined.settle()
        joined.now += 0.1
    assert len(joined.producer.asked(peer.STREAM_REQUEST)) == 4


def test_a_refused_open_is_told_with_its_reason() -> None:
    class Refusing(FakeProducer):
        def _answer(self, asked: Frame) -> bytes:
            if asked.opcode == peer.OPEN:
                return peer.response(peer.OPEN, peer.INVALID, opaque=asked.opaque, value=b"no!")
            return super()._answer(asked)

    with pytest.raises(OpenRefused, match="no!"):
        Joined(Mirror(), Refusing(accepted)).settle()


@given(st.binary(max_size=200))
def test_whatever_comes_is_taken_or_a_named_error(data: bytes) -> None:
    mirror = Mirror()
    joined, _ = _begun(mirror)
    saved = joined.state.load()
    try:
        joined.say(data)
    except ClientError:
        assert joined.state.load() == saved


@given(st.integers(0, 10_000), st.integers(0, 255))
def test_a_changed_byte_is_taken_or_a_named_error(place: int, byte: int) -> None:
    mirror = Mirror()
    joined, opaque = _begun(mirror)
    good = [marker(0, opaque, 4, 6), *(mutation(0, opaque, n, b"k", b"v") for n in (4, 5, 6))]
    data = bytearray(b"".join(good))
    data[place % len(data)] = byte
    before = len(mirror.changes)
    try:
        joined.say(bytes(data))
    except ClientError:
        assert len(mirror.changes) == before


# --- what other servers do ------------------------------------------------------------------------


@pytest.mark.acceptance("P15")
def test_a_snapshot_whose_last_item_never_comes_ends_with_the_next_one() -> None:
    mirror = Mirror()
    joined, opaque = _begun(mirror)
    joined.say(marker(0, opaque, 4, 9), mutation(0, opaque, 5, b"a"))
    assert mirror.told("snapshot_end") == [(0, 3)]
    joined.say(marker(0, opaque, 10, 10))
    assert mirror.told("snapshot_end") == [(0, 3), (0, 9)]
    joined.say(mutation(0, opaque, 10, b"b"))
    assert mirror.told("snapshot_end") == [(0, 3), (0, 9), (0, 10)]


@pytest.mark.acceptance("P15")
def test_an_explicit_snapshot_end_counts_once() -> None:
    mirror = Mirror()
    joined, opaque = _begun(mirror)

    def end(seqno: int) -> bytes:
        return frame(0xEC, extras=struct.pack(">QI", seqno, 1), opaque=opaque)

    joined.say(marker(0, opaque, 4, 9), mutation(0, opaque, 5, b"a"), end(9))
    joined.say(marker(0, opaque, 10, 10), mutation(0, opaque, 10, b"b"), end(10))
    assert mirror.told("snapshot_end") == [(0, 3), (0, 9), (0, 10)]
    assert joined.core.positions()[0].seqno == 10


@pytest.mark.acceptance("P15")
def test_a_snapshot_that_is_announced_again_is_one() -> None:
    mirror = Mirror()
    joined, opaque = _begun(mirror)
    joined.say(marker(0, opaque, 4, 9), mutation(0, opaque, 5, b"a"))
    joined.say(marker(0, opaque, 4, 12), mutation(0, opaque, 12, b"b"))
    assert [entry[1:3] for entry in mirror.told("snapshot_begin")] == [(0, 3), (4, 9)]
    assert mirror.told("snapshot_end") == [(0, 3), (0, 12)]


def test_a_keep_alive_is_answered_and_does_not_count_for_flow_control() -> None:
    joined, opaque = _begun(Mirror())
    before = joined.session.flow.unacked_bytes
    joined.say(frame(peer.NOOP, opaque=0x4E4F4F50))
    assert joined.session.data_to_send() == peer.response(peer.NOOP, opaque=0x4E4F4F50)
    joined.say(marker(0, opaque, 4, 4))
    assert joined.session.flow.unacked_bytes - before == 44


def test_half_of_the_buffer_is_acknowledged_at_a_time() -> None:
    joined, opaque = _begun(Mirror())
    joined.session.flow.buffer_bytes = 2 * (44 + 56 + 56)
    joined.session.flow.unacked_bytes = 0
    joined.say(marker(0, opaque, 4, 5), mutation(0, opaque, 4, b"a"))
    assert joined.session.data_to_send() == b""
    joined.say(mutation(0, opaque, 5, b"b"))
    (ack,), _ = peer.split(joined.session.data_to_send())
    assert (ack.opcode, ack.size) == (peer.BUFFER_ACK, 28)
    assert struct.unpack(">I", ack.extras) == (44 + 56 + 56,)


def test_only_an_active_vbucket_is_asked_for() -> None:
    """A replica would stream as well, and never say that the active one is ahead."""
    joined, _ = _begun(Mirror())
    (asked,) = joined.producer.asked(peer.STREAM_REQUEST)
    assert struct.unpack(">I", asked.extras[:4])[0] & 0x10


def test_a_silent_node_is_given_up() -> None:
    joined, _ = _begun(Mirror())
    joined.session.granted.add(b"set_noop_interval")
    begun = joined.now
    for tenth in range(42):
        drive_turn(joined, begun + tenth / 10)
        assert (joined.session.error is not None) == (tenth > 40)


def drive_turn(joined: Joined, now: float) -> None:
    for _ in joined.core.turn(now):
        raise AssertionError("somebody waits")
