"""The on-disk format, byte by byte."""

from __future__ import annotations

from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uprmc.errors import StoreCorrupt, StoreError
from uprmc.model import (
    ConflictRule,
    FailoverEntry,
    SnapshotRange,
    VBucketHeader,
    VBucketState,
)
from uprmc.storage import layout
from uprmc.storage.layout import Identity

u16, u32, u64 = (st.integers(0, 2**bits - 1) for bits in (16, 32, 64))

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


def test_a_header_of_version_2_is_laid_out_as_documented() -> None:
    log = (FailoverEntry(0xAA, 2),)
    header = VBucketHeader(VBucketState.REPLICA, 5, SnapshotRange(4, 6), log, 3, 9, 7, 0xC5, 8)
    assert layout.pack_header(header) == bytes.fromhex(
        "02 02 0001 0000000000000005 0000000000000004 0000000000000006 0000000000000003"
        "0000000000000009 0000000000000007 00000000000000c5 0000000000000008"
        "00000000000000aa 0000000000000002"
    )


def test_an_identity_is_laid_out_as_documented() -> None:
    identity = Identity(4, 1024, 0xBEEF, ConflictRule.TIMESTAMP)
    packed = layout.pack_identity(identity)
    content = b"uprmc\r\n\x00" + bytes.fromhex("0004 0400 000000000000beef 01")
    assert packed == content + crc32(content, crc32(b"identity")).to_bytes(4, "big")
    assert layout.unpack_identity(packed) == identity
    assert layout.unpack_identity(packed[:20]).conflict_rule is ConflictRule.REVISION, "until 3"
    with pytest.raises(StoreCorrupt, match="number 2"):
        layout.unpack_identity(packed[:20] + b"\x02")


@given(headers)
def test_a_header_survives_being_packed(header: VBucketHeader) -> None:
    assert layout.unpack_header(layout.pack_header(header)) == header


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


@pytest.mark.parametrize("version", [0, 1, 3, 255])
def test_a_header_of_another_version_is_never_read(version: int) -> None:
    header = VBucketHeader(VBucketState.ACTIVE, 5, SnapshotRange(5, 5), ())
    with pytest.raises(StoreCorrupt):
        layout.unpack_header(bytes([version]) + layout.pack_header(header)[1:])


@given(st.binary(min_size=1, max_size=12), st.binary(max_size=90), st.data())
def test_a_seal_notices_a_flipped_bit_and_another_key(
    key: bytes, value: bytes, data: st.DataObject
) -> None:
    sealed = layout.sealed(key, value)
    assert layout.unsealed(key, sealed) == value
    bit = data.draw(st.integers(0, 8 * len(sealed) - 1))
    flipped = bytearray(sealed)
    flipped[bit // 8] ^= 1 << bit % 8
    for name, stored in ((key, bytes(flipped)), (key + b"x", sealed), (key, sealed[:-1])):
        with pytest.raises(StoreCorrupt):
            layout.unsealed(name, stored)


@pytest.mark.parametrize("data", [b"", b"uprmc", b"x" * 20, bytes(40)])
def test_what_is_no_identity_is_not_taken_for_one(data: bytes) -> None:
    with pytest.raises(StoreCorrupt):
        layout.unpack_identity(data)


def test_an_identity_that_does_not_fit_is_refused() -> None:
    with pytest.raises(StoreError):
        layout.pack_identity(Identity(1, 1024, 2**64))
