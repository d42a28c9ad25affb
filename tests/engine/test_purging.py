"""Deletions that are old enough go by themselves; on a replica, those that its source dropped."""

from __future__ import annotations

import pytest

from tests.engine.support import FaultyStore, Node, settings_of
from uprmc.engine.purge import SERVED_NAME, UNREGISTERED_AGE_S
from uprmc.engine.tombstones import PurgeRule
from uprmc.engine.watermarks.rows import Kind, WatermarkReport
from uprmc.errors import StoreFull
from uprmc.model import VBucketState
from uprmc.storage.interface import CommitBatch, StoreUsage

AGE_S = 1_000


def node_of(vbuckets: int = 1) -> Node:
    """Return a node whose deletions stay for so long."""
    return Node(settings_of(vbuckets, purge={"min_age_s": AGE_S}))


def bury(node: Node, *keys: bytes, number: int = 0) -> None:
    """Leave persisted tombstones, and a document behind them."""
    vbucket = node.bucket.vbuckets[number]
    for key in keys:
        vbucket.store(key, b"v", 0, 0)
        vbucket.delete(key)
    vbucket.store(b"last", b"v", 0, 0)
    node.flush()


def purge(node: Node) -> int:
    """Have the purger come by, and everything done that it asks for; return the looks it took."""
    node.bucket.purger.begin()
    compactor, looks = node.bucket.compactor, 0
    while compactor.waiting:
        scan = compactor.begin()
        if scan is not None:
            compactor.read(scan)
            compactor.finish(scan)
            looks += 1
        node.flush()
    return looks


def test_deletions_go_when_they_are_old_enough_and_documents_stay() -> None:
    node = node_of()
    bury(node, b"a", b"b")
    node.clock.advance(AGE_S / 2)
    bury(node, b"c")
    node.clock.advance(AGE_S / 2 - 1)
    purge(node)
    assert set(node.stored()) == {b"a", b"b", b"c", b"last"}, "a second is missing yet"
    node.clock.advance(1)
    purge(node)
    assert set(node.stored()) == {b"c", b"last"}
    assert node.vbucket.purge_seqno == 4
    node.clock.advance(AGE_S)
    purge(node)
    assert set(node.stored()) == {b"last"}


@pytest.mark.acceptance("X22")
def test_what_was_handed_over_is_not_purged() -> None:
    """It may follow the node that has it now, which keeps deletions for clients of its own."""
    node = node_of()
    bury(node, b"a")
    node.bucket.set_state(0, VBucketState.DEAD)
    node.flush()
    node.clock.advance(AGE_S)
    purge(node)
    assert set(node.stored()) == {b"a", b"last"}
    node.bucket.set_state(0, VBucketState.ACTIVE)
    purge(node)
    assert set(node.stored()) == {b"last"}


@pytest.mark.acceptance("X22")
def test_a_replica_purges_what_its_source_has_and_everything_once_it_is_active() -> None:
    node = node_of()
    bury(node, b"a", b"b")
    node.bucket.set_state(0, VBucketState.REPLICA)
    node.flush()
    node.clock.advance(AGE_S)
    purge(node)
    assert set(node.stored()) == {b"a", b"b", b"last"}, "its source has dropped nothing"
    node.vbucket.purge_seqno = 2
    purge(node)
    assert set(node.stored()) == {b"b", b"last"}
    assert node.vbucket.purge_seqno == 2
    assert node.bucket.compactor.last.limited_by == "source"
    node.bucket.set_state(0, VBucketState.ACTIVE)
    node.flush()
    purge(node)
    assert set(node.stored()) == {b"last"}


def test_nobody_looks_where_nothing_can_be_due() -> None:
    node = node_of(3)
    bury(node, b"a", number=0)
    bury(node, number=1)
    assert purge(node) == 1, "the others never had a deletion"
    node.clock.advance(AGE_S / 2)
    assert purge(node) == 0
    node.clock.advance(AGE_S / 2)
    assert purge(node) == 1
    assert purge(node) == 0
    assert set(node.stored()) == {b"last"}


def test_it_goes_on_after_a_compaction_that_was_given_up() -> None:
    node = node_of(2)
    for number in range(2):
        bury(node, b"a", number=number)
    node.clock.advance(AGE_S + 1)
    node.bucket.purger.begin()
    del node.bucket.vbuckets[0]
    purge(node)
    assert set(node.stored(1)) == {b"last"}
    node.bucket.create(0, VBucketState.ACTIVE)
    bury(node, b"a", number=0)
    node.clock.advance(AGE_S + 1)
    purge(node)
    assert set(node.stored(0)) == {b"last"}


def test_what_was_examined_is_not_read_again() -> None:
    node = node_of()
    bury(node, b"a")
    node.clock.advance(AGE_S)
    purge(node)
    bury(node, b"b")
    node.bucket.purger.begin()
    scan = node.bucket.compactor.begin()
    assert scan is not None
    assert scan.after == 2, "a was dropped at 2, and 3 may have been followed by anything"
    scan.view.close()


# --- how old --------------------------------------------------------------------------------------


