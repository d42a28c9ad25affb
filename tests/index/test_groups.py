"""An index beside a real node: it follows, it answers, it comes back.

Source: systems reference c.4 to c.6; contracts section 4; rows I01 to I06, I18 to I28.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest

from interop.server_process import ServerProcess, start_uprmc
from interop.waiting import wait_until
from interop.wire import Wire, frame
from tests.index.running import BY_CITY, Views, cities, index_server, store

STOP_PERSISTENCE = 0x80
OK = 0


def views_of(server: ServerProcess) -> Views:
    assert server.views is not None
    return Views(server.views)


def test_an_index_goes_on_after_a_stop_and_after_a_kill(
    node: ServerProcess, tmp_path: Path
) -> None:
    data = tmp_path / "index"
    quick = {"index.update_interval_s": "0"}
    store(node, cities(range(100)))
    with index_server(data, node.upr) as server:
        server.views.put("d", BY_CITY)
        assert server.views.count() == 100
        assert server.stop() == 0
    with index_server(data, node.upr, settings=quick) as server:
        assert server.views.count() == 100
        assert server.views.info()["map_calls"] == 0
        store(node, cities(range(100, 110)))
        assert server.views.count() == 110
        server.views.until("a header", lambda info: info["header_age_s"] < 30)
        server.kill()
    with index_server(data, node.upr) as server:
        assert server.views.count() == 110
        assert server.views.info()["map_calls"] <= 10


@pytest.mark.acceptance("I25")
def test_while_the_source_is_away_old_rows_can_be_had_and_fresh_ones_are_refused(
    tmp_path: Path,
) -> None:
    with start_uprmc(tmp_path / "node", "--vbuckets", "8") as node:
        store(node, cities(range(10)))
        with index_server(tmp_path / "index", node.upr) as server:
            server.views.put("d", BY_CITY)
            assert server.views.count() == 10
            node.stop()
            assert server.views.count(stale="ok") == 10
            assert server.views.count(stale="update_after") == 10
            refused = server.views.query(stale="false", connection_timeout=300)
            assert (refused.status, refused.body["error"]) == (503, "source_away")


def ahead(tmp_path: Path, node: ServerProcess, views: Views, *lost: int) -> None:
    """Have the index take what the node then loses by a crash."""
    with Wire(node.upr) as wire:
        assert wire.ask(frame(STOP_PERSISTENCE)).status == OK
    store(node, cities(lost, city="lost"))
    assert len(views.ids(key='"lost"')) == len(lost)


@pytest.mark.acceptance("I18")
@pytest.mark.acceptance("I19")
@pytest.mark.acceptance("I20")
def test_an_index_ahead_of_its_node_returns_to_an_older_header(tmp_path: Path) -> None:
    data, quick = tmp_path / "index", {"index.update_min_changes": "1"}
    with start_uprmc(tmp_path / "node", "--vbuckets", "8") as node:
        store(node, cities(range(100)))
        with index_server(data, node.upr, settings=quick) as server:
            server.views.put("d", BY_CITY)
            assert server.views.count() == 100
            server.views.until("a header", lambda info: info["headers_written"] >= 1)
            wait_until(lambda: persisted(node))
            ahead(tmp_path, node, server.views, 200, 201, 202)
            server.stop()
        node.kill()
    with start_uprmc(tmp_path / "node") as node, index_server(data, node.upr) as server:
        assert server.views.count() == 100
        info = server.views.info()
        assert info["rollbacks"].get("header", 0) >= 1
        assert "vbucket" not in info["rollbacks"]
        store(node, cities([300]))
        assert server.views.count() == 101
        log, told = data.with_suffix(".log"), "event.index_rolled_back design=d kind=header"
        wait_until(lambda: told in log.read_text())


@pytest.mark.acceptance("I21")
@pytest.mark.acceptance("I24")
def test_without_such_a_header_only_the_vbuckets_concerned_are_indexed_again(
    tmp_path: Path,
) -> None:
    data = tmp_path / "index"
    with start_uprmc(tmp_path / "node", "--vbuckets", "8") as node:
        store(node, cities(range(100)))
        wait_until(lambda: persisted(node))
        with Wire(node.upr) as wire:
            assert wire.ask(frame(STOP_PERSISTENCE)).status == OK
        store(node, cities([200], city="lost"))
        with index_server(data, node.upr) as server:
            server.views.put("d", BY_CITY)
            assert server.views.count() == 101
            server.stop()
        node.kill()
    with start_uprmc(tmp_path / "node") as node, index_server(data, node.upr) as server:
        assert server.views.count() == 100
        info = server.views.info()
        assert info["rollbacks"] == {"vbucket": 1}
        assert 0 < info["map_calls"] < 40  # those of one vBucket of eight


def test_queries_that_wait_while_definitions_change_are_answered_by_the_next_one(
    node: ServerProcess,
) -> None:
    store(node, cities(range(50)))
    views_of(node).put("d", BY_CITY)
    changed = {"views": {"by_city": {"map": {"emit": [{"key": "$.n"}]}}}}
    over = Event()

    def ask() -> None:
        views = views_of(node)
        while not over.is_set():
            assert len(views.rows(stale="false", connection_timeout=20_000)) == 50

    with ThreadPoolExecutor(3) as threads:
        asking = [threads.submit(ask) for _ in range(3)]
        try:
            views = views_of(node)
            for definition in (changed, BY_CITY) * 3:
                before = views.info()["signature"]
                views.put("d", definition)
                views.until("it answers", lambda info, was=before: info["signature"] != was)
        finally:
            over.set()
    assert [each.result() for each in asking] == [None] * 3


def test_a_design_whose_map_never_ends_can_be_replaced_and_deleted(node: ServerProcess) -> None:
    views = views_of(node)
    store(node, cities(range(2_000)))
    endless = {"views": {"by_city": {"map": "function (doc) { while (true) {} }"}}}
    began = time.monotonic()
    views.put("d", endless)
    views.put("d", BY_CITY)
    assert views.ask("DELETE", "/_design/d").status == 200
    views.put("d", BY_CITY)
    assert views.count() == 2_000
    assert time.monotonic() - began < 60


def _keys(views: Views) -> list[object]:
    return [row["key"] for row in views.rows(limit=3, stale="ok")]


def test_a_deleted_design_leaves_no_file_and_no_registration(
    node: ServerProcess, tmp_path: Path
) -> None:
    with index_server(tmp_path / "index", node.upr) as server:
        store(node, cities(range(10)))
        server.views.put("d", BY_CITY)
        assert server.views.count() == 10
        assert any((tmp_path / "index").glob("*.design"))
        assert _registered(node)
        assert server.views.ask("DELETE", "/_design/d").status == 200
        assert server.views.query().status == 404
        assert not any((tmp_path / "index").glob("*.design"))
        assert not _registered(node)


def persisted(node: ServerProcess) -> bool:
    from tests.system.support import stats

    found = stats(node.memcached, "vbucket-details")
    return all(
        found[f"{name.partition(':')[0]}:high_seqno"] == value
        for name, value in found.items()
        if name.endswith(":persisted_seqno")
    )


def _registered(node: ServerProcess) -> bool:
    from tests.system.support import stats

    assert node.upr is not None
    return any("index-d-" in name for name in stats(node.upr, "watermarks"))
