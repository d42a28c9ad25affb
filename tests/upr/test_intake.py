"""Both forms of a replica's intake make the same records, and leave the same to the rules."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.upr import peer
from tests.upr.peer import frame, mutation
from uprmc.model import Item, Origin
from uprmc.record import unpack
from uprmc.upr import intake

VBUCKET, OPAQUE = 3, 7
GOOD = [mutation(VBUCKET, OPAQUE, n, b"k%d" % n, b"v" * n, cas=100 - n) for n in (4, 6, 9)]
MAX_VALUE_BYTES = 20_000
#: Extended metadata: an origin.
META = bytes.fromhex("01 e0 0010 ffffffffffffff01 0000000000000063")
Found = tuple[int, int, list[Item]]


def _read(read: Any, data: bytes, end_seqno: int) -> Found:
    records: list[bytes] = []
    stop, cas = read(data, 0, OPAQUE, VBUCKET, 3, end_seqno, MAX_VALUE_BYTES, records)
    return stop, cas, [unpack(record) for record in records]


def _both(data: bytes, end_seqno: int = 9) -> Found:
    found = _read(intake.read_versions, data, end_seqno)
    assert _read(intake.take_versions, data, end_seqno) == found
    return found


@pytest.mark.parametrize("size", [0, 5, 16_385, MAX_VALUE_BYTES])
def test_a_record_has_the_origin_of_its_frame(size: int) -> None:
    value = bytes(size)
    sent = mutation(VBUCKET, OPAQUE, 5, b"key", value + META, cas=9, flags=3, nmeta=20)
    item = Item(b"key", value, 3, 0, 9, 5, 1, origin=Origin(0xFFFFFFFFFFFFFF01, 99))
    assert _both(sent) == (len(sent), 9, [item])


@pytest.mark.parametrize(
    "odd",
    [
        mutation(VBUCKET, OPAQUE, 6, b"again"),
        mutation(VBUCKET, OPAQUE, 10, b"above"),
        mutation(VBUCKET, OPAQUE, 2**64 - 1, b"negative"),
        mutation(VBUCKET, OPAQUE, 8, b"cas", cas=2**63),
        mutation(VBUCKET, OPAQUE, 8, b"rev", rev=2**63),
        mutation(VBUCKET, OPAQUE + 1, 8, b"another stream"),
        mutation(VBUCKET + 1, OPAQUE, 8, b"another vBucket"),
        mutation(VBUCKET, OPAQUE, 8, b""),
        mutation(VBUCKET, OPAQUE, 8, b"k" * 251),
        mutation(VBUCKET, OPAQUE, 8, b"meta", b"value", nmeta=1),
        mutation(VBUCKET, OPAQUE, 8, b"meta", META[:-1], nmeta=19),
        mutation(VBUCKET, OPAQUE, 8, b"meta", META, nmeta=21),
        mutation(VBUCKET, OPAQUE, 8, b"another entry", b"\x01\x01" + META[2:], nmeta=20),
        mutation(VBUCKET, OPAQUE, 8, b"uuid 0", META[:4] + bytes(8) + META[12:], nmeta=20),
        mutation(VBUCKET, OPAQUE, 8, b"seqno 0", META[:12] + bytes(8), nmeta=20),
        mutation(VBUCKET, OPAQUE, 8, b"large", bytes(MAX_VALUE_BYTES + 1) + META, nmeta=20),
        mutation(VBUCKET, OPAQUE, 8, b"compressed", datatype=2),
        mutation(VBUCKET, OPAQUE, 8, b"large", bytes(MAX_VALUE_BYTES + 1)),
        frame(peer.DELETION, key=b"k", extras=bytes(18), vbucket=VBUCKET, opaque=OPAQUE),
        frame(peer.MUTATION, key=b"k", extras=bytes(30), vbucket=VBUCKET, opaque=OPAQUE),
        frame(peer.MUTATION, key=b"", extras=bytes(31), vbucket=VBUCKET, opaque=OPAQUE)[:-8],
        b"",
    ],
)
def test_what_is_not_as_it_should_be_is_left_to_the_rules(odd: bytes) -> None:
    begun = b"".join(GOOD[:2])
    stop, cas, items = _both(begun + odd + GOOD[2], 9 if odd else 6)
    assert (stop, cas, [item.seqno for item in items]) == (len(begun), 96, [4, 6])


@given(st.integers(0, len(b"".join(GOOD))))
def test_a_frame_is_read_when_all_of_it_is_there(end: int) -> None:
    stop, _, items = _both(b"".join(GOOD)[:end])
    places = [sum(map(len, GOOD[:count])) for count in range(4)]
    assert stop == max(place for place in places if place <= end)
    assert [item.seqno for item in items] == [4, 6, 9][: places.index(stop)]


@given(
    st.binary(min_size=1, max_size=250),
    st.integers(0, MAX_VALUE_BYTES),
    st.tuples(*[st.integers(0, 2**32 - 1)] * 2),
    st.tuples(*[st.integers(0, 2**63 - 1)] * 2),
    st.integers(0, 1),
)
def test_a_record_has_every_field_of_its_frame(
    key: bytes, size: int, small: tuple[int, int], large: tuple[int, int], datatype: int
) -> None:
    (flags, expiry), (cas, rev) = small, large
    value = bytes(size)
    sent = mutation(
        VBUCKET,
        OPAQUE,
        5,
        key,
        value,
        cas=cas,
        rev=rev,
        flags=flags,
        expiry=expiry,
        datatype=datatype,
    )
    item = Item(key, value, flags, expiry, cas, 5, rev, datatype)
    assert _both(sent) == (len(sent), cas, [item])


@given(st.binary(max_size=200), st.integers(0, 2**64 - 1))
def test_no_bytes_make_either_form_fail(junk: bytes, seqno: int) -> None:
    _both(mutation(VBUCKET, OPAQUE, seqno, b"k") + junk)
    _both(junk)
