"""Whatever goes wrong with clusters and the links between them, all end with what the table says.

Judges look after every step (`xdcr_judges.ArrivalJudge`, `xdcr_truth`), and at rest; a seed that
fails says how to run it again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache

import pytest

from tests.seeds import seeds
from tests.sim.faults import NO_FAULTS, Faults
from tests.sim.judged import story
from tests.sim.noticing import happens
from tests.sim.xdcr_node import SMALL
from tests.sim.xdcr_plan import TOPOLOGIES, Plan, Route, routes
from tests.sim.xdcr_run import XdcrRun

pytestmark = pytest.mark.sim


@pytest.fixture(autouse=True)
def small_links(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make portions of links small, as `small_portions` does for the engine."""
    for module, name, value in SMALL:
        monkeypatch.setattr(f"{module}.{name}", value)


@pytest.mark.parametrize("seed", seeds(default=4))
@pytest.mark.acceptance("X02", "X06", "X26", "X27", "C01", "C07", "C09", "C12", "C14")
def test_clusters_end_with_what_the_table_says_whatever_goes_wrong(seed: int) -> None:
    """Random topologies, faults, failovers, restored copies, filters, clocks; see `xdcr_plan`."""
    story(XdcrRun, seed)


@pytest.mark.parametrize("topology", list(TOPOLOGIES))
@pytest.mark.acceptance("X02", "X06", "X09")
def test_without_faults_each_change_travels_once_along_each_link(topology: str) -> None:
    """In a ring, once to each other cluster."""
    XdcrRun.random(0, Plan(routes(topology), NO_FAULTS, varied_wires=False, steps=2_500))


_SHORT = Plan(routes("pair"), NO_FAULTS, steps=3_000)

#: What a run is for -> its plan.
RUNS: dict[str, Plan] = {
    "connections cut": replace(_SHORT, faults=Faults(cut_s=0.2)),
    "nodes killed": replace(_SHORT, faults=Faults(crash_s=1.0), routes=routes("ring")),
    "a link that is late": replace(
        _SHORT,
        routes=(*routes("line"), *(r._replace(late=1.0) for r in routes("forward")[2:])),
        operating={"checkpoint": 1},
        operator_s=0.1,
    ),
    "clocks that agree too well": replace(
        _SHORT,
        routes=routes("mesh", settings=(("optimistic_bytes", "0"),)),
        by_time=True,
        grain_s=1.0,
        keys=2,
        writer_s=0.05,
    ),
    "watermarks removed": replace(
        _SHORT,
        operating={"pause": 2, "forget": 3, "checkpoint": 2},
        operator_s=0.1,
        purge_s=0.03,
        writer_s=0.03,
        writers=(0,),
    ),
    "failovers at both ends": replace(
        _SHORT, standbys=True, operating={"failover": 1, "checkpoint": 1}, operator_s=0.5
    ),
    "two nodes of a target, one of them slow": replace(
        _SHORT,
        # What waits for the disk is in an earlier snapshot than what is read meanwhile.
        routes=(Route(0, 1, settings=(("ship", "persisted"), ("batch_items", "10"))),),
        standbys=True,
        split=True,
        operating={"failover": 1, "checkpoint": 6},
        operator_s=0.1,
        purge_s=0.0,
        keys=30,
        burst=30,
        writer_s=0.05,
        steps=4_000,
    ),
    "failovers of sources that wait for their replicas": replace(
        _SHORT,
        routes=routes("line", settings=(("ship", "replicated"),)),
        faults=Faults(crash_s=2.0),
        standbys=True,
        operating={"failover": 1, "checkpoint": 1},
        operator_s=0.3,
        purge_s=0.0,
        writer_s=0.03,
        steps=4_000,
    ),
    "failover logs that are trimmed": replace(
        _SHORT,
        routes=routes("line", settings=(("batch_items", "10"),)),
        faults=Faults(crash_s=0.6),
        operating={"recreate": 2, "checkpoint": 2},
        operator_s=0.3,
        max_failover_entries=2,
        keys=14,
        writer_s=0.05,
    ),
    "sources killed that wait for their disks": replace(
        _SHORT,
        routes=routes("line", settings=(("ship", "persisted"),)),
        faults=Faults(power_s=0.7),
        writer_s=0.03,
    ),
    "deletions left out": replace(
        _SHORT,
        routes=(*routes("line", deletions=False), *routes("forward")[2:]),
        faults=Faults(cut_s=0.5),
        operating={"pause": 1, "checkpoint": 2},
        writer_s=0.03,
    ),
    "deletions left out one way": replace(
        _SHORT,
        routes=(Route(0, 1, deletions=False), Route(1, 0)),
        operating={"pause": 1, "checkpoint": 2},
        purge_s=0.03,
        writer_s=0.03,
    ),
}


@cache
def account(what: str, seed: int) -> Mapping[str, int]:
    """Run a plan, once for all tests."""
    return XdcrRun.random(seed, RUNS[what]).account()


@pytest.mark.parametrize("what", list(RUNS))
@pytest.mark.acceptance("X06", "X09", "X26", "X27", "C09", "C12")
def test_clusters_bear(what: str) -> None:
    account(what, 0)


def test_the_runs_do_what_they_are_for() -> None:
    """Every kind of event happens within the first seeds; else the judges have nothing to judge."""
    wanted = {
        "arrivals arrived",
        "arrivals began elsewhere",
        "arrivals forwarded",
        "checkpoints",
        "checkpoints in mid-snapshot",
        "dropped",
        "echoes",
        "failover",
        "failovers in mid-snapshot",
        "keys judged",
        "keys left alone",
        "logs trimmed",
        "lost at the source",
        "lost at the target",
        "pause",
        "sent safely",
    }

    def accounts(seed: int) -> Iterator[Mapping[str, int]]:
        yield account("a link that is late", seed)
        yield account("failovers at both ends", seed)
        yield account("two nodes of a target, one of them slow", seed)
        yield account("failovers of sources that wait for their replicas", seed)
        yield account("deletions left out", seed)
        yield account("deletions left out one way", seed)
        yield account("failover logs that are trimmed", seed)
        yield story(XdcrRun, seed).account

    happens(wanted, (each for seed in range(5) for each in accounts(seed)))


def test_the_same_seed_gives_the_same_run() -> None:
    """Event for event."""
    assert XdcrRun.random(1).world.digest() == story(XdcrRun, 1).digest
