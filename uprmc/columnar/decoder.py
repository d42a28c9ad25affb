"""Bytes of a stream to Arrow: the hot path of every read.

`scanning` looks at 24 bytes of each frame, to find the next one, and gathers the fixed fields;
everything else is done for a block of thousands of rows at once. Arrow gathers keys and values by
offsets into the received bytes, so no Python object is made of a row. Frames that are no items are
rare and are remembered with their place among the items: what a block holds is judged in the order
in which it came.

A block in which anything is what no node may send is not handed on at all.

Source: ``docs/streams.md``; Spark reference, section 6.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from uprmc.columnar.errors import ProtocolError
from uprmc.columnar.read_state import ReadState, StreamEnd
from uprmc.columnar.records import FRAME_SCAN, MUTATION
from uprmc.columnar.rows import Rows, build
from uprmc.columnar.runs import Judged, Other
from uprmc.columnar.scanning import scan
from uprmc.columnar.schema import Columns
from uprmc.protocol.header import REQUEST_HEADER, ResponseFrame, decode_frame
from uprmc.protocol.opcodes import (
    FRAME_MAX_BYTES,
    HEADER_BYTES,
    MAGIC_REQUEST,
    MAGIC_RESPONSE,
    Opcode,
    opcode_name,
)
from uprmc.protocol.upr import (
    DELETION_EXTRAS,
    EXPIRATION_EXTRAS,
    MUTATION_EXTRAS,
    STREAM_END_EXTRAS,
    TIMED_DELETION_EXTRAS,
)
from uprmc.remote.conversation import KEEP_ALIVES

#: Asked of the socket at a time.
READ_BYTES = 1024 * 1024

#: The least that is asked of it, however small a block is to be.
READ_BYTES_MIN = 64 * 1024

_NO_POSITIONS: Any = np.zeros(0, np.int64)
_EXTRAS_BYTES: dict[int, tuple[int, ...]] = {
    Opcode.UPR_MUTATION: (MUTATION_EXTRAS.size,),
    Opcode.UPR_DELETION: (DELETION_EXTRAS.size, TIMED_DELETION_EXTRAS.size),
    Opcode.UPR_EXPIRATION: (DELETION_EXTRAS.size, EXPIRATION_EXTRAS.size),
}


class Noop(NamedTuple):
    """The node wants to know whether we live."""

    opcode: int
    opaque: int


Notice = ResponseFrame | Noop | StreamEnd


class Block(NamedTuple):
    """Rows in the order in which they came.

    Attributes:
        batch: an Arrow record batch, perhaps without rows.
        vbuckets: of each row.
        states: whose rows it has.
        ended: those of which all has come with it.
    """

    batch: Any
    vbuckets: Any
    states: list[ReadState]
    ended: list[ReadState]

    def without(self, lost: set[int]) -> Block:
        """Return the block without the rows of some vBuckets."""
        mask = np.isin(self.vbuckets, list(lost), invert=True)
        states = [each for each in self.states if each.vbucket not in lost]
        return Block(self.batch.filter(pa.array(mask)), self.vbuckets[mask], states, self.ended)


class Decoder:
    """Decodes the bytes of one connection's streams.

    Bytes are received into `room`, then `received` is called.

    Attributes:
        place: who sends, for messages.
        states: streams that were asked for, by opaque.
        counted_bytes: bytes received since it was reset that flow control counts.
        size_bytes: when a block is full; its rows are the other limit.
    """

    def __init__(
        self,
        place: str,
        columns: Columns,
        *,
        rows: int,
        size_bytes: int,
        no_value: bool = False,
    ) -> None:
        self.place = place
        self.states: dict[int, ReadState] = {}
        self.counted_bytes = 0
        self._columns, self._schema = columns, columns.schema
        self._no_value = no_value
        self._rows, self.size_bytes = rows, size_bytes
        self._forget()
        self._filled = self._scanned = 0
        self._buffer = bytearray(READ_BYTES)

    def _forget(self) -> None:
        """Begin a block."""
        self._records: list[bytes] = []
        self._positions: list[Any] = []
        self._count = 0
        self._others: list[Other] = []

    # --- bytes in -------------------------------------------------------------------------------

    def room(self) -> memoryview:
        """Return where the next bytes are to be put."""
        if len(self._buffer) - self._filled < READ_BYTES // 4:
            self._allocate(self._filled * 2 + READ_BYTES)
        most = min(READ_BYTES, max(READ_BYTES_MIN, self.size_bytes))
        end = min(len(self._buffer), self._filled + most)
        return memoryview(self._buffer)[self._filled : end]

    def received(self, count: int) -> list[Notice]:
        """Look for frames in what has come; returns those that are waited for.

        Raises:
            ProtocolError: these are no frames.
        """
        self._filled += count
        notices: list[Notice] = []
        began = self._scanned
        found = scan(memoryview(self._buffer)[began : self._filled])
        for rows, start, end in found.others:
            self.counted_bytes -= self._other(
                self._count + rows, began + start, began + end, notices
            )
        self._records.append(found.records)
        self._positions.append(found.positions + began)
        self._count += len(found.positions)
        self._scanned = began + found.end
        self.counted_bytes += found.end
        if self._filled - self._scanned >= HEADER_BYTES:
            self._check_size(*FRAME_SCAN.unpack_from(self._buffer, self._scanned))
        return notices

    @property
    def full(self) -> bool:
        """Whether it is time to `take` what has come."""
        return self._count >= self._rows or self._scanned >= self.size_bytes

    @property
    def drained(self) -> bool:
        """Whether all that has come was decoded: no frame is there in part."""
        return self._filled == self._scanned

    def take(self) -> Block:
        """Return everything complete that has come.

        Raises:
            ProtocolError: it contradicts itself, or what was asked for.
            KeyNotText: see `Columns.mode`.
        """
        try:
            judged = Judged(self._state, self._gathered(), self._others)
        except (ValueError, struct.error) as error:
            raise self.protocol_error(str(error)) from None
        batch, rows = build(
            self._columns, self._schema, self._buffer, judged.rows, no_value=self._no_value
        )
        rows.count(judged.states)
        self._forget()
        self._close_up()
        return Block(batch, rows.vbucket, judged.states, judged.ended)

    def protocol_error(self, what: str) -> ProtocolError:
        """Return what to raise of bytes that make no sense."""
        return ProtocolError(f"{self.place} sent {what}; nothing of it was used")

    # --- the buffer -----------------------------------------------------------------------------

    def _allocate(self, size: int) -> None:
        buffer = bytearray(size)
        if self._filled:
            buffer[: self._filled] = memoryview(self._buffer)[: self._filled]
        self._buffer = buffer

    def _close_up(self) -> None:
        """Move a frame of which only a part has come to the beginning."""
        rest = bytes(memoryview(self._buffer)[self._scanned : self._filled])
        if len(self._buffer) > 2 * self.size_bytes + 2 * READ_BYTES:
            self._filled = 0
            self._allocate(max(READ_BYTES, self.size_bytes) + len(rest))
        self._buffer[: len(rest)] = rest
        self._filled, self._scanned = len(rest), 0

    def _check_size(self, head: int, length: int) -> None:
        magic, opcode = divmod(head, 256)
        if magic not in (MAGIC_REQUEST, MAGIC_RESPONSE):
            raise self.protocol_error(f"what is no frame (magic {magic:#04x})")
        if length > FRAME_MAX_BYTES:
            raise self.protocol_error(f"{opcode_name(opcode)} with a body of {length} bytes")

    # --- frames that are no items ---------------------------------------------------------------

    def _other(self, row: int, position: int, end: int, notices: list[Notice]) -> int:
        """Look at a frame that is rare; returns its bytes if flow control leaves it out."""
        frame = bytes(memoryview(self._buffer)[position:end])
        magic, opcode, key_length, extras_length, _, vbucket, length, opaque, _ = (
            REQUEST_HEADER.unpack_from(frame)
        )
        self._check_size(magic << 8 | opcode, length)
        if key_length + extras_length > length:
            raise self.protocol_error(f"a torn {opcode_name(opcode)}")
        if magic == MAGIC_RESPONSE:
            answer = decode_frame(frame)
            assert isinstance(answer, ResponseFrame)
            notices.append(answer)
            self._others.append(Other(row, frame))
            return end - position
        if opcode in KEEP_ALIVES:
            notices.append(Noop(opcode, opaque))
            return end - position
        if opcode == Opcode.UPR_STREAM_END:
            notices.append(self._stream_end(frame, opaque, vbucket))
        self._others.append(Other(row, frame))
        return 0

    def _stream_end(self, frame: bytes, opaque: int, vbucket: int) -> StreamEnd:
        try:
            (reason,) = STREAM_END_EXTRAS.unpack(frame[HEADER_BYTES:])
            return StreamEnd(self._state(opaque, vbucket), reason)
        except (ValueError, struct.error) as error:
            raise self.protocol_error(f"a torn end of vb={vbucket}: {error}") from None

    def _state(self, opaque: int, vbucket: int) -> ReadState:
        """Return the stream of a frame; vBucket -1 = any. Raises `ValueError`."""
        state = self.states.get(opaque)
        if state is None:
            raise ValueError(f"a frame of a stream of vb={vbucket} that was never requested")
        if vbucket not in (state.vbucket, -1):
            raise ValueError(f"vb={vbucket} in a stream of vb={state.vbucket}")
        return state

    # --- items ----------------------------------------------------------------------------------

    def _gathered(self) -> Rows:
        """Gather the fixed fields of all items; raises `ValueError` for one that is torn."""
        records = np.frombuffer(b"".join(self._records), MUTATION)
        positions = np.concatenate([_NO_POSITIONS, *self._positions])
        rows = Rows.of(records, positions)
        torn = rows.torn(_EXTRAS_BYTES)
        if torn is not None:
            vbucket, seqno = int(rows.records["vbucket"][torn]), int(rows.seqno[torn])
            raise ValueError(f"a torn item of vb={vbucket} at seqno {seqno}")
        return rows
