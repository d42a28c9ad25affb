"""What a rollback does to the file: it is cut to the header that is returned to.

Source: systems reference c.5; rows I19 to I21.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.index.test_store_histories import KEYS, Histories
from uprmc.index.errors import WentBack


@pytest.fixture
def machine() -> Iterator[Histories]:
    machine = Histories()
    yield machine
    machine.teardown()


def write(machine: Histories, vbucket: int, count: int) -> None:
    machine.change(vbucket, [(KEYS[n % 4], n) for n in range(count)], 100, header=True)


@pytest.mark.acceptance("I19")
@pytest.mark.acceptance("I20")
def test_the_file_ends_with_the_newest_header_below_the_seqno(machine: Histories) -> None:
    write(machine, 0, 8)  # it stands at 10, as 1 and 2 stand at 2
    write(machine, 1, 3)
    wanted = machine.store.files.header
    assert wanted is not None
    write(machine, 0, 5)
    write(machine, 1, 2)
    file = machine.store.files.current.file
    assert file.size > wanted.end
    with pytest.raises(WentBack):
        machine.store.roll_back(0, 12)
    assert file.path.stat().st_size == wanted.end
    assert [machine.stands(vbucket) for vbucket in (0, 1, 2)] == [10, 5, 2]
    assert machine.store.rollbacks == {"header": 1}
    machine.rows_are_those_of_where_it_stands()
    machine.follow(0, 100)
    machine.follow(1, 100)
    assert [machine.stands(vbucket) for vbucket in (0, 1, 2)] == [15, 7, 2]
    machine.rows_are_those_of_where_it_stands()


@pytest.mark.acceptance("I21")
@pytest.mark.acceptance("I24")
def test_where_no_header_is_below_it_only_this_vbucket_begins_at_zero(machine: Histories) -> None:
    write(machine, 0, 8)
    before = machine.store.maps.calls
    assert machine.store.roll_back(0, 1) is False
    assert machine.store.roll_back(0, 0) is True
    assert [machine.stands(vbucket) for vbucket in (0, 1, 2)] == [0, 2, 2]
    assert machine.store.maps.calls == before
    assert machine.store.durable_of(0) is None, "a crash brings old rows back"
    machine.rows_are_those_of_where_it_stands()


def test_a_header_that_costs_all_others_more_than_this_vbucket_is_not_returned_to(
    machine: Histories,
) -> None:
    write(machine, 0, 3)
    write(machine, 1, 90)
    assert machine.store.roll_back(0, 3) is False  # 5 changes to map again, instead of 93
    assert machine.stands(1) == 92


def test_a_rollback_to_where_it_stands_changes_nothing(machine: Histories) -> None:
    before = machine.store.view.trees
    assert machine.store.roll_back(0, 2) is True
    assert machine.store.roll_back(0, 5) is True
    assert machine.store.view.trees is before


def lose(machine: Histories, vbucket: int) -> None:
    """Remove all rows of a vBucket, and want it again."""
    machine.lose(1 << vbucket)
    while machine.store.states.cleanup:
        machine.work()
    machine.regain()


def test_a_header_with_rows_of_a_vbucket_that_began_at_zero_since_is_not_returned_to(
    machine: Histories,
) -> None:
    write(machine, 0, 8)
    write(machine, 0, 5)
    lose(machine, 1)
    machine.store.begin()
    assert machine.store.roll_back(0, 12) is False, "vBucket 1 has rows that deletions passed by"
    write(machine, 1, 3)
    assert machine.store.roll_back(0, 12) is False
    assert machine.store.roll_back(0, 0) is True
    machine.rows_are_those_of_where_it_stands()


def test_a_crash_after_streams_began_brings_nothing_back_that_began_at_zero(
    machine: Histories,
) -> None:
    write(machine, 0, 8)
    lose(machine, 1)
    headers = machine.store.headers_written
    machine.store.begin()
    machine.store.begin()
    assert machine.store.headers_written == headers + 1
    machine.crash()
    assert [machine.stands(vbucket) for vbucket in (0, 1, 2)] == [10, 0, 2]


def test_a_copy_that_has_rows_of_what_begins_at_zero_begins_again(machine: Histories) -> None:
    write(machine, 0, 8)
    machine.compact()
    lose(machine, 1)
    machine.store.begin()
    write(machine, 1, 3)
    while machine.store.compacting.done == 0:
        machine.work()
    for header in machine.store.files.current.file.headers():
        assert header.positions[1].seqno == 5
