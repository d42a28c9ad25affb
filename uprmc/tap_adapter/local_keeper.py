"""Positions of registered clients as local documents of the node's store.

A store has no list of its local documents, so they have numbers: the document `COUNT_NAME` says how
many places there are, and place N, the document ``uprmc/tap/N``, holds a client's name and its
document, or is empty. A place that became free is used again.

Note: `save` answers later than the document is on disk. A client may learn a position only when the
changes up to it are on disk, too, and a commit may contain one without the other.
"""

from __future__ import annotations

import heapq
import struct
from collections.abc import Callable

from uprmc.engine.bucket import Bucket
from uprmc.model import FailoverLog

#: The document that says how many places there are, as decimal digits.
COUNT_NAME = b"uprmc/tap/count"

_PLACE_NAME = b"uprmc/tap/%d"
_NAME_LENGTH = struct.Struct(">H")

#: More places than this nobody has made: the count is damaged.
PLACES_MAX = 1_000_000


class LocalKeeper:
    """Keeps positions in local documents of the node's store.

    Implements `upstream.Keeper`.

    Attributes:
        trouble: what `load` could not read, one line each.
    """

    def __init__(self, bucket: Bucket) -> None:
        self.trouble: list[str] = []
        self._bucket = bucket
        self._places: dict[bytes, int] = {}
        self._free: list[int] = []
        self._count = 0
        self._leaving: set[bytes] = set()

    def load(self) -> dict[bytes, bytes]:
        """See `upstream.Keeper`; what cannot be read is left out, and named in `trouble`."""
        store = self._bucket.store
        self._count = self._read_count(store.local(COUNT_NAME))
        found: dict[bytes, bytes] = {}
        for place in range(self._count):
            record = store.local(_PLACE_NAME % place)
            entry = _unpack(record) if record is not None else None
            if record is not None and entry is None:
                self.trouble.append(f"the TAP client in place {place} cannot be read")
            if entry is None or entry[0] in found:
                heapq.heappush(self._free, place)
                continue
            name, found[name] = entry[0], entry[1]
            self._places[name] = place
        return found

    def _read_count(self, text: bytes | None) -> int:
        if text is None:
            return 0
        if text.isdigit() and len(text) < 8 and int(text) <= PLACES_MAX:
            return int(text)
        self.trouble.append("which TAP clients were registered cannot be read: all are forgotten")
        return 0

    def save(self, name: bytes, document: bytes | None, done: Callable[[bool], None]) -> None:
        """See `upstream.Keeper`."""
        if document is None:
            self._drop(name, done)
            return
        place = self._places.get(name)
        if place is None:
            place = self._places[name] = self._take_place()
        self._leaving.discard(name)
        record = _NAME_LENGTH.pack(len(name)) + name + document
        self._bucket.flusher.write_local(_PLACE_NAME % place, record, _Durable(self._bucket, done))

    def _take_place(self) -> int:
        if self._free:
            return heapq.heappop(self._free)
        self._count += 1
        # In the same commit as the place itself: both are asked for in one turn.
        self._bucket.flusher.write_local(COUNT_NAME, b"%d" % self._count, _no_matter)
        return self._count - 1

    def _drop(self, name: bytes, done: Callable[[bool], None]) -> None:
        place = self._places.get(name)
        if place is None:
            done(True)
            return

        self._leaving.add(name)

        def dropped(ok: bool) -> None:
            if ok and name in self._leaving:
                self._leaving.discard(name)
                del self._places[name]
                heapq.heappush(self._free, place)
            done(ok)

        self._bucket.flusher.write_local(_PLACE_NAME % place, None, dropped)


class _Durable:
    """Waits until everything that was accepted when it was made is on disk; then tells."""

    def __init__(self, bucket: Bucket, done: Callable[[bool], None]) -> None:
        durable = bucket.flusher.durable_seqno
        self._bucket = bucket
        self._done = done
        self._wanted: dict[int, tuple[FailoverLog, int]] = {
            number: (vbucket.failover_log, vbucket.high_seqno)
            for number, vbucket in bucket.vbuckets.items()
            if durable(vbucket) < vbucket.high_seqno
        }

    def __call__(self, ok: bool) -> None:
        """Learn that a flush has ended; wait for another one if that was not all."""
        self._wanted = {
            number: wanted for number, wanted in self._wanted.items() if self._lacks(number)
        }
        if ok and self._wanted:
            self._bucket.flusher.when_durable(self)
        else:
            self._done(ok)

    def _lacks(self, number: int) -> bool:
        vbucket = self._bucket.vbuckets.get(number)
        log, seqno = self._wanted[number]
        if vbucket is None or vbucket.failover_log is not log:
            return False  # that history is over; who followed it learns so by his stream's end
        return self._bucket.flusher.durable_seqno(vbucket) < seqno


def _unpack(record: bytes) -> tuple[bytes, bytes] | None:
    if len(record) < _NAME_LENGTH.size:
        return None
    (length,) = _NAME_LENGTH.unpack_from(record)
    end = _NAME_LENGTH.size + length
    return (record[_NAME_LENGTH.size : end], record[end:]) if len(record) >= end else None


def _no_matter(_ok: bool) -> None:
    """The document beside it tells."""
