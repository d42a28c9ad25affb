"""Views of several nodes: an index elsewhere, takeovers, failovers, purges, scattered queries."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from interop.proxy import LastingPort
from interop.replica_pair import fail_over, replicate, take_over, verb, wait_until_level
from interop.server_process import Address, ServerProcess, serve_command
from interop.views import Views
from interop.waiting import wait_until
from tests.index.site import BY_KEY, SAVED_AT_ONCE, Site, site
from tests.index.test_acceptance_node import people
from tests.system.support import stats
from uprmc.index.scatter import PAUSES_S


@contextmanager
def index_elsewhere(
    data: Path, *sources: Address, options: tuple[str, ...] = ()
) -> Iterator[tuple[ServerProcess, Views]]:
    """Run ``uprmc index serve`` as its own process."""
    command = [*serve_command()[:-1], "index", "serve", "--data", str(data)]
    command += [word for source in sources for word in ("--source", str(source))]
    process = ServerProcess("uprmc index", [*command, "--views", "127.0.0.1:0", *options], {})
    with process:
        line = process._wait_for_line(60.0)
        facts = dict(word.partition("=")[::2] for word in line.split())
        process.views = Address.parse(facts["views"])
        with Views(process.views) as views:
            yield process, views
        if process.running:
            process.stop()


def keys(views: Views, **options: Any) -> list[Any]:
    """Return the keys of all rows, up to date."""
    return [row["key"] for row in views.rows("d/v", **{"reduce": "false"} | options)]


@pytest.mark.acceptance("I04", "I19", "I20")
def test_an_index_elsewhere_follows_a_node_that_loses_writes_and_comes_back(tmp_path: Path) -> None:
    never = ("--set", "flush.min_delay_s=60", "--set", "flush.max_delay_s=60")
    port = LastingPort()
    where = ("--upr", str(port.address))
    with ExitStack() as stack:
        stack.callback(port.give_back)
        with site(tmp_path / "node", *where) as node:
            node.put(people(100))
            node.server.stop()
        with site(tmp_path / "node", *where, *never) as node:
            process, views = stack.enter_context(
                index_elsewhere(tmp_path / "index", node.upr, options=SAVED_AT_ONCE)
            )
            assert views.put("d", BY_KEY).status == 201
            assert keys(views) == list(range(100))
            node.put(people(50, first=90))
            assert keys(views) == list(range(140))
            wait_until(lambda: views.info("d")["headers_written"] > 1, "headers")
            node.server.kill()
            assert keys(views, stale="ok") == list(range(140))
            away = views.query("d/v", stale="false", connection_timeout="300")
            assert away.status == 503
        with site(tmp_path / "node", *where) as node:
            wait_until(
                lambda: views.query("d/v", stale="false", connection_timeout="1000").status == 200,
                "the node is back",
            )
            assert keys(views) == list(range(100))
            assert sum(views.info("d")["rollbacks"].values()) > 0
            assert process.running


@contextmanager
def pair(directory: Path, *options: str) -> Iterator[tuple[Site, Site]]:
    """Two nodes whose views listeners scatter over both; `b` follows `a`."""
    ports = LastingPort(), LastingPort()
    both = ",".join(str(port.address) for port in ports)
    with ExitStack() as stack:
        nodes = []
        for name, port in zip("ab", ports, strict=True):
            stack.callback(port.give_back)
            views = ("--views", str(port.address), "--set", f"index.nodes={both}")
            nodes.append(stack.enter_context(site(directory / name, *views, *options)))
        yield nodes[0], nodes[1]


def follow(b: Site, a: Site) -> None:
    """Let `b` follow `a`, and wait until it has everything."""
    replicate(b, a.upr)  # type: ignore[arg-type]
    wait_until_level(a, b)  # type: ignore[arg-type]


@pytest.mark.acceptance("I10", "I11")
def test_queries_during_takeovers_give_the_same_rows_each_time(tmp_path: Path) -> None:
    """Every 10 ms, at both nodes in turn; nothing is missing, nothing is doubled, none fails.

    A takeover that lasts longer than a query waits for a vBucket may let it be refused.
    """
    with pair(tmp_path) as (a, b):
        a.put(people(300))
        a.design()
        follow(b, a)
        assert keys(a.views) == list(range(300))
        wrong: list[Any] = []
        refused: list[Any] = []
        longest_s = 0.0
        count = 0
        over = threading.Event()

        def ask() -> None:
            nonlocal count
            assert a.server.views is not None
            assert b.server.views is not None
            with Views(a.server.views) as one, Views(b.server.views) as other:
                while not over.wait(0.01):
                    for views in (one, other):
                        answer = views.query("d/v", stale="update_after", on_error="stop")
                        count += 1
                        found = answer.body
                        if answer.status != 200:
                            refused.append(answer)
                        elif [row["key"] for row in found["rows"]] != list(range(300)):
                            wrong.append((count, found["errors"], len(found["rows"])))

        asking = threading.Thread(target=ask)
        asking.start()
        try:
            for vbucket in range(8):
                began = time.monotonic()
                assert take_over(b, a.upr, [vbucket]) == {vbucket: 0}  # type: ignore[arg-type]
                longest_s = max(longest_s, time.monotonic() - began)
            wait_until(lambda: count >= 20 or wrong, lambda: f"{count} queries")
        finally:
            over.set()
            asking.join()
        assert not wrong, wrong[:5]
        assert not refused or longest_s > sum(PAUSES_S) / 2, (longest_s, refused[:5])
        assert keys(b.views) == list(range(300))


@pytest.mark.acceptance("I27")
def test_a_version_that_a_failover_has_lost_is_refused_while_it_is_waited_for(
    tmp_path: Path,
) -> None:
    with site(tmp_path / "a") as a, site(tmp_path / "b") as b:
        a.put(people(50))
        follow(b, a)
        with index_elsewhere(tmp_path / "index", a.upr, b.upr) as (process, views):
            assert views.put("d", BY_KEY).status == 201
            assert keys(views) == list(range(50))
            uuid, seqno = a.positions()[2]
            answers: list[Any] = []

            def ask() -> None:
                assert process.views is not None
                with Views(process.views) as other:
                    answers.append(other.query("d/v", at=f"2:{uuid}:{seqno + 3}"))

            asking = threading.Thread(target=ask)
            asking.start()
            wait_until(lambda: views.info("d")["waiting"] == 1, "it waits")
            began = time.monotonic()
            a.server.kill()
            fail_over(b, range(8))  # type: ignore[arg-type]
            asking.join(50)
            assert not asking.is_alive()
            assert time.monotonic() - began < 40
            assert answers[0].status == 409, answers
            assert answers[0].body["vbucket"] == 2
            assert answers[0].body["vb_uuid"] == str(uuid)
            assert keys(views) == list(range(50))


@pytest.mark.acceptance("I28")
def test_deletions_that_were_purged_before_an_index_saw_them_leave_it(tmp_path: Path) -> None:
    """Its registration had expired; only the vBuckets concerned are indexed again."""
    short = ("--set", "purge.expires_index_s=1", "--set", "purge.min_age_s=0")
    with site(tmp_path / "node", *short) as node:
        node.put(people(200))
        with index_elsewhere(tmp_path / "index", node.upr) as (process, views):
            assert views.put("d", BY_KEY).status == 201
            assert keys(views) == list(range(200))
            process.stop()
        node.drop([f"p{n}" for n in range(0, 200, 40)])
        touched = {vb for vb, (_, seqno) in node.positions().items() if seqno}
        assert touched
        node.put(people(8, first=200))
        wait_until(lambda: _purged(node), "deletions are purged")
        left = [n for n in range(208) if n >= 200 or n % 40]
        with index_elsewhere(tmp_path / "index", node.upr) as (_, views):
            assert keys(views) == left
            info = views.info("d")
            assert info["rollbacks"].get("vbucket", 0) > 0
            assert info["map_calls"] < 208


def _purged(node: Site) -> bool:
    """Purge what can be purged; what is not on disk yet cannot be, nor what is registered for."""
    verb("compact", "--node", str(node.upr), "--force", "--wait")
    found = stats(node.upr, "vbucket-seqno")
    return any(value != "0" for name, value in found.items() if name.endswith(":purge_seqno"))


@pytest.mark.acceptance("I29", "I30")
def test_queries_touch_index_nodes_only_and_data_nodes_come_without_them(tmp_path: Path) -> None:
    """Two index nodes have half of the vBuckets each, of three data nodes."""
    with ExitStack() as stack:
        a = stack.enter_context(site(tmp_path / "a"))
        b = stack.enter_context(site(tmp_path / "b"))
        c = stack.enter_context(site(tmp_path / "c"))
        a.put(people(300))
        follow(b, a)
        follow(c, a)
        assert take_over(b, a.upr, [2, 3, 4]) == dict.fromkeys([2, 3, 4], 0)  # type: ignore[arg-type]
        ports = LastingPort(), LastingPort()
        both = ",".join(str(port.address) for port in ports)
        indexes = []
        for number, port in enumerate(ports):
            stack.callback(port.give_back)
            options = ("--views", str(port.address), "--set", f"index.nodes={both}")
            made = index_elsewhere(
                tmp_path / f"index{number}", a.upr, b.upr, c.upr, options=options
            )
            indexes.append(stack.enter_context(made)[1])
        assert indexes[0].put("d", BY_KEY).status == 201
        halves = [0, 1, 2, 3], [4, 5, 6, 7]
        for views, mine, other in zip(indexes, halves, reversed(halves), strict=True):
            body = {"active": mine, "cleanup": other, "epoch": 1}
            assert views.ask("POST", "/_design/d/_set_states", body).status == 200
        for views in indexes:
            assert keys(views) == list(range(300))
            assert keys(views, limit="7", skip="3", descending="true") == list(range(296, 289, -1))
        mapped = [views.info("d")["docs_mapped"] for views in indexes]
        assert take_over(c, a.upr, [0, 1]) == {0: 0, 1: 0}  # type: ignore[arg-type]
        assert keys(indexes[0]) == list(range(300))
        assert [views.info("d")["docs_mapped"] for views in indexes] == mapped
        assert [node.index_pid for node in (a, b, c)] == [0, 0, 0]
