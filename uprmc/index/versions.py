"""The newest versions of documents in batches: columns, each an `IndexedDocument` on demand.

Most maps look at nothing but the values of documents, and rows need their ids and vBuckets. All
else is read from the batches when it is asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import NamedTuple, cast, overload

from uprmc.index.model import IndexedDocument, Mapped
from uprmc.index.rows import rows_of, split_id_value
from uprmc.index.tree import IndexPosition
from uprmc.index.tree.nodes import Row
from uprmc.remote.batch import Batch, Change

__all__ = ["Documents", "Latest", "bodies", "latest_of"]


class Documents(Sequence[IndexedDocument]):
    """Versions of documents."""

    def __init__(
        self,
        keys: Sequence[bytes],
        vbuckets: Sequence[int],
        values: Sequence[bytes],
        batches: Sequence[Batch],
        chosen: Sequence[int] | None,
    ) -> None:
        # Of each row of them: its key, vBucket and value.
        self.keys, self.vbuckets, self.values = keys, vbuckets, values
        self._batches, self._chosen = batches, chosen

    @cached_property
    def _made(self) -> list[IndexedDocument]:
        changes = list(chain.from_iterable(self._batches))
        if self._chosen is not None:
            changes = [changes[at] for at in self._chosen]
        return list(map(_document, changes))

    def __len__(self) -> int:
        return len(self.keys)

    def __iter__(self) -> Iterator[IndexedDocument]:
        return iter(self._made)

    @overload
    def __getitem__(self, index: int) -> IndexedDocument: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[IndexedDocument]: ...

    def __getitem__(self, index: int | slice) -> IndexedDocument | Sequence[IndexedDocument]:
        return self._made[index]


def _document(change: Change) -> IndexedDocument:
    return IndexedDocument(
        change.key, change.vbucket, change.seqno, change.value or b"", change.rev,
        change.cas, change.flags or 0, change.expiry or 0,
    )  # fmt: skip


def bodies(documents: Sequence[IndexedDocument]) -> Sequence[bytes]:
    """Return the value of each document."""
    if isinstance(documents, Documents):
        return documents.values
    return [document.value for document in documents]


class Latest(NamedTuple):
    """What documents have become."""

    documents: Documents  # the newest version of each that is there
    gone: Sequence[tuple[int, bytes]]  # vBucket and id of each that is not


def latest_of(batches: Sequence[Batch]) -> Latest:
    """Return what the documents have become that batches are about."""
    keys = [key for batch in batches for key in batch.keys]
    vbuckets = [vbucket for batch in batches for vbucket in batch.vbuckets]
    values = [value for batch in batches for value in batch.values]
    if len(set(keys)) == len(keys) and None not in values:
        return Latest(Documents(keys, vbuckets, cast(list[bytes], values), batches, None), ())
    newest = {place: at for at, place in enumerate(zip(vbuckets, keys, strict=True))}
    chosen = sorted(at for at in newest.values() if values[at] is not None)
    documents = Documents(
        [keys[at] for at in chosen],
        [vbuckets[at] for at in chosen],
        [values[at] or b"" for at in chosen],
        batches,
        chosen,
    )
    return Latest(documents, [place for place, at in newest.items() if values[at] is None])


# --- edits ----------------------------------------------------------------------------------------
# From changes of documents to edits of trees: what goes, what comes. Pure; reads no file.
#
# A document's old rows are known from the id tree. Rows that stay as they are cost nothing in a
# view's tree, because a removal whose key is inserted again is dropped.
#
# Row I08.


_START = IndexPosition(0, 0, 0)


class Edit(NamedTuple):
    """What is done to one tree: keys that go, by rising key, and entries that come, likewise."""

    removals: Sequence[bytes]
    insertions: Sequence[Row]


def advanced(
    positions: Mapping[int, IndexPosition], batches: Iterable[Batch]
) -> dict[int, IndexPosition]:
    """Return where the vBuckets of some batches stand behind these."""
    found: dict[int, IndexPosition] = {}
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
            found[vbucket] = IndexPosition(seqno, start, end)
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
