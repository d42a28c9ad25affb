"""Answers of several nodes as one, without sockets: against the oracle, and when a node fails."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import Deferred
from twisted.internet.testing import MemoryReactorClock
from twisted.python.failure import Failure

from tests.index.memory_tree import MemoryTree, entries
from tests.index.oracle import Oracle, parameters
from tests.index.test_queries import DATA, options_of
from uprmc.index.errors import QueryRefused
from uprmc.index.merge import SKIPPED_AT_ONCE, Merged, NodeRows, Order
from uprmc.index.node_client import NodeClient, NodeFailed
from uprmc.index.query import PIECE_BYTES, run
from uprmc.index.query_options import Query
from uprmc.index.scatter import Holdings, placed


class Lines:
    """An answer that is there, up to where it breaks off."""

    def __init__(self, answer: bytes, fails_after: int | None = None) -> None:
        self._lines = answer.split(b"\n")[:-1]
        self._fails_after = fails_after
        self.taken = 0
        self.closed = 0

    async def line(self) -> bytes | None:
        if self._fails_after == self.taken:
            raise NodeFailed("it went away")
        self.taken += 1
        return self._lines.pop(0) if self._lines else None

    def close(self) -> None:
        self.closed += 1


class Adding:
    """A reduce that adds numbers; shows them as strings if asked to."""

    def __init__(self, shown: bool = False) -> None:
        self.shown = shown
        self.calls = 0

    async def rereduce(self, groups: Sequence[Sequence[bytes]]) -> Sequence[bytes | None]:
        self.calls += 1
        sums = [sum(map(json.loads, values)) for values in groups]
        return [None if found == 13 else b"%d" % found for found in sums]

    def finish(self, reduction: bytes) -> bytes:
        return b'"%s"' % reduction if self.shown else reduction


def now(deferred: Any) -> Any:
    """Return what a Deferred has fired with."""
    found: list[Any] = []
    deferred.addBoth(found.append)
    [result] = found
    if hasattr(result, "raiseException"):
        result.raiseException()
    return result


def pieces(merged: Merged) -> list[bytes]:
    found = []
    while (piece := now(merged.make())) is not None:
        found.append(piece)
    return found


class Node:
    """The rows of some vBuckets in a tree."""

    def __init__(self, rows: Iterable[tuple[bytes, int, Any, Any]], collation: str, reduces: bool):
        self._tree = MemoryTree(entries(rows, collation), sum if reduces else None)
        self.wanted: int | None = None
        self.update_seq = {1: 5}

    def tree(self, view_index: int) -> MemoryTree:
        return self._tree

    def total_rows(self, view_index: int) -> int:
        return self._tree.count

    def answer(self, query: Query, vbuckets: Iterable[int]) -> bytes:
        self.wanted = sum(1 << each for each in vbuckets)
        return b"".join(run(query, self, 0, view="v"))


@pytest.mark.acceptance("I11")
@pytest.mark.acceptance("I29")
@given(st.data())
def test_merged_answers_are_those_of_the_oracle(data: st.DataObject) -> None:
    reduces, collation = data.draw(st.booleans()), data.draw(st.sampled_from(["unicode", "raw"]))
    documents = data.draw(DATA)
    options = data.draw(options_of(reduces=reduces))
    owner = data.draw(st.lists(st.integers(0, 2), min_size=4, max_size=4))
    copies = data.draw(st.frozensets(st.tuples(st.integers(0, 2), st.integers(0, 3))))
    rows = [
        (name.encode(), vbucket, key, value)
        for name, (vbucket, emitted) in documents.items()
        for key, value in emitted
    ]
    oracle = Oracle(
        lambda body: body,
        sum if reduces else None,
        collation,
        {(vbucket, name.encode()): emitted for name, (vbucket, emitted) in documents.items()},
    )
    texts = [
        (name, text.strip('"') if "docid" in name else text)
        for name, text in parameters(options).items()
    ]
    rules: dict[str, Any] = {"reduces": reduces, "collation": collation}
    try:
        query = Query.parse(texts, **rules)
    except QueryRefused:
        return
    own = {"skip", "limit"}
    passed = {name: value for name, value in query.given.items() if name not in own}
    if query.limit is not None:
        passed["limit"] = query.skip + query.limit
    order = Order(collation, query.descending, query.reduce)
    nodes = []
    for number in range(3):
        held = {vb for vb in range(4) if owner[vb] == number or (number, vb) in copies}
        node = Node([row for row in rows if row[1] in held], collation, reduces)
        asked = Query.parse([], {**passed, "merge": True}, **rules)
        answer = node.answer(asked, [vb for vb in range(4) if owner[vb] == number])
        nodes.append(NodeRows(str(number), Lines(answer), order))
        now(_begun(nodes[-1]))
    merged = Merged(nodes, order, skip=query.skip, limit=query.limit, reducing=_Sums())
    found = json.loads(b"".join(pieces(merged)))
    assert found["rows"] == oracle.answer(options)
    assert found["errors"] == []


class _Sums(Adding):
    async def rereduce(self, groups: Sequence[Sequence[bytes]]) -> Sequence[bytes | None]:
        return [b"%d" % sum(map(json.loads, values)) for values in groups]


def _begun(rows: NodeRows) -> Any:
    from twisted.internet.defer import Deferred

    return Deferred.fromCoroutine(rows.begin())


ROWS = Order("unicode", False, False)
GROUPS = Order("unicode", False, True)


def answered(rows: Iterable[Any], errors: Sequence[Any] = (), total: int = 0, **more: Any) -> bytes:
    """An answer as a node writes it."""
    head = json.dumps({"total_rows": total, **more})[:-1] + ',"rows":['
    lines = ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows)
    lines = f"\n{lines}" if lines else ""
    tail = ",\n".join(map(json.dumps, errors))
    return f'{head}{lines}\n],"errors":[{tail}]}}\n'.encode()


def row(name: str, key: Any) -> dict[str, Any]:
    return {"id": name, "key": key, "value": None}


def group(key: Any, value: Any) -> dict[str, Any]:
    return {"key": key, "value": value}


def node(name: str, lines: Lines, order: Order = ROWS) -> NodeRows:
    made = NodeRows(name, lines, order)
    now(_begun(made))
    return made


def whole(merged: Merged) -> Any:
    return json.loads(b"".join(pieces(merged)))


def test_totals_are_added_and_seqnos_joined() -> None:
    one = node("a", Lines(answered([row("x", 1)], total=3, update_seq={"0": 5})))
    two = node("b", Lines(answered([], total=4, update_seq={"1": 6})))
    found = whole(Merged([one, two], ROWS, update_seq=True))
    assert (found["total_rows"], found["update_seq"]) == (7, {"0": 5, "1": 6})


def test_nodes_are_read_no_further_than_the_limit() -> None:
    lines = [Lines(answered([row(f"{n:04}", n) for n in range(1_000)])) for _ in range(2)]
    merged = Merged([node(str(n), each) for n, each in enumerate(lines)], ROWS, skip=2, limit=10)
    assert len(whole(merged)["rows"]) == 10
    assert all(each.taken < 10 and each.closed for each in lines)


@pytest.mark.parametrize(
    ("skip", "turns"), [(SKIPPED_AT_ONCE, 1), (SKIPPED_AT_ONCE + 1, 2), (3 * SKIPPED_AT_ONCE, 3)]
)
@pytest.mark.parametrize("grouped", [False, True])
def test_many_rows_are_skipped_in_several_turns(skip: int, turns: int, grouped: bool) -> None:
    taken = [0]

    async def pause() -> None:
        taken.append(lines.taken)

    found = range(3 * SKIPPED_AT_ONCE + 2)
    rows = [group(n, 1) for n in found] if grouped else [row(f"{n:05}", n) for n in found]
    order = GROUPS if grouped else ROWS
    lines = Lines(answered(rows))
    reducing = Adding(shown=True) if grouped else None
    merged = Merged([node("a", lines, order)], order, skip=skip, reducing=reducing, pause=pause)
    assert len(whole(merged)["rows"]) == len(found) - skip
    assert len(taken) == turns
    assert all(after - before <= SKIPPED_AT_ONCE + 2 for before, after in pairwise(taken))


def test_a_large_answer_comes_in_pieces() -> None:
    rows = [row(f"{n:05}", "x" * 100) for n in range(2_000)]
    found = pieces(Merged([node("a", Lines(answered(rows)))], ROWS))
    assert len(found) > 10
    assert max(map(len, found)) < PIECE_BYTES + 1_000
    assert len(json.loads(b"".join(found))["rows"]) == 2_000


def test_equal_groups_are_reduced_together_many_at_a_time() -> None:
    reducing = Adding(shown=True)
    one = node("a", Lines(answered([group(n, 1) for n in range(50)])), GROUPS)
    two = node("b", Lines(answered([group(n, 2) for n in range(0, 50, 2)])), GROUPS)
    found = whole(Merged([one, two], GROUPS, reducing=reducing))
    assert found["rows"] == [group(n, "1" if n % 2 else "3") for n in range(50)]
    assert reducing.calls < 30


def test_a_reduction_that_fails_at_the_merger_is_an_error() -> None:
    one = node("a", Lines(answered([group("k", 6), group("l", 1)])), GROUPS)
    two = node("b", Lines(answered([group("k", 7)])), GROUPS)
    found = whole(Merged([one, two], GROUPS, view="v", source="m", reducing=Adding()))
    assert found["rows"] == [group("l", 1)]
    assert found["errors"] == [{"from": "m", "reason": "view 'v': the reduce failed for key \"k\""}]


def test_a_node_that_goes_away_is_an_error_and_the_others_go_on() -> None:
    lost = Lines(answered([row("a", 1), row("c", 3)]), fails_after=2)
    one, two = node("a:1", lost), node("b:1", Lines(answered([row("b", 2), row("d", 4)])))
    found = whole(Merged([one, two], ROWS))
    assert [each["id"] for each in found["rows"]] == ["a", "b", "d"]
    assert found["errors"] == [{"from": "a:1", "reason": "it went away"}]
    assert lost.closed


def test_an_error_ends_the_answer_on_request() -> None:
    lost = Lines(answered([row("a", 1), row("c", 3)]), fails_after=2)
    one, two = node("a:1", lost), node("b:1", Lines(answered([row("b", 2), row("d", 4)])))
    found = whole(Merged([one, two], ROWS, stop=True))
    assert [each["id"] for each in found["rows"]] == ["a"]
    assert len(found["errors"]) == 1


def test_errors_of_nodes_keep_their_names() -> None:
    error = {"from": "x:1", "reason": "the reduce failed"}
    found = whole(Merged([node("a", Lines(answered([row("a", 1)], [error, error])))], ROWS))
    assert found["errors"] == [error, error]
    assert len(found["rows"]) == 1


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\n",
        b"<html>\n",
        b'{"total_rows":"x","rows":[\n],"errors":[]}\n',
        b'{"total_rows":1,"rows":[\n{"key":1}\n],"errors":[]}\n',
        b'{"total_rows":1,"rows":[\n{"id":5,"key":1}\n],"errors":[]}\n',
        b'{"total_rows":1,"rows":[\n{"id":"a","key":\n],"errors":[]}\n',
        b'{"total_rows":1,"rows":[\n\xff\n],"errors":[]}\n',
        b'{"total_rows":1,"rows":[\n],"errors":[5]}\n',
        b'{"total_rows":1,"rows":[\n{"id":"a","key":1,"value":1}\n',
    ],
)
def test_an_answer_that_makes_no_sense_is_an_error_of_its_node(answer: bytes) -> None:
    sound = Lines(answered([row("b", 2)]))
    found = whole(Merged([node("a", Lines(answer)), node("b", sound)], ROWS))
    assert found["rows"][-1]["id"] == "b"
    assert [each["from"] for each in found["errors"]] == ["a"]


# --- who answers for what -----------------------------------------------------------------------


def holdings(active: dict[int, int], pending: Sequence[int] = (), epoch: int = 0) -> Holdings:
    return Holdings(4, epoch, active, frozenset(pending))


@pytest.mark.acceptance("I11")
def test_each_vbucket_has_one_node_that_with_the_newest_term() -> None:
    found = placed(
        {"a": holdings({0: 1, 1: 1, 2: 5}, epoch=3), "b": holdings({1: 2, 2: 4, 3: 1}, epoch=7)}
    )
    assert found.nodes == {"a": {0, 2}, "b": {1, 3}}
    assert (found.epoch, found.total, found.missing) == (7, 4, frozenset())


def test_nodes_that_are_equal_take_turns() -> None:
    everything = dict.fromkeys(range(4), 1)
    found = placed({"b": holdings(everything), "a": holdings(everything)})
    assert found.nodes == {"a": {0, 2}, "b": {1, 3}}


def test_what_no_node_has_is_missing_and_may_be_coming() -> None:
    found = placed({"a": holdings({0: 1}, pending=[2, 0]), "b": holdings({1: 1})})
    assert (found.missing, found.coming) == ({2, 3}, {2})


@pytest.mark.parametrize(
    "answer",
    [
        None,
        [],
        {},
        {"num_vbuckets": 4},
        {"num_vbuckets": -1, "epoch": 0, "active": {}, "pending": []},
        {"num_vbuckets": 4, "epoch": 0, "active": [], "pending": []},
        {"num_vbuckets": 10**9, "epoch": 0, "active": {}, "pending": []},
    ],
)
def test_what_a_node_says_it_has_is_checked(answer: Any) -> None:
    with pytest.raises(ValueError, match="it "):
        Holdings.parse(answer)


@pytest.mark.parametrize(("mebibytes", "refused"), [(15, False), (17, True)])
def test_an_answer_that_is_read_as_a_whole_has_a_limit(mebibytes: int, refused: bool) -> None:
    lines = deque([b"x" * (1 << 20)] * mebibytes)
    closed: list[int] = []

    async def line(*_: object) -> bytes | None:
        return lines.popleft() if lines else None

    answer: Any = SimpleNamespace(lines=SimpleNamespace(line=line, close=lambda: closed.append(1)))
    reading = Deferred.fromCoroutine(NodeClient(MemoryReactorClock()).content(answer, 1.0))
    if refused:
        with pytest.raises(NodeFailed, match="too large"):
            result_of(reading)
    else:
        assert len(result_of(reading)) > 15 << 20
    assert bool(closed) is refused


def result_of(deferred: Deferred[Any]) -> Any:
    found: list[Any] = []
    deferred.addBoth(found.append)
    (result,) = found
    if isinstance(result, Failure):
        result.raiseException()
    return result
