"""The local document that keeps the rows of one vBucket over restarts.

A version byte, then for each row its numbers, its id and its meta log. All numbers are big-endian.
The version is 2 if a replica's table is incomplete.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

from construct import Int8ub, Int16ub, Int32ub, Int64ub
from construct import Struct as Layout

from uprmc.engine.watermarks.rows import Kind, Row
from uprmc.errors import StoreCorrupt
from uprmc.model import SEQNO_MAX
from uprmc.protocol.derive import derive

_VERSION = b"\x01"
_INCOMPLETE = b"\x02"

_NO_FLOOR = SEQNO_MAX

_FIXED = derive(
    Layout(
        "kind" / Int8ub,
        "watermark" / Int64ub,
        "vb_uuid" / Int64ub,
        "floor" / Int64ub,
        "reported_at" / Int64ub,
        "lifetime_s" / Int32ub,
        "id_bytes" / Int16ub,
        "meta_bytes" / Int16ub,
    )
)


def name_of(vbucket: int) -> bytes:
    """Return the name of a vBucket's document."""
    return b"uprmc/watermarks/%d" % vbucket


def encode(rows: Iterable[Row], *, incomplete: bool = False) -> bytes | None:
    """Return the document of these rows, ``None`` if there are none and none are lacking."""
    pieces = [_encoded(row) for row in rows]
    if incomplete:
        return b"".join([_INCOMPLETE, *pieces])
    return b"".join([_VERSION, *pieces]) if pieces else None


def is_incomplete(document: bytes | None) -> bool:
    """Tell whether rows are lacking."""
    return document is not None and document.startswith(_INCOMPLETE)


def decode(document: bytes | None) -> list[Row]:
    """Read it back, empty if there is none; raises `StoreCorrupt`."""
    if document is None:
        return []
    if not document.startswith((_VERSION, _INCOMPLETE)):
        raise StoreCorrupt("stored watermarks are not of version 1 or 2")
    try:
        return list(_decoded(document))
    except (struct.error, ValueError):
        raise StoreCorrupt("stored watermarks cannot be read") from None


def _encoded(row: Row) -> bytes:
    floor = _NO_FLOOR if row.floor is None else row.floor
    fixed = _FIXED.pack(
        row.kind,
        row.watermark,
        row.vb_uuid,
        floor,
        row.reported_at,
        row.lifetime_s,
        len(row.id),
        len(row.meta),
    )
    return fixed + row.id + row.meta


def _decoded(document: bytes) -> Iterator[Row]:
    position = len(_VERSION)
    while position < len(document):
        fields = _FIXED.unpack_from(document, position)
        kind, watermark, uuid, floor, reported_at, lifetime_s, id_bytes, meta_bytes = fields
        middle = position + _FIXED.size + id_bytes
        name = document[middle - id_bytes : middle]
        position = middle + meta_bytes
        if position > len(document):
            raise ValueError("cut off")
        known_floor = None if floor == _NO_FLOOR else floor
        meta = document[middle:position]
        yield Row(name, Kind(kind), watermark, uuid, known_floor, reported_at, lifetime_s, meta)
