"""Health, status and metrics over HTTP, for probes, dashboards and people with curl.

Everything is read only and answers at once from memory. What a stranger can make it do is bounded
by `uprmc.web`: no more than `MAX_BODY_BYTES` of body, `REQUEST_S` seconds for a request, and
`MAX_CLIENTS` connections besides those of readers that stay. What answers wait for their clients is
in the node's account of buffers.
"""

# ruff: noqa: N815  # Twisted's names
# mypy: allow-untyped-calls
from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from importlib.resources import files
from socket import gethostname
from typing import Any, Protocol, cast

from twisted.internet.defer import Deferred, succeed
from twisted.python.failure import Failure
from twisted.web import http
from twisted.web.resource import IResource, Resource
from twisted.web.server import NOT_DONE_YET, Request

from uprmc.config import UNIX_MODE, HttpSettings, ServerSettings, Settings
from uprmc.errors import InvalidArguments, NotMyVBucket, StreamNotFound
from uprmc.metrics import Exposition, Metric
from uprmc.places import parsed
from uprmc.server.access import Access
from uprmc.server.connections import RESERVED_FILES, share_of_files
from uprmc.server.endless import Admit, Endless
from uprmc.server.http_gate import OPEN_PATHS, gate, role_of_page
from uprmc.server.listener import Listener, listen
from uprmc.server.log import Log
from uprmc.server.outflow import EVENT_STREAM, BadQuestion
from uprmc.server.slices import LongWork
from uprmc.server.tls import ServedTls
from uprmc.web import Account, KnownHosts, LimitedSite

MAX_BODY_BYTES = 16 * 1024

#: A URL, or a header, may have a token of `/changes` for 1,024 vBuckets.
MAX_LINE_BYTES = 48 * 1024
REQUEST_S = 10.0
MAX_CLIENTS = 144

#: No more than one in this many of the node's open files are connections for pages.
FILES_PART = 3

#: When a client that was refused for lack of room may come again.
RETRY_S = 5

SETTING = "server.http"
_JSON = "application/json"
_TEXT = "text/plain; charset=utf-8"

_FILES = {
    b"/": ("page.html", "text/html; charset=utf-8"),
    b"/page.css": ("page.css", "text/css; charset=utf-8"),
    **{
        b"/%s.js" % name: (f"{name.decode()}.js", "text/javascript; charset=utf-8")
        for name in (b"draw", b"panels", b"summary", b"page")
    },
}

#: The page needs nothing from elsewhere, and no text that is written into it is run.
_POLICY = (
    b"default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src data:"
)

_WRONG_LISTENER = b"This is the HTTP listener: "

_log = Log("http")

Answer = tuple[int, str, bytes]
#: What a page returns; ``None`` = it is answered bit by bit.
Page = Callable[[Request], Answer | None]


class NodeView(Protocol):
    """What these pages may know of a node. Each call must be quick and change nothing."""

    def ready(self) -> bool:
        """Return whether warm-up is done and requests are served."""

    def status(self) -> dict[str, object]:
        """Return what ``/status.json`` shows; its ``"warmup"`` is the progress on ``/readyz``."""

    def events(self) -> list[dict[str, object]]:
        """Return what ``/events`` shows."""

    def vbucket(self, text: str) -> dict[str, object]:
        """Return what ``/vbucket.json`` shows of the vBucket with this number.

        Raises:
            CommandError: it is no number, or no vBucket has it.
        """

    def watermarks(self, text: str) -> dict[str, object]:
        """Return what ``/watermarks.json`` shows of the vBucket with this number.

        Raises:
            CommandError: it is no number, or no vBucket has it.
        """

    def consumer(self, name: str) -> Generator[None, None, dict[str, object]]:
        """Return the steps of what ``/consumer.json`` shows of the consumer with this name.

        Raises:
            StreamNotFound: there is none, in the first step.
        """

    def metrics(self) -> Iterable[Metric | None]:
        """Return every number of ``/metrics``."""


def json_answer(code: int, value: object) -> Answer:
    """Make an answer of anything JSON can say; what it cannot is written as text."""
    return code, _JSON, json.dumps(value, default=str).encode() + b"\n"


