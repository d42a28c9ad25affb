"""Tombstones: which records are some, how many are on disk, and where.

The functions that find them are the interpreted form; `uprmc.core.native.tombstones` replaces them
if it runs.

How many tombstones are on disk, and where: the answer to "what is kept, and for whom".

The count follows the commits: each tells which seqnos its records have replaced, so nothing is read
for it. Warm-up counts what was there before. A tombstone takes 4 bytes here, and each run of 4,096
seqnos that has one about 200.

Row X03.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from uprmc.core import form
from uprmc.model import SEQNO_MAX
from uprmc.record import FRONT, KIND_AT, LIFE_BITS, cas_of, key_of, seqno_of
from uprmc.storage.interface import CommitBatch, VBucketChange

#: A tombstone: (key, seqno).
Record = tuple[bytes, int]


# --- which are dropped ----------------------------------------------------------------------------


#: After every time that a tombstone can have.
_NEVER_S = 1 << 32


class PurgeRule(NamedTuple):
    """Which tombstones a compaction shall drop.

    A bound of 0 counts as absent; the bounds that are given must all hold. Without any bound
    nothing is dropped. ep-engine has the same rule, except that its purge-before-seq alone dropped
    nothing.
    """

    before_s: int = 0  # tombstones of deletions before this Unix time
    upto_seqno: int = 0  # tombstones with this seqno or a lower one
    every: bool = False  # all tombstones, whatever the bounds
    aged: bool = False  # `before_s` is what the node's own age says when the compaction begins
    forced: bool = False  # watermarks are ignored

    def bounds(self) -> tuple[int, int]:
        """Return the time before which, and the seqno up to which, tombstones are dropped."""
        if self.every:
            return _NEVER_S, SEQNO_MAX
        if not (self.before_s or self.upto_seqno):
            return 0, 0
        return self.before_s or _NEVER_S, self.upto_seqno or SEQNO_MAX


class Compacted(NamedTuple):
    """What a compaction did to a vBucket."""

    vbucket: int
    start: int  # the purge seqno before
    end: int = 0  # the purge seqno after
    dropped: int = 0  # number of tombstones that were dropped
    limited_by: bytes | str | None = None  # see `watermarks.rows.Limit`
    examined: int = 0  # up to where tombstones were looked for
    # the lowest seqno of a tombstone that stays, of those that were examined.
    first_left: int = SEQNO_MAX
    oldest_left: int = SEQNO_MAX  # the lowest time of deletion of these tombstones


def shown(id: bytes | str | None) -> str | None:
    """Return the id of a watermark, or what stands for one, as events and tables show it."""
    return id.decode("utf-8", "backslashreplace") if isinstance(id, bytes) else id


# --- finding them -------------------------------------------------------------------------------


#: The last seqno examined, the lowest one of a tombstone that stays, the oldest time of deletion of
#: those.
Left = tuple[int, int, int]


def pick(
    records: list[bytes],
    bounds: tuple[int, int, int],
    most: int,
    found: list[Record],
    left: Left,
) -> tuple[int, int, int, bool]:
    """Append to `found` the tombstones that are to go, until it has `most`.

    Args:
        records: by rising seqno.
        bounds: where to stop; and of tombstones that go, the time after the deletion and the
            highest seqno.
        most: at least one more than `found` has.
        found: what was found before.
        left: what earlier calls returned.

    Returns:
        `Left`, and whether there was a record above the bound.
    """
    limit, before_s, upto = bounds
    after, first_left, oldest_left = left
    for record in records:
        _, kind, _, deleted_at_s, _, _, seqno = FRONT.unpack_from(record)
        if seqno > limit:
            return after, first_left, oldest_left, True
        after = seqno
        if not kind & LIFE_BITS:
            continue
        if deleted_at_s < before_s and seqno <= upto:
            found.append((key_of(record), seqno))
            if len(found) >= most:
                break
        else:
            first_left = min(first_left, seqno)
            oldest_left = min(oldest_left, deleted_at_s)
    return after, first_left, oldest_left, False


def dead_among(records: list[bytes]) -> list[bytes]:
    """Return the tombstones among records."""
    return [record for record in records if record[KIND_AT] & LIFE_BITS]


def highest_cas(records: list[bytes]) -> int:
    """Return the highest CAS of records, 0 of none."""
    return max(map(cas_of, records), default=0)


if form.FORM == form.COMPILED and not TYPE_CHECKING:
    from uprmc.core.native.tombstones import dead_among, highest_cas, pick  # noqa: F401


# --- the count ----------------------------------------------------------------------------------


#: A block has the tombstones of 2 to the power of this many seqnos.
_BLOCK_BITS = 12
_OFFSETS = (1 << _BLOCK_BITS) - 1

#: An entry of a block is the offset in the block, then the bytes of the record.
_SIZE_BITS = 20
_SIZES = (1 << _SIZE_BITS) - 1

#: Records that are counted in one step.
_STEP_RECORDS = 256

_SEQNO_BYTES = 8

T = TypeVar("T")


class Amount(NamedTuple):
    """A number of tombstones, and the bytes of their records."""

    number: int = 0
    bytes: int = 0

    def plus(self, other: Amount) -> Amount:
        """Return both together."""
        return Amount(self.number + other.number, self.bytes + other.bytes)


class _Block:
    """The tombstones of one run of seqnos; `entries` rise."""

    __slots__ = ("bytes", "entries")

    def __init__(self) -> None:
        self.entries = array("I")
        self.bytes = 0

    def find(self, offset: int) -> int:
        """Return where the entry of an offset is, or would be."""
        return bisect_left(self.entries, offset << _SIZE_BITS)

    def amount(self, low: int, high: int) -> Amount:
        """Return what there is from one offset to the other."""
        found = self.entries[self.find(low) : self.find(high + 1)]
        return Amount(len(found), _bytes_of(found))


def _bytes_of(entries: Iterable[int]) -> int:
    return sum([entry & _SIZES for entry in entries])


class TombstoneIndex:
    """The tombstones that one vBucket has on disk."""

    __slots__ = ("_blocks", "bytes", "newest", "number")

    def __init__(self) -> None:
        self._blocks: dict[int, _Block] = {}
        # No tombstone has a higher seqno; how many there are, and the bytes of all of them.
        self.newest = self.number = self.bytes = 0

    def add(self, seqno: int, size: int) -> None:
        """Count a tombstone; one that is counted already is counted again."""
        is_newest = seqno > self.newest
        if is_newest:
            self.newest = seqno
        else:
            self.discard(seqno)
        number = seqno >> _BLOCK_BITS
        block = self._blocks.get(number)
        if block is None:
            block = self._blocks[number] = _Block()
        offset, size = seqno & _OFFSETS, min(size, _SIZES)
        at = len(block.entries) if is_newest else block.find(offset)
        block.entries.insert(at, offset << _SIZE_BITS | size)
        block.bytes += size
        self.number += 1
        self.bytes += size

    def discard(self, seqno: int) -> None:
        """Forget a tombstone, if there is one of that seqno."""
        block = self._blocks.get(seqno >> _BLOCK_BITS)
        if block is None:
            return
        offset = seqno & _OFFSETS
        at = block.find(offset)
        if at == len(block.entries) or block.entries[at] >> _SIZE_BITS != offset:
            return
        size = block.entries.pop(at) & _SIZES
        block.bytes -= size
        self.number -= 1
        self.bytes -= size
        if not block.entries:
            del self._blocks[seqno >> _BLOCK_BITS]

    def discard_all(self, seqnos: Sequence[int]) -> None:
        """Forget those of some different seqnos that there are; a run of them costs little."""
        low, high = min(seqnos), max(seqnos)
        if high - low == len(seqnos) - 1:
            self._discard_between(low, high)
            return
        for seqno in seqnos:
            self.discard(seqno)

    def _discard_between(self, low: int, high: int) -> None:
        """Forget all tombstones from one seqno to another."""
        first, last = low >> _BLOCK_BITS, high >> _BLOCK_BITS
        for number in [each for each in self._blocks if first <= each <= last]:
            block = self._blocks[number]
            begin = block.find(low & _OFFSETS) if number == first else 0
            end = block.find((high & _OFFSETS) + 1) if number == last else len(block.entries)
            gone = block.entries[begin:end]
            del block.entries[begin:end]
            size = _bytes_of(gone)
            block.bytes -= size
            self.number -= len(gone)
            self.bytes -= size
            if not block.entries:
                del self._blocks[number]

    def rewind(self, seqno: int) -> None:
        """Forget all tombstones above a seqno."""
        self._discard_between(seqno + 1, max(self.newest, seqno + 1))
        self.newest = min(self.newest, seqno)

    def between(self, low: int, high: int) -> Amount:
        """Return what there is above one seqno up to another."""
        if low >= high or not self._blocks:
            return Amount()
        first, last = (low + 1) >> _BLOCK_BITS, high >> _BLOCK_BITS
        number = size = 0
        for at, block in self._blocks.items():
            if first < at < last:
                number += len(block.entries)
                size += block.bytes
            elif at in (first, last):
                begin = (low + 1) & _OFFSETS if at == first else 0
                found = block.amount(begin, high & _OFFSETS if at == last else _OFFSETS)
                number += found.number
                size += found.bytes
        return Amount(number, size)


class Tombstones:
    """The tombstones of all vBuckets; it says what the newest commit has left."""

    def __init__(self) -> None:
        self._indexes: dict[int, TombstoneIndex] = {}

    def of(self, number: int) -> TombstoneIndex:
        """Return what is known of a vBucket."""
        return self._indexes.get(number) or TombstoneIndex()

    @property
    def total(self) -> Amount:
        """All tombstones of the node."""
        found = self._indexes.values()
        return Amount(sum(each.number for each in found), sum(each.bytes for each in found))

    def load(self, number: int, records: Iterable[bytes]) -> None:
        """Count those among records that are on disk already."""
        index = self._indexes.get(number)
        for record in records:
            if record[KIND_AT] & LIFE_BITS:
                if index is None:
                    index = self._indexes[number] = TombstoneIndex()
                index.add(seqno_of(record), len(record))

    def committed(self, batch: CommitBatch) -> Iterator[None]:
        """Take over what a commit has done, in short steps."""
        if batch.reset_all:
            self._indexes.clear()
        since_yield = 0
        for change in batch.changes:
            for done in self._changed(change, batch.replaced.get(change.vbucket, ())):
                since_yield += done
                if since_yield >= _STEP_RECORDS:
                    since_yield = 0
                    yield

    def _changed(self, change: VBucketChange, replaced: Sequence[bytes]) -> Iterator[int]:
        """Take over one vBucket's change; yields how many records each piece of it has."""
        if change.reset or change.header is None:
            self._indexes.pop(change.vbucket, None)
        index = self._indexes.get(change.vbucket)
        if index is not None:
            if change.rewind is not None:
                index.rewind(change.rewind)
            for gone in _seqnos_gone(change, replaced, index.newest):
                index.discard_all(gone)
                yield len(gone)
        if dead := dead_among(list(change.records)):
            for some in _pieces(dead):
                self.load(change.vbucket, some)
                yield len(some)


def _seqnos_gone(
    change: VBucketChange, replaced: Sequence[bytes], newest: int
) -> Iterator[list[int]]:
    """Yield seqnos that belong to no tombstone of before any more, among others, in pieces."""
    for dropped in _pieces(change.drop):
        yield [seqno for _, seqno in dropped]
    for places in _pieces(replaced):
        yield [int.from_bytes(place[:_SEQNO_BYTES]) for place in places]
    if change.records and seqno_of(change.records[0]) <= newest:  # after a rollback
        for records in _pieces(change.records):
            yield [seqno_of(record) for record in records]


def _pieces(given: Sequence[T]) -> Iterator[Sequence[T]]:
    return (given[at : at + _STEP_RECORDS] for at in range(0, len(given), _STEP_RECORDS))
