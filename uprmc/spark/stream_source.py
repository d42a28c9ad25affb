"""Spark's stream reader around `following`: offsets as JSON, limits, tasks.

Spark keeps one of these beside the driver for each query and sends copies to the workers, where
only `read` is called: a copy has the options and nothing else. Spark compares offsets as text,
asks for the first offset twice, and tells that a batch is over when the next one begins, or never.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from uprmc.spark.offsets import parsed
from uprmc.spark.worker_errors import plainly

if TYPE_CHECKING:
    from uprmc.spark.following import SparkFollower
    from uprmc.spark.options import ReadOptions
    from uprmc.spark.stream_task import BatchTask


class StreamPartition(InputPartition):
    """A task of a micro-batch."""

    def __init__(self, task: BatchTask) -> None:
        super().__init__(task)


class UprmcStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """See the module docstring."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._follower: SparkFollower | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options, "_follower": None}

    def _driver(self) -> SparkFollower:
        from uprmc.spark.following import SparkFollower

        if self._follower is None:
            self._follower = SparkFollower(self._options)
        return self._follower

    # --- the driver's side ----------------------------------------------------------------------

    @plainly
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return where a new query begins."""
        return self._driver().initial().to_dict()

    @plainly
    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return what the options say of the size of a batch."""
        if self._options.max_rows is not None:
            return ReadMaxRows(self._options.max_rows)
        if self._options.max_bytes is not None:
            return ReadMaxBytes(self._options.max_bytes)
        return ReadAllAvailable()

    @plainly
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the end of the next micro-batch; `start` itself if there is none."""
        begun = parsed(start)
        end = self._driver().latest(begun, self._rows(limit))
        return start if end.to_json() == begun.to_json() else end.to_dict()

    @plainly
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """What there is now is the end of the query."""
        self._driver().stop_at_now()

    @plainly
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[StreamPartition]:
        """Return the tasks of a micro-batch."""
        tasks = self._driver().plan(parsed(start), parsed(end))
        return [StreamPartition(task) for task in tasks]

    @plainly
    def commit(self, end: dict[str, Any]) -> None:
        """The micro-batch that ends here is over, and the end of the next one is written down."""
        self._driver().committed(parsed(end))

    def stop(self) -> None:
        """The query is over."""
        if self._follower is not None:
            self._follower.close()

    def _rows(self, limit: ReadLimit) -> int | None:
        """Return how many rows a batch may have; a limit of zero would stand still."""
        if isinstance(limit, ReadAllAvailable):
            return None
        found = []
        if isinstance(limit, ReadMaxRows):
            found.append(limit.max_rows)
        largest = limit.max_bytes if isinstance(limit, ReadMaxBytes) else self._options.max_bytes
        if largest is not None:
            found.append(self._driver().rows_of(largest))
        return min(found, default=None)

    # --- the workers' side ----------------------------------------------------------------------

    @plainly
    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield Arrow batches."""
        from uprmc.spark.stream_task import run

        if partition is None or partition.value is None:
            return iter(())
        return run(self._options, partition.value)
