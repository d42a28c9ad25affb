"""Commands that read and write documents with their metadata, for replication by other programs.

Source: UPR reference, section 6; systems reference (b) for conflict resolution.
"""

from __future__ import annotations

from uprmc.engine.memory import absolute_expiry
from uprmc.engine.vbucket import StoreMode, VBucket, known
from uprmc.engine.with_meta import Demand, accept_version
from uprmc.errors import (
    InvalidArguments,
    NotResident,
    RemoteProtocolError,
    TooLarge,
)
from uprmc.kv import operations
from uprmc.kv.binary_conversation import BinaryConversation, Handler, Request
from uprmc.model import Life, Origin
from uprmc.protocol.management import (
    GET_META_DATATYPE_REPLY_EXTRAS,
    GET_META_EXTRAS,
    GET_META_REPLY_EXTRAS,
    RETURN_META_EXTRAS,
    RETURN_META_REPLY_EXTRAS,
    ReturnMetaKind,
    WithMetaOption,
    decode_with_meta,
)
from uprmc.protocol.opcodes import QUIET, Opcode, Status
from uprmc.protocol.origins import decode_origin
from uprmc.protocol.replication import (
    GET_VERSION_EXTRAS,
    GET_VERSION_MISS_EXTRAS,
    GET_VERSION_ORIGIN_EXTRAS,
    GET_VERSION_REPLY_EXTRAS,
)
from uprmc.record import FRONT, LIFE_BITS, TAIL, build, cas_of, tail_at, unpack
from uprmc.upr.admission import locate

_PLAIN_META = 1
_WITH_DATATYPE = 2

#: Plain numbers, because operators of enums cost as much as everything else about a restored
#: document.
_OPTIONS = int(sum(WithMetaOption))
_FORCE_ACCEPT = int(WithMetaOption.FORCE_ACCEPT)
_REGENERATE_CAS = int(WithMetaOption.REGENERATE_CAS)
_SKIP_CONFLICT_RESOLUTION = int(WithMetaOption.SKIP_CONFLICT_RESOLUTION)
_IS_EXPIRATION = int(WithMetaOption.IS_EXPIRATION)

#: The demand of nearly every sender.
_NOTHING_ELSE = Demand()

#: What 0x01 meant in 2014, when it was the only option.
_SKIP_CONFLICT_RESOLUTION_2014 = 0x01

# --- reading ------------------------------------------------------------------------------------


def get_meta(session: BinaryConversation, request: Request) -> None:
    """Answer a document's metadata, or its tombstone's; an expired document counts as deleted."""
    version = GET_META_EXTRAS.unpack(request.extras)[0] if request.extras else _PLAIN_META
    if version not in (_PLAIN_META, _WITH_DATATYPE):
        raise InvalidArguments(f"version {version} of metadata")
    vbucket = session.locate(request)
    record = _newest(session, vbucket, request.key)
    session.stats.ops_get_meta += 1
    if record is None:
        session.miss(request, with_key=False)
        return
    _, kind, datatype, expiry, _, rev, seqno = FRONT.unpack_from(record)
    cas, flags = TAIL.unpack_from(record, tail_at(record))
    gone = bool(kind & LIFE_BITS) or 0 < vbucket.due(expiry, seqno) <= session.now()
    if version == _WITH_DATATYPE:
        extras = GET_META_DATATYPE_REPLY_EXTRAS.pack(gone, flags, expiry, rev, datatype)
    else:
        extras = GET_META_REPLY_EXTRAS.pack(gone, flags, expiry, rev)
    session.reply(request, extras=extras, cas=vbucket.visible_cas(request.key, cas))


def get_version(session: BinaryConversation, request: Request) -> None:
    """Answer a document's newest version as a stream would send it, with its seqno.

    This works for every vBucket that can be streamed. It changes nothing: a document whose expiry
    has not been noticed is still alive, and a lock hides nothing.
    """
    (upto_seqno,) = GET_VERSION_EXTRAS.unpack(request.extras)
    vbucket = locate(session.bucket, request.number, 0)
    record = _newest(session, vbucket, request.key)
    if record is None:
        extras = GET_VERSION_MISS_EXTRAS.pack(vbucket.purge_seqno)
        session.reply(request, Status.KEY_NOT_FOUND, extras=extras)
        return
    item = unpack(record)
    value = b""
    if not item.life and item.seqno <= upto_seqno:
        if item.value is None:
            raise NotResident(vbucket.id, (request.key,))
        value = item.value
    numbers = (item.seqno, item.rev, item.flags, item.expiry, item.life)
    if item.origin is not None and session.with_origins:
        extras = GET_VERSION_ORIGIN_EXTRAS.pack(*numbers, *item.origin)
    else:
        extras = GET_VERSION_REPLY_EXTRAS.pack(*numbers)
    session.reply(
        request,
        extras=extras,
        value=value,
        cas=item.cas,
        datatype=item.datatype,
    )


