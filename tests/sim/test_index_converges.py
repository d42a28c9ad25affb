"""Whatever goes wrong with nodes and with the index itself, it shows what some state had.

Judges look at everything that it publishes (`index_judges`); a seed that fails says how to run it
again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache

import pytest

from tests.seeds import seeds
from tests.sim.faults import NO_FAULTS, Faults
from tests.sim.index_run import IndexPlan, IndexRun
from tests.sim.judged import story
from tests.sim.noticing import happens

pytestmark = pytest.mark.sim


@pytest.mark.parametrize("seed", seeds(default=6))
@pytest.mark.acceptance("I01", "I08", "I11", "I13", "I16", "I19", "I20", "I22", "I24", "I28", "D16")
def test_every_answer_of_an_index_was_true_whatever_goes_wrong(seed: int) -> None:
    """Random faults, failovers, takeovers, purges, deaths, vBuckets that come and go."""
    story(IndexRun, seed)


_SHORT = IndexPlan("pair", NO_FAULTS, {}, keys=14, writer_s=0.02, steps=3_000)

#: What a run is for -> its plan.
RUNS: dict[str, IndexPlan] = {
    "nodes killed": replace(_SHORT, faults=Faults(crash_s=0.5, cut_s=0.5), writer_s=0.01),
    "one vBucket, killed": replace(
        _SHORT,
        vbuckets=1,
        faults=Faults(crash_s=0.4),
        writer_s=0.01,
        steps=6_000,
        compacts=False,
        index_death=0.0,
    ),
    "failovers": replace(_SHORT, operating={"failover": 2, "takeover": 1}, operator_s=0.3),
    "purges and deaths": replace(_SHORT, index_death=0.05, purge_s=0.005, registered=False),
    "deaths": replace(_SHORT, index_death=0.05),
    "vBuckets paused": replace(_SHORT, pauses=True, writer_s=0.1, index_death=0.0),
}


@cache
def account(what: str, seed: int) -> Mapping[str, int]:
    """Run a plan, once for all tests."""
    return IndexRun.random(seed, RUNS[what]).account()


@pytest.mark.parametrize("what", list(RUNS))
@pytest.mark.acceptance("I08", "I19", "I20", "I24", "I28")
def test_an_index_bears(what: str) -> None:
    account(what, 0)


def test_the_runs_do_what_they_are_for() -> None:
    """Every kind of event happens within the first seeds; else the judges have nothing to judge."""
    wanted = {
        "index answered",
        "index answered while paused",
        "index asked to wait again",
        "index compactions",
        "index deaths",
        "index dropped",
        "index fresh answers",
        "index headers",
        "index parts judged",
        "index paused",
        "index reductions judged",
        "index rollback header",
        "index rollback vbucket",
        "index torn",
        "purged",
    }
    happens(wanted, (account(what, seed) for seed in range(5) for what in RUNS))


def test_the_same_seed_gives_the_same_run() -> None:
    """Event for event."""
    assert IndexRun.random(1).world.digest() == story(IndexRun, 1).digest
