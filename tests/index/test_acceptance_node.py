"""Views of one node, as its users meet them: a real process, pymemcache, HTTP, ``kill -9``."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from pymemcache.client.base import Client

from interop.views import Views
from interop.waiting import wait_until
from tests.index.cases import DATA, DEFINITIONS, contradicts, queries
from tests.index.oracle import REDUCES, Oracle, compare, declared, parameters
from tests.index.site import BY_KEY, NEVER_FLUSHED, SAVED_AT_ONCE, Site, site
from tests.system.support import stats


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site(tmp_path_factory.mktemp("data")) as made:
        yield made


@pytest.fixture
def node(shared: Site) -> Site:
    """The file's node, without documents and designs."""
    listed = shared.views.ask("GET", "/_design").body["rows"]
    for row in listed:
        assert shared.views.ask("DELETE", "/" + row["id"]).status == 200
    shared.kv.flush_all(noreply=False)
    return shared


def people(count: int, first: int = 0) -> dict[str, Any]:
    """Return documents, each with a key of its own."""
    return {f"p{n}": {"key": n, "n": n % 7} for n in range(first, first + count)}


# --- building and updating --------------------------------------------------------------------


@pytest.mark.parametrize("collation", ["unicode", "raw"])
@pytest.mark.parametrize("reduce", ["", "_count", "_sum", "_stats"])
@given(data=st.data())
@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@pytest.mark.acceptance("I01", "I08")
def test_what_a_naive_rebuild_gives_is_answered(
    node: Site, collation: str, reduce: str, data: st.DataObject
) -> None:
    """For random documents and declarative maps, before and after changes and deletions."""
    first, then = data.draw(DATA), data.draw(DATA)
    asked = [data.draw(queries(reduced=bool(reduce))) for _ in range(2)]
    assume(not any(contradicts(each, partial(compare, collation=collation)) for each in asked))
    definition = data.draw(DEFINITIONS)
    view = {"map": definition} | ({"reduce": reduce} if reduce else {})
    oracle = Oracle(
        lambda body: declared(definition, body, collation), REDUCES.get(reduce), collation
    )
    node.views.ask("DELETE", "/_design/random")
    node.kv.flush_all(noreply=False)
    node.put(first)
    node.design("random", {"v": view}, options={"collation": collation})
    for documents, options in zip((first, then), asked, strict=True):
        node.drop(first.keys() - documents.keys())
        node.put(documents)
        oracle.documents = {(0, name.encode()): body for name, body in documents.items()}
        found = node.views.rows("random/v", **parameters(options))
        assert found == oracle.answer(options), (definition, options)


@pytest.mark.acceptance("I01")
def test_the_header_names_the_seqno_of_each_vbucket(node: Site) -> None:
    node.put(people(100))
    node.design()
    assert node.keys() == list(range(100))
    positions = {str(vb): seqno for vb, (_, seqno) in node.positions().items() if seqno}
    info = node.views.info("d")
    assert info["seqnos"] == positions
    assert info["state"] == "ready"
    assert info["progress"] == 1.0
    assert info["rows"] == {"v": 100}


@pytest.mark.acceptance("I02")
def test_a_query_maps_nothing_when_nothing_has_changed(node: Site) -> None:
    node.put(people(50))
    node.design()
    assert len(node.keys()) == 50
    before = node.views.info("d")["map_calls"]
    for stale in ("false", "ok", "update_after"):
        assert len(node.keys(stale=stale)) == 50
    assert node.views.info("d")["map_calls"] == before == 50


@pytest.mark.acceptance("I02")
def test_to_put_the_same_design_again_maps_nothing(node: Site) -> None:
    node.put(people(50))
    node.design()
    assert len(node.keys()) == 50
    node.design()
    assert len(node.keys()) == 50
    assert node.views.info("d")["map_calls"] == 50


