"""Long work gives way to others after each slice of time."""

from __future__ import annotations

from collections.abc import Iterator

from twisted.internet.task import Clock

from uprmc.server.slices import SLICE_S, InSlices


class Work:
    """Work of ten steps, each of which takes `step_s` of a pretended clock."""

    def __init__(self, step_s: float) -> None:
        self.clock = Clock()
        self.step_s = step_s
        self.done = self.begun = 0
        self.broken = False
        self.slices = InSlices(self.clock, self.steps)

    def steps(self) -> Iterator[None]:
        """Do it."""
        self.begun += 1
        for _ in range(10):
            if self.broken:
                raise RuntimeError
            self.done += 1
            self.clock.rightNow += self.step_s
            yield


def test_it_goes_on_in_the_next_turn_when_its_time_is_up() -> None:
    work = Work(SLICE_S / 3)
    work.slices.start()
    work.slices.start()
    assert work.done == 0
    turns = 0
    while work.clock.calls:
        before = work.done
        work.clock.calls.pop().func()
        turns += 1
        assert work.done - before <= 4
    assert (work.begun, work.done) == (1, 10)
    assert turns >= 3


def test_it_can_be_asked_for_again_and_stopped() -> None:
    work = Work(0.0)
    for _ in range(2):
        work.slices.start()
        work.clock.advance(0)
    assert (work.begun, work.done) == (2, 20)
    work.step_s = SLICE_S
    work.slices.start()
    work.clock.advance(0)
    work.slices.stop()
    work.slices.stop()
    assert not work.clock.getDelayedCalls()


def test_an_exception_ends_only_this_time() -> None:
    work = Work(0.0)
    work.broken = True
    work.slices.start()
    work.clock.advance(0)
    work.broken = False
    work.slices.start()
    work.clock.advance(0)
    assert (work.begun, work.done) == (2, 10)
