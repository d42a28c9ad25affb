"""TAP, the replication protocol before UPR: bodies of the messages 0x40 to 0x47.

A body consists of extras, engine-specific section, key and value. The section's length is in the
extras and **not** in the header's extras length, so a decoder must use both. The 16-byte extras are
those of items; checkpoints have them too, with 0 in the fields for items.

Layouts are declared with construct, each with its derived struct in capitals; `TapMutationFrame`
and `TapDeleteFrame` are header, extras and section of the messages that a stream consists of.
"""

from __future__ import annotations

import struct
from enum import IntEnum, IntFlag
from typing import NamedTuple

from construct import Bytes, Default, Int8ub, Int16ub, Int32ub, Int64ub
from construct import Struct as Layout

from uprmc.errors import LocalProtocolError, RemoteProtocolError
from uprmc.protocol.derive import derive
from uprmc.protocol.header import RequestHeader, encode_request, encode_response, pack_request
from uprmc.protocol.opcodes import MAGIC_REQUEST, Opcode
from uprmc.protocol.rows import pack_rows

# --- the client asks ----------------------------------------------------------------------------

#: Extras of TAP_CONNECT, or none at all: `ConnectFlag` bits. The key is the stream's name.
TapConnectExtras = Layout("flags" / Int32ub)
TAP_CONNECT_EXTRAS = derive(TapConnectExtras)

#: Option data of TAP_CONNECT, in the order of the flags' bits; see `decode_connect`.
TapBackfillData = Layout("oldest_entry_s" / Int64ub)
TAP_BACKFILL_DATA = derive(TapBackfillData)
TapCount = Layout("entries" / Int16ub)
TAP_COUNT = derive(TapCount)
TapVBucketEntry = Layout("vbucket" / Int16ub)
TAP_VBUCKET_ENTRY = derive(TapVBucketEntry)
TapCheckpointEntry = Layout("vbucket" / Int16ub, "last_closed_id" / Int64ub)
TAP_CHECKPOINT_ENTRY = derive(TapCheckpointEntry)
TapRegisteredData = Layout("closed_checkpoints_only" / Int8ub)
TAP_REGISTERED_DATA = derive(TapRegisteredData)


class ConnectFlag(IntFlag):
    """What a TAP_CONNECT asks for."""

    BACKFILL = 0x01
    DUMP = 0x02
    LIST_VBUCKETS = 0x04
    TAKEOVER_VBUCKETS = 0x08
    SUPPORT_ACK = 0x10
    REQUEST_KEYS_ONLY = 0x20
    CHECKPOINT = 0x40
    REGISTERED_CLIENT = 0x80
    FIX_FLAG_BYTEORDER = 0x100


class Connect(NamedTuple):
    """A TAP_CONNECT."""

    name: bytes = b""  # the stream's, empty for an anonymous one
    flags: int = 0  # `ConnectFlag` bits
    oldest_entry_s: int = 0  # Unix time of BACKFILL; without it 0
    vbuckets: tuple[int, ...] | None = None  # of LIST_VBUCKETS, each once; ``None`` = all
    # vBucket -> id of the last closed checkpoint, of CHECKPOINT.
    last_closed: dict[int, int] = {}  # noqa: RUF012  # it is never changed
    closed_only: bool = False  # of REGISTERED_CLIENT: whether only closed checkpoints are wanted

    def has(self, flag: ConnectFlag) -> bool:
        """Tell whether `flag` is set."""
        return bool(self.flags & flag)


# --- the producer sends -------------------------------------------------------------------------

#: Extras of all messages of the producer; `flags` are `TapFlag` bits. `ttl` counts hops.
TapExtras = Layout(
    "specific_bytes" / Int16ub,
    "flags" / Int16ub,
    "ttl" / Int8ub,
    "reserved" / Default(Bytes(3), b"\0\0\0"),
)
TAP_EXTRAS = derive(TapExtras)

#: Extras of MUTATION, CHECKPOINT_START and CHECKPOINT_END.
TapItemExtras = Layout(*TapExtras.subcons, "item_flags" / Int32ub, "expiration" / Int32ub)
TAP_ITEM_EXTRAS = derive(TapItemExtras)

#: Engine-specific section of MUTATION.
TapMutationSpecific = Layout("rev_seqno" / Int64ub, "nru" / Int8ub)
TAP_MUTATION_SPECIFIC = derive(TapMutationSpecific)

