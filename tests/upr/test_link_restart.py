"""After a crash: who is followed and what the vBuckets are, when the two do not agree."""

from __future__ import annotations

import pytest

from tests.contents import table_of
from tests.upr.link_rig import Pair, Script, failover_log, replica_rig, restore
from tests.upr.peer import fill, marker, mutation, upr_rig, write
from tests.upr.replication_rig import A, B, World
from uprmc.model import VBucketState
from uprmc.upr import replication

ACTIVE, REPLICA, PENDING, DEAD = VBucketState


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def written_down(world: World, followed: dict[str, list[int]]) -> None:
    world.bucket.flusher.write_local(
        replication.FOLLOWED, replication.encode_followed(followed), lambda _: None
    )
    world.rig.flush()


def test_states_and_who_is_followed_are_in_one_commit(world: World) -> None:
    world.replication.follow(A, [0, 1], demote=False, done=lambda _: None)
    flush = world.bucket.flusher.begin()
    assert flush is not None
    headers = {change.vbucket: change.header for change in flush.batch.changes}
    assert [headers[number].state for number in (0, 1)] == [REPLICA, REPLICA]  # type: ignore[union-attr]
    assert replication.FOLLOWED in flush.batch.local
    world.bucket.flusher.commit(flush)
    world.bucket.flusher.finish(flush)
    world.fail_over(0)
    stored = world.rig.store.local(replication.FOLLOWED)
    assert replication.decode_followed(stored) == {1: A}


@pytest.mark.parametrize("state", [ACTIVE, DEAD])
def test_what_is_no_replica_any_more_is_left_alone_and_forgotten(
    world: World, state: VBucketState
) -> None:
    world.bucket.set_state(0, state)
    world.bucket.set_state(1, PENDING)
    written_down(world, {A: [0, 1], B: [9]})
    world.replication.resume()
    assert world.followed() == {A: [1]}
    world.rig.flush()
    assert replication.decode_followed(world.rig.store.local(replication.FOLLOWED)) == {1: A}


def test_a_promotion_that_did_not_reach_the_disk_is_a_replica_that_follows_again(
    world: World,
) -> None:
    world.follow(A, [0])
    world.replication.fail_over([0], lambda *_: None)
    view = world.rig.store.view()
    header = view.header(0)
    view.close()
    assert header is not None
    assert header.state == REPLICA
    assert replication.decode_followed(world.rig.store.local(replication.FOLLOWED)) == {0: A}


# --- what others do to a vBucket while it is filled -----------------------------------------------


def test_a_flush_of_the_replica_brings_all_of_it_again() -> None:
    source, target = upr_rig(), replica_rig()
    fill(source, 0, 50)
    pair = Pair(source, target)
    pair.run()
    pair.link.follow([0])
    pair.run()
    target.bucket.flush(0, lambda _: None)
    (ended,) = pair.run()
    assert (ended[0], ended[3]) == ("ended", True)
    pair.link.follow([0])
    assert pair.run() == [("began", 0)]
    assert table_of(target.bucket.vbuckets[0]) == table_of(source.bucket.vbuckets[0])


def test_a_promotion_in_the_middle_of_a_rollback_ends_it() -> None:
    source, target = upr_rig(), replica_rig()
    fill(source, 0, 50)
    pair = Pair(source, target)
    pair.run()
    pair.link.follow([0])
    pair.run()
    pair.lose()
    target.bucket.set_state(0, ACTIVE)
    write(target, 0, *(b"key%06d" % n for n in range(10)), value=b"only here")
    target.bucket.set_state(0, REPLICA)
    restore(source, target)
    vbucket = target.bucket.vbuckets[0]
    again = Pair(source, target, flush=False)
    again.run()
    again.link.follow([0])
    while not vbucket.rewinding:
        again.turn()
    target.bucket.set_state(0, ACTIVE)
    seqno = write(target, 0, b"new")
    log = vbucket.failover_log
    again.auto_flush = True
    again.run()
    assert (vbucket.state, vbucket.rewinding, vbucket.high_seqno) == (ACTIVE, False, seqno)
    assert vbucket.failover_log == log
    assert table_of(vbucket)[b"key000003"].value == b"value"
    vbucket.check()


def test_a_vbucket_that_is_removed_in_the_middle_of_a_rollback_is_gone() -> None:
    source, target = upr_rig(), replica_rig()
    fill(source, 0, 50)
    pair = Pair(source, target)
    pair.run()
    pair.link.follow([0])
    pair.run()
    pair.lose()
    target.bucket.set_state(0, ACTIVE)
    write(target, 0, b"only here")
    target.flush()
    target.bucket.set_state(0, REPLICA)
    restore(source, target)
    again = Pair(source, target, flush=False)
    again.run()
    again.link.follow([0])
    while not target.bucket.vbuckets[0].rewinding:
        again.turn()
    flush = target.bucket.flusher.begin()
    assert flush is not None
    target.bucket.set_state(0, DEAD)
    target.bucket.remove(0, lambda _: None)
    target.bucket.flusher.commit(flush)
    target.bucket.flusher.finish(flush)
    again.auto_flush = True
    again.run()
    anew = target.bucket.set_state(0, REPLICA)
    target.flush()
    view = target.store.view()
    assert list(view.changes_after(0, 0)) == []
    view.close()
    assert (anew.high_seqno, anew.persisted_seqno) == (0, 0)
    assert again.link.undos.asked == 0


def test_a_link_that_is_lost_in_mid_snapshot_and_promoted_claims_what_is_whole() -> None:
    target = replica_rig()
    script = Script(target)
    opaque = script.follow(log=failover_log((0xA, 0)))
    script.say(marker(0, opaque, 1, 2), mutation(0, opaque, 1, b"a"), mutation(0, opaque, 2, b"b"))
    script.say(marker(0, opaque, 3, 9), mutation(0, opaque, 5, b"a"))
    script.link.connection_lost()
    target.bucket.set_state(0, ACTIVE)
    assert target.bucket.vbuckets[0].failover_log[0].seqno == 2
