"""The index's process as an operator sees it: a node, its child, and what ends one or the other."""

from __future__ import annotations

import json
import os
import resource
import signal
import ssl
from pathlib import Path
from typing import Any, cast

import pytest
from pymemcache.client.base import Client as Pymemcache

from interop.server_process import ANY_PORT, ServerProcess, start_uprmc
from interop.views import Views
from interop.waiting import wait_until
from interop.wire import OK, SET, Wire, store
from tests.cli.support import uprmc
from tests.server.certificates import make_certificate
from tests.server.support import Loop
from tests.system.support import get_page, node_here, stats, status_page, upr
from uprmc.config import build
from uprmc.server.node import Node


@pytest.mark.acceptance("D03")
def test_health_lists_every_component_of_a_node(tmp_path: Path) -> None:
    with start_uprmc(tmp_path, "--vbuckets", "4") as server:
        found = status_page(server)
        assert found["components"] == {
            "kv": "up",
            "storage": "up",
            "upr": "up",
            "replication": "up",
            "purger": "up",
            "xdcr": "up",
            "tap": "up",
            "index": "idle",
        }
        assert found["index"] == {
            "views": str(server.views),
            "views_tls": "no",
            "state": "idle",
            "pid": 0,
            "restarts": 0,
            "error": "",
        }
        told = stats(upr(server), "index")
        assert told == {name: str(value) for name, value in found["index"].items()}
        page = get_page(server, "/metrics")[1].decode()
        assert "uprmc_index_process_restarts_total 0.0" in page
        assert "uprmc_index_process_up 0.0" in page
        server.stop()


def test_off_is_shown_in_the_ready_line_and_everywhere_else(tmp_path: Path) -> None:
    with start_uprmc(tmp_path, "--vbuckets", "4", "--views", "off") as server:
        assert server.views is None
        found = status_page(server)
        assert found["components"]["index"] == found["index"]["state"] == "off"
        assert "views" not in found["listeners"]
        server.stop()


def test_an_address_in_use_is_refused_in_one_line(tmp_path: Path) -> None:
    listeners = ["--memcached", ANY_PORT, "--upr", ANY_PORT, "--http", "off"]
    with start_uprmc(tmp_path / "a", "--vbuckets", "4") as server:
        place = str(server.views)
        ended = uprmc("serve", "--data", tmp_path / "b", *listeners, "--views", place)
        said = f"server.views: cannot listen on {place}: Address already in use by "
        assert ended.refused().startswith(said)
        server.stop()
    ended = uprmc("serve", "--data", tmp_path / "b", *listeners, "--views", "8092")
    assert ended.refused().startswith("server.views: '8092' is no listener")


NOT_HTTPS = b"This listener speaks HTTPS: begin the URL with https://\n"
PEOPLE = {"by_age": {"map": {"emit": [{"key": "$.age", "value": "$.name"}]}}}


def ages(server: ServerProcess, tls: ssl.SSLContext | None = None) -> list[int]:
    """Return the keys of the view as of now."""
    assert server.views is not None
    with Views(server.views, tls=tls) as views:
        answer = views.query("people/by_age", stale="false")
    assert answer.status == 200, answer
    return [row["key"] for row in answer.body["rows"]]


def put_design(server: ServerProcess, tls: ssl.SSLContext | None = None) -> None:
    assert server.views is not None
    with Views(server.views, tls=tls) as views:
        assert views.put("people", PEOPLE).status == 201


def store_person(server: ServerProcess, age: int) -> None:
    with Wire(server.memcached) as wire:
        value = b'{"age": %d, "name": "n"}' % age
        assert wire.ask(store(SET, b"person-%d" % age, value)).status == OK


def index_of(server: ServerProcess) -> dict[str, Any]:
    found: dict[str, Any] = status_page(server)["index"]
    return found


def has_told(server: ServerProcess, *names: str) -> dict[str, Any]:
    """Wait until the node shows these events; return the last one."""
    found: dict[str, Any] = {}

    def told() -> bool:
        events = json.loads(get_page(server, "/events")[1])["events"]
        found.update((event["event"], event) for event in events)
        return found.keys() >= {*names}

    wait_until(told, lambda: f"{names} in {found}")
    return cast(dict[str, Any], found[names[-1]])


