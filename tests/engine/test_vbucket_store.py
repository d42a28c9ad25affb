"""Storing, reading, deleting, touching and extending documents of one vBucket."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.contents import queued, table_of
from tests.engine.support import Node, settings_of
from uprmc.engine.vbucket import StoreMode, VBucket
from uprmc.errors import (
    CommandError,
    DeltaBadValue,
    KeyExists,
    KeyNotFound,
    NotResident,
    NotStored,
)
from uprmc.model import Item, Life


def test_a_stored_document_reads_back_with_everything_it_was_given(node: Node) -> None:
    expiry = int(node.clock.now()) + 100
    stored = node.vbucket.store(b"k", b"body", 0xDEADBEEF, expiry, datatype=1)
    read = node.vbucket.get(b"k")
    assert read == stored
    assert read is not None
    assert (read.key, read.value, read.flags, read.expiry) == (b"k", b"body", 0xDEADBEEF, expiry)
    assert (read.seqno, read.rev, read.datatype, read.life) == (1, 1, 1, Life.LIVE)


def test_an_empty_value_is_a_value(node: Node) -> None:
    node.set(b"k", b"")
    item = node.vbucket.get(b"k")
    assert item is not None
    assert item.value == b""
    node.flush()
    node.eject(b"k")
    with pytest.raises(NotResident):
        node.vbucket.get(b"k")
    assert node.fetch(b"k")
    assert node.vbucket.get(b"k") == item
    node.check()


def test_a_key_that_is_not_there_is_a_miss(node: Node) -> None:
    assert node.vbucket.get(b"k") is None
    assert node.vbucket.find(b"k") is None
    assert node.vbucket.table.find(b"k") is None


def test_an_overwrite_counts_the_revision_and_takes_the_next_seqno_and_cas(node: Node) -> None:
    first, second = node.set(b"k", b"1"), node.set(b"k", b"2")
    assert (second.seqno, second.rev) == (2, 2)
    assert second.cas > first.cas
    assert node.vbucket.item_count == 1


def test_every_write_on_the_node_gets_a_greater_cas_whatever_its_vbucket() -> None:
    node = Node(settings_of(vbuckets=4))
    stamps = [
        node.bucket.vbuckets[number % 4].store(b"k%d" % number, b"", 0, 0).cas
        for number in range(20)
    ]
    assert stamps == sorted(set(stamps))


# --- the reference's table of CAS in requests -----------------------------------------------------

Write = Callable[[VBucket, int], object]


def _set(vbucket: VBucket, cas: int) -> Item:
    return vbucket.store(b"k", b"7", 0, 0, cas)


def _add(vbucket: VBucket, cas: int) -> Item:
    return vbucket.store(b"k", b"7", 0, 0, cas, mode=StoreMode.ADD)


def _replace(vbucket: VBucket, cas: int) -> Item:
    return vbucket.store(b"k", b"7", 0, 0, cas, mode=StoreMode.REPLACE)


def _append(vbucket: VBucket, cas: int) -> Item:
    return vbucket.extend(b"k", b"0", cas, front=False, limit_bytes=100)


def _prepend(vbucket: VBucket, cas: int) -> Item:
    return vbucket.extend(b"k", b"1", cas, front=True, limit_bytes=100)


def _delete(vbucket: VBucket, cas: int) -> Item:
    return vbucket.delete(b"k", cas)


def _incr(vbucket: VBucket, cas: int) -> object:
    return vbucket.add_delta(b"k", 1, cas)


def _incr_or_create(vbucket: VBucket, cas: int) -> object:
    return vbucket.add_delta(b"k", 1, cas, initial=40)


# command, refusal with CAS 0 when present, when missing; and with a CAS when missing
CAS_TABLE: list[tuple[Write, type[CommandError] | None, type[CommandError] | None, object]] = [
    (_set, None, None, KeyNotFound),
    (_add, KeyExists, None, KeyNotFound),
    (_replace, None, KeyNotFound, KeyNotFound),
    (_append, None, NotStored, NotStored),
    (_prepend, None, NotStored, NotStored),
    (_delete, None, KeyNotFound, KeyNotFound),
    (_incr, None, KeyNotFound, KeyNotFound),
    (_incr_or_create, None, None, None),
]


def _tried(node: Node, write: Write, cas: int, refusal: object) -> None:
    """Run a write: it is accepted and takes one seqno, or refused and takes none (D17)."""
    vbucket = node.vbucket
    before = (vbucket.high_seqno, vbucket.table.find(b"k"), node.bucket.account.last_cas)
    if refusal is None:
        write(vbucket, cas)
        assert vbucket.high_seqno == before[0] + 1
    else:
        assert isinstance(refusal, type)
        with pytest.raises(refusal) as caught:
            write(vbucket, cas)
        assert caught.type is refusal
        assert (
            vbucket.high_seqno,
            vbucket.table.find(b"k"),
            node.bucket.account.last_cas,
        ) == before
    node.check()


@pytest.mark.acceptance("D17")
@pytest.mark.parametrize("row", CAS_TABLE, ids=lambda row: row[0].__name__)
class TestCasTable:
    """Each row of the table, on a document that is there, gone, or was never there."""

    def test_plain_on_a_document(self, node: Node, row: tuple[Write, object, ...]) -> None:
        node.set(b"k", b"41")
        _tried(node, row[0], 0, row[1])

    def test_plain_on_nothing(self, node: Node, row: tuple[Write, object, ...]) -> None:
        _tried(node, row[0], 0, row[2])

    def test_with_the_right_cas(self, node: Node, row: tuple[Write, object, ...]) -> None:
        _tried(node, row[0], node.set(b"k", b"41").cas, None)

    def test_with_another_cas(self, node: Node, row: tuple[Write, object, ...]) -> None:
        _tried(node, row[0], node.set(b"k", b"41").cas + 1, KeyExists)

    def test_with_the_cas_of_an_older_version(
        self, node: Node, row: tuple[Write, object, ...]
    ) -> None:
        old = node.set(b"k", b"41").cas
        node.set(b"k", b"41")
        _tried(node, row[0], old, KeyExists)

    def test_with_a_cas_on_nothing(self, node: Node, row: tuple[Write, object, ...]) -> None:
        _tried(node, row[0], 4711, row[3])

    def test_on_a_deleted_document(self, node: Node, row: tuple[Write, object, ...]) -> None:
        cas = node.set(b"k", b"41").cas
        node.vbucket.delete(b"k")
        _tried(node, row[0], cas, row[3])
        if row[3] is not None:
            _tried(node, row[0], 0, row[2])

    def test_on_an_expired_document(self, node: Node, row: tuple[Write, object, ...]) -> None:
        cas = node.set(b"k", b"41", expiry=int(node.clock.now()) + 5).cas
        node.clock.advance(5)
        assert node.vbucket.get(b"k") is None
        _tried(node, row[0], cas, row[3])
        if row[3] is not None:
            _tried(node, row[0], 0, row[2])


@pytest.mark.acceptance("D17")
def test_a_failed_cas_takes_no_seqno_and_n_accepted_writes_take_exactly_n(node: Node) -> None:
    cas = node.set(b"k").cas
    for number in range(100):
        with pytest.raises(KeyExists):
            node.vbucket.store(b"k", b"lost", 0, 0, cas=cas + 1 + number)
        cas = node.vbucket.store(b"k", b"won", 0, 0, cas=cas).cas
    assert node.vbucket.high_seqno == 101
    assert [entry.seqno for entry in queued(node.vbucket.queue.open_view())] == [101]


@pytest.mark.parametrize("mode", [StoreMode.SET, StoreMode.ADD, StoreMode.REPLACE])
def test_a_write_over_an_expired_document_that_nobody_looked_at(node: Node, mode: int) -> None:
    node.set(b"k", b"old", expiry=int(node.clock.now()) + 5)
    node.clock.advance(5)
    if mode == StoreMode.REPLACE:
        with pytest.raises(KeyNotFound):
            node.vbucket.store(b"k", b"new", 0, 0, mode=mode)
    else:
        assert node.vbucket.store(b"k", b"new", 0, 0, mode=mode).rev == 2
        assert node.vbucket.get(b"k") is not None
    node.check()


# --- append and prepend ---------------------------------------------------------------------------


def test_append_and_prepend_keep_flags_and_expiry(node: Node) -> None:
    expiry = int(node.clock.now()) + 50
    first = node.vbucket.store(b"k", b"b", 9, expiry, datatype=1)
    node.vbucket.extend(b"k", b"c", 0, front=False, limit_bytes=10)
    last = node.vbucket.extend(b"k", b"a", 0, front=True, limit_bytes=10)
    assert (last.value, last.flags, last.expiry, last.datatype) == (b"abc", 9, expiry, 1)
    assert last.cas > first.cas
    assert last.seqno == 3


@pytest.mark.parametrize("front", [False, True])
def test_the_whole_may_reach_the_limit_and_not_one_byte_more(node: Node, front: bool) -> None:
    node.set(b"k", b"12345")
    with pytest.raises(NotStored):
        node.vbucket.extend(b"k", b"678901", 0, front=front, limit_bytes=10)
    assert node.vbucket.get(b"k") == table_of(node.vbucket)[b"k"]
    assert node.vbucket.high_seqno == 1
    node.vbucket.extend(b"k", b"67890", 0, front=front, limit_bytes=10)
    assert node.vbucket.high_seqno == 2
    node.check()


def test_an_extension_of_an_ejected_document_waits_for_its_value(node: Node) -> None:
    node.set(b"k", b"a")
    node.flush()
    node.eject(b"k")
    with pytest.raises(NotResident):
        node.vbucket.extend(b"k", b"b", 0, front=False, limit_bytes=10)
    assert node.vbucket.high_seqno == 1
    node.fetch(b"k")
    assert node.vbucket.extend(b"k", b"b", 0, front=False, limit_bytes=10).value == b"ab"
    node.check()


# --- delete ---------------------------------------------------------------------------------------


def test_a_deletion_is_a_change_with_seqno_cas_revision_and_time(node: Node) -> None:
    first = node.vbucket.store(b"k", b"v", 5, 0)
    node.clock.advance(10)
    tombstone = node.vbucket.delete(b"k")
    assert (tombstone.seqno, tombstone.rev, tombstone.life) == (2, 2, Life.DELETED)
    assert tombstone.cas > first.cas
    assert tombstone.value is None
    assert tombstone.expiry == int(node.clock.now()), "when it was deleted"
    assert node.vbucket.get(b"k") is None


def test_deleting_twice_misses_the_second_time(node: Node) -> None:
    node.set(b"k")
    node.vbucket.delete(b"k")
    with pytest.raises(KeyNotFound):
        node.vbucket.delete(b"k")
    assert node.vbucket.high_seqno == 2


def test_an_ejected_document_can_be_deleted_and_overwritten_without_its_value(node: Node) -> None:
    node.set(b"a")
    node.set(b"b")
    node.flush()
    node.eject(b"a", b"b")
    assert node.vbucket.table.absent == 2
    node.vbucket.delete(b"a")
    node.set(b"b", b"new")
    assert node.vbucket.table.absent == 0
    node.check()
    node.flush()
    node.check()
    assert node.stored()[b"b"].value == b"new"
    assert node.stored()[b"a"].life == Life.DELETED


# --- touch ----------------------------------------------------------------------------------------


def test_touch_changes_the_expiry_keeps_the_cas_and_takes_a_seqno(node: Node) -> None:
    expiry = int(node.clock.now()) + 50
    first = node.vbucket.store(b"k", b"v", 3, 0, datatype=1)
    touched = node.vbucket.touch(b"k", expiry)
    assert touched.cas == first.cas
    assert (touched.seqno, touched.rev, touched.expiry) == (2, 2, expiry)
    assert (touched.value, touched.flags, touched.datatype) == (b"v", 3, 1)
    node.check()


def test_a_touch_that_changes_nothing_takes_no_seqno(node: Node) -> None:
    expiry = int(node.clock.now()) + 50
    first = node.set(b"k", expiry=expiry)
    node.flush()
    assert node.vbucket.touch(b"k", expiry) == first
    assert node.vbucket.high_seqno == 1
    assert not node.vbucket.dirty


def test_touch_of_nothing_or_of_something_expired_misses(node: Node) -> None:
    with pytest.raises(KeyNotFound):
        node.vbucket.touch(b"k", 0)
    node.set(b"k", expiry=int(node.clock.now()) + 1)
    node.clock.advance(1)
    with pytest.raises(KeyNotFound):
        node.vbucket.touch(b"k", 0)


def test_touch_can_make_a_document_expire_at_once(node: Node) -> None:
    node.set(b"k")
    node.vbucket.touch(b"k", 1)
    assert node.vbucket.get(b"k") is None
    node.check()


# --- counters -------------------------------------------------------------------------------------


def test_a_counter_keeps_flags_and_expiry_and_a_new_one_has_the_given_expiry(node: Node) -> None:
    expiry = int(node.clock.now()) + 50
    node.vbucket.store(b"k", b"10", 77, expiry)
    number, item = node.vbucket.add_delta(b"k", 5, initial=1, expiry=expiry + 9)
    assert (number, item.value, item.flags, item.expiry) == (15, b"15", 77, expiry)
    number, item = node.vbucket.add_delta(b"new", 5, initial=100, expiry=expiry)
    assert (number, item.value, item.flags, item.expiry) == (100, b"100", 0, expiry)


@pytest.mark.parametrize(("padded", "text"), [(True, b"9  "), (False, b"9")])
def test_a_counter_that_is_not_padded_is_as_long_as_its_number(
    node: Node, padded: bool, text: bytes
) -> None:
    node.set(b"k", b"10 ")
    _, item = node.vbucket.add_delta(b"k", -1, padded=padded)
    assert item.value == text


@pytest.mark.parametrize(
    "value", [b"", b"abc", b"-1", b"12abc", b"18446744073709551616", b" ", b"1.5", b"+1", b"0x10"]
)
def test_what_is_not_a_number_is_left_alone(node: Node, value: bytes) -> None:
    first = node.set(b"k", value)
    with pytest.raises(DeltaBadValue):
        node.vbucket.add_delta(b"k", 1, initial=5)
    assert node.vbucket.get(b"k") == first
    assert node.vbucket.high_seqno == 1


def test_a_counter_on_disk_waits_for_its_value(node: Node) -> None:
    node.set(b"k", b"10")
    node.flush()
    node.eject(b"k")
    with pytest.raises(NotResident):
        node.vbucket.add_delta(b"k", 1, initial=5)
    node.fetch(b"k")
    assert node.vbucket.add_delta(b"k", 1, initial=5)[0] == 11


# --- counters -------------------------------------------------------------------------------------


# stored, deltas, stored afterwards
TABLE = [
    (b"100", [-1], b"99 "),
    (b"99 ", [-95], b"4  "),
    (b"1  ", [1], b"2  "),
    (b"2  ", [1_000], b"1002"),
    (b"0  ", [5], b"5  "),
    (b"99", [1], b"100"),
    (b"18446744073709551615", [1], b"0" + 19 * b" "),
    (b"10", [-1], b"9 "),
    (b"10", [-1, 1], b"10"),
    (b" 12", [1], b"13 "),
    (b"12 ", [1], b"13 "),
    (b"00000000000000000001", [1], b"2" + 19 * b" "),
    (b"1\n  ", [1], b"2   "),
    (b"000000000000000000001", [1], b"2" + 20 * b" "),
    (b"5", [-9], b"0"),
    (b"18446744073709551610", [10], b"4" + 19 * b" "),
    (b"0", [2**64 - 1], b"18446744073709551615"),
    (b"18446744073709551615", [-(2**64 - 1)], b"0" + 19 * b" "),
]


@pytest.mark.parametrize(("stored", "deltas", "afterwards"), TABLE)
def test_each_row_of_the_table(
    node: Node, stored: bytes, deltas: list[int], afterwards: bytes
) -> None:
    node.set(b"k", stored)
    for delta in deltas:
        number, item = node.vbucket.add_delta(b"k", delta)
    assert item.value == afterwards
    assert number == int(afterwards)
    node.check()


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (b"0", 0),
        (b"18446744073709551615", 2**64 - 1),
        (b"18446744073709551616", None),
        (b"\t\n\v\f\r 7", 7),
        (b"7\x00", None),
        (b"7 x", 7),
        (b"", None),
        (b"  ", None),
        (b"x7", None),
        ("\uff17".encode(), None),
        (b"9" * 10_000, None),
    ],
)
def test_what_counts_as_a_number(node: Node, value: bytes, number: int | None) -> None:
    node.set(b"k", value)
    if number is None:
        with pytest.raises(DeltaBadValue):
            node.vbucket.add_delta(b"k", 0)
    else:
        assert node.vbucket.add_delta(b"k", 0)[0] == number


@given(number=st.integers(0, 2**64 - 1), delta=st.integers(0, 2**64 - 1), padded=st.booleans())
def test_up_wraps_and_down_stops_and_the_text_never_shrinks(
    number: int, delta: int, padded: bool
) -> None:
    node = Node()
    node.set(b"k", b"%d" % number)
    up, item = node.vbucket.add_delta(b"k", delta, padded=padded)
    assert up == (number + delta) % 2**64
    assert item.value == (b"%d" % up).ljust(len(b"%d" % number) if padded else 0)
    assert node.vbucket.add_delta(b"k", -delta)[0] == max(up - delta, 0)
