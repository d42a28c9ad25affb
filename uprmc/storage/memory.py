"""The store's contract in dicts: the reference model, and the simulator's disk.

A commit builds a new state beside the old one and then puts it in place, so a view is nothing but a
reference to the state it saw, and a commit that fails has changed nothing. A vBucket that a commit
does not touch is shared between states; one that it touches is copied.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from weakref import WeakSet

from uprmc.errors import StoreError
from uprmc.model import Item, VBucketHeader
from uprmc.record import ABSENT, KIND_AT, SEQNO, key_of, seqno_of, unpack, without_value
from uprmc.storage.interface import CommitBatch, Damaged, StoreUsage, Trees, VBucketChange

# --- batch check ----------------------------------------------------------------------------------
# What every store refuses to commit: a batch that would leave its two indexes at odds.


#: vBucket numbers are below this, whatever number of them a node has.
VBUCKETS_MAX = 1_024


def check_batch(batch: CommitBatch) -> None:
    """Hold the caller to the rules of `VBucketChange`.

    Raises:
        StoreError: a vBucket comes twice or is out of range, a key comes twice in one vBucket,
            seqnos do not rise, or a live document lacks its value.
    """
    numbers = [change.vbucket for change in batch.changes]
    if len(set(numbers)) != len(numbers):
        raise StoreError("a batch has two changes of one vBucket")
    for change in batch.changes:
        if not 0 <= change.vbucket < VBUCKETS_MAX:
            raise StoreError(f"there is no vBucket {change.vbucket}")
        _check_records(change)


def _check_records(change: VBucketChange) -> None:
    records = change.records
    if len(set(map(key_of, records))) != len(records):
        raise StoreError(f"a key comes twice in the batch of vBucket {change.vbucket}")
    last = 0
    for record in records:
        seqno = seqno_of(record)
        if seqno <= last:
            raise StoreError(f"seqno {seqno} follows {last} in vBucket {change.vbucket}")
        last = seqno
        if record[KIND_AT] & ABSENT:
            raise StoreError(f"{key_of(record)!r}: a live document is stored with its value only")


# --- memory ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _VBucket:
    """One vBucket of one state; `records` is never changed once it is here."""

    header: VBucketHeader
    records: Mapping[bytes, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _State:
    """Everything that is stored after some commit; never changed."""

    vbuckets: Mapping[int, _VBucket] = field(default_factory=dict)
    local: Mapping[bytes, bytes] = field(default_factory=dict)

    def after(self, batch: CommitBatch) -> _State:
        """Return the state that `batch` makes of this one."""
        vbuckets = {} if batch.reset_all else dict(self.vbuckets)
        for change in batch.changes:
            before = vbuckets.pop(change.vbucket, None)
            if change.header is not None:
                records = _records_after(change, before.records if before else {})
                vbuckets[change.vbucket] = _VBucket(change.header, records)
        local = {**self.local, **batch.local}
        kept = {name: document for name, document in local.items() if document is not None}
        return _State(vbuckets, kept)

    def replaced(self, change: VBucketChange) -> list[bytes]:
        """Return the seqnos of what a change replaces or forgets, as bytes."""
        vbucket = self.vbuckets.get(change.vbucket)
        records = {} if vbucket is None or change.reset else vbucket.records
        keys = {*change.forget, *map(key_of, change.records)}
        return [records[key][SEQNO] for key in keys if key in records]


def _records_after(change: VBucketChange, before: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """Return the records of a vBucket after a change; a seqno belongs to its newest bearer."""
    records = {} if change.reset else dict(before)
    if change.rewind is not None:
        records = {key: each for key, each in records.items() if seqno_of(each) <= change.rewind}
    for key in change.forget:
        records.pop(key, None)
    for key, seqno in change.drop:
        if key in records and seqno_of(records[key]) == seqno:
            del records[key]
    new = {key_of(record): record for record in change.records}
    taken = set(map(seqno_of, change.records))
    kept = {key: record for key, record in records.items() if seqno_of(record) not in taken}
    return {**kept, **new}


class MemoryView:
    """See `interface.StoreView`."""

    def __init__(self, store: MemoryStore, state: _State) -> None:
        self.records_read = 0
        self._store = store
        self._state: _State | None = state

    def _now(self) -> _State:
        if self._state is None or self._store.closed:
            raise StoreError("the view is closed")
        return self._state

    def headers(self) -> dict[int, VBucketHeader]:
        """Return the header of every stored vBucket."""
        return {number: vbucket.header for number, vbucket in self._now().vbuckets.items()}

    def header(self, vbucket: int) -> VBucketHeader | None:
        """Return one header, ``None`` when the vBucket is not stored."""
        found = self._now().vbuckets.get(vbucket)
        return found.header if found else None

    def get(self, vbucket: int, key: bytes) -> bytes | None:
        """Return the stored record of `key`, tombstones included."""
        record = self._records(vbucket).get(key)
        self.records_read += record is not None
        return record

    def changes_after(self, vbucket: int, seqno: int) -> Iterator[Item]:
        """Yield every version of the vBucket with a higher seqno, by rising seqno."""
        for record in self.records_after(vbucket, seqno):
            self.records_read += 1
            yield unpack(record)

    def records_after(self, vbucket: int, seqno: int) -> Iterator[bytes]:
        """Yield the same versions as records."""
        higher = [each for each in self._records(vbucket).values() if seqno_of(each) > seqno]
        for record in sorted(higher, key=seqno_of):
            self._now()
            yield record

    def portions_after(
        self, vbucket: int, seqno: int, damaged: list[Damaged] | None = None
    ) -> Iterator[list[bytes]]:
        """Yield the same records one by one; none is ever damaged."""
        for record in self.records_after(vbucket, seqno):
            yield [record]

    def listed(
        self, vbucket: int, records: Sequence[bytes], damaged: Sequence[Damaged] = ()
    ) -> int:
        """Return 0: there is one index."""
        return 0

    def index(self) -> Iterator[int]:
        """Yield nothing."""
        return iter(())

    def changes_before(self, vbucket: int, seqno: int) -> Iterator[Item]:
        """Yield the vBucket's versions at or below a seqno, by falling seqno, without values."""
        lower = [each for each in self._records(vbucket).values() if seqno_of(each) <= seqno]
        for record in sorted(lower, key=seqno_of, reverse=True):
            self._now()
            self.records_read += 1
            yield unpack(without_value(record))

    def _records(self, vbucket: int) -> Mapping[bytes, bytes]:
        found = self._now().vbuckets.get(vbucket)
        return found.records if found else {}

    def count(self) -> int:
        """Return the number of records of all vBuckets, tombstones included."""
        return sum(len(vbucket.records) for vbucket in self._now().vbuckets.values())

    def close(self) -> None:
        """Let go of the reading. Closing twice is harmless."""
        self._state = None
        self._store.forget_view(self)


