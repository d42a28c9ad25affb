"""Which of two versions of a document survives, when each was created without the other.

Every place decides alone, and all must decide alike, so the rule uses only the two versions.

Source: UPR reference, section 6, "Conflict resolution"; systems reference b.3, revision policy.
"""

from __future__ import annotations

from uprmc.model import Item


def incoming_wins(incoming: Item, present: Item) -> bool:
    """Tell whether `incoming` takes the place of `present`, a document or a tombstone.

    The higher revision wins, then the higher CAS. For a deletion that is all. Between two documents
    the later expiry wins, then the higher flags. If everything is equal the present version stays,
    so a version that returns to its origin ends there.
    """
    ours, theirs = (present.rev, present.cas), (incoming.rev, incoming.cas)
    if theirs != ours or incoming.life:
        return theirs > ours
    return (incoming.expiry, incoming.flags) > (_expiry(present), present.flags)


def outranks_tombstones(incoming: Item, max_deleted_rev: int) -> bool:
    """Tell whether `incoming` wins against any tombstone of up to this revision, unseen.

    This is `incoming_wins` for a tombstone that has not been read. It is correct because revisions
    are compared first; a rule that compares the CAS first would have to read the tombstone.
    """
    return incoming.rev > max_deleted_rev


def _expiry(item: Item) -> int:
    """Return when a version expires; a tombstone has the time of the deletion in that field."""
    return 0 if item.life else item.expiry
