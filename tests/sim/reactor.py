"""What the drivers of a node run on: a reactor without sockets and a pool without threads.

Every timer, every step of a worker and every answer of one is an event of the world. A job of the
pool is carried out at one moment and answered at a later one, and two run at a time as in a node.
Looking at the clock takes time, so that work that is cut into slices of time comes in slices.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from twisted.python.failure import Failure

from tests.sim.world import Timer, World
from uprmc.engine.flusher import Flush
from uprmc.errors import StoreError

#: Time passes between two turns of a real reactor; without it a delay of 1e-18 s never ends.
_TURN_S = 0.00001

#: What a look at the clock takes at most.
_LOOK_S = 0.0002

#: Threads of the pool.
_WORKERS = 2

After = Callable[[float, Callable[[], None]], Timer]


class Delayed:
    """What `callLater` returns."""

    def __init__(self, timer: Timer) -> None:
        self._timer = timer

    def active(self) -> bool:
        """Tell whether it is still to come."""
        return self._timer.action is not None

    def cancel(self) -> None:
        """See to it that it does not come."""
        self._timer.cancel()


class WorldReactor:
    """The reactor of one life of a node; its timers end with that life."""

    def __init__(self, world: World, after: After) -> None:
        self._world = world
        self._after = after
        self._seconds = 0.0

    def seconds(self) -> float:
        look_s = self._world.between(0, _LOOK_S)
        self._seconds = max(self._world.now, self._seconds + look_s)
        return self._seconds

    def callLater(  # noqa: N802 - Twisted's name
        self, delay_s: float, action: Callable[..., object], *arguments: Any
    ) -> Delayed:
        assert delay_s >= 0
        return Delayed(self._after(max(delay_s, _TURN_S), lambda: _call(action, arguments)))

    def callFromThread(  # noqa: N802 - Twisted's name
        self, action: Callable[..., object], *arguments: Any
    ) -> None:
        """Plan a call for the next turn."""
        self._after(_TURN_S, lambda: _call(action, arguments))


def _call(action: Callable[..., object], arguments: tuple[Any, ...]) -> None:
    action(*arguments)


@dataclass(slots=True)
class _Job:
    answer: Callable[[bool, Any], None]
    work: Callable[..., object]
    arguments: tuple[Any, ...]
    done: bool = False


class WorldPool:
    """A pool of workers of one life of a node."""

    def __init__(self, world: World, after: After, work_max_s: float) -> None:
        # those that are under way, then those that wait for a worker
        self.jobs: deque[_Job] = deque()
        self._world = world
        self._after = after
        self._work_max_s = work_max_s

    def callInThreadWithCallback(  # noqa: N802 - Twisted's name
        self, answer: Callable[[bool, Any], None], work: Callable[..., object], *arguments: Any
    ) -> None:
        """Have work done."""
        job = _Job(answer, work, arguments)
        self.jobs.append(job)
        if len(self.jobs) <= _WORKERS:
            self._begin(job)

    @property
    def flush(self) -> Flush | None:
        """The flush whose commit is asked for and not yet carried out."""
        for job in self.jobs:
            for argument in job.arguments:
                if isinstance(argument, Flush) and not job.done:
                    return argument
        return None

    def _begin(self, job: _Job) -> None:
        self._after(self._world.between(0, self._work_max_s), lambda: self._carry_out(job))

    def _carry_out(self, job: _Job) -> None:
        self._world.note(f"a worker does {getattr(job.work, '__qualname__', job.work)}")
        try:
            ok, result = True, job.work(*job.arguments)
        except AssertionError:
            raise  # a judge's; a driver must not take it for a refusal of the disk
        except Exception:
            ok, result = False, Failure()
        job.done = True
        self._after(self._world.between(0, self._work_max_s), lambda: self._end(job, ok, result))

    def _end(self, job: _Job, ok: bool, result: object) -> None:
        self.jobs.remove(job)
        if len(self.jobs) >= _WORKERS:
            self._begin(self.jobs[_WORKERS - 1])
        job.answer(ok, result)


class DriverLog:
    """The log of drivers: what they survive although it is a verdict, or a mistake, ends a run.

    They are made so that a bug ends nothing for good; here it has to end the run.
    """

    def __init__(self) -> None:
        self._failures: list[BaseException] = []

    def info(self, event: str, /, **fields: object) -> None:
        """Say nothing."""

    error = info

    def failure(self, event: str, /, failure: Failure | None = None, **fields: object) -> None:
        """Keep what is no refusal of the disk's."""
        error = (failure or Failure()).value
        if not isinstance(error, StoreError):
            self._failures.append(error)

    def forget(self) -> None:
        """Begin another run."""
        self._failures.clear()

    def check(self) -> None:
        """Raise the oldest."""
        if self._failures:
            raise self._failures.pop(0)


DRIVER_LOG = DriverLog()
