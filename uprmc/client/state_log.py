"""What the log of a `SqliteState` says, in memory: entries of the ring that are not rows yet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from uprmc.client.ring_columns import RingColumns


class StateLog:
    """The records since the log was folded.

    Attributes:
        size: how many entries of the ring there are.
        records: how many rows.
        moved: vBuckets whose positions have moved.
    """

    def __init__(self) -> None:
        self.size = self.records = 0
        self.moved: set[int] = set()
        self._entries: dict[int, tuple[list[int], list[bytes]]] = {}
        self._new: list[RingColumns] = []

    def add(self, moved: Iterable[int], ring: RingColumns) -> None:
        """Take in a record."""
        self.records += 1
        self.moved.update(moved)
        self.size += len(ring.seqnos)
        self._new.append(ring)

    @property
    def entries(self) -> Mapping[int, tuple[list[int], list[bytes]]]:
        """Seqnos and keys by vBucket, in the order in which they came."""
        found = self._entries
        for ring in self._new:
            seqnos, keys, last = ring.seqnos, ring.keys, 0
            for vbucket, length in zip(ring.vbuckets, ring.lengths, strict=True):
                first, last = last, last + length
                columns = found.get(vbucket)
                if columns is None:
                    found[vbucket] = seqnos[first:last], keys[first:last]
                elif length == 1:
                    columns[0].append(seqnos[first])
                    columns[1].append(keys[first])
                else:
                    columns[0].extend(seqnos[first:last])
                    columns[1].extend(keys[first:last])
        self._new.clear()
        return found

    def after(self, vbucket: int, seqno: int) -> list[tuple[int, bytes]]:
        """Return a vBucket's entries above a seqno."""
        columns = self.entries.get(vbucket)
        return [each for each in zip(*columns, strict=True) if each[0] > seqno] if columns else []
