"""Commands of the binary protocol on documents: reading, changing, locks, metadata, OBSERVE.

Those with metadata are for replication by other programs.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from uprmc.engine.memory import absolute_expiry
from uprmc.engine.vbucket import StoreMode, VBucket, known
from uprmc.engine.with_meta import Demand, accept_version
from uprmc.errors import (
    CommandError,
    InvalidArguments,
    KeyNotFound,
    Locked,
    NotLocked,
    NotResident,
    RemoteProtocolError,
    TooLarge,
)
from uprmc.kv import operations
from uprmc.model import Item, Life, Origin, VBucketState
from uprmc.protocol.binary import (
    ARITHMETIC_EXTRAS,
    COUNTER_VALUE,
    FLUSH_EXTRAS,
    GET_LOCK_EXTRAS,
    GET_REPLY_EXTRAS,
    OBSERVE_SEQNO_FAILOVER_REPLY,
    OBSERVE_SEQNO_REPLY,
    OBSERVE_SEQNO_REQUEST,
    STORE_EXTRAS,
    TOUCH_EXTRAS,
    KeyObservation,
    ObservedKey,
    decode_observe_request,
    encode_observe_reply,
)
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
from uprmc.protocol.opcodes import DO_NOT_CREATE, QUIET, ObservedState, Opcode, Status
from uprmc.protocol.origins import decode_origin
from uprmc.protocol.replication import (
    GET_VERSION_EXTRAS,
    GET_VERSION_MISS_EXTRAS,
    GET_VERSION_ORIGIN_EXTRAS,
    GET_VERSION_REPLY_EXTRAS,
)
from uprmc.record import FRONT, LIFE_BITS, TAIL, build, cas_of, tail_at, unpack
from uprmc.upr.admission import locate

if TYPE_CHECKING:
    from uprmc.kv.binary import BinarySession, Handler
    from uprmc.protocol.header import RequestFrame

# --- reading ------------------------------------------------------------------------------------


_WITH_KEY = frozenset({Opcode.GETK, Opcode.GETKQ, Opcode.GATK, Opcode.GATKQ})


def get(session: BinarySession, request: RequestFrame) -> None:
    """Answer get, getk and their quiet forms."""
    vbucket = session.locate(request)
    item = operations.get(session.bucket, vbucket, request.key)
    if item is None:
        session.miss(request, with_key=request.opcode in _WITH_KEY)
        return
    _send_item(session, request, vbucket, item)


def get_and_touch(session: BinarySession, request: RequestFrame) -> None:
    """Answer gat, gatk and their quiet forms."""
    vbucket = session.locate(request)
    try:
        item = _touched(session, request, vbucket)
    except KeyNotFound:
        session.miss(request, with_key=request.opcode in _WITH_KEY)
        return
    _send_item(session, request, vbucket, item)


def touch(session: BinarySession, request: RequestFrame) -> None:
    """Give a document another expiry time; the reply carries flags and CAS."""
    item = _touched(session, request, session.locate(request))
    session.reply(request, extras=GET_REPLY_EXTRAS.pack(item.flags), cas=item.cas)


def _touched(session: BinarySession, request: RequestFrame, vbucket: VBucket) -> Item:
    (exptime,) = TOUCH_EXTRAS.unpack(request.extras)
    expiry = absolute_expiry(exptime, session.now())
    return operations.touch(session.bucket, vbucket, request.key, expiry)


def get_and_lock(session: BinarySession, request: RequestFrame) -> None:
    """Lock a document and return it with the CAS that opens the lock."""
    settings = session.bucket.settings.engine
    seconds = GET_LOCK_EXTRAS.unpack(request.extras)[0] if request.extras else 0
    if not 0 < seconds <= settings.lock_max_s:
        seconds = settings.lock_default_s
    item, cas = session.locate(request).lock(request.key, seconds)
    assert item.value is not None
    session.reply(
        request,
        extras=GET_REPLY_EXTRAS.pack(item.flags),
        value=item.value,
        cas=cas,
        datatype=item.datatype,
    )


def unlock(session: BinarySession, request: RequestFrame) -> None:
    """Open a lock early."""
    vbucket = session.locate(request)
    try:
        vbucket.unlock(request.key, request.cas)
    except NotLocked:
        if session.negotiated.lock_errors and request.key in vbucket.locks:
            raise Locked(request.key) from None  # by another client, whose lock has not expired
        raise
    session.reply(request, value=b"UNLOCKED")


def _send_item(session: BinarySession, request: RequestFrame, vbucket: VBucket, item: Item) -> None:
    assert item.value is not None
    session.reply(
        request,
        extras=GET_REPLY_EXTRAS.pack(item.flags),
        key=request.key if request.opcode in _WITH_KEY else b"",
        value=item.value,
        cas=vbucket.visible_cas(item.key, item.cas),
        datatype=item.datatype,
    )


READ_COMMANDS: dict[int, Handler] = {
    Opcode.GET: get,
    Opcode.GETK: get,
    Opcode.GAT: get_and_touch,
    Opcode.GATK: get_and_touch,
    Opcode.TOUCH: touch,
    Opcode.GETL: get_and_lock,
    Opcode.UNLOCK: unlock,
}


# --- changing -----------------------------------------------------------------------------------


_STORE_MODES = {
    Opcode.SET: StoreMode.SET,
    Opcode.ADD: StoreMode.ADD,
    Opcode.REPLACE: StoreMode.REPLACE,
}

#: Opcodes whose value may be too large, quiet ones included.
STORE_OPCODES = frozenset(
    opcode
    for opcode in (*Opcode,)
    if QUIET.get(opcode, opcode)
    in (Opcode.SET, Opcode.ADD, Opcode.REPLACE, Opcode.APPEND, Opcode.PREPEND)
)


def store(session: BinarySession, request: RequestFrame) -> None:
    """Carry out set, add and replace."""
    if session.exceeds_item_limit(len(request.key), len(request.value)):
        refuse_too_large(session, request)
        return
    vbucket = session.locate(request)
    flags, exptime = STORE_EXTRAS.unpack(request.extras)
    mode = _STORE_MODES[Opcode(QUIET.get(request.opcode, request.opcode))]
    item = _stored(session, request, vbucket, flags, exptime, mode)
    session.changed(request, vbucket, item.cas)


def _stored(
    session: BinarySession,
    request: RequestFrame,
    vbucket: VBucket,
    flags: int,
    exptime: int,
    mode: StoreMode,
) -> Item:
    return operations.store(
        session.bucket,
        vbucket,
        request.key,
        request.value,
        flags,
        absolute_expiry(exptime, session.now()),
        request.cas,
        request.datatype & session.negotiated.datatypes,
        mode,
    )


def extend(session: BinarySession, request: RequestFrame) -> None:
    """Carry out append and prepend."""
    if session.exceeds_item_limit(len(request.key), len(request.value)):
        raise TooLarge(request.key)
    vbucket = session.locate(request)
    item = operations.extend(
        session.bucket,
        vbucket,
        request.key,
        request.value,
        request.cas,
        front=QUIET.get(request.opcode, request.opcode) == Opcode.PREPEND,
        limit_bytes=session.services.most_value_bytes(len(request.key)),
    )
    session.changed(request, vbucket, item.cas)


def arithmetic(session: BinarySession, request: RequestFrame) -> None:
    """Carry out increment and decrement; creates a missing counter unless that is forbidden."""
    delta, initial, exptime = ARITHMETIC_EXTRAS.unpack(request.extras)
    up = QUIET.get(request.opcode, request.opcode) == Opcode.INCREMENT
    vbucket = session.locate(request)
    number, item, _ = operations.add_delta(
        session.bucket,
        vbucket,
        request.key,
        delta,
        request.cas,
        down=not up,
        initial=None if exptime == DO_NOT_CREATE else initial,
        expiry=0 if exptime == DO_NOT_CREATE else absolute_expiry(exptime, session.now()),
        padded=session.services.pads_counters,
    )
    session.changed(request, vbucket, item.cas, value=COUNTER_VALUE.pack(number))


def delete(session: BinarySession, request: RequestFrame) -> None:
    """Delete a document. memcached's reply has no CAS; that of present servers has, after HELLO."""
    vbucket = session.locate(request)
    tombstone = operations.delete(session.bucket, vbucket, request.key, request.cas)
    session.changed(request, vbucket, tombstone.cas if session.negotiated.greeted else 0)


