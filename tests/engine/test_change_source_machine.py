"""Readings opened, read in pieces and closed at any time, on both stores, against a plain list.

Everything that moves data goes on meanwhile: writes of every kind, expiry, ejected values, flushes
in their steps, refused commits, compaction, resets, removed and new vBuckets, received snapshots.
The oracle (`tests.engine.readings`) is the list of what each history accepted.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.contents import table_of
from tests.engine.readings import judge, open_reading
from tests.engine.support import FaultyStore, Node, settings_of
from uprmc.config import StorageSettings, UprSettings
from uprmc.engine import purge, replica, write_queue
from uprmc.engine import reading as reading_module
from uprmc.engine.flusher import Flush
from uprmc.engine.reading import EngineLease, Leases, Reading
from uprmc.engine.tombstones import PurgeRule
from uprmc.engine.vbucket import VBucket
from uprmc.engine.with_meta import Demand, accept_version
from uprmc.engine.write_queue import WriteQueue
from uprmc.errors import NotResident, StoreFull
from uprmc.model import Item, Life, SnapshotRange, VBucketState
from uprmc.record import pack, unpack
from uprmc.storage.directory import open_directory
from uprmc.storage.interface import Store, StoreView
from uprmc.storage.memory import MemoryStore

NUMBERS = (0, 1)
MIB = 1 << 20
numbers = st.sampled_from(NUMBERS)
keys = st.sampled_from([b"a", b"b", b"c", b"d", b"e", b"f"])
values = st.sampled_from([b"", b"1", b"word"])


@dataclass
class Reader:
    """Somebody who reads: from a reading of its own, or from a lease's."""

    reading: Reading
    after: int
    accepted: list[Item]
    changes: Iterator[Item]
    got: list[Item] = field(default_factory=list)

    def read(self, most: int) -> bool:
        """Read on; judge and tell when the end is reached."""
        for _ in range(most):
            item = next(self.changes, None)
            if item is None:
                self.judge(self.got)
                return True
            self.got.append(item)
        return False

    def judge(self, got: list[Item]) -> None:
        reading = self.reading
        judge(got, self.accepted, self.after, reading.end_seqno, reading.purge_seqno)


def root_of(vbucket: VBucket) -> int:
    return vbucket.failover_log[-1].uuid