def runs(pid: int) -> bool:
    """Return whether there is such a process that has not ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] != "Z"


@pytest.mark.acceptance("I04")
def test_a_node_indexes_and_answers_by_a_process_that_comes_and_goes_with_it(
    tmp_path: Path,
) -> None:
    at_once = ("--set", "index.update_interval_s=0")
    with start_uprmc(tmp_path, "--vbuckets", "4", *at_once) as server:
        store_person(server, 41)
        put_design(server)
        assert ages(server) == [41]
        first = index_of(server)
        assert (first["state"], first["restarts"]) == ("up", 0)
        has_told(server, "design_added", "index_built")
        _, hard = resource.prlimit(first["pid"], resource.RLIMIT_FSIZE)
        resource.prlimit(first["pid"], resource.RLIMIT_FSIZE, (10, hard))  # as a full disk does
        store_person(server, 36)
        assert "File too large" in has_told(server, "index_failed")["reason"]
        resource.prlimit(first["pid"], resource.RLIMIT_FSIZE, (hard, hard))
        has_told(server, "index_works_again")
        os.kill(first["pid"], signal.SIGKILL)
        wait_until(lambda: index_of(server)["pid"] not in (0, first["pid"]), "it is started again")
        store_person(server, 50)
        assert ages(server) == [36, 41, 50]
        second = index_of(server)
        assert (second["state"], second["restarts"], second["error"]) == ("up", 1, "")
        assert b"uprmc_index_process_restarts_total 1.0" in get_page(server, "/metrics")[1]
        server.stop()
        assert not runs(second["pid"])
    with start_uprmc(tmp_path) as server:
        wait_until(lambda: index_of(server)["state"] == "up", "a node with designs starts it")
        assert ages(server) == [36, 41, 50]
        assert server.views is not None
        with Views(server.views) as views:
            assert views.ask("POST", "/_design/people/_compact").status == 202
            has_told(server, "index_compacted")
            assert views.ask("DELETE", "/_design/people").status == 200
        assert has_told(server, "design_removed")["design"] == "people"
        log = server.log()
        assert "index.started" in log
        assert "event.design_removed" in log
        server.stop()


def children_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def test_processes_that_run_javascript_end_when_they_have_nothing_to_do(tmp_path: Path) -> None:
    pytest.importorskip("py_mini_racer")
    soon = ("--set", "index.worker_idle_s=0.1", "--set", "index.update_interval_s=0")
    with start_uprmc(tmp_path, "--vbuckets", "4", *soon) as server:
        store_person(server, 41)
        assert server.views is not None
        with Views(server.views) as views:
            source = "function (doc, meta) { emit(doc.age, null); }"
            assert views.put("people", {"by_age": {"map": source}}).status == 201
            for wanted in ([41], [36, 41]):
                rows = views.rows("people/by_age", stale="false")
                assert [row["key"] for row in rows] == wanted
                index = index_of(server)["pid"]
                wait_until(lambda pid=index: not children_of(pid), "no process is left")
                store_person(server, 36)
        server.stop()


def test_the_process_ends_with_a_node_that_was_killed_and_the_next_has_its_address(
    tmp_path: Path,
) -> None:
    with start_uprmc(tmp_path, "--vbuckets", "4") as server:
        put_design(server)
        place, pid = str(server.views), index_of(server)["pid"]
        server.kill()
    with start_uprmc(tmp_path, "--views", place) as server:
        assert str(server.views) == place
        wait_until(lambda: not runs(pid), "the process of before has ended")
        assert ages(server) == []
        server.stop()


def test_a_node_that_is_stopped_while_it_waits_for_the_address_stops_at_once(
    tmp_path: Path,
) -> None:
    with node_here(tmp_path / "a", server__views=ANY_PORT) as (other, _):
        (tmp_path / "b" / "index").mkdir(parents=True)
        (tmp_path / "b" / "data.mdb").touch()
        loop = Loop()
        settings = build(
            {
                "storage.data": str(tmp_path / "b"),
                "server.memcached": ANY_PORT,
                "server.upr": ANY_PORT,
                "server.http": "off",
                "server.views": other.index.address,
            }
        )
        node = Node(loop.reactor, settings)
        served: list[object] = []
        node.start().addBoth(served.append)
        loop.reactor.iterate(0.001)
        loop.result(node.stop())
        loop.until(lambda: not loop.reactor.getDelayedCalls())
        assert not served
        assert node.index.state == "off"
        loop.close()


def test_a_node_with_tls_serves_its_views_over_https(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    options = ["--tls-cert", certificate, "--tls-key", key, "--vbuckets", "4"]
    with start_uprmc(tmp_path / "data", *options) as server:
        place = (server.memcached.host, server.memcached.port)
        context = ssl.create_default_context(cafile=certificate)
        context.check_hostname = False
        client = Pymemcache(place, tls_context=context, timeout=10)
        client.set("ada", b'{"age": 36}', noreply=False)
        client.close()
        put_design(server, context)
        assert ages(server, context) == [36]
        with Views(server.views) as plain:
            refused = plain.ask("GET", "/_design")
        assert (refused.status, refused.body) == (400, NOT_HTTPS)
        server.stop()
