"""What one run of the simulation of links is made of, drawn from its seed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from tests.sim.faults import Faults
from tests.sim.world import World

#: Name -> clusters, and the links between them: (source, target).
TOPOLOGIES: dict[str, tuple[tuple[int, int], ...]] = {
    "line": ((0, 1), (1, 2)),
    "forward": ((0, 1), (1, 2), (0, 2)),
    "pair": ((0, 1), (1, 0)),
    "ring": ((0, 1), (1, 2), (2, 0)),
    "ring of four": ((0, 1), (1, 2), (2, 3), (3, 0)),
    "star": ((0, 1), (1, 0), (0, 2), (2, 0), (0, 3), (3, 0)),
    "mesh": ((0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)),
}

#: What the operator does, and how often.
OPERATING = {
    "pause": 3,
    "checkpoint": 4,
    "part": 2,
    "failover": 1,
    "restore": 1,
    "recreate": 1,
    "behind": 1,
}

#: When changes are sent, if links differ in it.
_SHIPS = ("accepted", "accepted", "persisted")

FAULTS = {"cut_s": 0.5, "crash_s": 3.0, "power_s": 6.0, "stop_s": 5.0, "full_s": 3.0}


class Route(NamedTuple):
    """A link that there is to be.

    Attributes:
        source, target: numbers of clusters.
        filtered: whether only keys that begin with `a` are sent.
        late: how long after the others it is made; 0 = with them.
        settings: see `LinkSettings`.
        deletions: whether it sends deletions and expirations.
    """

    source: int
    target: int
    filtered: bool = False
    late: float = 0.0
    settings: tuple[tuple[str, str], ...] = ()
    deletions: bool = True

    @property
    def name(self) -> str:
        """Return the name of the link."""
        return f"{self.source}to{self.target}"

    @property
    def options(self) -> dict[str, str]:
        """Return all settings that are not the default."""
        filters = {} if self.deletions else {"filter_deletions": "on", "filter_expirations": "on"}
        return {**dict(self.settings), **filters}

    def lets(self, key: bytes, *, deleted: bool = False) -> bool:
        """Tell whether it sends a document with a key, or its deletion."""
        return (self.deletions or not deleted) and (not self.filtered or key.startswith(b"a"))


@dataclass(frozen=True, slots=True)
class Plan:
    """See the module docstring.

    Attributes:
        routes: the links.
        faults: of each node.
        operating: what the operator does: weight of each kind, by name.
        operator_s: about so much time is between two things.
        standbys: whether each cluster has a replica that can take over.
        split: whether both nodes of a cluster that only receives are active, each with some
            vBuckets, and one of them is slow.
        by_time: the policy is `timestamp`.
        purge_s: about so much time is between two purges of the same node; 0 = none.
        purging: clusters where it is purged.
        fickle: places of the links that the operator deletes and makes again; empty = all.
        drift_s: clocks are wrong by so much at most.
        grain_s: resolution of the clocks.
        burst: so many documents are written at once sometimes: more than are read at once.
        expiring: chance that a document is to expire.
        writers: clusters where documents are written.
        max_failover_entries: so many branches are kept in a failover log.
    """

    routes: tuple[Route, ...]
    faults: Faults
    operating: dict[str, int] = field(default_factory=dict)
    operator_s: float = 0.4
    standbys: bool = False
    split: bool = False
    by_time: bool = False
    purge_s: float = 0.1
    purging: tuple[int, ...] = (0, 1, 2, 3)
    fickle: tuple[int, ...] = ()
    drift_s: float = 0.0
    grain_s: float = 0.0
    expiring: float = 0.0
    writers: tuple[int, ...] = (0, 1, 2, 3)
    writer_s: float = 0.1
    burst: int = 1
    keys: int = 8
    vbuckets: int = 2
    sync: bool = True
    varied_wires: bool = True
    max_failover_entries: int = 25
    steps: int = 6_000

    @property
    def clusters(self) -> int:
        """Number of clusters."""
        return 1 + max(max(route[:2]) for route in self.routes)

    @property
    def loses_nothing_sent(self) -> bool:
        """Whether all links wait until nothing that goes wrong here can lose what they send."""
        ships = {route.options.get("ship", "accepted") for route in self.routes}
        if "restore" in self.operating or (self.faults.power_s and not self.sync):
            return False
        fails_over = self.standbys and "failover" in self.operating
        return ships <= ({"replicated"} if fails_over else {"persisted", "replicated"})


def routes(topology: str, **more: object) -> tuple[Route, ...]:
    """Return the links of a topology, all of the same kind."""
    return tuple(Route(*pair, **more) for pair in TOPOLOGIES[topology])  # type: ignore[arg-type]


def random_plan(world: World) -> Plan:
    """Draw a plan."""
    random = world.random
    filtered = random.choice((0.0, 0.0, 0.3, 1.0))
    late = random.choice((0.0, 0.0, 0.3))
    leaving_out = random.choice((0.0, 0.0, 0.0, 0.4, 1.0))
    standbys = random.random() < 0.3
    ships = random.choice((_SHIPS, _SHIPS, ("persisted",), ("replicated",)[:standbys] or _SHIPS))
    drawn = tuple(
        Route(
            *pair,
            filtered=random.random() < filtered,
            late=random.uniform(1, 8) if random.random() < late else 0.0,
            settings=(
                ("batch_items", random.choice(("10", "500"))),
                ("optimistic_bytes", random.choice(("0", "256"))),
                ("ship", random.choice(ships)),
            ),
            deletions=random.random() >= leaving_out,
        )
        for pair in TOPOLOGIES[random.choice(list(TOPOLOGIES))]
    )
    clusters = 1 + max(max(route[:2]) for route in drawn)
    entries = random.choice((25, 25, 3, 2))
    split = standbys and random.random() < 0.5
    return Plan(
        routes=drawn,
        faults=Faults(**{name: s for name, s in FAULTS.items() if random.random() < 0.4}),
        operating={name: s for name, s in OPERATING.items() if random.random() < 0.6},
        operator_s=random.choice((0.2, 0.5, 1.0)),
        standbys=standbys,
        split=split,
        by_time=random.random() < 0.4,
        purge_s=random.choice((0.0, 0.05, 0.05, 0.3)),
        drift_s=random.choice((0.0, 0.0, 2.0, 10.0)),
        # Versions that are equal but for their origins are told apart by names that logs forget.
        grain_s=random.choice((0.0, 0.0, 0.5)) if entries == 25 else 0.0,
        expiring=random.choice((0.0, 0.0, 0.2)),
        writers=tuple(range(clusters)) if random.random() < 0.7 else (0,),
        writer_s=random.choice((0.03, 0.1, 0.3)),
        burst=random.choice((1, 1, 12)),
        keys=random.choice((2, 6, 14)),
        vbuckets=2 if split else random.choice((1, 1, 2)),
        sync=random.random() < 0.7,
        varied_wires=random.random() < 0.5,
        max_failover_entries=entries,
        steps=random.choice((3_000, 6_000)),
    )
