"""JSON documents as columns: their schema found by a sample, or given; decoded by Spark itself.

The source gives values as bytes: Spark's own ``from_json`` is faster than anything that could run
in a Python worker, and treats fields of another type in the ways that its users know. A value that
is no JSON object at all it makes a struct of NULLs, which nobody can tell from ``{}``: here it is
NULL. Names of fields are literal: never taken for an expression, and with their case.

Source: reference spark, section 4.
"""

from __future__ import annotations

from typing import Any

from uprmc.columnar.errors import BadOption, BadSchema
from uprmc.spark.api import Servers, read

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
    found = spark.read.option("columnNameOfCorruptRecord", _OWN_CORRUPT).json(texts).schema
    fields = [field for field in found.fields if field.name != _OWN_CORRUPT]
    if not fields:
        raise BadSchema("no document of the sample is a JSON object: give a schema")
    return type(found)(fields)


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
    from uprmc.columnar.nodes import Nodes
    from uprmc.spark.options import as_texts, read_options

    access = read_options(as_texts({**options, "servers": servers})).access
    with Nodes(access) as nodes:
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
