"""The client commands of the binary protocol, one small function each; `command_table` has all.

A command gets its session and its request, whose layout has been checked. It either answers through
the session or raises an error of the engine, which the session turns into an error of the protocol.
Quiet forms are the same functions: `BinarySession.succeed` and `miss` know when to send nothing.

Source: memcached reference 2.3 to 2.9; UPR reference 2.13 and 6.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from uprmc.engine.expiry import absolute_expiry
from uprmc.engine.stats import Stats
from uprmc.engine.vbucket import StoreMode, VBucket
from uprmc.errors import (
    CommandError,
    KeyExists,
    KeyNotFound,
    Locked,
    NotLocked,
    RemoteProtocolError,
    TooLarge,
)
from uprmc.kv.binary_conversation import BinaryConversation, Handler, Request
from uprmc.kv.door import require, require_statistics
from uprmc.kv.services import StatGroup, StatRows
from uprmc.login.users import Role
from uprmc.model import Item, VBucketState
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
    VERBOSITY_EXTRAS,
    KeyObservation,
    ObservedKey,
    decode_hello,
    decode_observe_request,
    encode_hello,
    encode_observe_reply,
)
from uprmc.protocol.header import encode_response
from uprmc.protocol.opcodes import (
    DO_NOT_CREATE,
    QUIET,
    DataType,
    Feature,
    ObservedState,
    Opcode,
    Status,
)

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

_WITH_KEY = frozenset({Opcode.GETK, Opcode.GETKQ, Opcode.GATK, Opcode.GATKQ})

_NOT_YET_PERSISTED = (ObservedState.NOT_PERSISTED, ObservedState.LOGICALLY_DELETED)

#: Commands are not counted by key prefix: the switch is accepted, the dump is empty.
_STATS_DETAIL: dict[str, StatGroup] = {
    "detail on": [],
    "detail off": [],
    "detail dump": [("detailed", "END\r\n")],
}

#: Features that HELLO grants.
_GRANTED = frozenset(
    {
        Feature.TCP_NODELAY,
        Feature.MUTATION_SEQNO,
        Feature.XERROR,
        Feature.SELECT_BUCKET,
        Feature.JSON,
        Feature.DATATYPE,
        Feature.TERMS,
        Feature.ORIGINS,
        Feature.CHECKPOINTS,
    }
)


# --- reading ------------------------------------------------------------------------------------


def get(session: BinaryConversation, request: Request) -> None:
    """Answer get, getk and their quiet forms."""
    vbucket = session.locate(request)
    stats = session.stats
    expired = stats.expired_access
    item = vbucket.get(request.key)
    stats.cmd_get += 1
    if item is None:
        stats.get_misses += 1
        stats.get_expired += stats.expired_access - expired
        session.miss(request, with_key=request.opcode in _WITH_KEY)
        return
    stats.get_hits += 1
    _send_item(session, request, vbucket, item)


def get_and_touch(session: BinaryConversation, request: Request) -> None:
    """Answer gat, gatk and their quiet forms."""
    vbucket = session.locate(request)
    stats = session.stats
    (exptime,) = TOUCH_EXTRAS.unpack(request.extras)
    try:
        item = vbucket.touch(request.key, absolute_expiry(exptime, session.now()))
    except KeyNotFound:
        stats.cmd_touch += 1
        stats.cmd_get += 1
        stats.touch_misses += 1
        stats.get_misses += 1
        session.miss(request, with_key=request.opcode in _WITH_KEY)
        return
    stats.cmd_touch += 1
    stats.cmd_get += 1
    stats.touch_hits += 1
    stats.get_hits += 1
    _send_item(session, request, vbucket, item)


def touch(session: BinaryConversation, request: Request) -> None:
    """Give a document another expiry time; the reply carries flags and CAS."""
    stats = session.stats
    (exptime,) = TOUCH_EXTRAS.unpack(request.extras)
    try:
        item = session.locate(request).touch(request.key, absolute_expiry(exptime, session.now()))
    except KeyNotFound:
        stats.cmd_touch += 1
        stats.touch_misses += 1
        raise
    stats.cmd_touch += 1
    stats.touch_hits += 1
    session.reply(request, extras=GET_REPLY_EXTRAS.pack(item.flags), cas=item.cas)


def get_and_lock(session: BinaryConversation, request: Request) -> None:
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


def unlock(session: BinaryConversation, request: Request) -> None:
    """Open a lock early."""
    vbucket = session.locate(request)
    try:
        vbucket.unlock(request.key, request.cas)
    except NotLocked:
        if session.with_lock_errors and request.key in vbucket.locks:
            raise Locked(request.key) from None  # by another client, whose lock has not expired
        raise
    session.reply(request, value=b"UNLOCKED")


def _send_item(session: BinaryConversation, request: Request, vbucket: VBucket, item: Item) -> None:
    assert item.value is not None
    session.reply(
        request,
        extras=GET_REPLY_EXTRAS.pack(item.flags),
        key=request.key if request.opcode in _WITH_KEY else b"",
        value=item.value,
        cas=vbucket.visible_cas(item.key, item.cas),
        datatype=item.datatype,
    )


# --- changing -----------------------------------------------------------------------------------


def store(session: BinaryConversation, request: Request) -> None:
    """Carry out set, add and replace."""
    if session.exceeds_item_limit(len(request.key), len(request.value)):
        refuse_too_large(session, request)
        return
    vbucket = session.locate(request)
    stats = session.stats
    stats.cmd_set += 1
    flags, exptime = STORE_EXTRAS.unpack(request.extras)
    mode = _STORE_MODES[Opcode(QUIET.get(request.opcode, request.opcode))]
    try:
        item = vbucket.store(
            request.key,
            request.value,
            flags,
            absolute_expiry(exptime, session.now()),
            request.cas,
            request.datatype & session.datatypes,
            mode,
        )
    except (KeyExists, KeyNotFound) as error:
        count_cas_failure(stats, request.cas, error)
        raise
    stats.total_items += 1
    stats.cas_hits += request.cas != 0
    session.changed(request, vbucket, item.cas)


def extend(session: BinaryConversation, request: Request) -> None:
    """Carry out append and prepend."""
    if session.exceeds_item_limit(len(request.key), len(request.value)):
        raise TooLarge(request.key)
    vbucket = session.locate(request)
    item = vbucket.extend(
        request.key,
        request.value,
        request.cas,
        front=QUIET.get(request.opcode, request.opcode) == Opcode.PREPEND,
        limit_bytes=session.value_limit_bytes(len(request.key)),
    )
    session.stats.cmd_set += 1
    session.stats.total_items += 1
    session.changed(request, vbucket, item.cas)


def arithmetic(session: BinaryConversation, request: Request) -> None:
    """Carry out increment and decrement; creates a missing counter unless that is forbidden."""
    delta, initial, exptime = ARITHMETIC_EXTRAS.unpack(request.extras)
    up = QUIET.get(request.opcode, request.opcode) == Opcode.INCREMENT
    vbucket = session.locate(request)
    stats = session.stats
    hit = vbucket.find(request.key) is not None
    try:
        number, item = vbucket.add_delta(
            request.key,
            delta if up else -delta,
            request.cas,
            initial=None if exptime == DO_NOT_CREATE else initial,
            expiry=0 if exptime == DO_NOT_CREATE else absolute_expiry(exptime, session.now()),
            padded=session.services.pads_counters,
        )
    except KeyNotFound:
        _count_arithmetic(stats, up, hit)
        raise
    _count_arithmetic(stats, up, hit)
    session.changed(request, vbucket, item.cas, value=COUNTER_VALUE.pack(number))


def _count_arithmetic(stats: Stats, up: bool, hit: bool) -> None:
    if up:
        stats.incr_hits += hit
        stats.incr_misses += not hit
    else:
        stats.decr_hits += hit
        stats.decr_misses += not hit


def delete(session: BinaryConversation, request: Request) -> None:
    """Delete a document. memcached's reply has no CAS; that of present servers has, after HELLO."""
    vbucket = session.locate(request)
    try:
        tombstone = vbucket.delete(request.key, request.cas)
    except KeyNotFound:
        session.stats.delete_misses += 1
        raise
    session.stats.delete_hits += 1
    session.changed(request, vbucket, tombstone.cas if session.greeted else 0)


