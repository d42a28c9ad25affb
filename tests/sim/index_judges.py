"""Judges of an index: what it shows is what the documents of some state give, and not too old.

They share no code with `uprmc` but what reads a row, and read the trees as queries do.

A vBucket that stands at the end of a snapshot has exactly the rows of the history at that seqno. In
the middle of a snapshot the newest version of a document may still be to come, if it is part of the
same snapshot; then its rows are those of an older version, or none.

Source: rows I01, I08, I11, I13, I16, I19, I26, I28, D16.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from typing import Any, NamedTuple
from zlib import crc32

from tests.sim.codec import Version
from tests.sim.judges import complain
from tests.sim.truth import Histories
from tests.sim.world import World
from uprmc.index.rows import split_row_value

_NONE: tuple[Any, ...] = ()


class Asked(NamedTuple):
    """What a query has to contain of a vBucket, and the failover log of there."""

    uuid: int
    high: int
    log: Any


class IndexJudge:
    """See the module docstring."""

    def __init__(self, histories: Histories, world: World) -> None:
        self.counts: Counter[str] = Counter()  # what it has seen
        self._histories, self._world = histories, world
        self._seen: Any = None

    # --- looking ----------------------------------------------------------------------------------

    def look(self, view: Any) -> None:
        """Judge what is published, unless it was judged already."""
        seen = (view.trees, view.positions, view.facts, view.states)
        if view.building or seen == self._seen:
            return
        self._seen = seen
        rows = self._rows(view)
        for vbucket in range(view.states.indexed.bit_length()):
            if view.states.indexed >> vbucket & 1:
                self._look_at(view, vbucket, rows.pop(vbucket, {}))
        for vbucket in list(rows):
            if view.states.cleanup >> vbucket & 1:
                del rows[vbucket]
        if rows:
            complain(f"there are rows of vBuckets that are not indexed: {rows}; {view.states}")
        self._judge_reductions(view)

    def _rows(self, view: Any) -> dict[int, dict[bytes, tuple[Any, ...]]]:
        """Return the rows of each document, by vBucket."""
        found: dict[int, dict[bytes, list[Any]]] = defaultdict(lambda: defaultdict(list))
        for entry in view.trees.views[0].rows():
            key, document, value = _row(entry)
            found[entry.vbucket][document].append((key, value))
        return {
            vbucket: {document: tuple(rows) for document, rows in documents.items()}
            for vbucket, documents in found.items()
        }

    def _look_at(self, view: Any, vbucket: int, rows: dict[bytes, tuple[Any, ...]]) -> None:
        position = view.positions.get(vbucket)
        if position is None or not position.seqno:
            if rows:
                complain(f"vBucket {vbucket} stands at the beginning, and has {rows}")
            return
        facts = view.facts.get(vbucket)
        branch = facts and self._histories.branches.get((vbucket, facts.log[0].uuid))
        if branch is None:
            complain(f"vBucket {vbucket} stands at {position} of nobody's history: {facts}")
        if position.seqno > branch.high:
            complain(f"vBucket {vbucket} stands at {position}, its history ends at {branch.high}")
        whole = position.seqno >= position.snap_end
        self.counts["states judged"] += 1
        self.counts["parts judged"] += not whole
        state = branch.state(position.seqno)
        later = {} if whole else _versions(branch.segment(position.seqno, position.snap_end))
        for document in rows.keys() | state.keys():
            shown, version = rows.get(document, _NONE), state.get(document)
            if shown == _shown_of(version):
                continue
            if document in later and self._was_so(branch, document, shown, position.seqno):
                continue
            complain(
                f"vBucket {vbucket} stands at {position} and has {shown} of {document!r}; "
                f"there was {version}, which gives {_shown_of(version)}; {facts.log}"
            )

    def _was_so(self, branch: Any, document: bytes, shown: Any, seqno: int) -> bool:
        """Whether an older version of a document gives these rows."""
        if not shown:
            return True
        older = [v for v in branch.versions_from(0) if v.key == document and v.seqno <= seqno]
        return any(shown == _shown_of(version) for version in older)

    def _judge_reductions(self, view: Any) -> None:
        """Compare reductions of some vBuckets, and a range, with sums of the rows (row I13)."""
        tree, random = view.trees.views[0], self._world.random
        rows = list(tree.rows())
        wanted = random.getrandbits(max(1, tree.vbuckets.bit_length()))
        low, high = sorted(random.choices(rows, k=2)) if rows else (None, None)
        start, end = (low and low.key, high and high.key) if random.random() < 0.5 else (None, None)
        chosen = [
            _row(each)[2]
            for each in rows
            if wanted >> each.vbucket & 1 and (start is None or start <= each.key <= end)
        ]
        expected = (b"%d" % len(chosen), b"%d" % sum(chosen)) if chosen else ()
        found = tree.reduce(start, end, wanted)
        self.counts["reductions judged"] += bool(chosen)
        if found != expected:
            complain(f"rows of {wanted:b} from {start!r} to {end!r} are {expected}, not {found}")

    # --- freshness --------------------------------------------------------------------------------

    def acknowledged(self) -> dict[int, Asked]:
        """Return what has been acknowledged where one node is active."""
        found = {}
        for number in self._histories.numbers():
            active = self._histories.active_at(number)
            if len(active) == 1:
                look = self._histories.node(active[0]).now(number)
                found[number] = Asked(look.log[0][0], look.high, look.log)
        return found

    def fresh(self, view: Any, wanted: dict[int, Asked]) -> None:
        """Judge an answer to a query that was asked when this was acknowledged."""
        self.look(view)
        for vbucket, asked in wanted.items():
            facts, position = view.facts.get(vbucket), view.positions.get(vbucket)
            if not view.states.active >> vbucket & 1 or not asked.high or facts is None:
                continue
            if not _has(facts.log, asked):
                self.counts["lost meanwhile"] += 1
                continue
            self.counts["fresh answers"] += 1
            if position is None or position.seqno < asked.high:
                complain(f"vBucket {vbucket} is to contain {asked}; it stands at {position}")

    # --- the end ----------------------------------------------------------------------------------

    def final(self, view: Any) -> None:
        """Hold all rows to what active nodes have."""
        rows = self._rows(view)
        for number in self._histories.numbers():
            for name in self._histories.active_at(number):
                held = self._histories.node(name).held.get(number, {})
                true = {
                    key: each
                    for version in held.values()
                    if (each := _shown_of(version))
                    for key in (version.key,)
                }
                if rows.get(number, {}) != true:
                    complain(f"vBucket {number}: {rows.get(number)} is shown, {name} has {true}")


def _row(entry: Any) -> tuple[Any, bytes, int]:
    """Return key, document and value of an entry, read as queries do."""
    document, key, value = split_row_value(entry.value)
    return tuple(json.loads(key)), document, int(value)


def _shown_of(version: Version | None) -> tuple[Any, ...]:
    """Return the rows that a version gives; written once more, apart from `index_program`."""
    if version is None or version.deleted:
        return _NONE
    shared, count = crc32(version.value) % 5, crc32(version.key + version.value) % 3
    return tuple(((shared, number), len(version.value)) for number in range(count))


def _versions(found: list[Version]) -> dict[bytes, Version]:
    return {version.key: version for version in found}


def _has(log: Any, asked: Asked) -> bool:
    """Whether a history has what was asked for."""
    end = None
    for entry in log:
        if entry.uuid == asked.uuid:
            return end is None or asked.high <= end
        end = entry.seqno
    return False
