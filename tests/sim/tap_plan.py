"""What one run of the simulation of TAP is made of, drawn from its seed; see `replica_plan`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tests.sim.replica_plan import Plan, random_plan
from tests.sim.tap_kinds import TapKind, draw_kind
from tests.sim.world import World
from uprmc.config import TapSettings

#: Limits so small that a few documents fill the window.
SETTINGS = TapSettings(
    ack_interval=3,
    ack_window=2,
    ack_grace_s=3.0,
    backoff_s=0.05,
    noop_interval_s=1.0,
    keepalive_s=2.0,
    undo_keys=1_000,
)


@dataclass(frozen=True, slots=True)
class TapPlan(Plan):
    """What one run is made of.

    Attributes:
        clients: kinds of TAP clients; each is bound to one node by its place.
        tap: the adapter's settings.
    """

    clients: tuple[TapKind, ...] = ()
    tap: TapSettings = field(default_factory=lambda: SETTINGS)


def random_tap_plan(world: World) -> TapPlan:
    """Draw a plan."""
    random = world.random
    drawn = random_plan(world)
    faults = drawn.faults
    if not drawn.sync:
        # What a registered client was told may then be lost with the position it was told at.
        faults = replace(faults, power_s=0.0)
    operating = drawn.operating
    if random.random() < 0.4:
        operating = {**operating, "tap_takeover": 3}
    if random.random() < 0.3:
        operating = {**operating, "tap_flush": 2}
    plain = {name: getattr(drawn, name) for name in Plan.__dataclass_fields__}
    plain |= {
        "faults": faults,
        "operating": operating,
        "kinds": (),
        "programs": (),
        "steps": random.choice((800, 1_500, 3_000)),
    }
    clients = tuple(draw_kind(world) for _ in range(random.choice((1, 2, 3, 5))))
    return TapPlan(**plain, clients=clients, tap=_settings(world))


def _settings(world: World) -> TapSettings:
    random = world.random
    return TapSettings(
        ack_interval=random.choice((1, 3, 10)),
        ack_window=random.choice((1, 2, 10)),
        ack_grace_s=random.choice((1.0, 300.0)),
        backoff_s=random.choice((0.0, 0.05, 0.3)),
        noop_interval_s=random.choice((0.5, 200.0)),
        keepalive_s=random.choice((0.0, 0.5, 100.0)),
        undo_keys=random.choice((0, 5, 10_000, 10_000)),
        rollback=random.choice(("rewind", "rewind", "restart")),
    )
