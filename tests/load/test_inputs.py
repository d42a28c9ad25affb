"""Tasks of a load: every line of every file is in exactly one, however the files are cut."""

from __future__ import annotations

import gzip
import json
import os
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from uprmc.columnar.errors import BadFile, BadOption, MissingFile
from uprmc.load import inputs
from uprmc.load.inputs import (
    BadLine,
    Dialect,
    InputRow,
    LoadTask,
    Numbering,
    fingerprint,
    plan,
    rows_of,
)


def read(tasks: list[LoadTask]) -> tuple[list[dict[str, Any]], list[tuple[int, str]]]:
    """Return all rows, and the bad lines as (number in the file, reason)."""
    rows: list[dict[str, Any]] = []
    bad = []
    for task in tasks:
        number = Numbering(task)
        for row in rows_of(task):
            if isinstance(row, BadLine):
                bad.append((number(row.number), row.reason))
            else:
                assert isinstance(row, InputRow)
                rows.append(row.fields)
    return rows, bad


def written(path: Path, data: bytes | str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return str(path)


# --- which files ----------------------------------------------------------------------------------


def test_a_directory_gives_its_files_in_order_without_hidden_ones(tmp_path: Path) -> None:
    for name in (
        "b.jsonl",
        "a.jsonl",
        "_SUCCESS",
        ".a.jsonl.crc",
        "sub/c.jsonl",
        "_temporary/d.jsonl",
    ):
        written(tmp_path / name, '{"x":1}\n')
    names = [os.path.relpath(task.path, tmp_path) for task in plan([str(tmp_path)])]
    assert names == ["a.jsonl", "b.jsonl", "sub/c.jsonl"]


def test_a_pattern_gives_what_matches_it(tmp_path: Path) -> None:
    for name in ("a1.jsonl", "a2.jsonl", "b1.jsonl"):
        written(tmp_path / name, '{"x":1}\n')
    tasks = plan([str(tmp_path / "a*.jsonl"), str(tmp_path / "b1.jsonl")])
    assert [os.path.basename(task.path) for task in tasks] == ["a1.jsonl", "a2.jsonl", "b1.jsonl"]
    assert [task.number for task in tasks] == [0, 1, 2]


def test_directories_named_like_columns_give_columns(tmp_path: Path) -> None:
    table = pa.table({"id": [1]})
    for day in ("day=1%3A2", "day=__HIVE_DEFAULT_PARTITION__"):
        (tmp_path / day).mkdir()
        pq.write_table(table, tmp_path / day / "part.parquet")
    rows, _ = read(plan([str(tmp_path)]))
    assert rows == [{"id": 1, "day": "1:2"}, {"id": 1, "day": None}]


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("nothing.csv", "no file at"),
        ("*.csv", "no file at"),
        ("s3://bucket/x.csv", "mount it"),
        ("data.txt", "csv, jsonl or parquet"),
        ("empty", "no file in"),
    ],
)
def test_a_path_that_leads_nowhere_is_refused(tmp_path: Path, path: str, says: str) -> None:
    written(tmp_path / "data.txt", "x")
    (tmp_path / "empty").mkdir()
    whole = path if "://" in path else str(tmp_path / path)
    with pytest.raises(MissingFile if says.startswith("no file") else BadOption, match=says):
        plan([whole])


