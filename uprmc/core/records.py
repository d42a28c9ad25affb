"""Key -> record, in the form that runs here.

`Records` is what a table of the engine needs; `new_records` makes one. The compiled form has no
object for a key, because the key is in the record.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from uprmc.core.form import COMPILED, FORM
from uprmc.record import ABSENT, KIND_AT, LIFE_BITS, key_of, seqno_of

_GONE = LIFE_BITS | ABSENT


class Records(Protocol):
    """Records by the keys that are in them."""

    @property
    def lookup(self) -> Callable[[bytes], bytes | None]:
        """What returns the record of a key, ``None`` if there is none."""

    def get(self, key: bytes) -> bytes | None:
        """Return the record of a key."""

    def __setitem__(self, key: bytes, record: bytes) -> None:
        """Put in the record, in the place of the one with its key."""

    def put_all(
        self, records: list[bytes], overhead: int
    ) -> tuple[list[bytes | None], int, int, int]:
        """Put in records, each in the place of the one with its key.

        Returns:
            what each has replaced; and by how much these have grown: bytes of keys and records with
            `overhead` for each entry, tombstones, documents without their values.
        """

    def pop(self, key: bytes) -> bytes:
        """Take out a key and return its record; `KeyError` if there is none."""

    def values(self) -> Iterable[bytes]:
        """Return all records; they must not change meanwhile."""

    def portions(self) -> Iterator[list[bytes]]:
        """Yield all records in portions, while they may change.

        A key that is there all the time is in exactly one of them, with the record it has then.
        """

    def __iter__(self) -> Iterator[bytes]: ...

    def __len__(self) -> int: ...

    def __contains__(self, key: bytes) -> bool: ...

    def pieces(self) -> list[Any]:
        """Return what has the records, to be freed little by little; this is not used any more."""

    def own_bytes(self) -> int:
        """Return what this takes itself, without keys and records."""


class DictRecords(dict[bytes, bytes]):
    """The interpreted form."""

    __slots__ = ()

    @property
    def lookup(self) -> Callable[[bytes], bytes | None]:
        """See `Records`."""
        return self.get

    def put_all(
        self, records: list[bytes], overhead: int
    ) -> tuple[list[bytes | None], int, int, int]:
        """See `Records`."""
        replaced = []
        grown = dead = absent = 0
        for record in records:
            key = key_of(record)
            old = self.get(key)
            self[key] = record
            replaced.append(old)
            grown += len(record)
            if gone := record[KIND_AT] & _GONE:
                dead += gone != ABSENT
                absent += gone == ABSENT
            if old is None:
                grown += len(key) + overhead
                continue
            grown -= len(old)
            if gone := old[KIND_AT] & _GONE:
                dead -= gone != ABSENT
                absent -= gone == ABSENT
        return replaced, grown, dead, absent

    def portions(self) -> Iterator[list[bytes]]:
        """See `Records`: a dict that changes can only be listed at once."""
        yield list(self.values())

    def pieces(self) -> list[Any]:
        """See `Records`."""
        return [self]

    def own_bytes(self) -> int:
        """See `Records`."""
        return sys.getsizeof(self)


def read_seqnos(records: list[bytes]) -> list[int]:
    """Return the seqno of each record."""
    return [seqno_of(record) for record in records]


seqnos_of = read_seqnos
new_records: Callable[[], Records]
if FORM == COMPILED:
    from uprmc.core.native import table, versions

    new_records = table.RecordTable
    seqnos_of = versions.seqnos_of
    #: What an entry takes beside its key and its record.
    ENTRY_BYTES = int(table.ENTRY_BYTES)
else:
    new_records = DictRecords
    #: The headers of two objects, half of what each is rounded up by, and an entry of a dict at the
    #: usual filling.
    ENTRY_BYTES = 2 * (sys.getsizeof(b"") + 8) + 60
