"""Which node an index asks for a vBucket: that of the highest term, and none where that is open.

Source: contracts sections 1, 4; rows I26, I27.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from interop.replica_pair import Node, fail_over, replicate, standing_of, wait_until_level
from tests.index.running import BY_CITY, cities, index_server
from uprmc.client.connection import NodeError
from uprmc.client.kv import KvClient
from uprmc.index.source import IndexSource
from uprmc.model import VBucketState
from uprmc.protocol.management import encode_vbucket_seqno_terms
from uprmc.protocol.opcodes import Opcode, Status
from uprmc.protocol.upr import encode_failover_log
from uprmc.remote.blocking import KeptConnections
from uprmc.remote.directory import Directory, NodeHoldings, NotTold, Why


class Has(NamedTuple):
    """What a node has of vBucket 0: its term (``None`` = it is a replica), its high seqno, log."""

    term: int | None
    seqno: int
    log: tuple[tuple[int, int], ...]


OLD, NEW = Has(1, 9, ((7, 0),)), Has(2, 5, ((8, 5), (7, 0)))
REPLICA = Has(None, 5, ((7, 0),))


class Nodes(KeptConnections):
    """Nodes by place; those that have nothing are silent."""

    def __init__(self, nodes: Mapping[str, Has | None]) -> None:
        super().__init__(self._connected)
        self.nodes = dict(nodes)
        self.deposed: list[str] = []
        self.counts: dict[str, int] = {}

    def _connected(self, place: str) -> Any:
        return SimpleNamespace(
            place=place,
            knows_terms=True,
            ask_all=lambda asked: [self._answer(place, each) for each in asked],
            told=lambda group: {"ep_max_vbuckets": str(self.counts.get(place, 1))},
            statistics=lambda group: {"vb_0:last_persisted_seqno": str(self._at(place).seqno)},
            close=lambda: None,
        )

    def _at(self, place: str) -> Has:
        has = self.nodes[place]
        if has is None:
            raise NodeError(f"{place} is silent")
        return has

    def _answer(self, place: str, request: Any) -> Any:
        has = self._at(place)
        if request.opcode == Opcode.GET_CLUSTER_CONFIG:
            return SimpleNamespace(status=Status.NOT_SUPPORTED)
        if request.opcode == Opcode.TELL_TERMS:
            self.deposed.append(place)
            return SimpleNamespace(status=0, value=b"")
        return _answer(has, request)


def _answer(has: Has, request: Any) -> Any:
    value = b""
    if request.opcode == Opcode.GET_FAILOVER_LOG:
        value = encode_failover_log(has.log)  # type: ignore[arg-type]
    elif (request.extras[-1] == VBucketState.ACTIVE) == (has.term is not None):
        value = encode_vbucket_seqno_terms([(0, has.seqno, has.term or 0)])
    return SimpleNamespace(status=0, value=value, reason="")


def source_of(nodes: Mapping[str, Has | None], monkeypatch: pytest.MonkeyPatch) -> IndexSource:
    """Return a source that has asked the nodes once; its thread is this one."""
    source = IndexSource(Clock(), nodes, 1.0, None, lambda: None)
    source._connections = Nodes(nodes)

    def at_once(reactor: Any, pool: Any, what: Any, *given: Any) -> Any:
        from twisted.internet.defer import maybeDeferred

        return maybeDeferred(what, *given)

    monkeypatch.setattr("uprmc.index.source.deferToThreadPool", at_once)
    source.refresh()
    return source


def got(deferred: Any) -> Any:
    found: list[Any] = []
    deferred.addCallback(found.append)
    return found[0]


def test_what_the_nodes_tell_the_streams_counts_once_all_have_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = source_of({"a": OLD, "b": None}, monkeypatch)
    heard = Directory(["a", "b"])
    heard.told("a", NodeHoldings({0: (9, 1)}))
    assert not source.hear(heard)
    heard.told("b", NodeHoldings({0: (5, 2)}))
    assert source.hear(heard)
    assert (source.place_of(0), source.seqnos, source.error) == ("b", {0: 5}, "")
    heard.lost("b", NotTold(Why.LOST, "b is away"))
    assert source.hear(heard)
    assert (source.place_of(0), source.error) == ("b", "b is away")
    heard.heard_of({0: 3})
    assert source.hear(heard)
    assert source.place_of(0) == ""


def test_what_the_streams_do_not_ask_for_is_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    source = source_of({"a": REPLICA}, monkeypatch)
    heard = Directory(["a"])
    heard.told("a", NodeHoldings({1: (4, 1)}))
    assert source.hear(heard)
    assert (source.active, source.replicas) == ({1}, {0})


def test_what_the_streams_hear_does_not_count_while_the_nodes_are_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What they say then may be older, and comes later."""
    source = source_of({"a": OLD}, monkeypatch)
    heard = Directory(["a"])
    heard.told("a", NodeHoldings({0: (12, 1)}))
    monkeypatch.setattr("uprmc.index.source.deferToThreadPool", lambda *asked: Deferred())
    source.refresh()
    assert not source.hear(heard)
    assert source.seqnos == {0: 9}