@pytest.mark.acceptance("P20")
def test_an_index_that_was_killed_maps_only_what_is_new(tmp_path: Path) -> None:
    with site(tmp_path, *SAVED_AT_ONCE) as node:
        node.put(people(100))
        node.design()
        assert len(node.keys()) == 100
        wait_until(lambda: node.views.info("d")["headers_written"], "a header")
        node.kill_index()
        node.put(people(10, first=100))
        assert node.keys() == list(range(110))
        assert node.views.info("d")["map_calls"] == 10


@pytest.mark.acceptance("I03")
def test_bodies_come_over_the_stream_and_from_memory(node: Site) -> None:
    """The index has no file of the node open, and the node reads nothing from its disk for it."""
    node.put(people(200))
    node.design()
    assert len(node.keys()) == 200
    opened = [os.readlink(each) for each in Path(f"/proc/{node.index_pid}/fd").iterdir()]
    data = next(each for each in opened if each.endswith(".index")).partition("/index/")[0]
    files = [each for each in opened if each.startswith(data)]
    assert files
    assert all(each.startswith(f"{data}/index/") for each in files)
    assert stats(node.upr, "ep")["ep_bg_fetched"] == "0"


def test_a_changed_design_answers_with_the_old_rows_until_it_is_built(node: Site) -> None:
    node.put(people(300))
    node.design()
    assert len(node.keys()) == 300
    node.design("d", {"v": {"map": {"emit": [{"key": "$.n"}]}}})
    found = node.keys()
    assert found in (list(range(300)), sorted(n % 7 for n in range(300)))
    wait_until(lambda: node.keys()[:2] == [0, 0], "the new rows")
    assert node.views.ask("POST", "/_design/d/_undo").status == 200
    wait_until(lambda: node.keys() == list(range(300)), "the old rows")
    assert node.views.info("d")["map_calls"] == 0


def test_an_undo_right_after_a_change_maps_nothing(node: Site) -> None:
    """The former index is still being closed then: it is waited for, its file has one writer."""
    node.put(people(300))
    node.design()
    assert len(node.keys()) == 300
    for turn in range(3):
        node.design("d", {"v": {"map": {"emit": [{"key": "$.n", "value": turn}]}}})
        wait_until(lambda: node.keys(stale="ok")[:2] == [0, 0], "the new rows")
        assert node.views.ask("POST", "/_design/d/_undo").status == 200
        wait_until(lambda: node.keys(stale="ok") == list(range(300)), "the old rows")
        assert node.views.info("d")["map_calls"] == 0


# --- freshness ----------------------------------------------------------------------------------


@pytest.mark.acceptance("D16")
def test_fifty_concurrent_queries_each_see_what_was_written_before(node: Site) -> None:
    node.put(people(200))
    node.design()
    address, listener = node.server.memcached, node.server.views
    assert listener is not None
    assert len(node.keys()) == 200

    def write_and_ask(number: int) -> None:
        with Views(listener) as views:
            client = Client((address.host, address.port), no_delay=True)
            try:
                for turn in range(5):
                    key = f'["mine", {number}, {turn}]'
                    body = b'{"key": %s, "n": %d}' % (key.encode(), turn)
                    assert client.set(f"mine-{number}-{turn}", body, noreply=False)
                    assert [row["value"] for row in views.rows("d/v", key=key)] == [turn]
            finally:
                client.close()

    before = node.views.info("d")["freshness_runs"]
    with ThreadPoolExecutor(50) as threads:
        list(threads.map(write_and_ask, range(50)))
    assert node.views.info("d")["freshness_runs"] - before <= 250
    assert len(node.keys()) == 450


@pytest.mark.acceptance("I25")
def test_stale_ok_answers_while_the_node_stands_still(tmp_path: Path) -> None:
    with site(tmp_path) as node:
        node.put(people(20))
        node.design()
        assert len(node.keys()) == 20
        os.kill(node.server.pid, signal.SIGSTOP)
        try:
            began = time.monotonic()
            assert len(node.keys(stale="ok")) == 20
            assert len(node.keys(stale="update_after")) == 20
            assert time.monotonic() - began < 5
            answer = node.views.query("d/v", stale="false", connection_timeout="300")
            assert answer.status in (503, 504)
        finally:
            os.kill(node.server.pid, signal.SIGCONT)
        assert len(node.keys()) == 20


