"""The node itself as an upstream: a UPR producer in this process, pulled instead of read.

It is an ordinary producer of the node's hub, so that limits on disk readings and statistics count
it as any other; its name is that of the TAP client with `PREFIX` before it. There is no flow
control between the two: what is not pulled is not produced.
"""

from __future__ import annotations

import heapq
import struct
from collections.abc import Callable, Collection, Iterable, Sequence

from uprmc.engine.bucket import Bucket
from uprmc.engine.vbucket import VBucket
from uprmc.errors import (
    CommandError,
    DiskRefuses,
    InvalidArguments,
    KeyExists,
    NotMyVBucket,
    NotResident,
    OutOfMemory,
    RangeExceeded,
    RemoteProtocolError,
    RollbackRequired,
    StreamNotFound,
    TemporaryFailure,
)
from uprmc.model import FailoverLog, Item, Life
from uprmc.protocol.header import MERGED_REQUEST_HEADER, RequestFrame, ResponseFrame, request_head
from uprmc.protocol.opcodes import HEADER_BYTES, Opcode, OpenFlag, Status
from uprmc.protocol.upr import MUTATION_FRAME, ROLLBACK_VALUE, StreamRequest
from uprmc.record import unpack
from uprmc.tap_adapter.upstream import UpstreamVBucket
from uprmc.upr.hub import Hub
from uprmc.upr.peer import Negotiated
from uprmc.upr.producer import Producer

#: Before the client's name in statistics, as ep-engine has it.
PREFIX = b"eq_tapq:"

_STATUSES: dict[type[Exception], Status] = {
    NotMyVBucket: Status.NOT_MY_VBUCKET,
    KeyExists: Status.KEY_EXISTS,
    RangeExceeded: Status.RANGE_ERROR,
    InvalidArguments: Status.INVALID_ARGUMENTS,
    RemoteProtocolError: Status.INVALID_ARGUMENTS,
    TemporaryFailure: Status.TEMPORARY_FAILURE,
    DiskRefuses: Status.TEMPORARY_FAILURE,
    OutOfMemory: Status.OUT_OF_MEMORY,
}


_MUTATION_HEAD = request_head(Opcode.UPR_MUTATION)


def append_frames(out: list[bytes], pieces: Iterable[bytes]) -> None:
    """Append frames to `out` as `upstream.Upstream.pull` wants them.

    Args:
        out: what a mutation has behind its extras is a piece of its own there.
        pieces: whole frames, of which one piece may hold several; only a frame's key and value may
            continue in the next piece.
    """
    missing = 0
    for piece in pieces:
        if missing:
            out.append(piece)
            missing -= len(piece)
            continue
        position, size = 0, len(piece)
        while position < size:
            head, _, _, _, body_length, _, _ = MERGED_REQUEST_HEADER.unpack_from(piece, position)
            end = position + HEADER_BYTES + body_length
            if head == _MUTATION_HEAD:
                out.append(piece[position : position + MUTATION_FRAME.size])
                position += MUTATION_FRAME.size
            if position < min(end, size):
                out.append(piece[position:end])
            position = end
        missing = position - size


