"""vBuckets come and go: by a takeover, by failover, by `_set_states`.

Source: systems reference c.7; contracts section 4; rows I10 to I17.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from interop.replica_pair import Node, replicate, verb, wait_until_level
from interop.server_process import ServerProcess, start_uprmc
from interop.waiting import wait_until
from tests.index.running import BY_CITY, Views, cities, delete, index_server, store
from tests.system.support import stats

VBUCKETS = 8


def set_states(views: Views, **states: object) -> int:
    return views.ask("POST", "/_design/d/_set_states", states).status


def vbuckets_of(views: Views) -> dict[str, list[int]]:
    found: dict[str, list[int]] = views.info()["vbuckets"]
    return {name: numbers for name, numbers in found.items() if numbers}


def _registered(node: ServerProcess) -> set[str]:
    """Return the vBuckets in which an index is registered."""
    assert node.upr is not None
    names = stats(node.upr, "watermarks")
    return {name.partition(":")[0] for name in names if "index-d-" in name}


@pytest.mark.acceptance("I12")
@pytest.mark.acceptance("I15")
@pytest.mark.acceptance("I16")
def test_states_that_are_set_decide_what_is_indexed_and_shown(
    node: ServerProcess, tmp_path: Path
) -> None:
    with index_server(tmp_path / "index", node.upr) as server:
        views = server.views
        store(node, cities(range(200)))
        views.put("d", BY_CITY)
        everything = set(views.ids())
        assert set_states(views, active=[0, 1, 2], passive=[3], epoch=5) == 200
        shown = set(views.ids())
        assert shown < everything
        views.until("the others are gone", lambda info: not info["vbuckets"]["cleanup"])
        assert vbuckets_of(views) == {"active": [0, 1, 2], "passive": [3]}
        indexed = views.info()["rows"]["by_city"]
        assert len(shown) < indexed < len(everything)
        assert views.count() == len(shown)  # what is passive is left out of reductions
        wait_until(lambda: _registered(node) == {"vb_0", "vb_1", "vb_2", "vb_3"})
        assert set_states(views, active=[0], epoch=4) == 409
        assert set_states(views, active=[0], passive=[0], epoch=6) == 400
        assert set_states(views, active=[0, 1, 2, 3], passive=[], epoch=6) == 200
        assert len(views.ids()) == indexed
        assert views.info()["map_calls"] == 200  # nothing was mapped again
        server.stop()
    with index_server(tmp_path / "index", node.upr) as server:
        assert vbuckets_of(server.views) == {"active": [0, 1, 2, 3]}
        assert len(server.views.ids()) == indexed
        assert set_states(server.views, active=list(range(VBUCKETS)), epoch=7) == 200
        assert set(server.views.ids()) == everything


@pytest.mark.acceptance("I10")
def test_a_paused_vbucket_is_shown_as_it_was_and_then_goes_on(
    node: ServerProcess, tmp_path: Path
) -> None:
    with index_server(tmp_path / "index", node.upr) as server:
        views = server.views
        store(node, cities(range(100)))
        views.put("d", BY_CITY)
        assert views.count() == 100
        assert set_states(views, active=list(range(VBUCKETS)), pause=list(range(VBUCKETS))) == 200
        assert views.count() == 100  # the node has nothing else
        store(node, cities(range(100, 150)))
        assert views.count(stale="ok") == 100
        late = views.query(stale="false", connection_timeout=300)
        assert (late.status, "paused" in late.body["reason"]) == (504, True)
        assert set_states(views, active=list(range(VBUCKETS)), pause=[]) == 200
        assert views.count() == 150


def test_a_monitor_answers_when_a_version_is_indexed(node: ServerProcess) -> None:
    assert node.views is not None
    views = Views(node.views)
    store(node, cities(range(50)))
    views.put("d", BY_CITY)
    assert views.count() == 50
    info = views.info()
    vbucket, seqno = next((int(vb), s) for vb, s in info["seqnos"].items() if s)
    uuid = info["partition_versions"][str(vbucket)][0][0]
    wish = {"vbucket": vbucket, "seqno": seqno, "vb_uuid": uuid}
    assert views.ask("POST", "/_design/d/_monitor", wish).status == 200
    lost = views.ask("POST", "/_design/d/_monitor", {**wish, "vb_uuid": "77"})
    assert (lost.status, lost.body["error"]) == (409, "version_lost")


@pytest.mark.acceptance("I14")
def test_a_request_for_a_vbucket_that_is_not_there_says_that_the_map_is_outdated(
    node: ServerProcess, tmp_path: Path
) -> None:
    with index_server(tmp_path / "index", node.upr) as server:
        views = server.views
        views.put("d", BY_CITY)
        assert views.count() == 0
        assert set_states(views, active=[0, 1], epoch=3) == 200
        place = views.place
        refused = views.query(partitions=f'{{"{place}": [0, 5]}}', epoch=3)
        assert (refused.status, refused.body["error"]) == (503, "set_view_outdated")
        assert refused.body["vbuckets"] == [5]
        assert views.query(partitions=f'{{"{place}": [0]}}', epoch=2).status == 503


@pytest.mark.acceptance("I10")
@pytest.mark.acceptance("I11")
def test_a_takeover_shows_neither_a_missing_nor_a_doubled_row(tmp_path: Path) -> None:
    a, b = Node(tmp_path / "a", "--vbuckets", "8"), Node(tmp_path / "b", "--vbuckets", "8")
    a.start()
    b.start()
    try:
        store(a.server, cities(range(400)))
        replicate(b, a.upr)
        wait_until_level(a, b)
        with (
            index_server(tmp_path / "ia", a.upr) as of_a,
            index_server(tmp_path / "ib", b.upr) as of_b,
        ):
            nodes = {"index.nodes": f"{of_a.views.place},{of_b.views.place}"}
            with index_server(tmp_path / "m", a.upr, settings=nodes) as merger:
                views = merger.views
                views.put("d", BY_CITY)
                everything = views.ids()
                assert len(everything) == 400
                assert of_b.views.ids() == []  # a replica answers for none
                command = [sys.executable, "-m", "uprmc", "takeover", "--node", str(a.upr)]
                command += ["--to", str(b.upr), "--vbuckets", "0-3"]
                moving = subprocess.Popen(command, stdout=subprocess.DEVNULL)
                asked = 0
                while moving.poll() is None or asked < 50:
                    assert views.ids(stale="ok" if asked % 2 else "false") == everything
                    asked += 1
                assert moving.returncode == 0
                for index, numbers in ((of_b, [0, 1, 2, 3]), (of_a, [4, 5, 6, 7])):
                    wait_until(lambda i=index, n=numbers: vbuckets_of(i.views)["active"] == n)
                assert views.ids() == everything
                assert 0 < len(of_b.views.ids()) < 400
    finally:
        a.end()
        b.end()


@pytest.mark.acceptance("I27")
def test_a_version_of_a_branch_that_was_failed_over_is_lost_at_once(tmp_path: Path) -> None:
    with start_uprmc(tmp_path / "node", "--vbuckets", "8") as node:
        assert node.views is not None
        views = Views(node.views)
        store(node, cities(range(50)))
        views.put("d", BY_CITY)
        assert views.count() == 50
        info = views.info()
        vbucket, seqno = next((int(vb), s) for vb, s in info["seqnos"].items() if s)
        uuid = info["partition_versions"][str(vbucket)][0][0]
        verb("vbucket", "set", vbucket, "replica", "--node", node.upr)
        verb("vbucket", "set", vbucket, "active", "--node", node.upr)
        lost = views.query(stale="ok", at=f"{vbucket}:{uuid}:{seqno + 5}")
        assert lost.status == 409
        assert lost.body["vb_uuid"] == uuid
        assert views.query(stale="ok", at=f"{vbucket}:{uuid}:{seqno}").status == 200
        assert views.count() == 50
        delete(node, [b"k1"])
        assert views.count() == 49


@contextmanager
def before_a_failover(tmp_path: Path) -> Iterator[tuple[Node, Node, Views]]:
    """Yield a node, its replica, and an index with a replica index at that one, level."""
    a, b = Node(tmp_path / "a", "--vbuckets", "8"), Node(tmp_path / "b", "--vbuckets", "8")
    a.start()
    b.start()
    try:
        store(a.server, cities(range(200)))
        replicate(b, a.upr)
        wait_until_level(a, b)
        settings = {"index.replicas": "yes"}
        with index_server(tmp_path / "index", b.upr, settings=settings) as server:
            views = server.views
            views.put("d", BY_CITY)
            views.until(
                "replicas",
                lambda info: (info.get("replica") or {}).get("rows", {}).get("by_city") == 200,
            )
            yield a, b, views
    finally:
        a.end()
        b.end()


@pytest.mark.acceptance("I17")
def test_with_a_replica_index_a_failover_maps_nothing_again(tmp_path: Path) -> None:
    with before_a_failover(tmp_path) as (a, b, views):
        assert views.ids() == []
        a.kill()
        verb("failover", "--node", b.upr)
        wait_until(lambda: len(views.ids(stale="ok")) == 200)
        store(b.server, cities(range(200, 210)))
        assert views.count() == 210
        info = views.info()
        assert info["map_calls"] == 10
        assert not info["rollbacks"]
        views.until("moved", lambda info: info["replica"]["rows"]["by_city"] == 0)


@pytest.mark.acceptance("I17")
def test_with_a_replica_index_set_states_after_a_failover_maps_nothing_again(
    tmp_path: Path,
) -> None:
    with before_a_failover(tmp_path) as (a, b, views):
        assert set_states(views, active=[], epoch=1) == 200
        a.kill()
        verb("failover", "--node", b.upr)
        assert views.ids(stale="ok") == []  # what was set decides
        assert set_states(views, active=[0, 1, 2, 3], passive=[4, 5], epoch=2) == 200
        some = len(views.ids())
        assert 0 < some < 200
        assert set_states(views, active=list(range(VBUCKETS)), passive=[], epoch=3) == 200
        assert len(views.ids()) == 200
        assert views.info()["map_calls"] == 0
