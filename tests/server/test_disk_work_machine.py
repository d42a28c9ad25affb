"""The drivers of the disk under every order of timers, workers, refusals and a stop.

A reactor and a pool that are led by hand, a store that records what is done with it. Whatever
happens: nothing waits while nothing is scheduled, no worker is under way when the stop fires, and
the last commit is followed by a sync before the store is closed.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import Phase
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from twisted.internet.defer import succeed
from twisted.python.failure import Failure

from tests.contents import table_of
from tests.engine.support import FaultyStore, Node, settings_of
from tests.server.support import TurnClock
from uprmc.engine.reading import ViewGate
from uprmc.engine.tombstones import PurgeRule
from uprmc.errors import (
    KeyNotFound,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreMapFull,
    TemporaryFailure,
)
from uprmc.model import Item
from uprmc.server.work.disk import DiskWork, FetchDriver, FlushDriver
from uprmc.server.work.turns import LongWork
from uprmc.storage.interface import CommitBatch
from uprmc.storage.memory import MemoryView

KEYS = [b"a", b"b", b"c", b"d"]


class HandReactor(TurnClock):
    """A reactor whose time and threads' answers are led by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: list[tuple[Callable[..., object], tuple[Any, ...]]] = []

    def pass_time(self, seconds: float) -> None:
        """Do what is due then, and not what that puts off."""
        self.rightNow += seconds
        self.turn()

    def callFromThread(self, call: Callable[..., object], *arguments: Any) -> None:  # noqa: N802
        self.answers.append((call, arguments))


class HandPool:
    """A pool whose work is done when a test says so.

    Attributes:
        jobs: what has been asked for and not been done.
    """

    def __init__(self) -> None:
        self.jobs: list[tuple[Callable[..., None], Callable[..., object], tuple[Any, ...]]] = []

    def callInThreadWithCallback(  # noqa: N802
        self, answer: Callable[..., None], work: Callable[..., object], *arguments: Any
    ) -> None:
        self.jobs.append((answer, work, arguments))

    def do(self, place: int) -> None:
        answer, work, arguments = self.jobs.pop(place)
        try:
            result: object = work(*arguments)
        except Exception:
            answer(False, Failure())
        else:
            answer(True, result)


class RecordingView(MemoryView):
    """A reading of a store some of whose records are damaged."""

    def get(self, vbucket: int, key: bytes) -> Item | None:
        store = self._store
        assert isinstance(store, RecordingStore)
        if key in store.damaged:
            raise StoreCorrupt(f"{key!r} is damaged")
        return super().get(vbucket, key)


class RecordingStore(FaultyStore):
    """A store that refuses when it is told to, and notes what is done with it.

    Attributes:
        map_full: commits are refused until it has grown.
        bug: the size cannot be told, by a mistake of ours.
        damaged: keys whose records cannot be read.
        done: ``commit``, ``sync``, ``close`` in their order.
    """

    def __init__(self) -> None:
        super().__init__(sync=False)
        self.map_full = self.bug = False
        self.damaged: set[bytes] = set()
        self.done: list[str] = []

    def commit(self, batch: CommitBatch) -> None:
        if self.map_full:
            raise StoreMapFull("the map is full")
        super().commit(batch)
        self.done.append("commit")

    def grow(self) -> bool:
        grown = super().grow()
        self.map_full &= not grown
        return grown

    def view(self) -> RecordingView:
        self._check_open()
        view = RecordingView(self, self._state)
        self._views.add(view)
        return view

    def usage(self) -> Any:
        if self.bug:
            raise RuntimeError("a bug of ours")
        return super().usage()

    def sync(self) -> None:
        super().sync()
        self.done.append("sync")

    def close(self) -> None:
        super().close()
        self.done.append("close")


class Reader:
    """Holds a reading of the store until it is sent away."""

    def __init__(self, node: Node) -> None:
        self.view = node.store.view()
        node.bucket.view_holders.append(self)

    def release_views(self) -> None:
        self.view.close()


