"""A rollback in the midst of other work: of a first build, and with changes under way.

Source: systems reference c.5; rows I08, I18, I19.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from interop.replica_pair import Node
from interop.waiting import wait_until
from tests.index.running import cities, index_server, store
from tests.index.site import NEVER_FLUSHED
from tests.index.test_store_histories import Changes, Histories
from tests.server.support import Loop
from uprmc.index.errors import WentBack
from uprmc.index.updater import Stopped, Updater


@pytest.fixture
def machine() -> Iterator[Histories]:
    machine = Histories()
    yield machine
    machine.teardown()


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.close()


@pytest.mark.acceptance("I19")
@pytest.mark.parametrize("lost", [1, 2])
def test_a_first_build_that_is_sent_back_begins_again_with_the_other_history(
    machine: Histories, lost: int
) -> None:
    build_again(machine)
    machine.change(0, [(b"a", 1), (b"b", 2), (b"c", 3)], 9)
    machine.fail_over(0, lost)
    machine.change(0, [(b"d", 7)], 9)
    assert machine.store.rollbacks["build"] == 1
    for vbucket in (0, 1, 2):
        machine.follow(vbucket, 99)
    machine.store.finish_build()
    machine.rows_are_those_of_where_it_stands()
    assert [machine.stands(vb) for vb in range(3)] == [
        len(machine.at_source(vb).changes) for vb in range(3)
    ]


def build_again(machine: Histories) -> None:
    """Lose the index, so that a first build is under way."""
    machine.store.close(orderly=False)
    for path in machine.path.glob("*.index"):
        path.unlink()
    machine.store = machine.opened()
    machine.store.change_states(lambda states: states._replace(active=0b111))
    for vbucket in range(3):
        machine.follow(vbucket, 1)


class _Store:
    """A store that goes back when it is told to, and notes what else is done."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.go = threading.Event()

    def apply(self, batches: list[Any]) -> None:
        self.done.append(f"apply {len(batches)}")

    def forget(self, vbuckets: list[int]) -> None:
        self.done.append(f"forget {vbuckets}")

    def roll_back(self, vbucket: int, seqno: int) -> bool:
        self.go.wait(30)
        raise WentBack

    def seqno_of(self, vbucket: int) -> int:
        return 0

    def begin(self) -> None:
        self.done.append("begin")

    def finish_build(self) -> None:
        self.done.append("load")

    def header_due(self, now: float) -> None:
        return None

    def work(self) -> None:
        return None

    def close(self, *, orderly: bool) -> None:
        self.done.append("close")


@pytest.mark.acceptance("I19")
def test_what_was_queued_before_the_store_went_back_is_not_applied_to_what_it_has_now(
    loop: Loop, machine: Histories
) -> None:
    """Changes of other vBuckets would leave gaps; what they wait for is asked for again."""
    kept = _Store()
    updater = Updater(loop.reactor, "test", lambda: kept, 1_000_000, 100, lambda: None, 60.0)  # type: ignore[arg-type,return-value]
    loop.result(updater.started)
    returned = updater.roll_back(0, 5)
    assert isinstance(returned, Deferred)
    batch: Any = _Batch(1, machine.at_source(1), 1, 2, 2)
    updater.take(batch)
    updater.forget([2])
    level = updater.level(kept.finish_build)
    kept.go.set()
    with pytest.raises(WentBack):
        loop.result(returned)
    with pytest.raises(Stopped):
        loop.result(level)
    assert updater._queued_bytes == 0
    loop.result(updater.begin())
    updater.take(batch)
    loop.result(updater.level())
    loop.result(updater.stop())
    assert kept.done == ["begin", "apply 1", "close"]


class _Batch(Changes):
    """What the updater knows as a batch."""


SLOW = """
import pathlib, time

def slow(doc, meta):
    pathlib.Path({began!r}).touch()
    time.sleep(0.005)
    yield doc["city"], doc["n"]
"""
SLOWLY = {"views": {"by_city": {"map": {"python": "slow_maps:slow"}, "reduce": "_count"}}}


@pytest.mark.acceptance("I18")
def test_a_source_that_dies_in_a_first_build_and_has_lost_writes_is_indexed_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = tmp_path / "began"
    (tmp_path / "slow_maps.py").write_text(SLOW.format(began=str(began)))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    node = Node(tmp_path / "node", "--vbuckets", "8")
    node.start()
    try:
        store(node.server, cities(range(100)))
        node.stop()
        node.options = NEVER_FLUSHED
        node.start()
        store(node.server, cities(range(100, 400), city="lost"))
        settings = {"index.python_modules": "slow_maps", "index.batch_changes": "20"}
        with index_server(tmp_path / "index", node.upr, settings=settings) as server:
            views = server.views
            views.put("d", SLOWLY)
            wait_until(began.exists)
            node.kill()
            node.start()
            store(node.server, cities(range(1_000, 1_010)))
            ids = {f"k{n}" for n in [*range(100), *range(1_000, 1_010)]}
            wait_until(lambda: set(views.ids()) == ids, lambda: str(views.info()))
            assert views.count() == 110
    finally:
        node.end()
