"""The cycle collector is kept away from the data and still frees what is young."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.support import node_here
from uprmc.server import system


class Knot:
    """Something in a cycle with itself."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def taken() -> Iterator[None]:
    system.take_collector_over()
    yield
    system.give_collector_back()


@pytest.mark.usefixtures("taken")
def test_nothing_is_collected_by_itself() -> None:
    assert not gc.isenabled()
    knot = weakref.ref(Knot())
    young = [[] for _ in range(100_000)]
    assert knot() is not None
    del young
    system.collect_young()
    assert knot() is None


@pytest.mark.usefixtures("taken")
def test_what_lives_is_looked_at_once() -> None:
    kept = [[number] for number in range(1_000)]
    system.collect_young()
    assert gc.get_freeze_count() > len(kept)
    assert sum(gc.get_count()) < len(kept)
    assert gc.get_objects(generation=2) == []


@pytest.mark.usefixtures("taken")
def test_a_cycle_that_grew_old_stays_until_the_node_gives_back() -> None:
    """Why connections must not be in a cycle: see `tests.system.test_leaks`."""
    knot = Knot()
    seen = weakref.ref(knot)
    system.collect_young()
    del knot
    system.collect_young()
    assert seen() is not None
    system.give_collector_back()
    assert gc.isenabled()
    gc.collect()
    assert seen() is None


@pytest.mark.usefixtures("taken")
def test_what_is_in_no_cycle_is_freed_at_once() -> None:
    thing = type("Thing", (), {})()
    seen = weakref.ref(thing)
    system.collect_young()
    del thing
    assert seen() is None


def test_a_node_takes_the_collector_and_gives_it_back(tmp_path: Path) -> None:
    assert gc.isenabled()
    with node_here(tmp_path) as (node, loop):
        assert not gc.isenabled()
        knot = weakref.ref(Knot())
        loop.until(lambda: knot() is None)  # housekeeping tends
        assert node.bucket.traffic
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0
