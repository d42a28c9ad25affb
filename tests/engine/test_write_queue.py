"""The write queue: views that cost nothing and stay as they were, and nothing kept without need."""

from __future__ import annotations

import gc
import random
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from uprmc.engine.write_queue import SEGMENT_BITS, QueueView, WriteQueue
from uprmc.model import Item
from uprmc.record import key_of, pack, seqno_of

_SEGMENT = 1 << SEGMENT_BITS


def record(seqno: int, key: bytes | None = None) -> bytes:
    return pack(Item(key or b"key-%d" % seqno, b"v%d" % seqno, 0, 0, seqno, seqno, 1))


def put(queue: WriteQueue, seqno: int, key: bytes | None = None, replaced_seqno: int = 0) -> None:
    queue.put(seqno, record(seqno, key), replaced_seqno)


def filled(count: int) -> WriteQueue:
    """A queue with `count` keys, seqnos from 1."""
    queue = WriteQueue()
    for seqno in range(1, count + 1):
        put(queue, seqno)
    return queue


def references(records: list[bytes]) -> int:
    return sum([sys.getrefcount(each) for each in records])


def freed(entries: list[bytes], held: list[int]) -> list[bool]:
    """Whether the queue has let go of each."""
    return [sys.getrefcount(entries[n]) < held[n] for n in range(len(entries))]


def seqnos(view: QueueView, after: int = 0) -> list[int]:
    return list(map(seqno_of, view.records(after)))


# --- order --------------------------------------------------------------------------------------


def test_a_view_of_an_empty_queue_is_empty() -> None:
    view = WriteQueue(high_seqno=77).open_view()
    assert seqnos(view) == []
    assert view.take(10) == []
    assert view.high_seqno == 77
    view.close()


def test_closing_a_view_twice_is_harmless() -> None:
    queue = filled(3)
    first, second = queue.open_view(), queue.open_view()
    put(queue, 4, b"key-1", 1)
    second.close()
    second.close()
    assert queue.open_views == 1
    assert seqnos(first) == [1, 2, 3]
    first.close()
    queue.check()


def test_what_a_view_has_passed_by_is_freed_when_it_retires() -> None:
    """Both ways in which an entry retires; what lies ahead of the reader stays for it."""
    queue = filled(4)
    entries = queue.since(0)
    held = [sys.getrefcount(entries[n]) for n in range(len(entries))]
    view = queue.open_view()
    view.pass_by(2)
    put(queue, 5, b"key-1", 1)
    put(queue, 6, b"key-3", 3)
    queue.drop_persisted(2)
    assert freed(entries, held) == [True, True, False, False]
    assert seqnos(view, 2) == [3, 4]
    queue.check()
    view.pass_by(4)
    queue.drop_persisted(4)
    assert freed(entries, held) == [True, True, False, True]
    view.close()
    assert freed(entries, held) == [True] * 4
    queue.check()


def test_what_one_view_has_passed_by_stays_for_an_older_one_that_has_not() -> None:
    queue = filled(3)
    older, newer = queue.open_view(), queue.open_view()
    newer.pass_by(3)
    queue.drop_persisted(3)
    assert seqnos(older) == [1, 2, 3]
    newer.close()
    assert seqnos(older) == [1, 2, 3]
    older.close()
    queue.check()
    assert queue.retired == 0


# --- D07: independent views ---------------------------------------------------------------------


