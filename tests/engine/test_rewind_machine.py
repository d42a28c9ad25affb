"""A replica that is sent back, whatever happened to it: flushes in steps, crashes, ejections.

The active is a plain list of every version it ever accepted. It loses its end now and then (as a
node does that was restored, or a lagging one that was promoted) and goes on under a new uuid, and
it drops deletions. The replica also writes by itself for a while, as an old active does that comes
back. Whenever the active lets the replica go on, what the replica holds as whole must be the
beginning of that list; when it has caught up it must be the list, with every number in it.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from tests.contents import receive_all, table_of
from tests.engine.readings import judge, open_reading
from tests.engine.support import Node, settings_of
from uprmc.engine import replica
from uprmc.engine.failover_log import branched, new_log
from uprmc.engine.flusher import Flush
from uprmc.engine.vbucket import VBucket
from uprmc.errors import StoreFull
from uprmc.model import FailoverLog, Item, Life, SnapshotRange, VBucketState
from uprmc.rollback import ConsumerPosition, VBucketHoldings, rollback_point

KEYS = [b"a", b"b", b"c", b"d", b"e", b"f"]
LOG_LIMIT = 5


class Active:
    """The other node.

    Attributes:
        accepted: every version of its history, oldest first; their seqnos are 1, 2, 3, ...
        purge_seqno: deletions up to here were dropped, if they were the newest of their key.
    """

    def __init__(self) -> None:
        self.stamp = 1_000
        self.accepted: list[Item] = []
        self.log: FailoverLog = new_log(self.fresh())
        self.purge_seqno = 0

    def fresh(self) -> int:
        self.stamp += 1
        return self.stamp

    def write(self, key: bytes, size: int | None) -> None:
        stamp, seqno = self.fresh(), len(self.accepted) + 1
        value = None if size is None else b"%d" % stamp + bytes(size)
        life = Life.DELETED if value is None else Life.LIVE
        self.accepted.append(Item(key, value, stamp, 0, stamp, seqno, stamp, 0, life))

    def lose(self, seqno: int) -> None:
        """Go on from an earlier state, under a new name."""
        del self.accepted[seqno:]
        self.log = branched(self.log, self.fresh(), seqno, LOG_LIMIT)

    @property
    def held(self) -> VBucketHoldings:
        return VBucketHoldings(self.log, len(self.accepted), self.purge_seqno)

    def newest(self) -> dict[bytes, Item]:
        """What it has of every key; a deletion that was dropped is not there."""
        newest = {item.key: item for item in self.accepted}
        return {
            key: item
            for key, item in newest.items()
            if not (item.life and item.seqno <= self.purge_seqno)
        }

    def rewind(self, seqno: int, lost: list[bytes]) -> replica.Rewind:
        """Answer for the lost keys."""
        found = [item for key, item in self.newest().items() if key in lost]
        later = [item.seqno for item in found if item.seqno > seqno]
        versions = [item for item in found if item.seqno <= seqno]
        return replica.Rewind(seqno, self.log, versions, max(later, default=0), self.purge_seqno)


class RewindMachine(RuleBasedStateMachine):
    """One replica, its disk, and the active that it follows."""

    def __init__(self) -> None:
        super().__init__()
        self.active = Active()
        self.node = Node(settings_of(flush={"batch_items": 64}))
        self.node.bucket.set_state(0, VBucketState.REPLICA)
        self.node.flush()
        self.flush: Flush | None = None
        self.committed = False
        self.told: list[bool] = []
        self.limit = 100

    @initialize(
        sizes=st.lists(st.integers(0, 5), min_size=8, max_size=12), flushed=st.integers(0, 8)
    )
    def begin_with_something(self, sizes: list[int], flushed: int) -> None:
        """Both have the same; a part of it is on the replica's disk."""
        for place, size in enumerate(sizes):
            self.active.write(KEYS[place * 5 % 7 % len(KEYS)], size or None)
        self.follow(flushed)
        self.node.flush()
        self.follow(100)

    @property
    def vbucket(self) -> VBucket:
        return self.node.vbucket

    # --- the active -----------------------------------------------------------------------------

    @rule(writes=st.lists(st.tuples(st.sampled_from(KEYS), st.integers(0, 5)), max_size=5))
    def write(self, writes: list[tuple[bytes, int]]) -> None:
        for key, size in writes:
            self.active.write(key, size or None)

    @rule(share=st.integers(0, 5))
    def lose(self, share: int) -> None:
        """It keeps what it has dropped deletions of, and its newest item is always there."""
        high = len(self.active.accepted)
        self.active.lose(min(high, max(self.active.purge_seqno + 1, high - share)))

    @rule(share=st.integers(2, 12))
    def purge(self, share: int) -> None:
        upto = len(self.active.accepted) - share
        self.active.purge_seqno = max(self.active.purge_seqno, upto)

    # --- the stream -----------------------------------------------------------------------------

    def ask(self) -> int | None:
        """Return how far the active sends us back."""
        vbucket = self.vbucket
        log = vbucket.failover_log
        place = ConsumerPosition(vbucket.high_seqno, vbucket.snapshot, log[0].uuid, log)
        return rollback_point(place, self.active.held)

    @rule(count=st.sampled_from([0, 1, 2, 3, 100]))
    def follow(self, count: int) -> None:
        """Ask once; go back, or take up to `count` items of what there is."""
        vbucket = self.vbucket
        point = self.ask()
        if point is not None:
            self.fall(point)
            return
        if vbucket.rewinding:
            return
        self.judge_a_beginning()
        replica.take_history(vbucket, self.active.log)
        high, floor = vbucket.high_seqno, vbucket.snapshot.start
        newest = self.active.newest().values()
        items = sorted((i for i in newest if i.seqno > high), key=lambda item: item.seqno)
        if items and count:
            snapshot = SnapshotRange(min(floor, high + 1), items[-1].seqno)
            receive_all(vbucket, items[:count], snapshot, self.active.purge_seqno)

    def fall(self, point: int) -> None:
        node, vbucket = self.node, self.vbucket
        seqno = replica.target(vbucket, point)
        lost = replica.lost_keys(node.bucket, vbucket, seqno, self.limit)
        if lost is None:
            vbucket.reset(node.entropy.uuid48())
            return
        replica.roll_back(node.bucket, vbucket, self.active.rewind(seqno, lost), self.told.append)
        assert vbucket.high_seqno <= seqno
        if vbucket.high_seqno:
            assert vbucket.rewinding
            assert vbucket.failover_log == self.active.log

    @rule(limit=st.sampled_from([0, 1, 100, 100, 100, 100]))
    def change_limit(self, limit: int) -> None:
        self.limit = limit

    # --- the replica by itself ------------------------------------------------------------------

    @rule(writes=st.lists(st.tuples(st.sampled_from(KEYS), st.booleans()), min_size=1, max_size=4))
    def write_here(self, writes: list[tuple[bytes, bool]]) -> None:
        """It is active for a while and writes what nobody will know."""
        bucket = self.node.bucket
        bucket.set_state(0, VBucketState.ACTIVE)
        for key, life in writes:
            if bucket.account.disk_reason:
                break
            if life:
                self.node.set(key, b"mine %d" % self.active.fresh())
            elif self.vbucket.find(key) is not None:
                self.vbucket.delete(key)
        bucket.set_state(0, VBucketState.REPLICA)

    @rule(key=st.sampled_from(KEYS))
    def eject(self, key: bytes) -> None:
        item = self.vbucket.table.find(key)
        if item is None or item.value is None or item.life:
            return
        if item.seqno <= self.vbucket.persisted_seqno:
            self.vbucket.eject(item.key)

    @rule(key=st.sampled_from(KEYS))
    def fetch(self, key: bytes) -> None:
        item = self.vbucket.table.find(key)
        if item is not None and item.value is None and not item.life:
            assert self.node.fetch(key)

    # --- the disk -------------------------------------------------------------------------------

    @precondition(lambda self: self.flush is None)
    @rule()
    def begin(self) -> None:
        self.flush = self.node.bucket.flusher.begin()
        self.committed = False

    @precondition(lambda self: self.flush is not None and not self.committed)
    @rule()
    def commit(self) -> None:
        assert self.flush is not None
        self.node.bucket.flusher.commit(self.flush)
        self.committed = True

    @precondition(lambda self: self.flush is not None and not self.committed)
    @rule()
    def refuse(self) -> None:
        assert self.flush is not None
        self.node.bucket.flusher.failed(self.flush, StoreFull("full"))
        self.flush = None

    @precondition(lambda self: self.flush is not None and self.committed)
    @rule()
    def finish(self) -> None:
        assert self.flush is not None
        self.node.bucket.flusher.finish(self.flush)
        self.flush = None

    @rule()
    def crash(self) -> None:
        self.node = self.node.restarted()
        self.flush = None

    # --- judges ---------------------------------------------------------------------------------

    def judge_a_beginning(self) -> None:
        """What is whole here is the beginning of the active's history."""
        vbucket = self.vbucket
        if vbucket.receiving is not None:
            return
        high = vbucket.high_seqno
        reading = open_reading(self.node.store, vbucket, 0)
        found = list(reading.changes(0))
        purged = max(reading.purge_seqno, vbucket.purge_seqno)
        reading.close()
        judge(found, self.active.accepted[:high], 0, high, purged)
        table = {item.key: item.seqno for item in found if not item.life}
        mine = {k: item.seqno for k, item in table_of(vbucket).items() if not item.life}
        assert mine == table

    @invariant()
    def everything_adds_up(self) -> None:
        self.node.check()
        vbucket = self.vbucket
        held = {item.seqno for item in table_of(vbucket).values()} | {0}
        if vbucket.high_seqno not in held:  # only a tombstone that is on disk is not in the table
            stored = {item.seqno for item in self.node.stored().values() if item.life}
            assert vbucket.high_seqno in stored, "no item has the high seqno"

    def teardown(self) -> None:
        """Let it catch up; then it is the active's equal, also after a restart."""
        if self.flush is not None:
            if self.committed:
                self.finish()
            else:
                self.refuse()
        self.node.flush()
        for _ in range(10):
            self.follow(100)
            self.node.flush()
        self.judge_equal()
        self.node = self.node.restarted()
        self.judge_equal()

    def judge_equal(self) -> None:
        vbucket = self.vbucket
        assert self.ask() is None
        assert vbucket.receiving is None
        assert not vbucket.rewinding
        self.node.check()
        self.judge_a_beginning()
        stored = self.node.stored()
        live = {key: item for key, item in self.active.newest().items() if not item.life}
        assert {key: item for key, item in stored.items() if not item.life} == live
        assert {key: item.seqno for key, item in table_of(vbucket).items()} == {
            key: item.seqno for key, item in live.items()
        }


TestRewindMachine = RewindMachine.TestCase
TestRewindMachine.settings = settings(max_examples=100, stateful_step_count=40)
