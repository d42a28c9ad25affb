"""The table of a vBucket: key -> record, with its counts and its share of the memory account.

Everything that puts a record into a table or takes one out goes through here, so that the account
is right. The table has live documents and fresh tombstones: a deleted document stays until its
deletion is on disk (D19).

`get` is the lookup of `core.records` itself, because the hot path of a GET is one call of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from uprmc.core.records import new_records
from uprmc.engine.memory_account import ITEM_OVERHEAD_BYTES, MemoryAccount
from uprmc.errors import TemporaryFailure
from uprmc.model import Item
from uprmc.record import (
    ABSENT,
    AGE_BITS,
    KIND_AT,
    LIFE_BITS,
    LOST,
    READ,
    key_of,
    unpack,
    value_bytes_of,
    with_kind,
    without_value,
)

_GONE = LIFE_BITS | ABSENT


def known(record: bytes) -> bytes:
    """Return a record whose metadata are known.

    Raises:
        TemporaryFailure: they are not, because what is on disk is damaged.
    """
    if record[KIND_AT] & LOST:
        raise TemporaryFailure(f"{key_of(record)!r}: its record on disk is damaged")
    return record


class Table:
    """The records of one vBucket by their keys.

    Attributes:
        get: key -> its record, ``None`` if there is none.
        tombstones: number of tombstones in it.
        absent: number of documents in it whose value is only on disk.
    """

    __slots__ = ("_account", "_records", "absent", "get", "tombstones")

    def __init__(self, account: MemoryAccount) -> None:
        self._account = account
        self._records = new_records()
        self.get: Callable[[bytes], bytes | None] = self._records.lookup
        self.tombstones = 0
        self.absent = 0

    def __len__(self) -> int:
        return len(self._records)

    def __contains__(self, key: bytes) -> bool:
        return key in self._records

    def find(self, key: bytes) -> Item | None:
        """Return the decoded record of a key, ``None`` if there is none.

        Raises:
            TemporaryFailure: its record is damaged.
        """
        record = self.get(key)
        return None if record is None else unpack(known(record))

    def __iter__(self) -> Iterator[bytes]:
        """Yield all keys; the table must not change meanwhile."""
        return iter(self._records)

    def records(self) -> Iterable[bytes]:
        """Return all records; the table must not change while they are iterated over."""
        return self._records.values()

    def portions(self) -> Iterator[list[bytes]]:
        """Yield all records in portions, while they may change; see `core.records`."""
        return self._records.portions()

    def versions(self) -> Iterator[Item]:
        """Yield all records decoded; the table must not change meanwhile."""
        return map(unpack, self._records.values())

    # --- entries that come and go ---------------------------------------------------------------

    def put(self, key: bytes, record: bytes, old: bytes | None) -> None:
        """Put a record in the place of `old`, which is what the table has for the key."""
        if old is None:
            self._account.used += len(record) + len(key) + ITEM_OVERHEAD_BYTES
        else:
            self._account.used += len(record) - len(old)
            gone = old[KIND_AT] & _GONE
            if gone:
                self._uncount(gone)
        gone = record[KIND_AT] & _GONE
        if gone:
            self._count(gone)
        self._records[key] = record

    def put_all(self, records: list[bytes]) -> list[bytes | None]:
        """Put records; return what each has replaced."""
        replaced, grown, dead, absent = self._records.put_all(records, ITEM_OVERHEAD_BYTES)
        self._account.used += grown
        self.tombstones += dead
        self.absent += absent
        return replaced

    def remove(self, key: bytes) -> None:
        """Take an entry out."""
        record = self._records.pop(key)
        gone = record[KIND_AT] & _GONE
        if gone:
            self._uncount(gone)
        self._account.used -= len(record) + len(key) + ITEM_OVERHEAD_BYTES

    # --- values that come and go ----------------------------------------------------------------

    def note_read(self, key: bytes, record: bytes) -> bytes:
        """Make an entry the youngest, and return it."""
        kind = record[KIND_AT]
        if kind & AGE_BITS != READ:
            record = self._records[key] = with_kind(record, kind & ~AGE_BITS | READ)
        return record

    def set_age(self, key: bytes, record: bytes, age: int) -> None:
        """Give an entry another age."""
        self._records[key] = with_kind(record, record[KIND_AT] & ~AGE_BITS | age)

    def eject(self, key: bytes, record: bytes) -> None:
        """Drop a document's value from memory."""
        self._account.used -= value_bytes_of(record)
        self.absent += 1
        self._records[key] = without_value(record)

    def bring_in(self, key: bytes, record: bytes) -> None:
        """Give a document its value back."""
        self._account.used += value_bytes_of(record)
        self.absent -= 1
        self._records[key] = record

    def memory_bytes(self) -> int:
        """Return the table's share of the memory account; O(entries)."""
        size = sum(map(len, self._records.values())) + sum(map(len, self._records))
        return size + ITEM_OVERHEAD_BYTES * len(self._records)

    def let_go(self) -> list[Any]:
        """Return what has the entries, to be freed little by little; this is not used any more."""
        return self._records.pieces()

    def own_bytes(self) -> int:
        """Return what the table takes itself, without its entries' objects."""
        return self._records.own_bytes()

    def _count(self, gone: int) -> None:
        if gone & LIFE_BITS:
            self.tombstones += 1
        else:
            self.absent += 1

    def _uncount(self, gone: int) -> None:
        if gone & LIFE_BITS:
            self.tombstones -= 1
        else:
            self.absent -= 1
