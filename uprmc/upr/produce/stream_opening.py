"""From a stream request to a stream: what was negotiated, which kind it is, and who may begin."""

from __future__ import annotations

from functools import partial

from uprmc.engine.flusher import Waiter
from uprmc.engine.vbucket import VBucket
from uprmc.errors import InvalidArguments, RollbackRequired, TemporaryFailure
from uprmc.model import FailoverLog, VBucketState
from uprmc.protocol.opcodes import OpenFlag, StreamFlag
from uprmc.protocol.upr import StreamRequest
from uprmc.protocol.upr_extensions import StreamOptions, decode_stream_options
from uprmc.protocol.upr_many import StreamStart
from uprmc.upr.hub import Hub
from uprmc.upr.peer import Peer, UprRequest
from uprmc.upr.produce.admission import (
    Asked,
    admit,
    admit_notifier,
    admit_to_lease,
    check_term,
    locate,
)
from uprmc.upr.produce.connected_rows import ConnectedRows
from uprmc.upr.produce.feed import Feed
from uprmc.upr.produce.lease_stream import LeaseStream
from uprmc.upr.produce.notifier import NotifierStream
from uprmc.upr.produce.options import Options, form_of
from uprmc.upr.produce.registration import Registration
from uprmc.upr.produce.stream import Stream
from uprmc.upr.produce.takeover import TakeoverStream

_TAKEOVER = int(StreamFlag.TAKEOVER)
_PRODUCER = int(OpenFlag.PRODUCER)


class StreamOpening:
    """Makes the streams of one connection."""

    def __init__(
        self,
        hub: Hub,
        feed: Feed,
        options: Options,
        registration: Registration,
        connected: ConnectedRows | None,
        *,
        flags: int,
        datatypes: int,
        modern: bool,
    ) -> None:
        """See `Producer` for the arguments; `connected` has rows for as long as it is connected."""
        self._hub = hub
        self._feed = feed
        self._options = options
        self._registration = registration
        self._connected = connected
        self._flags = flags
        self._datatypes = datatypes
        self._modern = modern
        self._is_notifier = not flags & _PRODUCER

    def options_of(self, request: UprRequest) -> StreamOptions:
        """Read what the request's value says."""
        options = self._options
        if not request.value:
            return StreamOptions()
        if not (options.versions or options.leases or options.terms):
            if self._modern:
                raise InvalidArguments("a stream request has a value that was not negotiated")
            return StreamOptions()
        return decode_stream_options(request.value)

    def open(
        self, start: StreamStart, peer: Peer, *, first_generation: bool
    ) -> tuple[Stream, FailoverLog]:
        """Return a stream that is to be begun, and the failover log that it follows.

        Args:
            start: what is asked for.
            peer: the connection that asks.
            first_generation: whether it was asked for as until April 2014.

        Raises:
            CommandError, RemoteProtocolError: refused.
        """
        options, number = start.options, start.vbucket
        self._check_negotiated(options)
        asked = Asked(start.request, tuple(options.known_versions), number in self._feed.streams)
        if options.lease:
            return self._leased_stream(start, asked, peer)
        bucket = self._hub.bucket
        check_term(bucket, number, asked, options.term)
        vbucket = locate(bucket, number, start.request.flags)
        stream = self._new_stream(vbucket, start.opaque, asked, peer, first_generation)
        return stream, vbucket.failover_log

    def _check_negotiated(self, options: StreamOptions) -> None:
        if options.lease and not self._options.leases:
            raise InvalidArguments("leases were not negotiated")
        if options.known_versions and not self._options.versions:
            raise InvalidArguments("known versions were not negotiated")
        if options.term and not self._options.terms:
            raise InvalidArguments("terms were not negotiated")

    def _leased_stream(
        self, start: StreamStart, asked: Asked, peer: Peer
    ) -> tuple[LeaseStream, FailoverLog]:
        """Read from a lease: it holds the data, so what the vBucket is now does not matter."""
        number = start.vbucket
        lease = self._hub.leases.find(start.options.lease)
        vbucket = lease.vbuckets.get(number)
        floor = 0 if vbucket is None else self._registration.floor(vbucket)
        admitted = admit_to_lease(lease, number, asked, self._hub.settings, floor)
        form = form_of(self._flags, self._datatypes, self._options)
        stream = LeaseStream(self._feed, number, start.opaque, admitted, form, lease)
        end_seqno = lease.held[number].high_seqno
        self._follow(stream, admitted, end_seqno, floor, peer, reader=lease.reader)
        return stream, lease.held[number].failover_log

    def _new_stream(
        self, vbucket: VBucket, opaque: int, asked: Asked, peer: Peer, first_generation: bool
    ) -> Stream:
        hub = self._hub
        form = form_of(self._flags, self._datatypes, self._options)
        if self._is_notifier:
            noted = admit_notifier(vbucket, asked, hub.settings)
            return NotifierStream(self._feed, vbucket, opaque, noted, form)
        if self._connected is not None and self._options.buffer_bytes:
            self._connected.begin(vbucket.id, asked.request)
        floor = self._registration.floor(vbucket)
        try:
            admitted = admit(
                vbucket,
                asked,
                persisted_seqno=hub.bucket.flusher.durable_seqno(vbucket),
                settings=hub.settings,
                floor=floor,
            )
        except RollbackRequired:
            self._registration.refused(vbucket, asked.request.start_seqno)
            raise
        if admitted.flags & _TAKEOVER:
            if hub.bucket.flusher.paused:
                raise TemporaryFailure("persistence is stopped: nothing is given away")
            return TakeoverStream(self._feed, vbucket, opaque, admitted, form, self._die)
        stream = Stream(
            self._feed, vbucket, opaque, admitted, form, first_generation=first_generation
        )
        self._follow(stream, admitted, vbucket.high_seqno, floor, peer)
        return stream

    def _follow(
        self,
        stream: Stream,
        request: StreamRequest,
        end_seqno: int,
        floor: int,
        peer: Peer,
        *,
        reader: bytes = b"",
    ) -> None:
        """Let a stream and the row that speaks for it, if there is one, know of each other.

        A reader of a lease reports on another connection; `reader` is its id.
        """
        registration, vbucket = self._registration, stream.vbucket
        if registration.merges:
            stream.deletions.merges(floor if request.start_seqno else vbucket.purge_seqno)
        if not registration.accepted(vbucket, request, end_seqno):
            if not self._hub.bucket.watermarks.is_registered(vbucket, reader):
                self._hub.serve_unregistered(peer)
        elif not registration.merges:
            stream.deletions.builds(floor, partial(registration.building, vbucket))

    def _die(self, vbucket: VBucket, on_disk: Waiter) -> None:
        bucket = self._hub.bucket
        bucket.set_state(vbucket.id, VBucketState.DEAD)
        bucket.flusher.when_durable(on_disk)
