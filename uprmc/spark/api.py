"""`uprmc.spark` for programs: a read, a stream or a write in one call, with their options checked.

Options are those of the format (`options`), in Spark's spelling or in Python's
(``key_column=``), with values of Python's types.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from uprmc.columnar.errors import BadOption, BadSchema, NotRepeatable, OverwriteRefused
from uprmc.columnar.lease import KeptLease
from uprmc.columnar.nodes import BulkNodes
from uprmc.columnar.report import Report, TaskReport, merge
from uprmc.spark.options import (
    SPARE_LEASES,
    SinkOptions,
    access_of,
    as_texts,
    read_options,
    write_options,
)
from uprmc.spark.session import register
from uprmc.spark.versions import require_sources, require_streams
from uprmc.spark.worker_errors import plainly

Servers = str | Iterable[str]

#: Modes that leave the same documents when Spark runs a task twice at the same time.
SPECULATIVE_MODES = frozenset({"upsert", "append-meta"})


def read(spark: Any, servers: Servers, **options: Any) -> Any:
    """Return the documents of nodes as a DataFrame.

    Args:
        spark: a session, classic or of Spark Connect.
        servers: HOST:PORT of one or several nodes' ``upr`` listeners.
        **options: of reading a batch; ``lease`` may be what `hold` gives.

    Raises:
        BadOption: an option is wrong.
        MissingPackage: this Spark has no data sources in Python.
    """
    texts = as_texts({"servers": servers, **options})
    if read_options(texts, kind="batch").snapshot == "held":
        # With Spark Connect the source is made again for each action, which then would be another.
        texts.setdefault("frame", uuid.uuid4().hex)
    register(spark)
    return spark.read.format("uprmc").options(**texts).load()


def changes(spark: Any, servers: Servers, **options: Any) -> Any:
    """Return the changes of nodes as a streaming DataFrame; arguments as `read`."""
    texts = as_texts({"servers": servers, **options})
    read_options(texts, kind="stream")
    require_streams()
    register(spark)
    return spark.readStream.format("uprmc").options(**texts).load()


def write(
    rows: Any,
    servers: Servers,
    mode: str = "upsert",
    *,
    partitions: int | None = None,
    order_by: str | Sequence[str] | None = None,
    repartition: bool = True,
    **options: Any,
) -> Report:
    """Write the rows of a DataFrame, and return what came of them.

    Rows of the same key meet in one task. Which of them wins is open, unless `order_by` says in
    which order they are written: the last one.

    Args:
        rows: a DataFrame; not a streaming one, whose ``writeStream.format("uprmc")`` it is.
        servers: as in `read`.
        mode: ``upsert``, ``insert``, ``replace``, ``append-meta`` or ``delete``.
        partitions: tasks that write; ``None`` = as many as there are shuffle partitions.
        order_by: columns that order the rows of a key.
        repartition: off: the rows are written by the tasks that make them.
        **options: of writing. ``rateLimit`` is here for the whole job: each of its `partitions`
            gets its part, so say how many.

    Raises:
        BadOption: an option is wrong.
        NotRepeatable: ``spark.speculation`` is on, and the mode does not bear it.
        TooManyErrors: all tasks together have more errors than `maxErrors`.
    """
    if mode.lower() == "overwrite":
        raise OverwriteRefused("there is no overwrite; documents are replaced by mode upsert")
    require_sources()
    from uprmc.spark.sink import check_schema

    texts = as_texts({"servers": servers, "writeMode": mode, **options})
    sink = write_options(texts)
    refuse_speculation(rows.sparkSession, sink.write.mode)
    check_schema(sink, rows.schema)
    if repartition:
        number = (partitions,) if partitions else ()
        rows = rows.repartition(*number, sink.write.key_column)
    elif partitions:
        rows = rows.coalesce(partitions)
    if order_by is not None:
        columns = [order_by] if isinstance(order_by, str) else list(order_by)
        rows = rows.sortWithinPartitions(*columns)
    if sink.write.rate is not None and partitions:
        sink = replace(sink, write=replace(sink.write, rate=sink.write.rate / partitions))
    return _run(rows, sink)


def _run(rows: Any, sink: SinkOptions) -> Report:
    """Write in tasks that return their reports: works in Spark Connect, too, and needs no file."""
    from uprmc.spark.sink import check

    found = rows.mapInArrow(partial(_write_task, sink), "report string").collect()
    report = merge(TaskReport.from_dict(json.loads(each["report"])) for each in found)
    if sink.report_path is not None:
        from pathlib import Path

        from uprmc.jobs.files import write_whole

        write_whole(Path(sink.report_path), report.to_json() + "\n")
    check(report, sink.write.max_errors)
    return report


@plainly
def _write_task(sink: SinkOptions, batches: Iterator[Any]) -> Iterator[Any]:
    import pyarrow as pa
    from pyspark import TaskContext

    from uprmc.spark.sink import written

    context = TaskContext.get()
    report = written(sink, batches, context.partitionId(), context.attemptNumber())
    yield pa.RecordBatch.from_pydict({"report": [report.to_json()]})


def refuse_speculation(spark: Any, mode: str) -> None:
    """Raise `NotRepeatable` when Spark may run a task twice at once and the mode minds."""
    if mode in SPECULATIVE_MODES:
        return
    if str(spark.conf.get("spark.speculation", "false")).lower() == "true":
        raise NotRepeatable(
            "spark.speculation is on, and two attempts of a task at the same time give mode "
            f"{mode} wrong counts; turn it off, or use {' or '.join(sorted(SPECULATIVE_MODES))}"
        )


def hold(
    servers: Servers, *, seconds: int = 600, vbuckets: Iterable[int] | None = None, **options: Any
) -> KeptLease:
    """Hold the documents of nodes as they are now, for a ``with`` statement.

        with uprmc.spark.hold(servers) as lease:
            documents = uprmc.spark.read(spark, servers, lease=lease)

    Whatever is read from it is the same, by any job, however often; it is renewed meanwhile.

    Args:
        servers: as in `read`.
        seconds: how long it outlives this process if that is killed.
        vbuckets: which; ``None`` = all.
        **options: of the access to the nodes.
    """
    access = access_of(as_texts({"servers": servers, **options}))
    return KeptLease(replace(access, spare_leases=SPARE_LEASES), vbuckets, seconds)


def current_offsets(servers: Servers, **options: Any) -> str:
    """Return how far all vBuckets are, as text for option ``startingOffsets``."""
    from uprmc.spark.starting import current

    with BulkNodes(access_of(as_texts({"servers": servers, **options}))) as nodes:
        return current(nodes)


# --- inference ------------------------------------------------------------------------------------
# JSON documents as columns: their schema found by a sample, or given; decoded by Spark itself.
#
# The source gives values as bytes: Spark's own ``from_json`` is faster than anything that could run
# in a Python worker, and treats fields of another type in the ways that its users know. A value
# that is no JSON object at all it makes a struct of NULLs, which nobody can tell from ``{}``: here
# it is NULL. Names of fields are literal: never taken for an expression, and with their case.


#: Documents that a schema is found by, unless a number is given.
SAMPLE_SIZE = 1000

#: Where Spark puts what it cannot read, if a schema has such a field.
_CORRUPT = "_corrupt_record"

#: Instead of it where the schema was found: documents may have a field with Spark's name.
_OWN_CORRUPT = "_uprmc_no_json_object"


def infer_schema(
    spark: Any, servers: Servers, *, sample_size: int = SAMPLE_SIZE, **options: Any
) -> Any:
    """Return the schema (a `StructType`) that Spark finds in some JSON documents of the nodes.

    The sample is taken from as few vBuckets as have that many documents: which key a document has
    decides its vBucket, so it is as good as a random one.

    Args:
        spark: a session.
        servers: HOST:PORT of one or several nodes.
        sample_size: documents to look at.
        **options: as `api.read`.

    Raises:
        BadSchema: there is no document, or none is a JSON object.
    """
    if sample_size < 1:
        raise BadOption(f"sampleSize: {sample_size} is not 1 or more")
    texts = _texts(_sample(spark, servers, sample_size, options))
    with _exact_names(spark):
        found = spark.read.option("columnNameOfCorruptRecord", _OWN_CORRUPT).json(texts).schema
    fields = [field for field in found.fields if field.name != _OWN_CORRUPT]
    if not fields:
        raise BadSchema("no document of the sample is a JSON object: give a schema")
    return _each_name_once(type(found)(fields))


@contextmanager
def _exact_names(spark: Any) -> Iterator[None]:
    """Keep Spark from taking two names that differ in case only for one, which loses values."""
    name = "spark.sql.caseSensitive"
    before = spark.conf.get(name)
    spark.conf.set(name, "true")
    try:
        yield
    finally:
        spark.conf.set(name, before)


def _each_name_once(found: Any) -> Any:
    """Return a type without second fields of one name, which a document with such a name causes."""
    from pyspark.sql.types import ArrayType, StringType, StructField, StructType

    if isinstance(found, ArrayType):
        return ArrayType(_each_name_once(found.elementType), found.containsNull)
    if not isinstance(found, StructType):
        return found
    types: dict[str, Any] = {}
    for field in found.fields:
        type_ = _each_name_once(field.dataType)
        types[field.name] = type_ if types.get(field.name, type_) == type_ else StringType()
    return StructType([StructField(name, type_) for name, type_ in types.items()])


def read_json(
    spark: Any,
    servers: Servers,
    schema: Any = None,
    *,
    sample_size: int = SAMPLE_SIZE,
    mode: str = "PERMISSIVE",
    **options: Any,
) -> Any:
    """Return documents decoded: columns ``key``, ``doc`` (a struct), and what else `columns` names.

    Deletions are left out: they have no document.

    Args:
        spark: a session.
        servers: HOST:PORT of one or several nodes.
        schema: of the documents, as Spark takes schemas; ``None`` = found by `infer_schema`. With a
            field ``_corrupt_record STRING`` it gets what is no such JSON.
        sample_size: see `infer_schema`.
        mode: of ``from_json``: PERMISSIVE (what is no JSON object is NULL, or in
            ``_corrupt_record``; a field of another type is NULL) or FAILFAST.
        **options: as `api.read`; ``mode`` for keys is given as ``key_mode``.
    """
    from pyspark.sql import functions

    key_mode = options.pop("key_mode", None)
    how = {"mode": mode}
    if schema is None:
        how["columnNameOfCorruptRecord"] = _OWN_CORRUPT
        schema = infer_schema(spark, servers, sample_size=sample_size, **options)
    wanted = _names(options.pop("columns", None))
    rows = read(
        spark,
        servers,
        columns=list(dict.fromkeys([*wanted, "value", "_op"])),
        mode=key_mode,
        **options,
    )
    text = rows["value"].cast("string")
    decoded = functions.from_json(text, schema, how)
    fields = getattr(rows.select(decoded.alias("doc")).schema["doc"].dataType, "names", None)
    usual = spark.conf.get("spark.sql.columnNameOfCorruptRecord", _CORRUPT)
    tells = how.get("columnNameOfCorruptRecord", usual)
    if mode.upper() == "PERMISSIVE" and fields is not None and tells not in fields:
        decoded = functions.when(functions.json_object_keys(text).isNotNull(), decoded)
    documents = rows.where(rows["_op"] == "set")
    return documents.select(*wanted, decoded.alias("doc"))


def _names(columns: Any) -> list[str]:
    if columns is None:
        return ["key"]
    names = columns.split(",") if isinstance(columns, str) else columns
    return [name.strip() for name in names if name.strip() != "value"]


def _sample(spark: Any, servers: Servers, size: int, options: dict[str, Any]) -> Any:
    chosen = {**options, "columns": "value,_op"}
    if options.get("vbuckets") is None:
        chosen["vbuckets"] = _few_vbuckets(servers, size, options)
    rows = read(spark, servers, **chosen)
    return rows.where(rows["_op"] == "set").limit(size)


def _few_vbuckets(servers: Servers, size: int, options: dict[str, Any]) -> list[int] | None:
    """Return vBuckets that have `size` documents together, ``None`` = all of them are needed."""
    from uprmc.columnar.nodes import BulkNodes
    from uprmc.spark.options import as_texts, read_options

    access = read_options(as_texts({**options, "servers": servers})).access
    with BulkNodes(access) as nodes:
        standings = nodes.standings(items=True)
    chosen: list[int] = []
    found = 0
    for number, standing in standings.items():
        if found >= size:
            return chosen
        if standing.items:
            chosen.append(number)
            found += standing.items
    return None


def _texts(rows: Any) -> Any:
    return rows.select(rows["value"].cast("string").alias("value"))
