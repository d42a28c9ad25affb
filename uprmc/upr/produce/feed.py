"""What a connection sends by itself: its streams in turn, within the peer's buffer.

Streams are pulled: nothing is produced that the transport, the pull's budget and flow control do
not take. What is queued here is small and bounded by the number of streams and cookies: stream
ends, barrier cookies.

Source: UPR reference 4.3, 4.6; rows D27 to D31, D39.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from uprmc.engine.reading import Reading
from uprmc.errors import TemporaryFailure
from uprmc.protocol.header import encode_request
from uprmc.protocol.opcodes import EndReason, Opcode
from uprmc.protocol.upr import STREAM_END_EXTRAS
from uprmc.protocol.upr_extensions import (
    BARRIER_REACHED_EXTRAS,
    PARTITION_START_EXTRAS,
    ROUND_COMPLETE_EXTRAS,
    SNAPSHOT_END_EXTRAS,
)
from uprmc.upr.hub import Hub
from uprmc.upr.produce.barrier import ByCycle, ByVector
from uprmc.upr.produce.news import Sent, send_news
from uprmc.upr.produce.options import Options
from uprmc.upr.produce.readings import Readings
from uprmc.upr.produce.schedule import RoundRobin, Rounds, Schedule
from uprmc.upr.produce.stream import Stream

#: What one stream may send before others have their turn.
_PORTION_BYTES = 16 * 1024

#: What follows snapshots may come to this many bytes in one call of `fill`, which takes two
#: milliseconds; to look whether there is anything counts as `_LOOK_BYTES`.
_FOLLOW_UP_BYTES = 16 * 1024
_LOOK_BYTES = 512

#: Stands for "no flow control".
_NO_LIMIT = 1 << 62

#: At most this many frames wait for a peer that asks for ever more of them and takes none.
_WAITING_FRAMES = 4_096

#: At most this many ended streams are remembered; the oldest are forgotten first.
_ENDED_STREAMS = 1_024

#: Reasons that consumers of 2014 know.
_OLD_REASONS = frozenset({EndReason.OK, EndReason.CLOSED, EndReason.STATE_CHANGED})


class Feed:
    """The sending half of one connection; implements `host.Host`.

    Attributes:
        streams: by vBucket.
        ended_streams: the last one of each vBucket that has none now, for statistics; oldest first.
        unacked_bytes: sent and not acknowledged, while flow control is on.
        items_sent: of streams that have ended.
        bytes_sent: of all frames.
        last_sent_at: Unix time.
        readings: those that its streams have open.
        frames_sent: of all kinds.
        barriers: cookies that wait.
        after_snapshot: returns what to send after a snapshot of a stream, ``None`` = nothing.
        modern: whether the peer knows the newer reasons for a stream's end.
        open_opaque: opaque of the OPEN, for frames that belong to no stream.
    """

    def __init__(self, hub: Hub, options: Options, wake: Callable[[], None]) -> None:
        self.streams: dict[int, Stream] = {}
        self.ended_streams: dict[int, Stream] = {}
        self.unacked_bytes = 0
        self.items_sent = 0
        self.bytes_sent = 0
        self.frames_sent = 0
        self.last_sent_at = 0.0
        self.barriers: ByVector | ByCycle = ByVector(hub.settings.barriers)
        self.modern = False
        self.open_opaque = 0
        self._hub = hub
        self._options = options
        self._wake = wake
        self._turns = RoundRobin()
        self._schedule: Schedule = self._turns
        self._rounds: Rounds | None = None
        self._frames: deque[tuple[Stream | None, bytes]] = deque()
        self.readings = Readings(hub, options, self.ready)
        self._to_look_after: dict[int, None] = {}
        self._followed_up = 0
        self._cookies_since: deque[float] = deque()
        self._completed = False
        self._cookies = 0
        self.after_snapshot: Callable[[Stream], bytes | None] | None = None

    # --- streams --------------------------------------------------------------------------------

    def use_rounds(self, wanted: bool) -> None:
        """Serve in rounds from now on, or no more; only while there is no stream."""
        assert not self.streams
        self._return_cookies()
        self._cookies_since.clear()
        limit = self._hub.settings.barriers
        self._rounds = Rounds() if wanted else None
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

    # --- the host of streams --------------------------------------------------------------------

    def ready(self, stream: Stream) -> None:
        """See `host.Host`."""
        self._schedule.ready(stream)
        self._wake()

    def open_reading(self, stream: Stream) -> Reading | None:
        """See `host.Host`."""
        return self.readings.open(stream)

    def close_reading(self, stream: Stream, reading: Reading) -> None:
        """See `host.Host`."""
        self.readings.close(stream, reading)

    def may_read_on(self, stream: Stream) -> bool:
        """See `host.Host`."""
        preread = self._hub.preread
        return preread is None or preread.may_read_on(stream)

    def snapshot_begins(self, stream: Stream, end_seqno: int, out: list[bytes]) -> int:
        """See `host.Host`."""
        if self._rounds is None:
            return 0
        self.barriers.begun(stream.vbucket.id)
        extras = PARTITION_START_EXTRAS.pack(stream.last_seqno, end_seqno, self._rounds.cycle)
        return self._put(out, self._frame(Opcode.PARTITION_START, extras, stream))

    def snapshot_complete(self, stream: Stream, items: int, out: list[bytes]) -> int:
        """See `host.Host`."""
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
        return 0

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
        frame = None if self.after_snapshot is None else self.after_snapshot(stream)
        if frame is not None:
            self._followed_up += _LOOK_BYTES + len(frame)
            self._frames.append((stream, frame))

    def ended(self, stream: Stream, reason: EndReason) -> None:
        """See `host.Host`."""
        self._forget(stream)
        if not self.modern and reason not in _OLD_REASONS:
            reason = EndReason.STATE_CHANGED
        extras = STREAM_END_EXTRAS.pack(reason)
        self._frames.append((None, self._frame(Opcode.UPR_STREAM_END, extras, stream)))
        self._wake()

    def tell_closed(self, stream: Stream) -> None:
        """Tell the peer that a stream ended because it has asked for that."""
        extras = STREAM_END_EXTRAS.pack(EndReason.CLOSED)
        self._frames.append((None, self._frame(Opcode.UPR_STREAM_END, extras, stream)))

    def _frame(self, opcode: int, extras: bytes, stream: Stream) -> bytes:
        return encode_request(
            opcode, extras=extras, vbucket=stream.vbucket.id, opaque=stream.opaque
        )

    def _put(self, out: list[bytes], frame: bytes) -> int:
        out.append(frame)
        self.frames_sent += 1
        return len(frame)

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
        limit = min(budget, self._window())
        self._followed_up = 0
        sent = self._send_frames(out, 0, limit)
        if self._to_look_after and sent < limit:
            self._look_after_some()
            sent = self._send_frames(out, sent, limit)
        pausing = limit < budget
        while sent < limit:
            if self._is_plain:
                news = self._send_news(out, limit - sent, pausing=pausing)
                sent += news.size
                if news.full:
                    break
            stream = self._schedule.next()
            if stream is not None:
                turn = self._serve(stream, out, min(_PORTION_BYTES, limit - sent))
                if turn is None:
                    break
                sent += turn
            elif not self._end_round():
                break
            if self._cookies or self._frames:
                sent = self._send_frames(out, sent, limit)
        if sent:
            self.bytes_sent += sent
            self.last_sent_at = self._hub.bucket.clock.now()
        if self._options.buffer_bytes:
            self.unacked_bytes += sent
        return sent

    @property
    def _is_plain(self) -> bool:
        """Whether neither barriers, rounds nor the peer need to know where each snapshot ends."""
        return not (self._cookies or self._rounds or self._options.snapshot_ends)

    def _send_news(self, out: list[bytes], limit: int, *, pausing: bool) -> Sent:
        shared = self._options.snapshots
        turns = self._turns.turns
        sent = send_news(turns, out, limit, shared=shared, pausing=pausing)
        self.frames_sent += sent.frames
        return sent

    def _window(self) -> int:
        size = self._options.buffer_bytes
        return size - self.unacked_bytes if size else _NO_LIMIT

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
            frame = encode_request(Opcode.ROUND_COMPLETE, extras=extras, opaque=self.open_opaque)
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
