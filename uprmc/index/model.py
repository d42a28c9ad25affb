"""What the parts of the index tell one another: documents, emitted rows, entries of trees."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import Enum
from typing import NamedTuple, Protocol

__all__ = [
    "Emission",
    "Entry",
    "IndexedDocument",
    "Lost",
    "Mapped",
    "Mapper",
    "Reducer",
    "Reductions",
    "Stale",
    "Token",
]


class IndexedDocument(NamedTuple):
    """A version of a document, as it came over a stream."""

    key: bytes  # its id, any bytes
    vbucket: int  # where it is
    seqno: int  # of this version
    value: bytes  # its body, as stored (after decompression)
    rev: int  # as stored, like what follows; `expiry` in seconds of the epoch, 0 = never
    cas: int
    flags: int
    expiry: int


class Emission(NamedTuple):
    """One row that a map function emitted."""

    sort_key: bytes  # `collation.sort_key` of the key: no one is a prefix of another
    key: bytes  # the key as compact JSON in UTF-8
    value: bytes  # the value, likewise


class Mapped(NamedTuple):
    """What the views of a design made of one document."""

    # for each view, in the design's order, what it emitted, in the order of emission.
    rows: Sequence[Sequence[Emission]]
    # why a view has none of this document, with the view's name; ``None`` = all went well.
    error: str | None = None


class Mapper(Protocol):
    """Runs the map functions of one design. Its calls block; call it in a worker thread."""

    @property
    def log(self) -> Collection[tuple[str, str]]:
        """What functions have logged last: (id of the document, text); any thread may ask."""

    def map(self, documents: Sequence[IndexedDocument]) -> list[Mapped]:
        """Return what each document gives, in their order; never raises for what one does."""

    def give_up(self) -> None:
        """Have `map` raise `GivenUp` soon, whatever functions do; any thread may call this."""

    def close(self) -> None:
        """End child processes."""


class Lost(NamedTuple):
    """A document that could not be had, which may be there all the same, and why."""

    why: str


class Entry(NamedTuple):
    """A row in a leaf of a tree."""

    key: bytes  # what the tree is ordered by, as bytes
    vbucket: int  # of the document that it came from
    value: bytes  # what is kept with it


#: Of each reduce of a view, in order: compact JSON, or ``None`` where it could not be made.
Reductions = tuple[bytes | None, ...]


class Reducer(Protocol):
    """The reduces of one view. Blocks; never raises for what a reduce does: that is ``None``."""

    def reduce(self, entries: Sequence[Entry]) -> Reductions:
        """Return the reductions of rows of the view's tree."""

    def rereduce(self, reductions: Sequence[Reductions]) -> Reductions:
        """Return the reductions of reductions, at least one."""


class Stale(Enum):
    """How fresh an answer must be."""

    OK = "ok"
    UPDATE_AFTER = "update_after"
    FALSE = "false"


class Token(NamedTuple):
    """A version that an answer must contain: `seqno` of the history `vb_uuid`."""

    vbucket: int
    vb_uuid: int
    seqno: int
