"""Contract of `uprmc.core.records.Records`: both forms behave as a dict does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from uprmc.core.records import DictRecords, Records, read_seqnos, seqnos_of
from uprmc.record import ABSENT, FRONT, FRONT_BYTES, RECORD_VERSION, TAIL

NewRecords = Callable[[], Records]


DELETED = 1


def record(key: bytes, value: bytes = b"value", seqno: int = 1, kind: int = 0) -> bytes:
    front = FRONT.pack(RECORD_VERSION, kind, 0, 0, len(key), 1, seqno)
    return front + key + TAIL.pack(1, 0) + value


def key_of(made: bytes) -> bytes:
    return made[FRONT_BYTES : FRONT_BYTES + made[7]]


def check(records: Records) -> None:
    """Verify the structure, where it has one."""
    getattr(records, "check", lambda: None)()


def content(records: Records) -> dict[bytes, bytes]:
    found = {key_of(each): each for each in records.values()}
    assert len(found) == len(records)
    assert set(records) == found.keys()
    return found


def test_a_new_one_is_empty(new_records: NewRecords) -> None:
    records = new_records()
    assert len(records) == 0
    assert records.get(b"k") is records.lookup(b"k") is None
    assert b"k" not in records
    assert list(records.values()) == list(records) == []
    with pytest.raises(KeyError):
        records.pop(b"k")


@pytest.mark.parametrize("length", [0, 1, 3, 4, 5, 7, 8, 9, 15, 16, 17, 250, 255])
def test_a_record_is_found_by_its_key(new_records: NewRecords, length: int) -> None:
    key = bytes(range(length))
    records = new_records()
    made = record(key)
    records[key] = made
    assert records.get(key) is records.lookup(key) is made
    assert key in records
    others = [key + b"x", key[:-1] + b"\xff", key[:-1], b"\0" + key, key * 300]
    others += [key[:place] + b"\xfe" + key[place + 1 :] for place in range(length)]
    for other in others:
        assert records.get(other) is (made if other == key else None)


def test_a_key_has_one_record(new_records: NewRecords) -> None:
    records = new_records()
    records[b"k"] = record(b"k", seqno=1)
    records[b"k"] = newer = record(b"k", seqno=2)
    assert list(records.values()) == [newer]


def test_many_are_put_in_at_once_and_counted(new_records: NewRecords) -> None:
    records = new_records()
    first = record(b"a"), record(b"bb", b"", kind=ABSENT), record(b"ccc", kind=DELETED)
    assert records.put_all([*first], 100) == (
        [None, None, None],
        sum(map(len, first)) + 6 + 300,
        1,
        1,
    )
    others = record(b"ccc"), record(b"a", kind=DELETED), record(b"bb", b"longer"), record(b"a")
    replaced, grown, dead, absent = records.put_all([*others], 100)
    assert replaced == [first[2], first[0], first[1], others[1]]
    assert (grown, dead, absent) == (6, -1, -1)
    assert content(records) == {b"a": others[3], b"bb": others[2], b"ccc": others[0]}
    assert records.put_all([], 100) == ([], 0, 0, 0)


def test_what_is_taken_out_is_returned_once(new_records: NewRecords) -> None:
    records = new_records()
    records[b"k"] = made = record(b"k")
    assert records.pop(b"k") is made
    assert records.get(b"k") is None
    with pytest.raises(KeyError):
        records.pop(b"k")


def test_half_of_many_are_there_after_the_others_were_taken_out(
    new_records: NewRecords,
) -> None:
    records = new_records()
    keys = [b"key-%016d" % number for number in range(100_000)]
    for key in keys:
        records[key] = record(key, b"")
    for key in keys[::2]:
        records.pop(key)
    check(records)
    assert content(records).keys() == set(keys[1::2])
    assert records.own_bytes() < 100 * len(keys)


def test_portions_have_each_key_once_that_stays_while_others_come_and_go(
    new_records: NewRecords,
) -> None:
    records = new_records()
    for number in range(6_000):
        records[b"%d" % number] = record(b"%d" % number)
    seen: list[bytes] = []
    for turn, portion in enumerate(records.portions()):
        seen += map(key_of, portion)
        for number in range(2_000 * turn, 2_000 * (turn + 1)):
            records[b"new %d" % number] = record(b"new %d" % number)
        if turn < 1_000:
            records.pop(b"%d" % turn)
    staying = {b"%d" % number for number in range(1_000, 6_000)}
    assert sorted(key for key in seen if key in staying) == sorted(staying)
    assert len(seen) == len(set(seen))


def test_the_pieces_have_every_record(new_records: NewRecords) -> None:
    records = new_records()
    for number in range(5_000):
        records[b"%d" % number] = record(b"%d" % number)
    found = [
        each
        for piece in records.pieces()
        for each in (piece.values() if isinstance(piece, dict) else piece)
        if each is not None
    ]
    assert {*map(key_of, found)} == {b"%d" % number for number in range(5_000)}


def test_the_order_depends_on_the_changes_alone(new_records: NewRecords) -> None:
    first, second = new_records(), new_records()
    for records in (first, second):
        for number in range(3_000):
            records[b"%d" % number] = record(b"%d" % number)
        for number in range(0, 3_000, 3):
            records.pop(b"%d" % number)
    assert list(first) == list(second)


_keys = st.binary(max_size=3) | st.integers(0, 3_000).map(b"a longer key %d".__mod__)
_changes = st.lists(st.tuples(_keys, st.booleans() | st.none()), max_size=300)


@settings(max_examples=200, deadline=None)
@given(changes=_changes, grown=st.booleans())
def test_any_changes_leave_what_a_dict_has(
    new_records: NewRecords, changes: list[tuple[bytes, bool | None]], grown: bool
) -> None:
    records, model = new_records(), DictRecords()
    if grown:
        for number in range(2_000):
            key = b"a longer key %d" % number
            records[key] = model[key] = record(key, b"")
    for seqno, (key, puts) in enumerate(changes, 1):
        if puts:
            records[key] = model[key] = record(key, b"", seqno)
        elif puts is None:
            assert records.get(key) == model.get(key)
        elif key in model:
            assert records.pop(key) == model.pop(key)
        else:
            assert key not in records
    check(records)
    assert content(records) == model


def test_one_change_never_moves_more_than_a_segment() -> None:
    """What bounds the longest turn of the reactor while a vBucket grows to a million documents."""
    table = pytest.importorskip("uprmc.core.native.table", reason="needs librt")
    records = table.RecordTable()
    moved = []
    for number in range(20_000):
        before = len(records.segments())
        records.put(record(b"key %d" % number, b""))
        if len(records.segments()) != before:
            moved.append(number)
    assert moved
    assert max(len(segment.slots) for segment in records.segments()) <= table.SEGMENT_SLOTS
    assert max(map(len, records.portions())) <= table.SEGMENT_SLOTS


def test_seqnos_are_read_of_many_records_at_once() -> None:
    seqnos = [1, 2**40, 2**63 - 1, 2**63, 2**64 - 1]
    records = [record(b"k" * n, seqno=seqno) for n, seqno in enumerate(seqnos)]
    assert seqnos_of(records) == read_seqnos(records) == seqnos
    assert seqnos_of([]) == []