class DiskWorkMachine(RuleBasedStateMachine):
    """See the module docstring."""

    @initialize(delay_s=st.sampled_from([0.0, 0.02]), rounds=st.sampled_from([1, 3]))
    def start(self, delay_s: float, rounds: int) -> None:
        self.store = RecordingStore()
        delays = {"min_delay_s": delay_s, "max_delay_s": delay_s}
        flush = {**delays, "batch_items": 2, "fetch_batch": 2, "fetch_rounds": rounds}
        self.node = Node(settings_of(2, flush=flush), store=self.store)
        self.node.flush()
        self.reactor, self.pool = HandReactor(), HandPool()
        self.work = DiskWork(
            self.reactor,
            self.pool,  # type: ignore[arg-type]
            self.node.bucket,
            self.node.settings.flush,
            LongWork(self.reactor),
        )
        self.asked = self.told = 0
        self.ended: list[object] = []
        self.stopping = False

    def _told(self, ok: bool, breaks: bool) -> None:
        self.told += 1
        if breaks:
            raise RuntimeError("a bug of ours")

    def _waiter(self, breaks: bool) -> Callable[[bool], None]:
        self.asked += 1
        return lambda ok: self._told(ok, breaks)

    # --- what clients do --------------------------------------------------------------------------

    running = precondition(lambda self: not self.stopping)

    @running
    @rule(key=st.sampled_from(KEYS), number=st.integers(0, 1))
    def write(self, key: bytes, number: int) -> None:
        with suppress(TemporaryFailure):
            self.node.bucket.vbuckets[number].store(key, b"value", 0, 0)

    @running
    @rule(key=st.sampled_from(KEYS), number=st.integers(0, 1))
    def delete(self, key: bytes, number: int) -> None:
        vbucket = self.node.bucket.vbuckets[number]
        with suppress(TemporaryFailure, KeyNotFound):
            vbucket.delete(key)

    @running
    @rule(keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=4), breaks=st.booleans())
    def fetch(self, keys: list[bytes], breaks: bool) -> None:
        vbucket = self.node.bucket.vbuckets[0]
        for key in keys:
            item = table_of(vbucket).get(key)
            stored = item is not None and item.seqno <= vbucket.persisted_seqno
            if stored and item.value is not None and not item.life:
                vbucket.eject(item.key)
            self.node.bucket.fetcher.want([(0, key)], self._waiter(breaks))

    @running
    @rule(breaks=st.booleans())
    def wait_for_the_disk(self, breaks: bool) -> None:
        self.node.bucket.flusher.when_durable(self._waiter(breaks))

    @running
    @rule(breaks=st.booleans())
    def flush_all(self, breaks: bool) -> None:
        done = self._waiter(breaks)
        with suppress(RuntimeError):  # of a waiter that breaks
            self.node.bucket.flush(0, done)

    @running
    @rule(number=st.integers(0, 1), breaks=st.booleans())
    def compact(self, number: int, breaks: bool) -> None:
        if not self.node.bucket.flusher.paused:
            self.node.bucket.compact(number, PurgeRule(0, 0, True), self._waiter(breaks))

    @running
    @rule()
    def hold_a_reading(self) -> None:
        Reader(self.node)

    @running
    @rule(pause=st.booleans())
    def pause(self, pause: bool) -> None:
        flusher = self.node.bucket.flusher
        with suppress(RuntimeError):  # of a waiter that breaks
            flusher.pause() if pause else flusher.resume()

    # --- what the disk does -----------------------------------------------------------------------

    @rule(refusal=st.sampled_from([None, StoreError("broken"), StoreFull("full")]))
    def refuse(self, refusal: StoreError | None) -> None:
        self.store.refusal = refusal

    @rule()
    def fill_the_map(self) -> None:
        self.store.map_full = True

    @running
    @rule(bug=st.booleans())
    def go_mad(self, bug: bool) -> None:
        self.store.bug = bug

    @rule(key=st.sampled_from(KEYS))
    def damage(self, key: bytes) -> None:
        self.store.damaged ^= {key}

    # --- time and threads -------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([0.0, 0.001, 0.02, 1.0]))
    def pass_time(self, seconds: float) -> None:
        self.reactor.pass_time(seconds)

    @precondition(lambda self: self.pool.jobs)
    @rule(place=st.integers(0, 1))
    def work_on(self, place: int) -> None:
        self.pool.do(min(place, len(self.pool.jobs) - 1))

    @precondition(lambda self: self.reactor.answers)
    @rule()
    def answer(self) -> None:
        call, arguments = self.reactor.answers.pop(0)
        call(*arguments)

    @rule(turns=st.integers(1, 4))
    def go_on(self, turns: int) -> None:
        """Do what is due, all of it, for some turns."""
        for _ in range(turns):
            self._turn(0.02)

    @running
    @rule(orderly=st.booleans())
    def stop(self, orderly: bool) -> None:
        self.stopping = True
        self.store.bug = False
        self.node.bucket.shut_traffic_out()
        self.node.bucket.release_views()
        self.work.stop(orderly=orderly).addCallbacks(
            lambda _: self._stopped(orderly), lambda failure: self._stopped(False, failure)
        )

    def _stopped(self, orderly: bool, failure: Failure | None = None) -> None:
        assert failure is None or failure.check(StoreError), failure
        assert not self.pool.jobs, "a worker is under way"
        assert not self.reactor.answers, "an answer of a worker is still to come"
        self.store.close()
        if orderly:
            assert self.store.done[-3:] == ["commit", "sync", "close"]
            assert self.node.bucket.flusher.queued == 0
        self.ended.append(failure)

    # --- judgement --------------------------------------------------------------------------------

    @property
    def _scheduled(self) -> bool:
        timers = self.reactor.getDelayedCalls()
        return bool(timers or self.pool.jobs or self.reactor.answers)

    @invariant()
    def nothing_waits_while_nothing_is_scheduled(self) -> None:
        bucket = self.node.bucket
        if self.stopping:
            assert self.ended or self._scheduled, "the stop waits for nothing"
        elif not self._scheduled:
            assert bucket.flusher.paused or not bucket.flusher.pending
            assert not bucket.fetcher.waiting
            assert not bucket.compactor.waiting
            assert not bucket.gate.is_shut

    @invariant()
    def no_worker_is_called_after_the_end(self) -> None:
        assert not (self.ended and self.pool.jobs)

    def teardown(self) -> None:
        """Mend everything: all who wait are told, and a stop ends."""
        if not hasattr(self, "work"):
            return
        self.store.refusal, self.store.bug, self.store.map_full = None, False, False
        for holder in self.node.bucket.view_holders:
            holder.release_views()
        if not self.stopping:
            self.pause(False)
            self._run(lambda: not self._scheduled)
            assert self.told == self.asked, "somebody who waits was not told"
            assert self.node.bucket.flusher.queued == 0
            self.stop(True)
        self._run(lambda: bool(self.ended))

    def _run(self, over: Callable[[], bool]) -> None:
        for _ in range(2_000):
            if over():
                return
            self._turn(0.05)
        raise AssertionError("it has not come to an end")

    def _turn(self, seconds: float) -> None:
        self.reactor.pass_time(seconds)
        for _ in range(len(self.pool.jobs)):
            self.pool.do(0)
        for _ in range(len(self.reactor.answers)):
            self.answer()


