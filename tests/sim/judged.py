"""A run of a simulation by its seed, whatever is simulated."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeVar

from tests.sim.judges import complain, naming
from tests.sim.world import STEPS_MAX, NotHappened, World

PlanT = TypeVar("PlanT")


class Judged(ABC, Generic[PlanT]):
    """A run that is made of a plan, and judged.

    Attributes:
        simulation: what `tests.sim.seeds` calls it.
    """

    simulation: ClassVar[str]
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
        with naming(seed, run.world.log, f"python -m tests.sim.seeds {cls.simulation}"):
            run.go()
        return run

    @abstractmethod
    def go(self) -> None:
        """See `random`."""

    def _until(
        self,
        happened: Callable[[], bool],
        what: str,
        how: Callable[[], str] = str,
        steps_max: int = STEPS_MAX,
    ) -> None:
        """Go on until `happened`; a judge complains of what never does, and tells how it stands."""
        try:
            self.world.run_until(happened, steps_max)
        except NotHappened as error:
            complain(f"{what} never come to rest: {error} {how()}")

    @abstractmethod
    def account(self) -> dict[str, int]:
        """Return what happened, so that a test can see that something did."""


class Story(NamedTuple):
    """What is left of a run."""

    account: Mapping[str, int]
    digest: str


@cache
def story(kind: type[Judged[Any]], seed: int) -> Story:
    """Run a seed with the plan that it draws, once for all tests of a process."""
    run = kind.random(seed)
    return Story(run.account(), run.world.digest())
