"""The consumer's library and the client for documents, against real nodes.

Consumers run in this process, or as the program of ``docs/client.md``; nodes are processes that are
killed, promoted and handed over. What is right is read over raw connections (`documents_of`).

Proves: the program of thirty lines survives kill -9 of either side; concurrent queries see every
write that was acknowledged before them; nobody is rolled back by a takeover; a document that is
refused leaves its connection usable.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from interop import upr_wire as u
from interop.client_page import NODES, program_with
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
from interop.load import Load
from interop.replica_pair import Node, ReplicaPair, replicate, verb, wait_until_level
from interop.waiting import wait_until
from uprmc.client import Change, Document, Handler, UprClient
from uprmc.client.kv import KvClient
from uprmc.errors import TooLarge

QUERIES = 50


class Copy(Handler):
    """The documents, in memory; other threads may look."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._documents: Documents = {}

    def mutation(self, change: Change) -> None:
        self._put(change.vbucket, change.key, change.value)

    def deletion(self, change: Change) -> None:
        self._put(change.vbucket, change.key, None)

    def undo(self, vbucket: int, key: bytes, document: Document | None) -> None:
        self._put(vbucket, key, document.value if document else None)

    def rollback(self, vbucket: int, seqno: int) -> None:
        with self._lock:
            if not seqno:
                self._documents = {n: v for n, v in self._documents.items() if n[0] != vbucket}

    def _put(self, vbucket: int, key: bytes, value: bytes | None) -> None:
        with self._lock:
            self._documents.pop((vbucket, key), None)
            if value is not None:
                self._documents[vbucket, key] = value

    def documents(self) -> Documents:
        with self._lock:
            return self._documents.copy()


@pytest.fixture
def pair(tmp_path: Path, peer: str) -> Iterator[ReplicaPair]:
    """Two nodes that run."""
    if peer != "uprmc":
        pytest.skip("memcached does not speak UPR")
    with ReplicaPair(tmp_path, *OPTIONS) as made:
        yield made
        for each in (made.a, made.b):
            if each.running:
                each.stop()


def expect_equal(copy: Copy, node: Node) -> None:
    documents = documents_of(node)
    wait_until(lambda: copy.documents() == documents, node.log)


# --- the program of the page ----------------------------------------------------------------------


@pytest.mark.acceptance("D04")
def test_the_program_of_thirty_lines_survives_kill_9_of_either_side(
    pair: ReplicaPair, tmp_path: Path
) -> None:
    block = program_with("class Mirror(Handler)")
    assert sum(bool(line.strip()) for line in block.text.splitlines()) <= 30
    path = tmp_path / "program.py"
    # A node that starts again may take longer on a busy machine than the program is patient.
    patient = block.text.replace("state=state)", "state=state, patience_s=None)")
    assert patient != block.text
    path.write_text(patient.replace(NODES[0], str(pair.a.upr)), encoding="utf-8")
    writer, node = Writer(), pair.a

    def mirrored() -> object:
        rows = rows_of(tmp_path / "mirror.db", "SELECT vbucket, key, value FROM documents")
        return {(vbucket, key): value for vbucket, key, value in rows}

    def expect_level() -> Documents:
        documents = documents_of(node)
        wait_until(lambda: mirrored() == documents, lambda: program.said() + node.log())
        return documents

    with Program(path, directory=tmp_path) as program:
        for _ in range(3):
            writer.write(node, 2_000)
            before = mirrored()
            program.start()
            wait_until(lambda before=before: mirrored() != before, program.said)
            program.kill()
        program.start()
        for _ in range(2):
            kept = expect_level()
            shown: list[Documents] = []
            lose(node, lambda: writer.write(node), lambda shown=shown: shown.append(expect_level()))
            node.start()
            assert expect_level() == kept != shown[0]
            writer.write(node)
        expect_level()
        program.interrupt()


# --- barriers -------------------------------------------------------------------------------------


