"""Compactions, removals, flushes and crashes in any order, a step at a time, against one model.

The model is the list of all changes that each history of a vBucket ever accepted. Whatever happens:

* the store never shows records of two histories under one header, and lacks nothing but tombstones
  that the header's purge seqno speaks of, the newest item never among them;
* a consumer that is not sent back to 0 ends with what the vBucket has, wherever it had stopped.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple
from unittest.mock import patch

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.contents import table_of
from tests.engine.readings import open_reading
from tests.engine.support import Node, settings_of
from uprmc.engine import purge
from uprmc.engine.failover_log import last_complete_seqno
from uprmc.engine.flusher import Flush
from uprmc.engine.purge import Scan
from uprmc.engine.tombstones import PurgeRule
from uprmc.engine.vbucket import VBucket
from uprmc.engine.watermarks.rows import Limit
from uprmc.errors import StoreFull
from uprmc.model import SEQNO_MAX, Item, VBucketState

NUMBERS = (0, 1)
numbers = st.sampled_from(NUMBERS)
keys = st.sampled_from([b"a", b"b", b"c", b"d", b"e"])
rules = st.sampled_from(
    [PurgeRule(every=True), PurgeRule(upto_seqno=5), PurgeRule(2**40, 9), PurgeRule()]
)


@dataclass
class History:
    """Everything that one history of a vBucket accepted, in order; and what it was told to purge.

    Attributes:
        purged: how high its purge seqno was seen; it must not fall while the node lives.
    """

    changes: list[Item] = field(default_factory=list)
    purged: int = 0

    def newest(self, upto: int = SEQNO_MAX) -> dict[bytes, Item]:
        return {item.key: item for item in self.changes if item.seqno <= upto}

    def documents(self, upto: int = SEQNO_MAX) -> dict[bytes, int]:
        return {key: item.cas for key, item in self.newest(upto).items() if not item.life}


class Asked(NamedTuple):
    """A compaction that was asked for, and the tombstones that must be gone when it is over."""

    root: int
    named: list[Item]
    told: list[bool]


def names(purge: PurgeRule, item: Item) -> bool:
    before_s, upto_seqno = purge.bounds()
    return item.expiry < before_s and item.seqno <= upto_seqno


def root_of(vbucket: VBucket) -> int:
    return vbucket.failover_log[-1].uuid


class CompactionMachine(RuleBasedStateMachine):
    """Two vBuckets of one node."""

    def __init__(self) -> None:
        super().__init__()
        self.small = patch.object(purge, "_READ_RECORDS", 2)
        self.small.start()
        self.node = Node(settings_of(2, purge={"batch_items": 2}, flush={"batch_items": 64}))
        self.histories: dict[int, History] = {}
        self.flush: Flush | None = None
        self.committed = False
        self.scan: Scan | None = None
        self.was_read = False
        self.asked: list[Asked] = []
        self.changed = False
        self.let_limit_go()

    def teardown(self) -> None:
        self.small.stop()

    def let_limit_go(self) -> None:
        self.limit = SEQNO_MAX
        self.node.bucket.purge_limit = lambda _: Limit(self.limit, None)

    def history(self, vbucket: VBucket) -> History:
        return self.histories.setdefault(root_of(vbucket), History())

    @property
    def refusing(self) -> bool:
        return bool(self.node.bucket.account.disk_reason)

    # --- clients --------------------------------------------------------------------------------

    def write(self, number: int, key: bytes) -> None:
        vbucket = self.node.bucket.vbuckets.get(number)
        if vbucket is not None and not self.refusing:
            self.history(vbucket).changes.append(vbucket.store(key, b"v", 0, 0))

    def delete(self, number: int, key: bytes) -> None:
        vbucket = self.node.bucket.vbuckets.get(number)
        if vbucket is not None and not self.refusing and vbucket.find(key) is not None:
            self.history(vbucket).changes.append(vbucket.delete(key))

    @rule(number=numbers, some=st.lists(st.tuples(keys, st.booleans()), min_size=1, max_size=12))
    def change_some(self, number: int, some: list[tuple[bytes, bool]]) -> None:
        self.changed = True
        for key, kept in some:
            self.write(number, key)
            if not kept:
                self.delete(number, key)

    @precondition(lambda self: len(self.histories) % 3 == 0)
    @rule(number=numbers, count=st.integers(60, 90))
    def change_a_lot(self, number: int, count: int) -> None:
        """Enough for a flush in several commits."""
        for each in range(count):
            self.write(number, b"many-%d" % (each % 40))
            self.delete(number, b"many-%d" % (each % 7))

    # --- managers -------------------------------------------------------------------------------

    @precondition(lambda self: len(self.asked) < 3)
    @rule(number=numbers, purge=rules)
    def want(self, number: int, purge: PurgeRule) -> None:
        vbucket = self.node.bucket.vbuckets.get(number)
        if vbucket is None:
            return
        durable = self.node.bucket.flusher.durable_seqno(vbucket)
        top = min(durable, vbucket.persisted_seqno - 1, self.limit)
        named = [
            item
            for item in self.history(vbucket).newest().values()
            if item.life and item.seqno <= top and names(purge, item)
        ]
        told: list[bool] = []
        self.node.bucket.compact(number, purge, told.append)
        self.asked.append(Asked(root_of(vbucket), named, told))

    @precondition(lambda self: self.asked)
    @rule(limit=st.sampled_from([0, 3, 10, SEQNO_MAX]))
    def limit_purging(self, limit: int) -> None:
        if limit < self.limit:
            self.asked = [each._replace(named=[]) for each in self.asked]
        self.limit = limit

    @precondition(lambda self: len(self.node.bucket.vbuckets) == len(NUMBERS))
    @rule(number=numbers)
    def remove(self, number: int) -> None:
        if number in self.node.bucket.vbuckets:
            self.node.bucket.set_state(number, VBucketState.DEAD)
            self.node.bucket.remove(number, lambda _: None)

    @precondition(lambda self: len(self.node.bucket.vbuckets) < len(NUMBERS))
    @rule(number=numbers)
    def make(self, number: int) -> None:
        self.node.bucket.set_state(number, VBucketState.ACTIVE)

    @precondition(
        lambda self: any(table_of(vbucket) for vbucket in self.node.bucket.vbuckets.values())
    )
    @rule()
    def forget_everything(self) -> None:
        self.node.bucket.flush(0, lambda _: None)

    # --- steps ----------------------------------------------------------------------------------

    @precondition(lambda self: self.flush is not None or self.node.bucket.flusher.pending)
    @rule(fails=st.sampled_from([False, False, False, True]))
    def step_of_a_flush(self, fails: bool) -> None:
        flusher = self.node.bucket.flusher
        if self.flush is None:
            self.flush = flusher.begin()
            self.committed = False
        elif self.committed:
            flusher.finish(self.flush)
            self.flush = None
        elif fails:
            flusher.failed(self.flush, StoreFull("full"))
            self.flush = None
        else:
            flusher.commit(self.flush)
            self.committed = True

    @precondition(lambda self: self.flush is None and self.node.bucket.flusher.pending)
    @rule()
    def flush_everything(self) -> None:
        self.node.flush()

    @precondition(lambda self: self.scan is not None or self.node.bucket.compactor.waiting)
    @rule(fails=st.sampled_from([False, False, False, True]))
    def step_of_a_compaction(self, fails: bool) -> None:
        compactor = self.node.bucket.compactor
        if self.scan is None:
            self.scan = compactor.begin()
            self.was_read = False
        elif self.was_read:
            compactor.finish(self.scan)
            self.scan = None
        elif fails:
            compactor.failed(self.scan)
            self.scan = None
        else:
            compactor.read(self.scan)
            self.was_read = True

    @precondition(lambda self: self.asked and self.flush is None and self.scan is None)
    @rule()
    def compact_to_the_end(self) -> None:
        compactor = self.node.bucket.compactor
        while compactor.waiting or self.node.bucket.flusher.pending:
            scan = compactor.begin()
            if scan is not None:
                compactor.read(scan)
                compactor.finish(scan)
            else:
                self.node.flush()
        assert all(each.told for each in self.asked), "somebody waits for ever"

    # --- ends -----------------------------------------------------------------------------------

    @precondition(lambda self: self.changed)
    @rule(orderly=st.booleans())
    def start_again(self, orderly: bool) -> None:
        self.changed = False
        if orderly and self.flush is None and self.scan is None:
            self.node.stop()
        if self.scan is not None:
            self.scan.view.close()
        self.node.clock.advance(1)
        self.node = self.node.restarted()
        self.flush = self.scan = None
        self.asked = []
        self.let_limit_go()
        for vbucket in self.node.bucket.vbuckets.values():
            history = self.history(vbucket)
            history.changes = [i for i in history.changes if i.seqno <= vbucket.high_seqno]
            history.purged = vbucket.purge_seqno
            complete = vbucket.failover_log[0].seqno
            if complete < vbucket.high_seqno:  # some are lost in the middle
                kept = {item.cas for item in self.node.stored(vbucket.id).values()}
                purged = {
                    item.cas
                    for item in history.newest(complete).values()
                    if item.life and item.seqno <= vbucket.purge_seqno
                }
                history.changes = [i for i in history.changes if i.cas in kept | purged]

    # --- what must hold -------------------------------------------------------------------------

    @invariant()
    def the_store_lacks_nothing_but_what_was_purged(self) -> None:
        view = self.node.store.view()
        for number, header in view.headers().items():
            history = self.histories.get(header.failover_log[-1].uuid, History())
            records = {item.key: item for item in view.changes_after(number, 0)}
            accepted = {item.cas: item for item in history.changes}
            for item in records.values():
                assert accepted[item.cas].seqno == item.seqno, "of another history"
            complete = last_complete_seqno(header.high_seqno, header.snapshot)
            for key, item in history.newest(complete).items():
                if key not in records or records[key].seqno < item.seqno:
                    assert item.life, "a document is lost"
                    assert item.seqno <= header.purge_seqno, "a deletion can be missed"
                    assert item.seqno < header.high_seqno, "the newest item went"
            vbucket = self.node.bucket.vbuckets.get(number)
            if vbucket is not None and root_of(vbucket) == header.failover_log[-1].uuid:
                assert header.purge_seqno <= vbucket.purge_seqno
        view.close()

    @invariant()
    def a_consumer_that_goes_on_ends_with_what_is_there(self) -> None:
        for vbucket in self.node.bucket.vbuckets.values():
            history = self.history(vbucket)
            high = vbucket.high_seqno
            first = max(vbucket.purge_seqno, high - 12)
            for start in {0, *range(first, high + 1)}:
                state = history.documents(start) if start else {}
                scan = open_reading(self.node.store, vbucket, start)
                for item in scan.changes(start):
                    state.pop(item.key, None)
                    if not item.life:
                        state[item.key] = item.cas
                scan.close()
                assert state == history.documents(), f"from {start}"

    @invariant()
    def purge_seqnos_never_fall(self) -> None:
        for vbucket in self.node.bucket.vbuckets.values():
            history = self.history(vbucket)
            assert vbucket.purge_seqno >= history.purged
            history.purged = vbucket.purge_seqno

    @invariant()
    def what_was_asked_for_is_gone_when_that_is_told(self) -> None:
        for asked in [each for each in self.asked if each.told]:
            self.asked.remove(asked)
            if asked.told == [False]:
                continue
            left = {
                item.cas
                for number, vbucket in self.node.bucket.vbuckets.items()
                if root_of(vbucket) == asked.root
                for item in self.node.stored(number).values()
            }
            assert not left & {item.cas for item in asked.named}

    @invariant()
    def the_node_is_in_order(self) -> None:
        self.node.check()


TestCompactionMachine = pytest.mark.acceptance("X17")(CompactionMachine.TestCase)
TestCompactionMachine.settings = settings(max_examples=120, stateful_step_count=50)
