"""The blocking client against a real server, beyond what `api_contract` shows for both APIs.

The iterator, leases, many readers with barriers, errors of the network by name, and kill -9.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import sqlite3
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from interop.server_process import ServerProcess, start_uprmc
from interop.waiting import wait_until
from tests.cli.here import runner
from tests.client.test_kv import set_state
from tests.upr import peer
from uprmc.client import Change, Handler, UprClient, changes
from uprmc.client.errors import ConnectionLost, MisuseError, NodeUnreachable, NotANode
from uprmc.client.lease import LeaseRefused
from uprmc.model import VBucketState

_WAIT_S = 30.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with start_uprmc(tmp_path_factory.mktemp("data")) as found:
        yield found


class Kv:
    """Sets and deletes, acknowledged."""

    def __init__(self, server: ServerProcess) -> None:
        assert server.upr is not None
        self._socket = server.upr.connect()
        self._rest = b""

    def set(self, vbucket: int, *keys: bytes, value: bytes = b"v") -> None:
        extras = bytes(8)
        self._ask(
            [
                peer.frame(peer.SET, key=key, value=value, extras=extras, vbucket=vbucket)
                for key in keys
            ]
        )

    def delete(self, vbucket: int, *keys: bytes) -> None:
        self._ask([peer.frame(peer.DELETE, key=key, vbucket=vbucket) for key in keys])

    def _ask(self, frames: list[bytes]) -> None:
        self._socket.sendall(b"".join(frames))
        left = len(frames)
        while left:
            data = self._socket.recv(1 << 16)
            assert data
            found, self._rest = peer.split(self._rest + data)
            assert not any(each.status for each in found)
            left -= len(found)

    def __enter__(self) -> Kv:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()


class Copy(Handler):
    """Keeps documents, by (vBucket, key)."""

    def __init__(self) -> None:
        self.docs: dict[tuple[int, bytes], bytes | None] = {}

    def mutation(self, change: Change) -> None:
        self.docs[change.vbucket, change.key] = change.value

    def deletion(self, change: Change) -> None:
        self.docs.pop((change.vbucket, change.key), None)


def place(server: ServerProcess) -> str:
    return str(server.upr)


# --- all goes well --------------------------------------------------------------------------------


@pytest.mark.acceptance("D16")
def test_fifty_readers_each_see_what_was_acknowledged_before_their_own_cookie(
    server: ServerProcess,
) -> None:
    copy = Copy()
    with UprClient(place(server), copy) as client:
        client.start()

        def query(number: int) -> bool:
            vbucket, key = 100 + number, b"reader%d" % number
            with Kv(server) as kv:
                kv.set(vbucket, key)
            client.barrier(f"reader {number}", timeout_s=_WAIT_S)
            return (vbucket, key) in copy.docs

        with ThreadPoolExecutor(50) as readers:
            assert all(readers.map(query, range(50)))
        client.stop()
        client.join()


def test_a_handler_that_waits_for_a_barrier_is_told_off(server: ServerProcess) -> None:
    class Waiting(Copy):
        def mutation(self, change: Change) -> None:
            client.barrier()

    client = UprClient(place(server), Waiting(), vbuckets=[13])
    with Kv(server) as kv, client:
        kv.set(13, b"a")
        with pytest.raises(MisuseError, match="handler"):
            client.run("now")


def test_a_barrier_of_a_client_that_is_stopped_is_lost(server: ServerProcess) -> None:
    set_state(server.upr, 1000, VBucketState.DEAD)
    with UprClient(place(server), Copy(), vbuckets=[1000]) as client:
        client.start()
        with ThreadPoolExecutor(1) as reader:
            waiting = reader.submit(client.barrier)
            wait_until(lambda: client._running and client._running.core._barriers)
            client.stop()
            with pytest.raises(ConnectionLost, match="stopped"):
                waiting.result(_WAIT_S)


def test_the_iterator_gives_what_is_there_and_then_what_comes(server: ServerProcess) -> None:
    with Kv(server) as kv:
        kv.set(14, b"a", b"b")
        kv.delete(14, b"a")
        found = list(changes(place(server), vbuckets=[14], until="now"))
        assert [(change.op, change.key) for change in found] == [("set", b"b"), ("delete", b"a")]
        following = changes(place(server), vbuckets=[14], start="now", until=None)
        came = threading.Event()

        def keep_writing() -> None:
            while not came.wait(0.02):
                kv.set(14, b"c")

        writer = threading.Thread(target=keep_writing)
        writer.start()
        assert next(following).key == b"c"
        came.set()
        writer.join()
        following.close()  # type: ignore[attr-defined]


def test_a_lease_is_read_twice_and_is_the_same(server: ServerProcess) -> None:
    with Kv(server) as kv, UprClient(place(server), Copy()) as client:
        kv.set(15, b"a", b"b")
        with client.lease([15], lifetime_s=30) as lease:
            kv.set(15, b"a", b"c")
            first = list(lease.read())
            lease.renew(30)
            assert [change.key for change in first] == [b"a", b"b"]
            assert list(lease.read()) == first
            with pytest.raises(LeaseRefused, match="vBucket 16"):
                list(lease.read([16]))
        with pytest.raises(LeaseRefused):
            list(lease.read())


@pytest.mark.parametrize(("registered", "purged"), [(True, 1), (False, 0)])
def test_what_reads_a_registered_clients_lease_is_no_unregistered_consumer(
    registered: bool, purged: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """For one that is not registered, deletions are kept by their age."""
    with (
        start_uprmc(tmp_path / "data", "--vbuckets", "1") as server,
        UprClient(
            str(server.upr), Copy(), state=tmp_path / "s.db", total_vbuckets=1, register="index"
        ) as index,
        UprClient(str(server.upr), Copy()) as unknown,
    ):
        with Kv(server) as kv:
            kv.set(0, b"a")
            kv.delete(0, b"a")
            kv.set(0, b"b")
        index.run("now")
        with (index if registered else unknown).lease([0]) as lease:
            assert [change.key for change in lease.read()] == [b"a", b"b"]
        ended = runner(capsys)("compact", "--wait", "--json", "--node", server.upr)
        assert sum(each["dropped"] for each in json.loads(ended.out)["vbuckets"]) == purged


def test_metrics_and_positions_are_told_meanwhile(server: ServerProcess) -> None:
    with Kv(server) as kv, UprClient(place(server), Copy(), vbuckets=[17]) as client:
        assert client.positions() == {}
        kv.set(17, b"a")
        client.start()
        client.barrier(timeout_s=_WAIT_S)
        metrics = client.metrics()
        assert metrics.nodes[place(server)].connected
        assert metrics.vbuckets[17].node == place(server)
        assert client.positions()[17].seqno == metrics.vbuckets[17].seqno == 1


# --- the program is wrong -------------------------------------------------------------------------


def test_a_handler_that_returns_something_is_told_off(server: ServerProcess) -> None:
    class Returning(Handler):
        def mutation(self, change: Change) -> object:
            return "something"

    with Kv(server) as kv, UprClient(place(server), Returning(), vbuckets=[18]) as client:
        kv.set(18, b"a")
        with pytest.raises(MisuseError, match="returned str"):
            client.run("now")


# --- the network is wrong -------------------------------------------------------------------------


def test_a_host_that_does_not_exist_is_told() -> None:
    with pytest.raises(NodeUnreachable, match="no host"):
        UprClient("no-such-host.invalid:11210", Handler(), patience_s=0.1).run()


def test_a_port_of_something_else_is_told_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        node = f"127.0.0.1:{listener.getsockname()[1]}"

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"220 mail.example ESMTP ready, say HELO\r\n")
                connection.recv(1)

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(NotANode, match="no UPR"):
            UprClient(node, Handler()).run()
        thread.join()


def test_a_silent_port_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        node = f"127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(ConnectionLost, match="silent"):
            UprClient(node, Handler(), noop_interval_s=0.0, patience_s=0.5).run()


# --- kill -9 --------------------------------------------------------------------------------------


@pytest.mark.crash
@pytest.mark.acceptance("D04")
def test_thirty_lines_survive_that_either_side_is_killed(tmp_path: Path) -> None:
    """Each round the server or the consumer is killed under load; at the end both are equal."""
    code = (Path(__file__).parent / "thirty_lines.py").read_text().split('"""', 2)[2]
    assert len([line for line in code.splitlines() if line.strip()]) <= 30
    database, seed = tmp_path / "mirror.db", random.Random(4)
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        listener = f"127.0.0.1:{found.getsockname()[1]}"
    server = start_uprmc(tmp_path / "data", "--upr", listener)
    consumer = _thirty_lines(listener, database)
    try:
        for number in range(6):
            _load(server, number)
            if seed.random() < 0.5:
                server.kill()
                server = start_uprmc(tmp_path / "data", "--upr", listener)
            else:
                os.kill(consumer.pid, signal.SIGKILL)
                consumer.wait()
                consumer = _thirty_lines(listener, database)
            _load(server, number + 100)
        there = changes(listener, until="now")
        want = {(each.vbucket, each.key): each.value for each in there if each.op == "set"}
        wait_until(lambda: _mirrored(database) == want)
    finally:
        consumer.kill()
        consumer.wait()
        server.kill()


def _thirty_lines(listener: str, database: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.client.thirty_lines", listener, str(database)]
    return subprocess.Popen(command, stderr=subprocess.DEVNULL)


def _load(server: ServerProcess, number: int) -> None:
    with Kv(server) as kv:
        for vbucket in range(0, 1024, 128):
            kv.set(vbucket, *(b"k%d" % n for n in range(30)), value=struct.pack(">I", number))
            kv.delete(vbucket, *(b"k%d" % n for n in range(number % 7, 30, 7)))


def _mirrored(database: Path) -> dict[tuple[int, bytes], bytes]:
    connection = sqlite3.connect(database, timeout=10)
    try:
        rows = connection.execute("SELECT vb, key, value FROM mirror").fetchall()
    except sqlite3.OperationalError:
        return {}
    finally:
        connection.close()
    return {(vbucket, key): value for vbucket, key, value in rows}
