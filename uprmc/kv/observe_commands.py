"""Commands of the binary protocol that tell whether changes are on disk.

Source: UPR reference 2.13 and 6.
"""

from __future__ import annotations

from uprmc.engine.vbucket import VBucket
from uprmc.errors import KeyNotFound, RemoteProtocolError
from uprmc.kv.binary_conversation import BinaryConversation, Handler, Request
from uprmc.model import VBucketState
from uprmc.protocol.binary import (
    OBSERVE_SEQNO_FAILOVER_REPLY,
    OBSERVE_SEQNO_REPLY,
    OBSERVE_SEQNO_REQUEST,
    KeyObservation,
    ObservedKey,
    decode_observe_request,
    encode_observe_reply,
)
from uprmc.protocol.opcodes import ObservedState, Opcode

_NOT_YET_PERSISTED = (ObservedState.NOT_PERSISTED, ObservedState.LOGICALLY_DELETED)


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
    item = vbucket.table.find(asked.key)
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


OBSERVE_COMMANDS: dict[int, Handler] = {
    Opcode.OBSERVE: observe,
    Opcode.OBSERVE_SEQNO: observe_seqno,
}
