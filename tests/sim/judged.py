"""A run of a simulation by its seed, whatever is simulated."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Generic, Self, TypeVar

from tests.sim.judges import naming
from tests.sim.world import World

PlanT = TypeVar("PlanT")


class Judged(ABC, Generic[PlanT]):
    """A run that is made of a plan, and judged.

    Attributes:
        again: how to run a seed again.
    """

    again: ClassVar[str]
    world: World

    @abstractmethod
    def __init__(self, seed: int, plan: PlanT | None = None) -> None:
        """Make it; without a plan one is drawn."""

    @classmethod
    def random(cls, seed: int, plan: PlanT | None = None) -> Self:
        """Run, heal, come to rest, have everything judged.

        Raises:
            Verdict: with the seed in its text, and how to run it again.
        """
        run = cls(seed, plan)
        with naming(seed, run.world.log, cls.again):
            run.go()
        return run

    @abstractmethod
    def go(self) -> None:
        """See `random`."""
