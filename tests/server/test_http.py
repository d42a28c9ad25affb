"""The HTTP pages, over a connection in memory and once over a real one."""

from __future__ import annotations

import io
import json

import pytest
from twisted.internet.address import IPv4Address
from twisted.internet.testing import MemoryReactorClock, StringTransport

from tests.server.support import PEER, Loop
from uprmc.config import HttpSettings, ServerSettings
from uprmc.errors import InvalidArguments, NotMyVBucket, StreamNotFound
from uprmc.metrics import Metric
from uprmc.server.http import site as http
from uprmc.server.http.site import MAX_BODY_BYTES, MAX_CLIENTS, REQUEST_S, node_site
from uprmc.server.net.listener import listen
from uprmc.web import SPARE_CLIENTS, KnownHosts


class FakeNode:
    """A node in warm-up."""

    def __init__(self) -> None:
        self.is_ready = False

    def ready(self) -> bool:
        return self.is_ready

    def status(self) -> dict[str, object]:
        return {"version": "1", "warmup": {"loaded": 5, "of": 10}}

    def events(self) -> list[dict[str, object]]:
        return [{"time": "2026-11-23T21:00:00.000Z", "event": "purge", "vb": 5}]

    def watermarks(self, text: str) -> dict[str, object]:
        if text != "5":
            raise NotMyVBucket(text) if text.isdecimal() else InvalidArguments(text)
        return {"vbucket": 5, "rows": []}

    def consumer(self, name: str):
        yield
        if name != "é":
            raise StreamNotFound(name)
        return {"name": name, "rows": []}

    def metrics(self) -> list[Metric]:
        return [Metric("items", "gauge", "Documents.", [({}, 5)])]


class Web:
    """A site in memory."""

    def __init__(self) -> None:
        self.node = FakeNode()
        self.reactor = MemoryReactorClock()
        self.site = node_site(self.node, self.reactor)

    def connect(self):
        transport = StringTransport(IPv4Address("TCP", "127.0.0.1", 80), PEER)
        channel = self.site.buildProtocol(PEER)
        channel.makeConnection(transport)
        return channel

    def ask(self, request: str) -> Reply:
        """Send a request on a new connection; ``\\n`` stands for the end of a line."""
        channel = self.connect()
        channel.dataReceived(request.replace("\n", "\r\n").encode())
        return Reply(channel)

    def get(self, path: str, *headers: str, method: str = "GET") -> Reply:
        lines = [f"{method} {path} HTTP/1.1", "Host: h", *headers, "", ""]
        return self.ask("\n".join(lines))


class Reply:
    """An answer, taken apart."""

    def __init__(self, channel) -> None:
        self.channel = channel
        head, _, self.body = channel.transport.value().partition(b"\r\n\r\n")
        lines = head.decode().split("\r\n")
        self.code = int(lines[0].split()[1]) if lines[0] else 0
        self.headers = dict(line.lower().split(": ", 1) for line in lines[1:])


@pytest.fixture
def web() -> Web:
    return Web()


def test_health_is_ok_while_the_process_lives(web: Web) -> None:
    reply = web.get("/healthz")
    assert (reply.code, reply.body) == (200, b"ok\n")


def test_readiness_shows_progress_until_warm_up_is_done(web: Web) -> None:
    reply = web.get("/readyz")
    assert reply.code == 503
    assert json.loads(reply.body) == {"ready": False, "warmup": {"loaded": 5, "of": 10}}
    web.node.is_ready = True
    reply = web.get("/readyz")
    assert (reply.code, json.loads(reply.body)) == (200, {"ready": True})


def test_status_is_the_nodes_own(web: Web) -> None:
    reply = web.get("/status.json?pretty=1")
    assert reply.headers["content-type"] == "application/json"
    assert json.loads(reply.body) == web.node.status()


def test_events_are_listed(web: Web) -> None:
    assert json.loads(web.get("/events").body) == {"events": web.node.events()}


def test_watermarks_of_one_vbucket_are_listed(web: Web) -> None:
    assert json.loads(web.get("/watermarks.json?vbucket=5").body) == {"vbucket": 5, "rows": []}
    for query, code in (("?vbucket=6", 404), ("?vbucket=x", 400), ("?vbucket=%FF", 400), ("", 400)):
        reply = web.get("/watermarks.json" + query)
        assert reply.code == code
        assert json.loads(reply.body)["error"]


def test_the_streams_of_a_consumer_are_found_by_its_name(web: Web) -> None:
    assert json.loads(web.get("/consumer.json?name=%C3%A9").body) == {"name": "é", "rows": []}
    for query in ("?name=e", "?name=%FF", ""):
        reply = web.get("/consumer.json" + query)
        assert reply.code == 404
        assert json.loads(reply.body)["error"]


