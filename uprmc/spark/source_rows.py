"""Rows of a task as its options want them: `reading.read` with everything filled in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from uprmc.columnar.read_state import Range
from uprmc.columnar.reading import OnDone, read
from uprmc.spark.options import ReadOptions


def rows(
    options: ReadOptions,
    ranges: Iterable[Range],
    *,
    lease: str | None = None,
    on_done: OnDone | None = None,
) -> Iterator[Any]:
    """Yield Arrow batches with the schema of ``options.columns``; see `reading.read`."""
    return read(
        options.access,
        ranges,
        options.columns,
        lease=lease,
        batch_rows=options.batch_rows,
        batch_bytes=options.batch_bytes,
        no_value=options.no_value or not options.columns.wants_value,
        on_done=on_done,
        lease_s=options.lease_s,
    )
