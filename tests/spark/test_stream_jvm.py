"""Streams in a real Spark: what `following` decides, Spark writes down, repeats and shows."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from interop.replica_pair import Node
from tests.bulk.here import contents, numbered, put
from tests.bulk.world import persist, stop_persistence
from tests.spark.refusing import refusal
from tests.spark.stream_rows import Changes, rows_of
from uprmc.spark.api import current_offsets

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

TIMEOUT_S = 120


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Node]:
    found = Node(tmp_path / "data", "--vbuckets", "8")
    found.start()
    yield found
    found.end()


class Query:
    """A query into Parquet files that ends when there is nothing new."""

    def __init__(self, spark: SparkSession, home: Node, directory: Path) -> None:
        from uprmc.spark.session import register

        register(spark)
        self.spark, self.home = spark, home
        self.to, self.checkpoint = directory / "changes", directory / "checkpoint"

    def run(self, **options: str) -> list[dict[str, Any]]:
        """Run it; returns what Spark tells of its batches."""
        given = {"servers": str(self.home.upr), "keyType": "binary", **options}
        changes = self.spark.readStream.format("uprmc").options(**given).load()
        query = (
            changes.writeStream.format("parquet")
            .option("checkpointLocation", str(self.checkpoint))
            .option("path", str(self.to))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(TIMEOUT_S)
        return [dict(each) for each in query.recentProgress if each["numInputRows"]]

    def rows(self) -> DataFrame:
        return self.spark.read.parquet(str(self.to))

    def sink(self) -> Changes:
        """What a table of changes holds after all batches, in the order of Spark's own log."""
        found = Changes()
        log = [p for p in (self.to / "_spark_metadata").iterdir() if p.name.isdecimal()]
        for entry in sorted(log, key=lambda path: int(path.name)):
            paths = [json.loads(line)["path"] for line in entry.read_text().splitlines()[1:]]
            if paths:
                batch = self.spark.read.parquet(*paths)
                found.apply(
                    {
                        name: bytes(value) if isinstance(value, bytearray) else value
                        for name, value in row.asDict().items()
                    }
                    for row in batch.collect()
                )
        return found

    def newest_offsets(self) -> Path:
        """The file in which Spark has written where the newest batch ends."""
        found = (path for path in (self.checkpoint / "offsets").iterdir() if path.name.isdecimal())
        return max(found, key=lambda path: int(path.name))

    def lose_last_commit(self) -> None:
        """As if the process had been killed after the last batch and before its commit."""
        commits = self.checkpoint / "commits"
        newest = max(int(path.name) for path in commits.iterdir() if path.name.isdecimal())
        (commits / str(newest)).unlink()
        (commits / f".{newest}.crc").unlink(missing_ok=True)


@pytest.fixture
def query(spark: SparkSession, home: Node, tmp_path: Path) -> Query:
    return Query(spark, home, tmp_path)


def test_limited_batches_and_a_lost_commit_give_every_change_once_under_one_id(
    query: Query, home: Node
) -> None:
    put(home.server, numbered(300))
    told = query.run(maxRowsPerTrigger="100")
    assert [each["numInputRows"] for each in told] == [100, 100, 100]
    (name,) = {of for _, of in rows_of(home)}
    put(home.server, numbered(50, value="later"))
    query.run()
    query.lose_last_commit()
    put(home.server, numbered(20, value="later still"))
    query.run()
    sink = query.sink()
    assert sink.documents() == contents(home.server)
    assert sink.repeated == 0
    assert query.rows().count() == 370

    end = json.loads(query.newest_offsets().read_text().splitlines()[-1])
    assert end["id"] == name
    rows = rows_of(home)
    assert {(of, row["kind"]) for (_, of), row in rows.items()} == {(name, "spark")}
    assert {str(number): int(row["watermark"]) for (number, _), row in rows.items()} == {
        number: position["s"] for number, position in end["vb"].items()
    }


def test_a_branch_of_history_between_two_batches(query: Query, home: Node) -> None:
    put(home.server, numbered(60))
    query.run()
    persist(home.server)
    stop_persistence(home.server)
    put(home.server, numbered(40, value="lost"))
    query.run()
    home.kill()
    home.start()
    put(home.server, numbered(20, value="new"))
    told = refusal(query.run)
    assert re.search(r"UPRMC_ROLLBACK vb=\d+ checkpoint=\d+ rollback_to=\d+", told)
    query.run(onRollback="rewind")
    sink = query.sink()
    assert sink.controls
    assert sink.documents() == contents(home.server)


def test_a_stream_begins_where_it_is_told_to_and_never_goes_on_with_another_source(
    query: Query, home: Node
) -> None:
    put(home.server, numbered(60))
    place = current_offsets(str(home.upr))
    put(home.server, numbered(5, value="new"))
    query.run(startingOffsets=place)
    assert query.sink().documents() == numbered(5, value="new")

    path = query.newest_offsets()
    path.write_text(path.read_text().replace('"n":8', '"n":16').replace('"n": 8', '"n": 16'))
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    put(home.server, numbered(5, value="later"))
    assert "UPRMC_VBUCKETS_CHANGED" in refusal(query.run)


def test_what_ends_a_query_is_told_without_a_traceback(query: Query, home: Node) -> None:
    put(home.server, {b"\xff": b"x"})
    assert "UPRMC_OPTION numPartitions" in refusal(lambda: query.run(numPartitions="2"))
    assert "UPRMC_KEY_NOT_UTF8 vb=" in refusal(lambda: query.run(keyType="string"))

    source = query.spark.readStream.format("uprmc").option("servers", str(home.upr))
    sink = source.option("keyType", "binary").load().writeStream.format("uprmc")
    sink.options(servers=str(home.upr), valueLimit="0", checkpointLocation=str(query.to))
    told = refusal(lambda: sink.start().awaitTermination(TIMEOUT_S))
    assert "UPRMC_ROW row 0 with key b'\\xff': VALUE_TOO_LARGE" in told


def test_a_feed_runs_in_spark(spark: SparkSession, home: Node, tmp_path: Path) -> None:
    from uprmc.spark.feeding import feed

    put(home.server, numbered(60))
    report = feed(
        str(home.upr), tmp_path / "lines", tmp_path / "checkpoint", format="jsonl", spark=spark
    )
    assert report.rows == 60
    lines = [
        json.loads(line)
        for path in (tmp_path / "lines").glob("*.json")
        for line in path.read_text().splitlines()
    ]
    assert {each["key"].encode() for each in lines} == set(numbered(60))
