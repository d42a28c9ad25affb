"""``df.write.format("uprmc")`` and its streaming sister: a `Writer` in each task, one report.

A task may run twice, and nothing takes back what it has sent: neither a failed task nor an aborted
job. Which modes bear that is said in ``docs/spark.md``. Commit and abort run in another process
than the tasks; all they know is the tasks' messages.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from uprmc.columnar.errors import BadFile, BadSchema, OverwriteRefused, TooManyErrors
from uprmc.columnar.report import Report, TaskReport, merge
from uprmc.columnar.requests import check_columns
from uprmc.columnar.writing import Writer
from uprmc.errors import why
from uprmc.spark.options import SinkOptions, write_options
from uprmc.spark.worker_errors import plainly

_OVERWRITE = (
    "there is no transaction that empties a bucket and fills it again: for a batch say "
    '.mode("append"), for a stream .outputMode("append") or "update"; documents are '
    "replaced by key (writeMode=upsert)"
)


#: Spark 4.0 lacks the class. There, a writer of streams gets batches if it is an Arrow writer, too.
_STREAM_WRITERS: Any = (
    (datasource.DataSourceStreamArrowWriter,)
    if hasattr(datasource, "DataSourceStreamArrowWriter")
    else (DataSourceArrowWriter, datasource.DataSourceStreamWriter)
)


class SinkWritten(WriterCommitMessage):
    """What a task tells the commit."""

    def __init__(self, report: TaskReport) -> None:
        self.report = report


def sink_options(options: Mapping[str, Any], schema: Any, overwrite: bool) -> SinkOptions:
    """Return what a sink is to do, checked against what it will get.

    Raises:
        OverwriteRefused: always, with `overwrite`.
        BadOption: as `write_options`.
        BadSchema: as `check_schema`.
        BadFile: the report cannot be written.
    """
    if overwrite:
        raise OverwriteRefused(_OVERWRITE)
    found = write_options(options)
    check_schema(found, schema)
    if found.report_path is not None:
        _put(found.report_path, "", "a")  # tried before anything is written to a node
    return found


def check_schema(options: SinkOptions, schema: Any) -> None:
    """Raise `BadSchema` when a column is missing or has the wrong type.

    Tasks would find the same, one after the other: an empty batch goes the way of theirs.
    """
    write = options.write
    names = schema.fieldNames()
    wanted = [write.key_column, write.flags_column, write.ttl_column, write.exp_column]
    wanted.append(write.cas_column)
    if write.mode in ("upsert", "insert", "replace"):
        wanted.append(write.value_column)
    if write.mode == "append-meta":
        wanted += ["_rev", "_cas"]
    for name in wanted:
        if name is not None and name not in names:
            raise BadSchema(f"there is no column {name!r}; there are {', '.join(names)}")
    nothing = pa.schema([(each.name, _arrow_type(each.dataType)) for each in schema.fields])
    check_columns(write, nothing)


def _arrow_type(kind: Any) -> Any:
    """Return a column's Arrow type; one that Arrow does not know is no type that is written."""
    from pyspark.sql.pandas.types import to_arrow_type

    try:
        return to_arrow_type(kind)
    except Exception:
        return pa.list_(pa.null())


class _Sink:
    """What both sinks do in a task and at the end."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    @plainly
    def write(self, iterator: Iterator[Any]) -> SinkWritten:
        """Write the batches of one task."""
        from pyspark import TaskContext

        context = TaskContext.get()
        partition = context.partitionId() if context else 0
        attempt = context.attemptNumber() if context else 0
        return SinkWritten(written(self._options, iterator, partition, attempt))

    def _tell(self, messages: Sequence[Any], **words: Any) -> Report:
        """Put the report where it was asked for: a batch's file, or a line of a stream's."""
        tasks = [each.report for each in messages if each is not None]
        report = merge(tasks)
        if self._options.report_path is not None:
            told = {**report.to_dict(), **words, "failed_tasks": len(messages) - len(tasks)}
            line = json.dumps(told, sort_keys=True) + "\n"
            _put(self._options.report_path, line, "a" if "batch" in words else "w")
        return report

    def _committed(self, messages: Sequence[Any], **words: Any) -> None:
        report = self._tell(messages, state="committed", **words)
        check(report, self._options.write.max_errors)


class BatchSink(_Sink, DataSourceArrowWriter):
    """Writes a batch."""

    @plainly
    def commit(self, messages: list[Any]) -> None:
        """Report what all tasks did.

        Raises:
            TooManyErrors: together they have more errors than `maxErrors`.
        """
        self._committed(messages)

    @plainly
    def abort(self, messages: list[Any]) -> None:
        """Report that the job failed; what its tasks have written stays."""
        self._tell(messages, state="aborted")


class StreamSink(_Sink, *_STREAM_WRITERS):  # type: ignore[misc]
    """Writes micro-batches. One that is replayed is written again, with the same number."""

    @plainly
    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Report what all tasks of a micro-batch did; as `BatchSink.commit`."""
        self._committed(messages, batch=batchId)

    @plainly
    def abort(self, messages: list[Any], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Report that a micro-batch failed; what its tasks have written stays."""
        self._tell(messages, state="aborted", batch=batchId)


def _put(place: str, text: str, mode: str) -> None:
    """Write text to a file, opened in this mode; raises `BadFile`."""
    try:
        path = Path(place)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open(mode, encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise BadFile(f"reportPath={place}: {why(error)}") from None


def written(
    options: SinkOptions, batches: Iterator[Any], partition: int, attempt: int
) -> TaskReport:
    """Write batches as one task; if anything fails, what was sent stays and the error goes on."""
    writer = Writer(options.write, partition, attempt)
    try:
        for batch in batches:
            writer.write(batch)
        return writer.finish()
    except BaseException:
        writer.abort()
        raise


def check(report: Report, max_errors: int | None) -> None:
    """Raise `TooManyErrors` when all tasks together have more errors than that."""
    if max_errors is not None and report.errors > max_errors:
        first = f"; the first: {report.first_errors[0]}" if report.first_errors else ""
        raise TooManyErrors(
            f"{report.errors} rows could not be written, maxErrors is {max_errors}{first}"
        )
