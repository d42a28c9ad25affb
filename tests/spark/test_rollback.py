"""The rollback rule on the driver's side: as ``docs/streams.md`` says, and as a node decides."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uprmc.columnar.rollback import history_of, newest_boundary, rollback_point, shared_until
from uprmc.engine import rollback as engine
from uprmc.model import FailoverEntry, SnapshotRange

PAGE = Path(__file__).parents[2] / "docs" / "streams.md"
UUIDS = {name: number for number, name in enumerate("0ABCD")}


def table() -> list[list[str]]:
    """The rows of the page's table that have no flags."""
    text = PAGE.read_text(encoding="utf-8").partition("| log | high | purge |")[2]
    lines = text.splitlines()[2:]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in lines[: next(n for n, line in enumerate(lines) if not line.startswith("|"))]
    ]
    assert len(rows) == 18
    return [row for row in rows if row[6] == "0"]


def log_of(text: str) -> list[tuple[int, int]]:
    entries = (entry.split("@") for entry in text.split())
    return [(UUIDS[uuid], int(seqno)) for uuid, seqno in entries]


@pytest.mark.acceptance("D12", "D14")
@pytest.mark.parametrize("row", table(), ids=" ".join)
def test_the_driver_decides_as_the_page_says(row: list[str]) -> None:
    log, high, purge, uuid, start, snapshot, _, answer, _ = row
    first, last = map(int, snapshot.split(".."))
    place = (log_of(log), int(high), int(purge), int(start), first, last, UUIDS[uuid])
    if answer == "`0022`":
        with pytest.raises(ValueError, match="not inside"):
            rollback_point(*place)
    else:
        assert rollback_point(*place) == (None if answer == "accepted" else int(answer))


seqnos = st.integers(0, 12)


@st.composite
def logs(draw: st.DrawFn) -> list[tuple[int, int]]:
    begins = sorted(draw(st.lists(seqnos, max_size=3)))
    uuids = draw(st.permutations(range(1, 6)))
    return [(uuids[n], begin) for n, begin in enumerate([0, *begins])][::-1]


@given(logs(), seqnos, seqnos, st.lists(seqnos, min_size=3, max_size=3), st.integers(0, 6))
def test_the_driver_decides_as_the_node_does(
    log: list[tuple[int, int]], more: int, purge: int, place: list[int], uuid: int
) -> None:
    high = log[0][1] + more
    first, start, last = sorted(place)
    position = engine.Position(start, SnapshotRange(first, last), uuid)
    held = engine.Held(tuple(FailoverEntry(*entry) for entry in log), high, purge)
    expected = engine.rollback_point(position, held)
    assert rollback_point(log, high, purge, start, first, last, uuid) == expected


@given(logs(), seqnos, st.lists(seqnos, min_size=3, max_size=3), st.integers(1, 6))
def test_going_back_is_accepted_the_next_time(
    log: list[tuple[int, int]], more: int, place: list[int], uuid: int
) -> None:
    high = log[0][1] + more
    first, start, last = sorted(place)
    point = rollback_point(log, high, 0, start, first, last, uuid)
    if point is not None:
        back = newest_boundary(point, [first, 3, 7])
        assert back <= point
        assert rollback_point(log, high, 0, back, back, back, log[0][0]) is None


def test_a_boundary_above_the_point_does_not_count() -> None:
    assert newest_boundary(10, [12, 8, 3]) == 8
    assert newest_boundary(2, [12, 8, 3]) == 0
    assert newest_boundary(8, [12, 8, 3]) == 8


def test_a_seqno_belongs_to_the_history_that_began_below_it() -> None:
    log = [(3, 20), (2, 10), (1, 0)]
    assert [history_of(log, seqno) for seqno in (1, 10, 11, 20, 21)] == [1, 1, 2, 2, 3]
    assert history_of(log, 0) == 3


def test_an_unknown_history_is_not_shared_at_all() -> None:
    assert shared_until([(2, 10), (1, 0)], 30, 2) == 30
    assert shared_until([(2, 10), (1, 0)], 30, 1) == 10
    assert shared_until([(2, 10), (1, 0)], 30, 9) is None
