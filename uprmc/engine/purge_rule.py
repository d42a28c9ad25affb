"""Which tombstones a compaction drops, and what it did.

Source: `reference/systems.md` a.4 and a.5.
"""

from __future__ import annotations

from typing import NamedTuple

from uprmc.model import SEQNO_MAX

#: After every time that a tombstone can have.
_NEVER_S = 1 << 32


class PurgeRule(NamedTuple):
    """Which tombstones a compaction shall drop.

    A bound of 0 counts as absent; the bounds that are given must all hold. Without any bound
    nothing is dropped. ep-engine has the same rule, except that its purge-before-seq alone dropped
    nothing.

    Attributes:
        before_s: tombstones of deletions before this Unix time.
        upto_seqno: tombstones with this seqno or a lower one.
        every: all tombstones, whatever the bounds.
        aged: `before_s` is what the node's own age says when the compaction begins.
        forced: watermarks are ignored.
    """

    before_s: int = 0
    upto_seqno: int = 0
    every: bool = False
    aged: bool = False
    forced: bool = False

    def bounds(self) -> tuple[int, int]:
        """Return the time before which, and the seqno up to which, tombstones are dropped."""
        if self.every:
            return _NEVER_S, SEQNO_MAX
        if not (self.before_s or self.upto_seqno):
            return 0, 0
        return self.before_s or _NEVER_S, self.upto_seqno or SEQNO_MAX


class Compacted(NamedTuple):
    """What a compaction did to a vBucket.

    Attributes:
        start: the purge seqno before.
        end: the purge seqno after.
        dropped: number of tombstones that were dropped.
        limited_by: see `watermarks.rows.Limit`.
        examined: up to where tombstones were looked for.
        first_left: the lowest seqno of a tombstone that stays, of those that were examined.
        oldest_left: the lowest time of deletion of these tombstones.
    """

    vbucket: int
    start: int
    end: int = 0
    dropped: int = 0
    limited_by: bytes | str | None = None
    examined: int = 0
    first_left: int = SEQNO_MAX
    oldest_left: int = SEQNO_MAX


def shown(id: bytes | str | None) -> str | None:
    """Return the id of a watermark, or what stands for one, as events and tables show it."""
    return id.decode("utf-8", "backslashreplace") if isinstance(id, bytes) else id
