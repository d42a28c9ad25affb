"""Checkpoints that this node has as a target: of links that end here, and of links further away.

A **full record** says that everything up to a seqno of a source is here: its link has said so. The
node adds how far its own vBucket was then. When a link of this node has brought its target to that
point, it passes the record on, and the target keeps it as a **transitive record**: it, too, has
everything of that source up to there. A link from that source to the target may begin there.

Records are kept for each vBucket in a local document, ordered by this node's seqno. They are in no
way tied to the documents with these seqnos, which move when they are changed.

Rows C01 to C16.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

from uprmc.engine.bucket import Bucket
from uprmc.engine.replica import outrank
from uprmc.engine.vbucket import VBucket
from uprmc.errors import InvalidArguments, NotMyVBucket
from uprmc.model import FailoverEntry
from uprmc.remote.history import Entries
from uprmc.rollback import ends_of_branches
from uprmc.xdcr.spec import read_versioned

#: Nodes that a record was passed on by at most.
VIA_MAX = 32

#: Full records of one link and vBucket that are kept.
KEPT = 5

NO_HISTORIES: Mapping[int, Collection[str]] = {}

_VERSION = 1
_TEXT_MAX = 128


class ReceivedRecord(NamedTuple):
    """One record."""

    source: str  # bucket uuid of the source, 32 hex digits
    uuid: int  # everything up to this seqno of the source's history is here
    seqno: int
    filter_hash: str  # of what the link leaves out; records of other filters do not count
    link: str = ""  # ids of the link, and of its run
    session: str = ""
    # Bucket uuids of the nodes that passed it on, the first one first; none = a full record.
    via: tuple[str, ...] = ()
    here_uuid: int = 0  # this vBucket's newest history and high seqno when it came
    here_seqno: int = 0


_by_seqno_here = attrgetter("here_seqno")


def with_record(
    records: Iterable[ReceivedRecord], record: ReceivedRecord, most: int
) -> list[ReceivedRecord]:
    """Return records with one more, which takes the place of those that it makes superfluous.

    Of more than `most` the oldest are left out.
    """
    kept = [each for each in records if not _supersedes(record, each)]
    if not record.via:
        same = [each for each in kept if _of(each) == _of(record)]
        for older in sorted(same, key=_by_seqno_here)[: max(0, len(same) - KEPT + 1)]:
            kept.remove(older)
    kept.append(record)
    return sorted(kept, key=_by_seqno_here)[-most:]


def _of(record: ReceivedRecord) -> tuple[str, str, bool]:
    return record.source, record.link, bool(record.via)


def _supersedes(record: ReceivedRecord, other: ReceivedRecord) -> bool:
    """A record of the same pair; a full record also removes transitive ones of its source."""
    if (record.source, record.filter_hash) != (other.source, other.filter_hash):
        return False
    if other.via:
        return True
    return not record.via and (record.link, record.uuid, record.seqno) == (
        other.link,
        other.uuid,
        other.seqno,
    )


def is_valid(record: ReceivedRecord, log: Entries, high_seqno: int) -> bool:
    """Tell whether a vBucket with this failover log has not lost what a record says."""
    ends = ends_of_branches([FailoverEntry(*each) for each in log], high_seqno)
    return record.here_seqno <= ends.get(record.here_uuid, -1)


def due(
    records: list[ReceivedRecord], upto: int, filter_hash: str, skip: str
) -> list[ReceivedRecord]:
    """Return the newest record of each source that a target has passed.

    Args:
        records: ordered by seqno; all of them are valid.
        upto: the target has everything of this vBucket up to here, the end of a snapshot.
        filter_hash: of the link to the target.
        skip: bucket uuid of the target, which needs no records of itself.
    """
    found: dict[str, ReceivedRecord] = {}
    for record in records[: bisect_right(records, upto, key=_by_seqno_here)]:
        known = skip in (record.source, *record.via) or len(record.via) >= VIA_MAX
        if record.filter_hash == filter_hash and not known:
            found[record.source] = record
    return list(found.values())


# --- as documents and on the wire ---------------------------------------------------------------


def encode(records: Iterable[ReceivedRecord]) -> bytes | None:
    """Return the local document of a vBucket, ``None`` for no records."""
    rows = [row_of(record) for record in records]
    document = {"version": _VERSION, "records": rows}
    return json.dumps(document, separators=(",", ":")).encode() if rows else None


def decode(document: bytes | None) -> list[ReceivedRecord]:
    """Read it back; raises `ValueError`, one line, for what this module has not written."""
    if document is None:
        return []
    return read_versioned(document, _VERSION, lambda found: [*map(record_of, found["records"])])


def row_of(record: ReceivedRecord) -> dict[str, Any]:
    """Return a record as JSON has it."""
    return {
        "source_bucket_uuid": record.source,
        "via": list(record.via),
        "source_vb_uuid": str(record.uuid),
        "source_seqno": record.seqno,
        "filter_hash": record.filter_hash,
        "link_id": record.link,
        "session_id": record.session,
        "target_vb_uuid": str(record.here_uuid),
        "target_seqno": record.here_seqno,
    }


def record_of(row: Mapping[str, Any]) -> ReceivedRecord:
    """Read a record; raises `InvalidArguments` if it is none."""
    try:
        texts = [row[name] for name in ("source_bucket_uuid", "filter_hash", "link_id")]
        texts += [row["session_id"], *row["via"]]
        numbers = [int(row[name]) for name in ("source_vb_uuid", "source_seqno")]
        numbers += [int(row.get(name, 0)) for name in ("target_vb_uuid", "target_seqno")]
        via = tuple(row["via"])
    except (KeyError, TypeError, ValueError, AttributeError):
        raise InvalidArguments("a record does not have the form of one") from None
    good_texts = all(isinstance(text, str) and len(text) <= _TEXT_MAX for text in texts)
    if not good_texts or len(via) > VIA_MAX or not all(0 <= n < 2**64 for n in numbers):
        raise InvalidArguments("a record has a text or a number that is out of range")
    source, filter_hash, link, session = texts[:4]
    uuid, seqno, here_uuid, here_seqno = numbers
    return ReceivedRecord(
        source, uuid, seqno, filter_hash, link, session, via, here_uuid, here_seqno
    )


# --- of a node ----------------------------------------------------------------------------------


class ReceivedRecords:
    """The records of a node."""

    def __init__(self, bucket: Bucket, trouble: Callable[[str], None]) -> None:
        """Begin with none; `trouble` is called with what cannot be read."""
        self.changes = 0  # rises with each record that comes
        self._bucket = bucket
        self._trouble = trouble
        self._records: dict[int, list[ReceivedRecord]] = {}

    def load(self) -> None:
        """Read what is stored; call it once, after warm-up."""
        for number in self._bucket.vbuckets:
            try:
                records = decode(self._bucket.store.local(_name(number)))
            except ValueError as error:
                self._trouble(f"vBucket {number}: its received checkpoints are not read: {error}")
                continue
            if records:
                self._records[number] = sorted(records, key=_by_seqno_here)

    def tell(self, row: Mapping[str, Any]) -> None:
        """Keep a record that a link has sent.

        Raises:
            InvalidArguments: it is none.
            NotMyVBucket: its vBucket is not active here.
        """
        number = row.get("vbucket")
        vbucket = self._bucket.active.get(number) if isinstance(number, int) else None
        if vbucket is None:
            raise NotMyVBucket(number)
        record = record_of(row)._replace(
            here_uuid=vbucket.failover_log[0].uuid, here_seqno=vbucket.high_seqno
        )
        if record.via:
            outrank(vbucket, _rev_floor(row))
        self._records[vbucket.id] = with_record(
            self.valid(vbucket), record, self._bucket.settings.xdcr.records
        )
        self.changes += 1
        self._bucket.flusher.keep_local(_name(vbucket.id), partial(self._document, vbucket.id))

    def valid(self, vbucket: VBucket) -> list[ReceivedRecord]:
        """Return the records of a vBucket that are true of its present history, in order."""
        log, high = vbucket.failover_log, vbucket.high_seqno
        records = self._records.get(vbucket.id, ())
        return [each for each in records if is_valid(each, log, high)]

    def shown(
        self,
        numbers: Iterable[int],
        source: str = "",
        histories: Mapping[int, Collection[str]] = NO_HISTORIES,
    ) -> list[dict[str, Any]]:
        """Return the valid records of some vBuckets, each with its vBucket.

        Args:
            numbers: of the vBuckets.
            source: those of other sources are left out; empty = none are.
            histories: by vBucket, vb_uuids whose records are not left out, whatever they are of.
        """
        return [
            {"vbucket": number, **row_of(record)}
            for number in numbers
            if number in self._records and number in self._bucket.active
            for record in self.valid(self._bucket.active[number])
            if source in ("", record.source) or str(record.uuid) in histories.get(number, ())
        ]

    def _document(self, number: int) -> bytes | None:
        return encode(self._records.get(number, ()))


def _name(number: int) -> bytes:
    return b"uprmc/xdcr-received/%d" % number


def _rev_floor(row: Mapping[str, Any]) -> int:
    floor = row.get("rev_floor", 0)
    if not isinstance(floor, int) or floor < 0:
        raise InvalidArguments("a record has a revision floor that is none")
    return floor
