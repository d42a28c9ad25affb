"""Which of two versions of a document survives, when each was created without the other.

Every place decides alone, and all must decide alike, so the rule uses only the two versions.
Numbers in records are big-endian, so their bytes compare as they do.

Source: UPR reference, section 6, "Conflict resolution"; systems reference b.3, revision policy.
"""

from __future__ import annotations

from uprmc.record import EXPIRY, FRONT_BYTES, KEY_LENGTH_AT, KIND_AT, LIFE_BITS, NEVER, REV


def incoming_wins(incoming: bytes, present: bytes) -> bool:
    """Tell whether one record takes the place of another one of its key, also of a tombstone.

    The higher revision wins, then the higher CAS. For a deletion that is all. Between two documents
    the later expiry wins, then the higher flags. If everything is equal the present version stays,
    so a version that returns to its origin ends there.
    """
    tail = FRONT_BYTES + incoming[KEY_LENGTH_AT]
    cas, flags = slice(tail, tail + 8), slice(tail + 8, tail + 12)
    ours, theirs = (present[REV], present[cas]), (incoming[REV], incoming[cas])
    if theirs != ours or incoming[KIND_AT] & LIFE_BITS:
        return theirs > ours
    return (incoming[EXPIRY], incoming[flags]) > (_expiry(present), present[flags])


def outranks_tombstones(rev: int, max_deleted_rev: int) -> bool:
    """Tell whether a revision wins against any tombstone of up to another one, unseen.

    This is `incoming_wins` for a tombstone that has not been read. It is correct because revisions
    are compared first; a rule that compares the CAS first would have to read the tombstone.
    """
    return rev > max_deleted_rev


def _expiry(record: bytes) -> bytes:
    """Return when a version expires; a tombstone has the time of the deletion in that field."""
    return NEVER if record[KIND_AT] & LIFE_BITS else record[EXPIRY]
