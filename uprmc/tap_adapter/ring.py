"""The keys that one TAP client was sent, so that its last changes can be taken back.

TAP cannot say "forget what is above seqno n". When history has branched, the client gets the
current version of every key that it was sent above the branch instead; this ring knows those keys.
It is bounded over all vBuckets of a client, and says where it no longer reaches.

Fifty clients hold half a million keys, so a key is no object: keys and their lengths lie end to end
in two byte arrays, and a run (one vBucket's messages of one batch) is a row of three numbers.

Source: TAP reference, section 10 (rollback answer).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise

#: Stands for the last seqno of a run that is forgotten and not dropped yet.
_FORGOTTEN = 0

#: Places of lengths are counted modulo this, which is more than a ring holds.
_PLACES = 2**32

#: Rows before the oldest run are given back in blocks: at least this many, or an eighth of all.
_DROPPED_ROWS_LEAST = 64


class Ring:
    """Keys that were sent, newest last.

    What was sent again, and corrections, are added like anything else: what a client may hold of a
    vBucket is what its runs say, in any order.
    """

    def __init__(self, keys_max: int) -> None:
        """Make an empty ring for at most `keys_max` keys; 0 = it never reaches back."""
        self._keys_max = keys_max
        self._keys = bytearray()
        self._lengths = bytearray()
        # Rows, in order: whose, the last seqno, and the place of its first length.
        self._vbuckets = array("H")
        self._last_seqnos = array("Q")
        self._places = array("I")
        self._dropped_rows = 0
        self._dropped_keys = 0
        # By vBucket: above what it reaches, and the highest seqno that was added.
        self._floors: dict[int, int] = {}
        self._ends: dict[int, int] = {}

    def __len__(self) -> int:
        """Return how many keys it holds, forgotten ones included."""
        return len(self._lengths)

    def add(self, vbucket: int, first_after: int, last_seqno: int, keys: Sequence[bytes]) -> None:
        """Note one run.

        Args:
            vbucket: the vBucket of the checkpoints.
            first_after: what the stream stood at before it; everything sent between this and
                `last_seqno` is in `keys`. If it lies above all earlier runs, what is between is
                taken for lost.
            last_seqno: the highest seqno in it; for corrections that of the versions sent.
            keys: there may be duplicates.
        """
        end = self._ends.get(vbucket, -1)
        if first_after > end:
            self._raise_floor(vbucket, first_after)
        self._ends[vbucket] = max(last_seqno, end)
        lengths = _lengths(keys)
        if lengths is None or len(lengths) > self._keys_max:
            self._raise_floor(vbucket, last_seqno)
        elif lengths:
            self._vbuckets.append(vbucket)
            self._last_seqnos.append(last_seqno)
            self._places.append((self._dropped_keys + len(self._lengths)) % _PLACES)
            self._lengths += lengths
            self._keys += b"".join(keys)
            while len(self._lengths) > self._keys_max:
                self._drop_oldest()

    def lost(self, vbucket: int, seqno: int) -> None:
        """Note that up to `seqno` was sent and is not in here: an earlier process sent it."""
        self._raise_floor(vbucket, seqno)

    def above(self, vbucket: int, seqno: int) -> list[bytes] | None:
        """Return the distinct keys of runs that reach above `seqno`, ``None`` if some are lost.

        A run is taken whole, so there may be keys that were sent at or below `seqno`; sending their
        current version is harmless. Costs a pass over the ring.
        """
        if seqno < self._floors.get(vbucket, seqno + 1):
            return None
        found: dict[bytes, None] = {}
        for last_seqno, keys in self._runs(vbucket):
            if last_seqno > seqno:
                found.update(dict.fromkeys(keys))
        return list(found)

    def forget(self, vbucket: int) -> None:
        """Note that the client was told to empty `vbucket`: it holds nothing that was sent."""
        if self._floors.pop(vbucket, None) is None:
            return
        self._ends.pop(vbucket, None)
        for row in self._rows(vbucket):
            self._last_seqnos[row] = _FORGOTTEN

    def _raise_floor(self, vbucket: int, seqno: int) -> None:
        self._floors[vbucket] = max(seqno, self._floors.get(vbucket, 0))

    def _rows(self, vbucket: int) -> Iterator[int]:
        row = self._dropped_rows - 1
        while True:
            try:
                row = self._vbuckets.index(vbucket, row + 1)
            except ValueError:
                return
            yield row

    def _runs(self, vbucket: int) -> Iterator[tuple[int, Iterator[bytes]]]:
        place = key_place = 0
        for row in self._rows(vbucket):
            first = self._place(row)
            key_place += sum(self._lengths[place:first])
            place = self._place(row + 1)
            ends = list(accumulate(self._lengths[first:place], initial=key_place))
            key_place = ends[-1]
            yield (
                self._last_seqnos[row],
                (bytes(self._keys[start:end]) for start, end in pairwise(ends)),
            )

    def _place(self, row: int) -> int:
        """Return where a row's lengths begin, as of now; those of no row at the end."""
        if row == len(self._places):
            return len(self._lengths)
        return (self._places[row] - self._dropped_keys) % _PLACES

    def _drop_oldest(self) -> None:
        row = self._dropped_rows
        if self._last_seqnos[row] != _FORGOTTEN:
            self._raise_floor(self._vbuckets[row], self._last_seqnos[row])
        count = self._place(row + 1)
        # A byte array gives up its front without moving the rest; the columns do not.
        del self._keys[: sum(self._lengths[:count])]
        del self._lengths[:count]
        self._dropped_keys += count
        self._dropped_rows += 1
        if self._dropped_rows > max(_DROPPED_ROWS_LEAST, len(self._vbuckets) // 8):
            for column in (self._vbuckets, self._last_seqnos, self._places):
                del column[: self._dropped_rows]
            self._dropped_rows = 0


def _lengths(keys: Sequence[bytes]) -> bytes | None:
    """Return the keys' lengths, ``None`` if one is longer than any memcached takes."""
    try:
        return bytes(map(len, keys))
    except ValueError:
        return None
