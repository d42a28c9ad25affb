"""What an outpaced client is told of the deletions that it missed.

Source: row X08.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uprmc.engine.watermarks.recent import KEYS_MAX, Dropped, Missed

DROPS = st.lists(st.lists(st.integers(1, 60), min_size=1, unique=True).map(sorted), max_size=6)


def dropped(drops: list[list[int]]) -> tuple[Dropped, Any]:
    """Return what remembers these drops, each of which is by rising seqno, and the vBucket."""
    vbucket: Any = SimpleNamespace(id=0, purge_seqno=0)
    found = Dropped()
    for seqnos in drops:
        found.note(vbucket, [(b"%d" % seqno, seqno) for seqno in seqnos])
        vbucket.purge_seqno = max(vbucket.purge_seqno, seqnos[-1])
    return found, vbucket


@pytest.mark.acceptance("X08")
@given(DROPS, st.integers(0, 61), st.integers(0, 61))
def test_deletions_are_counted_in_whatever_order_they_were_dropped(
    drops: list[list[int]], low: int, high: int
) -> None:
    """Those that were kept for their age are dropped after younger ones with higher seqnos."""
    known: set[int] = set()
    fresh = []
    for drop in drops:
        fresh.append([seqno for seqno in drop if seqno not in known])
        known.update(drop)
    found, vbucket = dropped([drop for drop in fresh if drop])
    missed = found.between(vbucket, low, high)
    assert missed.number == sum(low < seqno <= high for seqno in known)
    assert missed.exact
    assert len(missed.keys) == min(KEYS_MAX, missed.number)


def test_of_very_many_the_newest_are_remembered() -> None:
    found, vbucket = dropped(
        [list(range(start, start + 2_000)) for start in range(1, 8_001, 2_000)]
    )
    assert found.between(vbucket, 4_000, 8_000)[:2] == (4_000, True)
    assert found.between(vbucket, 0, 8_000)[:2] == (4_096, False)
    assert found.between(vbucket, 8_000, 8_000) == Missed(0, True, [])
