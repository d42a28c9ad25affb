"""The producer's side of a connection: the commands of its peer, and how its streams begin.

The session hands every UPR frame to `handle` or `answered`, passes the time on by `tick`, and pulls
what is to be sent by `fill`. Replies are the session's affair.

Rows D24 to D40.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from uprmc.engine.flusher import Waiter
from uprmc.engine.vbucket import VBucket
from uprmc.errors import (
    InvalidArguments,
    NotMyVBucket,
    OutOfPlace,
    RollbackRequired,
    StreamNotFound,
    TemporaryFailure,
    UnknownCommand,
)
from uprmc.model import FailoverLog, Item, VBucketState
from uprmc.protocol.header import RequestFrame, ResponseFrame, encode_request
from uprmc.protocol.opcodes import EndReason, Opcode, OpenFlag, Status, StreamFlag
from uprmc.protocol.upr import (
    BUFFER_ACK_EXTRAS,
    FIRST_STREAM_REQUEST_EXTRAS,
    SEQNO_ACKNOWLEDGED_EXTRAS,
    TERM_EXTRAS,
    StreamRequest,
    decode_stream_request,
    encode_failover_log,
)
from uprmc.protocol.upr_extensions import (
    BARRIER_ADD_REPLY_EXTRAS,
    StreamOptions,
    decode_stream_options,
)
from uprmc.protocol.upr_many import StreamStart, decode_stream_requests
from uprmc.protocol.watermarks_many import OneReport, ReportsHead, decode_reports
from uprmc.remote.undo import question, version
from uprmc.upr.admission import (
    admit,
    admit_notifier,
    admit_to_lease,
    check_term,
    locate,
)
from uprmc.upr.feed import Feed
from uprmc.upr.frames import Form
from uprmc.upr.hub import Hub
from uprmc.upr.options import UprOptions, form_of, set_option
from uprmc.upr.peer import Answer, Due, KeepAlive, Negotiated
from uprmc.upr.registration import ConnectedRows, Registration
from uprmc.upr.stream import LeaseStream, NotifierStream, Stream
from uprmc.upr.takeover import TakeoverStream

_PRODUCER = int(OpenFlag.PRODUCER)
_TAKEOVER = int(StreamFlag.TAKEOVER)

#: Most versions that a replica is asked for at a time, and where the opaques of these questions
#: begin: those of its own requests are far below.
_ASKED_MAX = 64
_FIRST_OPAQUE = 0xF0000000


class Producer:
    """The commands of one peer, and its streams."""

    def __init__(
        self,
        hub: Hub,
        opening: RequestFrame,
        flags: int,
        negotiated: Negotiated,
        wake: Callable[[], None],
        hang_up: Callable[[str], None],
    ) -> None:
        """Open a producer; an older one of the same name is disconnected.

        Args:
            hub: the node's.
            opening: the OPEN.
            flags: its flags.
            negotiated: what HELLO has granted.
            wake: called when something is to be sent by itself.
            hang_up: called with the reason when the connection is to be closed.
        """
        self.name = opening.key
        self.flags = flags
        self.negotiated = negotiated
        self.options = UprOptions(terms=negotiated.terms, origins=negotiated.origins)
        #: The rows that it speaks for.
        self.registration = Registration(
            hub.bucket, self._send, self.options, hub.settings.watermarks_interval_s
        )
        self.feed = Feed(
            hub,
            self.options,
            opening,
            wake,
            modern=negotiated.greeted,
            after_snapshot=self.registration.tables.frame,
        )
        self.acked_bytes = 0  # in all
        self.keepalive = KeepAlive(hub.settings.noop_interval_s)
        self.created_at = hub.bucket.clock.now()  # Unix time
        self._connected: ConnectedRows | None = None
        if hub.settings.register == "connected":
            self._connected = ConnectedRows(self.registration, self.feed, self.name)
        self._hub = hub
        self._wake = wake
        self._hang_up = hang_up
        self._asked: dict[int, tuple[bytes, Callable[[Item | None], None]]] = {}
        self._late: list[bytes] = []  # late answers and questions, to be sent first
        self._is_gone = False
        hub.join_producer(self)

    @property
    def is_notifier(self) -> bool:
        """Whether its streams only tell that there is news."""
        return not self.flags & _PRODUCER

    @property
    def drained(self) -> bool:
        """Whether the last `fill` has left nothing; `wake` is called before there is more."""
        return self.feed.drained

    def disconnect(self, why: str) -> None:
        """See `Peer`."""
        self._hang_up(why)
        self.close()

    def close(self) -> None:
        """See `Peer`."""
        if self._is_gone:
            return
        self._is_gone = True
        self._hang_up, self._wake = _drop, _ignore  # the session knows us
        self._asked.clear()
        self._late.clear()
        if self._connected is not None:
            self._connected.close()
        self.registration.close()
        self.feed.close()
        self._hub.leave_producer(self, self.feed.items_sent, self.feed.bytes_sent)

    def release_views(self) -> None:
        """See `Peer`."""
        self.feed.readings.release_all()

    def fills(self, number: int) -> bool:
        """See `Peer`: a producer only reads."""
        return False

    def tick(self, now: float, sent_bytes: int) -> Due:
        """Pass the time on; returns whether a keep-alive is due."""
        self.feed.readings.tick(now)
        if self._connected is not None:
            self._connected.tick(now, self.acked_bytes)
        for number in self.registration.tables.due(now, self.feed.streams):
            self.feed.look_after(number)
        return self.keepalive.tick(now, sent_bytes)

    def fill(self, out: list[bytes], budget: int) -> int:
        """Append late answers and what streams send; return how many bytes."""
        sent = 0
        if self._late:
            sent = sum(map(len, self._late))
            out += self._late
            self._late.clear()
        return sent + self.feed.fill(out, budget)

    def _send(self, frame: bytes) -> None:
        """Send a frame that belongs to no stream."""
        self._late.append(frame)
        self._wake()

    def ask_version(self, number: int, key: bytes, done: Callable[[Item | None], None]) -> bool:
        """See `Peer`: a replica that has a stream of the vBucket."""
        can = self.options.heals and number in self.feed.streams and not self._is_gone
        if not can or len(self._asked) >= _ASKED_MAX:
            return False
        opaque = next(each for each in range(_FIRST_OPAQUE, 2**32) if each not in self._asked)
        self._asked[opaque] = key, done
        asked = question(number, key)
        self._send(
            encode_request(
                asked.opcode, key=key, extras=asked.extras, vbucket=number, opaque=opaque
            )
        )
        return True

    def expects(self, opaque: int) -> bool:
        """Tell whether the peer was asked for a version with this opaque."""
        return opaque in self._asked

    # --- commands -------------------------------------------------------------------------------

    def handle(self, request: RequestFrame) -> Answer | None:
        """Carry out a command; returns the answer, ``None`` if it has none.

        Raises:
            OutOfPlace: no producer gets such a frame; hang up.
            CommandError, RemoteProtocolError: refused; the connection goes on.
        """
        handler = _HANDLERS.get(request.opcode)
        if handler is None:
            raise OutOfPlace(f"opcode {request.opcode:#04x} on a producer's connection")
        return handler(self, request)

    def answered(self, reply: ResponseFrame) -> None:
        """Take a response of the peer to a frame of ours; strange ones are ignored."""
        opcode, opaque, status = reply.opcode, reply.opaque, reply.status
        if opcode == Opcode.UPR_NOOP:
            self.keepalive.answered()
            return
        if opcode == Opcode.GET_VERSION:
            key, done = self._asked.pop(opaque, (b"", _drop))
            done(version(key, reply).item if status == Status.SUCCESS else None)
            return
        for stream in self.feed.streams.values():
            if stream.opaque == opaque and isinstance(stream, TakeoverStream):
                if opcode == Opcode.UPR_SNAPSHOT_MARKER:
                    stream.marker_answered()
                elif opcode == Opcode.UPR_SET_VBUCKET_STATE:
                    stream.state_answered(status == Status.SUCCESS)
                return

    # --- streams begin --------------------------------------------------------------------------

    def _stream_request(self, request: RequestFrame) -> Answer:
        asked = decode_stream_request(request.extras)
        first = len(request.extras) == FIRST_STREAM_REQUEST_EXTRAS.size
        start = StreamStart(request.vbucket, request.opaque, asked, self._options_of(request))
        return self.start(start, first_generation=first)

    def _options_of(self, request: RequestFrame) -> StreamOptions:
        """Read what the value of a stream request says."""
        options = self.options
        if not request.value:
            return StreamOptions()
        if not (options.versions or options.leases or options.terms):
            if self.negotiated.greeted:
                raise InvalidArguments("a stream request has a value that was not negotiated")
            return StreamOptions()
        return decode_stream_options(request.value)

    def starts(self, request: RequestFrame) -> list[StreamStart]:
        """Return the streams that STREAM_REQUESTS asks for, each of which is to be started.

        Raises:
            CommandError, RemoteProtocolError: refused as a whole.
        """
        if not self.options.stream_requests:
            raise UnknownCommand("requests for several streams were not negotiated")
        return decode_stream_requests(request.extras, request.value)

    def start(self, start: StreamStart, *, first_generation: bool = False) -> Answer:
        """Begin a stream; what the session answers precedes its frames.

        Args:
            start: what is asked for.
            first_generation: whether it was asked for as until April 2014.

        Raises:
            CommandError, RemoteProtocolError: refused.
        """
        options = start.options
        self._check_negotiated(options)
        stream: Stream
        if options.lease:
            stream, log = self._leased_stream(start)
        else:
            bucket = self._hub.bucket
            check_term(bucket, start)
            vbucket = locate(bucket, start.vbucket, start.request.flags)
            stream = self._new_stream(vbucket, start, first_generation)
            log = vbucket.failover_log
        self.feed.add(stream)
        shown = log if options.whole_log else log[:1]
        return _log_answer(stream.vbucket, shown, with_term=self.options.terms)

    def _check_negotiated(self, options: StreamOptions) -> None:
        if options.lease and not self.options.leases:
            raise InvalidArguments("leases were not negotiated")
        if options.known_versions and not self.options.versions:
            raise InvalidArguments("known versions were not negotiated")
        if options.term and not self.options.terms:
            raise InvalidArguments("terms were not negotiated")

    def _leased_stream(self, start: StreamStart) -> tuple[LeaseStream, FailoverLog]:
        """Read from a lease: it holds the data, so what the vBucket is now does not matter."""
        number = start.vbucket
        lease = self._hub.leases.find(start.options.lease)
        vbucket = lease.vbuckets.get(number)
        floor = 0 if vbucket is None else self.registration.floor(vbucket)
        admitted = admit_to_lease(
            lease, start, self._hub.settings, repeated=number in self.feed.streams, floor=floor
        )
        stream = LeaseStream(self.feed, number, start.opaque, admitted, self._form(), lease)
        end_seqno = lease.holdings[number].high_seqno
        self._follow(stream, admitted, end_seqno, floor, reader=lease.reader)
        return stream, lease.holdings[number].failover_log

    def _new_stream(self, vbucket: VBucket, start: StreamStart, first_generation: bool) -> Stream:
        hub, feed, opaque, form = self._hub, self.feed, start.opaque, self._form()
        repeated = vbucket.id in feed.streams
        if self.is_notifier:
            noted = admit_notifier(vbucket, start, hub.settings, repeated=repeated)
            return NotifierStream(feed, vbucket, opaque, noted, form)
        if self._connected is not None and self.options.buffer_bytes:
            self._connected.begin(vbucket.id, start.request)
        floor = self.registration.floor(vbucket)
        try:
            admitted = admit(
                vbucket,
                start,
                repeated=repeated,
                persisted_seqno=hub.bucket.flusher.durable_seqno(vbucket),
                settings=hub.settings,
                floor=floor,
            )
        except RollbackRequired:
            self.registration.refused(vbucket, start.request.start_seqno)
            raise
        if admitted.flags & _TAKEOVER:
            if hub.bucket.flusher.paused:
                raise TemporaryFailure("persistence is stopped: nothing is given away")
            return TakeoverStream(feed, vbucket, opaque, admitted, form, self._die)
        stream = Stream(feed, vbucket, opaque, admitted, form, first_generation=first_generation)
        self._follow(stream, admitted, vbucket.high_seqno, floor)
        return stream

    def _form(self) -> Form:
        """Return how the peer wants its items."""
        return form_of(self.flags, self.negotiated.datatypes, self.options)

    def _follow(
        self,
        stream: Stream,
        request: StreamRequest,
        end_seqno: int,
        floor: int,
        *,
        reader: bytes = b"",
    ) -> None:
        """Let a stream and the row that speaks for it, if there is one, know of each other.

        A reader of a lease reports on another connection; `reader` is its id.
        """
        registration, vbucket = self.registration, stream.vbucket
        if registration.merges:
            stream.merge(floor if request.start_seqno else vbucket.purge_seqno)
        if not registration.accepted(vbucket, request, end_seqno):
            if not self._hub.bucket.watermarks.is_registered(vbucket, reader):
                self._hub.serve_unregistered(self)
        elif not registration.merges:
            stream.continue_build(floor, partial(registration.building, vbucket))

    def _die(self, vbucket: VBucket, on_disk: Waiter) -> None:
        bucket = self._hub.bucket
        bucket.set_state(vbucket.id, VBucketState.DEAD)
        bucket.flusher.when_durable(on_disk)

    # --- other commands -------------------------------------------------------------------------

    def _close_stream(self, request: RequestFrame) -> Answer:
        stream = self.feed.streams.get(request.vbucket)
        if stream is None:
            raise StreamNotFound(request.vbucket)
        self.feed.remove(stream)
        if self.options.end_on_close:
            self.feed.tell_end(stream, EndReason.CLOSED)
        return Answer()

    def _failover_log(self, request: RequestFrame) -> Answer:
        vbucket = self._hub.bucket.vbuckets.get(request.vbucket)
        if vbucket is None:
            raise NotMyVBucket(request.vbucket)
        # Where a consumer that was spliced in asked for terms, a manager asks for logs, too.
        return _log_answer(vbucket, vbucket.failover_log, with_term=self.negotiated.terms)

    def _buffer_ack(self, request: RequestFrame) -> None:
        (size,) = BUFFER_ACK_EXTRAS.unpack(request.extras)
        self.acked_bytes += size
        self.feed.acknowledged(size)

    def _seqno_acknowledged(self, request: RequestFrame) -> None:
        if not self.options.persisted:
            raise UnknownCommand("telling what is persisted was not negotiated")
        stream = self.feed.streams.get(request.vbucket)
        if stream is None or stream.opaque != request.opaque:
            raise StreamNotFound(request.vbucket)
        (seqno,) = SEQNO_ACKNOWLEDGED_EXTRAS.unpack(request.extras)
        stream.persisted(seqno)

    def _control(self, request: RequestFrame) -> Answer:
        options = self.options
        had_rounds = options.rounds
        if request.key == b"uprmc_rounds" and self.feed.streams:
            raise InvalidArguments("rounds are chosen before the first stream")
        set_option(options, request.key, request.value)
        if options.rounds is not had_rounds:
            self.feed.use_rounds(options.rounds)
        self.keepalive.enable(options.noop)
        if options.noop_interval_s is not None:
            self.keepalive.interval_s = options.noop_interval_s
        return Answer()

    def _noop(self, request: RequestFrame) -> Answer:
        return Answer()

    def _only_sent(self, request: RequestFrame) -> Answer:
        raise UnknownCommand("a producer sends this, it does not get it")

    def _hwt_report(self, request: RequestFrame) -> Answer | None:
        self._check_watermarks()
        return self.registration.report(request, manages=self.options.manages)

    def reports(self, request: RequestFrame) -> tuple[ReportsHead, list[OneReport]]:
        """Return what HWT_REPORTS asks for, each of which is to be carried out by `registration`.

        Raises:
            CommandError, RemoteProtocolError: refused as a whole.
        """
        if not self.options.reports:
            raise UnknownCommand("reports for many vBuckets were not negotiated")
        self._check_watermarks()
        return decode_reports(request.extras, request.value)

    def _hwt_read(self, request: RequestFrame) -> Answer:
        self._check_watermarks()
        return self.registration.read(request)

    def _check_watermarks(self) -> None:
        if not self.options.watermarks:
            raise UnknownCommand("watermarks were not negotiated")

    def _barrier_add(self, request: RequestFrame) -> Answer:
        if not self.options.barriers:
            raise UnknownCommand("barriers were not negotiated")
        feed = self.feed
        feed.add_barrier(request.key, request.opaque)
        return Answer(extras=BARRIER_ADD_REPLY_EXTRAS.pack(feed.cycle, feed.position, 0))


def _drop(_: object) -> None:
    """Take the answer to nothing that was asked, or stand in for a session that is over."""


def _ignore() -> None:
    """Stand in for a session that is over."""


def _log_answer(vbucket: VBucket, log: FailoverLog, *, with_term: bool) -> Answer:
    extras = TERM_EXTRAS.pack(vbucket.term) if with_term else b""
    return Answer(extras, encode_failover_log(log))


_HANDLERS: dict[int, Callable[[Producer, RequestFrame], Answer | None]] = {
    Opcode.UPR_STREAM_REQUEST: Producer._stream_request,
    Opcode.UPR_CLOSE_STREAM: Producer._close_stream,
    Opcode.UPR_GET_FAILOVER_LOG: Producer._failover_log,
    Opcode.UPR_BUFFER_ACK: Producer._buffer_ack,
    Opcode.UPR_SEQNO_ACKNOWLEDGED: Producer._seqno_acknowledged,
    Opcode.UPR_CONTROL: Producer._control,
    Opcode.UPR_NOOP: Producer._noop,
    Opcode.BARRIER_ADD: Producer._barrier_add,
    Opcode.HWT_REPORT: Producer._hwt_report,
    Opcode.HWT_READ: Producer._hwt_read,
    Opcode.HWT_REPLICATE: Producer._only_sent,
    Opcode.BARRIER_REACHED: Producer._only_sent,
    Opcode.PARTITION_START: Producer._only_sent,
    Opcode.ROUND_COMPLETE: Producer._only_sent,
    Opcode.SNAPSHOT_END: Producer._only_sent,
    Opcode.SNAPSHOTS: Producer._only_sent,
}