def flush(session: BinaryConversation, request: Request) -> None:
    """Delete everything, now or later. The answer to "now" means that it is on disk."""
    exptime = FLUSH_EXTRAS.unpack(request.extras)[0] if request.extras else 0
    bucket = session.bucket
    session.stats.cmd_flush += 1
    if not bucket.traffic:
        session.locate(request)
    at = absolute_expiry(exptime, session.now())
    if request.opcode == Opcode.FLUSHQ:
        bucket.flush(at, lambda _durable: None)
        return
    resume = session.suspend()

    def answer(durable: bool) -> None:
        session.reply(request, Status.SUCCESS if durable else Status.TEMPORARY_FAILURE)
        resume()

    bucket.flush(at, answer)


def refuse_too_large(session: BinaryConversation, request: Request) -> None:
    """Answer a store whose item exceeds the limit; a *set* also removes what was there.

    memcached does this, because the client wanted to replace that value. Append and replace remove
    nothing.
    """
    if QUIET.get(request.opcode, request.opcode) == Opcode.SET:
        with suppress(CommandError):  # no such document, or not now: the answer is the same
            session.locate(request).delete(request.key)
    session.stats.store_too_large += 1
    session.reply(request, Status.TOO_LARGE)


def count_cas_failure(stats: Stats, cas: int, error: CommandError) -> None:
    """Count a store with a CAS that did not find what it compares with."""
    if cas:
        stats.cas_badval += isinstance(error, KeyExists)
        stats.cas_misses += isinstance(error, KeyNotFound)


