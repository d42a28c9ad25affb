"""Terms: if several nodes claim a vBucket as active, the one with the higher term is right.

A term counts promotions: FAILOVER, SET_VBUCKET to active where it was not active, and the hand-over
of a takeover. Nothing else raises it, not even a restart or a crash, and nothing lowers it. It
accompanies the failover log: into the vBucket's header in the same commit, and to replicas.

Source: contracts of the systems to come, section 1.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from uprmc.errors import StoreCorrupt
from uprmc.model import FailoverLog, VBucketState

#: The local document with the terms of vBuckets that were removed: JSON, by number.
REMOVED_NAME = b"uprmc/removed-terms"


def promoted(term: int, known: int) -> int:
    """Return the term of a vBucket that becomes active, from its own and the highest known one."""
    return max(term, known) + 1


def is_deposed(state: VBucketState, term: int, known: int) -> bool:
    """Tell whether a vBucket is active here although another node was promoted since."""
    return state == VBucketState.ACTIVE and known > term


def shares_history(log: FailoverLog, uuids: Iterable[int]) -> bool:
    """Tell whether a log contains one of these histories.

    A peer that shows a higher term without one does not belong to this data, for example after its
    cluster was wiped, and deposes no node.
    """
    ours = {entry.uuid for entry in log}
    return not ours.isdisjoint(uuids)


def encode_removed(terms: Mapping[int, int]) -> bytes:
    """Return the document that keeps the terms of removed vBuckets."""
    return json.dumps({str(number): term for number, term in terms.items()}).encode()


def decode_removed(document: bytes | None) -> dict[int, int]:
    """Read it back, empty if there is none; raises `StoreCorrupt`."""
    if document is None:
        return {}
    try:
        return {int(number): int(term) for number, term in json.loads(document).items()}
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise StoreCorrupt("the stored terms of removed vBuckets cannot be read") from None
