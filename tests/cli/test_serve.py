"""``uprmc serve`` as an operator sees it: the ready line, signals, and what a restart finds."""

from __future__ import annotations

import os
import re
import signal
import socket
import ssl
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

import uprmc as package
from interop.server_process import ANY_PORT, Address, ServerProcess, serve_command, start_uprmc
from interop.waiting import wait_until
from interop.wire import GET, OK, SET, Wire, frame, store
from tests.cli.support import uprmc
from tests.server.certificates import make_certificate
from tests.system.support import upr
from uprmc.core.form import FORM

READY = re.compile(
    r"uprmc ready memcached=127\.0\.0\.1:\d+ upr=127\.0\.0\.1:\d+ http=(127\.0\.0\.1:\d+|off)"
    r" views=(127\.0\.0\.1:\d+|off) pid=\d+"
)


def failover_entries(server: ServerProcess, vbucket: int = 0) -> int:
    """Ask for the length of a failover log by the command line."""
    ended = uprmc("stats", "failovers", vbucket, "--node", server.upr)
    assert ended.code == 0, ended
    found = dict(line.split() for line in ended.out.splitlines())
    return int(found[f"vb_{vbucket}:num_entries"])


def raw(data: Path, *options: str, before: Sequence[str] = ()) -> ServerProcess:
    """Start a process anew, by another program perhaps, and leave its standard output alone."""
    command = [*serve_command(), "--data", str(data), "--memcached", ANY_PORT, "--upr", ANY_PORT]
    if "--views" not in options:
        command += ["--views", "off"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("UPRMC_")}
    words = [*before, *command, *options]
    return ServerProcess("uprmc", words, environment, subprocess.Popen)


def encrypted(place: Address) -> ssl.SSLSocket:
    """Connect by TLS, whatever certificate is shown."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context.wrap_socket(place.connect())


def shown(place: Address) -> str:
    """Return the certificate that a new connection is shown, as PEM."""
    with encrypted(place) as connection:
        return ssl.DER_cert_to_PEM_cert(connection.getpeercert(True) or b"")


@pytest.mark.parametrize("http", [ANY_PORT, "off"])
def test_the_ready_line_is_all_that_is_on_standard_output(tmp_path: Path, http: str) -> None:
    with raw(tmp_path, "--http", http, "--views", http) as server:
        matched = READY.fullmatch(server._wait_for_line(60))
        assert matched is not None
        assert (matched[1] == "off") is (matched[2] == "off") is (http == "off")
        assert str(server.pid) in matched[0]
        server.stop()  # fails if anything else was written


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
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


def test_signals_that_come_twice_stop_it_once(tmp_path: Path) -> None:
    with start_uprmc(tmp_path, "--vbuckets", "4") as server:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGTERM):
            server._process.send_signal(number)
        assert server._process.wait(60) == 0
        assert "error" not in server.log()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_server_of_a_background_shell_stops_in_order(
    tmp_path: Path, number: signal.Signals
) -> None:
    """Such a shell, and ``nohup``, start processes with signals ignored."""
    ignoring = ["sh", "-c", 'trap "" INT HUP USR1; exec "$@"', "sh"]
    with raw(tmp_path, "--http", "off", before=ignoring) as server:
        server._wait_for_line(60)
        server._process.send_signal(number)
        assert server._process.wait(60) == 0


def test_sighup_reloads_the_level_of_the_log(tmp_path: Path) -> None:
    config = tmp_path / "uprmc.toml"
    config.write_text('[log]\nlevel = "warn"\n')
    with start_uprmc(tmp_path / "data", "--config", str(config)) as server:
        assert "warmed_up" not in server.log()
        config.write_text('[log]\nlevel = "info"\n')
        server._process.send_signal(signal.SIGHUP)
        wait_until(lambda: "node.reloaded" in server.log(), "the log line")
        config.write_text('[log]\nlevel = "loud"\n')
        server._process.send_signal(signal.SIGHUP)
        wait_until(lambda: "node.reload_failed" in server.log(), "the log line")
        assert "log.level" in server.log()
        config.write_text("torn [")
        server._process.send_signal(signal.SIGHUP)
        wait_until(lambda: server.log().count("node.reload_failed") == 2, "the log line")
        server.stop()


def test_sighup_reloads_the_certificate_for_connections_to_come(tmp_path: Path) -> None:
    (tmp_path / "next").mkdir()
    certificate, key = make_certificate(tmp_path)
    pair = ("--tls-cert", certificate, "--tls-key", key)
    with start_uprmc(tmp_path / "data", *pair) as server:
        places = (server.memcached, upr(server), server.http, server.views)
        first = Path(certificate).read_text()
        assert {shown(place) for place in places} == {first}
        with encrypted(server.memcached) as connection:
            for made, kept in zip(make_certificate(tmp_path / "next"), pair[1::2], strict=True):
                os.replace(made, kept)
            second = Path(certificate).read_text()
            server._process.send_signal(signal.SIGHUP)
            wait_until(
                lambda: {shown(place) for place in places} == {second}, "the new certificate"
            )
            connection.sendall(b"version\r\n")
            assert connection.recv(100).startswith(b"VERSION ")
        Path(key).write_text("torn")
        server._process.send_signal(signal.SIGHUP)
        wait_until(lambda: "node.reload_failed" in server.log(), "the log line")
        assert shown(server.memcached) == second
        server.stop()


@pytest.mark.acceptance("D11")
def test_each_kill_adds_exactly_one_failover_entry(tmp_path: Path) -> None:
    with start_uprmc(tmp_path, "--vbuckets", "4") as server:
        server.kill()
    with start_uprmc(tmp_path) as server:
        assert [failover_entries(server, number) for number in (0, 3)] == [2, 2]
        server.kill()
    for _ in range(2):  # a stop adds none
        with start_uprmc(tmp_path) as server:
            assert failover_entries(server) == 3
            server.stop()


def test_the_version_of_the_program_is_the_packages() -> None:
    ended = uprmc("--version")
    assert (ended.code, ended.out, ended.err) == (
        0,
        f"uprmc {package.__version__} (core: {FORM})\n",
        "",
    )


def test_a_service_manager_is_told_the_life_of_a_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(30)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))

        def told_until(word: str) -> list[str]:
            lines: list[str] = []
            while word not in lines:
                lines += manager.recv(4_096).decode().splitlines()
            return lines

        with start_uprmc(tmp_path / "data", "--vbuckets", "4") as server:
            assert told_until("READY=1")[0].startswith("STATUS=Warming up: initialize, 0 of")
            server._process.send_signal(signal.SIGHUP)
            assert "RELOADING=1" in told_until("READY=1")
            server.stop()
            told_until("STOPPING=1")
