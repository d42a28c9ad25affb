"""The contract between the rules and whatever keeps the data.

A store is a set of vBuckets, each with a header and two indexes over one set of records: **by id**
(key -> newest version) and **by seq** (seqno -> that same version). It holds at most one record of
a key, live or tombstone: a newer one replaces the older and the older's by-seq entry goes in the
same commit.

Threads: `commit` may run in a worker thread, one at a time. A `StoreView` may be *read* in a worker
thread. Everything else, opening and closing views included, happens in the one thread that runs the
rules. The store itself takes no locks and starts no threads.

Implementations: `memory.MemoryStore` (the reference model) and `lmdb_store.LmdbStore`. Both pass
``tests/contracts/store_contract.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from uprmc.errors import StoreCorrupt
from uprmc.model import Item, VBucketHeader

#: Local document that exists exactly while a data directory was left in order.
CLEAN_MARK = b"uprmc/clean"


class VBucketChange(NamedTuple):
    """What one commit does to one vBucket."""

    vbucket: int  # its number
    # the header to store; ``None`` removes the vBucket with everything in it.
    header: VBucketHeader | None
    # new versions, seqnos strictly rising, at most one per key, values present (tombstones have
    # none). Seqnos need not be above those already stored: a replica that rolled back writes lower
    # ones.
    records: Sequence[bytes] = ()
    reset: bool = False  # forget all of the vBucket's records first
    # records to remove for good, tombstones as a rule, as (key, seqno), at most one per key; one
    # whose key has meanwhile another seqno is left alone. Done before `records` are written.
    drop: Sequence[tuple[bytes, int]] = ()
    # forget all records above this seqno, of whatever history; before `forget` and `drop`. ``None``
    # = none.
    rewind: int | None = None
    forget: Sequence[bytes] = ()  # keys to remove for good, whatever version of them is stored
    # versions to put in the place of damaged records of the same key and seqno; where the key has
    # another seqno, or the record is not damaged, nothing is done. After all others.
    heal: Sequence[bytes] = ()


@dataclass(frozen=True, slots=True)
class CommitBatch:
    """One atomic commit: all of it is on disk afterwards, or none of it."""

    changes: Sequence[VBucketChange] = ()  # at most one per vBucket
    # local documents to write (``None`` deletes); they are in no index and no stream.
    local: Mapping[bytes, bytes | None] = field(default_factory=dict)
    reset_all: bool = False  # forget every vBucket, header and record (not local documents) first
    # filled by `Store.commit`: number -> the seqno, in 8 bytes and perhaps more behind them, of
    # each record that a new one of its key has replaced, or that was forgotten.
    replaced: dict[int, list[bytes]] = field(default_factory=dict, compare=False)


class Trees(NamedTuple):
    """How large the store's trees are: a write at a random place copies a page of some of them."""

    by_id: int = 0  # pages that have by-id entries
    by_seq: int = 0  # pages that have by-seq entries, without records that have pages of their own
    stale: int = 0  # pages that have marks of replaced records
    branches: int = 0  # all other pages of trees
    records_bytes: int = 0  # what pages of records take, stale ones too
    records: int = 0  # number of records that are not stale
    stale_records: int = 0  # number of those that are


@dataclass(frozen=True, slots=True)
class StoreUsage:
    """Sizes, in bytes."""

    file_bytes: int  # what the data takes on the device
    map_bytes: int  # how large that may get before the store must grow
    free_bytes: int  # space inside the file that commits can use
    pinned_bytes: int = 0  # space of replaced data that they can use when open views are closed

    @property
    def used_bytes(self) -> int:
        """What the newest state of the data takes."""
        return self.file_bytes - self.free_bytes - self.pinned_bytes


class Damaged(NamedTuple):
    """A live record that is damaged, as the index by id knows it."""

    vbucket: int
    seqno: int
    key: bytes


class DamagedRecords(StoreCorrupt):
    """What was to be read has damaged records."""

    def __init__(self, records: list[Damaged]) -> None:
        self.records = records  # these
        first = records[0]
        more = f" and {len(records) - 1} more" if len(records) > 1 else ""
        super().__init__(
            f"{first.key!r} (vBucket {first.vbucket}, seqno {first.seqno}){more}: "
            "the record on disk is not what was written"
        )