@pytest.mark.parametrize(
    ("nodes", "place", "certain"),
    [
        ([OLD, NEW], "b", True),
        ([NEW, OLD], "a", True),
        ([OLD, REPLICA], "a", True),
        ([OLD, Has(1, 5, ((8, 5), (7, 0)))], "b", True),  # its history goes on from the other's
        ([OLD, Has(1, 5, ((8, 5),))], "", False),  # two were promoted by hand
        ([None, NEW], "b", False),  # what is silent may have been promoted
        ([OLD, None], "a", False),
        ([REPLICA, REPLICA], "", False),
    ],
)
def test_the_node_to_ask_is_that_of_the_highest_term(
    nodes: list[Has | None], place: str, certain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_place = dict(zip("ab", nodes, strict=True))
    source = source_of(by_place, monkeypatch)
    chosen = by_place[place] if place else None
    assert source.place_of(0) == place
    assert source.seqnos == ({} if chosen is None else {0: chosen.seqno})
    logs = got(source.failover_logs([0]))
    assert logs == ({0: chosen.log} if chosen is not None and certain else {})
    assert got(source.persisted()) == ({} if chosen is None else {0: chosen.seqno})
    deposed = [each for each in "ab" if by_place[each] is OLD and NEW in nodes]
    assert source._connections.deposed == deposed  # type: ignore[attr-defined]


def then(source: IndexSource, **nodes: Has | None) -> None:
    connections: Any = source._connections
    connections.nodes |= nodes
    source.refresh()


def test_a_node_that_falls_silent_keeps_its_vbuckets_until_another_has_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = source_of({"a": OLD, "b": REPLICA}, monkeypatch)
    then(source, a=None)
    assert (source.place_of(0), source.error, source.active) == ("a", "a is silent", {0})
    assert got(source.failover_logs([0])) == {}
    then(source, b=NEW)
    assert source.place_of(0) == "b"
    assert got(source.failover_logs([0])) == {0: NEW.log}  # a had it with a lower term


def test_a_node_that_was_deposed_is_not_asked_while_the_other_is_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = source_of({"a": OLD, "b": NEW}, monkeypatch)
    then(source, b=None)
    assert source.place_of(0) == "b"
    assert got(source.failover_logs([0])) == {}


def test_logs_are_those_after_the_question(monkeypatch: pytest.MonkeyPatch) -> None:
    source = source_of({"a": OLD, "b": REPLICA}, monkeypatch)
    connections: Any = source._connections
    connections.nodes["b"] = NEW
    assert got(source.failover_logs([0])) == {0: NEW.log}


def test_what_was_never_told_may_be_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    source = source_of({"a": REPLICA, "b": None}, monkeypatch)
    assert (source.is_known, source.is_complete) == (True, False)
    then(source, a=NEW)
    assert source.is_complete  # all vBuckets are at nodes that have answered
    then(source, a=REPLICA, b=OLD)
    assert source.is_complete


def test_a_node_of_another_bucket_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    source = source_of({"a": NEW}, monkeypatch)
    connections: Any = source._connections
    connections.nodes["b"] = OLD
    connections.counts = {"b": 4}
    source._directory.places.append("b")
    source.refresh()
    assert "it belongs to another bucket" in source.error
    assert (source.total, source.place_of(0)) == (1, "a")


# --- real nodes ---------------------------------------------------------------------------------


def tokens(node: Node, documents: Iterable[tuple[bytes, bytes]]) -> str:
    """Store documents; return the newest version of each vBucket, as `at` has it."""
    with KvClient(str(node.upr)) as kv:
        kv.set_many(dict(documents))
    with node.wire() as wire:
        found = standing_of(wire)
    return ",".join(f"{vb}:{at.log[0][0]}:{at.seqno}" for vb, at in sorted(found.items()))


@pytest.mark.acceptance("I27")
def test_versions_after_a_failover_are_found_while_the_old_active_lives_and_is_named_first(
    tmp_path: Path,
) -> None:
    with ExitStack() as stack:
        old, new = nodes = [Node(tmp_path / name, "--vbuckets", "4") for name in ("old", "new")]
        for node in nodes:
            stack.callback(node.end)
            node.start()
        before = tokens(old, cities(range(40)).items())
        replicate(new, old.upr)
        wait_until_level(old, new)
        settings = {"index.poll_s": "60"}
        index = index_server(tmp_path / "index", old.upr, new.upr, settings=settings)
        views = stack.enter_context(index).views
        views.put("d", BY_CITY)
        assert len(views.rows(at=before)) == 40
        fail_over(new, range(4))
        lost = tokens(old, cities(range(40, 60)).items())
        after = tokens(new, cities(range(60, 90)).items())
        assert {row["id"] for row in views.rows(at=after)} == {*ids(range(40)), *ids(range(60, 90))}
        refused = views.query(at=lost)
        assert (refused.status, refused.body["error"]) == (409, "version_lost")
        new.kill()
        unknown = views.query(at=lost, connection_timeout=300)
        assert unknown.status == 503  # what cannot be asked may have been promoted


def ids(numbers: Iterable[int]) -> list[str]:
    return [f"k{number}" for number in numbers]