_FAILED = json_answer(http.INTERNAL_SERVER_ERROR, {"error": "this page failed; see log"})


class Pages:
    """The pages by path, without HTTP around them."""

    def __init__(
        self, view: NodeView, endless: Endless | None = None, work: LongWork | None = None
    ) -> None:
        self._view = view
        self._work = work
        self._endless = endless or Endless({}, {})
        self._exposition = Exposition(view.metrics)
        self.by_path: dict[bytes, Page] = {
            b"/healthz": self._healthz,
            b"/readyz": self._readyz,
            b"/status.json": self._status,
            b"/events": self._events,
            b"/watermarks.json": self._watermarks,
            b"/vbucket.json": self._vbucket,
            b"/consumer.json": self._consumer,
            b"/metrics": self._metrics,
            **{path: _static(*file) for path, file in _FILES.items()},
        }

    def answer(self, request: Request) -> Answer | None:
        """Answer a request; a page that fails is a 500 here and a traceback in the log.

        ``None`` = the request is answered bit by bit.
        """
        endless = self._endless.find(request)
        page = self.by_path.get(request.path)
        if page is None and endless is None:
            known = [path.decode() for path in (*self.by_path, *self._endless.paths)]
            return json_answer(http.NOT_FOUND, {"error": "no such page", "pages": known})
        if request.method not in (b"GET", b"HEAD"):
            request.setHeader(b"Allow", b"GET, HEAD")
            return json_answer(http.NOT_ALLOWED, {"error": "only GET and HEAD work here"})
        try:
            return page(request) if endless is None and page else _begun(request, endless)
        except BadQuestion as error:
            return json_answer(http.BAD_REQUEST, {"error": str(error)})
        except Exception:
            _log.failure("page_failed", path=request.path)
            return _FAILED

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

    def _vbucket(self, request: Request) -> Answer:
        return self._of_vbucket(request, self._view.vbucket)

    def _watermarks(self, request: Request) -> Answer:
        return self._of_vbucket(request, self._view.watermarks)

    def _of_vbucket(self, request: Request, facts: Callable[[str], dict[str, object]]) -> Answer:
        given = request.args.get(b"vbucket", [b""])[-1].decode("ascii", "replace")
        try:
            return json_answer(http.OK, facts(given))
        except NotMyVBucket:
            return json_answer(http.NOT_FOUND, {"error": "this node does not have that vBucket"})
        except InvalidArguments:
            return json_answer(http.BAD_REQUEST, {"error": "say ?vbucket= and its number"})

    def _metrics(self, request: Request) -> Answer | None:
        accept = request.getHeader("accept") or ""

        def steps() -> Generator[None, None, Answer]:
            page, content_type = yield from self._exposition.steps(accept)
            return http.OK, content_type, page

        return self._in_steps(request, steps())

    def _consumer(self, request: Request) -> Answer | None:
        name = request.args.get(b"name", [b""])[-1].decode("utf-8", "replace")

        def steps() -> Generator[None, None, Answer]:
            try:
                return json_answer(http.OK, (yield from self._view.consumer(name)))
            except StreamNotFound:
                return json_answer(http.NOT_FOUND, {"error": "no consumer has this name now"})

        return self._in_steps(request, steps())

    def _in_steps(self, request: Request, steps: Generator[None, None, Answer]) -> Answer | None:
        """Answer a request with what is made in steps, a little in each turn."""
        if self._work is None:
            return _at_once(steps)
        gone: list[object] = []
        request.notifyFinish().addErrback(gone.append)

        def answer(made: Answer) -> None:
            if not gone:
                request.write(_put(request, made))
                request.finish()

        def failed(why: Failure) -> Answer:
            _log.error("page_failed", path=request.path, error=why.getErrorMessage())
            return _FAILED

        self._work.do(steps).addErrback(failed).addCallback(answer)
        return None


def _at_once(steps: Generator[None, None, Answer]) -> Answer:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return cast(Answer, end.value)


