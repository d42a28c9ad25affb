"""Expiry: times as memcached's clients write them, and the pager that finds the forgotten dead.

An expired item is a miss at once (lazily, on access). It becomes a deletion with a seqno when it is
next touched, or when the expiry pager comes by: every stream sees an expiry exactly once.

Source: `reference/memcached.md` 4.1; `reference/systems.md` (f).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from uprmc.engine.stats import Stats
from uprmc.engine.vbucket import VBucket
from uprmc.engine.walk import slices
from uprmc.model import VBucketState

#: Up to 30 days a number means "from now", above it is an absolute Unix time.
RELATIVE_MAX_S = 30 * 24 * 3600

#: An absolute time that has passed whatever the clock says (0 would mean "never").
LONG_AGO = 1


def absolute_expiry(exptime: int, now: float) -> int:
    """Turn a client's number into a Unix time; 0 = never, negative = already expired."""
    if exptime == 0:
        return 0
    if exptime < 0:
        return LONG_AGO
    return int(now) + exptime if exptime <= RELATIVE_MAX_S else exptime


def expire_due(
    vbuckets: Iterable[VBucket], stats: Stats, now: float, slice_items: int
) -> Iterator[int]:
    """Delete every item that is expired at `now`; yields the count after each slice."""
    count = 0
    active = [vbucket for vbucket in vbuckets if vbucket.state == VBucketState.ACTIVE]
    for group in slices(active, slice_items):
        for vbucket, items in group:
            if vbucket.state != VBucketState.ACTIVE:  # it changed hands since the walk began
                continue
            for item in items:
                due = 0 < item.expiry <= now and not item.life
                if due and vbucket.table.get(item.key) is item:
                    vbucket.expire(item)
                    stats.expired_pager += 1
                    count += 1
        yield count
