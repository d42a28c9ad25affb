"""Commands that manage vBuckets: their states, their order, their values in memory.

States may be read and changed while clients are refused; only during warm-up, when a node does not
know yet which vBuckets it has, the answer is temporary failure. Commands that return documents or
keys work only when clients are admitted.

Source: UPR reference, section 6.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import nsmallest
from itertools import chain, islice

from uprmc.engine.bucket import Bucket
from uprmc.engine.failover_log import last_complete_seqno, shares_history
from uprmc.engine.vbucket import VBucket
from uprmc.errors import (
    CommandError,
    InvalidArguments,
    NotMyVBucket,
    NotResident,
    RemoteProtocolError,
    TemporaryFailure,
)
from uprmc.kv.binary_conversation import BinaryConversation, Handler, Request
from uprmc.kv.cluster_map import json_object
from uprmc.kv.seqno_wait import SeqnoWait
from uprmc.kv.upr_commands import send_failover_log
from uprmc.model import Item, VBucketState
from uprmc.protocol.binary import GET_REPLY_EXTRAS
from uprmc.protocol.management import (
    COLLECTION_SEQNOS_EXTRAS,
    GET_KEYS_EXTRAS,
    GET_VBUCKET_REPLY,
    SEQNO_PERSISTENCE_EXTRAS,
    SET_VBUCKET_SHORT_EXTRAS,
    VBUCKET_SEQNOS_EXTRAS,
    decode_vbucket_state,
    encode_keys,
    encode_vbucket_seqno_terms,
    encode_vbucket_seqnos,
)
from uprmc.protocol.opcodes import Opcode, Status
from uprmc.protocol.upr_extensions import decode_terms
from uprmc.record import unpack

#: Values that DEL_VBUCKET accepts; in any case the answer means that it is done.
_DELETE_WAITS = (b"", b"async=0")

#: GET_ALL_VB_SEQNOS without a state: those that hold something.
_ALL_STATES = 0
_LIVING = frozenset({VBucketState.ACTIVE, VBucketState.REPLICA, VBucketState.PENDING})

#: The collection that a server without collections has.
_DEFAULT_COLLECTION = 0

#: GET_KEYS without a number.
_KEYS_DEFAULT = 1_000

#: A random document is one of this many of a random vBucket; finding a later one takes longer.
_RANDOM_DEPTH = 1_000


# --- states -------------------------------------------------------------------------------------


def set_vbucket(session: BinaryConversation, request: Request) -> None:
    """Set the state of a vBucket, creating it if it does not exist."""
    session.services.control.check_token(request.cas)
    if len(request.extras) == SET_VBUCKET_SHORT_EXTRAS.size and request.value:
        json_object(request.value)  # its data about other nodes is not used here
    state = decode_vbucket_state(request.extras, request.value)
    _warm(session.bucket).set_state(request.number, state)
    session.reply(request)


def get_vbucket(session: BinaryConversation, request: Request) -> None:
    """Answer a vBucket's state. An old client sends the number as text in the key."""
    number = _number_in(request.key) if request.key else request.number
    state = _vbucket(session.bucket, number).state
    session.reply(request, value=GET_VBUCKET_REPLY.pack(state))


def _number_in(key: bytes) -> int:
    if not key.isdigit():
        raise InvalidArguments(f"{key!r} is not a vBucket number")
    return int(key)


def delete_vbucket(session: BinaryConversation, request: Request) -> None:
    """Remove a dead vBucket; the answer means that it is gone from disk too."""
    session.services.control.check_token(request.cas)
    if request.value not in _DELETE_WAITS:
        raise RemoteProtocolError(f"DEL_VBUCKET does not accept {request.value!r}")
    bucket = _warm(session.bucket)
    resume = session.suspend()

    def answer(ok: bool) -> None:
        session.reply(request, Status.SUCCESS if ok else Status.TEMPORARY_FAILURE)
        resume()

    try:
        bucket.remove(request.number, answer)
    except CommandError:
        resume()
        raise


# --- order --------------------------------------------------------------------------------------


