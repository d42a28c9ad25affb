"""Walking over all items a slice at a time, so that other work need not wait."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from uprmc.engine.vbucket import VBucket


def slices(
    vbuckets: Iterable[VBucket], slice_items: int
) -> Iterator[list[tuple[VBucket, list[bytes]]]]:
    """Yield groups of about `slice_items` records, of each vBucket those of its table when reached.

    Between two slices anything may change: check a record against the table before acting on it.
    """
    group: list[tuple[VBucket, list[bytes]]] = []
    size = 0
    for vbucket in vbuckets:
        for records in vbucket.table.portions():
            for start in range(0, len(records), slice_items):
                chunk = records[start : start + slice_items]
                group.append((vbucket, chunk))
                size += len(chunk)
                if size >= slice_items:
                    yield group
                    group, size = [], 0
    if group:
        yield group
