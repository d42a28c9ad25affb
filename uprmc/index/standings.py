"""Where each vBucket of an index stands, and what was learned of its history.

Source: systems reference c.4, c.5.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from uprmc.client.state import Saved
from uprmc.index.index_file import Facts
from uprmc.index.tree import Position
from uprmc.model import SnapshotRange


class Standings:
    """Those of one index; the updater's thread changes them, any thread may ask.

    Attributes:
        positions: up to where the rows of each vBucket are in the trees.
        facts: what was learned of each.
    """

    def __init__(self, positions: Mapping[int, Position], facts: Mapping[int, Facts]) -> None:
        self.positions, self.facts = dict(positions), dict(facts)

    def saved(self) -> dict[int, Saved]:
        """Return what the client library continues from."""
        found = {}
        for vbucket, (seqno, start, end) in list(self.positions.items()):
            facts = self.facts_of(vbucket)
            snapshot = SnapshotRange(start, end if seqno > start else seqno)
            found[vbucket] = Saved(seqno, snapshot, facts.log, seqno, facts.purge_seqno, facts.term)
        return found

    def seqno_of(self, vbucket: int) -> int:
        """Return up to where a vBucket is indexed, 0 = it is not."""
        position = self.positions.get(vbucket)
        return 0 if position is None else position.seqno

    def facts_of(self, vbucket: int) -> Facts:
        """Return what was learned of a vBucket."""
        return self.facts.get(vbucket) or Facts()

    def learn(self, saved: Mapping[int, Saved]) -> None:
        """Keep logs, purge seqnos and terms."""
        for vbucket, each in saved.items():
            self.facts[vbucket] = Facts(each.log, each.purge_seqno, each.term)

    def forget(self, vbuckets: Iterable[int]) -> None:
        """Forget vBuckets."""
        for vbucket in vbuckets:
            self.positions.pop(vbucket, None)
            self.facts.pop(vbucket, None)
