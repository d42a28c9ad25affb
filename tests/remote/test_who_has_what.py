"""All who ask nodes who has which vBucket come to the same verdict: the same scenarios for each.

Each user is asked for a document or a row of vBucket 0 and says which node it turns to, or why to
none.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

import pytest
from twisted.internet.defer import maybeDeferred
from twisted.internet.task import Clock

from interop.wire import vbucket_of
from tests.client.fake_kv_node import (
    ALL_SEQNOS,
    FAILOVER_LOG,
    HANG_UP,
    STREAM_REQUEST,
    UPR_OPEN,
    FakeKvNode,
)
from tests.codec.frames import Frame, reply
from tests.server.support import Loop
from uprmc.client import Handler, UprClient, forget
from uprmc.client.errors import MisuseError
from uprmc.client.kv import KvClient
from uprmc.client.twisted_client import TwistedUprClient
from uprmc.columnar.access import Access
from uprmc.columnar.nodes import BulkNodes
from uprmc.errors import UprmcError
from uprmc.index.source import IndexSource

#: A node that says nothing for so long is given up.
SILENCE_S = 0.5

#: A consumer gives up what is nowhere after so long; a node that hangs has been given up by then.
PATIENCE_S, LIMIT_S = 1.0, 5.0

#: A key of vBucket 0, of 4.
KEY = next(b"%d" % n for n in range(100) if vbucket_of(b"%d" % n, 4) == 0)

#: Returns the node that a user turns to, or the words why to none.
User = Callable[[Sequence[str]], str]

Nodes_ = Sequence[FakeKvNode]


def turned_to(nodes: Nodes_, opcode: int) -> str:
    (found,) = [node.place for node in nodes if opcode in node.asked]
    return found


def kv_client(nodes: Nodes_, places: Sequence[str]) -> str:
    with KvClient(places, timeout_s=SILENCE_S, retry_s=0.02) as kv:
        kv.set(KEY, b"v")
    return turned_to(nodes, 0x01)


def columnar(nodes: Nodes_, places: Sequence[str]) -> str:
    access = Access(tuple(places), retries=0, read_timeout_s=SILENCE_S, connect_timeout_s=SILENCE_S)
    with BulkNodes(access) as found:
        ((place, _),) = found.by_place([0]).items()
    return place


def forgetting(nodes: Nodes_, places: Sequence[str]) -> str:
    forget(places, "instance", [0], timeout_s=SILENCE_S)
    return turned_to(nodes, UPR_OPEN)


def index(nodes: Nodes_, places: Sequence[str]) -> str:
    source = IndexSource(Clock(), places, 1.0, None, lambda: None)
    with closing(source._connections):
        source.refresh()
        place = source.place_of(0)
        if not place:
            raise UprmcError(source.error or "vBucket 0 is active at none of them")
        return place


def streaming(nodes: Nodes_, places: Sequence[str]) -> str:
    with UprClient(places, Handler(), vbuckets=[0], patience_s=PATIENCE_S) as client:
        client.run(until="now", timeout_s=LIMIT_S)
    return turned_to(nodes, STREAM_REQUEST)


def streaming_in_a_reactor(nodes: Nodes_, places: Sequence[str]) -> str:
    loop = Loop()
    options: Any = {"vbuckets": [0], "patience_s": PATIENCE_S, "reactor": loop.reactor}
    client = TwistedUprClient(places, Handler(), **options)
    loop.result(client.run("now", timeout_s=LIMIT_S), 2 * LIMIT_S)
    return turned_to(nodes, STREAM_REQUEST)


USERS = {
    each.__name__: each
    for each in (kv_client, columnar, forgetting, index, streaming, streaming_in_a_reactor)
}


@pytest.fixture(name="user", params=USERS)
def _user(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("uprmc.index.source._ANSWER_S", SILENCE_S)
    monkeypatch.setattr("uprmc.client.streams._TELL_S", SILENCE_S)
    monkeypatch.setattr(
        "uprmc.index.source.deferToThreadPool",
        lambda reactor, pool, what, *given: maybeDeferred(what, *given),
    )

    def ask(*nodes: FakeKvNode, among: Nodes_ = ()) -> str:
        try:
            return USERS[request.param]((*nodes, *among), [node.place for node in nodes])
        except UprmcError as error:
            return str(error)

    return ask


# --- maps -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"{}",
        b"\xff",
        b"[" * 100_000,
        b'{"vBucketServerMap": 5}',
        b'{"vBucketServerMap": {"vBucketMap": 5, "serverList": []}}',
    ],
    ids=range(7),
)
def test_a_map_that_makes_no_sense_counts_as_none(user: Any, text: bytes) -> None:
    with FakeKvNode() as node:
        node.map, node.count = text, 4
        assert user(node) == node.place


def test_the_node_that_gave_the_map_is_reached_by_the_address_that_was_dialled(user: Any) -> None:
    """It is behind a forwarded port: what its map calls it, nobody here can dial."""
    inner = {"serverList": ["10.255.255.1:11210"], "vBucketMap": [[0]] * 4, "terms": [1] * 4}
    here = {"thisNode": True, "hostname": "10.255.255.1", "services": {"kv": 11210}}
    with FakeKvNode(term=1) as node:
        node.map = json.dumps({"vBucketServerMap": inner, "nodesExt": [here]}).encode()
        assert user(node) == node.place


def test_a_node_of_another_bucket_is_not_used(user: Any) -> None:
    with FakeKvNode([1]) as ours, FakeKvNode([0], vbuckets=8) as foreign:
        why = user(ours, foreign)
        # Who asks all at once takes the first that answers for the one that is meant.
        assert any(
            f"has {there} vBuckets, not {known}: it belongs to another bucket" in why
            for there, known in ((8, 4), (4, 8))
        )


def test_a_map_that_is_too_short_hides_nothing(user: Any) -> None:
    with FakeKvNode(vbuckets=2) as node:
        assert "has vBucket 3, and by its cluster map there are only 2" in user(node)


def test_a_map_that_is_too_short_ends_a_consumer_that_would_follow_for_ever() -> None:
    with (
        FakeKvNode(vbuckets=2) as node,
        UprClient(node.place, Handler()) as client,
        pytest.raises(MisuseError, match="set another map there"),
    ):
        client.run(timeout_s=LIMIT_S)


def test_a_node_that_only_a_map_names_is_asked_too(
    user: Any, request: pytest.FixtureRequest
) -> None:
    """But an index: it has what the named nodes have."""
    with FakeKvNode([0]) as second, FakeKvNode([1], others=[second.place]) as first:
        found = user(first, among=[second])
        assert found == second.place or ("[index]" in request.node.name and "at none of" in found)


def test_a_term_in_a_map_is_as_good_as_one_that_a_node_tells(user: Any) -> None:
    """The node that was promoted is away; the deposed one believes in itself."""
    with FakeKvNode([0], term=1) as deposed, FakeKvNode([1], term=2) as other:
        inner = {"serverList": [], "vBucketMap": [[0]] * 4, "terms": [2] * 4}
        other.map = json.dumps({"vBucketServerMap": inner}).encode()
        assert "term 1, and there is a term 2" in user(deposed, other)


# --- several that say "active" --------------------------------------------------------------------


def test_a_deposed_active_that_is_named_first_and_has_crashed_since_is_not_used(user: Any) -> None:
    with FakeKvNode(term=1, branches=5) as deposed, FakeKvNode(term=2, branches=2) as right:
        assert user(deposed, right) == right.place
        assert (0, 2, 2) in deposed.told
        assert not right.told


def test_of_equal_terms_the_one_whose_history_goes_on_is_used(user: Any) -> None:
    with FakeKvNode() as old, FakeKvNode(branches=2) as promoted:
        assert user(old, promoted) == promoted.place
        assert not old.told, "it knows no terms"


def test_of_two_promoted_by_hand_none_is_used_and_both_are_named(user: Any) -> None:
    with FakeKvNode(term=2) as one, FakeKvNode(term=2) as other:
        one.log, other.log = [7, 1], [8, 1]
        assert f"{one.place} and {other.place} both have it active" in user(one, other)


def test_a_deposed_node_is_told_the_histories_of_what_it_has_and_nothing_else(user: Any) -> None:
    with (
        FakeKvNode({0, 1}, term=1, branches=3) as deposed,
        FakeKvNode({0, 2}, term=2, branches=2) as right,
    ):
        assert user(deposed, right) == right.place
        assert deposed.told == [(0, 2, 2), (0, 2, 1)]


# --- nodes that do not answer ---------------------------------------------------------------------


def silent_to(opcode: int, node: FakeKvNode) -> None:
    usual = node._answer
    node._answer = lambda asked: b"" if asked.opcode == opcode else usual(asked)  # type: ignore[method-assign]


def test_a_node_that_hangs_does_not_keep_the_others_from_being_used(user: Any) -> None:
    with FakeKvNode([1]) as hangs, FakeKvNode([0]) as other:
        silent_to(ALL_SEQNOS, hangs)
        assert user(hangs, other) == other.place


def test_what_a_node_that_hangs_may_have_is_missing_and_it_is_named(user: Any) -> None:
    with FakeKvNode([0]) as hangs, FakeKvNode([1]) as other:
        silent_to(ALL_SEQNOS, hangs)
        assert f"{hangs.place} s" in user(hangs, other)


def test_where_a_history_decides_and_never_comes_none_is_used(user: Any) -> None:
    with FakeKvNode() as one, FakeKvNode(branches=2) as other:
        silent_to(FAILOVER_LOG, other)
        assert "several active nodes, and one does not tell its history" in user(one, other)


def test_a_vbucket_that_is_active_nowhere_is_named(user: Any) -> None:
    with FakeKvNode([1, 2, 3]) as node:
        assert "vBucket 0 is active at none of" in user(node)


def test_a_torn_answer_is_named(user: Any) -> None:
    with FakeKvNode() as node:
        usual = node._answer

        def torn(asked: Frame) -> object:
            return reply(asked, value=b"12345") if asked.opcode == ALL_SEQNOS else usual(asked)

        node._answer = torn  # type: ignore[method-assign]
        assert f"the node at {node.place} sent a torn list of seqnos" in user(node)


def test_a_node_that_hangs_up_is_named(user: Any) -> None:
    with FakeKvNode() as node:
        usual = node._answer
        node._answer = (  # type: ignore[method-assign]
            lambda asked: HANG_UP if asked.opcode == ALL_SEQNOS else usual(asked)
        )
        why = user(node)
        assert f"{node.place} closed the connection" in why or f"at {node.place} ended" in why
