"""Versions that were created elsewhere and have their own revision, CAS and expiry.

Job: decide whether such a version is accepted, by the sender's demands and by conflict resolution
against the present version, and then let the vBucket adopt it.

Note: the present version may be a tombstone which is only on disk. It is read only if it could
matter. `VBucket.max_deleted_rev` is at least the revision of every tombstone that the vBucket ever
created or adopted, and is stored in the same commits as they are. So where revisions decide, an
incoming version with a higher one outranks every tombstone, and reading the disk cannot change the
outcome. Where the time decides, any tombstone may be newer. Then, or if the revision is not higher,
the disk is read without blocking: `NotResident` is raised before anything changes, and the command
is run again when the answer is available (`Fetcher.tombstone`).

A deletion that returns to the history in which it was made is of use only if there is a document:
an older version may have come after the tombstone was dropped. Otherwise it is not stored, so that
in a ring it does not go round for ever.

A document whose expiry has not been noticed counts as it is. If it were made a tombstone first, its
revision would rise by one, and it would refuse a newer version that its other copies accept.

**The conflict rule** says which of two versions of a document survives, when each was created
without the other. Every place decides alone, and all must decide alike, so the rule uses only the
two versions and where each was first accepted. Numbers in records are big-endian, so their bytes
compare as they do.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from uprmc.engine.bucket import Bucket
from uprmc.engine.cas_clock import AHEAD_MAX_S, DRIFT_S
from uprmc.engine.memory import MemoryAccount
from uprmc.engine.stats import Stats
from uprmc.engine.vbucket import StoreMode, VBucket, known
from uprmc.errors import InvalidArguments, KeyExists, KeyNotFound
from uprmc.model import CAS_LOCKED, ConflictRule, FailoverLog, Life, Origin
from uprmc.record import (
    EXPIRY,
    FRONT,
    KIND_AT,
    LIFE_BITS,
    NEVER,
    REV,
    TAIL,
    build,
    cas_of,
    key_of,
    seqno_of,
    stored_origin,
    tail_at,
)
from uprmc.rollback import ends_of_branches, origin_here

# --- the conflict rule --------------------------------------------------------------------------


_NO_FLAGS = bytes(4)


def incoming_wins(
    incoming: bytes, present: bytes, log: FailoverLog, rule: ConflictRule = ConflictRule.REVISION
) -> bool:
    """Tell whether one record takes the place of another one of its key, also of a tombstone.

    By `revision`, the higher revision wins, then the higher CAS; by `timestamp`, the higher CAS
    wins, then the higher revision. Then the later expiry wins, then the higher flags; a deletion
    has neither. If all of this is equal, the larger origin wins, so that two places keep the same
    version. An incoming version without an origin loses then, and so does one that returns to where
    it came from.

    Args:
        incoming: a record; its seqno does not matter.
        present: the vBucket's record of the key.
        log: the vBucket's history, which tells where `present` was accepted if it was here.
        rule: the bucket's.
    """
    ours, theirs = _rank(present, rule), _rank(incoming, rule)
    if theirs != ours:
        return theirs > ours
    origin = stored_origin(incoming)
    if origin is None:
        return False
    return origin > (stored_origin(present) or origin_here(log, seqno_of(present)))


def outranks_tombstones(rev: int, max_deleted_rev: int) -> bool:
    """Tell whether a revision wins against any tombstone of up to another one, unseen.

    This is `incoming_wins` by revision for a tombstone that has not been read. It is correct
    because revisions are compared first; by timestamp, the tombstone has to be read.
    """
    return rev > max_deleted_rev


def _rank(record: bytes, rule: ConflictRule) -> tuple[bytes, bytes, bytes, bytes]:
    tail = tail_at(record)
    rev, cas = record[REV], record[tail : tail + 8]
    first, second = (rev, cas) if rule is ConflictRule.REVISION else (cas, rev)
    if record[KIND_AT] & LIFE_BITS:  # the field of the expiry has the time of the deletion
        return first, second, NEVER, _NO_FLAGS
    return first, second, record[EXPIRY], record[tail + 8 : tail + 12]


# --- accepting a version ------------------------------------------------------------------------


#: Highest revision accepted from a peer; as many more changes can be counted here before 64 bits
#: overflow.
REV_MAX = 2**63 - 1

_NANOS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Demand:
    """What the sender demands of the present version."""

    # 0, or the CAS it must have. It may be the CAS of a tombstone: this is how a sender makes sure
    # that nothing has changed since it asked for the metadata.
    cas: int = 0
    add: bool = False  # whether there must be no document
    skip_conflicts: bool = False  # whether the incoming version wins in any case
    regenerate_cas: bool = False  # whether it gets a new CAS of this node instead of its own
    # whether its CAS may be far in the future: a node with a wrong clock has given it out, and a
    # backup of it is to be restored.
    any_cas: bool = False


def accept_version(bucket: Bucket, vbucket: VBucket, version: bytes, demand: Demand) -> bytes:
    """Store a version under the next seqno, and return its record as it is stored.

    A tombstone gets the present time, not the sender's, because purging depends on its age here.

    Args:
        bucket: the bucket of the vBucket.
        vbucket: it is active.
        version: its record as the sender has it; the seqno does not matter.
        demand: what the sender demands.

    Raises:
        KeyExists: the version lost, or its CAS is invalid; a document has another CAS than
            demanded, or exists although none should.
        KeyNotFound: a CAS is demanded and there is no document; or a deletion has returned to where
            it was made, and there is no document.
        InvalidArguments: the revision is too high, or the CAS too far in the future.
        Locked, NotResident, TemporaryFailure, OutOfMemory.
    """
    now = bucket.clock.now()
    _, kind, datatype, expiry, key_length, rev, _ = FRONT.unpack_from(version)
    tail = tail_at(version)
    key, origin = key_of(version), stored_origin(version)
    cas, flags = TAIL.unpack_from(version, tail)
    life = kind & LIFE_BITS
    value = version[tail + TAIL.size :]
    _check_numbers(key, rev, cas, inf if demand.any_cas else now)
    present = vbucket.table.get(key)
    if present is not None:
        known(present)
    check_room(bucket.account, len(key) + len(value), frees=bool(life and present))
    rule = bucket.account.conflict_rule
    asked = demand.skip_conflicts or demand.cas
    if life and present is None and not asked and _is_own(vbucket, origin):
        _count_lost(bucket.stats, life)
        raise KeyNotFound(key)
    if present is None and _tombstone_matters(rev, demand, vbucket.max_deleted_rev, rule):
        present = bucket.fetcher.tombstone(vbucket, key)
    if (demand.cas or demand.add or vbucket.locks) and not _is_tombstone(present, demand.cas):
        vbucket.check_change(key, demand.cas, StoreMode.ADD if demand.add else StoreMode.SET)
    log = vbucket.failover_log
    wins = present is None or demand.skip_conflicts or incoming_wins(version, present, log, rule)
    if not wins:
        _count_lost(bucket.stats, life)
        raise KeyExists(key)
    if life:
        expiry = int(now)
    if demand.regenerate_cas:
        cas = bucket.account.next_cas()
    front = (kind, datatype, expiry, key_length, rev, vbucket.high_seqno + 1)
    record = build(front, key, cas, flags, value, origin)
    vbucket.adopt(record)
    _count_accepted(bucket.stats, life)
    _count_drift(bucket.stats, cas, now)
    return record


def _is_own(vbucket: VBucket, origin: Origin | None) -> bool:
    """Tell whether a version was first accepted in the vBucket's own history."""
    if origin is None:
        return False
    ends = ends_of_branches(vbucket.failover_log, vbucket.high_seqno)
    return origin.seqno <= ends.get(origin.uuid, 0)


