"""A connection that this node has dialled: it asks another node for streams and fills vBuckets.

A `LinkCall` dials. The `ReplicaLink` that comes of it is a session like those of clients, only that
it speaks first: HELLO, OPEN, and how it wants to be served, all in one piece. Once all of it is
answered its owner learns it, and asks it to `follow` vBuckets, to `leave` them, or to `take_over`
what the other node serves now. Once a second it asks how far the other node is, and in which terms.

Note: a link is stricter than a spliced `Consumer`. Whatever breaks the protocol (seqnos that fall,
a snapshot that is cut short, a vBucket that was not asked for) ends the connection with an `error`
that says what; nothing raises out of a session's doors. What was received before stays, and the
next link resumes there.

Rows D51, D52, P17. See `docs/extensions.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol

from uprmc.engine.failover_log import is_deposed, shares_history
from uprmc.engine.vbucket import Interruption, VBucket
from uprmc.engine.watermarks.rows import Kind, Row
from uprmc.errors import (
    CommandError,
    KeyNotFound,
    OutOfPlace,
    ProtocolError,
    RangeExceeded,
    RemoteProtocolError,
)
from uprmc.login.mechanisms import LoginRefused
from uprmc.model import FailoverLog, VBucketState
from uprmc.places import parsed
from uprmc.ports import Dial, Dialled, Session
from uprmc.protocol import control
from uprmc.protocol.header import (
    RequestFrame,
    ResponseFrame,
    encode_request,
    encode_response,
    unpack_request,
)
from uprmc.protocol.management import decode_vbucket_seqno_terms, decode_vbucket_seqnos
from uprmc.protocol.opcodes import (
    HEADER_BYTES,
    MAGIC_REQUEST,
    MAGIC_RESPONSE,
    EndReason,
    Opcode,
    Status,
    StreamFlag,
    shape_error,
    status_text,
)
from uprmc.protocol.replication import GET_VERSION_ORIGIN_EXTRAS, GET_VERSION_REPLY_EXTRAS
from uprmc.protocol.upr import SEQNO_ACKNOWLEDGED_EXTRAS, Marker, decode_term
from uprmc.protocol.upr_extensions import StreamOptions, encode_stream_options
from uprmc.protocol.watermarks import HWT_REPLICATE_EXTRAS, WatermarkRecord, decode_records
from uprmc.record import ABSENT, KIND_AT, LOST, unpack
from uprmc.remote import features
from uprmc.remote.cluster_map import map_of
from uprmc.remote.history import check_presentable
from uprmc.remote.login import Login, login_in_turns, nonce_of
from uprmc.remote.registering import Instance, Registering
from uprmc.remote.stream import StreamFault, judge
from uprmc.upr.hub import Hub
from uprmc.upr.intake import ReplicaState, ReplicaStream
from uprmc.upr.peer import Answer
from uprmc.upr.receiver import Receiver

_TAKEOVER = int(StreamFlag.TAKEOVER)

_AGENT = b"uprmc"

#: A source is to be heard this often within the time after which it is given up, and not more often
#: than old ones can be asked for.
_SIGNS_OF_LIFE = 2
_KEEP_ALIVE_MIN_S = 1.0

#: A source has a second to be asked in, so silence means nothing before this.
_LEAST_PATIENCE_S = 4.0

_SHOWN_BYTES = 16

#: Names of histories that one stream request carries at most.
_KNOWN_VERSIONS = 64

#: Streams that were left and may still send something, at least.
_LEFT_STREAMS = 1_024

#: How often the source is asked for its seqnos, and how often at most it hears what is on disk.
_ASK_EVERY_S = 1.0
_TELL_EVERY_S = 0.1

#: A replica that lacks more is far behind: its disk can wait until it is nearer.
_FAR_ITEMS = 30_000

#: Refusals that come again however often one asks: an operator has to look.
_LASTING = frozenset(
    {
        Status.INVALID_ARGUMENTS,
        Status.NOT_SUPPORTED,
        Status.UNKNOWN_COMMAND,
        Status.ACCESS_DENIED,
        Status.AUTH_ERROR,
    }
)


class ReplicaLinkOwner(Protocol):
    """Who has dialled, and wants to know what becomes of it. It may end the link in any call."""

    def opened(self) -> None:
        """Learn that the other node is ready to be asked."""

    def began(self, number: int) -> None:
        """Learn that a stream was granted."""

    def ended(self, number: int, why: str, retry: bool) -> None:
        """Learn that a stream was refused or has ended, and whether asking again may help."""

    def taken(self, number: int) -> None:
        """Learn that a vBucket was taken over: it is active here."""

    def closed(self, why: str) -> None:
        """Learn that the connection is gone, and all streams with it; comes once and last."""


class ReplicaLink(Receiver):
    """A connection that this node has dialled, with its streams: those asked for or granted.

    Implements `ports.Session`. Times are monotonic seconds.
    """

    successor: Session | None = None

    def __init__(
        self,
        hub: Hub,
        name: bytes,
        wake: Callable[[], None],
        owner: ReplicaLinkOwner | None,
        place: str = "",
    ) -> None:
        """Begin a conversation on a connection that is made.

        Args:
            hub: of the node.
            name: of the connection.
            wake: as for other sessions.
            owner: learns what becomes of it, if there is one.
            place: what was dialled; it matters to a login only.
        """
        super().__init__(hub, name, wake)
        self.owner = owner
        self.place = place
        self.error = ""  # why it is hung up
        self.open = False  # it may be asked for streams
        self.closing = self.input_full = False
        self.granted: set[bytes] = set()  # keys of CONTROL that the other node has accepted
        self.terms = False  # it knows terms
        #: Whether what is here came from another data directory than the source has now.
        self.is_another = False
        self._now = 0.0
        #: Our own rows at the source.
        self._rows = Registering(
            Instance(hub.instance, Kind.REPLICA, meta=hub.tag), hub.settings.watermarks_interval_s
        )
        self._look_at = 0.0
        self._reported: dict[int, tuple[int, FailoverLog]] = {}
        self._left: dict[int, int] = {}  # opaques of streams that were left, and their vBuckets
        self._active: set[int] = set()  # vBuckets that were handed over
        self._lost: set[tuple[int, int]] = set()  # histories that the source seems to have lost
        # Bytes that are no whole frame yet.
        self._chunks: list[bytes] = []
        self._held = 0
        self._wanted = HEADER_BYTES
        self._max_body_bytes = hub.bucket.settings.kv.max_frame_bytes - HEADER_BYTES
        # How far the source is.
        self.source_seqnos: dict[int, int] = {}  # by vBucket, as it said last
        self._asked_at = -_ASK_EVERY_S
        self._told_at = 0.0
        self._asks_seqnos = self._is_far = False
        self._asked_terms: dict[int, int] = {}  # higher than ours, whose history was asked for
        self._computing: Callable[[], None] | None = None  # the proof of a login, in turns
        if hub.credentials is None:
            self._greet()
        else:
            safe = bool(hub.settings.dial_ca) or parsed(place).is_local
            nonce = nonce_of(hub.bucket.entropy)
            self._log_in(login_in_turns(hub.credentials, nonce, safe=safe))

    # --- the handshake --------------------------------------------------------------------------

    def _log_in(self, steps: Login, reply: ResponseFrame | None = None) -> None:
        """Take an answer, or compute for a turn."""
        try:
            request = steps.send(reply)
        except StopIteration:
            self._greet()
        except LoginRefused as error:
            raise RemoteProtocolError(f"it {error}") from None
        else:
            go_on = partial(self._log_in, steps)
            if request is None:
                self._computing = go_on
                self._wake()
            else:
                self.ask(request.opcode, go_on, key=request.key, value=request.value)

    def _greet(self) -> None:
        settings = self.hub.settings
        wants = features.REGISTERED_REPLICA if self.hub.instance else features.REPLICA
        interval_s = max(_KEEP_ALIVE_MIN_S, settings.dial_timeout_s / _SIGNS_OF_LIFE)
        frames = [
            wants.hello(_AGENT),
            wants.open(self.name),
            *wants.controls(buffer_bytes=settings.consumer_buffer, interval_s=interval_s),
        ]
        self._unanswered = len(frames)
        for each in frames:
            answered = partial(self._greeted, each)
            self.ask(each.opcode, answered, extras=each.extras, key=each.key, value=each.value)

    def _greeted(self, asked: RequestFrame, reply: ResponseFrame) -> None:
        self._unanswered -= 1
        if features.REPLICA.is_fatal(asked, reply.status):
            what = f"{Opcode(asked.opcode).name.lower()} {asked.key.decode('latin-1')}"
            raise RemoteProtocolError(f"it refuses {what}: {reply.reason}")
        if asked.opcode == Opcode.HELLO:
            self.terms = features.tells_terms(reply.status, reply.value)
        elif asked.opcode == Opcode.UPR_CONTROL and not reply.status:
            self.granted.add(asked.key)
        if not self._unanswered:
            self.open = True
            self._rows.begin(self.granted)
            if self.owner is not None:
                self.owner.opened()

    # --- the session's doors --------------------------------------------------------------------

    def receive_data(self, data: bytes) -> None:
        """See `ports.Session`."""
        if self.closing:
            return
        self.silence.broken = True
        if self._held:
            self._chunks.append(data)
            self._held += len(data)
            if self._held < self._wanted:
                return
            data = b"".join(self._chunks)
            self._chunks, self._held = [], 0
        try:
            self._run(data)
        except (CommandError, ProtocolError) as error:
            self._fail(str(error))
        if self.window.held_back or self.input_full:
            self._settle_input()

    def data_to_send(self, budget: int) -> list[bytes]:
        """See `ports.Session`."""
        pieces: list[bytes] = []
        computing, self._computing = self._computing, None
        if computing is not None and not self.closing:
            try:
                computing()
            except ProtocolError as error:
                self._fail(str(error))
        if self._frames:
            self.fill(pieces, budget)
        return pieces

    def tick(self, now: float) -> None:
        """See `ports.Session`; the more often it is called, the fresher is what both sides know."""
        if self.closing or now < self._now:
            return
        if self.input_full:
            self.silence.heard(now)
        self._now = now
        patience_s = max(self.hub.settings.dial_timeout_s, _LEAST_PATIENCE_S)
        if self.silence.lasts(now, patience_s):
            self._fail(f"it has said nothing for {patience_s:g} s")
            return
        if done := self.window.tick(now):
            self._acknowledge(done)
        if self.window.held_back or self.input_full:
            self._settle_input()
        if self.open:
            self._ask_and_tell(now)
            if self._rows.granted:
                self._report(now)

    def buffered(self) -> tuple[int, int]:
        """See `ports.Session`; what waits to be sent is a few requests."""
        return self._held, 0

    @property
    def drained(self) -> bool:
        """See `ports.Session`."""
        return not self._frames and self._computing is None

    def connection_lost(self) -> None:
        """See `ports.Session`."""
        owner, self.owner = self.owner, None
        self.closing, self.open = True, False
        self._computing = None
        self._chunks, self._held = [], 0
        self.close()
        self._note_far(False)
        self._left.clear()
        if owner is not None:
            for number in self._active:
                owner.taken(number)
            owner.closed(self.error or "the connection was lost")

    def disconnect(self, why: str) -> None:
        """Hang up."""
        self.error = self.error or why
        self.closing, self.open = True, False
        self._wake()

    def _fail(self, error: str) -> None:
        """Hang up because of what the other node does."""
        self._frames.clear()
        self.disconnect(error)

    def _settle_input(self) -> None:
        """Stop reading from a node that sends on although nothing is acknowledged."""
        window = self.window
        limit = self.hub.settings.consumer_buffer + self._max_body_bytes
        full = window.held_back and window.unacked_bytes > limit
        if full is not self.input_full:
            self.input_full = full
            self._wake()

    # --- frames ---------------------------------------------------------------------------------

    def _run(self, data: bytes) -> None:
        position, size, wanted = 0, len(data), HEADER_BYTES
        while size - position >= HEADER_BYTES:
            used = self._one(data, position, size)
            if self.closing:
                return
            if used < 0:
                wanted = -used
                break
            position += used
        if position < size:
            self._chunks.append(data[position:] if position else data)
            self._held, self._wanted = size - position, wanted

    def _one(self, data: bytes, position: int, size: int) -> int:
        """Take the frame at `position`, and those behind it that are like it; return their bytes.

        A number below 0 says how many are needed first.
        """
        magic, opcode, key_length, extras_length, datatype, number, body_length, opaque, cas = (
            unpack_request(data, position)
        )
        if opcode == Opcode.UPR_MUTATION and magic == MAGIC_REQUEST:
            stream = self.stream_of(number, opaque)
            if stream is not None:
                taken = self.take_run(data, position, stream) - position
                if taken:
                    return taken
        if magic not in (MAGIC_REQUEST, MAGIC_RESPONSE):
            shown = data[position : position + _SHOWN_BYTES]
            raise RemoteProtocolError(
                f"it says {shown!r}: is that the port for UPR, and is TLS on at both ends or none?"
            )
        if extras_length + key_length > body_length or body_length > self._max_body_bytes:
            raise RemoteProtocolError(f"a frame {opcode:#04x} with a body of {body_length} bytes")
        start = position + HEADER_BYTES
        end: int = start + body_length
        if end > size:
            return position - end
        middle = start + extras_length
        key_end = middle + key_length
        extras, key, value = data[start:middle], data[middle:key_end], data[key_end:end]
        if magic == MAGIC_RESPONSE:
            self.answered(ResponseFrame(opcode, number, b"", extras, value, opaque, cas, datatype))
        else:
            refusal = shape_error(opcode, extras_length, key_length, body_length)
            if refusal is not None:
                raise RemoteProtocolError(
                    f"a frame {opcode:#04x}: {status_text(refusal.status)} ({body_length} bytes)"
                )
            handler = _HANDLERS.get(opcode)
            if handler is None:
                raise RemoteProtocolError(f"an unexpected frame {opcode:#04x}")
            request = RequestFrame(opcode, key, extras, value, number, opaque, cas, datatype)
            try:
                answer = handler(self, request)
            except KeyNotFound:
                self._take_stray(request)
            except (CommandError, OutOfPlace) as error:
                raise RemoteProtocolError(f"vBucket {number}: {error}") from None
            else:
                if answer is not None:
                    self.put(encode_response(opcode, opaque=opaque))
        return end - position

    def _take_stray(self, request: RequestFrame) -> None:
        """Drop a frame of a stream that was left."""
        if self._left.get(request.opaque) != request.vbucket:
            raise RemoteProtocolError(
                f"a frame {request.opcode:#04x} of vBucket {request.vbucket}, which has no stream"
            )
        if request.opcode == Opcode.UPR_STREAM_END:
            del self._left[request.opaque]

    def _check_value(self, request: RequestFrame) -> None:
        if len(request.value) > self._max_value_bytes:
            raise RangeExceeded(f"{request.key!r} is larger than kv.max_item_bytes allows here")

    def _check_marker(self, stream: ReplicaStream, marker: Marker) -> None:
        vbucket = stream.vbucket
        try:
            judge(vbucket.id, vbucket.high_seqno, stream.snapshot, marker, strict=True)
        except StreamFault as fault:
            raise RemoteProtocolError(str(fault)) from None

    def _watermarks(self, request: RequestFrame) -> None:
        """Take over the source's rows of its clients, between two snapshots."""
        stream = self._reading(request)
        if not stream.whole:
            raise RangeExceeded("watermarks in the middle of a snapshot")
        floors = control.FLOORS in self.granted
        vbucket = stream.vbucket
        purge_seqno, count = HWT_REPLICATE_EXTRAS.unpack(request.extras)
        uuid = vbucket.failover_log[0].uuid
        try:
            rows = [_row_of(each, uuid) for each in decode_records(request.value, floors=floors)]
        except ValueError as error:
            raise RemoteProtocolError(str(error)) from None
        rows = [row for row in rows if row.effective <= vbucket.whole_seqno]
        incomplete = len(rows) < count
        self.hub.bucket.limits.learn_table(vbucket, purge_seqno, rows, incomplete=incomplete)

    def _tell_version(self, request: RequestFrame, *, again: bool = True) -> None:
        """Answer what the source asks for because its own record of it is damaged."""
        number, key = request.vbucket, request.key
        stream = self.streams.get(number)
        record = None if stream is None else stream.vbucket.table.get(key)
        status, extras, value, cas, datatype = Status.KEY_NOT_FOUND, b"", b"", 0, 0
        if record is not None and record[KIND_AT] & ABSENT:
            if again and not record[KIND_AT] & LOST:
                fetched = partial(self._tell_fetched, request)
                self.hub.bucket.fetcher.want([(number, key)], fetched)
                return
            status = Status.TEMPORARY_FAILURE
        elif record is not None:
            item = unpack(record)
            status, value, cas, datatype = (
                Status.SUCCESS,
                item.value or b"",
                item.cas,
                item.datatype,
            )
            numbers = (item.seqno, item.rev, item.flags, item.expiry, item.life)
            extras = GET_VERSION_REPLY_EXTRAS.pack(*numbers)
            if item.origin is not None:
                extras = GET_VERSION_ORIGIN_EXTRAS.pack(*numbers, *item.origin)
        self.put(
            encode_response(
                request.opcode,
                status,
                extras=extras,
                value=value,
                opaque=request.opaque,
                cas=cas,
                datatype=datatype,
            )
        )

    def _tell_fetched(self, request: RequestFrame, _: bool) -> None:
        if not self.closing and self.owner is not None:
            self._tell_version(request, again=False)

    def _hand_over(self, request: RequestFrame) -> None:
        """Carry out SET_VBUCKET_STATE."""
        stream = self.stream_of(request.vbucket, request.opaque)
        if stream is not None:
            if not stream.flags & _TAKEOVER:
                raise RangeExceeded("a hand-over of this vBucket was not requested")
            if not stream.whole or stream.vbucket.receiving is not None:
                raise RangeExceeded("it was handed over in the middle of a snapshot")
        self._set_state(request)

    # --- what the owner asks for ----------------------------------------------------------------

    def follow(self, numbers: Iterable[int]) -> None:
        """Ask for streams of vBuckets that are here and not active."""
        self._begin(numbers, 0)

    def take_over(self, numbers: Iterable[int]) -> None:
        """Ask for vBuckets to be handed over; what is here of them is kept if it can be."""
        self._begin(numbers, _TAKEOVER)

    def leave(self, numbers: Iterable[int]) -> None:
        """End streams; the owner hears of them no more."""
        for number in list(numbers):
            stream = self.streams.pop(number, None)
            self._active.discard(number)
            if stream is not None:
                self._close_stream(stream)

    def _begin(self, numbers: Iterable[int], flags: int) -> None:
        """Ask for streams; where the vBuckets stand is reported before, all at once."""
        added = [self._added(number, flags) for number in list(numbers)]
        streams = [stream for stream in added if stream is not None]
        self._register(each.vbucket for each in streams if not self.waits_for_disk(each.vbucket))
        for stream in streams:
            super().request(stream)

    def _added(self, number: int, flags: int) -> ReplicaStream | None:
        """Return a new stream of a vBucket, ``None`` if there is one or it cannot be filled."""
        if number in self.streams:
            return None
        vbucket = self.hub.bucket.vbuckets.get(number)
        if not self.open:
            self._tell_ended(number, "the connection is not open", retry=True)
        elif vbucket is None:
            self._tell_ended(number, "there is no such vBucket here", retry=False)
        elif vbucket.state == VBucketState.ACTIVE:
            self._tell_ended(number, "it is active here", retry=False)
        else:
            opaque = self.questions.new_opaque()
            stream = ReplicaStream(vbucket, flags, opaque, 0, self._changed_by_others)
            self.streams[number] = stream
            return stream
        return None

    def request(self, stream: ReplicaStream) -> None:
        """Ask for a stream again; where the vBucket stands is reported before."""
        if stream.state is not ReplicaState.DEAD and not self.waits_for_disk(stream.vbucket):
            self._register([stream.vbucket])
        super().request(stream)

    def waits_for_disk(self, vbucket: VBucket) -> bool:
        """See `Receiver`: a stream from zero begins a build where we have a row."""
        return vbucket.former_on_disk if self.hub.instance else vbucket.rewinding

    def _close_stream(self, stream: ReplicaStream) -> None:
        """Have the other node stop; frames that are under way are dropped."""
        self.end(stream)
        number = stream.vbucket.id
        limit = max(_LEFT_STREAMS, 2 * len(self.hub.bucket.vbuckets))
        if len(self._left) >= limit:
            del self._left[next(iter(self._left))]
        self._left[stream.opaque] = number
        self.ask(Opcode.UPR_CLOSE_STREAM, _ignore, vbucket=number)

    # --- what becomes of streams ----------------------------------------------------------------

    def _stream_options(self, stream: ReplicaStream) -> bytes:
        vbucket = stream.vbucket
        versions = control.VERSIONS in self.granted and not stream.bare
        known = vbucket.failover_log[:_KNOWN_VERSIONS] if versions else ()
        # What was never filled has no history, so its term is of none that the other node can know.
        tells = self.terms and vbucket.high_seqno and not stream.stranger
        term = self.hub.bucket.highest_term(vbucket) if tells else 0
        return encode_stream_options(StreamOptions(known, term=term))

    def _stream_answered(self, stream: ReplicaStream, reply: ResponseFrame) -> None:
        versions = control.VERSIONS in self.granted and not stream.bare
        refused = reply.status == Status.INVALID_ARGUMENTS and versions
        if refused and stream.state is not ReplicaState.DEAD:
            stream.bare = True  # its upr.known_versions may be lower than what we name
            self.request(stream)
        elif reply.status == Status.NOT_MY_VBUCKET and self._may_be_stranger(stream):
            self._ask_for_history(stream, reply)
        else:
            super()._stream_answered(stream, reply)

    def _sent_to_zero(self, stream: ReplicaStream) -> None:
        """Start over, unless the source seems to have lost its data: then ours are the last copy.

        A source that was emptied on purpose is the same data directory as before; one that has
        forgotten its oldest branches is not meant either.
        """
        vbucket = stream.vbucket
        if vbucket.may_start_over or not self.is_another:
            self.start_over(stream)
            return

        def answered(reply: ResponseFrame) -> None:
            if stream.state is ReplicaState.DEAD:
                return
            if reply.status:
                self.refused(stream, reply.status, f"the source refuses: {reply.reason}")
                return
            theirs = self.read_log(reply.value)
            shared = shares_history(vbucket.failover_log, [entry.uuid for entry in theirs])
            if shared or theirs[-1].seqno:
                self.start_over(stream)
            else:
                self._refuse_to_lose(stream, theirs[0].uuid)

        self.ask(Opcode.UPR_GET_FAILOVER_LOG, answered, vbucket=vbucket.id)

    def _refuse_to_lose(self, stream: ReplicaStream, uuid: int) -> None:
        """Keep what is here, and ask again later: a replica that starts over looks the same."""
        number, high_seqno = stream.vbucket.id, stream.vbucket.high_seqno
        if (number, uuid) not in self._lost:
            self._lost.add((number, uuid))
            fields = {"vbucket": number, "source": self.place, "high_seqno": high_seqno}
            self.hub.bucket.on_event("source_lost_history", fields)
        why = (
            f"the source has nothing of the history of the {high_seqno} changes here, and may have "
            "lost its data: fail over to this node to keep them, or follow the source with "
            "--demote to give them up"
        )
        self.refused(stream, Status.ROLLBACK, why)

    def _may_be_stranger(self, stream: ReplicaStream) -> bool:
        """Tell whether our term may be of a history that the source does not have."""
        alive = stream.state is not ReplicaState.DEAD
        return alive and self.terms and stream.vbucket.high_seqno > 0 and not stream.stranger

    def _ask_for_history(self, stream: ReplicaStream, refusal: ResponseFrame) -> None:
        def answered(reply: ResponseFrame) -> None:
            if stream.state is ReplicaState.DEAD:
                return
            theirs = () if reply.status else self.read_log(reply.value)
            ours = stream.vbucket.failover_log
            if theirs and not shares_history(ours, [entry.uuid for entry in theirs]):
                stream.stranger = True
                self.request(stream)
            else:
                super(ReplicaLink, self)._stream_answered(stream, refusal)

        self.ask(Opcode.UPR_GET_FAILOVER_LOG, answered, vbucket=stream.vbucket.id)

    def _may_ask_for_versions(self) -> bool:
        # Who has none of our extensions may hang up on a command that he does not know, every time.
        return features.is_ours(self.granted)

    def read_log(self, value: bytes) -> FailoverLog:
        """Read a failover log strictly: we shall have to show it to others.

        Raises:
            RemoteProtocolError: torn, empty, or no log that a server made.
        """
        log = super().read_log(value)
        check_presentable(log)
        return log

    def began(self, stream: ReplicaStream) -> None:
        """Tell the owner."""
        if self.owner is not None:
            self.owner.began(stream.vbucket.id)

    def refused(self, stream: ReplicaStream, status: int, why: str) -> None:
        """Tell the owner."""
        self.end(stream)
        self._forget(stream)
        self._tell_ended(stream.vbucket.id, why, retry=status not in _LASTING)

    def _changed_by_others(self, stream: ReplicaStream, why: Interruption) -> None:
        number = stream.vbucket.id
        self._forget(stream)
        self._close_stream(stream)
        vbucket = self.hub.bucket.vbuckets.get(number)
        there = vbucket is stream.vbucket and vbucket.state != VBucketState.ACTIVE
        self._tell_ended(
            number, f"something else on this node changed it: {why.value}", retry=there
        )

    def _ended(self, stream: ReplicaStream, reason: int) -> None:
        number = stream.vbucket.id
        self._forget(stream)
        if number not in self._active:
            why = f"the source has ended the stream: {_reason_text(reason)}"
            self._tell_ended(number, why, retry=True)
            return
        self._active.discard(number)
        if self.owner is not None:
            self.owner.taken(number)

    def _turned(self, stream: ReplicaStream) -> None:
        if stream.vbucket.state == VBucketState.ACTIVE:
            self._active.add(stream.vbucket.id)

    def _forget(self, stream: ReplicaStream) -> None:
        if self.streams.get(stream.vbucket.id) is stream:
            del self.streams[stream.vbucket.id]

    def _tell_ended(self, number: int, why: str, *, retry: bool) -> None:
        if self.owner is not None:
            self.owner.ended(number, why, retry)

    # --- how far the source is ------------------------------------------------------------------

    @property
    def lag_items(self) -> int:
        """How many seqnos the source is ahead, as far as known."""
        seqnos = self.source_seqnos
        return sum(
            max(0, seqnos.get(number, 0) - stream.vbucket.high_seqno)
            for number, stream in self.streams.items()
        )

    def _ask_and_tell(self, now: float) -> None:
        """Ask the source for its seqnos, and tell it what is on disk, as they are due."""
        ask = now - self._asked_at >= _ASK_EVERY_S
        if ask or self._is_far:
            self._note_far(self.lag_items > _FAR_ITEMS)
        if ask and not self._asks_seqnos:
            self._asks_seqnos, self._asked_at = True, now
            self.ask(Opcode.GET_ALL_VB_SEQNOS, self._seqnos_came)
        if control.PERSISTED in self.granted and now - self._told_at >= _TELL_EVERY_S:
            self._told_at = now
            self._tell_persisted()

    def _note_far(self, far: bool) -> None:
        """Tell the flusher whether this link is far behind."""
        if far is not self._is_far:
            self._is_far = far
            self.hub.bucket.flusher.filling += 1 if far else -1

    def _seqnos_came(self, reply: ResponseFrame) -> None:
        self._asks_seqnos = False
        if reply.status:
            return
        if self.terms:
            rows = decode_vbucket_seqno_terms(reply.value)
            self.source_seqnos = {number: seqno for number, seqno, _ in rows}
            for number, _, term in rows:
                self._term_shown(number, term)
        else:
            self.source_seqnos = dict(decode_vbucket_seqnos(reply.value))
        self._note_far(self.lag_items > _FAR_ITEMS)

    def _term_shown(self, number: int, term: int) -> None:
        """Learn the source's term; one above that of a vBucket that is active here may depose it.

        It says that another node was promoted since, if the two were ever one: the failover log
        tells.
        """
        vbucket = self.hub.bucket.vbuckets.get(number)
        if vbucket is None or not is_deposed(vbucket.state, vbucket.term, term):
            return
        if self._asked_terms.get(number) != term:
            self._asked_terms[number] = term
            came = partial(self._log_of_later_term_came, number)
            self.ask(Opcode.UPR_GET_FAILOVER_LOG, came, vbucket=number)

    def _log_of_later_term_came(self, number: int, reply: ResponseFrame) -> None:
        bucket = self.hub.bucket
        vbucket = bucket.vbuckets.get(number)
        if vbucket is None or reply.status:
            return
        theirs = self.read_log(reply.value)
        if shares_history(vbucket.failover_log, [entry.uuid for entry in theirs]):
            bucket.learn_term(vbucket, decode_term(reply.extras))

    def _tell_persisted(self) -> None:
        """Tell the source of every stream up to where all of it is on our disk."""
        durable_seqno = self.hub.bucket.flusher.durable_seqno
        for number, stream in self.streams.items():
            vbucket = stream.vbucket
            if vbucket.persisted_seqno <= stream.told_seqno:
                continue  # so is what is durable, which is at most that
            seqno = durable_seqno(vbucket)
            if seqno > stream.told_seqno and stream.state is ReplicaState.READING:
                stream.told_seqno = seqno
                self.put(
                    encode_request(
                        Opcode.UPR_SEQNO_ACKNOWLEDGED,
                        extras=SEQNO_ACKNOWLEDGED_EXTRAS.pack(seqno),
                        vbucket=number,
                        opaque=stream.opaque,
                    )
                )

    # --- our rows at the source -----------------------------------------------------------------
    # A link names a row of its own for each vBucket, before it asks for the stream, and the source
    # keeps the deletions that the replica lacks while it is away. What is reported is up to where
    # there are complete snapshots on disk.

    def _register(self, vbuckets: Iterable[VBucket]) -> None:
        """Name the rows of vBuckets; the requests for their streams follow."""
        whole_seqno = self.hub.bucket.flusher.whole_seqno
        places = {}
        for vbucket in vbuckets:
            whole = whole_seqno(vbucket) or 0
            places[vbucket.id] = (whole, vbucket.failover_log[0].uuid if whole else 0)
            self._reported.pop(vbucket.id, None)
        self._send_reports(self._rows.register_all(places))

    def _report(self, now: float) -> None:
        """Report what is due."""
        if now >= self._look_at:
            self._look_at = now + self.hub.settings.watermarks_interval_s
            reading, seen = ReplicaState.READING, self._reported
            for number, stream in self.streams.items():
                vbucket = stream.vbucket
                place = (vbucket.persisted_seqno, vbucket.failover_log)
                if seen.get(number) == place:
                    continue  # nothing was lacking, so no more can have come to the disk
                whole = self.hub.bucket.flusher.whole_seqno(vbucket)
                if whole and stream.state is reading:
                    self._rows.reached(number, whole, vbucket.failover_log[0].uuid)
                    if whole == place[0]:
                        seen[number] = place
        if reports := self._rows.due(now):
            self._send_reports(reports)

    def _send_reports(self, reports: Iterable[RequestFrame]) -> None:
        for each in reports:
            self.ask(
                each.opcode,
                partial(self._reports_answered, each),
                vbucket=each.vbucket,
                extras=each.extras,
                key=each.key,
                value=each.value,
            )

    def _reports_answered(self, asked: RequestFrame, reply: ResponseFrame) -> None:
        if not self._rows.answered(asked, reply):  # there is more to come
            again = partial(self._reports_answered, asked)
            self.questions.expect(reply.opcode, again, reply.opaque)


