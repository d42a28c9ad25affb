"""One stream on the producer's side: the changes of one vBucket, snapshot by snapshot.

A stream repeats one step: take a reading of the vBucket (`engine.change_source`), announce it as a
snapshot, send its items as the connection pulls, close the reading. Between snapshots it has no
reading; it stands on the vBucket's `waiting` list and costs no time until something changes.

Note: a stream may give up a reading in the middle, when the peer is slow and the reading pins too
much. The stream then takes a new reading from where it stands, and announces the same snapshot
again with a later end. What the consumer has of the snapshot so far is consistent only together
with the rest, up to that end. A consumer that reconnects in the middle of a snapshot sees the same.

Source: UPR reference 4; seed 000; rows D27 to D33, D40 to D43.
"""

from __future__ import annotations

from collections.abc import Sequence

from uprmc.engine.reading import Reading
from uprmc.engine.vbucket import Interruption, VBucket
from uprmc.errors import InvalidArguments
from uprmc.protocol.opcodes import EndReason, MarkerFlag, StreamFlag
from uprmc.protocol.upr import StreamRequest
from uprmc.record import seqno_of
from uprmc.upr.produce.frames import ITEM_FRAME_BYTES, Form, new_item_writer
from uprmc.upr.produce.host import Host, StreamState
from uprmc.upr.produce.markers import Markers
from uprmc.upr.produce.missing_deletions import MissingDeletions
from uprmc.upr.produce.reading_items import ReadingItems

#: Plain numbers: an enum takes a microsecond for each operation.
_IGNORE_PURGED = int(StreamFlag.IGNORE_PURGED)
_MEMORY, _DISK, _CHECKPOINT = map(int, (MarkerFlag.MEMORY, MarkerFlag.DISK, MarkerFlag.CHECKPOINT))

#: Up to this many new items are sent without a reading.
_FEW_ITEMS = 32

#: A limit that few items do not reach.
_ALL = 1 << 62

#: What precedes a snapshot's items at most: in rounds the vBucket's turn, facts, and the longest
#: marker.
_HEAD_BYTES = 161

#: After this many items from memory a consumer should open a new checkpoint.
_CHECKPOINT_ITEMS = 5_000