class ReadingMachine(RuleBasedStateMachine):
    """Two vBuckets of one node; see the module docstring."""

    def __init__(self) -> None:
        super().__init__()
        self.patches: list[Any] = [
            patch.object(write_queue, "SEGMENT_BITS", 1),
            patch.object(reading_module, "_PORTION_ITEMS", 2),
            patch.object(purge, "_READ_RECORDS", 3),
        ]
        store = self.make_store()
        self.views: list[StoreView] = []
        self.patches.append(patch.object(store, "view", self.counting(store)))
        for each in self.patches:
            each.start()
        limits = settings_of(2, purge={"batch_items": 2}, flush={"batch_items": 4})
        self.node = Node(limits, store=cast(MemoryStore, store))
        self.bucket = self.node.bucket
        self.leases = Leases(self.bucket, UprSettings())
        self.accepted: dict[int, list[Item]] = {}
        self.readers: list[Reader] = []
        self.held: list[EngineLease] = []
        self.queues: dict[int, WriteQueue] = {}
        self.flush: Flush | None = None
        self.committed = False
        self.look: purge.Scan | None = None
        for number in NUMBERS:
            self.store_many(number, 12)
        self.node.flush()

    def make_store(self) -> Store:
        return FaultyStore()

    def counting(self, store: Store) -> object:
        """Keep every view, so that none that was forgotten goes by itself."""
        open_view = store.view

        def view() -> StoreView:
            self.views.append(open_view())
            return self.views[-1]

        return view

    @property
    def refusing(self) -> bool:
        return bool(self.bucket.account.disk_reason)

    def writable(self, number: int) -> VBucket | None:
        return None if self.refusing else self.bucket.vbuckets.get(number)

    def accept(self, vbucket: VBucket, item: Item) -> None:
        self.accepted.setdefault(root_of(vbucket), []).append(item)

    def accepted_by(self, vbucket: VBucket) -> list[Item]:
        return list(self.accepted.get(root_of(vbucket), ()))

    # --- changes --------------------------------------------------------------------------------

    @rule(number=numbers, key=keys, value=values, ttl=st.sampled_from([0, 0, 5]))
    def store(self, number: int, key: bytes, value: bytes, ttl: int) -> None:
        if vbucket := self.writable(number):
            expiry = int(self.node.clock.now()) + ttl if ttl else 0
            self.accept(vbucket, vbucket.store(key, value, 7, expiry, datatype=1))

    @rule(number=numbers, count=st.integers(3, 12))
    def store_many(self, number: int, count: int) -> None:
        """Enough for a flush in several commits."""
        for each in range(count):
            self.store(number, b"many-%d" % each, b"x", 0)

    @rule(number=numbers, key=keys)
    def delete(self, number: int, key: bytes) -> None:
        vbucket = self.writable(number)
        if vbucket and not self.expired(vbucket, key) and vbucket.find(key):
            self.accept(vbucket, vbucket.delete(key))

    @rule(number=numbers, key=keys)
    def touch(self, number: int, key: bytes) -> None:
        vbucket = self.writable(number)
        if not vbucket or self.expired(vbucket, key) or vbucket.find(key) is None:
            return
        expiry = int(self.node.clock.now()) + 3
        high = vbucket.high_seqno
        try:
            item = vbucket.touch(key, expiry)
        except NotResident:
            assert self.node.fetch(key, vbucket=number)
            item = vbucket.touch(key, expiry)
        if vbucket.high_seqno > high:
            self.accept(vbucket, item)

    @rule(number=numbers, key=keys, life=st.sampled_from(Life), rev=st.integers(1, 50))
    def set_with_meta(self, number: int, key: bytes, life: Life, rev: int) -> None:
        if vbucket := self.writable(number):
            cas = self.bucket.account.last_cas + 10
            value = None if life else b"foreign"
            version = Item(key, value, 3, 0, cas, 0, rev, 0, life)
            demand = Demand(skip_conflicts=True)
            record = accept_version(self.bucket, vbucket, pack(version), demand)
            self.accept(vbucket, unpack(record))

    @rule(
        number=numbers,
        items=st.lists(st.tuples(keys, st.integers(1, 3), st.booleans()), min_size=1, max_size=6),
    )
    def receive(self, number: int, items: list[tuple[bytes, int, bool]]) -> None:
        """Take a snapshot of another node: at most one version of a key, seqnos with holes."""
        vbucket = self.bucket.vbuckets.get(number)
        if vbucket is None:
            return
        seqno, snapshot = vbucket.high_seqno, []
        for key, hole, gone in {key: (key, hole, gone) for key, hole, gone in items}.values():
            seqno += hole
            value, life = (None, Life.DELETED) if gone else (b"replicated", Life.LIVE)
            cas = self.bucket.account.last_cas + seqno
            snapshot.append(Item(key, value, 5, 0, cas, seqno, seqno, 0, life))
        extent = SnapshotRange(vbucket.high_seqno + 1, seqno)
        for item in snapshot:
            replica.apply(vbucket, item, extent)
            self.accept(vbucket, item)
        assert vbucket.receiving is None

    @rule(seconds=st.sampled_from([1, 4]))
    def let_time_pass(self, seconds: int) -> None:
        self.node.clock.advance(seconds)

    @precondition(lambda self: not self.refusing)
    @rule()
    def expire(self) -> None:
        before = {v: v.high_seqno for v in self.bucket.vbuckets.values()}
        now = self.node.clock.now()
        for _ in self.bucket.expirer.run(now):
            pass
        for vbucket, high in before.items():
            buried = [i for i in table_of(vbucket).values() if i.seqno > high]
            for item in sorted(buried, key=lambda i: i.seqno):
                assert item.life == Life.EXPIRED
                self.accept(vbucket, item)

    def expired(self, vbucket: VBucket, key: bytes) -> bool:
        """Look for a document; if its time has come, the look has made a tombstone."""
        high = vbucket.high_seqno
        vbucket.find(key)
        if vbucket.high_seqno > high:
            self.accept(vbucket, table_of(vbucket)[key])
        return vbucket.high_seqno > high

    # --- what becomes of it ---------------------------------------------------------------------

    @rule()
    def eject(self) -> None:
        account, pager = self.bucket.account, self.bucket.evictor
        marks = account.low_mark, account.high_mark
        account.low_mark = account.high_mark = -1
        while pager.run_slice():
            pass
        account.low_mark, account.high_mark = marks
        account.exhausted = False

    @precondition(lambda self: self.flush is None)
    @rule()
    def begin_flush(self) -> None:
        self.flush = self.bucket.flusher.begin()
        self.committed = False

    @precondition(lambda self: self.flush is not None)
    @rule()
    def go_on_with_flush(self) -> None:
        assert self.flush is not None
        if self.committed:
            self.bucket.flusher.finish(self.flush)
            self.flush = None
        else:
            self.bucket.flusher.commit(self.flush)
            self.committed = True

    @precondition(lambda self: self.flush is None)
    @rule(number=numbers, share=st.floats(0, 1), finished=st.booleans())
    def open_within_a_long_flush(self, number: int, share: float, finished: bool) -> None:
        self.store_many(number, 12)
        self.begin_flush()
        if self.flush is not None:
            self.go_on_with_flush()
        if self.flush is not None and finished:
            self.go_on_with_flush()
        self.open(number, share)

    @precondition(lambda self: self.flush is not None and not self.committed)
    @rule(really=st.sampled_from([False, False, True]))
    def fail_flush(self, really: bool) -> None:
        assert self.flush is not None
        if really:
            self.bucket.flusher.failed(self.flush, StoreFull("full"))
            self.flush = None

    @precondition(lambda self: self.flush is None)
    @rule()
    def flush_everything(self) -> None:
        self.node.flush()

    @rule(number=numbers, purge=st.sampled_from([PurgeRule(every=True), PurgeRule(upto_seqno=6)]))
    def compact(self, number: int, purge: PurgeRule) -> None:
        if number in self.bucket.vbuckets:
            for each in range(0, 12, 2):
                self.delete(number, b"many-%d" % each)
            self.bucket.compact(number, purge, lambda _: None)

    @precondition(lambda self: self.flush is None and self.look is None)
    @rule()
    def compact_to_the_end(self) -> None:
        compactor, flusher = self.bucket.compactor, self.bucket.flusher
        while compactor.waiting or flusher.pending or self.look is not None:
            self.go_on_with_compaction()
            if flusher.pending:
                self.node.flush()

    @rule()
    def go_on_with_compaction(self) -> None:
        compactor = self.bucket.compactor
        if self.look is None:
            self.look = compactor.begin()
        else:
            compactor.read(self.look)
            compactor.finish(self.look)
            self.look = None

    @rule(number=numbers, what=st.sampled_from(["", "", "", "", "", "flush all", "remove"]))
    def begin_anew(self, number: int, what: str) -> None:
        """Seldom: what follows such an end is the longer part."""
        if what == "flush all":
            self.bucket.flush(0, lambda _: None)
        elif number not in self.bucket.vbuckets:
            self.bucket.set_state(number, VBucketState.ACTIVE)
        elif what == "remove":
            self.bucket.set_state(number, VBucketState.DEAD)
            self.bucket.remove(number, lambda _: None)

    # --- readers --------------------------------------------------------------------------------

    @rule(number=numbers, share=st.floats(0, 1))
    def open(self, number: int, share: float) -> None:
        vbucket = self.bucket.vbuckets.get(number)
        if vbucket and len(self.readers) < 8:
            after = round(share * vbucket.high_seqno)
            reading = open_reading(self.bucket.store, vbucket, after)
            self.check_new(vbucket, reading)
            accepted = self.accepted_by(vbucket)
            self.readers.append(Reader(reading, after, accepted, reading.changes(after)))

    def check_new(self, vbucket: VBucket, reading: Reading) -> None:
        self.queues[id(vbucket.queue)] = vbucket.queue
        accepted = self.accepted_by(vbucket)
        assert reading.end_seqno == vbucket.high_seqno == (accepted[-1].seqno if accepted else 0)
        assert reading.uuid == vbucket.failover_log[0].uuid
        deletions = {item.seqno for item in accepted if item.life}
        assert reading.purge_seqno in {0} | deletions, "nothing of that seqno could be dropped"

    @precondition(lambda self: self.readers)
    @rule(data=st.data(), most=st.sampled_from([1, 2, 5, 50]))
    def read(self, data: st.DataObject, most: int) -> None:
        reader = data.draw(st.sampled_from(self.readers))
        if reader.read(most):
            reader.reading.close()
            self.readers.remove(reader)

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def read_once_more(self, data: st.DataObject) -> None:
        """A reading can be read as often as one likes, from any later place too."""
        reader = data.draw(st.sampled_from(self.readers))
        end = reader.reading.end_seqno
        after = data.draw(st.integers(reader.after, end)) if end >= reader.after else end
        reading = reader.reading
        got = list(reading.changes(after))
        judge(got, reader.accepted, after, end, reading.purge_seqno)
        stored = [unpack(record) for record in reading.records(after)]
        stored = [item for item in stored if item.key not in reading.newer]
        assert stored + list(map(unpack, reading.queued(after))) == got

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        reader = data.draw(st.sampled_from(self.readers))
        reader.reading.close()
        self.readers.remove(reader)

    @precondition(lambda self: len(self.held) < 3 and self.bucket.active)
    @rule()
    def lease(self) -> None:
        lease, _ = self.leases.acquire([], 3_600)
        self.held.append(lease)
        for number, reading in lease.readings.items():
            vbucket = self.bucket.vbuckets[number]
            self.check_new(vbucket, reading)
            lease.readers[lambda: None] = None
            reader = Reader(reading, 0, self.accepted_by(vbucket), reading.changes(0))
            assert reader.read(10_000)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def read_lease(self, data: st.DataObject) -> None:
        lease = data.draw(st.sampled_from(self.held))
        for number, reading in lease.readings.items():
            log = lease.holdings[number].failover_log
            accepted = [
                item
                for item in self.accepted.get(log[-1].uuid, ())
                if item.seqno <= reading.end_seqno
            ]
            judge(list(reading.changes(0)), accepted, 0, reading.end_seqno, reading.purge_seqno)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        lease = data.draw(st.sampled_from(self.held))
        self.held.remove(lease)
        self.leases.release(lease.id)

    # --- what must hold -------------------------------------------------------------------------

    @invariant()
    def the_node_is_in_order(self) -> None:
        self.node.check()
        for queue in self.queues.values():
            queue.check()

    def teardown(self) -> None:
        try:
            for reader in self.readers:
                assert reader.read(10_000)
                reader.reading.close()
            for lease in self.held:
                self.leases.release(lease.id)
            while self.flush is not None:
                self.go_on_with_flush()
            if self.look is not None:
                self.go_on_with_compaction()
            self.node.flush()
            for queue in self.queues.values():
                assert (queue.open_views, queue.retired) == (0, 0), "entries are held for nobody"
            assert self.bucket.store.grow(), "a view of the store is still open"
        finally:
            for each in self.patches:
                each.stop()


class LmdbReadingMachine(ReadingMachine):
    """The same on LMDB."""

    def make_store(self) -> Store:
        self.directory = Path(tempfile.mkdtemp(prefix="uprmc-readings-"))
        return open_directory(
            self.directory,
            uuid=1,
            vbuckets=2,
            settings=StorageSettings(map_initial=16 * MIB, map_max=1024 * MIB),
            sync=False,
        )

    def teardown(self) -> None:
        try:
            super().teardown()
        finally:
            for view in self.views:
                view.close()
            self.bucket.store.close()
            shutil.rmtree(self.directory)


shows = pytest.mark.acceptance("D40", "D41", "D42", "D43", "P13", "P14")
TestReadingMachine = shows(ReadingMachine.TestCase)
TestReadingMachine.settings = settings(max_examples=100, stateful_step_count=50)
TestLmdbReadingMachine = shows(LmdbReadingMachine.TestCase)
TestLmdbReadingMachine.settings = settings(max_examples=25, stateful_step_count=50)
