"""Index nodes as processes: a merger asks those that have vBuckets, and their verbs find them."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from interop.server_process import ServerProcess, start_uprmc
from tests.cli.support import uprmc
from tests.index.running import BY_CITY, IndexServer, Views, cities, index_server, store

VBUCKETS = 8
OPTIONS: list[dict[str, Any]] = [
    {"reduce": "false"},
    {"reduce": "false", "descending": "true", "skip": 7, "limit": 20},
    {"reduce": "false", "startkey": '"c2"', "endkey": '"c4"', "inclusive_end": "false"},
    {"reduce": "false", "keys": '["c5", "c1", "none", "c5"]', "include_docs": "true"},
    {"reduce": "false", "key": '"c3"', "startkey_docid": "k2", "endkey_docid": "k5"},
    {},
    {"group": "true"},
    {"group": "true", "keys": '["c5", "c1", "none", "c5"]'},
    {"group": "true", "descending": "true", "skip": 1, "limit": 3},
    {"startkey": '"c6"'},
    {"startkey": '"none"'},
    {"limit": 0},
]


class Nodes:
    """A data node, two index nodes that share its vBuckets, a merger, and one that has all."""

    def __init__(self, path: Path, stack: ExitStack) -> None:
        data = start_uprmc(path / "node", "--vbuckets", str(VBUCKETS))
        self.data: ServerProcess = stack.enter_context(data)
        self.shares: list[IndexServer] = [
            stack.enter_context(index_server(path / f"i{number}", self.data.upr))
            for number in range(2)
        ]
        named = ",".join(str(share.views.place) for share in self.shares)
        settings = {"index.nodes": named}
        merger = index_server(path / "m", self.data.upr, settings=settings)
        self.merger: Views = stack.enter_context(merger).views
        self.all = Views(self.data.views)
        store(self.data, cities(range(400)))
        self.merger.put("d", BY_CITY)
        self.all.put("d", BY_CITY)
        for number, share in enumerate(self.shares):
            own = [vb for vb in range(VBUCKETS) if vb % 2 == number]
            states = {"active": own, "epoch": 3}
            assert share.views.ask("POST", "/_design/d/_set_states", states).status == 200


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """All of them; queries change nothing."""
    with ExitStack() as stack:
        yield Nodes(tmp_path_factory.mktemp("nodes"), stack)


@pytest.mark.acceptance("I29")
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_merged_answer_is_that_of_one_index(nodes: Nodes, options: dict[str, Any]) -> None:
    merged, alone = (each.query(stale="false", **options) for each in (nodes.merger, nodes.all))
    assert merged.status == alone.status == 200
    assert merged.body["rows"] == alone.body["rows"]
    assert merged.body["errors"] == []


@pytest.mark.acceptance("I12")
def test_each_index_node_has_rows_of_its_own_vbuckets_only(nodes: Nodes) -> None:
    shares = [set(share.views.ids()) for share in nodes.shares]
    assert shares[0] | shares[1] == set(nodes.all.ids())
    assert not shares[0] & shares[1]
    assert nodes.merger.query(limit=1).body["total_rows"] >= 1


def test_a_merged_answer_names_the_seqnos_of_all_vbuckets(nodes: Nodes) -> None:
    found = nodes.merger.query(stale="false", update_seq="true").body["update_seq"]
    assert found == nodes.all.query(stale="false", update_seq="true").body["update_seq"]
    assert len(found) == VBUCKETS


def test_verbs_find_the_views_of_a_node_by_themselves(nodes: Nodes, tmp_path: Path) -> None:
    file = tmp_path / "design.json"
    file.write_text(json.dumps(BY_CITY))
    node = ["--node", nodes.data.upr]
    assert uprmc("index", "put", "verbs", file, *node).out == "verbs: stored\n"
    table = uprmc("index", "query", "verbs/by_city", "--group", "--stale", "false", *node)
    assert table.out.splitlines()[:2] == ["key  value", "c0   58"]
    listed = uprmc("index", "list", "--json", *node).out
    assert {row["name"] for row in json.loads(listed)["rows"]} == {"d", "verbs"}
    assert "verbs" in uprmc("index", "status", *node).out
    assert uprmc("index", "compact", "verbs", *node).code == 0
    assert uprmc("index", "delete", "verbs", *node).code == 0


def test_requests_that_are_cut_short_harm_nothing(nodes: Nodes) -> None:
    host, _, port = str(nodes.merger.place).rpartition(":")
    for data in (
        b"GET /default/_design/d/_view/by_city?reduce=false HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /default/_des",
        b"PUT /default/_design/x HTTP/1.1\r\nContent-Length: 500\r\n\r\n{",
        b"\x80\x01\x00\x00" * 6,
        bytes(range(256)) * 64,
        b"GET /" + b"x" * 100_000,
    ):
        with socket.create_connection((host, int(port))) as client:
            client.sendall(data)
    assert nodes.merger.count() == 400


def test_an_index_node_that_dies_is_named_and_the_others_answer(tmp_path: Path) -> None:
    with ExitStack() as stack:
        nodes = Nodes(tmp_path, stack)
        assert nodes.merger.count() == 400
        place = str(nodes.shares[1].views.place)
        nodes.shares[1].kill()
        answer = nodes.merger.query(reduce="false")
        assert (answer.status, [each["from"] for each in answer.body["errors"]]) == (200, [place])
        rest = [row["id"] for row in answer.body["rows"]]
        assert rest == nodes.shares[0].views.ids()
        lacking = nodes.merger.ask("PUT", "/_design/more", BY_CITY)
        assert (lacking.status, lacking.body["nodes"]) == (503, [place])
