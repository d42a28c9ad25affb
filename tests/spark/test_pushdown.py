"""Filters that the source applies, and those that it leaves to Spark: never a half of one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark", reason="filters are Spark's")

from pyspark.sql.datasource import (
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    Not,
    StringContains,
    StringStartsWith,
)

from uprmc.columnar.lease import LeaseContents
from uprmc.columnar.read_state import Range
from uprmc.columnar.schema import PERMISSIVE, Columns
from uprmc.spark.batch import skipping
from uprmc.spark.pushdown import Wanted, meeting, push

TEXT, BINARY = Columns(), Columns(key_type="binary")


def pushed(*filters: Any, columns: Columns = TEXT) -> Wanted:
    wanted, rest = push(filters, columns)
    assert rest == []
    return wanted


def test_vbuckets_of_all_filters_are_those_in_each() -> None:
    assert pushed(EqualTo(("_vb",), 5)).vbuckets == {5}
    assert pushed(In(("_vb",), (5, 6)), In(("_vb",), (6, 7))).vbuckets == {6}
    assert pushed(EqualTo(("_vb",), 5), EqualTo(("_vb",), 6)).vbuckets == frozenset()


def test_the_highest_seqno_counts() -> None:
    assert pushed(GreaterThan(("_seq",), 5), GreaterThanOrEqual(("_seq",), 5)).after == 5
    assert pushed(GreaterThanOrEqual(("_seq",), 7)).after == 6


def test_ops_and_prefixes() -> None:
    wanted = pushed(
        EqualTo(("_op",), "set"), StringStartsWith(("key",), "a"), StringStartsWith(("key",), "ab")
    )
    assert wanted == Wanted(ops=frozenset({"set"}), prefixes=("a", "ab"))


def test_keys_that_are_named_are_those_in_each_filter() -> None:
    assert pushed(EqualTo(("key",), "a")).keys == {b"a"}
    assert pushed(In(("key",), ("a", "\xe4")), EqualTo(("key",), "\xe4")).keys == {b"\xc3\xa4"}
    assert pushed(EqualTo(("key",), b"\xff"), columns=BINARY).keys == {b"\xff"}


def test_a_key_that_may_stand_for_other_bytes_is_left_to_spark() -> None:
    each = EqualTo(("key",), "\\xff")
    assert push([each], Columns(mode=PERMISSIVE)) == (Wanted(), [each])
    nothing = In(("key",), ("a", None))
    assert push([nothing], TEXT) == (Wanted(), [nothing])


def test_that_a_column_is_there_goes_without_saying() -> None:
    assert pushed(IsNotNull(("key",)), IsNotNull(("_seq",))) == Wanted()


@pytest.mark.parametrize(
    "each",
    [
        Not(EqualTo(("_vb",), 5)),
        LessThan(("_seq",), 5),
        GreaterThan(("_seq",), -1),
        GreaterThanOrEqual(("_seq",), 0),
        GreaterThan(("_seq",), 2**63),
        GreaterThan(("_rev",), 1),
        EqualTo(("_vb",), None),
        In(("_vb",), (1, None)),
        In(("_op",), ("set", None)),
        StringContains(("key",), "a"),
        EqualTo(("key", "part"), 1),
        IsNull(("key",)),
        IsNotNull(("value",)),
    ],
    ids=repr,
)
def test_everything_else_is_left_to_spark(each: Any) -> None:
    assert push([each], TEXT) == (Wanted(), [each])


def test_prefixes_of_binary_keys_are_left_to_spark() -> None:
    each = StringStartsWith(("key",), "a")
    assert push([each], BINARY) == (Wanted(), [each])


def test_rows_are_left_that_meet_all() -> None:
    batch = pa.RecordBatch.from_pydict(
        {
            "key": ["ab", "ac", "b", "ab2"],
            "_seq": [1, 5, 6, 7],
            "_op": ["set", "set", "set", "delete"],
        }
    )
    meets = meeting(Wanted(after=1, ops=frozenset({"set"}), prefixes=("a",)))
    assert meets(batch).to_pydict() == {"key": ["ac"], "_seq": [5], "_op": ["set"]}
    assert meeting(Wanted())(batch) is batch


HELD = LeaseContents(vbucket=0, uuid=9, high_seqno=10, purge_seqno=3, place="a:1")


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (2, Range(0)),  # deletions up to 3 are gone: the node would refuse
        (3, Range(0, 3, 9, 3, 3)),
        (9, Range(0, 9, 9, 9, 9)),
        (10, None),
        (11, None),
    ],
)
def test_a_node_need_not_send_what_is_not_wanted(after: int, expected: Range | None) -> None:
    found = skipping({0: Range(0)}, {0: HELD}, after)
    assert found == ({} if expected is None else {0: expected})


def test_a_range_that_begins_later_anyway_stays_as_it_is() -> None:
    later = replace(Range(0), start=8, uuid=1, snap_start=8, snap_end=8)
    assert skipping({0: later}, {0: HELD}, 5) == {0: later}
