"""Every verb reaches a node over TLS, unix sockets and IPv6, and says what it has met instead."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from interop.server_process import ServerProcess, start_uprmc
from tests.cli.here import Here, runner
from tests.cli.support import uprmc
from tests.cli.tap_support import start_adapter
from tests.login.files import users_file
from tests.server.certificates import make_certificate
from uprmc import __version__

VBUCKETS = 4

#: Verbs that ask a node, with what they need; none changes what the next one meets.
VERBS = [
    ["stats", "vbucket"],
    ["vbucket", "list"],
    ["vbucket", "set", "3", "active"],
    ["failover-log", "0"],
    ["observe", "nothing", "--vbuckets", "0"],
    ["replicate", "--stop", "--vbuckets", "0"],
    ["tail", "--until-now"],
]
NAMES = [" ".join(arguments) for arguments in VERBS]


@dataclass(frozen=True)
class Secured:
    """A node that speaks TLS, and the file to trust."""

    server: ServerProcess
    ca_file: str


@pytest.fixture(name="here")
def _here(capsys: pytest.CaptureFixture[str]) -> Here:
    return runner(capsys)


@pytest.fixture(scope="module", name="plain")
def _plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with start_uprmc(tmp_path_factory.mktemp("plain"), "--vbuckets", str(VBUCKETS)) as server:
        yield server
        server.stop()


@pytest.fixture(scope="module", name="secured")
def _secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    directory = tmp_path_factory.mktemp("secured")
    certificate, key = make_certificate(directory)
    options = ["--vbuckets", str(VBUCKETS), "--tls-cert", certificate, "--tls-key", key]
    with start_uprmc(directory / "data", *options) as server:
        yield Secured(server, certificate)
        server.stop()


@dataclass(frozen=True)
class Guarded:
    """A node with users, and a file with a wrong password."""

    server: ServerProcess
    wrong_password_file: str


# --- TLS ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", VERBS, ids=NAMES)
def test_every_verb_speaks_tls(secured: Secured, here: Here, verb: list[str]) -> None:
    ended = here(*verb, "--node", secured.server.upr, "--tls-ca", secured.ca_file)
    assert (ended.code, ended.err) == (0, "")


def test_spark_verbs_have_the_same_options(secured: Secured, tmp_path: Path) -> None:
    environment = {"UPRMC_NODE": str(secured.server.upr), "UPRMC_TLS_CA": secured.ca_file}
    command = ["backup", tmp_path / "backup", "--engine", "local", "--progress", "none"]
    assert uprmc(*command, environment=environment).code == 0


def test_a_ping_names_listener_versions_and_cipher(
    plain: ServerProcess, secured: Secured, here: Here
) -> None:
    options = ["-c", "1", "--node", secured.server.upr, "--tls-ca", secured.ca_file]
    first = here("ping", *options).out.splitlines()[0]
    words = f"{secured.server.upr} is the upr listener of uprmc {__version__} (as memcached 1."
    assert first.startswith(words)
    assert ", TLSv1.3 with TLS_" in first
    assert json.loads(here("ping", *options, "--json").out)["tls_cipher"].startswith("TLS_")
    first = here("ping", "-c", 1, "--node", plain.memcached).out.splitlines()[0]
    assert f"{plain.memcached} is the memcached listener of uprmc" in first


def test_a_failover_and_a_takeover_go_over_tls(tmp_path: Path, here: Here) -> None:
    certificate, key = make_certificate(tmp_path)
    tls = ["--tls-cert", certificate, "--tls-key", key, "--set", f"upr.dial_ca={certificate}"]
    ca = ["--tls-ca", certificate]
    with (
        start_uprmc(tmp_path / "a", "--vbuckets", str(VBUCKETS), *tls) as a,
        start_uprmc(tmp_path / "b", "--vbuckets", str(VBUCKETS), *tls) as b,
    ):
        wait = ["replicate", "--source", a.upr, "--wait"]
        assert here(*wait, "--node", b.upr, *ca).code == 0
        moved = here("takeover", "--vbuckets", "0", "--to", b.upr, "--node", a.upr, *ca)
        assert (moved.code, moved.err) == (0, "")
        promoted = here("failover", "--vbuckets", "1-3", "--node", b.upr, *ca)
        assert promoted.out == f"vBuckets 1-3: active at {b.upr}\n"


def test_the_environment_names_the_node_and_whom_to_trust(secured: Secured, tmp_path: Path) -> None:
    environment = {"UPRMC_NODE": str(secured.server.upr), "UPRMC_TLS_CA": secured.ca_file}
    assert uprmc("vbucket", "list", environment=environment).code == 0
    refused = uprmc("serve", "--data", tmp_path, "--vbuckets", "3", environment=environment)
    assert "is not a power of two" in refused.refused()  # and not one of these variables


def test_without_tls_a_tls_listener_is_recognised(secured: Secured, here: Here) -> None:
    place = secured.server.upr
    asked = "say --tls, or --tls-ca FILE with the authority of its certificate"
    words = f"the listener at {place} speaks TLS: {asked}"
    for verb in (["stats"], ["get", "k"], ["tail", "--until-now"]):
        assert here(*verb, "--node", place).line() == words


@pytest.fixture(scope="module", name="guarded")
def _guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    directory = tmp_path_factory.mktemp("guarded")
    users = users_file(directory, bob="read")
    wrong = directory / "wrong.password"
    wrong.write_text("nonsense\n")
    options = ["--vbuckets", str(VBUCKETS), "--set", f"server.users={users}"]
    with start_uprmc(directory / "data", *options) as server:
        yield Guarded(server, str(wrong))
        server.stop()


#: A verb of each way in which the command line reaches a node.
_ASKING = (
    *("get k", "keys", "ping", "status", "stats", "bench -n 1", "takeover --to h:1", "xdcr list"),
    *("index query d/v", "flush --yes", "tail --until-now", "watch k", "load rows.jsonl --key k"),
)


@pytest.mark.parametrize("words", _ASKING)
def test_a_refusal_names_the_options_that_are_missing(
    plain: ServerProcess,
    secured: Secured,
    guarded: Guarded,
    here: Here,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").write_text('{"k": "a", "value": "b"}\n')
    login = ("--user", "bob", "--password-file", guarded.wrong_password_file)
    trust = ": self-signed certificate; say --tls-ca FILE with the authority of its certificate"
    for place, options, said in (
        (secured.server.upr, (), "speaks TLS: say --tls, or --tls-ca FILE with the authority"),
        (secured.server.upr, ("--tls",), trust),
        (plain.upr, ("--tls",), "does not speak TLS: leave out --tls, --tls-ca and "),
        (guarded.server.upr, (), "serves users only: say --user NAME and --password-file FILE"),
        (guarded.server.upr, login, "wrong name or password; see --user and --password-file"),
    ):
        if options == login and words not in ("get k", "index query d/v"):
            continue  # the node lets those wait who guess
        ended = here(*words.split(), "--node", place, *options)
        assert ended.code == (2 if words == "status" else 1)
        assert said in ended.err.splitlines()[-1], (place, options)


def test_tls_to_a_plain_listener_and_an_unknown_authority_are_told(
    plain: ServerProcess, secured: Secured, here: Here
) -> None:
    ended = here("stats", "--node", plain.upr, "--tls", "--timeout", "2s")
    assert ended.code == 1
    assert ended.line() == (
        f"the listener at {plain.upr} does not speak TLS: leave out --tls, --tls-ca and "
        "--no-tls-verify, also of UPRMC_* and client.toml"
    )
    ended = here("stats", "--node", secured.server.upr, "--tls")
    assert "certificate" in ended.line()
    ended = here("stats", "vbucket", "--node", secured.server.upr, "--no-tls-verify")
    assert ended.code == 0


# --- places -------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", VERBS, ids=NAMES)
def test_every_verb_takes_a_unix_socket(tmp_path: Path, here: Here, verb: list[str]) -> None:
    place = f"unix:{tmp_path}/upr.sock"
    with start_uprmc(tmp_path / "data", "--vbuckets", str(VBUCKETS), "--upr", place) as server:
        ended = here(*verb, "--node", place)
        assert (ended.code, ended.err) == (0, "")
        server.stop()


def test_ipv6_is_written_with_brackets(tmp_path: Path, here: Here) -> None:
    if not socket.has_ipv6:
        pytest.skip("this machine has no IPv6")
    with start_uprmc(tmp_path, "--vbuckets", str(VBUCKETS), "--upr", "[::1]:0") as server:
        assert server.upr is not None
        place = f"[::1]:{server.upr.port}"
        assert here("stats", "vbucket", "--node", place).code == 0
        assert here("tail", "--until-now", "--node", place).code == 0
        refused = here("stats", "--node", f"::1:{server.upr.port}").refused()
        assert refused.endswith(f"say an IPv6 address in brackets: {place}")
        server.stop()


def test_a_verb_of_one_node_refuses_several(here: Here) -> None:
    assert "asks one node" in here("failover", "--node", "a:1,b:2").refused()


# --- what else answers, or does not -------------------------------------------------------------


@pytest.mark.parametrize("verb", VERBS, ids=NAMES)
def test_at_the_http_listener_every_verb_names_the_upr_listener(
    plain: ServerProcess, here: Here, verb: list[str]
) -> None:
    began = time.monotonic()
    ended = here(*verb, "--node", plain.http)
    assert ended.code == 1
    assert ended.line() == (
        f"an HTTP server answers at {plain.http}, not an upr listener; "
        f"this node's upr listener is {plain.upr}"
    )
    assert time.monotonic() - began < 4


def test_spark_names_the_upr_listener_as_well(plain: ServerProcess, tmp_path: Path) -> None:
    command = ["backup", tmp_path / "backup", "--engine", "local", "--progress", "none"]
    ended = uprmc(*command, "--servers", plain.http)
    assert ended.code == 1
    assert f"this node's upr listener is {plain.upr}" in ended.err


@contextmanager
def _saying(line: bytes) -> Iterator[str]:
    """Listen, answer each connection's first bytes with a line, and hang up; yields the place."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection:
                        connection.recv(4_096)
                        connection.sendall(line)

        thread = threading.Thread(target=serve)
        thread.start()
        host, port = listener.getsockname()
        try:
            yield f"{host}:{port}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.mark.parametrize(
    ("line", "name"),
    [
        (b"-ERR unknown command\r\n", "a Redis server"),
        (b"ERROR\r\n", "a memcached server"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "an SSH server"),
    ],
)
@pytest.mark.parametrize(
    "verb", [["stats"], ["tail", "--until-now"], ["backup", "BACKUP", "--engine", "local"]]
)
def test_servers_that_are_no_nodes_are_named(
    here: Here, tmp_path: Path, line: bytes, name: str, verb: list[str]
) -> None:
    words = [str(tmp_path / "backup") if word == "BACKUP" else word for word in verb]
    with _saying(line) as place:
        ended = here(*words, "--node", place, "--timeout", "2s")
        assert ended.code == 1
        said = f"{name} answers at {place}, not a node: name the node's upr listener"
        assert ended.err.rstrip().endswith(said), ended


