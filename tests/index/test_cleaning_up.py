"""Rows of vBuckets that an index has lost are removed a few at a time, between updates.

Source: systems reference c.7; row I16.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.index.test_store_histories import Histories
from uprmc.index import store
from uprmc.index.vbucket_sets import States, numbers

SLICE = 3


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Histories]:
    """Three vBuckets with ten documents each."""
    monkeypatch.setattr(store, "_ROWS", SLICE)
    machine = Histories()
    for vbucket in range(3):
        machine.change(vbucket, [(b"key %d" % n, n) for n in range(8)], 99)
    yield machine
    machine.teardown()


def lose(machine: Histories, lost: int) -> None:
    def change(states: States) -> States:
        return states._replace(active=states.active & ~lost, cleanup=states.cleanup | lost)

    machine.store.change_states(change)


def want(machine: Histories, wanted: int) -> None:
    def change(states: States) -> States:
        return states._replace(active=states.active | wanted, cleanup=states.cleanup & ~wanted)

    machine.store.change_states(change)


def clean(machine: Histories) -> bool:
    work = machine.store.work()
    return work is not None and next(work, True) is not False


def rows_of(machine: Histories, vbucket: int) -> int:
    return sum(row.vbucket == vbucket for row in machine.store.view.trees.views[0].rows())


@pytest.mark.acceptance("I16")
def test_a_slice_removes_a_few_rows_and_the_state_shows_what_is_left(machine: Histories) -> None:
    lose(machine, 0b011)
    slices, before = 0, 20
    while clean(machine):
        slices += 1
        view = machine.store.view
        left = rows_of(machine, 0) + rows_of(machine, 1)
        assert before - left <= SLICE
        before = left
        assert rows_of(machine, 2) == 10
        shown = set(numbers(view.states.cleanup))
        assert {vb for vb in (0, 1) if rows_of(machine, vb)} <= shown <= {0, 1}
        assert view.states.active == 0b100
        assert view.trees.vbuckets & ~view.states.active == view.states.cleanup
        if slices == 2:  # the others are updated meanwhile
            machine.change(2, [(b"a", 77)], 9)
    assert slices > 2 * 20 // SLICE
    assert machine.store.states.cleanup == 0
    assert machine.store.view.trees.vbuckets == 0b100
    machine.store.write_header()
    machine.rows_are_those_of_where_it_stands()


@pytest.mark.acceptance("I16")
@pytest.mark.parametrize("slices", [0, 1, 4, 7, 8, 12])
def test_a_vbucket_that_comes_back_meanwhile_has_the_rows_of_its_history(
    machine: Histories, slices: int
) -> None:
    lose(machine, 0b001)
    for _ in range(min(slices, 8)):
        clean(machine)
    machine.at_source(0).changes.extend([(b"key 1", None), (b"key 7", None)])
    want(machine, 0b001)
    machine.follow(0, 99)
    machine.rows_are_those_of_where_it_stands()


@pytest.mark.acceptance("I16")
def test_a_cleanup_that_is_interrupted_goes_on_after_a_crash(machine: Histories) -> None:
    lose(machine, 0b001)
    clean(machine)
    clean(machine)
    machine.store.write_header()
    machine.crash()  # it is wanted again by then
    assert machine.stands(0) == 0
    machine.follow(0, 99)
    machine.rows_are_those_of_where_it_stands()


def test_what_is_alone_in_its_trees_is_removed_at_once(machine: Histories) -> None:
    lose(machine, 0b111)
    clean(machine)
    assert machine.store.states.cleanup == 0
    assert machine.store.view.trees.ids.count == 0


def test_a_compaction_meanwhile_misses_nothing_of_the_cleanup(machine: Histories) -> None:
    machine.compact()
    lose(machine, 0b001)
    while clean(machine):
        if machine.store.compacting.current is not None:
            machine.store.compacting.current._thread.join()
    assert machine.store.compacting.done == 1
    assert machine.store.view.trees.vbuckets == 0b110
    machine.rows_are_those_of_where_it_stands()