def flush(session: BinarySession, request: RequestFrame) -> None:
    """Delete everything, now or later. The answer to "now" means that it is on disk."""
    exptime = FLUSH_EXTRAS.unpack(request.extras)[0] if request.extras else 0
    bucket = session.bucket
    if not bucket.traffic:
        session.locate(request)
    session.stats.cmd_flush += 1
    at = absolute_expiry(exptime, session.now())
    if request.opcode == Opcode.FLUSHQ:
        bucket.flush(at, lambda _durable: None)
        return
    resume = session.suspend()

    def answer(durable: bool) -> None:
        session.reply(request, Status.SUCCESS if durable else Status.TEMPORARY_FAILURE)
        resume()

    bucket.flush(at, answer)


def refuse_too_large(session: BinarySession, request: RequestFrame) -> None:
    """Answer a store whose item exceeds the limit; a *set* also removes what was there.

    memcached does this, because the client wanted to replace that value. Append and replace remove
    nothing. It counts those of the text protocol alone.
    """
    if QUIET.get(request.opcode, request.opcode) == Opcode.SET:
        with suppress(CommandError):  # no such document, or not now: the answer is the same
            session.locate(request).delete(request.key)
    session.reply(request, Status.TOO_LARGE)


CHANGE_COMMANDS: dict[int, Handler] = {
    Opcode.SET: store,
    Opcode.ADD: store,
    Opcode.REPLACE: store,
    Opcode.APPEND: extend,
    Opcode.PREPEND: extend,
    Opcode.INCREMENT: arithmetic,
    Opcode.DECREMENT: arithmetic,
    Opcode.DELETE: delete,
    Opcode.FLUSH: flush,
}


