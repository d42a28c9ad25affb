"""What a consumer is told, and whom it is told to: changes, documents, and the handler.

A handler implements what it needs; the rest does nothing. With the blocking client its methods
return nothing; with an asynchronous one they may return an awaitable, and nothing more is handed
over until that is done.

Source: systems reference g.1.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from uprmc.remote.batch import DELETE, EXPIRE, SET, Batch, Change

__all__ = [
    "DELETE",
    "EXPIRE",
    "SET",
    "BatchHandler",
    "Change",
    "Document",
    "DurableHandler",
    "Handler",
]


class Document(NamedTuple):
    """A document as the active node has it now; fields as in `Change`."""

    key: bytes
    value: bytes
    rev: int
    cas: int
    flags: int
    expiry: int
    datatype: int


class Handler:
    """What a consumer does with what it is told. Make a subclass; override what you need.

    Applying a change must be harmless when done twice, unless position and effects are committed
    together (`SqliteState` on the handler's own connection): after a crash the last changes come
    again.

    Attributes:
        native_rollback: `rollback` can return to any earlier snapshot end by itself: then no keys
            are remembered for it. It is also called before the first stream, because a crash may
            have left more than the saved position says.
        returns_anywhere: with `native_rollback`: it can return to any seqno, inside of a snapshot
            too.
    """

    native_rollback = False
    returns_anywhere = False

    def snapshot_begin(self, vbucket: int, start: int, end: int, from_disk: bool) -> Any:
        """Changes up to `end` follow; only together are they a state that the node had."""

    def mutation(self, change: Change) -> Any:
        """A document was set."""

    def deletion(self, change: Change) -> Any:
        """A document was deleted, or has expired; perhaps one that you never had."""

    def snapshot_end(self, vbucket: int, end: int) -> Any:
        """Everything up to `end` was handed over. Return when it is durable."""

    def rollback(self, vbucket: int, seqno: int) -> Any:
        """Return to the state of `seqno`; 0 = drop everything of this vBucket, which you must.

        Return ``True`` when that is done and durable; otherwise `undo` is called for each key.
        """

    def undo(self, vbucket: int, key: bytes, document: Document | None) -> Any:
        """Put the document in the key's place, or remove it (``None``). Return when durable."""

    def branch(self, vbucket: int, uuid: int, lost_from: int, lost_to: int) -> Any:
        """History goes on as `uuid`; what had the seqnos `lost_from` to `lost_to` was undone.

        Both are 0 when nothing was.
        """


class DurableHandler(Protocol):
    """A handler that can make durable what it was told so far, also in the middle of a snapshot.

    Then a position inside of a snapshot is saved too, and a restart goes on from there.
    """

    def durable(self) -> Any:
        """Return when everything that was handed over is durable."""


class BatchHandler(Protocol):
    """A handler that takes batches: the quick way, for programs that do much at a time.

    Then `mutation`, `deletion`, `snapshot_begin` and `snapshot_end` are not called.
    """

    def changes(self, batch: Batch) -> Any:
        """Take changes of any number of vBuckets.

        `batch.whole` names the vBuckets that are at the end of a snapshot behind it. Return when
        these are durable, as from `snapshot_end`.
        """
