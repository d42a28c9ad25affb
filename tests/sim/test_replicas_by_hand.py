"""Replicas, failovers and hand-overs step by step: what must come of each story.

What every node holds at each moment is judged all the while (`truth`).
"""

from __future__ import annotations

import pytest

from tests.sim.codec import ACTIVE, DEAD
from tests.sim.consumer import PLAIN, VERSED
from tests.sim.desk import INTERRUPTED, REFUSED, TAKEN, ReplicaDesk
from tests.sim.operators import Splice

pytestmark = pytest.mark.sim

#: A takeover of this little data is through with fewer messages.
_MESSAGES_MAX = 120


@pytest.mark.parametrize("topology", ["pair", "chain", "star"])
@pytest.mark.acceptance("D54", "P16")
def test_replicas_hold_what_the_active_holds(topology: str) -> None:
    """Documents, deletions, history; every node at its place."""
    desk = ReplicaDesk(topology)
    desk.put_many("a", range(30))
    desk.delete("a", b"k3")
    desk.level("a", *[node.name for node in desk.run.nodes])
    desk.finish()
    assert not desk.rollbacks


def test_a_replica_that_a_manager_splices_keeps_up_and_rolls_back() -> None:
    """As nodes of 2014 were operated: streams are added, bytes are passed on."""
    desk = ReplicaDesk("pair")
    desk.operator.do(desk.operator.stop("b", [0]))
    desk.run.orders_done()
    a, b = (desk.operator.node(name) for name in "ab")
    splice = Splice(desk.world, b, a, [0])
    desk.put_many("a", range(20))
    desk.level("a", "b")
    splice.hang_up()
    desk.put_many("a", range(10, 30))
    desk.level("a", "b")
    desk.quiet()
    a.disk.broken = True
    desk.put_many("a", range(2))
    desk.level("a", "b")
    a.crash()
    a.disk.broken = False
    a.start()
    desk.world.run_until(lambda: a.serving)
    desk.level("a", "b")
    assert desk.now("b").high == 40
    assert desk.rollbacks == 1
    splice.working = False
    splice.hang_up()
    desk.finish()


@pytest.mark.acceptance("D50")
def test_the_old_active_undoes_just_what_nobody_else_has() -> None:
    """It was ahead by 100: they are undone, the rest stays, nothing is sent again."""
    desk = ReplicaDesk("pair")
    desk.put_many("a", range(150))
    desk.level("a", "b")
    with desk.parted("a", "b"):
        desk.put_many("a", range(100, 200), b"lost")
        desk.fail_over("b")
        desk.put("b", b"k120", b"new")
    before = desk.now("a").high
    desk.follow("a", "b")
    desk.level("b", "a")
    assert desk.rollbacks == 1
    assert before == 250
    assert desk.now("a").high == 151
    desk.finish()


def test_a_replica_that_is_ahead_by_more_than_the_setting_starts_over() -> None:
    """Rather than asking for each document."""
    desk = ReplicaDesk("pair", rollback_keys=5)
    desk.put_many("a", range(20))
    desk.level("a", "b")
    with desk.parted("a", "b"):
        desk.put_many("a", range(6), b"lost")
        desk.fail_over("b")
    desk.follow("a", "b")
    desk.level("b", "a")
    assert desk.rollbacks == 1
    desk.finish()


@pytest.mark.acceptance("D53", "P06", "P17")
@pytest.mark.parametrize("messages", range(8, 40, 3))
def test_a_replica_in_mid_snapshot_is_promoted_at_the_last_complete_one(messages: int) -> None:
    """Its link is cut after so many messages; the truth knows what was complete."""
    desk = ReplicaDesk("pair")
    desk.put_many("a", range(5))
    desk.level("a", "b")
    desk.part("a", "b")
    desk.put_many("a", range(3, 30))
    desk.cut_after("b", "a", messages)
    cutter = desk.run.net.cutters["b", "a"]
    desk.join()
    desk.world.run_until(lambda: cutter.cut)
    desk.part("a", "b")
    before = desk.now("b")
    desk.fail_over("b")
    after = desk.now("b")
    assert after.log[0][1] == before.complete
    assert after.log[1:] == before.log
    desk.join()
    desk.finish()


