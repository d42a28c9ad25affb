"""Damaged records in a running node: named once, never served, healed by who has that version."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine.support import Node, settings_of
from tests.storage.test_damage import damage
from uprmc.engine.with_meta import Demand, accept_version
from uprmc.errors import NotResident, TemporaryFailure
from uprmc.model import Item
from uprmc.record import pack
from uprmc.storage.directory import open_directory
from uprmc.storage.lmdb_store import LmdbStore

KEYS = [b"a", b"b", b"c"]


class World:
    """A node on a real store, with what it says and what it asks of others."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.events: list[tuple[str, object]] = []
        self.asked: list[tuple[int, bytes]] = []
        self.answers: list[Callable[[Item | None], None]] = []
        self.start()

    def start(self) -> None:
        self.store: LmdbStore = open_directory(self.path, uuid=1, vbuckets=1, sync=False)
        store: Any = self.store
        self.node = Node(settings_of(vbuckets=1), store=store)
        self.node.bucket.let_traffic_in()
        self.node.bucket.on_event = lambda name, fields: self.events.append((name, fields["key"]))
        self.node.bucket.healer.ask = self._ask

    def restart(self) -> None:
        self.store.close()
        self.start()

    def _ask(self, number: int, key: bytes, done: Callable[[Item | None], None]) -> bool:
        self.asked.append((number, key))
        self.answers.append(done)
        return True

    def tick(self, seconds: float = 0.1) -> None:
        self.node.clock.advance(seconds)
        self.node.bucket.tick()
        self.node.flush()

    def read(self) -> None:
        """Let a reader meet what is damaged."""
        view = self.store.view()
        for _ in view.portions_after(0, 0, []):
            pass
        view.close()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path / "data")
    for key in KEYS:
        made.node.set(key, b"value of " + key)
    made.node.flush()
    yield made
    made.store.close()


def version(world: World, key: bytes = b"b") -> Item:
    item = world.node.vbucket.get(key)
    assert item is not None
    return item


def test_what_is_in_memory_heals_a_record(world: World) -> None:
    damage(world.store, version(world), bit=200)
    world.read()
    world.read()
    world.tick()
    world.tick()
    assert world.events == [("damaged_record", "b"), ("healed_record", "b")]
    assert set(world.node.stored()) == set(KEYS)
    assert world.asked == []
    assert world.node.bucket.healer.pending == 0


def test_an_evicted_value_is_asked_for_and_fails_its_readers_until_then(world: World) -> None:
    original = version(world)
    damage(world.store, original)
    world.node.eject(b"b")
    assert not world.node.fetch(b"b")
    assert world.node.fetch(b"a")
    world.tick()
    assert world.asked == [(0, b"b")]
    assert world.node.bucket.healer.pending == 1
    world.answers[0](None)
    world.tick(20)
    assert len(world.asked) == 2, "it is asked for again"
    world.answers[1](original)
    world.tick()
    assert version(world).value == b"value of b"
    assert world.events == [("damaged_record", "b"), ("healed_record", "b")]


def test_after_a_restart_nothing_is_known_of_it_and_every_command_says_so(world: World) -> None:
    original = version(world)
    damage(world.store, original, bit=13 * 8)
    world.restart()
    node = world.node
    assert [record for record in map(node.vbucket.table.get, (b"a", b"c")) if record is None] == []
    for command in (
        lambda: node.vbucket.get(b"b"),
        lambda: node.vbucket.delete(b"b"),
        lambda: node.vbucket.touch(b"b", 5),
        lambda: node.vbucket.store(b"b", b"", 0, 0, cas=7),
        lambda: accept_version(node.bucket, node.vbucket, pack(original), Demand()),
    ):
        with pytest.raises(TemporaryFailure, match="damaged"):
            command()
    world.tick()
    world.answers[0](original)
    world.tick()
    assert version(world) == original
    assert node.bucket.healer.pending == 0


def test_others_expire_although_nobody_knows_when_a_damaged_one_does(world: World) -> None:
    keys = [*KEYS, *(b"k%d" % number for number in range(60))]
    due = int(world.node.clock.now()) + 100
    for key in keys:
        world.node.vbucket.store(key, b"value", 0, due)
    world.node.flush()
    damage(world.store, version(world), bit=13 * 8)
    world.restart()
    world.tick(200)
    for _ in world.node.bucket.expirer.run(world.node.clock.now()):
        pass
    world.node.flush()
    table = world.node.vbucket.table
    assert [key for key in keys if table.get(key) is not None] == [b"b"]


def test_a_document_that_is_written_again_is_whole(world: World) -> None:
    damage(world.store, version(world))
    world.restart()
    world.tick()
    world.node.set(b"b", b"new")
    world.node.flush()
    world.tick(20)
    assert version(world).value == b"new"
    assert world.node.bucket.healer.pending == 0
    assert world.node.stored()[b"b"].value == b"new"


def test_a_damaged_deletion_is_healed_as_one(world: World) -> None:
    tombstone = world.node.vbucket.delete(b"b")
    world.node.flush()
    damage(world.store, tombstone)
    world.restart()
    with pytest.raises(TemporaryFailure):
        world.node.vbucket.get(b"b")
    world.tick()
    world.answers[0](tombstone)
    world.tick()
    assert world.node.vbucket.get(b"b") is None
    assert world.node.stored()[b"b"].life == tombstone.life


def test_another_version_is_not_taken_for_it(world: World) -> None:
    original = version(world)
    damage(world.store, original)
    world.node.eject(b"b")
    world.read()
    world.tick()
    others = [
        Item(b"b", b"x", 0, 0, original.cas, original.seqno + 9, original.rev),
        Item(b"b", b"x", 0, 0, original.cas + 1, original.seqno, original.rev),
        Item(b"a", b"x", 0, 0, original.cas, original.seqno, original.rev),
    ]
    for other in others:
        world.answers[0](other)
        world.tick()
    assert world.node.bucket.healer.pending == 1
    with pytest.raises(NotResident):
        world.node.vbucket.get(b"b")
    assert not world.node.fetch(b"b")
