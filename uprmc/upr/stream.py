"""One stream on the producer's side: the changes of one vBucket, snapshot by snapshot.

A stream repeats one step: take a reading of the vBucket (`engine.change_source`), announce it as a
snapshot, send its items as the connection pulls, let the reading go. Between snapshots it holds
nothing; it stands on the vBucket's `waiting` list and costs no time until something changes.

What surprises: a reading may be **let go half way**, when the peer is slow and the reading has
become dear. The stream then takes a new one from where it stands, and announces the same snapshot
again with a later end: what the consumer has of it so far is consistent only together with the
rest, up to that end. A consumer that reconnects in mid-snapshot sees just the same.

Source: UPR reference 4; seed 000; rows D27 to D33, D40 to D43.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Protocol

from uprmc.engine.change_source import Reading
from uprmc.engine.vbucket import Interruption, VBucket
from uprmc.model import Item
from uprmc.protocol.header import encode_request
from uprmc.protocol.opcodes import EndReason, MarkerFlag, Opcode, StreamFlag
from uprmc.protocol.upr import StreamRequest, snapshot_marker
from uprmc.upr.frames import Form, ItemWriter

#: After so many items from memory a consumer should open a new checkpoint.
_CHECKPOINT_ITEMS = 5_000


class StreamState(Enum):
    """Where a stream stands; the texts are those of statistics."""

    PENDING = "pending"
    BACKFILLING = "backfilling"
    IN_MEMORY = "in-memory"
    TAKEOVER_SEND = "takeover-send"
    TAKEOVER_WAIT = "takeover-wait"
    DEAD = "dead"


class Host(Protocol):
    """What a stream needs of its connection."""

    def ready(self, stream: Stream) -> None:
        """Learn that `stream` has something to send, or may have."""

    def open_reading(self, stream: Stream) -> Reading | None:
        """Take a reading for `stream`; ``None`` = not now, it is called `ready` when it may."""

    def close_reading(self, stream: Stream, reading: Reading) -> None:
        """Let the reading of `stream` go."""

    def snapshot_begins(self, stream: Stream, end_seqno: int, out: list[bytes]) -> int:
        """Put out what precedes a snapshot's first marker; returns its bytes."""

    def snapshot_complete(self, stream: Stream, items: int, out: list[bytes]) -> int:
        """Put out what follows a snapshot's last item; returns its bytes."""

    def ended(self, stream: Stream, reason: EndReason) -> None:
        """Forget `stream` and tell the peer."""


