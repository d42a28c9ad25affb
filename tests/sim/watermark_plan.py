"""What one run of the simulation of watermarks is made of, drawn from its seed.

It is a run of replicas with registered clients, whose rows end soon, and with purges all the time.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from tests.sim.replica_plan import Plan, random_plan
from tests.sim.watermark_client import KINDS
from tests.sim.world import World
from uprmc.config import PurgeSettings

NAMES = tuple(kind.name for kind in KINDS)


@dataclass(frozen=True, slots=True)
class WatermarkPlan(Plan):
    """What one run is made of.

    Attributes:
        clients: kinds of registered clients, one of each for each vBucket.
        purge_s: about so much time is between two purges of the same node.
        lifetime_s: of the rows of clients.
        replica_lifetime_s: of the rows of replicas; 0 = they do not register.
        report_s: how often replicas report, and are told.
        loses: chance that a client loses its disk, at each thought of it.
    """

    clients: tuple[str, ...] = NAMES
    purge_s: float = 0.05
    lifetime_s: int = 3
    replica_lifetime_s: int = 10
    report_s: float = 0.1
    loses: float = 0.01

    def purge(self) -> PurgeSettings:
        """Return the settings that go with it."""
        short = {f"expires_{name}_s": self.lifetime_s for name in NAMES}
        return PurgeSettings(
            min_age_s=0,
            batch_items=2,
            expires_replica_s=self.replica_lifetime_s or 1,
            expires_spark_s=self.lifetime_s,
            **short,  # type: ignore[arg-type]
        )


def watermark_plan(world: World) -> WatermarkPlan:
    """Draw a plan."""
    plain = random_plan(world)
    random = world.random
    same = {each.name: getattr(plain, each.name) for each in fields(Plan)}
    same["kinds"] = plain.kinds[:1]
    same["programs"] = plain.programs[:1]
    if random.random() < 0.7:  # a clock that jumps ends all rows
        same["faults"] = replace(plain.faults, clock_s=0.0)
    return WatermarkPlan(
        **{**same, "keys": random.choice((4, 8, 14))},
        clients=tuple(random.sample(NAMES, random.choice((1, 2, 2, 4)))),
        purge_s=random.choice((0.005, 0.03, 0.1)),
        lifetime_s=random.choice((1, 3, 30)),
        replica_lifetime_s=random.choice((0, 2, 10, 100, 100)),
        report_s=random.choice((0.01, 0.1, 1.0)),
    )
