"""A connection says in one line what is wrong with the other end, and never waits for ever."""

from __future__ import annotations

import pickle
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from interop.server_process import ServerProcess, start_uprmc
from tests.codec.frames import Frame
from tests.columnar.read_peer import FakeNode, refused
from tests.server.test_dialer import certificate_for
from uprmc.columnar.access import Access, Tls, parsed_place
from uprmc.columnar.connection import dialled, lent, patiently, reusing
from uprmc.columnar.errors import BadOption
from uprmc.protocol.header import RequestFrame, encode_request, encode_response
from uprmc.protocol.opcodes import Opcode, Status
from uprmc.remote.blocking import PIPELINE_MAX, NodeConnection
from uprmc.remote.errors import (
    Busy,
    LoginFailed,
    NodeNonsense,
    NodeUnreachable,
    Refused,
    Silent,
    TlsFailed,
)

QUICK = {"connect_timeout_s": 0.5, "read_timeout_s": 0.5, "retries": 2, "retry_backoff_s": 0.001}


def access(place: str, **more: object) -> Access:
    return Access((place,), **{**QUICK, **more})  # type: ignore[arg-type]


@contextmanager
def peer() -> Iterator[FakeNode]:
    with FakeNode({0: 3}) as found:
        yield found


def instead(node: FakeNode, opcode: int, reply: Callable[[Frame], bytes | None]) -> None:
    node.instead[opcode] = reply


# --- questions ------------------------------------------------------------------------------------


def test_answers_come_in_the_order_of_the_questions(servers: str) -> None:
    requests = [
        RequestFrame(Opcode.SET, b"k%d" % n, bytes(8), b"v%d" % n) for n in range(PIPELINE_MAX + 5)
    ]
    with dialled(servers, access(servers, read_timeout_s=30)) as connection:
        assert {each.status for each in connection.ask_all(requests)} == {0}
        gets = [RequestFrame(Opcode.GETK, request.key) for request in requests]
        assert [each.key for each in connection.ask_all(gets)] == [each.key for each in requests]


def test_a_refusal_is_named_and_a_busy_node_told_apart(servers: str) -> None:
    with dialled(servers, access(servers)) as connection:
        with pytest.raises(Refused, match=r"answers GET with: Not found \(0001\)"):
            connection.require([RequestFrame(Opcode.GET, b"absent")])
        with pytest.raises(Refused, match="no statistics group 'nothing'"):
            connection.statistics("nothing")
        assert connection.statistics("vbucket-details")["vb_0"] == "active"
    with peer() as node:
        instead(node, Opcode.GET, lambda frame: refused(frame, Status.TEMPORARY_FAILURE))
        with dialled(node.place, access(node.place)) as connection, pytest.raises(Busy):
            connection.require([RequestFrame(Opcode.GET, b"k")])


def test_keep_alives_are_answered_while_an_answer_is_waited_for() -> None:
    def noop_first(frame: Frame) -> bytes:
        noop = encode_request(Opcode.UPR_NOOP, opaque=77)
        return noop + encode_response(frame.opcode, opaque=frame.opaque)

    with peer() as node:
        instead(node, Opcode.GET, noop_first)
        with dialled(node.place, access(node.place)) as connection:
            assert connection.ask(RequestFrame(Opcode.GET, b"k")).status == 0
            assert connection.ask(RequestFrame(Opcode.NOOP)).status == 0
        assert [(each.opcode, each.opaque) for each in node.answered] == [(Opcode.UPR_NOOP, 77)]


# --- bad ends -------------------------------------------------------------------------------------


def test_nobody_there_is_unreachable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        place = f"127.0.0.1:{gone.getsockname()[1]}"
    with pytest.raises(NodeUnreachable, match=f"no node answers at {place}: Connection refused"):
        dialled(place, access(place))


def test_a_host_that_does_not_exist_is_unreachable() -> None:
    with pytest.raises(NodeUnreachable, match=r"no node answers at no-such-host\.invalid:1"):
        dialled("no-such-host.invalid:1", access("no-such-host.invalid:1"))


def test_a_peer_that_says_nothing_is_unreachable_after_the_timeout() -> None:
    with peer() as node:
        instead(node, Opcode.HELLO, lambda frame: b"")
        with pytest.raises(Silent, match=r"says nothing for 0\.5 s"):
            dialled(node.place, access(node.place))


def test_a_silent_peer_is_tried_once_more_only() -> None:
    with peer() as node:
        instead(node, Opcode.HELLO, lambda frame: b"")
        quick = access(node.place, connect_timeout_s=0.1, retries=50)
        with pytest.raises(Silent):
            patiently(quick, lambda: dialled(node.place, quick))
        assert node.connections == 2


