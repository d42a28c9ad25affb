"""Bodies of the memcached binary commands: the layouts of extras and values.

Layouts are declared with construct. Fixed ones have a derived `struct.Struct` next to them, named
in capitals, that hot code packs and unpacks with; variable ones have an encoder and a decoder for
plain values. `shapes` decides which frames are answered at all.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from construct import (
    Bytes,
    Const,
    GreedyRange,
    Int8ub,
    Int16ub,
    Int32ub,
    Int64ub,
    Rebuild,
    Terminated,
    len_,
    this,
)
from construct import Struct as Layout

from uprmc.errors import LocalProtocolError, RemoteProtocolError
from uprmc.protocol.derive import derive
from uprmc.protocol.rows import build_rows, pack_rows, parse_rows, unpack_rows

# --- fixed layouts ------------------------------------------------------------------------------

#: Extras of set, add and replace. Expiration as in section 4.1, unsigned.
StoreExtras = Layout("flags" / Int32ub, "expiration" / Int32ub)
STORE_EXTRAS = derive(StoreExtras)

#: Extras of increment and decrement; `DO_NOT_CREATE` as expiration leaves a missing key missing.
ArithmeticExtras = Layout("delta" / Int64ub, "initial" / Int64ub, "expiration" / Int32ub)
ARITHMETIC_EXTRAS = derive(ArithmeticExtras)

#: Extras that flush may carry: delay in seconds, or absolute time.
FlushExtras = Layout("expiration" / Int32ub)
FLUSH_EXTRAS = derive(FlushExtras)

#: Extras of touch, gat and gatk.
TouchExtras = Layout("expiration" / Int32ub)
TOUCH_EXTRAS = derive(TouchExtras)

VerbosityExtras = Layout("level" / Int32ub)
VERBOSITY_EXTRAS = derive(VerbosityExtras)

#: Extras that getl may carry: seconds to hold the lock; 0 or too many means the default.
GetLockExtras = Layout("seconds" / Int32ub)
GET_LOCK_EXTRAS = derive(GetLockExtras)

#: Extras of every reply that contains a document, and of the reply to touch.
GetReplyExtras = Layout("flags" / Int32ub)
GET_REPLY_EXTRAS = derive(GetReplyExtras)

#: Value of the reply to increment and decrement.
CounterValue = Layout("number" / Int64ub)
COUNTER_VALUE = derive(CounterValue)

#: Extras of replies to mutations after HELLO granted `Feature.MUTATION_SEQNO`.
MutationSeqnoExtras = Layout("uuid" / Int64ub, "seqno" / Int64ub)
MUTATION_SEQNO_EXTRAS = derive(MutationSeqnoExtras)

#: Value of OBSERVE_SEQNO: the history that the client knows.
ObserveSeqnoRequest = Layout("uuid" / Int64ub)
OBSERVE_SEQNO_REQUEST = derive(ObserveSeqnoRequest)

#: Value of its reply while that history is the current one: 27 bytes.
ObserveSeqnoReply = Layout(
    "format" / Const(0, Int8ub),
    "vbucket" / Int16ub,
    "uuid" / Int64ub,
    "persisted_seqno" / Int64ub,
    "current_seqno" / Int64ub,
)
OBSERVE_SEQNO_REPLY = derive(ObserveSeqnoReply)

#: Value of its reply after a failover: 43 bytes. Both histories are the same up to
#: `last_old_seqno`.
ObserveSeqnoFailoverReply = Layout(
    "format" / Const(1, Int8ub),
    "vbucket" / Int16ub,
    "uuid" / Int64ub,
    "persisted_seqno" / Int64ub,
    "current_seqno" / Int64ub,
    "old_uuid" / Int64ub,
    "last_old_seqno" / Int64ub,
)
OBSERVE_SEQNO_FAILOVER_REPLY = derive(ObserveSeqnoFailoverReply)

# --- variable layouts ---------------------------------------------------------------------------

_OBSERVED_KEY = (
    "vbucket" / Int16ub,
    "key_length" / Rebuild(Int16ub, len_(this.key)),
    "key" / Bytes(this.key_length),
)

#: Value of OBSERVE: any number of keys, each with its vBucket.
ObserveRequest = Layout("entries" / GreedyRange(Layout(*_OBSERVED_KEY)), Terminated)

#: Value of its reply: the same keys in the same order, with `ObservedState` and CAS.
ObserveReply = Layout(
    "entries" / GreedyRange(Layout(*_OBSERVED_KEY, "state" / Int8ub, "cas" / Int64ub)), Terminated
)

#: The fixed parts of both, since one request may name thousands of keys.
OBSERVED_KEY_HEAD = derive(Layout("vbucket" / Int16ub, "key_length" / Int16ub))
OBSERVED_STATE = derive(Layout("state" / Int8ub, "cas" / Int64ub))

#: Value of HELLO and of its reply: feature numbers.
HELLO_FEATURE = derive(Layout("feature" / Int16ub))

#: Value of GET_ERROR_MAP: the newest version of the format that the client can read.
ERROR_MAP_VERSION = derive(Layout("version" / Int16ub))


class ObservedKey(NamedTuple):
    """A key whose state a client asks for."""

    vbucket: int
    key: bytes


class KeyObservation(NamedTuple):
    """The state of an observed key; `state` is an `ObservedState` number."""

    vbucket: int
    key: bytes
    state: int
    cas: int


class ObservedSeqno(NamedTuple):
    """The answer of OBSERVE_SEQNO about a vBucket."""

    uuid: int  # its present history
    persisted_seqno: int  # everything up to here is on disk
    current_seqno: int  # its newest seqno
    same_history: bool  # whether `uuid` is the history that the client named


def decode_observe_seqno(value: bytes) -> ObservedSeqno:
    """Read the value of the reply to OBSERVE_SEQNO; raises `RemoteProtocolError` by length."""
    if len(value) == OBSERVE_SEQNO_REPLY.size:
        _, _, uuid, persisted, current = OBSERVE_SEQNO_REPLY.unpack(value)
        return ObservedSeqno(uuid, persisted, current, True)
    if len(value) == OBSERVE_SEQNO_FAILOVER_REPLY.size:
        _, _, uuid, persisted, current, _, _ = OBSERVE_SEQNO_FAILOVER_REPLY.unpack(value)
        return ObservedSeqno(uuid, persisted, current, False)
    raise RemoteProtocolError(f"an answer of {len(value)} bytes to OBSERVE_SEQNO")


def decode_observe_request(value: bytes, limit: int = 10_000) -> list[ObservedKey]:
    """Return the keys that OBSERVE asks for.

    Raises:
        RemoteProtocolError: an incomplete entry, or more than `limit` of them.
    """
    found: list[ObservedKey] = []
    position, end = 0, len(value)
    while position < end:
        if end - position < OBSERVED_KEY_HEAD.size or len(found) == limit:
            raise RemoteProtocolError(f"a value of {end} bytes is malformed or names too many keys")
        vbucket, length = OBSERVED_KEY_HEAD.unpack_from(value, position)
        position += OBSERVED_KEY_HEAD.size + length
        if position > end:
            raise RemoteProtocolError(f"a value of {end} bytes is malformed")
        found.append(ObservedKey(vbucket, value[position - length : position]))
    return found


def encode_observe_request(keys: Iterable[ObservedKey]) -> bytes:
    """Return the value of OBSERVE; raises `LocalProtocolError` when a number does not fit."""
    return build_rows(ObserveRequest, [key._asdict() for key in keys])


def decode_observe_reply(value: bytes) -> list[KeyObservation]:
    """Return what OBSERVE found, in the order asked; raises `RemoteProtocolError` when torn."""
    return [
        KeyObservation(entry.vbucket, entry.key, entry.state, entry.cas)
        for entry in parse_rows(ObserveReply, value)
    ]


def encode_observe_reply(observations: Iterable[KeyObservation]) -> bytes:
    """Return the value of OBSERVE's reply; raises `LocalProtocolError` when a number is too big."""
    pieces: list[bytes] = []
    try:
        for vbucket, key, state, cas in observations:
            pieces += (
                OBSERVED_KEY_HEAD.pack(vbucket, len(key)),
                key,
                OBSERVED_STATE.pack(state, cas),
            )
    except struct.error as error:
        raise LocalProtocolError(f"cannot be put on the wire: {error}") from None
    return b"".join(pieces)


def decode_hello(value: bytes) -> list[int]:
    """Return the feature numbers of a HELLO; raises `RemoteProtocolError` on an odd length."""
    return [number for (number,) in unpack_rows(HELLO_FEATURE, value)]


def encode_hello(features: Iterable[int]) -> bytes:
    """Return the value of a HELLO or of its reply; raises `LocalProtocolError` above 0xffff."""
    return pack_rows(HELLO_FEATURE, [(number,) for number in features])
