"""Whatever goes wrong with several nodes, in the end they are equal, and nothing was made up.

Judges look after every step (`replica_truth`), at every answer to the operator, and at rest
(`replica_judges`); a seed that fails says how to run it again.
"""

from __future__ import annotations

import pytest

from tests.seeds import seeds
from tests.sim.faults import NO_FAULTS, Faults
from tests.sim.judged import story
from tests.sim.noticing import happens
from tests.sim.replica_plan import OPERATING, TOPOLOGIES, Plan
from tests.sim.replica_run import ReplicaRun
from tests.sim.upr_kinds import PLAIN, RARE

pytestmark = pytest.mark.sim


@pytest.mark.parametrize("seed", seeds(default=20))
@pytest.mark.acceptance("D04", "D33", "D50", "D51", "D52", "D53", "D54", "P16", "P17")
def test_every_node_ends_equal_to_the_active_one(seed: int) -> None:
    """Random topologies, faults, failovers, hand-overs; see `replica_plan`."""
    story(ReplicaRun, seed)


#: Fault by fault: what goes wrong, and what the operator does.
_MATRIX: dict[str, tuple[Faults, dict[str, int]]] = {
    "broken network": (Faults(cut_s=0.15), {"rewire": 1}),
    "nodes killed": (Faults(crash_s=1.0), {}),
    "nodes killed with their machines": (Faults(power_s=1.0, write_back_s=0.3), {}),
    "nodes restarted": (Faults(stop_s=1.5), {"takeover": 1}),
    "disks broken and full": (Faults(broken_s=1.0, full_s=1.0), {"failover": 1, "takeover": 1}),
    "failovers, nodes killed": (Faults(crash_s=2.0), {"failover": 2, "twice": 1, "part": 1}),
    "hand-overs cut": (Faults(cut_s=1.0), {"takeover": 1}),
    "deposed actives come back": (
        Faults(crash_s=0.8, stop_s=2.0),
        {"failover": 3, "part": 3, "herald": 6},
    ),
    "deletions purged": (NO_FAULTS, {"compact": 6, "failover": 1, "takeover": 1}),
}


@pytest.mark.parametrize("fault", list(_MATRIX))
@pytest.mark.parametrize("topology", ["chain", "star"])
@pytest.mark.acceptance("D51", "D52", "D53")
def test_each_topology_bears_each_fault(topology: str, fault: str) -> None:
    """With consumers at the last node."""
    faults, operating = _MATRIX[fault]
    sync = "machines" not in fault
    cut = "cut" in fault
    kinds = (PLAIN, RARE)
    plan = Plan(
        topology, faults, operating, operator_s=0.2, kinds=kinds, sync=sync, cut_handovers=cut
    )
    ReplicaRun.random(0, plan)


@pytest.mark.parametrize("seed", seeds(default=3))
@pytest.mark.acceptance("D52")
def test_hand_overs_in_peace_take_nobody_back(seed: int) -> None:
    """Again and again under load: no replica and no consumer is sent back, no log changes."""
    plan = Plan("star", NO_FAULTS, {"takeover": 1}, operator_s=0.1, kinds=(PLAIN,), silences=False)
    run = ReplicaRun.random(seed, plan)
    account = run.account()
    assert not account["interrupted"]
    assert not run.histories.rollbacks
    assert not account["consumer rollbacks"]
    for number in range(plan.vbuckets):
        assert {len(run.histories.node(node.name).now(number).log) for node in run.nodes} == {1}


def test_the_runs_do_what_they_are_for() -> None:
    """Every kind of event happens within the first seeds; else the judges have nothing to judge."""
    wanted = {"rollbacks", "handed over", "interrupted", "refused", "crashes", "cuts", "failover"}
    happens(wanted, (story(ReplicaRun, seed).account for seed in range(20)))
    assert set(TOPOLOGIES) == {"pair", "chain", "star"}
    assert set(OPERATING) >= {"takeover", "failover", "twice"}


@pytest.mark.parametrize("seed", seeds(default=2))
def test_the_same_seed_gives_the_same_nodes(seed: int) -> None:
    """Event for event."""
    assert ReplicaRun.random(seed).world.digest() == story(ReplicaRun, seed).digest
