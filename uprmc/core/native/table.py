"""Records by their keys, without an object for the key: compiled only.

A `RecordTable` has what the engine needs of a dict ``key -> record``. The key is looked for inside
the records themselves, so an entry is one pointer and one `bytes`.

Beside each slot is a **tag**, some bits of the key's hash. A look-up reads only records whose tag
fits, because a record that is not in the processor's cache costs more than everything else.

Records lie in **segments**, small tables with open addressing and linear probing. A segment doubles
until it has `SEGMENT_SLOTS`; then it is split in two by the next bit of the hash, and the directory
says which bits lead where (extendible hashing). So no change of a table moves more than a segment,
however many entries there are.

The order of iteration depends on nothing but the keys, the order of changes and Python's hash seed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from librt.strings import BytesWriter, read_i32_le, read_i64_le, write_i64_le
from librt.vecs import vec
from mypy_extensions import i64, u8

FRONT_BYTES: Final[i64] = 24
KIND_AT: Final[i64] = 1
LIFE_BITS: Final[i64] = 3
ABSENT: Final[i64] = 4
KEY_LENGTH_AT: Final[i64] = 7
KEY_LENGTH_MAX: Final[i64] = 255

#: What an entry takes beside its record: an object's header, half of what it is rounded up by, and
#: a slot with its tag at the usual filling; less the key of some 20 bytes, which the account adds
#: for each.
ENTRY_BYTES: Final[i64] = 59 - 20

SMALLEST_SLOTS: Final[i64] = 8
SEGMENT_SLOTS: Final[i64] = 1024
#: Where a hash has the bits of a tag, and the tag of an empty slot.
TAG_SHIFT: Final[i64] = 25
EMPTY: Final[u8] = 0
#: Bits of a hash that the directory may use; the others choose a slot.
DEPTH_MAX: Final[i64] = 16


def _factors() -> bytes:
    """Return a secret number for each place in a key and for its length, from the hash seed."""
    writer = BytesWriter()
    for number in range(KEY_LENGTH_MAX // 4 + 2):
        write_i64_le(writer, hash(b"factor %d" % number))
    return writer.getvalue()


_FACTORS: Final = _factors()


def hash_of(data: bytes, start: i64, length: i64) -> i64:
    """Return the hash of the key in `data` at `start`: 32 bits.

    Vector multiply-shift: who does not know the factors cannot choose keys that collide.
    """
    factors = _FACTORS
    total: i64 = read_i64_le(factors, 0) * length
    at: i64 = 8
    place: i64 = start
    end: i64 = start + length
    while place + 4 <= end:
        total += read_i64_le(factors, at) * (i64(read_i32_le(data, place)) & 0xFFFFFFFF)
        at += 8
        place += 4
    if place < end:
        rest: i64 = 0
        while place < end:
            rest = (rest << 8) | i64(data[place])
            place += 1
        total += read_i64_le(factors, at) * rest
    return (total >> 32) & 0xFFFFFFFF


def tail_of(record: bytes) -> i64:
    """Return where a record's tail begins: 16 bytes further if the record has an origin."""
    return FRONT_BYTES + i64(record[KEY_LENGTH_AT]) + ((i64(record[1]) & 0x08) << 1)


def same_key(record: bytes, data: bytes, start: i64, length: i64) -> bool:
    """Tell whether a record has the key that is in `data` at `start`."""
    if i64(record[KEY_LENGTH_AT]) != length:
        return False
    place: i64 = 0
    if length >= 8:
        last: i64 = length - 8
        while place < last:
            if read_i64_le(record, FRONT_BYTES + place) != read_i64_le(data, start + place):
                return False
            place += 8
        return read_i64_le(record, FRONT_BYTES + last) == read_i64_le(data, start + last)
    while place < length:
        if record[FRONT_BYTES + place] != data[start + place]:
            return False
        place += 1
    return True


def _tag_of(hashed: i64) -> u8:
    return u8(0x80 | (hashed >> TAG_SHIFT))


def _hash_of_record(record: bytes) -> i64:
    return hash_of(record, FRONT_BYTES, i64(record[KEY_LENGTH_AT]))


def _reversed(bits: i64) -> i64:
    found: i64 = 0
    place: i64 = 0
    while place < DEPTH_MAX:
        found = (found << 1) | ((bits >> place) & 1)
        place += 1
    return found


