"""On a real reactor and a real store: compactions, a paused flusher, views that give way."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from interop.server_process import start_uprmc
from interop.waiting import wait_until
from interop.wire import DELETE, OK, frame, vbucket_of
from tests.system.support import Client, node_here, stats
from uprmc.engine import purge
from uprmc.engine.tombstones import PurgeRule
from uprmc.model import VBucketState

ALL = PurgeRule(every=True)


def bury(node, number: int, documents: int) -> None:
    """Leave tombstones in a vBucket, and a document behind them."""
    vbucket = node.bucket.vbuckets[number]
    for each in range(documents):
        vbucket.store(b"%05d" % each, b"v", 0, 0)
        vbucket.delete(b"%05d" % each)
    vbucket.store(b"last", b"v", 0, 0)


def stored(node, number: int) -> list[bytes]:
    view = node.bucket.store.view()
    keys = [item.key for item in view.changes_after(number, 0)]
    view.close()
    return keys


def persisted(node) -> bool:
    flusher = node.bucket.flusher
    under_way = node._disk_work._flushing._busy is not None
    return not flusher.pending and not flusher.queued and not under_way


def pause(loop, seconds: float) -> None:
    """Let the reactor turn for a while."""
    over: list[None] = []
    loop.reactor.callLater(seconds, over.append, None)
    loop.until(lambda: over)


def test_compactions_of_all_vbuckets_end_and_survive_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(purge, "_READ_RECORDS", 70)
    with node_here(tmp_path, purge__batch_items=100) as (node, loop):
        for number in range(4):
            bury(node, number, 300)
        loop.until(lambda: persisted(node))
        told: list[bool] = []
        for number in range(4):
            node.bucket.compact(number, ALL, told.append)
        loop.until(lambda: len(told) == 4, 30.0)
        assert told == [True] * 4
        assert all(stored(node, number) == [b"last"] for number in range(4))
    with node_here(tmp_path) as (node, _):
        vbuckets = node.bucket.vbuckets.values()
        assert [vbucket.purge_seqno for vbucket in vbuckets] == [600] * 4
        assert [vbucket.high_seqno for vbucket in vbuckets] == [601] * 4


def test_a_compaction_whose_reading_breaks_is_given_up_and_the_next_one_works(
    tmp_path: Path,
) -> None:
    with node_here(tmp_path) as (node, loop):
        bury(node, 0, 3)
        loop.until(lambda: persisted(node))
        compactor = node.bucket.compactor
        read = compactor.read

        def break_once(reading) -> None:
            compactor.read = read
            raise RuntimeError("a bug of ours")

        compactor.read = break_once
        told: list[bool] = []
        node.bucket.compact(0, ALL, told.append)
        node.bucket.compact(0, ALL, told.append)
        loop.until(lambda: len(told) == 2)
        assert told == [False, True]
        assert stored(node, 0) == [b"last"]


def test_a_node_stops_in_the_middle_of_a_compaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(purge, "_READ_RECORDS", 1)
    with node_here(tmp_path, purge__batch_items=2) as (node, loop):
        bury(node, 0, 200)
        loop.until(lambda: persisted(node))
        node.bucket.compact(0, ALL, lambda _: None)
        loop.until(lambda: node.bucket.vbuckets[0].purge_seqno)
        loop.result(node.stop())
        assert node.bucket.vbuckets[0].purge_seqno < 400
    with node_here(tmp_path) as (node, loop):
        assert node.warmup.was_clean
        vbucket = node.bucket.vbuckets[0]
        assert len(stored(node, 0)) == 201 - vbucket.purge_seqno // 2
        told: list[bool] = []
        node.bucket.compact(0, ALL, told.append)
        loop.until(lambda: told)
        assert stored(node, 0) == [b"last"]


def test_a_node_that_stops_waits_for_a_reading_under_way(tmp_path: Path) -> None:
    with node_here(tmp_path) as (node, loop):
        bury(node, 0, 3)
        loop.until(lambda: persisted(node))
        compactor, go_on = node.bucket.compactor, threading.Event()
        read, finish = compactor.read, compactor.finish
        done: list[str] = []
        compactor.read = lambda reading: (go_on.wait(10), read(reading))
        compactor.finish = lambda reading: (finish(reading), done.append("finished"))
        close = node.bucket.store.close
        node.bucket.store.close = lambda: (done.append("closed"), close())
        node.bucket.compact(0, ALL, lambda _: None)
        loop.until(lambda: node._disk_work._compacting._under_way)
        loop.reactor.callLater(0.05, go_on.set)
        loop.result(node.stop())
        assert done == ["finished", "closed"]


def test_nothing_is_written_and_nothing_spins_while_the_flusher_is_paused(tmp_path: Path) -> None:
    with node_here(tmp_path, flush__min_delay_s=0) as (node, loop):
        loop.until(lambda: persisted(node))
        flusher, commits = node.bucket.flusher, node.bucket.stats.commits
        flusher.pause()
        bury(node, 0, 10)
        told: list[bool] = []
        flusher.when_durable(told.append)
        pause(loop, 0.1)
        assert told == []
        assert node.bucket.stats.commits == commits
        assert node._disk_work._flushing._timer is None
        flusher.resume()
        loop.until(lambda: told and persisted(node))
        assert told == [True]
        assert len(stored(node, 0)) == 11


def test_a_flush_that_was_due_when_the_flusher_was_paused_waits(tmp_path: Path) -> None:
    with node_here(tmp_path, flush__min_delay_s=0.01) as (node, loop):
        loop.until(lambda: persisted(node))
        commits = node.bucket.stats.commits
        bury(node, 0, 1)
        assert node._disk_work._flushing._timer is not None
        node.bucket.flusher.pause()
        loop.until(lambda: node._disk_work._flushing._timer is None)
        pause(loop, 0.05)
        assert node.bucket.stats.commits == commits
        node.bucket.flusher.resume()
        loop.until(lambda: persisted(node))


def test_a_stop_persists_what_a_paused_flusher_has_left(tmp_path: Path) -> None:
    with node_here(tmp_path) as (node, loop):
        node.bucket.flusher.pause()
        bury(node, 0, 10)
        loop.result(node.stop())
    with node_here(tmp_path) as (node, _):
        assert node.warmup.was_clean
        assert len(stored(node, 0)) == 11


def test_vbuckets_are_removed_and_none_come_back(tmp_path: Path) -> None:
    with node_here(tmp_path) as (node, loop):
        told: list[bool] = []
        for number in range(4):
            node.bucket.set_state(number, VBucketState.DEAD)
        loop.until(lambda: persisted(node))
        for number in range(4):
            node.bucket.remove(number, told.append)
        loop.until(lambda: len(told) == 4)
        node.bucket.flush(0, told.append)
        loop.until(lambda: len(told) == 5)
        assert told == [True] * 5
    with node_here(tmp_path) as (node, _):
        assert node.bucket.vbuckets == {}


def test_old_deletions_are_purged_without_anybody_asking(tmp_path: Path) -> None:
    settings = {"purge.interval_s": 1, "purge.min_age_s": 1}
    words = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    with start_uprmc(tmp_path, *words) as server:
        with Client(server.memcached) as client:
            client.store({b"k": b"v"})
            assert client.send_all([frame(DELETE, b"k")])[0].status == OK
            client.store({b"k%d" % number: b"v" for number in range(5_000)})  # behind it, too
        number = vbucket_of(b"k")

        def purged() -> bool:
            found = stats(server.memcached, f"vbucket-seqno {number}")
            return found[f"vb_{number}:purge_seqno"] == "2"

        wait_until(purged, "the deletion is purged", 20.0)
        server.stop()
