"""The node itself as an upstream: a UPR producer in this process, pulled instead of read.

It is an ordinary producer of the node's hub, so that limits on disk readings and statistics count
it as any other; its name is that of the TAP client with `PREFIX` before it. There is no flow
control between the two: what is not pulled is not produced.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from uprmc.engine.vbucket import VBucket
from uprmc.errors import (
    CommandError,
    DiskRefuses,
    InvalidArguments,
    KeyExists,
    NotMyVBucket,
    OutOfMemory,
    RangeExceeded,
    RemoteProtocolError,
    RollbackRequired,
    StreamNotFound,
    TemporaryFailure,
)
from uprmc.model import Item
from uprmc.protocol.header import MERGED_REQUEST_HEADER, ResponseFrame, request_head
from uprmc.protocol.opcodes import HEADER_BYTES, Opcode, OpenFlag, Status
from uprmc.protocol.upr import MUTATION_FRAME, ROLLBACK_VALUE, StreamRequest
from uprmc.tap_adapter.document_fetch import DocumentFetch
from uprmc.tap_adapter.upstream import Standing
from uprmc.upr.hub import Hub
from uprmc.upr.peer import Negotiated, UprRequest
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
        opening = UprRequest(Opcode.UPR_OPEN, 0, 0, key=PREFIX + name)
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
        self, numbers: Sequence[int] | None, done: Callable[[dict[int, Standing]], None]
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
        asked = UprRequest(Opcode.UPR_STREAM_REQUEST, number, opaque, request.encode())
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
            self._producer.handle(UprRequest(Opcode.UPR_CLOSE_STREAM, number, 0))
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
        """See `upstream.Upstream`: readings that are held too long are given up."""
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


def _standing(vbucket: VBucket) -> Standing:
    return Standing(vbucket.state, vbucket.whole_seqno, vbucket.failover_log[0].uuid)
