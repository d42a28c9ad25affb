"""Random histories of an index: changes, headers, crashes, rollbacks, compactions, lost vBuckets.

The model is a source that keeps every branch of each vBucket's history. Whatever happens, the rows
of the index are those of the branch and the seqno at which it says that it stands.

Source: systems reference c.4 to c.7; rows I08, I19 to I24.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hypothesis import settings, stateful
from hypothesis import strategies as st

from uprmc.client.handler import DELETE, SET, Change
from uprmc.client.state import Saved
from uprmc.config import IndexSettings
from uprmc.index.design import Design
from uprmc.index.errors import WentBack
from uprmc.index.index_file import Files
from uprmc.index.mapping import make_mapper, make_reducer
from uprmc.index.rows import split_row_value
from uprmc.index.store import IndexStore
from uprmc.model import FailoverEntry, SnapshotRange

VBUCKETS = range(3)
KEYS = [b"a", b"b", b"c", b"d"]

BODY = json.dumps(
    {"views": {"by_n": {"map": {"emit": [{"key": "$.n", "value": "$.n"}]}, "reduce": "_sum"}}}
).encode()
SETTINGS = IndexSettings(fragmentation=1.0)


@dataclass
class Branch:
    """One history of a vBucket, from its beginning.

    Attributes:
        log: newest first.
        changes: of each seqno from 1: key, and number or ``None``.
    """

    log: tuple[FailoverEntry, ...]
    changes: list[tuple[bytes, int | None]] = field(default_factory=list)

    def rows_at(self, seqno: int) -> dict[bytes, int]:
        found: dict[bytes, int] = {}
        for key, number in self.changes[:seqno]:
            found.pop(key, None)
            if number is not None:
                found[key] = number
        return found


def shared(one: Branch, other: Branch) -> int:
    """Return up to which seqno two branches are the same."""
    same = 0
    for mine, theirs in zip(one.changes, other.changes, strict=False):
        if mine != theirs:
            break
        same += 1
    return same


class Changes:
    """A batch as the store reads it."""

    kept_bytes = 100

    def __init__(self, vbucket: int, branch: Branch, first: int, last: int, end: int) -> None:
        self.seqnos = list(range(first, last + 1))
        stream = SimpleNamespace(vbucket=vbucket)
        done = last if last == end else None
        begun = (first - 1, end, 0, 0)
        self.runs = [
            SimpleNamespace(stream=stream, first=0, last=len(self.seqnos), begun=begun, done=done)
        ]
        self._changes = [
            _change(vbucket, seqno, *branch.changes[seqno - 1]) for seqno in self.seqnos
        ]
        self.keys = [change.key for change in self._changes]
        self.values = [change.value for change in self._changes]
        self.vbuckets = [vbucket] * len(self.keys)

    def __len__(self) -> int:
        return len(self.seqnos)

    def __iter__(self) -> Any:
        return iter(self._changes)


def _change(vbucket: int, seqno: int, key: bytes, number: int | None) -> Change:
    if number is None:
        return Change(DELETE, vbucket, seqno, 1, key, None, 1, 1)
    value = json.dumps({"n": number}).encode()
    return Change(SET, vbucket, seqno, 1, key, value, 1, 1, 0, 0, 0)


class Histories(stateful.RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.path = Path(tempfile.mkdtemp())
        self.design = Design.parse("d", BODY)
        self.numbers = count(1)
        self.branches: dict[int, Branch] = {}
        self.source: dict[int, int] = {}
        self.asked_for_all = Counter[int]()
        for vbucket in VBUCKETS:
            self.source[vbucket] = self.new_branch([], ())
        self.store = self.opened()
        self.store.change_states(lambda states: states._replace(active=0b111))
        for vbucket in VBUCKETS:
            self.change(vbucket, [(b"a", vbucket), (b"b", 5)], 9)
        self.store.finish_build()

    def new_branch(
        self, changes: list[tuple[bytes, int | None]], log: tuple[FailoverEntry, ...]
    ) -> int:
        uuid = next(self.numbers)
        older = tuple(entry for entry in log if entry.seqno <= len(changes))
        entries = (FailoverEntry(uuid, len(changes)), *older)
        self.branches[uuid] = Branch(entries, list(changes))
        return uuid

    def opened(self) -> IndexStore:
        reducer = make_reducer(self.design, 0, SETTINGS)
        files = Files(self.path, "x", [reducer])
        store = IndexStore(files, "x", make_mapper(self.design, SETTINGS), SETTINGS, 3)
        store.may_swap = True
        return store

    def at_source(self, vbucket: int) -> Branch:
        return self.branches[self.source[vbucket]]

    def held(self, vbucket: int) -> Branch | None:
        """Return the branch that the index says it is in."""
        log = self.store.view.facts[vbucket].log if vbucket in self.store.view.facts else ()
        return self.branches[log[0].uuid] if log else None

    def stands(self, vbucket: int) -> int:
        position = self.store.positions().get(vbucket)
        return position.seqno if position is not None else 0

    # --- what happens ---

    @stateful.rule(
        vbucket=st.sampled_from(VBUCKETS),
        changes=st.lists(
            st.tuples(st.sampled_from(KEYS), st.none() | st.integers(0, 9)), min_size=1, max_size=6
        ),
        most=st.integers(1, 8),
        header=st.booleans(),
    )
    def change(
        self, vbucket: int, changes: list[tuple[bytes, int | None]], most: int, header: bool = False
    ) -> None:
        """Documents change, and the index gets it, perhaps not to the snapshot's end."""
        self.at_source(vbucket).changes.extend(changes)
        self.follow(vbucket, most)
        if header:
            self.store.write_header()

    @stateful.rule(vbucket=st.sampled_from(VBUCKETS), most=st.integers(1, 8))
    def follow(self, vbucket: int, most: int) -> None:
        """The source streams what the index lacks."""
        self.return_to_shared()
        branch, stands = self.at_source(vbucket), self.stands(vbucket)
        end = len(branch.changes)
        if stands == end or not self.store.states.indexed >> vbucket & 1:
            return
        if not stands:
            self.store.begin()
            self.asked_for_all[vbucket] += 1
        term = self.asked_for_all[vbucket]
        saved = Saved(stands, SnapshotRange(stands, stands), branch.log, stands, 0, term)
        self.store.learn({vbucket: saved})
        last = min(end, stands + most)
        self.store.apply([Changes(vbucket, branch, stands + 1, last, end)])  # type: ignore[list-item]

    @stateful.rule(vbucket=st.sampled_from(VBUCKETS), lost=st.integers(1, 3))
    def fail_over(self, vbucket: int, lost: int) -> None:
        branch = self.at_source(vbucket)
        kept = branch.changes[: max(0, len(branch.changes) - lost)]
        self.source[vbucket] = self.new_branch(kept, branch.log)

    @stateful.precondition(lambda self: self.store.is_building)
    @stateful.rule()
    def load(self) -> None:
        self.store.finish_build()

    @stateful.precondition(lambda self: self.store.headers_written)
    @stateful.rule()
    def crash(self) -> None:
        self.store.close(orderly=False)
        self.store = self.opened()
        self.store.change_states(lambda states: states._replace(active=0b111, cleanup=0))

    @stateful.precondition(lambda self: not self.store.is_building)
    @stateful.rule(vbuckets=st.integers(1, 0b111))
    def lose(self, vbuckets: int) -> None:
        """vBuckets are no longer wanted: `work` removes their rows."""
        self.store.change_states(
            lambda states: states._replace(
                active=states.active & ~vbuckets, cleanup=states.cleanup | vbuckets
            )
        )

    @stateful.precondition(lambda self: self.store.states.active != 0b111)
    @stateful.rule()
    def regain(self) -> None:
        """All are wanted again, before or after their rows are gone."""
        self.store.change_states(lambda states: states._replace(active=0b111, cleanup=0))

    @stateful.precondition(lambda self: not self.store.is_building and not self.copying)
    @stateful.rule()
    def compact(self) -> None:
        """The copy is made at once; what changes before it is used comes between."""
        self.store.begin_compaction()
        while self.store.compacting.current is None:
            self.work()
        self.store.compacting.current._thread.join()

    @property
    def copying(self) -> bool:
        return self.store.compacting.current is not None or self.store.compacting.wanted

    @stateful.precondition(lambda self: self.copying or self.store.states.cleanup)
    @stateful.rule()
    def work(self) -> None:
        work = self.store.work()
        assert work is not None or self.store.is_building
        if work is not None:
            next(work)
        if self.store.compacting.current is not None:
            self.store.compacting.current._thread.join()

    @stateful.precondition(lambda self: self.store.files.old)
    @stateful.rule()
    def drop_old_file(self) -> None:
        persisted = dict.fromkeys(VBUCKETS, 0)
        if self.store.files.old is not None and self.store.files.header is not None:
            self.store.drop_old_file(persisted)

    @stateful.rule(vbucket=st.sampled_from(VBUCKETS), chance=st.integers(0, 5))
    def purged_past_it(self, vbucket: int, chance: int) -> None:
        if chance:
            return
        try:
            assert self.store.roll_back(vbucket, 0)
        except WentBack:
            return
        self.store.forget([vbucket])

    def return_to_shared(self) -> None:
        """Do what the library does when a node sends it back, until none does any more."""
        for _ in range(50):
            for vbucket in VBUCKETS:
                held = self.held(vbucket)
                if held is None or not self.stands(vbucket):
                    continue
                same = shared(held, self.at_source(vbucket))
                if same < self.stands(vbucket) and self.send_back(vbucket, same):
                    break
            else:
                return
        raise AssertionError("it is sent back for ever")

    def send_back(self, vbucket: int, seqno: int) -> bool:
        """Return whether the index has gone back with all vBuckets."""
        try:
            if seqno and self.store.roll_back(vbucket, seqno):
                return False
            assert self.store.roll_back(vbucket, 0)
            self.store.forget([vbucket])
        except WentBack:
            assert self.stands(vbucket) <= seqno
            return True
        return False

    # --- what must hold ---

    @stateful.invariant()
    def rows_of_before_it_asked_for_everything_do_not_come_back(self) -> None:
        """Each time has a number, which the index keeps as the term."""
        for vbucket in VBUCKETS:
            if self.stands(vbucket):
                facts = self.store.view.facts[vbucket]
                assert facts.term == self.asked_for_all[vbucket]

    @stateful.invariant()
    def rows_are_those_of_where_it_stands(self) -> None:
        view = self.store.view
        if view.building:
            assert view.trees.views[0].count == 0
            return
        expected: list[tuple[int, str, int]] = []
        kept = [vbucket for vbucket in VBUCKETS if not view.states.cleanup >> vbucket & 1]
        for vbucket in kept:
            held, stands = self.held(vbucket), self.stands(vbucket)
            if held is not None:
                rows = held.rows_at(stands)
                expected += [(vbucket, key.decode(), number) for key, number in rows.items()]
        rows_in = view.trees.views[0].rows()
        found = [(row.vbucket, number_in(row.value)) for row in rows_in if row.vbucket in kept]
        assert sorted(found) == sorted((vbucket, number) for vbucket, _, number in expected)
        assert len([row for row in view.trees.ids.rows() if row.vbucket in kept]) == len(expected)

    def teardown(self) -> None:
        self.store.close(orderly=False)
        shutil.rmtree(self.path)


def number_in(value: bytes) -> int:
    return int(split_row_value(value)[2])


Histories.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestHistories = Histories.TestCase
