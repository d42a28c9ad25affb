"""Copied, moved and restored data directories, with real nodes: who may go on, and who may not."""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from interop.server_process import ServerProcess, start_uprmc
from interop.wire import Wire, frame
from tests.system.support import OK, Client, stats, upr

OPEN, STREAM_REQUEST, FAILOVER_LOG = 0x50, 0x53, 0x96
ROLLBACK = 0x23
Log = list[tuple[int, int]]


@contextmanager
def node(path: Path, *options: str) -> Iterator[ServerProcess]:
    with start_uprmc(path, "--vbuckets", "1", "--http", "off", *options) as server:
        yield server
        server.stop()


def uuid_of(server: ServerProcess) -> str:
    return stats(server.memcached, "uuid")["uuid"]


def log_of(server: ServerProcess) -> Log:
    with Wire(upr(server)) as wire:
        value = wire.ask(frame(FAILOVER_LOG)).value
    return list(struct.iter_unpack(">QQ", value))


def write(server: ServerProcess, name: bytes, count: int) -> None:
    with Client(server.memcached) as client:
        client.store({b"%b-%d" % (name, number): b"v" for number in range(count)})


def stream_from(server: ServerProcess, uuid: int, seqno: int) -> tuple[int, int | None]:
    """Ask for a stream; return the status, and where a rollback leads."""
    with Wire(upr(server)) as wire:
        assert wire.ask(frame(OPEN, b"reader", extras=struct.pack(">II", 0, 1))).status == OK
        asked = struct.pack(">IIQQQQQ", 0, 0, seqno, 2**64 - 1, uuid, seqno, seqno)
        reply = wire.ask(frame(STREAM_REQUEST, extras=asked))
    return reply.status, int.from_bytes(reply.value) if reply.status == ROLLBACK else None


@pytest.mark.acceptance("C06", "C07")
def test_writes_after_a_restore_are_not_taken_for_the_lost_ones(tmp_path: Path) -> None:
    data, saved = tmp_path / "data", tmp_path / "saved"
    with node(data) as server:
        write(server, b"kept", 5)
        first = uuid_of(server)
    subprocess.run(["cp", "-a", data, saved], check=True)
    with node(data) as server:
        write(server, b"lost", 5)
        ((uuid, _),) = log_of(server)
    shutil.rmtree(data)
    subprocess.run(["cp", "-a", saved, data], check=True)
    with node(data) as server:
        assert server.log().count("new_history") == 1
        assert uuid_of(server) != first
        log = log_of(server)
        assert log[1:] == [(uuid, 0)]
        assert log[0][1] == 5
        write(server, b"new", 5)
        assert stream_from(server, uuid, 10) == (ROLLBACK, 5)
        assert stream_from(server, uuid, 5)[0] == OK
        second = uuid_of(server)
    with node(data) as server:
        assert (uuid_of(server), log_of(server)) == (second, log), "once is enough"


@pytest.mark.acceptance("C08")
def test_a_copy_is_another_bucket_and_a_moved_directory_the_same(tmp_path: Path) -> None:
    data, copy, moved = (tmp_path / name for name in ("data", "copy", "moved"))
    with node(data) as server:
        write(server, b"k", 3)
        uuid, log = uuid_of(server), log_of(server)
    subprocess.run(["cp", "-a", data, copy], check=True)
    subprocess.run(["mv", data, moved], check=True)
    with node(moved) as one, node(copy) as other:
        assert (uuid_of(one), log_of(one)) == (uuid, log)
        assert "new_history" not in one.log()
        assert uuid_of(other) != uuid
        assert log_of(other)[1:] == log
        assert stats(other.memcached)["curr_items"] == "3"


def test_an_operator_can_begin_a_new_history(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with node(data) as server:
        write(server, b"k", 3)
        uuid, log = uuid_of(server), log_of(server)
        command = [*server.command[:3], "data", "new-history", str(data)]
        busy = subprocess.run(command, capture_output=True, text=True, check=False)
        assert busy.returncode == 2
        assert "in use by another uprmc process" in busy.stderr
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    with node(data) as server:
        assert uuid_of(server) != uuid
        assert uuid_of(server) in done.stdout
        assert log_of(server)[1:] == log


def test_a_directory_keeps_its_rule_for_conflicts(tmp_path: Path) -> None:
    data = tmp_path / "data"
    by_time = ("--set", "engine.conflict_resolution=timestamp")
    with node(data, *by_time) as server:
        assert stats(server.memcached)["ep_conflict_resolution_type"] == "lww"
        command = server.command
    with node(data) as server:
        assert stats(server.memcached)["ep_conflict_resolution_type"] == "lww", "as stored"
    other = [word.replace("=timestamp", "=revision") for word in command]
    refused = subprocess.run(other, capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert refused.stderr.count("\n") == 1
    assert "engine.conflict_resolution=timestamp and revision is asked for" in refused.stderr
