"""What one run of the simulation of replicas is made of, drawn from its seed; see `upr_plan`."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.sim.faults import Faults
from tests.sim.replica_mirror import KINDS as PROGRAMS
from tests.sim.upr_kinds import KINDS, Kind
from tests.sim.world import World
from uprmc.config import UprSettings

#: What may go wrong, each in some of the runs; the times are for each node.
FAULTS = {
    "cut_s": 0.4,
    "crash_s": 1.5,
    "power_s": 3.0,
    "stop_s": 3.0,
    "full_s": 3.0,
    "broken_s": 2.0,
    "unreadable_s": 2.0,
    "map_full_s": 2.0,
    "write_back_s": 0.5,
    "clock_s": 1.0,
}

#: What the operator does: hand over, fail over, let follow somebody else, part two nodes.
OPERATING = {
    "takeover": 4,
    "failover": 3,
    "twice": 1,
    "rewire": 2,
    "part": 2,
    "compact": 3,
    "herald": 2,
}

#: Who follows whom: (follower, source), by place.
TOPOLOGIES = {
    "pair": ((1, 0),),
    "chain": ((1, 0), (2, 1)),
    "star": ((1, 0), (2, 0)),
}


@dataclass(frozen=True, slots=True)
class Plan:
    """What one run is made of.

    Attributes:
        topology: a name of `TOPOLOGIES`.
        operating: what the operator does, by weight.
        operator_s: and how often, about.
        kinds: consumers of the old simulation, each bound to one node by its place.
        programs: kinds of programs that use the client library, see `replica_mirror`.
        ring_items: how many keys they can undo.
        death: chance that one dies at a write point.
        orderly: whether the operator sets everybody right at the end.
        cut_handovers: whether takeovers are cut after some message.
        silences: whether connections may say nothing for a while; in peace they may not.
    """

    topology: str
    faults: Faults
    operating: dict[str, int]
    operator_s: float = 0.5
    kinds: tuple[Kind, ...] = ()
    programs: tuple[str, ...] = ()
    ring_items: int = 10_000
    death: float = 0.0
    orderly: bool = True
    cut_handovers: bool = False
    vbuckets: int = 2
    keys: int = 14
    writer_s: float = 0.03
    quota: int = 400_000
    sync: bool = True
    steps: int = 6_000
    varied_wires: bool = True
    silences: bool = True
    max_failover_entries: int = 25
    upr: UprSettings = field(default_factory=lambda: SETTINGS)


SETTINGS = UprSettings(
    noop_interval_s=1.0,
    dial_timeout_s=1.0,
    redial_max_s=0.4,
    consumer_buffer=1_000,
)


def random_plan(world: World) -> Plan:
    """Draw a plan."""
    random = world.random
    faults = {name: mean for name, mean in FAULTS.items() if random.random() < 0.35}
    operating = {name: weight for name, weight in OPERATING.items() if random.random() < 0.7}
    keys = random.choice((4, 14, 14, 60))
    # Values must go to the disk, but keys and metadata fit.
    tight = 8_000 + 400 * keys
    return Plan(
        topology=random.choice(("pair", "chain", "chain", "star", "star")),
        faults=Faults(**faults),
        operating=operating,
        operator_s=random.choice((0.2, 0.5, 1.0)),
        kinds=tuple(random.sample(KINDS, random.choice((0, 0, 1, 2)))),
        programs=tuple(random.sample(PROGRAMS, random.choice((0, 0, 1, 2)))),
        ring_items=random.choice((3, 20, 10_000)),
        death=random.choice((0.0, 0.005, 0.05)),
        cut_handovers=random.random() < 0.4,
        vbuckets=random.choice((1, 2, 2, 4)),
        keys=keys,
        writer_s=random.choice((0.01, 0.03, 0.1)),
        quota=random.choice((tight, 400_000, 400_000)),
        sync=random.random() < 0.8,
        steps=random.choice((3_000, 6_000, 6_000, 12_000)),
        varied_wires=random.random() < 0.6,
        max_failover_entries=random.choice((3, 25, 25)),
        upr=UprSettings(
            noop_interval_s=1.0,
            dial_timeout_s=1.0,
            redial_max_s=0.4,
            backfills=random.choice((1, 64)),
            reading_max_s=random.choice((0.2, 30.0)),
            reading_items=random.choice((2, 10_000)),
            consumer_buffer=random.choice((300, 1_000, 1_000_000)),
            rollback_keys=random.choice((3, 1_000, 1_000)),
        ),
    )
