"""Warm-up: from what is on disk to a node that answers.

The order is that of the states below: vBucket headers, then every key with its metadata, then
values until the memory low mark. The keys come first because they decide hits, misses and CAS; a
value that did not fit is fetched when it is asked for. Clients are let in when all of it is done.

The work comes as a generator so that whoever drives it can let others run between steps.

Source: `reference/systems.md` (f), warm-up states; row D11 for the clean mark.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

from uprmc.engine.bucket import Bucket
from uprmc.model import VBucketState
from uprmc.storage.interface import Batch, StoreView

#: Local document that is there exactly while a data directory was left in order.
CLEAN_MARK = b"uprmc/clean"

_STEP_ITEMS = 1_000


class WarmupState(Enum):
    """Where warm-up stands; the texts are what ``stats warmup`` shows."""

    INITIALIZE = "initialize"
    CREATE_VBUCKETS = "creating vbuckets"
    KEY_DUMP = "loading keys"
    LOAD_VALUES = "loading data"
    DONE = "done"


class Warmup:
    """One warm-up of one bucket.

    Attributes:
        state: where it stands.
        records: number of records in the store, tombstones included.
        keys: how many of them have been read for their keys.
        values: how many values have been brought in.
        was_clean: whether the data directory had been left in order (or is new).
    """

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self.state = WarmupState.INITIALIZE
        self.records = 0
        self.keys = 0
        self.values = 0
        self.was_clean = True

    @property
    def share(self) -> float:
        """How much of the keys is loaded, 0 to 1."""
        if self.state is WarmupState.DONE:
            return 1.0
        return self.keys / self.records if self.records else 0.0

    def steps(self) -> Iterator[None]:
        """Do it, yielding between steps of about a millisecond.

        Raises:
            StoreError: the store cannot be read or written; the node cannot start.
        """
        self._create_vbuckets()
        yield
        view = self._bucket.store.view()
        try:
            self.records = view.count()
            self.state = WarmupState.KEY_DUMP
            yield from self._load_keys(view)
            self.state = WarmupState.LOAD_VALUES
            yield from self._load_values(view)
        finally:
            view.close()
        self.state = WarmupState.DONE
        self._bucket.let_traffic_in()

    def _create_vbuckets(self) -> None:
        bucket, store = self._bucket, self._bucket.store
        self.state = WarmupState.CREATE_VBUCKETS
        view = store.view()
        headers = view.headers()
        view.close()
        self.was_clean = not headers or store.local(CLEAN_MARK) is not None
        for number, header in sorted(headers.items()):
            bucket.restore(number, header, clean=self.was_clean)
        if not headers:
            for number in range(bucket.settings.engine.vbuckets):
                bucket.create(number, VBucketState.ACTIVE)
        store.commit(Batch(local={CLEAN_MARK: None}))
        store.sync()  # a power loss must not bring the mark back, even where commits are not synced
        while flush := bucket.flusher.begin():
            bucket.flusher.commit(flush)
            bucket.flusher.finish(flush)

    def _load_keys(self, view: StoreView) -> Iterator[None]:
        vbuckets, ledger = self._bucket.vbuckets, self._bucket.ledger
        last_cas = ledger.last_cas
        for number, item, _length in view.dump_metadata():
            self.keys += 1
            if item.cas > last_cas:
                last_cas = item.cas
            if not item.life:
                vbuckets[number].install(item)
            if not self.keys % _STEP_ITEMS:
                yield
        ledger.last_cas = last_cas

    def _load_values(self, view: StoreView) -> Iterator[None]:
        ledger = self._bucket.ledger
        looked_at = 0
        for number, vbucket in self._bucket.vbuckets.items():
            for item in view.changes_after(number, 0):
                if ledger.used > ledger.low_mark:
                    return
                if not item.life and vbucket.bring_in(item):
                    self.values += 1
                looked_at += 1
                if not looked_at % _STEP_ITEMS:
                    yield
