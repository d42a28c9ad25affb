"""What a connection sends by itself: its streams in turn, within the peer's buffer.

Streams are pulled: nothing is produced that the transport, the pull's budget and flow control do
not take. What is queued here is small and bounded by the number of streams and cookies: stream
ends, barrier cookies.

Whose turn it is says a schedule. `RoundRobin` lets every stream that has something send a portion,
one after the other, so that a hot vBucket cannot starve the others; streams that keep up are served
all in one loop. `StreamRounds` is the order of the first specification: vBuckets by number, one
whole snapshot each, and word of every completed round (ruling R4).

Disk readings are rationed (`Hub.backfills`), and given up when they are open too long or keep too
much. A stream that gets no permit is *parked*: it tries again when one is free.

Rows D27 to D31, D39, I09.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol

from sortedcontainers import SortedDict

from uprmc.engine.reading import Reading, needs_disk
from uprmc.errors import StoreError, TemporaryFailure
from uprmc.protocol.header import RequestFrame, encode_request
from uprmc.protocol.opcodes import EndReason, Opcode
from uprmc.protocol.upr import STREAM_END_EXTRAS
from uprmc.protocol.upr_extensions import (
    BARRIER_REACHED_EXTRAS,
    PARTITION_START_EXTRAS,
    ROUND_COMPLETE_EXTRAS,
    SNAPSHOT_END_EXTRAS,
)
from uprmc.protocol.upr_many import ANNOUNCED_SNAPSHOT, SNAPSHOTS_HEAD_BYTES, snapshots_head
from uprmc.upr.barrier import ByCycle, ByVector
from uprmc.upr.hub import Hub
from uprmc.upr.options import UprOptions
from uprmc.upr.stream import Stream

#: What one stream may send before others have their turn.
_PORTION_BYTES = 16 * 1024

#: What follows snapshots may come to this many bytes in one call of `fill`, which takes two
#: milliseconds; to look whether there is anything counts as `_LOOK_BYTES`.
_FOLLOW_UP_BYTES = 16 * 1024
_LOOK_BYTES = 512

#: At most this many frames wait for a peer that asks for ever more of them and takes none.
_WAITING_FRAMES = 4_096

#: At most this many ended streams are remembered; the oldest are forgotten first.
_ENDED_STREAMS = 1_024

#: Reasons that consumers of 2014 know.
_OLD_REASONS = frozenset({EndReason.OK, EndReason.CLOSED, EndReason.STATE_CHANGED})


# --- whose turn it is -----------------------------------------------------------------------------


class Schedule(Protocol):
    """Whose turn it is; streams come in by `ready` and stay until they were found idle."""

    def ready(self, stream: Stream) -> None:
        """Learn that `stream` has something to send; harmless when that is known."""

    def gone(self, stream: Stream) -> None:
        """Forget `stream`."""

    def next(self) -> Stream | None:
        """Return the stream whose turn it is."""

    def had_turn(self, stream: Stream, *, sent: bool, complete: bool, idle: bool) -> None:
        """Learn what it did.

        Args:
            stream: whose turn it was.
            sent: it sent something.
            complete: it came to the end of a snapshot.
            idle: it has nothing more to send now.
        """


class RoundRobin:
    """Gives every stream that has something to send its turn."""

    def __init__(self) -> None:
        self.turns: deque[Stream] = deque()  # in the order in which they have them

    def ready(self, stream: Stream) -> None:
        """See `Schedule`."""
        if not stream.queued:
            stream.queued = True
            self.turns.append(stream)

    def gone(self, stream: Stream) -> None:
        """See `Schedule`. O(streams that have something to send)."""
        if stream.queued:
            stream.queued = False
            self.turns.remove(stream)

    def next(self) -> Stream | None:
        """See `Schedule`."""
        return self.turns[0] if self.turns else None

    def had_turn(self, stream: Stream, *, sent: bool, complete: bool, idle: bool) -> None:
        """See `Schedule`."""
        if not stream.queued:
            return  # its turn was its end
        if idle:
            self.turns.popleft().queued = False
        else:
            self.turns.rotate(-1)


class Round(NamedTuple):
    """One completed round."""

    cycle: int  # its number, from 0
    visited: frozenset[int]  # vBuckets that sent a snapshot, or began to


class StreamRounds:
    """Serves vBuckets in ascending order, each with one complete snapshot."""

    def __init__(self) -> None:
        self.cycle = 0  # of the round under way; rounds in which nothing is sent do not count
        self.position = -1  # vBucket whose turn it is or was last in this round
        self.visited: set[int] = set()  # those that sent a snapshot in this round, or began to
        self._ready: SortedDict = SortedDict()
        self._current: Stream | None = None

    @property
    def upcoming(self) -> int:
        """The lowest vBucket that can still be served in this round."""
        return self.position + (self._current is None)

    def ready(self, stream: Stream) -> None:
        """See `Schedule`."""
        if not stream.queued:
            stream.queued = True
            self._ready[stream.vbucket.id] = stream

    def gone(self, stream: Stream) -> None:
        """See `Schedule`."""
        if stream.queued:
            stream.queued = False
            del self._ready[stream.vbucket.id]
        if self._current is stream:
            self._current = None

    def next(self) -> Stream | None:
        """Return whose turn it is in this round; ``None`` = the round has come to its end."""
        if self._current is None:
            place = self._ready.bisect_right(self.position)
            if place < len(self._ready):
                self.position, self._current = self._ready.peekitem(place)
        return self._current

    def had_turn(self, stream: Stream, *, sent: bool, complete: bool, idle: bool) -> None:
        """See `Schedule`."""
        if complete or stream.announced:
            self.visited.add(stream.vbucket.id)
        if self._current is not stream:
            return  # its turn was its end
        if complete or idle:
            self._current = None
        if idle:
            stream.queued = False
            del self._ready[stream.vbucket.id]

    def finish(self) -> Round | None:
        """Begin the next round; return the one that ended, ``None`` if there was no turn in it."""
        if self.position < 0:
            return None
        ended = Round(self.cycle, frozenset(self.visited))
        self.cycle += bool(ended.visited)
        self.position = -1
        self.visited.clear()
        return ended


# --- readings -------------------------------------------------------------------------------------


class Readings:
    """Opens and closes the readings of one connection."""

    def __init__(self, hub: Hub, options: UprOptions, ready: Callable[[Stream], None]) -> None:
        """Begin with none; `ready` is called with a stream that may try again."""
        self._hub = hub
        self._options = options
        self._ready: Callable[[Stream], None] | None = ready
        self.from_disk = 0  # streams that are reading the disk
        self._parked: dict[Stream, None] = {}
        self._open_since: dict[Stream, float] = {}
        self._from_disk_since: dict[Stream, float] = {}
        self._now = 0.0

    def open(self, stream: Stream) -> Reading | None:
        """Take a reading; ``None`` = the stream has ended, or is parked until there is a permit."""
        vbucket = stream.vbucket
        if not needs_disk(vbucket, stream.last_seqno):
            reading = Reading(vbucket, None)
        elif self._may_read_disk():
            try:
                reading = Reading(vbucket, self._hub.bucket.store.view())
            except StoreError:
                self._give_permit_back()
                stream.end(EndReason.BACKFILL_FAILED)
                return None
        else:
            self._parked[stream] = None
            return None
        self._open_since[stream] = self._now
        if reading.from_disk:
            self._from_disk_since[stream] = self._hub.bucket.clock.monotonic()
        return reading

    def close(self, stream: Stream, reading: Reading) -> None:
        """Close a stream's reading."""
        reading.close()
        del self._open_since[stream]
        if reading.from_disk:
            bucket = self._hub.bucket
            took_s = bucket.clock.monotonic() - self._from_disk_since.pop(stream)
            bucket.timings.backfill.add(took_s)
            self._give_permit_back()

    def _give_permit_back(self) -> None:
        self.from_disk -= 1
        self._hub.backfills.free(self._unpark)

    @property
    def _has_place(self) -> bool:
        """Whether one more stream of this connection may read the disk."""
        limit = 1 if self._options.sequential else self._hub.settings.backfills_per_connection
        return self.from_disk < limit

    def _may_read_disk(self) -> bool:
        if not self._has_place or not self._hub.backfills.take(self._unpark):
            return False
        self.from_disk += 1
        self._unpark()  # there may be permits for more of us
        return True

    def is_parked(self, stream: Stream) -> bool:
        """Tell whether a stream waits for a permit."""
        return stream in self._parked

    def _unpark(self) -> bool:
        """Let the stream that has waited longest try again; says whether there is one."""
        if not self._parked or not self._has_place:
            return False
        stream = next(iter(self._parked))
        del self._parked[stream]
        if self._ready is not None:
            self._ready(stream)
        return True

    def forget(self, stream: Stream) -> None:
        """Park a stream no more: it has ended."""
        self._parked.pop(stream, None)
        self._unpark()  # it may have been called for a permit that it does not take now

    def clear(self) -> None:
        """Park no stream any more."""
        self._parked.clear()

    def leave(self) -> None:
        """Wait for no permit any more, and forget the connection, which knows this object."""
        self._hub.backfills.forget(self._unpark)
        self._ready = None

    def tick(self, now: float) -> None:
        """Give up readings that are open too long or keep too much."""
        if not self._now:  # the first tick: for all we know, what is open is open since now
            self._open_since = dict.fromkeys(self._open_since, now)
        self._now = now
        if self._hub.backfills.used < self._hub.backfills.limit:
            self._unpark()  # a stream that was called before us may not have taken the permit
        settings = self._hub.settings
        for stream, since in list(self._open_since.items()):
            too_long = now - since > settings.reading_max_s
            if too_long or stream.vbucket.queue.retired > settings.reading_items:
                stream.release()

    def release_all(self) -> None:
        """Give up every reading: they are in the way, for instance of a store that must grow."""
        for stream in list(self._open_since):
            stream.release()


