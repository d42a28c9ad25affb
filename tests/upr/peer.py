"""The other end of a UPR connection: a node in memory, a session, and frames read on their own.

The decoder is written from the UPR reference, sections 1, 2 and 7, and shares no code with `uprmc`.
A `Peer` pulls the way `server.adapter` does: in turns, as long as the session gives something, and
again next turn when it asked to be woken.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tests.codec import frames
from tests.codec.frames import HEADER, REQUEST, RESPONSE, frame
from tests.kv.harness import PULL_BYTES, Rig
from uprmc.kv.session import Negotiation
from uprmc.kv.upr_session import ClientSession
from uprmc.model import VBucketState
from uprmc.ports import Session

#: As the adapter's.
PULLS_PER_TURN = 4

GET, SET, DELETE, HELLO, SET_VBUCKET = 0x00, 0x01, 0x04, 0x1F, 0x3D
OPEN, ADD_STREAM, CLOSE_STREAM, STREAM_REQUEST, FAILOVER_LOG = 0x50, 0x51, 0x52, 0x53, 0x54
STREAM_END, MARKER, MUTATION, DELETION, EXPIRATION = 0x55, 0x56, 0x57, 0x58, 0x59
FLUSH, SET_STATE, NOOP, BUFFER_ACK, CONTROL = 0x5A, 0x5B, 0x5C, 0x5D, 0x5E
SEQNO_ACKNOWLEDGED, GET_VERSION = 0x61, 0xE7
LEASE_ACQUIRE, LEASE_RENEW, LEASE_RELEASE = 0xE4, 0xE5, 0xE6
BARRIER_ADD, BARRIER_REACHED, PARTITION_START, ROUND_COMPLETE, SNAPSHOT_END = range(0xE8, 0xED)

OK, NOT_FOUND, EXISTS, TOO_BIG, INVALID, NOT_MY_VBUCKET = 0x00, 0x01, 0x02, 0x03, 0x04, 0x07
NO_STREAM, RANGE, ROLLBACK, UNKNOWN, UNSUPPORTED, LATER = 0x0A, 0x22, 0x23, 0x81, 0x83, 0x86

PRODUCER, NOTIFIER = 0x01, 0x02
TAKEOVER, DISK_ONLY, LATEST = 0x01, 0x02, 0x04
MEMORY, DISK, CHECKPOINT, ACK = 0x01, 0x02, 0x04, 0x08
MAX = 2**64 - 1

ACTIVE, REPLICA, PENDING, DEAD = VBucketState

#: Extras of what comes without being asked for, by opcode; a deletion by its length.
_EXTRAS = {
    STREAM_END: (">I", ("reason",)),
    MARKER: (">QQI", ("start", "end", "kind")),
    MUTATION: (">QQIIIHB", ("seqno", "rev", "flags", "expiry", "lock", "nmeta", "nru")),
    SET_STATE: (">B", ("state",)),
    BARRIER_REACHED: (">II", ("cycle", "frames")),
    PARTITION_START: (">QQI", ("first", "last", "cycle")),
    ROUND_COMPLETE: (">III", ("cycle", "visited", "skipped")),
    SNAPSHOT_END: (">QI", ("end", "items")),
    BUFFER_ACK: (">I", ("size",)),
}
_DELETIONS = {
    18: (">QQH", ("seqno", "rev", "nmeta")),
    20: (">QQI", ("seqno", "rev", "deleted_at")),
    21: (">QQIB", ("seqno", "rev", "deleted_at", "unused")),
}


class Frame(frames.Frame):
    """One frame, whose extras can be read by the names of their fields."""

    __slots__ = ()

    @property
    def size(self) -> int:
        return 24 + len(self.extras) + len(self.key) + len(self.value)

    def __getattr__(self, name: str) -> int:
        """Read a field of the extras."""
        if self.opcode in (DELETION, EXPIRATION):
            layout, names = _DELETIONS[len(self.extras)]
        else:
            layout, names = _EXTRAS.get(self.opcode, (">", ()))
        if name not in names:
            raise AttributeError(name)
        number: int = struct.unpack(layout, self.extras)[names.index(name)]
        return number

    @property
    def log(self) -> list[tuple[int, int]]:
        """The failover log that a reply carries."""
        return list(struct.iter_unpack(">QQ", self.value))  # type: ignore[arg-type]


def response(opcode: int, status: int = 0, *, opaque: int = 0, value: bytes = b"") -> bytes:
    """What the peer answers to a frame of the server."""
    return frame(opcode, value=value, vbucket=status, opaque=opaque, magic=RESPONSE)


def split(data: bytes) -> tuple[list[Frame], bytes]:
    """Cut whole frames off the front; returns them and the rest."""
    found, at = [], 0
    while len(data) - at >= HEADER.size:
        magic, *_, body, _, _ = HEADER.unpack_from(data, at)
        assert magic in (REQUEST, RESPONSE), f"a frame begins with {data[at : at + 24]!r}"
        end = at + HEADER.size + body
        if len(data) < end:
            break
        found.append(Frame.of(data[at:end]))
        at = end
    return found, data[at:]


def stream_request(
    vbucket: int = 0,
    start: int = 0,
    end: int = MAX,
    *,
    uuid: int = 0,
    snapshot: tuple[int, int] | None = None,
    flags: int = 0,
    opaque: int = 0,
    value: Any = None,
) -> bytes:
    """A request in the 3.0 form; `value` is written as JSON unless it is bytes."""
    low, high = snapshot or (start, start)
    extras = struct.pack(">IIQQQQQ", flags, 0, start, end, uuid, low, high)
    text = b"" if value is None else value if isinstance(value, bytes) else _json(value)
    return frame(STREAM_REQUEST, extras=extras, value=text, vbucket=vbucket, opaque=opaque)


def first_generation_request(
    vbucket: int = 0, start: int = 0, end: int = MAX, *, uuid: int = 0, opaque: int = 0
) -> bytes:
    """A request as it was until April 2014."""
    extras = struct.pack(">IIQQQQ", 0, 0, start, end, uuid, start)
    return frame(STREAM_REQUEST, extras=extras, vbucket=vbucket, opaque=opaque)


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


def opening(name: bytes = b"idx:1", flags: int = PRODUCER, *, opaque: int = 0x11) -> bytes:
    return frame(OPEN, key=name, extras=struct.pack(">II", 0, flags), opaque=opaque)


def hello(*features: int) -> bytes:
    value = b"".join(struct.pack(">H", feature) for feature in features)
    return frame(HELLO, key=b"agent", value=value)


def control(name: bytes, value: bytes) -> bytes:
    return frame(CONTROL, key=name, value=value)


def ack(size: int) -> bytes:
    return frame(BUFFER_ACK, extras=struct.pack(">I", size))


def marker(vbucket: int, opaque: int, start: int, end: int, kind: int = MEMORY) -> bytes:
    extras = struct.pack(">QQI", start, end, kind)
    return frame(MARKER, extras=extras, vbucket=vbucket, opaque=opaque)


def mutation(
    vbucket: int,
    opaque: int,
    seqno: int,
    key: bytes,
    value: bytes = b"",
    *,
    rev: int = 1,
    cas: int = 1,
    flags: int = 0,
    expiry: int = 0,
    nmeta: int = 0,
    datatype: int = 0,
) -> bytes:
    extras = struct.pack(">QQIIIHB", seqno, rev, flags, expiry, 0, nmeta, 0)
    return frame(
        MUTATION,
        key=key,
        value=value,
        extras=extras,
        vbucket=vbucket,
        opaque=opaque,
        cas=cas,
        datatype=datatype,
    )


def upr_rig(**changes: Any) -> Rig:
    """A node whose vBuckets are all active."""
    return Rig(**changes)


class Peer:
    """See the module docstring.

    Attributes:
        rig: the node.
        session: the newest session of the connection.
        received: every frame so far.
        wakes: how often the session asked for its next turn.
    """

    def __init__(self, rig: Rig, *, by_key: bool = False) -> None:
        self.rig = rig
        self.session: Session = Negotiation(rig.services, self._wake, by_key=by_key)
        self.received: list[Frame] = []
        self.wakes = 0
        self._rest = b""
        self._woken = False

    def _wake(self) -> None:
        self.wakes += 1
        self._woken = True

    # --- opening --------------------------------------------------------------------------------

    @classmethod
    def open(
        cls, rig: Rig, name: bytes = b"idx:1", flags: int = PRODUCER, *, by_key: bool = False
    ) -> Peer:
        """Open a connection, with `by_key` on the listener for memcached's clients."""
        peer = cls(rig, by_key=by_key)
        (answer,) = peer.say(opening(name, flags))
        assert (answer.opcode, answer.status) == (OPEN, OK)
        return peer

    @classmethod
    def modern(cls, rig: Rig, name: bytes = b"idx:1", flags: int = PRODUCER) -> Peer:
        """Open a connection as clients of today do, after HELLO."""
        peer = cls(rig)
        _, answer = peer.say(hello(0x0B), opening(name, flags))
        assert (answer.opcode, answer.status) == (OPEN, OK)
        return peer

    # --- the wire -------------------------------------------------------------------------------

    def send(self, *frames: bytes) -> None:
        """Send frames in one piece, take nothing."""
        self.session.receive_data(b"".join(frames))

    def turn(self, budget: int = PULL_BYTES) -> list[Frame]:
        """Take what one turn of the reactor takes."""
        self._woken = False
        data = [self._rest]
        pulls = 0
        while pulls < PULLS_PER_TURN:
            pieces = self.session.data_to_send(budget)
            successor = self.session.successor
            if successor is not None:
                self.session = successor
            elif not pieces:
                break
            data += pieces
            pulls += bool(pieces)
        else:
            self._wake()
        frames, self._rest = split(b"".join(data))
        self.received += frames
        return frames

    def drain(self, budget: int = PULL_BYTES) -> list[Frame]:
        """Take everything that comes until the session is quiet."""
        frames = self.turn(budget)
        for _ in range(100_000):
            if not self._woken:
                return frames
            frames += self.turn(budget)
        raise AssertionError("the session never comes to rest")

    def say(self, *frames: bytes) -> list[Frame]:
        """Send frames, take everything that comes."""
        self.send(*frames)
        return self.drain()

    def ask(self, *frames: bytes) -> Frame:
        """Send one request; return the one answer, which must be all that comes."""
        (answer,) = self.say(*frames)
        assert answer.is_reply
        return answer

    def controls(self, **options: bytes) -> None:
        """Set options; all must be accepted."""
        for name, value in options.items():
            answer = self.say(control(name.encode(), value))[0]
            assert (answer.is_reply, answer.status) == (True, OK)

    def stream(self, vbucket: int = 0, start: int = 0, end: int = MAX, **more: Any) -> list[Frame]:
        """Open a stream that must be accepted; return what comes after the answer."""
        if start and "uuid" not in more:
            more["uuid"] = self.rig.bucket.vbuckets[vbucket].failover_log[0].uuid
        frames = self.say(stream_request(vbucket, start, end, **more))
        answer = frames.pop(0)
        assert answer.is_reply
        assert (answer.opcode, answer.status) == (STREAM_REQUEST, OK), hex(answer.status)
        return frames

    @property
    def closed(self) -> bool:
        return self.session.closing

    def lose(self) -> None:
        """Cut the connection."""
        session, self.session = self.session, Negotiation(self.rig.services, _nobody, by_key=False)
        session.connection_lost()

    @property
    def side(self) -> Any:
        """The producer or consumer behind the session."""
        return self.session.peer  # type: ignore[attr-defined]


