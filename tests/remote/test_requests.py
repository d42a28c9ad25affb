"""One round of requests: windows, a node that answers much, too late, or nonsense."""

from __future__ import annotations

import select
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest

from tests.columnar.write_peer import Line as Peer
from uprmc.protocol.binary import STORE_EXTRAS
from uprmc.protocol.header import (
    HEADER_BYTES,
    RequestFrame,
    ResponseFrame,
    decode_frame,
    encode_request,
    unpack_request,
)
from uprmc.protocol.opcodes import Opcode, Status
from uprmc.remote.blocking import RequestLine, run
from uprmc.remote.errors import NodeNonsense, NodeUnreachable
from uprmc.remote.requests import BATCHES_UNDER_WAY, Window

Answering = Callable[[RequestFrame], bytes]


def stores(count: int, value_bytes: int = 10) -> list[bytes]:
    return [
        encode_request(
            Opcode.SETQ, key=b"k%d" % n, extras=STORE_EXTRAS.pack(0, 0), value=bytes(value_bytes),
            opaque=n,
        )
        for n in range(count)
    ]  # fmt: skip


def quiet(frame: RequestFrame) -> bytes:
    return ResponseFrame(frame.opcode, opaque=frame.opaque).encode() * (frame.opcode == Opcode.NOOP)


def refusing(frame: RequestFrame) -> bytes:
    return quiet(frame) or status(frame, Status.TOO_LARGE)


def status(frame: RequestFrame, number: Status, opaque: int | None = None) -> bytes:
    opaque = frame.opaque if opaque is None else opaque
    return ResponseFrame(frame.opcode, number, value=b"x" * 50, opaque=opaque).encode()


@contextmanager
def peer(answer: Answering, buffer_bytes: int = 0) -> Iterator[tuple[Peer, list[RequestFrame]]]:
    """A line to a thread that reads a request, answers it, and only then reads the next."""
    ours, theirs = socket.socketpair()
    got: list[RequestFrame] = []
    if buffer_bytes:
        for line in (ours, theirs):
            line.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)

    def serve() -> None:
        data = b""
        try:
            while piece := theirs.recv(4096):
                data += piece
                while len(data) >= HEADER_BYTES:
                    size = HEADER_BYTES + unpack_request(data, 0)[6]
                    if len(data) < size:
                        break
                    frame = decode_frame(data[:size])
                    assert isinstance(frame, RequestFrame)
                    got.append(frame)
                    theirs.sendall(answer(frame))
                    data = data[size:]
        except OSError:
            pass
        theirs.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield Peer(ours, "peer:1"), got
    finally:
        ours.close()
        thread.join(10)
    assert not thread.is_alive()


def share(
    peer: Peer,
    frames: list[bytes],
    order: Sequence[int] | None = None,
    window: int = 10,
    window_bytes: int = 10**6,
) -> RequestLine[int]:
    order = range(len(frames)) if order is None else order
    return RequestLine(peer, Window(frames, order, window, window_bytes, quiet=True))


def test_a_quiet_success_is_no_answer() -> None:
    with peer(quiet) as (line, got):
        asked = share(line, stores(25))
        run([asked], 10)
        assert (asked.window.answers, asked.lost, list(asked.window.unsettled())) == ({}, None, [])
        assert [frame.opcode for frame in got].count(Opcode.NOOP) == 3


def test_a_node_that_refuses_all_of_large_windows_hangs_nobody() -> None:
    """Requests and answers are far more than both sockets' buffers hold."""
    with peer(refusing, buffer_bytes=4096) as (line, _):
        asked = share(line, stores(20_000, 200), window=20_000, window_bytes=10**8)
        run([asked], 30)
        assert asked.lost is None
        assert asked.window.answers == dict.fromkeys(range(20_000), Status.TOO_LARGE)


def test_only_the_chosen_requests_are_sent_in_their_order() -> None:
    with peer(refusing) as (line, got):
        asked = share(line, stores(20), [1, 2, 3, 7, 19], window=3)
        run([asked], 10)
        assert sorted(asked.window.answers) == [1, 2, 3, 7, 19]
        stored = [frame.opaque for frame in got if frame.opcode == Opcode.SETQ]
        assert stored == [1, 2, 3, 7, 19]


@pytest.mark.parametrize(("window_bytes", "noops"), [(1, 6), (133, 6), (134, 3), (10**6, 2)])
def test_a_window_has_so_many_bytes_but_at_least_one_request(window_bytes: int, noops: int) -> None:
    frames = stores(6, 33)
    assert {len(frame) for frame in frames} == {67}
    with peer(quiet) as (line, got):
        run([share(line, frames, window=4, window_bytes=window_bytes)], 10)
        assert [frame.opcode for frame in got].count(Opcode.NOOP) == noops


def test_windows_under_way_are_limited() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        asked = share(Peer(ours, "peer:1"), stores(10), window=1)
        for _ in range(20):
            asked.write()
        assert not asked.events & select.POLLOUT
        got = theirs.recv(65536)
        assert len(got) == BATCHES_UNDER_WAY * len(stores(1)[0] + encode_request(Opcode.NOOP))
        theirs.sendall(ResponseFrame(Opcode.NOOP).encode())
        ours.settimeout(0)
        asked.read()
        assert asked.events & select.POLLOUT


