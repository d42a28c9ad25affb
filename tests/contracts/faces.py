"""Everything that takes streams, behind one door: a producer's script in, changes or an error out.

The script is a `FakeProducer` that has vBucket 0; faces that need sockets find it behind one.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import Any

from tests.client.api_contract import LIMIT_S, Api, Recorder
from tests.client.consumer_world import Mirror
from tests.client.fake_producer import FakeProducer, drive
from tests.client.fake_producer import Joined as JoinedCore
from tests.client.tap_world import Joined as JoinedUpstream
from tests.client.test_blocking import BlockingApi
from tests.client.twisted_api import TwistedApi
from tests.codec.frames import Frame
from tests.codec.node import HangUp, ScriptedNode
from tests.columnar.read_peer import FakeNode
from tests.contents import table_of
from tests.kv.harness import PULL_BYTES
from tests.server.support import Loop
from tests.upr import peer
from tests.upr.link_rig import Owner, replica_rig
from uprmc.client.errors import ConnectionLost
from uprmc.columnar.access import Access
from uprmc.columnar.read_state import Range
from uprmc.columnar.reading import read
from uprmc.columnar.schema import Columns
from uprmc.remote.errors import ClientError
from uprmc.upr.link import ReplicaLink

NOOP = 0x5C

#: The opaque of keep-alives.
KEEP_ALIVE = 99

UUID = 0xABCD
LOG = struct.pack(">QQ", UUID, 0)

#: Rounds of a conversation in memory, far more than any script needs.
_ROUNDS_MAX = 200

#: A part of a script: a snapshot's first and last seqno, a seqno, frames by producer and opaque, or
#: ``None`` = the connection is lost.
Part = tuple[int, int] | int | Callable[["Producer", int], bytes] | None

Stream = Callable[["Producer", Any], list[bytes | None]]


def accepting(*parts: Part) -> Stream:
    """A stream that is granted and brings this."""

    def stream(producer: Producer, asked: Any) -> list[bytes | None]:
        granted = peer.response(peer.STREAM_REQUEST, opaque=asked.opaque, value=LOG)
        return [granted, *(_frame(producer, each, asked.opaque) for each in parts)]

    return stream


def refusing(status: int, value: bytes) -> Stream:
    """One that is refused."""
    return lambda _, asked: [
        peer.response(peer.STREAM_REQUEST, status, opaque=asked.opaque, value=value)
    ]


def ended(reason: int) -> Callable[[Producer, int], bytes]:
    """The end of a stream."""
    return lambda _, opaque: peer.frame(
        peer.STREAM_END, extras=struct.pack(">I", reason), opaque=opaque
    )


def keep_alive_then(*parts: Part) -> Callable[[Producer, int], bytes]:
    """A keep-alive, and what comes when it was answered."""

    def ask(producer: Producer, opaque: int) -> bytes:
        rest = [_frame(producer, each, opaque) or b"" for each in parts]
        producer.after_keep_alive = b"".join(rest)
        return peer.frame(NOOP, opaque=KEEP_ALIVE)

    return ask


def _frame(producer: Producer, part: Part, opaque: int) -> bytes | None:
    if part is None:
        return None
    if isinstance(part, tuple):
        return peer.marker(0, opaque, *part)
    if isinstance(part, int):
        return peer.mutation(0, opaque, part, b"k%d" % part, b"v")
    return part(producer, opaque)


class Producer(FakeProducer):
    """Streams what it is given, one stream for each request; the last one is repeated.

    Attributes:
        hangs_up: the connection is to be lost now.
        high_seqno: of its vBucket.
        after_keep_alive: what it says once a keep-alive was answered.
    """

    def __init__(self, *streams: Stream, high_seqno: int = 5) -> None:
        super().__init__(lambda asked: b"".join(each for each in self.stream(asked) if each))
        self.log = [(UUID, 0)]
        self.streams = list(streams)
        self.high_seqno = high_seqno
        self.after_keep_alive = b""
        self.hangs_up = False

    def take(self, data: bytes) -> bytes:
        known = len(self.requests)
        said = super().take(data)
        return said + b"".join(map(self.answered, self.requests[known:]))

    def answered(self, frame: Any) -> bytes:
        """What it says to an answer."""
        alive = frame.is_reply and (frame.opcode, frame.opaque) == (NOOP, KEEP_ALIVE)
        return self.after_keep_alive if alive else b""

    def stream(self, asked: Any) -> list[bytes | None]:
        found = self.streams.pop(0) if len(self.streams) > 1 else self.streams[0]
        pieces = found(self, asked)
        self.hangs_up = None in pieces
        return pieces

    def places(self) -> list[tuple[int, int, int]]:
        """From where each stream was asked for: seqno, first and last of its snapshot."""
        return [
            struct.unpack_from(">Q", each.extras, 8) + struct.unpack_from(">QQ", each.extras, 32)
            for each in self.asked(peer.STREAM_REQUEST)
        ]

    def acknowledged(self) -> int:
        """How many bytes were acknowledged in all."""
        return sum(struct.unpack(">I", each.extras)[0] for each in self.asked(peer.BUFFER_ACK))

    def buffer_bytes(self) -> int:
        """Of flow control, as it was asked for."""
        keys = {each.key: each.value for each in self.asked(peer.CONTROL)}
        return int(keys[b"connection_buffer_size"])


class Face:
    """One that takes streams of vBucket 0 from a producer.

    Attributes:
        tolerant: of producers that leave out the last item of a snapshot.
        goes_on: after a loss it asks for the rest by itself.
        returns_to: where it goes on when it is sent back to seqno 1 by a node of other make, which
            cannot tell it versions; ``None`` = it does not.
        words: refusals that it was told, where it passes them on.
    """

    tolerant = True
    goes_on = True
    returns_to: int | None = 1

    def __init__(self, producer: Producer) -> None:
        self.producer = producer
        self.words: list[str] = []

    def seqnos(self) -> list[int]:
        """Of the changes that it has handed on."""
        raise NotImplementedError

    def take(self, seqno: int) -> None:
        """Go on until this one has come; 0 = until there is nothing to be done."""
        raise NotImplementedError

    def fail(self) -> str:
        """Go on until it ends with an error, and return that."""
        raise NotImplementedError

    def close(self) -> None:
        """End it."""


class InMemory(Face):
    """One that a test carries bytes to and from."""

    def step(self) -> str:
        """Carry everything to and fro once, and dial again if need be; the error, if there is."""
        raise NotImplementedError

    def take(self, seqno: int) -> None:
        for _ in range(_ROUNDS_MAX):
            assert not self.step()
            if seqno in (0, *self.seqnos()):
                return
        raise AssertionError(f"only {self.seqnos()} came")

    def fail(self) -> str:
        for _ in range(_ROUNDS_MAX):
            if error := self.step():
                return error
        raise AssertionError("it never ends")


class Core(InMemory):
    """The client library without sockets."""

    def __init__(self, producer: Producer) -> None:
        super().__init__(producer)
        self._mirror = Mirror()
        self._joined = JoinedCore(self._mirror, producer)

    def seqnos(self) -> list[int]:
        return [each.seqno for each in self._mirror.changes]

    def step(self) -> str:
        joined, core = self._joined, self._joined.core
        try:
            joined.settle()
        except ClientError as error:
            return str(error)
        if self.producer.hangs_up:
            self.producer.hangs_up = False
            core.lost(joined.session, ConnectionLost("cut"), joined.now)
        joined.now += 1.0
        for place in core.due(joined.now):
            joined.session = drive(core.connected(place, joined.now))
        return ""


class Replica(InMemory):
    """A node that has dialled another one."""

    tolerant = False
    returns_to = 0

    def __init__(self, producer: Producer) -> None:
        super().__init__(producer)
        self._rig = replica_rig()
        self._owner = Owner()
        self._dial()

    def _dial(self) -> None:
        self._link = ReplicaLink(self._rig.services.upr, b"repl", lambda: None, self._owner)

    def seqnos(self) -> list[int]:
        return sorted(item.seqno for item in table_of(self._rig.bucket.vbuckets[0]).values())

    def step(self) -> str:
        while data := b"".join(self._link.data_to_send(PULL_BYTES)):
            self._link.receive_data(self.producer.take(data))
        if self._rig.bucket.flusher.pending:
            self._rig.flush()
        if self.producer.hangs_up:
            self.producer.hangs_up = False
            self._link.connection_lost()
            self._owner.take()
            self._dial()
        for event in self._owner.take():
            if event[0] == "ended":
                self.words.append(event[2])
            if event[0] in ("opened", "ended"):
                self._link.follow([0])
        return self._link.error


class Upstream(InMemory):
    """What the TAP adapter is fed by; what to ask for is its owner's business."""

    goes_on = False
    returns_to = None

    def __init__(self, producer: Producer) -> None:
        super().__init__(producer)
        self._joined = JoinedUpstream(producer)
        self._answers = self._joined.open(settle=False)

    def seqnos(self) -> list[int]:
        return peer.seqnos(self._joined.frames)

    def step(self) -> str:
        self._joined.drain()
        if self._answers and self._answers[0][0]:
            self.words.append(self._answers[0][1].decode())
        return self._joined.lost[0] if self._joined.lost else ""