class Segment:
    """The entries whose hashes agree in the lowest `depth` bits."""

    __slots__ = ("count", "depth", "mask", "slots", "tags")

    def __init__(self, slots: i64, depth: i64) -> None:
        self.slots: list[bytes | None] = [None] * slots
        self.tags: vec[u8] = vec[u8]([0] * slots)
        self.mask: i64 = slots - 1
        self.depth: i64 = depth
        self.count: i64 = 0

    def add(self, record: bytes) -> None:
        """Put in a record whose key is not here; there is room."""
        tags = self.tags
        mask = self.mask
        hashed = _hash_of_record(record)
        place: i64 = (hashed >> DEPTH_MAX) & mask
        while tags[place] != EMPTY:
            place = (place + 1) & mask
        self.fill(place, hashed, record)

    def fill(self, place: i64, hashed: i64, record: bytes) -> None:
        """Put a record into an empty slot."""
        self.slots[place] = record
        self.tags[place] = _tag_of(hashed)
        self.count += 1

    def close_gap(self, gap: i64) -> None:
        """Empty a slot, and move up whatever would not be found any more behind it."""
        slots = self.slots
        tags = self.tags
        mask = self.mask
        slots[gap] = None
        tags[gap] = EMPTY
        self.count -= 1
        place: i64 = gap
        while True:
            place = (place + 1) & mask
            record = slots[place]
            if record is None:
                return
            home: i64 = (_hash_of_record(record) >> DEPTH_MAX) & mask
            if ((place - home) & mask) >= ((place - gap) & mask):
                slots[gap] = record
                slots[place] = None
                tags[gap] = tags[place]
                tags[place] = EMPTY
                gap = place


