"""Commands on vBuckets: their states, their order, their values in memory, leases, replicas.

Commands that manage vBuckets: their states, their order, their values in memory.

States may be read and changed while clients are refused; only during warm-up, when a node does not
know yet which vBuckets it has, the answer is temporary failure. Commands that return documents or
keys work only when clients are admitted.

COMPACT_DB answers when the tombstones are gone from disk. Leases may be had on any binary
connection. REPLICATE, TAKEOVER and FAILOVER operate replicas; VBUCKET_FACTS as a request is beside
them: a restore reports the same facts to an active vBucket as an active vBucket reports to its
replicas. They are answered when their effect is done and on disk, and refusals contain a text that
says what to do; see `upr.follow.replication`.

See `docs/extensions.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from heapq import nsmallest
from itertools import chain, islice
from typing import TYPE_CHECKING

from uprmc.engine.bucket import Bucket
from uprmc.engine.failover_log import last_complete_seqno, shares_history
from uprmc.engine.replica import outrank
from uprmc.engine.tombstones import PurgeRule, shown
from uprmc.engine.vbucket import Interruption, VBucket
from uprmc.errors import (
    InvalidArguments,
    KeyExists,
    NotMyVBucket,
    NotResident,
    NotSupported,
    RemoteProtocolError,
    StoreError,
    TemporaryFailure,
)
from uprmc.kv.cluster_map import json_object
from uprmc.kv.connection_commands import send_failover_log
from uprmc.kv.refusals import REFUSALS
from uprmc.model import Item, VBucketState
from uprmc.protocol.binary import GET_REPLY_EXTRAS
from uprmc.protocol.header import ResponseFrame
from uprmc.protocol.management import (
    COLLECTION_SEQNOS_EXTRAS,
    COMPACT_EXTRAS,
    COMPACT_REPLY,
    GET_KEYS_EXTRAS,
    GET_VBUCKET_REPLY,
    SEQNO_PERSISTENCE_EXTRAS,
    SET_VBUCKET_SHORT_EXTRAS,
    VBUCKET_SEQNOS_EXTRAS,
    CompactFlag,
    decode_vbucket_state,
    encode_keys,
    encode_vbucket_seqno_terms,
    encode_vbucket_seqnos,
)
from uprmc.protocol.opcodes import Opcode, Status
from uprmc.protocol.replication import (
    REPLICATE_EXTRAS,
    Branch,
    Outcome,
    ReplicateFlag,
    decode_vbuckets,
    encode_branches,
    encode_outcomes,
)
from uprmc.protocol.upr_extensions import (
    LEASE_ACQUIRE_EXTRAS,
    LEASE_ACQUIRE_SPARING_EXTRAS,
    LEASE_GRANT_EXTRAS,
    LEASE_RELEASE_EXTRAS,
    LEASE_RENEW_EXTRAS,
    LEASE_ROWS_EXTRAS,
    LEASE_ROWS_REPLY_EXTRAS,
    VBUCKET_FACTS_EXTRAS,
    LeasedVBucket,
    decode_lease_vbuckets,
    decode_terms,
    encode_lease_grant,
)
from uprmc.protocol.watermarks import ID_MAX_BYTES
from uprmc.record import unpack
from uprmc.remote.ranges import named
from uprmc.upr.replication import Replication

if TYPE_CHECKING:
    from uprmc.kv.binary import BinarySession, Handler
    from uprmc.protocol.header import RequestFrame

# --- waiting for a seqno ------------------------------------------------------------------------


class SeqnoWait:
    """One wait; see the module docstring. Implements `Pending` and `Watcher`."""

    __slots__ = ("_asked", "_deadline", "_request", "_seqno", "_session", "_vbucket")

    def __init__(
        self, session: BinarySession, request: RequestFrame, vbucket: VBucket, seqno: int
    ) -> None:
        self._session: BinarySession | None = session
        self._request = request
        self._vbucket = vbucket
        self._seqno = seqno
        self._asked = False
        self._deadline: float | None = None

    def look(self) -> None:
        """Answer if the seqno is on disk; otherwise arrange for another check."""
        session, vbucket = self._session, self._vbucket
        if session is None:
            return
        flusher = session.bucket.flusher
        if flusher.durable_seqno(vbucket) >= self._seqno:
            self._answer(Status.SUCCESS)
        elif vbucket.high_seqno < self._seqno:
            if self not in vbucket.waiting:
                vbucket.waiting.append(self)
        elif not self._asked and not flusher.paused:
            self._asked = True
            flusher.when_durable(self._flushed)

    def tick(self, now: float) -> None:
        """Check again, and time out eventually; the time begins at the first tick."""
        session, vbucket = self._session, self._vbucket
        if session is None:
            return
        if self._deadline is None:
            self._deadline = now + session.services.settings.persistence_timeout_s
        self.look()
        if now >= self._deadline or vbucket.state == VBucketState.DEAD:
            self._answer(Status.TEMPORARY_FAILURE)

    def abandon(self) -> None:
        """Release the conversation, because it no longer waits."""
        self._session = None
        self._vbucket.unwatch(self)

    def changed(self) -> None:
        """Check again: the vBucket has a new seqno."""
        self.look()

    def interrupted(self, why: Interruption) -> None:
        """Do nothing yet: the next tick checks the state of the vBucket."""

    def _flushed(self, _durable: bool) -> None:
        self._asked = False
        self.look()

    def _answer(self, status: Status) -> None:
        session = self._session
        if session is None:
            return
        self.abandon()
        session.reply(self._request, status)
        session.resume()


# --- states and order ---------------------------------------------------------------------------


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


def set_vbucket(session: BinarySession, request: RequestFrame) -> None:
    """Set the state of a vBucket, creating it if it does not exist."""
    session.services.control.check_token(request.cas)
    if len(request.extras) == SET_VBUCKET_SHORT_EXTRAS.size and request.value:
        json_object(request.value)  # its data about other nodes is not used here
    state = decode_vbucket_state(request.extras, request.value)
    _warm(session.bucket).set_state(request.vbucket, state)
    session.reply(request)


def get_vbucket(session: BinarySession, request: RequestFrame) -> None:
    """Answer a vBucket's state. An old client sends the number as text in the key."""
    number = _number_in(request.key) if request.key else request.vbucket
    state = _vbucket(session.bucket, number).state
    session.reply(request, value=GET_VBUCKET_REPLY.pack(state))


