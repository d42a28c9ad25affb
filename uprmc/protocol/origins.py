"""Where a version was first accepted, as extended metadata: on UPR streams and in *_WITH_META.

Extended metadata is a version byte, 1, and entries of id, length and bytes. Ours has the id 0xe0
and 16 bytes, vb_uuid and seqno. A node sends it only to peers that asked for it, and only of
versions that came to it from elsewhere: for any other one, the failover log and the seqno tell it.

In a MUTATION and in a *_WITH_META it follows the value, and `nmeta` is its length. In a DELETION or
EXPIRATION it follows the key, in each form of these, whether the form has an `nmeta` or not.

See `docs/extensions.md`, Origins.
"""

from __future__ import annotations

import struct

from construct import Const, Int8ub, Int16ub, Int64ub
from construct import Struct as Layout

from uprmc.errors import LocalProtocolError, RemoteProtocolError
from uprmc.model import Origin
from uprmc.protocol.derive import derive
from uprmc.protocol.management import decode_extended_meta

#: Id of the entry.
ORIGIN_META_ID = 0xE0

#: Extended metadata that consists of an origin.
OriginMeta = Layout(
    "version" / Const(1, Int8ub),
    "id" / Const(ORIGIN_META_ID, Int8ub),
    "length" / Const(16, Int16ub),
    "uuid" / Int64ub,
    "seqno" / Int64ub,
)
ORIGIN_META = derive(OriginMeta)
ORIGIN_META_BYTES = ORIGIN_META.size

#: What it begins with; the packed origin follows.
ORIGIN_META_HEAD = ORIGIN_META.pack(1, ORIGIN_META_ID, 16, 0, 0)[:4]

_unpack = struct.Struct(">QQ").unpack


def encode_origin(origin: Origin) -> bytes:
    """Return extended metadata; raises `LocalProtocolError` if a number does not fit."""
    try:
        return ORIGIN_META.pack(1, ORIGIN_META_ID, 16, *origin)
    except struct.error as error:
        raise LocalProtocolError(f"cannot be put on the wire: {error}") from None


def decode_origin(meta: bytes) -> Origin | None:
    """Return the origin in extended metadata, ``None`` if it has none.

    Raises:
        RemoteProtocolError: it is malformed, or no version can have that origin.
    """
    if not meta:
        return None
    for number, data in decode_extended_meta(meta):
        if number == ORIGIN_META_ID:
            if len(data) != 16:
                raise RemoteProtocolError(f"an origin of {len(data)} bytes")
            origin = Origin(*_unpack(data))
            if not all(origin):
                raise RemoteProtocolError(f"the origin {origin.uuid:016x}:{origin.seqno}")
            return origin
    return None
