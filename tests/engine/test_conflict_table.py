"""Two data centres with a version each: what both hold after each has sent its own to the other.

The reference's table with the engine's own ways: versions in memory, tombstones on disk only, and
tombstones that were purged.
"""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

import pytest

from tests.engine.support import BEGINNING, Node, settings_of
from tests.engine.test_with_meta import accept, accept_after_fetch
from uprmc.errors import KeyExists, NotResident
from uprmc.model import Item, Life, Origin
from uprmc.storage.interface import CommitBatch, VBucketChange

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