#: The same of DELETE; of CHECKPOINT_START, where it is the highest revision of a deletion.
TapRevisionSpecific = Layout("rev_seqno" / Int64ub)
TAP_REVISION_SPECIFIC = derive(TapRevisionSpecific)

#: The same of OPAQUE (a `TapOpaque`) and of VBUCKET_SET (a `VBucketState`).
TapWordSpecific = Layout("word" / Int32ub)
TAP_WORD_SPECIFIC = derive(TapWordSpecific)

#: Value of CHECKPOINT_START and CHECKPOINT_END.
TapCheckpointValue = Layout("checkpoint_id" / Int64ub)
TAP_CHECKPOINT_VALUE = derive(TapCheckpointValue)

#: Header, extras and section of MUTATION, and of DELETE; key and value follow.
TapMutationFrame = Layout(
    *RequestHeader.subcons, *TapItemExtras.subcons, *TapMutationSpecific.subcons
)
TAP_MUTATION_FRAME = derive(TapMutationFrame)
TapDeleteFrame = Layout(*RequestHeader.subcons, *TapExtras.subcons, *TapRevisionSpecific.subcons)
TAP_DELETE_FRAME = derive(TapDeleteFrame)

#: Keys of checkpoint messages.
CHECKPOINT_START_KEY = b"checkpoint_start"
CHECKPOINT_END_KEY = b"checkpoint_end"

#: Hops that a producer grants.
TTL = 255

#: Messages of a producer; every one of them may be the first on a connection that pushes.
PUSHED = range(0x41, 0x48)


class TapFlag(IntFlag):
    """Flags of a message: answer it; the value is omitted; `item_flags` are big-endian."""

    ACK = 0x01
    NO_VALUE = 0x02
    NETWORK_BYTE_ORDER = 0x04


#: A plain number: an enum's operations cost a microsecond each.
_ACK = int(TapFlag.ACK)


class TapOpaque(IntEnum):
    """Commands of OPAQUE. A consumer ignores others."""

    ENABLE_AUTO_NACK = 0
    INITIAL_VBUCKET_STREAM = 1
    ENABLE_CHECKPOINT_SYNC = 2
    OPEN_CHECKPOINT = 3
    COMPLETE_VB_FILTER_CHANGE = 4
    CLOSE_TAP_STREAM = 7
    CLOSE_BACKFILL = 8


class TapMessage(NamedTuple):
    """A message of a producer, taken apart."""

    opcode: int  # 0x41 to 0x47
    vbucket: int  # of the header
    opaque: int  # of the header: TAP's sequence number
    cas: int  # of the header
    flags: int  # `TapFlag` bits
    ttl: int  # hops left
    item_flags: int  # as on the wire, read big-endian; 0 without the 16-byte extras
    expiration: int  # Unix time in seconds, 0 = never
    specific: bytes  # the engine-specific section
    key: bytes  # may be empty
    value: bytes  # may be empty

    @property
    def wants_ack(self) -> bool:
        """Whether it must be answered."""
        return bool(self.flags & _ACK)


# --- TAP_CONNECT --------------------------------------------------------------------------------


