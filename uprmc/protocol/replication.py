"""Bodies of our own commands that operate replication: REPLICATE, TAKEOVER, FAILOVER, GET_VERSION.

See `docs/extensions.md`.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum, IntFlag
from typing import NamedTuple

from construct import GreedyRange, Int8ub, Int16ub, Int32ub, Int64ub, Terminated
from construct import Struct as Layout

from uprmc.protocol.derive import derive
from uprmc.protocol.rows import pack_rows, unpack_rows

# --- where and which ----------------------------------------------------------------------------

#: Value of REPLICATE, TAKEOVER and FAILOVER: vBuckets by number; of REPLICATE, none = all.
#: The key of the first two is the source's address, HOST:PORT, as this node reaches it.
VBucketsValue = Layout("entries" / GreedyRange(Int16ub), Terminated)
VBUCKET_NUMBER = derive(Layout("vbucket" / Int16ub))

#: Extras of REPLICATE: `ReplicateFlag` bits.
ReplicateExtras = Layout("flags" / Int32ub)
REPLICATE_EXTRAS = derive(ReplicateExtras)


class ReplicateFlag(IntFlag):
    """Bits of REPLICATE.

    `STOP`: stop following, and stay replicas; no key is needed. `DEMOTE`: vBuckets that are active
    here and contain documents may become replicas; changes that the source lacks are undone.
    """

    STOP = 0x01
    DEMOTE = 0x02


# --- what came of it ----------------------------------------------------------------------------

_OUTCOME = Layout("vbucket" / Int16ub, "outcome" / Int16ub)
OUTCOME = derive(_OUTCOME)

#: Value of the reply to TAKEOVER: an `Outcome` for each vBucket that was asked for.
TakeoverReply = Layout("entries" / GreedyRange(_OUTCOME), Terminated)

_BRANCH = Layout("vbucket" / Int16ub, "uuid" / Int64ub, "seqno" / Int64ub)
BRANCH = derive(_BRANCH)

#: Value of the reply to FAILOVER: the newest entry of each vBucket's failover log.
FailoverReply = Layout("entries" / GreedyRange(_BRANCH), Terminated)


class Outcome(IntEnum):
    """The result of a takeover of one vBucket.

    `TAKEN`: it is active here. `REFUSED`: the source did not begin; nothing has changed.
    `INTERRUPTED`: the connection ended on the way; it is not active here and never will be by this
    command, and may be dead at the source.
    """

    TAKEN = 0
    REFUSED = 1
    INTERRUPTED = 2


class Branch(NamedTuple):
    """The newest entry of one vBucket's failover log."""

    vbucket: int
    uuid: int
    seqno: int


def encode_vbuckets(vbuckets: Iterable[int]) -> bytes:
    """Return vBucket numbers as a value; raises `LocalProtocolError` above 0xffff."""
    return pack_rows(VBUCKET_NUMBER, [(number,) for number in vbuckets])


def decode_vbuckets(value: bytes) -> list[int]:
    """Read vBucket numbers; raises `RemoteProtocolError` on an odd length."""
    return [number for (number,) in unpack_rows(VBUCKET_NUMBER, value)]


def encode_outcomes(outcomes: Iterable[tuple[int, Outcome]]) -> bytes:
    """Return the value of the reply to TAKEOVER."""
    return pack_rows(OUTCOME, outcomes)


def decode_outcomes(value: bytes) -> dict[int, int]:
    """Read the value of the reply to TAKEOVER; raises `RemoteProtocolError` when torn."""
    return {vbucket: outcome for vbucket, outcome in unpack_rows(OUTCOME, value)}  # noqa: C416


def encode_branches(branches: Iterable[Branch]) -> bytes:
    """Return the value of the reply to FAILOVER."""
    return pack_rows(BRANCH, branches)


def decode_branches(value: bytes) -> list[Branch]:
    """Read the value of the reply to FAILOVER; raises `RemoteProtocolError` when torn."""
    return [Branch(*row) for row in unpack_rows(BRANCH, value)]


# --- one document's newest version, with its seqno ----------------------------------------------

#: Extras of GET_VERSION: the value is wanted only of versions at or below this seqno.
GetVersionExtras = Layout("upto_seqno" / Int64ub)
GET_VERSION_EXTRAS = derive(GetVersionExtras)

#: Extras of its reply; `life` is a `model.Life`, CAS and datatype are the header's. The
#: `expiration` of a tombstone is its time. A document that never existed, or whose tombstone was
#: dropped, is KEY_NOT_FOUND.
GetVersionReplyExtras = Layout(
    "by_seqno" / Int64ub,
    "rev_seqno" / Int64ub,
    "flags" / Int32ub,
    "expiration" / Int32ub,
    "life" / Int8ub,
)
GET_VERSION_REPLY_EXTRAS = derive(GetVersionReplyExtras)

#: The same of a version that was first accepted elsewhere, after `Feature.ORIGINS` was granted.
GetVersionOriginExtras = Layout(
    *GetVersionReplyExtras.subcons, "origin_uuid" / Int64ub, "origin_seqno" / Int64ub
)
GET_VERSION_ORIGIN_EXTRAS = derive(GetVersionOriginExtras)

#: Extras of that KEY_NOT_FOUND: a deletion that was dropped for good has no seqno above this.
GetVersionMissExtras = Layout("purge_seqno" / Int64ub)
GET_VERSION_MISS_EXTRAS = derive(GetVersionMissExtras)
