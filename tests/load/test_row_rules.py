"""What a load makes of a row, and what it says of one that gives no document."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from uprmc.columnar.errors import BadOption
from uprmc.load.inputs import Dialect, plan
from uprmc.load.row_rules import RowRules, Template, as_bytes, inferred, runs, to_json


def made(path: Path, rules: RowRules, **how: Any) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the documents that rules make of a file, and the reasons of bad lines."""
    rows: list[dict[str, Any]] = []
    reasons = []
    for task in plan([str(path)], **how):
        for run in runs(task, rules):
            assert len(run.numbers) == run.batch.num_rows
            rows += run.batch.to_pylist()
            reasons += [bad.reason for bad in run.bad]
    return rows, reasons


def lines(tmp_path: Path, *objects: dict[str, Any]) -> Path:
    path = tmp_path / "x.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in objects))
    return path


# --- templates ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "fields", "filled"),
    [
        ("id", {"id": "x"}, b"x"),
        ("user:{id}", {"id": 7}, b"user:7"),
        ("{a}:{b}", {"a": "x", "b": True}, b"x:true"),
        ("{{{id}}}", {"id": 1}, b"{1}"),
        ("{a b}", {"a b": b"\xff"}, b"\xff"),
        ("id", {"id": None}, None),
    ],
)
def test_a_template_is_filled_from_columns(
    text: str, fields: dict[str, Any], filled: bytes | None
) -> None:
    assert Template.of(text).fill(fields) == filled


@pytest.mark.parametrize("text", ["", "{", "user:{}", "{id:>5}", "{id!r}", "}x"])
def test_a_text_that_is_no_template_is_refused(text: str) -> None:
    with pytest.raises(BadOption):
        Template.of(text)


@given(
    st.text(st.characters(exclude_characters="{}", exclude_categories=["Cs"]), max_size=9),
    st.integers(),
)
def test_text_around_a_column_stays_as_it_is(text: str, number: int) -> None:
    template = Template.of(text + "{n}" + text)
    assert template.fill({"n": number}) == f"{text}{number}{text}".encode()


# --- values ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a\udcff", b"a\xff"),
        (1.5, b"1.5"),
        ([1, "ä"], '[1,"ä"]'.encode()),
        (Decimal("1.50"), b"1.50"),
        (datetime(2026, 1, 2, tzinfo=UTC), b"2026-01-02T00:00:00+00:00"),
    ],
)
def test_a_value_that_is_no_text_has_one(value: Any, text: bytes) -> None:
    assert as_bytes(value) == text


def test_decimals_in_json_are_numbers_unless_that_would_change_them() -> None:
    long = Decimal("1.234567890123456789012")
    assert to_json({"a": Decimal("1.50"), "b": long}) == b'{"a":1.50,"b":1.234567890123456789012}'
    assert to_json([Decimal("-0.0"), {"c": [Decimal("1E+3")]}]) == b'[-0.0,{"c":[1E+3]}]'


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
def test_a_decimal_that_is_no_number_of_json_is_a_bad_value(number: str) -> None:
    with pytest.raises(ValueError, match="is no number of JSON"):
        to_json({"a": Decimal(number)})


@pytest.mark.parametrize("text", ["\ud8000\ud800", "\ud8005\ud800", "\ud800"])
def test_half_a_character_beside_a_decimal_is_a_bad_value(text: str) -> None:
    with pytest.raises(ValueError, match=r"UTF-16|surrogates"):
        to_json({"a": Decimal(1), "b": text})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("1", 1), ("-1.5", -1.5), ("1e3", 1000.0), ("true", True), ("null", None)),
        *(
            ("007", "007"),
            ("1_0", "1_0"),
            ("", ""),
            ("NaN", "NaN"),
            ("1e999", "1e999"),
            ("+1", "+1"),
        ),
        ("9" * 400, "9" * 400),
    ],
)
def test_only_what_json_has_is_inferred(text: str, value: Any) -> None:
    assert inferred(text) == value
    assert type(inferred(text)) is type(value)


# --- rules ----------------------------------------------------------------------------------------


def test_columns_become_key_and_value(tmp_path: Path) -> None:
    path = lines(tmp_path, {"id": "a", "v": "1"}, {"id": "b", "v": {"x": [1]}})
    rows, _ = made(path, RowRules("id", "v"))
    assert rows == [{"key": b"a", "value": b"1"}, {"key": b"b", "value": b'{"x":[1]}'}]


def test_json_leaves_out_the_columns_that_have_a_place_of_their_own(tmp_path: Path) -> None:
    path = lines(tmp_path, {"id": "a", "name": "ä", "t": 60, "f": 3})
    (row,), _ = made(path, RowRules("id", "json", ttl="t", flags="f"))
    assert row == {"key": b"a", "value": '{"name":"ä"}'.encode(), "_ttl": 60, "_flags": 3}


def test_json_keeps_the_columns_of_a_template(tmp_path: Path) -> None:
    path = lines(tmp_path, {"id": 1, "name": "x"})
    (row,), _ = made(path, RowRules("u:{id}", "json", ttl="60"))
    assert row == {"key": b"u:1", "value": b'{"id":1,"name":"x"}', "_ttl": 60}


def test_a_whole_json_line_is_kept_byte_by_byte(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"id": "a",  "x": 1.50}\r\n')
    (row,), _ = made(path, RowRules("id", "json:all"))
    assert row["value"] == b'{"id": "a",  "x": 1.50}'


