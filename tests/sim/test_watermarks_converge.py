"""Whatever goes wrong, no registered client misses a deletion, and no purge runs ahead of anybody.

Judges look after every step (`watermark_judges`, `replica_truth`), at every answer, and at rest; a
seed that fails says how to run it again.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.seeds import seeds
from tests.sim.faults import NO_FAULTS, Faults
from tests.sim.noticing import happens
from tests.sim.watermark_plan import WatermarkPlan
from tests.sim.watermark_run import WatermarkRun

pytestmark = pytest.mark.sim


@pytest.mark.parametrize("seed", seeds(default=3))
@pytest.mark.acceptance("X05", "X21", "X22", "X23", "X24", "X25", "X26")
def test_no_registered_client_misses_a_deletion_whatever_goes_wrong(seed: int) -> None:
    """Random topologies, faults, failovers, hand-overs, clients; see `watermark_plan`."""
    WatermarkRun.random(seed)


_SHORT = WatermarkPlan("chain", NO_FAULTS, {}, purge_s=0.01, writer_s=0.02, keys=6, steps=3_000)

#: What a run is for -> its plan.
_RUNS: dict[str, WatermarkPlan] = {
    "links of a chain cut": replace(_SHORT, faults=Faults(cut_s=0.1)),
    "a star whose actives change": replace(
        _SHORT, topology="star", operating={"failover": 2, "takeover": 2}, operator_s=0.2
    ),
    "rows that end soon, nodes killed": replace(_SHORT, faults=Faults(crash_s=0.7), lifetime_s=1),
    "deposed actives come back": replace(
        _SHORT,
        topology="star",
        operating={"failover": 3, "part": 3, "herald": 3},
        operator_s=0.2,
    ),
}


@pytest.mark.parametrize("what", list(_RUNS))
@pytest.mark.acceptance("X05", "X18", "X22", "X23", "X24", "X25", "X26")
def test_registered_clients_bear(what: str) -> None:
    WatermarkRun.random(0, _RUNS[what])


def test_the_runs_do_what_they_are_for() -> None:
    """Every kind of event happens within the first seeds; else the judges have nothing to judge."""
    wanted = {
        "clients moved",
        "clients refused",
        "clients removed",
        "consumer from_zero",
        "purged",
        "rows judged",
        "rows lived through a crash",
        "rows promoted",
        "rows told",
    }
    plan = replace(_RUNS["rows that end soon, nodes killed"], operating={"failover": 1})
    happens(wanted, (WatermarkRun.random(seed, plan).account() for seed in range(10)))


def test_the_same_seed_gives_the_same_run() -> None:
    """Event for event."""
    plan = replace(_SHORT, faults=Faults(crash_s=0.5), steps=1_500)
    first, second = (WatermarkRun.random(1, plan).world.log for _ in range(2))
    assert first == second
