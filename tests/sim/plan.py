"""What one run is made of, drawn from its seed.

Every seed picks its own faults and its own guests (swarm testing): a fault that is always on hides
what only happens in peace.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tests.sim.consumer import KINDS, Kind
from tests.sim.faults import Faults
from tests.sim.node import small_settings
from tests.sim.program import KINDS as PROGRAMS
from tests.sim.registered import NAMES as REGISTERED
from tests.sim.sinks import TARGETS as SINKS
from tests.sim.tap_client import TapKind, draw_kind
from tests.sim.world import World
from uprmc.config import PurgeSettings, Settings, TapSettings, UprSettings

# --- streams of one node --------------------------------------------------------------------------

#: What may go wrong, each in some of the runs.
STREAM_FAULTS = {
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
class StreamsPlan:
    """A node, its writers, a manager of its vBuckets, and consumers."""

    kinds: tuple[Kind, ...]
    faults: Faults
    managing: dict[str, int]  # what the manager does; empty = it only mends at the end
    vbuckets: int = 2
    writers: int = 2
    keys: int = 14
    quota: int = 200_000
    sync: bool = True
    steps: int = 1_200  # for so long there are faults
    notifier: bool = False
    pauses: bool = False
    leases: bool = False
    takeovers: bool = False
    upr: UprSettings = field(default_factory=UprSettings)
    max_failover_entries: int = 25


def draw_streams(world: World) -> StreamsPlan:
    random = world.random
    faults = {name: mean for name, mean in STREAM_FAULTS.items() if random.random() < 0.4}
    managing = {name: weight for name, weight in MANAGING.items() if random.random() < 0.6}
    return StreamsPlan(
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


# --- several nodes --------------------------------------------------------------------------------

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

UPR = UprSettings(
    noop_interval_s=1.0,
    dial_timeout_s=1.0,
    redial_max_s=0.4,
    consumer_buffer=1_000,
)

#: Limits so small that a few documents fill the window.
TAP = TapSettings(
    ack_interval=3,
    ack_window=2,
    ack_grace_s=3.0,
    backoff_s=0.05,
    noop_interval_s=1.0,
    keepalive_s=2.0,
    undo_keys=1_000,
)


@dataclass(frozen=True, slots=True)
class Plan:
    """Nodes that replicate, an operator, and whoever else is there."""

    topology: str  # a name of `TOPOLOGIES`
    faults: Faults  # of each node
    operating: dict[str, int]  # what the operator does, by weight
    operator_s: float = 0.5  # and how often, about
    kinds: tuple[Kind, ...] = ()  # consumers, each bound to one node by its place
    programs: tuple[str, ...] = ()  # kinds of programs that use the client library
    ring_items: int = 10_000  # how many keys these can undo
    death: float = 0.0  # chance that one dies at a write point
    orderly: bool = True  # the operator sets everybody right at the end
    cut_handovers: bool = False  # takeovers are cut after some message
    vbuckets: int = 2
    keys: int = 14
    writer_s: float = 0.03
    quota: int = 400_000
    sync: bool = True
    steps: int = 6_000
    varied_wires: bool = True
    silences: bool = True  # connections may say nothing for a while; in peace they may not
    max_failover_entries: int = 25
    upr: UprSettings = field(default_factory=lambda: UPR)
    # Watermarks.
    clients: tuple[str, ...] = ()  # kinds of registered clients, one of each for each vBucket
    purge_s: float = 0.0  # about so much time is between two purges of the same node; 0 = none
    lifetime_s: int = 3  # of the rows of clients
    replica_lifetime_s: int = 10  # of the rows of replicas; 0 = they do not register
    report_s: float = 0.1  # how often replicas report, and are told
    loses: float = 0.01  # chance that a client loses its disk, at each thought of it
    # An index, as one more program.
    index: bool = False
    index_death: float = 0.01  # chance that it dies at a point
    registered: bool = True  # it keeps deletions from being purged
    compacts: bool = True  # its file is compacted now and then
    pauses: bool = False  # an operator pauses vBuckets now and then
    # Ready-made sinks, each as one more program.
    sinks: tuple[str, ...] = ()
    # TAP.
    tap: TapSettings | None = None  # the adapter's settings; None = nodes do not speak it
    tap_clients: tuple[TapKind, ...] = ()  # each bound to one node by its place

    def settings(self) -> Settings:
        """Return those of each node."""
        settings = small_settings(vbuckets=self.vbuckets, quota=self.quota, sync=self.sync)
        engine = replace(settings.engine, max_failover_entries=self.max_failover_entries)
        purge, upr = replace(settings.purge, batch_items=2), self.upr
        if self.purge_s:
            short = {f"expires_{name}_s": self.lifetime_s for name in REGISTERED}
            purge = PurgeSettings(
                min_age_s=0,
                batch_items=2,
                expires_replica_s=self.replica_lifetime_s or 1,
                expires_spark_s=self.lifetime_s,
                **short,  # type: ignore[arg-type]
            )
            upr = replace(upr, watermarks_interval_s=self.report_s)
        tap = self.tap or settings.tap
        return replace(settings, engine=engine, purge=purge, upr=upr, tap=tap)


def draw_replicas(world: World) -> Plan:
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


def draw_watermarks(world: World) -> Plan:
    """Draw replicas with registered clients, whose rows end soon, and with purges all the time."""
    plain, random = draw_replicas(world), world.random
    faults = plain.faults
    if random.random() < 0.7:  # a clock that jumps ends all rows
        faults = replace(faults, clock_s=0.0)
    return replace(
        plain,
        kinds=plain.kinds[:1],
        programs=plain.programs[:1],
        faults=faults,
        keys=random.choice((4, 8, 14)),
        clients=tuple(random.sample(REGISTERED, random.choice((1, 2, 2, 4)))),
        purge_s=random.choice((0.005, 0.03, 0.1)),
        lifetime_s=random.choice((1, 3, 30)),
        replica_lifetime_s=random.choice((0, 2, 10, 100, 100)),
        report_s=random.choice((0.01, 0.1, 1.0)),
    )


def draw_index(world: World) -> Plan:
    """Draw an index beside purges, and nobody else."""
    plain, random = draw_watermarks(world), world.random
    return replace(
        plain,
        clients=(),
        kinds=(),
        programs=(),
        index=True,
        index_death=random.choice((0.0, 0.01, 0.04)),
        registered=random.random() < 0.7,
        pauses=random.random() < 0.4,
    )


def draw_sinks(world: World) -> Plan:
    return replace(
        draw_replicas(world),
        kinds=(),
        programs=(),
        sinks=tuple(SINKS),
        steps=4_000,
        writer_s=0.05,
        death=world.random.choice((0.005, 0.05)),
    )


def draw_tap(world: World) -> Plan:
    plain, random = draw_replicas(world), world.random
    faults, operating = plain.faults, plain.operating
    if not plain.sync:
        # What a registered client was told may then be lost with the position it was told at.
        faults = replace(faults, power_s=0.0)
    if random.random() < 0.4:
        operating = {**operating, "tap_takeover": 3}
    if random.random() < 0.3:
        operating = {**operating, "tap_flush": 2}
    upr = plain.upr
    if upr.backfills == 1:
        # A slow client may have the only permit for so long; the operator waits for ten seconds.
        upr = replace(upr, reading_max_s=min(upr.reading_max_s, 1.0))
    return replace(
        plain,
        upr=upr,
        faults=faults,
        operating=operating,
        kinds=(),
        programs=(),
        steps=random.choice((800, 1_500, 3_000)),
        tap_clients=tuple(draw_kind(world) for _ in range(random.choice((1, 2, 3, 5)))),
        tap=TapSettings(
            ack_interval=random.choice((1, 3, 10)),
            ack_window=random.choice((1, 2, 10)),
            ack_grace_s=random.choice((1.0, 300.0)),
            backoff_s=random.choice((0.0, 0.05, 0.3)),
            noop_interval_s=random.choice((0.5, 200.0)),
            keepalive_s=random.choice((0.0, 0.5, 100.0)),
            undo_keys=random.choice((0, 5, 10_000, 10_000)),
            rollback=random.choice(("rewind", "rewind", "restart")),
        ),
    )
