"""Terms between nodes: replicas take them, links show them, and who was deposed learns it.

Source: contracts of the systems to come, section 1.
"""

from __future__ import annotations

import struct

import pytest

from tests.contents import receive_all, table_of
from tests.upr.link_rig import Pair, Script, failover_log, replica_rig
from tests.upr.peer import (
    ACTIVE,
    ADD_STREAM,
    CONTROL,
    DEAD,
    FAILOVER_LOG,
    HELLO,
    NOT_MY_VBUCKET,
    OK,
    REPLICA,
    STREAM_REQUEST,
    Peer,
    Rig,
    fill,
    frame,
    upr_rig,
    write,
)
from uprmc.engine.replica import take_history
from uprmc.engine.vbucket import VBucket
from uprmc.model import Item, SnapshotRange

TERMS = 0x5501


@pytest.fixture
def source() -> Rig:
    return upr_rig()


@pytest.fixture
def target() -> Rig:
    return replica_rig()


def vbucket(rig: Rig, number: int = 0) -> VBucket:
    return rig.bucket.vbuckets[number]


def promote(rig: Rig, times: int, number: int = 0) -> None:
    for _ in range(times):
        rig.bucket.set_state(number, REPLICA)
        rig.bucket.set_state(number, ACTIVE)


def followed(source: Rig, target: Rig, *numbers: int) -> Pair:
    """A link that is level with its source."""
    pair = Pair(source, target)
    pair.run()
    pair.link.follow(numbers or [0])
    pair.run()
    return pair


# --- replicas learn -------------------------------------------------------------------------------


def test_a_replica_has_its_sources_term_and_is_promoted_above_it(source: Rig, target: Rig) -> None:
    promote(source, 3)
    fill(source, 0, 5)
    followed(source, target)
    assert vbucket(target).term == vbucket(source).term == 4
    target.bucket.set_state(0, ACTIVE)
    assert vbucket(target).term == 5


def test_a_replica_of_a_replica_learns_through_it(source: Rig, target: Rig) -> None:
    promote(source, 2)
    fill(source, 0, 5)
    followed(source, target)
    third = replica_rig()
    followed(target, third)
    assert vbucket(third).term == 3


def test_a_takeover_ends_with_one_active_and_its_term_is_higher(source: Rig, target: Rig) -> None:
    fill(source, 0, 5)
    pair = Pair(source, target)
    pair.run()
    pair.link.take_over([0])
    assert ("taken", 0) in pair.run()
    assert (vbucket(source).state, vbucket(target).state) == (DEAD, ACTIVE)
    assert (vbucket(source).term, vbucket(target).term) == (1, 2)
    assert vbucket(source).failover_log == vbucket(target).failover_log


# --- a link shows what it knows -------------------------------------------------------------------


def test_a_replica_of_the_promoted_node_deposes_the_one_it_is_sent_back_to(
    source: Rig, target: Rig
) -> None:
    fill(source, 0, 5)
    followed(source, target).lose()
    promoted = target
    promoted.bucket.set_state(0, ACTIVE)
    write(promoted, 0, b"new")
    replica = replica_rig()
    followed(promoted, replica).lose()
    pair = Pair(source, replica)
    pair.run()
    pair.link.follow([0])
    (event,) = pair.run()
    assert (event[0], event[3]) == ("ended", True), "it may be asked again"
    assert vbucket(source).state == DEAD
    assert vbucket(source).known_term == 2
    assert vbucket(replica).high_seqno == 6, "nothing is undone for a deposed node"


def test_who_was_deposed_learns_it_through_a_replica_of_its_own(source: Rig, target: Rig) -> None:
    """Which knows the number already, from another history."""
    fill(source, 0, 5)
    middle = replica_rig()
    vbucket(middle).known_term = 9
    upper = followed(source, middle)
    followed(source, target).lose()
    promote(target, 2)
    target.bucket.set_state(0, REPLICA)
    lower = Pair(middle, target)
    lower.run()
    lower.link.follow([0])
    (refused,) = lower.run()
    assert (refused[0], refused[3]) == ("ended", True), "it may be asked again"
    (ended,) = upper.run()
    assert (ended[0], ended[3]) == ("ended", True), "it is asked again at once"
    upper.link.follow([0])
    upper.run()
    assert vbucket(source).state == DEAD


def test_an_active_that_follows_others_notices_that_one_of_them_was_promoted(
    source: Rig, target: Rig
) -> None:
    fill(source, 0, 5)
    followed(source, target, 0, 1).lose()
    target.bucket.set_state(0, ACTIVE)
    source.bucket.set_state(1, REPLICA)
    target.bucket.set_state(1, ACTIVE)
    pair = followed(target, source, 1)
    assert vbucket(source).state == ACTIVE
    pair.tick(1.1)
    pair.run()
    assert vbucket(source).state == DEAD
    assert source.bucket.stats.vbuckets_deposed == 1


