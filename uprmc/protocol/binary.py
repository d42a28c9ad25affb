"""Bodies of the memcached binary commands: what stands in extras and values, and who may have what.

Layouts are declared with construct. Fixed ones have a derived `struct.Struct` next to them, named
in capitals, that hot code packs and unpacks with; variable ones have an encoder and a decoder that
speak plain values. `SHAPES` and `shape_error` say which frames a server answers at all.

Source: memcached reference, sections 2.2, 2.3 and 2.7; UPR reference, sections 2.13 and 6.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Any, NamedTuple

from construct import (
    Bytes,
    Const,
    ConstructError,
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
from uprmc.protocol.derive import derive, derive_merged
from uprmc.protocol.header import ResponseHeader
from uprmc.protocol.opcodes import KEY_MAX_BYTES, QUIET, Opcode, Status

# --- fixed layouts ------------------------------------------------------------------------------

#: Extras of set, add and replace. Expiration as section 4.1 has it, unsigned.
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

#: Extras of every reply that brings a document, and of the reply to touch.
GetReplyExtras = Layout("flags" / Int32ub)
GET_REPLY_EXTRAS = derive(GetReplyExtras)

#: Header and extras of such a reply in one, because nothing is sent more often. Its struct takes
#: five numbers: `header.response_head`, body length, opaque, CAS, flags.
GetReply = Layout(*ResponseHeader.subcons, *GetReplyExtras.subcons)
MERGED_GET_REPLY = derive_merged(
    GetReply,
    ("magic", "opcode", "key_length", "extras_length", "datatype", "status"),
    ("body_length",),
    ("opaque",),
    ("cas",),
    ("flags",),
)

#: Value of the reply to increment and decrement.
CounterValue = Layout("number" / Int64ub)
COUNTER_VALUE = derive(CounterValue)

#: Extras of replies to mutations after HELLO granted `Feature.MUTATION_SEQNO`.
MutationSeqnoExtras = Layout("uuid" / Int64ub, "seqno" / Int64ub)
MUTATION_SEQNO_EXTRAS = derive(MutationSeqnoExtras)

#: Value of OBSERVE_SEQNO: the history that the client believes in.
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

#: Value of its reply after a failover: 43 bytes. `last_old_seqno` ends what both histories share.
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

#: Value of HELLO and of its reply: feature numbers.
HelloValue = Layout("entries" / GreedyRange(Int16ub), Terminated)


class ObservedKey(NamedTuple):
    """A key that a client asks about."""

    vbucket: int
    key: bytes


class KeyObservation(NamedTuple):
    """What is known of an observed key; `state` is an `ObservedState` number."""

    vbucket: int
    key: bytes
    state: int
    cas: int


def decode_observe_request(value: bytes) -> list[ObservedKey]:
    """Return the keys that OBSERVE asks for; raises `RemoteProtocolError` on a torn entry."""
    return [ObservedKey(entry.vbucket, entry.key) for entry in _parsed(ObserveRequest, value)]


def encode_observe_request(keys: Iterable[ObservedKey]) -> bytes:
    """Return the value of OBSERVE; raises `LocalProtocolError` when a number does not fit."""
    return _built(ObserveRequest, [key._asdict() for key in keys])


def decode_observe_reply(value: bytes) -> list[KeyObservation]:
    """Return what OBSERVE found, in the order asked; raises `RemoteProtocolError` when torn."""
    return [
        KeyObservation(entry.vbucket, entry.key, entry.state, entry.cas)
        for entry in _parsed(ObserveReply, value)
    ]


def encode_observe_reply(observations: Iterable[KeyObservation]) -> bytes:
    """Return the value of OBSERVE's reply; raises `LocalProtocolError` when a number is too big."""
    return _built(ObserveReply, [each._asdict() for each in observations])


def decode_hello(value: bytes) -> list[int]:
    """Return the feature numbers of a HELLO; raises `RemoteProtocolError` on an odd length."""
    return [int(number) for number in _parsed(HelloValue, value)]


def encode_hello(features: Iterable[int]) -> bytes:
    """Return the value of a HELLO or of its reply; raises `LocalProtocolError` above 0xffff."""
    return _built(HelloValue, list(features))


def _parsed(layout: Layout, value: bytes) -> Any:
    try:
        return layout.parse(value).entries
    except ConstructError as error:
        raise RemoteProtocolError(f"a value of {len(value)} bytes is malformed: {error}") from None


