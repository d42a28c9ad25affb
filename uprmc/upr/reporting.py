"""What a replica reports to its source: up to where it has complete snapshots on disk.

A link names a row of its own for each vBucket, before it asks for the stream, and the source keeps
the deletions that the replica lacks while it is away. Who has no watermarks gets none of this.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import partial
from typing import TYPE_CHECKING

from uprmc.engine.vbucket import VBucket
from uprmc.engine.watermarks.rows import Kind, Row
from uprmc.errors import RemoteProtocolError
from uprmc.model import FailoverLog
from uprmc.protocol.header import RequestFrame, ResponseFrame
from uprmc.protocol.watermarks import HWT_REPLICATE_EXTRAS, WatermarkRecord, decode_records
from uprmc.remote.registering import Instance, Registering
from uprmc.upr.hub import Hub
from uprmc.upr.intake import ReplicaState

if TYPE_CHECKING:
    from uprmc.upr.link import ReplicaLink


class Reporting:
    """The rows of one link. Times are monotonic seconds."""

    def __init__(self, link: ReplicaLink, interval_s: float) -> None:
        self._link: ReplicaLink | None = link
        self._rows = Registering(
            Instance(link.hub.instance, Kind.REPLICA, meta=link.hub.tag), interval_s
        )
        self._interval_s = interval_s
        self._look_at = 0.0
        self._seen: dict[int, tuple[int, FailoverLog]] = {}

    def begin(self, granted: Collection[bytes]) -> None:
        """Learn which keys of CONTROL the source has accepted."""
        self._rows.begin(granted)

    def close(self) -> None:
        """Let go of the link."""
        self._link = None

    def register(self, vbuckets: Iterable[VBucket]) -> None:
        """Name the rows of vBuckets; the requests for their streams follow."""
        if self._link is not None:
            whole_seqno = self._link.hub.bucket.flusher.whole_seqno
            wholes = {vbucket: whole_seqno(vbucket) or 0 for vbucket in vbuckets}
            places = {
                vbucket.id: (whole, vbucket.failover_log[0].uuid if whole else 0)
                for vbucket, whole in wholes.items()
            }
            for number in places:
                self._seen.pop(number, None)
            self._send(self._rows.register_all(places))

    def tick(self, now: float) -> None:
        """Report what is due."""
        if self._link is None or not self._rows.granted:
            return
        if now >= self._look_at:
            self._look_at = now + self._interval_s
            self._look(self._link)
        self._send(self._rows.due(now))

    def _look(self, link: ReplicaLink) -> None:
        reading, seen = ReplicaState.READING, self._seen
        for number, stream in link.streams.items():
            vbucket = stream.vbucket
            place = (vbucket.persisted_seqno, vbucket.failover_log)
            if seen.get(number) == place:
                continue  # nothing was lacking, so no more can have come to the disk
            whole = link.hub.bucket.flusher.whole_seqno(vbucket)
            if whole and stream.state is reading:
                self._rows.reached(number, whole, vbucket.failover_log[0].uuid)
                if whole == place[0]:
                    seen[number] = place

    def _send(self, frames: Iterable[RequestFrame]) -> None:
        for each in frames:
            self._ask(each)

    def _ask(self, asked: RequestFrame) -> None:
        if self._link is not None:
            self._link.ask(
                asked.opcode,
                partial(self._answered, asked),
                vbucket=asked.vbucket,
                extras=asked.extras,
                key=asked.key,
                value=asked.value,
            )

    def _answered(self, asked: RequestFrame, reply: ResponseFrame) -> None:
        if not self._rows.answered(asked, reply) and self._link is not None:
            again = partial(self._answered, asked)
            self._link.questions.expect(reply.opcode, again, reply.opaque)


def take_table(request: RequestFrame, vbucket: VBucket, hub: Hub, *, floors: bool) -> None:
    """Take over the source's rows, as a HWT_REPLICATE tells them, with their floors or without.

    Raises:
        RemoteProtocolError: they make no sense.
    """
    purge_seqno, count = HWT_REPLICATE_EXTRAS.unpack(request.extras)
    uuid = vbucket.failover_log[0].uuid
    try:
        told = [_row_of(each, uuid) for each in decode_records(request.value, floors=floors)]
    except ValueError as error:
        raise RemoteProtocolError(str(error)) from None
    rows = [row for row in told if row.effective <= vbucket.whole_seqno]
    hub.bucket.limits.learn_table(vbucket, purge_seqno, rows, incomplete=len(rows) < count)


def _row_of(record: WatermarkRecord, uuid: int) -> Row:
    name, kind, watermark, reported_at, lifetime_s, meta, floor = record
    return Row(name, Kind(kind), watermark, uuid, floor or None, reported_at, lifetime_s, meta)
