"""Several index nodes and a merger over real sockets: maps, retries, failures, designs."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from twisted.internet.defer import Deferred
from twisted.python.threadpool import ThreadPool

from tests.index.fake_index import FakeGroup, FakeService
from tests.index.memory_tree import MemoryTree, entries
from tests.server.support import Loop
from uprmc.config import IndexSettings
from uprmc.index.design import Design
from uprmc.index.errors import QueryRefused, timed_out, version_lost
from uprmc.index.http import views_site
from uprmc.index.model import Token
from uprmc.index.scatter import PAUSES_S, REDUCERS_KEPT, Scatter

MAP = {"emit": [{"key": "$.k", "value": 1}]}
DESIGN = {"views": {"rows": {"map": MAP}, "sums": {"map": MAP, "reduce": "_sum"}}}

#: (id, vBucket, key, value)
DATA = [(b"d%d" % n, n % 4, n // 2, n) for n in range(12)]


class Cluster:
    """Nodes with two vBuckets each, and a merger that has nothing."""

    def __init__(self, loop: Loop, pool: ThreadPool, nodes: int = 2, **settings: Any) -> None:
        self.loop, self._pool = loop, pool
        self.services = [FakeService() for _ in range(nodes)]
        self._ports: list[Any] = []
        self.places = [self._listen(service) for service in self.services]
        self.scatter = self._scattering(self.places, settings)
        self.merger = self._listen(FakeService(), self.scatter, **settings)
        for number, service in enumerate(self.services):
            service.keep("d", json.dumps(DESIGN).encode())
            self.give(number, {vb: 1 for vb in range(4) if vb % nodes == number})

    def _scattering(self, places: list[str], settings: dict[str, Any]) -> Scatter:
        return Scatter(
            places,
            FakeService(),
            IndexSettings(**settings),
            self.loop.reactor,
            self._pool,
            source=lambda: "merger",
        )

    def _listen(self, service: FakeService, scatter: Scatter | None = None, **settings: Any) -> str:
        addresses: list[str] = []
        site = views_site(
            service,
            IndexSettings(**settings),
            self.loop.reactor,
            self._pool,
            lambda: addresses,
            scatter,
        )
        port = self.loop.reactor.listenTCP(0, site, interface="127.0.0.1")
        self._ports.append(port)
        addresses.append(f"127.0.0.1:{port.getHost().port}")
        return addresses[0]

    def group(self, number: int) -> FakeGroup:
        return self.services[number].groups["d"]

    def give(self, number: int, active: dict[int, int]) -> None:
        """Have a node answer for vBuckets, by their terms."""
        group = self.group(number)
        group.active = active
        mine = entries(row for row in DATA if row[1] in active)
        group.trees = [MemoryTree(mine), _Summed(mine)]

    def ask(self, path: str, method: str = "GET", body: Any = None) -> tuple[int, Any]:
        """Ask the merger."""
        content = b"" if body is None else json.dumps(body).encode()
        client = self.loop.client(self.merger)
        client.socket.send(
            f"{method} {path} HTTP/1.0\r\nContent-Length: {len(content)}\r\n\r\n".encode() + content
        )
        head, _, answer = client.read_all().partition(b"\r\n\r\n")
        return int(head.split()[1]), json.loads(answer)

    def rows(self, options: str = "", view: str = "rows") -> Any:
        status, answer = self.ask(f"/default/_design/d/_view/{view}?{options}")
        assert status == 200, answer
        return answer

    def stop_node(self, number: int) -> None:
        self.loop.result(self._ports[number].stopListening())

    def close(self) -> None:
        self.loop.result(self.scatter.close())
        for port in self._ports:
            self.loop.result(port.stopListening() or _fired())


class _Summed(MemoryTree):
    def __init__(self, rows: Any) -> None:
        super().__init__(rows, sum)


def _fired() -> Deferred[None]:
    done: Deferred[None] = Deferred()
    done.callback(None)
    return done


@pytest.fixture
def cluster(loop: Loop, pool: ThreadPool) -> Iterator[Cluster]:
    """Two nodes."""
    made = Cluster(loop, pool)
    yield made
    made.close()


IDS = [f"d{n}" for n in sorted(range(12), key=lambda n: (n // 2, f"d{n}"))]


@pytest.mark.acceptance("I29")
def test_rows_of_all_nodes_come_in_order(cluster: Cluster) -> None:
    answer = cluster.rows("update_seq=true")
    assert [row["id"] for row in answer["rows"]] == IDS
    assert (answer["total_rows"], answer["errors"]) == (12, [])
    backwards = cluster.rows("descending=true&skip=1&limit=3")
    assert [row["id"] for row in backwards["rows"]] == IDS[::-1][1:4]


def test_groups_of_all_nodes_are_reduced_together(cluster: Cluster) -> None:
    assert cluster.rows(view="sums")["rows"] == [{"key": None, "value": sum(range(12))}]
    grouped = cluster.rows("group=true&skip=1&limit=2", "sums")["rows"]
    assert grouped == [{"key": 1, "value": 5}, {"key": 2, "value": 9}]


@pytest.mark.acceptance("I12")
def test_each_node_is_asked_for_its_vbuckets_and_versions(cluster: Cluster) -> None:
    cluster.rows("stale=false&at=1:7:5,2:8:6&connection_timeout=5000")
    for number, vbuckets in ((0, {0, 2}), (1, {1, 3})):
        [(stale, tokens, wanted, epoch, timeout_s)] = cluster.group(number).asked
        assert (stale.value, wanted, epoch) == ("false", vbuckets, 0)
        assert tokens == [Token(2, 8, 6)] if number == 0 else [Token(1, 7, 5)]
        assert 3 < timeout_s <= 5


@pytest.mark.acceptance("I11")
def test_a_vbucket_that_two_nodes_have_gives_its_rows_once(cluster: Cluster) -> None:
    cluster.give(0, {0: 1, 1: 1, 2: 1, 3: 1})
    cluster.give(1, {1: 2, 3: 2})
    assert [row["id"] for row in cluster.rows()["rows"]] == IDS
    assert cluster.group(1).asked[0][2] == {1, 3}


@pytest.mark.acceptance("I14")
def test_a_map_that_is_outdated_is_fetched_again(cluster: Cluster) -> None:
    cluster.rows()
    cluster.give(0, {0: 1, 1: 2, 2: 1, 3: 2})
    cluster.give(1, {})
    cluster.group(0).epoch = 7
    assert [row["id"] for row in cluster.rows()["rows"]] == IDS
    assert cluster.scatter.retries == 1
    assert cluster.group(0).asked[-1][2:4] == ({0, 1, 2, 3}, 7)


@pytest.mark.acceptance("I14")
def test_a_vbucket_that_no_node_has_is_a_503_that_names_it_after_some_attempts(
    cluster: Cluster,
) -> None:
    cluster.give(1, {1: 1})
    status, answer = cluster.ask("/default/_design/d/_view/rows")
    assert (status, answer["error"], answer["vbuckets"]) == (503, "set_view_outdated", [3])
    assert cluster.scatter.retries == len(PAUSES_S) == 5


def test_reducers_that_are_not_needed_are_not_kept(cluster: Cluster) -> None:
    reducers = cluster.scatter._reducers
    designs = [
        Design.parse("d", json.dumps({"views": {f"v{n}": DESIGN["views"]["sums"]}}).encode())
        for n in range(REDUCERS_KEPT + 1)
    ]
    for design in [*designs[:REDUCERS_KEPT], designs[0]]:
        cluster.scatter._reducing(design, 0)
    assert len(reducers) == REDUCERS_KEPT
    cluster.scatter._reducing(designs[-1], 0)
    assert [design for design in designs if (design.signature, 0) not in reducers] == [designs[1]]
    assert cluster.ask("/default/_design/new", "PUT", DESIGN)[0] == 201
    assert not reducers


def test_a_node_that_was_deposed_is_not_asked_while_its_successor_is_silent(
    cluster: Cluster,
) -> None:
    cluster.give(0, dict.fromkeys(range(4), 1))
    cluster.give(1, {0: 2})
    everything = cluster.rows()["rows"]
    cluster.services[1].groups.clear()
    cluster.scatter._maps.forget()
    answer = cluster.rows()
    assert [error["from"] for error in answer["errors"]] == [cluster.places[1]]
    elsewhere = {row[0].decode() for row in DATA if row[1] == 0}
    assert [row for row in everything if row["id"] not in elsewhere] == answer["rows"]


@pytest.mark.parametrize("options", ["", "at=0:7:1"])
def test_nodes_that_know_nothing_of_their_sources_yet_are_no_empty_index(
    cluster: Cluster, options: str
) -> None:
    for number in range(2):
        cluster.give(number, {})
        cluster.group(number).total = 0
    status, answer = cluster.ask(f"/default/_design/d/_view/rows?{options}")
    assert (status, answer["error"]) == (503, "unavailable")


def test_a_vbucket_that_is_on_its_way_is_waited_for(cluster: Cluster) -> None:
    cluster.give(1, {1: 1})
    cluster.group(0).pending = [3]
    cluster.loop.reactor.callLater(2.0, cluster.give, 0, {0: 1, 2: 1, 3: 2})
    assert [row["id"] for row in cluster.rows()["rows"]] == IDS
    assert cluster.scatter.retries > len(PAUSES_S)


def test_a_vbucket_that_never_comes_is_waited_for_until_the_time_is_over(cluster: Cluster) -> None:
    cluster.give(1, {1: 1})
    cluster.group(0).pending = [3]
    status, answer = cluster.ask("/default/_design/d/_view/rows?connection_timeout=300")
    assert (status, answer["vbuckets"]) == (503, [3])


def test_a_node_that_is_gone_is_an_error_of_the_answer(cluster: Cluster) -> None:
    cluster.stop_node(1)
    answer = cluster.rows()
    assert {row["id"] for row in answer["rows"]} == {f"d{n}" for n in range(0, 12, 2)}
    [error] = answer["errors"]
    assert error["from"] == cluster.places[1]
    assert "cannot be reached" in error["reason"]
    stopped = cluster.rows("on_error=stop")
    assert (stopped["rows"], len(stopped["errors"])) == ([], 1)


def test_no_node_at_all_is_a_503(cluster: Cluster) -> None:
    cluster.stop_node(0)
    cluster.stop_node(1)
    status, answer = cluster.ask("/default/_design/d/_view/rows")
    assert status == 503
    assert "cannot be reached" in answer["reason"]


def test_a_node_that_is_late_is_an_error_unless_all_are(cluster: Cluster) -> None:
    cluster.group(1).refusal = timed_out("not indexed in time")
    answer = cluster.rows()
    assert answer["errors"] == [{"from": cluster.places[1], "reason": "not indexed in time"}]
    cluster.group(0).refusal = timed_out("not indexed in time")
    status, answer = cluster.ask("/default/_design/d/_view/rows")
    assert (status, answer["error"]) == (504, "timeout")


@pytest.mark.acceptance("I27")
def test_a_version_that_is_lost_fails_the_whole_query(cluster: Cluster) -> None:
    cluster.group(1).refusal = version_lost(1, 5, 7)
    status, answer = cluster.ask("/default/_design/d/_view/rows?at=1:5:7")
    assert (status, answer["error"], answer["vbucket"]) == (409, "version_lost", 1)


@pytest.mark.parametrize("options", ["limit=x", "at=9:1:1", "limits=1", "startkey=2&endkey=1"])
def test_options_are_checked_before_any_node_is_asked(cluster: Cluster, options: str) -> None:
    status, answer = cluster.ask(f"/default/_design/d/_view/rows?{options}")
    assert (status, answer["error"]) == (400, "bad_request")
    assert cluster.group(0).asked == []


def test_what_no_node_has_is_a_404(cluster: Cluster) -> None:
    assert cluster.ask("/default/_design/none/_view/rows")[0] == 404
    assert cluster.ask("/default/_design/d/_view/none")[0] == 404
    assert cluster.ask("/default/_design/none")[0] == 404


def test_a_query_with_partitions_is_for_this_node_alone(cluster: Cluster) -> None:
    named = quote(json.dumps({"127.0.0.1:1": [0]}))
    assert cluster.ask(f"/default/_design/d/_view/rows?partitions={named}")[0] == 404


def move(cluster: Cluster, place: str) -> None:
    """Have the merger think that two vBuckets are at another place."""
    cluster.rows()
    [key] = cluster.scatter._maps._found
    at, known = cluster.scatter._maps._found[key]
    nodes = {cluster.places[0]: frozenset({0, 2}), place: frozenset({1, 3})}
    moved = known._replace(placement=known.placement._replace(nodes=nodes))
    cluster.scatter._maps._found[key] = at, moved


def test_a_silent_node_is_given_up(cluster: Cluster) -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        place = f"127.0.0.1:{deaf.getsockname()[1]}"
        move(cluster, place)
        answer = cluster.rows("connection_timeout=200")
    assert [each["from"] for each in answer["errors"]] == [place]
    assert len(answer["rows"]) == 6


@pytest.mark.parametrize("first", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{"])
def test_a_client_that_goes_away_while_a_node_is_silent_lets_the_others_go(
    cluster: Cluster, caplog: pytest.LogCaptureFixture, first: bytes
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        move(cluster, f"127.0.0.1:{deaf.getsockname()[1]}")
        client = cluster.loop.client(cluster.merger)
        client.socket.send(b"GET /default/_design/d/_view/rows HTTP/1.0\r\n\r\n")
        deaf.setblocking(False)
        peers: list[socket.socket] = []
        cluster.loop.until(lambda: peers or _accepted(deaf, peers))
        peers[0].send(first)
        cluster.loop.until(lambda: len(cluster.group(0).snapshots) == 2)
        client.socket.close()
        peers[0].setblocking(False)
        cluster.loop.until(lambda: _ended(peers[0]))
        cluster.loop.until(lambda: cluster.group(0).snapshots[1].released)
        peers[0].close()
    assert caplog.text == ""


def test_a_client_that_goes_away_while_the_map_is_fetched_is_forgotten(
    loop: Loop, pool: ThreadPool, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        cluster = Cluster(loop, pool)
        cluster.scatter.nodes = (f"127.0.0.1:{deaf.getsockname()[1]}", *cluster.places)
        cluster.scatter._designs.put(("d", False), cluster.group(0).design)
        client = loop.client(cluster.merger)
        client.socket.send(b"GET /default/_design/d/_view/rows HTTP/1.0\r\n\r\n")
        deaf.setblocking(False)
        peers: list[socket.socket] = []
        loop.until(lambda: peers or _accepted(deaf, peers))
        client.socket.close()
        peers[0].setblocking(False)
        loop.until(lambda: _ended(peers[0]))
        peers[0].close()
        cluster.close()
    assert caplog.text == ""


def _accepted(server: socket.socket, peers: list[socket.socket]) -> bool:
    try:
        peers.append(server.accept()[0])
    except BlockingIOError:
        return False
    return True


def _ended(peer: socket.socket) -> bool:
    try:
        return not peer.recv(65_536)
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


def test_a_node_that_has_the_old_definition_still_is_named(cluster: Cluster) -> None:
    changed = {"views": {**DESIGN["views"], "more": {"map": MAP}}}
    trees, active = cluster.group(1).trees, cluster.group(1).active
    cluster.services[1].keep("d", json.dumps(changed).encode())
    cluster.group(1).trees, cluster.group(1).active = trees, active
    answer = cluster.rows()
    assert [row["id"] for row in answer["rows"]] == IDS
    assert answer["errors"] == [
        {"from": cluster.places[1], "reason": "it answers with another definition of the design"}
    ]


def test_rows_of_a_definition_that_came_since_the_map_was_made_are_not_mixed_in_unnamed(
    cluster: Cluster,
) -> None:
    """A node refuses what is meant for another definition, and the map is made again."""
    assert not cluster.rows()["errors"]  # from now on the map is known
    test_a_node_that_has_the_old_definition_still_is_named(cluster)
    assert cluster.scatter.retries == 1


# --- designs ------------------------------------------------------------------------------------


def test_a_design_is_put_and_deleted_on_all_nodes(cluster: Cluster) -> None:
    status, answer = cluster.ask("/default/_design/new", "PUT", DESIGN)
    assert (status, answer) == (201, {"ok": True, "id": "_design/new"})
    assert all("new" in service.groups for service in cluster.services)
    assert cluster.ask("/default/_design/new") == (200, DESIGN)
    assert cluster.ask("/default/_design/new", "DELETE")[0] == 200
    assert not any("new" in service.groups for service in cluster.services)
    assert cluster.ask("/default/_design/new", "DELETE")[0] == 404


def test_nodes_that_lack_a_design_are_named(cluster: Cluster) -> None:
    cluster.services[1].failure = QueryRefused(503, "full", "no space left on device")
    status, answer = cluster.ask("/default/_design/new", "PUT", DESIGN)
    assert (status, answer["nodes"]) == (503, [cluster.places[1]])
    assert "no space left on device" in answer["reason"]
    assert "lack design 'new'" in answer["reason"]


def test_a_design_that_no_node_takes_is_refused_as_they_do(cluster: Cluster) -> None:
    status, answer = cluster.ask("/default/_design/new", "PUT", {"views": 5})
    assert (status, answer["error"]) == (400, "bad_request")


def test_a_merger_lists_the_designs_of_all_nodes(cluster: Cluster) -> None:
    cluster.services[1].keep("other", json.dumps(DESIGN).encode())
    _, listed = cluster.ask("/default/_design")
    assert [row["name"] for row in listed["rows"]] == ["d", "other"]
    _, info = cluster.ask("/default/_design/d/_info")
    assert (info["state"], set(info["nodes"])) == ("ready", set(cluster.places))
    _, info = cluster.ask("/default/_design/other/_info")
    assert info["nodes"][cluster.places[0]] == {"error": "there is no design 'other'"}
    assert cluster.ask("/default/_design/none/_info")[0] == 404
    cluster.stop_node(0)
    assert len(cluster.ask("/default/_design")[1]["rows"]) == 2


def test_a_change_is_undone_on_all_nodes(cluster: Cluster) -> None:
    assert cluster.ask("/default/_design/d/_undo", "POST")[0] == 200
    assert [service.undone for service in cluster.services] == [["d"], ["d"]]


def test_attempts_are_counted(cluster: Cluster) -> None:
    cluster.give(1, {1: 1})
    cluster.ask("/default/_design/d/_view/rows")
    client = cluster.loop.client(cluster.merger)
    client.socket.send(b"GET /metrics HTTP/1.0\r\n\r\n")
    assert b"uprmc_index_merge_retries_total 5.0" in client.read_all()


def test_a_delete_goes_on_where_it_was_interrupted(cluster: Cluster) -> None:
    del cluster.services[0].groups["d"]
    assert cluster.ask("/default/_design/d", "DELETE")[0] == 200
    assert "d" not in cluster.services[1].groups


# --- clients ------------------------------------------------------------------------------------


def test_a_slow_reader_of_a_merged_answer_slows_the_nodes_down(cluster: Cluster) -> None:
    for number in (0, 1):
        rows = entries((b"%d%06d" % (number, n), number, n, "x" * 500) for n in range(20_000))
        cluster.group(number).trees[0] = MemoryTree(rows)
    client = cluster.loop.client(cluster.merger, receive_buffer=4_096)
    client.socket.send(b"GET /default/_design/d/_view/rows HTTP/1.0\r\n\r\n")
    read = -1
    while read != (read := cluster.group(0).trees[0].read):
        for _ in range(200):
            cluster.loop.reactor.iterate(0.001)
    assert 0 < read < 20_000
    assert client.read_all().count(b'"id"') == 40_000


def test_a_client_that_goes_away_lets_the_nodes_go(cluster: Cluster) -> None:
    for number in (0, 1):
        rows = entries((b"%d%06d" % (number, n), number, n, "x" * 500) for n in range(20_000))
        cluster.group(number).trees[0] = MemoryTree(rows)
    client = cluster.loop.client(cluster.merger, receive_buffer=4_096)
    client.socket.send(b"GET /default/_design/d/_view/rows HTTP/1.0\r\n\r\n")
    cluster.loop.until(lambda: cluster.group(1).trees[0].read > 100)
    client.socket.close()
    groups = [cluster.group(number) for number in (0, 1)]
    cluster.loop.until(lambda: all(each.snapshots[0].released for each in groups))
