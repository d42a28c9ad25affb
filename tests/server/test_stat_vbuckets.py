"""What the groups about vBuckets show, compared with what was done, without a running server."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine import support
from tests.engine.support import CountingEntropy, settings_of
from uprmc.engine.bucket import Bucket
from uprmc.engine.warmup import Warmup
from uprmc.kv.services import StatGroup
from uprmc.model import SnapshotRange, VBucketState
from uprmc.server.stats import vbuckets


class Node(support.Node):
    """What these groups read of a node: its bucket, and that nobody pushes by TAP."""

    tap = None


@pytest.fixture
def node() -> Node:
    """A warmed-up bucket with one empty active vBucket, everything flushed."""
    return Node()


def read(group: StatGroup) -> dict[str, str]:
    """Return the values of vBucket 0 without its name in front."""
    assert len(dict(group)) == len(group), "a name appears twice"
    return {name.removeprefix("vb_0:"): value for name, value in group}


def details(node: Node) -> dict[str, str]:
    return read(vbuckets.details(node, [0]))


def seqnos(node: Node) -> dict[str, str]:
    return read(vbuckets.seqnos(node, [0]))


def counted(node: Node) -> tuple[int, ...]:
    """Return creates, updates and deletes."""
    found = details(node)
    return tuple(int(found[name]) for name in ("ops_create", "ops_update", "ops_delete"))


# --- what was done --------------------------------------------------------------------------------

KEYS = [b"a", b"b", b"c"]
ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["set", "delete", "flush", "flush_all", "restart"]), st.integers(0, 2)
    ),
    max_size=30,
)


class Counter:
    """Does things to vBucket 0 and counts them."""

    def __init__(self) -> None:
        self.node = Node()
        self.creates = self.updates = self.deletes = 0

    def act(self, action: str, key: bytes) -> None:
        there = self.node.vbucket.find(key) is not None
        if action == "set":
            self.node.set(key)
            self.creates += not there
            self.updates += there
        elif action == "delete" and there:
            self.node.vbucket.delete(key)
            self.deletes += 1
        elif action == "flush":
            self.node.flush()
        elif action in ("flush_all", "restart"):
            self._begin_anew(action)

    def _begin_anew(self, action: str) -> None:
        if action == "restart":
            self.node.stop()
            self.node = self.node.restarted()
        else:
            self.node.bucket.flush(0, lambda durable: None)
        self.creates = self.updates = self.deletes = 0


@given(ACTIONS)
def test_creates_updates_and_deletes_are_worked_out_from_seqnos(
    actions: list[tuple[str, int]],
) -> None:
    counter = Counter()
    for action, key in actions:
        counter.act(action, KEYS[key])
        assert counted(counter.node) == (counter.creates, counter.updates, counter.deletes)
        found = details(counter.node)
        changes = counter.creates + counter.updates + counter.deletes
        assert int(found["queue_fill"]) == changes
        assert int(found["queue_drain"]) == changes - counter.node.vbucket.queue.live


def test_a_touch_is_an_update_and_an_expiry_a_deletion(node: Node) -> None:
    node.set(b"k", expiry=int(node.clock.now()) + 10)
    node.vbucket.touch(b"k", int(node.clock.now()) + 20)
    assert counted(node) == (1, 1, 0)
    node.clock.advance(30)
    assert node.vbucket.get(b"k") is None
    assert counted(node) == (1, 1, 1)


def test_a_failover_does_not_begin_the_count_anew(node: Node) -> None:
    node.set(b"old")
    node.stop()
    after = node.restarted()
    after.set(b"new")
    after.bucket.set_state(0, VBucketState.REPLICA)
    after.bucket.set_state(0, VBucketState.ACTIVE)
    assert len(after.vbucket.failover_log) == 2
    assert counted(after) == (1, 0, 0)


# --- what is there --------------------------------------------------------------------------------


def test_details_have_every_name_that_tools_read(node: Node) -> None:
    names = """num_items num_temp_items num_non_resident ht_memory ht_item_memory ht_cache_size
    num_ejects ops_create ops_update ops_delete ops_reject queue_size queue_memory queue_fill
    queue_drain queue_age pending_writes db_data_size db_file_size high_seqno uuid purge_seqno"""
    assert {"vb_0", *names.split()} <= details(node).keys()


def test_documents_whose_value_is_on_disk_are_counted(node: Node) -> None:
    node.set(b"k")
    node.set(b"l")
    node.flush()
    node.eject(b"k")
    found = details(node)
    assert (found["num_items"], found["num_non_resident"]) == ("2", "1")


def test_the_estimates_of_memory_add_up_to_what_is_used() -> None:
    node = Node(settings_of(4))
    for number, vbucket in node.bucket.vbuckets.items():
        for key in range(number):
            vbucket.store(b"%d" % key, b"v" * 100 * number, 0, 0)
    found = dict(vbuckets.details(node, [0, 1, 2, 3]))
    shares = [int(found[f"vb_{number}:ht_item_memory"]) for number in range(4)]
    assert shares[0] == 0 < shares[1] < shares[2] < shares[3]
    assert node.bucket.account.used - 4 <= sum(shares) <= node.bucket.account.used
    sizes = dict(vbuckets.hash_tables(node, [0, 1, 2, 3]))
    assert [int(sizes[f"vb_{number}:mem_size"]) for number in range(4)] == shares


def test_an_empty_node_divides_by_nothing(node: Node) -> None:
    assert details(node)["ht_item_memory"] == "0"
    found = read(vbuckets.hash_tables(node, [0]))
    assert (found["size"], found["min_depth"], found["max_depth"]) == ("0", "0", "0")


# --- seqnos ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("receiving", "high_seqno", "complete_seqno"),
    [
        (None, 3, 3),
        (SnapshotRange(2, 5), 3, 2),
        (SnapshotRange(2, 3), 3, 3),
        (SnapshotRange(3, 5), 3, 3),
    ],
)
def test_a_replica_shows_the_end_of_its_last_complete_snapshot(
    node: Node, receiving: SnapshotRange | None, high_seqno: int, complete_seqno: int
) -> None:
    for key in KEYS:
        node.set(key)
    node.bucket.set_state(0, VBucketState.REPLICA)
    node.vbucket.receiving = receiving
    found = seqnos(node)
    assert found["high_seqno"] == str(complete_seqno)
    assert found["abs_high_seqno"] == str(high_seqno)


def test_what_is_persisted_shows_with_its_snapshot(node: Node) -> None:
    def persisted() -> list[str]:
        found = seqnos(node)
        return [found[f"last_persisted_{name}"] for name in ("seqno", "snap_start", "snap_end")]

    node.set(b"a")
    node.set(b"b")
    assert persisted() == ["0", "0", "0"]
    node.flush()
    assert persisted() == ["2", "2", "2"]
    node.set(b"c")
    assert persisted() == ["2", "2", "2"]
    node.flush()
    node.vbucket.receiving = SnapshotRange(2, 5)
    assert persisted() == ["3", "2", "5"]
    node.vbucket.receiving = SnapshotRange(3, 5)
    assert persisted() == ["3", "3", "3"]


def test_a_queue_that_is_half_written_counts_up_to_where_the_whole_is_durable() -> None:
    node = Node(settings_of(flush={"batch_items": 1}))
    for number in range(200):
        node.set(b"%d" % number)
    flush = node.begin()
    node.bucket.flusher.commit(flush)
    node.bucket.flusher.finish(flush)
    assert 0 < node.vbucket.persisted_seqno < 200
    found = seqnos(node)
    assert (found["last_persisted_seqno"], found["last_persisted_snap_end"]) == ("0", "0")


# --- states ---------------------------------------------------------------------------------------


def test_the_states_of_the_start_are_remembered() -> None:
    node = Node(settings_of(4))
    for number, state in enumerate(VBucketState):
        node.bucket.set_state(number, state)
    assert set(dict(vbuckets.previous_states(node)).values()) == {"active"}
    node.stop()
    after = node.restarted()
    before = vbuckets.states(after)
    assert dict(before)["vb_3"] == "dead"
    after.bucket.set_state(3, VBucketState.ACTIVE)
    assert vbuckets.previous_states(after) == before != vbuckets.states(after)


def test_what_is_commanded_during_warm_up_is_no_state_of_the_start() -> None:
    node = Node()
    node.set(b"k")
    node.stop()
    bucket = Bucket(node.settings, node.store.reopened(), node.clock, node.entropy)
    warmup = Warmup(bucket)
    steps = warmup.steps()
    next(steps)
    assert warmup.origins[0].item_count == 0
    bucket.set_state(0, VBucketState.DEAD)
    list(steps)
    assert warmup.origins[0].state == VBucketState.ACTIVE
    assert warmup.origins[0].item_count == 1


def test_numbers_may_be_missing() -> None:
    node = Node(settings_of(4), entropy=CountingEntropy())
    del node.bucket.vbuckets[1]
    numbers = sorted(node.bucket.vbuckets)
    for group in (
        vbuckets.details,
        vbuckets.seqnos,
        vbuckets.failovers,
        vbuckets.checkpoints,
        vbuckets.hash_tables,
    ):
        assert not [name for name, _ in group(node, numbers) if name.startswith("vb_1")]
    assert len(vbuckets.states(node)) == 3


# --- stand-ins ------------------------------------------------------------------------------------


def test_the_write_queue_is_shown_as_one_open_checkpoint(node: Node) -> None:
    node.set(b"a")
    node.flush()
    node.set(b"b")
    node.set(b"b")
    found = read(vbuckets.checkpoints(node, [0]))
    assert (found["state"], found["num_checkpoints"]) == ("active", "1")
    assert found["open_checkpoint_id"] == found["persistence:cursor_checkpoint_id"] == "1"
    assert found["last_closed_checkpoint_id"] == found["persisted_checkpoint_id"] == "0"
    for name in ("num_checkpoint_items", "num_open_checkpoint_items", "num_items_for_persistence"):
        assert found[name] == "1"
    assert (found["persistence:cursor_seqno"], found["num_tap_cursors"]) == ("1", "0")


def test_a_hash_table_has_every_name_that_tools_add_up(node: Node) -> None:
    node.set(b"a")
    node.set(b"b")
    node.vbucket.delete(b"b")
    found = read(vbuckets.hash_tables(node, [0]))
    names = (
        "state size locks min_depth max_depth reported counted resized mem_size mem_size_counted"
    )
    assert found.keys() == set(names.split())
    assert (found["size"], found["reported"], found["counted"]) == ("2", "1", "1")
    assert found["min_depth"] == found["max_depth"] == "1"
