"""What drives the rules on a real reactor goes on after an error, whatever the error is."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from interop.wire import GET, SET, frame, store
from tests.contents import table_of
from tests.server.support import Client
from tests.system.support import node_here
from uprmc.errors import StoreError
from uprmc.storage import layout
from uprmc.storage.interface import Trees


def put(node, key: bytes, value: bytes) -> None:
    node.bucket.of_key(key).store(key, value, 0, 0)


@pytest.mark.parametrize("error", [StoreError("gone"), RuntimeError("a bug of ours")])
def test_a_commit_that_breaks_is_tried_again(tmp_path: Path, error: Exception) -> None:
    with node_here(tmp_path, flush__retry_delay_s=0.01) as (node, loop):
        commit = node.bucket.flusher.commit
        failures = [error] * 3

        def break_thrice(flush) -> None:
            if failures:
                raise failures.pop()
            commit(flush)

        node.bucket.flusher.commit = break_thrice
        put(node, b"k", b"v")
        loop.until(lambda: node.bucket.account.disk_reason)
        assert str(error) in node.bucket.account.disk_reason
        loop.until(lambda: not node.bucket.account.disk_reason)
        loop.until(lambda: node.bucket.flusher.queued == 0)
        assert node.bucket.stats.commit_failures == 3
        put(node, b"k", b"w")
        loop.until(lambda: node.bucket.flusher.queued == 0)


def test_a_commit_that_broke_is_tried_again_after_the_delay_and_not_before(tmp_path: Path) -> None:
    with node_here(tmp_path, flush__retry_delay_s=600.0) as (node, loop):
        attempts = []

        def broken(flush) -> None:
            attempts.append(flush)
            raise StoreError("gone")

        commit, node.bucket.flusher.commit = node.bucket.flusher.commit, broken
        put(node, b"k", b"v")
        loop.until(lambda: node.bucket.account.disk_reason)
        later = loop.reactor.seconds() + 0.1
        loop.until(lambda: loop.reactor.seconds() > later)
        assert len(attempts) == 1
        node.bucket.flusher.commit = commit


def test_a_commit_that_cannot_be_gathered_is_tried_again(tmp_path: Path) -> None:
    with node_here(tmp_path, flush__retry_delay_s=0.01) as (node, loop):
        trees = node.bucket.store.trees
        failures = [RuntimeError("a bug of ours")] * 3

        def break_thrice() -> Trees:
            if failures:
                raise failures.pop()
            return trees()

        node.bucket.store.trees = break_thrice
        told: list[bool] = []
        put(node, b"k", b"v")
        node.bucket.flusher.when_durable(told.append)
        loop.until(lambda: node.bucket.flusher.queued == 0)
        assert told == [False]
        assert node.bucket.stats.commit_failures == 3
        assert not node.bucket.account.disk_reason


def test_a_tick_that_breaks_is_not_the_last(tmp_path: Path) -> None:
    with node_here(tmp_path) as (node, loop):
        ticks = []

        def break_always() -> None:
            ticks.append(1)
            raise RuntimeError("a bug of ours")

        node.bucket.tick = break_always
        loop.until(lambda: len(ticks) > 2)


def ask(client: Client, request: bytes, size: int) -> bytes:
    client.socket.send(request)
    return client.read(size)


def test_a_read_that_breaks_is_answered_and_the_next_one_works(tmp_path: Path) -> None:
    with node_here(tmp_path) as (node, loop):
        client = loop.client(node.addresses()["memcached"])
        assert ask(client, store(SET, b"k", b"value"), 24)[6:8] == b"\0\0"
        loop.until(lambda: node.bucket.flusher.queued == 0)
        vbucket = node.bucket.of_key(b"k")
        vbucket.eject(b"k")
        commit = node.bucket.fetcher.commit

        def break_once(fetch) -> None:
            node.bucket.fetcher.commit = commit
            raise RuntimeError("a bug of ours")

        node.bucket.fetcher.commit = break_once
        assert b"Temporary failure" in ask(client, frame(GET, b"k"), 24 + 17)
        assert ask(client, frame(GET, b"k"), 24 + 4 + 5).endswith(b"value")
        assert node.bucket.stats.bg_fetched == 1


def ejected(node, loop, *keys: bytes) -> None:
    """Store documents whose values are on disk only."""
    for key in keys:
        put(node, key, b"value of " + key)
    loop.until(lambda: node.bucket.flusher.queued == 0)
    for key in keys:
        vbucket = node.bucket.of_key(key)
        vbucket.eject(key)


@contextmanager
def slow_reads(node, *slow: bytes) -> Iterator[list[bytes]]:
    """Keep the rounds that read these keys in their workers; gives the keys that are being read."""
    commit, end, under_way = node.bucket.fetcher.commit, threading.Event(), []

    def wait(fetch) -> None:
        keys = [key for _, key in fetch.wanted if key in slow]
        under_way.extend(keys)
        if keys:
            end.wait(60)
        commit(fetch)

    node.bucket.fetcher.commit = wait
    try:
        yield under_way
    finally:
        end.set()


def test_a_slow_read_keeps_no_other_reader_waiting(tmp_path: Path) -> None:
    with node_here(tmp_path) as (node, loop):
        ejected(node, loop, b"slow", b"k")
        first, second = (loop.client(node.addresses()["memcached"]) for _ in range(2))
        with slow_reads(node, b"slow") as under_way:
            first.socket.send(frame(GET, b"slow"))
            loop.until(lambda: under_way == [b"slow"])
            assert ask(second, frame(GET, b"k"), 24 + 4 + 10).endswith(b"value of k")
        assert first.read(24 + 4 + 13).endswith(b"value of slow")


def test_no_more_rounds_of_reading_than_the_setting_says_and_commits_go_on(tmp_path: Path) -> None:
    keys = [b"key-%d" % number for number in range(4)]
    with node_here(tmp_path, flush__fetch_rounds=2) as (node, loop):
        ejected(node, loop, *keys)
        clients = [loop.client(node.addresses()["memcached"]) for _ in keys]
        with slow_reads(node, *keys) as under_way:
            for number, (key, client) in enumerate(zip(keys, clients, strict=True), start=1):
                client.socket.send(frame(GET, key))
                if number <= 2:
                    loop.until(lambda number=number: len(under_way) == number)
                else:
                    loop.until(lambda number=number: node.bucket.fetcher.waiting == number - 2)
            put(node, b"other", b"v")
            loop.until(lambda: node.bucket.flusher.queued == 0)
            assert under_way == keys[:2]
            assert node.bucket.fetcher.waiting == 2
        for key, client in zip(keys, clients, strict=True):
            assert client.read(24 + 4 + 14).endswith(b"value of " + key)


def damage(node, key: bytes, seqno: int) -> None:
    """Cut the stored record of a document short."""
    files = node.bucket.store._files
    where = layout.by_seq_key(node.bucket.vbucket_of(key), seqno)
    with files.env.begin(files.databases.by_seq, write=True) as txn:
        txn.put(where, txn.get(where)[:-1])


def test_a_damaged_record_fails_the_readers_of_its_document_and_nobody_else(
    tmp_path: Path,
) -> None:
    keys = [b"a", b"b", b"damaged", b"y", b"z"]
    with node_here(tmp_path) as (node, loop):
        client = loop.client(node.addresses()["memcached"])
        for key in keys:
            put(node, key, b"value of " + key)
        loop.until(lambda: node.bucket.flusher.queued == 0)
        damage(node, b"damaged", table_of(node.bucket.of_key(b"damaged"))[b"damaged"].seqno)
        for key in keys:
            vbucket = node.bucket.of_key(key)
            vbucket.eject(key)
        told: dict[bytes, list[bool]] = {key: [] for key in keys}
        for key in keys:  # in one turn, so they share a round
            node.bucket.fetcher.want([(node.bucket.vbucket_of(key), key)], told[key].append)
        loop.until(lambda: all(told.values()))
        assert {key for key, answers in told.items() if answers != [True]} == {b"damaged"}
        assert b"Temporary failure" in ask(client, frame(GET, b"damaged"), 24 + 17)
        assert ask(client, frame(GET, b"z"), 24 + 4 + 10).endswith(b"value of z")


def test_a_damaged_tombstone_fails_who_must_know_it(tmp_path: Path) -> None:
    with node_here(tmp_path) as (node, loop):
        put(node, b"k", b"v")
        node.bucket.of_key(b"k").delete(b"k")
        loop.until(lambda: node.bucket.flusher.queued == 0)
        damage(node, b"k", node.bucket.of_key(b"k").high_seqno)
        told: list[bool] = []
        node.bucket.fetcher.want([(node.bucket.vbucket_of(b"k"), b"k")], told.append)
        loop.until(lambda: told)
        assert told == [False]