class Listening(ScriptedNode):
    """The producer behind a socket."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        super().__init__()

    def answers(self, asked: Frame) -> Iterable[bytes]:
        yield self._producer.take(_bytes_of(asked))
        if self._producer.hangs_up:
            self._producer.hangs_up = False
            raise HangUp


def _bytes_of(asked: Frame) -> bytes:
    return peer.frame(
        asked.opcode, asked.key, asked.value, asked.extras, vbucket=asked.number,
        opaque=asked.opaque, cas=asked.cas, datatype=asked.datatype, magic=asked.magic,
    )  # fmt: skip


class Program(Face):
    """The client library as programs use it."""

    def __init__(self, producer: Producer) -> None:
        super().__init__(producer)
        self._node = Listening(producer)
        self._recorder = Recorder()
        self._api = self._made(self._node.place, self._recorder, poll_s=0.05)
        self._api.start()

    def _made(self, *arguments: Any, **options: Any) -> Api:
        raise NotImplementedError

    def seqnos(self) -> list[int]:
        return [each.seqno for each in self._recorder.changes]

    def take(self, seqno: int) -> None:
        self._api.wait(lambda: seqno in self.seqnos())

    def fail(self) -> str:
        try:
            self._api.join()
        except ClientError as error:
            return str(error)
        raise AssertionError("it has ended well")

    def close(self) -> None:
        self._api.close()
        self._node.stop()


class Blocking(Program):
    """`UprClient`."""

    def _made(self, *arguments: Any, **options: Any) -> Api:
        return BlockingApi(*arguments, **options)


class Twisted(Program):
    """`TwistedUprClient`."""

    def _made(self, *arguments: Any, **options: Any) -> Api:
        self._loop = Loop()
        return TwistedApi(self._loop, *arguments, **options)

    def close(self) -> None:
        super().close()
        self._loop.close()


class LeaseNode(FakeNode):
    """The producer behind a socket, with leases."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        super().__init__({0: producer.high_seqno}, vbuckets=1)
        self.stream = producer.stream

    def answers(self, asked: Frame) -> Iterable[bytes]:
        yield self._producer.answered(asked)
        yield from super().answers(asked)


class Columnar(Face):
    """A read of Spark's, backups' and exports': everything that a lease holds."""

    tolerant = False
    returns_to = None

    def __init__(self, producer: Producer) -> None:
        super().__init__(producer)
        self._node = LeaseNode(producer)
        producer.requests = self._node.seen  # type: ignore[assignment]
        self._seqnos: list[int] = []

    def seqnos(self) -> list[int]:
        return self._seqnos

    def _read(self) -> None:
        quick = {"read_timeout_s": LIMIT_S, "retries": 3, "retry_backoff_s": 0.001}
        for batch in read(Access((self._node.place,), **quick), [Range(0)], Columns(("_seq",))):
            self._seqnos += [row["_seq"] for row in batch.to_pylist()]

    def take(self, seqno: int) -> None:
        self._read()
        assert seqno in self._seqnos

    def fail(self) -> str:
        try:
            self._read()
        except ClientError as error:
            return str(error)
        raise AssertionError("it has ended well")

    def close(self) -> None:
        self._node.stop()


FACES = (Core, Blocking, Twisted, Replica, Upstream, Columnar)
