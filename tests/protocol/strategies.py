"""Frames of any contents, and streams cut in any way."""

from __future__ import annotations

from hypothesis import strategies as st

from uprmc.protocol.header import RequestFrame, ResponseFrame


def _number(bits: int) -> st.SearchStrategy[int]:
    return st.integers(0, 2**bits - 1)


_BODY = {
    "key": st.binary(max_size=300),
    "extras": st.binary(max_size=255),
    "value": st.binary(max_size=200),
    "opaque": _number(32),
    "cas": _number(64),
    "datatype": _number(8),
}

REQUESTS = st.builds(RequestFrame, _number(8), vbucket=_number(16), **_BODY)
RESPONSES = st.builds(ResponseFrame, _number(8), _number(16), **_BODY)
FRAMES = st.one_of(REQUESTS, RESPONSES)


@st.composite
def cut(draw: st.DrawFn, stream: bytes) -> list[bytes]:
    """Return `stream` in pieces, some of them possibly empty."""
    places = sorted(draw(st.lists(st.integers(0, len(stream)), max_size=20)))
    starts, ends = [0, *places], [*places, len(stream)]
    return [stream[start:end] for start, end in zip(starts, ends, strict=True)]
