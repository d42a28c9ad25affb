"""What a `KvClient` returns and raises, and how it reads that out of answers."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

from uprmc.client.connection import NodeError
from uprmc.client.errors import ClientError
from uprmc.errors import InvalidArguments, RemoteProtocolError, UprmcError
from uprmc.protocol.binary import (
    GET_REPLY_EXTRAS,
    MUTATION_SEQNO_EXTRAS,
    KeyObservation,
    decode_observe_reply,
)
from uprmc.protocol.header import pack_request
from uprmc.protocol.management import (
    GET_META_DATATYPE_REPLY_EXTRAS,
    WITH_META_EXTRAS,
    WITH_META_OPTIONS_EXTRAS,
)
from uprmc.protocol.opcodes import MAGIC_REQUEST, STATUS_TEXT
from uprmc.protocol.statuses import ERRORS
from uprmc.remote.requests import NodeReply

_T = TypeVar("_T")


class Document(NamedTuple):
    """A document as it was read."""

    value: bytes
    flags: int
    cas: int
    datatype: int


class Meta(NamedTuple):
    """A document's metadata, or its tombstone's; `expiry` in Unix seconds, 0 = never."""

    flags: int
    expiry: int
    rev: int
    cas: int
    datatype: int = 0
    deleted: bool = False


class KvRequest(NamedTuple):
    """What is asked of one key; every number fits into its field."""

    opcode: int
    vbucket: int
    key: bytes
    extras: bytes = b""
    value: bytes = b""
    cas: int = 0
    datatype: int = 0

    def packed(self, opaque: int) -> bytes:
        """Return it as bytes."""
        opcode, vbucket, key, extras, value, cas, datatype = self
        size = len(extras) + len(key) + len(value)
        header = pack_request(
            MAGIC_REQUEST, opcode, len(key), len(extras), datatype, vbucket, size, opaque, cas
        )
        return b"".join((header, extras, key, value))


class Stored(NamedTuple):
    """What a change got. Old nodes tell no `vb_uuid` and `seqno`: both are 0."""

    cas: int
    vb_uuid: int
    seqno: int


class OutcomeUnknown(ClientError):
    """A change was sent and not answered: it may have happened or not. Read the key to know."""


class SomeFailed(ClientError):
    """Not all of many were done.

    Attributes:
        done: what the others returned, by key.
        failed: why, by key; `OutcomeUnknown` for those that may have happened.
    """

    def __init__(self, done: Mapping[bytes, object], failed: Mapping[bytes, UprmcError]) -> None:
        key, first = next(iter(failed.items()))
        of = len(done) + len(failed)
        many = f"{len(failed)} of {of} failed, the first ({key!r}): " if of > 1 else ""
        super().__init__(f"{many}{first}")
        self.done = done
        self.failed = failed

    @property
    def unknown(self) -> list[bytes]:
        """Keys of which nobody knows whether they were changed."""
        return [key for key, error in self.failed.items() if isinstance(error, OutcomeUnknown)]


# --- what answers mean --------------------------------------------------------------------------


def understood(
    request: KvRequest, answer: NodeReply | UprmcError, read: Callable[[NodeReply], _T]
) -> _T:
    """Return what an answer holds.

    Raises:
        CommandError: the node refused.
        NodeError: the answer makes no sense.
        UprmcError: `answer`, if it is no answer but the reason why there is none.
    """
    if isinstance(answer, UprmcError):
        raise answer
    if answer.status:
        raise _refusal(answer)
    try:
        return read(answer)
    except (struct.error, ValueError, RemoteProtocolError) as error:
        raise NodeError(
            f"the node's answer to opcode {request.opcode:#04x} makes no sense: {error}"
        ) from None


def _refusal(reply: NodeReply) -> UprmcError:
    text = reply.value.decode("utf-8", "replace") if not reply.datatype else ""
    if reply.status not in ERRORS:
        return NodeError(f"the node refuses: {text or 'unknown status'} ({reply.status:04x})")
    return ERRORS[reply.status](text or STATUS_TEXT[reply.status].decode())


def read_document(reply: NodeReply) -> Document:
    """Read the answer to a get."""
    (flags,) = GET_REPLY_EXTRAS.unpack(reply.extras)
    return Document(reply.value, flags, reply.cas, reply.datatype)


def read_meta(reply: NodeReply) -> Meta:
    """Read the answer to GET_META, version 2."""
    deleted, flags, expiry, rev, datatype = GET_META_DATATYPE_REPLY_EXTRAS.unpack(reply.extras)
    return Meta(flags, expiry, rev, reply.cas, datatype, bool(deleted))


def read_stored(reply: NodeReply) -> Stored:
    """Read the answer to a change."""
    uuid, seqno = MUTATION_SEQNO_EXTRAS.unpack(reply.extras) if reply.extras else (0, 0)
    return Stored(reply.cas, uuid, seqno)


def read_touched(reply: NodeReply) -> Stored:
    """Read the answer to TOUCH, whose extras are the document's flags."""
    return Stored(reply.cas, 0, 0)


def read_number(reply: NodeReply) -> int:
    """Read the answer to INCREMENT and DECREMENT."""
    return int.from_bytes(reply.value, "big")


def read_observation(reply: NodeReply) -> KeyObservation:
    """Read the answer to OBSERVE of one key."""
    (found,) = decode_observe_reply(reply.value)
    return found


def packed(layout: struct.Struct, *numbers: int) -> bytes:
    """Return numbers as extras; raises `InvalidArguments` when one does not fit."""
    try:
        return layout.pack(*numbers)
    except struct.error as error:
        raise InvalidArguments(f"{numbers} cannot be put on the wire: {error}") from None


def meta_extras(meta: Meta, options: int) -> bytes:
    """Return the extras of a change with metadata; `options` are `WithMetaOption` bits."""
    numbers = (meta.flags, meta.expiry, meta.rev, meta.cas)
    if options:
        return packed(WITH_META_OPTIONS_EXTRAS, *numbers, options)
    return packed(WITH_META_EXTRAS, *numbers)
