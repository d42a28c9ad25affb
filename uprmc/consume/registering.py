"""The asking side of registration: a client's rows in the watermark tables of one node.

A registered client never misses a deletion: the node keeps each tombstone until every registered
client has reported that it is durable with it. This module builds the frames and understands the
answers; sockets, clocks and opaques belong to its user. There is one `Registering` for each
connection, because a connection owns the rows that it names until it closes. How to use it:

1. Ask for `features.WATERMARKS` in the handshake (`Handshake.registering`), and set `granted` to
   whether it was accepted. A node without watermarks leaves the client unregistered: every method
   may still be called, and gives no frames.
2. Send what `register` or `register_all` returns before the stream request of that vBucket. Do not
   wait for its answer: a node looks at frames in order, so 1,024 of both can travel in one piece.
   A stream from zero after a watermark of 0 begins a build; deletions are kept from its first
   snapshot on.
3. Call `reached` when a position is durable at the client. It must be the end of a complete
   snapshot, with the history it belongs to. Positions inside of a snapshot are not reported.
4. Send what `due` returns, every second or so: a report for each vBucket that has moved, not more
   often than the interval; and one for each row that would expire for lack of news. At the end send
   what `rest` returns, and wait until `unanswered` is 0.
5. Give each answer to `answered`, with the frame it belongs to, which may have a second answer. A
   refusal ends nothing: what
   happens to a client whose deletions are gone is said by the answer to its stream request. Why
   that is so stands in `purged` then.
6. `remove` ends the registration for good.

Source: contracts of the systems to come, section 2; `reference/systems.md` a.1 to a.4; UPR
reference, section 7.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple, Protocol

from uprmc.errors import RemoteProtocolError
from uprmc.protocol.header import RequestFrame
from uprmc.protocol.opcodes import Opcode, Status
from uprmc.protocol.watermarks import (
    HWT_PURGED_EXTRAS,
    HWT_REPLY_EXTRAS,
    KIND_NAMES,
    OP_REMOVE,
    ReportExtras,
    encode_report,
)
from uprmc.protocol.watermarks_many import (
    REPORTED_ROW,
    REPORTS_MAX_BYTES,
    REPORTS_REPLY_EXTRAS,
    ROWS_FOLLOW,
    OneReport,
    ReportsHead,
    decode_refused,
    decode_reports,
    encode_reports,
    encode_reports_extras,
)

#: Seconds between two reports of the same vBucket, unless the user of this says otherwise.
REPORT_INTERVAL_S = 1.0

#: A row is renewed when this share of its lifetime is over, or a refused report when so many
#: seconds are.
_RENEW_SHARE = 1 / 3
_RETRY_S = 10.0

#: So many vBuckets are reported in one frame at most.
_VBUCKETS_AT_ONCE = 1_024

#: Refusals that another attempt cannot change.
_NEVER = frozenset(
    {Status.UNKNOWN_COMMAND, Status.INVALID_ARGUMENTS, Status.NOT_SUPPORTED, Status.ACCESS_DENIED}
)


class Instance(NamedTuple):
    """Who is registered.

    Attributes:
        id: made once and kept for life, 1 to 64 bytes; whatever the connections are called.
        kind: a number of `KIND_NAMES`.
        lifetime_s: the rows expire after this long without news; 0 = the default of the kind.
        meta: the client's own bytes, up to 4,096; they are kept in each row.
    """

    id: bytes
    kind: int = 0
    lifetime_s: int = 0
    meta: bytes = b""


class Purged(NamedTuple):
    """Why a client must begin at zero: deletions after its position have been purged.

    Attributes:
        until: deletions up to this seqno have been purged.
        registered_at: the client's last report; ``None`` = the node remembers none.
        expired_at: Unix time at which its row expired, ``None`` = it is unknown, or had none.
    """

    until: int
    registered_at: int | None = None
    expired_at: int | None = None

    def __str__(self) -> str:
        text = f"purged up to {self.until}"
        if self.registered_at is None:
            return f"{text} (no registration of yours is known)"
        text += f", registered at {self.registered_at}"
        if self.expired_at is None:
            return text
        return (
            f"{text}, expired at {datetime.fromtimestamp(self.expired_at, UTC):%Y-%m-%dT%H:%M:%SZ}"
        )


class HasAnswer(Protocol):
    """An answer of the node."""

    @property
    def status(self) -> int:
        """A `Status` number, or one without a name."""

    @property
    def extras(self) -> bytes:
        """What stands before the value."""

    @property
    def value(self) -> bytes:
        """The rest."""


class _Row:
    """What is known of one row.

    Attributes:
        watermark, vb_uuid: what is durable, and of which history; 0 = of the present one.
        refused: its last report was not accepted.
        sent_at: when it was reported last.
        renew_s: seconds after which it is reported again.
    """

    __slots__ = ("refused", "renew_s", "sent_at", "vb_uuid", "watermark")

    def __init__(self, watermark: int, vb_uuid: int) -> None:
        self.watermark, self.vb_uuid = watermark, vb_uuid
        self.sent_at = math.nan
        self.renew_s = _RETRY_S
        self.refused = False


class Registering:
    """See the module docstring.

    Attributes:
        instance: who is registered.
        granted: whether the node has watermarks.
        many: whether it takes the reports of many vBuckets in one frame.
        registered: vBuckets whose last report was accepted.
        purged: by vBucket, why its report was refused, until it is registered again.
        unanswered: reports without an answer.
    """

    def __init__(self, instance: Instance, interval_s: float = REPORT_INTERVAL_S) -> None:
        self.instance = instance
        self.granted = self.many = False
        self.registered: set[int] = set()
        self.purged: dict[int, Purged] = {}
        self.unanswered = 0
        self._interval_s = interval_s
        self._rows: dict[int, _Row] = {}
        self._moved: set[int] = set()
        self._due_at = -math.inf
        self._look_at = -math.inf

    @property
    def vbuckets(self) -> Sequence[int]:
        """Those that have a row, as far as is known."""
        return [*self._rows]

    # --- frames ---------------------------------------------------------------------------------

    def register(self, vbucket: int, watermark: int, vb_uuid: int = 0) -> list[RequestFrame]:
        """Return what is to be sent before the stream request of a vBucket.

        Args:
            vbucket: whose.
            watermark: every change up to here is durable; 0 = nothing, or no complete snapshot.
            vb_uuid: the history in which that is so, 0 = unknown.
        """
        self._rows[vbucket] = _Row(watermark, vb_uuid)
        self._moved.discard(vbucket)
        return self._reports([vbucket])

    def register_all(self, places: Mapping[int, tuple[int, int]]) -> list[RequestFrame]:
        """Do the same for many vBuckets: watermark and history of each."""
        for vbucket, place in places.items():
            self._rows[vbucket] = _Row(*place)
            self._moved.discard(vbucket)
        return self._reports(sorted(places))

    def reached(self, vbucket: int, watermark: int, vb_uuid: int = 0) -> None:
        """Take note that everything up to the end of a complete snapshot is durable."""
        row = self._rows.get(vbucket)
        if row is not None and (row.watermark, row.vb_uuid) != (watermark, vb_uuid):
            row.watermark, row.vb_uuid = watermark, vb_uuid
            self._moved.add(vbucket)

    def due(self, now: float) -> list[RequestFrame]:
        """Return the reports that are due at this (monotonic) time."""
        if now < self._due_at:
            return []
        if now >= self._look_at:
            self._look_at = now + _RETRY_S / 4
            self._moved.update(self._to_renew(now))
        moved, self._moved = self._moved, set()
        if moved:
            self._due_at = now + self._interval_s
        return self._reports(sorted(moved), now)

    def rest(self) -> list[RequestFrame]:
        """Return reports of all that has moved, however soon: there will be no more."""
        moved, self._moved = self._moved, set()
        return self._reports(sorted(moved))

    def remove(self, vbucket: int) -> list[RequestFrame]:
        """Return what ends the registration of a vBucket for good."""
        self.gone(vbucket)
        return [removal(self.instance.id, vbucket)] if self.granted else []

    def gone(self, vbucket: int) -> None:
        """Report nothing of a vBucket any longer: another node has it."""
        self._rows.pop(vbucket, None)
        self.registered.discard(vbucket)
        self._moved.discard(vbucket)

    def _to_renew(self, now: float) -> list[int]:
        found = []
        for vbucket, row in self._rows.items():
            if math.isnan(row.sent_at):
                row.sent_at = now
            elif now - row.sent_at >= row.renew_s:
                found.append(vbucket)
        return found

    def _reports(self, vbuckets: Sequence[int], now: float = math.nan) -> list[RequestFrame]:
        if not self.granted:
            return []
        for vbucket in vbuckets:
            row = self._rows[vbucket]
            row.sent_at, row.refused = now, False
        if self.many and len(vbuckets) > 1:
            row_bytes = REPORTED_ROW.size + len(self.instance.meta)
            most = min(_VBUCKETS_AT_ONCE, REPORTS_MAX_BYTES // row_bytes)
            starts = range(0, len(vbuckets), most)
            frames = [self._of_many(vbuckets[first : first + most]) for first in starts]
        else:
            frames = list(map(self._of_one, vbuckets))
        self.unanswered += len(frames)
        return frames

    def _of_one(self, vbucket: int) -> RequestFrame:
        name, kind, lifetime_s, meta = self.instance
        row = self._rows[vbucket]
        extras = ReportExtras(row.watermark, lifetime_s, kind, vb_uuid=row.vb_uuid or None)
        return RequestFrame(
            Opcode.HWT_REPORT, key=name, value=meta, extras=encode_report(extras), vbucket=vbucket
        )

    def _of_many(self, vbuckets: Sequence[int]) -> RequestFrame:
        name, kind, lifetime_s, meta = self.instance
        reports = [
            OneReport(vbucket, row.watermark, row.vb_uuid, meta)
            for vbucket, row in zip(vbuckets, map(self._rows.__getitem__, vbuckets), strict=True)
        ]
        extras = encode_reports_extras(ReportsHead(lifetime_s, kind))
        return RequestFrame(
            Opcode.HWT_REPORTS, key=name, value=encode_reports(reports), extras=extras
        )

    # --- answers --------------------------------------------------------------------------------

    def answered(self, asked: RequestFrame, answer: HasAnswer) -> bool:
        """Take an answer to a report; return whether it was the last one.

        Raises:
            RemoteProtocolError: it is torn.
        """
        if asked.opcode == Opcode.HWT_REPORTS:
            return self._answered_many(asked, answer)
        self.unanswered -= 1
        vbucket = asked.vbucket
        if answer.status == Status.SUCCESS:
            self._accepted(vbucket, _renewal_s(answer.extras))
        else:
            self._refused(vbucket, answer.status, _purged(answer))
        return True

    def _answered_many(self, asked: RequestFrame, answer: HasAnswer) -> bool:
        vbuckets = [report.vbucket for report in decode_reports(asked.extras, asked.value)[1]]
        if answer.status != Status.SUCCESS:
            self.unanswered -= 1
            if answer.status in _NEVER:  # each alone, from now on
                self.many = False
            for vbucket in vbuckets:
                self._refused(vbucket, Status.TEMPORARY_FAILURE, None)
            return True
        try:
            lifetime_s, flags = REPORTS_REPLY_EXTRAS.unpack(answer.extras)
        except struct.error:
            raise RemoteProtocolError("a torn answer to reports") from None
        for vbucket, status, _, *numbers in decode_refused(answer.value):
            self._refused(vbucket, status, _as_purged(*numbers))
        if flags & ROWS_FOLLOW:
            return False
        self.unanswered -= 1
        renew_s = lifetime_s * _RENEW_SHARE if lifetime_s else math.inf
        for vbucket in vbuckets:
            row = self._rows.get(vbucket)
            if row is not None and not row.refused:
                self._accepted(vbucket, renew_s)
        return True

    def _accepted(self, vbucket: int, renew_s: float) -> None:
        row = self._rows.get(vbucket)
        self.purged.pop(vbucket, None)
        if row is not None:
            self.registered.add(vbucket)
            row.renew_s = renew_s

    def _refused(self, vbucket: int, status: int, purged: Purged | None) -> None:
        row = self._rows.get(vbucket)
        self.registered.discard(vbucket)
        if status == Status.ROLLBACK and purged is not None:
            self.purged[vbucket] = purged
        if row is not None:
            row.renew_s, row.refused = _RETRY_S, True
        if status == Status.NOT_MY_VBUCKET:
            self.gone(vbucket)
        elif status in _NEVER:
            self.granted = False


def _purged(answer: HasAnswer) -> Purged | None:
    try:
        return _as_purged(*HWT_PURGED_EXTRAS.unpack(answer.extras))
    except struct.error:
        return None  # another history, or a node that says no more


def _as_purged(until: int, registered_at: int, expired_at: int) -> Purged | None:
    return Purged(until, registered_at or None, expired_at or None) if until else None


def _renewal_s(extras: bytes) -> float:
    """Return when to renew a row that was accepted with these extras."""
    try:
        lifetime_s = HWT_REPLY_EXTRAS.unpack(extras)[2]
    except (struct.error, IndexError):
        return _RETRY_S
    return lifetime_s * _RENEW_SHARE if lifetime_s else math.inf


def removal(name: bytes, vbucket: int) -> RequestFrame:
    """Return the request to remove a row."""
    extras = encode_report(ReportExtras(0, 0, 0, OP_REMOVE))
    return RequestFrame(Opcode.HWT_REPORT, key=name, extras=extras, vbucket=vbucket)


def kind_number(name: str) -> int:
    """Return the number of a kind; raises `ValueError` with what to say instead."""
    try:
        return KIND_NAMES.index(name)
    except ValueError:
        raise ValueError(f"no kind {name!r}: say {', '.join(KIND_NAMES)}") from None
