"""The plain values that every layer speaks: items, snapshot ranges, failover entries, states.

Nothing here has behaviour beyond making a changed copy of itself. Layers exchange these values
freely because nobody changes one after it was shared (design: "immutable values").
"""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import NamedTuple
from zlib import crc32

#: Seqno of "before the first mutation" and the greatest one a stream can name.
SEQNO_NONE = 0
SEQNO_MAX = 2**64 - 1

#: The greatest term that is believed; beyond it promotions could not be counted.
TERM_MAX = 2**63 - 1

#: CAS shown to readers of an item that another client has locked.
CAS_LOCKED = 2**64 - 1


def vbucket_of(key: bytes, vbuckets: int) -> int:
    """Return the vBucket that a key belongs to; `uprmc.kv` writes it out where it is hot."""
    return (crc32(key) >> 16 & 0x7FFF) % vbuckets


class VBucketState(IntEnum):
    """What a node may do with a vBucket. The numbers are the ones on the wire."""

    ACTIVE = 1
    REPLICA = 2
    PENDING = 3
    DEAD = 4


class Life(IntEnum):
    """Whether a version is a document or the record that it is gone."""

    LIVE = 0
    DELETED = 1
    EXPIRED = 2


class ConflictRule(StrEnum):
    """What decides between two versions of a document; fixed when a data directory is made."""

    REVISION = "revision"
    TIMESTAMP = "timestamp"


def conflict_rule(setting: str) -> ConflictRule | None:
    """Return what ``engine.conflict_resolution`` says, ``None`` if that is what is stored."""
    return None if setting == "stored" else ConflictRule(setting)


class Origin(NamedTuple):
    """Where a version was first accepted: the branch of history, and the seqno in it.

    Replication between clusters keeps it, so it names one version wherever that is.
    """

    uuid: int
    seqno: int


class Item:
    """One version of one document. Never changed once it is shared: an update makes a new one.

    Whoever holds an item (hash table, write queue, a reply on its way out) keeps it alive;
    reference counting frees it. The one exception to immutability is `nru`, a hint for the memory
    pager that is no part of the document.

    Attributes:
        key: 1 to 250 bytes.
        value: the body; ``None`` when it is only on disk (ejected) and for tombstones.
        flags: the client's own 32 bits.
        expiry: absolute Unix time in seconds, 0 = never. For a tombstone: when it was deleted.
        cas: version stamp, unique on the node.
        seqno: place in the vBucket's order.
        rev: count of changes of this document, the number that conflict resolution compares.
        datatype: the header's datatype bits.
        life: `Life.LIVE`, or how the document went.
        nru: "not recently used", 0 = hot to 3 = cold.
        origin: where it was first accepted, ``None`` = in this vBucket, under this seqno.
    """

    __slots__ = (
        "cas",
        "datatype",
        "expiry",
        "flags",
        "key",
        "life",
        "nru",
        "origin",
        "rev",
        "seqno",
        "value",
    )

    def __init__(
        self,
        key: bytes,
        value: bytes | None,
        flags: int,
        expiry: int,
        cas: int,
        seqno: int,
        rev: int,
        datatype: int = 0,
        life: int = 0,
        nru: int = 2,
        origin: Origin | None = None,
    ) -> None:
        self.key = key
        self.value = value
        self.flags = flags
        self.expiry = expiry
        self.cas = cas
        self.seqno = seqno
        self.rev = rev
        self.datatype = datatype
        self.life = life
        self.nru = nru
        self.origin = origin

    def with_value(self, value: bytes | None) -> Item:
        """Return the same version with its body brought in, or (``None``) left on disk."""
        return Item(
            self.key,
            value,
            self.flags,
            self.expiry,
            self.cas,
            self.seqno,
            self.rev,
            self.datatype,
            self.life,
            self.nru,
            self.origin,
        )

    def _fields(self) -> tuple[object, ...]:
        return (
            self.key,
            self.value,
            self.flags,
            self.expiry,
            self.cas,
            self.seqno,
            self.rev,
            self.datatype,
            self.life,
            self.origin,
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Item) and self._fields() == other._fields()

    def __hash__(self) -> int:
        return hash((self.key, self.seqno))

    def __repr__(self) -> str:
        return (
            f"Item({self.key!r}, {self.value!r}, flags={self.flags}, expiry={self.expiry}, "
            f"cas={self.cas}, seqno={self.seqno}, rev={self.rev}, datatype={self.datatype}, "
            f"life={Life(self.life).name})"
        )


class SnapshotRange(NamedTuple):
    """The seqnos a snapshot covers; ``start == end`` when nothing is half received."""

    start: int
    end: int


class FailoverEntry(NamedTuple):
    """A branch of history: ``uuid`` names what was written after ``seqno``."""

    uuid: int
    seqno: int


#: Which histories a vBucket has been through, newest first; never empty once the vBucket exists.
FailoverLog = tuple[FailoverEntry, ...]


class VBucketHeader(NamedTuple):
    """What is stored of a vBucket besides its items, always in the same commit as they are.

    Attributes:
        state: the state it had when this was written.
        high_seqno: highest seqno among the items written so far.
        snapshot: the range those items belong to; incomplete while ``high_seqno < snapshot.end``.
        failover_log: newest first, never empty.
        purge_seqno: highest seqno of a tombstone that was dropped.
        max_deleted_rev: highest revision among deletions, so that a new document outranks them.
        term: how often the vBucket was promoted anywhere; 0 = not known.
        max_cas: highest CAS that any version had in it, purged ones too; 0 = not known.
        known_term: the highest term that anybody is known to have for this vBucket.
    """

    state: VBucketState
    high_seqno: int
    snapshot: SnapshotRange
    failover_log: FailoverLog
    purge_seqno: int = 0
    max_deleted_rev: int = 0
    term: int = 0
    max_cas: int = 0
    known_term: int = 0