@pytest.mark.acceptance("P17")
def test_two_failovers_in_a_row_leave_two_branches() -> None:
    """Nobody has followed the first when the second comes; all come together again."""
    desk = ReplicaDesk("star")
    desk.put_many("a", range(20))
    desk.level("a", "b", "c")
    for one, other in (("a", "b"), ("a", "c"), ("b", "c")):
        desk.part(one, other)
    desk.put_many("a", range(20, 25), b"at a")
    desk.fail_over("b")
    desk.put_many("b", range(18, 23), b"at b")
    desk.fail_over("c")
    desk.put_many("c", range(22, 27), b"at c")
    assert [len(desk.now(name).log) for name in "abc"] == [1, 2, 2]
    desk.join()
    desk.follow("b", "c")
    desk.follow("a", "b")
    desk.level("c", "b", "a")
    assert len(desk.now("a").log) == 2
    desk.finish()


def test_failovers_back_and_forth_come_together() -> None:
    """Each is promoted in turn, always before the other one has what it wrote."""
    desk = ReplicaDesk("pair")
    active, other = "a", "b"
    for step in range(6):
        desk.put_many(active, range(step, step + 10), b"%d" % step)
        desk.level(active, other)
        with desk.parted("a", "b"):
            desk.put_many(active, range(step + 5, step + 15), b"lost %d" % step)
            desk.fail_over(other)
            desk.put(other, b"k1", b"new")
        desk.follow(active, other)
        active, other = other, active
    desk.level(active, other)
    assert desk.rollbacks == 6
    desk.finish()


@pytest.mark.parametrize("how", ["crash", "power", "stop"])
def test_a_replica_goes_on_after_a_restart(how: str) -> None:
    """What it is to follow is kept on its disk."""
    desk = ReplicaDesk("chain")
    desk.put_many("a", range(10))
    desk.level("a", "b", "c")
    desk.quiet()
    if how == "stop":
        desk.stop("b")
    else:
        desk.crash("b", power=how == "power")
    desk.put_many("a", range(5, 15))
    desk.level("a", "b", "c")
    assert not desk.rollbacks
    desk.finish()


def test_an_active_node_that_crashed_takes_its_replicas_back_to_what_it_kept() -> None:
    """They hold more than its disk; nothing else is to be undone."""
    desk = ReplicaDesk("star")
    desk.put_many("a", range(10))
    desk.level("a", "b", "c")
    desk.quiet()
    node = desk.operator.node("a")
    node.bucket.flusher.pause()
    desk.put_many("a", range(8, 12))
    desk.level("a", "b", "c")
    node.crash()
    node.start()
    desk.world.run_until(lambda: node.serving)
    desk.level("a", "b", "c")
    assert desk.now("a").high == 10
    assert desk.rollbacks == 2
    desk.finish()


# --- hand-overs -----------------------------------------------------------------------------------


@pytest.mark.acceptance("D52")
def test_a_hand_over_leaves_the_log_as_it_is_and_takes_nobody_back() -> None:
    """The other replica and two consumers go on where they were, with the new active."""
    desk = ReplicaDesk("star")
    consumers = [desk.consumer("a", kind) for kind in (PLAIN, VERSED)]
    desk.put_many("a", range(20))
    desk.level("a", "b", "c")
    log = desk.now("a").log
    assert desk.take_over("a", "b") == TAKEN
    assert desk.now("b").log == log
    assert desk.now("a").state == DEAD
    assert desk.refused("a", b"k1")
    desk.put_many("b", range(15, 25))
    for consumer in consumers:
        desk.move(consumer, "b")
    desk.follow("a", "b")
    desk.follow("c", "b")
    desk.level("b", "a", "c")
    desk.finish()
    assert not desk.rollbacks
    assert not any(consumer.account.rollbacks for consumer in consumers)
    assert desk.now("a").log == desk.now("b").log == desk.now("c").log == log


