"""Whether a stream may begin, and from where to where: the checks of a stream request, in order.

Rows D24 to D26, P07 to P12.
"""

from __future__ import annotations

from uprmc.config import UprSettings
from uprmc.engine.bucket import Bucket
from uprmc.engine.failover_log import shares_history
from uprmc.engine.reading import EngineLease
from uprmc.engine.vbucket import VBucket
from uprmc.errors import KeyExists, NotMyVBucket, RollbackRequired, TemporaryFailure
from uprmc.model import SEQNO_MAX, SEQNO_NONE, SnapshotRange, VBucketState
from uprmc.protocol.opcodes import StreamFlag
from uprmc.protocol.upr import StreamRequest
from uprmc.protocol.upr_many import StreamStart
from uprmc.rollback import (
    ConsumerPosition,
    Rule,
    VBucketHoldings,
    check_range,
    check_reach,
    check_versions,
    rollback_point,
)

#: Plain numbers: an enum takes a microsecond for each AND.
_ACTIVE_ONLY = int(StreamFlag.ACTIVE_ONLY)
_FROM_LATEST = int(StreamFlag.FROM_LATEST)
_IGNORE_PURGED = int(StreamFlag.IGNORE_PURGED)
_STRICT_UUID = int(StreamFlag.STRICT_UUID)
_TAKEOVER = int(StreamFlag.TAKEOVER)
_DISK_ONLY = int(StreamFlag.DISK_ONLY)
_LATEST = int(StreamFlag.LATEST)

#: A takeover of a vBucket that is active elsewhere would make two of it: one name, two histories.
_FROM_ACTIVE = _ACTIVE_ONLY | _TAKEOVER

_SERVED = (VBucketState.ACTIVE, VBucketState.REPLICA)


def locate(bucket: Bucket, number: int, flags: int) -> VBucket:
    """Return the vBucket to stream from.

    Raises:
        TemporaryFailure: warm-up is going on, or a rollback is not on disk yet.
        NotMyVBucket: absent, or not in a state that is asked for.
    """
    if not bucket.traffic:
        raise TemporaryFailure("warming up")
    vbucket = bucket.vbuckets.get(number)
    if vbucket is None or vbucket.state not in _SERVED:
        raise NotMyVBucket(number)
    if flags & _FROM_ACTIVE and vbucket.state != VBucketState.ACTIVE:
        raise NotMyVBucket(number)
    if vbucket.rewinding:
        raise TemporaryFailure(f"vBucket {number} is rolling back")
    return vbucket


def check_term(bucket: Bucket, start: StreamStart) -> None:
    """Refuse who knows of a later promotion; who shares our history deposes us with that.

    In any state it is remembered, so that a promotion here is above it.

    Raises:
        NotMyVBucket: this node's term is lower.
    """
    vbucket = bucket.vbuckets.get(start.vbucket) if bucket.traffic else None
    term = start.options.term
    if vbucket is None or term <= vbucket.term:
        return
    known = [entry.uuid for entry in start.options.known_versions]
    if shares_history(vbucket.failover_log, [start.request.uuid, *known]):
        bucket.learn_term(vbucket, term)
    raise NotMyVBucket(vbucket.id)


def admit(
    vbucket: VBucket,
    start: StreamStart,
    *,
    repeated: bool,
    persisted_seqno: int,
    settings: UprSettings,
    floor: int = 0,
) -> StreamRequest:
    """Return the request as it will be carried out: flags applied to start and end.

    Args:
        vbucket: what is asked for; `locate` found it.
        start: the request.
        repeated: whether the connection streams this vBucket already.
        persisted_seqno: up to where the disk holds everything.
        settings: which server's rules apply.
        floor: of the build that the request continues, 0 = none: the consumer misses only
            deletions above it.

    Raises:
        InvalidArguments: its known versions make no sense.
        RangeExceeded: the seqnos contradict each other, or lie beyond what there is.
        KeyExists: the connection streams this vBucket already.
        RollbackRequired: the consumer's history is not ours.
        TemporaryFailure: it would have to fall back to a state that this replica does not hold
            yet; by the rules of 2014 also when the vBucket is being filled.
    """
    rule = Rule(settings.rollback_rule)
    request = start.request
    if request.flags & _FROM_LATEST:
        high = vbucket.high_seqno
        request = request._replace(
            start_seqno=high,
            snapshot_start=high,
            snapshot_end=high,
            uuid=vbucket.failover_log[0].uuid,
        )
    if rule is Rule.V3_0_0:
        _check_filled(vbucket)
        request = request._replace(flags=request.flags | _IGNORE_PURGED)
        request = _with_end(request, vbucket, persisted_seqno)
    position = _position(request, start)
    check_versions(position, settings.known_versions)
    check_range(position, request.end_seqno)
    _check_free(repeated)
    holdings = _holdings(vbucket, floor)
    _check_history(holdings, position, request.flags, rule, _reached(vbucket))
    if rule is Rule.CURRENT:
        request = _with_end(request, vbucket, persisted_seqno)
    check_reach(request.start_seqno, request.end_seqno, vbucket.high_seqno)
    return request