def test_every_file_has_a_task_so_that_what_is_empty_was_looked_at(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,value\n")
    (tmp_path / "b.jsonl").touch()
    pq.write_table(pa.table({"id": pa.array([], pa.int64())}), tmp_path / "c.parquet")
    tasks = plan([str(tmp_path)])
    assert [os.path.basename(task.path) for task in tasks] == ["a.csv", "b.jsonl", "c.parquet"]
    assert read(tasks) == ([], [])


@pytest.mark.parametrize(
    ("paths", "format", "says"),
    [
        (["-"], None, "say --format csv or jsonl"),
        (["-", "-"], "jsonl", "once only"),
        (["-"], "parquet", "load it from a file"),
        (["pipe"], "parquet", "load it from a file"),
    ],
)
def test_a_pipe_that_cannot_be_read_is_refused_before_it_is_opened(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    paths: list[str],
    format: str | None,
    says: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    with pytest.raises(BadOption, match=says):
        plan(paths, format=format)


def test_a_format_can_be_said(tmp_path: Path) -> None:
    path = written(tmp_path / "data.txt", '{"x":1}\n')
    assert read(plan([path], format="jsonl"))[0] == [{"x": 1}]


def test_more_files_than_the_limit_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs, "FILES_MAX", 2)
    for name in "ab":
        written(tmp_path / f"{name}.jsonl", "{}\n")
    assert len(plan([str(tmp_path)])) == 2
    written(tmp_path / "c.jsonl", "{}\n")
    with pytest.raises(BadOption, match="more than 2 files"):
        plan([str(tmp_path)])


def test_a_parquet_file_that_is_none_is_named(tmp_path: Path) -> None:
    path = written(tmp_path / "x.parquet", "not parquet")
    with pytest.raises(BadFile, match=r"x\.parquet"):
        plan([path])


# --- cutting --------------------------------------------------------------------------------------


@given(
    st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=12), max_size=30),
    st.integers(1, 60),
    st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_every_json_line_is_in_exactly_one_task(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], task_bytes: int, ends: bool
) -> None:
    path = tmp_path_factory.mktemp("lines") / "x.jsonl"
    lines = [json.dumps({"n": n, "t": text}) for n, text in enumerate(texts)]
    written(path, "\n".join(lines) + ("\n" if ends else ""))
    rows, bad = read(plan([str(path)], task_bytes=task_bytes))
    assert rows == [{"n": n, "t": text} for n, text in enumerate(texts)]
    assert not bad


_FIELD = st.text(st.characters(codec="utf-8", exclude_characters="\r\x00"), max_size=8)


@given(st.lists(st.tuples(_FIELD, _FIELD), max_size=20), st.integers(1, 50))
@settings(max_examples=150, deadline=None)
def test_every_csv_row_is_in_exactly_one_task_with_and_without_line_ends_in_fields(
    tmp_path_factory: pytest.TempPathFactory, table: list[tuple[str, str]], task_bytes: int
) -> None:
    path = tmp_path_factory.mktemp("rows") / "x.csv"
    quoted = [",".join('"' + field.replace('"', '""') + '"' for field in row) for row in table]
    written(path, "\n".join(["a,b", *quoted]) + "\n")
    rows, bad = read(plan([str(path)], task_bytes=task_bytes))
    assert [(row["a"], row["b"]) for row in rows] == table
    assert not bad


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(1, 2000))
@settings(max_examples=30, deadline=None)
def test_every_row_group_is_in_exactly_one_task(
    tmp_path_factory: pytest.TempPathFactory, groups: list[int], task_bytes: int
) -> None:
    path = tmp_path_factory.mktemp("groups") / "x.parquet"
    schema = pa.schema([("id", pa.int64())])
    count = 0
    with pq.ParquetWriter(path, schema) as writer:
        for size in groups:
            ids = list(range(count, count + size))
            writer.write_table(pa.table({"id": ids}, schema=schema))
            count += size
    tasks = plan([str(path)], task_bytes=task_bytes)
    assert [row["id"] for row in read(tasks)[0]] == list(range(count))
    last = tasks[-1]
    assert Numbering(last)(0) == sum(groups[: last.first]) + 1


def test_a_csv_file_without_line_ends_in_fields_is_cut(tmp_path: Path) -> None:
    path = written(tmp_path / "x.csv", "a,b\n" + '1,"x"\n' * 100)
    assert len(plan([path], task_bytes=100)) == 6


def test_a_csv_file_with_a_line_end_in_a_field_is_one_task(tmp_path: Path) -> None:
    path = written(tmp_path / "x.csv", "a,b\n" + '1,"x"\n' * 100 + '2,"y\nz"\n')
    assert len(plan([path], task_bytes=100)) == 1