class LocalUpstream:
    """The node itself as the upstream of one client.

    Implements `upstream.Upstream`.
    """

    def __init__(self, hub: Hub, name: bytes, values: bool, wake: Callable[[], None]) -> None:
        """Open a producer; an older one of the same name is disconnected.

        Args:
            hub: the node's.
            name: the TAP client's.
            values: whether documents come with their values.
            wake: called when there is something to pull, or `closed` was set.

        Raises:
            TemporaryFailure: warm-up is going on.
        """
        if not hub.bucket.traffic:
            raise TemporaryFailure("warming up")
        flags = OpenFlag.PRODUCER if values else OpenFlag.PRODUCER | OpenFlag.NO_VALUE
        opening = RequestFrame(Opcode.UPR_OPEN, PREFIX + name)
        self.closed = ""
        self._bucket = hub.bucket
        self._wake = wake
        self._gone = False
        self._fetches: dict[DocumentFetch, None] = {}
        self._producer = Producer(
            hub, opening, int(flags), Negotiated(greeted=True), self._stirred, self._hung_up
        )

    def _stirred(self) -> None:
        if not self._gone:
            self._wake()

    def _hung_up(self, why: str) -> None:
        self.closed = why
        self._stirred()

    @property
    def flushes(self) -> int:
        """See `upstream.Upstream`."""
        return self._bucket.flushes

    def covers(self, numbers: Collection[int]) -> bool:
        """See `upstream.Upstream`."""
        return self._bucket.vbuckets.keys() <= set(numbers)

    # --- streams --------------------------------------------------------------------------------

    def survey(
        self, numbers: Sequence[int] | None, done: Callable[[dict[int, UpstreamVBucket]], None]
    ) -> None:
        """See `upstream.Upstream`; a replica in mid-snapshot stands where it was whole last."""
        vbuckets = self._bucket.vbuckets
        asked = sorted(vbuckets) if numbers is None else numbers
        done({number: _standing(vbuckets[number]) for number in asked if number in vbuckets})

    def open(
        self,
        number: int,
        opaque: int,
        request: StreamRequest,
        done: Callable[[int, bytes], None],
    ) -> None:
        """See `upstream.Upstream`."""
        asked = RequestFrame(
            Opcode.UPR_STREAM_REQUEST, extras=request.encode(), vbucket=number, opaque=opaque
        )
        try:
            answer = self._producer.handle(asked)
        except RollbackRequired as error:
            done(Status.ROLLBACK, ROLLBACK_VALUE.pack(error.seqno))
        except (CommandError, RemoteProtocolError) as error:
            done(_STATUSES.get(type(error), Status.INVALID_ARGUMENTS), str(error).encode())
        else:
            assert answer is not None
            done(Status.SUCCESS, answer.value)

    def close_stream(self, number: int) -> None:
        """See `upstream.Upstream`."""
        try:
            self._producer.handle(RequestFrame(Opcode.UPR_CLOSE_STREAM, vbucket=number))
        except StreamNotFound:
            return  # it has ended by itself

    def pull(self, out: list[bytes], budget: int) -> int:
        """See `upstream.Upstream`."""
        if self._gone:
            return 0
        pieces: list[bytes] = []
        size = self._producer.fill(pieces, budget)
        append_frames(out, pieces)
        return size

    def answer(self, opcode: int, opaque: int, status: int) -> None:
        """See `upstream.Upstream`."""
        self._producer.answered(ResponseFrame(opcode, status, opaque=opaque))

    def acknowledged(self, size: int) -> None:
        """See `upstream.Upstream`; nothing is produced ahead, so there is nothing to count."""

    def tick(self, now: float) -> None:
        """See `upstream.Upstream`: readings that are kept too long are given up."""
        self._producer.tick(now, 0)

    def close(self) -> None:
        """See `upstream.Upstream`."""
        if not self._gone:
            self._gone = True
            for fetch in self._fetches:
                fetch.abandon()
            self._fetches.clear()
            self._producer.close()

    # --- single documents -----------------------------------------------------------------------

    def fetch(
        self, number: int, keys: Sequence[bytes], done: Callable[[list[Item] | None], None]
    ) -> None:
        """See `upstream.Upstream`."""
        vbucket = self._bucket.vbuckets.get(number)
        if vbucket is None:
            done(None)
            return

        def ended(fetch: DocumentFetch, versions: list[Item] | None) -> None:
            self._fetches.pop(fetch, None)
            done(versions)

        fetch = DocumentFetch(self._bucket, vbucket, keys, ended)
        self._fetches[fetch] = None
        fetch.begin()


def _standing(vbucket: VBucket) -> UpstreamVBucket:
    return UpstreamVBucket(vbucket.state, vbucket.whole_seqno, vbucket.failover_log[0].uuid)