# --- is it on disk ------------------------------------------------------------------------------


_NOT_YET_PERSISTED = (ObservedState.NOT_PERSISTED, ObservedState.LOGICALLY_DELETED)


def observe(session: BinarySession, request: RequestFrame) -> None:
    """Answer for each key whether its present version is on disk.

    The CAS of the reply estimates the milliseconds until everything is persisted (high half) and
    replicated (low half: 0, not known).
    """
    asked = decode_observe_request(request.value, session.services.settings.max_listed_keys)
    found = [_observed(session, each) for each in asked]
    if any(each.state in _NOT_YET_PERSISTED for each in found):
        wait_ms = max(1, round(session.bucket.settings.flush.min_delay_s * 1_000))
    else:
        wait_ms = 0
    session.reply(request, value=encode_observe_reply(found), cas=wait_ms << 32)


def _observable(session: BinarySession, number: int) -> VBucket:
    """Return a vBucket that may be observed; also a replica, because clients wait for replicas.

    Raises:
        TemporaryFailure: clients are not admitted.
        NotMyVBucket: absent or dead.
    """
    bucket = session.bucket
    vbucket = bucket.vbuckets.get(number)
    if vbucket is None or vbucket.state == VBucketState.DEAD or not bucket.traffic:
        return bucket.locate(number)  # raises the reason
    return vbucket


def _observed(session: BinarySession, asked: ObservedKey) -> KeyObservation:
    vbucket = _observable(session, session.number_of(asked.vbucket, asked.key))
    if vbucket.state == VBucketState.ACTIVE:
        vbucket.find(asked.key)  # an expired document is deleted on the way
    item = vbucket.table.find(asked.key)
    if item is None:
        return KeyObservation(*asked, ObservedState.NOT_FOUND, 0)
    persisted = item.seqno <= vbucket.persisted_seqno
    if not persisted:
        session.bucket.flusher.hurry()
    if item.life:
        state = ObservedState.NOT_FOUND if persisted else ObservedState.LOGICALLY_DELETED
    else:
        state = ObservedState.PERSISTED if persisted else ObservedState.NOT_PERSISTED
    return KeyObservation(*asked, state, item.cas)


