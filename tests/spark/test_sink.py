"""``df.write.format("uprmc")`` in a real Spark: every mode, with tasks that are run twice.

What a node then has is read by the project's other client.
"""

from __future__ import annotations

import json
import os
import signal
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import uprmc.spark
from interop.server_process import ServerProcess, start_uprmc
from tests.bulk import here
from tests.spark.refusing import refusal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

COUNT = 400


@pytest.fixture
def write(servers: str) -> Callable[..., None]:
    """Return what a user's program would say, with options."""

    def written(rows: DataFrame, **options: Any) -> None:
        writer: Any = rows.write.format("uprmc").mode("append").option("servers", servers)
        writer.options(**options).save()

    return written


def rows_of(spark: SparkSession, prefix: str, value: str = "v", count: int = COUNT) -> DataFrame:
    """Return rows, made by two tasks."""
    made = spark.range(0, count, 1, 2)
    return made.selectExpr(f"concat('{prefix}', id) as key", f"concat('{value}', id) as value")


def expected(prefix: str, value: str = "v", count: int = COUNT) -> dict[bytes, bytes]:
    return {f"{prefix}{n}".encode(): f"{value}{n}".encode() for n in range(count)}


def there(node: ServerProcess, prefix: str) -> dict[bytes, bytes]:
    found = here.contents(node)
    return {key: value for key, value in found.items() if key.startswith(prefix.encode())}


