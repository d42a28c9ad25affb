"""The programs in ``examples/``, run as a user runs them, against real nodes.

Each is a program of its own that is interrupted, killed with ``kill -9`` and started again; so is
the node that it follows. What it has made must in the end be what the node's documents say, which
are read here over a raw connection.

Proves: exactly-once effects, rollback and restart of the consumer's library, on disk.
"""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Protocol

import pytest
from pymemcache import Client

from interop import nursery
from interop.consumer_program import (
    ALL,
    OPTIONS,
    VBUCKETS,
    Documents,
    Program,
    Writer,
    documents_of,
    lose,
    rows_of,
)
from interop.replica_pair import Node, ReplicaPair, replicate, verb, wait_until_level
from interop.server_process import Address, start_uprmc
from interop.waiting import wait_until

EXAMPLES = Path(__file__).parent.parent / "examples"


class Effect(Protocol):
    """What an example does, as somebody sees it who looks from outside."""

    def words(self) -> tuple[str, *tuple[object, ...]]:
        """Name of the example, and its arguments behind the nodes."""

    def made(self) -> object:
        """What it has made."""

    def right(self, documents: Documents) -> object:
        """What that must be, when these are the node's documents."""

    def use(self, documents: Documents) -> None:
        """What other programs do meanwhile, which have read these documents."""

    def catch_up(self, node: Node) -> None:
        """Wait until it knows all of a node's changes, if `made` does not show that."""


class MirrorEffect:
    """`sqlite_mirror`: a table that is equal."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "mirror.db"

    def words(self) -> tuple[str, *tuple[object, ...]]:
        return ("sqlite_mirror", self._path)

    def made(self) -> object:
        rows = rows_of(self._path, "SELECT vbucket, key, value FROM documents")
        return {(vbucket, key): value for vbucket, key, value in rows}

    def right(self, documents: Documents) -> object:
        return documents

    def use(self, documents: Documents) -> None:
        pass

    def catch_up(self, node: Node) -> None:
        pass


class CountEffect:
    """`count_by_prefix`: numbers."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "counts.db"

    def words(self) -> tuple[str, *tuple[object, ...]]:
        return ("count_by_prefix", self._path)

    def made(self) -> object:
        counts = dict(rows_of(self._path, "SELECT prefix, documents FROM counts"))
        return {prefix: count for prefix, count in counts.items() if count}

    def right(self, documents: Documents) -> object:
        return dict(Counter(key.partition(b":")[0] for _, key in documents))

    def use(self, documents: Documents) -> None:
        pass

    def catch_up(self, node: Node) -> None:
        pass


class CacheEffect:
    """`cache_invalidator`: nothing in the cache is out of date."""

    def __init__(self, directory: Path, cache: Address) -> None:
        self._path = directory / "invalidator.db"
        self._place = cache
        self._read: set[bytes] = set()

    def words(self) -> tuple[str, *tuple[object, ...]]:
        return ("cache_invalidator", self._place, self._path)

    def made(self) -> object:
        return self.cached()

    def right(self, documents: Documents) -> object:
        present = {key: value for (_, key), value in documents.items()}
        return {key: value for key, value in self.cached().items() if present.get(key) == value}

    def use(self, documents: Documents) -> None:
        self._read |= {key for _, key in documents}
        with contextlib.closing(Client(str(self._place), timeout=10)) as cache:
            cache.set_many({key: value for (_, key), value in documents.items()}, noreply=False)

    def catch_up(self, node: Node) -> None:
        """A document of each vBucket changes that is in the cache: it must go, after all others."""
        wait_until(self._path.exists, lambda: "it has not begun")  # the cache is emptied before
        probes = {b"probe-%d" % number: b"cached" for number in ALL}
        with contextlib.closing(Client(str(self._place), timeout=10)) as cache, node.wire() as wire:
            cache.set_many(probes, noreply=False)
            for number, key in enumerate(probes):
                wire.put(number, key)
            wait_until(lambda: not cache.get_many(probes), lambda: f"{cache.get_many(probes)}")

    def cached(self) -> dict[bytes, bytes]:
        with contextlib.closing(Client(str(self._place), timeout=10)) as cache:
            found: dict[bytes, bytes] = cache.get_many(sorted(self._read))
        return found


# --- nodes, effects, documents --------------------------------------------------------------------


@pytest.fixture
def node(tmp_path: Path, peer: str) -> Iterator[Node]:
    """A node that runs, and that returns to its ports."""
    if peer != "uprmc":
        pytest.skip("memcached does not speak UPR")
    made = Node(tmp_path / "node", *OPTIONS)
    try:
        made.start()
        yield made
        made.stop()
    finally:
        made.end()


@pytest.fixture(params=["mirror", "count", "cache"])
def effect(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Effect]:
    if request.param == "mirror":
        yield MirrorEffect(tmp_path)
    elif request.param == "count":
        yield CountEffect(tmp_path)
    else:
        with start_uprmc(tmp_path / "cache") as cache:
            yield CacheEffect(tmp_path, cache.memcached)
            cache.stop()


def run(effect: Effect, *nodes: Node) -> Program:
    """The example, not yet started."""
    name, *rest = effect.words()
    return Program(EXAMPLES / f"{name}.py", ",".join(str(each.upr) for each in nodes), *rest)


def expect_right(effect: Effect, node: Node, program: Program) -> Documents:
    """Wait until the example has made what the node's documents say; gives these."""
    effect.catch_up(node)
    documents = documents_of(node)

    def report() -> str:
        return (
            f"made {effect.made()!r:.500}\nright {effect.right(documents)!r:.500}\n"
            f"the program: {program.said()}\nthe node: {node.log()}"
        )

    wait_until(lambda: effect.made() == effect.right(documents), report)
    return documents