def observe_seqno(session: BinarySession, request: RequestFrame) -> None:
    """Answer how far a vBucket is persisted, and whether the client's history is the newest."""
    if len(request.value) != OBSERVE_SEQNO_REQUEST.size:
        raise RemoteProtocolError("the value of observe-seqno is one vb_uuid")
    (uuid,) = OBSERVE_SEQNO_REQUEST.unpack(request.value)
    vbucket = _observable(session, request.vbucket)
    log = vbucket.failover_log
    place = next((i for i, entry in enumerate(log) if entry.uuid == uuid), None)
    if place is None:
        raise KeyNotFound(uuid)
    persisted = session.bucket.flusher.durable_seqno(vbucket)
    if persisted < vbucket.high_seqno:
        session.bucket.flusher.hurry()
    numbers = (vbucket.id, log[0].uuid, persisted, vbucket.high_seqno)
    if place == 0:
        value = OBSERVE_SEQNO_REPLY.pack(0, *numbers)
    else:
        value = OBSERVE_SEQNO_FAILOVER_REPLY.pack(1, *numbers, uuid, log[place - 1].seqno)
    session.reply(request, value=value)


OBSERVE_COMMANDS: dict[int, Handler] = {
    Opcode.OBSERVE: observe,
    Opcode.OBSERVE_SEQNO: observe_seqno,
}


# --- metadata -----------------------------------------------------------------------------------


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


def get_meta(session: BinarySession, request: RequestFrame) -> None:
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


def get_version(session: BinarySession, request: RequestFrame) -> None:
    """Answer a document's newest version as a stream would send it, with its seqno.

    This works for every vBucket that can be streamed. It changes nothing: a document whose expiry
    has not been noticed is still alive, and a lock hides nothing.
    """
    (upto_seqno,) = GET_VERSION_EXTRAS.unpack(request.extras)
    vbucket = locate(session.bucket, request.vbucket, 0)
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
    if item.origin is not None and session.negotiated.origins:
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


def _newest(session: BinarySession, vbucket: VBucket, key: bytes) -> bytes | None:
    """Return the record of a key's newest version, even of a tombstone that is only on disk."""
    record = vbucket.table.get(key)
    if record is None and vbucket.max_deleted_rev:
        return session.bucket.fetcher.tombstone(vbucket, key)
    return None if record is None else known(record)


# --- versions made elsewhere --------------------------------------------------------------------


def store_with_meta(session: BinarySession, request: RequestFrame) -> None:
    """Carry out set and add with metadata."""
    loud = QUIET.get(request.opcode, request.opcode)
    _accept(session, request, Life.LIVE, add=loud == Opcode.ADD_WITH_META)


def delete_with_meta(session: BinarySession, request: RequestFrame) -> None:
    """Carry out delete with metadata; creates a tombstone even if there was no document."""
    _accept(session, request, Life.DELETED)


def _accept(
    session: BinarySession, request: RequestFrame, life: Life, *, add: bool = False
) -> None:
    meta = decode_with_meta(request.extras)
    value, origin = _split(request.value, meta.nmeta)
    if life and value:
        raise RemoteProtocolError("a deletion with a value")
    if session.exceeds_item_limit(len(request.key), len(value)):
        raise TooLarge(request.key)
    options = _options(meta.options, greeted=session.negotiated.greeted)
    if options & _IS_EXPIRATION:
        if not life:
            raise InvalidArguments("only a deletion can be an expiration")
        life = Life.EXPIRED
    vbucket = session.locate(request)
    datatype = 0 if life else request.datatype & session.negotiated.datatypes
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


def return_meta(session: BinarySession, request: RequestFrame) -> None:
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
        mode = StoreMode.ADD if kind == ReturnMetaKind.ADD else StoreMode.SET
        item = _stored(session, request, vbucket, flags, exptime, mode)
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