def _number_in(key: bytes) -> int:
    if not key.isdigit():
        raise InvalidArguments(f"{key!r} is not a vBucket number")
    return int(key)


def delete_vbucket(session: BinarySession, request: RequestFrame) -> None:
    """Remove a dead vBucket; the answer means that it is gone from disk too."""
    session.services.control.check_token(request.cas)
    if request.value not in _DELETE_WAITS:
        raise RemoteProtocolError(f"DEL_VBUCKET does not accept {request.value!r}")
    bucket = _warm(session.bucket)
    with _suspended(session) as resume:

        def answer(ok: bool) -> None:
            session.reply(request, Status.SUCCESS if ok else Status.TEMPORARY_FAILURE)
            resume()

        bucket.remove(request.vbucket, answer)


# --- order --------------------------------------------------------------------------------------


def all_seqnos(session: BinarySession, request: RequestFrame) -> None:
    """Answer the high seqno of each active vBucket, and the last complete seqno of others."""
    states = _states_asked(request.extras)
    vbuckets = sorted(_warm(session.bucket).vbuckets.items())
    asked = [(number, each) for number, each in vbuckets if each.state in states]
    if session.negotiated.terms:
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


def failover_log(session: BinarySession, request: RequestFrame) -> None:
    """Answer a vBucket's failover log, whatever its state."""
    send_failover_log(session, request, _vbucket(session.bucket, request.vbucket))