class Stream:
    """See the module docstring.

    Attributes:
        vbucket: what is streamed.
        opaque: the peer's name for the stream.
        request: as asked, with the flags applied.
        end_seqno: it ends after the snapshot that contains this.
        last_seqno: of the newest item sent, or where it began.
        snapshot_end: end of the snapshot that was announced last, 0 before the first.
        announced: whether a snapshot has begun and is not complete.
        state: for statistics.
        queued: whether the connection's schedule knows that it has something to send.
        frames: sent so far.
        from_disk, from_memory: items sent so far, by where they came from.
        let_go: how often a reading was given up half way.
    """

    __slots__ = (
        "_changes",
        "_first_generation",
        "_floor",
        "_host",
        "_in_snapshot",
        "_reading",
        "_since_checkpoint",
        "_writer",
        "announced",
        "end_seqno",
        "frames",
        "from_disk",
        "from_memory",
        "last_seqno",
        "let_go",
        "opaque",
        "queued",
        "request",
        "snapshot_end",
        "state",
        "vbucket",
    )

    def __init__(
        self,
        host: Host,
        vbucket: VBucket,
        opaque: int,
        request: StreamRequest,
        form: Form,
        *,
        first_generation: bool = False,
    ) -> None:
        self._host: Host | None = host
        self.vbucket = vbucket
        self.opaque = opaque
        self.request = request
        self.end_seqno = request.end_seqno
        self.last_seqno = request.start_seqno
        self.snapshot_end = 0
        self.state = StreamState.PENDING
        self.queued = False
        self.announced = False
        self.frames = self.from_disk = self.from_memory = self.let_go = 0
        self._first_generation = first_generation
        self._writer = ItemWriter(vbucket.id, opaque, form)
        self._floor: int | None = request.snapshot_start
        self._reading: Reading | None = None
        self._changes: Iterator[Item] = iter(())
        self._in_snapshot = 0
        self._since_checkpoint = _CHECKPOINT_ITEMS

    def begin(self) -> None:
        """Start, after the request was answered: follow the vBucket from now on."""
        self.vbucket.watchers.append(self)
        if self.last_seqno >= self.end_seqno:
            self.end(EndReason.OK)
        else:
            self._tell_ready()

    # --- what the vBucket tells -----------------------------------------------------------------

    def changed(self) -> None:
        """There is something new."""
        self._tell_ready()

    def interrupted(self, why: Interruption) -> None:
        """The vBucket changed its state, began anew or is gone."""
        self.end(EndReason.STATE_CHANGED)

    def _tell_ready(self) -> None:
        if self._host is not None:
            self._host.ready(self)

    # --- sending --------------------------------------------------------------------------------

    @property
    def behind(self) -> bool:
        """Whether the peer lacks anything that the vBucket has now."""
        return self.announced or self.vbucket.high_seqno > self.last_seqno

    @property
    def reading(self) -> Reading | None:
        """The reading that is held at present."""
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
            sent = self._begin_snapshot(host, out)
            if not sent or sent >= limit:
                return sent
        return sent + self._send_items(host, out, limit - sent)

    def _begin_snapshot(self, host: Host, out: list[bytes]) -> int:
        if not self._has_news():
            self._rest()
            return 0
        reading = self._reading = self._take_reading(host)
        if reading is None:
            return 0
        if 0 < self.last_seqno < reading.purge_seqno and not self._ignores_purged:
            self.end(EndReason.ROLLBACK)
            return 0
        self._changes = reading.changes(self.last_seqno)
        self.snapshot_end = reading.end_seqno
        self._settle_state(reading)
        before = 0 if self.announced else host.snapshot_begins(self, reading.end_seqno, out)
        self.announced = True
        return before + self._announce(reading, out)

    def _has_news(self) -> bool:
        vbucket = self.vbucket
        # What a replica holds in mid-snapshot is no state that may be passed on.
        return vbucket.high_seqno > self.last_seqno and vbucket.receiving is None

    def _take_reading(self, host: Host) -> Reading | None:
        return host.open_reading(self)

    @property
    def _ignores_purged(self) -> bool:
        return bool(self.request.flags & StreamFlag.IGNORE_PURGED)

    def _rest(self) -> None:
        """Wait for the next change."""
        if self not in self.vbucket.waiting:
            self.vbucket.waiting.append(self)
        if self.state in (StreamState.PENDING, StreamState.BACKFILLING):
            self.state = StreamState.IN_MEMORY

    def _settle_state(self, reading: Reading) -> None:
        if self.state in (StreamState.PENDING, StreamState.BACKFILLING, StreamState.IN_MEMORY):
            self.state = StreamState.BACKFILLING if reading.from_disk else StreamState.IN_MEMORY

    def _announce(self, reading: Reading, out: list[bytes]) -> int:
        first = self.last_seqno + 1
        start = first if self._floor is None else min(self._floor, first)
        self._floor = start
        number, opaque = self.vbucket.id, self.opaque
        kind = self._marker_kind(reading)
        if self._first_generation:
            marker = encode_request(Opcode.UPR_SNAPSHOT_MARKER, vbucket=number, opaque=opaque)
        else:
            marker = snapshot_marker(number, opaque, start, reading.end_seqno, kind)
        out.append(marker)
        self.frames += 1
        return len(marker)

    def _marker_kind(self, reading: Reading) -> int:
        if reading.from_disk:
            return MarkerFlag.DISK
        if self._since_checkpoint < _CHECKPOINT_ITEMS:
            return MarkerFlag.MEMORY
        self._since_checkpoint = 0
        return MarkerFlag.MEMORY | MarkerFlag.CHECKPOINT

    def _send_items(self, host: Host, out: list[bytes], limit: int) -> int:
        reading = self._reading
        assert reading is not None
        written = self._writer.write(self._changes, out, limit, self.last_seqno)
        self.last_seqno = written.last_seqno
        self._in_snapshot += written.items
        self.frames += written.items
        if reading.from_disk:
            self.from_disk += written.items
        else:
            self.from_memory += written.items
            self._since_checkpoint += written.items
        if written.error is not None:
            self.end(EndReason.BACKFILL_FAILED)
        elif written.exhausted or written.last_seqno >= reading.end_seqno:
            assert written.last_seqno == reading.end_seqno, "a snapshot lacks its newest item"
            return written.size + self._complete_snapshot(host, out)
        return written.size

    def _complete_snapshot(self, host: Host, out: list[bytes]) -> int:
        self._close_reading()
        items, self._in_snapshot = self._in_snapshot, 0
        self._floor = None
        self.announced = False
        sent = host.snapshot_complete(self, items, out)
        if self.last_seqno >= self.end_seqno:
            self.end(EndReason.OK)
        return sent

    # --- letting go -----------------------------------------------------------------------------

    def release(self) -> None:
        """Give up the reading; the snapshot goes on from a later one (see the module docstring)."""
        if self._reading is not None:
            self._close_reading()
            self.let_go += 1
            self._tell_ready()

    def end(self, reason: EndReason) -> None:
        """End the stream and have the peer told; harmless when it has ended."""
        host = self._host
        if host is not None:
            self.close()
            host.ended(self, reason)

    def close(self) -> None:
        """End it without a word: let go of everything."""
        self._close_reading()
        self.vbucket.unwatch(self)
        self._host = None
        self.state = StreamState.DEAD

    def _close_reading(self) -> None:
        reading, self._reading = self._reading, None
        self._changes = iter(())
        if reading is not None:
            self._let_reading_go(reading)

    def _let_reading_go(self, reading: Reading) -> None:
        assert self._host is not None
        self._host.close_reading(self, reading)