def _check_numbers(key: bytes, rev: int, cas: int, now: float) -> None:
    if cas in (0, CAS_LOCKED):
        raise KeyExists(key)  # no version has it; present servers answer the same
    if now < inf and cas > int(now + AHEAD_MAX_S) * _NANOS:
        raise InvalidArguments(f"the CAS {cas} is far in the future")
    if rev > REV_MAX:
        raise InvalidArguments(f"the revision {rev} is too high")


def check_room(account: MemoryAccount, size: int, *, frees: bool) -> None:
    """Refuse what cannot be stored.

    Args:
        account: the bucket's.
        size: bytes of key and value.
        frees: whether it is a deletion of a key in the table, which needs no memory.

    Raises:
        TemporaryFailure, OutOfMemory: see `MemoryAccount.refuse_write`.
    """
    if frees:
        account.check_disk()
    elif account.used > account.write_limit:
        account.refuse_write(size)


def _tombstone_matters(rev: int, demand: Demand, max_deleted_rev: int, rule: ConflictRule) -> bool:
    """Tell whether a tombstone that is only on disk could change the outcome."""
    if not max_deleted_rev:
        return False
    outranks = rule is ConflictRule.REVISION and outranks_tombstones(rev, max_deleted_rev)
    decides = not (demand.skip_conflicts or outranks)
    return decides or demand.cas != 0


def _is_tombstone(present: bytes | None, cas: int) -> bool:
    """Tell whether a demanded CAS is that of a tombstone."""
    if not cas or present is None or not present[KIND_AT] & LIFE_BITS:
        return False
    return cas_of(present) == cas


def _count_accepted(stats: Stats, life: int) -> None:
    if life == Life.LIVE:
        stats.ops_set_meta += 1
    else:
        stats.ops_del_meta += 1


def _count_drift(stats: Stats, cas: int, now: float) -> None:
    if cas > int(now + DRIFT_S) * _NANOS:
        stats.cas_ahead += 1
    elif cas < int(now - DRIFT_S) * _NANOS:
        stats.cas_behind += 1


def _count_lost(stats: Stats, life: int) -> None:
    if life == Life.LIVE:
        stats.ops_set_meta_res_fail += 1
    else:
        stats.ops_del_meta_res_fail += 1
