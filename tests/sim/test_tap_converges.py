"""Whatever goes wrong, TAP clients end with what their nodes hold, and a TAP master's copy is true.

Judges look at every message (`tap_judges`), at every end of a dump or a takeover, and at rest; a
seed that fails says how to run it again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.seeds import seeds
from tests.sim.faults import NO_FAULTS, Faults
from tests.sim.judged import story
from tests.sim.noticing import happens
from tests.sim.tap_kinds import BACKUP, BUSY, DUMPER, KINDS, PLAIN, REGISTERED, REPLICA
from tests.sim.tap_master import Manners
from tests.sim.tap_plan import SETTINGS, TapPlan
from tests.sim.tap_push_run import PushPlan, PushRun
from tests.sim.tap_run import TapRun

pytestmark = pytest.mark.sim


@pytest.mark.parametrize("seed", seeds(default=10))
@pytest.mark.acceptance("D01", "D56")
def test_every_tap_client_ends_equal_to_its_node(seed: int) -> None:
    """Random kinds, topologies, faults, failovers, hand-overs; see `tap_plan`."""
    story(TapRun, seed)


@pytest.mark.parametrize("seed", seeds(default=10))
@pytest.mark.acceptance("D56")
def test_what_a_tap_master_pushes_is_there_and_downstream(seed: int) -> None:
    """Random masters and faults; a node that follows by UPR shows only whole states."""
    story(PushRun, seed)


_MATRIX: dict[str, tuple[Faults, dict[str, int]]] = {
    "broken network": (Faults(cut_s=0.15), {}),
    "nodes killed with their machines": (Faults(power_s=0.8, write_back_s=0.3), {}),
    "disks broken and unreadable": (Faults(broken_s=0.8, unreadable_s=0.5), {}),
    "failovers and hand-overs": (Faults(cut_s=1.0), {"failover": 2, "takeover": 1}),
}


@pytest.mark.parametrize("fault", list(_MATRIX))
@pytest.mark.acceptance("D56")
def test_every_kind_bears_each_fault(fault: str) -> None:
    """All kinds at once."""
    faults, operating = _MATRIX[fault]
    TapRun.random(0, TapPlan("pair", faults, operating, steps=3_000, clients=KINDS, tap=SETTINGS))


@pytest.mark.acceptance("D56")
def test_registered_clients_go_on_after_crashes_without_loss() -> None:
    """They are not told everything again, and still nothing is missing."""
    total: Counter[str] = Counter()
    clients = (REGISTERED, REGISTERED, REGISTERED)
    for seed in range(4):
        plan = TapPlan("pair", Faults(crash_s=0.5), {}, steps=3_000, clients=clients, tap=SETTINGS)
        total.update(TapRun.random(seed, plan).account())
    assert total["crashes"]
    assert total["tap resumed"]


@pytest.mark.parametrize("rollback", ["rewind", "restart"])
@pytest.mark.acceptance("D56")
def test_branches_of_history_reach_clients_either_way(rollback: str) -> None:
    """By corrections, or from zero, as is set."""
    total: Counter[str] = Counter()
    for seed in range(3):
        plan = TapPlan(
            "star",
            NO_FAULTS,
            {"failover": 2, "twice": 1},
            operator_s=0.2,
            steps=3_000,
            clients=(PLAIN, REPLICA, REGISTERED),
            tap=replace(SETTINGS, rollback=rollback),
        )
        total.update(TapRun.random(seed, plan).account())
    assert total["rollbacks"]
    assert total["tap items"]


def test_the_runs_do_what_they_are_for() -> None:
    """Every kind of event happens; else the judges have nothing to judge."""

    def accounts(seed: int) -> Iterator[dict[str, int]]:
        plan = TapPlan(
            "pair",
            Faults(cut_s=1.0, crash_s=2.0),
            {"tap_takeover": 3, "failover": 1},
            operator_s=0.2,
            steps=4_000,
            clients=(BACKUP, BUSY, DUMPER, REPLICA),
            tap=SETTINGS,
        )
        yield TapRun.random(seed, plan).account()
        push = PushPlan(Faults(cut_s=0.3, crash_s=1.5, broken_s=0.5), Manners(flushes=0.02))
        yield PushRun.random(seed, push).account()

    wanted = {"checkpoints", "deletions", "deregistered", "dumps", "from zero", "items", "left"}
    wanted = {f"tap {each}" for each in (*wanted, "refused", "resumed", "takeover taken")}
    wanted |= {f"push {each}" for each in ("begun", "crashes", "flushes", "refused", "resumed")}
    happens(wanted, (each for seed in range(12) for each in accounts(seed)))


def test_the_same_seed_gives_the_same_run() -> None:
    """Event for event."""
    for kind in (TapRun, PushRun):
        assert kind.random(1).world.digest() == story(kind, 1).digest
