"""One run of the simulation with every ready-made sink as one more program; see `replica_run`."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass, fields
from pathlib import Path

from tests.sim.replica_plan import Plan, random_plan
from tests.sim.replica_run import ReplicaRun
from tests.sim.sink_program import SinkProgram
from tests.sim.sink_targets import TARGETS
from tests.sim.world import World


@dataclass(frozen=True, slots=True)
class SinkPlan(Plan):
    """What one run is made of.

    Attributes:
        sinks: kinds of sinks, see `sink_targets`.
    """

    sinks: tuple[str, ...] = tuple(TARGETS)


def sink_plan(world: World) -> SinkPlan:
    """Draw a plan."""
    plain = random_plan(world)
    same = {each.name: getattr(plain, each.name) for each in fields(Plan)}
    own = {"kinds": (), "programs": (), "steps": 4_000, "writer_s": 0.05}
    return SinkPlan(**{**same, **own, "death": world.random.choice((0.005, 0.05))})


class SinkRun(ReplicaRun):
    """See the module docstring."""

    simulation = "sinks"

    plan: SinkPlan

    @staticmethod
    def draw(world: World) -> SinkPlan:
        """Draw a plan."""
        return sink_plan(world)

    def start(self) -> None:
        """See `ReplicaRun.start`; then come the sinks."""
        super().start()
        for kind in self.plan.sinks:
            place = self._directory / kind
            place.mkdir()
            self.programs.append(
                SinkProgram(
                    self.cluster,
                    self.histories,
                    kind,
                    number=len(self.programs),
                    ring_items=self.plan.ring_items,
                    death=self.plan.death,
                    directory=place,
                )
            )

    def go(self) -> None:
        """See `random`."""
        self._directory = Path(tempfile.mkdtemp(prefix="uprmc-sinks-"))
        try:
            super().go()
        finally:
            for program in self.programs:
                program.leave()
            shutil.rmtree(self._directory)

    def account(self) -> dict[str, int]:
        """See `ReplicaRun.account`."""
        total = Counter(super().account())
        for program in self.programs:
            assert isinstance(program, SinkProgram)
            total.update(program.account())
        return total