def tell_terms(session: BinarySession, request: RequestFrame) -> None:
    """Learn of promotions elsewhere from somebody who shares a vBucket's history.

    As a stream request with a higher term teaches it (`upr.admission.check_term`).
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


def seqno_persistence(session: BinarySession, request: RequestFrame) -> None:
    """Answer when everything up to a seqno is on disk, or that it took too long."""
    (seqno,) = SEQNO_PERSISTENCE_EXTRAS.unpack(request.extras)
    vbucket = _vbucket(_warm(session.bucket), request.vbucket)
    if session.bucket.flusher.durable_seqno(vbucket) >= seqno:
        session.reply(request)
        return
    wait = SeqnoWait(session, request, vbucket, seqno)
    session.wait(wait)
    wait.look()


# --- documents ----------------------------------------------------------------------------------


def get_replica(session: BinarySession, request: RequestFrame) -> None:
    """Answer a replica's version of a document; an expired one is a miss and stays as it is."""
    bucket = session.bucket
    if not bucket.traffic:
        raise TemporaryFailure("clients are not admitted")
    vbucket = bucket.vbuckets.get(request.vbucket)
    if vbucket is None or vbucket.state != VBucketState.REPLICA:
        raise NotMyVBucket(request.vbucket)
    item = vbucket.table.find(request.key)
    if item is None or not vbucket.is_live(item):
        session.reply(request, Status.KEY_NOT_FOUND)
        return
    if item.value is None:
        raise NotResident(vbucket.id, (request.key,))
    vbucket.note_read(request.key)
    _send_document(session, request, item, item.cas)


def evict_key(session: BinarySession, request: RequestFrame) -> None:
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


def get_keys(session: BinarySession, request: RequestFrame) -> None:
    """Answer a vBucket's keys in order, beginning with the given one."""
    vbucket = session.locate(request)
    count = GET_KEYS_EXTRAS.unpack(request.extras)[0] if request.extras else _KEYS_DEFAULT
    count = min(count, session.services.settings.max_listed_keys)
    first, is_live = request.key, vbucket.is_live
    keys = (item.key for item in vbucket.table.versions() if item.key >= first and is_live(item))
    session.reply(request, value=encode_keys(nsmallest(count, keys)))


def random_key(session: BinarySession, request: RequestFrame) -> None:
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


def _send_document(session: BinarySession, request: RequestFrame, item: Item, cas: int) -> None:
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


# --- compaction ---------------------------------------------------------------------------------


def compact(session: BinarySession, request: RequestFrame) -> None:
    """Drop what the request names; temporary failure if that was cancelled."""
    session.services.control.check_token(request.cas)
    before_s, upto_seqno, drop_deletes, padding = COMPACT_EXTRAS.unpack(request.extras)
    flags = CompactFlag(padding[0])
    forced = bool(flags & CompactFlag.FORCE)
    if flags & CompactFlag.NO_WAIT:
        _begin(session, request, PurgeRule(every=forced, aged=not forced, forced=forced))
        return
    every = bool(drop_deletes) or forced
    aged = bool(flags & CompactFlag.AGED)
    compactor = session.bucket.compactor

    def answer(ok: bool) -> None:
        if ok:
            done = compactor.last
            fixed = COMPACT_REPLY.pack(done.start, done.end, done.dropped)
            reached = fixed + (shown(done.limited_by) or "").encode()
            session.reply(request, value=reached if flags else b"")
        else:
            session.reply(request, Status.TEMPORARY_FAILURE)
        resume()

    rule = PurgeRule(before_s, upto_seqno, every, aged, forced)
    session.bucket.compact(request.vbucket, rule, answer)
    resume = session.suspend()


def _begin(session: BinarySession, request: RequestFrame, rule: PurgeRule) -> None:
    """Ask for a compaction that no client waits for, unless it is asked for already."""
    bucket = session.bucket
    if not bucket.compactor.is_queued(request.vbucket, rule):
        bucket.compact(request.vbucket, rule, lambda _: None)
    session.reply(request)


COMPACTION_COMMANDS: dict[int, Handler] = {Opcode.COMPACT_DB: compact}


# --- leases -------------------------------------------------------------------------------------


#: What LEASE_ROWS looks at in one turn: about a millisecond. Each request has a turn of its own.
SLICE_RECORDS = 1_000
SLICE_BYTES = 256 * 1024