# --- what is persisted --------------------------------------------------------------------------


def observe(session: BinaryConversation, request: Request) -> None:
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


def _observable(session: BinaryConversation, number: int) -> VBucket:
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


def _observed(session: BinaryConversation, asked: ObservedKey) -> KeyObservation:
    vbucket = _observable(session, session.number_of(asked.vbucket, asked.key))
    if vbucket.state == VBucketState.ACTIVE:
        vbucket.find(asked.key)  # an expired document is deleted on the way
    item = vbucket.metadata(asked.key)
    if item is None:
        return KeyObservation(*asked, ObservedState.NOT_FOUND, 0)
    persisted = item.seqno <= vbucket.persisted_seqno
    if not persisted:
        session.bucket.flusher.pace.hurry()
    if item.life:
        state = ObservedState.NOT_FOUND if persisted else ObservedState.LOGICALLY_DELETED
    else:
        state = ObservedState.PERSISTED if persisted else ObservedState.NOT_PERSISTED
    return KeyObservation(*asked, state, item.cas)


def observe_seqno(session: BinaryConversation, request: Request) -> None:
    """Answer how far a vBucket is persisted, and whether the client's history is the newest."""
    if len(request.value) != OBSERVE_SEQNO_REQUEST.size:
        raise RemoteProtocolError("the value of observe-seqno is one vb_uuid")
    (uuid,) = OBSERVE_SEQNO_REQUEST.unpack(request.value)
    vbucket = _observable(session, request.number)
    log = vbucket.failover_log
    place = next((i for i, entry in enumerate(log) if entry.uuid == uuid), None)
    if place is None:
        raise KeyNotFound(uuid)
    persisted = session.bucket.flusher.durable_seqno(vbucket)
    if persisted < vbucket.high_seqno:
        session.bucket.flusher.pace.hurry()
    numbers = (vbucket.id, log[0].uuid, persisted, vbucket.high_seqno)
    if place == 0:
        value = OBSERVE_SEQNO_REPLY.pack(0, *numbers)
    else:
        value = OBSERVE_SEQNO_FAILOVER_REPLY.pack(1, *numbers, uuid, log[place - 1].seqno)
    session.reply(request, value=value)


