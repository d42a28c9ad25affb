"""The wall clock is set while documents live: each lives for the time that it was given."""

from __future__ import annotations

import struct
from collections import deque

import pytest

from tests.kv.binary_peer import Peer, frame, store
from tests.kv.harness import NOON, Rig, drained_with_waits, talk
from uprmc.engine.memory import RELATIVE_MAX_S, STEPS_MAX
from uprmc.model import VBucketState

HOUR, DAY = 3_600, 86_400
STEPS = [HOUR, -HOUR, 2 * DAY, -2 * DAY, 1, -1]
SET, TOUCH, GAT = 0x01, 0x1C, 0x1D


class World:
    """A node and who talks to it in each dialect."""

    def __init__(self) -> None:
        self.rig = Rig()
        self.text, self.binary = self.rig.text(), Peer(self.rig)
        # Such a peer is told seqnos, so its commands never go the short way.
        self.long = Peer(self.rig)
        self.long.ask(frame(0x1F, b"steps", struct.pack(">H", 4)))
        self.events: list[tuple[str, dict[str, object]]] = []
        self.rig.bucket.on_event = lambda name, fields: self.events.append((name, fields))

    def put(self, expiry: int) -> set[bytes]:
        """Store a document in each dialect, or give it its expiry time in another way."""
        extras = struct.pack(">I", expiry)
        talk(self.text, b"set text 0 %d 2\r\n10\r\n" % expiry)
        talk(self.text, b"ms meta 2 T%d\r\n10\r\n" % expiry)
        for name in (b"touched", b"gat", b"btouched", b"bgat"):
            talk(self.text, b"set %b 0 0 2\r\n10\r\n" % name)
        talk(self.text, b"touch touched %d\r\ngat %d gat\r\n" % (expiry, expiry))
        self.binary.ask(frame(TOUCH, b"btouched", extras=extras))
        self.binary.ask(frame(GAT, b"bgat", extras=extras))
        self.binary.ask(store(SET, b"binary", b"10", expiration=expiry))
        self.long.ask(store(SET, b"long", b"10", expiration=expiry))
        names = {b"text", b"meta", b"touched", b"gat", b"btouched", b"bgat", b"binary", b"long"}
        assert self.found(names) == names
        return names

    def found(self, names: set[bytes]) -> set[bytes]:
        """Return those that are there, and require that every dialect says the same."""
        keys = sorted(names)
        said = b"".join(talk(self.text, b"get %b\r\n" % key) for key in keys)
        known = {key for key in keys if b"VALUE %b " % key in said}
        together = talk(self.text, b"gets " + b" ".join(keys) + b"\r\n")
        assert {key for key in keys if b"VALUE %b " % key in together} == known
        for key in keys:
            assert (self.binary.value(key) is not None) is (key in known), key
            assert (self.long.value(key) is not None) is (key in known), key
            assert talk(self.text, b"mg %b\r\n" % key).startswith(b"HD") is (key in known), key
        self.rig.services.control.crawler.enabled = True
        self.text.receive_data(b"lru_crawler mgdump all\r\n")
        listed = drained_with_waits(self.text)
        assert {key for key in keys if b"mg %b\r\n" % key in listed} == known
        return known

    def step(self, seconds: float) -> None:
        self.rig.clock.set_by += seconds

    def notice(self) -> None:
        """Do what the node does a few times a second."""
        self.rig.bucket.tick()
        deque(self.rig.bucket.expirer.run(self.rig.bucket.steady.now()), maxlen=0)


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize("noticed", [False, True])
@pytest.mark.parametrize("step", STEPS)
def test_a_lifetime_lasts_as_long_as_it_was_given(world: World, step: int, noticed: bool) -> None:
    """Whether the node has already seen that the clock was set."""
    names = world.put(60)
    world.step(step)
    if noticed:
        world.notice()
    world.rig.clock.time += 58
    if noticed:
        world.notice()
    assert world.found(names) == names
    assert world.rig.bucket.stats.expired_pager == 0
    world.notice()
    world.rig.clock.time += 3
    assert world.found(names) == set()
    assert world.rig.bucket.stats.expired_access == len(names)


@pytest.mark.parametrize("step", STEPS)
def test_the_expiry_task_comes_when_it_is_time(world: World, step: int) -> None:
    names = world.put(60)
    world.step(step)
    world.notice()
    world.rig.clock.time += 58
    world.notice()
    assert world.rig.bucket.stats.expired_pager == 0
    world.rig.clock.time += 3
    world.notice()
    assert world.rig.bucket.stats.expired_pager == len(names)