def acquire(session: BinarySession, request: RequestFrame) -> None:
    """Acquire a lease of vBuckets as they are now; the answer describes them."""
    if len(request.extras) == LEASE_ACQUIRE_EXTRAS.size:
        (lifetime_s,), spare = LEASE_ACQUIRE_EXTRAS.unpack(request.extras), 0
    else:
        lifetime_s, spare = LEASE_ACQUIRE_SPARING_EXTRAS.unpack(request.extras)
    if len(request.key) > ID_MAX_BYTES:
        raise InvalidArguments(f"an id of {len(request.key)} bytes")
    numbers = decode_lease_vbuckets(request.value)
    try:
        leases = session.services.upr.leases
        lease, granted_s = leases.acquire(numbers, lifetime_s, request.key, spare)
    except StoreError as error:
        raise TemporaryFailure(str(error)) from None
    leased = [
        LeasedVBucket(number, reading.uuid, reading.end_seqno, reading.purge_seqno)
        for number, reading in lease.readings.items()
    ]
    extras = LEASE_GRANT_EXTRAS.pack(lease.id, granted_s)
    session.reply(request, extras=extras, value=encode_lease_grant(leased))


def renew(session: BinarySession, request: RequestFrame) -> None:
    """Change the remaining lifetime of a lease."""
    number, lifetime_s = LEASE_RENEW_EXTRAS.unpack(request.extras)
    granted_s = session.services.upr.leases.renew(number, lifetime_s)
    session.reply(request, extras=LEASE_GRANT_EXTRAS.pack(number, granted_s))


def release(session: BinarySession, request: RequestFrame) -> None:
    """Release a lease."""
    (number,) = LEASE_RELEASE_EXTRAS.unpack(request.extras)
    session.services.upr.leases.release(number)
    session.reply(request)


def rows(session: BinarySession, request: RequestFrame) -> None:
    """Tell at which seqno of a lease's vBucket a number of changes is reached."""
    number, after, wanted = LEASE_ROWS_EXTRAS.unpack(request.extras)
    lease = session.services.upr.leases.find(number)
    reading = lease.readings.get(request.vbucket)
    if reading is None:
        raise NotMyVBucket(request.vbucket)
    if not wanted:
        raise InvalidArguments("0 rows")
    slices = reading.reached(after, wanted, SLICE_RECORDS, SLICE_BYTES)
    session.send_from(_counted(request, slices))


def _counted(request: RequestFrame, slices: Iterator[tuple[int, int]]) -> Iterator[bytes]:
    """Yield nothing after each slice, so that others have their turn, and then the answer."""
    reached = (0, 0)
    try:
        for each in slices:
            reached = each
            yield b""
    except StoreError:  # the lease has ended meanwhile, or the disk cannot be read
        status = Status.TEMPORARY_FAILURE
        yield ResponseFrame(request.opcode, status=status, opaque=request.opaque).encode()
        return
    extras = LEASE_ROWS_REPLY_EXTRAS.pack(*reached)
    yield ResponseFrame(request.opcode, extras=extras, opaque=request.opaque).encode()


LEASE_COMMANDS: dict[int, Handler] = {
    Opcode.LEASE_ACQUIRE: acquire,
    Opcode.LEASE_RENEW: renew,
    Opcode.LEASE_RELEASE: release,
    Opcode.LEASE_ROWS: rows,
}


# --- replicas -----------------------------------------------------------------------------------


_KNOWN_FLAGS = int(ReplicateFlag.STOP | ReplicateFlag.DEMOTE)

_NOT_ON_DISK = (
    b"done, but not on disk yet: the disk refuses (see the log), or persistence is stopped"
)


def replicate(session: BinarySession, request: RequestFrame) -> None:
    """Follow a source from now on, or stop following; answered when that is stored."""
    replication = _replication(session, request)
    (flags,) = REPLICATE_EXTRAS.unpack(request.extras)
    if flags & ~_KNOWN_FLAGS:
        raise InvalidArguments(f"unknown flags {flags:#x}: only {_KNOWN_FLAGS:#x} are known")
    numbers = decode_vbuckets(request.value) or None
    place = _place(request.key)
    if flags & ReplicateFlag.STOP:
        if place:
            raise InvalidArguments("STOP takes vBuckets, not a source")
        with _suspended(session) as resume:
            replication.stop(numbers, _durable_answer(session, request, resume))
        return
    demote = bool(flags & ReplicateFlag.DEMOTE)
    with _suspended(session) as resume:
        replication.follow(
            place, numbers, demote=demote, done=_durable_answer(session, request, resume)
        )