def test_a_tap_adapter_names_its_upstream(plain: ServerProcess, here: Here) -> None:
    adapter = start_adapter(plain.upr)
    for verb in (["vbucket", "list"], ["tail", "--until-now"]):
        assert here(*verb, "--node", adapter.memcached).line() == (
            f"a TAP adapter answers at {adapter.memcached}, which speaks no UPR: name its upstream "
            f"{plain.upr}"
        )
    adapter.stop()


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A node whose process does not go on."""
    data = tmp_path_factory.mktemp("stopped")
    with start_uprmc(data, "--vbuckets", str(VBUCKETS)) as server:
        os.kill(server.pid, signal.SIGSTOP)
        yield server
        os.kill(server.pid, signal.SIGCONT)
        server.stop()


@pytest.mark.parametrize("verb", VERBS, ids=NAMES)
def test_a_stopped_node_keeps_no_verb_waiting(
    stopped: ServerProcess, here: Here, verb: list[str]
) -> None:
    began = time.monotonic()
    options = ["--node-timeout" if verb[0] == "replicate" else "--timeout", "500ms"]
    if verb[0] == "observe":
        options = []  # what is usual
    ended = here(*verb, "--node", stopped.upr, *options)
    assert ended.code == 1
    assert str(stopped.upr) in ended.line()
    assert time.monotonic() - began < 15


def test_a_time_without_a_unit_of_ours_is_refused(here: Here) -> None:
    assert "'soon' is not a time such as" in here("stats", "--timeout", "soon").refused()
