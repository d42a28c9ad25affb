"""The journal of a load: what it says is done is done, whatever happened to whoever wrote it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from uprmc.columnar.errors import BadFile
from uprmc.columnar.report import TaskReport
from uprmc.jobs.journal import Journal

FACTS = {"files": "abc", "key": "id", "servers": ["a:1"]}


def test_what_was_noted_is_done_the_next_time(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    report = TaskReport(rows=3, applied=3, partition=7, first_errors=["x"])
    with Journal(path, FACTS) as journal:
        journal.add(7, report)
    with Journal(path, FACTS) as journal:
        assert journal.done == {7: report}


def test_without_a_file_nothing_is_kept() -> None:
    with Journal(None, FACTS) as journal:
        journal.add(1, TaskReport(rows=1))
        assert list(journal.done) == [1]


def test_however_far_a_line_was_written_the_ones_before_it_count(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with Journal(path, FACTS) as journal:
        for number in (0, 1):
            journal.add(number, TaskReport(rows=number))
    data = path.read_bytes()
    whole = [index + 1 for index, byte in enumerate(data) if byte == 10]
    at_ends = {end + near for end in whole[:-1] for near in (-1, 0, 1)}
    for size in sorted(at_ends.union(range(0, len(data), 9))):
        path.write_bytes(data[:size])
        with Journal(path, FACTS) as journal:
            assert len(journal.done) == max(0, sum(end <= size for end in whole) - 1)
            journal.add(5, TaskReport(rows=5))
        with Journal(path, FACTS) as journal:
            assert 5 in journal.done


@pytest.mark.parametrize(
    ("changed", "says"), [({"files": "x"}, "files"), ({"key": "k"}, "its key was 'id' and is 'k'")]
)
def test_another_loads_journal_is_refused(
    tmp_path: Path, changed: dict[str, object], says: str
) -> None:
    path = tmp_path / "journal"
    with Journal(path, FACTS):
        pass
    with pytest.raises(BadFile, match=says):
        Journal(path, FACTS | changed)


@pytest.mark.parametrize("text", ["hello", "hello\n", "{}\n", '{"format": "x"}\n', "[]\n"])
def test_a_file_that_is_no_journal_is_refused_and_left_alone(tmp_path: Path, text: str) -> None:
    path = tmp_path / "journal"
    path.write_text(text)
    with pytest.raises(BadFile, match="no journal"):
        Journal(path, FACTS)
    assert path.read_text() == text


def test_a_journal_of_a_later_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.write_text(json.dumps({"format": "uprmc load", "version": 2, "load": FACTS}) + "\n")
    with pytest.raises(BadFile, match="another version"):
        Journal(path, FACTS)


def test_a_damaged_entry_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with Journal(path, FACTS):
        pass
    path.write_text(path.read_text() + "nonsense\n")
    with pytest.raises(BadFile, match="damaged"):
        Journal(path, FACTS)


def test_two_loads_do_not_share_a_journal(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with Journal(path, FACTS), pytest.raises(BadFile, match="another load at this moment"):
        Journal(path, FACTS)
    with Journal(path, FACTS):
        pass


def test_a_dry_run_looks_and_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with Journal(path, FACTS, read_only=True) as journal:
        journal.add(1, TaskReport())
    assert not path.exists()
    with Journal(path, FACTS) as journal:
        journal.add(1, TaskReport())
    before = path.read_bytes()
    with Journal(path, FACTS, read_only=True) as journal:
        assert list(journal.done) == [1]
        journal.add(2, TaskReport())
    assert path.read_bytes() == before


def test_a_journal_is_of_one_kind_of_work_and_forgotten_when_that_is_done(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with Journal(path, FACTS, "restore") as journal:
        journal.add(1, TaskReport(rows=1))
    with pytest.raises(BadFile, match="is no journal of a load"):
        Journal(path, FACTS)
    with Journal(path, FACTS, "restore") as journal:
        assert list(journal.done) == [1]
        journal.remove()
    assert not path.exists()
