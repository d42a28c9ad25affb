"""The bucket: which vBucket a key belongs to, who may use it when, and forgetting everything."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.support import BEGINNING, CountingEntropy, FaultyStore, ManualClock, Node
from tests.engine.support import settings_of as settings_of_node
from uprmc.config import Settings
from uprmc.engine.bucket import Bucket
from uprmc.errors import NotMyVBucket, StoreFull, TemporaryFailure
from uprmc.model import VBucketState


def settings(vbuckets: int) -> Settings:
    return settings_of_node(vbuckets=vbuckets)


def cold(vbuckets: int = 1) -> Bucket:
    """A bucket that knows no vBucket yet."""
    return Bucket(settings(vbuckets), FaultyStore(), ManualClock(), CountingEntropy())


# --- P04: keys to vBuckets ------------------------------------------------------------------------

# CRC32 values from other people's publications (catalogues of check values, the RFCs' examples),
# and "foo", which the existing ecosystem's own manual puts into vBucket 115 of 1024.
PUBLISHED = [
    (b"123456789", 0xCBF43926),
    (b"The quick brown fox jumps over the lazy dog", 0x414FA339),
    (b"a", 0xE8B7BE43),
    (b"abc", 0x352441C2),
    (b"message digest", 0x20159D7F),
    (b"abcdefghijklmnopqrstuvwxyz", 0x4C2750BD),
]


def bitwise_crc32(data: bytes) -> int:
    """CRC-32 as its definition says, a bit at a time; shares nothing with zlib."""
    register = 0xFFFFFFFF
    for byte in data:
        register ^= byte
        for _ in range(8):
            register = (register >> 1) ^ (0xEDB88320 if register & 1 else 0)
    return register ^ 0xFFFFFFFF


@pytest.mark.acceptance("P04")
@pytest.mark.parametrize("vbuckets", [1, 2, 64, 512, 1024])
def test_published_keys_map_to_the_ecosystems_vbuckets(vbuckets: int) -> None:
    bucket = cold(vbuckets)
    for key, crc in PUBLISHED:
        assert bucket.vbucket_of(key) == ((crc >> 16) & 0x7FFF) % vbuckets


@pytest.mark.acceptance("P04")
def test_keys_whose_vbucket_is_known() -> None:
    bucket = cold(1024)
    assert bucket.vbucket_of(b"foo") == 115
    assert bucket.vbucket_of(b"123456789") == 1012
    assert bucket.vbucket_of(b"") == 0


@pytest.mark.acceptance("P04")
@given(key=st.binary(max_size=250), power=st.integers(0, 10))
def test_any_key_maps_as_the_formula_says(key: bytes, power: int) -> None:
    expected = ((bitwise_crc32(key) >> 16) & 0x7FFF) % 2**power
    assert cold(2**power).vbucket_of(key) == expected


@pytest.mark.acceptance("P04")
@pytest.mark.parametrize("vbuckets", [1, 64, 1024])
def test_a_node_has_all_its_vbuckets_and_each_key_finds_one(vbuckets: int) -> None:
    node = Node(settings(vbuckets))
    assert sorted(node.bucket.active) == list(range(vbuckets))
    used = set()
    for number in range(200):
        key = b"key-%d" % number
        vbucket = node.bucket.of_key(key)
        vbucket.store(key, b"v", 0, 0)
        used.add(vbucket.id)
    assert len(used) > min(vbuckets, 64) // 2
    assert node.bucket.item_count == 200
    node.flush()
    node.check()
    again = node.restarted()
    assert all(again.bucket.of_key(b"key-%d" % n).get(b"key-%d" % n) for n in range(200))


@pytest.mark.acceptance("P05")
def test_each_vbucket_counts_seqnos_for_itself() -> None:
    node = Node(settings(2))
    first, second = node.bucket.vbuckets.values()
    for number in range(10):
        first.store(b"%d" % number, b"", 0, 0)
    assert second.store(b"k", b"", 0, 0).seqno == 1
    assert (first.high_seqno, second.high_seqno) == (10, 1)


# --- who may use it -------------------------------------------------------------------------------


def test_before_warm_up_is_over_every_vbucket_says_try_again() -> None:
    bucket = cold(4)
    with pytest.raises(TemporaryFailure):
        bucket.locate(0)
    with pytest.raises(TemporaryFailure):
        bucket.of_key(b"k")


def test_a_vbucket_that_is_absent_or_not_active_is_not_mine() -> None:
    node = Node(settings(4))
    assert node.bucket.locate(3).id == 3
    with pytest.raises(NotMyVBucket):
        node.bucket.locate(4)
    node.bucket.create(9, VBucketState.REPLICA)
    with pytest.raises(NotMyVBucket):
        node.bucket.locate(9)


def test_only_active_vbuckets_are_let_in() -> None:
    bucket = cold(4)
    for number, state in enumerate(VBucketState):
        bucket.create(number, state)
    bucket.let_traffic_in()
    assert list(bucket.active) == [0]
    bucket.shut_traffic_out()
    with pytest.raises(TemporaryFailure):
        bucket.locate(0)


def test_documents_of_replicas_count_in_the_total_only() -> None:
    node = Node(settings(2))
    for number in range(2):
        node.bucket.vbuckets[number].store(b"k", b"", 0, 0)
    del node.bucket.active[1]
    assert (node.bucket.item_count, node.bucket.total_item_count) == (1, 2)


def test_a_new_vbucket_is_stored_though_it_is_empty(node: Node) -> None:
    node.bucket.create(7, VBucketState.REPLICA)
    node.flush()
    header = node.header(7)
    assert (header.state, header.high_seqno) == (VBucketState.REPLICA, 0)
    assert header.failover_log == node.bucket.vbuckets[7].failover_log


# --- forgetting everything ------------------------------------------------------------------------


def test_an_immediate_flush_forgets_everything_and_tells_when_that_is_on_disk() -> None:
    node = Node(settings(4))
    for number in range(40):
        node.bucket.vbuckets[number % 4].store(b"%d" % number, b"v", 0, 0)
    node.flush()
    node.bucket.vbuckets[0].store(b"queued", b"v", 0, 0)
    logs = {number: vbucket.failover_log for number, vbucket in node.bucket.vbuckets.items()}
    told: list[bool] = []
    node.bucket.flush(0, told.append)
    assert node.bucket.item_count == 0
    assert node.bucket.account.used == 0
    assert told == []
    assert len(node.stored(1)) == 10, "not on disk yet"
    node.flush()
    assert told == [True]
    for number, vbucket in node.bucket.vbuckets.items():
        assert node.stored(number) == {}
        assert vbucket.high_seqno == 0
        ((uuid, seqno),) = vbucket.failover_log
        assert seqno == 0
        assert uuid != logs[number][0].uuid, "a history of its own"
        assert node.header(number).failover_log == vbucket.failover_log
    node.check()


def test_what_is_stored_after_an_immediate_flush_stays(node: Node) -> None:
    node.set(b"old")
    node.bucket.flush(0, lambda _: None)
    node.set(b"new")
    node.flush()
    assert list(node.stored()) == [b"new"]
    assert node.vbucket.get(b"new") is not None


def test_a_flush_that_cannot_be_written_says_so_and_is_written_later() -> None:
    node = Node(settings(2))
    node.set(b"k")
    node.flush()
    told: list[bool] = []
    node.bucket.flush(0, told.append)
    node.fail_flush(StoreFull("disk full"))
    assert told == [False]
    assert list(node.stored()) == [b"k"]
    node.flush()
    assert told == [False]
    assert node.stored() == {}


def test_a_flush_at_a_later_time_takes_what_was_stored_until_then(node: Node) -> None:
    told: list[bool] = []
    node.set(b"before")
    node.bucket.flush(BEGINNING + 10, told.append)
    assert told == [True]
    node.clock.advance(9)
    node.bucket.tick()
    node.set(b"meanwhile")
    assert node.vbucket.item_count == 2
    node.clock.advance(1)
    node.bucket.tick()
    assert node.vbucket.item_count == 0
    node.set(b"after")
    node.clock.advance(100)
    node.bucket.tick()
    assert node.vbucket.item_count == 1, "once only"
    node.check()


def test_the_last_of_several_flushes_counts(node: Node) -> None:
    node.bucket.flush(BEGINNING + 10, lambda _: None)
    node.bucket.flush(0, lambda _: None)
    node.set(b"k")
    node.clock.advance(20)
    node.bucket.tick()
    assert node.vbucket.get(b"k") is not None
