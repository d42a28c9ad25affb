"""The LMDB store against the reference model, under whatever hypothesis thinks of.

Both get the same commits, views, reopenings and growths; after each step all that can be read from
one must be readable from the other.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from tests.contents import change_of
from tests.contracts.store_values import by_id, contents
from uprmc.config import StorageSettings
from uprmc.errors import StoreMapFull
from uprmc.model import FailoverEntry, Item, Life, SnapshotRange, VBucketHeader, VBucketState
from uprmc.record import unpack
from uprmc.storage import lmdb_store, segments
from uprmc.storage.directory import open_directory
from uprmc.storage.interface import CommitBatch, StoreView
from uprmc.storage.lmdb_store import LmdbStore
from uprmc.storage.memory import MemoryStore

VBUCKETS = (0, 1, 255, 256)
MIB = 1 << 20

keys = st.sampled_from([b"a", b"b", b"c", b"d", b"\x00", b"\xff\xff", b"k" * 250])
seqnos = st.integers(1, 40)
numbers = st.integers(0, 2**32 - 1)
values = st.binary(max_size=20) | st.just(bytes(30_000))


@st.composite
def item_lists(draw: st.DrawFn) -> list[Item]:
    """Items with rising seqnos and distinct keys."""
    chosen = draw(st.lists(keys, unique=True, max_size=6, min_size=draw(st.sampled_from((0, 3)))))
    order = sorted(draw(st.sets(seqnos, min_size=len(chosen), max_size=len(chosen))))
    items = []
    for key, seqno in zip(chosen, order, strict=True):
        life = draw(st.sampled_from(Life))
        value = draw(values) if life == Life.LIVE else None
        flags, cas = draw(numbers), draw(numbers)
        items.append(Item(key, value, flags, seqno, cas, seqno, cas % 7, life=life))
    return items


headers = st.builds(
    VBucketHeader,
    state=st.sampled_from(VBucketState),
    high_seqno=seqnos,
    snapshot=st.builds(SnapshotRange, seqnos, seqnos),
    failover_log=st.lists(st.builds(FailoverEntry, numbers, seqnos), max_size=3).map(tuple),
    purge_seqno=seqnos,
    max_deleted_rev=numbers,
    term=numbers,
    max_cas=numbers,
    known_term=numbers,
)
changes = st.builds(
    change_of,
    vbucket=st.sampled_from(VBUCKETS),
    header=st.one_of(headers, headers, headers, headers, st.none()),
    items=item_lists(),
    reset=st.integers(0, 7).map(lambda number: number == 7),
    drop=st.lists(st.tuples(keys, seqnos), max_size=4, unique_by=lambda dropped: dropped[0]),
    rewind=st.one_of(st.none(), st.none(), seqnos),
    forget=st.one_of(st.just([]), st.lists(keys, max_size=3)),
)
batches = st.builds(
    CommitBatch,
    changes=st.lists(changes, min_size=1, max_size=4, unique_by=lambda change: change.vbucket),
    local=st.dictionaries(st.binary(max_size=3), st.none() | st.binary(max_size=5), max_size=2),
    reset_all=st.integers(0, 7).map(lambda number: number == 7),
)


class StoreMachine(RuleBasedStateMachine):
    """Two stores that must be told apart by nothing but their speed."""

    views = Bundle("views")

    def __init__(self) -> None:
        super().__init__()
        self.path = Path(tempfile.mkdtemp(prefix="uprmc-store-"))
        self.model = MemoryStore()
        self.store = self.opened()
        self.open_views: list[StoreView] = []
        self.local_names: set[bytes] = set()

    def opened(self) -> LmdbStore:
        """Open the LMDB store, with a map that has to grow now and then."""
        limits = StorageSettings(map_initial=MIB, map_max=256 * MIB)
        return open_directory(self.path / "data", uuid=1, settings=limits, sync=False)

    @rule(several=st.lists(batches, min_size=1, max_size=4))
    def commit(self, several: list[CommitBatch]) -> None:
        for batch in several:
            self.commit_one(batch)

    def commit_one(self, batch: CommitBatch) -> None:
        try:
            self.store.commit(batch)
        except StoreMapFull:
            self.close_views()
            assert self.store.grow()
            self.store.commit(batch)
        self.model.commit(batch)
        self.local_names.update(batch.local)

    @rule(target=views)
    def open_view(self) -> tuple[StoreView, StoreView]:
        pair = (self.store.view(), self.model.view())
        self.open_views.extend(pair)
        return pair

    @rule(pair=views)
    def read_view(self, pair: tuple[StoreView, StoreView]) -> None:
        if pair[0] in self.open_views:
            assert contents(pair[0], VBUCKETS) == contents(pair[1], VBUCKETS)
            assert pair[0].records_read == pair[1].records_read

    @rule(pair=consumes(views))
    def close_view(self, pair: tuple[StoreView, StoreView]) -> None:
        for view in pair:
            view.close()
            if view in self.open_views:
                self.open_views.remove(view)

    def close_views(self) -> None:
        for view in self.open_views:
            view.close()
        self.open_views.clear()

    @rule()
    def reopen(self) -> None:
        self.close_views()
        self.store.close()
        self.store = self.opened()
        self.model = self.model.reopened()

    @rule()
    def grow(self) -> None:
        if self.store.usage().map_bytes < 8 * MIB:
            assert self.store.grow() == self.model.grow() == (not self.open_views)

    @rule(vbucket=st.sampled_from(VBUCKETS), seqno=st.integers(0, 41))
    def scan(self, vbucket: int, seqno: int) -> None:
        mine, model = self.store.view(), self.model.view()
        changes = list(mine.changes_after(vbucket, seqno))
        assert changes == list(model.changes_after(vbucket, seqno))
        assert list(map(unpack, mine.records_after(vbucket, seqno))) == changes
        back = list(mine.changes_before(vbucket, seqno))
        assert back == list(model.changes_before(vbucket, seqno))
        assert mine.records_read == model.records_read
        mine.close()
        model.close()

    @invariant()
    def both_tell_the_same(self) -> None:
        mine, model = self.store.view(), self.model.view()
        told = contents(mine, VBUCKETS)
        assert told == contents(model, VBUCKETS)
        self.check_indexes(mine)
        mine.close()
        model.close()
        for name in self.local_names:
            assert self.store.local(name) == self.model.local(name)

    def check_indexes(self, view: StoreView) -> None:
        """By-seq rises strictly and has just the records of by-id."""
        for vbucket in VBUCKETS:
            scanned = [(item.seqno, item.key) for item in view.changes_after(vbucket, 0)]
            assert len({seqno for seqno, _ in scanned}) == len(scanned)
            assert scanned == sorted(scanned)
            assert sorted((at, key) for _, key, at in by_id(view, vbucket)) == scanned
        assert view.count() == len(by_id(view))

    def teardown(self) -> None:
        self.close_views()
        self.store.close()
        shutil.rmtree(self.path)


class SweepingMachine(StoreMachine):
    """The same, where nothing stale may stay."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(segments, "_STALE_FREE", 0)
        self.patch.setattr(segments, "_LIVE_FOR_STALE", 1_000)
        self.patch.setattr(lmdb_store, "_SWEPT_TOGETHER", 4)

    def teardown(self) -> None:
        self.patch.undo()
        super().teardown()


TestStoreMachine = StoreMachine.TestCase
TestSweepingMachine = SweepingMachine.TestCase
TestSweepingMachine.settings = settings(max_examples=40, stateful_step_count=40)
TestStoreMachine.settings = settings(max_examples=60, stateful_step_count=40)
