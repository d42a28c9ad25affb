"""Both forms of the hot path read the same, and leave the same to the rules."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.upr import peer
from tests.upr.peer import frame, mutation
from uprmc.core.form import COMPILED, FORM
from uprmc.remote import mutations

VBUCKET, OPAQUE = 3, 7
GOOD = [mutation(VBUCKET, OPAQUE, n, b"k%d" % n, b"v" * n, nmeta=n % 2) for n in (4, 6, 9)]
Found = tuple[int, list[int], list[bytes], list[bytes | None]]


def _read(read: Any, values_of: Any, data: bytes, end: int, high: int = 9) -> Found:
    columns: tuple[list[int], list[bytes], list[int], list[int]] = ([], [], [], [])
    stop = read(data, 0, end, OPAQUE, VBUCKET, 3, high, *columns)
    seqnos, keys, positions, ends = columns
    return stop, seqnos, keys, values_of(data, 55, positions, keys, ends)


def _both(data: bytes, end: int | None = None, high: int = 9) -> Found:
    end = len(data) if end is None else end
    found = _read(mutations.read_mutations, mutations.read_values, data, end, high)
    assert _read(mutations.take_mutations, mutations.values_of, data, end, high) == found
    return found


@pytest.mark.parametrize(
    "odd",
    [
        mutation(VBUCKET, OPAQUE, 6, b"again"),
        mutation(VBUCKET, OPAQUE, 10, b"above"),
        mutation(VBUCKET, OPAQUE, 2**64 - 1, b"negative"),
        mutation(VBUCKET, OPAQUE + 1, 8, b"another stream"),
        mutation(VBUCKET + 1, OPAQUE, 8, b"another vBucket"),
        mutation(VBUCKET, OPAQUE, 8, b""),
        mutation(VBUCKET, OPAQUE, 8, b"torn", b"v", nmeta=9),
        frame(peer.DELETION, key=b"k", extras=bytes(18), vbucket=VBUCKET, opaque=OPAQUE),
        frame(peer.MUTATION, key=b"k", extras=bytes(30), vbucket=VBUCKET, opaque=OPAQUE),
        b"",
    ],
)
def test_what_is_not_as_it_should_be_is_left_to_the_rules(odd: bytes) -> None:
    begun = b"".join(GOOD[:2])
    found = _both(begun + odd + GOOD[2], high=9 if odd else 6)
    assert found == (len(begun), [4, 6], [b"k4", b"k6"], [b"v" * 4, b"v" * 6])


@given(st.integers(0, len(b"".join(GOOD))))
def test_a_frame_is_read_when_all_of_it_is_there(end: int) -> None:
    stop, seqnos, *_ = _both(b"".join(GOOD), end)
    places = [sum(map(len, GOOD[:count])) for count in range(4)]
    assert stop == max(place for place in places if place <= end)
    assert seqnos == [4, 6, 9][: places.index(stop)]


@given(st.binary(max_size=200), st.integers(0, 2**64 - 1))
def test_no_bytes_make_either_form_fail(junk: bytes, seqno: int) -> None:
    _both(mutation(VBUCKET, OPAQUE, seqno, b"k") + junk)
    _both(junk)


@pytest.mark.skipif(FORM != COMPILED, reason="the interpreted form never takes them")
@pytest.mark.parametrize(("start", "taken"), [(0, True), (2**63, False), (2**64 - 1, False)])
def test_snapshots_with_numbers_that_have_no_sign_are_left_to_the_rules(
    start: int, taken: bool
) -> None:
    row = b"".join(n.to_bytes(4, "big") for n in (OPAQUE, 0))
    row += b"".join(n.to_bytes(8, "big") for n in (start, 9, 0))
    data, lasts = row + GOOD[2], list[int]()
    found = mutations.take_snapshots(data, 0, len(row), len(data), [VBUCKET], lasts, [], [], [], [])
    assert (found, lasts) == (taken, [1] if taken else [])
