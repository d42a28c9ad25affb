"""A thousand clients that do not read their answers, over real sockets."""

from __future__ import annotations

import resource
import socket
import tracemalloc

import pytest
from twisted.python.threadpool import ThreadPool

from tests.index.fake_index import FakeService
from tests.index.memory_tree import MemoryTree, entries
from tests.server.support import Loop
from uprmc.config import IndexSettings
from uprmc.index.http import views_site
from uprmc.index.http_request import UNSENT_MAX_BYTES
from uprmc.index.query import PIECE_BYTES

READERS = 1_000
MAP = b'{"views": {"v": {"map": {"emit": [{"key": "$.k"}]}}}}'
REQUEST = b"GET /default/_design/d/_view/v HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"


def _room_for(files: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < files:
        pytest.skip(f"the system allows {hard} open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, files), hard))


def test_a_thousand_slow_readers_cost_little_and_hinder_no_one(
    loop: Loop, pool: ThreadPool
) -> None:
    _room_for(3 * READERS)
    service = FakeService()
    service.keep("d", MAP)
    group = service.groups["d"]
    group.trees = [MemoryTree(entries((b"%05d" % n, 0, n, "x" * 1_000) for n in range(20_000)))]
    site = views_site(service, IndexSettings(), loop.reactor, pool, lambda: ["h:1"])
    port = loop.reactor.listenTCP(0, site, interface="127.0.0.1", backlog=READERS)
    # The kernel's own buffers grow to megabytes for each connection, which are not ours to count.
    port.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16_384)
    address = f"127.0.0.1:{port.getHost().port}"
    tracemalloc.start()
    try:
        slow = [loop.client(address, receive_buffer=4_096) for _ in range(READERS)]
        for client in slow:
            client.socket.send(REQUEST)
        loop.until(lambda: len(group.snapshots) == READERS)
        read = -1
        while read != group.trees[0].read:
            read = group.trees[0].read
            loop.until(lambda: not pool._team.statistics().busyWorkerCount)
        quick = loop.client(address)
        quick.socket.send(REQUEST.replace(b"/v ", b"/v?limit=3 "))
        assert quick.read_all().count(b'"id"') == 3
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak / READERS < UNSENT_MAX_BYTES + 3 * PIECE_BYTES + 32_768
    assert len(pool.threads) <= 2
    for client in slow:
        client.socket.close()
    loop.until(lambda: all(each.released for each in group.snapshots))
    assert site.clients <= 1
    loop.result(port.stopListening())