def _nobody() -> None:
    """Nobody is woken for a connection that is gone."""


# --- what was received ----------------------------------------------------------------------------


def kinds(frames: Iterable[Frame]) -> list[int]:
    return [each.opcode for each in frames]


def items(frames: Iterable[Frame], vbucket: int | None = None) -> list[Frame]:
    """The versions of documents among frames."""
    return [
        each
        for each in frames
        if each.opcode in (MUTATION, DELETION, EXPIRATION) and vbucket in (None, each.vbucket)
    ]


def seqnos(frames: Iterable[Frame], vbucket: int | None = None) -> list[int]:
    return [each.seqno for each in items(frames, vbucket)]


def only(frames: Iterable[Frame], opcode: int) -> list[Frame]:
    return [each for each in frames if each.opcode == opcode and not each.is_reply]


def marked(frames: Iterable[Frame]) -> list[tuple[int, int, int]]:
    """The markers among frames: start, end, type bits."""
    return [(each.start, each.end, each.kind) for each in only(frames, MARKER)]


def check_stream(frames: Sequence[Frame], after: int = 0) -> int:
    """Judge the frames of one stream of one vBucket by reference 4.3; return its last seqno.

    Seqnos rise; every item is covered by the marker before it; a snapshot is whole before another
    begins, unless that one extends it; no key comes twice in a snapshot.
    """
    last, snapshot, keys = after, None, set()
    for each in frames:
        if each.opcode == MARKER:
            start, end = each.start, each.end
            assert start <= end
            assert each.kind & 3 in (1, 2)
            if snapshot is not None and last < snapshot[1]:
                assert start <= snapshot[0] <= snapshot[1] <= end, "a snapshot was cut short"
            else:
                keys = set()
            snapshot = (start, end)
        elif each.opcode in (MUTATION, DELETION, EXPIRATION):
            assert snapshot is not None
            assert snapshot[0] <= each.seqno <= snapshot[1], "outside of its snapshot"
            assert each.seqno > last, "seqnos must rise"
            assert each.key not in keys, f"{each.key!r} twice in a snapshot"
            keys.add(each.key)
            last = each.seqno
    assert snapshot is None or last == snapshot[1], "the last snapshot is not whole"
    return last