def _check_filled(vbucket: VBucket) -> None:
    """Refuse, as in 2014, to stream from a replica whose first snapshot is half received."""
    if vbucket.receiving is not None and vbucket.receiving.start == SEQNO_NONE:
        raise TemporaryFailure("the vBucket is being filled")


def admit_notifier(
    vbucket: VBucket, start: StreamStart, settings: UprSettings, *, repeated: bool
) -> StreamRequest:
    """Return the request of a peer that only waits for news; its ranges do not matter.

    Raises:
        RollbackRequired, InvalidArguments, KeyExists, TemporaryFailure: as `admit`.
    """
    request = start.request
    seqno = min(request.start_seqno, vbucket.high_seqno)
    at = request._replace(start_seqno=seqno, snapshot_start=seqno, snapshot_end=seqno)
    position = _position(at, start)
    check_versions(position, settings.known_versions)
    _check_free(repeated)
    rule = Rule(settings.rollback_rule)
    _check_history(_holdings(vbucket), position, request.flags, rule, _reached(vbucket))
    return request


def admit_to_lease(
    lease: EngineLease, start: StreamStart, settings: UprSettings, *, repeated: bool, floor: int = 0
) -> StreamRequest:
    """Return the request of a peer that reads from a lease: to the end of what the lease has.

    `floor` is that of `admit`.

    Raises:
        NotMyVBucket: the lease does not hold this vBucket.
        RangeExceeded, RollbackRequired, InvalidArguments, KeyExists: as `admit`.
    """
    holdings = lease.holdings.get(start.vbucket)
    if holdings is None:
        raise NotMyVBucket(start.vbucket)
    request = start.request
    position = _position(request, start)
    check_versions(position, settings.known_versions)
    check_range(position, request.end_seqno)
    _check_free(repeated)
    rule = Rule(settings.rollback_rule)
    _check_history(_spared(holdings, floor), position, request.flags, rule, SEQNO_MAX)
    check_reach(request.start_seqno, holdings.high_seqno, holdings.high_seqno)
    return request._replace(end_seqno=holdings.high_seqno)


def _holdings(vbucket: VBucket, floor: int = 0) -> VBucketHoldings:
    holdings = VBucketHoldings(vbucket.failover_log, vbucket.high_seqno, vbucket.purge_seqno)
    return _spared(holdings, floor)


def _spared(holdings: VBucketHoldings, floor: int) -> VBucketHoldings:
    """Return what a consumer must be judged by that misses no deletion up to its floor."""
    return holdings._replace(purge_seqno=SEQNO_NONE) if floor >= holdings.purge_seqno else holdings


def _position(request: StreamRequest, start: StreamStart) -> ConsumerPosition:
    snapshot = SnapshotRange(request.snapshot_start, request.snapshot_end)
    known = start.options.known_versions
    return ConsumerPosition(request.start_seqno, snapshot, request.uuid, known)


def _check_free(repeated: bool) -> None:
    if repeated:
        raise KeyExists("there is a stream of this vBucket")


def _reached(vbucket: VBucket) -> int:
    """Return up to where states of this vBucket's history can be had from here.

    A replica takes the active's history first and the versions of it later. In mid-snapshot it
    lacks some from below its high seqno, too.
    """
    return SEQNO_MAX if vbucket.state == VBucketState.ACTIVE else vbucket.whole_seqno


def _check_history(
    holdings: VBucketHoldings,
    position: ConsumerPosition,
    flags: int,
    rule: Rule,
    reached_seqno: int,
) -> None:
    """Let pass who follows our history; send back who does not.

    No consumer is sent to a place that is not reached yet: what it fetched would be a state that
    the active never had, or nothing.
    """
    point = rollback_point(
        position,
        holdings,
        strict_uuid=bool(flags & _STRICT_UUID),
        ignore_purged=bool(flags & _IGNORE_PURGED),
        rule=rule,
    )
    if point is None:
        return
    if point > reached_seqno:
        raise TemporaryFailure(f"everything up to {point} has still to be received here")
    raise RollbackRequired(point)


def _with_end(request: StreamRequest, vbucket: VBucket, persisted_seqno: int) -> StreamRequest:
    flags, end = request.flags, request.end_seqno
    if flags & _TAKEOVER:
        end = SEQNO_MAX
    if flags & _DISK_ONLY:
        end = persisted_seqno
    if flags & _LATEST:
        end = vbucket.high_seqno
    return request if end == request.end_seqno else request._replace(end_seqno=end)
