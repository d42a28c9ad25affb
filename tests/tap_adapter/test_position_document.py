"""Positions of registered TAP clients as documents."""

from __future__ import annotations

import json
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uprmc.model import SnapshotRange
from uprmc.tap_adapter.cursor import TapCursor, decode_position, encode_position

_NUMBER = st.integers(0, 2**64 - 1)


@st.composite
def _courses(draw: st.DrawFn) -> TapCursor:
    start, acked, end = sorted(draw(st.tuples(_NUMBER, _NUMBER, _NUMBER)))
    return TapCursor(
        uuid=draw(_NUMBER),
        acked=acked,
        snapshot=SnapshotRange(start, end),
        sent=draw(st.integers(acked, 2**64 - 1)),
        checkpoint_id=draw(_NUMBER),
        closed=draw(st.dictionaries(_NUMBER, _NUMBER, max_size=5)),
        backfilled=draw(st.booleans()),
        deleted_rev=draw(_NUMBER),
        checkpoint_after=draw(_NUMBER),
    )


_POSITIONS = st.dictionaries(st.integers(0, 65_535), _courses(), max_size=5)


def document(body: object) -> bytes:
    """A document whose title and checksum are right."""
    text = json.dumps(body).encode()
    return b"uprmc-tap-position 1 %08x\n%b" % (crc32(text), text)


ROW = [3, 7, 10, 5, 12, 12, 1, 5, 1, 0, [[0, 5]]]


def changed(column: int, value: object) -> list[object]:
    return [*ROW[:column], value, *ROW[column + 1 :]]


@given(_POSITIONS, st.floats(0, 1e11))
def test_a_position_is_read_as_it_was_written(cursors: dict[int, TapCursor], seen_s: float) -> None:
    found = decode_position(encode_position(cursors, seen_s))
    assert found.cursors == cursors
    assert found.seen_s == seen_s
    assert [list(cursor.closed) for cursor in found.cursors.values()] == [
        list(cursor.closed) for cursor in cursors.values()
    ]


@given(_POSITIONS, st.data())
def test_a_document_with_a_bit_turned_is_refused(
    cursors: dict[int, TapCursor], data: st.DataObject
) -> None:
    torn = bytearray(encode_position(cursors, 1.5))
    place = data.draw(st.integers(0, len(torn) * 8 - 1))
    torn[place // 8] ^= 1 << place % 8
    with pytest.raises(ValueError, match=r"^it|^its"):
        decode_position(bytes(torn))


@given(_POSITIONS, st.data())
def test_the_beginning_of_a_document_is_refused(
    cursors: dict[int, TapCursor], data: st.DataObject
) -> None:
    whole = encode_position(cursors, 1.5)
    with pytest.raises(ValueError, match=r"^it"):
        decode_position(whole[: data.draw(st.integers(0, len(whole) - 1))])


@given(st.binary(max_size=200))
def test_foreign_bytes_are_refused_in_one_line(foreign: bytes) -> None:
    with pytest.raises(ValueError, match=r"^it") as caught:
        decode_position(foreign)
    assert "\n" not in str(caught.value)


@given(st.binary(max_size=60))
def test_a_foreign_version_is_named_in_one_short_line(version: bytes) -> None:
    with pytest.raises(ValueError, match=r"^it") as caught:
        decode_position(b"uprmc-tap-position %b 00000000\n{}" % version)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 150


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["seen_s", "cursors", "x"]), inner, max_size=3)
    ),
)


@given(_JSON)
def test_other_json_under_a_right_checksum_is_refused_or_read(body: object) -> None:
    try:
        decode_position(document(body))
    except ValueError as error:
        assert "\n" not in str(error)  # noqa: PT017  # either is right


def test_a_right_row_is_read() -> None:
    found = decode_position(document({"seen_s": 1, "cursors": [ROW]}))
    assert found.cursors == {3: TapCursor(7, 10, SnapshotRange(5, 12), 12, 1, {0: 5}, True, 0, 5)}


@pytest.mark.parametrize(
    "body",
    [
        {"cursors": []},
        {"seen_s": 1},
        {"seen_s": -1, "cursors": []},
        {"seen_s": True, "cursors": []},
        {"seen_s": float("nan"), "cursors": []},
        {"seen_s": float("inf"), "cursors": []},
        {"seen_s": 10**400, "cursors": []},
        {"seen_s": 1, "cursors": [ROW, ROW]},
        {"seen_s": 1, "cursors": [ROW[:-1]]},
        {"seen_s": 1, "cursors": [[*ROW, 1]]},
        {"seen_s": 1, "cursors": [changed(0, 65_536)]},
        {"seen_s": 1, "cursors": [changed(0, -1)]},
        {"seen_s": 1, "cursors": [changed(0, True)]},
        {"seen_s": 1, "cursors": [changed(1, 2**64)]},
        {"seen_s": 1, "cursors": [changed(2, 10.0)]},
        {"seen_s": 1, "cursors": [changed(2, 4)]},  # before its snapshot
        {"seen_s": 1, "cursors": [changed(2, 13)]},  # after its snapshot
        {"seen_s": 1, "cursors": [changed(5, 9)]},  # less sent than acknowledged
        {"seen_s": 1, "cursors": [changed(8, 2)]},
        {"seen_s": 1, "cursors": [changed(8, "1")]},
        {"seen_s": 1, "cursors": [changed(10, [[1, -1]])]},
        {"seen_s": 1, "cursors": [changed(10, [1, 2, 3])]},
        [],
        1,
    ],
)
def test_a_form_that_was_never_written_is_refused(body: object) -> None:
    with pytest.raises(ValueError, match="does not have the form"):
        decode_position(document(body))


def test_deep_json_is_refused() -> None:
    body = b"[" * 100_000
    with pytest.raises(ValueError, match="does not have the form"):
        decode_position(b"uprmc-tap-position 1 %08x\n%b" % (crc32(body), body))
