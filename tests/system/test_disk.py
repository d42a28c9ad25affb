"""The store's file under a real process: full, growing, and at the end of a busy life."""

from __future__ import annotations

import resource
import threading
from pathlib import Path

import pytest

from interop.server_process import ServerProcess, start_uprmc
from interop.waiting import wait_until
from interop.wire import DELETE, SET, Wire, frame, split_replies, store
from tests.system.support import OK, TEMPORARY_FAILURE, Client, get_page, stats, status_page

KIB = 1024
PROMPT = ["--vbuckets", "16", "--set", "flush.retry_delay_s=0.05"]


def limit_files(server: ServerProcess, soft: int) -> None:
    """Let no file of the process grow beyond `soft` bytes; -1 for no limit."""
    _, hard = resource.prlimit(server.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (soft, hard))


def wait_until_persisted(server: ServerProcess) -> None:
    wait_until(lambda: stats(server.memcached)["ep_queue_size"] == "0", "the queue is on disk")


def fill(server: ServerProcess, data: Path, client: Client) -> dict[bytes, bytes]:
    """Let the store's file grow no more and write until writes are refused."""
    limit_files(server, (data / "data.mdb").stat().st_size + 512 * KIB)
    accepted: dict[bytes, bytes] = {}

    def refused() -> bool:
        key, value = b"more-%d" % len(accepted), b"%d" % len(accepted) * 10_000
        status = client.try_store(key, value)
        if status == OK:
            accepted[key] = value
        return status == TEMPORARY_FAILURE

    wait_until(refused, "a refused write")
    return accepted


def failover_entries(server: ServerProcess) -> set[str]:
    found = stats(server.memcached, "failovers")
    return {value for name, value in found.items() if name.endswith(":num_entries")}


@pytest.mark.acceptance("D22")
def test_a_full_disk_refuses_writes_serves_reads_and_loses_nothing(tmp_path: Path) -> None:
    safe = {b"safe-%d" % number: b"%d" % number * 1_000 for number in range(50)}
    with start_uprmc(tmp_path, *PROMPT) as server, Client(server.memcached) as client:
        client.store(safe)
        wait_until_persisted(server)
        accepted = fill(server, tmp_path, client)
        for request in (frame(DELETE, b"safe-1"), store(SET, b"safe-2", b"new")):
            assert client.send_all([request])[0].status == TEMPORARY_FAILURE
        assert dict(client.load([*safe, *accepted])) == safe | accepted
        assert status_page(server)["disk"]["error"]
        assert stats(server.memcached, "uprmc")["disk_error"]
        assert int(stats(server.memcached, "uprmc")["writes_refused_disk"]) >= 2
        assert b"\nuprmc_disk_failing 1.0\n" in get_page(server, "/metrics")[1]
        assert get_page(server, "/healthz") == (200, b"ok\n")

        limit_files(server, -1)
        wait_until(lambda: client.try_store(b"again", b"v") == OK, "writes work again")
        wait_until(lambda: status_page(server)["disk"]["error"] == "", "the page says so")
        wait_until_persisted(server)
        server.kill()
    with start_uprmc(tmp_path) as server, Client(server.memcached) as client:
        assert dict(client.load([*safe, *accepted])) == safe | accepted
        server.stop()


def test_a_node_killed_on_a_full_disk_still_has_what_was_persisted(tmp_path: Path) -> None:
    safe = {b"safe-%d" % number: b"%d" % number * 1_000 for number in range(50)}
    with start_uprmc(tmp_path, *PROMPT) as server, Client(server.memcached) as client:
        client.store(safe)
        wait_until_persisted(server)
        fill(server, tmp_path, client)
        server.kill()
    with start_uprmc(tmp_path) as server, Client(server.memcached) as client:
        assert dict(client.load(list(safe))) == safe
        assert client.try_store(b"again", b"v") == OK
        server.stop()