class MemoryStore:
    """See `interface.Store`. It is never full.

    With ``sync=False`` a commit is only "in the page cache" until `sync` is called: the process
    sees it, a power loss takes it back.
    """

    def __init__(self, *, sync: bool = True) -> None:
        self.closed = False  # nothing can be done with it any more
        self._sync = sync
        self._state = _State()
        self._synced = self._state
        self._views: WeakSet[MemoryView] = WeakSet()

    def crash(self) -> MemoryStore:
        """Return a store with what survives a power loss now; this one is closed by it."""
        survivor = MemoryStore(sync=self._sync)
        survivor._state = survivor._synced = self._synced
        self.closed = True
        return survivor

    def reopened(self) -> MemoryStore:
        """Return a store with what survives the end of the process: every commit. Closes this."""
        survivor = self.crash()
        survivor._state = self._state
        return survivor

    def _check_open(self) -> None:
        if self.closed:
            raise StoreError("the store is closed")

    def commit(self, batch: CommitBatch) -> None:
        """Write `batch` atomically."""
        self._check_open()
        check_batch(batch)
        batch.replaced.clear()
        for change in batch.changes:
            batch.replaced[change.vbucket] = self._state.replaced(change)
        self._state = self._state.after(batch)
        if self._sync:
            self._synced = self._state

    def grow(self) -> bool:
        """Pretend to make room, under the same condition as a real store."""
        self._check_open()
        return not self._views

    def view(self) -> MemoryView:
        """Open a reading of the newest commit."""
        self._check_open()
        view = MemoryView(self, self._state)
        self._views.add(view)
        return view

    def forget_view(self, view: MemoryView) -> None:
        """Learn that a view was closed."""
        self._views.discard(view)

    def local(self, name: bytes) -> bytes | None:
        """Return a local document as of the newest commit."""
        self._check_open()
        return self._state.local.get(name)

    def check_owner(self) -> None:
        """Do nothing: no other process can open it."""

    def take_damaged(self) -> list[Damaged]:
        """Return nothing: memory does not decay."""
        return []

    def healed(self, record: Damaged) -> None:
        """Ignore it."""

    def usage(self) -> StoreUsage:
        """Return what the records would take in a file without any slack."""
        self._check_open()
        used = sum(
            len(key) + len(record)
            for vbucket in self._state.vbuckets.values()
            for key, record in vbucket.records.items()
        )
        return StoreUsage(file_bytes=used, map_bytes=used, free_bytes=0)

    def trees(self) -> Trees:
        """Return nothing: a commit copies no pages."""
        return Trees()

    def sync(self) -> None:
        """Make everything committed so far survive a power loss."""
        self._check_open()
        self._synced = self._state

    def close(self) -> None:
        """Close; nothing can be read any more."""
        self.closed = True
