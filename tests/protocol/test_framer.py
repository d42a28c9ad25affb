"""The same messages come out however the stream is cut, and cost no more for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.protocol.strategies import FRAMES, cut
from uprmc.errors import LocalProtocolError, RemoteProtocolError
from uprmc.protocol.framer import BinaryFramer, ByteBuffer
from uprmc.protocol.header import Frame, RequestFrame, encode_request

LIMIT = 1024

# --- ByteBuffer ---------------------------------------------------------------------------------


class BufferAgainstBytes(RuleBasedStateMachine):
    """Any sequence of calls gives what a plain bytes object would."""

    def __init__(self) -> None:
        super().__init__()
        self.buffer = ByteBuffer()
        self.model = b""

    @rule(data=st.one_of(st.binary(max_size=5), st.just(bytes(5000)), st.just(b"ab\ncd\n")))
    def append(self, data: bytes) -> None:
        self.buffer.append(data)
        self.model += data

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def take(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(0, len(self.model)))
        assert self.buffer.take(count) == self.model[:count]
        self.model = self.model[count:]

    @rule(data=st.data())
    def peek(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(0, len(self.model)))
        assert self.buffer.peek(count) == self.model[:count]

    @rule(count=st.integers(0, 6000))
    def need(self, count: int) -> None:
        assert self.buffer.need(count) == max(0, count - len(self.model))

    @invariant()
    def same_length(self) -> None:
        assert len(self.buffer) == len(self.model)


TestBufferAgainstBytes = BufferAgainstBytes.TestCase


@pytest.mark.parametrize("count", [-1, 4])
def test_taking_what_is_not_there_is_our_own_error(count: int) -> None:
    buffer = ByteBuffer()
    buffer.append(b"abc")
    with pytest.raises(LocalProtocolError):
        buffer.take(count)
    with pytest.raises(LocalProtocolError):
        buffer.peek(count)
    assert buffer.take(3) == b"abc"


def test_a_chunk_that_is_taken_whole_is_not_copied() -> None:
    chunk = bytes(100_000)
    buffer = ByteBuffer()
    buffer.append(chunk)
    assert buffer.take(len(chunk)) is chunk


def test_tiny_pieces_do_not_pile_up_as_chunks() -> None:
    buffer = ByteBuffer()
    for _ in range(50_000):
        buffer.append(b"x")
    assert len(buffer._chunks) < 20
    assert buffer.take(50_000) == b"x" * 50_000


# --- BinaryFramer -------------------------------------------------------------------------------


@st.composite
def frames_in_pieces(draw: st.DrawFn) -> tuple[list[Frame], list[bytes]]:
    frames = draw(st.lists(FRAMES, max_size=6))
    return frames, draw(cut(b"".join(frame.encode() for frame in frames)))


@given(frames_in_pieces())
def test_the_same_frames_come_out_for_every_way_of_cutting(
    case: tuple[list[Frame], list[bytes]],
) -> None:
    frames, pieces = case
    assert _framed(pieces) == frames


@given(st.lists(FRAMES, max_size=3))
def test_a_stream_byte_by_byte_gives_the_same_frames(frames: list[Frame]) -> None:
    stream = b"".join(frame.encode() for frame in frames)
    assert _framed([stream[at : at + 1] for at in range(len(stream))]) == frames


def _framed(pieces: list[bytes]) -> list[Frame]:
    framer = BinaryFramer(LIMIT)
    return [frame for piece in pieces for frame in framer.feed(piece)]


def test_a_frame_comes_out_with_its_last_byte_and_not_before() -> None:
    framer = BinaryFramer(LIMIT)
    packet = encode_request(0x01, key=b"k", extras=bytes(8), value=b"v")
    assert framer.feed(packet[:-1]) == []
    assert framer.feed(packet[-1:]) == [RequestFrame(0x01, b"k", bytes(8), b"v")]


def test_a_body_at_the_limit_passes_and_one_byte_more_is_refused_by_its_header() -> None:
    assert len(BinaryFramer(LIMIT).feed(encode_request(0x00, value=bytes(LIMIT)))) == 1
    header = encode_request(0x00, value=bytes(LIMIT + 1))[:24]
    with pytest.raises(RemoteProtocolError, match="body of 1025 bytes exceeds 1024"):
        BinaryFramer(LIMIT).feed(header)


@pytest.mark.parametrize(
    "header",
    [b"\x82" + bytes(23), b"get some longer key to fill it\r\n", b"\x80\x00\x00\x01" + bytes(20)],
    ids=["magic", "text", "lengths"],
)
def test_good_frames_before_a_bad_header_are_delivered_first(header: bytes) -> None:
    framer = BinaryFramer(LIMIT)
    assert framer.feed(encode_request(0x0A) + header) == [RequestFrame(0x0A)]
    assert framer.error is not None
    with pytest.raises(RemoteProtocolError):
        framer.feed(b"")
    with pytest.raises(RemoteProtocolError):
        framer.feed(encode_request(0x0A))


def test_a_header_is_judged_when_all_24_bytes_are_there() -> None:
    framer = BinaryFramer(LIMIT)
    assert framer.feed(b"\x00" * 23) == []
    with pytest.raises(RemoteProtocolError, match="magic"):
        framer.feed(b"\x00")


def test_a_large_frame_in_small_chunks_is_copied_a_few_times_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Counted, not timed: the buffer is asked for the whole once, and peeks at 24 bytes once."""
    framer = BinaryFramer(8_000_000)
    packet = encode_request(0x01, value=bytes(4_000_000))
    calls: list[tuple[str, int]] = []
    for name in ("take", "peek"):
        monkeypatch.setattr(ByteBuffer, name, _noting(calls, name))
    frames = [frame for piece in _pieces(packet, 1000) for frame in framer.feed(piece)]
    assert [len(frame.value) for frame in frames] == [4_000_000]
    assert calls == [("peek", 24), ("take", len(packet))]


def _noting(calls: list[tuple[str, int]], name: str) -> Callable[[ByteBuffer, int], bytes]:
    method = getattr(ByteBuffer, name)

    def noting(buffer: ByteBuffer, count: int) -> bytes:
        calls.append((name, count))
        result: bytes = method(buffer, count)
        return result

    return noting


def _pieces(stream: bytes, size: int) -> Iterator[bytes]:
    return (stream[at : at + size] for at in range(0, len(stream), size))
