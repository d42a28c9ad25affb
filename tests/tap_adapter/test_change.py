"""What pushed messages mean, with the oddities of old masters resolved."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.golden.tap import BY_NUMBER
from uprmc.errors import RemoteProtocolError
from uprmc.model import Item, Life, VBucketState
from uprmc.protocol.header import decode_frame
from uprmc.protocol.opcodes import Opcode
from uprmc.protocol.tap import TapFlag, TapMessage, decode_message
from uprmc.tap_adapter.consumer import Action, TapChange, change_of
from uprmc.tap_adapter.translate import TapForm, version_message

U8, U16, U32, U64 = (st.integers(0, 2**bits - 1) for bits in (8, 16, 32, 64))
ORDER, NO_VALUE = int(TapFlag.NETWORK_BYTE_ORDER), int(TapFlag.NO_VALUE)
REV_7, REV_0 = b"\0\0\0\0\0\0\0\7", bytes(8)


def read(frame_bytes: bytes) -> TapMessage:
    frame = decode_frame(frame_bytes)
    numbers = (int.from_bytes(frame_bytes[6:8], "big"), frame.opaque, frame.cas)
    rest = frame.key + frame.value
    return decode_message(frame.opcode, *numbers, frame.extras, len(frame.key), rest)


def change_in(number: str) -> TapChange:
    return change_of(read(BY_NUMBER[number].packet))


def message(
    opcode: int, *, specific: bytes = b"", flags: int = 0, cas: int = 9, value: bytes = b""
) -> TapMessage:
    return TapMessage(opcode, 3, 1, cas, flags, 255, 0x11223344, 60, specific, b"k", value)


def item_of(change: TapChange) -> Item:
    assert change.item is not None
    return change.item


@pytest.mark.acceptance("D56")
def test_the_vectors_mean_what_the_reference_says() -> None:
    item = Item(b"k1", b"v1", 0xDEADBEEF, 0, 0x0102030405060708, 0, 7, nru=2)
    assert change_in("4") == TapChange(Action.STORE, 3, item)
    assert item_of(change_in("5")).expiry == 1_700_000_000
    gone = Item(b"k1", None, 0, 0, 0, 0, 8, life=Life.DELETED)
    assert change_in("7") == TapChange(Action.REMOVE, 3, gone)
    assert change_in("8") == TapChange(Action.FLUSH, 0)
    assert change_in("9") == TapChange(Action.NOTHING, 0)
    assert change_in("10") == TapChange(Action.RESET, 3)
    assert change_in("11") == TapChange(Action.END_BACKFILL, 3)
    assert change_in("12") == TapChange(Action.SET_STATE, 3, number=VBucketState.PENDING)
    assert change_in("13") == TapChange(Action.SET_STATE, 3, number=VBucketState.ACTIVE)
    assert change_in("14") == TapChange(Action.OPEN_CHECKPOINT, 3, number=10, deleted_rev=5)
    assert change_in("15") == TapChange(Action.CLOSE_CHECKPOINT, 3, number=10)


def test_a_push_of_pump_tap_keeps_revision_and_flags() -> None:
    change = change_in("24")
    assert (change.vbucket, change.plain) == (0, False)
    assert item_of(change) == Item(b"legacy1", b"from-master", 0x01020304, 0, 0, 0, 7)


@given(
    st.builds(
        Item,
        st.binary(min_size=1, max_size=9),
        st.binary(max_size=9),
        U32,
        U32,
        U64,
        st.just(0),
        U64,
        life=st.just(0),
        nru=st.integers(0, 3),
    ),
    st.booleans(),
)
def test_a_document_comes_back_from_its_message(item: Item, as_stored: bool) -> None:
    sent = version_message(item, 7, 1, TapForm(network_byte_order=as_stored))
    change = change_of(read(sent))
    assert change == TapChange(Action.STORE, 7, item)
    assert item_of(change).nru == item.nru


@given(st.binary(min_size=1, max_size=9), U64, st.integers(1, 2**64 - 1), st.sampled_from(Life))
def test_a_tombstone_comes_back_from_its_message(
    key: bytes, cas: int, rev: int, life: Life
) -> None:
    if life:
        item = Item(key, None, 0, 0, cas, 0, rev, life=life)
        change = change_of(read(version_message(item, 7, 1, TapForm())))
        assert change == TapChange(Action.REMOVE, 7, item_of(change))
        gone = item_of(change)
        assert (gone.key, gone.cas, gone.rev, gone.life) == (key, cas, rev, Life.DELETED)


# --- sections -----------------------------------------------------------------------------------


@pytest.mark.parametrize("length", range(8))
def test_without_a_whole_revision_it_is_a_plain_set_or_delete(length: int) -> None:
    for opcode in (Opcode.TAP_MUTATION, Opcode.TAP_DELETE):
        change = change_of(message(opcode, specific=b"\1" * length))
        assert change.plain
        assert (item_of(change).cas, item_of(change).rev) == (0, 0)


@pytest.mark.parametrize(
    ("specific", "nru"),
    [
        (REV_7, 2),
        (REV_7 + b"\0", 0),
        (REV_7 + b"\3", 3),
        (REV_7 + b"\4", 2),
        (REV_7 + b"\xff", 2),
        (REV_7 + b"\1more", 1),
    ],
)
def test_a_section_may_tell_how_cold_a_document_is(specific: bytes, nru: int) -> None:
    change = change_of(message(Opcode.TAP_MUTATION, specific=specific))
    assert not change.plain
    assert (item_of(change).rev, item_of(change).nru, item_of(change).cas) == (7, nru, 9)


def test_a_deletion_of_revision_0_is_the_first_one() -> None:
    assert item_of(change_of(message(Opcode.TAP_DELETE, specific=REV_0))).rev == 1
    assert item_of(change_of(message(Opcode.TAP_MUTATION, specific=REV_0))).rev == 0


# --- what ends the connection -------------------------------------------------------------------


@pytest.mark.parametrize(
    "specific",
    [b"", b"\1", b"\0\0\0\1\0", bytes(4), b"\0\0\0\5", b"\1\0\0\0"],
)
def test_what_is_no_state_is_refused(specific: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="state"):
        change_of(message(Opcode.TAP_VBUCKET_SET, specific=specific))


@pytest.mark.parametrize("opcode", [Opcode.TAP_CHECKPOINT_START, Opcode.TAP_CHECKPOINT_END])
@pytest.mark.parametrize("value", [b"", bytes(7), bytes(9)])
def test_a_checkpoint_without_an_id_is_refused(opcode: int, value: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="checkpoint"):
        change_of(message(opcode, value=value))


def test_a_document_without_its_value_is_refused_instead_of_emptied() -> None:
    with pytest.raises(RemoteProtocolError, match="value"):
        change_of(message(Opcode.TAP_MUTATION, specific=REV_7, flags=NO_VALUE | ORDER))


@given(U8, U16, st.binary(max_size=12), st.binary(max_size=12))
def test_nothing_but_our_own_error_is_raised(
    opcode: int, flags: int, specific: bytes, value: bytes
) -> None:
    with suppress(RemoteProtocolError):
        change_of(message(opcode, specific=specific, flags=flags, value=value))
