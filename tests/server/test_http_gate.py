"""Basic auth in front of pages: who may see what, what it costs, and what strangers learn."""

from __future__ import annotations

import json
from base64 import b64encode
from pathlib import Path

import pytest
from twisted.internet.address import IPv4Address
from twisted.internet.testing import StringTransport

from tests.server.support import PEER, Loop
from tests.server.test_http import Reply
from uprmc.engine.stats import Stats
from uprmc.login.credentials import Credentials
from uprmc.login.scram import ITERATIONS_MIN
from uprmc.login.users import HASH_NAMES, Role, Users, new_user
from uprmc.login.users_file import write_users
from uprmc.server.http import site as http_gate
from uprmc.server.http.site import gate, role_of_page
from uprmc.server.net import access
from uprmc.server.net.access import REMEMBERED_MAX, Audit, UserAccess
from uprmc.web import LimitedSite

HERE = IPv4Address("TCP", "127.0.0.1", 4711)


class Inner:
    """Answers every path."""

    isLeaf = True  # noqa: N815  # Twisted's name

    def render(self, request) -> bytes:
        if request.path == b"/broken":
            raise ValueError("a defect")
        return b"" if request.method == b"HEAD" else b"inside"

    def getChildWithDefault(self, name, request):  # noqa: N802  # Twisted's name
        return self


class Web:
    """A gated site in memory, with real users."""

    def __init__(self, loop: Loop, directory: Path) -> None:
        self.loop = loop
        self.file = str(directory / "users.json")
        self.audit_file = directory / "audit.log"
        self.users(ann={Role.MONITOR}, bob={Role.READ})
        self.stats = Stats()
        audit = Audit(str(self.audit_file), lambda: 1e9)
        self.access = UserAccess(loop.reactor, self.file, self.stats, audit)
        self.checks = 0
        self.site = LimitedSite(
            Inner(), loop.reactor, hint=bytes, request_s=10, clients_max=9, body_max=9
        )
        gate(self.site, self.access, "http", role_of_page)

    def users(self, **roles: set[Role]) -> None:
        salts = [b"salt"] * len(HASH_NAMES)
        write_users(
            self.file,
            [
                new_user(Credentials(name, "pencil"), granted, salts, ITERATIONS_MIN)
                for name, granted in roles.items()
            ],
        )

    def get(
        self,
        path: str,
        login: str | bytes | None = None,
        method: str = "GET",
        peer: IPv4Address = HERE,
    ) -> Reply:
        """Ask and wait for the answer."""
        channel = self.site.buildProtocol(peer)
        channel.makeConnection(StringTransport(HERE, peer))
        head = f"{method} {path} HTTP/1.1\r\nHost: h\r\n".encode()
        if login is not None:
            given = login if isinstance(login, bytes) else b64encode(login.encode())
            head += b"Authorization: Basic " + given + b"\r\n"
        channel.dataReceived(head + b"\r\n")
        self.loop.until(lambda: channel.transport.value() != b"")
        reply = Reply(channel)
        channel.connectionLost()
        return reply

    def noted(self) -> list[tuple[str, str, str]]:
        lines = map(json.loads, self.audit_file.read_text().splitlines())
        return [(line["user"], line["action"], line["outcome"]) for line in lines]


@pytest.fixture
def web(loop: Loop, tmp_path: Path):
    web = Web(loop, tmp_path)
    yield web
    web.access.stop()
    web.access.audit.close()


def test_probes_need_no_login_and_everything_else_does(web: Web) -> None:
    assert web.get("/healthz").body == web.get("/readyz").body == b"inside"
    for path in ("/", "/metrics", "/status.json", "/changes", "/bogus"):
        reply = web.get(path)
        assert reply.code == 401
        assert reply.headers["www-authenticate"].startswith("basic realm=")
        assert b"inside" not in reply.body


def test_the_role_decides(web: Web) -> None:
    assert web.get("/metrics", "ann:pencil").body == b"inside"
    assert web.get("/metrics", "ann:pencil", "HEAD").code == 200
    reply = web.get("/metrics", "bob:pencil")
    assert reply.code == 403
    assert json.loads(reply.body)["error"] == "not authorized: needs monitor"
    assert web.get("/changes", "ann:pencil").code == 403
    assert web.stats.auth_denied == 2
    assert web.noted() == [
        ("ann", "login", "allowed"),
        ("bob", "login", "allowed"),
        ("bob", "GET /metrics", "refused"),
        ("ann", "GET /changes", "refused"),
    ]


