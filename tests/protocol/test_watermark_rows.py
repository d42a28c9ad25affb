"""Rows of HWT_READ and HWT_REPLICATE: our codec and construct's say the same.

Source: UPR reference, section 7; `docs/extensions.md`, "Watermarks".
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uprmc.errors import LocalProtocolError, RemoteProtocolError
from uprmc.protocol.watermarks import (
    HwtFloorsValue,
    HwtReadValue,
    WatermarkRecord,
    decode_records,
    encode_records,
)

U8, U32, U64 = (st.integers(0, 2**bits - 1) for bits in (8, 32, 64))
RECORDS = st.lists(
    st.builds(
        WatermarkRecord,
        st.binary(min_size=1, max_size=64),
        *(U8, U64, U64, U32),
        st.binary(max_size=100),
        U64,
    ),
    max_size=5,
)


@given(RECORDS, st.booleans())
def test_rows_survive_bytes_by_both_codecs(records: list[WatermarkRecord], floors: bool) -> None:
    value = encode_records(records, floors=floors)
    shown = [each if floors else each._replace(floor=0) for each in records]
    assert decode_records(value, floors=floors) == shown
    layout = HwtFloorsValue if floors else HwtReadValue
    entries = [
        {**each._asdict(), "id_bytes": len(each.id), "meta_bytes": len(each.meta)} for each in shown
    ]
    assert layout.build({"entries": entries}) == value
    parsed = layout.parse(value).entries
    assert [(bytes(each.id), each.watermark, bytes(each.meta)) for each in parsed] == [
        (each.id, each.watermark, each.meta) for each in shown
    ]


@pytest.mark.parametrize("floors", [False, True])
def test_torn_rows_are_refused(floors: bool) -> None:
    row = WatermarkRecord(b"index", 2, 7, 1_700_000_000, 60, b"meta", 9)
    whole = encode_records([row, row], floors=floors)
    half = len(whole) // 2
    for size in range(1, len(whole)):
        if size == half:
            continue
        with pytest.raises(RemoteProtocolError, match="torn row"):
            decode_records(whole[:size], floors=floors)


def test_a_number_that_does_not_fit_is_our_own_error() -> None:
    with pytest.raises(LocalProtocolError):
        encode_records([WatermarkRecord(b"id", 2, -1, 0, 0, b"")])