# --- the connection's side ------------------------------------------------------------------------


class Feed:
    """The sending half of one connection."""

    def __init__(
        self,
        hub: Hub,
        options: UprOptions,
        opening: RequestFrame,
        wake: Callable[[], None],
        *,
        modern: bool,
        after_snapshot: Callable[[Stream], bytes | None],
    ) -> None:
        """Begin without streams.

        Args:
            hub: the node's.
            options: what CONTROL has set so far.
            opening: the OPEN.
            wake: called when there is something to send.
            modern: whether the peer knows the newer reasons for a stream's end.
            after_snapshot: returns what to send after a snapshot of a stream, ``None`` = nothing.
        """
        self.streams: dict[int, Stream] = {}
        #: The last one of each vBucket that has none now, for statistics; oldest first.
        self.ended_streams: dict[int, Stream] = {}
        self.readings = Readings(hub, options, self.ready)
        self.barriers: ByVector | ByCycle = ByVector(hub.settings.barriers)  # cookies that wait
        self.unacked_bytes = 0  # sent and not acknowledged, while flow control is on
        self.items_sent = 0  # of streams that have ended
        self.bytes_sent = self.frames_sent = 0  # of all kinds
        self.last_sent_at = 0.0  # Unix time
        self.drained = False  # the last `fill` has left nothing: `wake` is called before there is
        self._modern = modern
        self._open_opaque = opening.opaque  # for frames that belong to no stream
        self._after_snapshot = after_snapshot
        self._hub = hub
        self._options = options
        self._wake = wake
        self._turns = RoundRobin()
        self._schedule: Schedule = self._turns
        self._rounds: StreamRounds | None = None
        self._frames: deque[tuple[Stream | None, bytes]] = deque()  # and whose they are
        self._to_look_after: dict[int, None] = {}
        self._followed_up = 0
        self._cookies = 0
        self._cookies_since: deque[float] = deque()
        self._completed = False

    # --- streams --------------------------------------------------------------------------------

    def use_rounds(self, wanted: bool) -> None:
        """Serve in rounds from now on, or no more; only while there is no stream."""
        assert not self.streams
        self._return_cookies()
        self._cookies_since.clear()
        limit = self._hub.settings.barriers
        self._rounds = StreamRounds() if wanted else None
        self._schedule = self._rounds or self._turns
        self.barriers = ByCycle(limit) if wanted else ByVector(limit)

    def add(self, stream: Stream) -> None:
        """Begin `stream`; its request is answered before any frame of it is sent.

        Raises:
            TemporaryFailure: the peer has to take what waits for it first.
        """
        if len(self._frames) >= _WAITING_FRAMES:
            raise TemporaryFailure(f"{_WAITING_FRAMES} frames wait to be sent")
        self.ended_streams.pop(stream.vbucket.id, None)
        self.streams[stream.vbucket.id] = stream
        self.barriers.opened(stream.vbucket.id, stream.last_seqno)
        stream.begin()

    def remove(self, stream: Stream) -> None:
        """End a stream without telling the peer; what was about to be sent of it is not sent."""
        stream.close()
        self._forget(stream)
        if self._frames:
            self._frames = deque(entry for entry in self._frames if entry[0] is not stream)

    def close(self) -> None:
        """End everything: the connection is gone."""
        self.readings.clear()
        self._frames.clear()
        self._to_look_after.clear()
        for stream in list(self.streams.values()):
            self.remove(stream)
        self.ended_streams.clear()
        self._frames.clear()
        self.readings.leave()

    def _forget(self, stream: Stream) -> None:
        del self.streams[stream.vbucket.id]
        self._remember(stream)
        self._schedule.gone(stream)
        self.barriers.ended(stream.vbucket.id)
        self.items_sent += stream.from_disk + stream.from_memory
        self.readings.forget(stream)

    def _remember(self, stream: Stream) -> None:
        self.ended_streams[stream.vbucket.id] = stream
        if len(self.ended_streams) > _ENDED_STREAMS:
            del self.ended_streams[next(iter(self.ended_streams))]

    @property
    def waiting_bytes(self) -> int:
        """Bytes of frames that wait for their turn. O(frames)."""
        return sum(len(frame) for _, frame in self._frames)

    @property
    def all_items_sent(self) -> int:
        """Items sent so far. O(streams)."""
        streams = self.streams.values()
        return self.items_sent + sum(each.from_disk + each.from_memory for each in streams)

    # --- what streams tell ----------------------------------------------------------------------

    def ready(self, stream: Stream) -> None:
        """Learn that a stream has something to send, or may have."""
        self._schedule.ready(stream)
        self._wake()

    def may_read_on(self, stream: Stream) -> bool:
        """Tell whether a stream may read the disk now; if not, it is `ready` when it may."""
        preread = self._hub.preread
        return preread is None or preread.may_read_on(stream)

    def snapshot_begins(self, stream: Stream, end_seqno: int, out: list[bytes]) -> int:
        """Put out what precedes a snapshot's first marker; returns its bytes."""
        if self._rounds is None:
            return 0
        self.barriers.begun(stream.vbucket.id)
        extras = PARTITION_START_EXTRAS.pack(stream.last_seqno, end_seqno, self._rounds.cycle)
        frame = self._frame(Opcode.PARTITION_START, extras, stream)
        out.append(frame)
        self.frames_sent += 1
        return len(frame)

    def snapshot_complete(self, stream: Stream, items: int) -> None:
        """Have what follows a snapshot's last item sent."""
        self._completed = True
        if self._cookies or self._rounds is not None:
            self.barriers.passed(stream.vbucket.id, stream.last_seqno)
        if self._options.snapshot_ends:
            extras = SNAPSHOT_END_EXTRAS.pack(stream.last_seqno, items)
            self._frames.append((stream, self._frame(Opcode.SNAPSHOT_END, extras, stream)))
        if self._followed_up < _FOLLOW_UP_BYTES:
            self._follow_up(stream)
        else:
            self.look_after(stream.vbucket.id)

    def look_after(self, number: int) -> None:
        """Send what is to follow a stream's last snapshot, if it is between two when there is room.

        A connection may have a thousand such streams, so some are looked after in each turn.
        """
        self._to_look_after[number] = None
        self._wake()

    def _look_after_some(self) -> None:
        waiting = self._to_look_after
        while waiting and self._followed_up < _FOLLOW_UP_BYTES:
            number = next(iter(waiting))
            del waiting[number]
            stream = self.streams.get(number)
            if stream is not None and not stream.announced:
                self._follow_up(stream)
                self._followed_up += _LOOK_BYTES
        if waiting:
            self._wake()

    def _follow_up(self, stream: Stream) -> None:
        frame = self._after_snapshot(stream)
        if frame is not None:
            self._followed_up += _LOOK_BYTES + len(frame)
            self._frames.append((stream, frame))

    def ended(self, stream: Stream, reason: EndReason) -> None:
        """Forget a stream, and tell the peer."""
        self._forget(stream)
        known = self._modern or reason in _OLD_REASONS
        self.tell_end(stream, reason if known else EndReason.STATE_CHANGED)
        self._wake()

    def tell_end(self, stream: Stream, reason: EndReason) -> None:
        """Tell the peer that a stream is over."""
        extras = STREAM_END_EXTRAS.pack(reason)
        self._frames.append((None, self._frame(Opcode.UPR_STREAM_END, extras, stream)))

    def _frame(self, opcode: int, extras: bytes, stream: Stream) -> bytes:
        return encode_request(
            opcode, extras=extras, vbucket=stream.vbucket.id, opaque=stream.opaque
        )

    # --- barriers -------------------------------------------------------------------------------

    @property
    def cycle(self) -> int:
        """Number of the round under way, 0 without rounds."""
        return self._rounds.cycle & 0xFFFFFFFF if self._rounds is not None else 0

    @property
    def position(self) -> int:
        """The vBucket whose turn it is or was last, 0 without rounds."""
        return max(0, self._rounds.position) if self._rounds is not None else 0

    def add_barrier(self, cookie: bytes, opaque: int) -> None:
        """Take a cookie; raises as `Barriers.add`."""
        barriers = self.barriers
        highs = {number: stream.reach_seqno for number, stream in self.streams.items()}
        if self._rounds is not None and isinstance(barriers, ByCycle):
            barriers.turn_of(self._rounds.upcoming)  # turns may have gone by in silence
            late = [number for number, stream in self.streams.items() if stream.late]
            barriers.expect({number: highs[number] for number in late})
        else:  # streams do not tell while no cookie is waiting
            for number, stream in self.streams.items():
                barriers.passed(number, stream.complete_seqno)
        barriers.add(cookie, opaque, highs, self.frames_sent)
        self._cookies_since.append(self._hub.bucket.clock.monotonic())
        self._cookies = len(barriers)

    def _return_cookies(self) -> None:
        if not self._cookies:
            return
        for barrier in self.barriers.reached():
            bucket = self._hub.bucket
            waited_s = bucket.clock.monotonic() - self._cookies_since.popleft()
            bucket.timings.barrier.add(waited_s)
            since = (self.frames_sent + len(self._frames) - barrier.frames) & 0xFFFFFFFF
            extras = BARRIER_REACHED_EXTRAS.pack(self.cycle, since)
            frame = encode_request(
                Opcode.BARRIER_REACHED, key=barrier.cookie, extras=extras, opaque=barrier.opaque
            )
            self._frames.append((None, frame))
        self._cookies = len(self.barriers)

    # --- sending --------------------------------------------------------------------------------

    def fill(self, out: list[bytes], budget: int) -> int:
        """Append frames to `out`, about `budget` bytes at most; return how many bytes."""
        window = self._options.buffer_bytes
        limit = min(budget, window - self.unacked_bytes) if window else budget
        self._followed_up = 0
        self.drained = False
        sent = self._send_frames(out, 0, limit) if self._frames or self._cookies else 0
        if self._to_look_after and sent < limit:
            self._look_after_some()
            sent = self._send_frames(out, sent, limit)
        while sent < limit:
            # Do neither barriers, rounds nor the peer need to know where each snapshot ends?
            if not (self._cookies or self._rounds or self._options.snapshot_ends):
                news, full = self._send_news(out, limit - sent, pausing=limit < budget)
                sent += news
                if full:
                    break
            stream = self._schedule.next()
            if stream is not None:
                turn = self._serve(stream, out, min(_PORTION_BYTES, limit - sent))
                if turn is None:
                    break
                sent += turn
            elif not (self._end_round() if self._rounds or self._cookies else self._frames):
                self.drained = True
                break
            if self._cookies or self._frames:
                sent = self._send_frames(out, sent, limit)
        if sent:
            self.bytes_sent += sent
            self.last_sent_at = self._hub.bucket.clock.now()
        if self._options.buffer_bytes:
            self.unacked_bytes += sent
        return sent

    def _send_news(self, out: list[bytes], limit: int, *, pausing: bool) -> tuple[int, bool]:
        """Serve streams that have a few new items, up to one that needs a reading, or to the limit.

        One frame announces the snapshots of all of them, if the peer asked for SNAPSHOTS; otherwise
        each has its own marker. Streams that were served rest.

        Args:
            out: where frames are appended.
            limit: bytes.
            pausing: whether the limit is the peer's buffer, so that the rest may take long to come.

        Returns:
            bytes; whether the next stream has news, for which there was no room.
        """
        shared = self._options.snapshots
        rows: list[bytes] | None = [] if shared else None
        pieces: list[bytes] = [] if shared else out
        room = limit - SNAPSHOTS_HEAD_BYTES if shared else limit
        turns = self._turns.turns
        size = facts = 0
        full = False
        while turns:
            stream = turns[0]
            news = stream.news(room)
            if not news:
                full = news is not None and size > 0
                break
            turns.popleft().queued = False
            before = stream.frames
            if shared:
                facts += stream.tell_facts(stream.vbucket.purge_seqno, out)
            sent = stream.send_news(news, pieces, rows)
            size += sent
            room -= sent + ANNOUNCED_SNAPSHOT.size
            self.frames_sent += stream.frames - before
            if stream.last_seqno < stream.end_seqno:
                stream.rest()
            else:
                stream.end(EndReason.OK)
        if rows:
            head = snapshots_head(rows, size, more=full and not pausing)
            out.append(head)
            out += pieces
            self.frames_sent += 1
            size += len(head)
        return size + facts, full

    def _serve(self, stream: Stream, out: list[bytes], limit: int) -> int | None:
        """Let `stream` have its turn; ``None`` = in rounds, no other can go on before it does."""
        self._completed = False
        frames = stream.frames
        sent = stream.fill(out, limit)
        self.frames_sent += stream.frames - frames
        idle = not sent
        if idle and self._rounds is not None and stream.queued and self._is_half_way(stream):
            return None
        if sent and stream.queued and not stream.behind:
            idle = True
            stream.rest()
        if not sent and self._cookies and stream.behind and isinstance(self.barriers, ByCycle):
            self.barriers.was_late(stream.vbucket.id, stream.reach_seqno)
        self._schedule.had_turn(stream, sent=sent > 0, complete=self._completed, idle=idle)
        return sent

    def _is_half_way(self, stream: Stream) -> bool:
        return self.readings.is_parked(stream) or stream.announced

    def _send_frames(self, out: list[bytes], sent: int, limit: int) -> int:
        frames = self._frames
        while sent < limit:
            if not frames:
                self._return_cookies()
                if not frames:
                    break
            _, frame = frames.popleft()
            out.append(frame)
            self.frames_sent += 1
            sent += len(frame)
        return sent

    def _end_round(self) -> bool:
        """Go on to the next round, if this one was one; says whether there may be more to send."""
        ended = self._rounds.finish() if self._rounds is not None else None
        if ended is None:
            self._tell_idle()
            return bool(self._frames)
        self.barriers.round_complete()
        if ended.visited:
            visited, skipped = len(ended.visited), len(self.streams.keys() - ended.visited)
            extras = ROUND_COMPLETE_EXTRAS.pack(ended.cycle & 0xFFFFFFFF, visited, skipped)
            frame = encode_request(Opcode.ROUND_COMPLETE, extras=extras, opaque=self._open_opaque)
            self._frames.append((None, frame))
        return True

    def _tell_idle(self) -> None:
        """Return all cookies if nothing is left to send."""
        if len(self.barriers) and not any(stream.behind for stream in self.streams.values()):
            self.barriers.idle()
            self._return_cookies()

    def acknowledged(self, size: int) -> None:
        """Learn that the peer has dealt with this many bytes."""
        self.unacked_bytes = max(0, self.unacked_bytes - size)
