"""Counts of tasks become those of the whole, and survive JSON."""

from __future__ import annotations

import json
import pickle
from base64 import b64decode
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uprmc.columnar.errors import BadFile
from uprmc.columnar.report import (
    FIRST_ERRORS_MAX,
    KEY_SHOWN_BYTES,
    OUTCOMES,
    VALUE_SHOWN_BYTES,
    Counts,
    ErrorFile,
    ErrorRow,
    Report,
    TaskReport,
    merge,
)

COUNTERS = [each.name for each in fields(Counts) if each.type == "int"]
REPORTS = st.lists(
    st.builds(
        TaskReport,
        partition=st.integers(0, 99),
        first_errors=st.lists(st.text(max_size=3), max_size=FIRST_ERRORS_MAX),
        error_file=st.one_of(st.none(), st.text(min_size=1, max_size=5)),
        dry_run=st.booleans(),
        **{name: st.integers(0, 10**9) for name in COUNTERS},
    ),
    max_size=6,
)


@given(REPORTS)
def test_the_whole_is_the_sum_of_the_tasks(reports: list[TaskReport]) -> None:
    whole = merge(reports)
    for name in COUNTERS:
        assert getattr(whole, name) == sum(getattr(each, name) for each in reports)
    assert whole.tasks == len(reports)
    assert sorted(whole.error_files) == sorted(r.error_file for r in reports if r.error_file)
    assert len(whole.first_errors) == min(
        FIRST_ERRORS_MAX, sum(len(each.first_errors) for each in reports)
    )
    assert Report.from_dict(json.loads(whole.to_json())) == whole


@given(REPORTS)
def test_a_task_s_report_travels(reports: list[TaskReport]) -> None:
    for each in reports:
        assert pickle.loads(pickle.dumps(each)) == each
        assert TaskReport.from_dict(each.to_dict()) == each


def test_a_report_is_balanced_when_every_row_has_come_to_something() -> None:
    counts = {name: number for number, name in enumerate(OUTCOMES, 1)}
    assert TaskReport(rows=sum(counts.values()), **counts).balanced  # type: ignore[arg-type]
    assert not TaskReport(rows=sum(counts.values()) + 1, **counts).balanced  # type: ignore[arg-type]


def test_what_is_no_report_is_told() -> None:
    with pytest.raises(BadFile, match="TaskReport"):
        TaskReport.from_dict({"rows": 1, "cows": 2})


def test_a_summary_leaves_out_what_is_nought() -> None:
    assert TaskReport(rows=1234, applied=1234).summary() == "1,234 rows, 1,234 written"
    assert "7 with errors" in TaskReport(rows=8, applied=1, errors=7).summary()


# --- error rows -----------------------------------------------------------------------------------
# Rows that could not be written, as people and programs read them.


def test_a_line_shows_the_beginning_of_what_is_long() -> None:
    row = ErrorRow(7, "KEY_TOO_LONG", "why", b"k" * (KEY_SHOWN_BYTES + 1), b"v" * 257, 3, "BUSY")
    line = row.to_json(1, 2)
    assert "\n" not in line
    found = json.loads(line)
    assert len(b64decode(found["key"])) == KEY_SHOWN_BYTES
    assert len(b64decode(found["value"])) == VALUE_SHOWN_BYTES
    assert (found["vb"], found["status"], found["row"]) == (3, "BUSY", 7)


def test_a_row_without_key_is_told_by_where_it_came_from() -> None:
    row = ErrorRow(7, "NO_KEY", "the key is NULL")
    assert row.text() == "row 7: NO_KEY: the key is NULL"
    assert row.text(lambda n: f"a.csv:{n + 2}") == "a.csv:9: NO_KEY: the key is NULL"


def test_there_is_no_file_before_there_is_a_row(tmp_path: Path) -> None:
    file = ErrorFile(str(tmp_path / "new"), 0, 0)
    file.close()
    assert file.path is None
    assert list(tmp_path.iterdir()) == []


def test_lines_are_on_disk_while_the_task_goes_on(tmp_path: Path) -> None:
    file = ErrorFile(str(tmp_path), 2, 1)
    for number in range(3):
        file.write(ErrorRow(number, "NO_KEY", "none"))
        assert file.path is not None
        assert len(Path(file.path).read_text().splitlines()) == number + 1
    file.close()
    file.close()


def test_the_next_write_into_the_directory_leaves_the_rows_of_the_last_one(tmp_path: Path) -> None:
    paths = []
    for number in range(3):  # as the micro-batches of a stream do
        file = ErrorFile(str(tmp_path), 2, 0)
        file.write(ErrorRow(number, "NO_KEY", "none"))
        file.close()
        paths.append(str(file.path))
    assert [Path(path).name for path in paths] == [
        "errors-00002-0.jsonl", "errors-00002-0-1.jsonl", "errors-00002-0-2.jsonl",
    ]  # fmt: skip
    assert [json.loads(Path(path).read_text())["row"] for path in paths] == [0, 1, 2]


def test_a_directory_has_so_many_files_of_a_task_and_not_one_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("uprmc.columnar.report.FILES_MAX", 2)
    for number in range(2):
        (tmp_path / ("errors-00002-0-1.jsonl" if number else "errors-00002-0.jsonl")).touch()
    with pytest.raises(BadFile, match="tidy it up"):
        ErrorFile(str(tmp_path), 2, 0).write(ErrorRow(0, "NO_KEY", "none"))


def test_a_directory_that_cannot_be_made_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadFile, match="cannot be written"):
        ErrorFile(str(tmp_path / "file"), 0, 0).write(ErrorRow(0, "NO_KEY", "none"))
