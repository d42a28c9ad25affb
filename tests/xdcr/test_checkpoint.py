"""Records of a link, and where it goes on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uprmc.xdcr.checkpoint import (
    KEPT,
    Record,
    acceptable,
    added,
    at_target,
    decode,
    decode_one,
    encode,
    encode_one,
    merged,
)


def record(seqno: int, *, uuid: int = 1, target: tuple[int, int] = (7, 0), at: int = 0) -> Record:
    return Record(uuid, seqno, seqno, seqno, target[0], target[1] or seqno, at or seqno)


NUMBERS = st.integers(0, 2**64 - 1)


@given(st.lists(st.builds(Record, *[NUMBERS] * len(Record._fields)), max_size=KEPT))
def test_what_was_written_is_read_back(records: list[Record]) -> None:
    assert list(decode(encode(records))) == records
    assert [decode_one(encode_one(each)) for each in records] == records


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"[]", b"{}", b'{"version":2,"records":[]}', b'{"version":1,"records":[{}]}',
     b'{"version":1,"records":[{"uuid":-1}]}', b"[" * 100_000],
)  # fmt: skip
def test_a_document_that_is_none_is_refused_in_one_line(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"\A[^\n]+\Z"):
        decode(text)
    assert decode_one(text) is None


def test_the_newest_five_are_kept_and_a_repeated_one_once() -> None:
    records: tuple[Record, ...] = ()
    for seqno in range(1, 9):
        records = added(records, record(seqno))
    assert [each.seqno for each in records] == [8, 7, 6, 5, 4]
    again = record(8, target=(7, 99))
    assert added(records, again) == (again, *records[1:])


def test_a_record_of_a_watermark_row_takes_its_place_by_age() -> None:
    records = (record(9, at=90), record(5, at=50))
    assert merged(records, None) == records
    assert [each.seqno for each in merged(records, record(7, at=70))] == [9, 7, 5]


def test_a_target_has_a_record_while_its_history_goes_up_to_there() -> None:
    log = [(8, 100), (7, 0)]  # history 7 ended at 100
    records = [record(3, target=(9, 5)), record(2, target=(7, 101)), record(1, target=(7, 100))]
    assert at_target(records, log, 120) == records[2:]
    assert at_target([record(4, target=(8, 120))], log, 120)
    assert not at_target([record(4, target=(8, 121))], log, 120)
    foreign = [record(4, target=(0, 1))]
    assert at_target(foreign, [], 0) == foreign
    assert not at_target(foreign, log, 120)


def test_records_are_tried_from_the_newest_and_not_above_what_the_source_still_has() -> None:
    asked: list[int] = []

    def rolled_back_to(one: Record) -> int | None:
        asked.append(one.seqno)
        return None if one.seqno <= 60 else 64

    records = [record(seqno) for seqno in (100, 80, 60, 40)]
    assert acceptable(records, rolled_back_to) == (records[2], 64)
    assert asked == [100, 60]


def test_an_unknown_history_does_not_rule_out_older_records() -> None:
    records = [record(100, uuid=9), record(80, uuid=1)]
    found = acceptable(records, lambda one: 0 if one.uuid == 9 else None)
    assert found == (records[1], 0)
    assert acceptable(records, lambda _: 0) == (None, 0)
    assert acceptable([], lambda _: 0) == (None, None)
