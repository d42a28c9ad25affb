"""One row of a vBucket's watermarks: its rules, its form on disk, what replicas see of it.

A row is valid only in the history in which it was reported. `judged` shows it as the present
history sees it, so a row needs no change when a vBucket begins a branch or is reset.

**Floor.** A client that builds from zero has a low watermark for a long time. What it receives were
documents at the end of its first snapshot, so it needs only the deletions above that end: the floor
of its row. Without floors a builder would block the purger, or be sent back to zero again and again
(ruling R5).

**Replicas** get no row that is ahead of what they themselves hold. A row says that a client needs
no deletion up to its watermark. At a replica that holds less, the row would speak of changes that
may never come: if the replica is promoted they are lost, and their seqnos are given to others,
which the client needs. So a replica gets the newest value that was reported when the row was not
ahead yet. If none is remembered, the row is left out, and the replica's table is incomplete: it
must drop nothing.

Rows X10, X16, X18 and X25.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Iterator, Mapping
from enum import IntEnum
from typing import NamedTuple, Protocol

from construct import Int8ub, Int16ub, Int32ub, Int64ub
from construct import Struct as Layout

from uprmc.config import PurgeSettings
from uprmc.errors import InvalidArguments, StoreCorrupt
from uprmc.model import SEQNO_MAX, FailoverLog
from uprmc.protocol.derive import derive
from uprmc.protocol.watermarks import ID_MAX_BYTES
from uprmc.rollback import VBucketHoldings, ends_of_branches

META_MAX_BYTES = 4_096

#: A lifetime that cannot be asked for on the wire: the row does not expire by time.
NEVER = -1


class Kind(IntEnum):
    """What a client is. The numbers are those on the wire."""

    OTHER = 0
    XDCR = 1
    INDEX = 2
    REPLICA = 3
    REBALANCE = 4
    BACKUP = 5
    SPARK = 6


_LIFETIME_SETTINGS = {kind: f"expires_{kind.name.lower()}_s" for kind in Kind}


class Row(NamedTuple):
    """What one client has said of one vBucket."""

    id: bytes  # the instance's name, 1 to 64 bytes; it survives restarts of the client
    kind: Kind  # what the client is
    watermark: int  # every change up to this seqno is durable at the client
    vb_uuid: int  # the history in which the watermark was reported
    # while the client builds from zero, the end of its first snapshot; otherwise ``None``.
    floor: int | None
    reported_at: int  # Unix time of the last report, in seconds
    lifetime_s: int  # the row expires when there is no report for this long; 0 = never
    meta: bytes = b""  # the client's own bytes, up to 4096

    @property
    def effective(self) -> int:
        """The seqno above which the client needs every deletion."""
        return max(self.watermark, self.floor or 0)

    def within(self, end: int) -> Row:
        """Return the row as a history has it that ends there."""
        if self.effective <= end:
            return self
        floor = None if self.floor is None else min(self.floor, end)
        return self._replace(watermark=min(self.watermark, end), floor=floor)

    def is_expired(self, now: float) -> bool:
        """Tell whether the client has been silent for too long."""
        return bool(self.lifetime_s) and now > self.reported_at + self.lifetime_s


class WatermarkReport(NamedTuple):
    """What a client says of one vBucket; see `Row`."""

    id: bytes
    kind: Kind
    watermark: int
    lifetime_s: int = 0  # what the client asks for, 0 = the default of its kind, or `NEVER`
    vb_uuid: int | None = None  # ``None`` = the present history
    meta: bytes = b""

    def check(self) -> None:
        """Raise `InvalidArguments` for an id or a meta log of a wrong length."""
        if not 1 <= len(self.id) <= ID_MAX_BYTES:
            raise InvalidArguments(f"an id has 1 to {ID_MAX_BYTES} bytes, not {len(self.id)}")
        if len(self.meta) > META_MAX_BYTES:
            raise InvalidArguments(f"a meta log has at most {META_MAX_BYTES} bytes")


class Limit(NamedTuple):
    """How far a vBucket may be purged."""

    seqno: int  # no tombstone above this may be dropped
    # the id of the row that sets it, "disk" if the disk lacks later changes, "source" if a replica
    # waits for its source, ``None`` if nothing holds the purger back.
    limited_by: bytes | str | None


def granted_lifetime_s(kind: Kind, asked_s: int, settings: PurgeSettings) -> int:
    """Return the lifetime of a row: what was asked for, at most the default of its kind.

    Only the node itself can ask for `NEVER`.
    """
    if asked_s == NEVER:
        return 0
    default: int = getattr(settings, _LIFETIME_SETTINGS[kind])
    if not asked_s or not default:
        return asked_s or default
    return min(asked_s, default)


def judged(rows: Iterable[Row], holdings: VBucketHoldings) -> list[Row]:
    """Return rows as the present history sees them.

    What was reported in a history that ended earlier counts up to its end; what was reported in an
    unknown one counts for nothing.
    """
    found, newest, high_seqno = list(rows), holdings.failover_log[0].uuid, holdings.high_seqno
    if all(row.vb_uuid == newest and row.effective <= high_seqno for row in found):
        return found
    ends = ends_of_branches(holdings.failover_log, high_seqno)
    return [_within(row, ends) for row in found]


class HasHistory(Protocol):
    """A vBucket, or what the rules need to know about it, see `VBucketHoldings`."""

    @property
    def failover_log(self) -> FailoverLog: ...

    @property
    def high_seqno(self) -> int: ...

    @property
    def purge_seqno(self) -> int: ...


def judged_one(row: Row, holdings: HasHistory) -> Row:
    """Return one row as the present history sees it; it is asked for with each stream."""
    _, _, watermark, uuid, floor, _, _, _ = row
    effective = watermark if floor is None or floor < watermark else floor
    if uuid == holdings.failover_log[0].uuid and effective <= holdings.high_seqno:
        return row
    return judged(
        [row], VBucketHoldings(holdings.failover_log, holdings.high_seqno, holdings.purge_seqno)
    )[0]


def needing(rows: Iterable[Row], holdings: VBucketHoldings) -> list[Row]:
    """Return the rows, judged, whose clients may ask for deletions of the present history.

    Who reported in a history that is unknown now will be sent back to zero, and needs none.
    """
    known = {entry.uuid for entry in holdings.failover_log}
    return judged([row for row in rows if row.vb_uuid in known], holdings)


def _within(row: Row, ends: Mapping[int, int]) -> Row:
    end = ends.get(row.vb_uuid)
    if end is None:
        return row._replace(watermark=0, floor=None)
    return row.within(end)


def limit_of(rows: Iterable[Row], holdings: VBucketHoldings, durable_seqno: int) -> Limit:
    """Return the limit of the purger; a row of several with the same seqno is the least by id.

    Args:
        rows: the live rows, judged.
        holdings: the vBucket; the limit is never below its purge seqno.
        durable_seqno: everything up to here is on disk.
    """
    slowest = min(rows, key=lambda row: (row.effective, row.id), default=None)
    if slowest is not None and slowest.effective < durable_seqno:
        return Limit(max(slowest.effective, holdings.purge_seqno), slowest.id)
    return Limit(durable_seqno, "disk" if durable_seqno < holdings.high_seqno else None)


def pin_of(rows: Iterable[Row], upto: int) -> tuple[Row, int] | None:
    """Return the row that alone keeps tombstones, and up to which seqno it does; or ``None``.

    It keeps those above its effective seqno that no other row needs.

    Args:
        rows: the live rows, judged.
        upto: how far the vBucket might be purged if there were no rows.
    """
    in_order = sorted(rows, key=lambda row: row.effective)
    if not in_order:
        return None
    first = in_order[0]
    end = min(upto, in_order[1].effective) if in_order[1:] else upto
    return (first, end) if first.effective < end else None


# --- what replicas see --------------------------------------------------------------------------


#: This many earlier reports of each row are remembered.
EARLIER_REPORTS = 8

#: Kinds whose rows stay at the node: after a promotion, the new active node gets new rows.
_LOCAL = frozenset({Kind.REPLICA, Kind.REBALANCE})


class Shown(NamedTuple):
    """What a replica gets."""

    rows: tuple[Row, ...]  # by id, none of them ahead of the replica
    hidden: int  # number of rows that are left out because they are ahead


def goes_to_replicas(row: Row) -> bool:
    """Tell whether a row is of a kind that replicas get."""
    return row.kind not in _LOCAL


def newest_within(reports: Iterable[Row], reach: int) -> Row | None:
    """Return the first of some reports, newest first, that is not ahead of `reach`."""
    return next((row for row in reports if row.effective <= reach), None)


def shown_to(reports: Collection[Iterable[Row]], reach: int) -> Shown:
    """Return what a replica gets that holds everything up to `reach` on its disk.

    Args:
        reports: of each row, newest first, as the present history sees them.
        reach: the end of a complete snapshot.
    """
    found = [newest_within(row, reach) for row in reports]
    rows = tuple(row for row in found if row is not None)
    return Shown(rows, len(found) - len(rows))


# --- on disk ------------------------------------------------------------------------------------
# The local document that keeps the rows of one vBucket over restarts: a version byte, then for each
# row its numbers, its id and its meta log. All numbers are big-endian. The version is 2 if a
# replica's table is incomplete.


_VERSION = b"\x01"
_INCOMPLETE = b"\x02"

_NO_FLOOR = SEQNO_MAX

_FIXED = derive(
    Layout(
        "kind" / Int8ub,
        "watermark" / Int64ub,
        "vb_uuid" / Int64ub,
        "floor" / Int64ub,
        "reported_at" / Int64ub,
        "lifetime_s" / Int32ub,
        "id_bytes" / Int16ub,
        "meta_bytes" / Int16ub,
    )
)


def document_name(vbucket: int) -> bytes:
    """Return the name of a vBucket's document."""
    return b"uprmc/watermarks/%d" % vbucket


