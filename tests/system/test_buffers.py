"""Clients that hold back the end of what they send, or do not read: what they cost is limited."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from interop.server_process import ServerProcess, start_uprmc
from interop.waiting import wait_until
from interop.wire import GET, NOOP, SET, Wire, frame, store
from tests.system.support import OK, Client, get_page, stats

LIMIT = 32 << 20
VALUE = b"v" * 1_000_000


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    limit = f"server.buffer_bytes={LIMIT}"
    with start_uprmc(tmp_path, "--vbuckets", "4", "--http", "off", "--set", limit) as found:
        yield found
        found.stop()


def held(server: ServerProcess) -> int:
    found = stats(server.memcached, "uprmc")
    return int(found["conn_received_bytes"]) + int(found["conn_unsent_bytes"])


def try_send(wire: Wire, data: bytes) -> None:
    """Send what the node takes: it reads on when it likes, and may have hung up."""
    wire.socket.setblocking(False)
    with contextlib.suppress(OSError):
        sent = 0
        while sent < len(data):
            sent += wire.socket.send(data[sent:])


def test_frames_that_are_not_completed_cost_no_more_than_the_limit(server: ServerProcess) -> None:
    with Wire(server.memcached) as wire:
        assert wire.ask(store(SET, b"before", VALUE)).status == OK
    before = server.memory_kib()
    with contextlib.ExitStack() as stack:
        for number in range(200):
            hostile = stack.enter_context(Wire(server.memcached))
            try_send(hostile, store(SET, b"h%d" % number, VALUE)[:-1])
        wait_until(lambda: held(server) > LIMIT // 2, "the frames came")
        with Client(server.memcached) as client:
            client.store({b"k%d" % number: b"small" for number in range(100)})
            client.store({b"large": VALUE})
        assert held(server) <= LIMIT
        assert int(stats(server.memcached, "uprmc")["shed_connections"]) > 0
        assert server.memory_kib() - before < 2 * LIMIT // 1024
    wait_until(lambda: held(server) == 0, "all is given back")
    assert stats(server.memcached)["curr_items"] == "102"


def test_replies_that_are_not_read_cost_no_more_than_the_limit(server: ServerProcess) -> None:
    with Client(server.memcached) as client:
        client.store({b"large": VALUE})
    before = server.memory_kib()
    with contextlib.ExitStack() as stack:
        for _ in range(100):
            hostile = stack.enter_context(Wire(server.memcached))
            try_send(hostile, frame(GET, b"large") * 50)
        wait_until(
            lambda: int(stats(server.memcached, "uprmc")["shed_connections"]) > 0,
            "they do not read",
        )
        with Wire(server.memcached) as wire:
            assert wire.ask(frame(NOOP)).status == OK
            assert wire.ask(frame(GET, b"large")).value == VALUE
        assert held(server) <= LIMIT
        assert server.memory_kib() - before < 3 * LIMIT // 1024
    wait_until(lambda: held(server) == 0, "all is given back")


def test_the_account_is_in_the_metrics(tmp_path: Path) -> None:
    with start_uprmc(tmp_path, "--vbuckets", "4") as server:
        with Wire(server.memcached) as wire:
            wire.send(store(SET, b"k", VALUE)[:50_000])

            def shown() -> bool:
                page = get_page(server, "/metrics")[1].decode()
                return "uprmc_connections_received_bytes 50000.0\n" in page

            wait_until(shown, "the gauge")
            page = get_page(server, "/metrics")[1]
            assert b"uprmc_connections_unsent_bytes 0.0\n" in page
            assert b"uprmc_connections_shed_total 0.0\n" in page
        server.stop()
