"""When documents expire: entries in slots of time, so that no scan of all documents is needed.

An entry is a key and the number of its vBucket, and means: check this document at that time. Each
document of an active vBucket that expires has an entry in a slot that is due no later than the
document. So a document whose expiry is postponed needs no other entry: when its slot is due it is
entered again. The entry of a document that was replaced, deleted or no longer expires is then
dropped.

The sooner a slot is due the narrower it is, down to one second: there are only some hundred slots,
and an entry moves only a few times.

Note: moving an expiry back and forth leaves obsolete entries. `entries` is their number; the owner
of the timetable discards it when there are too many, and creates a new one.
"""

from __future__ import annotations

from collections.abc import Iterator

#: A slot is at most 1 / 2**(this - 1) as wide as the time until it is due.
_FINE_BITS = 5
_FINE_S = 1 << _FINE_BITS


class Timetable:
    """The expiry times of all documents, in slots.

    Attributes:
        entries: number of entries.
        now: Unix time in whole seconds when the due ones were last asked for.
    """

    __slots__ = ("_slots", "entries", "now")

    def __init__(self, now: float) -> None:
        self.now = int(now)
        self.entries = 0
        # Number and key of each entry one after the other: half the size of pairs.
        self._slots: dict[int, list[int | bytes]] = {}

    def add(self, number: int, key: bytes, expiry: int) -> None:
        """Schedule the document `key` of vBucket `number` to be checked by `expiry`."""
        slot, left = expiry, expiry - self.now
        if left >= _FINE_S:
            shift = left.bit_length() - _FINE_BITS
            slot = expiry >> shift << shift
        entries = self._slots.get(slot)
        if entries is None:
            entries = self._slots[slot] = []
        entries.append(number)
        entries.append(key)
        self.entries += 1

    def take_due(self, now: float) -> Iterator[list[int | bytes]]:
        """Yield the slots that are due, as lists of number, key, number, key; they are gone."""
        self.now = int(now)
        for slot in sorted(slot for slot in self._slots if slot <= now):
            entries = self._slots.pop(slot, None)
            if entries is not None:  # they were not all taken in the meantime
                self.entries -= len(entries) // 2
                yield entries

    def take_all(self) -> list[list[int | bytes]]:
        """Return all slots and forget them."""
        slots, self._slots = self._slots, {}
        self.entries = 0
        return list(slots.values())
