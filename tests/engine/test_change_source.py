"""One reading of a vBucket: disk and queue fit together, at every step of a flush."""

from __future__ import annotations

import pytest

from tests.contents import table_of
from tests.engine.readings import judge, open_reading
from tests.engine.support import FaultyStore, Node, settings_of
from uprmc.engine.reading import Reading, needs_disk
from uprmc.engine.tombstones import PurgeRule
from uprmc.engine.vbucket import VBucket
from uprmc.errors import StoreError
from uprmc.model import Item, Life, VBucketHeader
from uprmc.record import unpack
from uprmc.storage.memory import MemoryView


def read(node: Node, after: int = 0) -> list[Item]:
    reading = open_reading(node.store, node.vbucket, after)
    try:
        return list(reading.changes(after))
    finally:
        reading.close()


def pairs(items: list[Item]) -> list[tuple[bytes, int]]:
    return [(item.key, item.seqno) for item in items]


def nothing_is_held(node: Node) -> bool:
    queue = node.vbucket.queue
    return queue.open_views == queue.retired == 0 and node.store.grow()


def fill(vbucket: VBucket, count: int, prefix: bytes = b"") -> list[Item]:
    return [vbucket.store(b"%s%03d" % (prefix, each), b"v", 0, 0) for each in range(count)]


@pytest.mark.acceptance("D40")
def test_what_is_written_after_it_was_opened_is_not_in_it(node: Node) -> None:
    accepted = [node.set(b"a"), node.set(b"b")]
    node.flush()
    accepted.append(node.set(b"c"))
    reading = open_reading(node.store, node.vbucket, 0)
    node.set(b"a", b"later")
    node.set(b"d", b"later")
    node.flush()
    node.set(b"b", b"later")
    assert reading.end_seqno == 3
    assert list(reading.changes(0)) == accepted
    reading.close()
    assert nothing_is_held(node)


@pytest.mark.acceptance("D42", "P13")
def test_a_key_with_a_newer_queued_version_comes_once_at_its_newer_place(node: Node) -> None:
    for key in (b"a", b"b", b"c"):
        node.set(key)
    node.flush()
    node.set(b"a", b"newer")
    node.set(b"d")
    assert pairs(read(node)) == [(b"b", 2), (b"c", 3), (b"a", 4), (b"d", 5)]


@pytest.mark.acceptance("D41")
@pytest.mark.parametrize("step", ["queued", "begun", "committed", "finished", "partly", "all"])
@pytest.mark.parametrize("after", range(0, 212, 30))
def test_disk_and_queue_fit_at_every_step_of_a_flush(step: str, after: int) -> None:
    node = Node(settings_of(flush={"batch_items": 64}))
    accepted = fill(node.vbucket, 50)
    node.flush()
    accepted += fill(node.vbucket, 150)  # the first 50 again
    flusher = node.bucket.flusher
    if step == "begun":
        node.begin()
    elif step == "committed":
        flusher.commit(node.begin())
    elif step in ("finished", "partly"):
        flush = node.begin()
        flusher.commit(flush)
        flusher.finish(flush)
        if step == "partly":
            flusher.commit(node.begin())
    elif step == "all":
        node.flush()
    accepted += [node.vbucket.delete(b"%03d" % each) for each in range(5, 15)]
    reading = open_reading(node.store, node.vbucket, after)
    judge(list(reading.changes(after)), accepted, after, 210, 0)
    reading.close()


@pytest.mark.acceptance("D41")
def test_the_queue_alone_serves_whoever_has_everything_that_is_on_disk(node: Node) -> None:
    fill(node.vbucket, 3)
    assert not needs_disk(node.vbucket, 0)
    flush = node.begin()
    node.bucket.flusher.commit(flush)
    assert not needs_disk(node.vbucket, 0), "nothing has left the queue yet"
    node.bucket.flusher.finish(flush)
    assert needs_disk(node.vbucket, 2)
    assert not needs_disk(node.vbucket, 3)


def test_without_need_the_store_is_left_alone(node: Node) -> None:
    fill(node.vbucket, 3)
    node.flush()
    node.set(b"new")
    reading = open_reading(node.store, node.vbucket, 3)
    assert not reading.from_disk
    assert node.store.grow(), "no view of the store is open"
    assert pairs(list(reading.changes(3))) == [(b"new", 4)]
    reading.close()


@pytest.mark.acceptance("D43", "P14")
def test_items_come_as_they_were_written_wherever_they_are_read_from(node: Node) -> None:
    vbucket = node.vbucket
    written = [
        vbucket.store(b"flags", b"\x00\xff", 0xDEADBEEF, 0, datatype=1),
        vbucket.store(b"expiry", b"v", 1, 2_000_000_000),
        vbucket.store(b"empty", b"", 2, 0),
    ]
    node.set(b"gone")
    written.append(vbucket.delete(b"gone"))
    node.set(b"late", expiry=int(node.clock.now()) + 1)
    node.clock.advance(2)
    assert vbucket.get(b"late") is None
    written.append(table_of(vbucket)[b"late"])
    from_queue = read(node)
    node.flush()
    node.eject(b"flags", b"expiry")
    from_disk = read(node)
    assert from_queue == from_disk == written
    assert [item.life for item in from_disk[-2:]] == [Life.DELETED, Life.EXPIRED]
    assert [item.value for item in from_disk[2:4]] == [b"", None], "empty is not deleted"