def test_the_scan_for_line_ends_in_fields_looks_beyond_its_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs, "_SCAN_BYTES", 3)
    torn = written(tmp_path / "torn.csv", "a,b\n" + "1,2\n" * 50 + '3,"abc\ndef"\n')
    even = written(tmp_path / "even.csv", "a,b\n" + "1,2\n" * 50 + '3,"abcdef"\n')
    assert len(plan([torn], task_bytes=20)) == 1
    assert len(plan([even], task_bytes=20)) > 1


def test_the_number_of_tasks_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "TASKS_MAX", 10)
    path = written(tmp_path / "x.jsonl", '{"a":1}\n' * 1000)
    assert len(plan([path], task_bytes=1)) == 10


def test_the_cut_does_not_depend_on_anything_but_the_files(tmp_path: Path) -> None:
    path = written(tmp_path / "x.jsonl", '{"a":1}\n' * 100)
    again = pickle.loads(pickle.dumps(plan([path], task_bytes=64)))
    assert again == plan([path], task_bytes=64)
    assert fingerprint(again) == fingerprint(plan([path], task_bytes=64))
    assert fingerprint(again) != fingerprint(plan([path], task_bytes=65))
    written(tmp_path / "x.jsonl", '{"a":2}\n' * 100)
    assert fingerprint(again) != fingerprint(plan([path], task_bytes=64))


def test_a_file_that_changes_after_the_plan_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "x.jsonl", '{"a":1}\n')
    tasks = plan([path])
    written(tmp_path / "x.jsonl", '{"a":1}\n{"a":2}\n')
    with pytest.raises(BadFile, match="has changed"):
        read(tasks)
    os.unlink(path)
    with pytest.raises(BadFile, match="cannot read"):
        read(tasks)


@pytest.mark.parametrize("name", ["x.jsonl", "x.csv", "x.jsonl.gz", "x.csv.gz"])
def test_an_empty_file_has_no_rows(tmp_path: Path, name: str) -> None:
    data = b"a,b\n" if "csv" in name else b""
    path = written(tmp_path / name, gzip.compress(data) if name.endswith("gz") else data)
    assert read(plan([path])) == ([], [])


# --- lines that are none --------------------------------------------------------------------------


@pytest.mark.parametrize("task_bytes", [1, 7, 20, 10_000])
def test_a_bad_json_line_is_named_by_its_number_in_the_file(
    tmp_path: Path, task_bytes: int
) -> None:
    lines = [
        '{"a":1}',
        "",
        "{nonsense",
        '{"a":2}',
        "[1]",
        '{"a":NaN}',
        b"\xff".hex(),
        '{"a":3}',
    ]
    path = written(tmp_path / "x.jsonl", "\n".join(lines) + "\n")
    rows, bad = read(plan([path], task_bytes=task_bytes))
    assert rows == [{"a": 1}, {"a": 2}, {"a": 3}]
    assert [number for number, _ in bad] == [3, 5, 6, 7]
    assert [reason.partition(":")[0] for _, reason in bad] == [
        *("no JSON", "no JSON object", "no JSON", "no JSON")
    ]


def test_json_that_is_no_utf8_or_nests_too_deep_is_a_bad_line(tmp_path: Path) -> None:
    deep = b'{"a":' + b"[" * 100_000
    path = written(tmp_path / "x.jsonl", b'{"a":"\xff"}\n' + deep + b"\n" + b'{"a":1}\n')
    rows, bad = read(plan([path]))
    assert rows == [{"a": 1}]
    assert [number for number, _ in bad] == [1, 2]


@pytest.mark.parametrize("task_bytes", [1, 9, 10_000])
def test_a_bad_csv_line_is_named_by_its_number_in_the_file(tmp_path: Path, task_bytes: int) -> None:
    path = written(tmp_path / "x.csv", 'a,b\n1,2\n\n3\n4,5,6\n"7"x,8\n9,10\n')
    rows, bad = read(plan([path], task_bytes=task_bytes))
    assert rows == [{"a": "1", "b": "2"}, {"a": "9", "b": "10"}]
    assert [number for number, _ in bad] == [4, 5, 6]


