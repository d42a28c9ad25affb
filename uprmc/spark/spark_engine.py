"""`engines.Engine` on Spark: every task is a partition of its own.

A range of as many rows as there are tasks, one in each partition, runs through `mapInArrow`: that
works with Spark Connect, too, which has no RDDs. Workers get the tasks with the function, so tasks
have to be small. A task that fails for good returns its error instead of raising it, because Spark
would try it again; all others are left to Spark's own attempts.

Results come in waves, of a few tasks for each that runs at the same time: Spark gives them at
the end of a job only, and interrupted work is resumed by what is known before.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from uprmc.columnar.errors import TaskFailed
from uprmc.jobs.engines import OnResult, attempted, given_up, is_final
from uprmc.remote.errors import ClientError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
R = TypeVar("R")

#: Tasks of a wave, for each that runs at the same time.
_WAVE = 4

_OUTCOME = pa.schema([("index", pa.int64()), ("outcome", pa.binary())])
#: How Python's last line of an error begins.
_OF_PYTHON = re.compile(r"\w*(Error|Exception): ")
_OUTCOME_DDL = "index BIGINT, outcome BINARY"


class SparkEngine:
    """See the module docstring. `parallelism` 0 = as many tasks at a time as Spark says."""

    def __init__(self, spark: SparkSession, parallelism: int = 0) -> None:
        self._spark = spark
        self._parallelism = parallelism or _default_parallelism(spark)

    @property
    def spark(self) -> SparkSession:
        """The session."""
        return self._spark

    @property
    def parallelism(self) -> int:
        """See `Engine`."""
        return self._parallelism

    def run(
        self,
        function: Callable[[T], R],
        tasks: Sequence[T],
        on_result: OnResult[R] | None = None,
    ) -> list[R]:
        """See `Engine`."""
        results: list[R] = []
        wave = self._parallelism * _WAVE
        for first in range(0, len(tasks), wave):
            found = self._wave(function, tasks[first : first + wave])
            for index, result in enumerate(found, first):
                if on_result is not None:
                    on_result(index, result)
            results += found
        return results

    def _wave(self, function: Callable[[T], R], tasks: Sequence[T]) -> list[R]:
        orders = [pickle.dumps((function, task)) for task in tasks]
        frame = self._spark.range(0, len(orders), 1, len(orders))
        try:
            rows = frame.mapInArrow(_Runner(orders), _OUTCOME_DDL).collect()
        except Exception as error:
            raise _told(error) from error
        found: dict[int, R] = {}
        for row in rows:
            succeeded, outcome = pickle.loads(bytes(row["outcome"]))
            if not succeeded:
                raise given_up(outcome, 1)
            found[row["index"]] = outcome
        return [found[index] for index in range(len(orders))]


class _Runner:
    """Runs the tasks whose numbers come; travels to the workers."""

    def __init__(self, orders: list[bytes]) -> None:
        self._orders = orders

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for index in batch.column("id").to_pylist():
                outcome = run_order(self._orders[index], _attempt())
                arrays = [pa.array([index], pa.int64()), pa.array([outcome], pa.binary())]
                yield pa.RecordBatch.from_arrays(arrays, schema=_OUTCOME)


def run_order(order: bytes, attempt: int) -> bytes:
    """Return success and result, or a final error, pickled; other errors are raised."""
    try:
        function, task = pickle.loads(order)
        return pickle.dumps((True, attempted(function, task, attempt)))
    except Exception as error:
        if not is_final(error):
            if isinstance(error, ClientError):
                error.shows_code = True  # Spark makes text of it
            raise
        return pickle.dumps((False, error))


def _attempt() -> int:
    from pyspark import TaskContext

    context = TaskContext.get()
    return 0 if context is None else int(context.attemptNumber())


def _told(error: Exception) -> ClientError:
    """Return what Spark says of a task that failed again and again, without its stack of Java."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if "UPRMC_" in line or _OF_PYTHON.match(line)]
    said = [*telling, *lines, repr(error)][0]
    return TaskFailed(f"in Spark: {said}")


def _default_parallelism(spark: Any) -> int:
    try:
        return int(spark.sparkContext.defaultParallelism)
    except Exception:  # a session of Spark Connect has no context
        return int(spark.conf.get("spark.default.parallelism", "8") or 8)
