"""Checkpoints of a link: how far a vBucket was sent, at both ends, and where to go on from there.

A record says: the source's history `uuid` was sent up to `seqno`, and all of it was applied at the
target when that vBucket had `target_seqno` in the history `target_uuid`. The link may go on at a
record if both ends still have these histories up to there. The newest five of each vBucket are kept
in a local document; the newest one is also in the link's watermark row, where replicas get it.

Row X12.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

from uprmc.engine.bucket import Bucket
from uprmc.model import FailoverEntry
from uprmc.remote.history import Entries
from uprmc.rollback import ends_of_branches
from uprmc.xdcr.reading import PREFIX
from uprmc.xdcr.spec import read_versioned

#: Records of a vBucket that are kept.
KEPT = 5

_VERSION = 1

#: Fields that records of earlier versions do not have.
_LATER = frozenset({"purged"})


class Record(NamedTuple):
    """One checkpoint of one vBucket."""

    uuid: int  # the source's history, a vb_uuid
    seqno: int  # everything up to here has arrived
    snapshot_start: int  # the snapshot that `seqno` lies in; both are `seqno` at its end
    snapshot_end: int
    target_uuid: int  # the target's newest history then; 0 = the target has none to tell
    target_seqno: int  # its high seqno after that
    created: int = 0  # Unix time
    # 1 = the target has missed no deletion of this vBucket, so that what holds for the source up to
    # `seqno` holds for the target.
    clean: int = 0
    # The source's purge seqno when the link began this vBucket at zero. If it is higher now, the
    # link cannot begin there again and send every deletion.
    purged: int = 0


Records = tuple[Record, ...]


def added(records: Records, record: Record) -> Records:
    """Return the records with a new one in front, which replaces one of the same position."""
    older = [each for each in records if (each.uuid, each.seqno) != (record.uuid, record.seqno)]
    return (record, *older)[:KEPT]


def merged(records: Records, other: Record | None) -> Records:
    """Return the records with one that came from elsewhere, newest first."""
    if other is None or other in records:
        return records
    in_order = sorted((*records, other), key=lambda each: (each.created, each.seqno))
    return tuple(reversed(in_order))[:KEPT]


def is_at_target(record: Record, log: Entries, high_seqno: int) -> bool:
    """Tell whether a target with this failover log still has everything of a record."""
    if not log:
        return record.target_uuid == 0
    ends = ends_of_branches([FailoverEntry(*each) for each in log], high_seqno)
    end = ends.get(record.target_uuid)
    return end is not None and record.target_seqno <= end


def at_target(records: Iterable[Record], log: Entries, high_seqno: int) -> list[Record]:
    """Return the records that a target still has, newest first; those of a beginning are none."""
    return [each for each in records if each.seqno and is_at_target(each, log, high_seqno)]


def acceptable(
    records: Sequence[Record], rolled_back_to: Callable[[Record], int | None]
) -> tuple[Record | None, int | None]:
    """Walk records until the source accepts one.

    Args:
        records: newest first, all of them valid at the target.
        rolled_back_to: asks the source; ``None`` = it accepts, otherwise the seqno to fall back to.

    Returns:
        the first record that is accepted, ``None`` = begin at 0; and the lowest seqno that the
        source wanted to go back to, ``None`` = it accepted the newest record at once.
    """
    lowest: int | None = None
    for record in records:
        if lowest and record.seqno > lowest:
            continue
        answer = rolled_back_to(record)
        if answer is None:
            return record, lowest
        lowest = answer if lowest is None else min(lowest, answer)
    return None, lowest


def encode(records: Sequence[Record]) -> bytes | None:
    """Return the local document of a vBucket, ``None`` for no records."""
    if not records:
        return None
    rows = [_row(each) for each in records]
    return json.dumps({"version": _VERSION, "records": rows}, separators=(",", ":")).encode()


def decode(document: bytes | None) -> Records:
    """Read it back; raises `ValueError`, one line, for what this module has not written."""
    if document is None:
        return ()
    return read_versioned(
        document, _VERSION, lambda found: tuple(map(_record, found["records"]))[:KEPT]
    )


def encode_one(record: Record) -> bytes:
    """Return a record as it stands in a watermark row."""
    return json.dumps(_row(record), separators=(",", ":")).encode()


def decode_one(meta: bytes) -> Record | None:
    """Read it back; ``None`` if it is none."""
    try:
        return _record(json.loads(meta))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _row(record: Record) -> dict[str, Any]:
    fields = record._asdict()
    return {**fields, "uuid": str(record.uuid), "target_uuid": str(record.target_uuid)}


def _record(row: dict[str, Any]) -> Record:
    numbers = [int(row.get(name, 0) if name in _LATER else row[name]) for name in Record._fields]
    if any(not 0 <= number < 2**64 for number in numbers):
        raise TypeError(row)
    return Record(*numbers)


# --- checkpoint store -----------------------------------------------------------------------------
# Where the checkpoints of a link are kept: local documents, and its watermark rows.
#
# A replica gets the rows of its source and not the documents. So after a failover, a link of the
# same name finds the newest checkpoint that the replica had got in the row.


class CheckpointStore:
    """Keeps the checkpoints of one link."""

    def __init__(self, bucket: Bucket, link: str, trouble: Callable[[str], None]) -> None:
        """Prepare it; `trouble` is called with what cannot be read."""
        # Newest first, by vBucket, of those that were asked for.
        self.records: dict[int, Records] = {}
        self._bucket = bucket
        self._link = link.encode()
        self._trouble = trouble

    def known(self, number: int) -> Records:
        """Return the checkpoints of a vBucket, that of its watermark row included."""
        records = self.records.get(number)
        if records is None:
            records = self._read(number)
        records = self.records[number] = merged(records, self._in_row(number))
        return records

    def newest(self, number: int) -> Record | None:
        """Return the newest one that was asked for, ``None`` if there is none."""
        return next(iter(self.records.get(number, ())), None)

    def _read(self, number: int) -> Records:
        try:
            return decode(self._bucket.store.local(self._name(number)))
        except ValueError as error:
            self._trouble(f"vBucket {number}: its checkpoints are not read: {error}")
            return ()

    def _in_row(self, number: int) -> Record | None:
        rows = self._bucket.watermarks.rows(self._bucket.vbuckets[number])
        metas = [row.meta for row in rows if row.id == PREFIX + self._link]
        return decode_one(metas[0]) if metas and metas[0] else None

    def add(self, number: int, record: Record) -> None:
        """Keep a checkpoint more; it is on disk with the next commit."""
        self._keep(number, added(self.known(number), record))

    def forget_above(self, number: int, seqno: int) -> None:
        """Forget checkpoints that one of the ends has lost."""
        records = self.known(number)
        kept = tuple(record for record in records if record.seqno <= seqno)
        if kept != records:
            self._keep(number, kept)

    def forget(self) -> None:
        """Forget all of them: the link is deleted."""
        for number in list(self.records):
            self._keep(number, ())
        self.records.clear()

    def _keep(self, number: int, records: Records) -> None:
        self.records[number] = records
        self._bucket.flusher.keep_local(self._name(number), partial(self._document, number))

    def _document(self, number: int) -> bytes | None:
        return encode(self.records.get(number, ()))

    def _name(self, number: int) -> bytes:
        return b"uprmc/xdcr/%s/%d" % (self._link, number)
