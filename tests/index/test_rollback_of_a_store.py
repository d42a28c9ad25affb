"""What a rollback does to the file: it is cut to the header that is returned to.

Source: systems reference c.5; rows I19 to I21.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.index.test_store_histories import KEYS, Histories
from uprmc.index.upr_handler import WentBack


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
