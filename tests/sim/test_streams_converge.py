"""Whatever goes wrong, every consumer of streams ends equal to the node.

Judges look at every frame (`upr_judges`) and after every step (`upr_truth`); a seed that fails says
how to run it again.
"""

from __future__ import annotations

import pytest

from tests.seeds import seeds
from tests.sim.faults import NO_FAULTS, Faults
from tests.sim.judged import story
from tests.sim.noticing import happens
from tests.sim.upr_consumer import Consumer
from tests.sim.upr_kinds import BARRED, MOODY, PLAIN, RARE, ROUNDS, SLOW, VERSED, Kind
from tests.sim.upr_plan import MANAGING, Plan
from tests.sim.upr_run import UprRun

pytestmark = pytest.mark.sim


@pytest.mark.parametrize("seed", seeds(default=25))
@pytest.mark.acceptance(
    "D02", "D13", "D28", "D33", "D40", "D41", "D42", "D43", "P01", "P03", "P08", "P13", "P14"
)
def test_every_consumer_ends_equal_to_the_node(seed: int) -> None:
    """Random guests, random faults; see `upr_plan`."""
    story(UprRun, seed)


_FIVE: tuple[Kind, ...] = (PLAIN, ROUNDS, SLOW, RARE, VERSED)

#: Row D02, fault by fault: what goes wrong, and what the manager does.
_MATRIX: dict[str, tuple[Faults, dict[str, int]]] = {
    "broken network": (Faults(cut_s=0.15), {}),
    "server killed": (Faults(crash_s=0.5), {}),
    "server killed with its machine": (Faults(power_s=0.5, write_back_s=0.3), {}),
    "clock set": (Faults(clock_s=0.1), {}),
    "server restarted": (Faults(stop_s=0.7), {}),
    "disk broken and full": (Faults(broken_s=0.4, full_s=0.6, map_full_s=0.8), {}),
    "disk unreadable": (Faults(unreadable_s=0.4, crash_s=2.0), {}),
    "failovers": (NO_FAULTS, {"failover": 3, "state": 2}),
    "vBuckets removed, deletions purged": (NO_FAULTS, {"remove": 1, "compact": 4, "flush": 1}),
}


@pytest.mark.parametrize("fault", list(_MATRIX))
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.acceptance("D01", "D02")
def test_five_consumers_bear_each_fault(fault: str, seed: int) -> None:
    """A slow one, a forgetful one that stays away, and three others, on one port."""
    faults, managing = _MATRIX[fault]
    sync = "machine" not in fault
    run = UprRun.random(
        seed, Plan(_FIVE, faults, managing, sync=sync, takeovers=fault == "failovers")
    )
    first, *others = (_documents(consumer) for consumer in run.consumers)
    assert others == [first] * 4


def _documents(consumer: Consumer) -> dict[int, dict[bytes, int]]:
    """Return what a consumer holds: by vBucket, the seqno of each document."""
    return {
        number: {key: version.seqno for key, version in copy.docs.items() if not version.deleted}
        for number, copy in consumer.copies.items()
    }


@pytest.mark.parametrize("seed", seeds(default=4))
@pytest.mark.acceptance("D27", "D29", "D30", "D35", "D36", "D37", "P15")
def test_rounds_snapshot_ends_and_barriers_keep_their_word(seed: int) -> None:
    """Two connections with rounds, one with barriers alone; vBuckets fail over and come back."""
    plan = Plan(
        (ROUNDS, ROUNDS, BARRED), Faults(cut_s=1.0), {"failover": 1, "compact": 1}, vbuckets=4
    )
    account = UprRun.random(seed, plan).account()
    assert account["rounds"]
    assert account["barriers"]


@pytest.mark.parametrize("seed", seeds(default=4))
@pytest.mark.acceptance("P07", "P09")
def test_consumers_that_name_all_their_versions_are_sent_back_no_further_than_needed(
    seed: int,
) -> None:
    """The answers are those of the decision table with the whole list of versions."""
    faults = Faults(crash_s=0.4, cut_s=0.4)
    account = UprRun.random(seed, Plan((VERSED, MOODY), faults, {"failover": 1})).account()
    assert account["streams"]


def test_the_runs_do_what_they_are_for() -> None:
    """Every kind of event happens within the first seeds; else the judges have nothing to judge."""
    wanted = {"rollbacks", "from_zero", "announced_again", "barriers", "rounds", "notified"}
    wanted |= {"leases read again", "takeovers", "crashes", "cuts", *MANAGING}
    happens(wanted, (story(UprRun, seed).account for seed in range(20)))


@pytest.mark.parametrize("seed", seeds(default=2))
def test_the_same_seed_gives_the_same_streams(seed: int) -> None:
    """Event for event."""
    again = UprRun.random(seed).world
    assert again.digest() == story(UprRun, seed).digest
    assert any("has vBucket" in line for line in again.log)