class Stream:
    """The changes of one vBucket for one peer.

    Attributes:
        vbucket: what is streamed.
        opaque: the peer's name for the stream.
        request: as asked, with the flags applied.
        end_seqno: it ends after the snapshot that contains this.
        last_seqno: of the newest item sent, or where it began.
        complete_seqno: end of the last snapshot that was sent as a whole, or where it began.
        snapshot_end: end of the snapshot that was announced last, 0 before the first.
        announced: whether a snapshot has begun and is not complete.
        state: for statistics.
        queued: whether the connection's schedule knows that it has something to send.
        frames: sent so far.
        from_disk, from_memory: items sent so far, by where they came from.
        let_go: how often a reading was given up half way.
        touched_seqno: up to here the disk was read already, so that reading it again is quick.
        persisted_seqno: what the peer said last that it has on disk, 0 = it has not said.
        deletions: judges whether a reading lacks deletions.
        markers: announce the snapshots.
    """

    __slots__ = (
        "_host",
        "_hurries",
        "_in_snapshot",
        "_items",
        "_marker_due",
        "_reading",
        "_since_checkpoint",
        "_waiting",
        "_writer",
        "announced",
        "complete_seqno",
        "deletions",
        "end_seqno",
        "frames",
        "from_disk",
        "from_memory",
        "last_seqno",
        "let_go",
        "markers",
        "opaque",
        "persisted_seqno",
        "queued",
        "request",
        "snapshot_end",
        "state",
        "touched_seqno",
        "vbucket",
    )

    def __init__(
        self,
        host: Host[Stream],
        vbucket: VBucket,
        opaque: int,
        request: StreamRequest,
        form: Form,
        *,
        first_generation: bool = False,
    ) -> None:
        self._host: Host[Stream] | None = host
        self.vbucket = vbucket
        self.opaque = opaque
        self.request = request
        self.end_seqno = request.end_seqno
        self.last_seqno = self.complete_seqno = request.start_seqno
        self.snapshot_end = 0
        self.state = StreamState.PENDING
        self.queued = False
        self.announced = False
        self.frames = self.from_disk = self.from_memory = self.let_go = 0
        self.persisted_seqno = self.touched_seqno = 0
        self.deletions = MissingDeletions(ignored=bool(request.flags & _IGNORE_PURGED))
        self.markers = Markers(
            vbucket, opaque, form, request.snapshot_start, first_generation=first_generation
        )
        self._writer = new_item_writer(vbucket.id, opaque, form)
        self._reading: Reading | None = None
        self._items: ReadingItems | None = None
        self._in_snapshot = 0
        self._waiting = False
        self._hurries = False
        self._marker_due = False
        self._since_checkpoint = _CHECKPOINT_ITEMS

    def begin(self) -> None:
        """Start, after the request was answered: follow the vBucket from now on."""
        self.vbucket.watchers.append(self)
        if self.last_seqno >= self.end_seqno:
            self.end(EndReason.OK)
        else:
            self.tell_ready()

    # --- what the vBucket tells -----------------------------------------------------------------

    def changed(self) -> None:
        """Learn that the vBucket has something new.

        A busy replica may be whole for the time of this call only: its next snapshot begins before
        the stream has its turn. A stream that has seen that takes its reading now.
        """
        self._waiting = False
        host = self._host
        if host is not None:
            if self._hurries and self._reading is None:
                self._begin_snapshot(host)
            self.tell_ready()

    def interrupted(self, why: Interruption) -> None:
        """Learn that the vBucket changed its state, was rolled back or reset, or is gone."""
        rolled_back = why is Interruption.ROLLED_BACK
        self.end(EndReason.ROLLBACK if rolled_back else EndReason.STATE_CHANGED)

    def tell_ready(self) -> None:
        """Have the connection ask for frames, unless the stream has ended."""
        if self._host is not None:
            self._host.ready(self)

    def persisted(self, seqno: int) -> None:
        """Learn that the peer has everything up to `seqno` on disk; less than before is ignored.

        Raises:
            InvalidArguments: it has not been sent so much.
        """
        if seqno > self.last_seqno:
            raise InvalidArguments(f"seqno {seqno} was not sent")
        self.persisted_seqno = max(self.persisted_seqno, seqno)

    # --- sending --------------------------------------------------------------------------------

    @property
    def reach_seqno(self) -> int:
        """The seqno up to which the stream could send now."""
        return self.vbucket.whole_seqno

    @property
    def behind(self) -> bool:
        """Whether the peer lacks anything that the vBucket has now and may pass on."""
        return self.announced or self.reach_seqno > self.last_seqno

    @property
    def late(self) -> bool:
        """Whether its next turn may not bring what the vBucket has now.

        That is so on a busy replica: it rests until the next whole state, or has taken its reading
        before its turn.
        """
        early = self._reading is not None and not self.announced
        return self.behind and (early or not self.queued)

    @property
    def reading(self) -> Reading | None:
        """The reading that is open at present."""
        return self._reading

    def fill(self, out: list[bytes], limit: int) -> int:
        """Append frames to `out`, up to about `limit` bytes and to the end of one snapshot.

        Returns:
            Their bytes; 0 = there is nothing to send now, and `Host.ready` is called once there is.
        """
        host = self._host
        if host is None:
            return 0
        sent = 0
        if self._reading is None:
            sent = self._send_at_once(host, out, limit)
            if sent:
                return sent
            if not self._begin_snapshot(host):
                return 0
        if self._items is not None and self._items.reads_disk and not host.may_read_on(self):
            return 0
        if not self.announced:
            self.announced = True
            sent = host.snapshot_begins(self, self.snapshot_end, out)
        if self._marker_due and sent < limit:
            sent += self._announce_reading(out)
        if sent >= limit:
            return sent
        return sent + self._send_items(host, out, limit - sent)

    def _send_at_once(self, host: Host[Stream], out: list[bytes], limit: int) -> int:
        """Send what is new as a complete snapshot, without a reading, if that is little."""
        news = self.news(limit)
        if not news:
            return 0
        sent = host.snapshot_begins(self, self.vbucket.high_seqno, out)
        sent += self.send_news(news, out)
        sent += host.snapshot_complete(self, len(news), out)
        self.end_if_complete()
        return sent

    def news(self, limit: int) -> Sequence[bytes] | None:
        """Return what is new, if it can be sent now as a complete snapshot without a reading.

        A stream that keeps up lives on this: nothing can change before the last item is out, so no
        view is needed.

        Returns:
            Nothing if it has more than `limit` bytes; ``None`` if it takes a reading in any case.
        """
        vbucket, after = self.vbucket, self.last_seqno
        behind = vbucket.high_seqno - after
        if not 0 < behind <= _FEW_ITEMS or vbucket.queue.persisted > after:
            return None
        if self.announced or self._reading is not None or vbucket.receiving is not None:
            return None
        records = vbucket.queue.since(after)
        size = _HEAD_BYTES + ITEM_FRAME_BYTES * len(records) + sum(map(len, records))
        return records if size <= limit else ()

    def send_news(
        self, news: Sequence[bytes], out: list[bytes], rows: list[bytes] | None = None
    ) -> int:
        """Append the marker and items of `news`, or a row of SNAPSHOTS and the items.

        Returns their bytes. `end_if_complete` must follow.
        """
        vbucket, after, markers = self.vbucket, self.last_seqno, self.markers
        end_seqno = self.snapshot_end = vbucket.high_seqno
        assert seqno_of(news[-1]) == end_seqno, "a snapshot lacks its newest item"
        self.state = StreamState.IN_MEMORY
        kind = self._marker_kind(from_disk=False)
        if rows is None:
            frames = len(out)
            sent = markers.announce(after, end_seqno, kind, vbucket.purge_seqno, out)
            self.frames += len(out) - frames
        else:
            rows.append(markers.row(after, end_seqno, kind, vbucket.purge_seqno))
            sent = 0
        sent += self._writer.write(news, out, _ALL, after).size
        count = len(news)
        self.frames += count
        self.from_memory += count
        self._since_checkpoint += count
        markers.floor = None
        self.last_seqno = self.complete_seqno = end_seqno
        return sent

    def end_if_complete(self) -> None:
        """End the stream if everything that was asked for is sent."""
        if self.last_seqno >= self.end_seqno:
            self.end(EndReason.OK)

    def _begin_snapshot(self, host: Host[Stream]) -> bool:
        """Take a reading; says whether there is one."""
        if not self._has_news():
            self._hurries |= self.vbucket.receiving is not None
            self.rest()
            return False
        reading = self._reading = self._take_reading(host)
        if reading is None:
            return False
        if self.deletions.concern(reading, self.last_seqno):
            self.end(EndReason.ROLLBACK)
            return False
        self._items = ReadingItems(reading, self.last_seqno)
        self.snapshot_end = reading.end_seqno
        self._settle_state(reading)
        self._marker_due = True
        return True

    def _announce_reading(self, out: list[bytes]) -> int:
        reading = self._reading
        assert reading is not None
        self._marker_due = False
        kind, frames = self._marker_kind(from_disk=reading.from_disk), len(out)
        size = self.markers.announce(
            self.last_seqno, self.snapshot_end, kind, reading.purge_seqno, out
        )
        self.frames += len(out) - frames
        return size

    def _has_news(self) -> bool:
        # What a replica holds in mid-snapshot is no state that may be passed on.
        return self.vbucket.receiving is None and self.vbucket.high_seqno > self.last_seqno

    def _take_reading(self, host: Host[Stream]) -> Reading | None:
        return host.open_reading(self)

    def rest(self) -> None:
        """Wait for the next change: the connection need not ask before `Host.ready`."""
        if not self._waiting:
            self._waiting = True
            self.vbucket.waiting.append(self)
        if self.state in (StreamState.PENDING, StreamState.BACKFILLING):
            self.state = StreamState.IN_MEMORY

    def _settle_state(self, reading: Reading) -> None:
        if self.state in (StreamState.PENDING, StreamState.BACKFILLING, StreamState.IN_MEMORY):
            self.state = StreamState.BACKFILLING if reading.from_disk else StreamState.IN_MEMORY

    def _marker_kind(self, *, from_disk: bool) -> int:
        if from_disk:
            return _DISK
        if self._since_checkpoint < _CHECKPOINT_ITEMS:
            return _MEMORY
        self._since_checkpoint = 0
        return _MEMORY | _CHECKPOINT

    def _send_items(self, host: Host[Stream], out: list[bytes], limit: int) -> int:
        reading, items = self._reading, self._items
        assert reading is not None
        assert items is not None
        written = items.write(self._writer, out, limit, self.last_seqno)
        self.last_seqno = written.last_seqno
        self._count(written.items, from_disk=reading.from_disk)
        if written.error is not None:
            self.end(EndReason.BACKFILL_FAILED)
        elif written.last_seqno >= reading.end_seqno or not written.items:
            assert written.last_seqno == reading.end_seqno, "a snapshot lacks its newest item"
            return written.size + self._complete_snapshot(host, out)
        return written.size

    def _count(self, items: int, *, from_disk: bool) -> None:
        self._in_snapshot += items
        self.frames += items
        if from_disk:
            self.from_disk += items
        else:
            self.from_memory += items
            self._since_checkpoint += items

    def _complete_snapshot(self, host: Host[Stream], out: list[bytes]) -> int:
        self._close_reading()
        items, self._in_snapshot = self._in_snapshot, 0
        self.markers.floor = None
        self.announced = False
        self.complete_seqno = self.last_seqno
        sent = host.snapshot_complete(self, items, out)
        self.end_if_complete()
        return sent

    # --- letting go -----------------------------------------------------------------------------

    def release(self) -> None:
        """Give up the reading; the snapshot goes on from a later one (see the module docstring)."""
        if self._reading is not None:
            self._close_reading()
            self.let_go += 1
            self.tell_ready()

    def end(self, reason: EndReason) -> None:
        """End the stream and have the peer told; harmless when it has ended."""
        host = self._host
        if host is not None:
            self.close()
            host.ended(self, reason)

    def close(self) -> None:
        """End the stream without telling the peer, and close its reading."""
        self._close_reading()
        self.vbucket.unwatch(self)
        self._waiting = False
        self._host = None
        self.deletions.close()
        self.state = StreamState.DEAD

    def _close_reading(self) -> None:
        reading = self._reading
        if reading is not None:
            self._reading = None
            self._items = None
            self._let_reading_go(reading)

    def _let_reading_go(self, reading: Reading) -> None:
        assert self._host is not None
        self._host.close_reading(self, reading)
