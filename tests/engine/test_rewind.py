"""A replica rolls back by seqno: what comes back, what goes, and what a crash leaves of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.contents import receive_all, table_of
from tests.engine.readings import open_reading
from tests.engine.support import FaultyStore, Node, Watching, settings_of
from uprmc.config import UprSettings
from uprmc.engine.flusher import Flush
from uprmc.engine.reading import Leases
from uprmc.engine.replica import Rewind, lost_keys, roll_back, target
from uprmc.engine.tombstones import PurgeRule
from uprmc.engine.vbucket import VBucket
from uprmc.engine.watermarks.rows import Limit
from uprmc.errors import InvalidArguments, NotResident, StoreError, StoreFull, TemporaryFailure
from uprmc.model import FailoverEntry, Item, Life, SnapshotRange, VBucketState

LOG = (FailoverEntry(99, 60), FailoverEntry(98, 20), FailoverEntry(97, 0))


def version(key: bytes, seqno: int, value: bytes | None = b"v") -> Item:
    life = Life.LIVE if value is not None else Life.DELETED
    return Item(key, value, 7, 0, 9_000 + seqno, seqno, seqno + 3, 1, life)


def receive(vbucket: VBucket, end: int, *items: Item) -> None:
    """Take a snapshot that ends at `end`, or a part of it."""
    floor = vbucket.snapshot.start
    snapshot = SnapshotRange(min(floor, vbucket.high_seqno + 1), end)
    receive_all(vbucket, list(items), snapshot)


def back(
    node: Node, seqno: int, *versions: Item, later: int = 0, purge: int = 0, limit: int = 100
) -> list[bool]:
    """Roll vBucket 0 back; returns what will be told."""
    assert lost_keys(node.bucket, node.vbucket, seqno, limit) is not None
    told: list[bool] = []
    rewind = Rewind(seqno, LOG, versions, later, purge)
    roll_back(node.bucket, node.vbucket, rewind, told.append)
    return told


def seqnos(node: Node) -> dict[bytes, int]:
    """What the table holds."""
    return {key: item.seqno for key, item in table_of(node.vbucket).items()}


def stored(node: Node) -> dict[bytes, int]:
    return {key: item.seqno for key, item in node.stored().items()}


@pytest.fixture
def node() -> Node:
    """A replica that has a to f at 1 to 6 on disk; then a at 7, g at 8 and e gone at 9, queued."""
    node = Node(settings_of(flush={"batch_items": 64}))
    vbucket = node.bucket.set_state(0, VBucketState.REPLICA)
    receive(vbucket, 6, *[version(b"%c" % (96 + seqno), seqno) for seqno in range(1, 7)])
    node.flush()
    receive(vbucket, 9, version(b"a", 7, b"new"), version(b"g", 8), version(b"e", 9, None))
    return node


# --- how far, and what is lost --------------------------------------------------------------------


@pytest.mark.acceptance("P10")
def test_a_replica_falls_to_a_whole_state_at_or_below_what_it_is_told(node: Node) -> None:
    assert [target(node.vbucket, told) for told in (3, 9, 40)] == [3, 9, 9]
    receive(node.vbucket, 40, version(b"x", 25))
    assert [target(node.vbucket, told) for told in (3, 9, 25, 30)] == [3, 9, 9, 9]


@pytest.mark.parametrize(
    ("seqno", "expected"),
    [(9, ""), (8, "e"), (7, "eg"), (6, "aeg"), (5, "aefg"), (3, "adefg"), (1, "abcdefg")],
)
def test_every_key_with_a_version_above_is_lost(node: Node, seqno: int, expected: str) -> None:
    lost = lost_keys(node.bucket, node.vbucket, seqno, 100)
    assert lost is not None
    assert sorted(lost) == sorted(
        expected.encode()[place : place + 1] for place in range(len(expected))
    )
    node.flush()
    assert sorted(lost_keys(node.bucket, node.vbucket, seqno, 100) or []) == sorted(lost)


def test_deletions_on_disk_are_lost_too(node: Node) -> None:
    node.flush()
    assert b"e" not in table_of(node.vbucket)
    assert lost_keys(node.bucket, node.vbucket, 8, 100) == [b"e"]


@pytest.mark.parametrize("flushed", [False, True])
def test_more_lost_keys_than_the_limit_mean_a_new_beginning(node: Node, flushed: bool) -> None:
    if flushed:
        node.flush()
    assert len(lost_keys(node.bucket, node.vbucket, 3, 5) or []) == 5
    assert lost_keys(node.bucket, node.vbucket, 3, 4) is None
    assert lost_keys(node.bucket, node.vbucket, 9, 0) == []


def test_nobody_rolls_back_to_where_nothing_is_or_something_was_dropped(node: Node) -> None:
    node.vbucket.purge_seqno = 4
    answers = {seqno: lost_keys(node.bucket, node.vbucket, seqno, 9) for seqno in (0, 1, 3, 4, 10)}
    assert {seqno: answer is None for seqno, answer in answers.items()} == {
        0: True,
        1: True,
        3: True,
        4: False,
        10: True,
    }


def test_a_history_that_the_disk_has_not_forgotten_is_not_asked(node: Node) -> None:
    node.vbucket.reset(5)
    receive(node.vbucket, 2, version(b"y", 1), version(b"z", 2))
    assert lost_keys(node.bucket, node.vbucket, 1, 100) == [b"z"]
    back(node, 1)
    assert seqnos(node) == {b"y": 1}
    assert node.vbucket.high_seqno == 1
    node.flush()
    assert stored(node) == {b"y": 1}


# --- what it holds afterwards ---------------------------------------------------------------------


def test_what_was_overwritten_comes_back_and_what_never_was_goes(node: Node) -> None:
    told = back(node, 6, version(b"a", 1), version(b"e", 5))
    assert seqnos(node) == {b"a": 1, b"b": 2, b"c": 3, b"d": 4, b"e": 5, b"f": 6}
    assert node.vbucket.table.find(b"a") == version(b"a", 1)
    assert (node.vbucket.high_seqno, node.vbucket.receiving) == (6, None)
    assert node.vbucket.failover_log == LOG
    assert told == []
    node.check()
    node.flush()
    assert told == [True]
    assert stored(node) == {b"a": 1, b"b": 2, b"c": 3, b"d": 4, b"e": 5, b"f": 6}
    assert (node.header().failover_log, node.header().snapshot) == (LOG, (6, 6))
    node.check()


def test_what_has_changed_at_the_active_is_awaited(node: Node) -> None:
    back(node, 6, version(b"e", 5), later=33)
    assert seqnos(node) == {b"b": 2, b"c": 3, b"d": 4, b"e": 5, b"f": 6}
    assert node.vbucket.snapshot == (0, 33)
    node.flush()
    assert (node.header().high_seqno, node.header().snapshot) == (6, (0, 33))
    assert stored(node) == seqnos(node)
    restarted = node.restarted()
    assert restarted.vbucket.snapshot == (0, 33)
    receive(restarted.vbucket, 33, version(b"b", 20), version(b"a", 33, b"otherwise"))
    assert restarted.vbucket.receiving is None
    restarted.flush()
    assert restarted.header().snapshot == (33, 33)


def test_one_that_is_promoted_before_claims_no_history(node: Node) -> None:
    back(node, 6, later=33)
    node.bucket.set_state(0, VBucketState.ACTIVE)
    assert [entry.seqno for entry in node.vbucket.failover_log] == [0, 0]
    assert node.vbucket.failover_log[1] == LOG[-1]
    assert node.set(b"ours").seqno == 7
    node.flush()
    assert stored(node) == {b"b": 2, b"c": 3, b"d": 4, b"f": 6, b"ours": 7}


def test_a_version_of_a_key_that_was_not_lost_takes_its_place(node: Node) -> None:
    back(node, 8, version(b"a", 1), version(b"e", 5))
    node.check()
    node.flush()
    assert stored(node) == {b"a": 1, b"b": 2, b"c": 3, b"d": 4, b"e": 5, b"f": 6, b"g": 8}


def test_deletions_come_back_as_they_were(node: Node) -> None:
    back(node, 6, version(b"e", 5, None), version(b"g", 1, None))
    assert node.vbucket.table.tombstones == 2
    node.check()
    node.flush()
    assert node.vbucket.table.tombstones == 0
    assert stored(node) == {b"g": 1, b"b": 2, b"c": 3, b"d": 4, b"e": 5, b"f": 6}
    assert set(seqnos(node)) == {b"b", b"c", b"d", b"f"}
    node.check()


def test_the_newest_item_may_be_a_deletion_that_only_the_disk_knows() -> None:
    node = Node()
    vbucket = node.bucket.set_state(0, VBucketState.REPLICA)
    receive(vbucket, 5, version(b"a", 1), version(b"b", 3, None), version(b"c", 5, None))
    receive(vbucket, 8, version(b"a", 7), version(b"c", 8))
    node.flush()
    back(node, 6)
    assert (seqnos(node), vbucket.high_seqno) == ({}, 3)
    node.check()
    node.flush()
    assert (stored(node), node.header().high_seqno) == ({b"b": 3}, 3)


def test_if_nothing_is_left_it_begins_anew(node: Node) -> None:
    rewritten = [version(b"%c" % letter, letter - 80) for letter in b"abcdefg"]
    receive(node.vbucket, 23, *rewritten)
    told = back(node, 6)
    assert (table_of(node.vbucket), node.vbucket.high_seqno, node.vbucket.rewinding) == (
        {},
        0,
        False,
    )
    node.flush()
    assert (stored(node), told) == ({}, [True])
    assert node.header().high_seqno == 0


def test_if_the_active_has_dropped_more_than_is_left_it_begins_anew(node: Node) -> None:
    back(node, 6, version(b"a", 1), version(b"e", 5), purge=7)
    assert node.vbucket.high_seqno == 0


def test_what_the_active_has_dropped_is_missing_here_from_now_on(node: Node) -> None:
    back(node, 6, version(b"a", 1), purge=5)
    assert node.vbucket.purge_seqno == 5
    node.flush()
    assert node.header().purge_seqno == 5


def test_a_deletion_that_was_dropped_above_what_is_left_makes_it_begin_anew(node: Node) -> None:
    """Document d was there at 12, which is the newest that is left; the state at 12 is not."""
    node.flush()
    receive(node.vbucket, 20, version(b"f", 12), version(b"d", 13, None), version(b"g", 20))
    node.flush()
    node.vbucket.purge_seqno = 13
    back(node, 14, version(b"g", 8))
    assert (node.vbucket.high_seqno, node.vbucket.purge_seqno) == (0, 0)
    node.flush()
    assert stored(node) == {}


def test_locks_are_opened(node: Node) -> None:
    node.bucket.set_state(0, VBucketState.ACTIVE)
    node.vbucket.lock(b"b", 30)
    node.bucket.set_state(0, VBucketState.REPLICA)
    back(node, 6)
    assert node.vbucket.locks == {}


def test_the_greatest_revision_of_a_deletion_stays(node: Node) -> None:
    greatest = node.vbucket.max_deleted_rev
    assert greatest
    back(node, 6)
    assert node.vbucket.max_deleted_rev == greatest
    node.flush()
    assert node.header().max_deleted_rev == greatest


def test_our_own_cas_stays_above_those_that_come_back(node: Node) -> None:
    back(node, 6, Item(b"a", b"v", 0, 0, 2**62, 1, 1))
    node.bucket.set_state(0, VBucketState.ACTIVE)
    assert node.set(b"ours").cas > 2**62


@pytest.mark.parametrize("key", [b"b", b"f", b"g"])
def test_the_memory_of_ejected_values_is_accounted_for(node: Node, key: bytes) -> None:
    node.flush()
    node.eject(key)
    back(node, 5, version(b"a", 1), version(b"e", 5))
    node.check()
    node.flush()
    node.check()
    if key == b"b":
        assert node.vbucket.table.absent == 1
        assert node.fetch(b"b")
        assert node.vbucket.get(b"b") == version(b"b", 2)


# --- answers that cannot be true ------------------------------------------------------------------


@pytest.mark.parametrize(
    "rewind",
    [
        Rewind(0, LOG, [], 0),
        Rewind(10, LOG, [], 0),
        Rewind(6, (), [], 0),
        Rewind(6, LOG, [], 6),
        Rewind(6, LOG, [], 2**63),
        Rewind(6, LOG, [version(b"a", 7)], 0),
        Rewind(6, LOG, [version(b"a", 0)], 0),
        Rewind(6, LOG, [version(b"a", 1), version(b"a", 2)], 0),
        Rewind(6, LOG, [version(b"a", 1), version(b"e", 1)], 0),
        Rewind(6, LOG, [version(b"a", 2)], 0),
        Rewind(6, LOG, [Item(b"a", b"v", 0, 0, 2**63, 1, 1)], 0),
        Rewind(6, LOG, [Item(b"a", b"v", 0, 0, 1, 1, 2**63)], 0),
        Rewind(6, LOG, [Item(b"a", None, 0, 0, 1, 1, 1)], 0),
        Rewind(6, LOG, [Item(b"a", b"v", 0, 0, 1, 1, 1, 0, Life.DELETED)], 0),
    ],
    ids=[
        "to nothing",
        "to what is not here",
        "no log",
        "later is not above",
        "later is no seqno",
        "a version from above",
        "a version without a seqno",
        "a key twice",
        "a seqno twice",
        "another document's seqno",
        "CAS",
        "revision",
        "no value",
        "a deletion with a value",
    ],
)
def test_an_answer_that_cannot_be_true_changes_nothing(node: Node, rewind: Rewind) -> None:
    before = (dict(table_of(node.vbucket)), node.vbucket.failover_log, node.bucket.account.used)
    with pytest.raises(InvalidArguments):
        roll_back(node.bucket, node.vbucket, rewind, lambda _: None)
    assert (
        dict(table_of(node.vbucket)),
        node.vbucket.failover_log,
        node.bucket.account.used,
    ) == before
    assert not node.vbucket.rewinding
    node.check()
    node.flush()
    assert node.header().high_seqno == 9


def test_a_disk_that_cannot_be_read_changes_nothing(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise StoreError("unreadable")

    monkeypatch.setattr(node.store, "view", refuse)
    with pytest.raises(StoreError):
        lost_keys(node.bucket, node.vbucket, 6, 100)
    with pytest.raises(StoreError):
        roll_back(node.bucket, node.vbucket, Rewind(6, LOG, [], 0), lambda _: None)
    assert (node.vbucket.high_seqno, node.vbucket.rewinding) == (9, False)
    node.check()


# --- until it is on disk --------------------------------------------------------------------------


def test_who_follows_is_told(node: Node) -> None:
    follower = Watching(node.vbucket)
    back(node, 6, version(b"a", 1))
    assert follower.told == ["rolled back"]
    assert (node.vbucket.watchers, node.vbucket.waiting) == ([], [])


def test_meanwhile_nothing_counts_as_persisted(node: Node) -> None:
    back(node, 6, version(b"a", 1))
    flusher = node.bucket.flusher
    assert node.vbucket.rewinding
    assert node.vbucket.persisted_seqno == flusher.durable_seqno(node.vbucket) == 0
    flush = node.begin()
    flusher.commit(flush)
    assert node.vbucket.rewinding
    flusher.finish(flush)
    assert not node.vbucket.rewinding
    assert node.vbucket.persisted_seqno == flusher.durable_seqno(node.vbucket) == 6


def test_meanwhile_nobody_asks_the_disk_for_a_deletion(node: Node) -> None:
    node.flush()
    back(node, 8)
    with pytest.raises(TemporaryFailure):
        node.bucket.fetcher.tombstone(node.vbucket, b"e")
    with pytest.raises(TemporaryFailure):
        Leases(node.bucket, UprSettings()).acquire([0], 10)
    node.flush()
    told: list[bytes | None] = []
    fetcher = node.bucket.fetcher
    fetcher.want([(0, b"e")], lambda _: told.append(fetcher.tombstone(node.vbucket, b"e")))
    fetch = fetcher.begin()
    assert fetch is not None
    fetcher.commit(fetch)
    fetcher.finish(fetch)
    assert told == [None]


def test_an_answer_about_a_deletion_that_was_lost_is_not_believed(node: Node) -> None:
    node.flush()
    fetcher = node.bucket.fetcher
    asked: list[bool] = []

    def ask(_: bool) -> None:
        with pytest.raises(NotResident):
            fetcher.tombstone(node.vbucket, b"e")
        asked.append(True)

    fetcher.want([(0, b"e")], ask)
    fetch = fetcher.begin()
    assert fetch is not None
    fetcher.commit(fetch)
    back(node, 8)
    node.flush()
    fetcher.finish(fetch)
    assert asked


def test_meanwhile_the_pager_leaves_what_came_back_alone(node: Node) -> None:
    node.flush()
    back(node, 6, version(b"a", 1, bytes(100)), version(b"e", 5, bytes(100)))
    node.bucket.account.high_mark = node.bucket.account.low_mark = 0
    while node.bucket.evictor.run_slice():
        pass
    assert node.vbucket.table.absent == 0
    node.flush()
    while node.bucket.evictor.run_slice():
        pass
    assert node.vbucket.table.absent == 6
    assert node.fetch(b"a")
    assert node.vbucket.get(b"a") == version(b"a", 1, bytes(100))


def test_a_reading_that_was_open_before_shows_what_it_showed(node: Node) -> None:
    reading = open_reading(node.store, node.vbucket, 0)
    before = list(reading.changes(0))
    leases = Leases(node.bucket, UprSettings())
    lease, _ = leases.acquire([0], 10)
    back(node, 3, version(b"a", 1), later=40)
    node.flush()
    receive(node.vbucket, 40, version(b"other", 4), version(b"b", 40))
    node.flush()
    assert list(reading.changes(0)) == list(lease.readings[0].changes(0)) == before
    reading.close()
    leases.release_views()
    reading = open_reading(node.store, node.vbucket, 0)
    assert [item.seqno for item in reading.changes(0)] == [1, 3, 4, 40]
    reading.close()


def test_deletions_that_were_about_to_be_dropped_are_not(node: Node) -> None:
    receive(node.vbucket, 12, version(b"c", 10, None), version(b"z", 11), version(b"y", 12))
    node.flush()
    done: list[bool] = []
    compactor = node.bucket.compactor
    node.bucket.purge_limit = lambda _: Limit(10, None)
    node.bucket.compact(0, PurgeRule(every=True), done.append)
    scan = compactor.begin()
    assert scan is not None
    compactor.read(scan)
    compactor.finish(scan)
    assert node.vbucket.purge_seqno == 10
    back(node, 11)
    node.flush()
    assert compactor.begin() is None
    assert done == [False]
    assert stored(node)[b"c"] == 10


def test_a_new_history_takes_its_place_before_it_is_on_disk(node: Node) -> None:
    told = back(node, 6, version(b"a", 1))
    node.vbucket.reset(77)
    assert not node.vbucket.rewinding
    receive(node.vbucket, 2, version(b"b", 2))
    node.flush()
    assert (stored(node), told) == ({b"b": 2}, [True])
    node.check()


def test_it_may_be_sent_back_again_before_it_is_on_disk(node: Node) -> None:
    back(node, 8, version(b"e", 5))
    assert seqnos(node)[b"a"] == 7
    lost = lost_keys(node.bucket, node.vbucket, 4, 100)
    assert sorted(lost or []) == [b"a", b"e", b"f", b"g"]
    back(node, 4, version(b"a", 1))
    assert seqnos(node) == {b"a": 1, b"b": 2, b"c": 3, b"d": 4}
    node.flush()
    assert stored(node) == {b"a": 1, b"b": 2, b"c": 3, b"d": 4}
    node.check()


def test_what_was_to_be_forgotten_the_first_time_still_is(node: Node) -> None:
    receive(node.vbucket, 30, version(b"b", 30))
    back(node, 25, version(b"e", 5))
    back(node, 6, version(b"e", 5), version(b"a", 1))
    node.flush()
    assert stored(node) == seqnos(node) == {b"a": 1, b"c": 3, b"d": 4, b"e": 5, b"f": 6}


def write_in_between(node: Node, *keys: bytes) -> None:
    """Be active for a while; nobody will know."""
    node.bucket.set_state(0, VBucketState.ACTIVE)
    for key in keys:
        node.set(key)
    node.bucket.set_state(0, VBucketState.REPLICA)


def test_what_was_above_the_first_time_goes_though_the_second_is_higher(node: Node) -> None:
    node.flush()
    back(node, 6, version(b"e", 5))
    write_in_between(node, b"b", b"b", b"d")
    back(node, 8, version(b"d", 4))
    expected = {b"c": 3, b"d": 4, b"e": 5, b"f": 6, b"b": 8}
    assert seqnos(node) == expected
    node.flush()
    assert stored(node) == expected
    assert node.header().high_seqno == 8


def test_the_disk_s_deletions_do_not_count_once_they_are_to_be_forgotten(node: Node) -> None:
    node.flush()
    back(node, 6)
    write_in_between(node, b"b", b"b", b"b", b"b")
    assert node.vbucket.high_seqno == 10
    back(node, 9)
    assert node.vbucket.high_seqno == 6
    node.flush()
    assert stored(node) == {b"c": 3, b"d": 4, b"f": 6}


def test_a_deletion_that_is_forgotten_is_not_the_newest_item() -> None:
    node = Node()
    vbucket = node.bucket.set_state(0, VBucketState.REPLICA)
    receive(vbucket, 4, version(b"a", 1), version(b"b", 3, None), version(b"c", 4))
    node.flush()
    receive(vbucket, 8, version(b"b", 8))
    back(node, 6)
    assert vbucket.high_seqno == 4
    back(node, 3)
    assert vbucket.high_seqno == 1
    node.flush()
    assert stored(node) == {b"a": 1}


def test_a_deletion_that_comes_back_earlier_is_not_where_it_was() -> None:
    node = Node()
    vbucket = node.bucket.set_state(0, VBucketState.REPLICA)
    receive(vbucket, 3, version(b"a", 1), version(b"b", 3, None))
    node.flush()
    receive(vbucket, 8, version(b"b", 8))
    back(node, 6, version(b"b", 2))
    assert vbucket.high_seqno == 2
    node.flush()
    assert stored(node) == {b"a": 1, b"b": 2}


def test_whoever_is_promoted_meanwhile_can_write(node: Node) -> None:
    back(node, 6, version(b"a", 1))
    node.bucket.set_state(0, VBucketState.ACTIVE)
    flush = node.begin()
    node.bucket.flusher.commit(flush)
    written = [node.set(key).seqno for key in (b"b", b"new", b"a")]
    node.bucket.flusher.finish(flush)
    node.check()
    node.flush()
    assert written == [7, 8, 9]
    assert stored(node) == {b"c": 3, b"d": 4, b"f": 6, b"b": 7, b"new": 8, b"a": 9}


# --- one commit, and crashes around it ------------------------------------------------------------


def test_one_commit_holds_all_of_it() -> None:
    node = Node(settings_of(flush={"batch_items": 64}))
    vbucket = node.bucket.set_state(0, VBucketState.REPLICA)
    receive(vbucket, 500, *[version(b"%d" % seqno, seqno) for seqno in range(1, 501)])
    node.flush()
    receive(vbucket, 900, *[version(b"%d" % seqno, seqno) for seqno in range(501, 801)])
    receive(vbucket, 900, *[version(b"%d" % (seqno - 800), seqno) for seqno in range(801, 901)])
    versions = [version(b"%d" % seqno, seqno) for seqno in range(1, 101)]
    back(node, 700, *versions, limit=300)
    flusher = node.bucket.flusher
    flush = node.begin()
    flusher.commit(flush)
    flusher.finish(flush)
    assert stored(node) == {b"%d" % seqno: seqno for seqno in range(1, 701)}
    assert (flusher.queued, flusher.begin()) == (0, None)


def test_a_crash_before_the_commit_shows_the_old_state(node: Node) -> None:
    node.flush()
    back(node, 6, version(b"a", 1), version(b"e", 5))
    node.begin()
    restarted = node.restarted()
    assert seqnos(restarted) == {b"a": 7, b"b": 2, b"c": 3, b"d": 4, b"f": 6, b"g": 8}
    assert restarted.vbucket.high_seqno == 9
    back(restarted, 6, version(b"a", 1), version(b"e", 5))
    restarted.flush()
    assert stored(restarted) == {b"a": 1, b"b": 2, b"c": 3, b"d": 4, b"e": 5, b"f": 6}


def test_a_crash_after_the_commit_shows_the_new_state(node: Node) -> None:
    node.flush()
    back(node, 6, version(b"a", 1), version(b"e", 5))
    node.bucket.flusher.commit(node.begin())
    restarted = node.restarted()
    assert seqnos(restarted) == {b"a": 1, b"b": 2, b"c": 3, b"d": 4, b"e": 5, b"f": 6}
    assert restarted.vbucket.failover_log == LOG
    assert restarted.vbucket.high_seqno == 6
    restarted.check()


def _fails(node: Node, flush: Flush) -> None:
    node.bucket.flusher.failed(flush, StoreFull("full"))


def _succeeds(node: Node, flush: Flush) -> None:
    node.bucket.flusher.commit(flush)
    node.bucket.flusher.finish(flush)


@pytest.mark.parametrize("ends", [_fails, _succeeds])
@pytest.mark.parametrize("committed", [False, True])
def test_a_flush_under_way_does_no_harm(
    node: Node, ends: Callable[[Node, Flush], None], committed: bool
) -> None:
    flusher = node.bucket.flusher
    flush = node.begin()
    if committed:
        flusher.commit(flush)
    told = back(node, 8, version(b"e", 5))
    if committed:
        flusher.finish(flush)
    else:
        ends(node, flush)
    assert (told, node.vbucket.rewinding) == ([], True)
    node.check()
    node.flush()
    expected = {b"a": 7, b"b": 2, b"c": 3, b"d": 4, b"e": 5, b"f": 6, b"g": 8}
    assert stored(node) == seqnos(node) == expected
    node.check()


def test_an_older_version_of_a_lost_key_that_a_flush_still_writes_is_forgotten(node: Node) -> None:
    node.flush()
    receive(node.vbucket, 20, version(b"x", 20))
    flush = node.begin()
    receive(node.vbucket, 30, version(b"x", 30))
    back(node, 25)
    _succeeds(node, flush)
    node.flush()
    assert b"x" not in stored(node)
    assert node.header().high_seqno == 9


def test_a_long_flush_under_way_ends_with_it(node: Node) -> None:
    receive(node.vbucket, 300, *[version(b"%d" % seqno, seqno) for seqno in range(10, 301)])
    _succeeds(node, node.begin())
    assert 9 < node.vbucket.persisted_seqno < 300
    back(node, 250, limit=300)
    node.flush()
    assert node.header().snapshot == (250, 250)
    assert max(stored(node).values()) == 250
    assert len(stored(node)) == 248
    assert node.vbucket.queue.open_views == 0
    node.check()


def test_a_full_disk_is_tried_again_and_the_new_state_stays() -> None:
    store = FaultyStore()
    node = Node(store=store)
    vbucket = node.bucket.set_state(0, VBucketState.REPLICA)
    receive(vbucket, 2, version(b"a", 1), version(b"b", 2))
    node.flush()
    told = back(node, 1)
    node.fail_flush(StoreFull("full"))
    assert (told, vbucket.rewinding) == ([False], True)
    node.bucket.flusher.when_durable(told.append)
    node.flush()
    assert (told, vbucket.rewinding) == ([False, True], False)
    assert (stored(node), node.header().failover_log) == ({b"a": 1}, LOG)
