"""Records that are not what was written: who they are, and that each is named once.

A segment's checksums tell that something in it is damaged and which of its records are sound. Who
the others are cannot be learned from themselves: the index by id has each key with its seqno. So
the live records that should be in a damaged segment are those of the index whose seqnos belong
there, and the damaged ones are these without the sound ones. A damaged record that is not live any
more is no loss and is not named.

Readers are in several threads; `Damage` takes what they find. Nothing here repairs anything.
"""

from __future__ import annotations

from collections import deque
from zlib import crc32

import lmdb

from uprmc.record import SEQNO
from uprmc.storage import layout, segments
from uprmc.storage.interface import Damaged
from uprmc.storage.layout import SEQNO_BYTES, VBUCKET

#: Damaged segments whose records are remembered; beyond it they are looked for each time.
_SEGMENTS_MAX = 1_024

#: Records that are named one by one; beyond it they are counted only.
_NAMED_MAX = 100_000


class Damage:
    """The damaged records of one store that readers have met."""

    def __init__(self) -> None:
        self.total = 0  # how many were named since the store was opened
        self.news: deque[Damaged] = deque()  # those that were not returned yet, oldest first
        self._named: set[Damaged] = set()
        self._inside: dict[tuple[bytes, int], list[Damaged]] = {}

    def examine(
        self,
        txn: lmdb.Transaction[bytes],
        by_id: lmdb._Database,
        by_seq: lmdb._Database,
        key: bytes,
        segment: bytes,
    ) -> tuple[list[bytes], list[Damaged]]:
        """Return the sound records of a damaged segment, stale ones too, and the damaged live ones.

        What is damaged is named. O(entries of the vBucket) the first time.
        """
        sound = segments.sound(key, segment)
        name = key, crc32(segment)
        found = self._inside.get(name)
        if found is None:
            found = _missing(txn, by_id, by_seq, key, {record[SEQNO] for record in sound})
            if len(self._inside) < _SEGMENTS_MAX:
                self._inside[name] = found
        else:
            prefix, lookup = key[: VBUCKET.size], txn.cursor(by_id).get
            found = [
                each
                for each in found
                if (lookup(prefix + each.key) or b"")[:SEQNO_BYTES] == layout.SEQNO.pack(each.seqno)
            ]
        for each in found:
            if each not in self._named:
                self.total += 1
                if len(self._named) < _NAMED_MAX:
                    self._named.add(each)
                    self.news.append(each)
        return sound, found

    def healed(self, record: Damaged) -> None:
        """Learn that a record is as it was written again; it may be named another time."""
        self._named.discard(record)


def _missing(
    txn: lmdb.Transaction[bytes],
    by_id: lmdb._Database,
    by_seq: lmdb._Database,
    key: bytes,
    sound: set[bytes],
) -> list[Damaged]:
    """Return the live records that belong into a segment and are not among the sound ones."""
    prefix = key[: VBUCKET.size]
    (number,) = VBUCKET.unpack(prefix)
    before = txn.cursor(by_seq)
    above = b""
    if before.set_key(key) and before.prev() and before.key().startswith(prefix):
        above = before.key()[VBUCKET.size :]
    last = key[VBUCKET.size :]
    found = []
    cursor = txn.cursor(by_id)
    if cursor.set_range(prefix):
        for name, place in cursor.iternext():
            if not name.startswith(prefix):
                break
            seqno = place[:SEQNO_BYTES]
            if above < seqno <= last and seqno not in sound:
                found.append(Damaged(number, int.from_bytes(seqno, "big"), name[VBUCKET.size :]))
    return sorted(found)