@pytest.mark.acceptance("I26")
def test_a_query_waits_for_the_versions_that_it_names(node: Site) -> None:
    node.put(people(10))
    node.design()
    assert len(node.keys()) == 10
    for number in range(20):
        node.put({"mine": {"key": "mine", "n": number}})
        rows = node.views.rows("d/v", stale="ok", at=node.at(), key='"mine"')
        assert [row["value"] for row in rows] == [number]


@pytest.mark.acceptance("I27")
def test_a_version_of_an_unknown_history_is_refused_at_once(node: Site) -> None:
    node.put(people(1))
    node.design()
    answer = node.views.query("d/v", at="3:4711:1")
    assert answer.status == 409
    assert answer.body["error"] == "version_lost"
    named = {name: answer.body[name] for name in ("vbucket", "vb_uuid", "seqno")}
    assert named == {"vbucket": 3, "vb_uuid": "4711", "seqno": 1}


def test_a_version_that_does_not_come_in_time_is_a_timeout(node: Site) -> None:
    node.put(people(1))
    node.design()
    uuid, seqno = node.positions()[3]
    answer = node.views.query("d/v", at=f"3:{uuid}:{seqno + 5}", connection_timeout="200")
    assert (answer.status, answer.body["error"]) == (504, "timeout")
    assert node.views.query("d/v", at="99:1:1").status == 400


# --- vBuckets -----------------------------------------------------------------------------------


@pytest.mark.acceptance("I12", "I13", "I14")
def test_rows_and_reductions_are_of_the_vbuckets_that_a_request_lists(node: Site) -> None:
    node.put(people(400))
    node.design("d", {"v": BY_KEY["v"] | {"reduce": "_stats"}})
    all_of_them = node.keys()
    some = {vb: node.keys(partitions=f'{{"x": [{vb}]}}') for vb in range(8)}
    assert sorted(key for keys in some.values() for key in keys) == all_of_them
    chosen = sorted(some[1] + some[4] + some[6])
    answer = node.views.rows("d/v", partitions='{"x": [1, 4, 6]}')
    values = [key % 7 for key in chosen]
    assert answer[0]["value"]["count"] == len(values)
    assert answer[0]["value"]["sum"] == sum(values)
    lacking = node.views.query("d/v", partitions='{"x": [1, 4711]}', connection_timeout="500")
    assert lacking.status == 503
    assert "4711" in lacking.body["reason"]


@pytest.mark.acceptance("I15", "I16")
def test_vbuckets_that_are_taken_from_an_index_leave_it(node: Site) -> None:
    node.put(people(400))
    node.design()
    kept = sorted(node.keys(partitions='{"x": [0, 1, 2, 3]}'))
    body = {"active": [0, 1, 2, 3], "cleanup": [4, 5, 6, 7], "epoch": 7}
    assert node.views.ask("POST", "/_design/d/_set_states", body).status == 200
    assert node.keys() == kept
    wait_until(lambda: node.views.info("d")["rows"]["v"] == len(kept), "rows are removed")
    info = node.views.info("d")
    assert info["vbuckets"]["active"] == [0, 1, 2, 3]
    assert info["vbuckets"]["cleanup"] == []
    assert info["progress"] == 1.0
    older = node.views.ask("POST", "/_design/d/_set_states", {"active": [5], "epoch": 6})
    assert older.status == 409
    body = {"active": list(range(8)), "epoch": 8}
    assert node.views.ask("POST", "/_design/d/_set_states", body).status == 200
    assert node.keys() == list(range(400))


# --- crashes ------------------------------------------------------------------------------------


