"""The newest versions of documents that batches hold: as columns, each a `Document` only on demand.

Most maps look at nothing but the values of documents, and rows need their ids and vBuckets. All
else is read from the batches when it is asked for. Source: systems reference c.3.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import chain
from typing import NamedTuple, cast, overload

from uprmc.index.model import Document
from uprmc.remote.batch import Batch, Change

__all__ = ["Documents", "Latest", "bodies", "latest_of"]


class Documents(Sequence[Document]):
    """Versions of documents.

    Attributes:
        keys, vbuckets, values: of each.
    """

    def __init__(
        self,
        keys: Sequence[bytes],
        vbuckets: Sequence[int],
        values: Sequence[bytes],
        batches: Sequence[Batch],
        chosen: Sequence[int] | None,
    ) -> None:
        self.keys, self.vbuckets, self.values = keys, vbuckets, values
        self._batches, self._chosen = batches, chosen

    @cached_property
    def _made(self) -> list[Document]:
        changes = list(chain.from_iterable(self._batches))
        if self._chosen is not None:
            changes = [changes[at] for at in self._chosen]
        return list(map(_document, changes))

    def __len__(self) -> int:
        return len(self.keys)

    def __iter__(self) -> Iterator[Document]:
        return iter(self._made)

    @overload
    def __getitem__(self, index: int) -> Document: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Document]: ...

    def __getitem__(self, index: int | slice) -> Document | Sequence[Document]:
        return self._made[index]


def _document(change: Change) -> Document:
    return Document(
        change.key, change.vbucket, change.seqno, change.value or b"", change.rev,
        change.cas, change.flags or 0, change.expiry or 0,
    )  # fmt: skip


def bodies(documents: Sequence[Document]) -> Sequence[bytes]:
    """Return the value of each document."""
    if isinstance(documents, Documents):
        return documents.values
    return [document.value for document in documents]


class Latest(NamedTuple):
    """What documents have become.

    Attributes:
        documents: the newest version of each that is there.
        gone: vBucket and id of each that is not.
    """

    documents: Documents
    gone: Sequence[tuple[int, bytes]]


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
