"""One run of the simulation with an index as one more consumer; see `watermark_run`.

Nodes fail over, hand over, roll back and purge; the index dies, tears its file, loses and regains
vBuckets, compacts. Judges look at everything that it publishes.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass, fields
from pathlib import Path

from tests.sim.index_program import KIND, IndexProgram
from tests.sim.watermark_plan import WatermarkPlan, watermark_plan
from tests.sim.watermark_run import WatermarkRun
from tests.sim.world import World
from uprmc.remote.registering import Instance


@dataclass(frozen=True, slots=True)
class IndexPlan(WatermarkPlan):
    """What one run is made of.

    Attributes:
        index_death: chance that the index dies at a point.
        registered: whether it keeps deletions from being purged.
        compacts: whether its file is compacted now and then.
        pauses: whether an operator pauses vBuckets now and then.
    """

    clients: tuple[str, ...] = ()
    index_death: float = 0.01
    registered: bool = True
    compacts: bool = True
    pauses: bool = False


def index_plan(world: World) -> IndexPlan:
    """Draw a plan."""
    plain, random = watermark_plan(world), world.random
    same = {each.name: getattr(plain, each.name) for each in fields(WatermarkPlan)}
    alone = {"clients": (), "kinds": (), "programs": ()}
    return IndexPlan(
        **{**same, **alone},
        index_death=random.choice((0.0, 0.01, 0.04)),
        registered=random.random() < 0.7,
        pauses=random.random() < 0.4,
    )


class IndexRun(WatermarkRun):
    """See the module docstring."""

    simulation = "index"

    plan: IndexPlan

    @staticmethod
    def draw(world: World) -> IndexPlan:
        """Draw a plan."""
        return index_plan(world)

    def start(self) -> None:
        """See `WatermarkRun.start`; then comes the index."""
        super().start()
        self.index = IndexProgram(
            self.cluster,
            self.histories,
            self._directory,
            self.plan.vbuckets,
            death=self.plan.index_death,
            instance=Instance(b"index:sim", KIND) if self.plan.registered else None,
            compacts=self.plan.compacts,
            pauses=self.plan.pauses,
        )
        self.programs.append(self.index)

    def go(self) -> None:
        """See `random`."""
        self._directory = Path(tempfile.mkdtemp(prefix="uprmc-index-"))
        try:
            super().go()
        finally:
            for program in self.programs:
                program.leave()
            shutil.rmtree(self._directory)

    def account(self) -> dict[str, int]:
        """See `WatermarkRun.account`."""
        total = Counter(super().account())
        total.update({f"index {name}": count for name, count in self.index.done.items()})
        total["index deaths"] = self.index.deaths
        return total
