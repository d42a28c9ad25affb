"""Which node is right: examples of each rule, and stories of promotions, restarts and crashes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uprmc.protocol.header import ResponseFrame
from uprmc.remote.placement import Choice, Claim, Log, OtherBucket, Placement, chosen

OLD = ((1, 0),)


@pytest.mark.parametrize(
    ("claims", "known", "place"),
    [
        ([Claim("a:1")], 0, "a:1"),
        ([Claim("a:1", 3)], 3, "a:1"),
        # A restart after a crash makes the log longer, not the term higher.
        ([Claim("a:1", 1, ((9, 5), (8, 5), *OLD)), Claim("b:1", 2, ((2, 5), *OLD))], 0, "b:1"),
        # A node that knows no terms is older than one that does.
        ([Claim("a:1"), Claim("b:1", 1)], 0, "b:1"),
        # Equal terms: whose history goes on where the other's ended.
        ([Claim("a:1", 1, OLD), Claim("b:1", 1, ((2, 5), *OLD))], 0, "b:1"),
        ([Claim("b:1", 0, ((2, 5), *OLD)), Claim("a:1", 0, OLD)], 0, "b:1"),
        # One node under two names.
        ([Claim("localhost:1", 1, OLD), Claim("127.0.0.1:1", 1, OLD)], 0, "localhost:1"),
    ],
)
def test_the_right_one_is_chosen(claims: Sequence[Claim], known: int, place: str) -> None:
    assert chosen(5, claims, known) == Choice(place)


def test_nobody_is_chosen_when_nobody_has_it() -> None:
    choice = chosen(5, [])
    assert choice.why == "vBucket 5 is active at no node that answers"
    assert not choice.disputed


def test_nobody_below_the_known_term_is_chosen() -> None:
    choice = chosen(5, [Claim("a:1", 2), Claim("b:1", 1)], 3)
    assert not choice.place
    assert "a:1 and b:1 served it before another node was promoted" in choice.why
    assert "term 2, and there is a term 3" in choice.why


def test_two_promotions_by_hand_leave_none_and_both_are_named() -> None:
    claims = [Claim("a:1", 2, ((7, 4), *OLD)), Claim("b:1", 2, ((8, 4), *OLD))]
    choice = chosen(5, claims)
    assert choice.disputed
    assert "vBucket 5: a:1 and b:1 both have it active with term 2" in choice.why


def test_of_three_the_one_that_knows_both_others_is_chosen() -> None:
    claims = [
        Claim("a:1", 1, OLD),
        Claim("b:1", 1, ((2, 4), *OLD)),
        Claim("c:1", 1, ((3, 6), (2, 4), *OLD)),
    ]
    assert chosen(0, claims).place == "c:1"
    assert not chosen(0, [*claims, Claim("d:1", 1, ((4, 6), (2, 4), *OLD))]).place


def test_logs_are_asked_for_only_where_they_decide() -> None:
    assert chosen(0, [Claim("a:1", 1), Claim("b:1", 1, OLD)]).undecided == ("a:1", "b:1")
    assert not chosen(0, [Claim("a:1", 1), Claim("b:1", 1, OLD)]).disputed
    assert chosen(0, [Claim("a:1", 1), Claim("b:1", 2)]).undecided == ()


# --- stories --------------------------------------------------------------------------------------


@dataclass
class _Node:
    term: int = 0
    log: tuple[tuple[int, int], ...] = ()
    active: bool = False


@dataclass
class _Story:
    """Nodes that follow, are promoted and crash; `right` is the one promoted last."""

    nodes: list[_Node]
    right: int = 0
    uuids: int = 1
    steps: list[str] = field(default_factory=list)

    def branch(self, node: _Node) -> None:
        self.uuids += 1
        node.log = ((self.uuids, self.uuids), *node.log)

    def follow(self, number: int) -> None:
        """A node that is not active copies the right one's history."""
        node, source = self.nodes[number], self.nodes[self.right]
        if not node.active:
            node.term, node.log = source.term, source.log

    def promote(self, number: int) -> None:
        """Nobody tells the active before it."""
        node = self.nodes[number]
        if not node.active:
            node.active, node.term, self.right = True, node.term + 1, number
            self.branch(node)

    def crash(self, number: int) -> None:
        """An unclean start: one entry more where it was active."""
        if self.nodes[number].active:
            self.branch(self.nodes[number])

    def depose(self, number: int) -> None:
        """An operator makes a replica of it, unless it is the right one."""
        if number != self.right:
            self.nodes[number].active = False
            self.follow(number)


_STEPS = st.lists(
    st.tuples(st.sampled_from(["follow", "promote", "crash", "depose"]), st.integers(0, 2)),
    max_size=30,
)


@given(_STEPS, st.permutations(range(3)))
def test_the_node_promoted_last_is_chosen_whatever_else_happens(
    steps: list[tuple[str, int]], order: list[int]
) -> None:
    """Provided it had followed the one before: a promotion of a replica that is behind by a whole
    promotion gives the same term twice, and then none or the right one is chosen.
    """
    story = _Story([_Node(1, OLD, True), _Node(), _Node()])
    for what, number in steps:
        if what == "promote":
            story.follow(number)
        getattr(story, what)(number)
    claims = [
        Claim(f"n{number}:1", story.nodes[number].term, story.nodes[number].log)
        for number in order
        if story.nodes[number].active
    ]
    assert chosen(0, claims).place == f"n{story.right}:1"