# --- the connection -----------------------------------------------------------------------------


def noop(session: BinaryConversation, request: Request) -> None:
    """Confirm that everything before has been answered."""
    session.reply(request)


def version(session: BinaryConversation, request: Request) -> None:
    """Answer the version."""
    session.reply(request, value=session.services.version)


def quit_(session: BinaryConversation, request: Request) -> None:
    """Close the connection; quitq sends no reply."""
    session.succeed(request)
    session.close()


def verbosity(session: BinaryConversation, request: Request) -> None:
    """Change how much is logged."""
    session.services.set_verbosity(VERBOSITY_EXTRAS.unpack(request.extras)[0])
    session.reply(request)


def hello(session: BinaryConversation, request: Request) -> None:
    """Grant the features we have, in the order asked, each once."""
    asked = dict.fromkeys(decode_hello(request.value))
    granted = [number for number in asked if number in _GRANTED]
    json = Feature.JSON in granted or Feature.DATATYPE in granted
    session.greeted = True
    session.datatypes = int(DataType.JSON) if json else 0
    session.with_seqnos = Feature.MUTATION_SEQNO in granted
    session.with_lock_errors = Feature.XERROR in granted
    session.with_terms = Feature.TERMS in granted
    session.with_origins = Feature.ORIGINS in granted
    session.reply(request, value=encode_hello(granted))


def stat(session: BinaryConversation, request: Request) -> None:
    """Answer one packet for each statistic of a group, then an empty one."""
    words = " ".join(request.key.decode("latin-1").split())
    rows: StatRows | None
    if words == "reset":
        require(session.services.door, Role.MANAGE, "STAT reset")
        session.services.reset_stats()
        rows = []
    elif words in _STATS_DETAIL:
        rows = _STATS_DETAIL[words]
    else:
        require_statistics(session.services.door, words)
        rows = session.services.stats(words)
    if rows is None:
        session.reply(request, Status.KEY_NOT_FOUND)
    else:
        session.send_from(_stat_packets(request.opaque, rows))


def _stat_packets(opaque: int, rows: StatRows) -> Iterator[bytes]:
    for row in rows:
        if row is None:
            yield b""
            continue
        name, value = row
        yield encode_response(
            Opcode.STAT,
            key=name.encode(),
            value=value.encode("utf-8", "surrogateescape"),
            opaque=opaque,
        )
    yield encode_response(Opcode.STAT, opaque=opaque)


#: The commands that memcached has, and those that Couchbase's KV clients add.
CLIENT_COMMANDS: dict[int, Handler] = {
    Opcode.GET: get,
    Opcode.GETK: get,
    Opcode.GAT: get_and_touch,
    Opcode.GATK: get_and_touch,
    Opcode.TOUCH: touch,
    Opcode.GETL: get_and_lock,
    Opcode.UNLOCK: unlock,
    Opcode.SET: store,
    Opcode.ADD: store,
    Opcode.REPLACE: store,
    Opcode.APPEND: extend,
    Opcode.PREPEND: extend,
    Opcode.INCREMENT: arithmetic,
    Opcode.DECREMENT: arithmetic,
    Opcode.DELETE: delete,
    Opcode.FLUSH: flush,
    Opcode.OBSERVE: observe,
    Opcode.OBSERVE_SEQNO: observe_seqno,
    Opcode.NOOP: noop,
    Opcode.VERSION: version,
    Opcode.QUIT: quit_,
    Opcode.VERBOSITY: verbosity,
    Opcode.HELLO: hello,
    Opcode.STAT: stat,
}