def test_lost_connections_are_tried_again_as_often_as_allowed() -> None:
    with peer() as node:
        instead(node, Opcode.HELLO, lambda frame: None)
        quick = access(node.place)
        with pytest.raises(NodeUnreachable, match="closed the connection"):
            patiently(quick, lambda: dialled(node.place, quick))
        assert node.connections == 1 + QUICK["retries"]


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "an HTTP server answers at"),
        (b"\x81\x1f" + bytes(6) + b"\xff" * 4 + bytes(12), "body of 4294967295 bytes"),
        (b"\x81\x1f\x00\x05" + bytes(20), "a body of 0 bytes, a key of 5"),
        (encode_response(Opcode.GET, opaque=1), "an unexpected answer to GET"),
        (encode_response(Opcode.HELLO, opaque=99), "an unexpected answer to HELLO"),
        (encode_request(Opcode.SET, key=b"k"), "an unexpected SET"),
    ],
)
def test_what_is_no_answer_is_protocol_error(sent: bytes, words: str) -> None:
    with peer() as node:
        instead(node, Opcode.HELLO, lambda frame: sent)
        with pytest.raises(NodeNonsense, match=words) as caught:
            dialled(node.place, access(node.place))
    assert "\n" not in str(caught.value)


# --- login ----------------------------------------------------------------------------------------


def test_a_node_without_logins_refuses_a_name(servers: str) -> None:
    with pytest.raises(LoginFailed, match="the node knows no logins: leave the user out"):
        dialled(servers, access(servers, username="u", password="p"))


def test_a_wrong_password_is_said() -> None:
    with peer() as node:
        instead(node, Opcode.SASL_AUTH, lambda frame: refused(frame, Status.AUTH_ERROR))
        with pytest.raises(
            LoginFailed, match=r"does not let .u. in: wrong name or password .0020."
        ):
            dialled(node.place, access(node.place, username="u", password="p"))


def test_name_and_password_go_as_plain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s3cret\nwhat follows is no part of it\n")
    monkeypatch.setenv("READ_PASSWORD", "s3cret")
    with peer() as node:
        for more in (
            {"password": "s3cret"},
            {"password_file": str(secret)},
            {"password_env": "READ_PASSWORD"},
        ):
            dialled(node.place, access(node.place, username="u", **more)).close()
        logins = [each for each in node.asked if each.opcode == Opcode.SASL_AUTH]
    assert {(each.key, each.value) for each in logins} == {(b"PLAIN", b"\0u\0s3cret")}


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"password_file": "/no/such/file"}, "passwordFile=/no/such/file: No such file"),
        ({"password_env": "NO_SUCH_VARIABLE"}, "passwordEnv=NO_SUCH_VARIABLE: there is no"),
    ],
)
def test_a_password_that_is_not_where_it_should_be_is_named(
    more: dict[str, str], words: str
) -> None:
    with pytest.raises(BadOption, match=words):
        Access(("a:1",), **more).secret()  # type: ignore[arg-type]


def test_a_password_is_not_shown() -> None:
    assert "s3cret" not in repr(Access(("a:1",), username="u", password="s3cret"))


def test_a_bucket_is_selected_and_an_unknown_one_refused(servers: str) -> None:
    dialled(servers, access(servers, bucket="default")).close()
    with pytest.raises(Refused, match="the choice of bucket 'other'"):
        dialled(servers, access(servers, bucket="other"))


# --- TLS ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    certificate, key = certificate_for(tmp_path_factory.mktemp("tls"), "127.0.0.1")
    return str(certificate), str(key)


