"""The site of an index: how requests are answered and refused, and which web pages may ask.

Every answer is JSON but that of ``/metrics``. What is refused has a status, a word for programs and
a sentence for people. What a client can make this process hold is bounded: by `uprmc.web` for what
comes in, by `http_request` for what goes out. What there is to be asked is in `pages`.
"""

# ruff: noqa: N802, N815  # Twisted's names
# mypy: allow-untyped-calls

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, cast

from twisted.internet.defer import CancelledError, Deferred
from twisted.python.failure import Failure
from twisted.web.resource import IResource, Resource
from twisted.web.server import NOT_DONE_YET, Request

from uprmc.config import IndexSettings
from uprmc.index.account import AnswerAccount, Holding, cost_of
from uprmc.index.errors import IndexDamaged, QueryRefused
from uprmc.index.http_request import UNSENT_MAX_BYTES, http_request, path_parts
from uprmc.index.pages import IndexPages, Reply, json_reply, traceback_of
from uprmc.index.scatter import Scatter
from uprmc.index.service import Service
from uprmc.login.users import Role
from uprmc.web import KnownHosts, LimitedChannel, LimitedRequest, LimitedSite, last_answer

#: A request comes in completely in this time, and a connection may idle for it.
REQUEST_S = 60.0

_WRONG_LISTENER = b"This is the HTTP listener for views of the index."

_LOG = logging.getLogger("uprmc.index")


def role_of_views(request: Request) -> Role | None:
    """Return the role that a request needs, by the same reading of its path as serves it."""
    if request.method == b"OPTIONS":
        return None  # browsers ask without a login what they may ask
    is_read = request.method in (b"GET", b"HEAD")
    try:
        path = path_parts(request)
    except QueryRefused:
        path = ()  # it is refused to whoever may come in
    if is_read:
        return Role.MONITOR if path in (("",), ("metrics",)) else Role.READ
    is_query = request.method == b"POST" and path[1::2] == ("_design", "_view") and len(path) == 5
    return Role.READ if is_query else Role.MANAGE


class _Root(Resource):
    """Every path ends here."""

    isLeaf = True

    def __init__(self, pages: IndexPages, origins: str) -> None:
        super().__init__()
        self._pages = pages
        self._origins = frozenset(each.strip() for each in origins.split(",") if each.strip())

    def render(self, request: Request) -> int:
        answering = Deferred.fromCoroutine(self._answer(request))
        request.notifyFinish().addErrback(lambda _: answering.cancel())
        answering.addCallbacks(
            lambda reply: None if reply is None else _send(request, reply),
            lambda failure: self._refuse(request, failure),
        )
        answering.addErrback(lambda it: _LOG.error("answer failed", exc_info=traceback_of(it)))
        return NOT_DONE_YET

    async def _answer(self, request: Request) -> Reply | None:
        it = http_request(request)
        cast(_Request, request).memory.need(cost_of([request.uri, it.body]))
        shared = self._share(request)
        handlers = self._pages.handlers(it.path)
        if it.method == "OPTIONS" and shared:
            return _preflight(request, [*handlers])
        handler = handlers.get("GET" if it.method == "HEAD" else it.method)
        if it.method not in ("GET", "HEAD") and request.getHeader("origin") and not shared:
            reason = "web pages may change nothing here unless index.cors_origins names them"
            raise QueryRefused(403, "forbidden", reason)
        if handler is None:
            allowed = [*handlers, *(["HEAD"] if "GET" in handlers else [])]
            request.setHeader(b"Allow", ", ".join(allowed).encode())
            reason = f"only {' and '.join(allowed)} {'works' if len(allowed) == 1 else 'work'} here"
            raise QueryRefused(405, "method_not_allowed", reason)
        return await handler(request, it)

    def _share(self, request: Request) -> bool:
        """Let pages of the origins that the setting names read the answer."""
        origin = request.getHeader("origin")
        if origin is None or not self._origins:
            return False
        request.setHeader(b"Vary", b"Origin")
        if origin not in self._origins and "*" not in self._origins:
            return False
        request.setHeader(b"Access-Control-Allow-Origin", origin.encode("utf-8", "replace"))
        return True

    def _refuse(self, request: Request, failure: Failure) -> None:
        if failure.check(CancelledError):
            return
        error = failure.value
        if isinstance(error, IndexDamaged | OSError):
            _LOG.error("request failed: %r: %s", request.path, error)
            more = "; the index is built again" if isinstance(error, IndexDamaged) else ""
            error = QueryRefused(
                500, "unreadable", f"a file of the index cannot be used: {error}{more}"
            )
        if not isinstance(error, QueryRefused):
            _LOG.error("request failed: %r", request.path, exc_info=traceback_of(failure))
            error = QueryRefused(500, "internal_error", "this request failed; the log says why")
        self._pages.times.refuse(error.error)
        if request.startedWriting:
            cast(Any, request).channel.forceAbortClient()
        else:
            _send(request, json_reply(error.status, error.body()))


