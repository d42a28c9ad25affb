"""Rows that could not be written, as people and programs read them."""

from __future__ import annotations

import json
from base64 import b64decode
from pathlib import Path

import pytest

from uprmc.columnar.errors import BadFile
from uprmc.columnar.report import KEY_SHOWN_BYTES, VALUE_SHOWN_BYTES, ErrorFile, ErrorRow


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
