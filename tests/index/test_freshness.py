"""What a request has waited for is in its answer, whatever happens between.

Source: systems reference c.7, c.8; rows D16, I02, I12, I26.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from twisted.internet.defer import Deferred, ensureDeferred, succeed
from twisted.internet.task import Clock

from uprmc.config import IndexSettings
from uprmc.index.errors import QueryRefused
from uprmc.index.following import Level, has_all
from uprmc.index.group import Group
from uprmc.index.index_file import Facts, PublishedView
from uprmc.index.model import Stale, Token
from uprmc.index.tree import IndexPosition
from uprmc.index.vbucket_sets import States
from uprmc.index.waiting import Signal
from uprmc.model import FailoverEntry

LOG = (FailoverEntry(7, 0),)


class Index:
    """An index whose levels are told by hand, and a group that answers from it.

    Attributes:
        asked: levels that were asked for and are not told yet.
        levels: how often one was asked for.
    """

    has_ended = False

    def __init__(self, clock: Clock) -> None:
        self.at_end: list[Any] = []
        self.progress = Signal()
        self.asked: list[Deferred[Level]] = []
        self.levels = 0
        self.fault, self.streams = SimpleNamespace(text=""), SimpleNamespace(failure="")
        self.error, self.total = "", 3
        self.readers = SimpleNamespace(enter=lambda: True)
        self.store = SimpleNamespace(view=None)
        self.course = object()
        self.show(States(active=0b111), 5)
        following: Any = self
        self.group = Group(clock, None, following, following, IndexSettings())  # type: ignore[arg-type]

    def show(self, states: States, seqno: int) -> None:
        positions = {vbucket: IndexPosition(seqno, seqno, seqno) for vbucket in range(3)}
        facts = dict.fromkeys(range(3), Facts(LOG))
        file: Any = SimpleNamespace(readers=self.readers)
        trees: Any = SimpleNamespace(vbuckets=0b111)
        self.store.view = PublishedView(file, trees, positions, facts, states, False, self.course)
        self.progress.fire()

    def go_back(self, states: States, seqno: int) -> None:
        self.course = object()
        self.show(states, seqno)

    async def level(self) -> Level:
        self.levels += 1
        asked: Deferred[Level] = Deferred()
        self.asked.append(asked)
        return await asked

    def tell(self, vbuckets: int = 0b111) -> None:
        self.asked.pop(0).callback(Level(vbuckets, self.course))

    def refresh(self) -> Deferred[None]:
        return succeed(None)

    def failover_logs(self, vbuckets: Any) -> Deferred[Any]:
        return succeed(dict.fromkeys(vbuckets, LOG))

    def query(self, stale: Stale = Stale.FALSE, *at: Token, timeout_s: float = 9.0) -> list[Any]:
        """Ask; return where the answer or the refusal will stand."""
        found: list[Any] = []
        asking = ensureDeferred(self.group.snapshot(stale, at, None, None, timeout_s))
        asking.addCallbacks(found.append, lambda failure: found.append(failure.value))
        return found


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr("uprmc.index.waiting.time", SimpleNamespace(monotonic=made.seconds))
    return made


@pytest.fixture
def index(clock: Clock) -> Index:
    return Index(clock)


def test_a_request_that_comes_while_a_run_is_under_way_waits_for_the_next_one(index: Index) -> None:
    first = index.query()
    second, third = index.query(), index.query()
    assert (len(index.asked), index.levels) == (1, 1)
    index.tell()
    assert (len(first), second, third) == (1, [], [])
    assert (len(index.asked), index.levels) == (1, 2)  # asked after these two came
    index.tell()
    assert (len(second), len(third), index.asked) == (1, 1, [])


def test_an_index_that_goes_back_after_the_barrier_is_waited_for_again(
    index: Index, clock: Clock
) -> None:
    index.show(States(active=0b011, pending=0b100), 5)
    answer = index.query()
    index.tell()
    assert not answer  # it waits for the pending one
    index.go_back(States(active=0b011, pending=0b100), 2)
    index.show(States(active=0b111), 2)
    assert not answer
    clock.advance(0.1)
    index.show(States(active=0b111), 5)
    index.tell()
    assert [each.update_seq for each in answer] == [{0: 5, 1: 5, 2: 5}]


def test_a_version_that_is_gone_again_before_the_answer_is_waited_for_again(
    index: Index, clock: Clock
) -> None:
    index.show(States(active=0b011, pending=0b100), 5)
    answer = index.query(Stale.OK, Token(0, 7, 4))
    index.go_back(States(active=0b111), 2)
    clock.advance(0.1)
    assert not answer
    index.show(States(active=0b111), 5)
    assert [each.update_seq[0] for each in answer] == [5]


def test_what_is_shown_and_not_covered_by_the_barrier_is_waited_for(
    index: Index, clock: Clock
) -> None:
    index.show(States(active=0b111, paused=0b010), 5)
    answer = index.query()
    index.tell(0b101)
    clock.advance(0.1)
    assert not answer
    index.tell(0b111)
    assert len(answer) == 1


def test_what_stays_paused_is_named_when_the_time_is_over(index: Index, clock: Clock) -> None:
    index.show(States(active=0b111, paused=0b010), 5)
    answer = index.query(timeout_s=1.0)
    for _ in range(40):
        while index.asked:
            index.tell(0b101)
        clock.advance(0.05)
    (refused,) = answer
    assert isinstance(refused, QueryRefused)
    assert (refused.status, "vBuckets 1, which are paused" in refused.reason) == (504, True)


@pytest.mark.parametrize(
    ("seqno", "log", "high", "has"),
    [
        (5, [(7, 0)], 5, True),
        (5, [(7, 0)], 6, False),
        (9, [(7, 0)], 5, True),  # it was written after the node had told
        (5, [(8, 5), (7, 0)], 5, True),
        (5, [(8, 4), (7, 0)], 5, False),  # what the index has as 5 was lost
        (5, [(8, 0)], 5, False),
        (0, [(8, 0)], 0, True),
        (0, [(8, 0)], 1, False),
        (5, [(8, 0)], 0, False),
    ],
)
def test_a_paused_vbucket_is_level_if_its_node_has_nothing_else(
    seqno: int, log: list[tuple[int, int]], high: int, has: bool
) -> None:
    there = tuple(FailoverEntry(*entry) for entry in log)
    position = IndexPosition(seqno, seqno, seqno) if seqno else None
    assert has_all(position, Facts(LOG) if seqno else None, there, high) is has
