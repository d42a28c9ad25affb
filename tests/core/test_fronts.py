"""Contract of `uprmc.core.fronts`: a queue's newest segment, in both forms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.test_records import record
from uprmc.core.form import COMPILED, FORM
from uprmc.core.fronts import DictSegment
from uprmc.core.numbered import Numbered

NewSegment = Callable[[int, int], Any]


@pytest.fixture(scope="module", params=["interpreted", "compiled"])
def new_segment(request: pytest.FixtureRequest) -> NewSegment:
    if request.param == "interpreted":
        return DictSegment
    if FORM != COMPILED:
        pytest.skip("the compiled core is not in use: no C compiler, or UPRMC_CORE")
    from uprmc.core.native.fronts import Segment

    return Segment


@given(
    seqnos=st.sets(st.integers(8, 15)),
    gone=st.sets(st.integers(8, 15)),
    after=st.integers(0, 20),
    upto=st.integers(0, 20),
)
def test_a_segment_has_what_was_put_in_and_not_taken_out(
    new_segment: NewSegment, seqnos: set[int], gone: set[int], after: int, upto: int
) -> None:
    segment = new_segment(1, 3)
    entries = {seqno: record(b"k", seqno=seqno) for seqno in sorted(seqnos)}
    for seqno, entry in entries.items():
        segment.append(seqno, entry)
    for seqno in gone & seqnos:
        segment.remove(seqno)
    left = sorted(seqnos - gone)
    assert len(segment) == len(left)
    assert [seqno for seqno in range(20) if seqno in segment] == left
    assert segment.between(after, upto) == [entries[n] for n in left if after < n <= upto]


def test_things_by_number_are_in_the_list_as_in_the_dict() -> None:
    things: Numbered[str] = Numbered()
    slots = things.slots
    things[2], things[0], things[5] = "two", "zero", "five"
    assert slots == ["zero", None, "two", None, None, "five"]
    del things[0]
    assert (things.pop(2), things.pop(7, None), things) == ("two", None, {5: "five"})
    assert slots == [None, None, None, None, None, "five"]
    things.clear()
    assert not any(slots)
    assert things.slots is slots
