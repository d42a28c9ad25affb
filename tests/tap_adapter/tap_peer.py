"""A producer on a leash, and the client at its other end: what transcripts stand on.

`Rig` joins a `TapProducer` to a `FakeNode`; `Peer` is a TAP client that keeps documents as real
ones do and acknowledges as it is told to.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tests.tap_adapter.fake_keeper import FakeKeeper
from tests.tap_adapter.fake_upstream import FakeNode, FakeUpstream
from uprmc.config import TapSettings
from uprmc.protocol.header import unpack_request
from uprmc.protocol.opcodes import HEADER_BYTES, Opcode
from uprmc.protocol.tap import Connect, ConnectFlag, TapMessage, TapOpaque, decode_message
from uprmc.tap_adapter.names import Names
from uprmc.tap_adapter.producer import TapProducer

ACK = ConnectFlag.SUPPORT_ACK
DUMP = ConnectFlag.DUMP
CHECKPOINT = ConnectFlag.CHECKPOINT
TAKEOVER = ConnectFlag.TAKEOVER_VBUCKETS | ConnectFlag.LIST_VBUCKETS
REGISTERED = ConnectFlag.REGISTERED_CLIENT
KEYS_ONLY = ConnectFlag.REQUEST_KEYS_ONLY
IN_ORDER = ConnectFlag.FIX_FLAG_BYTEORDER

OK = 0
BUSY = 0x85
TEMPORARY_FAILURE = 0x86

UNIX_NOW = 1_700_000_000.0
FOR_EVER = 2**64 - 1


def take_apart(data: bytes) -> list[TapMessage]:
    """All messages of a stream; a NOOP is one without anything."""
    messages = []
    while data:
        _, opcode, key_length, extras_length, _, vbucket, body_length, opaque, cas = unpack_request(
            data
        )
        end = HEADER_BYTES + body_length
        body, data = data[HEADER_BYTES:end], data[end:]
        assert len(body) == body_length, "half a message"
        if opcode == Opcode.NOOP:
            message = TapMessage(opcode, vbucket, opaque, cas, 0, 0, 0, 0, b"", b"", b"")
        else:
            extras, rest = body[:extras_length], body[extras_length:]
            message = decode_message(opcode, vbucket, opaque, cas, extras, key_length, rest)
        messages.append(message)
    return messages


def brief(message: TapMessage) -> str:
    """A message in one word or two, as tests compare them."""
    number = int.from_bytes(message.specific, "big")
    if message.opcode == Opcode.TAP_MUTATION:
        text = f"{message.key.decode()}={message.value.decode()}"
    elif message.opcode == Opcode.TAP_DELETE:
        text = f"-{message.key.decode()}"
    elif message.opcode == Opcode.TAP_OPAQUE:
        per_vbucket = number in (1, 3, 8)
        text = f"opaque {number}" + (f" vb{message.vbucket}" if per_vbucket else "")
    elif message.opcode == Opcode.TAP_VBUCKET_SET:
        text = f"state {number} vb{message.vbucket}"
    elif message.opcode == Opcode.TAP_FLUSH:
        text = "flush"
    elif message.opcode == Opcode.TAP_CHECKPOINT_START:
        text = f"start {int.from_bytes(message.value, 'big')}"
    elif message.opcode == Opcode.TAP_CHECKPOINT_END:
        text = f"end {int.from_bytes(message.value, 'big')}"
    else:
        text = "noop"
    return text + ("!" if message.wants_ack else "")


class Peer:
    """What a client holds: (vBucket, key) -> value, flags, expiry, CAS; and what it was told."""

    def __init__(self) -> None:
        self.documents: dict[int, dict[bytes, tuple[bytes, int, int, int]]] = {}
        self.states: dict[int, int] = {}
        self.open_checkpoints: dict[int, int] = {}
        self.closed_checkpoints: dict[int, int] = {}

    def take(self, message: TapMessage) -> None:
        """Do what a message says; the item's flags are those on the wire."""
        held = self.documents.setdefault(message.vbucket, {})
        if message.opcode == Opcode.TAP_MUTATION:
            held[message.key] = (
                message.value,
                message.item_flags,
                message.expiration,
                message.cas,
            )
        elif message.opcode == Opcode.TAP_DELETE:
            held.pop(message.key, None)
        elif message.opcode == Opcode.TAP_OPAQUE:
            if int.from_bytes(message.specific, "big") == TapOpaque.INITIAL_VBUCKET_STREAM:
                held.clear()
                self.open_checkpoints.pop(message.vbucket, None)
        elif message.opcode == Opcode.TAP_FLUSH:
            for each in (self.documents, self.open_checkpoints, self.closed_checkpoints):
                each.clear()
        elif message.opcode == Opcode.TAP_VBUCKET_SET:
            self.states[message.vbucket] = int.from_bytes(message.specific, "big")
        elif message.opcode == Opcode.TAP_CHECKPOINT_START:
            self.open_checkpoints[message.vbucket] = int.from_bytes(message.value, "big")
        elif message.opcode == Opcode.TAP_CHECKPOINT_END:
            checkpoint_id = int.from_bytes(message.value, "big")
            assert self.open_checkpoints.pop(message.vbucket, None) == checkpoint_id, "a wrong end"
            self.closed_checkpoints[message.vbucket] = checkpoint_id