def test_what_was_taken_over_survives_the_loss_of_power() -> None:
    """The answer comes when it is on disk."""
    desk = ReplicaDesk("pair")
    desk.put_many("a", range(20))
    assert desk.take_over("a", "b") == TAKEN
    high = desk.now("b").high
    desk.crash("b", power=True)
    assert desk.now("b").state == ACTIVE
    assert desk.now("b").high == high
    desk.finish()


def test_the_source_stays_dead_after_a_crash() -> None:
    """Else there would be two."""
    desk = ReplicaDesk("pair")
    desk.put_many("a", range(20))
    assert desk.take_over("a", "b") == TAKEN
    desk.crash("a", power=True)
    assert desk.now("a").state == DEAD
    assert desk.now("b").state == ACTIVE
    desk.finish()


@pytest.mark.acceptance("D52")
def test_a_takeover_that_is_cut_at_any_message_loses_nothing() -> None:
    """It is taken, or not and can be given back; whoever writes is told so."""
    outcomes = []
    for messages in range(_MESSAGES_MAX):
        desk = ReplicaDesk("pair", seed=messages)
        desk.put_many("a", range(4))
        desk.level("a", "b")
        cutter = desk.cut_after("b", "a", messages)
        outcome = desk.take_over("a", "b")
        outcomes.append(outcome)
        active = [name for name in "ab" if desk.now(name).state == ACTIVE]
        assert active == ["b" if outcome == TAKEN else "a"]
        desk.put(active[0], b"k9")
        desk.finish()
        if not cutter.cut:
            break
    assert not cutter.cut
    assert set(outcomes) == {TAKEN, INTERRUPTED, REFUSED}


@pytest.mark.parametrize("when", range(12))
def test_a_takeover_bears_the_crash_of_either_side(when: int) -> None:
    """After so many tenths of the usual time; it never ends with two, and loses nothing."""
    for name in "ab":
        desk = ReplicaDesk("pair", seed=when)
        desk.put_many("a", range(10))
        node = desk.operator.node(name)
        desk.operator.do(desk.operator.take_over("a", "b", [0]))
        desk.world.run_for(0.01 * when)
        node.crash(power=True)
        node.start()
        desk.run.orders_done()
        desk.finish()


# --- purged deletions -----------------------------------------------------------------------------


@pytest.mark.parametrize("late", [False, True])
def test_a_promoted_replica_knows_what_was_purged(late: bool) -> None:
    """A consumer that missed a deletion is sent back, wherever it was dropped before."""
    desk = ReplicaDesk("pair")
    consumer = desk.consumer("a", PLAIN)
    desk.put_many("a", range(10))
    desk.level("a", "b")
    desk.world.run_until(consumer.settled)
    consumer.asleep = True
    assert consumer.connection is not None
    consumer.connection.hang_up()
    desk.part("a", "b")
    for number in range(5):
        desk.delete("a", b"k%d" % number)
    desk.put("a", b"k9", b"last")
    desk.quiet()
    if not late:
        desk.join()
        desk.level("a", "b")
        desk.quiet()
        desk.compact("b")
        assert desk.now("b").purge == 0, "its source has them all"
    desk.compact("a")
    desk.join()
    desk.put("a", b"k9", b"tells what was dropped")
    desk.level("a", "b")
    if not late:
        desk.quiet()
        desk.compact("b")
    desk.fail_over("b")
    assert desk.now("b").purge == 15
    desk.move(consumer, "b")
    desk.world.run_until(consumer.settled)
    assert consumer.account.from_zero == 1
    desk.follow("a", "b")
    desk.finish()
