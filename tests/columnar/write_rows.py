"""Batches for the writing side's tests, and a clock that only they move."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from uprmc.columnar.access import Access
from uprmc.columnar.report import TaskReport
from uprmc.columnar.write_options import WriteOptions
from uprmc.columnar.writing import Writer


def documents(pairs: Mapping[Any, Any] | Iterable[tuple[Any, Any]], **more: Any) -> pa.RecordBatch:
    """Return a batch with keys and values as binary, and further columns."""
    rows = list(pairs.items()) if isinstance(pairs, Mapping) else list(pairs)
    columns = {
        "key": pa.array([key for key, _ in rows], pa.binary()),
        "value": pa.array([value for _, value in rows], pa.binary()),
    }
    for name, values in more.items():
        columns[name] = values if isinstance(values, pa.Array) else pa.array(values)
    return pa.record_batch(columns)


def versions(rows: Sequence[tuple[bytes, bytes | None, str, int, int]]) -> pa.RecordBatch:
    """Return a batch for append-meta from (key, value, operation, rev, CAS)."""
    keys, values, operations, revs, cas = zip(*rows, strict=True) if rows else ((),) * 5
    return pa.record_batch(
        {
            "key": pa.array(keys, pa.binary()),
            "value": pa.array(values, pa.binary()),
            "_op": pa.array(operations, pa.string()),
            "_rev": pa.array(revs, pa.int64()),
            "_cas": pa.array(cas, pa.int64()),
        }
    )


def written(place: object, *batches: pa.RecordBatch, **options: Any) -> TaskReport:
    """Write batches to a node as one task."""
    with Writer(WriteOptions(Access((str(place),)), **options)) as writer:
        for batch in batches:
            writer.write(batch)
        report = writer.finish()
    assert report.balanced
    return report


class HandClock:
    """A clock for `clock`, `sleep` and `now`: sleeping is what makes time pass."""

    def __init__(self, at_s: float = 1_000.0) -> None:
        self.at_s = at_s
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.at_s

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.at_s += seconds