def _ignore(reply: ResponseFrame) -> None:
    """Take an answer that changes nothing."""


def _row_of(record: WatermarkRecord, uuid: int) -> Row:
    name, kind, watermark, reported_at, lifetime_s, meta, floor = record
    return Row(name, Kind(kind), watermark, uuid, floor or None, reported_at, lifetime_s, meta)


def _reason_text(number: int) -> str:
    try:
        return EndReason(number).name.lower().replace("_", " ")
    except ValueError:
        return f"reason {number}"


_HANDLERS: dict[int, Callable[[ReplicaLink, RequestFrame], Answer | None]] = {
    Opcode.UPR_STREAM_END: ReplicaLink._stream_end,
    Opcode.UPR_SNAPSHOT_MARKER: ReplicaLink._marker,
    Opcode.UPR_MUTATION: ReplicaLink._mutation,
    Opcode.UPR_DELETION: ReplicaLink._deletion,
    Opcode.UPR_EXPIRATION: ReplicaLink._deletion,
    Opcode.VBUCKET_FACTS: ReplicaLink._facts,
    Opcode.UPR_SET_VBUCKET_STATE: ReplicaLink._hand_over,
    Opcode.HWT_REPLICATE: ReplicaLink._watermarks,
    Opcode.UPR_NOOP: ReplicaLink._noop,
    Opcode.GET_VERSION: ReplicaLink._tell_version,
}


