"""Commands of the binary protocol that return or touch a document, and locks.

Source: memcached reference 2.3 to 2.9; UPR reference 2.13.
"""

from __future__ import annotations

from uprmc.engine.memory import absolute_expiry
from uprmc.engine.vbucket import VBucket
from uprmc.errors import KeyNotFound, Locked, NotLocked
from uprmc.kv import operations
from uprmc.kv.binary_conversation import BinaryConversation, Handler, Request
from uprmc.model import Item
from uprmc.protocol.binary import GET_LOCK_EXTRAS, GET_REPLY_EXTRAS, TOUCH_EXTRAS
from uprmc.protocol.opcodes import Opcode

_WITH_KEY = frozenset({Opcode.GETK, Opcode.GETKQ, Opcode.GATK, Opcode.GATKQ})


def get(session: BinaryConversation, request: Request) -> None:
    """Answer get, getk and their quiet forms."""
    vbucket = session.locate(request)
    item = operations.get(session.bucket, vbucket, request.key)
    if item is None:
        session.miss(request, with_key=request.opcode in _WITH_KEY)
        return
    _send_item(session, request, vbucket, item)


def get_and_touch(session: BinaryConversation, request: Request) -> None:
    """Answer gat, gatk and their quiet forms."""
    vbucket = session.locate(request)
    try:
        item = _touched(session, request, vbucket)
    except KeyNotFound:
        session.miss(request, with_key=request.opcode in _WITH_KEY)
        return
    _send_item(session, request, vbucket, item)


def touch(session: BinaryConversation, request: Request) -> None:
    """Give a document another expiry time; the reply carries flags and CAS."""
    item = _touched(session, request, session.locate(request))
    session.reply(request, extras=GET_REPLY_EXTRAS.pack(item.flags), cas=item.cas)


def _touched(session: BinaryConversation, request: Request, vbucket: VBucket) -> Item:
    (exptime,) = TOUCH_EXTRAS.unpack(request.extras)
    expiry = absolute_expiry(exptime, session.now())
    return operations.touch(session.bucket, vbucket, request.key, expiry)


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


READ_COMMANDS: dict[int, Handler] = {
    Opcode.GET: get,
    Opcode.GETK: get,
    Opcode.GAT: get_and_touch,
    Opcode.GATK: get_and_touch,
    Opcode.TOUCH: touch,
    Opcode.GETL: get_and_lock,
    Opcode.UNLOCK: unlock,
}
