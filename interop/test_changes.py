"""``/changes`` as a consumer: curl reads it, and a token continues after a kill of the node."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from pymemcache.client.base import Client

from interop.server_process import ServerProcess, start_uprmc
from interop.upr_wire import DEAD, STOP_PERSISTENCE, UprWire
from interop.waiting import wait_until
from interop.wire import frame

_LIMIT_S = 60


def lines(server: ServerProcess, query: str, *options: str) -> list[dict[str, Any]]:
    """Read an answer that ends by itself; returns its lines."""
    curl = shutil.which("curl")
    if curl is None:
        pytest.skip("no curl: apt-get install curl")
    command = [curl, "-sSN", *options, f"http://{server.http}/changes?until=now&{query}"]
    done = subprocess.run(command, capture_output=True, timeout=_LIMIT_S, check=True)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith(b"{")]


@contextmanager
def raw_reader(server: ServerProcess, query: str) -> Iterator[socket.socket]:
    """Ask for changes; the test reads the answer, or does not."""
    host, _, port = str(server.http).rpartition(":")
    with socket.create_connection((host, int(port)), timeout=_LIMIT_S) as reader:
        reader.sendall(f"GET /changes?{query} HTTP/1.0\r\n\r\n".encode())
        yield reader


def keys(found: list[dict[str, Any]]) -> list[str]:
    """Return the keys of documents that were set."""
    return [line["key"] for line in found if line["op"] == "set"]


def test_curl_reads_everything_and_continues_after_a_kill(tmp_path: Path) -> None:
    with start_uprmc(tmp_path, "--vbuckets", "4", "--sync") as server:
        with closing(Client(str(server.memcached))) as client:
            client.set_many({f"a{number}": "x" * 100 for number in range(50)})
            client.set("b", "1")
            client.delete("a0")
        found = lines(server, "since=0")
        assert sorted(keys(found)) == sorted([*(f"a{number}" for number in range(1, 50)), "b"])
        assert [line["key"] for line in found if line["op"] == "delete"] == ["a0"]
        assert found[-1]["op"] == "position"
        assert keys(lines(server, "since=0&prefix=b")) == ["b"]
        (bare,) = (each for each in lines(server, "since=0&prefix=b&values=no") if "key" in each)
        assert bare["value"] is None
        token = found[-1]["token"]
        assert keys(lines(server, f"since={token}")) == []
        server.stop()
    with start_uprmc(tmp_path, "--vbuckets", "4", "--sync") as server:
        with closing(Client(str(server.memcached))) as client:
            client.set("c", "2")
        assert keys(lines(server, f"since={token}")) == ["c"]
        server.kill()
    with start_uprmc(tmp_path, "--vbuckets", "4", "--sync") as server:
        again = lines(server, f"since={token}")
        assert set(keys(again)) <= {"c"}
        assert not [line for line in again if line["op"] == "rollback"]
        server.stop()


def test_a_reader_of_what_is_new_has_a_position_before_the_first_change(tmp_path: Path) -> None:
    """One that is lost before that comes back with it, and misses nothing."""
    with start_uprmc(tmp_path, "--vbuckets", "4") as server:
        with closing(Client(str(server.memcached))) as client:
            client.set("before", "x")
            (now,) = cut_after_a_token(server, "since=now")
            client.set_many({f"gap{number}": "x" for number in range(20)})
        found = lines(server, f"since={now['token']}")
        assert sorted(keys(found)) == sorted(f"gap{number}" for number in range(20))
        server.stop()


def test_an_answer_up_to_now_is_all_or_says_what_is_missing(tmp_path: Path) -> None:
    with start_uprmc(tmp_path, "--vbuckets", "4") as server:
        with UprWire(server.upr) as wire:
            wire.set_state(2, DEAD)
        *_, last = lines(server, "since=0")
        assert (last["op"], last["reason"][:10]) == ("error", "vBucket 2:")
        assert [each["op"] for each in lines(server, "since=0&vbuckets=0-1")] == ["position"]
        server.stop()


def cut_after_a_token(server: ServerProcess, query: str) -> list[dict[str, Any]]:
    """Read up to the first token, and hang up; returns the lines."""
    with raw_reader(server, query) as reader, reader.makefile("rb") as answer:
        found = []
        for line in answer:
            if line.startswith(b"{"):
                found.append(json.loads(line))
                if found[-1]["op"] == "position":
                    return found
    raise AssertionError("no token")


def test_a_reader_that_is_cut_inside_of_a_snapshot_goes_on_behind_its_last_token(
    tmp_path: Path,
) -> None:
    with start_uprmc(tmp_path, "--vbuckets", "1") as server:
        with closing(Client(str(server.memcached))) as client:
            client.set_many({f"k{number}": "x" * 50 for number in range(5_000)})
        first = cut_after_a_token(server, "since=0")
        assert not [line for line in first if line["op"] == "snapshot-end"]
        with closing(Client(str(server.memcached))) as client:
            client.set_many({"k0": "again", "k4999": "again"})
        rest = lines(server, f"since={first[-1]['token']}")
        assert [*keys(first), *keys(rest)] == [*(f"k{n}" for n in range(4_999)), "k0", "k4999"]
        assert (rest[0]["op"], rest[-2]["op"]) == ("snapshot-begin", "snapshot-end")
        server.stop()


def test_a_token_of_a_lost_branch_is_sent_back_to_what_is_left(tmp_path: Path) -> None:
    with start_uprmc(tmp_path, "--vbuckets", "1", "--sync") as server:
        assert server.upr is not None
        with UprWire(server.upr) as kv:
            kv.put_many(0, [(b"a", b"1"), (b"b", b"2")])
            kv.wait_until_persisted(0, 2)
            kv.command(frame(STOP_PERSISTENCE))
            kv.put_many(0, [(b"lost", b"3"), (b"too", b"4")])
        found = lines(server, "since=0")
        assert keys(found) == ["a", "b", "lost", "too"]
        server.kill()
    with start_uprmc(tmp_path, "--vbuckets", "1", "--sync") as server:
        with closing(Client(str(server.memcached))) as client:
            client.set("new", "5")
        again = lines(server, f"since={found[-1]['token']}")
        assert again[0] == {"op": "rollback", "vbucket": 0, "seqno": 2}
        assert keys(again) == ["new"]
        server.stop()


def test_a_reader_that_does_not_read_is_held_back_and_counted(tmp_path: Path) -> None:
    limit = ("--set", "http.change_readers=1")
    with (
        start_uprmc(tmp_path, "--vbuckets", "4", *limit) as server,
        closing(Client(str(server.memcached))) as client,
    ):
        for number in range(40):
            client.set(f"k{number}", "x" * 500_000)

        def held() -> list[int]:
            """Return the bytes that wait for the reader: of its stream, of its answer."""
            found = client.stats("uprmc")
            return [int(found[name]) for name in (b"conn_received_bytes", b"conn_unsent_bytes")]

        with raw_reader(server, "since=0"):
            wait_until(lambda: all(held()))
            assert sum(held()) < 4_000_000
            (refused,) = lines(server, "since=0")
            assert refused["error"] == "too many readers; try again later"
        wait_until(lambda: held() == [0, 0])
        server.stop()


def test_what_is_asked_wrongly_is_said_in_one_line(tmp_path: Path) -> None:
    with start_uprmc(tmp_path, "--vbuckets", "4") as server:
        for query in ("since=nonsense", "since=0&vbuckets=x", "since=0&values=maybe"):
            (line,) = lines(server, query)
            assert line["error"], query
        server.stop()
