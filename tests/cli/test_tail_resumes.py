"""``uprmc tail`` goes on over restarts and failovers; with ``--once`` it ends there."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from interop.server_process import Address, ServerProcess, start_uprmc
from interop.wire import OK, SET, Wire, store
from tests.cli.here import Here, runner
from tests.cli.tailing import Tailing

VBUCKETS = 4


@pytest.fixture(name="here")
def _here(capsys: pytest.CaptureFixture[str]) -> Here:
    return runner(capsys)


@contextmanager
def node(data: Path, *options: object) -> Iterator[ServerProcess]:
    with start_uprmc(data, "--vbuckets", str(VBUCKETS), *map(str, options)) as server:
        yield server


def write(server: ServerProcess, key: bytes, vbucket: int = 0) -> None:
    assert server.upr is not None
    with Wire(server.upr) as wire:
        assert wire.ask(store(SET, key, b"v", vbucket=vbucket)).status == OK


def keys_until(tailing: Tailing, last: str) -> list[str]:
    """Read lines until a key comes; returns what they are of, a rollback as ``<seqno``."""
    found: list[str] = []
    while not found or found[-1] != last:
        row = json.loads(tailing.line())
        found.append(f"<{row['seqno']}" if row["op"] == "rollback" else row["key"])
    return found


def follows(tailing: Tailing, server: ServerProcess, vbucket: int = 0) -> None:
    """Wait until changes of a vBucket are printed."""
    tailing.follows(lambda number: write(server, b"first-%d" % number, vbucket))


def test_it_goes_on_when_its_node_was_killed_and_started_again(tmp_path: Path, here: Here) -> None:
    with node(tmp_path) as server, Tailing(server, "--json") as tailing:
        follows(tailing, server)
        write(server, b"before")
        assert "before" in keys_until(tailing, "before")
        assert here("observe", "before", "--vbuckets", 0, "--wait", "--node", server.upr).code == 0
        place = server.upr
        server.kill()
        with node(tmp_path, "--upr", place) as again:
            write(again, b"after")
            assert keys_until(tailing, "after") == ["after"]
            ended = tailing.interrupt()
            again.stop()
    assert ended.code == 0
    first, *others = ended.err.splitlines()
    assert first.startswith(f"uprmc: the connection to the node at {place} ended: ")
    assert "TLS" not in first
    assert all(line.startswith(f"uprmc: no node answers at {place}: ") for line in others)


def test_what_a_crash_has_lost_is_a_rollback_and_what_comes_then_is_printed(tmp_path: Path) -> None:
    rests = ["--set", "flush.min_delay_s=60", "--set", "flush.max_delay_s=60"]
    with node(tmp_path, *rests) as server, Tailing(server, "--json") as tailing:
        follows(tailing, server)
        write(server, b"lost")
        keys_until(tailing, "lost")
        place = server.upr
        server.kill()
        with node(tmp_path, "--upr", place) as again:
            write(again, b"after")
            assert keys_until(tailing, "after") == ["<0", "after"]
            again.stop()


@pytest.mark.parametrize("named", ["both", "replica"])
def test_it_goes_on_at_a_failover(tmp_path: Path, here: Here, named: str) -> None:
    with node(tmp_path / "a") as a, node(tmp_path / "b") as b:
        assert here("replicate", "--source", a.upr, "--wait", "--node", b.upr).code == 0
        options = ["--node", a.upr] if named == "both" else []
        with Tailing(b, "--json", *options) as tailing:
            follows(tailing, a)
            write(a, b"before")
            keys_until(tailing, "before")
            assert here("replicate", "--source", a.upr, "--wait", "--node", b.upr).code == 0
            a.kill()
            assert here("failover", "--node", b.upr).code == 0
            write(b, b"after")
            assert keys_until(tailing, "after") == ["after"]
        b.stop()


def test_what_changes_before_it_is_connected_again_is_printed(tmp_path: Path, here: Here) -> None:
    """Also where nothing was printed before: "now" is when it began, not when it came back."""
    with node(tmp_path / "a") as a, node(tmp_path / "b") as b:
        write(a, b"old", vbucket=1)
        assert here("replicate", "--source", a.upr, "--wait", "--node", b.upr).code == 0
        with Tailing(b, "--json", "--node", a.upr) as tailing:
            follows(tailing, a, vbucket=VBUCKETS - 1)
            assert here("replicate", "--source", a.upr, "--wait", "--node", b.upr).code == 0
            tailing.process.send_signal(signal.SIGSTOP)
            a.kill()
            assert here("failover", "--node", b.upr).code == 0
            write(b, b"new", vbucket=1)
            tailing.process.send_signal(signal.SIGCONT)
            assert "new" in keys_until(tailing, "new")
        b.stop()


def test_a_vbucket_that_comes_back_is_printed_again(tmp_path: Path, here: Here) -> None:
    with node(tmp_path) as server:
        with Tailing(server, "--json", "--vbuckets", "0-1") as tailing:
            follows(tailing, server, vbucket=1)
            assert here("vbucket", "set", 1, "dead", "--node", server.upr).code == 0
            assert here("vbucket", "set", 1, "active", "--node", server.upr).code == 0
            write(server, b"again", vbucket=1)
            assert "again" in keys_until(tailing, "again")
        server.stop()


# --- once ---------------------------------------------------------------------------------------


def test_once_ends_with_its_node(tmp_path: Path) -> None:
    with node(tmp_path) as server, Tailing(server, "--once") as tailing:
        follows(tailing, server)
        place = server.upr
        server.kill()
        ended = tailing.end()
    assert ended.code == 1
    (line,) = ended.err.splitlines()
    assert line.startswith(f"uprmc: the connection to the node at {place} ended: ")


def test_once_ends_with_a_stream(tmp_path: Path, here: Here) -> None:
    with node(tmp_path) as server:
        with Tailing(server, "--once", "--vbuckets", 0) as tailing:
            follows(tailing, server)
            assert here("vbucket", "set", 0, "dead", "--node", server.upr).code == 0
            ended = tailing.end()
        assert ended.code == 1
        assert ended.err.endswith("the stream of vBucket 0 ended with reason 2\n")
        server.stop()


@pytest.mark.parametrize("options", [["--once"], ["--until-now"]])
def test_a_vbucket_that_is_nowhere_is_an_error_where_nothing_is_waited_for(
    tmp_path: Path, here: Here, options: list[str]
) -> None:
    with node(tmp_path) as server:
        assert here("vbucket", "set", 3, "dead", "--node", server.upr).code == 0
        found = ["tail", *options, "--timeout", "200ms", "--node", server.upr, "--vbuckets"]
        ended = here(*found, 3)
        assert ended.code == 1
        assert "vBucket 3" in ended.line()
        ended = here(*found, 9)
        assert (ended.code, ended.line()) == (
            1,
            "vbuckets: there is no vBucket 9: say 0 to 3",
        )
        server.stop()


def test_a_vbucket_that_is_nowhere_is_told_and_waited_for(tmp_path: Path, here: Here) -> None:
    with node(tmp_path) as server:
        assert here("vbucket", "set", 3, "dead", "--node", server.upr).code == 0
        with Tailing(server, "--vbuckets", "0,3", "--timeout", "200ms") as tailing:
            follows(tailing, server)
            stderr = tailing.process.stderr
            assert stderr is not None
            said = stderr.readline()
        server.stop()
    assert said == b"uprmc: vBucket 3: on none of the nodes yet; waiting until it is\n"


def test_nobody_at_the_first_attempt_is_an_error(here: Here) -> None:
    place = Address("127.0.0.1", 1)
    ended = here("tail", "--node", place, "--timeout", "300ms")
    assert ended.code == 1
    assert f"no node answers at {place}" in ended.err
