"""The handshake of a stream connection as a table: what each kind of consumer asks a producer for.

A handshake is HELLO, OPEN and some CONTROLs. `CONTROLS` has every CONTROL with its value; each
`Handshake` is a column: what it says with HELLO and OPEN, which CONTROLs it sends in which order,
and which of them it cannot do without. A refused HELLO never matters, a refused OPEN always does.

Strict consumers talk to nodes like this one, tolerant ones to any producer since UPR 3.0: these
do without everything that may be refused.

See `docs/extensions.md`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol, Self

from uprmc.errors import RemoteProtocolError
from uprmc.protocol.binary import decode_hello, encode_hello
from uprmc.protocol.control import (
    BACKFILL_ORDER,
    BARRIERS,
    END_ON_CLOSE,
    EXPIRATIONS,
    FACTS,
    FLOORS,
    FLOW_CONTROL,
    HEALS,
    KEEP_ALIVE_INTERVAL,
    KEEP_ALIVES,
    LEASES,
    MARKERS,
    ORIGINS,
    OURS,
    PERSISTED,
    REPORTS,
    SNAPSHOTS,
    STREAM_REQUESTS,
    TERMS,
    VERSIONS,
    WATERMARKS,
)
from uprmc.protocol.header import RequestFrame
from uprmc.protocol.opcodes import Feature, Opcode, OpenFlag, Status
from uprmc.protocol.upr import OPEN_EXTRAS

#: Each CONTROL's value; `Handshake.controls` fills in what is in braces.
CONTROLS: Mapping[bytes, str] = {
    FLOW_CONTROL: "{buffer_bytes}",
    KEEP_ALIVES: "true",
    KEEP_ALIVE_INTERVAL: "{interval_s:g}",
    EXPIRATIONS: "true",
    MARKERS: "2.2",
    END_ON_CLOSE: "true",
    BACKFILL_ORDER: "sequential",
    VERSIONS: "true",
    PERSISTED: "true",
    HEALS: "true",
    TERMS: "true",
    FACTS: "true",
    ORIGINS: "true",
    BARRIERS: "true",
    LEASES: "true",
    SNAPSHOTS: "true",
    STREAM_REQUESTS: "true",
    WATERMARKS: "true",
    REPORTS: "true",
    FLOORS: "true",
}


@dataclass(frozen=True, slots=True)
class Handshake:
    """One column of the table."""

    asks: tuple[bytes, ...]  # keys of the CONTROLs that are sent, in this order
    needs: frozenset[bytes] = frozenset()  # of these, those whose refusal ends the connection
    unnumbered: frozenset[bytes] = frozenset()  # of these, those that are sent with opaque 0
    # what HELLO asks for.
    features: tuple[Feature, ...] = (Feature.JSON, Feature.XERROR, Feature.TERMS)
    flags: int = OpenFlag.PRODUCER | OpenFlag.DELETE_TIMES  # of OPEN

    def registering(self, *more: bytes) -> Self:
        """Return the same for a consumer that registers with the watermarks of a node.

        Args:
            more: other keys that belong to that.
        """
        return replace(self, asks=(*self.asks, WATERMARKS, REPORTS, *more))

    def hello(self, agent: bytes) -> RequestFrame:
        """Return the HELLO; `agent` is what the producer's log calls us."""
        return RequestFrame(Opcode.HELLO, key=agent, value=encode_hello(self.features))

    def open(self, name: bytes, more_flags: int = 0) -> RequestFrame:
        """Return the OPEN of a connection with this name."""
        extras = OPEN_EXTRAS.pack(0, self.flags | more_flags)
        return RequestFrame(Opcode.UPR_OPEN, key=name, extras=extras)

    def controls(self, *, buffer_bytes: int = 0, interval_s: float = 0.0) -> list[RequestFrame]:
        """Return the CONTROLs.

        Args:
            buffer_bytes: how far a producer may be ahead of what was acknowledged.
            interval_s: between keep-alives.
        """
        wanted = {"buffer_bytes": buffer_bytes, "interval_s": interval_s}
        return [
            RequestFrame(Opcode.UPR_CONTROL, key=key, value=CONTROLS[key].format(**wanted).encode())
            for key in self.asks
        ]

    def is_fatal(self, asked: RequestFrame, status: int) -> bool:
        """Return whether this answer to a frame of the handshake ends the connection."""
        needed = asked.opcode == Opcode.UPR_OPEN or asked.key in self.needs
        return needed and status != Status.SUCCESS


#: A replica over a connection that this node has dialled. Strict.
REPLICA = Handshake(
    asks=(
        FLOW_CONTROL,
        KEEP_ALIVES,
        KEEP_ALIVE_INTERVAL,
        EXPIRATIONS,
        MARKERS,
        VERSIONS,
        PERSISTED,
        HEALS,
        FACTS,
        ORIGINS,
        END_ON_CLOSE,
    ),
    needs=frozenset({FLOW_CONTROL, KEEP_ALIVES}),
)