def all_seqnos(session: BinaryConversation, request: Request) -> None:
    """Answer the high seqno of each active vBucket, and the last complete seqno of others."""
    states = _states_asked(request.extras)
    vbuckets = sorted(_warm(session.bucket).vbuckets.items())
    asked = [(number, each) for number, each in vbuckets if each.state in states]
    if session.with_terms:
        rows = [(number, _safe_seqno(each), each.term) for number, each in asked]
        session.reply(request, value=encode_vbucket_seqno_terms(rows))
    else:
        seqnos = [(number, _safe_seqno(each)) for number, each in asked]
        session.reply(request, value=encode_vbucket_seqnos(seqnos))


def _states_asked(extras: bytes) -> frozenset[VBucketState]:
    state, collection = _ALL_STATES, _DEFAULT_COLLECTION
    if len(extras) == COLLECTION_SEQNOS_EXTRAS.size:
        state, collection = COLLECTION_SEQNOS_EXTRAS.unpack(extras)
    elif extras:
        (state,) = VBUCKET_SEQNOS_EXTRAS.unpack(extras)
    if collection != _DEFAULT_COLLECTION:
        raise InvalidArguments(f"there is no collection {collection}")
    if state == _ALL_STATES:
        return _LIVING
    try:
        return frozenset({VBucketState(state)})
    except ValueError:
        raise InvalidArguments(f"no state has the number {state}") from None


def _safe_seqno(vbucket: VBucket) -> int:
    if vbucket.state == VBucketState.ACTIVE:
        return vbucket.high_seqno
    return last_complete_seqno(vbucket.high_seqno, vbucket.snapshot)


def failover_log(session: BinaryConversation, request: Request) -> None:
    """Answer a vBucket's failover log, whatever its state."""
    send_failover_log(session, request, _vbucket(session.bucket, request.number))


def tell_terms(session: BinaryConversation, request: Request) -> None:
    """Learn of promotions elsewhere from somebody who shares a vBucket's history.

    As a stream request with a higher term teaches it (`upr.produce.admission.check_term`).
    """
    bucket = session.bucket
    try:
        rows = decode_terms(request.value)
    except RemoteProtocolError as error:
        raise InvalidArguments(str(error)) from None
    if not bucket.traffic:
        raise TemporaryFailure("warming up")
    for number, term, uuid in rows:
        vbucket = bucket.vbuckets.get(number)
        if (
            vbucket is not None
            and term > vbucket.term
            and shares_history(vbucket.failover_log, [uuid])
        ):
            bucket.learn_term(vbucket, term)
    session.reply(request)


def seqno_persistence(session: BinaryConversation, request: Request) -> None:
    """Answer when everything up to a seqno is on disk, or that it took too long."""
    (seqno,) = SEQNO_PERSISTENCE_EXTRAS.unpack(request.extras)
    vbucket = _warm(session.bucket).vbuckets.get(request.number)
    if vbucket is None:
        raise NotMyVBucket(request.number)
    if session.bucket.flusher.durable_seqno(vbucket) >= seqno:
        session.reply(request)
        return
    wait = SeqnoWait(session, request, vbucket, seqno)
    session.wait(wait)
    wait.look()


# --- documents ----------------------------------------------------------------------------------


def get_replica(session: BinaryConversation, request: Request) -> None:
    """Answer a replica's version of a document; an expired one is a miss and stays as it is."""
    bucket = session.bucket
    if not bucket.traffic:
        raise TemporaryFailure("clients are not admitted")
    vbucket = bucket.vbuckets.get(request.number)
    if vbucket is None or vbucket.state != VBucketState.REPLICA:
        raise NotMyVBucket(request.number)
    item = vbucket.table.find(request.key)
    if item is None or not vbucket.is_live(item):
        session.reply(request, Status.KEY_NOT_FOUND)
        return
    if item.value is None:
        raise NotResident(vbucket.id, (request.key,))
    vbucket.note_read(request.key)
    _send_document(session, request, item, item.cas)


