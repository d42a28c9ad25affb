"""Documents of the node itself, written by the flusher beside what it writes of the vBuckets."""

from __future__ import annotations

import pytest

from tests.engine.support import Node
from uprmc.errors import StoreFull, TemporaryFailure
from uprmc.model import VBucketState


def test_a_local_document_goes_with_the_next_commit(node: Node) -> None:
    told: list[bool] = []
    node.bucket.flusher.write_local(b"name", b"1", told.append)
    assert node.bucket.flusher.pending
    assert (node.store.local(b"name"), told) == (None, [])
    node.flush()
    assert (node.store.local(b"name"), told) == (b"1", [True])
    assert not node.bucket.flusher.pending
    node = node.restarted()
    assert node.store.local(b"name") == b"1"
    node.bucket.flusher.write_local(b"name", None, told.append)
    node.flush()
    assert node.store.local(b"name") is None


def test_the_flusher_is_called_for_it_and_hurries(node: Node) -> None:
    called: list[bool] = []
    node.bucket.account.on_dirty = lambda: called.append(True)
    node.bucket.flusher.write_local(b"name", b"1", lambda _: None)
    assert called
    assert node.bucket.flusher.delay(0.0, 100.0) == 0.0


def test_it_is_in_one_commit_with_the_headers_of_the_same_turn(node: Node) -> None:
    node.bucket.set_state(0, VBucketState.REPLICA)
    node.bucket.flusher.write_local(b"name", b"follows", lambda _: None)
    flush = node.begin()
    assert flush.batch.local == {b"name": b"follows"}
    assert [change.vbucket for change in flush.batch.changes] == [0]


def test_after_a_failure_it_is_tried_again_and_writes_are_refused(node: Node) -> None:
    told: list[bool] = []
    flusher = node.bucket.flusher
    flusher.write_local(b"name", b"1", told.append)
    node.fail_flush(StoreFull("full"))
    assert told == [False]
    assert flusher.pending
    with pytest.raises(TemporaryFailure):
        node.set(b"key")
    node.flush()
    assert node.store.local(b"name") == b"1"
    node.set(b"key")


def test_a_newer_one_is_not_undone_by_trying_the_older_again(node: Node) -> None:
    flusher = node.bucket.flusher
    flusher.write_local(b"name", b"1", lambda _: None)
    flusher.write_local(b"other", b"1", lambda _: None)
    flush = node.begin()
    flusher.write_local(b"name", b"2", lambda _: None)
    flusher.failed(flush, StoreFull("full"))
    node.flush()
    assert (node.store.local(b"name"), node.store.local(b"other")) == (b"2", b"1")


def test_one_that_is_written_during_a_flush_goes_with_the_next(node: Node) -> None:
    told: list[bool] = []
    flusher = node.bucket.flusher
    node.set(b"key")
    flush = node.begin()
    flusher.write_local(b"name", b"1", told.append)
    flusher.commit(flush)
    flusher.finish(flush)
    assert (node.store.local(b"name"), told) == (None, [])
    node.flush()
    assert (node.store.local(b"name"), told) == (b"1", [True])
