"""How long one turn of the reactor may keep its sockets waiting: one rule for all that can wait.

What cannot wait is the request that a socket brought. All else shares the time of a turn: long work
that comes in steps, the collector, and sessions that send by themselves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import LoopingCall

from uprmc.server.log import Log

# --- the budget -----------------------------------------------------------------------------------


#: What one turn spends on all of that together.
TURN_S = 0.004

#: How much of it long work may take, so that sessions always have a share.
WORK_S = 0.002

#: How long one session may take to make an answer before others have their turn.
SLICE_S = 0.001


class TurnBudget:
    """What is left of the present turn. Each user gets at least one step done.

    Args:
        seconds: monotonic time.
    """

    __slots__ = ("_began", "_seconds", "_used_s")

    def __init__(self, seconds: Callable[[], float]) -> None:
        self._seconds = seconds
        self._began = 0.0
        self._used_s = 0.0

    def begin_work(self) -> float:
        """Begin a turn with long work; return until when steps may begin."""
        self._began = self._seconds()
        return self._began + WORK_S

    def end_work(self) -> None:
        """Take what the long work of this turn used off what sessions get in it."""
        self._used_s = self._seconds() - self._began

    def take_rest(self) -> float:
        """Return until when sessions may be served; what follows is another turn's."""
        used_s, self._used_s = min(self._used_s, TURN_S), 0.0
        return self._seconds() + TURN_S - used_s


# --- long work in steps ---------------------------------------------------------------------------
# Long work in steps, so that nobody waits for it.
#
# All long work of a node is in one list. What would take a second comes in steps of some ten
# microseconds, and in each turn of the reactor the pieces of work do a step each, one after the
# other, until the turn's budget is spent. The rest comes in the next turn.
#
# Python's collector takes the longer the more objects are new, and cannot be cut. So it comes first
# in its turn, while work is going on every few milliseconds, and what it took is off the budget.


#: While work is going on the collector looks at what is new after this much time.
COLLECT_S = 0.005

#: What `LongWork.do` does, one after the other, and returns in the end.
Steps = Generator[object, None, Any]

_log = Log("slices")


class LongWork:
    """The long work of one node."""

    def __init__(self, reactor: Any, collect: Callable[[], None] = lambda: None) -> None:
        self.budget = TurnBudget(reactor.seconds)  # what a turn may take, shared with others
        self.collect = collect  # looks for cycles among new objects
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


class Ticker:
    """Calls something again and again, from `start` to `stop`.

    Args:
        every_s: the time in between; it counts from the next `start` on.
        failed: called from inside of the except clause: a bug of ours must not end what goes on
            for good.
    """

    def __init__(
        self,
        reactor: Any,
        every_s: float,
        call: Callable[[], object],
        failed: Callable[[], None] = lambda: _log.failure("failed"),
    ) -> None:
        self.every_s = every_s
        self._call, self._failed = call, failed
        self._looping = LoopingCall(self._tick)
        self._looping.clock = reactor

    @property
    def running(self) -> bool:
        """Whether it was started and not stopped."""
        return self._looping.running

    def start(self, *, now: bool = False) -> None:
        """Begin, with a call at once or after the first interval."""
        self._looping.start(self.every_s, now=now)

    def stop(self) -> None:
        """Cease; harmless when it does not run."""
        if self._looping.running:
            self._looping.stop()

    def _tick(self) -> None:
        try:
            self._call()
        except Exception:
            self._failed()


# --- sessions that wake ---------------------------------------------------------------------------
# Sessions that found something to send by themselves, served at the end of the turn.


class WakeList:
    """One node's queue of such sessions, for all its listeners.

    However often a session is woken in a turn, it is pumped once, after the input that woke it has
    been dealt with: that is what gathers live mutations into one write. First come, first served.

    `transport.LeanReactor` runs it at the end of the turn in which it was added to; any other
    reactor in its next turn.

    Args:
        clock: the reactor.
        budget: the budget of its turns, if it is shared.
    """

    def __init__(self, clock: Any, budget: TurnBudget | None = None) -> None:
        self._clock = clock
        self._budget = budget or TurnBudget(clock.seconds)
        self.waiting: deque[Callable[[], None]] = deque()  # who has been added and not been served
        # Whether this turn has a single event. Then those who wait may be served before who woke
        # them gets an answer; with other events in the turn that would only keep more of them
        # waiting.
        self.alone = False
        self._scheduled = False
        end_turns_with = getattr(clock, "end_turns_with", None)
        self._driven = end_turns_with is not None
        if end_turns_with is not None:
            end_turns_with(self)

    def add(self, pump: Callable[[], None]) -> None:
        """Call `pump`, which must not raise, soon; O(1)."""
        self.waiting.append(pump)
        self._schedule()

    def run(self) -> None:
        """Serve those who wait now until the turn's budget is spent; the rest comes next turn."""
        self._scheduled = False
        waiting = self.waiting
        until = self._budget.take_rest()
        for _ in range(len(waiting)):
            waiting.popleft()()
            if self._clock.seconds() > until:
                break
        if waiting:
            self._schedule()

    def close(self) -> None:
        """Serve nobody any more."""
        self.waiting.clear()
        if self._driven:
            self._clock.end_turns_without(self)

    def _schedule(self) -> None:
        if not (self._driven or self._scheduled):
            self._scheduled = True
            self._clock.callLater(0, self.run)
