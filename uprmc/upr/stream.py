"""One stream on the producer's side: the changes of one vBucket, snapshot by snapshot.

A stream repeats one step: take a reading of the vBucket (`engine.change_source`), announce it as a
snapshot, send its items as the connection pulls, close the reading. Between snapshots it has no
reading; it stands on the vBucket's `waiting` list and costs no time until something changes.

A stream that keeps up takes no readings: what is new and still waits in memory is a snapshot that
`Stream.send_news` sends as a whole. A notifier and the stream of a lease are small variations, at
the end; a takeover has a file of its own.

Note: a stream may give up a reading in the middle, when the peer is slow and the reading pins too
much. The stream then takes a new reading from where it stands, and announces the same snapshot
again with a later end. What the consumer has of the snapshot so far is consistent only together
with the rest, up to that end. A consumer that reconnects in the middle of a snapshot sees the same.

Rows D27 to D33, D40 to D43.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import TYPE_CHECKING

from uprmc.engine.reading import EngineLease, Reading
from uprmc.engine.vbucket import Interruption, VBucket
from uprmc.errors import InvalidArguments
from uprmc.protocol.header import encode_request
from uprmc.protocol.opcodes import EndReason, MarkerFlag, Opcode, StreamFlag
from uprmc.protocol.upr import StreamRequest, snapshot_marker, versioned_marker
from uprmc.protocol.upr_extensions import VBUCKET_FACTS_EXTRAS
from uprmc.protocol.upr_many import ANNOUNCED_SNAPSHOT
from uprmc.record import seqno_of
from uprmc.upr.frames import ITEM_FRAME_BYTES, Form, Written, new_item_writer

if TYPE_CHECKING:
    from uprmc.upr.feed import Feed

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


class ServedState(Enum):
    """Where a stream stands; the texts are those of statistics."""

    PENDING = "pending"
    BACKFILLING = "backfilling"
    IN_MEMORY = "in-memory"
    TAKEOVER_SEND = "takeover-send"
    TAKEOVER_WAIT = "takeover-wait"
    DEAD = "dead"


class Stream:
    """The changes of one vBucket for one peer."""

    __slots__ = (
        "_built_seqno",
        "_facts",
        "_feed",
        "_first_generation",
        "_floor",
        "_hurries",
        "_in_snapshot",
        "_marker_due",
        "_merges",
        "_on_build",
        "_queued_items",
        "_since_checkpoint",
        "_stored_items",
        "_versioned",
        "_waiting",
        "_writer",
        "announced",
        "complete_seqno",
        "end_seqno",
        "frames",
        "from_disk",
        "from_memory",
        "last_seqno",
        "let_go",
        "opaque",
        "persisted_seqno",
        "queued",
        "reading",
        "request",
        "snapshot_end",
        "state",
        "touched_seqno",
        "vbucket",
    )

    def __init__(
        self,
        feed: Feed,
        vbucket: VBucket,
        opaque: int,
        request: StreamRequest,
        form: Form,
        *,
        first_generation: bool = False,
    ) -> None:
        """Prepare a stream of `feed`.

        The `opaque` is the peer's name for it; the `request` has the flags applied. A peer of the
        first generation learns of a snapshot only that it begins.
        """
        self._feed: Feed | None = feed  # until it ends
        self.vbucket = vbucket
        self.opaque = opaque
        self.request = request
        self.state = ServedState.PENDING
        self.end_seqno = request.end_seqno  # it ends after the snapshot that contains this
        self.last_seqno = request.start_seqno  # of the newest item sent, or where it began
        self.complete_seqno = request.start_seqno  # end of the last snapshot sent as a whole
        self.snapshot_end = 0  # of the snapshot that was announced last
        self.announced = False  # a snapshot has begun and is not complete
        self.queued = False  # the connection's schedule knows that it has something to send
        self.frames = self.from_disk = self.from_memory = 0  # frames, and items by their origin
        self.let_go = 0  # how often a reading was given up half way
        self.touched_seqno = 0  # up to here the disk was read ahead
        self.persisted_seqno = 0  # what the peer said last that it has on disk
        self._writer = new_item_writer(vbucket.id, opaque, form)
        self._waiting = False  # stands on the vBucket's list
        self._hurries = False  # takes its reading as soon as it hears of news, see `changed`
        # The snapshot under way: its reading, and the items of that which are still to be sent.
        self.reading: Reading | None = None
        self._stored_items: Iterator[bytes] | None = None
        self._queued_items: Iterator[bytes] | None = None
        self._in_snapshot = 0  # items sent of it
        self._since_checkpoint = _CHECKPOINT_ITEMS
        # Its marker: where it begins, `None` between snapshots, and what the peer understands.
        self._floor: int | None = request.snapshot_start
        self._marker_due = False
        self._first_generation = first_generation
        self._versioned = form.versioned_markers
        self._facts: tuple[int, int] | None = (-1, -1) if form.facts else None  # sent last
        # Deletions that may be missing from it, see `_lacks_deletions`.
        self._built_seqno = 0
        self._merges = False
        self._on_build: Callable[[int], None] | None = None

    def begin(self) -> None:
        """Start, after the request was answered: follow the vBucket from now on."""
        self.vbucket.watchers.append(self)
        self._begin_sending()

    def _begin_sending(self) -> None:
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
        feed = self._feed
        if feed is not None:
            if self._hurries and self.reading is None:
                self._begin_snapshot(feed)
            if self._feed is not None:
                feed.ready(self)

    def interrupted(self, why: Interruption) -> None:
        """Learn that the vBucket changed its state, was rolled back or reset, or is gone."""
        rolled_back = why is Interruption.ROLLED_BACK
        self.end(EndReason.ROLLBACK if rolled_back else EndReason.STATE_CHANGED)

    def tell_ready(self) -> None:
        """Have the connection ask for frames, unless the stream has ended."""
        if self._feed is not None:
            self._feed.ready(self)

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
        early = self.reading is not None and not self.announced
        return self.behind and (early or not self.queued)

    def fill(self, out: list[bytes], limit: int) -> int:
        """Append frames to `out`, up to about `limit` bytes and to the end of one snapshot.

        Returns:
            Their bytes; 0 = there is nothing to send now, and the feed learns once there is.
        """
        feed = self._feed
        if feed is None:
            return 0
        sent = 0
        if self.reading is None:
            sent = self._send_at_once(feed, out, limit)
            if sent:
                return sent
            if not self._begin_snapshot(feed):
                return 0
        if self._stored_items is not None and not feed.may_read_on(self):
            return 0
        if not self.announced:
            self.announced = True
            sent = feed.snapshot_begins(self, self.snapshot_end, out)
        if self._marker_due and sent < limit:
            sent += self._announce_reading(out)
        if sent >= limit:
            return sent
        return sent + self._send_items(feed, out, limit - sent)

    def rest(self) -> None:
        """Wait for the next change: the connection need not ask before it learns of that."""
        if not self._waiting:
            self._waiting = True
            self.vbucket.waiting.append(self)
        if self.state in (ServedState.PENDING, ServedState.BACKFILLING):
            self.state = ServedState.IN_MEMORY

    # --- a snapshot without a reading -----------------------------------------------------------

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
        if self.announced or self.reading is not None or vbucket.receiving is not None:
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
        vbucket, after = self.vbucket, self.last_seqno
        end_seqno = self.snapshot_end = vbucket.high_seqno
        assert seqno_of(news[-1]) == end_seqno, "a snapshot lacks its newest item"
        self.state = ServedState.IN_MEMORY
        kind, sent = self._marker_kind(from_disk=False), 0
        if rows is None:
            sent = self._announce(end_seqno, kind, vbucket.purge_seqno, out)
        else:
            start = self._begin_at()
            row = ANNOUNCED_SNAPSHOT.pack(self.opaque, kind, start, end_seqno, vbucket.purge_seqno)
            rows.append(row)
        sent += self._writer.write(news, out, _ALL, after).size
        count = len(news)
        self.frames += count
        self.from_memory += count
        self._since_checkpoint += count
        self._floor = None
        self.last_seqno = self.complete_seqno = end_seqno
        return sent

    def _send_at_once(self, feed: Feed, out: list[bytes], limit: int) -> int:
        """Send what is new as a complete snapshot, without a reading, if that is little."""
        news = self.news(limit)
        if not news:
            return 0
        sent = feed.snapshot_begins(self, self.vbucket.high_seqno, out)
        sent += self.send_news(news, out)
        feed.snapshot_complete(self, len(news))
        self.end_if_complete()
        return sent

    def end_if_complete(self) -> None:
        """End the stream if everything that was asked for is sent."""
        if self.last_seqno >= self.end_seqno:
            self.end(EndReason.OK)

    # --- a snapshot that is read ----------------------------------------------------------------

    def _begin_snapshot(self, feed: Feed) -> bool:
        """Take a reading; says whether there is one."""
        if not self._has_news():
            self._hurries |= self.vbucket.receiving is not None
            self.rest()
            return False
        reading = self.reading = self._take_reading(feed)
        if reading is None:
            return False
        if self._lacks_deletions(reading):
            self.end(EndReason.ROLLBACK)
            return False
        self._stored_items = reading.records(self.last_seqno) if reading.from_disk else None
        self._queued_items = None
        self.snapshot_end = reading.end_seqno
        self._settle_state(reading)
        self._marker_due = True
        return True

    def _has_news(self) -> bool:
        # What a replica holds in mid-snapshot is no state that may be passed on.
        return self.vbucket.receiving is None and self.vbucket.high_seqno > self.last_seqno

    def _take_reading(self, feed: Feed) -> Reading | None:
        return feed.readings.open(self)

    def _settle_state(self, reading: Reading) -> None:
        if self.state in (ServedState.PENDING, ServedState.BACKFILLING, ServedState.IN_MEMORY):
            self.state = ServedState.BACKFILLING if reading.from_disk else ServedState.IN_MEMORY

    def _send_items(self, feed: Feed, out: list[bytes], limit: int) -> int:
        reading = self.reading
        assert reading is not None
        written = self._write_items(reading, out, limit)
        self.last_seqno = written.last_seqno
        self._count(written.items, from_disk=reading.from_disk)
        if written.error is not None:
            self.end(EndReason.BACKFILL_FAILED)
        elif written.last_seqno >= reading.end_seqno or not written.items:
            assert written.last_seqno == reading.end_seqno, "a snapshot lacks its newest item"
            self._complete_snapshot(feed)
        return written.size

    def _write_items(self, reading: Reading, out: list[bytes], limit: int) -> Written:
        """Put out the next items: what is stored first, then what is queued."""
        after, write = self.last_seqno, self._writer.write
        if self._stored_items is not None:
            written = write(self._stored_items, out, limit, after, reading.newer)
            if not written.exhausted or written.items:
                return written
            self._stored_items = None
        if self._queued_items is None:
            self._queued_items = reading.queued(after)
        return write(self._queued_items, out, limit, after)

    def _count(self, items: int, *, from_disk: bool) -> None:
        self._in_snapshot += items
        self.frames += items
        if from_disk:
            self.from_disk += items
        else:
            self.from_memory += items
            self._since_checkpoint += items

    def _complete_snapshot(self, feed: Feed) -> None:
        self._close_reading()
        items, self._in_snapshot = self._in_snapshot, 0
        self._floor = None
        self.announced = False
        self.complete_seqno = self.last_seqno
        feed.snapshot_complete(self, items)
        self.end_if_complete()

    # --- markers --------------------------------------------------------------------------------

    def _announce_reading(self, out: list[bytes]) -> int:
        reading = self.reading
        assert reading is not None
        self._marker_due = False
        kind = self._marker_kind(from_disk=reading.from_disk)
        return self._announce(self.snapshot_end, kind, reading.purge_seqno, out)

    def _announce(self, end_seqno: int, kind: int, purge_seqno: int, out: list[bytes]) -> int:
        """Put out the marker for the items from here to `end_seqno`; return what it takes."""
        start = self._begin_at()
        number, opaque = self.vbucket.id, self.opaque
        if self._first_generation:
            marker = encode_request(Opcode.UPR_SNAPSHOT_MARKER, vbucket=number, opaque=opaque)
        elif self._versioned:
            marker = versioned_marker(number, opaque, start, end_seqno, kind, purge_seqno)
        else:
            marker = snapshot_marker(number, opaque, start, end_seqno, kind)
        sent = self.tell_facts(purge_seqno, out) if self._facts is not None else 0
        out.append(marker)
        self.frames += 1
        return sent + len(marker)

    def _begin_at(self) -> int:
        """Return where the snapshot begins that goes on from here, and remember that."""
        start = self.last_seqno + 1
        if self._floor is not None and self._floor < start:
            start = self._floor
        self._floor = start
        return start

    def _marker_kind(self, *, from_disk: bool) -> int:
        if from_disk:
            return _DISK
        if self._since_checkpoint < _CHECKPOINT_ITEMS:
            return _MEMORY
        self._since_checkpoint = 0
        return _MEMORY | _CHECKPOINT

    def tell_facts(self, purge_seqno: int, out: list[bytes]) -> int:
        """Put out what holds for the snapshots from here on, if the peer wants and lacks it.

        Returns the bytes of the frame; 0 = there is none.
        """
        facts = (purge_seqno, self.vbucket.max_deleted_rev)
        if self._facts is None or self._facts == facts:
            return 0
        self._facts = facts
        frame = encode_request(
            Opcode.VBUCKET_FACTS,
            extras=VBUCKET_FACTS_EXTRAS.pack(*facts),
            vbucket=self.vbucket.id,
            opaque=self.opaque,
        )
        out.append(frame)
        self.frames += 1
        return len(frame)

    # --- deletions that may be missing ----------------------------------------------------------

    def continue_build(self, floor: int, on_build: Callable[[int], None]) -> None:
        """Go on with a build whose first snapshot ended at `floor`, 0 = there is none.

        `on_build` is called with the end of the first snapshot of a stream from zero.
        """
        self._built_seqno = floor
        self._on_build = on_build

    def merge(self, floor: int) -> None:
        """Miss no deletion above `floor`: the peer may hold other documents, even at seqno 0."""
        self._built_seqno = floor
        self._merges = True

    def _lacks_deletions(self, reading: Reading) -> bool:
        """Tell whether the peer may hold documents whose deletions the reading has not.

        A peer that began with nothing holds none that was deleted before the end of its first
        reading. Without that, a slow one would be sent back to 0 for ever.
        """
        if not self.last_seqno and not self._merges:
            self._built_seqno = reading.end_seqno
            if self._on_build is not None:
                self._on_build(reading.end_seqno)
            return False
        known = max(self.last_seqno, self._built_seqno)
        return known < reading.purge_seqno and not self.request.flags & _IGNORE_PURGED

    # --- letting go -----------------------------------------------------------------------------

    def release(self) -> None:
        """Give up the reading; the snapshot goes on from a later one (see the module docstring)."""
        if self.reading is not None:
            self._close_reading()
            self.let_go += 1
            self.tell_ready()

    def end(self, reason: EndReason) -> None:
        """End the stream and let the peer know; harmless when it has ended."""
        feed = self._feed
        if feed is not None:
            self.close()
            feed.ended(self, reason)

    def close(self) -> None:
        """End the stream without telling the peer, and close its reading."""
        self._close_reading()
        self.vbucket.unwatch(self)
        self._waiting = False
        self._feed = None
        self._on_build = None
        self.state = ServedState.DEAD

    def _close_reading(self) -> None:
        reading = self.reading
        if reading is not None:
            self.reading = None
            self._stored_items = self._queued_items = None
            self._give_back(reading)

    def _give_back(self, reading: Reading) -> None:
        assert self._feed is not None
        self._feed.readings.close(self, reading)


# --- notifiers -----------------------------------------------------------------------------------


class NotifierStream(Stream):
    """Ends as soon as the vBucket has passed the seqno that was asked for; sends nothing else."""

    __slots__ = ()

    def begin(self) -> None:
        """Start; ends at once when there is news already."""
        self.vbucket.watchers.append(self)
        self.changed()

    def changed(self) -> None:
        """Tell the peer if what it waits for has come."""
        self._waiting = False
        if self.vbucket.high_seqno > self.request.start_seqno:
            self.end(EndReason.OK)
        else:
            self.rest()


# --- leases --------------------------------------------------------------------------------------


class LeaseStream(Stream):
    """Sends the reading that a lease keeps: one snapshot, the same bytes each time, then the end.

    What happens to the vBucket meanwhile does not matter: it may be handed over, or removed.
    """

    __slots__ = ("_lease",)

    def __init__(
        self,
        feed: Feed,
        number: int,
        opaque: int,
        request: StreamRequest,
        form: Form,
        lease: EngineLease,
    ) -> None:
        super().__init__(feed, lease.vbuckets[number], opaque, request, form)
        self._lease: EngineLease | None = lease

    def begin(self) -> None:
        """See `Stream`."""
        lease = self._lease
        assert lease is not None
        lease.readers[self._lease_ended] = None
        lease.reads += 1
        self.end_seqno = lease.readings[self.vbucket.id].end_seqno
        self._begin_sending()

    def _lease_ended(self) -> None:
        self.end(EndReason.BACKFILL_FAILED)

    @property
    def reach_seqno(self) -> int:
        """See `Stream`."""
        return self.end_seqno

    def _take_reading(self, feed: Feed) -> Reading | None:
        assert self._lease is not None
        return self._lease.readings[self.vbucket.id]

    def _has_news(self) -> bool:
        return True

    def _settle_state(self, reading: Reading) -> None:
        self.state = ServedState.BACKFILLING

    def news(self, limit: int) -> None:
        """See `Stream.news`; what is new does not matter."""

    def _marker_kind(self, *, from_disk: bool) -> int:
        return _DISK

    def _give_back(self, reading: Reading) -> None:
        """Leave the reading open: it belongs to the lease."""

    def close(self) -> None:
        """See `Stream`."""
        super().close()
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.readers.pop(self._lease_ended, None)
