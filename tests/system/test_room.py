"""A store that needs room gets it from those who read for long, however eagerly they come back."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from interop.server_process import start_uprmc
from interop.waiting import wait_until
from interop.wire import Wire, frame
from tests.server.support import Loop
from tests.system.support import OK, Client, node_here, stats, upr
from tests.system.test_compaction import persisted, stored
from tests.system.test_disk import PROMPT, limit_files, wait_until_persisted
from uprmc.errors import StoreError, StoreFull
from uprmc.server.node import Node
from uprmc.storage.interface import StoreView

SMALL_MAP = {"storage__map_initial": "1M", "flush__commit_memory": "1M"}
LEASE_ACQUIRE = 0xE4


class Holder:
    """Somebody who reads for long.

    Attributes:
        asked: how often it was sent away.
    """

    def __init__(self, node: Node) -> None:
        self.node = node
        self.asked = 0
        self.view: StoreView | None = None
        node.bucket.view_holders.append(self)
        self.come()

    def come(self) -> None:
        self.view = self.node.bucket.store.view()

    def release_views(self) -> None:
        self.asked += 1
        if self.view is not None:
            self.view.close()
            self.view = None


class ComingBack(Holder):
    """Begins a new reading in the turn after the one in which it was sent away."""

    def release_views(self) -> None:
        super().release_views()
        self.node._reactor.callLater(0, self.come)


def grow(node: Node, loop: Loop) -> None:
    before = node.bucket.store.usage().map_bytes
    for number in range(40):
        node.bucket.vbuckets[0].store(b"%d" % number, bytes(100_000), 0, 0)
    loop.until(lambda: persisted(node))
    assert node.bucket.store.usage().map_bytes > before
    assert len(stored(node, 0)) == 40


@pytest.mark.parametrize("kind", [Holder, ComingBack])
def test_readings_give_way_when_the_store_must_grow(
    tmp_path: Path, kind: Callable[[Node], Holder]
) -> None:
    with node_here(tmp_path, **SMALL_MAP) as (node, loop):
        loop.until(lambda: persisted(node))
        holders = [kind(node) for _ in range(3)]
        grow(node, loop)
        assert all(holder.asked for holder in holders)


def test_the_store_grows_beside_rounds_of_fetching_without_a_pause(tmp_path: Path) -> None:
    with node_here(tmp_path, **SMALL_MAP) as (node, loop):
        loop.until(lambda: persisted(node))
        rounds = [0]

        def fetch(_: bool = True) -> None:
            rounds[0] += 1
            node.bucket.fetcher.want([(0, b"k")], fetch)

        for _ in range(3):
            fetch()
        grow(node, loop)
        assert rounds[0] > 3


def test_nobody_begins_to_read_while_a_worker_keeps_the_store_from_growing(
    tmp_path: Path,
) -> None:
    with node_here(tmp_path, **SMALL_MAP) as (node, loop):
        loop.until(lambda: persisted(node))
        under_way = node.bucket.store.view()  # as of a worker, which nobody can send away
        fetched: list[bool] = []
        for number in range(40):
            node.bucket.vbuckets[0].store(b"%d" % number, bytes(100_000), 0, 0)
        loop.until(lambda: node.bucket.gate.is_shut)
        node.bucket.fetcher.want([(0, b"k")], fetched.append)
        for _ in range(20):
            loop.reactor.iterate(0.002)
        assert node.bucket.gate.is_shut
        assert fetched == []
        under_way.close()
        loop.until(lambda: persisted(node) and fetched)
        assert not node.bucket.gate.is_shut


def refuse(node: Node, refusals: list[StoreError]) -> list[int]:
    """Have the next commits refused; return a list that gets how many holders were asked then."""
    commit, commits = node.bucket.flusher.commit, []

    def refused(flush) -> None:
        commits.append(1)
        if refusals:
            raise refusals.pop()
        commit(flush)

    node.bucket.flusher.commit = refused
    return commits


def test_a_full_disk_is_tried_again_at_once_without_those_who_read(tmp_path: Path) -> None:
    with node_here(tmp_path, flush__retry_delay_s=600.0) as (node, loop):
        loop.until(lambda: persisted(node))
        holder = Holder(node)
        commits = refuse(node, [StoreFull("no room")])
        node.bucket.vbuckets[0].store(b"k", b"v", 0, 0)
        loop.until(lambda: persisted(node))
        assert (len(commits), holder.asked) == (2, 1)
        assert not node.bucket.account.disk_reason


def test_a_disk_that_stays_full_sends_readers_away_once(tmp_path: Path) -> None:
    with node_here(tmp_path, flush__retry_delay_s=0.01) as (node, loop):
        loop.until(lambda: persisted(node))
        holder = Holder(node)
        refusals: list[StoreError] = [StoreFull("no room")] * 5
        commits = refuse(node, refusals)
        node.bucket.vbuckets[0].store(b"k", b"v", 0, 0)
        loop.until(lambda: persisted(node))
        assert (len(commits), holder.asked) == (6, 1)
        refusals.append(StoreFull("again"))
        node.bucket.vbuckets[0].store(b"k", b"w", 0, 0)
        loop.until(lambda: persisted(node))
        assert (len(commits), holder.asked) == (8, 2)


def test_a_lease_ends_when_the_disk_is_full_of_what_it_holds(tmp_path: Path) -> None:
    keys = [b"%d" % number for number in range(40)]
    with start_uprmc(tmp_path, *PROMPT) as server, Client(server.memcached) as client:
        client.store({key: bytes(50_000) for key in keys})
        wait_until_persisted(server)
        with Wire(upr(server)) as wire:
            extras = struct.pack(">I", 3_600)
            assert wire.ask(frame(LEASE_ACQUIRE, extras=extras)).status == OK
        limit_files(server, (tmp_path / "data.mdb").stat().st_size * 5)
        rounds = iter(range(1, 100))
        assert stats(server.memcached, "uprmc")["disk_pinned_bytes"] == "0"
        pinned = []

        def withdrawn() -> bool:
            number = next(rounds)
            client.store(dict.fromkeys(keys, b"%d" % number * 25000), 10.0)
            wait_until_persisted(server)
            pinned.append(int(stats(server.memcached, "uprmc")["disk_pinned_bytes"]))
            return stats(server.memcached, "leases")["withdrawn"] == "1"

        wait_until(withdrawn, "the lease ends")
        assert pinned[0] >= 2_000_000, "all documents were replaced once"
        assert pinned[-1] == 0
        last = next(rounds)
        client.store(dict.fromkeys(keys, b"%d" % last * 25000), 10.0)
        wait_until_persisted(server)
        assert stats(server.memcached, "leases")["open"] == "0"
        server.stop()
