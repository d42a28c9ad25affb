"""What an index and its node say to each other: a relay between them that keeps every frame."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from interop.server_process import Address
from interop.upr_wire import DELETION, EXPIRATION, MUTATION, SNAPSHOT_MARKER
from tests.codec.frames import HEADER, Frame

_STREAM_REQUESTS, _SNAPSHOTS = 0xDE, 0xDF

#: vBucket, number of versions, opaque, flags, start and end seqno, vBucket UUID, start and end of
#: the snapshot, lease, term.
_REQUESTED = struct.Struct(">HHIIQQQQQQQ")
_VERSION_BYTES = 16
#: Opaque, kind, start and end seqno, purge seqno.
_ANNOUNCED = struct.Struct(">IIQQQ")
_RANGE = struct.Struct(">QQ")


class Said(NamedTuple):
    """A frame and on which connection it came; `by_node` = from the node to the index."""

    connection: int
    by_node: bool
    frame: Frame


class Marker(NamedTuple):
    """A snapshot begins on a stream, which is a connection and an opaque."""

    stream: tuple[int, int]
    start: int
    end: int


class Item(NamedTuple):
    """A change on a stream."""

    stream: tuple[int, int]
    vbucket: int
    seqno: int
    key: bytes


class Asked(NamedTuple):
    """A request for a stream."""

    vbucket: int
    start: int
    end: int
    uuid: int
    snapshot: tuple[int, int]


def _asked(frame: Frame) -> Iterator[Asked]:
    """Yield the streams that a frame asks for: each row is followed by its known versions."""
    at = 0
    while at < len(frame.value):
        vbucket, versions, _, _, start, end, uuid, *snapshot = _REQUESTED.unpack_from(
            frame.value, at
        )
        yield Asked(vbucket, start, end, uuid, (snapshot[0], snapshot[1]))
        at += _REQUESTED.size + _VERSION_BYTES * versions


def _told(connection: int, frame: Frame) -> Iterator[Marker | Item]:
    stream = connection, frame.opaque
    if frame.opcode == SNAPSHOT_MARKER:  # in its second form it is in the value
        yield Marker(stream, *_RANGE.unpack_from(frame.value or frame.extras))
    elif frame.opcode in (MUTATION, DELETION, EXPIRATION):
        yield Item(stream, frame.number, int.from_bytes(frame.extras[:8], "big"), frame.key)
    elif frame.opcode == _SNAPSHOTS:
        yield from _many(connection, frame)


def _many(connection: int, frame: Frame) -> Iterator[Marker | Item]:
    """Yield what a frame with several snapshots has: their rows first, then all items in order."""
    count = int.from_bytes(frame.extras[4:8], "big")
    markers = {}
    for row in range(count):
        opaque, _, start, end, _ = _ANNOUNCED.unpack_from(frame.value, row * _ANNOUNCED.size)
        markers[opaque] = Marker((connection, opaque), start, end)
    assert len(markers) == count
    frames, rest = frames_in(frame.value[count * _ANNOUNCED.size :])
    assert not rest
    for each in frames:
        if (marker := markers.pop(each.opaque, None)) is not None:
            yield marker
        yield from _told(connection, each)


def frames_in(data: bytes) -> tuple[list[Frame], bytes]:
    """Return the complete frames, and the rest."""
    found, start = [], 0
    while len(data) - start >= HEADER.size:
        end = start + HEADER.size + int.from_bytes(data[start + 8 : start + 12], "big")
        if end > len(data):
            break
        found.append(Frame.of(data[start:end]))
        start = end
    return found, data[start:]


class Trace:
    """Listens; passes bytes on in both directions.

    Attributes:
        place: where it listens.
        said: all frames, in the order in which they passed.
    """

    def __init__(self, node: Address) -> None:
        self._node = node
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.place = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.said: list[Said] = []
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def asked(self) -> dict[int, Asked]:
        """Return the last request for the stream of each vBucket."""
        frames = [said.frame for said in [*self.said] if not said.by_node]
        found = [
            row for frame in frames if frame.opcode == _STREAM_REQUESTS for row in _asked(frame)
        ]
        return {each.vbucket: each for each in found}

    def told(self) -> Iterator[Marker | Item]:
        """Yield markers and changes, in the order in which they came."""
        for said in [*self.said]:
            if said.by_node and not said.frame.is_reply:
                yield from _told(said.connection, said.frame)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                node = socket.create_connection((self._node.host, self._node.port))
                number = len(self._sockets)
                self._sockets += (client, node)
                for pair in ((client, node, False), (node, client, True)):
                    thread = threading.Thread(target=self._pass, args=(number, *pair), daemon=True)
                    self._threads.append(thread)
                    thread.start()

    def _pass(
        self, number: int, source: socket.socket, target: socket.socket, by_node: bool
    ) -> None:
        data = b""
        with contextlib.suppress(OSError):
            while piece := source.recv(1 << 16):
                data = self._kept(number, by_node, data + piece)
                target.sendall(piece)
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _kept(self, number: int, by_node: bool, data: bytes) -> bytes:
        """Keep the frames that are complete; return the rest."""
        frames, rest = frames_in(data)
        self.said += [Said(number, by_node, frame) for frame in frames]
        return rest

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._threads[0].join(20)
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(20)
            assert not thread.is_alive()
        for each in self._sockets:
            each.close()


@contextmanager
def trace(node: Address) -> Iterator[Trace]:
    """Relay to a node."""
    made = Trace(node)
    try:
        yield made
    finally:
        made.close()
