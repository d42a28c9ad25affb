"""First build: rows sorted in bounded memory, trees written bottom-up."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.index.reducing import Summing
from uprmc.index.collation import sort_key
from uprmc.index.model import Emission
from uprmc.index.rows import row_key, split_id_value, split_row_value
from uprmc.index.tree import IndexFile, Tree, bulk
from uprmc.index.tree.bulk import BulkLoader

Version = tuple[bytes, int, list[list[int]]]


def emissions(numbers: list[int]) -> list[Emission]:
    return [Emission(sort_key(n), b"%d" % n, b"%d" % (n * 2)) for n in numbers]


def expected_rows(latest: dict[tuple[int, bytes], list[list[int]]], view: int) -> list[bytes]:
    return sorted(
        row_key(sort_key(number), doc_key, n, vbucket)
        for (vbucket, doc_key), views in latest.items()
        for n, number in enumerate(views[view])
    )


def load(path: Path, versions: list[Version], memory_bytes: int) -> list[Tree]:
    file = IndexFile.create(path)
    loader = BulkLoader(file, [Summing(), None], memory_bytes=memory_bytes)
    for doc_key, vbucket, views in versions:
        loader.add(doc_key, vbucket, [emissions(numbers) for numbers in views])
    roots = loader.finish()
    return [
        Tree(file, root, reducer)
        for root, reducer in zip(roots, [None, Summing(), None], strict=True)
    ]


versions = st.lists(
    st.tuples(
        st.sampled_from([b"a", b"a\0", b"\1", b"b" * 9, b"\xff\xfe"]),
        st.integers(0, 2),
        st.lists(st.lists(st.integers(-3, 3), max_size=3), min_size=2, max_size=2),
    ),
    max_size=40,
)


@settings(deadline=None)
@given(versions=versions, memory_bytes=st.sampled_from([1, 1000, 4000, 1 << 20]))
def test_of_each_document_the_newest_version_has_rows_and_no_other(
    tmp_path_factory: pytest.TempPathFactory, versions: list[Version], memory_bytes: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bulk, "_CHUNK_ROWS", 2)
        patch.setattr(bulk, "_BATCH_ROWS", 3)
        trees = load(tmp_path_factory.mktemp("load") / "file", versions, memory_bytes)
    latest = {(vbucket, doc_key): views for doc_key, vbucket, views in versions}
    for view in (0, 1):
        assert [row.key for row in trees[1 + view].rows()] == expected_rows(latest, view)
    rows = [row.value for row in trees[1].rows()]
    total = sum(int(split_row_value(value)[2]) for value in rows)
    assert trees[1].reduce() == ((b"%d" % total,) if rows else ())
    ids = {(row.vbucket, row.key[2:]): split_id_value(row.value) for row in trees[0].rows()}
    assert ids.keys() == {place for place, views in latest.items() if any(views)}
    for view in (0, 1):
        keys = sorted(key for emitted in ids.values() for key in emitted[view])
        assert keys == expected_rows(latest, view)


def test_a_build_that_needs_many_runs_gives_the_same_tree_as_one_in_memory(tmp_path: Path) -> None:
    rng = random.Random(17)
    versions: list[Version] = [
        (b"doc%d" % rng.randrange(3000), 0, [[rng.randrange(50)], [rng.randrange(10**9)]])
        for _ in range(5000)
    ]
    few, many = load(tmp_path / "1", versions, 1 << 30), load(tmp_path / "2", versions, 60_000)
    for one, other in zip(few, many, strict=True):
        assert list(one.rows()) == list(other.rows())
    assert few[1].reduce() == many[1].reduce()


def test_a_failed_build_leaves_no_file_behind(tmp_path: Path) -> None:
    file = IndexFile.create(tmp_path / "file")
    loader = BulkLoader(file, [None], memory_bytes=1000)
    for n in range(100):
        loader.add(b"%d" % n, 0, [emissions([n])])

    def stop(rows: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        loader.finish(stop)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
