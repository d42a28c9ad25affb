"""Commands of the binary protocol that change documents.

Source: memcached reference 2.3 to 2.9.
"""

from __future__ import annotations

from contextlib import suppress

from uprmc.engine.expiry import absolute_expiry
from uprmc.engine.stats import Stats
from uprmc.engine.vbucket import StoreMode
from uprmc.errors import CommandError, KeyExists, KeyNotFound, TooLarge
from uprmc.kv.binary_conversation import BinaryConversation, Handler, Request
from uprmc.protocol.binary import ARITHMETIC_EXTRAS, COUNTER_VALUE, FLUSH_EXTRAS, STORE_EXTRAS
from uprmc.protocol.opcodes import DO_NOT_CREATE, QUIET, Opcode, Status

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