# --- document fetch -------------------------------------------------------------------------------
# The present versions of many documents of a vBucket, values included, wherever they are.
#
# They are looked up portion by portion. What is not in memory is asked of the disk, and the portion
# looked up again when the disk has answered; that is repeated a few times, because values may be
# ejected, and documents changed, in between.


#: At most this many keys are looked up at a time.
PORTION_KEYS = 256

#: The disk is asked this often for one portion.
TRIES = 4


class DocumentFetch:
    """One fetch; `begin` it. `abandon` it to hear nothing of it any more."""

    def __init__(
        self,
        bucket: Bucket,
        vbucket: VBucket,
        keys: Sequence[bytes],
        done: Callable[[DocumentFetch, list[Item] | None], None],
    ) -> None:
        """See the class.

        Args:
            bucket: the node's.
            vbucket: the keys'.
            keys: of which the versions are wanted; may be of any number.
            done: gets this and the versions, in order, once. A document that is not there is a
                tombstone, with a revision if there is one on disk. ``None``: they cannot be had.
        """
        self._bucket = bucket
        self._vbucket = vbucket
        self._keys = keys
        self._done: Callable[[DocumentFetch, list[Item] | None], None] | None = done
        self._found: list[Item] = []
        self._tries = TRIES

    def abandon(self) -> None:
        """Call `done` no more."""
        self._done = None

    def begin(self) -> None:
        """Look up what is left, as far as it can be had without the disk."""
        keys, found = self._keys, self._found
        while self._done is not None and len(found) < len(keys):
            portion = keys[len(found) : len(found) + PORTION_KEYS]
            try:
                versions = [self._version(key) for key in portion]
            except TemporaryFailure:
                self._end(None)
                return
            missing = [key for key, item in zip(portion, versions, strict=True) if item is None]
            if missing:
                self._ask_disk(missing)
                return
            found += [item for item in versions if item is not None]
            self._tries = TRIES
        self._end(found)

    def _version(self, key: bytes) -> Item | None:
        """Return the present version; ``None`` = ask the disk.

        Raises:
            TemporaryFailure: the disk shows a history that is over.
        """
        item = self._vbucket.table.find(key)
        if item is not None:
            return item if item.life or item.value is not None else None
        try:
            tombstone = self._bucket.fetcher.tombstone(self._vbucket, key)
        except NotResident:
            if self._tries:
                return None
            tombstone = None  # it is gone in any case; only its revision stays unknown
        if tombstone is not None:
            return unpack(tombstone)
        return Item(key, None, 0, 0, 0, 0, 0, life=Life.DELETED)

    def _ask_disk(self, keys: list[bytes]) -> None:
        if not self._tries:
            self._end(None)
            return
        self._tries -= 1
        number = self._vbucket.id
        self._bucket.fetcher.want([(number, key) for key in keys], self._fetched)

    def _fetched(self, ok: bool) -> None:
        if ok and self._bucket.vbuckets.get(self._vbucket.id) is self._vbucket:
            self.begin()
        else:
            self._end(None)

    def _end(self, versions: list[Item] | None) -> None:
        done, self._done = self._done, None
        if done is not None:
            done(self, versions)


# --- local keeper ---------------------------------------------------------------------------------
# Positions of registered clients as local documents of the node's store.
#
# A store has no list of its local documents, so they have numbers: the document `COUNT_NAME` says
# how many places there are, and place N, the document ``uprmc/tap/N``, holds a client's name and
# its document, or is empty. A place that became free is used again.
#
# Note: `save` answers later than the document is on disk. A client may learn a position only when
# the changes up to it are on disk, too, and a commit may contain one without the other.


#: The document that says how many places there are, as decimal digits.
COUNT_NAME = b"uprmc/tap/count"

_PLACE_NAME = b"uprmc/tap/%d"
_NAME_LENGTH = struct.Struct(">H")

#: With more places than this the count is damaged.
PLACES_MAX = 1_000_000


