"""Finding frames: the same in both forms, wherever the bytes end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uprmc.columnar import decoder
from uprmc.columnar.records import MUTATION
from uprmc.core import form
from uprmc.protocol.header import REQUEST_HEADER

frames = st.builds(
    lambda magic, opcode, body: (
        REQUEST_HEADER.pack(magic, opcode, 1, 2, 3, 4, len(body), 5, 6) + body
    ),
    st.sampled_from([0x80, 0x81, 0x00]),
    st.integers(0x55, 0x5C),
    st.binary(max_size=40),
)


@given(st.lists(frames, max_size=9), st.integers(0, 80))
def test_items_and_others_are_found_up_to_the_frame_that_is_not_complete(
    sent: list[bytes], missing: int
) -> None:
    data = b"".join(sent)
    data = data[: max(len(data) - missing, 0)]
    found = decoder.scan(memoryview(data))
    at, places, others = 0, [], []
    for frame in sent:
        end = at + len(frame)
        if end > len(data):
            break
        if frame[0] == 0x80 and 0x57 <= frame[1] <= 0x59:
            places.append(at)
        else:
            others.append((len(places), at, end))
        at = end
    assert (found.positions.tolist(), found.others, found.end) == (places, others, at)
    width = MUTATION.itemsize
    padded = data + bytes(width)
    assert found.records == b"".join(padded[place : place + width] for place in places)


@given(st.lists(frames, max_size=9), st.binary(max_size=60))
def test_both_forms_find_the_same(sent: list[bytes], rest: bytes) -> None:
    if form.FORM != form.COMPILED:
        pytest.skip("the compiled core is not in use: no C compiler, or UPRMC_CORE")
    from uprmc.core.native.columns import scan

    data = b"".join(sent) + rest
    padded = data + bytes(MUTATION.itemsize)
    assert scan(padded, len(data)) == decoder.interpreted(padded, len(data))
