"""The consumer's process dies at every place where it writes, and before and after every call.

Whatever the moment: what is saved is something the node once had, every key that the handler may
have seen is in the ring, and after a restart the copy ends like the node, also when the node's
history has left ours meanwhile.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest

from tests.client.consumer_world import (
    BatchMirror,
    Crash,
    CrashingState,
    DurableMirror,
    Mirror,
    World,
    fail_over,
    live,
    node,
    replicate,
    standby,
    write,
)
from tests.kv.harness import Rig
from uprmc.client.state import MemoryState
from uprmc.model import FailoverEntry

_POINTS_MAX = 200

Log = tuple[FailoverEntry, ...]


class _Story:
    """Two nodes, a consumer that dies once on the way, and what the nodes had when."""

    def __init__(self, mirror: Mirror) -> None:
        self.old, self.new = node(), standby(1000)
        self.mirror = mirror
        self.state = CrashingState()
        self.known: list[tuple[Log, int]] = []
        self.world: World | None = None

    def note(self, rig: Rig) -> None:
        """Remember that a node had this log and this high seqno together."""
        part = rig.bucket.vbuckets[0]
        self.known.append((part.failover_log, part.high_seqno))

    def live_on(self, seconds: float = 0.0) -> None:
        """Go on; if the process dies, look at what is left and begin a new life."""
        try:
            if self.world is None:
                self.world = World(
                    self.mirror,
                    self.old,
                    self.new,
                    state=self.state,
                    vbuckets=frozenset({0}),
                    buffer_bytes=400,
                )
            self.world.settle(seconds)
        except Crash:
            assert self.world is not None
            self.mirror.crash_at = self.state.crash_at = 0
            self.judge()
            self.world.restart()
            self.world.settle(seconds)

    def judge(self) -> None:
        """Judge what a crash has left."""
        saved = self.state.load().get(0)
        if saved is None:
            assert not self.mirror.of(0), "something was applied, and nothing says so"
            return
        if saved.seqno:
            logs = [(log, high) for log, high in self.known if log == saved.log]
            assert logs, f"nobody ever had {saved.log}"
            assert saved.seqno <= max(high for _, high in logs)
        ring = {key for _, key in self.state.ring_after(0, saved.seqno)}
        fresh = {key for key, seqno in self.mirror.seen.items() if seqno > saved.seqno}
        assert not saved.seqno or fresh <= ring, "a key was applied that is not in the ring"

    def run(self) -> None:
        write(self.old, 0, a="1", b="2", c="3")
        self.note(self.old)
        replicate(self.old, self.new)
        self.live_on()
        write(self.old, 0, a="4", b="", **{f"k{n}": "x" * 40 for n in range(20)})
        self.note(self.old)
        self.live_on()
        write(self.old, 0, c="lost", b="lost", new="lost")
        self.note(self.old)
        self.live_on()
        fail_over(self.old, self.new)
        self.note(self.new)
        write(self.new, 0, a="5", d="6")
        self.note(self.new)
        self.live_on(5)
        write(self.new, 0, e="7", a="")
        self.note(self.new)
        self.live_on(1)
        assert self.mirror.of(0) == live(self.new)
        saved = self.state.load()[0]
        assert (saved.seqno, saved.log) == (
            self.new.bucket.vbuckets[0].high_seqno,
            self.new.bucket.vbuckets[0].failover_log,
        )


def _points(prepare: Callable[[_Story, int], None], mirror: type[Mirror]) -> Iterator[_Story]:
    """Yield the story with a crash at the first, second, ... point until there is none any more."""
    for number in range(1, _POINTS_MAX):
        story = _Story(mirror())
        prepare(story, number)
        story.run()
        yield story
        if story.mirror.crash_at or story.state.crash_at:
            return  # it has not come to that
    raise AssertionError("more points than expected")


_MIRRORS = pytest.mark.parametrize("mirror", [Mirror, DurableMirror, BatchMirror])
_SIDES = pytest.mark.parametrize("after", [False, True])


@pytest.mark.acceptance("D13", "D44", "D45")
@_MIRRORS
@_SIDES
def test_a_crash_at_any_commit_is_survived(mirror: type[Mirror], after: bool) -> None:
    def prepare(story: _Story, number: int) -> None:
        story.state.crash_at, story.state.crash_after = number, after

    assert len(list(_points(prepare, mirror))) > 8


@pytest.mark.acceptance("D13", "D44", "D46")
@_MIRRORS
@_SIDES
def test_a_crash_at_any_call_of_the_handler_is_survived(mirror: type[Mirror], after: bool) -> None:
    def prepare(story: _Story, number: int) -> None:
        story.mirror.crash_at, story.mirror.crash_after = number, after

    assert len(list(_points(prepare, mirror))) > 30


# --- what a crash leaves, by name -----------------------------------------------------------------


def _crashed_beyond(old: Rig, new: Rig, state: MemoryState | None = None) -> tuple[Mirror, World]:
    """The handler has seen a change that is saved only in the ring, and the process has died."""
    mirror = Mirror()
    write(old, 0, a="1")
    replicate(old, new)
    world = World(mirror, old, new, state=state, vbuckets=frozenset({0}))
    world.settle()
    write(old, 0, lost="x")
    mirror.crash_at, mirror.crash_after = mirror.calls + 2, True
    with contextlib.suppress(Crash):
        world.settle()
    mirror.crash_at = 0
    assert (world.state.load()[0].seqno, mirror.of(0)[b"lost"]) == (1, b"x")
    mirror.diary.clear()
    return mirror, world


@pytest.mark.acceptance("D44")
@pytest.mark.parametrize("state", [CrashingState, MemoryState])
def test_what_was_applied_but_not_saved_is_undone_when_its_history_is_lost(
    state: type[MemoryState],
) -> None:
    """The node would stream from the saved seqno without a word: it lies before the branch.

    A state that dies with its process is written after the handler has failed.
    """
    old, new = node(), standby(1000)
    mirror, world = _crashed_beyond(old, new, state())
    fail_over(old, new)
    world.restart()
    world.settle(3)
    assert mirror.of(0) == live(new) == {b"a": b"1"}
    assert mirror.told("rollback") == [(0, 1)]
    assert mirror.told("undo") == [(0, b"lost", None)]


def test_what_was_applied_but_not_saved_is_left_alone_when_its_history_goes_on() -> None:
    old, new = node(), standby(1000)
    mirror, world = _crashed_beyond(old, new)
    world.restart()
    world.settle(3)
    assert mirror.of(0) == live(old)
    assert mirror.told("undo") == mirror.told("rollback") == []


def test_an_unfinished_first_snapshot_is_dropped_before_it_begins_again() -> None:
    """What was deleted, and purged, since would never be mentioned."""
    rig, mirror = node(), Mirror()
    write(rig, 0, a="1", b="2", c="3")
    world = World(mirror, rig, vbuckets=frozenset({0}))
    mirror.crash_at = 4
    with contextlib.suppress(Crash):
        world.settle()
    assert mirror.of(0)
    mirror.crash_at = 0
    world.restart()
    world.settle()
    assert mirror.told("rollback") == [(0, 0)]
    assert mirror.of(0) == live(rig)


def test_a_second_loss_right_after_an_undo_is_undone_as_well() -> None:
    """Documents that an undo fetched may be of a history that is lost before it was streamed."""
    one, two, three, mirror = node(), standby(1000), standby(2000), Mirror()
    write(one, 0, a="1", b="2")
    replicate(one, two)
    replicate(one, three)
    world = World(mirror, one, two, three, vbuckets=frozenset({0}))
    world.settle()
    write(one, 0, a="lost")
    world.settle()
    fail_over(one, two)
    write(two, 0, a="lost too")
    state = world.state
    assert isinstance(state, CrashingState)
    state.crash_at, state.crash_after = state.commits + 2, True  # the end of the undo
    with contextlib.suppress(Crash):
        world.settle(3)
    assert mirror.of(0)[b"a"] == b"lost too"
    fail_over(two, three)
    state.crash_at = 0
    world.restart()
    world.settle(3)
    assert mirror.of(0) == live(three) == {b"a": b"1", b"b": b"2"}


@pytest.mark.parametrize("ring_items", [1, 1000])
def test_a_crash_half_way_back_is_no_harm_when_the_lost_history_returns(ring_items: int) -> None:
    """The old active accepts the place that we had, of which the handler has undone a part."""
    old, new, mirror = node(), standby(1000), Mirror()
    write(old, 0, a="1", b="2", c="3")
    replicate(old, new)
    world = World(mirror, old, new, vbuckets=frozenset({0}), ring_items=ring_items)
    world.settle()
    for number in range(3):
        write(old, 0, **{f"k{number}": "4", "a": str(number)})
        world.settle()
    fail_over(old, new)
    state = world.state
    assert isinstance(state, CrashingState)
    state.crash_at = state.commits + 2  # the handler has gone back, and that is not written
    with contextlib.suppress(Crash):
        world.settle(3)
    assert mirror.told("rollback")
    assert mirror.of(0) != live(old)
    state.crash_at = 0
    fail_over(new, old)
    world.restart()
    world.settle(3)
    assert mirror.of(0) == live(old)


def test_a_failing_state_hands_nothing_over() -> None:
    rig, mirror = node(), Mirror()
    world = World(mirror, rig)
    world.settle()
    state = world.state
    assert isinstance(state, CrashingState)
    state.failure = OSError("no space left")
    write(rig, 0, a="1")
    with pytest.raises(OSError, match="no space left"):
        world.settle()
    assert mirror.changes == []
    state.failure = None
    world.restart()
    world.settle()
    assert mirror.of(0) == live(rig)
