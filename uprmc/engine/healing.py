"""Damaged records: each is named once, and written again where somebody has that very version.

The store tells which live records it found damaged. If the document's value is in memory, that is
the version; otherwise another node that has the same history is asked. A version counts only if it
has the seqno of the damaged record and, where its metadata are known here, the same ones. Whatever
replaces the document heals it, too. Until then its readers get a temporary failure.

`tick` does everything; it comes a few times a second.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from uprmc.engine.flusher import Flusher
from uprmc.engine.stats import Stats
from uprmc.engine.vbucket import VBucket
from uprmc.errors import StoreError
from uprmc.model import Item
from uprmc.record import ABSENT, KIND_AT, LOST, REV, cas_of, pack, seqno_of
from uprmc.storage.interface import Damaged, Store

#: Records that are looked after at a time; others are named and wait until they are met again.
_PENDING_MAX = 10_000
#: Records that are asked for, or written, in one tick.
_AT_ONCE = 32
#: Seconds until somebody is asked again.
_ASK_AGAIN_S = 10.0

#: Asks another node for the version of a key; says whether there is one to ask.
Ask = Callable[[int, bytes, Callable[[Item | None], None]], bool]


@dataclass(slots=True)
class _Case:
    """One damaged record."""

    due: float = 0.0  # when to do something about it, in seconds of the monotonic clock
    writing: bool = False  # whether a commit is to heal it


class Healer:
    """Looks after the damaged records of one bucket."""

    def __init__(
        self, store: Store, vbuckets: dict[int, VBucket], flusher: Flusher, stats: Stats
    ) -> None:
        self._store = store
        self._vbuckets = vbuckets
        self._flusher = flusher
        self._stats = stats
        self._cases: dict[Damaged, _Case] = {}
        self._now = 0.0
        self.ask: Ask = _ask_none
        # Called with records that were found damaged, and with those that were healed.
        self.on_event: Callable[[str, dict[str, object]], None] = lambda _name, _fields: None

    @property
    def pending(self) -> int:
        """How many records are damaged now, as far as known."""
        return len(self._cases)

    def tick(self, now: float) -> None:
        """Name what was found, and do what is due."""
        self._now = now
        for damaged in self._store.take_damaged():
            self._stats.damaged_records += 1
            self.on_event("damaged_record", _fields(damaged))
            if len(self._cases) < _PENDING_MAX:
                self._cases[damaged] = _Case()
        if not self._cases:
            return
        due = [each for each, case in self._cases.items() if case.due <= now and not case.writing]
        for damaged in due[:_AT_ONCE]:
            self._cases[damaged].due = now + _ASK_AGAIN_S
            self._look_after(damaged)

    def _look_after(self, damaged: Damaged) -> None:
        vbucket = self._vbuckets.get(damaged.vbucket)
        present = None if vbucket is None else vbucket.table.get(damaged.key)
        replaced = present is not None and seqno_of(present) != damaged.seqno
        if vbucket is None or replaced or vbucket.high_seqno < damaged.seqno:
            del self._cases[damaged]
        elif present is not None and not present[KIND_AT] & ABSENT:
            self._heal(damaged, present)
        else:
            self.ask(damaged.vbucket, damaged.key, partial(self._told, damaged))

    def _told(self, damaged: Damaged, version: Item | None) -> None:
        """Learn what another node has."""
        case, vbucket = self._cases.get(damaged), self._vbuckets.get(damaged.vbucket)
        if case is None or case.writing or vbucket is None or version is None:
            return
        if (version.key, version.seqno) != (damaged.key, damaged.seqno):
            return
        record, present = pack(version), vbucket.table.get(damaged.key)
        if present is not None and not present[KIND_AT] & LOST:
            same = present[REV] == record[REV] and cas_of(present) == cas_of(record)
            if seqno_of(present) != damaged.seqno or not same:
                return
        self._heal(damaged, record)

    def _heal(self, damaged: Damaged, record: bytes) -> None:
        case, vbucket = self._cases[damaged], self._vbuckets[damaged.vbucket]
        case.writing = True
        self._flusher.heal(vbucket, record, partial(self._written, damaged, record))

    def _written(self, damaged: Damaged, record: bytes, ok: bool) -> None:
        """See whether a record can be read again, and let clients have it."""
        case = self._cases.get(damaged)
        if case is None:
            return
        case.writing = False
        if not ok or not self._is_readable(damaged):
            return
        del self._cases[damaged]
        self._store.healed(damaged)
        self._stats.healed_records += 1
        vbucket = self._vbuckets.get(damaged.vbucket)
        if vbucket is not None:
            vbucket.found_again(record)
        self.on_event("healed_record", _fields(damaged))

    def _is_readable(self, damaged: Damaged) -> bool:
        try:
            view = self._store.view()
        except StoreError:
            return False
        try:
            found = view.get(damaged.vbucket, damaged.key)
        except StoreError:
            return False
        finally:
            view.close()
        return found is not None and seqno_of(found) == damaged.seqno


def _fields(damaged: Damaged) -> dict[str, object]:
    """Return what events say of a record."""
    key = damaged.key.decode("utf-8", "backslashreplace")
    return {"vbucket": damaged.vbucket, "seqno": damaged.seqno, "key": key}


def _ask_none(_number: int, _key: bytes, _done: Callable[[Item | None], None]) -> bool:
    return False