def encode_rows(rows: Iterable[Row], *, incomplete: bool = False) -> bytes | None:
    """Return the document of these rows, ``None`` if there are none and none are lacking."""
    pieces = [_encoded(row) for row in rows]
    if incomplete:
        return b"".join([_INCOMPLETE, *pieces])
    return b"".join([_VERSION, *pieces]) if pieces else None


def decode_rows(document: bytes | None) -> tuple[list[Row], bool]:
    """Read it back; also tell whether rows are lacking. Raises `StoreCorrupt`."""
    if document is None:
        return [], False
    if not document.startswith((_VERSION, _INCOMPLETE)):
        raise StoreCorrupt("stored watermarks are not of version 1 or 2")
    try:
        return list(_decoded(document)), document.startswith(_INCOMPLETE)
    except (struct.error, ValueError):
        raise StoreCorrupt("stored watermarks cannot be read") from None


def _encoded(row: Row) -> bytes:
    floor = _NO_FLOOR if row.floor is None else row.floor
    fixed = _FIXED.pack(
        row.kind,
        row.watermark,
        row.vb_uuid,
        floor,
        row.reported_at,
        row.lifetime_s,
        len(row.id),
        len(row.meta),
    )
    return fixed + row.id + row.meta


def _decoded(document: bytes) -> Iterator[Row]:
    position = len(_VERSION)
    while position < len(document):
        fields = _FIXED.unpack_from(document, position)
        kind, watermark, uuid, floor, reported_at, lifetime_s, id_bytes, meta_bytes = fields
        middle = position + _FIXED.size + id_bytes
        name = document[middle - id_bytes : middle]
        position = middle + meta_bytes
        if position > len(document):
            raise ValueError("cut off")
        known_floor = None if floor == _NO_FLOOR else floor
        meta = document[middle:position]
        yield Row(name, Kind(kind), watermark, uuid, known_floor, reported_at, lifetime_s, meta)
