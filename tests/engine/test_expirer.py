"""Who is deleted when his time has come, and when he is looked for."""

from __future__ import annotations

import random

import pytest

from tests.contents import table_of
from tests.engine.support import CountingEntropy, Node, settings_of
from uprmc.engine import memory
from uprmc.engine.memory import LONG_AGO, RELATIVE_MAX_S, Timetable, absolute_expiry
from uprmc.engine.replica import overwrite
from uprmc.model import Item, Life, VBucketState


@pytest.fixture
def node() -> Node:
    """A node with one vBucket."""
    return Node(settings_of())


def run(node: Node) -> int:
    """Let the expirer do all that is to be done; return how many steps it took."""
    return sum(1 for _ in node.bucket.expirer.run(node.clock.now()))


def soon(node: Node, seconds: int) -> int:
    """Return the Unix time so many seconds from now."""
    return int(node.clock.now()) + seconds


def live(node: Node) -> set[bytes]:
    """Return the keys of vBucket 0 that are no tombstones."""
    return {key for key, item in table_of(node.vbucket).items() if not item.life}


def test_what_nobody_asks_for_is_deleted_when_it_is_due_and_nothing_else(node: Node) -> None:
    for number in range(300):
        node.set(b"%d" % number, expiry=soon(node, 10) if number % 3 == 0 else 0)
    node.set(b"later", expiry=soon(node, 11))
    node.vbucket.delete(b"0")
    node.clock.advance(10)
    assert run(node) > 1, "others have their turns in between"
    assert node.bucket.stats.expired_pager == 99
    assert live(node) == {b"%d" % n for n in range(300) if n % 3} | {b"later"}
    node.check()


@pytest.mark.parametrize("seconds", [1, 2, 31, 32, 33, 100, 3_600, 30 * 86_400, 2**31])
def test_nothing_expires_too_soon_or_late_however_far_away_it_is(node: Node, seconds: int) -> None:
    node.set(b"k", expiry=soon(node, seconds))
    looks = 0
    while seconds > 1:
        step = max(1, seconds // 2)
        node.clock.advance(step)
        seconds -= step
        looks += run(node)
        assert live(node) == {b"k"}
    node.clock.advance(seconds)
    run(node)
    assert live(node) == set()
    assert looks < 40
    assert node.bucket.expirer.timetable.entries == 0


def test_an_expiry_that_is_put_off_again_and_again_needs_one_entry(node: Node) -> None:
    for number in range(1_000):
        node.set(b"k", expiry=soon(node, 60 + number))
    assert node.bucket.expirer.timetable.entries == 1
    node.clock.advance(60 + 998)
    run(node)
    assert live(node) == {b"k"}
    node.clock.advance(1)
    run(node)
    assert live(node) == set()


def test_an_expiry_that_comes_forward_is_kept_in_time(node: Node) -> None:
    node.set(b"set", expiry=soon(node, 1_000))
    node.set(b"touched", expiry=soon(node, 1_000))
    node.set(b"first for ever")
    node.set(b"set", expiry=soon(node, 5))
    node.vbucket.touch(b"touched", soon(node, 5))
    node.vbucket.touch(b"first for ever", soon(node, 5))
    node.clock.advance(5)
    run(node)
    assert live(node) == set()


def test_who_is_made_to_stay_or_written_again_after_its_deletion_is_left_alone(node: Node) -> None:
    for key in (b"stays", b"deleted", b"again"):
        node.set(key, expiry=soon(node, 5))
    node.set(b"stays")
    node.vbucket.delete(b"deleted")
    node.vbucket.delete(b"again")
    node.set(b"again", expiry=soon(node, 50))
    node.clock.advance(5)
    run(node)
    assert live(node) == {b"stays", b"again"}
    node.clock.advance(45)
    run(node)
    assert live(node) == {b"stays"}


def test_an_ejected_document_is_deleted_too(node: Node) -> None:
    node.set(b"k", expiry=soon(node, 5))
    node.flush()
    node.eject(b"k")
    node.clock.advance(5)
    run(node)
    node.flush()
    assert node.stored()[b"k"].life == Life.EXPIRED
    node.check()


def test_what_was_written_again_between_two_steps_is_left_alone(node: Node) -> None:
    for number in range(200):
        node.set(b"%d" % number, expiry=soon(node, 1))
    node.clock.advance(1)
    steps = node.bucket.expirer.run(node.clock.now())
    next(steps)
    for number in range(200):
        node.set(b"%d" % number, b"new", expiry=soon(node, 7))
    for _ in steps:
        pass
    assert node.bucket.stats.expired_pager < 200
    assert len(live(node)) == 200
    node.clock.advance(7)
    run(node)
    assert live(node) == set()
    node.check()


def test_versions_made_elsewhere_expire_here(node: Node) -> None:
    version = Item(b"k", b"v", 0, soon(node, 5), 0, 0, 1)
    overwrite(node.bucket, node.vbucket, version, plain=True, within_snapshot=False)
    node.clock.advance(5)
    run(node)
    assert live(node) == set()


def test_a_replica_expires_nothing_until_it_is_promoted(node: Node) -> None:
    node.set(b"due", expiry=soon(node, 1))
    node.set(b"later", expiry=soon(node, 100))
    node.bucket.set_state(0, VBucketState.REPLICA)
    node.clock.advance(50)
    run(node)
    assert live(node) == {b"due", b"later"}
    assert node.vbucket.high_seqno == 2
    node.bucket.set_state(0, VBucketState.ACTIVE)
    run(node)
    assert live(node) == {b"later"}
    node.clock.advance(50)
    run(node)
    assert live(node) == set()


def test_a_vbucket_that_becomes_a_replica_between_two_steps_is_left_alone() -> None:
    node = Node(settings_of(vbuckets=2))
    for vbucket in node.bucket.vbuckets.values():
        for number in range(100):
            vbucket.store(b"%d" % number, b"v", 0, soon(node, 1))
    node.clock.advance(1)
    steps = node.bucket.expirer.run(node.clock.now())
    next(steps)
    for vbucket in list(node.bucket.vbuckets.values()):
        vbucket.state = VBucketState.REPLICA
    before = node.bucket.stats.expired_pager
    for _ in steps:
        pass
    assert node.bucket.stats.expired_pager == before


def test_what_was_loaded_from_disk_expires(node: Node) -> None:
    node.set(b"k", expiry=soon(node, 100))
    node.stop()
    again = node.restarted()
    run(again)
    again.clock.advance(100)
    run(again)
    assert live(again) == set()


def test_a_clock_that_is_set_back_only_delays(node: Node) -> None:
    run(node)
    node.clock.step(-3_600)
    node.set(b"k", expiry=soon(node, 10))
    node.clock.advance(9)
    run(node)
    assert live(node) == {b"k"}
    node.clock.advance(1)
    run(node)
    assert live(node) == set()


def test_useless_entries_are_thrown_away_before_they_are_too_many(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "SPARE_ENTRIES", 50)
    timetable = node.bucket.expirer.timetable
    for number in range(500):
        node.set(b"k", expiry=soon(node, 1_000 + number % 2 * 1_000))
        node.bucket.tick()
        assert timetable.entries <= 2 + 50 + 1
    run(node)
    node.clock.advance(2_000)
    run(node)
    assert live(node) == set()


def test_slots_are_few_whatever_the_times_are() -> None:
    chance = random.Random(5)
    timetable = Timetable(1_700_000_000)
    for number in range(50_000):
        timetable.add(0, b"%d" % number, 1_700_000_000 + int(2 ** chance.uniform(0, 32)))
    assert len(list(timetable.take_due(2**40))) < 700


def test_no_document_is_forgotten_or_taken_too_soon_whatever_happens_to_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "SPARE_ENTRIES", 20)
    monkeypatch.setattr(memory, "_STEP_ENTRIES", 3)
    for seed in range(20):
        _play(random.Random(seed))


