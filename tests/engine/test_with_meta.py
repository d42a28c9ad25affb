"""Versions made elsewhere: what is accepted, what that leaves behind, when the disk is asked."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from tests.contents import queued as queued_in
from tests.contents import table_of
from tests.engine.support import BEGINNING, Node, settings_of
from uprmc.engine.cas_clock import AHEAD_MAX_S
from uprmc.engine.vbucket import VBucket
from uprmc.engine.with_meta import REV_MAX, Demand, accept_version
from uprmc.errors import (
    InvalidArguments,
    KeyExists,
    KeyNotFound,
    Locked,
    NotResident,
    OutOfMemory,
    StoreFull,
    TemporaryFailure,
)
from uprmc.model import CAS_LOCKED, Item, Life, Origin, VBucketState
from uprmc.record import pack, unpack

ANYWAY = Demand(skip_conflicts=True)


def version(
    rev: int,
    cas: int = 77,
    value: bytes = b"theirs",
    *,
    key: bytes = b"k",
    expiry: int = 0,
    flags: int = 0,
    life: int = Life.LIVE,
    origin: Origin | None = None,
) -> Item:
    """A version as a peer sends it."""
    return Item(key, None if life else value, flags, expiry, cas, 0, rev, 0, life, origin=origin)


def deletion(rev: int, cas: int = 77, **others: Any) -> Item:
    return version(rev, cas, life=Life.DELETED, **others)


def accept(node: Node, incoming: Item, demand: Demand | None = None) -> Item:
    return unpack(accept_version(node.bucket, node.vbucket, pack(incoming), demand or Demand()))


def accept_after_fetch(node: Node, incoming: Item, demand: Demand | None = None) -> Item:
    """Have it accepted, or refused, by way of the disk."""
    with pytest.raises(NotResident) as missing:
        accept(node, incoming, demand)
    assert (missing.value.vbucket, list(missing.value.keys)) == (0, [incoming.key])
    outcome: list[Item | Exception] = []

    def again(ok: bool) -> None:
        assert ok
        try:
            outcome.append(accept(node, incoming, demand))
        except Exception as error:
            outcome.append(error)

    node.bucket.fetcher.want([(0, incoming.key)], again)
    fetch = node.bucket.fetcher.begin()
    assert fetch is not None
    node.bucket.fetcher.commit(fetch)
    node.bucket.fetcher.finish(fetch)
    (only,) = outcome
    if isinstance(only, Exception):
        raise only
    return only


def buried(node: Node, key: bytes = b"k", rev: int = 5) -> Item:
    """Leave a tombstone of this revision on disk, and nowhere else."""
    tombstone = accept(node, deletion(rev, node.set(key).cas + 5, key=key), ANYWAY)
    node.flush()
    assert node.vbucket.table.find(key) is None
    assert node.stored()[key] == tombstone
    return tombstone


# --- what is kept -------------------------------------------------------------------------------


def test_a_version_keeps_everything_but_its_place(node: Node) -> None:
    node.set(b"other")
    item = accept(node, version(9, 1234, b"body", expiry=1_800_000_000, flags=7))
    assert item == Item(b"k", b"body", 7, 1_800_000_000, 1234, 2, 9)
    assert node.vbucket.get(b"k") == item
    node.check()
    node.flush()
    assert node.stored()[b"k"] == item


def test_a_tombstone_is_dated_when_it_comes_here(node: Node) -> None:
    item = accept(node, deletion(9, 1234, expiry=5, flags=7))
    assert item == Item(b"k", None, 7, int(BEGINNING), 1234, 1, 9, 0, Life.DELETED)
    expiration = accept(node, version(10, 1235, life=Life.EXPIRED))
    assert expiration.life == Life.EXPIRED


def test_changes_made_here_afterwards_count_on_from_the_stranger_s_numbers(node: Node) -> None:
    theirs = accept(node, version(9, cas=int(BEGINNING * 1e9)))
    ours = node.set(b"k")
    assert ours.rev == 10
    assert ours.cas > theirs.cas
    assert node.vbucket.delete(b"k").rev == 11
    assert node.set(b"another").cas > ours.cas


def test_a_deletion_s_revision_is_the_floor_of_new_documents(node: Node) -> None:
    accept(node, deletion(9))
    assert node.set(b"new").rev == 10
    node.flush()
    assert node.header().max_deleted_rev == 9


def test_a_deletion_of_revision_0_leaves_a_trace_that_there_are_tombstones(node: Node) -> None:
    accept(node, deletion(0))
    assert node.vbucket.max_deleted_rev == 1


@pytest.mark.parametrize("life", [Life.LIVE, Life.DELETED])
@pytest.mark.parametrize("before", ["nothing", "resident", "ejected", "queued", "deleted"])
def test_the_accounts_are_right_whatever_was_there(before: str, life: Life) -> None:
    node = Node()
    if before != "nothing":
        node.set(b"k", b"a longer value than the other one")
    if before in ("resident", "ejected"):
        node.flush()
    if before == "ejected":
        node.eject(b"k")
    if before == "deleted":
        node.vbucket.delete(b"k")
    queued = node.vbucket.queue.live
    item = accept(node, version(50, life=life))
    node.check()
    assert table_of(node.vbucket)[b"k"] == item
    assert node.vbucket.item_count == (not life)
    assert node.vbucket.queue.live == queued + (before not in ("queued", "deleted"))
    assert queued_in(node.vbucket.queue.open_view())[-1].seqno == item.seqno
    node.flush()
    node.check()
    assert node.stored()[b"k"] == item
    assert (node.vbucket.table.find(b"k") is None) == bool(life)


def test_an_adopted_version_wakes_whoever_waits_for_a_change(node: Node) -> None:
    class Waiting:
        told = 0

        def changed(self) -> None:
            self.told += 1

        def interrupted(self, why: object) -> None: ...

    watcher = Waiting()
    node.vbucket.waiting.append(watcher)
    accept(node, version(1))
    accept(node, version(2))
    assert watcher.told == 1


def test_a_new_cas_is_made_where_that_is_asked(node: Node) -> None:
    last = node.set(b"other").cas
    item = accept(node, version(3), Demand(skip_conflicts=True, regenerate_cas=True))
    assert item.cas == last + 1
    assert node.set(b"other").cas == last + 2


# --- who wins -----------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [version, deletion])
def test_a_version_that_lost_changes_nothing(node: Node, make: Any) -> None:
    present = accept(node, version(5, 50))
    with pytest.raises(KeyExists):
        accept(node, make(4, 60))
    assert node.vbucket.get(b"k") == present
    assert (node.vbucket.high_seqno, node.vbucket.queue.live) == (1, 1)
    assert accept(node, make(4, 60), ANYWAY).seqno == 2


def test_winners_and_losers_are_counted(node: Node) -> None:
    for rev in (5, 6):
        accept(node, version(rev))
    accept(node, deletion(7))
    for loser in (version(1), deletion(1), deletion(2)):
        with pytest.raises(KeyExists):
            accept(node, loser)
    stats = node.bucket.stats
    assert (stats.ops_set_meta, stats.ops_set_meta_res_fail) == (2, 1)
    assert (stats.ops_del_meta, stats.ops_del_meta_res_fail) == (1, 2)


def test_a_tombstone_that_is_still_queued_is_compared_too(node: Node) -> None:
    node.set(b"k")
    tombstone = node.vbucket.delete(b"k")
    with pytest.raises(KeyExists):
        accept(node, version(1))
    with pytest.raises(KeyExists):
        accept(node, version(2, tombstone.cas))
    assert accept(node, version(3)).seqno == 3
    assert node.vbucket.table.tombstones == 0


def test_a_deletion_that_returns_to_where_it_was_made_is_stored_only_over_a_document(
    node: Node,
) -> None:
    own = Origin(node.vbucket.failover_log[0].uuid, 1)
    accept(node, version(1, key=b"other"))
    with pytest.raises(KeyNotFound):
        accept(node, deletion(5, origin=own))
    assert node.vbucket.high_seqno == 1
    accept(node, version(1))
    accept(node, deletion(5, origin=own))
    assert node.vbucket.high_seqno == 3
    later = own._replace(seqno=4)  # nothing of this history
    accept(node, deletion(6, key=b"third", origin=later))
    assert node.vbucket.high_seqno == 4


def test_an_expired_document_is_compared_as_it_is(node: Node) -> None:
    node.set(b"k", expiry=int(BEGINNING) + 1)
    node.clock.advance(5)
    assert accept(node, version(2)).rev == 2, "made into a tombstone it would have revision 2"


# --- what the sender demands --------------------------------------------------------------------


def test_add_is_refused_where_a_document_is_and_only_there(node: Node) -> None:
    node.set(b"k")
    for demand in (Demand(add=True), Demand(add=True, skip_conflicts=True)):
        with pytest.raises(KeyExists):
            accept(node, version(9), demand)
    node.vbucket.delete(b"k")
    assert accept(node, version(9), Demand(add=True)).rev == 9
    assert accept(node, version(9, key=b"new"), Demand(add=True)).rev == 9
    node.set(b"old", expiry=int(BEGINNING) + 1)
    node.clock.advance(5)
    assert accept(node, version(9, key=b"old"), Demand(add=True)).rev == 9


def test_a_demanded_cas_must_be_the_document_s(node: Node) -> None:
    cas = node.set(b"k").cas
    with pytest.raises(KeyExists):
        accept(node, version(9), Demand(cas=cas + 1, skip_conflicts=True))
    with pytest.raises(KeyNotFound):
        accept(node, version(9, key=b"absent"), Demand(cas=cas))
    with pytest.raises(KeyExists):
        accept(node, version(0), Demand(cas=cas))
    assert accept(node, deletion(9), Demand(cas=cas)).rev == 9
    assert node.bucket.stats.ops_set_meta_res_fail == 1


def test_a_demanded_cas_may_be_a_tombstone_s(node: Node) -> None:
    tombstone = buried(node)
    incoming = version(9)
    assert accept_after_fetch(node, incoming, Demand(cas=tombstone.cas)).rev == 9
    other = buried(node, b"other", 20)
    with pytest.raises(KeyNotFound):
        accept_after_fetch(node, version(99, key=b"other"), Demand(cas=other.cas + 1))


def test_a_locked_document_is_changed_only_by_who_holds_the_lock(node: Node) -> None:
    node.set(b"k")
    _, cas = node.vbucket.lock(b"k", 10)
    for make in (version, deletion):
        with pytest.raises(Locked):
            accept(node, make(9), ANYWAY)
    accept(node, version(9), Demand(cas=cas))
    assert b"k" not in node.vbucket.locks


# --- limits -------------------------------------------------------------------------------------


@pytest.mark.parametrize("cas", [0, CAS_LOCKED])
def test_a_cas_that_no_version_can_have_is_refused(node: Node, cas: int) -> None:
    with pytest.raises(KeyExists):
        accept(node, version(1, cas), ANYWAY)
    assert node.vbucket.high_seqno == 0


def test_a_cas_from_the_far_future_is_refused(node: Node) -> None:
    limit = int(BEGINNING + AHEAD_MAX_S) * 1_000_000_000
    before = node.bucket.account.last_cas
    with pytest.raises(InvalidArguments):
        accept(node, version(1, limit + 1))
    assert node.bucket.account.last_cas == before
    accept(node, version(1, limit))
    assert node.set(b"k").cas > limit


def test_a_revision_leaves_room_to_count_on(node: Node) -> None:
    with pytest.raises(InvalidArguments):
        accept(node, version(REV_MAX + 1))
    accept(node, version(REV_MAX))
    node.vbucket.delete(b"k")
    node.set(b"new")
    node.flush()
    assert node.stored()[b"new"].rev == REV_MAX + 2


@pytest.mark.parametrize("make", [version, deletion])
def test_what_the_disk_cannot_take_is_refused(node: Node, make: Any) -> None:
    node.set(b"k")
    node.fail_flush(StoreFull("full"))
    with pytest.raises(TemporaryFailure):
        accept(node, make(9))
    with pytest.raises(TemporaryFailure):
        accept(node, make(9, key=b"new"))


def test_a_deletion_passes_where_memory_is_short_only_if_it_takes_none() -> None:
    node = Node(settings_of(memory={"quota": 20_000}))
    for number in range(1_000):
        with suppress(TemporaryFailure, OutOfMemory):
            accept(node, deletion(9 + number, key=b"%d" % number))
    assert node.bucket.account.used < 20_000
    with pytest.raises((TemporaryFailure, OutOfMemory)):
        accept(node, version(10, key=b"0"))
    assert accept(node, deletion(10, key=b"0")).rev == 10


# --- tombstones that are only on disk -----------------------------------------------------------


@pytest.mark.parametrize("make", [version, deletion])
def test_a_tombstone_on_disk_wins_by_its_revision(node: Node, make: Any) -> None:
    buried(node, rev=5)
    with pytest.raises(KeyExists):
        accept_after_fetch(node, make(4))
    assert node.vbucket.high_seqno == 2
    assert node.bucket.stats.bg_meta_fetched == 1
    node.check()


def test_a_tombstone_on_disk_wins_by_its_cas(node: Node) -> None:
    tombstone = buried(node, rev=5)
    with pytest.raises(KeyExists):
        accept_after_fetch(node, version(5, tombstone.cas - 1))
    assert accept_after_fetch(node, version(5, tombstone.cas + 1)).rev == 5


def test_what_was_never_there_is_stored_though_the_disk_had_to_be_asked(node: Node) -> None:
    buried(node, rev=5)
    assert accept_after_fetch(node, version(1, key=b"new")).rev == 1
    assert accept_after_fetch(node, deletion(1, key=b"newer")).rev == 1


def test_the_disk_is_asked_only_where_a_tombstone_could_win(node: Node) -> None:
    """The bound is sharp: at it a tombstone may win, above it none can."""
    buried(node, b"old", rev=9)
    buried(node, b"k", rev=5)
    assert node.vbucket.max_deleted_rev >= max(
        item.rev for item in node.stored().values() if item.life
    )
    bound = node.vbucket.max_deleted_rev
    with pytest.raises(NotResident):
        accept(node, version(bound))
    assert accept(node, version(bound), ANYWAY).rev == bound
    assert accept(node, version(bound + 1, key=b"old")).rev == bound + 1
    assert node.bucket.fetcher.waiting == 0


def test_the_bound_outlives_a_restart(node: Node) -> None:
    buried(node, rev=5)
    node.stop()
    again = node.restarted()
    with pytest.raises(KeyExists):
        accept_after_fetch(again, version(4))


def test_a_tombstone_of_a_history_that_is_over_wins_nothing(node: Node) -> None:
    buried(node, rev=5)
    node.bucket.flush(0, lambda _: None)
    accept(node, deletion(9, key=b"other"))
    assert node.stored()[b"k"].rev == 5, "the store has not forgotten yet"
    assert accept_after_fetch(node, version(4)).rev == 4


def test_an_answer_is_not_believed_once_something_was_persisted(node: Node) -> None:
    buried(node, rev=3)
    outcome: list[str] = []

    def again(_: bool) -> None:
        with pytest.raises(NotResident):
            accept(node, version(4))
        outcome.append("asks again")

    node.bucket.fetcher.want([(0, b"k")], again)
    fetch = node.bucket.fetcher.begin()
    assert fetch is not None
    node.bucket.fetcher.commit(fetch)
    buried(node, rev=5)  # after the view was opened: revision 5 is on disk, the view shows 3
    node.bucket.fetcher.finish(fetch)
    assert outcome == ["asks again"]
    with pytest.raises(KeyExists):
        accept_after_fetch(node, version(4))


def test_an_answer_is_not_believed_for_another_history(node: Node) -> None:
    buried(node, rev=3)
    persisted_seqno = node.vbucket.persisted_seqno
    outcome: list[str] = []

    def again(_: bool) -> None:
        with pytest.raises(NotResident):
            accept(node, version(4))
        outcome.append("asks again")

    node.bucket.fetcher.want([(0, b"k")], again)
    fetch = node.bucket.fetcher.begin()
    assert fetch is not None
    node.bucket.fetcher.commit(fetch)
    node.bucket.flush(0, lambda _: None)
    buried(node, rev=5)
    assert node.vbucket.persisted_seqno == persisted_seqno, "told apart by the history alone"
    node.bucket.fetcher.finish(fetch)
    assert outcome == ["asks again"]


def test_an_answer_is_gone_after_the_turn_that_brought_it(node: Node) -> None:
    buried(node)
    assert node.fetch(b"k")
    with pytest.raises(NotResident):
        node.bucket.fetcher.tombstone(node.vbucket, b"k")


def test_a_vbucket_made_anew_is_not_answered_for_the_old_one(node: Node) -> None:
    buried(node)
    told: list[bool] = []
    node.bucket.fetcher.want([(0, b"k")], told.append)
    fetch = node.bucket.fetcher.begin()
    assert fetch is not None
    node.bucket.fetcher.commit(fetch)
    fresh = VBucket(
        0,
        VBucketState.ACTIVE,
        99,
        node.bucket.account,
        node.bucket.stats,
        node.clock,
    )
    node.bucket.vbuckets[0] = fresh
    node.bucket.fetcher.finish(fetch)
    assert told == [True]
    with pytest.raises(NotResident):
        node.bucket.fetcher.tombstone(fresh, b"k")