@pytest.mark.acceptance("D07")
def test_a_view_can_be_read_piece_by_piece_between_writes() -> None:
    queue = filled(1_000)
    view = queue.open_view()
    read = []
    for seqno, entry in enumerate(view.records(), start=1_001):
        read.append(seqno_of(entry))
        put(queue, seqno, key_of(entry), seqno_of(entry))
        queue.drop_persisted(seqno_of(entry) // 2)
    assert read == list(range(1, 1_001))
    view.close()
    queue.check()


@pytest.mark.acceptance("D07")
def test_fifty_views_opened_at_different_times_are_each_right() -> None:
    chooser = random.Random(50)
    queue = WriteQueue()
    live: dict[bytes, int] = {}
    opened: list[tuple[QueueView, list[int]]] = []
    for seqno in range(1, 5_001):
        key = b"%d" % chooser.randint(1, 60)
        put(queue, seqno, key, live.get(key, 0))
        live[key] = seqno
        if seqno % 100 == 0:
            opened.append((queue.open_view(), sorted(live.values())))
    assert len(opened) == 50
    chooser.shuffle(opened)
    while opened:
        assert all(seqnos(view) == expected for view, expected in opened)
        opened.pop()[0].close()
        queue.check()
    assert queue.retired == 0


# --- D18: an overwritten entry goes --------------------------------------------------------------


def test_a_persisted_version_is_not_looked_for_when_its_key_is_written_again() -> None:
    queue = filled(10)
    queue.drop_persisted(10)
    put(queue, 11, b"key-3", 3)
    assert (queue.live, queue.retired) == (1, 0)
    queue.check()


# --- D22: what was persisted leaves --------------------------------------------------------------


def test_a_restored_queue_takes_what_comes_after_the_stored_seqno() -> None:
    queue = WriteQueue(high_seqno=1_000)
    put(queue, 1_001, b"k", 400)
    view = queue.open_view()
    assert seqnos(view) == [1_001]
    view.close()
    queue.drop_persisted(1_001)
    assert queue.live == 0


# --- D08: what a view costs ----------------------------------------------------------------------


def calls_made(action: Callable[[], object]) -> int:
    """Count the function calls, C functions included, that `action` makes."""
    count = 0

    def note(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    with uncollected():
        sys.setprofile(note)
        try:
            action()
        finally:
            sys.setprofile(None)
    return count


def bytes_taken(action: Callable[[], object]) -> int:
    """Return the most memory that `action` had in use at once: the least of three looks.

    Another thread of the test's process may need some at any time.
    """
    return min(_bytes_taken_once(action) for _ in range(3))


def _bytes_taken_once(action: Callable[[], object]) -> int:
    with uncollected():
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            tracemalloc.reset_peak()
            action()
            return tracemalloc.get_traced_memory()[1] - before
        finally:
            tracemalloc.stop()


@contextmanager
def uncollected() -> Iterator[None]:
    """Keep the collector, and with it what other tests left behind, out of a measurement."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@pytest.mark.acceptance("D08")
def test_a_view_of_a_hundred_thousand_items_costs_what_one_of_ten_costs() -> None:
    short, long = filled(10), filled(100_000)

    def use(queue: WriteQueue) -> Callable[[], object]:
        return lambda: queue.open_view().close()

    assert calls_made(use(long)) == calls_made(use(short)) < 20
    taken = {queue: bytes_taken(use(queue)) for queue in (short, long)}
    assert abs(taken[long] - taken[short]) < 200
    assert taken[long] < 2_000


@pytest.mark.acceptance("D08")
def test_an_overwrite_under_a_view_costs_the_same_in_a_long_queue() -> None:
    def overwrite(count: int) -> int:
        queue = filled(count)
        view = queue.open_view()
        new = record(count + 1, b"key-1")
        calls = calls_made(lambda: queue.put(count + 1, new, 1))
        view.close()
        return calls

    assert overwrite(100_000) <= overwrite(100) + 2


@pytest.mark.acceptance("D08")
@pytest.mark.usefixtures("no_collector")
def test_an_overwritten_entry_is_freed_at_once_when_no_view_needs_it() -> None:
    queue = WriteQueue()
    first = record(1, b"k")
    alone = sys.getrefcount(first)
    queue.put(1, first, 0)
    assert sys.getrefcount(first) > alone
    put(queue, 2, b"k", 1)
    assert sys.getrefcount(first) == alone


@pytest.mark.acceptance("D08")
@pytest.mark.usefixtures("no_collector")
def test_the_last_view_that_needs_an_entry_frees_it_by_closing() -> None:
    queue = WriteQueue()
    first = record(1, b"k")
    alone = sys.getrefcount(first)
    queue.put(1, first, 0)
    views = [queue.open_view() for _ in range(5)]
    put(queue, 2, b"k", 1)
    late = queue.open_view()
    for view in (views[2], views[4], views[0], views[1]):
        view.close()
        assert sys.getrefcount(first) > alone
    views[3].close()
    assert sys.getrefcount(first) == alone, "only the late view is left, which never showed it"
    late.close()


@pytest.mark.acceptance("D08")
@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("with_view", [False, True])
def test_persisted_entries_are_freed_at_once(with_view: bool) -> None:
    queue = WriteQueue()
    entries = [record(seqno) for seqno in range(1, 2 * _SEGMENT + 10)]
    alone = references(entries)
    for entry in entries:
        queue.put(seqno_of(entry), entry, 0)
    del entry
    view = queue.open_view()
    if not with_view:
        view.close()
    queue.drop_persisted(queue.high_seqno)
    assert references(entries) - alone == (len(entries) if with_view else 0)
    view.close()
    assert references(entries) == alone, "the newest segment is let go too"


@pytest.mark.acceptance("D08")
@pytest.mark.usefixtures("no_collector")
def test_a_queue_that_was_left_behind_goes_with_its_last_view() -> None:
    queue = filled(500)
    view = queue.open_view()
    first = next(view.records())
    held = sys.getrefcount(first)
    del queue
    assert len(seqnos(view)) == 500
    view.close()
    del view
    assert sys.getrefcount(first) == held - 1


@pytest.mark.acceptance("D08")
@pytest.mark.usefixtures("no_collector")
def test_memory_returns_to_where_it_was_after_heavy_use() -> None:
    def use(queue: WriteQueue, first: int) -> None:
        views: list[QueueView] = []
        for seqno in range(first, first + 5_000):
            put(queue, seqno, b"%d" % (seqno % 50), max(seqno - 50, 0))
            if seqno % 250 == 0:
                views.append(queue.open_view())
        queue.drop_persisted(queue.high_seqno)
        while views:
            views.pop(len(views) // 2).close()

    queue = WriteQueue()
    use(queue, 1)
    base = sys.getallocatedblocks()
    for round_number in range(1, 4):
        use(queue, 1 + 5_000 * round_number)
    assert sys.getallocatedblocks() - base < 100
    assert (queue.live, queue.retired, queue.open_views) == (0, 0, 0)


# --- everything at once --------------------------------------------------------------------------


class QueueMachine(RuleBasedStateMachine):
    """The queue against the plainest model: a dict of live seqnos, and a list for each view."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = WriteQueue()
        self.live: dict[bytes, int] = {}
        self.newest: dict[bytes, int] = {}
        self.views: list[tuple[QueueView, list[int]]] = []

    @rule(key=st.sampled_from([b"a", b"b", b"c", b"d"]), gap=st.sampled_from([1, 1, 1, 2, 40, 130]))
    def put(self, key: bytes, gap: int) -> None:
        seqno = self.queue.high_seqno + gap
        put(self.queue, seqno, key, self.newest.get(key, 0))
        self.live[key] = self.newest[key] = seqno

    @rule(count=st.integers(1, 150))
    def put_new_keys(self, count: int) -> None:
        for _ in range(count):
            seqno = self.queue.high_seqno + 1
            key = b"new-%d" % seqno
            put(self.queue, seqno, key, 0)
            self.live[key] = self.newest[key] = seqno

    @precondition(lambda self: self.newest)
    @rule(data=st.data())
    def overwrite_any(self, data: st.DataObject) -> None:
        self.put(data.draw(st.sampled_from(sorted(self.newest))), 1)

    @precondition(lambda self: len(self.views) < 8)
    @rule()
    def open_view(self) -> None:
        self.views.append((self.queue.open_view(), sorted(self.live.values())))

    @precondition(lambda self: self.views)
    @rule(data=st.data())
    def close_view(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.views) - 1))
        self.views.pop(index)[0].close()

    @rule(data=st.data())
    def drop_persisted(self, data: st.DataObject) -> None:
        upto = data.draw(st.integers(0, self.queue.high_seqno))
        persisted = max(upto, self.queue.persisted)
        self.queue.drop_persisted(upto)
        assert self.queue.persisted == persisted
        self.live = {key: seqno for key, seqno in self.live.items() if seqno > upto}

    @rule(data=st.data())
    def read_without_a_view(self, data: st.DataObject) -> None:
        after = data.draw(st.integers(self.queue.persisted, self.queue.high_seqno + 1))
        view = self.queue.open_view()
        assert self.queue.since(after) == list(view.records(after))
        view.close()

    @precondition(lambda self: self.views)
    @rule(data=st.data(), limit=st.integers(1, 200))
    def take(self, data: st.DataObject, limit: int) -> None:
        view, expected = data.draw(st.sampled_from(self.views))
        after = data.draw(st.integers(0, self.queue.high_seqno + 1))
        left = [seqno for seqno in expected if seqno > after]
        taken = list(map(seqno_of, view.take(limit, after)))
        assert taken == left[: len(taken)]
        assert min(limit, len(left)) <= len(taken) < limit + _SEGMENT

    @invariant()
    def every_view_shows_what_it_must(self) -> None:
        self.queue.check()
        for view, expected in self.views:
            assert seqnos(view) == expected

    @invariant()
    def nothing_is_kept_without_need(self) -> None:
        needed = {seqno for _, expected in self.views for seqno in expected}
        assert self.queue.live == len(self.live)
        assert self.queue.retired == len(needed - set(self.live.values()))
        assert self.queue.open_views == len(self.views)

    def teardown(self) -> None:
        for view, _ in self.views:
            view.close()
        assert self.queue.retired == 0
        self.queue.check()


TestQueueMachine = pytest.mark.acceptance("D07", "D08", "D18", "D22")(QueueMachine.TestCase)
TestQueueMachine.settings = settings(max_examples=60, stateful_step_count=30)