def evict_key(session: BinaryConversation, request: Request) -> None:
    """Drop a document's value from memory, if it is on disk."""
    vbucket = session.locate(request)
    item = vbucket.find(request.key)
    if item is None:
        session.reply(request, Status.KEY_NOT_FOUND, value=b"Not found.")
    elif item.value is None:
        session.reply(request, value=b"Already ejected.")
    elif item.seqno > vbucket.persisted_seqno:
        session.reply(request, Status.KEY_EXISTS, value=b"Can't eject: Dirty object.")
    else:
        vbucket.eject(request.key)
        session.stats.value_ejects += 1
        session.reply(request, value=b"Ejected.")


def get_keys(session: BinaryConversation, request: Request) -> None:
    """Answer a vBucket's keys in order, beginning with the given one."""
    vbucket = session.locate(request)
    count = GET_KEYS_EXTRAS.unpack(request.extras)[0] if request.extras else _KEYS_DEFAULT
    count = min(count, session.services.settings.max_listed_keys)
    first, is_live = request.key, vbucket.is_live
    keys = (item.key for item in vbucket.table.versions() if item.key >= first and is_live(item))
    session.reply(request, value=encode_keys(nsmallest(count, keys)))


def random_key(session: BinaryConversation, request: Request) -> None:
    """Answer a random document."""
    bucket = session.bucket
    if not bucket.traffic:
        raise TemporaryFailure("clients are not admitted")
    chosen = _any_document(bucket)
    if chosen is None:
        session.reply(request, Status.KEY_NOT_FOUND)
        return
    vbucket, item = chosen
    if item.value is not None:
        _send_document(session, request, item, vbucket.visible_cas(item.key, item.cas))
        return
    resume = session.suspend()  # not `NotResident`: the command run again would choose again

    def answer(_ok: bool) -> None:
        found = vbucket.table.find(item.key)
        if found is None or found.value is None:
            session.reply(request, Status.TEMPORARY_FAILURE)
        else:
            _send_document(session, request, found, vbucket.visible_cas(found.key, found.cas))
        resume()

    bucket.fetcher.want([(vbucket.id, item.key)], answer)


def _any_document(bucket: Bucket) -> tuple[VBucket, Item] | None:
    filled = [vbucket for vbucket in bucket.active.values() if vbucket.item_count]
    if not filled:
        return None
    number, start = divmod(bucket.entropy.uuid48(), len(filled))
    for vbucket in filled[start:] + filled[:start]:
        for item in _from(vbucket, number % min(len(vbucket.table), _RANDOM_DEPTH)):
            if vbucket.is_live(item):
                return vbucket, item
    return None


def _from(vbucket: VBucket, depth: int) -> Iterator[Item]:
    """Yield every item once, beginning at that index."""
    records = vbucket.table.records
    return map(unpack, chain(islice(records(), depth, None), islice(records(), depth)))


def _send_document(session: BinaryConversation, request: Request, item: Item, cas: int) -> None:
    assert item.value is not None
    session.reply(
        request,
        extras=GET_REPLY_EXTRAS.pack(item.flags),
        key=item.key,
        value=item.value,
        cas=cas,
        datatype=item.datatype,
    )


# --- where --------------------------------------------------------------------------------------


def _warm(bucket: Bucket) -> Bucket:
    """Return the bucket if warm-up has found its vBuckets."""
    if not bucket.warm:
        raise TemporaryFailure("warming up")
    return bucket


def _vbucket(bucket: Bucket, number: int) -> VBucket:
    """Return a vBucket in any state; during warm-up an absent one may still appear."""
    vbucket = bucket.vbuckets.get(number)
    if vbucket is None:
        _warm(bucket)
        raise NotMyVBucket(number)
    return vbucket


VBUCKET_COMMANDS: dict[int, Handler] = {
    Opcode.SET_VBUCKET: set_vbucket,
    Opcode.GET_VBUCKET: get_vbucket,
    Opcode.DEL_VBUCKET: delete_vbucket,
    Opcode.GET_ALL_VB_SEQNOS: all_seqnos,
    Opcode.GET_FAILOVER_LOG: failover_log,
    Opcode.TELL_TERMS: tell_terms,
    Opcode.SEQNO_PERSISTENCE: seqno_persistence,
    Opcode.GET_REPLICA: get_replica,
    Opcode.EVICT_KEY: evict_key,
    Opcode.GET_KEYS: get_keys,
    Opcode.GET_RANDOM_KEY: random_key,
}
