"""Readers beside the one that writes: snapshots stay as they are, memory stays bounded."""

from __future__ import annotations

import random
import threading
from pathlib import Path

from tests.index.reducing import Lengths
from uprmc.index.model import Entry
from uprmc.index.tree import Header, IndexFile, NodeCache, Tree, compact
from uprmc.index.tree.nodes import Leaf


def test_snapshots_stay_as_they_are_while_the_file_grows_and_is_compacted(tmp_path: Path) -> None:
    rng = random.Random(8)
    file = IndexFile.create(tmp_path / "index", cache=NodeCache(200_000))
    contents: dict[bytes, Entry] = {}
    published: list[tuple[Tree, list[Entry]]] = []
    failures: list[BaseException] = []
    stop = threading.Event()

    def read() -> None:
        own = random.Random(threading.get_ident())
        try:
            while not stop.is_set():
                tree, rows = own.choice(published)
                assert list(tree.rows()) == rows
                assert tree.reduce() == (b"%d" % sum(len(row.value) for row in rows),)
        except BaseException as error:
            failures.append(error)

    tree = Tree(file, None, Lengths())
    readers = [threading.Thread(target=read) for _ in range(3)]
    for number in range(60):
        new = {b"%04d" % rng.randrange(3000): b"v" * rng.randrange(40) for _ in range(40)}
        rows = [Entry(key, key[-1] % 8, new[key]) for key in sorted(new)]
        gone = sorted(rng.sample(sorted(contents), min(len(contents), 15)))
        tree = tree.update(gone, rows)
        for key in gone:
            contents.pop(key)
        contents.update((row.key, row) for row in rows)
        published.append((tree, sorted(contents.values())))
        if number == 0:
            for reader in readers:
                reader.start()
        if number % 9 == 0:
            file.write_header(Header(roots=(None, tree.root)), sync=False)
        if number == 30:
            compact(file, tmp_path / "copy", [Lengths()]).close()
    stop.set()
    for reader in readers:
        reader.join()
    file.close()
    assert failures == []


def test_the_cache_never_has_more_than_its_limit_and_lets_the_oldest_go() -> None:
    rng = random.Random(3)
    cache = NodeCache(50_000)
    for _ in range(3000):
        place = 1, rng.randrange(200)
        if cache.get(place) is None:
            size = rng.randrange(4000)
            cache.put(place, Leaf([b"key"], [0], [bytes(size)]))
        assert 0 <= cache.used_bytes <= 50_000
    cache.put((2, 0), Leaf([b"key"], [0], [bytes(50_000)]))
    assert cache.get((2, 0)) is None
    cache.put((2, 1), Leaf([b"key"], [0], [b"value"]))
    assert cache.get((2, 1)) is not None
    cache.put((2, 2), Leaf([b"key"], [0], [bytes(49_850)]))
    assert cache.get((2, 1)) is None
    assert cache.hits > 0
