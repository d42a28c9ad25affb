"""Warm-up: from what is on disk to a node that answers.

The order is that of the states below: vBucket headers, then every key with its metadata, then
values until the memory low mark. Keys are first because they decide hits, misses and CAS; a value
that did not fit is fetched when it is needed. If everything is sure to fit, keys and values are
read together. Clients are admitted when all of this is done.

The work is a generator, so that its driver can let others run between steps.

Row D11.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum
from typing import NamedTuple

from uprmc.engine import failover_log
from uprmc.engine.bucket import Bucket
from uprmc.engine.commit_room import commit_growing
from uprmc.engine.memory import ITEM_OVERHEAD_BYTES
from uprmc.engine.purge import SERVED_NAME
from uprmc.engine.tombstones import dead_among, highest_cas
from uprmc.engine.vbucket import VBucket
from uprmc.errors import StoreRefused
from uprmc.model import VBucketState
from uprmc.record import KIND_AT, LIFE_BITS, without_value
from uprmc.storage.interface import CLEAN_MARK, CommitBatch, Damaged, StoreView

#: Local document that exists once the first vBuckets were created: from then on a node without any
#: has had them removed, and creates none on its own.
POPULATED_MARK = b"uprmc/populated"

_STEP_ITEMS = 1_000
#: vBuckets that are restored in one step.
_STEP_VBUCKETS = 32


class WarmupState(Enum):
    """The progress of warm-up; the texts are those of ``stats warmup``."""

    INITIALIZE = "initialize"
    CREATE_VBUCKETS = "creating vbuckets"
    KEY_DUMP = "loading keys"
    LOAD_VALUES = "loading data"
    DONE = "done"


class WarmupStart(NamedTuple):
    """A vBucket as it was when the node started; changes since then are counted from here."""

    state: VBucketState  # its state
    uuid: int  # its history
    high_seqno: int  # its newest change
    item_count: int  # its documents; 0 until they are loaded


class Warmup:
    """One warm-up of one bucket."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self.state = WarmupState.INITIALIZE  # the present state of warm-up
        self.records = 0  # number of records in the store, tombstones included
        self.keys = 0  # how many of them have been read for their keys
        self.values = 0  # how many values have been loaded
        self.was_clean = True  # whether the data directory had been left in order (or is new)
        # Number -> each vBucket at the start, including those of a new directory.
        self.origins: dict[int, WarmupStart] = {}
        self._raised: set[VBucket] = set()
        self._listed = 0

    @property
    def share(self) -> float:
        """The share of the keys that is loaded, 0 to 1."""
        if self.state is WarmupState.DONE:
            return 1.0
        return self.keys / self.records if self.records else 0.0

    def steps(self) -> Iterator[None]:
        """Do the warm-up, yielding between steps of about a millisecond.

        Raises:
            StoreError: the store cannot be read or written; the node cannot start.
            StoreRefused: it is damaged; the text is for the operator.
        """
        yield from self._create_vbuckets()
        self._remember_origins()
        yield
        view = self._bucket.store.view()
        try:
            self.records = view.count()
            if self._all_fits():
                self.state = WarmupState.LOAD_VALUES
                yield from self._load_all(view)
                yield from self._compare_indexes(view)
            else:
                self.state = WarmupState.KEY_DUMP
                yield from self._load_keys(view)
                yield from self._compare_indexes(view)
                self.state = WarmupState.LOAD_VALUES
                yield from self._load_values(view)
        finally:
            view.close()
        self.state = WarmupState.DONE
        if not self.was_clean:
            self._leave_lost_cas_behind()
        self._remember_documents()
        self._bucket.let_traffic_in()

    def _create_vbuckets(self) -> Iterator[None]:
        bucket, store = self._bucket, self._bucket.store
        self.state = WarmupState.CREATE_VBUCKETS
        view = store.view()
        headers = view.headers()
        view.close()
        self.was_clean = not headers or store.local(CLEAN_MARK) is not None
        bucket.purge_policy.restore(
            store.local(SERVED_NAME), used=bool(headers), clean=self.was_clean
        )
        bucket.removed_terms = failover_log.decode_removed(store.local(failover_log.REMOVED_NAME))
        for count, number in enumerate(sorted(headers), 1):
            bucket.restore(number, headers[number], clean=self.was_clean)
            bucket.watermarks.load(store, number)
            if not count % _STEP_VBUCKETS:
                yield
        populated = store.local(POPULATED_MARK) is not None
        if not headers and not populated:
            for number in range(bucket.settings.engine.vbuckets):
                bucket.create(number, VBucketState.ACTIVE)
        commit_growing(store, CommitBatch(local={CLEAN_MARK: None}))
        store.sync()  # a power loss must not bring the mark back, even where commits are not synced
        while flush := bucket.flusher.begin():
            commit_growing(store, flush.batch)
            bucket.flusher.finish(flush)
        if not populated:
            commit_growing(store, CommitBatch(local={POPULATED_MARK: b"1"}))

    def _remember_origins(self) -> None:
        self.origins = {
            number: WarmupStart(
                vbucket.state,
                vbucket.failover_log[0].uuid,
                vbucket.high_seqno,
                vbucket.item_count,
            )
            for number, vbucket in self._bucket.vbuckets.items()
        }

    def _leave_lost_cas_behind(self) -> None:
        """Do what `Bucket.restore` could not where the header did not know the highest CAS."""
        for vbucket in self._raised:
            if vbucket.state == VBucketState.ACTIVE:
                self._bucket.leave_lost_cas_behind(vbucket)
                vbucket.change_header()

    def _remember_documents(self) -> None:
        """Add what was loaded; the states remain those of the start, despite later commands."""
        for number, vbucket in self._bucket.vbuckets.items():
            origin = self.origins.get(number)
            if origin is not None:
                self.origins[number] = origin._replace(item_count=vbucket.item_count)

    def _all_fits(self) -> bool:
        """Tell whether keys and values are sure to fit below the low mark.

        The file has records and their keys, as the tables will, and more.
        """
        usage = self._bucket.store.usage()
        stored = usage.used_bytes
        return stored + self.records * ITEM_OVERHEAD_BYTES <= self._bucket.account.low_mark

    def _load_all(self, view: StoreView) -> Iterator[None]:
        """Load keys and values together: one reading instead of two."""
        for number, vbucket in self._bucket.vbuckets.items():
            damaged: list[Damaged] = []
            for records in _steps(view, number, damaged):
                self._listed += view.listed(number, records)
                self.values += self._install(vbucket, records)
                yield
            self._note(view, vbucket, damaged)

    def _load_keys(self, view: StoreView) -> Iterator[None]:
        for number, vbucket in self._bucket.vbuckets.items():
            damaged: list[Damaged] = []
            for records in _steps(view, number, damaged):
                self._listed += view.listed(number, records)
                self._install(vbucket, [without_value(record) for record in records])
                yield
            self._note(view, vbucket, damaged)

    def _note(self, view: StoreView, vbucket: VBucket, damaged: Sequence[Damaged]) -> None:
        """Take note of documents whose records are damaged: clients must not get a miss."""
        self._listed += view.listed(vbucket.id, (), damaged)
        for each in damaged:
            vbucket.lose(each.key, each.seqno)

    def _compare_indexes(self, view: StoreView) -> Iterator[None]:
        """Refuse to serve what the two indexes of the store do not agree about.

        Raises:
            StoreRefused: they do not.
        """
        found = 0
        for portion in view.index():
            found += portion
            yield
        if found != self._listed:
            raise StoreRefused(
                f"{self._bucket.settings.storage.data} is damaged (its indexes do not agree about "
                "what is stored): run 'uprmc check' on it, restore a backup, or move the directory "
                "away and start empty"
            )

    def _install(self, vbucket: VBucket, records: list[bytes]) -> int:
        """Put documents into the table; return their number."""
        dead, max_cas = dead_among(records), highest_cas(records)
        if max_cas > vbucket.max_cas:
            vbucket.know_cas(max_cas)
            self._raised.add(vbucket)
        self.keys += len(records)
        if dead:
            self._bucket.flusher.tombstones.load(vbucket.id, dead)
            records = [record for record in records if not record[KIND_AT] & LIFE_BITS]
        vbucket.table.put_all(records)
        return len(records)

    def _load_values(self, view: StoreView) -> Iterator[None]:
        account = self._bucket.account
        for number, vbucket in self._bucket.vbuckets.items():
            for records in _steps(view, number, []):
                for record in records:
                    if account.used > account.low_mark:
                        return
                    if vbucket.bring_in(record):
                        self.values += 1
                yield


def _steps(view: StoreView, number: int, damaged: list[Damaged]) -> Iterator[list[bytes]]:
    """Yield a vBucket's records, as many at a time as are looked at in one step.

    Those that are damaged are added to the list.
    """
    records: list[bytes] = []
    for portion in view.portions_after(number, 0, damaged):
        records += portion
        if len(records) >= _STEP_ITEMS:
            yield records
            records = []
    if records:
        yield records