def _built(layout: Layout, entries: list[Any]) -> bytes:
    try:
        value: bytes = layout.build({"entries": entries})
    except ConstructError as error:
        raise LocalProtocolError(f"cannot be put on the wire: {error}") from None
    return value


# --- shapes -------------------------------------------------------------------------------------


class Part(IntEnum):
    """Whether a command's key or value may, must or must not be there.

    Bit 1 allows it to be empty, bit 2 to be there, so that judging is one AND.
    """

    NONE = 1
    REQUIRED = 2
    OPTIONAL = 3


class Shape(NamedTuple):
    """What a request's body must consist of.

    Attributes:
        extras: the lengths in bytes that the extras may have.
        key: whether there is a key.
        value: whether there is a value.
    """

    extras: frozenset[int]
    key: Part
    value: Part


class Refusal(NamedTuple):
    """Why a frame is not carried out, and whether the connection ends after that reply."""

    status: Status
    closes: bool


def _shape(*extras: int, key: Part = Part.NONE, value: Part = Part.NONE) -> Shape:
    return Shape(frozenset(extras), key, value)


_BARE = _shape(0)
_KEY = _shape(0, key=Part.REQUIRED)
_STORE = _shape(8, key=Part.REQUIRED, value=Part.OPTIONAL)
_EXTEND = _shape(0, key=Part.REQUIRED, value=Part.OPTIONAL)
_ARITHMETIC = _shape(20, key=Part.REQUIRED)
_TOUCH = _shape(4, key=Part.REQUIRED)
_VALUE = _shape(0, value=Part.REQUIRED)

#: Shape of every request that is known here, quiet forms included.
SHAPES: dict[int, Shape] = {
    Opcode.GET: _KEY,
    Opcode.SET: _STORE,
    Opcode.ADD: _STORE,
    Opcode.REPLACE: _STORE,
    Opcode.DELETE: _KEY,
    Opcode.INCREMENT: _ARITHMETIC,
    Opcode.DECREMENT: _ARITHMETIC,
    Opcode.QUIT: _BARE,
    Opcode.FLUSH: _shape(0, 4),
    Opcode.NOOP: _BARE,
    Opcode.VERSION: _BARE,
    Opcode.GETK: _KEY,
    Opcode.APPEND: _EXTEND,
    Opcode.PREPEND: _EXTEND,
    Opcode.STAT: _shape(0, key=Part.OPTIONAL),
    Opcode.VERBOSITY: _shape(4),
    Opcode.TOUCH: _TOUCH,
    Opcode.GAT: _TOUCH,
    Opcode.HELLO: _shape(0, key=Part.OPTIONAL, value=Part.OPTIONAL),
    Opcode.SASL_LIST_MECHS: _BARE,
    Opcode.SASL_AUTH: _EXTEND,
    Opcode.SASL_STEP: _EXTEND,
    Opcode.GATK: _TOUCH,
    Opcode.OBSERVE_SEQNO: _VALUE,
    Opcode.OBSERVE: _VALUE,
    Opcode.GETL: _shape(0, 4, key=Part.REQUIRED),
    Opcode.UNLOCK: _KEY,
}
SHAPES.update({quiet: SHAPES[loud] for quiet, loud in QUIET.items()})

_TORN = Refusal(Status.UNKNOWN_COMMAND, closes=True)
_UNKNOWN = Refusal(Status.UNKNOWN_COMMAND, closes=False)
_MISSHAPEN = Refusal(Status.INVALID_ARGUMENTS, closes=True)


def shape_error(
    opcode: int, extras_length: int, key_length: int, body_length: int
) -> Refusal | None:
    """Judge a request by its header alone; ``None`` means it may be carried out.

    The checks come in memcached's order: lengths that contradict each other, a key that is too
    long (whatever the opcode), an opcode that nobody knows, a body of the wrong shape. After an
    unknown command exactly its body is to be dropped.

    Source: memcached reference, sections 2.2, 2.3 and 2.7.
    """
    value_length = body_length - extras_length - key_length
    if value_length < 0:
        return _TORN
    if key_length > KEY_MAX_BYTES:
        return _MISSHAPEN
    shape = SHAPES.get(opcode)
    if shape is None:
        return _UNKNOWN
    extras, key, value = shape
    if (
        extras_length in extras
        and key & (2 if key_length else 1)
        and value & (2 if value_length else 1)
    ):
        return None
    return _MISSHAPEN
