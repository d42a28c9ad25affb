"""Persistence can be stopped and started; nothing is lost and nobody is told a lie meanwhile."""

from __future__ import annotations

from tests.engine.support import Node


def test_a_flusher_that_is_paused_says_so_and_keeps_what_gathers(node: Node) -> None:
    flusher = node.bucket.flusher
    assert not flusher.paused
    flusher.pause()
    assert flusher.paused
    assert not flusher.pending
    node.set(b"k")
    assert flusher.pending
    assert flusher.queued == 1
    assert node.vbucket.persisted_seqno == 0


def test_resuming_announces_what_has_gathered_once(node: Node) -> None:
    flusher = node.bucket.flusher
    announced: list[bool] = []
    node.bucket.account.on_dirty = lambda: announced.append(flusher.paused)
    flusher.pause()
    flusher.resume()
    assert announced == [], "there is nothing to do"
    flusher.pause()
    node.set(b"k")
    assert announced == [True]
    flusher.resume()
    assert announced == [True, False]
    assert not flusher.paused


def test_resuming_announces_a_waiter_though_nothing_is_dirty(node: Node) -> None:
    flusher = node.bucket.flusher
    flusher.pause()
    told: list[bool] = []
    flusher.when_durable(told.append)
    announced: list[None] = []
    node.bucket.account.on_dirty = lambda: announced.append(None)
    flusher.resume()
    assert len(announced) == 1
    node.flush()
    assert told == [True]


def test_a_flush_under_way_goes_on_to_its_end(node: Node) -> None:
    node.set(b"k")
    flush = node.begin()
    node.bucket.flusher.pause()
    node.bucket.flusher.commit(flush)
    node.bucket.flusher.finish(flush)
    assert list(node.stored()) == [b"k"]


def test_a_stop_in_order_persists_everything_all_the_same(node: Node) -> None:
    node.bucket.flusher.pause()
    node.set(b"k")
    node.stop()
    after = node.restarted()
    assert after.vbucket.get(b"k") is not None
    assert not after.bucket.flusher.paused
