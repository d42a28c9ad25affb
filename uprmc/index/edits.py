"""From changes of documents to edits of trees: what goes, what comes. Pure; reads no file.

A document's old rows are known from the id tree. Rows that stay as they are cost nothing in a
view's tree, because a removal whose key is inserted again is dropped.

Source: systems reference c.3, c.4; acceptance row I08.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from uprmc.client.handler import SET, Change
from uprmc.consume.batch import Batch
from uprmc.index.model import Document, Mapped
from uprmc.index.rows import document_rows, split_id_value
from uprmc.index.tree import Position
from uprmc.index.tree.nodes import Row

#: By vBucket and key, the newest version; ``None`` = it is gone.
Latest = dict[tuple[int, bytes], Document | None]

_START = Position(0, 0, 0)


class Edit(NamedTuple):
    """What is done to one tree: keys that go, by rising key, and entries that come, likewise."""

    removals: Sequence[bytes]
    insertions: Sequence[Row]


def latest_of(changes: Iterable[Change]) -> Latest:
    """Return the newest version of each document that changes are about."""
    found: Latest = {}
    for change in changes:
        document = None
        if change.op is SET:
            document = Document(
                change.key, change.vbucket, change.seqno, change.value or b"", change.rev,
                change.cas, change.flags or 0, change.expiry or 0,
            )  # fmt: skip
        found[change.vbucket, change.key] = document
    return found


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
    mapped: Iterable[tuple[Document, Mapped]],
    views: int,
) -> tuple[Edit, list[Edit]]:
    """Return what becomes of the id tree, and of each view's.

    Args:
        known: id key -> value, of those changed documents that the id tree has.
        mapped: the documents that are there, with what their maps have emitted.
        views: how many.
    """
    old: list[set[bytes]] = [set() for _ in range(views)]
    new: list[dict[bytes, Row]] = [{} for _ in range(views)]
    ids: dict[bytes, Row] = {}
    for value in known.values():
        for keys, gone in zip(split_id_value(value), old, strict=True):
            gone.update(keys)
    for document, (emitted, _) in mapped:
        entry, rows = document_rows(document.key, document.vbucket, emitted)
        if any(rows):
            ids[entry[0]] = entry
        for added, some in zip(new, rows, strict=True):
            added.update((row[0], row) for row in some)
    id_edit = Edit(sorted(known.keys() - ids.keys()), [ids[key] for key in sorted(ids)])
    return id_edit, [
        Edit(sorted(gone - added.keys()), [added[key] for key in sorted(added)])
        for gone, added in zip(old, new, strict=True)
    ]
