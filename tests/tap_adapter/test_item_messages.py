"""Single versions as TAP messages: the same as a stream's, for corrections."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tap_adapter.upr_pieces import CUT_FRAMES, MUTATION, VBUCKET, Frame, read_messages, split
from uprmc.model import Item, Life
from uprmc.tap_adapter.translate import TapForm, translate_run, version_message, with_ack

FORMS = [TapForm(*choice) for choice in product((False, True), repeat=2)]


@given(CUT_FRAMES, st.sampled_from(FORMS))
def test_a_correction_is_what_the_stream_would_have_sent(
    cut: list[tuple[Frame, str]], form: TapForm
) -> None:
    for frame, _ in cut:
        life = Life.LIVE if frame.opcode == MUTATION else Life.DELETED
        item = Item(
            frame.key,
            None if life else frame.value,
            frame.flags,
            frame.expiry,
            frame.cas,
            frame.seqno,
            frame.rev,
            life=life,
            nru=frame.nru,
        )
        out: list[bytes] = []
        translate_run(split(frame, "whole"), 0, out, 42, 1, form, None)
        assert version_message(item, VBUCKET, 42, form) == b"".join(out)
        assert version_message(item, VBUCKET, 42, form, flags=1) == with_ack(b"".join(out))


def test_a_document_without_its_value_can_only_be_told_by_its_key() -> None:
    item = Item(b"k", None, 0, 0, 1, 1, 1)
    assert read_messages(version_message(item, 0, 1, TapForm(keys_only=True)))[0].flags == 2
    with pytest.raises(AssertionError, match="without its value"):
        version_message(item, 0, 1, TapForm())


@given(st.binary(min_size=28, max_size=60))
def test_asking_for_an_answer_sets_one_bit(head: bytes) -> None:
    asking = with_ack(head)
    assert asking[27] == head[27] | 1
    assert (asking[:27], asking[28:]) == (head[:27], head[28:])
    assert with_ack(asking) == asking
