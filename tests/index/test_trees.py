"""Trees against dicts: random changes, ranges, groups, dropped vBuckets, compaction, rollback."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.index.reducing import Lengths
from uprmc.index.model import Entry, Reductions
from uprmc.index.tree import (
    Header,
    IndexFile,
    NodeCache,
    Tree,
    compact,
    tree,
)
from uprmc.index.tree import file as writing
from uprmc.index.tree.file import MAX_NODE
from uprmc.index.tree.nodes import Inner, Leaf, Node, Pointer

VBUCKETS = 6
Contents = dict[bytes, tuple[int, bytes]]

keys = st.integers(0, 400).map(lambda n: b"%d/%02d" % (n // 40, n % 40)) | st.binary(max_size=3)
bitmaps = st.integers(0, 2**VBUCKETS - 1)
values = st.integers(0, 400).map(lambda n: b"v" * n) | st.just(b"X") | st.just(b"b" * 9000)
bounds = st.none() | keys


def entries(contents: Contents) -> list[Entry]:
    return [Entry(key, *contents[key]) for key in sorted(contents)]


def in_range(
    contents: Contents, low: bytes | None, high: bytes | None, inclusive: bool, wanted: int | None
) -> list[Entry]:
    return [
        row
        for row in entries(contents)
        if (low is None or row.key >= low)
        and (high is None or row.key < high or (inclusive and row.key == high))
        and (wanted is None or wanted >> row.vbucket & 1)
    ]


def reduced(rows: list[Entry]) -> tuple[bytes | None, ...]:
    if not rows:
        return ()
    if any(b"X" in row.value for row in rows):
        return (None,)
    return (b"%d" % sum(len(row.value) for row in rows),)


def walk(tree: Tree) -> Iterator[tuple[Node, Pointer, bytes, bytes | None, int]]:
    """Yield each node, its pointer, its bounds and its depth."""
    if tree.root is None:
        return
    todo: list[tuple[Pointer, bytes, bytes | None, int]] = [(tree.root, b"", None, 0)]
    while todo:
        pointer, low, high, depth = todo.pop()
        node = tree.file.read(pointer, tree.file.number)
        yield node, pointer, low, high, depth
        if isinstance(node, Inner):
            highs = [*node.lows[1:], high]
            for child, below, above in zip(node.pointers, node.lows, highs, strict=True):
                todo.append((child, below, above, depth + 1))


def check_shape(tree: Tree) -> None:
    """All that nodes say of what is below them is so, and all leaves are equally deep."""
    depths = set()
    for node, pointer, low, high, depth in walk(tree):
        if isinstance(node, Leaf):
            depths.add(depth)
            assert list(node.keys) == sorted(set(node.keys))
            assert node.keys[0] >= low
            assert high is None or node.keys[-1] < high
            assert pointer.rows == len(node.keys)
            assert pointer.bytes == pointer.size
            assert pointer.vbuckets == sum(1 << vbucket for vbucket in set(node.vbuckets))
            large = sum(len(key) + len(value) for key, value in zip(node.keys, node.values))  # noqa: B905
            assert len(node.keys) == 1 or large < 3 * MAX_NODE
        else:
            assert node.lows[0] == low
            assert node.lows == sorted(set(node.lows))
            assert pointer.rows == sum(child.rows for child in node.pointers)
            assert pointer.bytes == pointer.size + sum(child.bytes for child in node.pointers)
            bitmap = 0
            for child in node.pointers:
                bitmap |= child.vbuckets
            assert pointer.vbuckets == bitmap
    assert len(depths) <= 1


class Trees(RuleBasedStateMachine):
    """One file with one tree and its past; a dict for each state is the oracle."""

    past: list[Contents]  # what was there at each header

    @initialize(cache_bytes=st.sampled_from([0, 20_000, 1 << 26]))
    def begin(self, cache_bytes: int) -> None:
        self.directory = Path(tempfile.mkdtemp())
        self.names = 0
        self.cache = NodeCache(cache_bytes)
        self.start_over()

    def start_over(self) -> None:
        self.file = IndexFile.create(self.path(), cache=self.cache)
        self.tree = Tree(self.file, None, Lengths())
        self.contents: Contents = {}
        self.past = []

    def path(self) -> Path:
        self.names += 1
        return self.directory / str(self.names)

    def teardown(self) -> None:
        if hasattr(self, "file"):
            self.file.close()
            shutil.rmtree(self.directory)

    @rule(
        new=st.dictionaries(keys, st.tuples(st.integers(0, VBUCKETS - 1), values), max_size=60),
        gone=st.lists(keys, max_size=60),
        drop=st.just(0) | bitmaps,
    )
    def change(self, new: Contents, gone: list[bytes], drop: int) -> None:
        before, contents = self.tree, dict(self.contents)
        self.tree = self.tree.update(sorted(gone), entries(new), drop_vbuckets=drop)
        for key in [*gone, *(key for key, (vb, _) in contents.items() if drop >> vb & 1)]:
            self.contents.pop(key, None)
        self.contents.update(new)
        assert list(before.rows()) == entries(contents)

    @rule(low=bounds, high=bounds)
    def remove_a_range(self, low: bytes | None, high: bytes | None) -> None:
        gone = [row.key for row in in_range(self.contents, low, high, True, None)]
        self.tree = self.tree.update(gone)
        for key in gone:
            del self.contents[key]

    @rule(
        start=bounds,
        end=bounds,
        wanted=st.none() | bitmaps,
        inclusive=st.booleans(),
        skip=st.integers(0, 99),
    )
    def read(
        self, start: bytes | None, end: bytes | None, wanted: int | None, inclusive: bool, skip: int
    ) -> None:
        expected = in_range(self.contents, start, end, inclusive, wanted)
        rows = self.tree.rows(start, end, wanted=wanted, inclusive_end=inclusive, skip=skip)
        assert list(rows) == expected[skip:]
        assert self.tree.reduce(start, end, wanted, inclusive_end=inclusive) == reduced(expected)
        backwards = in_range(self.contents, end, start, True, wanted)
        if end is not None and not inclusive:
            backwards = [row for row in backwards if row.key != end]
        rows = self.tree.rows(
            start, end, wanted=wanted, inclusive_end=inclusive, descending=True, skip=skip
        )
        assert list(rows) == backwards[::-1][skip:]

    @rule(
        start=bounds,
        end=bounds,
        wanted=st.none() | bitmaps,
        size=st.integers(0, 4),
        descending=st.booleans(),
    )
    def group(
        self,
        start: bytes | None,
        end: bytes | None,
        wanted: int | None,
        size: int,
        descending: bool,
    ) -> None:
        low, high = (end, start) if descending else (start, end)
        rows = in_range(self.contents, low, high, True, wanted)
        expected: dict[bytes, list[Entry]] = {}
        for row in rows[::-1] if descending else rows:
            expected.setdefault(row.key[:size], []).append(row)
        # Keys shorter than a prefix would be groups that others begin with.
        if any(len(prefix) < size for prefix in expected):
            return
        found = self.tree.groups(start, end, wanted, lambda key: key[:size], descending)
        assert list(found) == [(group[0], reduced(group)) for group in expected.values()]

    @rule(wanted=st.lists(keys, max_size=20))
    def look_up(self, wanted: list[bytes]) -> None:
        there = {key: Entry(key, *self.contents[key]) for key in wanted if key in self.contents}
        assert self.tree.get_many(wanted) == there
        for key in wanted:
            assert self.tree.get(key) == there.get(key)
            assert self.tree.rank(key) == sum(other < key for other in self.contents)

    @rule(sync=st.booleans())
    def write_header(self, sync: bool) -> None:
        self.file.write_header(Header(roots=(None, self.tree.root)), sync)
        self.past.append(dict(self.contents))

    @rule()
    def open_again(self) -> None:
        self.file.close()
        if self.past:
            self.file = IndexFile.open(self.file.path, cache=self.cache)
            self.contents = dict(self.past[-1])
            self.stand()
        else:
            self.start_over()

    def stand(self) -> None:
        assert self.file.header is not None
        self.tree = Tree(self.file, self.file.header.roots[1], Lengths())

    @rule(back=st.integers(0, 3))
    def roll_back(self, back: int) -> None:
        headers = list(self.file.headers())
        assert len(headers) == len(self.past)
        if back < len(headers):
            self.file.truncate_to(headers[back])
            assert self.file.path.stat().st_size == headers[back].end == self.file.size
            self.past = self.past[: len(self.past) - back]
            self.contents = dict(self.past[-1])
            self.stand()

    @rule()
    def compact(self) -> None:
        if not self.past:
            return
        old = self.file
        self.file = compact(old, self.path(), [Lengths()], cache=self.cache)
        old.close()
        self.past = self.past[-1:]
        self.contents = dict(self.past[-1])
        self.stand()
        assert len(list(self.file.headers())) == 1
        assert self.file.header is not None
        assert self.file.header.offset - self.file.header.data_bytes <= 4096
        assert all(
            len(node.keys) == 1 or sum(map(len, node.values)) <= MAX_NODE
            for node, *_ in walk(self.tree)
            if isinstance(node, Leaf)
        )

    @invariant()
    def counts_are_right(self) -> None:
        if hasattr(self, "tree"):
            assert self.tree.count == len(self.contents)
            assert self.tree.vbuckets == sum(
                1 << vb for vb in {vb for vb, _ in self.contents.values()}
            )
            assert self.tree.reduce() == reduced(entries(self.contents))
            check_shape(self.tree)


class DeepTrees(Trees):
    """The same with nodes so small that trees are high."""

    @initialize(cache_bytes=st.just(1 << 26))
    def begin(self, cache_bytes: int) -> None:
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(writing, "MAX_NODE", 400)
        self.patch.setattr(tree, "MIN_NODE", 100)
        super().begin(cache_bytes)

    def teardown(self) -> None:
        if hasattr(self, "patch"):
            self.patch.undo()
        super().teardown()


DeepTrees.TestCase.settings = settings(deadline=None, stateful_step_count=30)
TestDeepTrees = DeepTrees.TestCase
Trees.TestCase.settings = settings(deadline=None, stateful_step_count=30)
TestTrees = Trees.TestCase


def test_of_several_reduces_one_that_cannot_be_made_does_not_spoil_the_others() -> None:
    class Pairs:
        def reduce(self, entries: Sequence[Entry]) -> Reductions:
            raise AssertionError

        def rereduce(self, reductions: Sequence[Reductions]) -> Reductions:
            columns = zip(*reductions, strict=True)
            return tuple(b"+".join([text or b"?" for text in column]) for column in columns)

    assert writing.rereduce(Pairs(), [(b"1", None), (b"2", b"3")]) == (b"1+2", None)
    assert writing.rereduce(Pairs(), [(b"1", b"4"), (b"2", b"3")]) == (b"1+2", b"4+3")
    assert writing.rereduce(Pairs(), [(None, None), (b"2", b"3")]) == (None, None)
    assert writing.rereduce(Pairs(), []) == ()


def test_a_tree_that_shrinks_joins_its_small_nodes(tmp_path: Path) -> None:
    rng = random.Random(6)
    file = IndexFile.create(tmp_path / "index")
    rows = [Entry(b"%05d" % n, 0, b"v" * 60) for n in range(6000)]
    tree = Tree(file, None).update([], rows)
    there = [row.key for row in rows]
    while len(there) > 300:
        gone = set(rng.sample(there, 40))
        there = [key for key in there if key not in gone]
        tree = tree.update(sorted(gone))
        small = [node for node, *_ in walk(tree) if node.below(writing.MIN_NODE)]
        assert len(small) <= 2  # the root, and one without neighbours
        check_shape(tree)
    file.close()
