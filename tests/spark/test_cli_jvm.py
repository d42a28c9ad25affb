"""Two bulk verbs on Spark itself: the same work, and no noise around it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from interop.server_process import ServerProcess
from tests.bulk.cli_run import uprmc
from tests.bulk.here import contents, numbered, put
from uprmc.cli.main import run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPARK = ("--engine", "spark", "--master", "local[2]", "--conf", "spark.driver.memory=512m")


@pytest.mark.spark
def test_load_on_spark_does_what_it_does_without_and_says_no_more(
    fresh_node: ServerProcess, tmp_path: Path, java: str
) -> None:
    count = 3_000
    path, report = tmp_path / "x.jsonl", tmp_path / "report.json"
    rows = ({"id": n, "text": f"value {n}"} for n in range(count))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + "nonsense\n")
    node = ("--node", str(fresh_node.upr))
    how = ("--key", "user:{id}", "--value", "json", "--task-size", "32k")
    errors = ("--errors", str(tmp_path / "errors"), "--report", str(report))
    loaded = uprmc("load", str(path), *how, *errors, *node, *SPARK, "--progress", "none")
    assert loaded.err == f"uprmc: UPRMC_ROW 1 of {count + 1:,} rows could not be written\n"
    assert loaded.code == 1
    found = json.loads(report.read_text())
    assert (found["applied"], found["errors"]) == (count, 1)
    assert found["tasks"] > 2
    documents = contents(fresh_node)
    assert len(documents) == count
    assert json.loads(documents[b"user:7"]) == {"id": 7, "text": "value 7"}


@pytest.mark.spark
def test_backup_on_spark_does_what_it_does_without_and_leaves_a_session_that_was_there(
    fresh_node: ServerProcess,
    tmp_path: Path,
    spark: SparkSession,
    capsys: pytest.CaptureFixture[str],
) -> None:
    put(fresh_node, numbered(500))
    words = ["backup", str(tmp_path / "b"), "--node", str(fresh_node.upr), "--json"]
    assert run([*words, "--engine", "spark"]) == 0
    assert json.loads(capsys.readouterr().out)["totals"]["rows"] == 500
    assert spark.range(3).count() == 3
