"""Key -> record, in the form that runs here.

`Records` is what a table of the engine needs; `new_records` makes one. The compiled form has no
object for a key, because the key is in the record.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from uprmc.core.form import COMPILED, FORM

_OBJECT_BYTES = sys.getsizeof(b"") + 8


class Records(Protocol):
    """Records by the keys that are in them."""

    @property
    def lookup(self) -> Callable[[bytes], bytes | None]:
        """What returns the record of a key, ``None`` if there is none."""

    def get(self, key: bytes) -> bytes | None:
        """Return the record of a key."""

    def __setitem__(self, key: bytes, record: bytes) -> None:
        """Put in the record, in the place of the one with its key."""

    def pop(self, key: bytes) -> bytes:
        """Take out a key and return its record; `KeyError` if there is none."""

    def values(self) -> Iterable[bytes]:
        """Return all records; they must not change meanwhile."""

    def __iter__(self) -> Iterator[bytes]: ...

    def __len__(self) -> int: ...

    def __contains__(self, key: bytes) -> bool: ...

    def pieces(self) -> list[object]:
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

    def pieces(self) -> list[object]:
        """See `Records`."""
        return [self]

    def own_bytes(self) -> int:
        """See `Records`."""
        return sys.getsizeof(self)


new_records: Callable[[], Records]
if FORM == COMPILED:
    from uprmc.core.native.table import RecordTable

    new_records = RecordTable
    #: What an entry takes beside its record: the header of an object, half of what that is rounded
    #: up by, and a slot at the usual filling.
    ENTRY_BYTES = _OBJECT_BYTES + 16
    #: How often an entry has its key beside the record.
    KEY_COPIES = 0
else:
    new_records = DictRecords
    #: As above, with the key's object and an entry of a dict.
    ENTRY_BYTES = 2 * _OBJECT_BYTES + 60
    KEY_COPIES = 1
