"""The client library asks for many streams in one frame, where the node knows how."""

from __future__ import annotations

import struct
from collections.abc import Iterable

import pytest

from tests.client.consumer_world import Mirror, ServerEnd, World, live, node, write
from tests.client.test_decoder import _decoder
from tests.upr.peer import STREAM_REQUEST, Frame, response, split
from uprmc.client.decoder import Accepted
from uprmc.client.errors import ClientError
from uprmc.protocol.upr import StreamRequest
from uprmc.protocol.upr_many import (
    STREAM_REQUESTS_MAX_BYTES,
    StreamStart,
    decode_stream_requests,
    split_starts,
)
from uprmc.upr import producer

STREAM_REQUESTS = 0xDE


def asked_of(world: World) -> list[Frame]:
    """Follow everything; return all requests for streams."""
    sent: list[bytes] = []
    take = ServerEnd.take

    def noted(end: ServerEnd, data: bytes) -> bytes:
        sent.append(data)
        return take(end, data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ServerEnd, "take", noted)
        world.settle(1)
    frames, _ = split(b"".join(sent))
    return [each for each in frames if each.opcode in (STREAM_REQUEST, STREAM_REQUESTS)]


def test_all_streams_of_a_node_are_asked_for_at_once() -> None:
    rig, mirror = node(), Mirror()
    for number in range(4):
        write(rig, number, a=str(number))
    (asked,) = asked_of(World(mirror, rig))
    starts = decode_stream_requests(asked.extras, asked.value)
    assert sorted(start.vbucket for start in starts) == sorted(rig.bucket.vbuckets)
    assert [mirror.docs[0], mirror.docs[3]] == [live(rig), live(rig, 3)]


def test_a_program_that_shares_its_thread_asks_for_fewer_streams_at_a_time() -> None:
    rig, mirror = node(), Mirror()
    for number in range(4):
        write(rig, number, a=str(number))
    asked = asked_of(World(mirror, rig, starts_max=3))
    starts = [decode_stream_requests(each.extras, each.value) for each in asked]
    assert max(map(len, starts)) == 3
    assert sorted(start.vbucket for few in starts for start in few) == sorted(rig.bucket.vbuckets)
    assert [mirror.docs[0], mirror.docs[3]] == [live(rig), live(rig, 3)]


def test_a_node_that_refuses_the_frame_is_asked_for_each_stream_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(extras: bytes, value: bytes) -> Iterable[StreamStart]:
        raise producer.InvalidArguments("not today")

    monkeypatch.setattr(producer, "decode_stream_requests", refuse)
    rig, mirror = node(), Mirror()
    write(rig, 0, a="1")
    together, *alone = asked_of(World(mirror, rig))
    assert together.opcode == STREAM_REQUESTS
    assert {each.opcode for each in alone} == {STREAM_REQUEST}
    assert len(alone) == len(rig.bucket.vbuckets)
    assert mirror.docs == {0: live(rig)}


def test_requests_are_spread_over_frames_that_are_not_too_long() -> None:
    request = StreamRequest(0, 0, 1, 0, 0, 0)
    starts = [StreamStart(number, number, request) for number in range(5_000)]
    parts = list(split_starts(starts))
    assert [start for part, _ in parts for start in part] == starts
    assert len(parts) > 2
    for part, value in parts:
        assert len(value) <= STREAM_REQUESTS_MAX_BYTES
        assert [
            (each.vbucket, each.request) for each in decode_stream_requests(bytes(4), value)
        ] == [(start.vbucket, start.request) for start in part]


_LOG = struct.pack(">QQ", 7, 0)


def _answer(*rows: tuple[int, int, bytes], flags: int = 0) -> bytes:
    value = b"".join(
        struct.pack(">IHHQ", opaque, status, len(more), 0) + more for opaque, status, more in rows
    )
    return _with_flags(value, flags)


def _with_flags(value: bytes, flags: int) -> bytes:
    head = struct.pack(">BBHBBHIIQ", 0x81, STREAM_REQUESTS, 0, 4, 0, 0, 4 + len(value), 50, 0)
    return head + struct.pack(">I", flags) + value


def test_each_row_of_an_answer_is_one_streams_answer() -> None:
    decoder = _decoder(3, 900)
    for stream in decoder.streams.values():
        stream.log = ()
    accepted, refused = decoder.feed(_answer((1, 0, _LOG), (2, 7, b"")))
    assert type(accepted) is Accepted
    assert accepted.stream.vbucket == 3
    assert accepted.stream.log == ((7, 0),)
    assert (refused.opcode, refused.status, refused.opaque) == (STREAM_REQUEST, 7, 2)  # type: ignore[union-attr]
    assert decoder.counted_bytes == 0


@pytest.mark.parametrize(
    "answer",
    [
        _with_flags(b"torn", 0),
        _with_flags(struct.pack(">IHHQ", 1, 0, 17, 0) + _LOG, 0),
        _with_flags(struct.pack(">IHHQ", 1, 0, 15, 0) + _LOG[:15], 0),
        response(STREAM_REQUESTS, opaque=50, value=b"no flags"),
    ],
)
def test_torn_answers_are_a_named_error(answer: bytes) -> None:
    with pytest.raises(ClientError, match="nonsense"):
        _decoder(3).feed(answer)
