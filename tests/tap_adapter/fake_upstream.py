"""An `Upstream` whose vBuckets a test writes to, with real UPR frames and the engine's own rules.

`FakeNode` holds vBuckets with all versions ever written, so a test can let history branch
(`FakeVBucket.fail_over`). `FakeUpstream` streams from one: what is told at once and what a test
must `deliver`, how frames are cut into pieces, and how much may be unacknowledged are its options.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from uprmc.model import FailoverEntry, Item, Life, SnapshotRange, VBucketState
from uprmc.protocol.header import encode_request, unpack_request
from uprmc.protocol.opcodes import EndReason, MarkerFlag, Opcode, Status, StreamFlag
from uprmc.protocol.upr import (
    ROLLBACK_VALUE,
    SET_VBUCKET_STATE_EXTRAS,
    STREAM_END_EXTRAS,
    StreamRequest,
    encode_failover_log,
    snapshot_marker,
)
from uprmc.record import pack
from uprmc.rollback import ConsumerPosition, VBucketHoldings, rollback_point
from uprmc.tap_adapter.upstream import UpstreamVBucket
from uprmc.upr.frames import Form, ItemWriter

#: As much as a snapshot holds before the next one begins, where a test does not say.
_SNAPSHOT_ITEMS = 1_000_000


class FakeVBucket:
    """All versions of all documents of a vBucket, in order."""

    def __init__(self, number: int, state: VBucketState = VBucketState.ACTIVE) -> None:
        self.number = number
        self.state = state
        self.failover_log = [FailoverEntry(0xA000 + number, 0)]
        self.versions: list[Item] = []
        self.purge_seqno = 0
        self._seqno = 0
        self._cas = 1_000

    @property
    def high_seqno(self) -> int:
        return self._seqno

    def set(self, key: bytes, value: bytes = b"v", *, flags: int = 0, expiry: int = 0) -> Item:
        return self._add(Item(key, value, flags, expiry, 0, 0, 0, nru=1))

    def delete(self, key: bytes, *, expired: bool = False) -> Item:
        life = Life.EXPIRED if expired else Life.DELETED
        return self._add(Item(key, None, 0, 0, 0, 0, 0, life=life))

    def _add(self, item: Item) -> Item:
        self._seqno += 1
        self._cas += 1
        before = self.present().get(item.key)
        item.seqno, item.cas = self._seqno, self._cas
        item.rev = before.rev + 1 if before else 1
        self.versions.append(item)
        return item

    def present(self) -> dict[bytes, Item]:
        """The newest version of each key, deletions too."""
        return {item.key: item for item in self.versions}

    def documents(self) -> dict[bytes, tuple[bytes | None, int, int, int]]:
        """key -> (value, flags, expiry, CAS) of what is there."""
        return {
            key: (item.value, item.flags, item.expiry, item.cas)
            for key, item in self.present().items()
            if not item.life
        }

    def fail_over(self, seqno: int, uuid: int) -> None:
        """Forget what came after `seqno`: another node has taken over that never had it."""
        self.versions = [item for item in self.versions if item.seqno <= seqno]
        self._seqno = min(self._seqno, seqno)
        while len(self.failover_log) > 1 and self.failover_log[0].seqno > seqno:
            del self.failover_log[0]
        self.failover_log.insert(0, FailoverEntry(uuid, self._seqno))

    def empty(self) -> None:
        """Begin another history, with nothing."""
        self.failover_log = [FailoverEntry(self.failover_log[0].uuid + 0x1000, 0)]
        self.versions = []
        self._seqno = self.purge_seqno = 0

    def purge(self, seqno: int) -> None:
        """Forget deletions up to `seqno`."""
        present = self.present()
        gone = {key for key, item in present.items() if item.life and item.seqno <= seqno}
        self.versions = [item for item in self.versions if item.key not in gone]
        self.purge_seqno = max(self.purge_seqno, seqno)


class FakeNode:
    """vBuckets by number; `flushes`: how often all was emptied at once."""

    def __init__(self, *numbers: int, state: VBucketState = VBucketState.ACTIVE) -> None:
        self.vbuckets = {number: FakeVBucket(number, state) for number in numbers}
        self.flushes = 0

    def __getitem__(self, number: int) -> FakeVBucket:
        return self.vbuckets[number]


@dataclass
class FakeStream:
    """One open stream; `queue`: frames that are announced and not pulled.

    `waits`: its end is queued. `granted`: the adapter knows that it is open.
    """

    vbucket: FakeVBucket
    opaque: int
    request: StreamRequest
    position: int
    queue: deque[list[bytes]] = field(default_factory=deque)
    snapshot_end: int = 0
    unanswered: int = 0
    target: VBucketState | None = None
    waits: bool = False
    granted: bool = False
    dying: bool = False

    @property
    def is_takeover(self) -> bool:
        return bool(self.request.flags & StreamFlag.TAKEOVER)


class FakeUpstream:
    """See the module docstring.

    Attributes:
        opened: every stream request, in order, with its vBucket.
        answers: what the adapter has answered: opcode, opaque, status.
        acked_bytes, pulled_bytes: their difference is at most `window_bytes`.
        fetched: keys of each fetch.
    """

    def __init__(
        self,
        node: FakeNode,
        *,
        wake: Callable[[], None] = lambda: None,
        patient: bool = False,
        pieces: int = 2,
        snapshot_items: int = _SNAPSHOT_ITEMS,
        window_bytes: int = 2**40,
        values: bool = True,
        dies_at_once: bool = True,
    ) -> None:
        """See the module docstring.

        Args:
            node: what is streamed.
            wake: called when an answer was delivered.
            patient: answers wait for `deliver`.
            pieces: each mutation comes in so many (1, 2 or 3).
            snapshot_items: no snapshot spans more versions.
            window_bytes: so many may be pulled and not acknowledged.
            values: whether documents come with values.
            dies_at_once: whether a takeover's source stops to serve when the client is pending,
                or when the test lets it `die`.
        """
        self.node = node
        self.wake = wake
        self.patient = patient
        self.pieces = pieces
        self.snapshot_items = snapshot_items
        self.window_bytes = window_bytes
        self.values = values
        self.dies_at_once = dies_at_once
        self.closed = ""
        self.gone = False
        self.streams: dict[int, FakeStream] = {}
        self.opened: list[tuple[int, StreamRequest]] = []
        self.closes: list[int] = []
        self.answers: list[tuple[int, int, int]] = []
        self.fetched: list[list[bytes]] = []
        self.can_fetch = True
        self.refusals: dict[int, int] = {}
        self.acked_bytes = self.pulled_bytes = 0
        self.pulls = 0
        self.now = 0.0
        self._late: deque[Callable[[], None]] = deque()
        self._turn = 0

    @property
    def flushes(self) -> int:
        return self.node.flushes

    def covers(self, numbers: Collection[int]) -> bool:
        return self.node.vbuckets.keys() <= set(numbers)

    # --- Upstream -------------------------------------------------------------------------------

    def survey(
        self, numbers: Sequence[int] | None, done: Callable[[dict[int, UpstreamVBucket]], None]
    ) -> None:
        vbuckets = self.node.vbuckets
        found = {
            number: UpstreamVBucket(
                vbuckets[number].state,
                vbuckets[number].high_seqno,
                vbuckets[number].failover_log[0].uuid,
            )
            for number in (vbuckets if numbers is None else numbers)
            if number in vbuckets
        }
        self._tell(lambda: done(found))

    def open(
        self,
        number: int,
        opaque: int,
        request: StreamRequest,
        done: Callable[[int, bytes], None],
    ) -> None:
        self.opened.append((number, request))
        status, value = self._admit(number, opaque, request)
        stream = self.streams.get(number) if status == Status.SUCCESS else None

        def say() -> None:
            if stream is not None:
                stream.granted = True
            done(status, value)

        self._tell(say)

    def close_stream(self, number: int) -> None:
        self.closes.append(number)
        self.streams.pop(number, None)

    def pull(self, out: list[bytes], budget: int) -> int:
        assert not self.gone, "pulled after close"
        assert budget > 0
        self.pulls += 1
        size = 0
        for _ in range(len(self.streams)):
            order = [stream for stream in self.streams.values() if stream.granted]
            if not order:
                break
            stream = order[self._turn % len(order)]
            while size < budget and self.pulled_bytes - self.acked_bytes + size < self.window_bytes:
                if not stream.queue and not self._refill(stream):
                    break
                frame = stream.queue.popleft()
                out += frame
                size += sum(map(len, frame))
                if not stream.queue and self._ends(stream):
                    break
            self._turn += 1
            if size >= budget or not self.streams:
                break
        self.pulled_bytes += size
        return size

    def answer(self, opcode: int, opaque: int, status: int) -> None:
        self.answers.append((opcode, opaque, status))
        for stream in list(self.streams.values()):
            if stream.opaque == opaque:
                self._answered(stream, opcode)

    def acknowledged(self, size: int) -> None:
        self.acked_bytes += size
        assert self.acked_bytes <= self.pulled_bytes, "acknowledged what was never pulled"

    def fetch(
        self, number: int, keys: Sequence[bytes], done: Callable[[list[Item] | None], None]
    ) -> None:
        self.fetched.append(list(keys))
        present = self.node[number].present()
        missing = Life.DELETED
        versions = [
            present.get(key) or Item(key, None, 0, 0, 0, 0, 0, life=missing) for key in keys
        ]
        self._tell(lambda: done(versions if self.can_fetch else None))

    def tick(self, now: float) -> None:
        self.now = now

    def close(self) -> None:
        self.gone = True
        self.streams.clear()
        self._late.clear()

    # --- what a test does -----------------------------------------------------------------------

    def deliver(self, answers: int = 1_000_000) -> None:
        """Give so many answers that wait, those that come of them too."""
        while self._late and answers:
            answers -= 1
            self._late.popleft()()

    @property
    def undelivered(self) -> int:
        return len(self._late)

    def end(self, number: int, reason: EndReason) -> None:
        """End a stream; what is queued of it comes before."""
        stream = self.streams[number]
        stream.queue.append([_stream_end(stream, reason)])
        stream.waits = True

    def empty(self, number: int) -> None:
        """Empty a vBucket, which ends its stream."""
        self.node[number].empty()
        if number in self.streams:
            self.streams[number].queue.clear()
            self.end(number, EndReason.STATE_CHANGED)

    def flush(self) -> None:
        """Empty all vBuckets at once."""
        self.node.flushes += 1
        for number in self.node.vbuckets:
            self.empty(number)

    def die(self, number: int) -> None:
        """Stop serving a vBucket that is being taken over."""
        self.node[number].state = VBucketState.DEAD
        self.streams[number].dying = False
        self.wake()

    def inject(self, number: int, *frames: bytes) -> None:
        """Send any frames on a stream, behind what is queued."""
        for frame in frames:
            self.streams[number].queue.append([frame])

    def break_off(self, why: str = "the upstream is gone") -> None:
        """Lose the connection."""
        self.closed = why
        self.streams.clear()
        self.wake()

    # --- streams --------------------------------------------------------------------------------

    def _tell(self, say: Callable[[], None]) -> None:
        if self.patient:
            self._late.append(say)
        else:
            say()

    def _admit(self, number: int, opaque: int, request: StreamRequest) -> tuple[int, bytes]:
        if self.refusals.get(number):
            return self.refusals[number], b""
        vbucket = self.node.vbuckets.get(number)
        served = (VBucketState.ACTIVE, VBucketState.REPLICA)
        if vbucket is None or vbucket.state not in served:
            return Status.NOT_MY_VBUCKET, b""
        if number in self.streams:
            return Status.KEY_EXISTS, b""
        start, snapshot = (
            request.start_seqno,
            SnapshotRange(request.snapshot_start, request.snapshot_end),
        )
        assert snapshot.start <= start <= snapshot.end, f"a torn request: {request}"
        assert start <= request.end_seqno
        held = VBucketHoldings(tuple(vbucket.failover_log), vbucket.high_seqno, vbucket.purge_seqno)
        point = rollback_point(ConsumerPosition(start, snapshot, request.uuid), held)
        if point is not None:
            return Status.ROLLBACK, ROLLBACK_VALUE.pack(point)
        if start > vbucket.high_seqno:
            return Status.RANGE_ERROR, b""
        self.streams[number] = FakeStream(vbucket, opaque, request, start)
        return Status.SUCCESS, encode_failover_log(vbucket.failover_log)

    def _refill(self, stream: FakeStream) -> bool:
        """Begin the next snapshot, or the next step of a takeover."""
        if stream.waits:
            return False
        # A snapshot is the state at its end, so only within it a version replaces another.
        newer = [item for item in stream.vbucket.versions if item.seqno > stream.position]
        part = newer[: self.snapshot_items]
        if not part or stream.position >= stream.request.end_seqno:
            ready = stream.is_takeover and not stream.unanswered and not stream.dying
            return ready and self._hand_over(stream)
        newest = {item.key: item for item in part}
        self._announce(stream, sorted(newest.values(), key=lambda item: item.seqno))
        return True

    def _announce(self, stream: FakeStream, items: list[Item]) -> None:
        kind = MarkerFlag.DISK if not stream.position else MarkerFlag.MEMORY
        if stream.is_takeover:
            kind |= MarkerFlag.ACK
            stream.unanswered += 1
        start, end = stream.position + 1, items[-1].seqno
        marker = snapshot_marker(stream.vbucket.number, stream.opaque, start, end, int(kind))
        stream.queue.append([marker])
        stream.queue.extend(self._frame(stream, item) for item in items)
        stream.position = stream.snapshot_end = end

    def _frame(self, stream: FakeStream, item: Item) -> list[bytes]:
        writer = ItemWriter(stream.vbucket.number, stream.opaque, Form(values=self.values))
        pieces: list[bytes] = []
        writer.write((pack(item),), pieces, 1, 0)
        if self.pieces == 1:
            return [b"".join(pieces)]
        if self.pieces == 2:
            return [pieces[0], b"".join(pieces[1:])]
        return pieces

    def _ends(self, stream: FakeStream) -> bool:
        """Put the end behind the snapshot that reaches the stream's end."""
        if stream.waits:
            del self.streams[stream.vbucket.number]
            return True
        if stream.position >= stream.request.end_seqno:
            self.end(stream.vbucket.number, EndReason.OK)
        return False

    # --- takeover -------------------------------------------------------------------------------

    def _hand_over(self, stream: FakeStream) -> bool:
        if stream.target is VBucketState.ACTIVE:
            target = VBucketState.ACTIVE
        else:
            target = stream.target = VBucketState.PENDING
        stream.unanswered += 1
        frame = encode_request(
            Opcode.UPR_SET_VBUCKET_STATE,
            extras=SET_VBUCKET_STATE_EXTRAS.pack(target),
            vbucket=stream.vbucket.number,
            opaque=stream.opaque,
        )
        stream.queue.append([frame])
        return True

    def _answered(self, stream: FakeStream, opcode: int) -> None:
        assert stream.unanswered, "answered what was never asked"
        stream.unanswered -= 1
        if opcode != Opcode.UPR_SET_VBUCKET_STATE:
            return
        if stream.target is VBucketState.PENDING:
            stream.dying = True
            stream.target = VBucketState.ACTIVE
            if self.dies_at_once:
                self.die(stream.vbucket.number)
        else:
            self.end(stream.vbucket.number, EndReason.OK)
        self.wake()


def _stream_end(stream: FakeStream, reason: EndReason) -> bytes:
    return encode_request(
        Opcode.UPR_STREAM_END,
        extras=STREAM_END_EXTRAS.pack(reason),
        vbucket=stream.vbucket.number,
        opaque=stream.opaque,
    )


def opaque_of(frame: bytes) -> int:
    """The opaque of a frame, for tests that inject some."""
    opaque: int = unpack_request(frame)[7]
    return opaque