def test_status_survives_values_that_json_does_not_know(web: Web) -> None:
    web.node.status = lambda: {"path": b"x", "error": OSError("no")}
    assert json.loads(web.get("/status.json").body)["error"] == "no"


def test_metrics_are_exposed(web: Web) -> None:
    reply = web.get("/metrics")
    assert reply.headers["content-type"].startswith("text/plain; version=")
    assert b"\nuprmc_items 5.0\n" in reply.body


def test_an_unknown_page_is_a_404_that_lists_the_known_ones(web: Web) -> None:
    for path in ("/no", "/healthz/", "/../etc/passwd", "/%00"):
        reply = web.get(path)
        assert reply.code == 404
        assert "/metrics" in json.loads(reply.body)["pages"]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "BREW"])
def test_other_methods_are_a_405_in_json(web: Web, method: str) -> None:
    reply = web.get("/healthz", method=method)
    assert reply.code == 405
    assert reply.headers["allow"] == "get, head"
    assert "GET" in json.loads(reply.body)["error"]


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/status.json", "/metrics", "/none"])
def test_head_is_get_without_the_body(web: Web, path: str) -> None:
    get, head = web.get(path), web.get(path, method="HEAD")
    assert head.body == b""
    assert head.code == get.code
    assert head.headers["content-type"] == get.headers["content-type"]
    if path != "/metrics":  # the process's CPU time moves on
        assert head.headers["content-length"] == str(len(get.body))


def test_a_page_that_fails_is_a_500_and_a_line_in_the_log(web: Web, lines: io.StringIO) -> None:
    web.node.status = lambda: 1 / 0
    reply = web.get("/status.json")
    assert reply.code == 500
    assert b"Traceback" not in reply.body
    assert "error http.page_failed path=/status.json" in lines.getvalue()
    assert "ZeroDivisionError" in lines.getvalue()


def test_there_is_no_access_log(web: Web, lines: io.StringIO) -> None:
    web.get("/healthz")
    assert lines.getvalue() == ""


def test_several_requests_share_a_connection(web: Web) -> None:
    reply = web.ask("GET /healthz HTTP/1.1\nHost: h\n\n" * 3)
    assert reply.channel.transport.value().count(b"HTTP/1.1 200") == 3


def test_a_body_at_the_limit_is_taken_and_one_byte_more_is_refused(web: Web) -> None:
    body = "x" * MAX_BODY_BYTES
    taken = web.ask(f"GET /healthz HTTP/1.1\nContent-Length: {len(body)}\n\n{body}")
    assert taken.code == 200
    refused = web.ask(f"GET /healthz HTTP/1.1\nContent-Length: {len(body) + 1}\n\n")
    assert refused.code == 413
    assert refused.channel.transport.disconnecting