@pytest.fixture(scope="module")
def tls_node(
    certificates: tuple[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    certificate, key = certificates
    data = tmp_path_factory.mktemp("data")
    options = ("--vbuckets", "4", "--tls-cert", certificate, "--tls-key", key)
    with start_uprmc(data, *options) as found:
        yield found


def test_over_tls(tls_node: ServerProcess, certificates: tuple[str, str]) -> None:
    place = str(tls_node.upr)
    trusting = access(place, tls=Tls(ca_file=certificates[0]), connect_timeout_s=10)
    for each in (trusting, replace(trusting, tls=Tls(verify=False))):
        with dialled(place, each) as connection:
            assert connection.ask_all([RequestFrame(Opcode.NOOP)])[0].status == 0


def test_a_certificate_that_nobody_trusts_is_refused(tls_node: ServerProcess) -> None:
    place = str(tls_node.upr)
    with pytest.raises(TlsFailed, match=r"does not agree on TLS: .*certificate"):
        dialled(place, access(place, tls=Tls(), connect_timeout_s=10))


def test_one_end_only_speaks_tls(tls_node: ServerProcess, servers: str) -> None:
    place = str(tls_node.upr)
    with pytest.raises(
        (NodeUnreachable, NodeNonsense),
        match=r"does its listener speak TLS|speaks TLS: connect with TLS",
    ):
        dialled(place, access(place))
    with pytest.raises((TlsFailed, NodeUnreachable)):
        dialled(servers, access(servers, tls=Tls(verify=False)))


def test_a_connection_lost_while_tls_is_agreed_on_is_made_again() -> None:
    """A node that goes down at that moment does not end a job."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        dials: list[str] = []

        def attempt() -> None:
            place = f"127.0.0.1:{listener.getsockname()[1]}"
            dials.append(place)
            line = threading.Thread(target=lambda: listener.accept()[0].close())
            line.start()
            try:
                dialled(place, access(place, tls=Tls(verify=False)))
            finally:
                line.join(10)

        with pytest.raises(TlsFailed, match="does not agree on TLS") as caught:
            patiently(access("unused:1"), attempt)
        assert len(dials) == 3
        again = pickle.loads(pickle.dumps(caught.value))
        assert isinstance(again, NodeUnreachable)
        assert again.code == "UPRMC_TLS"


def test_files_of_tls_that_cannot_be_used_are_named(tmp_path: Path, servers: str) -> None:
    rubbish = tmp_path / "rubbish"
    rubbish.write_text("hello")
    for tls, words in (
        (Tls(ca_file="/no/such"), "tlsCaFile=/no/such: No such file"),
        (Tls(ca_file=str(rubbish)), "tlsCaFile="),
        (Tls(cert_file=str(rubbish), verify=False), "tlsCertFile="),
    ):
        with pytest.raises(BadOption, match=words):
            dialled(servers, access(servers, tls=tls))


# --- places ---------------------------------------------------------------------------------------


def test_places() -> None:
    assert parsed_place("host:11210") == ("host", 11210, "")
    assert parsed_place("[::1]:11210") == ("::1", 11210, "")


@pytest.mark.parametrize("place", ["", "host", "host:", ":1", "host:x", "host:65536", "host:-1"])
def test_what_is_no_place_is_said(place: str) -> None:
    with pytest.raises(BadOption, match="is no node: say HOST:PORT"):
        parsed_place(place)


def test_an_access_travels_by_pickle() -> None:
    found = Access(("a:1",), tls=Tls(ca_file="ca"), username="u", password_env="X")
    assert pickle.loads(pickle.dumps(found)) == found


# --- used again -----------------------------------------------------------------------------------


def dialled_twice(
    place: str, between: Callable[[NodeConnection], object], *, purposes: tuple[str, str] = ("", "")
) -> bool:
    """Return whether a connection that was used before is given to nobody again."""
    how = access(place, read_timeout_s=30)
    first, second = purposes
    with reusing():
        with lent(place, how, first) as one:
            one.require([RequestFrame(Opcode.NOOP)])
            between(one)
        later = replace(how, terms={1: 1}, patience_s=9.0, spare_leases=2)
        with lent(place, later, second) as other:
            other.require([RequestFrame(Opcode.NOOP)])
        return one is not other


def opened(connection: NodeConnection) -> None:
    connection.opened = True


def unanswered(connection: NodeConnection) -> None:
    connection._questions.expect(Opcode.NOOP, Opcode.NOOP)


def spoken_to(connection: NodeConnection) -> None:
    connection.send(RequestFrame(Opcode.NOOP).encode(connection.next_opaque()))
    assert connection.socket.recv(1, socket.MSG_PEEK)


@pytest.mark.parametrize(
    ("between", "purposes", "anew"),
    [
        (lambda _: None, ("", ""), False),
        (opened, ("streams", "streams"), False),
        (opened, ("streams", "registers"), True),
        (opened, ("streams", ""), True),
        (opened, ("", ""), True),
        (lambda _: None, ("streams", "streams"), True),
        (unanswered, ("", ""), True),
        (spoken_to, ("", ""), True),
        (NodeConnection.close, ("", ""), True),
    ],
)
def test_a_connection_is_used_again_for_the_same_if_nothing_is_left_of_before(
    servers: str,
    between: Callable[[NodeConnection], object],
    purposes: tuple[str, str],
    anew: bool,
) -> None:
    assert dialled_twice(servers, between, purposes=purposes) is anew


def test_connections_are_closed_when_nobody_uses_them_again(servers: str) -> None:
    how = access(servers)
    with lent(servers, how) as alone:
        pass
    with reusing(), reusing():
        with lent(servers, how) as kept:
            pass
        assert kept.socket.fileno() >= 0
        with pytest.raises(Refused), lent(servers, how) as failed:
            failed.require([RequestFrame(Opcode.GET, b"absent")])
    assert [each.socket.fileno() for each in (alone, kept, failed)] == [-1, -1, -1]


def test_a_connection_that_its_node_has_closed_is_not_used_again() -> None:
    with peer() as node, reusing():
        with lent(node.place, access(node.place)) as one:
            pass
        one.socket.shutdown(socket.SHUT_RDWR)
        with lent(node.place, access(node.place)) as other:
            assert other is not one
