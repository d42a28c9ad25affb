"""A document as packed bytes: what is written down in one place must be readable for ever."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uprmc.model import Item, Life, Origin
from uprmc.record import (
    ABSENT,
    NEVER,
    READ_PLAIN_FOREVER,
    cas_of,
    expiry_bytes,
    key_of,
    pack,
    seqno_of,
    stored_origin,
    unpack,
    value_bytes_of,
    without_value,
)

u32, u64 = (st.integers(0, 2**bits - 1) for bits in (32, 64))

origins = st.none() | st.builds(Origin, u64, u64)
items = st.builds(
    Item,
    key=st.binary(min_size=1, max_size=250),
    value=st.binary(max_size=300),
    flags=u32,
    expiry=u32,
    cas=u64,
    seqno=u64,
    rev=u64,
    datatype=st.integers(0, 255),
    origin=origins,
) | st.builds(
    Item,
    key=st.binary(min_size=1, max_size=250),
    value=st.none(),
    flags=u32,
    expiry=u32,
    cas=u64,
    seqno=u64,
    rev=u64,
    life=st.sampled_from([Life.DELETED, Life.EXPIRED]),
    origin=origins,
)

_ITEM = Item(b"key", b"value!", 0x0A0B0C0D, 0x01020304, 0x1112131415161718, 0x2122, 0x31, 3)


def test_a_record_of_version_2_is_laid_out_as_documented() -> None:
    assert pack(_ITEM) == (
        bytes.fromhex("02 00 03 01020304 03 0000000000000031 0000000000002122")
        + b"key"
        + bytes.fromhex("1112131415161718 0a0b0c0d")
        + b"value!"
    )


def test_an_origin_stands_between_key_and_tail() -> None:
    item = Item(b"key", b"v", 7, 0, 9, 5, 3, origin=Origin(0xA1B2, 0xC3))
    record = pack(item)
    assert record == (
        bytes.fromhex("02 08 00 00000000 03 0000000000000003 0000000000000005")
        + b"key"
        + bytes.fromhex("000000000000a1b2 00000000000000c3 0000000000000009 00000007")
        + b"v"
    )
    assert stored_origin(record) == Origin(0xA1B2, 0xC3)
    assert stored_origin(pack(_ITEM)) is None


def test_a_tombstone_has_its_kind_and_no_value() -> None:
    record = pack(Item(b"k", None, 0, 7, 1, 2, 3, 0, Life.EXPIRED))
    assert record[1] == Life.EXPIRED
    assert unpack(record).value is None
    assert without_value(record) == record


@given(items, st.integers(0, 3))
def test_an_item_survives_being_packed(item: Item, nru: int) -> None:
    item.nru = nru
    record = pack(item)
    back = unpack(record)
    assert (back, back.nru) == (item, nru)
    assert (key_of(record), seqno_of(record), cas_of(record)) == (item.key, item.seqno, item.cas)
    assert value_bytes_of(record) == len(item.value or b"")


@given(items)
def test_a_document_without_its_value_keeps_all_else(item: Item) -> None:
    kept = without_value(pack(item))
    assert unpack(kept) == item.with_value(None)
    assert bool(kept[1] & ABSENT) == (not item.life)
    assert pack(item.with_value(None)) == kept


def test_a_document_that_was_read_is_known_by_its_beginning() -> None:
    plain = Item(b"k", b"v", 5, 0, 1, 2, 3, nru=0)
    assert pack(plain).startswith(READ_PLAIN_FOREVER)
    for other in (
        Item(b"k", b"v", 5, 0, 1, 2, 3, nru=2),
        Item(b"k", b"v", 5, 0, 1, 2, 3, nru=0, origin=Origin(1, 1)),
        Item(b"k", b"v", 5, 1, 1, 2, 3, nru=0),
        Item(b"k", b"v", 5, 0, 1, 2, 3, 1, nru=0),
        Item(b"k", None, 5, 0, 1, 2, 3, nru=0),
        Item(b"k", None, 5, 0, 1, 2, 3, 0, Life.DELETED, nru=0),
    ):
        assert not pack(other).startswith(READ_PLAIN_FOREVER)


@given(st.integers(1, 2**32 - 1), st.floats(-1e12, 1e12))
def test_times_compare_as_numbers_do(expiry: int, now: float) -> None:
    there = pack(Item(b"k", b"", 0, expiry, 1, 1, 1))[3:7] > expiry_bytes(now)
    assert there == (expiry > now)
    assert not expiry_bytes(now) < NEVER


@pytest.mark.parametrize(
    "item", [Item(b"k" * 256, b"", 0, 0, 1, 1, 1), Item(b"k", b"", 0, 0, 1, 2**64, 1)]
)
def test_what_does_not_fit_is_refused(item: Item) -> None:
    with pytest.raises(struct.error):
        pack(item)
