"""A `RemoteUpstream` joined to a node in this process, or to a producer that a test wrote."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

from tests.client.consumer_world import ServerEnd
from tests.kv.harness import Rig
from tests.upr import peer
from tests.upr.peer import Frame
from uprmc.client.tap_upstream import RemoteUpstream
from uprmc.model import SEQNO_MAX, Item
from uprmc.ports import Session
from uprmc.protocol.upr import StreamRequest
from uprmc.tap_adapter.upstream import UpstreamVBucket

PLACE = "upstream:1"

#: What a test of a small node never needs more of.
_ROUNDS_MAX = 10_000


class Producer(Protocol):
    """Whoever answers: a `ServerEnd` or a `FakeProducer`."""

    def take(self, data: bytes) -> bytes:
        """Return what it says to some bytes."""


class Call:
    """A connection that a test makes, carries and cuts. Implements `Dial` and `Dialled`.

    Attributes:
        session: whoever was joined.
        abandoned: nobody wants it any more.
        sent: bytes that went to the producer.
    """

    def __init__(self) -> None:
        self.session: Session | None = None
        self.abandoned = False
        self.sent = b""
        self.failed: Callable[[str], None] = lambda _: None
        self._make: Callable[[Callable[[], None]], Session] | None = None

    def __call__(self, place: str, make: Any, failed: Callable[[str], None]) -> Call:
        assert place == PLACE
        self._make, self.failed = make, failed
        return self

    def abandon(self) -> None:
        self.abandoned = True

    def connect(self) -> None:
        assert self._make is not None
        self.session = self._make(lambda: None)

    def carry(self, producer: Producer, chop: int = 1 << 30) -> bool:
        """Carry what is there to and fro once; returns whether anything was."""
        session = self.session
        assert session is not None
        data = b"".join(session.data_to_send(1 << 16))
        self.sent += data
        answer = producer.take(data)
        for at in range(0, len(answer), chop):
            session.receive_data(answer[at : at + chop])
        return bool(data or answer)


class Joined:
    """An upstream, its connection, and what came of it.

    Attributes:
        upstream: what is tested.
        call: its connection.
        frames: what was pulled, taken apart.
        pieces: the same as it was pulled.
        woken: how often it woke the adapter.
        lost: what it told about the end.
    """

    def __init__(
        self,
        producer: Producer | Rig,
        *,
        name: bytes = b"eq_tapq:replica1",
        values: bool = True,
        connect: bool = True,
        chop: int = 1 << 30,
        **options: Any,
    ) -> None:
        self._rig = producer if isinstance(producer, Rig) else None
        self.producer = ServerEnd(producer) if isinstance(producer, Rig) else producer
        self.call = Call()
        self.frames: list[Frame] = []
        self.pieces: list[bytes] = []
        self.woken = 0
        self.lost: list[str] = []
        self.chop = chop
        self.upstream = RemoteUpstream(
            self.call, PLACE, name, values, self._wake, lost=self.lost.append, **options
        )
        if connect:
            self.connect()

    def _wake(self) -> None:
        self.woken += 1

    def connect(self) -> None:
        self.call.connect()
        self.settle()

    def settle(self) -> None:
        """Carry everything to and fro until nothing moves."""
        for _ in range(_ROUNDS_MAX):
            moved = not self.upstream.closing and self.call.carry(self.producer, self.chop)
            if not moved and not (self._rig and self._rig.fetch()):
                return
        raise AssertionError("they never stop")

    def survey(self, numbers: list[int] | None = None) -> dict[int, UpstreamVBucket]:
        found: list[dict[int, UpstreamVBucket]] = []
        self.upstream.survey(numbers, found.append)
        self.settle()
        (standings,) = found
        return standings

    def open(
        self,
        number: int = 0,
        opaque: int = 7,
        start: int = 0,
        end: int = SEQNO_MAX,
        *,
        uuid: int = 0,
        flags: int = 0,
        settle: bool = True,
    ) -> list[tuple[int, bytes]]:
        """Ask for a stream; returns the list that gets the answer."""
        answers: list[tuple[int, bytes]] = []
        request = StreamRequest(flags, start, end, uuid, start, start)
        self.upstream.open(number, opaque, request, lambda *answer: answers.append(answer))
        if settle:
            self.settle()
        return answers

    def fetch(self, number: int, *keys: bytes) -> list[Item] | None:
        found: list[list[Item] | None] = []
        self.upstream.fetch(number, keys, found.append)
        self.settle()
        (items,) = found
        return items

    def pull(self, budget: int = 1 << 20) -> list[Frame]:
        """Pull once; returns the frames."""
        pieces: list[bytes] = []
        size = self.upstream.pull(pieces, budget)
        assert size == sum(map(len, pieces))
        check_pieces(pieces)
        frames, rest = peer.split(b"".join(pieces))
        assert not rest
        self.pieces += pieces
        self.frames += frames
        return frames

    def drain(self) -> list[Frame]:
        """Pull and acknowledge everything until nothing more comes."""
        found: list[Frame] = []
        for _ in range(_ROUNDS_MAX):
            self.settle()
            frames = self.pull(4096)
            if not frames:
                return found
            found += frames
            self.upstream.acknowledged(sum(each.size for each in frames))
        raise AssertionError("it never ends")


def check_pieces(pieces: list[bytes]) -> None:
    """Judge the form that `Upstream.pull` promises."""
    rest = iter(pieces)
    for head in rest:
        _, _, key, extras, _, _, body, _, _ = peer.HEADER.unpack_from(head)
        assert len(head) >= 24 + extras, "header and extras lie in the first piece"
        assert key + extras <= body
        missing = 24 + body - len(head)
        for piece in _until(rest, missing):
            missing -= len(piece)
        assert not missing


def _until(rest: Iterator[bytes], missing: int) -> Iterator[bytes]:
    while missing > 0:
        piece = next(rest)
        missing -= len(piece)
        yield piece
