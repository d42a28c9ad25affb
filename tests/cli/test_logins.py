"""Who asks a node with users logs in first: verbs, replicas, links, TAP adapters, over TLS and not.

Hostile servers get neither the password nor more than a little of our time.
"""

from __future__ import annotations

import base64
import re
import signal
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from interop.server_process import Address, ServerProcess, start_uprmc
from interop.tap_wire import connect as tap_connect
from interop.waiting import wait_until
from interop.wire import Wire
from interop.wire import frame as request
from tests.cli.fake_node import FakeNode
from tests.cli.here import Here, runner
from tests.cli.tap_support import start_adapter
from tests.codec.frames import Frame
from tests.index.running import BY_CITY, index_server
from tests.login.files import password_file, users_file
from tests.server.certificates import make_certificate
from uprmc.client import UprClient, changes
from uprmc.client.errors import ClientError
from uprmc.client.handler import Handler
from uprmc.client.kv import KvClient
from uprmc.login.credentials import Credentials, basic_auth
from uprmc.login.mechanisms import LoginRefused
from uprmc.places import parsed
from uprmc.protocol.header import ResponseFrame
from uprmc.remote.login import login

_ALL = "read,write,stream,replicate,manage,monitor"
_NOOP, _LIST, _AUTH, _STEP, _UPR_OPEN = 0x0A, 0x20, 0x21, 0x22, 0x50
_CONTINUE = 0x21
_PASSWORD = "ann's word"


@pytest.fixture(name="here")
def _here(capsys: pytest.CaptureFixture[str]) -> Here:
    return runner(capsys)


@pytest.fixture(scope="module", name="directory")
def _directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("logins")
    users_file(directory, ann=_ALL, bob="read")
    for name in ("ann", "bob"):
        password_file(directory, name)
    (directory / "wrong.password").write_text("nonsense\n")
    return directory


def _as(directory: Path, name: str, file: str = "") -> list[str]:
    return ["--user", name, "--password-file", str(directory / f"{file or name}.password")]


@pytest.fixture(scope="module", name="nodes")
def _nodes(directory: Path) -> Iterator[tuple[ServerProcess, ServerProcess]]:
    """Two nodes with users and without TLS that log in to each other as ann."""
    common = ["--vbuckets", "4", "--set", f"server.users={directory}/users.json"]
    common += ["--set", f"xdcr.files={directory}"]
    dial = ["--set", "upr.dial_user=ann"]
    dial += ["--set", f"upr.dial_password_file={directory}/ann.password"]
    with (
        start_uprmc(directory / "a", *common, *dial, "--set", "log.audit=/dev/full") as a,
        start_uprmc(directory / "b", *common, *dial) as b,
    ):
        yield a, b
        a.stop()
        b.stop()


def test_programs_verbs_a_replica_and_a_tap_adapter_log_in(
    nodes: tuple[ServerProcess, ServerProcess], directory: Path, here: Here
) -> None:
    a, b = nodes
    ann = _as(directory, "ann")
    credentials = Credentials("ann", _PASSWORD)
    with KvClient(str(a.upr), credentials=credentials) as kv:
        kv.set_many({b"k%d" % number: b"v" for number in range(8)})
    told = list(changes(str(a.upr), until="now", credentials=credentials))
    assert len(told) == 8
    waited = here("replicate", "--source", a.upr, "--wait", "--node", b.upr, *ann)
    assert (waited.code, waited.err) == (0, "")
    seen = here("tail", "--start", "0", "--until-now", "--node", a.upr, *ann)
    assert seen.out.count(" set ") == 8
    up = ["--upstream-user", "ann", "--upstream-password-file", directory / "ann.password"]
    adapter = start_adapter(a.upr, *up)
    wait_until(lambda: "upstream_reached" in adapter.log(), "the upstream", 10)
    assert _PASSWORD not in adapter.log() + a.log() + b.log()
    adapter.stop()


def test_lines_that_the_audit_log_lacks_are_counted_and_the_node_goes_on(
    nodes: tuple[ServerProcess, ServerProcess], directory: Path, here: Here
) -> None:
    node = nodes[0]
    assert here("stats", "--node", node.upr, *_as(directory, "ann")).code == 0
    login = basic_auth(Credentials("ann", _PASSWORD))
    asked = urllib.request.Request(f"http://{node.http}/metrics", headers={"Authorization": login})
    with urllib.request.urlopen(asked, timeout=10) as answer:
        page = answer.read().decode()
    (lost,) = re.findall(r'(?m)^uprmc_audit_lines_lost_total{why="unwritable"} (\S+)$', page)
    assert float(lost) >= 2
    assert node.log().count("audit.failed") == 1


def test_a_refused_login_is_one_line_and_asked_once(
    nodes: tuple[ServerProcess, ServerProcess], directory: Path, here: Here
) -> None:
    node = nodes[0].upr
    wrong = _as(directory, "ann", "wrong")
    for verb in (
        ["stats"],
        ["tail", "--until-now"],
        ["backup", directory / "backup", "--engine", "local", "--progress", "none"],
    ):
        ended = here(*verb, "--node", node, *wrong)
        assert ended.code == 1
        assert "does not let 'ann' in" in ended.line()
    assert here("stats", "--node", node).code == 1
    with pytest.raises(ClientError, match="does not let 'ann' in"):
        UprClient(str(node), Handler(), credentials=Credentials("ann", "no")).run()


