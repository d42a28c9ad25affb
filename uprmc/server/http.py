"""Health, status and metrics over HTTP, for probes, dashboards and people with curl.

Everything is read only and answers at once from memory. What a stranger can make it do is bounded:
16 KiB of headers (Twisted's limit), no more than `MAX_BODY_BYTES` of body, `REQUEST_S` seconds
for a request however slowly it trickles in, and `MAX_CLIENTS` connections.
"""

# ruff: noqa: N802, N815  # Twisted's names
# mypy: allow-untyped-calls
from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, Protocol, cast

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IAddress
from twisted.internet.protocol import connectionDone
from twisted.python.failure import Failure
from twisted.web import http
from twisted.web.resource import IResource, Resource
from twisted.web.server import Request, Site

from uprmc.errors import InvalidArguments, NotMyVBucket
from uprmc.server.listener import Listener, listen
from uprmc.server.log import Log
from uprmc.server.metrics import Exposition, Metric

MAX_BODY_BYTES = 16 * 1024
REQUEST_S = 10.0
MAX_CLIENTS = 256

SETTING = "server.http"
_JSON = "application/json"
_TEXT = "text/plain; charset=utf-8"

#: First bytes of requests of the binary protocol and of TLS.
_NO_HTTP = b"\x80\x81\x16"
_WRONG_LISTENER = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n"
    b"This is the HTTP listener: "
)

_log = Log("http")

Answer = tuple[int, str, bytes]
Page = Callable[[Request], Answer]


class NodeView(Protocol):
    """What these pages may know of a node. Each call must be quick and change nothing."""

    def ready(self) -> bool:
        """Return whether warm-up is done and requests are served."""

    def status(self) -> dict[str, object]:
        """Return what ``/status.json`` shows; its ``"warmup"`` is the progress on ``/readyz``."""

    def events(self) -> list[dict[str, object]]:
        """Return what ``/events`` shows."""

    def watermarks(self, text: str) -> dict[str, object]:
        """Return what ``/watermarks.json`` shows of the vBucket with this number.

        Raises:
            CommandError: it is no number, or no vBucket has it.
        """

    def metrics(self) -> Iterable[Metric]:
        """Return every number of ``/metrics``."""


def json_answer(code: int, value: object) -> Answer:
    """Make an answer of anything JSON can say; what it cannot is written as text."""
    return code, _JSON, json.dumps(value, default=str).encode() + b"\n"


class Pages:
    """The pages by path, without HTTP around them."""

    def __init__(self, view: NodeView) -> None:
        self._view = view
        self._exposition = Exposition(view.metrics)
        self.by_path: dict[bytes, Page] = {
            b"/healthz": self._healthz,
            b"/readyz": self._readyz,
            b"/status.json": self._status,
            b"/events": self._events,
            b"/watermarks.json": self._watermarks,
            b"/metrics": self._metrics,
        }

    def answer(self, request: Request) -> Answer:
        """Answer a request; a page that fails is a 500 here and a traceback in the log."""
        page = self.by_path.get(request.path)
        if page is None:
            known = [path.decode() for path in self.by_path]
            return json_answer(http.NOT_FOUND, {"error": "no such page", "pages": known})
        if request.method not in (b"GET", b"HEAD"):
            request.setHeader(b"Allow", b"GET, HEAD")
            return json_answer(http.NOT_ALLOWED, {"error": "only GET and HEAD work here"})
        try:
            return page(request)
        except Exception:
            _log.failure("page_failed", path=request.path)
            return json_answer(http.INTERNAL_SERVER_ERROR, {"error": "this page failed; see log"})

    def listeners(self) -> str:
        """Return where the node listens, in one line."""
        found = cast(dict[str, str], self._view.status().get("listeners") or {})
        return " ".join(f"{name}={place}" for name, place in sorted(found.items()))

    def _healthz(self, request: Request) -> Answer:
        return http.OK, _TEXT, b"ok\n"

    def _readyz(self, request: Request) -> Answer:
        if self._view.ready():
            return json_answer(http.OK, {"ready": True})
        progress = self._view.status().get("warmup")
        return json_answer(http.SERVICE_UNAVAILABLE, {"ready": False, "warmup": progress})

    def _status(self, request: Request) -> Answer:
        return json_answer(http.OK, self._view.status())

    def _events(self, request: Request) -> Answer:
        return json_answer(http.OK, {"events": self._view.events()})

    def _watermarks(self, request: Request) -> Answer:
        given = request.args.get(b"vbucket", [b""])[-1].decode("ascii", "replace")
        try:
            return json_answer(http.OK, self._view.watermarks(given))
        except NotMyVBucket:
            return json_answer(http.NOT_FOUND, {"error": "this node does not have that vBucket"})
        except InvalidArguments:
            return json_answer(http.BAD_REQUEST, {"error": "say ?vbucket= and its number"})

    def _metrics(self, request: Request) -> Answer:
        page, content_type = self._exposition.render(request.getHeader("accept") or "")
        return http.OK, content_type, page