def write(rig: Rig, vbucket: int, *keys: bytes, value: bytes = b"value") -> int:
    """Store documents; return the high seqno."""
    part = rig.bucket.vbuckets[vbucket]
    for key in keys:
        part.store(key, value, 0, 0)
    return part.high_seqno


def fill(rig: Rig, vbucket: int, count: int, value: bytes = b"value") -> int:
    """Store so many documents."""
    return write(rig, vbucket, *(b"key%06d" % n for n in range(count)), value=value)


def uuid_of(rig: Rig, vbucket: int = 0) -> int:
    return rig.bucket.vbuckets[vbucket].failover_log[0].uuid


def bystander(rig: Rig) -> Callable[[], None]:
    """Open another connection of the node; the result checks that it goes on undisturbed."""
    other = Peer.open(rig, b"bystander")
    vbucket = max(rig.bucket.active)
    start = rig.bucket.vbuckets[vbucket].high_seqno
    other.stream(vbucket, start)

    def undisturbed() -> None:
        seqno = write(rig, vbucket, b"still there")
        assert not other.closed
        assert seqnos(other.drain()) == [seqno]

    return undisturbed


def untouched(rig: Rig) -> None:
    """Check that nothing of any connection is left in the node."""
    hub = rig.services.upr
    assert not hub.producers
    assert not hub.consumers
    assert hub.backfills.used == 0
    for vbucket in rig.bucket.vbuckets.values():
        assert vbucket.watchers == []
        assert vbucket.waiting == []
        assert vbucket.queue.retired == 0
    assert not list(rig.store._views)


def plain_binary(rig: Rig) -> ClientSession:
    """A binary session that was not opened for UPR."""
    return ClientSession(rig.services, rig.wake, by_key=False)