def take_over(session: BinarySession, request: RequestFrame) -> None:
    """Take vBuckets over from their active node; answered when each is decided."""
    replication = _replication(session, request)
    place, numbers = _place(request.key), decode_vbuckets(request.value)
    with _suspended(session) as resume:

        def answer(outcomes: dict[int, Outcome], why: str) -> None:
            if set(outcomes.values()) == {Outcome.REFUSED}:
                text = f"{place}: {why}".encode()
                session.reply(request, Status.TEMPORARY_FAILURE, value=text)
            else:
                session.reply(request, value=encode_outcomes(sorted(outcomes.items())))
            resume()

        replication.take_over(place, numbers, answer)


def fail_over(session: BinarySession, request: RequestFrame) -> None:
    """Make vBuckets active here; answered when their new branches are on disk."""
    replication = _replication(session, request)
    numbers = decode_vbuckets(request.value)
    with _suspended(session) as resume:

        def answer(branches: list[Branch], durable: bool) -> None:
            deposed = {*numbers} - {branch.vbucket for branch in branches}
            if durable and deposed:
                text = f"{named(sorted(deposed))}: another node was promoted in the meantime"
                session.reply(request, Status.TEMPORARY_FAILURE, value=text.encode())
                resume()
                return
            value = encode_branches(branches)
            _durable_answer(session, request, resume, value)(durable)

        replication.fail_over(numbers, answer)


def raise_revision_floor(session: BinarySession, request: RequestFrame) -> None:
    """Make new keys in an active vBucket outrank deletions that it never had."""
    _check_token(session, request)
    vbucket = session.locate(request)
    purge_seqno, rev_floor = VBUCKET_FACTS_EXTRAS.unpack(request.extras)
    if purge_seqno:
        raise InvalidArguments("the purge seqno of an active vBucket cannot be set: use 0")
    outrank(vbucket, rev_floor)
    with _suspended(session) as resume:
        answer = _durable_answer(session, request, resume)
        session.bucket.flusher.when_durable(answer, patient=False)


@contextmanager
def _suspended(session: BinarySession) -> Iterator[Callable[[], None]]:
    """Make the commands behind this one wait until the function that is passed here is called.

    If the command is refused at once they continue.
    """
    resume = session.suspend()
    try:
        yield resume
    except REFUSALS:
        resume()
        raise


def _durable_answer(
    session: BinarySession, request: RequestFrame, resume: Callable[[], None], value: bytes = b""
) -> Callable[[bool], None]:
    def answer(durable: bool) -> None:
        if durable:
            session.reply(request, value=value)
        else:
            session.reply(request, Status.TEMPORARY_FAILURE, value=_NOT_ON_DISK)
        resume()

    return answer


def _replication(session: BinarySession, request: RequestFrame) -> Replication:
    """Return the object that carries it out, if this manager may ask for it."""
    _check_token(session, request)
    replication = session.services.replication
    if replication is None:
        raise NotSupported("this node opens no connections")
    return replication


def _check_token(session: BinarySession, request: RequestFrame) -> None:
    try:
        session.services.control.check_token(request.cas)
    except KeyExists:
        raise KeyExists("another manager has set a session token: use that one") from None


def _place(key: bytes) -> str:
    try:
        return key.decode("ascii")
    except UnicodeDecodeError:
        raise RemoteProtocolError(f"{key!r} is not a source: use HOST:PORT") from None


REPLICATION_COMMANDS: dict[int, Handler] = {
    Opcode.REPLICATE: replicate,
    Opcode.TAKEOVER: take_over,
    Opcode.FAILOVER: fail_over,
    Opcode.VBUCKET_FACTS: raise_revision_floor,
}