def test_a_link_carries_its_own_user_and_shows_no_password(
    nodes: tuple[ServerProcess, ServerProcess], directory: Path, here: Here
) -> None:
    a = nodes[0]
    ann = ["--node-user", "ann", "--node-password-file", directory / "ann.password"]
    with start_uprmc(
        directory / "c", "--vbuckets", "4", "--set", f"server.users={directory}/users.json"
    ) as target:
        to = ["--to", target.upr, "--node", a.upr]
        assert here("xdcr", "create", "good", *to, *_as(directory, "ann"), *ann).code == 0
        assert here("xdcr", "create", "bad", *to, *_as(directory, "ann", "wrong"), *ann).code == 0
        shown: list[str] = []

        def settled() -> bool:
            shown[:] = [here("xdcr", "list", "--node", a.upr, *_as(directory, "ann")).out]
            rows = dict(re.findall(r"(?m)^(good|bad) +(\w+)", shown[0]))
            return rows == {"good": "running", "bad": "error"}

        wait_until(settled, "both links", 20)
        assert "does not let 'ann' in" in shown[0]
        assert _PASSWORD not in shown[0]
        assert "nonsense" not in shown[0]
        for name in ("good", "bad"):
            assert here("xdcr", "delete", name, "--node", a.upr, *_as(directory, "ann")).code == 0
        target.stop()


def test_a_replica_that_is_not_let_in_tries_slowly_and_says_so(
    nodes: tuple[ServerProcess, ServerProcess], directory: Path, tmp_path: Path, here: Here
) -> None:
    a = nodes[0]
    dial = ["--set", "upr.dial_user=ann"]
    dial += ["--set", f"upr.dial_password_file={directory}/wrong.password"]
    with start_uprmc(tmp_path, "--vbuckets", "4", *dial) as replica:
        ended = here("replicate", "--source", a.upr, "--node", replica.upr)
        assert ended.code == 0

        def told() -> bool:
            return "let 'ann' in" in here("stats", "replication", "--node", replica.upr).out

        wait_until(told, "the reason", 15)
        replica.stop()


def test_over_tls_nodes_and_verbs_log_in_too(directory: Path, tmp_path: Path, here: Here) -> None:
    certificate, key = make_certificate(tmp_path)
    options = ["--tls-cert", certificate, "--tls-key", key, "--vbuckets", "4"]
    options += ["--views", "127.0.0.1:0"]
    for name, value in (
        ("server.users", directory / "users.json"),
        ("upr.dial_ca", certificate),
        ("upr.dial_user", "ann"),
        ("upr.dial_password_file", directory / "ann.password"),
    ):
        options += ["--set", f"{name}={value}"]
    ask = ["--tls-ca", certificate, *_as(directory, "ann")]
    with (
        start_uprmc(tmp_path / "a", *options) as a,
        start_uprmc(tmp_path / "b", *options, "--set", f"index.nodes={a.views}") as b,
    ):
        wait = ["replicate", "--source", a.upr, "--wait", "--node", b.upr]
        assert here(*wait, *ask).code == 0
        moved = here("takeover", "--vbuckets", "0", "--to", b.upr, "--node", a.upr, *ask)
        assert (moved.code, moved.err) == (0, "")
        assert here("failover", "--vbuckets", "1-3", "--node", b.upr, *ask).code == 0
        for node in (a, b):  # of which b asks a
            listed = here("index", "list", "--node", node.upr, "--timeout", "60s", *ask)
            assert (listed.code, listed.err) == (0, "")
        views = ["index", "list", "--views", a.views]
        assert here(*views, *ask).code == 0
        asked = ": say --tls, or --tls-ca FILE with the authority of its certificate"
        assert here(*views, *_as(directory, "ann")).line().endswith(asked)
        assert "say --tls-ca FILE" in here(*views, "--tls").line()
        a.stop()
        b.stop()


def test_verbs_of_the_index_log_in_at_the_node_and_its_views(
    directory: Path, tmp_path: Path, here: Here
) -> None:
    options = ["--vbuckets", "4", "--set", f"server.users={directory}/users.json"]
    with start_uprmc(tmp_path / "a", *options, "--views", "127.0.0.1:0") as node:
        ann = ["--node", node.upr, "--timeout", "60s", *_as(directory, "ann")]
        listed = here("index", "list", *ann)
        assert (listed.code, listed.err) == (0, "")
        views = ["index", "list", "--views", node.views]
        assert "wants a login: say --user" in here(*views).line()
        said = here(*views, *_as(directory, "ann", "wrong")).line()
        assert said.endswith(
            "does not let 'ann' in: wrong name or password; see --user and --password-file"
        )
        asks = {"index.nodes": node.views}
        login = _as(directory, "ann")
        with index_server(tmp_path / "b", node.upr, settings=asks, options=login) as merger:
            merger.views.put("d", BY_CITY)
            assert merger.views.rows() == []
        assert "d" in here("index", "list", *ann).out.split()
        node.stop()


