"""Which version survives: the reference's cases, and that every place comes to the same one."""

from __future__ import annotations

from contextlib import suppress
from itertools import product
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.support import BEGINNING, Node, settings_of
from tests.engine.test_with_meta import accept, accept_after_fetch
from uprmc.engine.with_meta import incoming_wins
from uprmc.errors import KeyExists, NotResident
from uprmc.model import ConflictRule, FailoverEntry, FailoverLog, Item, Life, Origin
from uprmc.record import pack, unpack
from uprmc.storage.interface import CommitBatch, VBucketChange

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


# --- two data centres with a version each ---------------------------------------------------------


CAS = int(BEGINNING) * 1_000_000_000
S_PLACE, T_PLACE = Origin(2**47, 1), Origin(2**47 + 1, 1)


class Version(NamedTuple):
    """A version as a table has it."""

    rev: int
    cas: int
    deleted: bool = False
    flags: int = 0
    expiry: int = 0

    def made_at(self, origin: Origin | None) -> Item:
        value = None if self.deleted else b"of %d" % (origin.uuid if origin else 0)
        life = Life.DELETED if self.deleted else Life.LIVE
        return Item(b"k", value, self.flags, self.expiry, CAS + self.cas, 0, self.rev, 0, life,
                    origin=origin)  # fmt: skip


V = Version
LATER = int(BEGINNING) + 1_000

#: Versions of S and T, and whose stays by revision and by timestamp.
TABLE = [
    (V(5, 9), V(4, 99), "S", "T"),
    (V(4, 99), V(5, 9), "T", "S"),
    (V(5, 9), V(5, 10), "T", "T"),
    (V(5, 9, deleted=True), V(4, 99), "S", "T"),
    (V(5, 9), V(6, 1, deleted=True), "T", "S"),
    (V(5, 9, deleted=True), V(6, 10, deleted=True), "T", "T"),
    (V(5, 9, flags=2), V(5, 9, flags=1), "S", "S"),
    (V(5, 9, expiry=LATER), V(5, 9, flags=9), "S", "S"),
    (V(5, 9, deleted=True), V(5, 9, flags=1), "T", "T"),
    (V(5, 9, flags=1), V(5, 9, deleted=True), "S", "S"),
    # All else is equal: T's origin is the larger one.
    (V(5, 9), V(5, 9), "T", "T"),
    (V(5, 9, deleted=True), V(5, 9), "T", "T"),
    (V(5, 9), V(5, 9, deleted=True), "T", "T"),
    (V(5, 9, deleted=True), V(5, 9, deleted=True), "T", "T"),
]


def holding(version: Item, rule: str, *, on_disk: bool) -> Node:
    node = Node(settings_of(engine={"conflict_resolution": rule}))
    accept(node, version)
    if on_disk:
        node.flush()
    return node


def receive(node: Node, version: Item) -> None:
    """Let a version come; it may win or lose, and may have to wait for the disk."""
    with suppress(KeyExists):
        try:
            accept(node, version)
        except NotResident:
            accept_after_fetch(node, version)


def held(node: Node) -> tuple[object, ...]:
    """What a node has of the key: all but the place and, of a tombstone, the time."""
    node.flush()
    item = node.stored()[b"k"]
    return (item.rev, item.cas, item.life, item.value, item.flags, item.origin)


@pytest.mark.acceptance("X02")
@pytest.mark.parametrize("on_disk", [False, True])
@pytest.mark.parametrize("rule", ["revision", "timestamp"])
@pytest.mark.parametrize("row", range(len(TABLE)))
def test_both_ends_keep_the_version_that_the_table_says(row: int, rule: str, on_disk: bool) -> None:
    of_s, of_t, by_revision, by_timestamp = TABLE[row]
    ours, theirs = of_s.made_at(S_PLACE), of_t.made_at(T_PLACE)
    s, t = (holding(each, rule, on_disk=on_disk) for each in (ours, theirs))
    receive(t, ours)
    receive(s, theirs)
    stays = ours if (by_revision if rule == "revision" else by_timestamp) == "S" else theirs
    expected = (stays.rev, stays.cas, stays.life, stays.value, stays.flags, stays.origin)
    assert held(s) == held(t) == expected
    for node in (s, t):
        high = node.vbucket.high_seqno
        receive(node, stays)
        assert node.vbucket.high_seqno == high, "it has come back, and ends here"
        node.check()


@pytest.mark.parametrize("rule", ["revision", "timestamp"])
@pytest.mark.parametrize(("deleted", "present_deleted"), [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_of_equal_versions_one_without_an_origin_loses_against_one_with(
    rule: str, deleted: bool, present_deleted: bool
) -> None:
    known = V(5, 9, bool(deleted)).made_at(S_PLACE)
    unknown = V(5, 9, bool(present_deleted)).made_at(None)
    node = holding(known, rule, on_disk=False)
    with pytest.raises(KeyExists):
        accept(node, unknown)


@pytest.mark.parametrize("rule", ["revision", "timestamp"])
@pytest.mark.parametrize("deleted", [False, True])
def test_what_was_purged_decides_nothing_but_a_new_document_outranks_it(
    rule: str, deleted: bool
) -> None:
    """The key is not known any more, so any version is accepted; a new one begins above all."""
    node = holding(V(5, 9, deleted=True).made_at(S_PLACE), rule, on_disk=True)
    node.set(b"newer")
    node.flush()
    (tombstone,) = [item for item in node.stored().values() if item.life]
    header = node.header()._replace(purge_seqno=tombstone.seqno)
    change = VBucketChange(0, header, drop=((tombstone.key, tombstone.seqno),))
    node.store.commit(CommitBatch([change]))
    assert b"k" not in node.stored()
    own = node.set(b"own")
    assert own.rev == 6
    receive(node, V(3, 2, deleted).made_at(T_PLACE))
    assert held(node)[0] == 3
