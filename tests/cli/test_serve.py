"""``uprmc serve`` as an operator sees it: the ready line, signals, and what a restart finds."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

import uprmc as package
from interop.server_process import ANY_PORT, ServerProcess, serve_command, start_uprmc
from interop.wire import GET, OK, SET, Wire, frame, store
from tests.cli.support import uprmc

READY = re.compile(
    r"uprmc ready memcached=127\.0\.0\.1:\d+ upr=127\.0\.0\.1:\d+ http=(127\.0\.0\.1:\d+|off)"
    r" pid=\d+"
)


def failover_entries(server: ServerProcess, vbucket: int = 0) -> int:
    """Ask for the length of a failover log by the command line."""
    ended = uprmc("stats", "failovers", vbucket, "--node", server.upr)
    assert ended.code == 0, ended
    found = dict(line.split() for line in ended.out.splitlines())
    return int(found[f"vb_{vbucket}:num_entries"])


def raw(data: Path, *options: str) -> ServerProcess:
    """Start a server and leave its standard output alone."""
    command = [*serve_command(), "--data", str(data), "--memcached", ANY_PORT, "--upr", ANY_PORT]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("UPRMC_")}
    return ServerProcess("uprmc", [*command, *options], environment)


@pytest.mark.parametrize("http", [ANY_PORT, "off"])
def test_the_ready_line_is_all_that_is_on_standard_output(tmp_path: Path, http: str) -> None:
    with raw(tmp_path, "--http", http) as server:
        matched = READY.fullmatch(server._wait_for_line(60))
        assert matched is not None
        assert (matched[1] == "off") is (http == "off")
        assert str(server.pid) in matched[0]
        server.stop()  # fails if anything else was written


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.acceptance("D11")
def test_a_signal_stops_in_order_and_a_restart_adds_no_failover_entry(
    tmp_path: Path, number: signal.Signals
) -> None:
    with start_uprmc(tmp_path, "--vbuckets", "4") as server:
        with Wire(server.memcached) as wire:
            assert wire.ask(store(SET, b"k", b"v")).status == OK
        server._process.send_signal(number)
        assert server._process.wait(60) == 0
        assert server._rest_of_stdout() == b""
    with start_uprmc(tmp_path) as server:
        assert failover_entries(server) == 1
        with Wire(server.memcached) as wire:
            assert wire.ask(frame(GET, b"k")).value == b"v"
        server.stop()


@pytest.mark.acceptance("D11")
def test_each_kill_adds_exactly_one_failover_entry(tmp_path: Path) -> None:
    with start_uprmc(tmp_path, "--vbuckets", "4") as server:
        server.kill()
    for entries in (2, 3):
        with start_uprmc(tmp_path) as server:
            assert [failover_entries(server, number) for number in (0, 3)] == [entries] * 2
            server.kill()
    with start_uprmc(tmp_path) as server:
        assert failover_entries(server) == 4
        server.stop()
    with start_uprmc(tmp_path) as server:
        assert failover_entries(server) == 4
        server.stop()


def test_the_version_of_the_program_is_the_packages() -> None:
    ended = uprmc("--version")
    assert (ended.code, ended.out, ended.err) == (0, f"uprmc {package.__version__}\n", "")