# --- tests ----------------------------------------------------------------------------------------


def test_an_example_follows_and_ends_in_order_when_it_is_interrupted(
    effect: Effect, node: Node
) -> None:
    writer = Writer()
    writer.write(node)
    with run(effect, node) as program:
        program.start()
        for _ in range(3):
            effect.use(expect_right(effect, node, program))
            writer.write(node)
        expect_right(effect, node, program)
        program.interrupt()
        assert program.said() == ""
        writer.write(node)
        program.start()
        expect_right(effect, node, program)


@pytest.mark.acceptance("D04", "D13", "D45")
def test_kill_9_of_an_example_again_and_again_leaves_nothing_wrong(
    effect: Effect, node: Node
) -> None:
    writer, random = Writer(), Random(2)
    with run(effect, node) as program:
        for _ in range(3):
            writer.write(node, 3_000)
            effect.use(documents_of(node))
            writer.write(node, 3_000)
            before = effect.made()
            program.start()
            if random.random() < 0.8:
                wait_until(lambda before=before: effect.made() != before, program.said)
            program.kill()
        writer.write(node)
        program.start()
        expect_right(effect, node, program)


@pytest.mark.acceptance("D04", "D46", "P17")
def test_what_a_killed_node_has_lost_is_undone_by_an_example(effect: Effect, node: Node) -> None:
    writer = Writer()
    writer.write(node)
    with run(effect, node) as program:
        program.start()
        for _ in range(2):
            kept = expect_right(effect, node, program)
            effect.use(kept)
            shown: list[Documents] = []

            def seen(shown: list[Documents] = shown) -> None:
                shown.append(expect_right(effect, node, program))
                effect.use(shown[0])

            lose(node, lambda: writer.write(node), seen)
            node.start()
            assert documents_of(node) == kept != shown[0]
            writer.write(node, 10)
            expect_right(effect, node, program)
            writer.write(node)
        expect_right(effect, node, program)
        program.interrupt()


@pytest.mark.acceptance("D44", "D46")
def test_what_a_node_lost_while_an_example_was_dead_is_undone_when_it_is_back(
    effect: Effect, node: Node
) -> None:
    writer = Writer()
    writer.write(node)
    with run(effect, node) as program:
        program.start()
        kept = expect_right(effect, node, program)

        def seen() -> None:
            effect.use(expect_right(effect, node, program))
            program.kill()

        lose(node, lambda: writer.write(node), seen)
        node.start()
        writer.write(node, 10)
        program.start()
        assert expect_right(effect, node, program) != kept


@pytest.mark.acceptance("D15", "D33")
def test_an_example_moves_to_the_replica_that_was_promoted(
    effect: Effect, tmp_path: Path, peer: str
) -> None:
    if peer != "uprmc":
        pytest.skip("memcached does not speak UPR")
    writer = Writer()
    with ReplicaPair(tmp_path, *OPTIONS) as pair, run(effect, pair.a, pair.b) as program:
        replicate(pair.b, pair.dialled(pair.a))
        writer.write(pair.a)
        wait_until_level(pair.a, pair.b)
        program.start()
        effect.use(expect_right(effect, pair.a, program))
        pair.to_a.refuse()  # from now on the replica misses what is written
        pair.to_a.cut()
        writer.write(pair.a)
        shown = expect_right(effect, pair.a, program)
        effect.use(shown)
        pair.a.kill()
        verb("failover", "--node", pair.b.upr, "--vbuckets", f"0-{VBUCKETS - 1}")
        assert expect_right(effect, pair.b, program) != shown
        writer.write(pair.b)
        effect.use(expect_right(effect, pair.b, program))
        pair.a.start()  # nobody has told the old active
        writer.write(pair.b)
        expect_right(effect, pair.b, program)
        program.interrupt()


def test_the_cache_keeps_what_has_not_changed(tmp_path: Path, node: Node) -> None:
    with start_uprmc(tmp_path / "cache") as cache, node.wire() as wire:
        effect = CacheEffect(tmp_path, cache.memcached)
        wire.put_many(3, [(b"%d" % number, b"old") for number in range(100)])
        with run(effect, node) as program:
            effect.use({(3, b"deleted-and-forgotten"): b"old"})
            program.start()
            effect.catch_up(node)
            assert effect.cached() == {}
            effect.use(documents_of(node))
            wire.put(3, b"17", b"new")
            wire.delete(3, b"18")
            wire.put(3, b"a key that no cache takes", b"new")
            effect.catch_up(node)
            unchanged = {b"%d" % number for number in range(100)} - {b"17", b"18"}
            assert unchanged <= effect.cached().keys()
            assert not effect.cached().keys() & {b"17", b"18"}
            program.interrupt()
        cache.stop()


@pytest.mark.parametrize("name", ["sqlite_mirror", "count_by_prefix", "cache_invalidator"])
def test_an_example_says_how_to_call_it_and_what_is_wrong(name: str, tmp_path: Path) -> None:
    rest = ["127.0.0.1:1"] * (name == "cache_invalidator") + [str(tmp_path / "file")]
    for words, expected in (([], "examples/" + name), (["no:place", *rest], "")):
        command = [sys.executable, str(EXAMPLES / f"{name}.py"), *words]
        code, _, errors = nursery.run(command, text=True)
        assert code == 1
        assert "Traceback" not in errors
        assert expected in errors
        assert len(errors.splitlines()) == 1 or not words


def test_an_example_is_short() -> None:
    for path in EXAMPLES.glob("*.py"):
        _, _, code = path.read_text(encoding="utf-8").split('"""', 2)
        assert len(code.splitlines()) <= 65, path.name
