"""Where a registered TAP client stands, as the document that keeps it over restarts.

One line ``uprmc-tap-position VERSION CRC32`` and JSON after it. The checksum covers the JSON: a
position that is wrong by one digit would lose changes without a word, one that is refused only
costs the client a fresh start.

Source: TAP reference, section 10 (what is persisted per name and vBucket).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple
from zlib import crc32

from uprmc.model import SnapshotRange
from uprmc.tap_adapter.cursor import Cursor

_TITLE = b"uprmc-tap-position"
_VERSION = b"1"
_VBUCKET_MAX = 0xFFFF
_NUMBER_MAX = 2**64 - 1


class Position(NamedTuple):
    """What a document says: cursors by vBucket, and the Unix time when the client was last here."""

    cursors: dict[int, Cursor]
    seen_s: float


def encode(cursors: Mapping[int, Cursor], seen_s: float) -> bytes:
    """Return the document; `seen_s` is Unix time in seconds."""
    rows = [
        [
            vbucket,
            cursor.uuid,
            cursor.acked,
            cursor.snapshot[0],
            cursor.snapshot[1],
            cursor.sent,
            cursor.checkpoint_id,
            cursor.checkpoint_after,
            int(cursor.backfilled),
            cursor.deleted_rev,
            list(cursor.closed.items()),
        ]
        for vbucket, cursor in cursors.items()
    ]
    body = json.dumps({"seen_s": seen_s, "cursors": rows}, separators=(",", ":")).encode()
    return b"%b %b %08x\n%b" % (_TITLE, _VERSION, crc32(body), body)


def decode(document: bytes) -> Position:
    """Read a document.

    Raises:
        ValueError: one line, for what this uprmc has not written or not written whole.
    """
    body = _checked_body(document)
    try:
        found = json.loads(body)
        seen_s = found["seen_s"]
        if type(seen_s) not in (int, float) or not 0 <= seen_s <= _NUMBER_MAX:
            raise TypeError(seen_s)
        cursors = dict(_course(row) for row in found["cursors"])
        if len(cursors) != len(found["cursors"]):
            raise TypeError("a vBucket twice")
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        raise ValueError("it does not have the form that this uprmc writes") from None
    return Position(cursors, float(seen_s))


def _checked_body(document: bytes) -> bytes:
    head, _, body = document.partition(b"\n")
    words = head.split(b" ")
    if len(words) != 3 or words[0] != _TITLE:
        raise ValueError("it is not the position of a TAP client")
    if words[1] != _VERSION:
        version, known = words[1][:20].decode("ascii", "replace"), _VERSION.decode()
        raise ValueError(f"it has version {version!r} and this uprmc knows {known}")
    if words[2] != b"%08x" % crc32(body):
        raise ValueError("its checksum does not fit, so it is torn or was changed")
    return body


def _course(row: Any) -> tuple[int, Cursor]:
    vbucket, uuid, acked, start, end, sent, open_id, after, backfilled, deleted_rev, closed = row
    pairs = [(first, second) for first, second in closed]
    numbers = [uuid, acked, start, end, sent, open_id, after, deleted_rev]
    numbers += [number for pair in pairs for number in pair]
    if any(type(number) is not int or not 0 <= number <= _NUMBER_MAX for number in numbers):
        raise TypeError(row)
    if type(vbucket) is not int or not 0 <= vbucket <= _VBUCKET_MAX or backfilled not in (0, 1):
        raise TypeError(row)
    # No producer takes a resume from outside its snapshot.
    if not (start <= acked <= end and acked <= sent):
        raise TypeError(row)
    snapshot = SnapshotRange(start, end)
    return vbucket, Cursor(
        uuid,
        acked,
        snapshot,
        sent,
        open_id,
        dict(pairs),
        bool(backfilled),
        deleted_rev,
        after,
    )
