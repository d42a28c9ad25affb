"""Where the frames of received bytes are, and the fixed fields of those that are items.

`interpreted` finds them where `uprmc.core.native.columns` does not run, which does the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from uprmc.columnar.records import FRAME_SCAN, MUTATION
from uprmc.core import form
from uprmc.protocol.opcodes import HEADER_BYTES, MAGIC_REQUEST, Opcode

ITEMS = (Opcode.UPR_MUTATION, Opcode.UPR_DELETION, Opcode.UPR_EXPIRATION)

_HEADS = frozenset(MAGIC_REQUEST << 8 | opcode for opcode in ITEMS)
#: Behind the received bytes, so that a short frame at the end has the fields of a mutation, too.
_MARGIN = bytes(MUTATION.itemsize)


class Scanned(NamedTuple):
    """What was found.

    Attributes:
        records: header and extras of each item, laid out as those of a mutation: as bytes, which
            are joined at less cost than arrays of records.
        positions: where each begins.
        others: of frames that are no items, how many items come before, the begin and the end.
        end: where the first frame begins that has not come completely.
    """

    records: bytes
    positions: Any
    others: list[tuple[int, int, int]]
    end: int


def scan(received: memoryview) -> Scanned:
    """Find the frames in received bytes."""
    data = b"".join((received, _MARGIN))
    records, positions, others, end = _scan(data, len(received))
    return Scanned(records, np.frombuffer(positions, np.int64), others, end)


def interpreted(data: bytes, size: int) -> tuple[bytes, bytes, list[tuple[int, int, int]], int]:
    """Return what `Scanned` has of the first `size` bytes; the others are 0."""
    positions: list[int] = []
    others: list[tuple[int, int, int]] = []
    unpack, heads, append = FRAME_SCAN.unpack_from, _HEADS, positions.append
    at, last = 0, size - HEADER_BYTES
    while at <= last:
        head, length = unpack(data, at)
        end = at + HEADER_BYTES + length
        if end > size:
            break
        if head in heads:
            append(at)
        else:
            others.append((len(positions), at, end))
        at = end
    places = np.array(positions, np.int64)
    shape = (len(data) - len(_MARGIN) + 1,)
    records = np.ndarray(shape, MUTATION, data, strides=(1,))[places]
    return records.tobytes(), places.tobytes(), others, at


if form.FORM == form.COMPILED and not TYPE_CHECKING:
    from uprmc.core.native.columns import scan as _scan
else:
    _scan = interpreted