class _Root(Resource):
    """Every path ends here."""

    isLeaf = True

    def __init__(self, pages: Pages) -> None:
        super().__init__()
        self._pages = pages

    def render(self, request: Request) -> bytes:
        code, content_type, body = self._pages.answer(request)
        request.setResponseCode(code)
        request.setHeader(b"Content-Type", content_type.encode())
        request.setHeader(b"Content-Length", b"%d" % len(body))
        request.setHeader(b"Cache-Control", b"no-store")
        return b"" if request.method == b"HEAD" else body


class _Request(Request):
    """A request whose body is bounded; nobody here wants one."""

    def gotLength(self, length: int | None) -> None:
        super().gotLength(MAX_BODY_BYTES)  # keeps the body in memory, not in a file
        if length is not None and length > MAX_BODY_BYTES:
            self._too_large()

    def handleContentChunk(self, data: bytes) -> None:
        if cast(Any, self.content).tell() + len(data) > MAX_BODY_BYTES:
            self._too_large()
        else:
            super().handleContentChunk(data)

    def requestReceived(self, command: bytes, path: bytes, version: bytes) -> None:
        if not cast(_Channel, self.channel).refused:
            super().requestReceived(command, path, version)

    def _too_large(self) -> None:
        cast(_Channel, self.channel).refuse(
            b"HTTP/1.1 413 Content Too Large\r\nConnection: close\r\n\r\n"
        )


class _Channel(http.HTTPChannel):
    """A connection whose time runs per request: trickling bytes in does not prolong it."""

    site: Any
    refused = False
    _first = True

    def resetTimeout(self) -> None:
        """Ignored: Twisted calls it for every received byte."""

    def dataReceived(self, data: bytes) -> None:
        if self._first and data[0] in _NO_HTTP:
            site = cast(NodeSite, self.site)
            self.refuse(_WRONG_LISTENER + site.pages.listeners().encode() + b"\n")
        self._first = False
        if not self.refused:
            super().dataReceived(data)

    def refuse(self, answer: bytes) -> None:
        """Answer, hang up and hear no more."""
        if not self.refused:
            self.refused = True
            transport = cast(Any, self.transport)
            transport.write(answer)
            transport.loseConnection()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        cast(NodeSite, self.site).clients -= 1
        super().connectionLost(reason)


class NodeSite(Site):
    """The site of one node, without an access log and with a limit of clients."""

    noisy = False
    displayTracebacks = False
    protocol = _Channel  # type: ignore[assignment]  # Twisted declares a private class

    def __init__(self, view: NodeView, reactor: Any) -> None:
        self.pages = Pages(view)
        root = cast(IResource, _Root(self.pages))
        super().__init__(root, _Request, timeout=REQUEST_S, reactor=reactor)
        self.clients = 0

    def buildProtocol(self, addr: IAddress | None) -> Any:
        if self.clients >= MAX_CLIENTS:
            return None
        self.clients += 1
        return super().buildProtocol(addr)

    def log(self, request: http.Request) -> None:
        """Say nothing: probes come every few seconds."""


def listen_http(reactor: Any, text: str, view: NodeView, backlog: int) -> Deferred[Listener | None]:
    """Serve the pages at the place that `text` describes; fires with None when that is ``off``.

    Fails as `listener.listen` does.
    """
    if text == "off":
        return succeed(None)
    site = NodeSite(view, reactor)
    return listen(reactor, text, site, setting=SETTING, backlog=backlog).addCallback(lambda it: it)
