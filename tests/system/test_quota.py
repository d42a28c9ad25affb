"""A real node's memory stays near its quota while three times as much arrives."""

from __future__ import annotations

import socket
import time
from pathlib import Path

from interop.server_process import ServerProcess, start_uprmc

MIB = 1_024 * 1_024
QUOTA_MIB = 32
VALUE = b"v" * 4_096
AT_A_TIME = 50


def fill(server: ServerProcess, count: int) -> float:
    """Set `count` keys, what is refused for the time being again; the peak growth in MiB."""
    before_kib = peak_kib = server.memory_kib("RssAnon")
    left = list(range(count))
    address = server.memcached
    with socket.create_connection((address.host, address.port), timeout=30) as connection:
        replies = connection.makefile("rb")
        while left:
            now, left = left[-AT_A_TIME:], left[:-AT_A_TIME]
            for number in now:
                connection.sendall(b"set key-%d 0 0 %d\r\n%s\r\n" % (number, len(VALUE), VALUE))
            refused = [number for number in now if replies.readline() != b"STORED\r\n"]
            left += refused
            peak_kib = max(peak_kib, server.memory_kib("RssAnon"))
            time.sleep(0.01 * bool(refused))  # as a client backs off
    return (peak_kib - before_kib) / 1_024


def test_a_node_that_gets_three_quotas_of_large_values_keeps_to_its_memory(tmp_path: Path) -> None:
    with start_uprmc(tmp_path, "--memory", f"{QUOTA_MIB}M") as server:
        growth_mib = fill(server, 3 * QUOTA_MIB * MIB // len(VALUE))
        assert growth_mib < 1.5 * QUOTA_MIB
        server.stop()