def test_the_same_number_in_another_cluster_deposes_nobody(source: Rig, target: Rig) -> None:
    fill(source, 0, 5)
    vbucket(target).reset(0xF0F0)  # no rig shares it
    promote(target, 5)
    source.bucket.set_state(1, REPLICA)
    target.bucket.set_state(1, ACTIVE)
    pair = followed(target, source, 1)
    for _ in range(3):
        pair.tick(1.1)
        pair.run()
    assert vbucket(source).state == ACTIVE


def test_a_replica_of_another_history_is_let_in_and_takes_the_term_of_the_new_one(
    source: Rig, target: Rig
) -> None:
    fill(source, 0, 5)
    vbucket(target).reset(0xF0F0)
    promote(target, 6)
    write(target, 0, b"of another cluster")
    target.bucket.set_state(0, REPLICA).may_start_over = True
    target.flush()
    followed(source, target)
    assert vbucket(source).state == ACTIVE
    assert set(table_of(vbucket(target))) == set(table_of(vbucket(source)))
    assert vbucket(target).term == 1
    followed(source, target)
    assert vbucket(source).state == ACTIVE, "it shares the history now, and shows that one's term"
    target.bucket.set_state(0, ACTIVE)
    assert vbucket(target).term == 8, "above all that it ever had"


# --- other sources --------------------------------------------------------------------------------


def test_a_source_without_terms_is_asked_without_and_lowers_nothing(target: Rig) -> None:
    take_history(vbucket(target), vbucket(target).failover_log, 3)
    script = Script(target)
    script.link.follow([0])
    (asked,) = script.sent()
    assert b"term" not in asked.value
    script.answer(asked, value=failover_log((0xA, 0)))
    assert (vbucket(target).term, vbucket(target).known_term) == (3, 3)


def test_a_term_that_no_promotion_can_reach_ends_the_link(target: Rig) -> None:
    script = Script(target)
    script.link.follow([0])
    (asked,) = script.sent()
    script.answer(asked, extras=b"\xff" * 8, value=failover_log((0xA, 0)))
    assert "term" in script.link.error
    assert vbucket(target).known_term == 1


def test_a_refusal_that_is_not_about_terms_stays_one(target: Rig) -> None:
    items = [Item(b"k", b"v", 0, 0, 1, 1, 1)]
    take_history(vbucket(target), vbucket(target).failover_log, 3)
    receive_all(vbucket(target), items, SnapshotRange(1, 1))
    script = Script(target, grant=False)
    for one in script.sent():
        assert one.opcode in (HELLO, CONTROL, 0x50)
        script.answer(one, value=struct.pack(">H", TERMS) if one.opcode == HELLO else b"")
    script.owner.take()
    script.link.follow([0])
    (asked,) = script.sent()
    assert b'"term":3' in asked.value
    (log,) = script.answer(asked, NOT_MY_VBUCKET)
    assert log.opcode == FAILOVER_LOG
    script.answer(log, NOT_MY_VBUCKET)
    assert [event[0] for event in script.owner.take()] == ["ended"]
    assert not script.sent()


def test_a_spliced_consumer_takes_the_term_that_comes_with_the_log(target: Rig) -> None:
    peer = Peer.open(target, b"manager", flags=0)
    sent = peer.say(frame(ADD_STREAM, extras=struct.pack(">I", 0), opaque=5))
    (asked,) = (one for one in sent if one.opcode == STREAM_REQUEST)
    assert {one.key: one.value for one in sent}[b"uprmc_terms"] == b"true"
    log = failover_log((0xA, 0))
    answer = frame(
        STREAM_REQUEST, extras=struct.pack(">Q", 7), value=log, opaque=asked.opaque, magic=0x81
    )
    (added,) = peer.say(answer)
    assert (added.opcode, added.status) == (ADD_STREAM, OK)
    assert vbucket(target).term == 7


def test_a_replica_that_is_rolled_back_has_the_term_with_the_log_before_it_streams(
    source: Rig, target: Rig
) -> None:
    fill(source, 0, 5)
    followed(source, target).lose()
    write(target, 0, b"lost")
    promote(source, 1)
    write(source, 0, b"kept")
    pair = Pair(source, target, flush=False)
    pair.run()
    pair.link.follow([0])
    while not vbucket(target).rewinding:
        pair.turn()
    assert vbucket(target).failover_log == vbucket(source).failover_log
    assert vbucket(target).term == vbucket(source).term == 2
