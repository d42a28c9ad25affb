"""The quota holds: more data than memory, and a peer that asks for more than it reads."""

from __future__ import annotations

import socket
import struct
from contextlib import suppress
from pathlib import Path

import pytest

from interop.server_process import ServerProcess, start_uprmc
from interop.waiting import wait_until
from interop.wire import GET, SET, Wire, frame, store
from tests.system.support import OK, Client, stats, upr

MIB = 1024 * 1024
QUOTA = 32 * MIB

#: What the process may take beyond its empty self and the quota: the pages of a commit on their way
#: to the file, batches, buffers, and what the allocator does not give back. Measured: 50 to 60 MiB.
OVERHEAD_MIB = 80

VALUE_BYTES = 8 * 1024
COUNT = 3 * QUOTA // VALUE_BYTES


def value_of(number: int) -> bytes:
    return struct.pack(">Q", number) * (VALUE_BYTES // 8)


def anonymous_mib(server: ServerProcess) -> float:
    return server.memory_kib("RssAnon") / 1024


def check_reading(server: ServerProcess, numbers: range, *, by_vbucket: bool) -> None:
    place = upr(server) if by_vbucket else server.memcached
    with Client(place, authoritative=by_vbucket) as client:
        for number, (_, value) in zip(
            numbers, client.load([b"key-%d" % number for number in numbers]), strict=True
        ):
            assert value == value_of(number), number


def test_three_times_the_quota_is_loaded_read_back_and_survives_a_restart(tmp_path: Path) -> None:
    options = ["--memory", "32M", "--set", "flush.max_delay_s=0.1"]
    with start_uprmc(tmp_path, *options) as server:
        allowed = anonymous_mib(server) + QUOTA / MIB + OVERHEAD_MIB
        with Client(server.memcached) as client:
            for start in range(0, COUNT, 500):
                numbers = range(start, min(start + 500, COUNT))
                client.store({b"key-%d" % number: value_of(number) for number in numbers})
                assert anonymous_mib(server) < allowed
        general = stats(server.memcached)
        assert int(general["curr_items"]) == COUNT
        assert int(general["mem_used"]) <= QUOTA
        assert int(stats(server.memcached, "uprmc")["value_ejects"]) > 0
        check_reading(server, range(COUNT // 2), by_vbucket=False)
        check_reading(server, range(COUNT // 2, COUNT), by_vbucket=True)
        assert anonymous_mib(server) < allowed
        assert int(stats(server.memcached, "uprmc")["bg_fetched"]) > 0

        def writable() -> bool:
            with Client(server.memcached) as client:
                return client.try_store(b"one more", b"x" * VALUE_BYTES) == OK

        wait_until(writable, "a write after the load", 5.0)
        server.stop()

    with start_uprmc(tmp_path, *options) as server:
        warmup, memory = stats(server.memcached, "warmup"), stats(server.memcached, "memory")
        assert int(warmup["ep_warmup_key_count"]) == COUNT + 1
        assert 0 < int(warmup["ep_warmup_value_count"]) < COUNT
        low = int(memory["ep_mem_low_wat"])
        assert low - VALUE_BYTES < int(memory["mem_used"]) <= low + VALUE_BYTES + 1_000
        assert anonymous_mib(server) < allowed
        check_reading(server, range(COUNT // 4), by_vbucket=True)
        assert anonymous_mib(server) < allowed
        server.stop()


@pytest.mark.parametrize("text", [False, True])
def test_a_client_that_asks_for_gigabytes_and_never_reads_costs_little(
    tmp_path: Path, text: bool
) -> None:
    size, count = 900_000, 3_000
    with start_uprmc(tmp_path) as server, Wire(server.memcached) as other:
        assert other.ask(store(SET, b"large", b"v" * size)).status == OK
        before = anonymous_mib(server)
        with server.memcached.connect(5.0) as greedy:
            greedy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            greedy.setblocking(False)
            request = b"get large\r\n" if text else frame(GET, b"large")
            left = memoryview(request * count)

            def stuck() -> bool:
                nonlocal left
                with suppress(BlockingIOError):
                    left = left[greedy.send(left) :]
                found = stats(server.memcached, "conns")
                return "output-full" in found.values()

            wait_until(stuck, "the server waits for the peer")
            for _ in range(20):
                stuck()
                assert other.ask(frame(GET, b"large")).value == b"v" * size
                assert anonymous_mib(server) < before + 16
        wait_until(
            lambda: stats(server.memcached)["curr_connections"] == "2", "the peer is forgotten"
        )
        server.stop()