class RecordTable:
    """See the module docstring. It can be called: that is `get`."""

    __slots__ = ("_bits", "_count", "_directory", "_mask", "_slots", "_tags")

    def __init__(self) -> None:
        only = Segment(SMALLEST_SLOTS, 0)
        self._directory: list[Segment] = [only]
        self._slots: list[bytes | None] = only.slots
        self._tags: vec[u8] = only.tags
        self._mask: i64 = only.mask
        self._bits: i64 = 0
        self._count: i64 = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, key: bytes) -> bool:
        return self.find(key, 0, len(key)) is not None

    def __call__(self, key: bytes) -> bytes | None:
        return self.find(key, 0, len(key))

    def get(self, key: bytes) -> bytes | None:
        """Return the record of a key."""
        return self.find(key, 0, len(key))

    def find(self, data: bytes, start: i64, length: i64) -> bytes | None:
        """Return the record of the key that is in `data` at `start`."""
        if length > KEY_LENGTH_MAX:
            return None
        return self.find_hashed(hash_of(data, start, length), data, start, length)

    def find_hashed(self, hashed: i64, data: bytes, start: i64, length: i64) -> bytes | None:
        """Do what `find` does for a key whose hash is known."""
        if self._bits != 0:
            self._face(self._directory[hashed & self._bits])
        tags = self._tags
        mask = self._mask
        wanted = _tag_of(hashed)
        place: i64 = (hashed >> DEPTH_MAX) & mask
        while True:
            tag = tags[place]
            if tag == wanted:
                record = self._slots[place]
                if record is not None and same_key(record, data, start, length):
                    return record
            elif tag == EMPTY:
                return None
            place = (place + 1) & mask

    def place_of(self, hashed: i64) -> i64:
        """Return the slot where a look-up of a key with that hash begins to read records, or -1."""
        if self._bits != 0:
            self._face(self._directory[hashed & self._bits])
        tags = self._tags
        mask = self._mask
        wanted = _tag_of(hashed)
        place: i64 = (hashed >> DEPTH_MAX) & mask
        while True:
            tag = tags[place]
            if tag == wanted:
                return -1 if self._slots[place] is None else place
            if tag == EMPTY:
                return -1
            place = (place + 1) & mask

    def touch(self, hashed: i64, place: i64) -> i64:
        """Read a record in the slot that `place_of` has found; what it returns means nothing."""
        if self._bits != 0:
            self._face(self._directory[hashed & self._bits])
        record = self._slots[place]
        if record is None:
            return 0
        length = i64(len(record))
        read = i64(record[0]) + i64(record[length - 1])
        return read + i64(record[64]) if length > 96 else read

    def _face(self, segment: Segment) -> None:
        """Have the fields of a segment at hand: a table that has one only needs no other look."""
        self._slots = segment.slots
        self._tags = segment.tags
        self._mask = segment.mask

    @property
    def lookup(self) -> RecordTable:
        """What returns the record of a key when it is called."""
        return self

    def __setitem__(self, key: bytes, record: bytes) -> None:
        """Put in the record, in the place of the one with its key."""
        self.put(record)

    def put(self, record: bytes) -> bytes | None:
        """Put in a record in the place of the one with its key, which is returned."""
        return self.put_hashed(_hash_of_record(record), record)

    def put_hashed(self, hashed: i64, record: bytes) -> bytes | None:
        """Do what `put` does for a record whose key's hash is known."""
        length: i64 = i64(record[KEY_LENGTH_AT])
        while True:
            segment = self._directory[hashed & self._bits]
            tags = segment.tags
            mask = segment.mask
            wanted = _tag_of(hashed)
            place: i64 = (hashed >> DEPTH_MAX) & mask
            while True:
                tag = tags[place]
                if tag == wanted:
                    old = segment.slots[place]
                    if old is not None and same_key(old, record, FRONT_BYTES, length):
                        segment.slots[place] = record
                        return old
                elif tag == EMPTY:
                    break
                place = (place + 1) & mask
            if (segment.count + 1) * 4 <= (mask + 1) * 3:
                segment.fill(place, hashed, record)
                self._count += 1
                return None
            self._make_room(segment, hashed)

    def put_all(
        self, records: list[bytes], overhead: i64
    ) -> tuple[list[bytes | None], int, int, int]:
        """Put in records; see `uprmc.core.records.Records`."""
        replaced: list[bytes | None] = []
        grown: i64 = 0
        dead: i64 = 0
        absent: i64 = 0
        for record in records:
            old = self.put(record)
            replaced.append(old)
            grown += i64(len(record))
            kind: i64 = i64(record[KIND_AT])
            if kind & LIFE_BITS:
                dead += 1
            elif kind & ABSENT:
                absent += 1
            if old is None:
                grown += i64(record[KEY_LENGTH_AT]) + overhead
                continue
            grown -= i64(len(old))
            kind = i64(old[KIND_AT])
            if kind & LIFE_BITS:
                dead -= 1
            elif kind & ABSENT:
                absent -= 1
        return replaced, grown, dead, absent

    def pop(self, key: bytes) -> bytes:
        """Take out a key and return its record; `KeyError` if there is none."""
        length: i64 = len(key)
        if length > KEY_LENGTH_MAX:
            raise KeyError(key)
        hashed = hash_of(key, 0, length)
        segment = self._directory[hashed & self._bits]
        mask = segment.mask
        place: i64 = (hashed >> DEPTH_MAX) & mask
        while True:
            record = segment.slots[place]
            if record is None:
                raise KeyError(key)
            if same_key(record, key, 0, length):
                break
            place = (place + 1) & mask
        segment.close_gap(place)
        self._count -= 1
        return record

    def __iter__(self) -> Iterator[bytes]:
        for record in self.values():
            yield record[FRONT_BYTES : FRONT_BYTES + i64(record[KEY_LENGTH_AT])]

    def values(self) -> Iterator[bytes]:
        """Yield all records; the table must not change meanwhile."""
        for segment in self.segments():
            for record in segment.slots:
                if record is not None:
                    yield record

    def portions(self) -> Iterator[list[bytes]]:
        """Yield the records of one segment after the other; the table may change meanwhile.

        Segments come in the order of their reversed hash bits: halves of a split one stay where it
        was, so each is passed once.
        """
        at: i64 = 0
        while at < 1 << DEPTH_MAX:
            segment = self._directory[_reversed(at) & self._bits]
            at += 1 << (DEPTH_MAX - segment.depth)
            yield [record for record in segment.slots if record is not None]

    def segments(self) -> list[Segment]:
        """Return the segments, each once."""
        found: list[Segment] = []
        number: i64 = 0
        for segment in self._directory:
            if number >> segment.depth == 0:
                found.append(segment)
            number += 1
        return found

    def pieces(self) -> list[Any]:
        """Return what has the records, in small pieces; the table is not used any more."""
        return [segment.slots for segment in self.segments()]

    def own_bytes(self) -> int:
        """Return what the table takes itself, without the records."""
        total: i64 = 56 + 8 * len(self._directory)
        for segment in self.segments():
            total += 168 + 9 * (segment.mask + 1)
        return total

    def check(self) -> None:
        """Verify every invariant; for tests."""
        total: i64 = 0
        number: i64 = 0
        for segment in self._directory:
            assert segment is self._directory[number & ((1 << segment.depth) - 1)]
            number += 1
        for segment in self.segments():
            found: i64 = 0
            place: i64 = 0
            for record in segment.slots:
                assert (record is None) == (segment.tags[place] == EMPTY)
                place += 1
                if record is not None:
                    found += 1
                    key = bytes(record[FRONT_BYTES : FRONT_BYTES + i64(record[KEY_LENGTH_AT])])
                    assert self.get(key) is record
            assert found == segment.count <= SEGMENT_SLOTS
            total += found
        assert total == self._count

    def _make_room(self, full: Segment, hashed: i64) -> None:
        """Double a segment, or split it by the next bit of the hash."""
        slots: i64 = full.mask + 1
        if slots < SEGMENT_SLOTS or full.depth == DEPTH_MAX:
            larger = Segment(slots * 2, full.depth)
            for record in full.slots:
                if record is not None:
                    larger.add(record)
            full.slots = larger.slots
            full.tags = larger.tags
            full.mask = larger.mask
            self._face(full)
            return
        if (1 << full.depth) > self._bits:
            self._directory = self._directory + self._directory
            self._bits = self._bits * 2 + 1
        bit: i64 = 1 << full.depth
        halves = [Segment(slots, full.depth + 1), Segment(slots, full.depth + 1)]
        for record in full.slots:
            if record is not None:
                halves[1 if _hash_of_record(record) & bit else 0].add(record)
        place: i64 = hashed & (bit - 1)
        while place <= self._bits:
            self._directory[place] = halves[1 if place & bit else 0]
            place += bit
        self._face(halves[0])