def _play(chance: random.Random) -> None:
    node = Node(settings_of(vbuckets=2), entropy=CountingEntropy())
    running = node.bucket.expirer.run(node.clock.now())
    for _ in range(400):
        key = b"%d" % chance.randrange(12)
        vbucket = node.bucket.vbuckets[chance.randrange(2)]
        action = chance.randrange(8)
        if action < 3:
            left = chance.choice((0, 1, 3, 40, 200))
            vbucket.store(key, b"v", 0, soon(node, left) if left else 0)
        elif action == 3 and vbucket.find(key) is not None:
            vbucket.delete(key)
        elif action == 4:
            node.clock.advance(chance.choice((1, 2, 35)))
        elif action == 5:
            node.bucket.tick()
        elif action == 6 and chance.random() < 0.1:
            vbucket.reset(node.entropy.uuid48())
        elif next(running, running) is running:
            running = node.bucket.expirer.run(node.clock.now())
    for _ in running:
        pass
    run(node)
    for vbucket in node.bucket.vbuckets.values():
        for item in table_of(vbucket).values():
            assert item.life or not item.expiry or item.expiry > node.clock.now()
    node.clock.advance(10_000)
    run(node)
    for vbucket in node.bucket.vbuckets.values():
        assert not any(item.expiry and not item.life for item in table_of(vbucket).values())
    node.check()


# --- expiry times as clients write them -----------------------------------------------------------


NOW = 1_700_000_000.75


@pytest.mark.parametrize(
    ("exptime", "expected"),
    [
        (0, 0),
        (1, 1_700_000_001),
        (RELATIVE_MAX_S, 1_700_000_000 + 2_592_000),
        (RELATIVE_MAX_S + 1, RELATIVE_MAX_S + 1),
        (1_699_999_999, 1_699_999_999),
        (1_800_000_000, 1_800_000_000),
        (0xFFFFFFFF, 0xFFFFFFFF),
        (0xFFFFFFFB, 0xFFFFFFFB),
        (-1, LONG_AGO),
        (-(2**31), LONG_AGO),
    ],
)
def test_small_numbers_count_from_now_large_ones_are_a_date(exptime: int, expected: int) -> None:
    assert absolute_expiry(exptime, NOW) == expected


def test_thirty_days_is_the_border() -> None:
    assert RELATIVE_MAX_S == 2_592_000


def test_a_negative_time_has_passed_whatever_the_clock_says() -> None:
    assert 0 < absolute_expiry(-1, 2.0) <= 2.0
