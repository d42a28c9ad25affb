"""An answer with very many rows needs no memory, however slowly it is read."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from interop.server_process import start_uprmc
from tests.index.running import IndexServer, index_server, store

#: Each document has this many rows, the most that a declarative map may describe.
ROWS_EACH = 64
DOCUMENTS = 4_000

EMIT = [{"key": [n, "$.n"], "value": "$.n"} for n in range(ROWS_EACH)]
MANY = {"views": {"by_city": {"map": {"emit": EMIT}}}}
PATH = "/default/_design/d/_view/by_city?stale=ok&reduce=false"

#: What the process may need more than before, in KiB: far less than an answer.
MOST_KIB = 16 * 1024


@pytest.fixture
def server(tmp_path: Path) -> Iterator[IndexServer]:
    documents = {b"k%d" % n: json.dumps({"n": n}).encode() for n in range(DOCUMENTS)}
    settings = {"index.cache_bytes": "1MiB"}
    with start_uprmc(tmp_path / "node", "--vbuckets", "8") as node:
        store(node, documents)
        with index_server(tmp_path / "index", node.upr, settings=settings) as server:
            server.views.put("d", MANY)
            rows = server.views.query(stale="false", limit=1).body["total_rows"]
            assert rows == DOCUMENTS * ROWS_EACH
            yield server


def kib(pid: int, name: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(f"{name}:")).split()[1])


class _Reader:
    """Reads an answer, as slowly as it is called."""

    def __init__(self, server: IndexServer) -> None:
        self._connection = http.client.HTTPConnection(server.views.place, timeout=60)
        self._connection.request("GET", PATH)
        self._answer = self._connection.getresponse()
        self.bytes = 0

    def read(self, size: int) -> bool:
        data = self._answer.read(size)
        self.bytes += len(data)
        return bool(data)

    def close(self) -> None:
        self._connection.close()


def test_a_slow_and_a_fast_reader_of_everything_cost_no_memory(server: IndexServer) -> None:
    warm, fast, slow = (_Reader(server) for _ in range(3))
    while warm.read(1 << 20):
        pass
    Path(f"/proc/{server.pid}/clear_refs").write_text("5")  # the peak is now what is in use
    before = kib(server.pid, "VmHWM")
    while fast.read(1 << 16):
        slow.read(1 << 10)
    after = kib(server.pid, "VmHWM")
    for reader in (warm, fast, slow):
        reader.close()
    assert warm.bytes == fast.bytes > 60 * DOCUMENTS * ROWS_EACH / 2
    assert 0 < slow.bytes < fast.bytes / 32
    assert after - before < MOST_KIB
