"""Items of a stream as requests for the target: *_WITH_META with all that the version has."""

from __future__ import annotations

import struct
from typing import NamedTuple

from uprmc.protocol.header import REQUEST_HEADER, encode_request
from uprmc.protocol.management import (
    GET_META_DATATYPE_REPLY_EXTRAS,
    GET_META_REPLY_EXTRAS,
    WITH_META_EXTRAS,
    WITH_META_NMETA_EXTRAS,
    WITH_META_OPTIONS_EXTRAS,
    WITH_META_OPTIONS_NMETA_EXTRAS,
    WithMetaOption,
)
from uprmc.protocol.opcodes import HEADER_BYTES, MAGIC_REQUEST, Opcode


def _behind_header(extras: struct.Struct) -> struct.Struct:
    return struct.Struct(REQUEST_HEADER.format + extras.format.removeprefix(">"))


#: Header and extras in one piece.
WITH_META_FRAME = _behind_header(WITH_META_EXTRAS)
_NMETA_FRAME = _behind_header(WITH_META_NMETA_EXTRAS)

#: The forms of a deletion: whether it is an expiration, and whether it has an origin.
_LAYOUTS = {
    (False, False): WITH_META_FRAME,
    (True, False): _behind_header(WITH_META_OPTIONS_EXTRAS),
    (False, True): _NMETA_FRAME,
    (True, True): _behind_header(WITH_META_OPTIONS_NMETA_EXTRAS),
}

_pack = WITH_META_FRAME.pack
_EXTRAS_BYTES = WITH_META_EXTRAS.size
_pack_nmeta = _NMETA_FRAME.pack
_NMETA_BYTES = WITH_META_NMETA_EXTRAS.size
_OPAQUE_AT = 12
_SET, _DELETE = int(Opcode.SETQ_WITH_META), int(Opcode.DELQ_WITH_META)
_IS_EXPIRATION = int(WithMetaOption.IS_EXPIRATION)


def set_frame(
    vbucket: int,
    opaque: int,
    rest: bytes,
    key_length: int,
    meta: tuple[int, int, int, int],
    datatype: int,
    origin: bytes = b"",
) -> bytes:
    """Return the quiet request to store a document.

    Args:
        vbucket: of the target.
        opaque: identifies the answer.
        rest: key and value, one after the other.
        key_length: of the key.
        meta: flags, expiry, revision and CAS.
        datatype: of the value.
        origin: as extended metadata; empty = the target does not know any.
    """
    if origin:
        size = _NMETA_BYTES + len(rest) + len(origin)
        head = _pack_nmeta(
            *(MAGIC_REQUEST, _SET, key_length, _NMETA_BYTES, datatype, vbucket, size, opaque, 0),
            *meta,
            len(origin),
        )
        return head + rest + origin
    size = _EXTRAS_BYTES + len(rest)
    head = _pack(
        MAGIC_REQUEST, _SET, key_length, _EXTRAS_BYTES, datatype, vbucket, size, opaque, 0, *meta
    )
    return head + rest


def delete_frame(
    vbucket: int,
    opaque: int,
    key: bytes,
    meta: tuple[int, int],
    origin: bytes = b"",
    *,
    expired: bool,
) -> bytes:
    """Return the quiet request to store a tombstone.

    Args:
        vbucket, opaque, key, origin: as for `set_frame`.
        meta: revision and CAS.
        expired: it is an expiration, and the target knows these.
    """
    options = (_IS_EXPIRATION,) if expired else ()
    tail = (len(origin),) if origin else ()
    layout = _LAYOUTS[expired, bool(origin)]
    extras = layout.size - HEADER_BYTES
    size = extras + len(key) + len(origin)
    head = layout.pack(
        *(MAGIC_REQUEST, _DELETE, len(key), extras, 0, vbucket, size, opaque, 0),
        *(0, 0, *meta, *options, *tail),
    )
    return head + key + origin


def look_up_frame(vbucket: int, opaque: int, key: bytes) -> bytes:
    """Return the request for the metadata of the target's version."""
    return encode_request(Opcode.GET_META, key=key, vbucket=vbucket, opaque=opaque)


def key_of(frame: bytes) -> bytes:
    """Return the key of a request."""
    start = HEADER_BYTES + frame[4]
    return frame[start : start + int.from_bytes(frame[2:4], "big")]


def with_opaque(frame: bytes, opaque: int) -> bytes:
    """Return a request that is identified by another opaque."""
    return frame[:_OPAQUE_AT] + opaque.to_bytes(4, "big") + frame[_OPAQUE_AT + 4 :]


class LinkMeta(NamedTuple):
    """What decides between two versions of a document, in the order of the policy `revision`."""

    rev: int
    cas: int
    expiry: int
    flags: int


def read_meta(extras: bytes, cas: int) -> tuple[bool, LinkMeta] | None:
    """Return whether the target's version is a tombstone, and its metadata; ``None`` if torn."""
    if len(extras) == GET_META_REPLY_EXTRAS.size:
        deleted, flags, expiry, rev = GET_META_REPLY_EXTRAS.unpack(extras)
    elif len(extras) == GET_META_DATATYPE_REPLY_EXTRAS.size:
        deleted, flags, expiry, rev, _ = GET_META_DATATYPE_REPLY_EXTRAS.unpack(extras)
    else:
        return None
    return bool(deleted), LinkMeta(rev, cas, *((0, 0) if deleted else (expiry, flags)))


def document_wins(ours: LinkMeta, theirs: LinkMeta, *, by_time: bool) -> bool:
    """Tell whether our document is newer than the target's version; an equal one is not.

    Args:
        ours: the document that is to be sent.
        theirs: the target's version, a document or a tombstone.
        by_time: the policy is `timestamp`: the CAS decides before the revision.
    """
    if by_time:
        return (ours.cas, ours.rev, *ours[2:]) > (theirs.cas, theirs.rev, *theirs[2:])
    return ours > theirs
