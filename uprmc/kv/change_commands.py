"""Commands of the binary protocol that change documents.

Source: memcached reference 2.3 to 2.9.
"""

from __future__ import annotations

from contextlib import suppress

from uprmc.engine.memory import absolute_expiry
from uprmc.engine.vbucket import StoreMode
from uprmc.errors import CommandError, TooLarge
from uprmc.kv import operations
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
    flags, exptime = STORE_EXTRAS.unpack(request.extras)
    mode = _STORE_MODES[Opcode(QUIET.get(request.opcode, request.opcode))]
    item = operations.store(
        session.bucket,
        vbucket,
        request.key,
        request.value,
        flags,
        absolute_expiry(exptime, session.now()),
        request.cas,
        request.datatype & session.datatypes,
        mode,
    )
    session.changed(request, vbucket, item.cas)


def extend(session: BinaryConversation, request: Request) -> None:
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
        limit_bytes=session.value_limit_bytes(len(request.key)),
    )
    session.changed(request, vbucket, item.cas)


def arithmetic(session: BinaryConversation, request: Request) -> None:
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


def delete(session: BinaryConversation, request: Request) -> None:
    """Delete a document. memcached's reply has no CAS; that of present servers has, after HELLO."""
    vbucket = session.locate(request)
    tombstone = operations.delete(session.bucket, vbucket, request.key, request.cas)
    session.changed(request, vbucket, tombstone.cas if session.greeted else 0)


def flush(session: BinaryConversation, request: Request) -> None:
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


def refuse_too_large(session: BinaryConversation, request: Request) -> None:
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