def _newest(session: BinaryConversation, vbucket: VBucket, key: bytes) -> bytes | None:
    """Return the record of a key's newest version, even of a tombstone that is only on disk."""
    record = vbucket.table.get(key)
    if record is None and vbucket.max_deleted_rev:
        return session.bucket.fetcher.tombstone(vbucket, key)
    return None if record is None else known(record)


# --- versions made elsewhere --------------------------------------------------------------------


def store_with_meta(session: BinaryConversation, request: Request) -> None:
    """Carry out set and add with metadata."""
    loud = QUIET.get(request.opcode, request.opcode)
    _accept(session, request, Life.LIVE, add=loud == Opcode.ADD_WITH_META)


def delete_with_meta(session: BinaryConversation, request: Request) -> None:
    """Carry out delete with metadata; creates a tombstone even if there was no document."""
    _accept(session, request, Life.DELETED)


def _accept(
    session: BinaryConversation, request: Request, life: Life, *, add: bool = False
) -> None:
    meta = decode_with_meta(request.extras)
    value, origin = _split(request.value, meta.nmeta)
    if life and value:
        raise RemoteProtocolError("a deletion with a value")
    if session.exceeds_item_limit(len(request.key), len(value)):
        raise TooLarge(request.key)
    options = _options(meta.options, greeted=session.greeted)
    if options & _IS_EXPIRATION:
        if not life:
            raise InvalidArguments("only a deletion can be an expiration")
        life = Life.EXPIRED
    vbucket = session.locate(request)
    datatype = 0 if life else request.datatype & session.datatypes
    front = (life, datatype, meta.exptime, len(request.key), meta.rev, 0)
    version = build(front, request.key, meta.cas, meta.flags, value, origin)
    demand = _NOTHING_ELSE
    if options or add or request.cas:
        demand = Demand(
            request.cas,
            add,
            skip_conflicts=bool(options & _SKIP_CONFLICT_RESOLUTION),
            regenerate_cas=bool(options & _REGENERATE_CAS),
            any_cas=bool(options & _FORCE_ACCEPT),
        )
    stored = accept_version(session.bucket, vbucket, version, demand)
    session.changed(request, vbucket, cas_of(stored))


def _options(bits: int, *, greeted: bool) -> int:
    """Return option bits in their present meaning.

    A peer that has sent HELLO is a modern one. Another one may be of 2014: its 0x01 is the present
    0x08. The present 0x01 asks a bucket to accept versions that it would otherwise refuse; this one
    never refuses them. 0x02 does so, too: here it is for a CAS far in the future.
    """
    if bits & ~_OPTIONS:
        raise InvalidArguments(f"options {bits:#x}")
    if not greeted and bits & _SKIP_CONFLICT_RESOLUTION_2014:
        bits |= _SKIP_CONFLICT_RESOLUTION
    if bits & _REGENERATE_CAS and not bits & _SKIP_CONFLICT_RESOLUTION:
        raise InvalidArguments("a new CAS is given only without conflict resolution")
    return bits


def _split(value: bytes, nmeta: int) -> tuple[bytes, Origin | None]:
    """Return the value without its extended metadata, and the origin that this tells."""
    if not nmeta:
        return value, None
    if nmeta > len(value):
        raise RemoteProtocolError(f"{nmeta} bytes of metadata in a value of {len(value)}")
    middle = len(value) - nmeta
    return value[:middle], decode_origin(value[middle:])


# --- changes that tell their metadata -----------------------------------------------------------


def return_meta(session: BinaryConversation, request: Request) -> None:
    """Set, add or delete as clients do, and return the metadata of the result."""
    kind, flags, exptime = RETURN_META_EXTRAS.unpack(request.extras)
    vbucket = session.locate(request)
    stats = session.stats
    if kind == ReturnMetaKind.DELETE:
        item = operations.delete(session.bucket, vbucket, request.key, request.cas)
        stats.ops_del_ret_meta += 1
    elif kind in (ReturnMetaKind.SET, ReturnMetaKind.ADD):
        if session.exceeds_item_limit(len(request.key), len(request.value)):
            raise TooLarge(request.key)
        item = operations.store(
            session.bucket,
            vbucket,
            request.key,
            request.value,
            flags,
            absolute_expiry(exptime, session.now()),
            request.cas,
            request.datatype & session.datatypes,
            StoreMode.ADD if kind == ReturnMetaKind.ADD else StoreMode.SET,
        )
        stats.ops_set_ret_meta += 1
    else:
        raise InvalidArguments(f"{kind} is neither set, add nor delete")
    extras = RETURN_META_REPLY_EXTRAS.pack(item.flags, item.expiry, item.rev)
    session.reply(request, extras=extras, cas=item.cas)


METADATA_COMMANDS: dict[int, Handler] = {
    Opcode.GET_META: get_meta,
    Opcode.GET_VERSION: get_version,
    Opcode.SET_WITH_META: store_with_meta,
    Opcode.ADD_WITH_META: store_with_meta,
    Opcode.DEL_WITH_META: delete_with_meta,
    Opcode.RETURN_META: return_meta,
}