#: The same for a node that registers with its sources.
REGISTERED_REPLICA = REPLICA.registering(FLOORS)

#: A replica over a connection that a manager has opened and splices: it sends neither HELLO nor
#: OPEN, and asks for nothing that would be the manager's business. Tools of 2014 expect the first
#: stream's opaque to be 3, so what younger servers added has none. Tolerant.
SPLICED_REPLICA = Handshake(
    asks=(FLOW_CONTROL, KEEP_ALIVES, MARKERS, TERMS, FACTS, ORIGINS),
    unnumbered=frozenset({MARKERS, TERMS, FACTS, ORIGINS}),
)

#: A program over the client library. Tolerant. It needs no frame at the end of a snapshot: the last
#: item has the seqno that the marker gave as the end.
PROGRAM = Handshake(
    asks=(
        FLOW_CONTROL,
        KEEP_ALIVES,
        KEEP_ALIVE_INTERVAL,
        EXPIRATIONS,
        END_ON_CLOSE,
        MARKERS,
        VERSIONS,
        BARRIERS,
        LEASES,
        SNAPSHOTS,
        STREAM_REQUESTS,
    ),
)

#: The TAP adapter's upstream. It passes frames on and uses none of our extensions: `VERSIONS` only
#: tells whether the producer is a node like this one. Tolerant.
TAP_UPSTREAM = Handshake(
    asks=(FLOW_CONTROL, KEEP_ALIVES, KEEP_ALIVE_INTERVAL, VERSIONS),
    features=(Feature.XERROR,),
    flags=OpenFlag.PRODUCER,
)

#: A reader of snapshots that a lease keeps: Spark, backups. Its HELLO is that of its other
#: questions, sent as soon as it is connected. Strict.
LEASE_READER = Handshake(
    asks=(
        LEASES,
        FLOW_CONTROL,
        KEEP_ALIVES,
        KEEP_ALIVE_INTERVAL,
        EXPIRATIONS,
        MARKERS,
        BACKFILL_ORDER,
    ),
    needs=frozenset({LEASES}),
    features=(
        Feature.JSON,
        Feature.XERROR,
        Feature.MUTATION_SEQNO,
        Feature.SELECT_BUCKET,
        Feature.TERMS,
        Feature.ORIGINS,
    ),
)

#: A client that only reports watermarks: the driver of a Spark stream or a backup, whose tasks read
#: elsewhere. Tolerant.
REGISTRAR = Handshake(asks=()).registering()

#: A client that only asks who has which vBucket.
SURVEYOR = Handshake(asks=(), features=(Feature.TERMS,))

#: A client that reads and changes documents.
DOCUMENTS = Handshake(
    asks=(),
    features=(
        Feature.JSON,
        Feature.DATATYPE,
        Feature.XERROR,
        Feature.MUTATION_SEQNO,
        Feature.TERMS,
    ),
)

#: A link to another cluster, which reads this node in the same process. Strict.
LINK = Handshake(asks=(EXPIRATIONS, MARKERS, WATERMARKS, ORIGINS))

#: A link that compares what its target has with its own node. It needs no values. Strict.
COMPARER = Handshake(
    asks=(FLOW_CONTROL, ORIGINS),
    needs=frozenset({FLOW_CONTROL, ORIGINS}),
    features=(
        Feature.JSON,
        Feature.XERROR,
        Feature.SELECT_BUCKET,
        Feature.TERMS,
        Feature.ORIGINS,
    ),
    flags=OpenFlag.PRODUCER | OpenFlag.NO_VALUE,
)


# --- what is answered -----------------------------------------------------------------------------


class HasStatus(Protocol):
    """An answer."""

    @property
    def status(self) -> int:
        """A `Status` number, or one without a name."""


def granted(asked: Iterable[RequestFrame], answers: Iterable[HasStatus]) -> set[bytes]:
    """Return the keys of the CONTROLs that were accepted."""
    return {
        frame.key
        for frame, answer in zip(asked, answers, strict=True)
        if frame.opcode == Opcode.UPR_CONTROL and answer.status == Status.SUCCESS
    }


def grants(feature: Feature, status: int, value: bytes) -> bool:
    """Return whether the answer to HELLO grants a feature.

    Old nodes refuse HELLO; what makes no sense grants nothing.
    """
    try:
        return status == Status.SUCCESS and feature in decode_hello(value)
    except RemoteProtocolError:
        return False


def tells_terms(status: int, value: bytes) -> bool:
    """Return whether the answer to HELLO says that the node tells terms of vBuckets."""
    return grants(Feature.TERMS, status, value)


def is_ours(keys: Iterable[bytes]) -> bool:
    """Return whether who has granted these is a node like this one.

    Others may hang up on a command that they do not know, every time.
    """
    return any(key.startswith(OURS) for key in keys)