def test_nothing_waits_for_ever_and_a_stop_leaves_everything_on_disk() -> None:
    run_state_machine_as_test(
        DiskWorkMachine,
        settings=hypothesis_settings(stateful_step_count=40),
    )


def _begin_no_next_round(patch: pytest.MonkeyPatch) -> None:
    """Leave those who asked during a round of fetching to themselves."""
    patch.setattr(FetchDriver, "_next", lambda driver: None)


def _stop_beside_a_reader(patch: pytest.MonkeyPatch) -> None:
    """Do not wait for a round of fetching."""
    patch.setattr(FetchDriver, "stop", lambda driver: succeed(None))


def _forget_the_sync(patch: pytest.MonkeyPatch) -> None:
    """End with a commit."""
    patch.setattr(RecordingStore, "sync", lambda store: None)


def _keep_readers_away(patch: pytest.MonkeyPatch) -> None:
    """Never let readers back after the store has grown."""
    patch.setattr(ViewGate, "open", lambda gate: None)


def _give_up_after_a_failure(patch: pytest.MonkeyPatch) -> None:
    """Do not try a commit again that was refused."""

    def look_again(driver: FlushDriver, delay_s: float | None = None) -> None:
        if not driver.last_error:
            again(driver, delay_s)

    again = FlushDriver._look_again
    patch.setattr(FlushDriver, "_look_again", look_again)


@pytest.mark.parametrize(
    "break_it",
    [
        _begin_no_next_round,
        _stop_beside_a_reader,
        _forget_the_sync,
        _keep_readers_away,
        _give_up_after_a_failure,
    ],
)
def test_a_broken_driver_is_noticed(
    break_it: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    break_it(monkeypatch)
    found = hypothesis_settings(
        max_examples=200,
        stateful_step_count=40,
        phases=[Phase.generate],
        report_multiple_bugs=False,
    )
    with pytest.raises((AssertionError, StoreError, RuntimeError)):  # the last of a waiter
        run_state_machine_as_test(DiskWorkMachine, settings=found)