def test_whatever_a_user_follows_ends_when_the_user_is_gone(
    nodes: tuple[ServerProcess, ServerProcess], directory: Path
) -> None:
    node = nodes[0]

    def reload(**more: str) -> None:
        users_file(directory, ann=_ALL, bob="read", **more)
        before = node.log().count("node.reloaded")
        node._process.send_signal(signal.SIGHUP)
        wait_until(lambda: node.log().count("node.reloaded") > before, "the log line", 10)

    def following(place: Address | None, name: str, *words: bytes) -> Wire:
        assert place is not None
        wire = Wire(place)
        wire.send(request(_AUTH, b"PLAIN", value=f"\0{name}\0{name}'s word".encode()))
        assert wire.reply().status == 0
        wire.send(*words)
        return wire

    def page(path: str) -> Wire:
        assert node.http is not None
        wire = Wire(node.http)
        login = basic_auth(Credentials("eve", "eve's word"))
        head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: {login}\r\n"
        wire.send(f"{head}Accept: text/event-stream\r\n\r\n".encode())
        assert wire.line() == b"HTTP/1.1 200 OK\r\n"
        return wire

    reload(eve="stream,monitor")

    def upr_open(name: str) -> bytes:
        return request(_UPR_OPEN, name.encode(), extras=bytes(7) + b"\1")

    stays = following(node.upr, "ann", upr_open("ann"))
    wires = [page(path) for path in ("/live", "/events", "/changes")]
    wires += [
        following(node.upr, "eve", upr_open("eve")),
        following(node.memcached, "eve", tap_connect(b"eve")),
        following(node.memcached, "eve"),
    ]
    reload()
    for wire in wires:
        wire.read_until_closed()
        wire.close()
    stays.send(request(_NOOP))
    assert [stays.reply().opcode for _ in range(2)] == [_UPR_OPEN, _NOOP]
    stays.close()


# --- servers that want the password -------------------------------------------------------------


def _offering(mechanisms: bytes, challenge: bytes = b"", proof: bytes = b"") -> FakeNode:
    """Return a node that offers mechanisms; ``%N`` in its challenge is the client's nonce."""

    def listed(node: FakeNode, asked: Frame) -> None:
        node.reply(asked, value=mechanisms)

    def begun(node: FakeNode, asked: Frame) -> None:
        seen.append(asked.value)
        nonce = asked.value.rpartition(b"r=")[2]
        node.reply(asked, _CONTINUE if challenge else 0, challenge.replace(b"%N", nonce))

    def stepped(node: FakeNode, asked: Frame) -> None:
        seen.append(asked.value)
        node.reply(asked, value=proof)

    seen: list[bytes] = []
    node = FakeNode(on_20=listed, on_21=begun, on_22=stepped)
    node.seen = seen  # type: ignore[attr-defined]
    return node


_SALT = base64.b64encode(b"0123456789abcdef")


@pytest.mark.parametrize(
    ("challenge", "proof", "why"),
    [
        (b"r=%Nx,s=" + _SALT + b",i=2147483648", b"", "asks for 2147483648 iterations"),
        (b"r=%Nx,s=" + _SALT + b",i=1", b"", "asks for 1 iterations"),
        (b"r=other,s=" + _SALT + b",i=4096", b"", "another exchange"),
        (b"r=%Nx,s=" + _SALT + b",i=4096", b"v=" + _SALT, "does not know the user's password"),
        (b"r=%Nx,s=" + _SALT + b",i=4096", b"", "did not prove"),
        (b"", b"", "did not prove"),
        (b"\xff" * 5_000, b"", "longer than"),
    ],
)
@pytest.mark.parametrize("verb", [["stats"], ["tail", "--until-now"]])
def test_a_server_that_does_not_know_the_password_is_left(
    here: Here, directory: Path, verb: list[str], challenge: bytes, proof: bytes, why: str
) -> None:
    node = _offering(b"SCRAM-SHA512", challenge, proof)
    began = time.monotonic()
    ended = here(*verb, "--node", node.place, *_as(directory, "ann"))
    node.stop()
    assert ended.code == 1
    assert why in ended.line()
    assert time.monotonic() - began < 5
    assert not any(_PASSWORD.encode() in each for each in node.seen)  # type: ignore[attr-defined]


@pytest.mark.parametrize("place", ["db1.example:11210", "127.example.org:11210", "10.0.0.1:11210"])
def test_a_password_in_clear_never_leaves_the_machine_without_tls(place: str) -> None:
    assert not parsed(place).is_local
    steps = login(Credentials("ann", _PASSWORD), b"nonce", safe=parsed(place).is_local)
    asked = next(steps)
    with pytest.raises(LoginRefused, match="use TLS"):
        steps.send(ResponseFrame(asked.opcode, 0, value=b"PLAIN"))


@pytest.mark.parametrize(
    "place", ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "localhost:1", "unix:/s"]
)
def test_what_stays_on_the_machine_is_safe(place: str) -> None:
    assert parsed(place).is_local