@given(_STEPS, st.permutations(range(3)))
def test_a_promotion_of_a_replica_that_lags_never_has_a_lower_term_chosen(
    steps: list[tuple[str, int]], order: list[int]
) -> None:
    story = _Story([_Node(1, OLD, True), _Node(), _Node()])
    known = 1
    for what, number in steps:
        getattr(story, what)(number)
        known = max(known, *(node.term for node in story.nodes if node.active))
    claims = [
        Claim(f"n{number}:1", story.nodes[number].term, story.nodes[number].log or OLD)
        for number in order
        if story.nodes[number].active
    ]
    choice = chosen(0, claims, known)
    by_place = {claim.place: claim for claim in claims}
    if choice.place:
        assert by_place[choice.place].term == known
        assert all(
            any(uuid == other.log[0][0] for uuid, _ in by_place[choice.place].log)
            for other in claims
            if other.term == known
        )
    else:
        assert all(claim.place in choice.why for claim in claims if claim.term == known)


@given(st.integers(0, 5), st.lists(st.builds(Claim, st.just("x:1"), st.integers(0, 5)), max_size=4))
def test_a_choice_is_a_node_or_words(known: int, claims: list[Claim]) -> None:
    choice = chosen(0, claims, known)
    assert bool(choice.place) != bool(choice.why)


# --- all vBuckets of a bucket -------------------------------------------------------------------


def map_of(count: int, *servers: str, terms: Sequence[int] = ()) -> ResponseFrame:
    found: dict[str, Any] = {"vBucketMap": [[0]] * count, "serverList": servers, "terms": terms}
    return ResponseFrame(0xB5, value=json.dumps({"vBucketServerMap": found}).encode())


def no_logs(place: str, vbuckets: list[int]) -> Mapping[int, Log]:
    raise AssertionError(f"{place} is asked for the logs of {vbuckets}")


def test_a_map_tells_how_many_vbuckets_there_are_and_which_other_nodes() -> None:
    placement = Placement(["a:1"])
    placement.take_map("a:1", map_of(4, "$HOST:1", "b:1", "b:1", terms=[0, 3]))
    assert placement.vbuckets == 4
    assert placement.places == ["a:1", "b:1"]
    assert placement.terms == {1: 3}


def test_a_node_with_another_number_of_vbuckets_is_of_another_bucket() -> None:
    placement = Placement(["a:1"], 4)
    with pytest.raises(OtherBucket, match="b:1 has 8 vBuckets, not 4"):
        placement.take_map("b:1", map_of(8))
    with pytest.raises(OtherBucket, match="b:1 has 8 vBuckets, not 4"):
        placement.take_count("b:1", 8)
    assert placement.vbuckets == 4


def test_a_map_that_makes_no_sense_counts_as_none() -> None:
    placement = Placement(["a:1"])
    placement.take_map("a:1", ResponseFrame(0xB5, value=b"{}"))
    placement.take_count("a:1", 0)
    assert (placement.vbuckets, placement.places) == (0, ["a:1"])
    placement.take_count("a:1", 8)
    assert placement.vbuckets == 8


def test_terms_decide_for_each_vbucket_and_logs_only_where_they_are_equal() -> None:
    asked = []

    def logs_at(place: str, vbuckets: list[int]) -> Mapping[int, Log]:
        asked.append((place, vbuckets))
        return {"a:1": {1: [(7, 0)]}, "b:1": {1: [(8, 5), (7, 0)]}}[place]

    placement = Placement(["a:1", "b:1"], 3)
    placement.settle({"a:1": {0: 2, 1: 1}, "b:1": {0: 1, 1: 1, 2: 0}}, logs_at)
    assert {n: each.place for n, each in placement.choices.items()} == {
        0: "a:1",
        1: "b:1",
        2: "b:1",
    }
    assert asked == [("a:1", [1]), ("b:1", [1])]
    assert placement.terms == {0: 2, 1: 1}


def test_a_node_below_a_term_that_was_heard_of_before_is_not_chosen() -> None:
    placement = Placement(["a:1", "b:1"], 1, {0: 5})
    placement.settle({"a:1": {0: 4}}, no_logs)
    assert not placement.choices[0].place
    assert "there is a term 5" in placement.choices[0].why
    placement.settle({"a:1": {0: 4}, "b:1": {0: 6}}, no_logs)
    placement.settle({"a:1": {0: 5}}, no_logs)
    assert not placement.choices[0].place


def test_a_node_that_does_not_tell_its_log_leaves_the_vbucket_undecided() -> None:
    placement = Placement(["a:1", "b:1"], 1)
    placement.settle({"a:1": {0: 1}, "b:1": {0: 1}}, lambda place, vbuckets: {})
    assert not placement.choices[0].place
    assert placement.choices[0].undecided == ("a:1", "b:1")
