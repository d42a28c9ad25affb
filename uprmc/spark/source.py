"""``format("uprmc")``: what Spark asks of a data source, answered by the modules beside.

Objects of these classes are pickled and live in several processes: they hold plain values only.
Spark gives `schema` by keyword, wants a list of partitions and an iterator of batches.

`batch` plans and reads, `stream_source` follows, `sink` writes, `options` reads what users say.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from uprmc.spark.versions import require_sources, require_streams
from uprmc.spark.worker_errors import plainly

require_sources()

from pyspark.sql.datasource import (  # noqa: E402
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)

if TYPE_CHECKING:
    from uprmc.spark.batch import ReadTask
    from uprmc.spark.options import ReadOptions

NAME = "uprmc"


class UprmcDataSource(DataSource):
    """Documents and changes of uprmc nodes. See ``docs/spark.md``."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        # Made once, where a DataFrame is: copies of this object plan and read all its actions.
        self._frame = uuid.uuid4().hex

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return NAME

    @plainly
    def schema(self) -> str:
        """Return the columns of a read, if the user gives no schema of his own."""
        from uprmc.spark.options import read_options

        return read_options(self.options).columns.ddl

    @plainly
    def reader(self, schema: Any) -> UprmcReader:
        """Return what reads a batch."""
        from uprmc.spark.options import read_options

        options = fitted(read_options(self.options, kind="batch"), schema)
        options = replace(options, frame=options.frame or self._frame)
        return (PushingReader if options.pushdown else UprmcReader)(options)

    @plainly
    def writer(self, schema: Any, overwrite: bool) -> Any:
        """Return what writes a batch."""
        from uprmc.spark.sink import BatchSink, sink_options

        return BatchSink(sink_options(self.options, schema, overwrite))

    def streamReader(self, schema: Any) -> Any:  # noqa: N802 - Spark's name
        """Return what follows changes."""
        from uprmc.remote.errors import ClientError
        from uprmc.spark.options import read_options

        try:
            require_streams()
            options = fitted(read_options(self.options, kind="stream"), schema)
        except ClientError as error:
            return RefusedStream(error)
        from uprmc.spark.stream_source import UprmcStreamReader

        return UprmcStreamReader(options)

    @plainly
    def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802 - Spark's name
        """Return what writes micro-batches."""
        from uprmc.spark.sink import StreamSink, sink_options

        return StreamSink(sink_options(self.options, schema, overwrite))


class UprmcPartition(InputPartition):
    """A task of a batch read."""

    def __init__(self, task: ReadTask) -> None:
        super().__init__(task)


class UprmcReader(DataSourceReader):
    """Reads a batch; see `batch`."""

    def __init__(self, options: ReadOptions) -> None:
        from uprmc.spark.pushdown import EVERYTHING

        self._options = options
        self._wanted = EVERYTHING

    @plainly
    def partitions(self) -> list[UprmcPartition]:
        """Plan the tasks; an empty read has one task without anything to do."""
        from uprmc.spark.batch import plan

        return [UprmcPartition(task) for task in plan(self._options, self._wanted)]

    @plainly
    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield Arrow batches."""
        from uprmc.spark.batch import run

        return run(self._options, self._wanted, partition.value)


class PushingReader(UprmcReader):
    """A reader that applies filters itself, when Spark asks it to.

    Note: while ``spark.sql.python.filterPushdown.enabled`` is off, which is the default, Spark
    refuses every reader whose class has `pushFilters` of its own. So the object has it, in a form
    that Spark takes for the inherited one, and is right with that setting and without.
    """

    def __init__(self, options: ReadOptions) -> None:
        super().__init__(options)
        if hasattr(DataSourceReader, "pushFilters"):  # since Spark 4.1
            self.pushFilters = _Pushing(self)  # Spark's name

    @plainly
    def push(self, filters: list[Any]) -> Iterable[Any]:
        """Take the filters that can be applied here; return the others."""
        from uprmc.spark.pushdown import push

        self._wanted, rest = push(filters, self._options.columns)
        return rest


class _Pushing:
    """`PushingReader.push` as Spark calls it."""

    def __init__(self, reader: PushingReader) -> None:
        self._reader = reader

    @property
    def __func__(self) -> Any:
        return DataSourceReader.pushFilters

    def __call__(self, filters: list[Any]) -> Iterable[Any]:
        return self._reader.push(filters)


class RefusedStream(DataSourceStreamReader):
    """A stream that cannot be: it says why as soon as Spark asks it for anything.

    What `UprmcDataSource.streamReader` itself raised, Spark would show as an UnboundLocalError.
    """

    def __init__(self, error: Exception) -> None:
        self._error = error

    @plainly
    def _refuse(self, *_: Any) -> Any:
        raise self._error

    initialOffset = latestOffset = partitions = commit = read = _refuse  # noqa: N815 - Spark's


def fitted(options: ReadOptions, schema: Any) -> ReadOptions:
    """Return options whose columns are those of a schema of Spark's.

    It was made of these options, or is the user's own, which then chooses columns and types as
    options ``columns``, ``keyType`` and ``u64`` do.

    Raises:
        BadSchema: there is no such column, or not with this type.
    """
    from uprmc.columnar.errors import BadOption, BadSchema

    types = {each.name: each.dataType.simpleString() for each in schema.fields}
    decimal = any(types.get(name, "").startswith("decimal") for name in ("_rev", "_cas"))
    columns = options.columns
    try:
        columns = replace(
            columns,
            names=tuple(schema.fieldNames()),
            key_type="binary" if types.get("key") == "binary" else columns.key_type,
            u64="decimal" if decimal else columns.u64,
        )
    except BadOption as error:
        raise BadSchema(error.text) from None
    for each, (name, expected) in zip(schema.fields, _ddl_types(columns), strict=True):
        if types[name] != expected or not each.nullable:
            has = f"{types[name]}{'' if each.nullable else ' not null'}"
            raise BadSchema(f"column {name} has type {expected}, not {has}")
    return replace(options, columns=columns)


def _ddl_types(columns: Any) -> list[tuple[str, str]]:
    pairs = (each.split(" ", 1) for each in columns.ddl.split(", "))
    return [(name, kind.lower()) for name, kind in pairs]
