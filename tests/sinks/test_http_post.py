"""Changes to an HTTP receiver: it has everything, whatever it answers in between."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.client.consumer_world import node, write
from tests.sinks.sink_contract import Changes, Documents, Lines, SinkContract
from uprmc.sinks import http_post
from uprmc.sinks.http_post import HttpPost
from uprmc.sinks.sink import Sink, SinkError, SinkStopped

#: What a receiver says: a status, and headers; or something that does worse.
Answer = tuple[int, dict[str, str]] | Callable[[Any], None]


class Receiver:
    """A receiver that answers what it is told to, and then 200.

    Attributes:
        answers: the next ones.
        requests: headers and body of each request.
        reader: of what was answered with 200.
        refuses: a line with this in it is refused with 422.
    """

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.requests: list[tuple[dict[str, str], bytes]] = []
        self.reader = Lines()
        self.refuses = b"\0"
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.requests.append((dict(self.headers), body))
                answer = receiver.next(body)
                if callable(answer):
                    answer(self)
                    return
                self.send_response(answer[0])
                for name, value in {"Content-Length": "0", **answer[1]}.items():
                    self.send_header(name, value)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=[0.02])
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/in?x=1"

    def next(self, body: bytes) -> Answer:
        if self.answers:
            return self.answers.pop(0)
        if self.refuses in body:
            return 422, {}
        self.reader.take(body.splitlines())
        return 200, {}

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextmanager
def receiving() -> Iterator[Receiver]:
    receiver = Receiver()
    try:
        yield receiver
    finally:
        receiver.close()


@pytest.fixture(name="receiver")
def _receiver() -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver


def hangs_up(handler: Any) -> None:
    handler.close_connection = True


class TestHttpPost(SinkContract):
    """Some requests fail on the way; what comes twice has the same id."""

    @pytest.fixture(autouse=True)
    def _receivers(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        monkeypatch.setattr(http_post, "_WAIT_MIN_S", 0.001)
        self.receivers: dict[Path, Receiver] = {}
        yield
        for receiver in self.receivers.values():
            receiver.close()

    def open(self, place: Path) -> Sink:
        if place not in self.receivers:
            self.receivers[place] = Receiver()
        receiver = self.receivers[place]
        receiver.answers = [(503, {}), hangs_up]
        return HttpPost(receiver.url, batch_items=3)

    def documents(self, place: Path) -> Documents:
        return self.receivers[place].reader.documents

    def changes(self, place: Path) -> Changes:
        return self.receivers[place].reader.changes


def delivered(sink: HttpPost, tmp_path: Path, **documents: str) -> None:
    class Contract(SinkContract):
        def open(self, place: Path) -> Sink:
            return sink

    rig = node()
    write(rig, 0, **documents)
    with Contract().following(tmp_path, rig) as consumer:
        consumer.go_on()


def torn(handler: Any) -> None:
    handler.wfile.write(b"HTTP/1.1 20")
    handler.close_connection = True


def nonsense(handler: Any) -> None:
    handler.wfile.write(b"\xff\x00\r\n\r\n" * 100)
    handler.close_connection = True


def drips(handler: Any) -> None:
    handler.close_connection = True
    with suppress(OSError):
        for _ in range(1000):
            handler.wfile.write(b"H")
            time.sleep(0.02)


def endless(handler: Any) -> None:
    handler.close_connection = True
    handler.wfile.write(b"HTTP/1.1 500 No\r\n\r\n")
    with suppress(OSError):
        while True:
            handler.wfile.write(bytes(65_536))


@pytest.mark.parametrize(
    "answer", [(500, {}), (429, {"Retry-After": "0"}), (408, {}), torn, nonsense, drips, endless]
)
def test_a_receiver_in_trouble_gets_the_same_request_again(
    receiver: Receiver, tmp_path: Path, answer: Answer
) -> None:
    receiver.answers = [answer]
    delivered(HttpPost(receiver.url, timeout_s=0.3), tmp_path, a="1", b="2")
    assert receiver.reader.documents == {0: {b"a": b"1", b"b": b"2"}}
    (first, body), (second, again) = receiver.requests[:2]
    assert (first["Idempotency-Key"], body) == (second["Idempotency-Key"], again)
    assert b'"id":"0:' in body


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((404, {}), "answers 404 Not Found: mend the receiver, or the URL"),
        ((401, {}), "answers 401"),
        ((302, {"Location": "http://other/"}), "to http://other/; redirects are not followed"),
        ((413, {}), "answers 413"),
    ],
)
def test_a_refusal_is_an_error_in_one_sentence(
    receiver: Receiver, tmp_path: Path, answer: Answer, words: str
) -> None:
    receiver.answers = [answer] * 3
    with pytest.raises(SinkError, match=words) as refused:
        delivered(HttpPost(receiver.url), tmp_path, a="1")
    assert "\n" not in str(refused.value)


def test_what_is_too_large_is_divided(receiver: Receiver, tmp_path: Path) -> None:
    receiver.answers = [(413, {})]
    delivered(HttpPost(receiver.url), tmp_path, a="1", b="2", c="3", d="4")
    assert receiver.reader.documents == {0: {b"a": b"1", b"b": b"2", b"c": b"3", b"d": b"4"}}
    assert len(receiver.requests) >= 3


def test_one_line_that_is_refused_can_be_skipped(receiver: Receiver, tmp_path: Path) -> None:
    receiver.refuses = b"poison"
    sink = HttpPost(receiver.url, refused="skip")
    delivered(sink, tmp_path, a="1", b="poison", c="3", d="4")
    assert receiver.reader.documents == {0: {b"a": b"1", b"c": b"3", b"d": b"4"}}
    assert sink.skipped == 1


def test_requests_have_no_more_lines_and_bytes_than_said(
    receiver: Receiver, tmp_path: Path
) -> None:
    documents = {f"k{number}": "v" for number in range(7)}
    delivered(HttpPost(receiver.url, batch_items=3), tmp_path, **documents)
    assert [body.count(b"\n") for _, body in receiver.requests] == [3, 3, 1]
    receiver.requests.clear()
    (tmp_path / "again").mkdir()
    delivered(HttpPost(receiver.url, batch_bytes=1), tmp_path / "again", **documents)
    assert [body.count(b"\n") for _, body in receiver.requests] == [1] * 7


def test_patience_ends(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        with pytest.raises(SinkError, match=r"given up after 0\.3 s: nothing is lost"):
            delivered(HttpPost(url, timeout_s=0.1, patience_s=0.3), tmp_path, a="1")


@pytest.mark.parametrize("patience_s", [60.0])
def test_it_is_stopped_while_it_waits(tmp_path: Path, patience_s: float) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        sink = HttpPost(url, patience_s=patience_s)
        late = threading.Timer(0.3, sink.stop)
        late.start()
        with pytest.raises(SinkStopped):
            delivered(sink, tmp_path, a="1")
        late.join()


def test_a_login_and_headers_are_sent(receiver: Receiver, tmp_path: Path) -> None:
    url = receiver.url.replace("http://", "http://me:p%40ss@")
    sink = HttpPost(url, headers={"X-Source": "uprmc"})
    delivered(sink, tmp_path, a="1")
    headers, _ = receiver.requests[0]
    assert (headers["Authorization"], headers["X-Source"]) == ("Basic bWU6cEBzcw==", "uprmc")
    assert headers["Content-Type"] == "application/x-ndjson"


@pytest.mark.parametrize("url", ["ftp://a/", "http://", "http://a:99999/", "nothing"])
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(SinkError, match="is no URL"):
        HttpPost(url)
