"""The memory pager: when memory runs short, values that are safe on disk leave it, coldest first.

Only clean values are evicted, never keys or metadata and never anything unpersisted, so no data is
lost. Each record has an age of two bits: a read makes it the youngest, each sweep raises it, and a
sweep evicts values whose age is `COLD`. After four sweeps every clean value has been considered.

Source: `reference/systems.md` (f).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from uprmc.engine.memory_account import MemoryAccount
from uprmc.engine.stats import Stats
from uprmc.engine.vbucket import VBucket
from uprmc.engine.walk import slices
from uprmc.model import VBucketState
from uprmc.record import (
    AGE_BITS,
    AGE_STEP,
    COLD,
    KIND_AT,
    key_of,
    seqno_of,
    value_bytes_of,
)

_SWEEPS = 4


class Evictor:
    """Evicts values while `MemoryAccount.used` is high, a slice at a time."""

    def __init__(
        self,
        vbuckets: Callable[[], Iterable[VBucket]],
        account: MemoryAccount,
        stats: Stats,
        slice_items: int,
    ) -> None:
        self._vbuckets = vbuckets
        self._account = account
        self._stats = stats
        self._slice_items = slice_items
        self._run: Iterator[None] | None = None
        self._fruitless_at = -1

    @property
    def needed(self) -> bool:
        """Whether a run should start, or is under way.

        After a run that found nothing to evict, the next one waits until something has become clean
        or has been fetched.
        """
        if self._run is not None:
            return True
        return (
            self._account.used > self._account.high_mark and self._ejectable != self._fruitless_at
        )

    @property
    def _ejectable(self) -> int:
        """A number that grows with every value that becomes ejectable."""
        return self._stats.items_flushed + self._stats.bg_fetched

    def run_slice(self) -> bool:
        """Do a slice of work; ``False`` when the run is over (or none was needed)."""
        if self._run is None:
            if not self.needed:
                return False
            self._stats.pager_runs += 1
            self._run = self._sweep_all()
        if next(self._run, self) is self:
            self._run = None
        return self._run is not None

    def _sweep_all(self) -> Iterator[None]:
        ejects, ejectable = self._stats.value_ejects, self._ejectable
        self._account.exhausted = False
        for _ in range(_SWEEPS):
            ordered = sorted(self._vbuckets(), key=lambda v: v.state == VBucketState.ACTIVE)
            for group in slices(ordered, self._slice_items):
                for vbucket, records in group:
                    self._sweep(vbucket, records)
                    if self._account.used <= self._account.low_mark:
                        return
                yield
        if self._stats.value_ejects == ejects:
            self._fruitless_at = ejectable
            self._account.exhausted = not any(vbucket.queue.live for vbucket in self._vbuckets())

    def _sweep(self, vbucket: VBucket, records: list[bytes]) -> None:
        table, persisted = vbucket.table, vbucket.persisted_seqno
        for record in records:
            if not value_bytes_of(record) or seqno_of(record) > persisted:
                continue
            key = key_of(record)
            if table.get(key) is not record:
                continue
            age = record[KIND_AT] & AGE_BITS
            if age != COLD:
                table.set_age(key, record, age + AGE_STEP & AGE_BITS)
            else:
                table.eject(key, record)
                self._stats.value_ejects += 1
                if self._account.used <= self._account.low_mark:
                    return
