"""How streams begin, and begin again: from where, by whose history, and what a rollback costs.

A vBucket starts where its `TapCursor` says that the client stands, or from scratch: the client
empties its copy (OPAQUE 1) and gets everything. When history has branched below what the client may
hold, its items above the branch are corrected where the ring of sent keys reaches, or the vBucket
starts from scratch.

Note: corrections are decided when a stream is **granted**, by the failover log that comes with it.
A rollback answer only moves the client's position back and requests the stream again. So there is
one way into corrections, and a client that vanishes in the middle of them needs no record of it:
the next grant shows the same branch.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Container
from functools import partial

from uprmc.errors import RemoteProtocolError
from uprmc.model import SEQNO_MAX, FailoverEntry, Item, SnapshotRange, VBucketState
from uprmc.protocol.opcodes import Opcode, Status, StreamFlag
from uprmc.protocol.tap import TapOpaque
from uprmc.protocol.upr import ROLLBACK_VALUE, StreamRequest
from uprmc.remote.history import read_log
from uprmc.tap_adapter.conversation import Phase, TapConversation, TapStream, take_back_end
from uprmc.tap_adapter.cursor import TapCursor
from uprmc.tap_adapter.translate import version_message
from uprmc.tap_adapter.upstream import UpstreamVBucket
from uprmc.tap_adapter.window import Mark, TapControl

# --- corrections ----------------------------------------------------------------------------------
# Corrections: what a client was sent of a history that is over is overwritten by what holds now.
#
# TAP cannot say "forget what is above seqno n". The client gets the current version of every key
# that it may hold from above the branch, as ordinary messages; then its stream goes on from the
# branch. The versions are read while the stream is not open, so the stream cannot send an older one
# later.
#
# Versions are fetched a few at a time, so their memory has a limit. The keys are noted in the ring
# again, with the seqnos of what was sent: the next branch may lie below those.


#: At most this many versions are fetched at a time.
FETCHED_AT_ONCE = 32


class Correction:
    """The corrections of one vBucket."""

    def __init__(
        self,
        conversation: TapConversation,
        stream: TapStream,
        point: int,
        keys: list[bytes],
        done: Callable[[TapStream, bool], None],
    ) -> None:
        """See the class.

        Args:
            conversation: the client's.
            stream: of the vBucket.
            point: the seqno above which history has branched.
            keys: whose versions are to be sent.
            done: called when all have left, or with ``False`` when they cannot be had.
        """
        self._conversation = conversation
        self._stream = stream
        self._point = point
        self._keys = deque(keys)
        self._versions: deque[Item] = deque()
        self._done: Callable[[TapStream, bool], None] | None = done

    @property
    def is_ready(self) -> bool:
        """Whether there are versions to be sent."""
        return bool(self._versions)

    def cancel(self) -> None:
        """Send nothing more, and do not call `done`."""
        self._done = None
        self._keys.clear()
        self._versions.clear()

    def ask(self) -> None:
        """Fetch the next few versions."""
        keys = [self._keys.popleft() for _ in range(min(FETCHED_AT_ONCE, len(self._keys)))]
        self._conversation.upstream.fetch(self._stream.number, keys, self._came)

    def _came(self, versions: list[Item] | None) -> None:
        if self._done is None:
            return
        if versions is None:
            done, self._done = self._done, None
            done(self._stream, False)
            return
        self._versions.extend(versions)
        self._note(versions)
        if not versions:
            self._go_on()
        self._conversation.wake()

    def _note(self, versions: list[Item]) -> None:
        stream = self._stream
        highest = max((version.seqno for version in versions), default=0)
        stream.corrected_seqno = max(stream.corrected_seqno, highest, self._point)
        stream.cursor.sent = max(stream.cursor.sent, stream.corrected_seqno)
        self._conversation.known.ring.add(
            stream.number,
            self._point,
            stream.corrected_seqno,
            [version.key for version in versions],
        )

    def put_one(self, out: list[bytes]) -> int:
        """Append one message, return its bytes; `is_ready` holds, and an item may leave."""
        conversation, stream = self._conversation, self._stream
        send_queue = conversation.send_queue
        size = send_queue.release(out, ask=False)
        version = self._versions.popleft()
        sequence = send_queue.window.sequence
        message = version_message(version, stream.number, sequence, conversation.form)
        last_head = len(out)
        out.append(message)
        kept_back = send_queue.placed(out, stream.number, 1, last_head, stream.mark, ask=False)
        if not self._versions:
            self._go_on()
        return size + len(message) - kept_back

    def _go_on(self) -> None:
        if self._keys:
            self.ask()
        elif self._done is not None:
            done, self._done = self._done, None
            done(self._stream, True)


# --- openings -------------------------------------------------------------------------------------


class Openings:
    """Begins the streams of one client."""

    def __init__(self, conversation: TapConversation, settle: Callable[[TapStream], None]) -> None:
        """See the class; `settle` learns of streams that were granted."""
        self._conversation = conversation
        self._settle = settle
        self._opaque = 0
        self._waiting: list[TapStream] = []
        self._flushes = conversation.upstream.flushes

    # --- the first time on a connection ---------------------------------------------------------

    def begin(self, number: int, standing: UpstreamVBucket) -> None:
        """Begin the stream of a vBucket, unless it is none for such a connection."""
        conversation = self._conversation
        of_active = conversation.dump or conversation.takeover
        if of_active and standing.state != VBucketState.ACTIVE:
            return
        if conversation.dump and not standing.high_seqno:
            return
        cursor = self._course_of(number, standing)
        stream = conversation.streams[number] = TapStream(number, cursor, standing.high_seqno)
        if not cursor.backfilled:
            self._empty(stream)
        if conversation.takeover:
            conversation.send_queue.post(
                TapControl(Opcode.TAP_VBUCKET_SET, number, VBucketState.PENDING)
            )
        self.open(stream)

    def _course_of(self, number: int, standing: UpstreamVBucket) -> TapCursor:
        """Return where the client stands; new, and not backfilled, if it is to start over."""
        conversation = self._conversation
        if conversation.dump:
            return TapCursor()
        cursors = conversation.known.cursors
        cursor = cursors.get(number)
        wanted = conversation.last_closed.get(number, 0)
        if cursor is None and not wanted and conversation.from_now:
            high = standing.high_seqno
            whole = SnapshotRange(high, high)
            cursor = TapCursor(standing.uuid, high, whole, high, backfilled=True)
            conversation.known.ring.forget(number)
        elif cursor is None or (wanted and not _return_to_checkpoint(cursor, wanted)):
            cursor = TapCursor()
        elif cursor.sent and not cursor.acked:
            # What the client holds may be deleted, and the deletion forgotten, so it cannot follow
            # from the first seqno.
            cursor = TapCursor()
        cursors[number] = cursor
        return cursor

    # --- opening --------------------------------------------------------------------------------

    def open(self, stream: TapStream) -> None:
        """Ask for the stream from its position; not before the answer to an earlier request."""
        conversation = self._conversation
        stream.phase = Phase.OPENING
        if stream.asked:
            stream.outdated = True
            return
        self._opaque += 1
        stream.opaque = self._opaque
        stream.asked = True
        position, start, end = stream.mark
        request = StreamRequest(
            int(StreamFlag.TAKEOVER) if conversation.takeover else 0,
            position,
            stream.standing_seqno if conversation.dump else SEQNO_MAX,
            stream.cursor.uuid if position else 0,
            start,
            end,
        )
        answered = partial(self._answered, stream)
        conversation.upstream.open(stream.number, stream.opaque, request, answered)

    def start_over(self, stream: TapStream) -> None:
        """Have the client empty the vBucket, and give it everything."""
        self.close(stream)
        self._withdraw(stream)
        self._empty(stream)
        stream.surveyed = stream.whole = False
        self.open(stream)

    def drop(self, stream: TapStream) -> None:
        """Forget the vBucket: the client does not want it any more."""
        conversation = self._conversation
        self.close(stream)
        stream.dropped = True
        self._withdraw(stream)
        del conversation.streams[stream.number]
        conversation.known.cursors.pop(stream.number, None)
        conversation.known.ring.forget(stream.number)

    def rewind(self, stream: TapStream) -> None:
        """Go back to what is acknowledged, and wait: see `resume`."""
        self.close(stream)
        self._wait(stream)
        take_back_end(self._conversation, stream)
        stream.return_to(Mark(stream.cursor.acked, *stream.cursor.snapshot))

    def _wait(self, stream: TapStream) -> None:
        stream.phase = Phase.WAITING
        self._waiting.append(stream)

    @property
    def waits(self) -> bool:
        """Whether there are streams to `resume`."""
        return bool(self._waiting)

    def resume(self) -> None:
        """Go on with the streams that wait."""
        waiting, self._waiting = self._waiting, []
        for stream in waiting:
            if stream.phase is not Phase.WAITING or stream.dropped:
                continue
            if not stream.position and stream.cursor.sent:
                self.start_over(stream)
            else:
                self.open(stream)

    def close(self, stream: TapStream) -> None:
        """End the UPR stream; what is pulled of it from now on counts for nothing."""
        conversation = self._conversation
        if conversation.by_opaque.pop(stream.opaque, None) is not None:
            conversation.upstream.close_stream(stream.number)
        conversation.moving.pop(stream.number, None)
        correction = conversation.corrections.pop(stream.number, None)
        if correction is not None:
            correction.cancel()

    def ended(self, stream: TapStream) -> None:
        """Ask again for a stream that has ended by itself; it must get on between two such ends."""
        conversation = self._conversation
        conversation.by_opaque.pop(stream.opaque, None)
        if self._flushed():
            return
        if stream.reopened:
            conversation.fail(f"vBucket {stream.number}: its stream ends again and again")
        else:
            stream.reopened = True
            self.open(stream)

    def _withdraw(self, stream: TapStream) -> None:
        send_queue = self._conversation.send_queue
        send_queue.window.forget(stream.number)
        send_queue.withdraw(stream.number)

    def _empty(self, stream: TapStream) -> None:
        self._forget(stream)
        stream.start_over()

    def _forget(self, stream: TapStream) -> None:
        conversation = self._conversation
        conversation.known.ring.forget(stream.number)
        stream.cursor = TapCursor()
        if not conversation.dump:
            conversation.known.cursors[stream.number] = stream.cursor

    # --- all is emptied at once -----------------------------------------------------------------

    def _flushed(self) -> bool:
        """See whether that has happened; if so have the client do the same, by one message.

        It empties all that the client has. So one that was promised only some of the vBuckets, and
        may have others from elsewhere, is asked to empty each by itself.
        """
        conversation = self._conversation
        before, self._flushes = self._flushes, conversation.upstream.flushes
        if self._flushes == before or conversation.dump or conversation.takeover:
            return False
        streams = conversation.streams
        if not (conversation.everything or conversation.upstream.covers(streams.keys())):
            return False
        for stream in streams.values():
            self.close(stream)
            self._withdraw(stream)
            self._forget(stream)
            stream.start_empty()
        emptied = partial(self._all_emptied, [stream.cursor for stream in streams.values()])
        conversation.send_queue.post(TapControl(Opcode.TAP_FLUSH, 0, 0, acked=emptied))
        for stream in list(streams.values()):
            self.open(stream)
        return True

    def _all_emptied(self, cursors: list[TapCursor]) -> None:
        """The client has nothing any more, which is what a backfill would have brought it."""
        for cursor in cursors:
            cursor.backfilled = True
        self._conversation.urgent = True

    # --- answers --------------------------------------------------------------------------------

    def _answered(self, stream: TapStream, status: int, value: bytes) -> None:
        conversation = self._conversation
        stream.asked = False
        if conversation.closed:
            return
        outdated, stream.outdated = stream.outdated, False
        if outdated or stream.dropped or stream.phase is not Phase.OPENING:
            if status == Status.SUCCESS:
                conversation.upstream.close_stream(stream.number)
            if outdated and not stream.dropped and stream.phase is Phase.OPENING:
                self.open(stream)
        else:
            try:
                self._take_answer(stream, status, value)
            except (RemoteProtocolError, struct.error) as error:
                conversation.fail(f"vBucket {stream.number}: {error}")
        self._conversation.wake()

    def _take_answer(self, stream: TapStream, status: int, value: bytes) -> None:
        conversation = self._conversation
        if status == Status.SUCCESS:
            self._granted(stream, value)
        elif status == Status.ROLLBACK and stream.position:
            self._sent_back(stream, ROLLBACK_VALUE.unpack(value)[0])
        elif status == Status.NOT_MY_VBUCKET and not stream.granted:
            del conversation.streams[stream.number]
            conversation.send_queue.withdraw(stream.number)
        elif status == Status.TEMPORARY_FAILURE:
            self._wait(stream)  # it is rolling back, or being filled
        else:
            conversation.fail(f"vBucket {stream.number}: status {status:#04x} of the UPR producer")

    def _granted(self, stream: TapStream, value: bytes) -> None:
        conversation = self._conversation
        log = read_log(value)
        stream.granted = True
        conversation.by_opaque[stream.opaque] = stream
        if stream.history != log[0].uuid:
            stream.history = log[0].uuid
            stream.reopened = False
        point = None if stream.corrected_log == value else _branch_point(stream, log)
        if point is not None and not self._correct(stream, point, value):
            return
        self._follow(stream, log[0].uuid)
        stream.phase = Phase.STREAMING
        if stream.from_scratch:
            stream.from_scratch = False
            emptied = partial(self._emptied, stream, stream.beginnings)
            command = TapOpaque.INITIAL_VBUCKET_STREAM
            conversation.send_queue.post(
                TapControl(Opcode.TAP_OPAQUE, stream.number, command, acked=emptied)
            )
        if not stream.surveyed:
            surveyed = partial(self._surveyed, stream, stream.opaque)
            conversation.upstream.survey([stream.number], surveyed)
        self._settle(stream)

    def _surveyed(
        self, stream: TapStream, opaque: int, standings: dict[int, UpstreamVBucket]
    ) -> None:
        """Learn how much comes after the client has emptied a vBucket: it may be nothing."""
        standing = standings.get(stream.number)
        if standing is None or stream.opaque != opaque or stream.surveyed:
            return
        stream.surveyed = True
        stream.standing_seqno = standing.high_seqno
        if not standing.high_seqno and not stream.announced:
            stream.whole = True
            self._settle(stream)
            self._conversation.wake()

    def _emptied(self, stream: TapStream, beginning: int) -> None:
        if beginning == stream.beginnings:
            stream.emptying = False
            self._settle(stream)

    def _follow(self, stream: TapStream, uuid: int) -> None:
        """Take up the newest history, at the latest when the client has all corrections."""
        if stream.corrected_serial is None:
            stream.cursor.uuid = uuid
        else:
            self._conversation.moving[stream.number] = uuid
            self.settle_moves()

    def settle_moves(self, sent_again: Container[int] = ()) -> None:
        """See whether the client has taken all corrections, but of what is to be sent again."""
        conversation = self._conversation
        for number, uuid in list(conversation.moving.items()):
            stream = conversation.streams[number]
            serial = stream.corrected_serial
            if number in sent_again or serial is None:
                continue
            if serial <= conversation.send_queue.window.acked:
                del conversation.moving[number]
                stream.corrected_serial = None
                stream.cursor.uuid = uuid
                stream.cursor.sent = max(stream.position, stream.corrected_seqno)

    # --- history has branched -------------------------------------------------------------------

    def _sent_back(self, stream: TapStream, seqno: int) -> None:
        """Carry out a rollback: the client's place moves, its items are mended at the grant."""
        if seqno >= stream.position:
            raise RemoteProtocolError(f"a rollback from {stream.position} to {seqno}")
        if self._flushed():
            return
        if self._keys_above(stream, seqno) is None:
            self.start_over(stream)
            return
        self._conversation.send_queue.window.forget(stream.number)
        stream.cursor.branched(seqno)
        stream.return_to(Mark(seqno, seqno, seqno))
        stream.rolled_back = seqno
        self.open(stream)

    def _keys_above(self, stream: TapStream, seqno: int) -> list[bytes] | None:
        conversation = self._conversation
        if not seqno or not conversation.keeps_keys:
            return None
        return conversation.known.ring.above(stream.number, seqno)

    def _correct(self, stream: TapStream, point: int, log: bytes) -> bool:
        """Mend what the client holds above `point`; says whether the stream may go on at once."""
        keys = self._keys_above(stream, point)
        if keys is None:
            self.start_over(stream)
            return False
        stream.corrected_log = log
        if not keys:
            stream.rolled_back = None
            return True
        self.close(stream)
        stream.phase = Phase.CORRECTING
        correction = Correction(self._conversation, stream, point, keys, self._corrected)
        self._conversation.corrections[stream.number] = correction
        correction.ask()
        return False

    def _corrected(self, stream: TapStream, complete: bool) -> None:
        """Learn that all corrections have left, or that they cannot be had."""
        if complete:
            self._conversation.corrections.pop(stream.number, None)
            stream.corrected_serial = self._conversation.send_queue.window.sent
            stream.rolled_back = None
            self.open(stream)
        else:
            self.start_over(stream)
        self._conversation.wake()


def _return_to_checkpoint(cursor: TapCursor, checkpoint_id: int) -> bool:
    """Go back to the end of a closed checkpoint; says whether it is known."""
    seqno = cursor.closed.get(checkpoint_id)
    if seqno is None or not cursor.backfilled:
        return False
    cursor.acked = seqno
    cursor.snapshot = SnapshotRange(seqno, seqno)
    cursor.open_checkpoint(checkpoint_id, seqno)
    cursor.closed = {
        number: end for number, end in cursor.closed.items() if number <= checkpoint_id
    }
    return True


def _branch_point(stream: TapStream, log: tuple[FailoverEntry, ...]) -> int | None:
    """Return above what the client's items may be of a history that is over, ``None`` = none are.

    It was granted the stream from its position, so what it holds up to there is shared.
    """
    cursor = stream.cursor
    points = [] if stream.rolled_back is None else [stream.rolled_back]
    if cursor.sent > stream.position:
        branches = [entry.uuid for entry in log]
        if cursor.uuid not in branches:
            return 0
        place = branches.index(cursor.uuid)
        if place and log[place - 1].seqno < cursor.sent:
            points.append(log[place - 1].seqno)
    return min(points, default=None)
