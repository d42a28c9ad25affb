"""A vBucket that another node fills: numbers stay as they come, half a snapshot is no state."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.contents import table_of
from tests.engine.readings import newest_changes, open_reading
from tests.engine.support import FaultyStore, Node, settings_of
from uprmc.engine import replica
from uprmc.engine.failover_log import last_complete_seqno
from uprmc.engine.vbucket import VBucket
from uprmc.errors import InvalidArguments, RangeExceeded, StoreFull
from uprmc.model import FailoverEntry, Item, Life, SnapshotRange, VBucketState


def version(
    seqno: int, key: bytes | None = None, *, value: bytes | None = b"v", cas: int = 0
) -> Item:
    life = Life.LIVE if value is not None else Life.DELETED
    return Item(key or b"%03d" % seqno, value, 7, 0, cas or 9_000 + seqno, seqno, 3, 1, life)


@pytest.fixture
def node() -> Node:
    """A node whose vBucket 0 is a replica."""
    node = Node(settings_of(flush={"batch_items": 64}))
    node.bucket.set_state(0, VBucketState.REPLICA)
    node.flush()
    return node


def receive(vbucket: VBucket, start: int, end: int, *seqnos: int) -> None:
    for seqno in seqnos or range(start, end + 1):
        replica.apply(vbucket, version(seqno), SnapshotRange(start, end))


# --- versions -------------------------------------------------------------------------------------


@pytest.mark.acceptance("P14")
def test_everything_is_taken_as_the_active_gave_it(node: Node) -> None:
    written = [
        Item(b"doc", b"\x00value", 0xFFFFFFFF, 2_000_000_000, 77, 5, 9, 1),
        Item(b"empty", b"", 0, 0, 78, 9, 1, 0),
        Item(b"gone", None, 0, 1_600_000_000, 79, 10, 4, 0, Life.DELETED),
    ]
    for item in written:
        replica.apply(node.vbucket, item, SnapshotRange(1, 10))
    assert [node.vbucket.table.find(item.key) for item in written] == written
    node.flush()
    assert list(node.stored().values()) == written
    assert node.header().high_seqno == 10
    node.check()


def test_a_lower_revision_wins_if_the_active_says_so(node: Node) -> None:
    replica.apply(node.vbucket, Item(b"k", b"high", 0, 0, 900, 1, 50), SnapshotRange(1, 2))
    replica.apply(node.vbucket, Item(b"k", b"low", 0, 0, 5, 2, 1), SnapshotRange(1, 2))
    found = node.vbucket.get(b"k")
    assert found is not None
    assert (found.value, found.rev, found.cas) == (b"low", 1, 5)


@pytest.mark.parametrize("seqno", [0, 4, 5, 6, 10, 21])
def test_a_seqno_that_does_not_rise_or_is_outside_of_its_snapshot_is_refused(
    node: Node, seqno: int
) -> None:
    receive(node.vbucket, 1, 5)
    receive(node.vbucket, 6, 6)
    with pytest.raises(RangeExceeded):
        replica.apply(node.vbucket, version(seqno), SnapshotRange(11, 20))
    assert (node.vbucket.high_seqno, node.vbucket.receiving) == (6, None)


@pytest.mark.parametrize(
    "item",
    [
        version(1, cas=2**64 - 1),
        version(1, cas=2**63),
        Item(b"k", b"v", 0, 0, 1, 1, 2**63),
        Item(b"k", b"v", 0, 0, 1, 2**64 - 1, 1),
    ],
    ids=["greatest CAS", "CAS", "revision", "seqno"],
)
def test_a_number_that_would_end_our_counters_is_refused(node: Node, item: Item) -> None:
    with pytest.raises(InvalidArguments):
        replica.apply(node.vbucket, item, SnapshotRange(0, 2**64 - 1))
    assert (node.vbucket.high_seqno, node.vbucket.receiving) == (0, None)
    node.bucket.set_state(0, VBucketState.ACTIVE)
    assert node.set(b"ours").cas < 2**63


def test_our_own_cas_stays_above_those_received(node: Node) -> None:
    replica.apply(node.vbucket, version(1, cas=2**62), SnapshotRange(1, 1))
    node.bucket.set_state(0, VBucketState.ACTIVE)
    assert node.set(b"ours").cas > 2**62


def test_the_active_s_history_is_taken_over_and_stored(node: Node) -> None:
    log = (FailoverEntry(9, 100), FailoverEntry(8, 0))
    replica.take_history(node.vbucket, list(log))
    assert node.vbucket.failover_log == log
    node.flush()
    assert node.header().failover_log == log
    assert node.restarted().vbucket.failover_log == log


# --- snapshots ------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", [0, 50, 90, 91, 95])
def test_a_snapshot_counts_from_its_first_item_and_from_where_the_last_whole_state_was(
    node: Node, start: int
) -> None:
    receive(node.vbucket, 1, 90)
    snapshot = SnapshotRange(start, 120)
    replica.apply(node.vbucket, version(95), snapshot)
    assert node.vbucket.receiving == (90, 120)
    replica.apply(node.vbucket, version(110), snapshot)
    assert node.vbucket.snapshot == (90, 120)
    replica.apply(node.vbucket, version(120), snapshot)
    assert node.vbucket.snapshot == (120, 120)
    assert not node.vbucket.receiving


def test_a_snapshot_that_is_announced_again_with_a_later_end_is_still_the_same(node: Node) -> None:
    receive(node.vbucket, 1, 90)
    receive(node.vbucket, 91, 120, 95, 110)
    receive(node.vbucket, 91, 150, 115, 120)
    assert node.vbucket.receiving == (90, 150)
    receive(node.vbucket, 91, 150, 150)
    assert node.vbucket.receiving is None


def test_a_snapshot_that_begins_above_says_that_the_one_before_was_whole(node: Node) -> None:
    receive(node.vbucket, 1, 90, 40, 80)
    receive(node.vbucket, 91, 120, 91)
    assert node.vbucket.receiving == (80, 120)


# --- what is stored of it -------------------------------------------------------------------------


@pytest.mark.acceptance("D53")
def test_the_stored_range_is_the_one_that_the_items_belong_to(node: Node) -> None:
    receive(node.vbucket, 1, 90)
    node.flush()
    assert node.header().snapshot == (90, 90)
    receive(node.vbucket, 91, 120, 100, 110)
    node.flush()
    assert (node.header().high_seqno, node.header().snapshot) == (110, (90, 120))
    receive(node.vbucket, 91, 120, 120)
    node.flush()
    assert (node.header().high_seqno, node.header().snapshot) == (120, (120, 120))


def test_a_header_alone_keeps_the_range(node: Node) -> None:
    receive(node.vbucket, 1, 120, 110)
    node.flush()
    replica.take_history(node.vbucket, [FailoverEntry(5, 0)])
    node.flush()
    assert (node.header().high_seqno, node.header().snapshot) == (110, (0, 120))


@pytest.mark.acceptance("D53")
@pytest.mark.parametrize("whole_by_now", [False, True])
def test_a_long_flush_after_half_a_snapshot_names_the_last_whole_state_on_disk(
    node: Node, whole_by_now: bool
) -> None:
    receive(node.vbucket, 1, 90)
    node.flush()
    receive(node.vbucket, 91, 400, *range(91, 151))
    node.flush()
    assert node.header().snapshot == (90, 400)
    end = 400 if whole_by_now else 399
    receive(node.vbucket, 91, 400, *range(151, end + 1))
    flusher = node.bucket.flusher
    seen = []
    while flush := flusher.begin():
        flusher.commit(flush)
        header = node.header()
        restored = Node(node.settings, store=node.store.reopened()).vbucket
        node.store.closed = False
        assert restored.snapshot == header.snapshot
        seen.append((header.high_seqno < end, header.snapshot))
        flusher.finish(flush)
    last = SnapshotRange(400, 400) if whole_by_now else SnapshotRange(90, 400)
    assert seen[:-1] == [(True, (90, 400))] * (len(seen) - 1)
    assert len(seen) > 2
    assert seen[-1] == (False, last)


@pytest.mark.acceptance("D53")
@pytest.mark.parametrize("high", [90, 120])
def test_after_a_restart_a_long_flush_still_names_the_last_whole_state_on_disk(
    node: Node, high: int
) -> None:
    receive(node.vbucket, 1, 90)
    for seqno in range(91, high + 1):
        receive(node.vbucket, 91, 200, seqno)
    node.flush()
    node = node.restarted()
    receive(node.vbucket, 91, 400, *range(high + 1, 400))
    node.bucket.flusher.commit(node.begin())
    assert node.header().high_seqno < 399
    assert node.header().snapshot == (90, 400)


def test_after_a_reset_a_long_flush_begins_at_0(node: Node) -> None:
    receive(node.vbucket, 1, 90)
    node.flush()
    node.bucket.flush(0, lambda _: None)
    receive(node.vbucket, 1, 200)
    node.bucket.flusher.commit(node.begin())
    assert node.header().high_seqno < 200
    assert node.header().snapshot == (0, 200)


def test_what_arrives_during_a_flush_does_not_change_what_that_flush_says(node: Node) -> None:
    receive(node.vbucket, 1, 10, 5)
    flush = node.begin()
    receive(node.vbucket, 1, 10, 10)
    node.bucket.flusher.commit(flush)
    assert (node.header().high_seqno, node.header().snapshot) == (5, (0, 10))
    node.bucket.flusher.finish(flush)
    receive(node.vbucket, 11, 20, 15)
    flush = node.begin()
    assert flush.changes[0].header.snapshot == (10, 20)  # type: ignore[union-attr]
    node.bucket.flusher.commit(flush)
    node.bucket.flusher.finish(flush)


def test_a_refused_commit_leaves_the_stored_range_as_it_was(node: Node) -> None:
    receive(node.vbucket, 1, 10)
    node.flush()
    receive(node.vbucket, 11, 20, 15)
    node.fail_flush(StoreFull("full"))
    assert node.header().snapshot == (10, 10)
    assert node.vbucket.persisted_snapshot == (10, 10)
    node.flush()
    assert node.header().snapshot == node.vbucket.persisted_snapshot == (10, 20)


@pytest.mark.acceptance("D53")
@pytest.mark.parametrize("step", ["before", "begun", "committed", "finished"])
@pytest.mark.parametrize("end", ["crash", "kill"])
def test_a_crash_at_any_step_leaves_the_range_of_what_is_left(
    node: Node, step: str, end: str
) -> None:
    receive(node.vbucket, 1, 90)
    node.flush()
    receive(node.vbucket, 91, 120, 100, 110)
    flusher = node.bucket.flusher
    if step != "before":
        flush = node.begin()
        if step != "begun":
            flusher.commit(flush)
        if step == "finished":
            flusher.finish(flush)
    store = node.store.crash() if end == "crash" else node.store.reopened()
    after = Node(node.settings, store=store, entropy=node.entropy)
    written = step in ("committed", "finished")
    assert after.vbucket.state == VBucketState.REPLICA
    assert after.vbucket.high_seqno == (110 if written else 90)
    assert after.vbucket.receiving == ((90, 120) if written else None)
    after.bucket.set_state(0, VBucketState.ACTIVE)
    assert after.vbucket.failover_log[0].seqno == 90
    after.flush()
    assert after.header().snapshot == (after.vbucket.high_seqno,) * 2


@pytest.mark.acceptance("D53")
def test_a_branch_during_a_flush_is_stored_as_the_whole_state_that_it_makes(node: Node) -> None:
    receive(node.vbucket, 1, 90)
    node.flush()
    receive(node.vbucket, 91, 400, *range(91, 291))
    flusher = node.bucket.flusher
    flush = node.begin()
    flusher.commit(flush)
    flusher.finish(flush)
    assert node.vbucket.persisted_seqno < 290
    node.bucket.set_state(0, VBucketState.ACTIVE)
    node.stop()
    assert (node.header().high_seqno, node.header().snapshot) == (290, (290, 290))
    after = node.restarted()
    assert after.vbucket.receiving is None
    assert [entry.seqno for entry in after.vbucket.failover_log] == [90, 0]


# --- all of it, at random -------------------------------------------------------------------------


class Follower:
    """A node that follows a list of writes, is flushed in small steps, and crashes.

    What it may never do: call a state whole that the list never had.
    """

    def __init__(self, random: Random) -> None:
        self.random = random
        self.node = Node(
            settings_of(flush={"batch_items": 64}), store=FaultyStore(sync=random.random() < 0.5)
        )
        self.node.bucket.set_state(0, VBucketState.REPLICA)
        self.node.flush()
        self.node.store.sync()
        self.master: list[Item] = []
        self.floor: int | None = 0
        self.pending: list[Item] = []
        self.end = 0

    @property
    def vbucket(self) -> VBucket:
        return self.node.vbucket

    def write(self) -> None:
        for _ in range(self.random.choice([1, 3, 100])):
            value = b"v" if self.random.random() < 0.7 else None
            seqno = len(self.master) + 1
            self.master.append(version(seqno, b"%d" % self.random.randrange(120), value=value))

    def connect(self) -> None:
        """Ask again: the marker begins where the request's snapshot does."""
        self.floor, self.pending = self.vbucket.snapshot.start, []

    def announce(self) -> None:
        """Begin a snapshot, or announce the one that is half sent with a later end."""
        high = self.vbucket.high_seqno
        self.end = len(self.master)
        self.pending = newest_changes(self.master, high, self.end)
        if self.pending and self.floor is None:
            self.floor = self.random.choice([high + 1, self.pending[0].seqno])

    def receive(self) -> None:
        if not self.pending or self.random.random() < 0.2:
            self.announce()
        if self.floor is None:
            return
        snapshot = SnapshotRange(min(self.floor, self.end), self.end)
        count = self.random.choice([1, 2, 50, 10_000])
        for item in self.pending[:count]:
            replica.apply(self.vbucket, item, snapshot)
        self.pending = self.pending[count:]
        if not self.pending:
            self.floor = None
        assert (self.vbucket.receiving is None) == (self.vbucket.high_seqno in (0, self.end))

    def flush(self) -> None:
        """Some steps of a flush; the last one may be left half done by a crash."""
        flusher = self.node.bucket.flusher
        for _ in range(self.random.choice([1, 1, 2, 9])):
            flush = flusher.begin()
            if flush is None:
                return
            how = self.random.random()
            if how < 0.1:
                flusher.failed(flush, StoreFull("full"))
                continue
            if how >= 0.2:
                flusher.commit(flush)
            if how < 0.4:
                self.crash()
                return
            flusher.finish(flush)

    def crash(self) -> None:
        store = self.node.store
        store = store.crash() if self.random.random() < 0.5 else store.reopened()
        self.node = Node(self.node.settings, store=store, entropy=self.node.entropy)
        self.judge()
        self.connect()

    def judge(self) -> None:
        """What it calls whole is what the list was at that seqno, but for newer versions."""
        high, snapshot = self.vbucket.high_seqno, self.vbucket.snapshot
        whole = last_complete_seqno(high, snapshot)
        there = self.node.stored()
        for item in newest_changes(self.master, 0, whole):
            assert item.key in there
            assert there[item.key].seqno >= item.seqno, f"lost below {whole}"
        for item in there.values():
            assert self.master[item.seqno - 1] == item
        if whole == high:
            assert list(there.values()) == newest_changes(self.master, 0, high)

    def promote(self) -> None:
        """Become the master; whoever had a state up to the branch goes on from there."""
        whole = last_complete_seqno(self.vbucket.high_seqno, self.vbucket.snapshot)
        self.node.bucket.set_state(0, VBucketState.ACTIVE)
        assert self.vbucket.failover_log[0].seqno == whole
        now = {key: item for key, item in table_of(self.vbucket).items() if not item.life}
        for start in {0, whole // 2, max(0, whole - 1), whole}:
            before = newest_changes(self.master, 0, start)
            state = {item.key: item for item in before if not item.life}
            reading = open_reading(self.node.store, self.vbucket, start)
            for item in reading.changes(start):
                state.pop(item.key, None)
                if not item.life:
                    state[item.key] = item
            reading.close()
            assert state.keys() == now.keys()
            assert all(state[key].seqno == now[key].seqno for key in now)


@pytest.mark.acceptance("D53", "D54")
@settings(max_examples=150)
@given(random=st.randoms(use_true_random=False))
def test_what_is_called_whole_is_whole_whatever_happened(random: Random) -> None:
    follower = Follower(random)
    steps = [follower.write, follower.receive, follower.receive, follower.flush, follower.connect]
    for _ in range(random.randrange(40)):
        random.choice(steps)()
    if random.random() < 0.5:
        follower.crash()
    follower.promote()