def failing_once(rows: DataFrame, kill: bool = False) -> DataFrame:
    """Return the same rows; at the first attempt each task fails behind the last of them."""

    def once(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        for batch in batches:
            for at in range(0, batch.num_rows, 20):
                yield batch.slice(at, 20)
        if TaskContext.get().attemptNumber() == 0:  # type: ignore[union-attr]
            if kill:
                os.kill(os.getpid(), signal.SIGKILL)
            raise RuntimeError("once")

    return rows.mapInArrow(once, rows.schema)


def report_in(path: Path) -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads(path.read_text())
    return found


def lines_of(files: list[str]) -> list[Mapping[str, Any]]:
    return [json.loads(line) for file in files for line in Path(file).read_text().splitlines()]


# --- modes ----------------------------------------------------------------------------------------


def test_an_upsert_whose_tasks_fail_once_leaves_each_document_and_a_delete_none(
    spark: SparkSession, node: ServerProcess, write: Callable[..., None], tmp_path: Path
) -> None:
    report = tmp_path / "report.json"
    rows = failing_once(rows_of(spark, "up-"), kill=True)
    write(rows, window=10, reportPath=str(report))
    assert there(node, "up-") == expected("up-")
    found = report_in(report)
    assert found["state"] == "committed"
    assert (found["rows"], found["applied"], found["errors"]) == (COUNT, COUNT, 0)
    assert (found["tasks"], found["failed_tasks"]) == (2, 0)
    write(failing_once(rows_of(spark, "up-").select("key")), writeMode="delete", window=10)
    assert there(node, "up-") == {}


def test_an_insert_knows_what_its_first_attempt_has_written_from_what_others_have(
    spark: SparkSession, node: ServerProcess, write: Callable[..., None], tmp_path: Path
) -> None:
    here.put(node, {b"in-7": b"somebody else's"})
    report, errors = tmp_path / "report.json", tmp_path / "errors"
    write(
        failing_once(rows_of(spark, "in-")),
        writeMode="insert",
        window=10,
        onError="file",
        errorsPath=str(errors),
        maxErrors=1,
        reportPath=str(report),
    )
    assert there(node, "in-") == {**expected("in-"), b"in-7": b"somebody else's"}
    found = report_in(report)
    assert found["errors"] == 1
    assert found["applied"] + found["existed"] == COUNT - 1
    (line,) = lines_of(found["error_files"])
    assert line["key"] == b64encode(b"in-7").decode()


def test_a_copy_with_its_metadata_is_the_same_and_a_replay_applies_nothing(
    spark: SparkSession, node: ServerProcess, fresh_node: ServerProcess
) -> None:
    here.put(node, here.numbered(COUNT, prefix="copy"), flags=5)
    here.put(node, {b"copy-gone": b"x"})
    here.remove(node, b"copy-gone")
    target = str(fresh_node.upr)
    with uprmc.spark.hold(str(node.upr)) as lease:
        rows = uprmc.spark.read(spark, str(node.upr), lease=lease)
        first = uprmc.spark.write(failing_once(rows), target, "append-meta", window=10)
        again = uprmc.spark.write(rows, target, "append-meta", repartition=False)
        source = here.changes(node)
    copied = here.changes(fresh_node)
    assert set(copied) == set(source)
    for key, change in source.items():
        same = ("op", "value", "rev", "cas", "flags", "expiry")
        assert [getattr(copied[key], name) for name in same] == [
            getattr(change, name) for name in same
        ]
    assert first.rows == again.rows == len(source)
    assert (again.applied, again.conflicts) == (0, len(source))


def test_the_last_row_of_a_key_wins_when_rows_are_ordered(
    spark: SparkSession, node: ServerProcess, servers: str
) -> None:
    rows = spark.range(0, 1000, 1, 2).selectExpr(
        "concat('order-', id % 10) as name", "cast(id as string) as text", "id", "3 as f", "0 as t"
    )
    report = uprmc.spark.write(
        rows,
        servers,
        key_column="name",
        value_column="text",
        flags_column="f",
        ttl_column="t",
        order_by="id",
    )
    assert (report.rows, report.applied) == (1000, 1000)
    assert there(node, "order-") == {
        f"order-{n}".encode(): str(990 + n).encode() for n in range(10)
    }
    assert here.changes(node)[b"order-1"].flags == 3


def test_a_dry_run_sends_nothing(spark: SparkSession, node: ServerProcess, servers: str) -> None:
    report = uprmc.spark.write(rows_of(spark, "dry-"), servers, dry_run=True)
    assert report.rows == COUNT
    assert report.dry_run
    assert there(node, "dry-") == {}


# --- what goes wrong ------------------------------------------------------------------------------


def test_save_modes_that_cannot_be_are_refused(
    spark: SparkSession, write: Callable[..., None], servers: str
) -> None:
    writer = rows_of(spark, "mode-").write.format("uprmc").option("servers", servers)
    told = refusal(lambda: writer.mode("overwrite").save())
    assert "UPRMC_OVERWRITE" in told
    assert '.mode("append")' in told
    with pytest.raises(Exception, match="UNSUPPORTED_DATA_SOURCE_SAVE_MODE"):
        writer.mode("error").save()


def test_wrong_options_and_columns_are_told_by_name(
    spark: SparkSession, write: Callable[..., None]
) -> None:
    rows = rows_of(spark, "bad-")
    told = refusal(lambda: write(rows, writeMod="upsert"))
    assert "UPRMC_OPTION" in told
    assert "did you mean writeMode?" in told
    told = refusal(lambda: write(rows, keyColumn="id"))
    assert "UPRMC_SCHEMA there is no column 'id'" in told
    told = refusal(lambda: write(rows, reportPath=f"{__file__}/report.json"))
    assert "UPRMC_FILE reportPath=" in told


def test_rows_that_cannot_be_written_stop_the_job_or_go_to_a_file(
    spark: SparkSession, node: ServerProcess, write: Callable[..., None], tmp_path: Path
) -> None:
    texts = ["'ok'", "repeat('k', 250)", "repeat('k', 251)", "''", "cast(null as string)"]
    rows = spark.sql(f"select explode(array({', '.join(texts)})) as key, 'v' as value")
    assert "UPRMC_ROW" in refusal(lambda: write(rows))
    errors, report = tmp_path / "errors", tmp_path / "report.json"
    options = {"onError": "file", "errorsPath": str(errors), "reportPath": str(report)}
    write(rows, **options)
    assert {b"ok", b"k" * 250} <= set(here.contents(node))
    found = report_in(report)
    assert (found["applied"], found["errors"]) == (2, 3)
    lines = lines_of(found["error_files"])
    assert len(lines) == 3
    assert b64encode(b"k" * 251).decode() in {line["key"] for line in lines}
    assert "UPRMC_TOO_MANY_ERRORS" in refusal(lambda: write(rows, maxErrors=2, **options))
    assert report_in(report)["state"] == "aborted"


def test_a_server_that_is_killed_and_comes_back_does_not_hurt_a_write(
    spark: SparkSession, tmp_path: Path
) -> None:
    data, begun = tmp_path / "data", tmp_path / "begun"
    server = start_uprmc(data, "--vbuckets", "64")

    def slowly(batches: Iterator[Any]) -> Iterator[Any]:
        import time

        for batch in batches:
            for at in range(0, batch.num_rows, 20):
                yield batch.slice(at, 20)
                begun.touch()
                time.sleep(0.02)

    rows = rows_of(spark, "hard-", count=2_000)
    rows = rows.mapInArrow(slowly, rows.schema)
    with here.AtSight(begun, lambda: here.restarted(server, data)) as restart:
        report = uprmc.spark.write(
            rows, str(server.upr), repartition=False, durability="persist", window=50
        )
    with restart.result as again:
        assert report.applied == 2_000
        assert here.contents(again) == expected("hard-", count=2_000)


# --- streams --------------------------------------------------------------------------------------


def test_a_stream_is_written_batch_by_batch_and_a_replayed_batch_changes_nothing(
    spark: SparkSession, node: ServerProcess, servers: str, tmp_path: Path
) -> None:
    files, checkpoint, report = tmp_path / "in", tmp_path / "checkpoint", tmp_path / "report"

    def run() -> None:
        source = spark.readStream.schema("key string, value string").parquet(str(files))
        query = (
            source.writeStream.format("uprmc")
            .option("servers", servers)
            .option("reportPath", str(report))
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(60)

    rows_of(spark, "stream-", "a").write.mode("append").parquet(str(files))
    run()
    assert there(node, "stream-") == expected("stream-", "a")
    for file in (checkpoint / "commits").iterdir():
        file.unlink()
    run()
    assert there(node, "stream-") == expected("stream-", "a")
    told = [json.loads(line) for line in report.read_text().splitlines()]
    assert [(each["batch"], each["rows"], each["state"]) for each in told] == [
        (0, COUNT, "committed"),
        (0, COUNT, "committed"),
    ]
