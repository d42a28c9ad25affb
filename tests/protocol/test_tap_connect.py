"""TAP_CONNECT and the filter of vBuckets: what may be left out, and what is refused."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uprmc.errors import LocalProtocolError, RemoteProtocolError
from uprmc.protocol.header import decode_frame
from uprmc.protocol.tap import (
    TAP_CHECKPOINT_ENTRY,
    TAP_CONNECT_EXTRAS,
    TAP_COUNT,
    Connect,
    ConnectFlag,
    decode_connect,
    decode_filter,
    encode_connect,
)

U16, U32, U64 = (st.integers(0, 2**bits - 1) for bits in (16, 32, 64))
ALL_FLAGS = 0x1FF
LIST, CHECKPOINT, REGISTERED = (
    ConnectFlag.LIST_VBUCKETS,
    ConnectFlag.CHECKPOINT,
    ConnectFlag.REGISTERED_CLIENT,
)


@st.composite
def connects(draw: st.DrawFn) -> Connect:
    """Draw what a client may say; what its flags do not ask for keeps its default."""
    flags = draw(st.integers(0, ALL_FLAGS))
    numbers = draw(st.none() | st.lists(U16, min_size=1, max_size=20, unique=True).map(tuple))
    return Connect(
        draw(st.binary(max_size=250)),
        flags,
        draw(U64) if flags & ConnectFlag.BACKFILL else 0,
        numbers if flags & LIST else None,
        draw(st.dictionaries(U16, U64, max_size=20)) if flags & CHECKPOINT else {},
        draw(st.booleans()) if flags & REGISTERED else False,
    )


def extras(flags: int) -> bytes:
    packed: bytes = TAP_CONNECT_EXTRAS.pack(flags)
    return packed


def decoded(flags: int, value: bytes) -> Connect:
    return decode_connect(b"", extras(flags), value)


@given(connects(), U32)
def test_a_connect_survives_bytes(connect: Connect, opaque: int) -> None:
    frame = decode_frame(encode_connect(connect, opaque))
    assert (frame.opcode, frame.opaque) == (0x40, opaque)
    assert decode_connect(frame.key, frame.extras, frame.value) == connect


@given(connects())
def test_data_cut_short_is_refused_unless_the_missing_part_may_be_missing(
    connect: Connect,
) -> None:
    value = decode_frame(encode_connect(connect)).value
    without_registered = connect._replace(closed_only=False)
    without_checkpoints = connect._replace(last_closed={})
    allowed = (without_registered, without_checkpoints, without_registered._replace(last_closed={}))
    for end in range(len(value)):
        try:
            read = decode_connect(connect.name, extras(connect.flags), value[:end])
        except RemoteProtocolError:
            continue
        assert read in allowed


@given(connects(), st.binary(min_size=3, max_size=20))
def test_a_tail_is_refused(connect: Connect, tail: bytes) -> None:
    """Three bytes or more, for a flag may still be waiting for its byte or its count."""
    value = decode_frame(encode_connect(connect)).value
    whole = connect.closed_only or not connect.flags & REGISTERED
    if whole and (connect.last_closed or not connect.flags & CHECKPOINT):
        with pytest.raises(RemoteProtocolError, match="too many"):
            decode_connect(connect.name, extras(connect.flags), value + tail)


def test_without_extras_there_are_no_flags() -> None:
    assert decode_connect(b"n", b"", b"") == Connect(b"n")


@pytest.mark.parametrize("length", [1, 2, 3, 5, 8])
def test_extras_of_another_length_are_refused(length: int) -> None:
    with pytest.raises(RemoteProtocolError, match="extras"):
        decode_connect(b"", bytes(length), b"")


@pytest.mark.parametrize("length", range(8))
def test_a_backfill_wants_eight_bytes(length: int) -> None:
    with pytest.raises(RemoteProtocolError, match="shorter"):
        decoded(ConnectFlag.BACKFILL, bytes(length))


def test_a_list_of_no_vbuckets_means_all_of_them() -> None:
    assert decoded(LIST, b"\0\0").vbuckets is None


def test_a_vbucket_that_is_listed_twice_counts_once() -> None:
    assert decoded(LIST, b"\0\3\0\5\0\1\0\5").vbuckets == (5, 1)


@pytest.mark.parametrize(
    "value", [b"", b"\0", b"\0\1", b"\0\2\0\3", b"\xff\xff\0\1", b"\0\1\0\1\0", b"\0\0\0\1"]
)
def test_a_list_that_is_not_as_long_as_it_says_is_refused(value: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decoded(LIST, value)


def test_a_list_that_no_flag_announces_is_refused() -> None:
    """spymemcached's takeoverVbuckets() sends it so; taking all of them over would be worse."""
    with pytest.raises(RemoteProtocolError, match="too many"):
        decoded(ConnectFlag.TAKEOVER_VBUCKETS, b"\0\1\0\3")


