"""What one run of the simulation of streams is made of, drawn from its seed.

Every seed picks its own faults and its own guests (swarm testing): a fault that is always on hides
what only happens in peace.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.sim.faults import Faults
from tests.sim.upr_kinds import KINDS, Kind
from tests.sim.world import World
from uprmc.config import UprSettings

#: What may go wrong, each in some of the runs.
FAULTS = {
    "cut_s": 0.3,
    "crash_s": 0.8,
    "power_s": 2.0,
    "stop_s": 2.0,
    "full_s": 1.5,
    "broken_s": 1.0,
    "unreadable_s": 1.0,
    "map_full_s": 1.0,
    "write_back_s": 0.3,
    "clock_s": 0.5,
}

MANAGING = {"compact": 12, "state": 4, "failover": 4, "remove": 2, "flush": 1}


@dataclass(frozen=True, slots=True)
class Plan:
    """What one run is made of.

    Attributes:
        managing: what the manager does; empty = it only mends what is broken at the end.
        steps: for so long there are faults.
    """

    kinds: tuple[Kind, ...]
    faults: Faults
    managing: dict[str, int]
    vbuckets: int = 2
    writers: int = 2
    keys: int = 14
    quota: int = 200_000
    sync: bool = True
    steps: int = 1_200
    notifier: bool = False
    pauses: bool = False
    leases: bool = False
    takeovers: bool = False
    upr: UprSettings = field(default_factory=UprSettings)
    max_failover_entries: int = 25


def random_plan(world: World) -> Plan:
    """Draw a plan."""
    random = world.random
    faults = {name: mean for name, mean in FAULTS.items() if random.random() < 0.4}
    managing = {name: weight for name, weight in MANAGING.items() if random.random() < 0.6}
    return Plan(
        kinds=tuple(random.sample(KINDS, random.randint(2, 4))),
        faults=Faults(**faults),
        managing=managing,
        vbuckets=random.choice((1, 2, 2, 4)),
        writers=random.choice((1, 2, 3)),
        keys=random.choice((4, 14, 14, 60)),
        steps=random.choice((600, 1_200, 1_200, 2_500)),
        quota=random.choice((5_500, 200_000, 200_000)),
        sync=random.random() < 0.7,
        notifier=random.random() < 0.3,
        pauses=random.random() < 0.2,
        leases=random.random() < 0.3,
        takeovers=random.random() < 0.15,
        upr=UprSettings(
            backfills=random.choice((1, 2, 64)),
            backfills_per_connection=random.choice((1, 8)),
            reading_max_s=random.choice((0.2, 0.5, 30.0)),
            reading_items=random.choice((2, 20, 10_000)),
            noop_interval_s=1.0,
        ),
        max_failover_entries=random.choice((3, 25)),
    )
