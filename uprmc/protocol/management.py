"""Bodies of the commands that manage vBuckets, and of those that carry metadata.

Layouts are declared with construct; fixed ones have their derived struct in capitals, variable ones
an encoder and a decoder for plain values.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from enum import IntEnum, IntFlag
from typing import NamedTuple

from construct import (
    Bytes,
    Default,
    GreedyRange,
    Int8ub,
    Int16ub,
    Int32ub,
    Int64ub,
    Terminated,
)
from construct import Struct as Layout

from uprmc.errors import LocalProtocolError, RemoteProtocolError
from uprmc.model import VBucketState
from uprmc.protocol.derive import derive
from uprmc.protocol.rows import pack_rows, unpack_rows

# --- vBuckets -----------------------------------------------------------------------------------

#: Extras of SET_VBUCKET, or its value: a `VBucketState` number.
SetVBucketExtras = Layout("state" / Int32ub)
SET_VBUCKET_EXTRAS = derive(SetVBucketExtras)

#: Extras of SET_VBUCKET in modern servers; an optional JSON value follows.
SetVBucketShortExtras = Layout("state" / Int8ub)
SET_VBUCKET_SHORT_EXTRAS = derive(SetVBucketShortExtras)

#: Value of the reply to GET_VBUCKET.
GetVBucketReply = Layout("state" / Int32ub)
GET_VBUCKET_REPLY = derive(GetVBucketReply)

#: Extras that GET_ALL_VB_SEQNOS may carry: a `VBucketState` number, 0 = all except dead.
VBucketSeqnosExtras = Layout("state" / Int32ub)
VBUCKET_SEQNOS_EXTRAS = derive(VBucketSeqnosExtras)

#: The same from a client that knows collections.
CollectionSeqnosExtras = Layout("state" / Int32ub, "collection" / Int32ub)
COLLECTION_SEQNOS_EXTRAS = derive(CollectionSeqnosExtras)

#: Value of its reply: vBuckets by number.
_VBucketSeqno = Layout("vbucket" / Int16ub, "seqno" / Int64ub)
VBucketSeqnosValue = Layout("entries" / GreedyRange(_VBucketSeqno), Terminated)
VBUCKET_SEQNO = derive(_VBucketSeqno)

#: The same after `Feature.TERMS` was granted.
_VBucketSeqnoTerm = Layout("vbucket" / Int16ub, "seqno" / Int64ub, "term" / Int64ub)
VBUCKET_SEQNO_TERM = derive(_VBucketSeqnoTerm)

#: Extras of SEQNO_PERSISTENCE: everything up to here shall be on disk.
SeqnoPersistenceExtras = Layout("seqno" / Int64ub)
SEQNO_PERSISTENCE_EXTRAS = derive(SeqnoPersistenceExtras)

#: Extras of COMPACT_DB: bounds that must all hold, or a flag that drops every deletion.
CompactExtras = Layout(
    "purge_before_ts" / Int64ub,
    "purge_before_seq" / Int64ub,
    "drop_deletes" / Int8ub,
    "padding" / Default(Bytes(7), bytes(7)),
)
COMPACT_EXTRAS = derive(CompactExtras)


class CompactFlag(IntFlag):
    """First byte of that padding, between nodes and tools of uprmc.

    With any of them the answer has a `CompactReply` and says what limits the purger. Without
    waiting the bounds are ignored.
    """

    AGED = 1  # what is as old as the node's own rule demands, whatever purge_before_ts
    FORCE = 2  # every deletion, whatever registered clients have seen
    NO_WAIT = 4  # answer at once


#: Begins the value of the reply; what limits the purger follows as text.
CompactReply = Layout("start" / Int64ub, "end" / Int64ub, "dropped" / Int64ub)
COMPACT_REPLY = derive(CompactReply)

# --- the node -----------------------------------------------------------------------------------

#: Extras of SET_PARAM: a `ParamGroup` number. Name in the key, text in the value.
SetParamExtras = Layout("group" / Int32ub)
SET_PARAM_EXTRAS = derive(SetParamExtras)

#: Extras of SET_SESSION_TOKEN: the new token; the header's CAS is the old one, 0 = any.
SessionTokenExtras = Layout("token" / Int64ub)
SESSION_TOKEN_EXTRAS = derive(SessionTokenExtras)

#: Extras that GET_KEYS may carry: how many at most.
GetKeysExtras = Layout("count" / Int32ub)
GET_KEYS_EXTRAS = derive(GetKeysExtras)

#: Its reply has this and a key for each key.
KEY_LENGTH = derive(Layout("key_length" / Int16ub))

# --- metadata -----------------------------------------------------------------------------------

_META = ("flags" / Int32ub, "exptime" / Int32ub, "rev" / Int64ub, "cas" / Int64ub)

#: Extras of SET, ADD and DEL_WITH_META: the document's own metadata, not the header's.
WithMetaExtras = Layout(*_META)
WITH_META_EXTRAS = derive(WithMetaExtras)

#: The same, `nmeta` bytes of extended metadata following the value.
WithMetaNmetaExtras = Layout(*_META, "nmeta" / Int16ub)
WITH_META_NMETA_EXTRAS = derive(WithMetaNmetaExtras)

#: The same with options, made of `WithMetaOption` bits.
WithMetaOptionsExtras = Layout(*_META, "options" / Int32ub)
WITH_META_OPTIONS_EXTRAS = derive(WithMetaOptionsExtras)

#: The same with both.
WithMetaOptionsNmetaExtras = Layout(*_META, "options" / Int32ub, "nmeta" / Int16ub)
WITH_META_OPTIONS_NMETA_EXTRAS = derive(WithMetaOptionsNmetaExtras)

#: Extras that GET_META may carry: 1 = plain, 2 = the datatype too.
GetMetaExtras = Layout("version" / Int8ub)
GET_META_EXTRAS = derive(GetMetaExtras)

#: Extras of the reply to GET_META; tombstones answer with `deleted` 1.
GetMetaReplyExtras = Layout(
    "deleted" / Int32ub, "flags" / Int32ub, "exptime" / Int32ub, "rev" / Int64ub
)
GET_META_REPLY_EXTRAS = derive(GetMetaReplyExtras)

#: The same for version 2.
GetMetaDatatypeReplyExtras = Layout(*GetMetaReplyExtras.subcons, "datatype" / Int8ub)
GET_META_DATATYPE_REPLY_EXTRAS = derive(GetMetaDatatypeReplyExtras)

#: Extras of RETURN_META; `kind` is a `ReturnMetaKind`.
ReturnMetaExtras = Layout("kind" / Int32ub, "flags" / Int32ub, "exptime" / Int32ub)
RETURN_META_EXTRAS = derive(ReturnMetaExtras)

#: Extras of its reply: what was stored. The CAS is the header's.
ReturnMetaReplyExtras = Layout("flags" / Int32ub, "exptime" / Int32ub, "rev" / Int64ub)
RETURN_META_REPLY_EXTRAS = derive(ReturnMetaReplyExtras)

#: The head of each entry of extended metadata, which follows the value when `nmeta` is not 0: the
#: byte 1 for its version, then entries.
EXTENDED_META_HEAD = derive(Layout("id" / Int8ub, "length" / Int16ub))


class ParamGroup(IntEnum):
    """The part of a node that SET_PARAM addresses."""

    FLUSH = 1
    TAP = 2
    CHECKPOINT = 3
    DCP = 4
    VBUCKET = 5


class ReturnMetaKind(IntEnum):
    """What RETURN_META does before it returns the metadata."""

    SET = 1
    ADD = 2
    DELETE = 3


class WithMetaOption(IntFlag):
    """Option bits of *_WITH_META. In 2014 bit 0x01 meant what 0x08 means now."""

    ACCEPT_LAST_WRITE_WINS = 0x01
    FORCE_ACCEPT = 0x02
    REGENERATE_CAS = 0x04
    SKIP_CONFLICT_RESOLUTION = 0x08
    IS_EXPIRATION = 0x10


class WithMeta(NamedTuple):
    """Extras of a *_WITH_META, in any of its four lengths."""

    flags: int
    exptime: int
    rev: int
    cas: int
    options: int = 0
    nmeta: int = 0


def decode_with_meta(extras: bytes) -> WithMeta:
    """Read the extras of SET, ADD and DEL_WITH_META; raises `RemoteProtocolError` by length."""
    if len(extras) == WITH_META_EXTRAS.size:
        return WithMeta(*WITH_META_EXTRAS.unpack(extras))
    if len(extras) == WITH_META_NMETA_EXTRAS.size:
        flags, exptime, rev, cas, nmeta = WITH_META_NMETA_EXTRAS.unpack(extras)
        return WithMeta(flags, exptime, rev, cas, nmeta=nmeta)
    if len(extras) == WITH_META_OPTIONS_EXTRAS.size:
        return WithMeta(*WITH_META_OPTIONS_EXTRAS.unpack(extras))
    if len(extras) == WITH_META_OPTIONS_NMETA_EXTRAS.size:
        return WithMeta(*WITH_META_OPTIONS_NMETA_EXTRAS.unpack(extras))
    raise RemoteProtocolError(f"metadata in {len(extras)} bytes of extras")


def decode_vbucket_state(extras: bytes, value: bytes) -> VBucketState:
    """Return the state that SET_VBUCKET asks for, in any of its three forms.

    Raises:
        RemoteProtocolError: none of the forms, or no state has that number.
    """
    if len(extras) == SET_VBUCKET_SHORT_EXTRAS.size:
        (number,) = SET_VBUCKET_SHORT_EXTRAS.unpack(extras)
    elif len(extras) + len(value) == SET_VBUCKET_EXTRAS.size:
        (number,) = SET_VBUCKET_EXTRAS.unpack(extras + value)
    else:
        raise RemoteProtocolError(f"a state of {len(extras)} + {len(value)} bytes")
    try:
        return VBucketState(number)
    except ValueError:
        raise RemoteProtocolError(f"no state has the number {number}") from None


def encode_vbucket_seqnos(seqnos: Iterable[tuple[int, int]]) -> bytes:
    """Return the value of the reply to GET_ALL_VB_SEQNOS, from (vBucket, seqno)."""
    return pack_rows(VBUCKET_SEQNO, seqnos)


def decode_vbucket_seqnos(value: bytes) -> list[tuple[int, int]]:
    """Read the value of the reply to GET_ALL_VB_SEQNOS; raises `RemoteProtocolError` when torn."""
    return [(vbucket, seqno) for vbucket, seqno in unpack_rows(VBUCKET_SEQNO, value)]


def encode_vbucket_seqno_terms(rows: Iterable[tuple[int, int, int]]) -> bytes:
    """Return the same with terms, from (vBucket, seqno, term)."""
    return pack_rows(VBUCKET_SEQNO_TERM, rows)


def decode_vbucket_seqno_terms(value: bytes) -> list[tuple[int, int, int]]:
    """Read it back; raises `RemoteProtocolError` when torn."""
    return [(number, seqno, term) for number, seqno, term in unpack_rows(VBUCKET_SEQNO_TERM, value)]


def encode_keys(keys: Iterable[bytes]) -> bytes:
    """Return the value of the reply to GET_KEYS; raises `LocalProtocolError` above 64 KiB a key."""
    try:
        return b"".join([KEY_LENGTH.pack(len(key)) + key for key in keys])
    except struct.error as error:
        raise LocalProtocolError(f"cannot be put on the wire: {error}") from None


def decode_extended_meta(value: bytes) -> list[tuple[int, bytes]]:
    """Read extended metadata as (id, bytes); raises `RemoteProtocolError` when it is malformed."""
    entries: list[tuple[int, bytes]] = []
    position, end = 1, len(value)
    if value[:1] != b"\x01":
        raise RemoteProtocolError("extended metadata is not of version 1")
    while position < end:
        if end - position < EXTENDED_META_HEAD.size:
            raise RemoteProtocolError(f"extended metadata of {end} bytes is malformed")
        number, length = EXTENDED_META_HEAD.unpack_from(value, position)
        position += EXTENDED_META_HEAD.size + length
        if position > end:
            raise RemoteProtocolError(f"extended metadata of {end} bytes is malformed")
        entries.append((number, value[position - length : position]))
    return entries
