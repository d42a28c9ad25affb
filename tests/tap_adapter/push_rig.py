"""A legacy master at our registry, without a network: messages as bytes, answers taken apart.

The frames are those of `interop.tap_wire`, which shares no code with `uprmc`.
"""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any, NamedTuple

from interop import tap_wire as t
from interop.tap_wire import message as message
from interop.wire import HEADER
from tests.contents import table_of
from tests.kv.harness import Rig
from uprmc.engine.bucket import Bucket
from uprmc.engine.vbucket import VBucket
from uprmc.engine.warmup import Warmup
from uprmc.model import Item, VBucketState
from uprmc.tap_adapter.consumer import Pushes, TapConsumer
from uprmc.upr.hub import Hub

ACTIVE, REPLICA, PENDING, DEAD = VBucketState

MUTATION, DELETE, FLUSH, OPAQUE, VBUCKET_SET, START, END = range(0x41, 0x48)

ACK, NO_VALUE, NETWORK_ORDER = 0x01, 0x02, 0x04

OK, TOO_LARGE, INVALID, NOT_MY_VBUCKET, LATER = 0x00, 0x03, 0x04, 0x07, 0x86

#: The map that stands in answers 0x07.
MAP = b'{"rev":1}'


class Answer(NamedTuple):
    opcode: int
    status: int
    opaque: int
    body: bytes


def mutation(
    key: bytes, value: bytes = b"value", *, vbucket: int = 0, opaque: int = 0, **more: Any
) -> bytes:
    """A document; without `rev` as masters up to 1.8 send it, without `nru` as pump_tap does."""
    return t.mutation(vbucket, opaque, key, value, **{"cas": 77} | more)


def delete(key: bytes, *, rev: int | None = 1, **more: Any) -> bytes:
    specific = b"" if rev is None else struct.pack(">Q", rev)
    return message(DELETE, specific=specific, key=key, **more)


def opaque(code: int, vbucket: int = 0, **more: Any) -> bytes:
    return message(OPAQUE, vbucket, specific=struct.pack(">I", code), **more)


def vbucket_set(state: int, vbucket: int = 0, **more: Any) -> bytes:
    return message(VBUCKET_SET, vbucket, specific=struct.pack(">I", state), **more)


def start(checkpoint_id: int, vbucket: int = 0, *, deleted_rev: int = 0, **more: Any) -> bytes:
    section, value = struct.pack(">Q", deleted_rev), struct.pack(">Q", checkpoint_id)
    name = b"checkpoint_start"
    return message(START, vbucket, specific=section, item=(0, 0), key=name, value=value, **more)


def end(checkpoint_id: int, vbucket: int = 0, **more: Any) -> bytes:
    value = struct.pack(">Q", checkpoint_id)
    return message(END, vbucket, item=(0, 0), key=b"checkpoint_end", value=value, **more)


def answer_of(data: bytes) -> Answer:
    magic, opcode, key, extras, _, status, body, opaque, cas = HEADER.unpack_from(data)
    assert (magic, key, extras, cas) == (0x81, 0, 0, 0)
    assert len(data) == 24 + body
    return Answer(opcode, status, opaque, data[24:])


class PushRig:
    """A node, and the connection of a master.

    Attributes:
        rig: the node; all of its vBuckets are active unless told otherwise.
        pushes: where connections are listed.
        consumer: the newest connection.
    """

    def __init__(self, state: VBucketState = ACTIVE, **changes: Any) -> None:
        self.rig = Rig(**changes)
        if state != ACTIVE:
            for number in list(self.bucket.vbuckets):
                self.bucket.set_state(number, state)
        self.pushes = Pushes()
        self.consumer = self.connect()

    @property
    def bucket(self) -> Bucket:
        return self.rig.bucket

    @property
    def vbucket(self) -> VBucket:
        """vBucket 0."""
        return self.bucket.vbuckets[0]

    def connect(self) -> TapConsumer:
        """Let the master come anew; whoever was connected stays so."""
        self.consumer = TapConsumer(self.rig.services.upr, self.pushes, lambda: MAP)
        return self.consumer

    def lose(self) -> None:
        self.consumer.close()

    def reconnect(self) -> None:
        self.lose()
        self.connect()

    def crash(self) -> None:
        """Begin again from what is on disk."""
        self._restart()

    def _restart(self) -> None:
        rig = self.rig
        rig.store = rig.store.reopened()
        rig.bucket = Bucket(rig.settings, rig.store, rig.clock, rig.bucket.entropy)
        for _ in Warmup(rig.bucket).steps():
            pass
        rig.services = replace(
            rig.services, bucket=rig.bucket, upr=Hub(rig.bucket, rig.settings.upr)
        )
        self.pushes = Pushes()
        self.connect()

    # --- pushing --------------------------------------------------------------------------------

    def take(self, frame: bytes) -> Answer | None:
        """Push one message as a session does."""
        magic, opcode, key, extras, _, vbucket, body, opaque, cas = HEADER.unpack_from(frame)
        assert magic == 0x80
        assert len(frame) == 24 + body
        middle = 24 + extras
        answer = self.consumer.take(
            opcode, vbucket, opaque, cas, frame[24:middle], key, frame[middle:]
        )
        return None if answer is None else answer_of(answer)

    def push(self, *frames: bytes) -> None:
        """Push messages; none may be refused."""
        for frame in frames:
            answer = self.take(frame)
            assert answer is None or answer.status == OK, answer

    def refused(self, frame: bytes) -> int:
        """Push a message that must be refused and must change nothing; return the status."""
        before = self.snapshot()
        answer = self.take(frame)
        assert answer is not None
        assert answer.status
        assert (answer.opcode, answer.opaque) == (frame[1], HEADER.unpack_from(frame)[7])
        assert self.snapshot() == before
        return answer.status

    def snapshot(self) -> dict[int, tuple[object, ...]]:
        return {
            number: (each.state, each.high_seqno, each.failover_log, dict(table_of(each)))
            for number, each in self.bucket.vbuckets.items()
        }

    def item(self, key: bytes, vbucket: int = 0) -> Item | None:
        found = self.bucket.vbuckets[vbucket].table.find(key)
        return None if found is None or found.life else found

    def check(self) -> None:
        self.rig.check()
        counted = sum(each.table.memory_bytes() for each in self.bucket.vbuckets.values())
        assert self.bucket.account.used == counted
