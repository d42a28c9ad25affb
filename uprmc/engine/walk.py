"""Walking over all items a slice at a time, so that other work need not wait."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from uprmc.engine.vbucket import VBucket
from uprmc.model import Item


def slices(
    vbuckets: Iterable[VBucket], slice_items: int
) -> Iterator[list[tuple[VBucket, list[Item]]]]:
    """Yield groups of about `slice_items` items, of each vBucket those that it has when reached.

    Between two slices anything may change: check an item against the table before acting on it.
    """
    group: list[tuple[VBucket, list[Item]]] = []
    size = 0
    for vbucket in vbuckets:
        items = list(vbucket.table.values())
        for start in range(0, len(items), slice_items):
            chunk = items[start : start + slice_items]
            group.append((vbucket, chunk))
            size += len(chunk)
            if size >= slice_items:
                yield group
                group, size = [], 0
    if group:
        yield group