def _preflight(request: Request, methods: list[str]) -> Reply:
    request.setHeader(b"Access-Control-Allow-Methods", ", ".join(methods).encode())
    request.setHeader(b"Access-Control-Allow-Headers", b"Content-Type")
    request.setHeader(b"Access-Control-Max-Age", b"600")
    return Reply(204, b"")


def _send(request: Request, reply: Reply) -> None:
    if cast(Any, request)._disconnected:
        return
    request.setResponseCode(reply.status)
    request.setHeader(b"Content-Type", reply.content_type)
    request.setHeader(b"Content-Length", b"%d" % len(reply.body))
    request.setHeader(b"Cache-Control", b"no-store")
    if request.method != b"HEAD" and reply.body:
        request.write(reply.body)
    request.finish()


class _Request(LimitedRequest):
    """A request that holds memory of the account until it is answered, or its client is gone."""

    def __init__(self, channel: Any, *given: Any, **named: Any) -> None:
        super().__init__(channel, *given, **named)
        self.memory = Holding(channel.site.memory)

    def handleContentChunk(self, data: bytes) -> None:
        if self.memory.grow(len(data)):
            super().handleContentChunk(data)
            return
        channel = cast(_Channel, self.channel)
        busy = channel.site.memory.busy()
        channel.refuse(last_answer("503 Service Unavailable", busy.reason, busy.error))

    def finish(self) -> None:
        super().finish()
        self.memory.release()

    def connectionLost(self, reason: Failure) -> None:
        self.memory.release()
        super().connectionLost(reason)


class _Channel(LimitedChannel):
    """A connection that holds little of what its client does not read."""

    def connectionMade(self) -> None:
        super().connectionMade()
        cast(Any, self.transport).bufferSize = UNSENT_MAX_BYTES


class ViewsSite(LimitedSite):
    """The site of an index.

    Attributes:
        memory: what requests and answers hold.
    """

    protocol = _Channel

    def __init__(self, root: IResource, reactor: Any, memory: AnswerAccount, **named: Any) -> None:
        super().__init__(root, reactor, account=memory, **named)
        self.memory = memory
        self.requestFactory = _Request


def views_site(
    service: Service,
    settings: IndexSettings,
    reactor: Any,
    pool: Any,
    addresses: Callable[[], list[str]],
    scatter: Scatter | None = None,
    hosts: KnownHosts | None = None,
) -> ViewsSite:
    """Return the site; see `IndexPages`. The caller starts and stops the pool."""
    memory = AnswerAccount(settings.request_memory)
    pages = IndexPages(service, settings, reactor, pool, addresses, memory, scatter)
    return ViewsSite(
        cast(IResource, _Root(pages, settings.cors_origins)),
        reactor,
        memory,
        hint=lambda: _WRONG_LISTENER,
        request_s=REQUEST_S,
        clients_max=settings.connections,
        body_max=max(settings.max_definition_bytes, settings.max_request_bytes),
        hosts=hosts,
    )
