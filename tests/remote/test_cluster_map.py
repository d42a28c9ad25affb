"""What clients read from a cluster map, and what they make of one that is none."""

from __future__ import annotations

import json
from typing import Any

import pytest

from uprmc.protocol.header import ResponseFrame
from uprmc.protocol.opcodes import Opcode, Status
from uprmc.remote.cluster_map import VBUCKETS_MAX, ClusterMap, count_in, map_of


def _read(text: bytes, status: int = 0) -> ClusterMap | None:
    return map_of(ResponseFrame(Opcode.GET_CLUSTER_CONFIG, status, value=text))


def _text(outer: dict[str, Any] | None = None, **changes: Any) -> bytes:
    inner = {"serverList": ["$HOST:1", "b:2"], "vBucketMap": [[0], [1], [-1], [0]]} | changes
    return json.dumps({"vBucketServerMap": inner} | (outer or {})).encode()


def _map(outer: dict[str, Any] | None = None, **changes: Any) -> ClusterMap:
    found = _read(_text(outer, **changes))
    assert found is not None
    return found


def test_a_map_tells_nodes_and_how_many_vbuckets() -> None:
    found = _map({"uuid": "12ab"})
    assert found == ClusterMap(4, ("$HOST:1", "b:2"), bucket_uuid="12ab", owners=(0, 1, -1, 0))
    assert [found.owner(number, "a:1") for number in range(5)] == ["a:1", "b:2", "", "a:1", ""]


@pytest.mark.parametrize("chain", [[], [2], [-2], ["0"], 5, None, [True]])
def test_a_chain_that_makes_no_sense_names_no_owner(chain: Any) -> None:
    assert _map(vBucketMap=[chain]).owners == (-1,)


def test_terms_are_told_where_the_map_has_them() -> None:
    found = _map(terms=[3, 0, "x", 7, 9])
    assert [found.term(number) for number in range(5)] == [3, 0, 0, 7, 0]
    found = _map(terms=[2**63 - 1, 2**63, -1])
    assert [found.term(number) for number in range(3)] == [2**63 - 1, 0, 0]


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"{}",
        b"5",
        b"\xff",
        b"[" * 100_000,
        b'{"vBucketServerMap": 5}',
        _text(vBucketMap=5),
        _text(vBucketMap=[]),
        _text(vBucketMap=[[0]] * 3),
        _text(serverList="a:1"),
        _text(terms=5),
        _text(vBucketMap=[0] * (VBUCKETS_MAX + 1)),
    ],
)
def test_a_map_that_makes_no_sense_counts_as_none(text: bytes) -> None:
    assert _read(text) is None


def test_the_largest_map_is_one_and_a_refusal_is_none() -> None:
    assert _map(vBucketMap=[0] * VBUCKETS_MAX).vbuckets == VBUCKETS_MAX
    assert _read(_text(), Status.KEY_NOT_FOUND) is None


@pytest.mark.parametrize(
    ("servers", "dialled", "places"),
    [
        (["$HOST:1", "b:2"], "a:7", ["a:1", "b:2"]),
        (["$HOST:1", "b:2"], "[::1]:7", ["[::1]:1", "b:2"]),
        (["$HOST:1", "b:2"], "unix:/a", ["b:2"]),
        (["a:1", "a:1", 5], "a:1", ["a:1"]),
        (["a", "b:0", "b:65536", "", "unix:/x", "[::1]", "c:2"], "a:1", ["c:2"]),
        ([f"a:{port}" for port in range(1, 1_100)], "a:1", [f"a:{n}" for n in range(1, 1_025)]),
        ([], "a:1", []),
    ],
)
def test_the_host_that_was_dialled_stands_for_host(
    servers: list[Any], dialled: str, places: list[str]
) -> None:
    assert _map(serverList=servers).places(dialled) == places


_KV = {"services": {"kv": 1}}
_THIS = {"thisNode": True, **_KV}
_WITHOUT_KV = {"services": {"mgmt": 8091}}


@pytest.mark.parametrize(
    ("outer", "places"),
    [
        ({"nodesExt": [_KV, _THIS]}, ["t:1", "t:5"]),
        ({"nodesExt": [_WITHOUT_KV, _THIS, _KV]}, ["t:5", "b:2"]),
        ({"nodesExt": [{"thisNode": True, "services": {"kvSSL": 3}}, _KV]}, ["t:5", "b:2"]),
        ({"nodes": [{}, {"thisNode": True}]}, ["t:1", "t:5"]),
        ({"nodesExt": [_KV, _KV, _THIS]}, ["t:1", "b:2"]),
        ({"nodesExt": [_KV, {"thisNode": True, **_WITHOUT_KV}]}, ["t:1", "b:2"]),
        ({"nodesExt": 5, "nodes": [5, None]}, ["t:1", "b:2"]),
        ({"nodesExt": [{"services": 5, "thisNode": True}]}, ["t:1", "b:2"]),
    ],
)
def test_the_node_that_gives_the_map_is_where_it_was_dialled(
    outer: dict[str, Any], places: list[str]
) -> None:
    """Behind a forwarded port it knows nothing of the address by which it is reached."""
    assert _map(outer).places("t:5") == places


def test_the_only_node_of_a_map_is_the_one_that_gives_it() -> None:
    one = _map({"nodesExt": [_KV]}, serverList=["10.0.0.1:11210"])
    assert one.places("localhost:5000") == ["localhost:5000"]


def _reached(host: str, **ports: int) -> dict[str, Any]:
    there = {"hostname": host} | ({"ports": ports} if ports else {})
    return {**_KV, "alternateAddresses": {"external": there}}


@pytest.mark.parametrize(
    ("entries", "dialled", "places"),
    [
        ([_reached("out", kv=31), _reached("out", kv=32)], "out:31", ["out:31", "out:32"]),
        ([_reached("x", kv=31), _reached("y")], "y:1", ["x:31", "y:1"]),
        ([_reached("x", kv=31), _reached("2001::1", kv=32)], "x:31", ["x:31", "[2001::1]:32"]),
        ([_reached("x", kv=31), _KV], "x:31", ["x:31", "b:2"]),
        ([_reached("x", kv=31), _reached("y")], "a:1", ["a:1", "b:2"]),
        ([_reached("x", kv=31), _reached("y")], "tunnel:1", ["a:1", "b:2"]),
        ([_reached("x", kv=0), _reached("x y", kv=3)], "x:1", ["a:1", "b:2"]),
        ([{**_KV, "alternateAddresses": 5}, {**_KV, "alternateAddresses": {"external": 5}}],
         "x:1", ["a:1", "b:2"]),
    ],
)  # fmt: skip
def test_who_comes_from_outside_reaches_all_nodes_there(
    entries: list[dict[str, Any]], dialled: str, places: list[str]
) -> None:
    assert _map({"nodesExt": entries}, serverList=["a:1", "b:2"]).places(dialled) == places


@pytest.mark.parametrize(
    ("text", "count"),
    [("64", 64), ("", 0), ("x", 0), ("-1", 0), ("9" * 4_301, 0), (str(VBUCKETS_MAX + 1), 0)],
)
def test_a_node_without_a_map_tells_its_vbuckets_by_a_statistic(text: str, count: int) -> None:
    assert count_in({"ep_max_vbuckets": text}) == count
    assert count_in({}) == 0