def test_csv_documents_hold_texts_or_on_demand_numbers(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("id,n,t\na,1,x\n")
    assert made(path, RowRules("id", "json"))[0][0]["value"] == b'{"n":"1","t":"x"}'
    dialect = Dialect(infer=True)
    assert made(path, RowRules("id", "json"), dialect=dialect)[0][0]["value"] == b'{"n":1,"t":"x"}'


def test_parquet_gives_bytes_and_nested_documents(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    table = pa.table(
        {"id": [b"\x00\xff"], "at": [datetime(2026, 1, 2, tzinfo=UTC)], "of": [{"a": [1, None]}]}
    )
    pq.write_table(table, path)
    (row,), _ = made(path, RowRules("id", "json"))
    assert row["key"] == b"\x00\xff"
    assert json.loads(row["value"]) == {"at": "2026-01-02T00:00:00+00:00", "of": {"a": [1, None]}}


def test_columns_of_metadata_of_parquet_are_passed_on_and_left_out_of_documents(
    tmp_path: Path,
) -> None:
    path = tmp_path / "x.parquet"
    table = pa.table({"key": ["a"], "v": ["w"], "_op": ["set"], "_rev": [2], "_cas": [-1]})
    pq.write_table(table, path)
    (row,), _ = made(path, RowRules(value="json"))
    assert row == {"key": b"a", "value": b'{"v":"w"}', "_op": "set", "_rev": 2, "_cas": -1}


def test_columns_of_metadata_of_other_files_are_passed_on_when_they_are_asked_for(
    tmp_path: Path,
) -> None:
    path = tmp_path / "x.csv"
    path.write_text(f"key,value,_rev,_cas\na,b,2,{2**64 - 1}\na,b,x,1\na,b,1.5,{2**64}\n")
    rows, reasons = made(path, RowRules(meta=True))
    nothing = {"_op": None, "_flags": None, "_exp": None, "_datatype": None}
    assert rows == [{"key": b"a", "value": b"b", "_rev": 2, "_cas": -1, **nothing}]
    assert reasons == ["column '_rev' is 'x'", "column '_rev' is '1.5'"]
    assert made(path, RowRules())[0][0] == {"key": b"a", "value": b"b"}


def test_no_value_is_read_for_deletions(tmp_path: Path) -> None:
    (row,), _ = made(lines(tmp_path, {"key": "a"}), RowRules(value=None))
    assert row == {"key": b"a", "value": None}


def test_a_value_may_be_null_and_a_key_may_not(tmp_path: Path) -> None:
    path = lines(tmp_path, {"key": "a", "value": None}, {"key": None, "value": "x"})
    rows, reasons = made(path, RowRules())
    assert rows == [{"key": b"a", "value": None}]
    assert reasons == ["no key: column 'key' is NULL"]


@pytest.mark.parametrize(
    ("row", "rules", "reason"),
    [
        ({"value": "x"}, RowRules(), "no key: no column 'key'"),
        ({"key": "a"}, RowRules(), "no column 'value'"),
        ({"id": None}, RowRules("u:{id}", "json"), "no key: column 'id' is NULL"),
        ({"key": "a", "value": "x", "t": -1}, RowRules(ttl="t"), "no number within"),
        ({"key": "a", "value": "x", "t": 2**32}, RowRules(ttl="t"), "no number within"),
        ({"key": "a", "value": "x", "t": "soon"}, RowRules(ttl="t"), "no number within"),
        ({"key": "a", "value": "x", "t": True}, RowRules(flags="t"), "no number within"),
        ({"key": "a", "x": "\ud800"}, RowRules(value="json"), "no UTF-8"),
        ({"key": "a", "x": 1e400}, RowRules(value="json"), "no JSON"),
    ],
)
def test_a_row_that_gives_no_document_says_why(
    tmp_path: Path, row: dict[str, Any], rules: RowRules, reason: str
) -> None:
    rows, reasons = made(lines(tmp_path, row, {"key": "b", "value": "y", "id": 1, "t": 0}), rules)
    assert len(rows) == 1
    assert reason in reasons[0]


@pytest.mark.parametrize(("text", "seconds"), [("300", 300), ("5m", 300), ("1d", 86_400), ("0", 0)])
def test_a_time_to_live_for_all_rows_may_have_a_unit(
    tmp_path: Path, text: str, seconds: int
) -> None:
    rules = RowRules(ttl=text)
    rules.check()
    (row,), _ = made(lines(tmp_path, {"key": "a", "value": "x"}), rules)
    assert row["_ttl"] == seconds


@pytest.mark.parametrize("number", [0, 2**32 - 1])
def test_numbers_at_the_limits_are_taken(tmp_path: Path, number: int) -> None:
    rules = RowRules(ttl="t", flags="t")
    (row,), _ = made(lines(tmp_path, {"key": "a", "value": "x", "t": number}), rules)
    assert (row["_ttl"], row["_flags"]) == (number, number)


@pytest.mark.parametrize(
    "rules", [RowRules(ttl="4294967296"), RowRules(key=""), RowRules("k", "{")]
)
def test_rules_that_no_row_can_follow_are_refused(rules: RowRules) -> None:
    with pytest.raises(BadOption):
        rules.check()


def test_batches_have_limits_in_rows_and_bytes(tmp_path: Path) -> None:
    path = lines(tmp_path, *({"key": f"k{n}", "value": "x" * 10} for n in range(10)))
    (task,) = plan([str(path)])
    by_rows = [len(s.numbers) for s in runs(task, RowRules(), batch_rows=4)]
    by_bytes = [len(s.numbers) for s in runs(task, RowRules(), batch_bytes=24)]
    assert by_rows == [4, 4, 2]
    assert by_bytes == [2] * 5
