"""The pretend world: one seed, one clock, one queue of things that will happen.

Everything random in a run comes from `World.random`, every time from `World.now`, and whatever
happens is an event in its queue. So a run is a function of its seed, and the log of two runs with
one seed is the same, which is itself a test.

An actor is an object that is made with the world and plans its next thought with `World.after`. It
speaks to nodes through a `net.Link`, as `writer.Commander` does; a process with lives, clock and
disk of its own is a `node.Node` in a `net.Net`, which delays, cuts and parts. What it does is drawn
from `World.random` and sent over wires, and what it is answered goes to a judge first. The run
makes it in `start`, by the plan; in `heal` it becomes `calm`, in `rest` it is waited for until
`settled`, in `finish` it is judged and leaves, and it adds to the run's `account`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from math import inf
from random import Random

#: Unix time at which every world begins.
EPOCH_S = 1_700_000_000.0

#: What is waited for happens within so many steps, or never; the longest wait takes a third of it.
STEPS_MAX = 12_000

Action = Callable[[], None]


class Timer:
    """Something that will happen, unless it is cancelled."""

    __slots__ = ("action",)

    def __init__(self, action: Action) -> None:
        self.action: Action | None = action

    def cancel(self) -> None:
        """See to it that it does not happen; harmless when it already has."""
        self.action = None


class NotHappened(AssertionError):
    """What was waited for."""


class World:
    """See the module docstring."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = Random(seed)  # the only randomness of the run
        self.now = 0.0  # seconds since the beginning
        self.wall_clock_offset_s = 0.0  # by how much the wall clock of all machines has been set
        # wall_clock_steps, wall_clock_set_at: how often it was set, and when for the last time
        self.wall_clock_steps = 0
        self.wall_clock_set_at = -inf
        # what happened, for the determinism test and for whoever looks into a failure
        self.log: list[str] = []
        self.watchers: list[Action] = []  # called after every step; that is where judges look
        self._tie = count()  # equal times keep the order in which they were planned
        self._queue: list[tuple[float, int, Timer]] = []

    def set_wall_clock(self, step_s: float) -> None:
        """Set the wall clock of all machines forward, or back."""
        self.wall_clock_offset_s += step_s
        self.wall_clock_steps += 1
        self.wall_clock_set_at = self.now
        self.note(f"wall clock {step_s:+}")

    def after(self, delay_s: float, action: Action) -> Timer:
        """Plan `action` for `delay_s` from now."""
        timer = Timer(action)
        heappush(self._queue, (self.now + delay_s, next(self._tie), timer))
        return timer

    def between(self, low: float, high: float) -> float:
        return self.random.uniform(low, high)

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def note(self, text: str) -> None:
        self.log.append(f"{self.now:.6f} {text}")

    def digest(self) -> str:
        """Return a short name for everything that happened."""
        return hashlib.sha256("\n".join(self.log).encode()).hexdigest()

    def step(self) -> bool:
        """Let the next thing happen; ``False`` when nothing is planned any more."""
        while self._queue:
            self.now, _, timer = heappop(self._queue)
            action, timer.action = timer.action, None
            if action is not None:
                action()
                for watcher in self.watchers:
                    watcher()
                return True
        return False

    def run(self, steps: int) -> None:
        """Let so many things happen."""
        for _ in range(steps):
            if not self.step():
                return

    def run_until(self, happened: Callable[[], bool], steps_max: int = STEPS_MAX) -> None:
        """Go on until `happened`; fails when it does not (liveness has a limit)."""
        for _ in range(steps_max):
            if happened():
                return
            if not self.step():
                raise NotHappened("nothing is planned any more, and it has not happened")
        raise NotHappened(f"it has not happened within {steps_max} steps")

    def run_for(self, seconds: float) -> None:
        """Go on for a time."""
        over: list[bool] = []
        self.after(seconds, lambda: over.append(True))
        self.run_until(lambda: bool(over), 1_000_000)


@dataclass(slots=True)
class Drift:
    """How wrong the wall clock of a machine is."""

    offset_s: float = 0.0  # by so much, at the beginning
    rate: float = 0.0  # and by so much more with each second
    grain_s: float = 0.0  # it shows multiples of this; 0 = any time


class WorldClock:
    """The port `Clock` of a machine in a world."""

    def __init__(self, world: World, drift: Drift | None = None) -> None:
        self._world = world
        self._drift = drift or Drift()

    def now(self) -> float:
        drift, seconds = self._drift, self._world.now
        set_s = self._world.wall_clock_offset_s
        shown = EPOCH_S + seconds + set_s + drift.offset_s + drift.rate * seconds
        return shown - shown % drift.grain_s if drift.grain_s else shown

    def monotonic(self) -> float:
        return self._world.now


class WorldEntropy:
    """The port `Entropy` of a world."""

    def __init__(self, world: World) -> None:
        self._world = world

    def uuid48(self) -> int:
        """Return a random number that is not 0."""
        return self._world.random.getrandbits(48) or 1
