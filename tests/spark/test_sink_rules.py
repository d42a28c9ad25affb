"""What a sink refuses before it writes, and what it tells afterwards; without a JVM."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="a sink is a class of Spark's")

from pyspark.sql.types import (
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from uprmc.columnar.errors import (
    BadOption,
    BadSchema,
    NotRepeatable,
    OverwriteRefused,
    TooManyErrors,
)
from uprmc.columnar.report import TaskReport
from uprmc.spark.api import refuse_speculation
from uprmc.spark.sink import BatchSink, SinkWritten, StreamSink, sink_options

SERVERS = {"servers": "127.0.0.1:1"}


def schema(*names: str) -> StructType:
    return StructType([StructField(name, StringType()) for name in names])


def _type(kind: str) -> Any:
    kinds = {"bigint": LongType, "string": StringType, "int": IntegerType, "double": DoubleType}
    return kinds[kind]() if kind in kinds else StructType([StructField("a", IntegerType())])


class Spark:
    """A session that has settings and nothing else."""

    def __init__(self, **conf: str) -> None:
        self.conf = {name.replace("_", "."): value for name, value in conf.items()}


def messages(*errors: int) -> list[Any]:
    return [
        SinkWritten(TaskReport(partition=n, rows=10, applied=10 - each, errors=each))
        for n, each in enumerate(errors)
    ]


# --- before ---------------------------------------------------------------------------------------


def test_nothing_is_ever_overwritten_as_a_whole() -> None:
    with pytest.raises(OverwriteRefused, match=r'\.mode\("append"\)'):
        sink_options(SERVERS, schema("key", "value"), True)


@pytest.mark.parametrize(
    ("names", "options", "missing"),
    [
        (["value"], {}, "key"),
        (["key"], {}, "value"),
        (["key"], {"writeMode": "insert"}, "value"),
        (["key", "value", "_rev"], {"writeMode": "append-meta"}, "_cas"),
        (["key", "value"], {"flagsColumn": "f"}, "f"),
        (["key", "value"], {"ttlColumn": "t"}, "t"),
        (["key", "value"], {"expColumn": "e"}, "e"),
        (["id"], {"writeMode": "delete"}, "key"),
    ],
)
def test_a_column_that_is_missing_is_told_before_anything_is_written(
    names: list[str], options: dict[str, str], missing: str
) -> None:
    with pytest.raises(BadSchema, match=f"there is no column '{missing}'"):
        sink_options({**SERVERS, **options}, schema(*names), False)


@pytest.mark.parametrize(
    ("kinds", "options", "says"),
    [
        ({"key": "bigint", "value": "string"}, {}, "column 'key' has type int64"),
        ({"key": "string", "value": "struct<a: int>"}, {}, "column 'value' has type struct"),
        ({"key": "string", "value": "string", "_op": "int"}, {}, "column '_op' has type int32"),
        ({"key": "string", "value": "string", "t": "double"}, {"ttlColumn": "t"}, "column 't'"),
        ({"key": "string", "value": "string", "_flags": "string"}, {}, "column '_flags'"),
        ({"key": "string", "value": "string", "c": "string"}, {"casColumn": "c"}, "column 'c'"),
    ],
)
def test_a_column_of_the_wrong_type_is_told_before_anything_is_written(
    kinds: dict[str, str], options: dict[str, str], says: str
) -> None:
    fields = [StructField(name, _type(kind)) for name, kind in kinds.items()]
    with pytest.raises(BadSchema, match=says):
        sink_options({**SERVERS, **options}, StructType(fields), False)


def test_a_delete_needs_no_values() -> None:
    found = sink_options({**SERVERS, "writeMode": "delete"}, schema("key"), False)
    assert found.write.mode == "delete"


def test_columns_beside_those_that_are_written_are_no_matter() -> None:
    rows = StructType([*schema("key", "value").fields, StructField("n", LongType())])
    assert sink_options(SERVERS, rows, False).write.mode == "upsert"


def test_an_option_of_reading_is_refused() -> None:
    with pytest.raises(BadOption, match="snapshot is no option of writing"):
        sink_options({**SERVERS, "snapshot": "held"}, schema("key", "value"), False)


@pytest.mark.parametrize("mode", ["insert", "delete"])
def test_modes_that_do_not_bear_two_attempts_at_once_are_refused_under_speculation(
    mode: str,
) -> None:
    with pytest.raises(NotRepeatable, match="UPRMC_SPECULATION"):
        refuse_speculation(Spark(spark_speculation="true"), mode)
    refuse_speculation(Spark(spark_speculation="false"), mode)
    refuse_speculation(Spark(), mode)


@pytest.mark.parametrize("mode", ["upsert", "append-meta"])
def test_modes_that_bear_it_are_not(mode: str) -> None:
    refuse_speculation(Spark(spark_speculation="true"), mode)


# --- afterwards -----------------------------------------------------------------------------------


def batch_sink(path: Path, **options: str) -> BatchSink:
    given = {**SERVERS, "reportPath": str(path), **options}
    return BatchSink(sink_options(given, schema("key", "value"), False))


def test_a_report_is_the_sum_of_all_tasks(tmp_path: Path) -> None:
    report = tmp_path / "new" / "report.json"
    sink = pickle.loads(pickle.dumps(batch_sink(report)))
    sink.commit(pickle.loads(pickle.dumps(messages(0, 1))))
    found = json.loads(report.read_text())
    assert (found["rows"], found["applied"], found["errors"], found["tasks"]) == (20, 19, 1, 2)
    assert (found["state"], found["failed_tasks"]) == ("committed", 0)


def test_the_errors_of_all_tasks_count_together(tmp_path: Path) -> None:
    limit = {"maxErrors": "3"}
    batch_sink(tmp_path / "a", **limit).commit(messages(1, 2))
    with pytest.raises(TooManyErrors, match="4 rows could not be written, maxErrors is 3"):
        batch_sink(tmp_path / "b", **limit).commit(messages(2, 2))


def test_a_job_that_failed_reports_what_its_tasks_have_written_all_the_same(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    batch_sink(report).abort([*messages(0), None])
    found = json.loads(report.read_text())
    assert (found["state"], found["applied"], found["failed_tasks"]) == ("aborted", 10, 1)


def test_a_stream_reports_a_line_for_each_batch(tmp_path: Path) -> None:
    report = tmp_path / "report.jsonl"
    given = {**SERVERS, "reportPath": str(report)}
    sink = StreamSink(sink_options(given, schema("key", "value"), False))
    sink.commit(messages(0), 7)
    sink.abort([None], 8)
    lines = [json.loads(line) for line in report.read_text().splitlines()]
    assert [(each["batch"], each["state"]) for each in lines] == [(7, "committed"), (8, "aborted")]
