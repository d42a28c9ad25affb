"""What is taken for certain of a stretch in the middle of which a client refuses a message."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uprmc.tap_adapter.window import Mark, TapWindow

pytestmark = pytest.mark.acceptance("D56")


@given(st.data())
def test_a_refusal_never_counts_a_seqno_whose_item_was_not_taken(data: st.DataObject) -> None:
    before = data.draw(st.integers(0, 20))
    seqnos = sorted(data.draw(st.sets(st.integers(before + 1, 60), min_size=1)))
    refused = data.draw(st.integers(1, len(seqnos)))
    window = TapWindow(1_000)
    window.add_items(0, len(seqnos), Mark(seqnos[-1], before, 60), before)
    found = window.refuse(refused)
    assert found is not None
    taken = seqnos[: refused - 1]
    if not taken:
        assert found.settled.marks == {}
        return
    mark = found.settled.marks[0]
    assert before < mark.seqno < seqnos[refused - 1]
    assert mark.start <= mark.seqno <= mark.end


def test_items_whose_seqnos_do_not_rise_count_by_whole_stretches_only() -> None:
    window = TapWindow(1_000)
    window.add_items(0, 3, Mark(9, 0, 9), 0)
    window.add_items(0, 2, Mark(9, 0, 9))
    found = window.refuse(5)
    assert found is not None
    assert found.settled.marks == {}
