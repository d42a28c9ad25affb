"""Where one TAP client stands in one vBucket.

The producer moves it, `names` carries it from one connection of the client to the next, and
its document over restarts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple
from zlib import crc32

from uprmc.model import SnapshotRange

#: This many of the newest closed checkpoints of a vBucket are remembered.
CHECKPOINTS_KEPT = 1_000

#: Checkpoints kept over all vBuckets of a client; one with many vBuckets keeps fewer of each.
CHECKPOINTS_OF_A_CLIENT = 4_096

#: Checkpoints kept of a vBucket in any case: a 2.x server has no more in memory.
CHECKPOINTS_LEAST = 2


@dataclass(slots=True)
class TapCursor:
    """Where a client stands in one vBucket."""

    uuid: int = 0  # the history that its seqnos belong to
    acked: int = 0  # everything up to this seqno is acknowledged
    # the one `acked` lies in, as a UPR resume wants it.
    snapshot: SnapshotRange = SnapshotRange(0, 0)  # noqa: RUF009  # an immutable tuple
    sent: int = 0  # highest seqno that the client may hold; more than was sent does no harm
    checkpoint_id: int = 0  # of the open or last checkpoint; 0 = still the backfill
    # id -> last seqno of closed checkpoints, oldest first; written by `TapName.closed`.
    closed: dict[int, int] = field(default_factory=dict)
    backfilled: bool = False  # the first snapshot from 0 was acknowledged whole
    deleted_rev: int = 0  # highest revision of a deletion that was sent
    checkpoint_after: int = 0  # the seqno after which `checkpoint_id` begins

    def open_checkpoint(self, checkpoint_id: int, after: int) -> None:
        """Note that a checkpoint begins with what comes after seqno `after`."""
        self.checkpoint_id = checkpoint_id
        self.checkpoint_after = after

    def close_checkpoint(self, checkpoint_id: int, last_seqno: int, kept: int) -> None:
        """Note that the end of a checkpoint was acknowledged; the newest `kept` are remembered."""
        self.closed.pop(checkpoint_id, None)
        self.closed[checkpoint_id] = last_seqno
        while len(self.closed) > kept:
            del self.closed[next(iter(self.closed))]

    def restart_checkpoint(self) -> None:
        """Go back to the beginning of the checkpoint that is not closed yet, if there is one.

        What was acknowledged of it will be sent again, under the same id.
        """
        if self.checkpoint_id in self.closed or self.acked <= self.checkpoint_after:
            return
        if self.checkpoint_id:
            self.acked = self.checkpoint_after
            self.snapshot = SnapshotRange(self.acked, self.acked)

    def branched(self, seqno: int) -> None:
        """Note that history has branched at `seqno`: no position above it means anything any more.

        A checkpoint that ended above must not be resumed from either: its end is a seqno of the
        history that is over.
        """
        if self.acked > seqno:
            self.acked = seqno
            self.snapshot = SnapshotRange(seqno, seqno)
        self.checkpoint_after = min(self.checkpoint_after, seqno)
        if self.closed.get(self.checkpoint_id, 0) > seqno:
            self.checkpoint_id += 1  # ids are not used again: the next one begins at the branch
            self.checkpoint_after = seqno
        self.closed = {number: end for number, end in self.closed.items() if end <= seqno}

    def copied(self) -> TapCursor:
        """Return one that can be moved without moving this one."""
        return replace(self, closed=dict(self.closed))


# --- position document ----------------------------------------------------------------------------
# Where a registered TAP client stands, as the document that keeps it over restarts.
#
# One line ``uprmc-tap-position VERSION CRC32`` and JSON after it. The checksum covers the JSON: a
# position that is wrong by one digit would lose changes without a word, one that is refused only
# costs the client a fresh start.


_TITLE = b"uprmc-tap-position"
_VERSION = b"1"
_VBUCKET_MAX = 0xFFFF
_NUMBER_MAX = 2**64 - 1


class TapPosition(NamedTuple):
    """What a document says: cursors by vBucket, and the Unix time when the client was last here."""

    cursors: dict[int, TapCursor]
    seen_s: float


def encode_position(cursors: Mapping[int, TapCursor], seen_s: float) -> bytes:
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


def decode_position(document: bytes) -> TapPosition:
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
    return TapPosition(cursors, float(seen_s))


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


def _course(row: Any) -> tuple[int, TapCursor]:
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
    return vbucket, TapCursor(
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
