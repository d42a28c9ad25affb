"""When which documents expire: entries in slots of time, so that nobody looks at all documents.

An entry is a key and the number of its vBucket, and says: look at that document then. For each
document of an active vBucket that expires there is one in a slot that is due not later than the
document. So a document whose expiry is put off needs no other entry: when its slot is due it is
entered again. One that was replaced, deleted or made to stay is forgotten then.

A slot is the narrower the sooner it is due, a second in the end: there are some hundred slots
whatever the times are, and an entry moves a few times in its life.

What surprises: expiry put forth and back again leaves entries that nobody needs. `entries` tells
their number; who keeps the timetable throws it away when there are too many, and makes it anew.
"""

from __future__ import annotations

from collections.abc import Iterator

#: A slot is at most 1 / 2**(this - 1) as wide as the time until it is due.
_FINE_BITS = 5
_FINE_S = 1 << _FINE_BITS


class Timetable:
    """See the module docstring.

    Attributes:
        entries: how many there are.
        now: Unix time in whole seconds when the due ones were last asked for.
    """

    __slots__ = ("_slots", "entries", "now")

    def __init__(self, now: float) -> None:
        self.now = int(now)
        self.entries = 0
        # Number and key of each entry one after the other: half of what pairs would take.
        self._slots: dict[int, list[int | bytes]] = {}

    def add(self, number: int, key: bytes, expiry: int) -> None:
        """Have the document `key` of vBucket `number` looked at by `expiry`."""
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
            if entries is not None:  # nobody took them all meanwhile
                self.entries -= len(entries) // 2
                yield entries

    def take_all(self) -> list[list[int | bytes]]:
        """Return all slots; there are none any more."""
        slots, self._slots = self._slots, {}
        self.entries = 0
        return list(slots.values())
