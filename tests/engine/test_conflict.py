"""Which version survives: the reference's cases, and that every place comes to the same one."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uprmc.engine.with_meta import incoming_wins
from uprmc.model import ConflictRule, FailoverEntry, FailoverLog, Item, Life, Origin
from uprmc.record import pack, unpack

LIVE, DELETED, EXPIRED = Life.LIVE, Life.DELETED, Life.EXPIRED
REVISION, TIMESTAMP = ConflictRule.REVISION, ConflictRule.TIMESTAMP

#: Where the present version is; its seqno is 1.
LOG: FailoverLog = (FailoverEntry(50, 0),)
HERE = Origin(50, 1)
BELOW, ABOVE = Origin(49, 9), Origin(51, 1)


def version(
    rev: int,
    cas: int,
    expiry: int = 0,
    flags: int = 0,
    life: int = LIVE,
    origin: Origin | None = None,
) -> bytes:
    value = None if life else b"v"
    return pack(Item(b"k", value, flags, expiry, cas, 1, rev, 0, life, origin=origin))


def rank_of(record: bytes) -> tuple[int, int]:
    item = unpack(record)
    return item.rev, item.cas


#: Small numbers, so that equal ones are common.
NUMBERS = st.integers(0, 3)
ORIGINS = st.builds(Origin, st.integers(49, 51), st.integers(1, 3))
LIVES = st.sampled_from([LIVE, DELETED, EXPIRED])
VERSIONS = st.builds(version, NUMBERS, NUMBERS, NUMBERS, NUMBERS, LIVES, st.none() | ORIGINS)
FROM_ELSEWHERE = st.builds(version, NUMBERS, NUMBERS, NUMBERS, NUMBERS, LIVES, ORIGINS)
RULES = st.sampled_from(ConflictRule)


#: (incoming, present, whether the incoming one wins by revision, and by timestamp).
CASES = [
    (version(5, 9), version(4, 99), True, False),
    (version(4, 99), version(5, 9), False, True),
    (version(5, 9), version(5, 10), False, False),
    (version(5, 10), version(5, 9), True, True),
    (version(5, 9, life=DELETED), version(5, 9), False, False),
    (version(5, 9), version(5, 9), False, False),
    (version(5, 9), version(6, 1, life=DELETED), False, True),
    (version(7, 1), version(6, 9, life=DELETED), True, False),
    (version(6, 10, life=DELETED), version(7, 9), False, True),
    (version(5, 9, 20, 0), version(5, 9, 10, 99), True, True),
    (version(5, 9, 10, 99), version(5, 9, 20, 0), False, False),
    (version(5, 9, 10, 2), version(5, 9, 10, 1), True, True),
    (version(5, 9, 10, 1), version(5, 9, 10, 2), False, False),
    (version(5, 9, 20, 99, DELETED), version(5, 9, 10, 1), False, False),
    (version(5, 9, 20, 99, DELETED), version(5, 9, 10, 1, DELETED), False, False),
    (version(5, 10, life=DELETED), version(5, 9), True, True),
    (version(5, 10, life=EXPIRED), version(5, 9), True, True),
    (version(5, 9), version(5, 9, 1_700_000_000, 9, DELETED), False, False),
    (version(5, 9, 0, 2), version(5, 9, 1_700_000_000, 9, DELETED), True, True),
    (version(5, 9, 10, 0), version(5, 9, 1_700_000_000, 9, DELETED), True, True),
]


@pytest.mark.acceptance("X02")
@pytest.mark.parametrize("case", range(len(CASES)))
@pytest.mark.parametrize("rule", ConflictRule)
def test_the_cases_of_the_reference(case: int, rule: ConflictRule) -> None:
    incoming, present, by_revision, by_timestamp = CASES[case]
    wins = by_revision if rule is REVISION else by_timestamp
    assert incoming_wins(incoming, present, LOG, rule) is wins


@pytest.mark.parametrize("rule", ConflictRule)
@pytest.mark.parametrize(("life", "present_life"), list(product(Life, Life)))
@pytest.mark.parametrize(
    ("origin", "present_origin", "wins"),
    [
        (None, None, False),
        (None, BELOW, False),
        (ABOVE, None, True),
        (BELOW, None, False),
        (HERE, None, False),
        (Origin(50, 2), None, True),
        (ABOVE, ABOVE, False),
        (ABOVE, BELOW, True),
        (BELOW, ABOVE, False),
        (Origin(49, 10), BELOW, True),
    ],
)
def test_equal_versions_are_told_apart_by_where_they_were_accepted(
    rule: ConflictRule,
    life: int,
    present_life: int,
    origin: Origin | None,
    present_origin: Origin | None,
    wins: bool,
) -> None:
    incoming = version(5, 9, life=life, origin=origin)
    present = version(5, 9, life=present_life, origin=present_origin)
    assert incoming_wins(incoming, present, LOG, rule) is wins


def test_a_version_of_an_older_branch_has_the_origin_of_that_branch() -> None:
    log = (FailoverEntry(70, 1), FailoverEntry(60, 0))
    assert not incoming_wins(version(5, 9, origin=Origin(60, 1)), version(5, 9), log)
    assert incoming_wins(version(5, 9, origin=Origin(61, 1)), version(5, 9), log)


def test_a_version_from_before_all_known_branches_has_the_origin_of_the_oldest() -> None:
    log = (FailoverEntry(70, 9), FailoverEntry(60, 4))
    assert not incoming_wins(version(5, 9, origin=Origin(60, 1)), version(5, 9), log)
    assert incoming_wins(version(5, 9, origin=Origin(60, 2)), version(5, 9), log)


@given(VERSIONS, RULES)
def test_a_version_that_comes_back_does_not_win(same: bytes, rule: ConflictRule) -> None:
    assert not incoming_wins(same, same, LOG, rule)


@given(FROM_ELSEWHERE, FROM_ELSEWHERE, RULES)
def test_of_two_versions_the_same_one_stays_at_both_ends(
    one: bytes, other: bytes, rule: ConflictRule
) -> None:
    here, there = incoming_wins(one, other, LOG, rule), incoming_wins(other, one, LOG, rule)
    ours, theirs = unpack(one), unpack(other)
    if ours.origin == theirs.origin:
        assert not (here and there)
    else:
        assert here is not there


@given(
    RULES,
    st.lists(
        VERSIONS.filter(lambda record: unpack(record).origin), min_size=1, unique_by=rank_of
    ).flatmap(lambda items: st.tuples(st.permutations(items), st.permutations(items))),
)
def test_versions_end_alike_in_whatever_order_they_come(
    rule: ConflictRule, orders: tuple[list[bytes], list[bytes]]
) -> None:
    def survivor(order: list[bytes]) -> bytes:
        present = order[0]
        for incoming in order[1:]:
            if incoming_wins(incoming, present, LOG, rule):
                present = incoming
        return present

    assert survivor(orders[0]) is survivor(orders[1])