def test_a_clock_that_leaps_ahead_makes_no_deletion_old() -> None:
    node = node_of()
    node.bucket.tick()
    bury(node, b"a")
    node.clock.step(30 * 86_400)
    node.bucket.tick()
    purge(node)
    assert set(node.stored()) == {b"a", b"last"}
    node.clock.step(-30 * 86_400)
    node.bucket.tick()
    node.clock.advance(AGE_S)
    purge(node)
    assert set(node.stored()) == {b"last"}


@pytest.mark.acceptance("X04", "X07")
def test_without_consumers_that_have_no_watermark_deletions_go_at_once() -> None:
    node = Node()
    bury(node, b"a")
    purge(node)
    assert set(node.stored()) == {b"last"}


def test_a_stream_without_a_watermark_keeps_deletions_for_three_days_after_it_was_served() -> None:
    node = Node()
    bury(node, b"a")
    node.bucket.purge_policy.serve_unregistered()
    node.clock.advance(UNREGISTERED_AGE_S - 1)
    purge(node)
    assert set(node.stored()) == {b"a", b"last"}
    node.clock.advance(1)
    purge(node)
    assert set(node.stored()) == {b"last"}


def test_an_age_that_is_set_wins() -> None:
    node = Node(settings_of(purge={"min_age_s": 0}))
    bury(node, b"a")
    node.bucket.purge_policy.serve_unregistered()
    purge(node)
    assert set(node.stored()) == {b"last"}


@pytest.mark.parametrize(("written", "orderly", "age_s"), [(True, True, 0), (True, False, 3)])
def test_when_one_was_served_is_known_after_a_stop_and_was_just_now_after_a_crash(
    written: bool, orderly: bool, age_s: int
) -> None:
    node = Node()
    node.bucket.purge_policy.serve_unregistered()
    document = node.bucket.purge_policy.document()
    node.store.commit(CommitBatch(local={SERVED_NAME: document}))
    if orderly:
        node.stop()
    node.clock.advance(UNREGISTERED_AGE_S)
    after = node.restarted()
    assert after.bucket.purge_policy.min_age_s == age_s * 86_400


def test_a_directory_that_does_not_know_was_used_just_now() -> None:
    node = Node()
    assert node.bucket.purge_policy.min_age_s == 0, "it is new"
    node.stop()
    assert node.restarted().bucket.purge_policy.min_age_s == UNREGISTERED_AGE_S


# --- a full disk ----------------------------------------------------------------------------------


def test_on_a_full_disk_a_commit_drops_what_the_free_pages_of_the_file_have_room_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node = Node()
    store = node.store
    assert isinstance(store, FaultyStore)
    bury(node, *(b"%d" % number for number in range(10)))
    node.set(b"refused")
    node.fail_flush(StoreFull("full"))
    free = 0
    monkeypatch.setattr(store, "usage", lambda: StoreUsage(2**20, 2**20, free))
    purge(node)
    assert node.vbucket.purge_seqno == 0, "no consumer is sent back for what cannot be dropped"
    node.set(b"refused again")
    node.fail_flush(StoreFull("full"))
    free = 3 * 16 * 1024
    node.bucket.purger.begin()
    scan = node.bucket.compactor.begin()
    assert scan is not None
    assert scan.most == 3
    scan.view.close()


# --- what is told ---------------------------------------------------------------------------------


def test_a_forced_compaction_ignores_watermarks_and_names_whom_it_outpaces() -> None:
    node = Node()
    bury(node, b"a", b"b")
    report = WatermarkReport(b"slow", Kind.BACKUP, 3)
    node.bucket.watermarks.report(node.vbucket, report, object())
    node.flush()
    purge(node)
    assert node.vbucket.purge_seqno == 2
    told: list[tuple[str, dict[str, object]]] = []
    node.bucket.on_event = lambda name, fields: told.append((name, fields))
    node.bucket.compact(0, PurgeRule(every=True, forced=True), lambda ok: None)
    purge(node)
    assert told[-1] == ("purge_forced", {"vb": 0, "from": 2, "to": 4, "outpaced": ["slow"]})


@pytest.mark.acceptance("X18")
def test_a_row_that_has_expired_goes_when_the_next_limit_is_computed() -> None:
    node = Node()
    bury(node, b"a", b"b")
    report = WatermarkReport(b"slow", Kind.OTHER, 1)
    node.bucket.watermarks.report(node.vbucket, report, object())
    node.clock.advance(3_599)
    purge(node)
    assert node.vbucket.purge_seqno == 0
    assert node.bucket.watermarks.row_count == 1
    node.clock.advance(2)
    purge(node)
    assert node.vbucket.purge_seqno == 4
    assert node.bucket.watermarks.row_count == 0


def test_what_was_purged_is_an_event() -> None:
    node = node_of()
    told: list[tuple[str, dict[str, object]]] = []
    node.bucket.on_event = lambda name, fields: told.append((name, fields))
    bury(node, b"a", b"b")
    purge(node)
    assert told == [], "nothing was dropped"
    node.clock.advance(AGE_S)
    purge(node)
    assert told == [("purge", {"vb": 0, "from": 0, "to": 4, "dropped": 2, "limited_by": None})]