def test_a_single_byte_is_of_the_registered_client_and_no_torn_count() -> None:
    """That is what tap registration sends for a vBucket without a closed checkpoint."""
    read = decoded(CHECKPOINT | REGISTERED, b"\1")
    assert (read.last_closed, read.closed_only) == ({}, True)
    with pytest.raises(RemoteProtocolError, match="too many"):
        decoded(CHECKPOINT, b"\1")


def test_no_pairs_may_be_said_or_left_out() -> None:
    for value in (b"", b"\0\0"):
        assert decoded(CHECKPOINT, value).last_closed == {}
    assert decoded(CHECKPOINT | REGISTERED, b"\0\0\1").closed_only


@pytest.mark.parametrize("cut", range(1, 12))
def test_pairs_that_are_fewer_than_announced_are_refused(cut: int) -> None:
    value = TAP_COUNT.pack(2) + TAP_CHECKPOINT_ENTRY.pack(3, 9) + TAP_CHECKPOINT_ENTRY.pack(5, 1)
    assert decoded(CHECKPOINT, value).last_closed == {3: 9, 5: 1}
    with pytest.raises(RemoteProtocolError):
        decoded(CHECKPOINT, value[:-cut])


@given(st.binary(max_size=6), st.binary(max_size=60))
def test_reading_a_connect_raises_nothing_but_our_own_error(
    extra_bytes: bytes, value: bytes
) -> None:
    with suppress(RemoteProtocolError):
        decode_connect(b"", extra_bytes, value)


@pytest.mark.parametrize(
    "connect",
    [
        Connect(flags=2**32),
        Connect(flags=ConnectFlag.BACKFILL, oldest_entry_s=2**64),
        Connect(flags=LIST, vbuckets=(0x10000,)),
        Connect(flags=LIST, vbuckets=(1,) * 0x10000),
        Connect(flags=CHECKPOINT, last_closed={1: 2**64}),
        Connect(flags=LIST, vbuckets=()),
    ],
)
def test_what_cannot_be_said_is_our_own_error(connect: Connect) -> None:
    with pytest.raises(LocalProtocolError):
        encode_connect(connect)


# --- the filter ---------------------------------------------------------------------------------


def filter_value(entries: dict[int, int]) -> bytes:
    pairs = b"".join(TAP_CHECKPOINT_ENTRY.pack(*entry) for entry in entries.items())
    return TAP_COUNT.pack(len(entries)) + pairs


@given(st.dictionaries(U16, U64, min_size=1, max_size=20))
def test_a_filter_is_read(entries: dict[int, int]) -> None:
    assert decode_filter(filter_value(entries)) == entries


@given(st.dictionaries(U16, U64, min_size=1, max_size=5), st.binary(min_size=1, max_size=12))
def test_a_filter_of_another_length_than_it_says_is_refused(
    entries: dict[int, int], tail: bytes
) -> None:
    value = filter_value(entries)
    for wrong in (*(value[:end] for end in range(len(value))), value + tail):
        with pytest.raises(RemoteProtocolError):
            decode_filter(wrong)


def test_a_filter_of_nothing_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="without vBuckets"):
        decode_filter(b"\0\0")


@given(st.binary(max_size=60))
def test_reading_a_filter_raises_nothing_but_our_own_error(value: bytes) -> None:
    with suppress(RemoteProtocolError):
        decode_filter(value)
