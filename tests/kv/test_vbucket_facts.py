"""VBUCKET_FACTS as a request: a manager raises a vBucket's floor of revisions."""

from __future__ import annotations

import pytest

from tests.contents import table_of
from tests.kv.binary_peer import Peer, answer, frame, store, u64
from tests.kv.harness import Rig
from uprmc.model import VBucketState

FACTS, NOOP, SET = 0xD6, 0x0A, 0x01
EXISTS, INVALID, NOT_MINE, TEMPORARY = 2, 4, 7, 0x86
REV_MAX = 2**63 - 1


@pytest.fixture
def rig() -> Rig:
    return Rig()


@pytest.fixture
def peer(rig: Rig) -> Peer:
    return Peer(rig, by_key=False)


def raised(floor: int, vbucket: int = 1, purge_seqno: int = 0, cas: int = 0) -> bytes:
    extras = u64(purge_seqno) + u64(floor)
    return frame(FACTS, extras=extras, vbucket=vbucket, cas=cas)


def status(peer: Peer, request: bytes) -> int:
    (reply,) = peer.ask(request)
    return reply.status


def test_it_is_answered_when_the_floor_is_on_disk(rig: Rig, peer: Peer) -> None:
    assert peer.ask(raised(20), frame(NOOP)) == []
    rig.flush()
    assert [(each.opcode, each.status) for each in peer.ask()] == [(FACTS, 0), (NOOP, 0)]
    view = rig.store.view()
    header = view.header(1)
    view.close()
    assert header is not None
    assert header.max_deleted_rev == 20
    peer.say(store(SET, b"key", b"value", vbucket=1))
    assert table_of(rig.bucket.vbuckets[1])[b"key"].rev == 21
    assert rig.bucket.vbuckets[0].max_deleted_rev == 0


def test_a_lower_floor_changes_nothing(rig: Rig, peer: Peer) -> None:
    for floor in (20, 19, 0):
        peer.ask(raised(floor))
        rig.flush()
        assert peer.say() == answer(FACTS)
        assert rig.bucket.vbuckets[1].max_deleted_rev == 20


def test_the_highest_revision_is_the_limit(rig: Rig, peer: Peer) -> None:
    for floor in (REV_MAX + 1, 2**64 - 1):
        assert status(peer, raised(floor)) == INVALID
    peer.ask(raised(REV_MAX))
    rig.flush()
    assert peer.say() == answer(FACTS)
    assert rig.bucket.vbuckets[1].max_deleted_rev == REV_MAX


def test_nobody_may_say_what_was_purged_here(rig: Rig, peer: Peer) -> None:
    assert status(peer, raised(20, purge_seqno=1)) == INVALID
    assert rig.bucket.vbuckets[1].max_deleted_rev == 0


@pytest.mark.parametrize("state", [VBucketState.REPLICA, VBucketState.PENDING, VBucketState.DEAD])
def test_a_vbucket_that_is_not_active_is_not_ours(
    rig: Rig, peer: Peer, state: VBucketState
) -> None:
    rig.bucket.set_state(1, state)
    assert status(peer, raised(20)) == NOT_MINE
    assert status(peer, raised(20, vbucket=4)) == NOT_MINE
    assert rig.bucket.vbuckets[1].max_deleted_rev == 0


def test_during_warm_up_it_has_to_be_tried_again() -> None:
    peer = Peer(Rig(warm=False, engine__vbuckets=1), by_key=False)
    assert status(peer, raised(20)) == TEMPORARY


def test_a_manager_whose_session_is_over_is_refused(rig: Rig, peer: Peer) -> None:
    rig.services.control.token = 7
    assert status(peer, raised(20, cas=6)) == EXISTS


def test_while_persistence_is_stopped_it_is_told_at_once(rig: Rig, peer: Peer) -> None:
    rig.bucket.flusher.paused = True
    (reply,) = peer.ask(raised(20))
    assert (reply.status, reply.value[:4]) == (TEMPORARY, b"done")
