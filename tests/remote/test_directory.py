"""Which node is right: examples of each rule, and stories of promotions, restarts and crashes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uprmc.protocol.header import RequestFrame, ResponseFrame
from uprmc.protocol.opcodes import Opcode
from uprmc.remote.blocking import KeptConnections
from uprmc.remote.cluster_map import map_in
from uprmc.remote.directory import (
    Choice,
    Claim,
    Directory,
    News,
    NodeHoldings,
    NotTold,
    OtherBucket,
    Why,
    chosen,
    telling,
)
from uprmc.remote.errors import NodeError

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


# --- a directory ----------------------------------------------------------------------------------


def map_of(count: int, *servers: str, terms: Sequence[int] = (), chain: int = 0) -> bytes:
    inner: dict[str, Any] = {
        "vBucketMap": [[chain]] * count,
        "serverList": servers,
        "terms": terms,
    }
    return json.dumps({"vBucketServerMap": inner}).encode()


def take(directory: Directory, place: str, value: bytes) -> None:
    found = map_in(value)
    assert found is not None
    directory.take_map(place, found)


def told(directory: Directory, place: str, terms: Mapping[int, int], **more: Any) -> None:
    has = NodeHoldings({number: (7, term) for number, term in terms.items()}, **more)
    directory.told(place, has)


GONE = NotTold(Why.LOST, "b:1 is down")


def test_a_map_tells_how_many_vbuckets_there_are_and_which_other_nodes() -> None:
    directory = Directory(["a:1"])
    take(directory, "a:1", map_of(4, "$HOST:1", "b:1", "b:1", terms=[0, 3]))
    assert (directory.vbuckets, directory.places, directory.terms) == (4, ["a:1", "b:1"], {1: 3})
    fixed = Directory(["a:1"], learns=False)
    take(fixed, "a:1", map_of(4, "$HOST:1", "b:1", terms=[0, 3]))
    assert (fixed.vbuckets, fixed.places, fixed.terms) == (4, ["a:1"], {1: 3})


def test_a_node_with_another_number_of_vbuckets_is_of_another_bucket() -> None:
    directory = Directory(["a:1"], 4)
    with pytest.raises(OtherBucket, match="b:1 has 8 vBuckets, not 4"):
        take(directory, "b:1", map_of(8))
    with pytest.raises(OtherBucket, match="b:1 has 8 vBuckets, not 4"):
        directory.take_count("b:1", 8)
    directory.take_count("b:1", 0)
    assert directory.vbuckets == 4


def test_it_is_settled_when_each_node_has_told_or_failed() -> None:
    directory = Directory(["a:1", "b:1"], 1)
    told(directory, "a:1", {0: 1})
    assert not directory.settled
    missing = directory.missing([0, 1])
    assert missing is not None
    assert "b:1 was not asked" in str(missing)
    directory.lost("b:1", GONE)
    assert directory.settled
    told(directory, "b:1", {0: 2})
    assert directory.settled
    assert directory.owners() == {0: "b:1"}


def test_terms_decide_for_each_vbucket_and_logs_only_where_they_are_equal() -> None:
    directory = Directory(["a:1", "b:1"], 3)
    told(directory, "a:1", {0: 2, 1: 1})
    told(directory, "b:1", {0: 1, 1: 1, 2: 0})
    assert directory.undecided() == {"a:1": [1], "b:1": [1]}
    directory.take_logs("a:1", {1: [(7, 0)]})
    assert directory.owners() == {0: "a:1", 2: "b:1"}
    directory.take_logs("b:1", {1: [(8, 5), (7, 0)]})
    assert directory.owners() == {0: "a:1", 1: "b:1", 2: "b:1"}
    assert directory.undecided() == {}
    assert directory.terms == {0: 2, 1: 1}


def test_of_equal_claims_the_node_that_was_named_first_comes_first() -> None:
    directory = Directory(["a:1", "b:1"], 2)
    for place, uuid in (("b:1", 8), ("a:1", 7)):
        told(directory, place, {0: 1, 1: 1}, logs={0: [(uuid, 0)], 1: [(9, 0)]})
    assert "vBucket 0: a:1 and b:1 both have it active" in directory.choice(0).why
    assert directory.choice(1).place == "a:1"


def test_a_history_that_decides_is_asked_for_again_when_its_node_has_told_again() -> None:
    directory = Directory(["a:1", "b:1"], 1)
    for place, log in (("a:1", [(7, 0)]), ("b:1", [(8, 5), (7, 0)])):
        told(directory, place, {0: 1}, logs={0: log})
    assert directory.owners() == {0: "b:1"}
    told(directory, "b:1", {0: 1})
    assert directory.owners() == {}
    assert directory.undecided() == {"a:1": [0], "b:1": [0]}
    told(directory, "a:1", {0: 2})
    assert directory.owners() == {0: "a:1"}


def test_of_a_vbucket_that_is_active_nowhere_the_newest_replica_is_named() -> None:
    directory = Directory(["a:1", "b:1"])
    told(directory, "a:1", {}, replicas={0: 3, 1: 9})
    told(directory, "b:1", {1: 1}, replicas={0: 5})
    assert [directory.replica(number) for number in range(3)] == ["b:1", "", ""]
    directory.not_mine("b:1", 0, b"")
    assert directory.replica(0) == "a:1"


def test_there_are_the_vbuckets_of_the_map_and_whatever_nodes_have() -> None:
    directory = Directory(["a:1", "b:1"])
    told(directory, "a:1", {2: 1}, present=frozenset({2, 3}))
    assert directory.numbers() == {2, 3}
    take(directory, "a:1", map_of(2))
    assert directory.numbers() == {0, 1, 2, 3}


def test_a_node_below_a_term_that_was_heard_of_before_is_not_chosen() -> None:
    directory = Directory(["a:1", "b:1"], 1, {0: 5})
    told(directory, "a:1", {0: 4})
    assert not directory.choice(0).place
    told(directory, "b:1", {0: 6})
    assert directory.choice(0).place == "b:1"
    directory.lost("b:1", GONE)
    told(directory, "a:1", {0: 5})
    missing = directory.missing([0])
    assert missing is not None
    assert "term 5, and there is a term 6" in str(missing)
    assert str(missing).endswith("b:1 is down")


def test_what_is_missing_is_listed_by_why() -> None:
    directory = Directory(["a:1", "b:1"], 8, {2: 9})
    told(directory, "a:1", {1: 1, 2: 1})
    directory.lost("b:1", GONE)
    missing = directory.missing([0, 1, 2, 3, 8])
    assert missing is not None
    assert missing.numbers == [0, 2, 3, 8]
    assert (missing.nowhere, tuple(missing.refused), missing.beyond) == ((0, 3), (2,), (8,))
    assert directory.missing([1]) is None
    assert "vBuckets 0,3 are active at none of a:1, b:1" in str(missing)
    many = Directory(["a:1"], 1024, dict.fromkeys(range(1024), 2))
    told(many, "a:1", dict.fromkeys(range(1024), 1))
    assert str(many.missing(range(1024))).endswith("and 1019 vBuckets more like these")


def test_what_a_node_told_last_counts_for_those_who_remember_until_another_has_it() -> None:
    directory = Directory(["a:1", "b:1"], 2, remembers=True)
    told(directory, "a:1", {0: 1, 1: 1})
    told(directory, "b:1", {})
    directory.lost("a:1", GONE)
    assert directory.owners() == {0: "a:1", 1: "a:1"}
    told(directory, "b:1", {0: 1})
    assert directory.owners() == {0: "b:1", 1: "a:1"}


def test_a_deposed_node_is_told_once_when_it_has_heard() -> None:
    directory = Directory(["a:1", "b:1", "c:1"], 1)
    told(directory, "a:1", {0: 1})
    told(directory, "b:1", {0: 2}, logs={0: [(8, 5), (7, 0)]})
    told(directory, "c:1", {0: 0})
    assert directory.deposed() == {"a:1": [0]}, "one that knows no terms cannot be told"
    news = directory.news("a:1")
    assert news == [News(0, 2, [(8, 5), (7, 0)])]
    assert [each.opcode for each in telling(news)] == [Opcode.TELL_TERMS]
    assert directory.news("a:1"), "it has not heard yet"
    directory.has_heard("a:1", news)
    told(directory, "a:1", {0: 1})
    assert directory.deposed() == {}
    directory.lost("a:1", GONE)
    told(directory, "a:1", {0: 1})
    assert directory.deposed() == {"a:1": [0]}, "it is back, and believes in itself"


def test_not_my_vbucket_without_a_map_has_all_nodes_asked_again() -> None:
    directory = Directory(["a:1", "b:1"], 2)
    told(directory, "a:1", {0: 1, 1: 1})
    assert not directory.not_mine("a:1", 0, b"not my vBucket")
    assert directory.owners() == {1: "a:1"}


def test_not_my_vbucket_with_a_map_that_knows_terms_names_the_next_node() -> None:
    directory = Directory(["a:1"], 2)
    told(directory, "a:1", {0: 1, 1: 1})
    value = map_of(2, "a:1", "b:1", terms=[2, 1], chain=1)
    assert directory.not_mine("a:1", 0, value)
    assert directory.owners() == {0: "b:1", 1: "a:1"}
    assert directory.places == ["a:1", "b:1"]


@pytest.mark.parametrize(
    "value",
    [
        b"{",
        map_of(4, "a:1", "b:1", terms=[2] * 4, chain=1),  # of another bucket
        map_of(2, "a:1", "b:1", chain=1),  # an operator's: another may have been promoted since
        map_of(2, "a:1", "b:1", terms=[1, 1], chain=1),  # older than what is known
        map_of(2, "a:1", "b:1", terms=[2, 1], chain=0),  # the node that refuses
        map_of(2, "a:1", "b:1", terms=[2, 1], chain=7),
    ],
    ids=range(6),
)
def test_a_map_that_is_not_believed_names_no_next_node(value: bytes) -> None:
    directory = Directory(["a:1"], 2, {0: 2})
    told(directory, "a:1", {0: 2, 1: 1})
    assert not directory.not_mine("a:1", 0, value)
    assert directory.owners() == {1: "a:1"}


# --- what carries the questions -------------------------------------------------------------------


class Kept:
    """A connection that fails the first time that it is used again."""

    knows_terms = True

    def __init__(self, place: str) -> None:
        self.place, self.uses = place, 0

    def use(self) -> str:
        self.uses += 1
        if self.uses > 1:
            raise NodeError("closed")
        return "answer"

    def ask_all(self, requests: Sequence[RequestFrame]) -> list[ResponseFrame]:
        self.use()
        return [ResponseFrame(each.opcode) for each in requests]

    def told(self, group: str) -> dict[str, str]:
        return {}

    def close(self) -> None:
        self.uses = -9


def test_a_connection_that_was_kept_and_is_lost_is_dialled_once_more() -> None:
    made = []

    def dial(place: str) -> Kept:
        made.append(place)
        return Kept(place)

    connections = KeptConnections(dial)  # type: ignore[arg-type]
    assert [connections.ask("n:1", Kept.use) for _ in range(3)] == ["answer"] * 3
    assert len(made) == 3

    def fail(connection: Kept) -> None:
        raise NodeError("it is down")

    with pytest.raises(NodeError, match="it is down"):
        connections.ask("n:1", fail)
    assert len(made) == 4, "dialled once, not for ever"
    directory = Directory(["n:1"])
    for _ in range(3):
        connections.survey(directory)
        assert not directory.silent
