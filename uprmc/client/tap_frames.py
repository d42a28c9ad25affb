"""Bytes of a producer to whole frames that are passed on as they came, checked on the way.

The TAP adapter wants frames, not changes: what a stream says goes through as it is, in two pieces
for a mutation (header and extras; key and value) and in one for all else. The checks are the
decoder's, because who takes frames apart later does not look whether they make sense.

Note: frames of streams that are not open are dropped here. Flow control counts their bytes all the
same, so they are added to `dropped_bytes`.

Source: UPR reference 2; ``tap_adapter/upstream.py``, `pull`.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator
from itertools import pairwise

from uprmc.client.decoder import Decoder
from uprmc.client.errors import NotANode
from uprmc.client.events import Event
from uprmc.errors import RemoteProtocolError
from uprmc.protocol.header import MERGED_REQUEST_HEADER, RequestFrame, ResponseFrame, decode_frame
from uprmc.protocol.opcodes import HEADER_BYTES, Opcode
from uprmc.protocol.upr import (
    MUTATION_FRAME,
    SET_VBUCKET_STATE_EXTRAS,
    frame_head,
)
from uprmc.remote.batch import Batch, Received
from uprmc.remote.conversation import KEEP_ALIVES
from uprmc.remote.stream import StreamFault, StreamState

_MUTATION_HEAD = frame_head(Opcode.UPR_MUTATION)
_MUTATION_BYTES = MUTATION_FRAME.size
_OPAQUE = struct.Struct(">12xI")

#: What a replica is told, and its length: the decoder of consumers knows neither.
_OF_REPLICAS = {
    Opcode.UPR_FLUSH: 0,
    Opcode.UPR_SET_VBUCKET_STATE: SET_VBUCKET_STATE_EXTRAS.size,
}
_OF_CONSUMERS = frozenset(
    {
        Opcode.UPR_MUTATION,
        Opcode.UPR_DELETION,
        Opcode.UPR_EXPIRATION,
        Opcode.UPR_SNAPSHOT_MARKER,
        Opcode.UPR_STREAM_END,
    }
)


class FramePasser(Decoder):
    """See the module docstring; `take` is used instead of `feed`.

    Attributes:
        held_bytes: of frames that nobody has pulled yet.
        dropped_bytes: of frames that nobody wants; whoever acknowledges them sets it to 0.
    """

    def __init__(self, place: str) -> None:
        super().__init__(place)
        self.held_bytes = 0
        self.dropped_bytes = 0
        self._held: deque[tuple[bytes, ...]] = deque()

    def take(self, data: bytes) -> Iterator[Event]:
        """Yield answers and keep-alives, each before the frames behind it are looked at.

        Raises:
            ProducerError: what no producer may send.
            NotANode: these are no frames.
        """
        position = 0
        if self._rest:
            position, events = self._complete_rest(data)
            yield from events
        size = len(data)
        while True:
            try:
                position = self._hold_mutations(data, position)
            except StreamFault as fault:
                raise self._nonsense(str(fault)) from None
            if size - position < HEADER_BYTES:
                break
            end = position + self._frame_bytes(data, position)
            if end > size:
                break
            events = self._frame(data[position:end])
            position = end
            yield from events
        self._rest += data[position:]

    def pull(self, out: list[bytes], budget: int) -> int:
        """Append whole frames, about `budget` bytes at most; return how many bytes."""
        held, size = self._held, 0
        while held and size < budget:
            pieces = held.popleft()
            out += pieces
            for piece in pieces:
                size += len(piece)
        self.held_bytes -= size
        return size

    @property
    def held_before_last_bytes(self) -> int:
        """What of `held_bytes` had come before the last frame, which may be of any size."""
        return self.held_bytes - sum(map(len, self._held[-1])) if self._held else 0

    @property
    def incomplete_bytes(self) -> int:
        """What has come of a frame that is not complete."""
        return len(self._rest)

    def forget(self, opaque: int) -> None:
        """Drop what is held of a stream, and whatever of it comes yet."""
        self.streams.pop(opaque, None)
        kept: deque[tuple[bytes, ...]] = deque()
        for pieces in self._held:
            if _OPAQUE.unpack_from(pieces[0])[0] == opaque:
                self.dropped_bytes += sum(map(len, pieces))
                self.held_bytes -= sum(map(len, pieces))
            else:
                kept.append(pieces)
        self._held = kept

    def clear(self) -> None:
        """Drop everything."""
        self._held.clear()
        self._rest.clear()
        self.streams.clear()
        self.held_bytes = 0

    def _hold(self, *pieces: bytes) -> None:
        self._held.append(pieces)
        self.held_bytes += sum(map(len, pieces))

    # --- frames ---------------------------------------------------------------------------------

    def _hold_mutations(self, data: bytes, position: int) -> int:
        """Hold the mutations that stand here one after the other; return the place behind them."""
        began, size = position, len(data)
        while position + _MUTATION_BYTES <= size:
            head, _, _, vbucket, _, opaque, _ = MERGED_REQUEST_HEADER.unpack_from(data, position)
            stream = self._stream(opaque, vbucket) if head == _MUTATION_HEAD else None
            if stream is None:
                break
            batch = Batch(data)
            stop = batch.take(position, size, stream)
            if stop == position:
                break
            self._held += [
                (data[start : start + _MUTATION_BYTES], data[start + _MUTATION_BYTES : end])
                for start, end in pairwise([*batch.positions, stop])
            ]
            position = stop
        self.held_bytes += position - began
        return position

    def _stream(self, opaque: int, vbucket: int) -> StreamState | None:
        # Opaques are whoever's asked for the stream, so one that is not known may be an old one.
        return super()._stream(opaque, vbucket) if opaque in self.streams else None

    def _complete_rest(self, data: bytes) -> tuple[int, list[Event]]:
        """Deal with the frame that was cut, if all of it is there; return where the next begins.

        Only that one is copied: putting the rest before all of the data would copy all of it.
        """
        rest = self._rest
        taken = max(0, HEADER_BYTES - len(rest))
        rest += data[:taken]
        if len(rest) < HEADER_BYTES:
            return len(data), []
        missing = self._frame_bytes(rest, 0) - len(rest)
        rest += data[taken : taken + missing]
        if len(data) - taken < missing:
            return len(data), []
        frame = bytes(rest)
        rest.clear()
        return taken + missing, self._frame(frame)

    def _frame(self, packet: bytes) -> list[Event]:
        """Deal with any one frame."""
        try:
            frame = decode_frame(packet)
        except RemoteProtocolError as error:
            raise NotANode(f"what answers at {self.place} is no UPR: {error}") from None
        if isinstance(frame, ResponseFrame):
            return [self._answer(frame)]
        if frame.opcode in KEEP_ALIVES:
            return [frame]
        self._pass(frame, packet)
        return []

    def _pass(self, frame: RequestFrame, packet: bytes) -> None:
        known = frame.opcode in _OF_CONSUMERS or frame.opcode in _OF_REPLICAS
        try:
            stream = self._stream(frame.opaque, frame.vbucket) if known else None
            if stream is None:
                self.dropped_bytes += len(packet)
                return
            if frame.opcode in _OF_CONSUMERS:
                self._told(frame, packet, 0, Received(packet))
            elif len(packet) - HEADER_BYTES != _OF_REPLICAS[Opcode(frame.opcode)]:
                raise RemoteProtocolError(f"{len(packet)} bytes")
        except StreamFault as fault:
            raise self._nonsense(str(fault)) from None
        except (struct.error, RemoteProtocolError) as error:
            raise self._nonsense(f"opcode {frame.opcode:#04x}: {error}") from None
        body = HEADER_BYTES + len(frame.extras)
        if body < len(packet):
            self._hold(packet[:body], packet[body:])
        else:
            self._hold(packet)