@pytest.mark.parametrize("step", STEPS)
def test_what_changes_a_document_leaves_it_its_time(world: World, step: int) -> None:
    names = world.put(60)
    world.step(step)
    world.notice()
    world.rig.clock.time += 30
    for name in sorted(names):
        said = talk(world.text, b"incr %b 1\r\nappend %b 0 0 1\r\n0\r\nmg %b t\r\n" % ((name,) * 3))
        assert said in (b"11\r\nSTORED\r\nHD t30\r\n", b"11\r\nSTORED\r\nHD t29\r\n")
    world.rig.clock.time += 28
    assert world.found(names) == names
    world.rig.clock.time += 3
    assert world.found(names) == set()


@pytest.mark.parametrize("step", STEPS)
def test_what_is_stored_after_a_step_has_the_new_time(world: World, step: int) -> None:
    world.step(step)
    world.notice()
    names = world.put(60)
    item = world.rig.item(b"text")
    assert item is not None
    assert item.expiry == NOON + step + 60
    world.rig.clock.time += 58
    assert world.found(names) == names
    world.rig.clock.time += 3
    assert world.found(names) == set()


def test_many_steps_add_up(world: World) -> None:
    names = world.put(1_000)
    for number in range(STEPS_MAX):
        world.step(DAY if number % 3 else -HOUR)
        world.notice()
        world.rig.clock.time += 10
        world.notice()
        assert world.found(names) == names
    world.rig.clock.time += 1_000 - 10 * STEPS_MAX - 2
    assert world.found(names) == names
    world.rig.clock.time += 3
    assert world.found(names) == set()


@pytest.mark.parametrize(("steps", "stays"), [(STEPS_MAX, True), (STEPS_MAX + 1, False)])
def test_more_steps_than_are_kept_leave_the_record_its_word(
    world: World, steps: int, stays: bool
) -> None:
    names = world.put(1_000)
    for number in range(steps):
        world.step(-10 if number else DAY)
        world.notice()
    assert world.found(names) == (names if stays else set())


def test_a_time_that_is_no_lifetime_is_the_wall_clocks(world: World) -> None:
    far = int(NOON) + RELATIVE_MAX_S + HOUR
    names = world.put(far)
    world.step(RELATIVE_MAX_S)
    world.notice()
    assert world.found(names) == names
    world.step(HOUR)
    world.notice()
    assert world.found(names) == set()


@pytest.mark.parametrize("step", [HOUR, -HOUR])
def test_a_delayed_flush_comes_after_its_delay(world: World, step: int) -> None:
    names = world.put(0)
    assert talk(world.text, b"flush_all 60\r\n") == b"OK\r\n"
    world.step(step)
    world.notice()
    world.rig.clock.time += 58
    world.notice()
    assert world.found(names) == names
    world.rig.clock.time += 3
    world.notice()
    assert world.found(names) == set()


@pytest.mark.parametrize("step", [HOUR, -HOUR])
def test_a_new_history_knows_nothing_of_earlier_steps(world: World, step: int) -> None:
    world.put(60)
    world.step(step)
    world.notice()
    talk(world.text, b"flush_all noreply\r\n")
    names = world.put(60)
    world.rig.clock.time += 58
    assert world.found(names) == names
    world.rig.clock.time += 3
    assert world.found(names) == set()


def test_who_was_no_active_in_between_knows_nothing_of_earlier_steps(world: World) -> None:
    """Another node may have given the seqnos to other documents."""
    world.put(60)
    world.step(HOUR)
    world.notice()
    bucket = world.rig.bucket
    for state in (VBucketState.REPLICA, VBucketState.ACTIVE):
        for number in bucket.vbuckets:
            bucket.set_state(number, state)
    assert all(not vbucket.steps for vbucket in bucket.vbuckets.values())


def test_a_step_is_told_and_what_is_no_step_is_not(world: World) -> None:
    world.rig.bucket.tick()
    for drift in range(100):
        world.step(0.4 if drift % 2 else -0.3)
        world.rig.bucket.tick()
    assert world.events == []
    world.step(-HOUR)
    world.rig.bucket.tick()
    world.rig.bucket.tick()
    assert world.events == [("clock_set", {"seconds": -HOUR})]


def test_only_the_active_decides(world: World) -> None:
    """A replica's documents have the times of its source, and it expires none by itself."""
    names = world.put(60)
    bucket = world.rig.bucket
    for number in bucket.vbuckets:
        bucket.set_state(number, VBucketState.REPLICA)
    world.step(HOUR)
    world.notice()
    assert all(not vbucket.steps for vbucket in bucket.vbuckets.values())
    assert bucket.stats.expired_pager == 0
    assert bucket.total_item_count == len(names)
