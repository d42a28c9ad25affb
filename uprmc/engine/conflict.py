"""Which of two versions of a document survives, when both were made without knowing the other.

Every place decides alone and all must decide alike, so the rule looks at nothing but the versions.

Source: UPR reference, section 6, "Conflict resolution"; systems reference b.3, revision policy.
"""

from __future__ import annotations

from uprmc.model import Item


def incoming_wins(incoming: Item, present: Item) -> bool:
    """Tell whether `incoming` takes the place of `present`, a document or a tombstone.

    The higher revision wins, then the higher CAS. For a deletion that is all; two documents go on
    to the later expiry and the higher flags. What is equal in everything stays as it is, so a
    version that comes back to where it was made ends there.
    """
    ours, theirs = (present.rev, present.cas), (incoming.rev, incoming.cas)
    if theirs != ours or incoming.life:
        return theirs > ours
    return (incoming.expiry, incoming.flags) > (_expiry(present), present.flags)


def outranks_tombstones(incoming: Item, max_deleted_rev: int) -> bool:
    """Tell whether `incoming` wins against any tombstone of up to this revision, unseen.

    It is `incoming_wins` for a tombstone that nobody has looked at, so it holds because revisions
    come first there. A rule that begins with the CAS has to look at the tombstone.
    """
    return incoming.rev > max_deleted_rev


def _expiry(item: Item) -> int:
    """Return when a version expires; a tombstone keeps the time of the deletion in that field."""
    return 0 if item.life else item.expiry