@pytest.fixture
def halves(pair: ReplicaPair) -> ReplicaPair:
    """Each node has one half of the vBuckets; the other half is dead there."""
    for node, dead in ((pair.a, ALL[VBUCKETS // 2 :]), (pair.b, ALL[: VBUCKETS // 2])):
        with node.wire() as wire:
            for number in dead:
                wire.set_state(number, u.DEAD)
    return pair


@pytest.mark.acceptance("D16")
def test_fifty_concurrent_queries_see_every_write_acknowledged_before_their_cookies(
    halves: ReplicaPair,
) -> None:
    """Everybody writes, to both nodes, and each query must show what anybody was acknowledged."""
    index = Copy()
    nodes = [halves.a, halves.b]
    acknowledged: dict[tuple[int, bytes], int] = {}
    lock, together = threading.Lock(), threading.Barrier(QUERIES)

    def write(worker: int, turn: int) -> None:
        for half, node in enumerate(nodes):
            vbucket = half * VBUCKETS // 2 + worker % (VBUCKETS // 2)
            with node.wire() as wire:
                wire.put(vbucket, b"worker-%d" % worker, b"%d" % turn)
            with lock:
                acknowledged[vbucket, b"worker-%d" % worker] = turn

    def query(client: UprClient, worker: int) -> int:
        together.wait(30)
        for turn in range(1, 4):
            write(worker, turn)
            with lock:
                promised = acknowledged.copy()
            client.barrier(f"query {worker} turn {turn}", timeout_s=60)
            result = index.documents()
            missing = [n for n, count in promised.items() if int(result.get(n, b"0")) < count]
            assert not missing, (worker, turn, missing)
        return len(promised)

    addresses = [str(node.upr) for node in nodes]
    with (
        Load([node.upr for node in nodes], VBUCKETS, rate=1_000),
        UprClient(addresses, index) as client,
        ThreadPoolExecutor(QUERIES) as pool,
    ):
        client.start()
        promised = list(pool.map(lambda worker: query(client, worker), range(QUERIES)))
    assert max(promised) == 2 * QUERIES


@pytest.mark.acceptance("D16")
def test_a_barrier_returns_while_more_comes_than_the_handler_can_take(pair: ReplicaPair) -> None:
    """A hundred changes a second, and time for two thirds of them.

    Not for less: between two questions the client handles what has come, which grows each time.
    """

    class Slow(Copy):
        def mutation(self, change: Change) -> None:
            time.sleep(0.015)
            super().mutation(change)

    index = Slow()
    with (
        Load([pair.a.upr], VBUCKETS, rate=100, deletions=0),
        UprClient(str(pair.a.upr), index) as client,
    ):
        client.start()
        with pair.a.wire() as wire:
            wire.put(3, b"mine")
        began = time.monotonic()
        client.barrier(timeout_s=20)
        assert time.monotonic() - began < 10
        assert (3, b"mine") in index.documents()


# --- nodes change places --------------------------------------------------------------------------


@pytest.mark.acceptance("D33", "D52")
def test_a_takeover_under_load_rolls_no_consumer_back(pair: ReplicaPair, tmp_path: Path) -> None:
    copy = Copy()
    replicate(pair.b, pair.a.upr)
    addresses = [str(pair.a.upr), str(pair.b.upr)]
    with UprClient(addresses, copy, state=tmp_path / "state.db") as client:
        client.start()
        with Load([pair.a.upr, pair.b.upr], VBUCKETS, rate=1_000) as load:
            wait_until(lambda: len(load.acknowledged) > 1_000, pair.a.log)
            where = ("--node", pair.a.upr, "--to", pair.b.upr)
            verb("takeover", *where, "--vbuckets", f"0-{VBUCKETS - 1}")
            moved = len(load.acknowledged) + 1_000
            wait_until(lambda: len(load.acknowledged) > moved, pair.b.log)
        expect_equal(copy, pair.b)
        metrics = client.metrics()
    assert {each.node for each in metrics.vbuckets.values()} == {str(pair.b.upr)}
    assert {(each.rollbacks, each.restarts) for each in metrics.vbuckets.values()} == {(0, 0)}


@pytest.mark.acceptance("D15", "D33")
def test_a_consumer_ahead_of_the_promoted_replica_undoes_what_that_lacks_and_no_more(
    pair: ReplicaPair, tmp_path: Path
) -> None:
    copy, writer = Copy(), Writer()
    replicate(pair.b, pair.dialled(pair.a))
    addresses = [str(pair.a.upr), str(pair.b.upr)]
    with UprClient(addresses, copy, state=tmp_path / "state.db") as client:
        client.start()
        writer.write(pair.a, 2_000)
        wait_until_level(pair.a, pair.b)
        pair.to_a.refuse()
        pair.to_a.cut()
        writer.write(pair.a, 200)
        expect_equal(copy, pair.a)
        pair.a.kill()
        verb("failover", "--node", pair.b.upr, "--vbuckets", f"0-{VBUCKETS - 1}")
        expect_equal(copy, pair.b)

        def undone() -> int:  # it counts when the node's history has stood still meanwhile
            return sum(each.undone for each in client.metrics().vbuckets.values())

        wait_until(undone, pair.b.log)
        each = client.metrics().vbuckets.values()
    assert sum(vbucket.rollbacks for vbucket in each) > 0
    assert sum(vbucket.restarts for vbucket in each) == 0
    assert 0 < sum(vbucket.undone for vbucket in each) <= 200


# --- documents ------------------------------------------------------------------------------------


def test_a_document_that_is_refused_leaves_its_connection_usable(pair: ReplicaPair) -> None:
    """The refusal comes before all of the document has left; the rest has to, all the same."""
    with contextlib.closing(KvClient(str(pair.a.upr), timeout_s=10)) as kv:
        with pytest.raises(TooLarge):
            kv.set(b"a", bytes(50_000_000))
        stored = kv.set(b"a", b"small")
        found = kv.get(b"a")
    assert found is not None
    assert (found.value, found.cas) == (b"small", stored.cas)
