"""Tokens of ``/changes``: where a reader stands in each vBucket, as text that a URL can have.

A token says of each vBucket which seqno the reader has, the snapshot that this seqno lies in, and
the complete number of its history. So a reader goes on behind the last change that it has, also
inside of a snapshot, and a node never takes another history for the reader's.

    byte 0    `_FORMAT`
    byte 1    width of seqnos
    byte 2    width of numbers of histories
    3 bytes   how many vBuckets stand at the end of a snapshot
    of each   vBucket (2 bytes), seqno, history
    of each inside of a snapshot   vBucket, seqno, history, start and end of the snapshot

All in base64. With 1,024 vBuckets, seqnos below 2^32 and histories of a node of this library it
takes 16 KiB, 27 KiB if the reader is inside of a snapshot in all of them, and never more than 47.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from collections.abc import Iterator, Mapping

from uprmc.client.state import Saved
from uprmc.model import SEQNO_MAX, FailoverEntry, SnapshotRange
from uprmc.rollback import history_of

_FORMAT = 0x81
_HEAD_BYTES = 6

#: First bytes of tokens of the first format; these had a part of a history's number.
_FORMER = frozenset({2, 3, 4, 5, 6, 8})


def encoded(places: Mapping[int, Saved]) -> str:
    """Return the token of some places; a vBucket at the beginning is left out."""
    rows = [
        (vbucket, *place[:2], history_of(place.log, place.seqno))
        for vbucket, place in sorted(places.items())
    ]
    whole = [row for row in rows if row[1] and not row[2].start < row[1] < row[2].end]
    inside = [row for row in rows if row[2].start < row[1] < row[2].end]
    width = _width(max((max(row[1], row[2].end) for row in rows), default=0))
    uuid_width = _width(max((row[3] for row in rows), default=0))
    pieces = [bytes([_FORMAT, width, uuid_width]), len(whole).to_bytes(3)]
    for vbucket, seqno, snapshot, uuid in (*whole, *inside):
        pieces += vbucket.to_bytes(2), seqno.to_bytes(width), uuid.to_bytes(uuid_width)
        if snapshot.start < seqno < snapshot.end:
            pieces += snapshot.start.to_bytes(width), snapshot.end.to_bytes(width)
    return urlsafe_b64encode(b"".join(pieces)).rstrip(b"=").decode()


def decoded(token: str) -> dict[int, Saved]:
    """Return where a token stands in each vBucket that it names.

    Raises:
        ValueError: it is no token, or one of the first format; the text says which.
    """
    try:
        data = urlsafe_b64decode(token.encode("ascii") + b"=" * (-len(token) % 4))
    except (UnicodeEncodeError, Base64Error):
        raise ValueError("this is no token") from None
    if data[:1] and data[0] in _FORMER:
        raise ValueError("a token of an earlier version does not name its histories completely")
    if len(data) < _HEAD_BYTES or data[0] != _FORMAT:
        raise ValueError("this is no token")
    width, uuid_width, whole = data[1], data[2], int.from_bytes(data[3:_HEAD_BYTES])
    row_bytes = 2 + width + uuid_width
    middle = _HEAD_BYTES + whole * row_bytes
    ends, insides = data[_HEAD_BYTES:middle], data[middle:]
    if len(ends) != whole * row_bytes or len(insides) % (row_bytes + 2 * width):
        raise ValueError("this is no token")
    found = dict(_rows(ends, width, uuid_width, bounds=0))
    found |= _rows(insides, width, uuid_width, bounds=width)
    return found


def _rows(data: bytes, width: int, uuid_width: int, *, bounds: int) -> Iterator[tuple[int, Saved]]:
    """Yield the places of rows; `bounds` = the width of a snapshot's bounds, 0 = there are none."""
    seqnos, uuids = (1 << 8 * width) - 1, (1 << 8 * uuid_width) - 1
    step = 2 + width + uuid_width + 2 * bounds
    for at in range(0, len(data), step):
        row = int.from_bytes(data[at : at + step])
        start, end, row = row >> 8 * bounds & seqnos, row & seqnos, row >> 16 * bounds
        uuid, row = row & uuids, row >> 8 * uuid_width
        seqno, vbucket = row & seqnos, row >> 8 * width
        if not bounds:
            start = end = seqno
        if not (seqno and start <= seqno <= end <= SEQNO_MAX and uuid < 1 << 64):
            raise ValueError("this is no token")
        log = (FailoverEntry(uuid, 0),) if uuid else ()
        yield vbucket, Saved(seqno, SnapshotRange(start, end), log, seqno)


def _width(most: int) -> int:
    return max(1, (most.bit_length() + 7) // 8)
