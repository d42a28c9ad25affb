"""A node that warms up: what it answers meanwhile, and that it can be stopped in the middle."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from interop.server_process import start_uprmc
from interop.wire import GET, NOOP, SET, STAT, VERSION, Reply, frame, split_replies, store
from tests.server.support import Loop
from tests.system.support import get_page, node_here, status_page
from uprmc.config import build
from uprmc.server.node import Node

COUNT = 30_000


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let sockets be served after every hundred items."""
    monkeypatch.setattr("uprmc.engine.warmup._STEP_ITEMS", 100)
    monkeypatch.setattr("uprmc.server.work.turns.WORK_S", 0.0)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory whose warm-up takes a while."""
    directory = tmp_path_factory.mktemp("warm")
    with node_here(directory) as (node, loop):
        for number in range(COUNT):
            key = b"key-%d" % number
            node.bucket.of_key(key).store(key, b"value", 0, 0)
        loop.result(node.stop(), 30.0)
    return directory


@contextmanager
def warming_node(data: Path, **changes: Any) -> Iterator[tuple[Node, Loop, list[object]]]:
    """A node right after its listeners opened; the list gets an entry once it serves."""
    place = "127.0.0.1:0"
    names = ("server.memcached", "server.upr", "server.http")
    listeners = dict.fromkeys(names, place) | {"server.views": "off"}
    settings = build({"storage.data": str(data), **listeners, **changes})
    loop = Loop()
    node = Node(loop.reactor, settings)
    served: list[object] = []
    node.start().addBoth(served.append)
    try:
        assert not served
        yield node, loop, served
        loop.result(node.stop(), 30.0)
    finally:
        loop.close()


def ask(loop: Loop, address: str, *requests: bytes) -> list[Reply]:
    client = loop.client(address)
    client.socket.send(b"".join(requests) + frame(NOOP, opaque=99))
    tail = (99).to_bytes(4, "big") + bytes(8)
    loop.until(lambda: client.poll() or client.received.endswith(tail))
    return split_replies(bytes(client.received))[0]


def page(loop: Loop, address: str, path: str) -> tuple[int, bytes]:
    client = loop.client(address)
    client.socket.send(b"GET %b HTTP/1.0\r\n\r\n" % path.encode())
    head, _, body = client.read_all().partition(b"\r\n\r\n")
    return int(head.split()[1]), body


def entries(node: Node) -> set[int]:
    return {len(vbucket.failover_log) for vbucket in node.bucket.vbuckets.values()}


def test_during_warm_up_a_node_says_how_far_it_is_and_refuses_data_for_now(data: Path) -> None:
    with warming_node(data) as (node, loop, served):
        addresses = node.addresses()
        code, body = page(loop, addresses["http"], "/readyz")
        assert not served
        assert (code, json.loads(body)["ready"]) == (503, False)
        replies = ask(
            loop,
            addresses["memcached"],
            *(frame(GET, b"key-1"), store(SET, b"key-1", b"new"), frame(VERSION)),
        )
        assert not served
        assert [reply.status for reply in replies] == [0x86, 0x86, 0, 0]
        progress = ask(loop, addresses["upr"], frame(STAT, b"warmup"))
        found = {reply.key.decode(): reply.value.decode() for reply in progress}
        assert found["ep_warmup_thread"] == "running"
        assert page(loop, addresses["http"], "/healthz") == (200, b"ok\n")
        assert not served

        loop.until(lambda: served, 30.0)
        assert page(loop, addresses["http"], "/readyz")[0] == 200
        (reply, _) = ask(loop, addresses["memcached"], frame(GET, b"key-1"))
        assert reply.value == b"value"


def test_a_node_stopped_during_warm_up_stops_in_order(data: Path) -> None:
    """Nobody was let in, so nothing can have been lost: the clean mark stays."""
    for _ in range(2):
        with warming_node(data) as (node, loop, served):
            loop.until(lambda node=node: node.warmup.keys > 1_000)
        assert served == []
    with warming_node(data) as (node, loop, served):
        loop.until(lambda: served, 30.0)
        assert node.warmup.was_clean
        assert entries(node) == {1}
        assert node.bucket.item_count == COUNT


def test_the_pages_after_warm_up(tmp_path: Path) -> None:
    with start_uprmc(tmp_path, "--vbuckets", "16") as server:
        assert get_page(server, "/healthz") == (200, b"ok\n")
        assert json.loads(get_page(server, "/readyz")[1]) == {"ready": True}
        status = status_page(server)
        assert status["ready"] is True
        assert status["pid"] == server.pid
        assert status["listeners"]["memcached"] == str(server.memcached)
        assert status["vbuckets"] == {"active": 16, "replica": 0, "pending": 0, "dead": 0}
        assert status["disk"]["error"] == ""
        assert 0 <= status["uptime_s"] < time.monotonic()
        code, metrics = get_page(server, "/metrics")
        assert code == 200
        assert b"\nuprmc_ready 1.0\n" in metrics
        assert get_page(server, "/nothing")[0] == 404
        server.stop()
