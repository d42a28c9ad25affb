"""From changes of documents to edits of trees: what goes, what comes. Pure; reads no file.

A document's old rows are known from the id tree. Rows that stay as they are cost nothing in a
view's tree, because a removal whose key is inserted again is dropped.

Source: systems reference c.3, c.4; acceptance row I08.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from uprmc.index.model import Mapped
from uprmc.index.rows import rows_of, split_id_value
from uprmc.index.tree import Position
from uprmc.index.tree.nodes import Row
from uprmc.index.versions import Documents
from uprmc.remote.batch import Batch

_START = Position(0, 0, 0)


class Edit(NamedTuple):
    """What is done to one tree: keys that go, by rising key, and entries that come, likewise."""

    removals: Sequence[bytes]
    insertions: Sequence[Row]


def advanced(positions: Mapping[int, Position], batches: Iterable[Batch]) -> dict[int, Position]:
    """Return where the vBuckets of some batches stand behind these."""
    found: dict[int, Position] = {}
    for batch in batches:
        for run in batch.runs:
            vbucket = run.stream.vbucket
            seqno, start, end = found.get(vbucket) or positions.get(vbucket, _START)
            if run.begun is not None:
                end = run.begun[1]
            if run.last > run.first:
                seqno = batch.seqnos[run.last - 1]
            if run.done is not None:
                seqno = start = end = run.done
            found[vbucket] = Position(seqno, start, end)
    return found


def edits(
    known: Mapping[bytes, bytes],
    documents: Documents,
    mapped: Sequence[Mapped],
    views: int,
) -> tuple[Edit, list[Edit]]:
    """Return what becomes of the id tree, and of each view's.

    Args:
        known: id key -> value, of those changed documents that the id tree has.
        documents: those changed ones that are there.
        mapped: what their maps have emitted.
        views: how many.
    """
    old: list[set[bytes]] = [set() for _ in range(views)]
    for value in known.values():
        for keys, gone in zip(split_id_value(value), old, strict=True):
            gone.update(keys)
    emitted = [each.rows for each in mapped]
    entries, rows = rows_of(documents.keys, documents.vbuckets, emitted, views)
    ids = {entry[0]: entry for entry, each in zip(entries, emitted, strict=True) if any(each)}
    new = [{row[0]: row for row in of_view} for of_view in rows]
    id_edit = Edit(sorted(known.keys() - ids.keys()), [ids[key] for key in sorted(ids)])
    return id_edit, [
        Edit(sorted(gone - added.keys()), [added[key] for key in sorted(added)])
        for gone, added in zip(old, new, strict=True)
    ]
