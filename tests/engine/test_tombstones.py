"""Deleted and expired documents: how long the table remembers them, and what a new one inherits."""

from __future__ import annotations

import pytest

from tests.engine.support import Node
from uprmc.engine.vbucket import StoreMode
from uprmc.errors import KeyNotFound
from uprmc.model import Life


@pytest.mark.acceptance("D19")
def test_a_deleted_document_stays_in_the_table_until_its_deletion_is_on_disk(node: Node) -> None:
    node.set(b"k")
    node.flush()
    deletion = node.vbucket.delete(b"k")
    known = node.vbucket.metadata(b"k")
    assert known == deletion
    assert known is not None
    assert (known.life, known.seqno) == (Life.DELETED, 2)
    assert node.vbucket.table.tombstones == 1
    assert node.vbucket.item_count == 0
    node.flush()
    assert node.vbucket.metadata(b"k") is None
    assert node.vbucket.table.tombstones == 0
    assert node.stored()[b"k"] == deletion
    node.check()


@pytest.mark.acceptance("D19")
def test_a_document_can_be_added_again_while_its_deletion_is_queued(node: Node) -> None:
    node.set(b"k")
    node.vbucket.delete(b"k")
    again = node.vbucket.store(b"k", b"again", 0, 0, mode=StoreMode.ADD)
    assert (again.seqno, again.rev) == (3, 3)
    assert node.vbucket.table.tombstones == 0
    node.flush()
    assert node.vbucket.get(b"k") == again
    node.check()


@pytest.mark.acceptance("D23")
def test_a_key_written_again_during_the_flush_of_its_deletion_survives(node: Node) -> None:
    node.set(b"k")
    node.vbucket.delete(b"k")
    flush = node.begin()
    again = node.set(b"k", b"again")
    node.bucket.flusher.commit(flush)
    node.bucket.flusher.finish(flush)
    assert node.vbucket.get(b"k") == again
    assert node.stored()[b"k"].life == Life.DELETED, "so far"
    node.check()
    node.flush()
    assert node.stored()[b"k"] == again


@pytest.mark.acceptance("D23")
def test_a_key_written_and_deleted_again_during_the_flush_keeps_its_tombstone(node: Node) -> None:
    node.set(b"k")
    node.vbucket.delete(b"k")
    flush = node.begin()
    node.set(b"k", b"again")
    second = node.vbucket.delete(b"k")
    node.bucket.flusher.commit(flush)
    node.bucket.flusher.finish(flush)
    assert node.vbucket.metadata(b"k") == second
    node.check()
    node.flush()
    assert node.vbucket.metadata(b"k") is None
    assert node.stored()[b"k"] == second


def test_the_revision_goes_on_over_a_deletion_that_is_still_in_the_table(node: Node) -> None:
    for rev in range(1, 6):
        assert node.set(b"k").rev == rev
    assert node.vbucket.delete(b"k").rev == 6
    assert node.set(b"k").rev == 7


def test_the_revision_goes_on_over_a_deletion_that_the_table_has_forgotten(node: Node) -> None:
    for _ in range(5):
        node.set(b"k")
    node.vbucket.delete(b"k")
    node.flush()
    assert node.vbucket.metadata(b"k") is None
    assert node.set(b"k").rev > 6


def test_the_revision_goes_on_over_a_deletion_and_a_restart(node: Node) -> None:
    for _ in range(5):
        node.set(b"k")
    node.vbucket.delete(b"k")
    node.stop()
    assert node.restarted().set(b"k").rev > 6


# --- expiry ---------------------------------------------------------------------------------------


def test_an_expired_document_is_a_miss_and_becomes_a_deletion_once(node: Node) -> None:
    node.set(b"k", expiry=int(node.clock.now()) + 5)
    node.clock.advance(4.9)
    assert node.vbucket.get(b"k") is not None
    node.clock.advance(0.1)
    assert node.vbucket.get(b"k") is None
    assert node.vbucket.get(b"k") is None
    tombstone = node.vbucket.metadata(b"k")
    assert tombstone is not None
    assert (tombstone.life, tombstone.seqno, tombstone.rev) == (Life.EXPIRED, 2, 2)
    assert node.bucket.stats.expired_access == 1
    node.flush()
    assert node.stored()[b"k"] == tombstone
    node.check()


def test_an_ejected_document_expires_without_its_value(node: Node) -> None:
    node.set(b"k", expiry=int(node.clock.now()) + 5)
    node.flush()
    node.eject(b"k")
    node.clock.advance(5)
    assert node.vbucket.get(b"k") is None
    assert node.vbucket.table.absent == 0
    node.check()


def test_every_command_misses_an_expired_document(node: Node) -> None:
    def expired() -> None:
        node.set(b"k", b"1", expiry=int(node.clock.now()) + 1)
        node.clock.advance(1)

    expired()
    with pytest.raises(KeyNotFound):
        node.vbucket.delete(b"k")
    expired()
    with pytest.raises(KeyNotFound):
        node.vbucket.add_delta(b"k", 1)
    expired()
    with pytest.raises(KeyNotFound):
        node.vbucket.lock(b"k", 15)
    expired()
    with pytest.raises(KeyNotFound):
        node.vbucket.unlock(b"k", 1)
    node.check()
