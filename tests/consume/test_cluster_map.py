"""What clients read from a cluster map, and what they make of one that is none."""

from __future__ import annotations

import json
from typing import Any

import pytest

from uprmc.consume.cluster_map import VBUCKETS_MAX, ClusterMap, parsed_map


def _map(**changes: Any) -> bytes:
    inner = {"serverList": ["$HOST:1", "b:2"], "vBucketMap": [[0], [1], [-1]]} | changes
    return json.dumps({"vBucketServerMap": inner}).encode()


def test_a_map_tells_nodes_and_how_many_vbuckets() -> None:
    assert parsed_map(_map()) == ClusterMap(3, ("$HOST:1", "b:2"))


def test_terms_are_told_where_the_map_has_them() -> None:
    found = parsed_map(_map(terms=[3, 0, "x", 7]))
    assert [found.term(number) for number in range(4)] == [3, 0, 0, 0]


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"{}",
        b"\xff",
        b"[" * 100_000,
        b'{"vBucketServerMap": 5}',
        _map(vBucketMap=5),
        _map(vBucketMap=[]),
        _map(serverList="a:1"),
        _map(terms=5),
        _map(vBucketMap=[0] * (VBUCKETS_MAX + 1)),
    ],
)
def test_what_is_no_map_is_told(text: bytes) -> None:
    with pytest.raises(ValueError, match="a map"):
        parsed_map(text)
    assert parsed_map(_map(vBucketMap=[0] * VBUCKETS_MAX)).vbuckets == VBUCKETS_MAX