@pytest.mark.acceptance("D11")
def test_a_stop_that_cannot_persist_everything_says_so_and_leaves_no_clean_mark(
    tmp_path: Path,
) -> None:
    with start_uprmc(tmp_path, *PROMPT) as server:
        with Client(server.memcached) as client:
            client.store({b"k": b"v"})
            wait_until_persisted(server)
            fill(server, tmp_path, client)
        assert server.terminate() == 1
        last = server.log().splitlines()[-1]
        assert last.startswith("uprmc: ")
        assert "Traceback" not in server.log()
    with start_uprmc(tmp_path) as server:
        assert failover_entries(server) == {"2"}
        server.stop()


def test_the_map_grows_under_load(tmp_path: Path) -> None:
    options = ["--set", "storage.map_initial=1M", "--memory", "12M", "--set"]
    items = {b"key-%d" % number: b"%d" % number * 2_000 for number in range(3_000)}
    with start_uprmc(tmp_path, *options, "flush.max_delay_s=0.02") as server:
        stop = threading.Event()
        read = 0

        def keep_reading() -> None:
            nonlocal read
            with Client(server.memcached) as client:
                while not stop.is_set():
                    for key, value in client.load(list(items)[:200]):
                        assert value is None or value == items[key]
                        read += 1

        reader = threading.Thread(target=keep_reading)
        reader.start()
        try:
            with Client(server.memcached) as client:
                client.store(items)
        finally:
            stop.set()
            reader.join()
        assert read >= 200
        assert int(stats(server.memcached, "uprmc")["disk_map_bytes"]) >= 16 * KIB * KIB
        with Client(server.memcached) as client:
            assert dict(client.load(list(items))) == items
        server.stop()
        assert "map_grown" in server.log()
    with start_uprmc(tmp_path, "--set", "storage.map_initial=1M") as server:
        with Client(server.memcached) as client:
            assert dict(client.load(list(items))) == items
        server.stop()


class Writer(threading.Thread):
    """Writes new keys as fast as it can until the server hangs up; notes what was acknowledged."""

    def __init__(self, server: ServerProcess, number: int) -> None:
        super().__init__()
        self._wire = Wire(server.memcached)
        self._prefix = b"writer-%d-" % number
        self.acknowledged = 0

    def run(self) -> None:
        sent, data = 0, b""
        try:
            while True:
                numbers = range(sent, sent + 100)
                sent += 100
                self._wire.send(*(store(SET, self.key(n), self.key(n) * 5) for n in numbers))
                while self.acknowledged < sent:
                    piece = self._wire.socket.recv(1 << 16)
                    if not piece:
                        return
                    replies, data = split_replies(data + piece)
                    assert {reply.status for reply in replies} <= {OK}
                    self.acknowledged += len(replies)
        except OSError:
            return
        finally:
            self._wire.close()

    def key(self, number: int) -> bytes:
        return self._prefix + b"%d" % number

    def expected(self) -> dict[bytes, bytes]:
        return {self.key(number): self.key(number) * 5 for number in range(self.acknowledged)}


@pytest.mark.acceptance("D20")
@pytest.mark.parametrize("busy_delay", ["1", "0.02"])
def test_a_clean_stop_in_the_middle_of_a_load_keeps_every_acknowledged_write(
    tmp_path: Path, busy_delay: str
) -> None:
    with start_uprmc(tmp_path, "--set", f"flush.max_delay_s={busy_delay}") as server:
        writers = [Writer(server, number) for number in range(3)]
        for writer in writers:
            writer.start()
        wait_until(lambda: all(writer.acknowledged > 3_000 for writer in writers), "a load")
        server.stop()
        for writer in writers:
            writer.join()
    with start_uprmc(tmp_path) as server, Client(server.memcached) as client:
        assert failover_entries(server) == {"1"}
        for writer in writers:
            expected = writer.expected()
            assert dict(client.load(list(expected))) == expected
        server.stop()