@pytest.mark.acceptance("I19", "I20", "I24")
@pytest.mark.parametrize("saved", [True, False])
def test_writes_that_a_crash_has_lost_leave_the_index(tmp_path: Path, saved: bool) -> None:
    """The index, ahead of the node's disk, goes back; it shows what the node has after a crash."""
    options = SAVED_AT_ONCE if saved else ()
    with site(tmp_path, *options) as node:
        node.put(people(100))
        node.design()
        assert len(node.keys()) == 100
        with_all = node.positions()
        wait_until(lambda: _persisted(node) == {vb: s for vb, (_, s) in with_all.items()})
        node.server.stop()
    with site(tmp_path, *options, *NEVER_FLUSHED) as node:
        assert len(node.keys()) == 100
        node.put(people(50, first=60))  # 40 change, 10 are new
        node.drop(["p1", "p2"])
        assert len(node.keys()) == 108
        node.server.kill()
    with site(tmp_path, *options) as node:
        assert node.keys() == list(range(100))
        rows = {row["key"]: row["value"] for row in node.views.rows("d/v")}
        assert rows == {n: n % 7 for n in range(100)}
        node.put(people(20, first=95))
        assert node.keys() == list(range(115))


def _persisted(node: Site) -> dict[int, int]:
    found = stats(node.upr, "vbucket-seqno")
    names = {vb: f"vb_{vb}:last_persisted_seqno" for vb in range(8)}
    return {vb: int(found[name]) for vb, name in names.items()}


@pytest.mark.acceptance("I21")
def test_index_files_without_a_sound_header_are_built_again(tmp_path: Path) -> None:
    left = {"none": 0, "few": 10, "many": 5_000}
    with site(tmp_path) as node:
        node.put(people(500))
        for name in left:
            node.design(name)
            assert len(node.keys(f"{name}/v")) == 500
        node.server.stop()
    for name, size in left.items():
        (file,) = (tmp_path / "index").rglob(f"{name}.design/*.index")
        file.write_bytes(file.read_bytes()[:size])
    with site(tmp_path) as node:
        for name in left:
            assert node.keys(f"{name}/v") == list(range(500))
            assert node.views.info(name)["map_calls"] == 500


def test_a_design_whose_files_are_damaged_is_named_and_may_be_put_again(tmp_path: Path) -> None:
    """A flipped bit must not give another map's rows, nor say that there is no such design."""
    damages: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
        "empty": ("design.json", lambda _: b""),
        "half": ("design.json", lambda text: text[: len(text) // 2]),
        "list": ("design.json", lambda _: b"[]"),
        "number": ("design.json", lambda _: b'{"name": 5, "current": "x"}'),
        "no time": (
            "design.json",
            lambda _: b'{"name": "no time", "current": "x", "old_until": ""}',
        ),
        "renamed": ("design.json", lambda text: text.replace(b"renamed", b"senamed")),
        "flipped": ("*.text", lambda text: text.replace(b"$.n", b"$.o")),
        "cut": ("*.text", lambda text: text[:-1]),
    }
    with site(tmp_path) as node:
        node.put(people(20))
        for name in ("sound", *damages):
            node.design(name)
        node.server.stop()
    for name, (pattern, damaged) in damages.items():
        (path,) = (tmp_path / "index" / f"{quote(name)}.design").glob(pattern)
        before = path.read_bytes()
        path.write_bytes(damaged(before))
        assert path.read_bytes() != before
    with site(tmp_path) as node:
        assert len(node.keys("sound/v")) == 20
        for name in damages:
            answer = node.views.ask("GET", f"/_design/{quote(name)}/_view/v")
            assert (answer.status, answer.body["error"]) == (503, "unavailable"), name
            node.design(name)
            assert len(node.keys(f"{name}/v")) == 20
        assert "Traceback" not in node.log()
    with site(tmp_path) as node:
        names = [row["id"] for row in node.views.ask("GET", "/_design").body["rows"]]
        assert names == sorted(f"_design/{name}" for name in ("sound", *damages))
