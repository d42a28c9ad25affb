"""Which version survives: the reference's cases, and that every place comes to the same one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uprmc.engine.conflict import incoming_wins
from uprmc.model import Item, Life
from uprmc.record import pack, unpack

LIVE, DELETED, EXPIRED = Life.LIVE, Life.DELETED, Life.EXPIRED


def version(rev: int, cas: int, expiry: int = 0, flags: int = 0, life: int = LIVE) -> bytes:
    return pack(Item(b"k", None if life else b"v", flags, expiry, cas, 1, rev, 0, life))


def rank_of(record: bytes) -> tuple[int, int]:
    item = unpack(record)
    return item.rev, item.cas


#: Small numbers, so that equal ones are common.
NUMBERS = st.integers(0, 3)
VERSIONS = st.builds(
    version, NUMBERS, NUMBERS, NUMBERS, NUMBERS, st.sampled_from([LIVE, DELETED, EXPIRED])
)
DOCUMENTS = st.builds(version, NUMBERS, NUMBERS, NUMBERS, NUMBERS)


@pytest.mark.parametrize(
    ("incoming", "present", "wins"),
    [
        (version(5, 9), version(4, 99), True),
        (version(5, 9), version(5, 10), False),
        (version(5, 10), version(5, 9), True),
        (version(5, 9, life=DELETED), version(5, 9), False),
        (version(5, 9), version(5, 9), False),
        (version(5, 9), version(6, 1, life=DELETED), False),
        (version(7, 1), version(6, 9, life=DELETED), True),
        (version(5, 9, 20, 0), version(5, 9, 10, 99), True),
        (version(5, 9, 10, 99), version(5, 9, 20, 0), False),
        (version(5, 9, 10, 2), version(5, 9, 10, 1), True),
        (version(5, 9, 10, 1), version(5, 9, 10, 2), False),
        (version(5, 9, 20, 99, DELETED), version(5, 9, 10, 1), False),
        (version(5, 9, 20, 99, DELETED), version(5, 9, 10, 1, DELETED), False),
        (version(5, 10, life=DELETED), version(5, 9), True),
        (version(5, 10, life=EXPIRED), version(5, 9), True),
    ],
)
def test_the_cases_of_the_reference(incoming: bytes, present: bytes, wins: bool) -> None:
    assert incoming_wins(incoming, present) is wins


def test_the_time_of_a_deletion_is_no_expiry_that_could_win() -> None:
    deletion = version(5, 9, 1_700_000_000, 1, DELETED)
    assert not incoming_wins(version(5, 9, 0, 1), deletion), "equal in all it was given"
    assert incoming_wins(version(5, 9, 0, 2), deletion)
    assert incoming_wins(version(5, 9, 10, 1), deletion)


@given(VERSIONS)
def test_a_version_that_comes_back_does_not_win(same: bytes) -> None:
    assert not incoming_wins(same, same)


@given(VERSIONS, VERSIONS)
def test_two_versions_never_both_win(one: bytes, other: bytes) -> None:
    assert not (incoming_wins(one, other) and incoming_wins(other, one))


@given(DOCUMENTS, DOCUMENTS)
def test_of_two_different_documents_one_wins(one: bytes, other: bytes) -> None:
    assert one == other or incoming_wins(one, other) or incoming_wins(other, one)


@given(
    st.lists(VERSIONS, min_size=1, unique_by=rank_of).flatmap(
        lambda items: st.tuples(st.permutations(items), st.permutations(items))
    )
)
def test_versions_with_marks_of_their_own_end_alike_in_whatever_order_they_come(
    orders: tuple[list[bytes], list[bytes]],
) -> None:
    def survivor(order: list[bytes]) -> bytes:
        present = order[0]
        for incoming in order[1:]:
            if incoming_wins(incoming, present):
                present = incoming
        return present

    assert survivor(orders[0]) is survivor(orders[1])
