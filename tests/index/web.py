"""The site of an index in memory: a clock and a pool driven by hand, readers as slow as wanted."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from typing import Any

from twisted.internet.testing import MemoryReactorClock

from tests.index.fake_index import FakeService
from tests.server.support import PEER, SlowTransport
from uprmc.config import IndexSettings
from uprmc.index.http import ViewsSite, views_site


class HandReactor(MemoryReactorClock):
    """Threads are not there: what they would say is said at once."""

    def callFromThread(self, call: Callable[..., Any], *given: Any, **named: Any) -> None:  # noqa: N802
        call(*given, **named)


class HandPool:
    """Work of threads, done when `work` is called."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[Callable[..., None], Callable[[], Any]]] = deque()

    def callInThreadWithCallback(  # noqa: N802
        self, done: Callable[..., None], call: Callable[..., Any], *given: Any, **named: Any
    ) -> None:
        self.waiting.append((done, lambda: call(*given, **named)))

    def work(self, most: int = 1_000_000) -> None:
        while self.waiting and most:
            most -= 1
            done, call = self.waiting.popleft()
            try:
                result = call()
            except Exception as error:
                done(False, _failure(error))
            else:
                done(True, result)


def _failure(error: Exception) -> Any:
    from twisted.python.failure import Failure

    return Failure(error)


class Slow(SlowTransport):
    """Counts what is written in several parts, too."""

    def writeSequence(self, data: Any) -> None:  # noqa: N802
        self.write(b"".join(data))


class Reply:
    """An answer, taken apart."""

    def __init__(self, channel: Any) -> None:
        self.channel, self.transport = channel, channel.transport
        head, _, body = self.transport.value().partition(b"\r\n\r\n")
        lines = head.decode().split("\r\n")
        self.code = int(lines[0].split()[1]) if lines[0] else 0
        self.headers = dict(line.lower().split(": ", 1) for line in lines[1:])
        self.complete = True
        if self.headers.get("transfer-encoding") == "chunked":
            body = self._joined(body)
        self.body = body

    def _joined(self, body: bytes) -> bytes:
        found = b""
        while body:
            size, _, rest = body.partition(b"\r\n")
            if size == b"0":
                return found
            count = int(size, 16)
            found, body = found + rest[:count], rest[count + 2 :]
        self.complete = False
        return found

    @property
    def json(self) -> Any:
        assert self.headers["content-type"] == "application/json"
        return json.loads(self.body)


class Web:
    """A site with a service, and clients."""

    def __init__(self, service: Any = None, scatter: Any = None, **settings: Any) -> None:
        self.service = service or FakeService()
        self.reactor = HandReactor()
        self.pool = HandPool()
        self.site: ViewsSite = views_site(
            self.service,
            IndexSettings(**settings),
            self.reactor,
            self.pool,
            lambda: ["127.0.0.1:8092"],
            scatter,
        )

    def connect(self, limit: int = 65_536) -> Any:
        channel = self.site.buildProtocol(PEER)
        channel.makeConnection(Slow(limit))
        return channel

    def send(self, data: bytes, limit: int = 65_536) -> Reply:
        """Send bytes on a new connection."""
        channel = self.connect(limit)
        channel.dataReceived(data)
        self.pool.work()
        return Reply(channel)

    def ask(self, method: str, path: str, body: Any = None, *headers: str) -> Reply:
        """Send a request whose body is bytes, or a JSON value."""
        if body is None:
            content = b""
        else:
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = [f"{method} {path} HTTP/1.1", "Host: h", *headers]
        if body is not None:
            lines.append(f"Content-Length: {len(content)}")
        head = "".join(f"{line}\r\n" for line in lines) + "\r\n"
        return self.send(head.encode("latin-1") + content)

    def get(self, path: str) -> Reply:
        return self.ask("GET", path)