def _begun(request: Request, admit: Admit | None) -> Answer | None:
    """Begin an answer without an end."""
    if request.method == b"HEAD" or admit is None:
        return http.OK, EVENT_STREAM, b""
    if admit(request):
        return None
    request.setHeader(b"Retry-After", b"%d" % RETRY_S)
    return json_answer(http.SERVICE_UNAVAILABLE, {"error": "too many readers; try again later"})


class _Root(Resource):
    """Every path ends here."""

    isLeaf = True

    def __init__(self, pages: Pages) -> None:
        super().__init__()
        self._pages = pages

    def render(self, request: Request) -> bytes:
        answer = self._pages.answer(request)
        if answer is None:
            return cast(bytes, NOT_DONE_YET)
        return _put(request, answer)


def _put(request: Request, answer: Answer) -> bytes:
    """Set the headers of an answer; return what follows them."""
    code, content_type, body = answer
    request.setResponseCode(code)
    request.setHeader(b"Content-Type", content_type.encode())
    request.setHeader(b"Content-Length", b"%d" % len(body))
    request.setHeader(b"Cache-Control", b"no-store")
    request.setHeader(b"Content-Security-Policy", _POLICY)
    request.setHeader(b"X-Content-Type-Options", b"nosniff")
    return b"" if request.method == b"HEAD" else body


def _static(name: str, content_type: str) -> Page:
    body = files("uprmc.server").joinpath("page", name).read_bytes()
    return lambda _: (http.OK, content_type, body)


def _clients_max(settings: HttpSettings) -> int:
    return share_of_files(MAX_CLIENTS + settings.readers, FILES_PART)


def reserved_files(settings: Settings) -> int:
    """Return how many descriptors a node needs beside client connections, by what is on."""
    if settings.server.http == "off":
        return RESERVED_FILES
    return RESERVED_FILES + _clients_max(settings.http) + settings.http.stream_files


def node_site(
    view: NodeView,
    reactor: Any,
    endless: Endless | None = None,
    work: LongWork | None = None,
    settings: HttpSettings | None = None,
    account: Account | None = None,
    hosts: KnownHosts | None = None,
) -> LimitedSite:
    """Return the site of one node."""
    pages = Pages(view, endless, work)
    return LimitedSite(
        cast(IResource, _Root(pages)),
        reactor,
        hint=lambda: _WRONG_LISTENER + pages.listeners().encode(),
        request_s=REQUEST_S,
        clients_max=_clients_max(settings or HttpSettings()),
        body_max=MAX_BODY_BYTES,
        line_max=MAX_LINE_BYTES,
        account=account,
        hosts=hosts,
        open_paths=OPEN_PATHS,
    )


def known_hosts(settings: ServerSettings, *places: str) -> KnownHosts:
    """Return the names by which the listeners for HTTP may be called.

    `places` are others by which this machine is known, as HOST:PORT.
    """
    names = [*settings.http_hosts.split(","), gethostname()]
    for place in (settings.http, settings.views, *places):
        with suppress(ValueError):  # off, or an endpoint
            names.append(parsed(place.strip(), least_port=0).host)
    return KnownHosts(names, "server.http_hosts")


def listen_http(
    reactor: Any,
    text: str,
    view: NodeView,
    backlog: int,
    endless: Endless | None = None,
    access: Access | None = None,
    work: LongWork | None = None,
    settings: HttpSettings | None = None,
    account: Account | None = None,
    tls: ServedTls | None = None,
    hosts: KnownHosts | None = None,
    mode: int = UNIX_MODE,
) -> Deferred[Listener | None]:
    """Serve the pages at the place that `text` describes; fires with None when that is ``off``.

    `access` knows who may see them, ``None`` = everybody. `work` takes what is long. `account`
    counts what answers hold. With `tls` it is HTTPS. `hosts` are its names, ``None`` = any. `mode`
    is meant, and it fails, as of `listener.listen`.
    """
    if text == "off":
        return succeed(None)
    site = node_site(view, reactor, endless, work, settings, account, hosts)
    if access is not None:
        gate(site, access, "http", role_of_page)
    listening = listen(reactor, text, site, setting=SETTING, backlog=backlog, tls=tls, mode=mode)
    return listening.addCallback(lambda it: it)
