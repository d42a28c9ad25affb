"""Long work in steps, so that nobody waits for it.

All long work of a node is in one list. What would take a second comes in steps of some ten
microseconds, and in each turn of the reactor the pieces of work do a step each, one after the
other, until the turn's budget is spent. The rest comes in the next turn.

Python's collector takes the longer the more objects are new, and cannot be cut. So it comes first
in its turn, while work is going on every few milliseconds, and what it took is off the budget.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import Any

from twisted.internet.defer import Deferred

from uprmc.server.log import Log
from uprmc.server.turn_budget import TurnBudget

#: While work is going on the collector looks at what is new after this much time.
COLLECT_S = 0.005

#: What `LongWork.do` does, one after the other, and returns in the end.
Steps = Generator[object, None, Any]

_log = Log("slices")


class LongWork:
    """The long work of one node.

    Attributes:
        budget: what a turn may take, shared with others.
        collect: looks for cycles among new objects.
    """

    def __init__(self, reactor: Any, collect: Callable[[], None] = lambda: None) -> None:
        self.budget = TurnBudget(reactor.seconds)
        self.collect = collect
        self._reactor = reactor
        self._pieces: deque[Iterator[object]] = deque()
        self._timer: Any = None
        self._collect_wanted = self._collected_last = False
        self._collected_at = reactor.seconds()

    def do(self, steps: Steps) -> Deferred[Any]:
        """Do steps from the next turn on; fires with what they return, fails with what they raise.

        It fires in a turn's slice: what comes next should be short.
        """
        done: Deferred[Any] = Deferred()
        self.add(_told(steps, done))
        return done

    def add(self, steps: Iterator[object]) -> None:
        """Do steps from the next turn on. They should not raise, nor one of them take long."""
        self._pieces.append(steps)
        self._schedule()

    def drop(self, steps: Iterator[object]) -> None:
        """Do no more of what was added; harmless when it has ended."""
        if steps in self._pieces:
            self._pieces.remove(steps)

    def collect_soon(self) -> None:
        """Have the collector look in the next turn."""
        self._collect_wanted = True
        self._schedule()

    def stop(self) -> None:
        """Drop everything; do nothing in later turns."""
        self._pieces.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule(self) -> None:
        if self._timer is None:
            self._timer = self._reactor.callLater(0, self._run)

    def _run(self) -> None:
        """Spend what long work may take of this turn."""
        self._timer = None
        until = self.budget.begin_work()
        if not (self._collected(until) and self._reactor.seconds() >= until):
            self._work(until)
        self.budget.end_work()
        if self._pieces:
            self._schedule()

    def _collected(self, now: float) -> bool:
        """Collect if that is due, but not in two turns on end while there is work; say whether."""
        due = self._collect_wanted or now - self._collected_at >= COLLECT_S
        self._collected_last = due and not (self._collected_last and self._pieces)
        if self._collected_last:
            self._collect_wanted = False
            self.collect()
            self._collected_at = self._reactor.seconds()
        return self._collected_last

    def _work(self, until: float) -> None:
        pieces = self._pieces
        while pieces:
            steps = pieces[0]
            try:
                next(steps)
                more = True
            except StopIteration:
                more = False
            except Exception:  # a bug of ours must not end the others
                _log.failure("failed")
                more = False
            if pieces and pieces[0] is steps:  # it may have dropped itself
                if more:
                    pieces.rotate(-1)
                else:
                    pieces.popleft()
            if self._reactor.seconds() >= until:
                return


def _told(steps: Steps, done: Deferred[Any]) -> Steps:
    try:
        result = yield from steps
    except Exception:
        done.errback()
    else:
        done.callback(result)


class InSlices:
    """Does a piece of work whenever it is asked to.

    Args:
        work: the long work that it is a piece of.
        begin: begins it; it goes on from step to step, each of which should be short.
    """

    def __init__(self, work: LongWork, begin: Callable[[], Iterator[object]]) -> None:
        self._work = work
        self._begin = begin
        self._steps: Iterator[object] | None = None

    def start(self) -> None:
        """Have it done from the next turn on; harmless while it goes on."""
        if self._steps is None:
            self._steps = self._all()
            self._work.add(self._steps)

    def stop(self) -> None:
        """Do no more of it; harmless when nothing is going on."""
        if self._steps is not None:
            self._work.drop(self._steps)
            self._steps = None

    def _all(self) -> Generator[object, None, None]:
        try:
            yield from self._begin()
        except Exception:  # a bug of ours must not end what comes by again and again
            _log.failure("failed")
        self._steps = None