class LocalKeeper:
    """Keeps positions in local documents of the node's store.

    Implements `upstream.PositionKeeper`.
    """

    def __init__(self, bucket: Bucket) -> None:
        self.trouble: list[str] = []  # what `load` could not read, one line each
        self._bucket = bucket
        self._places: dict[bytes, int] = {}
        self._free: list[int] = []
        self._count = 0
        self._leaving: set[bytes] = set()

    def load(self) -> dict[bytes, bytes]:
        """See `upstream.PositionKeeper`; what cannot be read is named in `trouble`."""
        store = self._bucket.store
        self._count = self._read_count(store.local(COUNT_NAME))
        found: dict[bytes, bytes] = {}
        for place in range(self._count):
            record = store.local(_PLACE_NAME % place)
            entry = _unpack(record) if record is not None else None
            if record is not None and entry is None:
                self.trouble.append(f"the TAP client in place {place} cannot be read")
            if entry is None or entry[0] in found:
                heapq.heappush(self._free, place)
                continue
            name, found[name] = entry[0], entry[1]
            self._places[name] = place
        return found

    def _read_count(self, text: bytes | None) -> int:
        if text is None:
            return 0
        if text.isdigit() and len(text) < 8 and int(text) <= PLACES_MAX:
            return int(text)
        self.trouble.append("which TAP clients were registered cannot be read: all are forgotten")
        return 0

    def save(self, name: bytes, document: bytes | None, done: Callable[[bool], None]) -> None:
        """See `upstream.PositionKeeper`."""
        if document is None:
            self._drop(name, done)
            return
        place = self._places.get(name)
        if place is None:
            place = self._places[name] = self._take_place()
        self._leaving.discard(name)
        record = _NAME_LENGTH.pack(len(name)) + name + document
        self._bucket.flusher.write_local(_PLACE_NAME % place, record, _Durable(self._bucket, done))

    def _take_place(self) -> int:
        if self._free:
            return heapq.heappop(self._free)
        self._count += 1
        # In the same commit as the place itself: both are asked for in one turn.
        self._bucket.flusher.write_local(COUNT_NAME, b"%d" % self._count, _no_matter)
        return self._count - 1

    def _drop(self, name: bytes, done: Callable[[bool], None]) -> None:
        place = self._places.get(name)
        if place is None:
            done(True)
            return

        self._leaving.add(name)

        def dropped(ok: bool) -> None:
            if ok and name in self._leaving:
                self._leaving.discard(name)
                del self._places[name]
                heapq.heappush(self._free, place)
            done(ok)

        self._bucket.flusher.write_local(_PLACE_NAME % place, None, dropped)


class _Durable:
    """Waits until everything that was accepted when it was made is on disk; then tells."""

    def __init__(self, bucket: Bucket, done: Callable[[bool], None]) -> None:
        durable = bucket.flusher.durable_seqno
        self._bucket = bucket
        self._done = done
        self._wanted: dict[int, tuple[FailoverLog, int]] = {
            number: (vbucket.failover_log, vbucket.high_seqno)
            for number, vbucket in bucket.vbuckets.items()
            if durable(vbucket) < vbucket.high_seqno
        }

    def __call__(self, ok: bool) -> None:
        """Learn that a flush has ended; wait for another one if that was not all."""
        self._wanted = {
            number: wanted for number, wanted in self._wanted.items() if self._lacks(number)
        }
        if ok and self._wanted:
            self._bucket.flusher.when_durable(self)
        else:
            self._done(ok)

    def _lacks(self, number: int) -> bool:
        vbucket = self._bucket.vbuckets.get(number)
        log, seqno = self._wanted[number]
        if vbucket is None or vbucket.failover_log is not log:
            return False  # that history is over; who followed it learns so by his stream's end
        return self._bucket.flusher.durable_seqno(vbucket) < seqno


def _unpack(record: bytes) -> tuple[bytes, bytes] | None:
    if len(record) < _NAME_LENGTH.size:
        return None
    (length,) = _NAME_LENGTH.unpack_from(record)
    end = _NAME_LENGTH.size + length
    return (record[_NAME_LENGTH.size : end], record[end:]) if len(record) >= end else None


def _no_matter(_ok: bool) -> None:
    """The document beside it tells."""