def test_a_quote_that_is_never_closed_is_a_bad_line_where_it_begins(tmp_path: Path) -> None:
    path = written(tmp_path / "x.csv", 'a,b\n1,2\n3,"x\n4,5\n')
    rows, bad = read(plan([path], task_bytes=4))
    assert rows == [{"a": "1", "b": "2"}]
    assert [number for number, _ in bad] == [3]


@pytest.mark.parametrize("form", ["x.jsonl", "x.csv"])
def test_a_line_at_the_limit_is_read_and_one_above_is_bad(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    monkeypatch.setattr("uprmc.load.inputs.LINE_BYTES_MAX", 40)

    def line(size: int) -> str:
        return '{"a":"' + "x" * (size - 9) + '"}\n' if "json" in form else "x" * (size - 1) + "\n"

    data = ("" if "json" in form else "a\n") + line(40) + line(41) + line(200) + line(12)
    rows, bad = read(plan([written(tmp_path / form, data)]))
    assert [len(row["a"]) for row in rows] == [
        31 if "json" in form else 39,
        3 if "json" in form else 11,
    ]
    first = 2 if "json" in form else 3
    assert [number for number, _ in bad] == [first, first + 1]


# --- dialects -------------------------------------------------------------------------------------


def test_columns_of_a_file_without_header_are_named(tmp_path: Path) -> None:
    path = written(tmp_path / "x.csv", "1;2\n3;4\n")
    dialect = Dialect(delimiter=";", header=False, columns=("a", "b"))
    assert read(plan([path], dialect=dialect))[0] == [{"a": "1", "b": "2"}, {"a": "3", "b": "4"}]
    with pytest.raises(BadOption, match="names of its columns"):
        plan([path], dialect=Dialect(header=False))


def test_tabs_null_escape_and_a_mark_of_byte_order(tmp_path: Path) -> None:
    path = written(tmp_path / "x.tsv", b'\xef\xbb\xbfa\tb\n1\t\\N\n"x \\" y"\t\n')
    rows, _ = read(plan([path], dialect=Dialect(null="\\N", escape="\\")))
    assert rows[1] == {"a": 'x " y', "b": ""}
    plain = written(tmp_path / "y.tsv", b"\xef\xbb\xbfa\tb\n1\t\\N\n")
    assert read(plan([plain], dialect=Dialect(null="\\N")))[0] == [{"a": "1", "b": None}]


@pytest.mark.parametrize(
    ("header", "says"), [("a,a\n", "two columns"), ("\n", "without a header"), ('"a\n', "header")]
)
def test_a_header_that_names_no_columns_is_refused(tmp_path: Path, header: str, says: str) -> None:
    with pytest.raises(BadFile, match=says):
        plan([written(tmp_path / "x.csv", header + "1,2\n")])


@pytest.mark.parametrize("wrong", [{"delimiter": ""}, {"quote": "ab"}, {"escape": "\n"}])
def test_a_dialect_that_no_file_has_is_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    path = written(tmp_path / "x.csv", "a\n1\n")
    with pytest.raises(BadOption, match="one ASCII character"):
        plan([path], dialect=Dialect(**wrong))


@pytest.mark.parametrize("name", ["x.jsonl.gz", "x.csv.gz"])
def test_a_compressed_file_is_one_task_and_its_lines_have_numbers(
    tmp_path: Path, name: str
) -> None:
    good, torn = ('{"a":"1"}\n', "[\n") if "json" in name else ("1\n", "2,3\n")
    text = ("" if "json" in name else "a\n") + good * 50 + torn
    path = written(tmp_path / name, gzip.compress(text.encode()))
    tasks = plan([path], task_bytes=10)
    assert len(tasks) == 1
    rows, bad = read(tasks)
    assert rows == [{"a": "1"}] * 50
    assert [number for number, _ in bad] == [51 if "json" in name else 52]


def test_a_torn_compressed_file_is_an_error_and_no_end(tmp_path: Path) -> None:
    data = gzip.compress(b"".join(b'{"a":%d}\n' % n for n in range(20_000)))
    path = written(tmp_path / "x.jsonl.gz", data[: len(data) // 2])
    with pytest.raises(BadFile, match="cannot read"):
        read(plan([path]))
