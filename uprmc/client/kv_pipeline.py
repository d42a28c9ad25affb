"""Many requests on few connections: sent in windows, answered in order, several nodes at once.

A window bounds what is under way on a connection, so neither side's buffers fill while the other
waits. When a connection ends, a request whose last byte had not left us has surely not been carried
out; one that had left and was not answered may have been.
"""

from __future__ import annotations

import select
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from uprmc.client.connection import NodeConnection, NodeError
from uprmc.protocol.header import pack_request, unpack_response
from uprmc.protocol.opcodes import (
    FRAME_MAX_BYTES,
    HEADER_BYTES,
    MAGIC_REQUEST,
    MAGIC_RESPONSE,
)

#: So many requests of a connection are under way.
WINDOW = 512

#: So many bytes of requests are put together before they are sent; one request may be larger.
PIECE_BYTES = 64 * 1024

_READ_BYTES = 256 * 1024
_OPAQUES = 2**32


class KvRequest(NamedTuple):
    """What is asked of one key; every number fits into its field."""

    opcode: int
    vbucket: int
    key: bytes
    extras: bytes = b""
    value: bytes = b""
    cas: int = 0
    datatype: int = 0


class KvReply(NamedTuple):
    """What was answered."""

    status: int
    cas: int
    datatype: int
    extras: bytes
    value: bytes


class Pipeline:
    """One connection's share of some requests.

    Attributes:
        lost: why the connection cannot be used any more, or ``None``.
    """

    def __init__(
        self,
        connection: NodeConnection,
        requests: Sequence[KvRequest],
        numbers: Iterable[int],
        answers: dict[int, KvReply],
        first_opaque: int,
    ) -> None:
        """Ask those of `requests` that `numbers` say; put what is answered into `answers`.

        Opaques count on from `first_opaque`, so that what belongs to others is noticed.
        """
        self.lost: NodeError | None = None
        self._connection = connection
        self._requests = requests
        self._answers = answers
        self._first_opaque = first_opaque
        self._to_ask = deque(numbers)
        self._asked: deque[int] = deque()
        self._ends: deque[int] = deque()
        self._packed_bytes = 0
        self._sent_bytes = 0
        self._out = memoryview(b"")
        self._broken: NodeError | None = None
        self._pieces: list[bytes] = []
        self._have_bytes = 0
        self._want_bytes = HEADER_BYTES

    # --- how far it is --------------------------------------------------------------------------

    def fileno(self) -> int:
        """Return the socket to wait for."""
        return self._connection.fileno()

    @property
    def done(self) -> bool:
        """Whether nothing is to be waited for any more; some are refused before they are sent."""
        sending = self._out and not self._broken
        return self.lost is not None or not (self._to_ask or self._asked or sending)

    @property
    def events(self) -> int:
        """What to wait for, in `select.poll`'s words."""
        sending = not self._broken and (self._out or (self._to_ask and self._room()))
        return select.POLLIN | (select.POLLOUT if sending else 0)

    def unsent(self) -> list[int]:
        """Return the requests that the node has surely not carried out."""
        not_left = [n for n, end in self._under_way() if end > self._sent_bytes]
        return [*not_left, *self._to_ask]

    def unknown(self) -> list[int]:
        """Return the requests that have left and were not answered."""
        return [n for n, end in self._under_way() if end <= self._sent_bytes]

    def _under_way(self) -> Iterator[tuple[int, int]]:
        return zip(self._asked, self._ends, strict=True)

    def _room(self) -> bool:
        return len(self._asked) < WINDOW

    # --- asking ---------------------------------------------------------------------------------

    def write(self) -> None:
        """Send what the socket takes."""
        if not self._out:
            self._pack()
        try:
            sent = self._connection.send_some(self._out)
        except NodeError as error:
            self._broken = error  # what was answered before can still be read
            return
        self._sent_bytes += sent
        self._out = self._out[sent:]

    def _pack(self) -> None:
        requests, to_ask, asked, ends = self._requests, self._to_ask, self._asked, self._ends
        first_opaque = self._first_opaque
        pieces: list[bytes] = []
        begin = end = self._packed_bytes
        while to_ask and len(asked) < WINDOW and end - begin < PIECE_BYTES:
            number = to_ask.popleft()
            opcode, vbucket, key, extras, value, cas, datatype = requests[number]
            body_bytes = len(extras) + len(key) + len(value)
            pieces += (
                pack_request(
                    MAGIC_REQUEST,
                    opcode,
                    len(key),
                    len(extras),
                    datatype,
                    vbucket,
                    body_bytes,
                    (first_opaque + number) % _OPAQUES,
                    cas,
                ),
                extras,
                key,
                value,
            )
            end += HEADER_BYTES + body_bytes
            asked.append(number)
            ends.append(end)
        self._packed_bytes = end
        self._out = memoryview(b"".join(pieces))

    # --- hearing --------------------------------------------------------------------------------

    def read(self) -> None:
        """Take what has arrived."""
        try:
            data = self._connection.receive_some(_READ_BYTES)
        except NodeError as error:
            self.lost = self._broken or error
            return
        self._pieces.append(data)
        self._have_bytes += len(data)
        if self._have_bytes >= self._want_bytes:
            self._take(b"".join(self._pieces))

    def give_up(self, why: str) -> None:
        """Treat the connection as lost: the node has said nothing for too long."""
        self.lost = self._broken or NodeError(f"the node at {self._connection.place} {why}")

    def _take(self, data: bytes) -> None:
        asked, ends, answers = self._asked, self._ends, self._answers
        first_opaque, position, size = self._first_opaque, 0, len(data)
        self._want_bytes = HEADER_BYTES
        while position + HEADER_BYTES <= size:
            magic, opcode, key_bytes, extras_bytes, datatype, status, body_bytes, opaque, cas = (
                unpack_response(data, position)
            )
            start = position + HEADER_BYTES
            end = start + body_bytes
            if (
                magic != MAGIC_RESPONSE
                or not asked
                or opaque != (first_opaque + asked[0]) % _OPAQUES
                or key_bytes + extras_bytes > body_bytes
                or body_bytes > FRAME_MAX_BYTES
            ):
                self.lost = NodeError(
                    f"the node at {self._connection.place} sent nonsense: a frame with magic "
                    f"{magic:#04x}, opcode {opcode:#04x}, opaque {opaque:#x}, {body_bytes} bytes"
                )
                return
            if end > size:
                self._want_bytes = end - position
                break
            middle = start + extras_bytes
            answers[asked.popleft()] = KvReply(
                status, cas, datatype, data[start:middle], data[middle + key_bytes : end]
            )
            ends.popleft()
            position = end
        rest = data[position:]
        self._pieces = [rest] if rest else []
        self._have_bytes = len(rest)


def run(pipelines: Iterable[Pipeline], silence_s: float) -> None:
    """Run all of them until each is done or lost; silence of all for `silence_s` loses them."""
    poll = select.poll()
    running = {pipeline.fileno(): pipeline for pipeline in pipelines if not pipeline.done}
    for number, pipeline in running.items():
        poll.register(number, pipeline.events)
    while running:
        events = poll.poll(silence_s * 1e3)
        if not events:
            for pipeline in running.values():
                pipeline.give_up(f"does not answer: silent for {silence_s:g} s")
            return
        for number, event in events:
            pipeline = running[number]
            if event & ~select.POLLOUT:
                pipeline.read()
            if event & select.POLLOUT and not pipeline.done:
                pipeline.write()
            if pipeline.done:
                poll.unregister(number)
                del running[number]
            else:
                poll.modify(number, pipeline.events)