def test_a_body_of_unknown_length_is_limited_too(web: Web) -> None:
    chunk = "1000\n" + "x" * 4096 + "\n"
    request = "GET /healthz HTTP/1.1\nTransfer-Encoding: chunked\n\n"
    fitting = web.ask(request + chunk * (MAX_BODY_BYTES // 4096) + "0\n\n")
    assert fitting.code == 200
    refused = web.ask(request + chunk * (MAX_BODY_BYTES // 4096) + "1\nx\n0\n\n")
    assert refused.code == 413
    assert refused.channel.transport.disconnecting
    refused.channel.dataReceived(b"GET /healthz HTTP/1.1\r\n\r\n")
    assert b"200" not in refused.channel.transport.value()


def test_endless_headers_are_refused(web: Web) -> None:
    reply = web.ask("GET /healthz HTTP/1.1\n" + "X-Pad: y\n" * 3_000)
    assert reply.code == 400
    assert reply.channel.transport.disconnecting


def test_a_request_that_trickles_in_is_cut_off_in_time(web: Web) -> None:
    channel = web.connect()
    for byte in b"GET /h":
        web.reactor.advance(REQUEST_S / 6 - 0.001)
        assert not channel.transport.disconnecting
        channel.dataReceived(bytes([byte]))
    web.reactor.advance(0.006)
    assert channel.transport.disconnecting


def test_a_silent_client_is_cut_off_after_its_answer_too(web: Web) -> None:
    reply = web.get("/healthz")
    web.reactor.advance(REQUEST_S)
    assert reply.channel.transport.disconnecting


def test_the_oldest_idle_client_makes_room_for_one_more(web: Web) -> None:
    most = MAX_CLIENTS + HttpSettings().readers
    channels = [web.connect() for _ in range(most)]
    channels[0].dataReceived(b"GET /status.json HTTP/1.1\r\n\r\n")  # idle again, and the newest
    channels[1].dataReceived(b"GET /sta")  # trickles
    for number in range(300):
        assert web.get("/healthz").code == 200
        assert web.site.clients == most, number
    assert all(channel.transport.disconnected for channel in channels)
    for channel in channels:
        channel.connectionLost()
    assert web.site.clients == most


def test_health_is_told_while_all_clients_wait_for_their_answers(web: Web) -> None:
    most = MAX_CLIENTS + HttpSettings().readers
    busy = [web.connect() for _ in range(most)]
    for channel in busy:
        channel.works(True)
    assert [web.get("/healthz").code for _ in range(100)] == [200] * 100
    refused = web.get("/status.json")
    assert refused.code == 503
    assert refused.headers["connection"] == "close"
    waiting = []
    for _ in range(SPARE_CLIENTS):
        waiting.append(web.connect())
        waiting[-1].works(True)
    assert web.site.buildProtocol(PEER) is None
    busy[0].connectionLost()
    waiting[0].connectionLost()
    assert web.get("/healthz").code == 200


KNOWN = KnownHosts(["node1.example", "Other.Example."], "server.http_hosts")


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "127.0.0.1:8091", "192.0.2.1:1", "[::1]:8091", "[::1]", "[fe80::1%eth0]:1"),
        *("localhost", "localhost:8091", "LocalHost.", "page.localhost:5", "node1.example:80"),
        *("NODE1.example", "other.example", "[::ffff:10.0.0.1]:1"),
    ],
)
def test_addresses_and_known_names_are_answered(host: str) -> None:
    assert KNOWN.refusal([host.encode()]) == ""


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "evil.example:8091", "127.0.0.1.evil.example", "localhost.evil.example"),
        *("evillocalhost", "node1.example.evil", "0x7f.1", "a@127.0.0.1", "", ":8091", "[evil]:1"),
        *("127.0.0.1 evil.example", "*", "\xff", "x" * 5_000),
    ],
)
def test_other_names_are_not(host: str) -> None:
    reason = KNOWN.refusal([host.encode("latin-1")])
    assert "server.http_hosts" in reason
    assert len(reason) < 1_000
    assert KNOWN.refusal([b"localhost", host.encode("latin-1")]) == reason
    assert KnownHosts(["*"], "").refusal([host.encode("latin-1")]) == ""


def test_a_web_page_that_lets_its_name_mean_this_node_reads_nothing(web: Web) -> None:
    web.site.hosts = KNOWN
    for path in ("/status.json", "/changes", "/", "/none", "/metrics"):
        reply = web.get(path)
        assert reply.code == 403, path
        assert json.loads(reply.body)["error"] == "unknown_host"
        assert "'h'" in json.loads(reply.body)["reason"]
    assert web.get("/status.json", method="HEAD").body == b""
    assert web.get("/healthz").code == 200  # probes, which it tells nothing
    full = "GET {}/status.json HTTP/1.1\nHost: {}\n\n"
    for server, host, code in (
        *(("http://localhost:8091", "localhost", 200), ("HTTP://[::1]", "evil.example", 200)),
        *(("http://evil.example", "localhost", 403), ("https://evil.example:1", "[::1]", 403)),
        *(("http://localhost@evil.example", "localhost", 403), ("http://", "localhost", 403)),
    ):
        assert web.ask(full.format(server, host)).code == code
    assert web.ask("GET /status.json HTTP/1.1\nHost: localhost:8091\n\n").code == 200
    assert web.ask("GET /status.json HTTP/1.0\n\n").code == 200


def test_a_nodes_names_are_its_settings_its_listeners_and_the_machines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http, "gethostname", lambda: "box")
    given = ServerSettings(http_hosts="a.example, b.example", http="c.example:1", views="off")
    known = http.known_hosts(given, "d.example:5", "")
    for name in ("a.example", "b.example", "c.example", "d.example", "box"):
        assert known.refusal([name.encode()]) == ""
    assert known.refusal([b"off"])


def test_it_answers_over_a_real_connection_and_stops_cleanly(loop: Loop) -> None:
    site = node_site(FakeNode(), loop.reactor)
    listener = loop.result(
        listen(loop.reactor, "127.0.0.1:0", site, setting="server.http", backlog=5)
    )
    client = loop.client(listener.address)
    client.socket.send(b"GET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n")
    assert client.read_all().endswith(b"\r\n\r\nok\n")
    loop.result(listener.stop())
    assert loop.reactor.getDelayedCalls() == []