class StoreView(Protocol):
    """A consistent reading of the last commit at the time it was opened; later commits never show.

    A view pins disk space: close it soon. Reading a closed view raises `StoreError`, and so does
    reading a record that is damaged: `DamagedRecords`.
    """

    #: Records handed out so far by this view: cost accounting for "a scan reads what it returns".
    records_read: int

    def headers(self) -> dict[int, VBucketHeader]:
        """Return the header of every stored vBucket."""

    def header(self, vbucket: int) -> VBucketHeader | None:
        """Return one header, ``None`` when the vBucket is not stored."""

    def get(self, vbucket: int, key: bytes) -> bytes | None:
        """Return the stored record of `key`, tombstones included."""

    def changes_after(self, vbucket: int, seqno: int) -> Iterator[Item]:
        """Yield every version of the vBucket with a higher seqno, by rising seqno."""

    def records_after(self, vbucket: int, seqno: int) -> Iterator[bytes]:
        """Yield the same versions as `changes_after`, as records.

        For streams, which copy most of a record as it is; not counted in `records_read`.
        """

    def portions_after(
        self, vbucket: int, seqno: int, damaged: list[Damaged] | None = None
    ) -> Iterator[list[bytes]]:
        """Yield the same records in portions of up to some hundreds; those may be empty.

        For who looks at all of them: little is done for each. A portion with several has no large
        values.

        Args:
            vbucket: its number.
            seqno: where to begin.
            damaged: takes those that are damaged, and the others are read; without it they raise.
        """

    def listed(
        self, vbucket: int, records: Sequence[bytes], damaged: Sequence[Damaged] = ()
    ) -> int:
        """Return the sum of what the index by id must have for live records of a vBucket."""

    def index(self) -> Iterator[int]:
        """Yield the sums of what the index by id has, some thousands of entries at a time.

        If all of them together are not the sum of what is `listed`, the indexes are at odds. Both
        are good within one process only.
        """

    def changes_before(self, vbucket: int, seqno: int) -> Iterator[Item]:
        """Yield the vBucket's versions at or below a seqno, by falling seqno, without values."""

    def count(self) -> int:
        """Return the number of records of all vBuckets, tombstones included."""

    def close(self) -> None:
        """Let go of the reading. Closing twice is harmless."""


class Store(Protocol):
    """Keeps the data of a node.

    The docstring of the module says which methods may be called when, and from which thread.
    """

    def commit(self, batch: CommitBatch) -> None:
        """Write `batch` atomically; when this returns it survives a crash of the process.

        With syncing on (the default of every implementation) it survives a power loss too.

        Raises:
            StoreFull: no room on the device. Nothing changed.
            StoreMapFull: `grow` first. Nothing changed.
            StoreError: anything else. Nothing changed.
        """

    def grow(self) -> bool:
        """Make room after `StoreMapFull`.

        Returns:
            ``False`` when it is impossible now because views are open: close them, try again.

        Raises:
            StoreFull: it can grow no more, even if nothing reads it.
        """

    def view(self) -> StoreView:
        """Open a reading of the newest commit."""

    def local(self, name: bytes) -> bytes | None:
        """Return a local document as of the newest commit."""

    def check_owner(self) -> None:
        """Raise `StoreTaken` if another process has opened the store since; `commit` does, too."""

    def take_damaged(self) -> list[Damaged]:
        """Return some of the damaged records that were met and not returned yet, each once."""

    def healed(self, record: Damaged) -> None:
        """Learn that a damaged record was healed, so that it is named again if it is met again."""

    def usage(self) -> StoreUsage:
        """Return sizes for statistics."""

    def trees(self) -> Trees:
        """Return what the next commit may have to copy pages of."""

    def sync(self) -> None:
        """Force what was committed without syncing to the device. May run in a worker thread."""

    def close(self) -> None:
        """Close files and release the directory. No view or commit may be open."""
