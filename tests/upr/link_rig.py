"""Two nodes in memory: one dials the other. Bytes go to and fro as a test wants, cut anywhere.

`Pair` joins a `ReplicaLink` with a real session of the source. `Script` is a source that is only a
test's words: frames are written with `tests.upr.peer`, and read back with its decoder.
"""

from __future__ import annotations

import struct
from itertools import count
from typing import Any

from tests.kv.harness import PULL_BYTES, Rig
from tests.upr.peer import (
    CONTROL,
    HELLO,
    OPEN,
    PULLS_PER_TURN,
    STREAM_REQUEST,
    Frame,
    frame,
    split,
)
from uprmc.kv.session import Negotiation
from uprmc.model import VBucketState
from uprmc.ports import Session
from uprmc.upr.link import ReplicaLink

REPLICA, ACTIVE = VBucketState.REPLICA, VBucketState.ACTIVE
GET_VERSION, ALL_SEQNOS, SEQNO_ACK = 0xE7, 0x48, 0x61

Event = tuple[Any, ...]

_numbers = count()


class Owner:
    """Writes down what a link tells."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def opened(self) -> None:
        self.events.append(("opened",))

    def began(self, number: int) -> None:
        self.events.append(("began", number))

    def ended(self, number: int, why: str, retry: bool) -> None:
        self.events.append(("ended", number, why, retry))

    def taken(self, number: int) -> None:
        self.events.append(("taken", number))

    def closed(self, why: str) -> None:
        self.events.append(("closed", why))

    def take(self) -> list[Event]:
        """What was told since the last time."""
        events, self.events = self.events, []
        return events


def replica_rig(**changes: Any) -> Rig:
    """A node whose vBuckets are all empty replicas; it names histories as no other node does."""
    rig = Rig(**changes)
    rig.bucket.entropy.last = 1_000 * (next(_numbers) + 1)  # type: ignore[attr-defined]
    for number in rig.bucket.vbuckets:
        rig.bucket.set_state(number, REPLICA)
    rig.flush()
    return rig


def name_node(rig: Rig, name: bytes) -> Rig:
    """Have a node register with its sources under this name."""
    rig.services.upr.instance = name
    return rig


def restore(source: Rig, promoted: Rig, number: int = 0) -> None:
    """Undo a promotion: the source is active again, in a term above that of who was promoted."""
    vbucket = source.bucket.vbuckets[number]
    vbucket.known_term = promoted.bucket.vbuckets[number].term
    vbucket.promote()


class Pair:
    """See the module docstring.

    Attributes:
        source, target: the nodes.
        link: the target's conversation.
        owner: its owner.
        cut: bytes handed over at a time, 0 = whatever one turn gives.
        auto_flush: whether both nodes persist in each turn.
    """

    def __init__(
        self, source: Rig, target: Rig, *, name: bytes = b"", cut: int = 0, flush: bool = True
    ) -> None:
        """Begin a conversation; without a name it gets one of its own."""
        self.source, self.target = source, target
        self.owner = Owner()
        self.cut = cut
        self.auto_flush = flush
        self.server: Session = Negotiation(source.services, _nobody, by_key=False)
        self.link = ReplicaLink(
            target.services.upr, name or b"repl-%d" % next(_numbers), _nobody, self.owner
        )
        self.now = 0.0

    def turn(self) -> bool:
        """Carry what both sides have; says whether there was anything."""
        to_server = b"".join(self.link.data_to_send(PULL_BYTES))
        self._hand(self.server, to_server)
        moved = bool(to_server)
        for _ in range(PULLS_PER_TURN):
            pieces = self.server.data_to_send(PULL_BYTES)
            while self.server.successor is not None:
                self.server = self.server.successor
            moved = moved or bool(pieces)
            self._hand(self.link, b"".join(pieces))
        if self.auto_flush:
            for rig in (self.source, self.target):
                if rig.bucket.flusher.pending:
                    rig.flush()
                    moved = True
                moved = bool(rig.fetch_all()) or moved
        return moved

    def run(self) -> list[Event]:
        """Go on until nothing moves; return what the owner was told."""
        quiet = 0
        for _ in range(100_000):
            quiet = 0 if self.turn() else quiet + 1
            if quiet > 2 or self.link.closing:
                return self.owner.take()
        raise AssertionError("the two never come to rest")

    def tick(self, seconds: float) -> None:
        """Let time pass on both sides."""
        self.now += seconds
        self.link.tick(self.now)
        self.server.tick(self.now)

    def lose(self) -> list[Event]:
        """Cut the connection."""
        self.server.connection_lost()
        self.link.connection_lost()
        return self.owner.take()

    def _hand(self, session: Session, data: bytes) -> None:
        size = self.cut or len(data)
        for at in range(0, len(data), size or 1):
            session.receive_data(data[at : at + size])
            while session.successor is not None:
                session = session.successor


class Script:
    """A source that says what a test wants. See the module docstring."""

    def __init__(self, target: Rig, *, grant: bool = True) -> None:
        self.target = target
        self.owner = Owner()
        self.link = ReplicaLink(target.services.upr, b"repl", _nobody, self.owner)
        self._rest = b""
        self.now = 0.0
        if grant:
            self.greet()

    def greet(self, refused: dict[bytes, int] | None = None) -> list[Frame]:
        """Answer the handshake; `refused` has statuses by key."""
        asked = self.sent()
        for one in asked:
            assert one.opcode in (HELLO, OPEN, CONTROL)
            self.answer(one, (refused or {}).get(one.key, 0))
        return asked

    def sent(self) -> list[Frame]:
        """What the link has sent since the last time."""
        data = self._rest
        while pieces := self.link.data_to_send(PULL_BYTES):
            data += b"".join(pieces)
        frames, self._rest = split(data)
        return frames

    def say(self, *frames: bytes) -> list[Frame]:
        """Send frames in one piece; return what the link says to them."""
        self.link.receive_data(b"".join(frames))
        return self.sent()

    def answer(
        self,
        asked: Frame,
        status: int = 0,
        *,
        extras: bytes = b"",
        value: bytes = b"",
        cas: int = 0,
        datatype: int = 0,
    ) -> list[Frame]:
        """Answer a request of the link."""
        return self.say(
            frame(
                asked.opcode,
                vbucket=status,
                opaque=asked.opaque,
                extras=extras,
                value=value,
                cas=cas,
                datatype=datatype,
                magic=0x81,
            )
        )

    def follow(self, number: int = 0, log: bytes = b"", *, takeover: bool = False) -> int:
        """Have the link follow a vBucket and grant it; return the stream's opaque."""
        if takeover:
            self.link.take_over([number])
        else:
            self.link.follow([number])
        (asked,) = (each for each in self.sent() if each.opcode == STREAM_REQUEST)
        self.answer(asked, value=log or failover_log((0xA, 0)))
        self.owner.take()
        return asked.opaque


def failover_log(*entries: tuple[int, int]) -> bytes:
    return b"".join(struct.pack(">QQ", *entry) for entry in entries)


def _nobody() -> None:
    """Nobody is woken: a test looks by itself."""
