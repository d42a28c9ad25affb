"""A node that a test can make misbehave: right answers, unless the test says otherwise.

What it sends is built with the server's own declarations of the wire (`uprmc.protocol`), not with
what `uprmc.columnar` reads them by.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Sequence

from tests.codec.frames import Frame
from tests.codec.node import HangUp, ScriptedNode
from uprmc.model import FailoverEntry
from uprmc.protocol.binary import encode_hello
from uprmc.protocol.header import encode_request, encode_response
from uprmc.protocol.management import encode_vbucket_seqno_terms, encode_vbucket_seqnos
from uprmc.protocol.opcodes import Feature, Opcode, Status
from uprmc.protocol.upr import (
    MUTATION_EXTRAS,
    STREAM_END_EXTRAS,
    TIMED_DELETION_EXTRAS,
    encode_failover_log,
    snapshot_marker,
)
from uprmc.protocol.upr_extensions import LEASE_GRANT_EXTRAS, LeasedVBucket, encode_lease_grant

UUID = 0xABCD

#: What a test puts in the place of an answer: bytes to send, nothing, or the end of the connection.
Reply = bytes | None


def mutation(
    vbucket: int, opaque: int, seqno: int, key: bytes, value: bytes = b"v", **more: int
) -> bytes:
    """A mutation as a node sends it."""
    numbers = {"rev": 1, "flags": 0, "expiration": 0, "nmeta": 0, "cas": seqno} | more
    extras = MUTATION_EXTRAS.pack(
        seqno, numbers["rev"], numbers["flags"], numbers["expiration"], 0, numbers["nmeta"], 0
    )
    return encode_request(
        Opcode.UPR_MUTATION, key=key, extras=extras, value=value, vbucket=vbucket, opaque=opaque,
        cas=numbers["cas"], datatype=more.get("datatype", 0),
    )  # fmt: skip


def deletion(vbucket: int, opaque: int, seqno: int, key: bytes) -> bytes:
    """A deletion as a node sends it."""
    extras = TIMED_DELETION_EXTRAS.pack(seqno, 2, 1_700_000_000, 0)
    return encode_request(
        Opcode.UPR_DELETION, key=key, extras=extras, vbucket=vbucket, opaque=opaque, cas=seqno
    )


def marker(vbucket: int, opaque: int, start: int, end: int) -> bytes:
    """A snapshot marker from disk."""
    return snapshot_marker(vbucket, opaque, start, end, 2)


def stream_end(vbucket: int, opaque: int, reason: int = 0) -> bytes:
    """The end of a stream."""
    extras = STREAM_END_EXTRAS.pack(reason)
    return encode_request(Opcode.UPR_STREAM_END, extras=extras, vbucket=vbucket, opaque=opaque)


def accepted(opaque: int, log: Sequence[FailoverEntry] = (FailoverEntry(UUID, 0),)) -> bytes:
    """The answer to a stream request that is accepted."""
    value = encode_failover_log(log)
    return encode_response(Opcode.UPR_STREAM_REQUEST, value=value, opaque=opaque)


def refused(frame: Frame, status: Status, value: bytes = b"") -> bytes:
    """An answer that is no success."""
    return encode_response(frame.opcode, status, value=value, opaque=frame.opaque)


class FakeNode(ScriptedNode):
    """See the module docstring.

    Attributes:
        high: the high seqno of each of its vBuckets.
        vbuckets: how many there are in all.
        instead: by opcode, what to answer instead: called with the request.
        stream: what to send for a stream request.
        term: of each vBucket, ``None`` = it knows no terms.
    """

    def __init__(self, high: dict[int, int], vbuckets: int = 4) -> None:
        self.high, self.vbuckets = high, vbuckets
        self.instead: dict[int, Callable[[Frame], Reply]] = {}
        self.stream: Callable[[Frame], Sequence[Reply]] = self.whole_stream
        self.others: list[str] = []
        self.term: int | None = None
        super().__init__()

    @property
    def asked(self) -> list[Frame]:
        """Every request that came, in order."""
        return [each for each in [*self.seen] if not each.is_reply]

    @property
    def answered(self) -> list[Frame]:
        """Every answer that came: to keep-alives."""
        return [each for each in [*self.seen] if each.is_reply]

    def count(self, opcode: int) -> int:
        """How often something was asked."""
        return len(self.requests(opcode))

    def whole_stream(self, frame: Frame) -> list[Reply]:
        """Everything of a vBucket above the start that was asked for."""
        (start,) = struct.unpack_from(">Q", frame.extras, 8)
        vbucket, opaque, high = frame.vbucket, frame.opaque, self.high[frame.vbucket]
        items = [
            mutation(vbucket, opaque, seqno, b"k%d" % seqno) for seqno in range(start + 1, high + 1)
        ]
        markers = [marker(vbucket, opaque, 0, high)] if items else []
        return [accepted(opaque), *markers, *items, stream_end(vbucket, opaque)]

    def answers(self, asked: Frame) -> Iterable[bytes]:
        for each in () if asked.is_reply else self._replies(asked):
            if each is None:
                raise HangUp
            yield each

    def _replies(self, frame: Frame) -> Sequence[Reply]:
        if frame.opcode in self.instead:
            return [self.instead[frame.opcode](frame)]
        if frame.opcode == Opcode.UPR_STREAM_REQUEST:
            return self.stream(frame)
        if frame.opcode == Opcode.UPR_BUFFER_ACK:
            return []
        extras, value = self._body(frame)
        return [encode_response(frame.opcode, extras=extras, value=value, opaque=frame.opaque)]

    def _body(self, frame: Frame) -> tuple[bytes, bytes]:
        if frame.opcode == Opcode.GET_CLUSTER_CONFIG:
            servers = {
                "serverList": [self.place, *self.others],
                "vBucketMap": [[0]] * self.vbuckets,
            }
            return b"", json.dumps({"vBucketServerMap": servers}).encode()
        if frame.opcode == Opcode.HELLO and self.term is not None:
            return b"", encode_hello([Feature.TERMS])
        if frame.opcode == Opcode.GET_ALL_VB_SEQNOS and self.term is not None:
            rows = [(number, seqno, self.term) for number, seqno in self.high.items()]
            return b"", encode_vbucket_seqno_terms(rows)
        if frame.opcode == Opcode.GET_ALL_VB_SEQNOS:
            return b"", encode_vbucket_seqnos(self.high.items())
        if frame.opcode == Opcode.GET_FAILOVER_LOG:
            return b"", encode_failover_log([FailoverEntry(UUID, 0)])
        if frame.opcode == Opcode.LEASE_ACQUIRE:
            numbers = [number for (number,) in struct.iter_unpack(">H", frame.value)]
            leased = [LeasedVBucket(number, UUID, self.high[number], 0) for number in numbers]
            return LEASE_GRANT_EXTRAS.pack(7, 60), encode_lease_grant(leased)
        if frame.opcode == Opcode.LEASE_RENEW:
            return LEASE_GRANT_EXTRAS.pack(7, 60), b""
        return b"", b""