def test_a_password_is_checked_once(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[str] = []
    knows = Users.knows

    def counted(self: Users, credentials: Credentials) -> bool:
        checked.append(credentials.username)
        return knows(self, credentials)

    monkeypatch.setattr(Users, "knows", counted)
    for _ in range(5):
        assert web.get("/metrics", "ann:pencil").code == 200
    assert checked == ["ann"]
    assert web.stats.auth_cmds == 1


def test_what_is_remembered_is_bounded(web: Web) -> None:
    for number in range(REMEMBERED_MAX + 1):
        web.access._remembered[b"%d" % number] = "x"
    web.get("/metrics", "ann:pencil")
    assert len(web.access._remembered) <= REMEMBERED_MAX + 1


@pytest.mark.parametrize("login", ["ann:wrong", "eve:pencil", "ann:Pencil"])
def test_a_wrong_password_is_refused_later_and_counted(web: Web, login: str) -> None:
    began = web.loop.reactor.seconds()
    assert web.get("/metrics", login).code == 401
    assert web.loop.reactor.seconds() - began >= 0.09
    assert (web.stats.auth_cmds, web.stats.auth_errors) == (1, 1)
    assert web.noted()[0][1:] == ("login", "refused")


def test_a_password_in_clear_from_another_machine_is_refused_and_never_asked_for(web: Web) -> None:
    for login in (None, "ann:pencil", "ann:wrong"):
        reply = web.get("/metrics", login, peer=PEER)
        assert reply.code == 403
        assert "use https://" in json.loads(reply.body)["reason"]
        assert "www-authenticate" not in reply.headers
    assert web.noted() == [("", "login", "refused")] * 2
    assert web.get("/healthz", peer=PEER).body == b"inside"


def test_a_right_password_waits_too_while_logins_of_its_user_fail(web: Web) -> None:
    began = web.loop.reactor.seconds()
    web.access.brakes.names.put(b"ann", 2, began)
    assert web.get("/metrics", "ann:pencil").code == 200
    assert web.loop.reactor.seconds() - began >= 0.19
    assert web.get("/metrics", "ann:pencil").code == 200  # it is remembered: no login any more
    assert web.stats.auth_cmds == 1


def test_a_guesser_learns_nothing_more_where_the_right_password_is_remembered(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (access, http_gate):
        monkeypatch.setattr(module, "PUT_OFF_S", 0.01)
    assert web.get("/metrics", "ann:pencil").code == 200
    now = web.loop.reactor.seconds()
    brakes = web.access.brakes
    brakes.known.put(("127.0.0.1", b"ann"), 5, now)
    brakes._free["127.0.0.1", b"ann"] = now + 60  # as after many guesses
    for login in ("ann:pencil", "ann:wrong"):
        assert web.get("/metrics", login).code == 503
    assert web.noted()[-1] == ("ann", "login", "refused")


@pytest.mark.parametrize("given", [b"", b"!!", b64encode(b"ann"), b64encode(b":x"), b"A" * 9_000])
def test_what_is_no_basic_auth_is_no_login(web: Web, given: bytes) -> None:
    assert web.get("/metrics", given).code == 401
    assert web.stats.auth_errors == 0


def test_a_user_who_is_removed_is_out_after_a_reload(web: Web) -> None:
    assert web.get("/metrics", "ann:pencil").code == 200
    web.users(bob={Role.READ, Role.MONITOR})
    web.access.reload(web.file)
    assert web.get("/metrics", "ann:pencil").code == 401
    assert web.get("/metrics", "bob:pencil").code == 200


def test_a_stranger_has_a_connection_for_one_request_and_a_user_keeps_it(web: Web) -> None:
    assert web.get("/metrics").headers["connection"] == "close"
    assert web.get("/metrics", "ann:wrong").headers["connection"] == "close"
    assert "connection" not in web.get("/metrics", "ann:pencil").headers
    assert web.site.timeOut == 10


def test_the_time_for_a_login_is_that_of_a_request_too(web: Web) -> None:
    web.access.login_timeout_s = 3.0
    gate(web.site, web.access, "http", role_of_page)
    assert web.site.timeOut == 3.0


def test_a_page_that_fails_behind_the_gate_is_a_500(web: Web, caplog) -> None:
    assert web.get("/broken", "ann:pencil").code == 500


def test_changes_and_requests_without_a_login_are_noted(web: Web) -> None:
    gate(web.site, web.access, "views", lambda request: Role.MANAGE)
    web.site.resource._root = Inner()
    web.users(bob={Role.READ}, cat={Role.MANAGE})
    web.access.reload(web.file)
    for login in (None, "bob:pencil", "cat:pencil"):
        web.get("/default/_design/d?x=1", login, "DELETE")
    action = "DELETE /default/_design/d"
    assert [each for each in web.noted() if each[1] != "login"] == [
        ("", action, "refused"),
        ("bob", action, "refused"),
        ("cat", action, "allowed"),
    ]
