"""The same tasks on Spark: results, attempts, errors; and a backup and its restore."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from interop.server_process import ServerProcess
from tests.bulk.here import numbered, remove
from tests.bulk.world import access_to, flush, states, store
from tests.jobs import tasks as work
from uprmc.backup.backups import backup
from uprmc.backup.restoring import restore
from uprmc.backup.verifying import verify
from uprmc.columnar.errors import BadRow, TaskFailed
from uprmc.remote.errors import NodeUnreachable
from uprmc.spark.spark_engine import SparkEngine, run_order

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.spark
def test_results_come_in_the_order_of_the_tasks(spark: SparkSession) -> None:
    engine = SparkEngine(spark)
    told: dict[int, int] = {}
    assert engine.parallelism == 2
    # more tasks than one wave has
    assert engine.run(work.squared, range(10), told.__setitem__) == [n * n for n in range(10)]
    assert told == {n: n * n for n in range(10)}
    assert engine.run(work.squared, []) == []


@pytest.mark.spark
def test_a_killed_worker_costs_its_task_one_attempt(spark: SparkSession, tmp_path: Path) -> None:
    tasks = [str(tmp_path / "killed"), __file__]
    assert SparkEngine(spark).run(work.killed_at_first, tasks) == ["attempt 1", "attempt 0"]


@pytest.mark.spark
def test_an_error_that_would_come_again_ends_the_work_at_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    with pytest.raises(BadRow, match="no good"):
        SparkEngine(spark).run(work.counts_and_refuses, [str(tmp_path / "tried")])
    assert (tmp_path / "tried").read_text() == "x"


@pytest.mark.spark
def test_any_other_error_is_believed_when_spark_gives_up(
    spark: SparkSession, tmp_path: Path
) -> None:
    with pytest.raises(TaskFailed, match=r"in Spark: .*broken") as caught:
        SparkEngine(spark).run(work.counts_and_breaks, [str(tmp_path / "tried")])
    assert "\n" not in str(caught.value)
    assert (tmp_path / "tried").read_text() == "xx"


@pytest.mark.spark
@pytest.mark.acceptance("D01")
def test_a_backup_made_by_spark_is_restored_by_spark(
    spark: SparkSession, fresh_node: ServerProcess, tmp_path: Path
) -> None:
    engine = SparkEngine(spark)
    access = access_to(fresh_node)
    store(fresh_node, numbered(300), flags=5)
    backup(access, tmp_path / "b", engine=engine, groups=4)
    remove(fresh_node, b"key-1", b"key-2")
    store(fresh_node, numbered(20, prefix="more"))
    assert backup(access, tmp_path / "b", engine=engine).rows == 22
    moment = states(fresh_node)
    assert verify(tmp_path / "b", access, engine=engine).same
    flush(fresh_node)
    report = restore(tmp_path / "b", access, engine=engine)
    assert report.complete
    assert states(fresh_node) == moment


def test_a_final_error_is_a_result_and_any_other_is_raised() -> None:
    succeeded, error = pickle.loads(run_order(pickle.dumps((_refuse, BadRow("no"))), 0))
    assert (succeeded, str(error)) == (False, "UPRMC_ROW no")
    with pytest.raises(NodeUnreachable):
        run_order(pickle.dumps((_refuse, NodeUnreachable("nobody"))), 0)


def _refuse(error: Exception) -> None:
    raise error
