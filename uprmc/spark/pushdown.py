"""Filters of a query that the source can apply: which vBuckets, after which seqno, which keys.

Spark hands over a list that all must hold, and is told which of them it still has to apply itself.
Only what the source applies exactly is kept from it; so a filter that is half understood is none.

Filters are known by the names of their classes: the rules need no Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

from uprmc.columnar.schema import PERMISSIVE, Columns

_INT64_MAX = 2**63 - 1


@dataclass(frozen=True)
class Wanted:
    """Which rows are wanted; ``None`` = no matter."""

    vbuckets: frozenset[int] | None = None  # of these only
    after: int | None = None  # with a seqno above this
    ops: frozenset[str] | None = None  # with one of these in ``_op``
    prefixes: tuple[str, ...] = ()  # whose key begins with all of these
    keys: frozenset[bytes] | None = None  # with one of these keys


#: No filter at all.
EVERYTHING = Wanted()


def push(filters: Sequence[Any], columns: Columns) -> tuple[Wanted, list[Any]]:
    """Return what filters of `pyspark.sql.datasource` want, and those that Spark has to apply."""
    wanted, rest = EVERYTHING, []
    for each in filters:
        narrower = _narrower(wanted, each, columns)
        if narrower is None:
            rest.append(each)
        else:
            wanted = narrower
    return wanted, rest


def _narrower(wanted: Wanted, each: Any, columns: Columns) -> Wanted | None:
    attribute: tuple[str, ...] = getattr(each, "attribute", ())
    if len(attribute) != 1:
        return None
    rule = _RULES.get((attribute[0], type(each).__name__))
    if rule is None or (rule in (_key_in, _key_is) and columns.mode == PERMISSIVE):
        return None  # the text of a key that is no UTF-8 stands for other bytes
    if rule is _prefix and columns.key_type != "string":
        return None
    return rule(wanted, getattr(each, "value", None))


def _vbucket_in(wanted: Wanted, value: Any) -> Wanted | None:
    if not all(type(each) is int for each in value):
        return None
    return replace(wanted, vbuckets=_both(wanted.vbuckets, value))


def _op_in(wanted: Wanted, value: Any) -> Wanted | None:
    if not all(isinstance(each, str) for each in value):
        return None
    return replace(wanted, ops=_both(wanted.ops, value))


def _both(known: frozenset[Any] | None, more: Iterable[Any]) -> frozenset[Any]:
    return frozenset(more) if known is None else known.intersection(more)


def _after(wanted: Wanted, value: Any) -> Wanted | None:
    """Seqnos from 2**63 on are negative in the column: below 0 the order is another one."""
    if type(value) is not int or not 0 <= value <= _INT64_MAX:
        return None
    return replace(wanted, after=value if wanted.after is None else max(wanted.after, value))


def _prefix(wanted: Wanted, value: Any) -> Wanted | None:
    if not isinstance(value, str):
        return None
    return replace(wanted, prefixes=(*wanted.prefixes, value))


def _key_in(wanted: Wanted, value: Any) -> Wanted | None:
    if not all(isinstance(each, (str, bytes)) for each in value):
        return None
    keys = (each.encode() if isinstance(each, str) else each for each in value)
    return replace(wanted, keys=_both(wanted.keys, keys))


def _key_is(wanted: Wanted, value: Any) -> Wanted | None:
    return _key_in(wanted, (value,))


def _always(wanted: Wanted, value: Any) -> Wanted:
    return wanted


def _one(rule: Callable[[Wanted, Any], Wanted | None]) -> Callable[[Wanted, Any], Wanted | None]:
    return lambda wanted, value: rule(wanted, (value,))


#: Rules by column and class of filter. No column but key and value is ever NULL in a batch, and key
#: is not either.
_RULES: dict[tuple[str, str], Callable[[Wanted, Any], Wanted | None]] = {
    ("_vb", "EqualTo"): _one(_vbucket_in),
    ("_vb", "In"): _vbucket_in,
    ("_seq", "GreaterThan"): _after,
    ("_seq", "GreaterThanOrEqual"): lambda wanted, value: (
        _after(wanted, value - 1) if type(value) is int else None
    ),
    ("_op", "EqualTo"): _one(_op_in),
    ("_op", "In"): _op_in,
    ("key", "StringStartsWith"): _prefix,
    ("key", "EqualTo"): _key_is,
    ("key", "In"): _key_in,
    **{(name, "IsNotNull"): _always for name in ("key", "_op", "_vb", "_seq", "_vbuuid")},
}


def meeting(wanted: Wanted) -> Callable[[Any], Any]:
    """Return a function that leaves of an Arrow batch the rows that are wanted.

    Which vBuckets was decided before; the rest is looked at row by row.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    def meets(batch: Any) -> Any:
        masks = []
        if wanted.after is not None:
            masks.append(pc.greater(batch.column("_seq"), wanted.after))
        if wanted.ops is not None:
            ops = pa.array(sorted(wanted.ops), pa.string())
            masks.append(pc.is_in(batch.column("_op"), value_set=ops))
        if wanted.keys is not None:
            column = batch.column("key")
            masks.append(pc.is_in(column, value_set=_as_column(wanted.keys, column.type)))
        masks += [pc.starts_with(batch.column("key"), each) for each in wanted.prefixes]
        return batch.filter(reduce(pc.and_, masks)) if masks else batch

    return meets


def _as_column(keys: Iterable[bytes], kind: Any) -> Any:
    import pyarrow as pa

    return pa.array(sorted(keys), pa.binary()).cast(kind)