class _Data:
    """Option data, read from the front."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._place = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._place

    def take(self, layout: struct.Struct) -> int:
        number: int = self.rows(layout, 1)[0][0]
        return number

    def rows(self, layout: struct.Struct, count: int) -> list[tuple[int, ...]]:
        end = self._place + layout.size * count
        if end > len(self._data):
            raise RemoteProtocolError("the option data of a TAP connect is shorter than it says")
        piece, self._place = self._data[self._place : end], end
        return list(layout.iter_unpack(piece))


def decode_connect(name: bytes, extras: bytes, value: bytes) -> Connect:
    """Read a TAP_CONNECT.

    The data of CHECKPOINT and of REGISTERED_CLIENT may be missing, as they are in practice; a
    single byte belongs to the latter.

    Raises:
        RemoteProtocolError: the extras are neither 0 nor 4 bytes, or the data is shorter than
            the flags and its own counts say, or longer.
    """
    if len(extras) not in (0, TAP_CONNECT_EXTRAS.size):
        raise RemoteProtocolError(f"a TAP connect with {len(extras)} bytes of extras")
    flags = TAP_CONNECT_EXTRAS.unpack(extras)[0] if extras else 0
    data = _Data(value)
    oldest = data.take(TAP_BACKFILL_DATA) if flags & ConnectFlag.BACKFILL else 0
    vbuckets: tuple[int, ...] | None = None
    if flags & ConnectFlag.LIST_VBUCKETS:
        count = data.take(TAP_COUNT)
        rows = data.rows(TAP_VBUCKET_ENTRY, count)
        vbuckets = tuple(dict.fromkeys(number for (number,) in rows)) if count else None
    last_closed: dict[int, int] = {}
    if flags & ConnectFlag.CHECKPOINT and data.left >= TAP_COUNT.size:
        entries = data.rows(TAP_CHECKPOINT_ENTRY, data.take(TAP_COUNT))
        last_closed = {number: checkpoint_id for number, checkpoint_id in entries}  # noqa: C416
    closed_only = False
    if flags & ConnectFlag.REGISTERED_CLIENT and data.left:
        closed_only = bool(data.take(TAP_REGISTERED_DATA))
    if data.left:
        raise RemoteProtocolError(f"{data.left} bytes too many in a TAP connect")
    return Connect(name, flags, oldest, vbuckets, last_closed, closed_only)


def encode_connect(connect: Connect, opaque: int = 0) -> bytes:
    """Return a complete TAP_CONNECT, without data that its flags do not ask for.

    Raises:
        LocalProtocolError: a number does not fit, or a list of no vBuckets: it would mean all.
    """
    parts: list[bytes] = []
    if connect.has(ConnectFlag.BACKFILL):
        parts.append(pack_rows(TAP_BACKFILL_DATA, [(connect.oldest_entry_s,)]))
    if connect.has(ConnectFlag.LIST_VBUCKETS):
        if connect.vbuckets == ():
            raise LocalProtocolError("an empty list of vBuckets would mean all")
        numbers = connect.vbuckets or ()
        parts.append(pack_rows(TAP_COUNT, [(len(numbers),)]))
        parts.append(pack_rows(TAP_VBUCKET_ENTRY, [(number,) for number in numbers]))
    if connect.has(ConnectFlag.CHECKPOINT) and connect.last_closed:
        parts.append(pack_rows(TAP_COUNT, [(len(connect.last_closed),)]))
        parts.append(pack_rows(TAP_CHECKPOINT_ENTRY, connect.last_closed.items()))
    if connect.has(ConnectFlag.REGISTERED_CLIENT) and connect.closed_only:
        parts.append(TAP_REGISTERED_DATA.pack(1))
    return encode_request(
        Opcode.TAP_CONNECT,
        key=connect.name,
        extras=pack_rows(TAP_CONNECT_EXTRAS, [(connect.flags,)]),
        value=b"".join(parts),
        opaque=opaque,
    )


def decode_filter(value: bytes) -> dict[int, int]:
    """Read the value of CHANGE_VB_FILTER: vBucket -> id of its last closed checkpoint.

    Raises:
        RemoteProtocolError: its length does not match its count, or it names no vBucket.
    """
    data = _Data(value)
    entries = data.rows(TAP_CHECKPOINT_ENTRY, data.take(TAP_COUNT))
    if data.left or not entries:
        raise RemoteProtocolError("a TAP filter without vBuckets, or of the wrong length")
    return {number: checkpoint_id for number, checkpoint_id in entries}  # noqa: C416


# --- messages of the producer -------------------------------------------------------------------

_ITEM_OPCODES = frozenset(
    {Opcode.TAP_MUTATION, Opcode.TAP_CHECKPOINT_START, Opcode.TAP_CHECKPOINT_END}
)


def decode_message(
    opcode: int, vbucket: int, opaque: int, cas: int, extras: bytes, key_length: int, rest: bytes
) -> TapMessage:
    """Take a message apart.

    Args:
        opcode: 0x41 to 0x47.
        vbucket: of the header.
        opaque: of the header.
        cas: of the header.
        extras: as many bytes as the header says.
        key_length: of the header.
        rest: the body after the extras: section, key, value.

    Raises:
        RemoteProtocolError: the extras are not those of the opcode, or section and key are longer
            than the body.
    """
    item = opcode in _ITEM_OPCODES and len(extras) == TAP_ITEM_EXTRAS.size
    if not item and len(extras) != TAP_EXTRAS.size:
        raise RemoteProtocolError(f"a TAP message {opcode:#04x} with {len(extras)} B of extras")
    if not item and opcode == Opcode.TAP_MUTATION:
        raise RemoteProtocolError("a TAP mutation without flags and expiration")
    item_flags = expiration = 0
    if item:
        size, flags, ttl, _, item_flags, expiration = TAP_ITEM_EXTRAS.unpack(extras)
    else:
        size, flags, ttl, _ = TAP_EXTRAS.unpack(extras)
    if size + key_length > len(rest):
        raise RemoteProtocolError(
            f"a TAP message {opcode:#04x} of {len(rest)} B with a section of {size} B"
        )
    middle = size + key_length
    return TapMessage(
        opcode,
        vbucket,
        opaque,
        cas,
        flags,
        ttl,
        item_flags,
        expiration,
        rest[:size],
        rest[size:middle],
        rest[middle:],
    )


def tap_message(
    opcode: int,
    *,
    specific: bytes = b"",
    flags: int = 0,
    vbucket: int = 0,
    opaque: int = 0,
    cas: int = 0,
    key: bytes = b"",
    value: bytes = b"",
    item: tuple[int, int] | None = None,
    ttl: int = TTL,
) -> bytes:
    """Return a complete message; `item` is item flags and expiration, if the extras have them.

    Raises:
        LocalProtocolError: a number does not fit.
    """
    try:
        if item is None:
            extras = TAP_EXTRAS.pack(len(specific), flags, ttl, b"")
        else:
            extras = TAP_ITEM_EXTRAS.pack(len(specific), flags, ttl, b"", *item)
        body_length = len(extras) + len(specific) + len(key) + len(value)
        head = pack_request(
            MAGIC_REQUEST, opcode, len(key), len(extras), 0, vbucket, body_length, opaque, cas
        )
    except struct.error as error:
        raise LocalProtocolError(f"cannot be put on the wire: {error}") from None
    return b"".join((head, extras, specific, key, value))


def opaque_message(command: int, vbucket: int, opaque: int, flags: int = 0) -> bytes:
    """Return an OPAQUE; `command` is a `TapOpaque`, `opaque` the sequence number."""
    specific = TAP_WORD_SPECIFIC.pack(command)
    return tap_message(
        Opcode.TAP_OPAQUE, specific=specific, flags=flags, vbucket=vbucket, opaque=opaque
    )


def state_message(state: int, vbucket: int, opaque: int, flags: int = 0) -> bytes:
    """Return a VBUCKET_SET."""
    specific = TAP_WORD_SPECIFIC.pack(state)
    return tap_message(
        Opcode.TAP_VBUCKET_SET, specific=specific, flags=flags, vbucket=vbucket, opaque=opaque
    )


def flush_message(opaque: int, flags: int = 0) -> bytes:
    """Return a FLUSH of the bucket."""
    return tap_message(Opcode.TAP_FLUSH, flags=flags, opaque=opaque)


def checkpoint_start(
    checkpoint_id: int, vbucket: int, opaque: int, flags: int = 0, *, deleted_rev: int = 0
) -> bytes:
    """Return a CHECKPOINT_START; `deleted_rev`: the vBucket's highest revision of a deletion."""
    return tap_message(
        Opcode.TAP_CHECKPOINT_START,
        specific=TAP_REVISION_SPECIFIC.pack(deleted_rev),
        flags=flags,
        vbucket=vbucket,
        opaque=opaque,
        key=CHECKPOINT_START_KEY,
        value=TAP_CHECKPOINT_VALUE.pack(checkpoint_id),
        item=(0, 0),
    )


def checkpoint_end(checkpoint_id: int, vbucket: int, opaque: int, flags: int = 0) -> bytes:
    """Return a CHECKPOINT_END."""
    return tap_message(
        Opcode.TAP_CHECKPOINT_END,
        flags=flags,
        vbucket=vbucket,
        opaque=opaque,
        key=CHECKPOINT_END_KEY,
        value=TAP_CHECKPOINT_VALUE.pack(checkpoint_id),
        item=(0, 0),
    )


def tap_answer(opcode: int, opaque: int, status: int = 0, text: bytes = b"") -> bytes:
    """Return the answer to a message, or the refusal of a TAP_CONNECT."""
    return encode_response(opcode, status=status, value=text, opaque=opaque)
