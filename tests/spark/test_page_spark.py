"""What a stranger copies from ``docs/spark.md`` works: every block is run, from top to bottom.

Proves the quick start, reads, streams, the sink for rollbacks, backup and restore of the page, on
two real nodes and one Spark.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from interop.server_process import ServerProcess, start_uprmc
from tests.bulk.here import contents
from tests.spark.page import NODES, Block, Story, blocks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

RUN = [each for each in blocks() if each.kind in ("python", "sh")]
_OPTIONS = ("--vbuckets", "64")


class Page(Story):
    """The story of this page: blocks stand on one another, so each is run behind those above it."""

    def __init__(self, directory: Path, first: ServerProcess, second: ServerProcess) -> None:
        super().__init__(
            directory, dict(zip(NODES, map(str, (first.upr, second.upr)), strict=True))
        )
        self.first, self.second = first, second
        self._to_run = list(RUN)

    def reach(self, block: Block) -> None:
        """Run what was not run yet, up to this block; one that failed is not run again."""
        while block in self._to_run:
            self.run(self._to_run.pop(0))


@pytest.fixture(scope="module")
def story(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    directory = tmp_path_factory.mktemp("page")
    with (
        start_uprmc(directory / "first", *_OPTIONS) as first,
        start_uprmc(directory / "second", *_OPTIONS) as second,
    ):
        yield Page(directory, first, second)


@pytest.mark.parametrize("block", RUN, ids=lambda each: f"line-{each.line}")
def test_every_block_of_the_page_runs(block: Block, story: Page) -> None:
    story.reach(block)


def test_what_the_quick_start_loads_is_what_it_says(story: Page) -> None:
    story.reach(RUN[-1])
    found = contents(story.first)
    assert found[b"user:1"] == b'{"id":"1","name":"Ada","city":"London"}'
    assert found[b"user:4"] == b'{"name": "Barbara", "city": "Boston"}'


def test_what_was_restored_and_copied_is_equal(story: Page) -> None:
    story.reach(RUN[-1])
    assert contents(story.second).items() >= {b"user:1": contents(story.first)[b"user:1"]}.items()


def test_the_sink_of_the_page_goes_on_and_has_every_document(story: Page) -> None:
    story.reach(RUN[-1])
    story.run(next(each for each in RUN if "def keep" in each.text))
    with sqlite3.connect(story.directory / "mirror.db") as database:
        found = dict(database.execute("SELECT key, value FROM documents"))
    assert {key.encode(): value for key, value in found.items()} == contents(story.first)


def test_the_sink_of_the_page_obeys_a_rollback(story: Page, spark: SparkSession) -> None:
    story.reach(RUN[-1])
    columns = "key string, value binary, _op string, _vb int, _seq long"
    keep = story.names["keep"]
    keep(spark.createDataFrame([("x", b"1", "set", 70, 1), ("y", b"1", "set", 70, 2)], columns), 1)
    keep(
        spark.createDataFrame([("x", b"2", "set", 70, 3), ("y", None, "delete", 70, 4)], columns), 2
    )
    again = [("z", b"3", "set", 70, 3), (None, None, "rollback", 70, 2)]
    for _ in range(2):
        keep(spark.createDataFrame(again, columns), 3)
        with sqlite3.connect(story.directory / "mirror.db") as database:
            query = "SELECT key, value FROM documents WHERE key IN ('x', 'y', 'z') ORDER BY key"
            assert list(database.execute(query)) == [("x", b"1"), ("y", b"1"), ("z", b"3")]
