"""A connection that this node has dialled: it asks another node for streams and fills vBuckets.

A `Link` is a session like those of clients, only that it speaks first: HELLO, OPEN, and how it
wants to be served, all in one piece. Once all of it is answered its owner is told so, and asks it
to `follow` vBuckets, to `leave` them, or to `take_over` what the other node serves now.

Note: a link is stricter than a spliced `Consumer`. Whatever breaks the protocol (seqnos that fall,
a snapshot that is cut short, a vBucket that was not asked for) ends the connection with an `error`
that says what. What was received before stays, and the next link resumes there.

Source: UPR reference 2 and 5; rows D51, D52, P17.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol

from uprmc.engine.failover_log import shares_history
from uprmc.engine.vbucket import Interruption, VBucket
from uprmc.errors import CommandError, KeyNotFound, OutOfPlace, RangeExceeded, RemoteProtocolError
from uprmc.model import FailoverLog, VBucketState
from uprmc.protocol.header import ResponseFrame, encode_response
from uprmc.protocol.opcodes import EndReason, Opcode, Status, StreamFlag
from uprmc.protocol.replication import GET_VERSION_ORIGIN_EXTRAS, GET_VERSION_REPLY_EXTRAS
from uprmc.protocol.upr import Marker
from uprmc.protocol.upr_extensions import StreamOptions, encode_stream_options
from uprmc.record import ABSENT, KIND_AT, LOST, unpack
from uprmc.remote import features
from uprmc.remote.history import check_presentable
from uprmc.remote.stream import StreamFault, judge
from uprmc.upr.hub import Hub
from uprmc.upr.peer import Answer, UprRequest
from uprmc.upr.receive.link_session import LinkSession
from uprmc.upr.receive.progress import Progress
from uprmc.upr.receive.replica_stream import ReplicaState, ReplicaStream
from uprmc.upr.receive.reporting import Reporting, take_table

_TAKEOVER = int(StreamFlag.TAKEOVER)

#: Names of histories that one stream request carries at most.
_KNOWN_VERSIONS = 64

#: Streams that were left and may still send something, at least.
_LEFT_STREAMS = 1_024

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


class LinkOwner(Protocol):
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


class Link(LinkSession):
    """A connection that this node has dialled, with its streams.

    Attributes:
        streams: by vBucket, those that are asked for or granted.
        progress: how far behind the other node we are.
        is_another: whether what is here came from another data directory than the source has now.
    """

    def __init__(
        self,
        hub: Hub,
        name: bytes,
        wake: Callable[[], None],
        owner: LinkOwner,
        place: str = "",
    ) -> None:
        """Begin a conversation on a connection that is made; see `LinkSession`."""
        super().__init__(hub, name, wake, place)
        self.progress = Progress(self)
        self._reporting = Reporting(self, hub.settings.watermarks_interval_s)
        self._owner: LinkOwner | None = owner
        self._left: dict[int, int] = {}
        self._active: set[int] = set()
        self._lost: set[tuple[int, int]] = set()
        self.is_another = False

    # --- what the owner asks for ----------------------------------------------------------------

    def follow(self, numbers: Iterable[int]) -> None:
        """Ask for streams of vBuckets that are here and not active."""
        self._begin(numbers, 0)

    def take_over(self, numbers: Iterable[int]) -> None:
        """Ask for vBuckets to be handed over; what is here of them is kept if it can be."""
        self._begin(numbers, _TAKEOVER)

    def leave(self, numbers: Iterable[int]) -> None:
        """End streams; nothing is told about them any more."""
        for number in list(numbers):
            stream = self.streams.pop(number, None)
            self._active.discard(number)
            if stream is not None:
                self._close_stream(stream)

    @property
    def source_seqnos(self) -> dict[int, int]:
        """High seqnos at the other node, as it said a second ago."""
        return self.progress.source_seqnos

    @property
    def lag_items(self) -> int:
        """How many seqnos the other node is ahead, as far as known."""
        return self.progress.lag_items

    @property
    def lag_s(self) -> float:
        """For how many seconds something has been lacking."""
        return self.progress.lag_s

    def _begin(self, numbers: Iterable[int], flags: int) -> None:
        """Ask for streams; where the vBuckets stand is reported before, all at once."""
        added = [self._added(number, flags) for number in list(numbers)]
        streams = [stream for stream in added if stream is not None]
        self._reporting.register(
            each.vbucket for each in streams if not self.waits_for_disk(each.vbucket)
        )
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
            self._reporting.register([stream.vbucket])
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

    # --- the connection -------------------------------------------------------------------------

    def _opened(self) -> None:
        self.progress.begin(self._now)
        self._reporting.begin(self.granted)
        if self._owner is not None:
            self._owner.opened()

    def _due(self, now: float) -> None:
        self.progress.tick(now)
        self._reporting.tick(now)

    def connection_lost(self) -> None:
        """See `ports.Session`."""
        owner, self._owner = self._owner, None
        super().connection_lost()
        self.progress.close()
        self._reporting.close()
        self._left.clear()
        if owner is not None:
            for number in self._active:
                owner.taken(number)
            owner.closed(self.error or self.closed or "the connection was lost")

    # --- frames ---------------------------------------------------------------------------------

    def _take(self, request: UprRequest) -> None:
        handler = _HANDLERS.get(request.opcode)
        if handler is None:
            raise RemoteProtocolError(f"an unexpected frame {request.opcode:#04x}")
        try:
            answer = handler(self, request)
        except KeyNotFound:
            self._take_stray(request)
        except (CommandError, OutOfPlace) as error:
            raise RemoteProtocolError(f"vBucket {request.vbucket}: {error}") from None
        else:
            if answer is not None:
                self.put(encode_response(request.opcode, opaque=request.opaque))

    def _take_stray(self, request: UprRequest) -> None:
        """Drop a frame of a stream that was left."""
        if self._left.get(request.opaque) != request.vbucket:
            raise RemoteProtocolError(
                f"a frame {request.opcode:#04x} of vBucket {request.vbucket}, which has no stream"
            )
        if request.opcode == Opcode.UPR_STREAM_END:
            del self._left[request.opaque]

    def _check_value(self, request: UprRequest) -> None:
        if len(request.value) > self._max_value_bytes:
            raise RangeExceeded(f"{request.key!r} is larger than kv.max_item_bytes allows here")

    def _check_marker(self, stream: ReplicaStream, marker: Marker) -> None:
        vbucket = stream.vbucket
        try:
            judge(vbucket.id, vbucket.high_seqno, stream.snapshot, marker, strict=True)
        except StreamFault as fault:
            raise RemoteProtocolError(str(fault)) from None

    def _watermarks(self, request: UprRequest) -> None:
        """Take what the source tells of its clients, between two snapshots."""
        stream = self._reading(request)
        if not stream.whole:
            raise RangeExceeded("watermarks in the middle of a snapshot")
        floors = features.FLOORS in self.granted
        take_table(request, stream.vbucket, self.hub, floors=floors)

    def _tell_version(self, request: UprRequest, *, again: bool = True) -> None:
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

    def _tell_fetched(self, request: UprRequest, _: bool) -> None:
        if not self.closing and self._owner is not None:
            self._tell_version(request, again=False)

    def _hand_over(self, request: UprRequest) -> None:
        """Carry out SET_VBUCKET_STATE."""
        stream = self.stream_of(request.vbucket, request.opaque)
        if stream is not None:
            if not stream.flags & _TAKEOVER:
                raise RangeExceeded("a hand-over of this vBucket was not requested")
            if not stream.whole or stream.vbucket.receiving is not None:
                raise RangeExceeded("it was handed over in the middle of a snapshot")
        self._set_state(request)

    # --- what becomes of streams ----------------------------------------------------------------

    def _stream_options(self, stream: ReplicaStream) -> bytes:
        vbucket = stream.vbucket
        versions = features.VERSIONS in self.granted and not stream.bare
        known = vbucket.failover_log[:_KNOWN_VERSIONS] if versions else ()
        # What was never filled has no history, so its term is of none that the other node can know.
        tells = self.terms and vbucket.high_seqno and not stream.stranger
        term = self.hub.bucket.highest_term(vbucket) if tells else 0
        return encode_stream_options(StreamOptions(known, term=term))

    def _stream_answered(self, stream: ReplicaStream, reply: ResponseFrame) -> None:
        versions = features.VERSIONS in self.granted and not stream.bare
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
                super(Link, self)._stream_answered(stream, refusal)

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
        if self._owner is not None:
            self._owner.began(stream.vbucket.id)

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
        if self._owner is not None:
            self._owner.taken(number)

    def _turned(self, stream: ReplicaStream) -> None:
        if stream.vbucket.state == VBucketState.ACTIVE:
            self._active.add(stream.vbucket.id)

    def _forget(self, stream: ReplicaStream) -> None:
        if self.streams.get(stream.vbucket.id) is stream:
            del self.streams[stream.vbucket.id]

    def _tell_ended(self, number: int, why: str, *, retry: bool) -> None:
        if self._owner is not None:
            self._owner.ended(number, why, retry)


def _ignore(reply: ResponseFrame) -> None:
    """Take an answer that changes nothing."""


def _reason_text(number: int) -> str:
    try:
        return EndReason(number).name.lower().replace("_", " ")
    except ValueError:
        return f"reason {number}"


_HANDLERS: dict[int, Callable[[Link, UprRequest], Answer | None]] = {
    Opcode.UPR_STREAM_END: Link._stream_end,
    Opcode.UPR_SNAPSHOT_MARKER: Link._marker,
    Opcode.UPR_MUTATION: Link._mutation,
    Opcode.UPR_DELETION: Link._deletion,
    Opcode.UPR_EXPIRATION: Link._deletion,
    Opcode.VBUCKET_FACTS: Link._facts,
    Opcode.UPR_SET_VBUCKET_STATE: Link._hand_over,
    Opcode.HWT_REPLICATE: Link._watermarks,
    Opcode.UPR_NOOP: Link._noop,
    Opcode.GET_VERSION: Link._tell_version,
}