@pytest.mark.parametrize("after", [0, 3, 10, 14])
def test_windows_whose_end_was_not_answered_are_unsettled_as_a_whole(after: int) -> None:
    seen: list[int] = []

    def answer(frame: RequestFrame) -> bytes:
        if frame.opcode == Opcode.NOOP:
            return quiet(frame)
        if len(seen) == after:
            raise OSError("hung up")
        seen.append(frame.opaque)
        return refusing(frame)

    with peer(answer) as (line, _):
        asked = share(line, stores(20), window=5)
        run([asked], 10)
        settled = after // 5 * 5
        assert isinstance(asked.lost, NodeUnreachable)
        assert list(asked.window.unsettled()) == list(range(settled, 20))
        assert sorted(asked.window.answers) == list(range(settled))


NONSENSE: list[Answering] = [
    lambda frame: b"ERROR\r\n" * 10,
    lambda frame: status(frame, Status.TOO_LARGE, opaque=77),
    lambda frame: status(frame, Status.TOO_LARGE, opaque=2**32 - 1),
    lambda frame: ResponseFrame(Opcode.NOOP, opaque=1).encode(),
    lambda frame: bytes([0x81, 0x11, 0, 9, 9, 0, 0, 3, 0, 0, 0, 1]) + bytes(12),
    lambda frame: bytes([0x81, 0x11, 0, 0, 0, 0, 0, 3, 0xFF, 0, 0, 0]) + bytes(12),
    lambda frame: encode_request(Opcode.SET, key=b"k"),
]


@pytest.mark.parametrize("answer", NONSENSE)
def test_nonsense_ends_the_connection(answer: Answering) -> None:
    with peer(answer) as (line, _):
        asked = share(line, stores(3))
        run([asked], 10)
        assert isinstance(asked.lost, NodeNonsense)


def test_an_answer_to_a_request_of_a_settled_window_is_a_protocol_error() -> None:
    def answer(frame: RequestFrame) -> bytes:
        return status(frame, Status.TOO_LARGE, opaque=0) if frame.opaque == 5 else quiet(frame)

    with peer(answer) as (line, _):
        asked = share(line, stores(9), window=2)
        run([asked], 10)
        assert isinstance(asked.lost, NodeNonsense)


def test_a_keep_alive_is_answered() -> None:
    ours, theirs = socket.socketpair()
    answer = ResponseFrame(Opcode.NOOP, opaque=99).encode()
    noop = encode_request(Opcode.NOOP, opaque=0)
    got = bytearray()

    def serve() -> None:
        theirs.sendall(encode_request(Opcode.NOOP, opaque=99))
        while answer not in got or noop not in got:
            got.extend(theirs.recv(4096))
        theirs.sendall(ResponseFrame(Opcode.NOOP, opaque=0).encode())

    thread = threading.Thread(target=serve, daemon=True)
    with ours, theirs:
        thread.start()
        asked = share(Peer(ours, "peer:1"), stores(1))
        run([asked], 10)
        thread.join(10)
    assert asked.lost is None
    assert not thread.is_alive()


class _Turns:
    """A socket whose TLS must read before it can send, and send before it can read."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self.sends = self.receives = 0

    def send(self, data: memoryview) -> int:
        self.sends += 1
        if self.receives:
            return self._line.send(data)
        raise ssl.SSLWantReadError

    def recv(self, size: int) -> bytes:
        self.receives += 1
        if self.receives == 1:
            raise ssl.SSLWantWriteError
        return self._line.recv(size)

    def fileno(self) -> int:
        return self._line.fileno()

    def settimeout(self, timeout_s: float) -> None:
        self._line.settimeout(timeout_s)


def test_tls_that_must_read_first_is_not_asked_to_send_meanwhile() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        turns = _Turns(ours)
        asked = share(Peer(turns, "peer:1"), stores(3))  # type: ignore[arg-type]
        run([asked], 0.3)
        assert isinstance(asked.lost, NodeUnreachable)  # nothing came, and nobody span meanwhile
        assert (turns.sends, turns.receives) == (1, 0)


def test_tls_that_must_send_first_reads_afterwards() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        turns = _Turns(ours)
        asked = share(Peer(turns, "peer:1"), stores(3))  # type: ignore[arg-type]
        theirs.sendall(ResponseFrame(Opcode.NOOP, opaque=0).encode())
        turns.receives = -1
        asked.write()
        turns.receives = 0
        assert not asked.events & select.POLLOUT  # all is sent
        asked.read()
        assert asked.events & select.POLLOUT
        run([asked], 5)
        assert asked.lost is None
        assert (turns.sends, turns.receives) == (1, 2)


def test_a_node_that_says_nothing_is_given_up() -> None:
    with peer(lambda frame: b"") as (line, _):
        asked = share(line, stores(3))
        run([asked], 0.2)
        assert isinstance(asked.lost, NodeUnreachable)
        assert "says nothing" in str(asked.lost)
        assert line.socket.gettimeout() == 0.2


def test_answers_one_by_one_need_no_fence_and_tell_what_had_left() -> None:
    frames = stores(6)
    window: Window[int] = Window(frames, [0, 1, 2, 4, 5], 3, 10**6, quiet=False)
    assert window.next_piece() == b"".join(frames[:3])
    assert not window.has_room
    window.take(ResponseFrame(Opcode.SETQ, opaque=0).encode())
    assert window.answers == {0: 0}
    assert window.next_piece() == frames[4]
    first = len(frames[0])
    assert [list(window.left(sent)) for sent in (0, first, 2 * first, 3 * first, 4 * first)] == [
        [],
        [],
        [1],
        [1, 2],
        [1, 2, 4],
    ]
    assert list(window.unsettled()) == [1, 2, 4, 5]
    window.take(ResponseFrame(Opcode.SETQ, opaque=2).encode())
    assert "an unexpected frame" in window.nonsense
