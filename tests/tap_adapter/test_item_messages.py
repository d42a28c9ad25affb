"""Single versions as TAP messages: the same as a stream's, and back again at who is pushed."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tap_adapter.upr_pieces import CUT_FRAMES, MUTATION, VBUCKET, Frame, read_messages, split
from uprmc.model import Item, Life
from uprmc.protocol.header import decode_frame
from uprmc.protocol.opcodes import Opcode
from uprmc.protocol.tap import TapMessage, decode_message
from uprmc.tap_adapter.consumer import is_plain, version_in
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


# --- and back again -------------------------------------------------------------------------------

U32, U64 = (st.integers(0, 2**bits - 1) for bits in (32, 64))
REV_7 = b"\0\0\0\0\0\0\0\7"


def read(sent: bytes) -> TapMessage:
    frame = decode_frame(sent)
    numbers = (int.from_bytes(sent[6:8], "big"), frame.opaque, frame.cas)
    rest = frame.key + frame.value
    return decode_message(frame.opcode, *numbers, frame.extras, len(frame.key), rest)


@given(
    st.builds(
        Item,
        st.binary(min_size=1, max_size=9),
        st.binary(max_size=9),
        *(U32, U32, U64, st.just(0), U64),
        nru=st.integers(0, 3),
    ),
    st.booleans(),
)
def test_a_document_comes_back_from_its_message(item: Item, as_stored: bool) -> None:
    message = read(version_message(item, 7, 1, TapForm(network_byte_order=as_stored)))
    assert (message.vbucket, is_plain(message)) == (7, False)
    assert version_in(message) == item
    assert version_in(message).nru == item.nru


@given(st.binary(min_size=1, max_size=9), U64, U64, st.sampled_from([Life.DELETED, Life.EXPIRED]))
def test_a_tombstone_comes_back_as_a_deletion_of_revision_1_at_least(
    key: bytes, cas: int, rev: int, life: Life
) -> None:
    sent = version_message(Item(key, None, 0, 0, cas, 0, rev, life=life), 7, 1, TapForm())
    gone = version_in(read(sent))
    assert gone == Item(key, None, 0, 0, cas, 0, max(1, rev), life=Life.DELETED)


@pytest.mark.parametrize("opcode", [Opcode.TAP_MUTATION, Opcode.TAP_DELETE])
@pytest.mark.parametrize("section", [b"", b"\1" * 7, REV_7, REV_7 + b"\1more"])
def test_without_a_whole_revision_it_is_a_plain_set_or_delete(opcode: int, section: bytes) -> None:
    message = TapMessage(opcode, 3, 1, 9, 0, 255, 0, 60, section, b"k", b"")
    assert is_plain(message) == (len(section) < 8)
    item = version_in(message)
    assert (item.cas, item.rev) == ((0, 0) if len(section) < 8 else (9, 7))
