"""Programs that use the client library, step by step: rollbacks, hand-overs, deaths at any point.

Every change they get, every position they write down and every key they undo is judged on the way
(`program`); at the end they hold what the active node holds.
"""

from __future__ import annotations

import pytest

from tests.seeds import seeds
from tests.sim.cluster_run import REPLICAS
from tests.sim.desk import TAKEN, ReplicaDesk
from tests.sim.faults import NO_FAULTS, Faults
from tests.sim.plan import Plan
from tests.sim.program import AT_ONCE, KINDS, NATIVE, Program
from uprmc.remote.directory import Directory

pytestmark = pytest.mark.sim

#: A program that dies at a write point dies twice more, each time after so many points.
_APART = 29
_NEVER = 1_000_000


def followed(desk: ReplicaDesk, program: Program) -> None:
    """Wait until a program holds everything, and all of it is saved."""
    desk.run._until(program.settled, "program", program.standing)
    desk.world.run_for(0.1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.acceptance("D15", "D46", "D48", "D49")
def test_a_program_that_is_ahead_after_a_failover_undoes_just_that(kind: str) -> None:
    """Documents changed, deleted and made on the old active; the new one has none of it."""
    desk = ReplicaDesk("pair")
    program = desk.run.program(kind)
    desk.put_many("a", range(30))
    desk.level("a", "b")
    followed(desk, program)
    before = program.changes
    with desk.parted("a", "b"):
        desk.put_many("a", range(5), b"changed")
        desk.delete("a", b"k7")
        desk.put("a", b"new")
        followed(desk, program)
        desk.fail_over("b")
    desk.follow("a", "b")
    desk.level("b", "a")
    followed(desk, program)
    assert program.changes == before + 7, "nothing was sent again"
    program._count()
    assert program.back == 1
    assert program.undone == (0 if kind == NATIVE else 7)
    desk.finish()


@pytest.mark.acceptance("D47")
@pytest.mark.parametrize(("lost", "again"), [(10, False), (11, True)])
def test_beyond_its_ring_a_program_begins_anew(lost: int, again: bool) -> None:
    """A ring of ten keys: ten changes can be undone, eleven cannot."""
    desk = ReplicaDesk("pair")
    program = desk.run.program(AT_ONCE, ring_items=10)
    desk.put_many("a", range(30))
    desk.level("a", "b")
    followed(desk, program)
    before = program.changes
    with desk.parted("a", "b"):
        for number in range(lost):  # the ring forgets by batches
            desk.put_many("a", [number], b"lost")
            followed(desk, program)
        desk.fail_over("b")
    desk.follow("a", "b")
    followed(desk, program)
    assert (program.changes - before - lost == 30) is again
    desk.finish()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.acceptance("D33", "D52")
def test_a_hand_over_sends_no_program_back(kind: str) -> None:
    """It goes on at the new active with the next change, and gets nothing twice."""
    desk = ReplicaDesk("pair")
    program = desk.run.program(kind)
    desk.put_many("a", range(20))
    followed(desk, program)
    before = program.changes
    assert desk.take_over("a", "b") == TAKEN
    desk.put_many("b", range(15, 25))
    followed(desk, program)
    desk.follow("a", "b")
    assert desk.take_over("b", "a") == TAKEN
    desk.put_many("a", range(22, 27))
    followed(desk, program)
    program._count()
    assert (program.back, program.undone) == (0, 0)
    assert program.changes == before + 15
    desk.finish()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.acceptance("D33")
def test_an_active_that_was_deposed_and_comes_back_is_followed_by_no_program(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    nobody_tells(monkeypatch)
    desk = ReplicaDesk("pair")
    deposed_active(desk, kind)
    desk.finish()


def nobody_tells(patch: pytest.MonkeyPatch) -> None:
    """Have users who may not tell a node that it was deposed; so it takes writes for longer."""
    patch.setattr(Directory, "news", lambda _, place: [])


def deposed_active(desk: ReplicaDesk, kind: str, *, may_learn: bool = False) -> None:
    """The old active crashes again and again, is written to, and says that it is active.

    One program has a state from before; others begin while both nodes say so. A program that breaks
    the rules may let the old active learn that it was deposed (`may_learn`).
    """
    program = desk.run.program(kind)
    program.deposed.add(b"deposed")
    desk.put_many("a", range(20))
    desk.level("a", "b")
    followed(desk, program)
    old = desk.operator.node("a")
    old.crash(power=False)
    desk.fail_over("b")
    desk.put_many("b", range(5, 10), b"new")
    old.start()
    desk.world.run_until(lambda: old.serving)
    for number in range(3):
        desk.crash("a")
        desk.put_many("a", range(number, 15), b"deposed", may_be_refused=may_learn)
        desk.put_many("b", range(10, 12), b"more")
        followed_at(desk, program, "b")
        program.die()
        fresh = desk.run.program(kind)
        fresh.deposed.add(b"deposed")
        followed_at(desk, fresh, "b")
    desk.world.run_for(2)
    followed_at(desk, program, "b")
    right = desk.operator.node("b")
    right.crash(power=False)
    desk.world.run_for(3)  # the deposed one is all there is
    program.die()
    desk.world.run_for(3)
    right.start()
    desk.world.run_until(lambda: right.serving)
    desk.put_many("b", range(12, 14), b"last")
    followed_at(desk, program, "b")
    desk.follow("a", "b")
    desk.level("b", "a")
    followed(desk, program)


def followed_at(desk: ReplicaDesk, program: Program, name: str) -> None:
    """Wait until a program holds what one node holds, whatever others say."""

    def level() -> bool:
        place = program.core and program.core.writer.places.get(0)
        look = desk.now(name)
        log = tuple((entry.uuid, entry.seqno) for entry in place.log) if place else ()
        return bool(place) and (place.whole, log) == (look.high, look.log)

    desk.run._until(level, "program", program.standing)


def _story(kind: str, die_at: int) -> int:
    """Follow, go back, go on; die at that write point, and twice later.

    Returns how many points there were.
    """
    desk = ReplicaDesk("pair")
    program = desk.run.program(kind, ring_items=20)
    total = [0]
    deaths = {die_at, die_at + _APART, die_at + 2 * _APART}

    def dies() -> bool:
        total[0] += 1
        return total[0] in deaths

    program._dies = dies  # type: ignore[method-assign]
    program.points.dies = dies
    desk.put_many("a", range(6))
    desk.level("a", "b")
    followed(desk, program)
    with desk.parted("a", "b"):
        desk.put_many("a", range(4, 8), b"lost")
        desk.delete("a", b"k1")
        followed(desk, program)
        desk.fail_over("b")
        desk.put_many("b", range(3, 5), b"new")
    desk.follow("a", "b")
    followed(desk, program)
    desk.put_many("b", range(6, 9), b"last")
    desk.finish()
    assert program.deaths == sum(point <= total[0] for point in deaths)
    return total[0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.acceptance("D13", "D44", "D45", "D46")
def test_a_program_may_die_at_every_write_point(kind: str) -> None:
    """Of its own disk or of the library's; whenever it comes back it ends equal."""
    assert 15 < _story(kind, _NEVER) < 3 * _APART
    for die_at in range(1, _APART + 1):
        _story(kind, die_at)


@pytest.mark.parametrize("seed", seeds(default=8))
@pytest.mark.acceptance("D04", "D13", "D33", "D44", "D45", "P10", "P19")
def test_programs_end_equal_to_the_active_node(seed: int) -> None:
    """All kinds of programs among failovers, hand-overs, crashes and their own deaths."""
    plan = Plan(
        "star",
        Faults(crash_s=1.5, cut_s=0.5),
        {"failover": 2, "takeover": 2, "twice": 1},
        operator_s=0.2,
        programs=KINDS,
        death=0.02,
        ring_items=(3, 20, 10_000)[seed % 3],
    )
    account = REPLICAS.random(seed, plan).account()
    assert account["program changes"]


@pytest.mark.parametrize("seed", seeds(default=3))
@pytest.mark.acceptance("D52")
def test_hand_overs_in_peace_send_no_program_back(seed: int) -> None:
    """Again and again under load."""
    plan = Plan("star", NO_FAULTS, {"takeover": 1}, operator_s=0.1, programs=KINDS)
    account = REPLICAS.random(seed, plan).account()
    assert account["handed over"]
    assert not account["program rollbacks"]
    assert not account["program keys undone"]