# --- dialling ------------------------------------------------------------------------------------


class LinkCall:
    """One call to another node: dialling it, and the link that comes of it.

    Rules do not dial. They are handed a `Dial` that does, and get the connection's session to make.
    The owner learns what happens until it is over or hung up; after that nothing, whatever still
    comes from the link or the dialler.
    """

    __slots__ = ("_dial", "_dialled", "_hub", "_name", "_owner", "_place", "link")

    def __init__(
        self, hub: Hub, dial: Dial, place: str, name: bytes, owner: ReplicaLinkOwner
    ) -> None:
        """Prepare a call to `place`; the other node ends an older connection of that `name`."""
        self.link: ReplicaLink | None = None  # before it is connected
        self._hub = hub
        self._dial = dial
        self._place = place
        self._name = name
        self._owner: ReplicaLinkOwner | None = owner
        self._dialled: Dialled | None = None

    def start(self) -> None:
        """Dial. The owner may learn of a failure before this returns."""
        dialled = self._dial(self._place, self._make_session, self._end)
        if self._owner is not None:
            self._dialled = dialled

    def hang_up(self) -> None:
        """End it without telling the owner; harmless when it is over."""
        dialled, self._dialled = self._dialled, None
        if self._disown() is not None and dialled is not None:
            dialled.abandon()

    def give_up(self) -> None:
        """End it because it takes too long, and tell the owner so."""
        dialled, limit = self._dialled, self._hub.settings.dial_timeout_s
        advice = "is it a node's upr listener, with TLS on at both ends or none?"
        self._end(f"no answer for {limit:g} s: {advice}")
        if dialled is not None:
            dialled.abandon()

    def _make_session(self, wake: Callable[[], None]) -> Session:
        self.link = ReplicaLink(self._hub, self._name, wake, self._owner, self._place)
        return self.link

    def _end(self, why: str) -> None:
        """Learn that it came to nothing, or why it is over; the first reason counts."""
        owner = self._disown()
        if owner is not None:
            owner.closed(why)

    def _disown(self) -> ReplicaLinkOwner | None:
        owner, self._owner = self._owner, None
        if self.link is not None:
            owner, self.link.owner = self.link.owner, None
        return owner


def other_count(answer: ResponseFrame, hub: Hub) -> str:
    """Say so if a source has another number of vBuckets: its keys would be elsewhere here.

    The `answer` is to GET_CLUSTER_CONFIG; one that tells no number passes.
    """
    found, own = map_of(answer), hub.bucket.settings.engine.vbuckets
    if found is None or found.vbuckets == own:
        return ""
    return f"it has {found.vbuckets} vBuckets and this node {own}"