def test_it_can_be_read_as_often_as_one_likes_from_any_place(node: Node) -> None:
    fill(node.vbucket, 5)
    node.flush()
    fill(node.vbucket, 3)
    reading = open_reading(node.store, node.vbucket, 0)
    first = list(reading.changes(0))
    node.bucket.flush(0, lambda _: None)
    node.flush()
    assert list(reading.changes(0)) == first
    for after in range(9):
        assert list(reading.changes(after)) == [item for item in first if item.seqno > after]
    reading.close()


@pytest.mark.parametrize("after", [0, 2, 5])
def test_reading_on_after_it_was_closed_is_a_store_error(node: Node, after: int) -> None:
    fill(node.vbucket, 5)
    node.flush()
    fill(node.vbucket, 100, b"queued")
    reading = open_reading(node.store, node.vbucket, 0)
    changes = reading.changes(after)
    first = next(changes)
    reading.close()
    reading.close()
    assert first.value == b"v", "what was read stays valid"
    with pytest.raises(StoreError):
        list(changes)
    with pytest.raises(StoreError):
        list(reading.changes(after))
    with pytest.raises(StoreError):
        reading.records(after)
    assert nothing_is_held(node)


def test_the_store_s_part_comes_as_records_too(node: Node) -> None:
    for key in (b"a", b"b", b"c", b"d"):
        node.set(key)
    node.vbucket.delete(b"b")
    node.flush()
    node.set(b"a", b"newer")
    reading = open_reading(node.store, node.vbucket, 0)
    stored = [unpack(record) for record in reading.records(3)]
    assert pairs(stored) == [(b"d", 4), (b"b", 5)]
    assert reading.newer == {b"a"}
    assert pairs(list(map(unpack, reading.queued(3)))) == [(b"a", 6)]
    assert list(reading.records(5)) == []
    assert list(reading.queued(6)) == []
    reading.close()


def test_a_reading_that_began_in_the_queue_ends_when_it_is_closed_too(node: Node) -> None:
    fill(node.vbucket, 300)
    reading = open_reading(node.store, node.vbucket, 0)
    changes = reading.changes(0)
    next(changes)
    reading.close()
    with pytest.raises(StoreError):
        list(changes)


class UnreadableView(MemoryView):
    """It opens and cannot be read."""

    def header(self, vbucket: int) -> VBucketHeader | None:
        raise StoreError("a bad sector")


class UnreadableStore(FaultyStore):
    """Keeps the views that it hands out."""

    def __init__(self) -> None:
        super().__init__()
        self.views: list[MemoryView] = []

    def view(self) -> MemoryView:
        self.views.append(UnreadableView(self, self._state))
        return self.views[-1]


def test_a_store_that_cannot_be_read_leaves_nothing_held(node: Node) -> None:
    fill(node.vbucket, 3)
    node.flush()
    store = UnreadableStore()
    with pytest.raises(StoreError):
        open_reading(store, node.vbucket, 0)
    with pytest.raises(StoreError):
        store.views[0].headers()  # it was closed
    assert nothing_is_held(node)


def test_after_a_reset_nothing_of_the_former_history_is_read(node: Node) -> None:
    fill(node.vbucket, 8)
    node.flush()
    before = open_reading(node.store, node.vbucket, 0)
    node.bucket.flush(0, lambda _: None)
    assert read(node) == []
    fresh = node.set(b"fresh")
    assert read(node) == [fresh]
    flush = node.begin()
    node.bucket.flusher.commit(flush)
    assert read(node) == [fresh]
    node.bucket.flusher.finish(flush)
    assert read(node) == [fresh]
    assert len(list(before.changes(0))) == 8
    before.close()
    assert nothing_is_held(node)


@pytest.fixture
def purged(node: Node) -> Node:
    """A node with five documents, a tombstone 6 that is about to be dropped, and a last one."""
    fill(node.vbucket, 5)
    node.vbucket.delete(b"002")
    node.set(b"last")
    node.flush()
    node.bucket.compact(0, PurgeRule(every=True), lambda _: None)
    while node.bucket.compactor.waiting:
        look = node.bucket.compactor.begin()
        assert look is not None
        node.bucket.compactor.read(look)
        node.bucket.compactor.finish(look)
    return node


def test_the_purge_seqno_is_that_of_the_moment_of_opening(purged: Node) -> None:
    before = open_reading(purged.store, purged.vbucket, 0)
    assert before.purge_seqno == 6, "it rises before the commit, so that no stream is let in late"
    assert b"002" in [item.key for item in before.changes(0)]
    purged.flush()
    after = open_reading(purged.store, purged.vbucket, 0)
    assert after.purge_seqno == 6
    assert b"002" not in [item.key for item in after.changes(0)]
    for reading in (before, after):
        reading.close()


def test_a_view_that_is_anothers_stays_open(node: Node) -> None:
    fill(node.vbucket, 2)
    node.flush()
    view = node.store.view()
    reading = Reading(node.vbucket, view, owns_view=False)
    reading.close()
    assert view.count() == 2
    view.close()
    assert nothing_is_held(node)
