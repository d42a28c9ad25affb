"""The on-disk format: what was written in version 1 must be readable for ever."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.contracts.store_values import tombstone
from uprmc.errors import StoreCorrupt, StoreError
from uprmc.model import FailoverEntry, Item, Life, SnapshotRange, VBucketHeader, VBucketState
from uprmc.record import pack, without_value
from uprmc.storage import layout
from uprmc.storage.layout import Identity

u16, u32, u64 = (st.integers(0, 2**bits - 1) for bits in (16, 32, 64))

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
)

headers = st.builds(
    VBucketHeader,
    state=st.sampled_from(VBucketState),
    high_seqno=u64,
    snapshot=st.builds(SnapshotRange, u64, u64),
    failover_log=st.lists(st.builds(FailoverEntry, u64, u64), max_size=25).map(tuple),
    purge_seqno=u64,
    max_deleted_rev=u64,
    term=u64,
    max_cas=u64,
    known_term=u64,
)


#: A document's record of version 1: key "key", value "value!".
_RECORD_1 = bytes.fromhex(
    "01 03 00000006 0a0b0c0d 01020304 1112131415161718 0000000000002122 0000000000000031 03 00"
)
_ITEM = Item(b"key", b"value!", 0x0A0B0C0D, 0x01020304, 0x1112131415161718, 0x2122, 0x31, 3)


def test_an_entry_is_laid_out_as_documented() -> None:
    entry = layout.entry_of(pack(_ITEM))
    assert entry == bytes.fromhex(
        "02 04 03 01020304 03 0000000000000031 0000000000002122 1112131415161718 0a0b0c0d 00000006"
    )
    assert layout.by_seq_key_of(b"\x03\xff", entry) == bytes.fromhex("03ff 0000000000002122")
    assert layout.by_seq_key_of(b"\x03\xff", pack(_ITEM)) == bytes.fromhex("03ff0000000000002122")


def test_a_record_of_version_1_is_read_as_one_of_version_2() -> None:
    assert layout.read_record(_RECORD_1 + b"keyvalue!") == pack(_ITEM)
    assert layout.read_entry(b"key", _RECORD_1) == (without_value(pack(_ITEM)), 6)
    assert layout.by_seq_key_of(b"\x03\xff", _RECORD_1) == bytes.fromhex("03ff 0000000000002122")


def test_a_tombstone_of_version_1_is_read_as_one_of_version_2() -> None:
    data = bytes.fromhex("01 01 00000000 00000000 65000000 00000000000000ff 0000000000000007")
    data += bytes.fromhex("0000000000000009 00 02")
    expected = pack(Item(b"k", None, 0, 0x65000000, 0xFF, 7, 9, 0, Life.EXPIRED))
    assert layout.read_record(data + b"k") == expected
    assert layout.read_entry(b"k", data) == (expected, 0)


_HEADER_1 = bytes.fromhex(
    "01 02 0001 0000000000000005 0000000000000004 0000000000000006 0000000000000003"
    "0000000000000009 00000000000000aa 0000000000000002"
)


def test_a_header_of_version_2_is_laid_out_as_documented() -> None:
    log = (FailoverEntry(0xAA, 2),)
    header = VBucketHeader(VBucketState.REPLICA, 5, SnapshotRange(4, 6), log, 3, 9, 7, 0xC5, 8)
    assert layout.pack_header(header) == bytes.fromhex(
        "02 02 0001 0000000000000005 0000000000000004 0000000000000006 0000000000000003"
        "0000000000000009 0000000000000007 00000000000000c5 0000000000000008"
        "00000000000000aa 0000000000000002"
    )


def test_a_header_of_version_1_has_no_highest_cas_and_its_term_is_unknown() -> None:
    log = (FailoverEntry(0xAA, 2),)
    expected = VBucketHeader(VBucketState.REPLICA, 5, SnapshotRange(4, 6), log, 3, 9)
    assert layout.unpack_header(_HEADER_1) == expected


def test_an_active_vbucket_of_version_1_is_in_its_first_term() -> None:
    active = b"\x01\x01" + _HEADER_1[2:]
    header = layout.unpack_header(active)
    assert (header.term, header.known_term) == (1, 1)


@pytest.mark.parametrize("length", range(1, len(_HEADER_1)))
def test_a_header_of_version_1_that_was_cut_is_never_taken_for_one(length: int) -> None:
    with pytest.raises(StoreCorrupt):
        layout.unpack_header(_HEADER_1[:length])


def test_an_identity_is_laid_out_as_documented() -> None:
    packed = layout.pack_identity(Identity(1, 1024, 0xBEEF))
    assert packed == b"uprmc\r\n\x00" + bytes.fromhex("0001 0400 000000000000beef")
    assert layout.unpack_identity(packed) == Identity(1, 1024, 0xBEEF)


@given(items)
def test_an_entry_tells_all_but_the_value(item: Item) -> None:
    record = pack(item)
    assert layout.read_record(record) == record
    told, length = layout.read_entry(item.key, layout.entry_of(record))
    assert (told, length) == (without_value(record), len(item.value or b""))


@given(headers)
def test_a_header_survives_being_packed(header: VBucketHeader) -> None:
    assert layout.unpack_header(layout.pack_header(header)) == header


@given(items, st.data())
def test_a_record_that_was_cut_before_its_value_is_never_taken_for_one(
    item: Item, data: st.DataObject
) -> None:
    record = pack(item)
    cut = data.draw(st.integers(0, len(record) - len(item.value or b"") - 1))
    with pytest.raises(StoreCorrupt):
        layout.read_record(record[:cut])


@given(st.lists(items, max_size=5))
def test_many_records_are_read_as_each_of_them_is(found: list[Item]) -> None:
    records = [*map(pack, found), _RECORD_1 + b"keyvalue!"]
    assert layout.read_records(records) == list(map(layout.read_record, records))


@given(items, st.data())
def test_a_cut_record_is_found_among_many(item: Item, data: st.DataObject) -> None:
    record = pack(item)
    cut = data.draw(st.integers(0, len(record) - len(item.value or b"") - 1))
    with pytest.raises(StoreCorrupt):
        layout.read_records([pack(_ITEM), record[:cut]])


@pytest.mark.parametrize("length", range(len(_RECORD_1 + b"keyvalue!")))
def test_a_record_of_version_1_that_was_cut_is_never_taken_for_one(length: int) -> None:
    with pytest.raises(StoreCorrupt):
        layout.read_record((_RECORD_1 + b"keyvalue!")[:length])


@pytest.mark.parametrize("kind", [0x03, 0x08, 0x10, 0x20])
def test_a_record_of_no_known_kind_is_not_read(kind: int) -> None:
    record = pack(_ITEM)
    with pytest.raises(StoreCorrupt):
        layout.read_record(record[:1] + bytes([kind]) + record[2:])


@given(headers, st.data())
def test_a_header_that_was_cut_is_never_taken_for_one(
    header: VBucketHeader, data: st.DataObject
) -> None:
    packed = layout.pack_header(header)
    cut = data.draw(st.integers(0, len(packed) - 1))
    with pytest.raises(StoreCorrupt):
        layout.unpack_header(packed[:cut])


@given(st.tuples(u16, u64), st.tuples(u16, u64))
def test_by_seq_keys_sort_as_their_numbers_do(one: tuple[int, int], two: tuple[int, int]) -> None:
    assert (layout.by_seq_key(*one) < layout.by_seq_key(*two)) == (one < two)


@given(st.integers(0, 2**16 - 2), st.binary(max_size=250))
def test_all_keys_of_a_vbucket_lie_between_its_prefix_and_its_end(vb: int, key: bytes) -> None:
    prefix = layout.vbucket_prefix(vb)
    assert prefix <= prefix + key < layout.vbucket_end(vb)
    assert prefix <= prefix + b"\xff" * 250 < layout.vbucket_end(vb)
    assert layout.vbucket_of_header_key(layout.header_key(vb)) == vb
    assert layout.HEADER_PREFIX <= layout.header_key(vb) < layout.HEADER_END


def test_older_headers_are_brought_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    header = VBucketHeader(VBucketState.ACTIVE, 5, SnapshotRange(5, 5), ())
    old = layout.pack_header(header)
    newer = layout.HEADER_VERSION + 1
    monkeypatch.setattr(layout, "HEADER_VERSION", newer)
    steps = {newer - 1: lambda data: bytes([newer, VBucketState.REPLICA]) + data[2:]}
    monkeypatch.setattr(layout, "HEADER_UPGRADES", steps)
    assert layout.unpack_header(old).state == VBucketState.REPLICA


@pytest.mark.parametrize("version", [0, 3, 255])
def test_a_version_that_is_not_known_is_never_read(version: int) -> None:
    record = pack(tombstone(b"k", 1))
    with pytest.raises(StoreCorrupt, match=f"format version {version}"):
        layout.read_record(bytes([version]) + record[1:])
    with pytest.raises(StoreCorrupt, match=f"format version {version}"):
        layout.read_entry(b"k", bytes([version]) + layout.entry_of(record)[1:])


@pytest.mark.parametrize("data", [b"", b"uprmc", b"x" * 20, bytes(40)])
def test_what_is_no_identity_is_not_taken_for_one(data: bytes) -> None:
    with pytest.raises(StoreCorrupt):
        layout.unpack_identity(data)


def test_an_identity_that_does_not_fit_is_refused() -> None:
    with pytest.raises(StoreError):
        layout.pack_identity(Identity(1, 1024, 2**64))
