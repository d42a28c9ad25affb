"""Which of two versions of a document survives, when each was created without the other.

Every place decides alone, and all must decide alike, so the rule uses only the two versions and
where each was first accepted. Numbers in records are big-endian, so their bytes compare as they do.

Source: UPR reference, section 6, "Conflict resolution"; systems reference b.3; contracts of the
systems to come, section 3.
"""

from __future__ import annotations

from uprmc.model import ConflictRule, FailoverLog
from uprmc.record import EXPIRY, KIND_AT, LIFE_BITS, NEVER, REV, seqno_of, stored_origin, tail_at
from uprmc.rollback import origin_here

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