class Rig:
    """One adapter's names and settings over a node; `connect` begins a connection."""

    def __init__(self, node: FakeNode, **settings: object) -> None:
        self.node = node
        self.settings = replace(TapSettings(), keepalive_s=1_000.0, **settings)  # type: ignore[arg-type]
        self.keeper = FakeKeeper()
        self.names = Names(self.settings, self.keeper)
        self.now = 100.0

    def connect(
        self,
        flags: int = 0,
        *,
        name: bytes = b"client",
        vbuckets: Iterable[int] | None = None,
        age: int | None = None,
        last_closed: dict[int, int] | None = None,
        closed_only: bool = False,
        **options: object,
    ) -> Line:
        """Connect; `age` is that of BACKFILL, `options` are those of `FakeUpstream`."""
        listed = None if vbuckets is None else tuple(vbuckets)
        if listed is not None:
            flags |= ConnectFlag.LIST_VBUCKETS
        if age is not None:
            flags |= ConnectFlag.BACKFILL
        connect = Connect(name, int(flags), age or 0, listed, last_closed or {}, closed_only)
        return Line(self, connect, options)

    def restart(self) -> None:
        """Begin a new process with the same keeper."""
        self.names = Names(self.settings, FakeKeeper(self.keeper.documents))


class Line:
    """One connection: its producer, and what has come out of it.

    Attributes:
        producer: the producer.
        upstream: its upstream.
        wakes: how often it has asked to be pulled.
    """

    def __init__(self, rig: Rig, connect: Connect, options: dict[str, object]) -> None:
        self.rig = rig
        self.wakes = 0
        self.heard: list[TapMessage] = []
        self.unanswered: list[TapMessage] = []
        self.upstream = FakeUpstream(rig.node, wake=self._woken, **options)  # type: ignore[arg-type]
        self.known = rig.names.connect(connect, rig.now, UNIX_NOW)
        self.producer = TapProducer(
            self.known.connect,
            self.known,
            self.upstream,
            rig.settings,
            self._woken,
            rig.now,
            UNIX_NOW,
        )
        self.known.producer = self.producer

    def _woken(self) -> None:
        self.wakes += 1

    def fill(self, budget: int = 1_000_000) -> list[TapMessage]:
        """One call of the producer's `fill`."""
        out: list[bytes] = []
        size = self.producer.fill(out, budget)
        assert size == sum(map(len, out)), "it says another size than it has put out"
        messages = take_apart(b"".join(out))
        self.heard += messages
        self.unanswered += [message for message in messages if message.wants_ack]
        return messages

    def drain(self, budget: int = 1_000_000) -> list[TapMessage]:
        """All that comes without any answer."""
        messages: list[TapMessage] = []
        for _ in range(100_000):
            more = self.fill(budget)
            if not more:
                return messages
            messages += more
        raise AssertionError("it never stops")

    def said(self, budget: int = 1_000_000) -> list[str]:
        """All that comes without any answer, in brief."""
        return [brief(message) for message in self.drain(budget)]

    def run(self, budget: int = 1_000_000) -> list[str]:
        """All that comes when everything is acknowledged at once, in brief."""
        return [brief(message) for message in self.run_messages(budget)]

    def run_messages(self, budget: int = 1_000_000) -> list[TapMessage]:
        messages: list[TapMessage] = []
        for _ in range(100_000):
            more = self.drain(budget)
            messages += more
            if not more and not self.unanswered:
                return messages
            self.ack_all()
        raise AssertionError("it never stops")

    def ack_all(self) -> None:
        """Acknowledge everything that asked for it."""
        for message in self.unanswered:
            self.answer(message)
        self.unanswered = []

    def answer(self, message: TapMessage, status: int = OK) -> None:
        """Answer one message."""
        self.producer.answered(message.opcode, message.opaque, status)

    def refuse(self, message: TapMessage, status: int = TEMPORARY_FAILURE) -> None:
        """Answer one negatively; what asked after it stays unanswered."""
        self.unanswered = [other for other in self.unanswered if other is not message]
        self.answer(message, status)

    def tick(self, seconds: float) -> None:
        """Let time pass."""
        self.rig.now += seconds
        self.producer.tick(self.rig.now)

    def leave(self) -> None:
        """Hang up."""
        finished = self.producer.finished
        self.producer.close()
        self.rig.names.left(self.known, self.rig.now, UNIX_NOW, finished=finished)
