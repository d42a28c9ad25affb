"""Designs and queries over HTTP, in the form of Couchbase's views.

Every answer is JSON but that of ``/metrics``. What is refused has a status, a word for programs and
a sentence for people. What a client can make this process hold is bounded: by `uprmc.web` for what
comes in, by `answering` for what goes out.

Source: contracts section 4.
"""

# ruff: noqa: N802, N815  # Twisted's names
# mypy: allow-untyped-calls
from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Iterator
from inspect import isawaitable
from typing import Any, NamedTuple, cast

from twisted.internet.defer import CancelledError, Deferred
from twisted.python.failure import Failure
from twisted.web.resource import IResource, Resource
from twisted.web.server import NOT_DONE_YET, Request

from uprmc import __version__
from uprmc.config import IndexSettings
from uprmc.index.errors import Refused, bad_request, not_found
from uprmc.index.interfaces import Group, Service
from uprmc.index.query_times import QueryTimes
from uprmc.index.requests import (
    BUCKET,
    Asked,
    asked,
    checked_name,
    json_object,
    no_options,
    number,
    vbuckets,
)
from uprmc.index.scatter import Scatter
from uprmc.index.view_page import ViewPage, traceback_of
from uprmc.metrics import Exposition, Metric
from uprmc.web import LimitedChannel, LimitedSite

#: A request comes in completely in this time, and a connection may idle for it.
REQUEST_S = 60.0

_WRONG_LISTENER = b"This is the HTTP listener for views of the index."
_JSON = b"application/json"

_LOG = logging.getLogger("uprmc.index")


class Reply(NamedTuple):
    """An answer that is there in one piece."""

    status: int
    body: bytes
    content_type: bytes = _JSON


def json_reply(status: int, value: object) -> Reply:
    """Return an answer of anything that JSON can say."""
    return Reply(status, json.dumps(value, default=str).encode() + b"\n")


#: Handles a request; ``None`` = the answer is under way already.
_Handler = Callable[[Request, Asked], Awaitable[Reply | None]]


class Pages:
    """What there is by path and method.

    Args:
        service: all designs.
        settings: limits.
        reactor, pool: for answers in pieces.
        addresses: by which this listener is reached.
        scatter: asks other nodes, too; ``None`` = this one only.
    """

    def __init__(
        self,
        service: Service,
        settings: IndexSettings,
        reactor: Any,
        pool: Any,
        addresses: Callable[[], list[str]],
        scatter: Scatter | None = None,
    ) -> None:
        self._service, self._settings, self._scatter = service, settings, scatter
        self.times = QueryTimes()
        self._views = ViewPage(service, settings, reactor, pool, addresses, self.times, scatter)
        self._exposition = Exposition(self._metrics)

    def handlers(self, path: tuple[str, ...]) -> dict[str, _Handler]:
        """Return what each method does with a path; raise `Refused` if there is no such path."""
        match path:
            case ("",):
                return {"GET": self._root}
            case ("metrics",):
                return {"GET": self._metrics_page}
            case ("default", "_design"):
                return {"GET": self._list}
            case ("default", "_vbuckets"):
                return {"GET": self._vbuckets}
            case ("default", "_design", _):
                return {"GET": self._get, "PUT": self._put, "DELETE": self._delete}
            case ("default", "_design", _, "_view", _):
                return {"GET": self._views.answer, "POST": self._views.answer}
            case ("default", "_design", _, "_info"):
                return {"GET": self._info}
            case ("default", "_design", _, verb) if verb in self._verbs():
                return {"POST": self._verbs()[verb]}
        if path[0] != BUCKET and len(path) > 1:
            raise not_found(f"there is one bucket, {BUCKET!r}")
        raise not_found(f"there is no such page; designs are at /{BUCKET}/_design/NAME")

    def _verbs(self) -> dict[str, _Handler]:
        return {
            "_compact": self._compact,
            "_set_states": self._set_states,
            "_monitor": self._monitor,
            "_undo": self._undo,
        }

    # --- the listener -------------------------------------------------------------------------

    async def _root(self, request: Request, it: Asked) -> Reply:
        found = {"uprmc": __version__, "bucket": BUCKET, "designs": f"/{BUCKET}/_design"}
        return json_reply(200, found)

    async def _metrics_page(self, request: Request, it: Asked) -> Reply:
        page, content_type = self._exposition.render(request.getHeader("accept") or "")
        return Reply(200, page, content_type.encode())

    def _metrics(self) -> Iterator[Metric]:
        yield from self._service.metrics()
        yield from self.times.metrics()
        if self._scatter is not None:
            yield from self._scatter.metrics()

    # --- designs ------------------------------------------------------------------------------

    async def _list(self, request: Request, it: Asked) -> Reply:
        local = no_options(it.options, "local").get("local") == "true"
        rows = {name: self._listed(name) for name in self._service.names()}
        if self._scatter is not None and not local:
            rows = await self._scatter.all.listed() | rows
        found = [rows[name] for name in sorted(rows)]
        return json_reply(200, {"total_rows": len(found), "rows": found})

    def _listed(self, name: str) -> dict[str, Any]:
        group = self._service.group(name)
        info = group.info()
        return {
            "id": f"_design/{name}",
            "name": name,
            "views": [view.name for view in group.design.views],
            "signature": group.design.signature,
            "state": info.get("state"),
            "rows": info.get("rows"),
        }

    async def _get(self, request: Request, it: Asked) -> Reply:
        """Return what was put last; to a merger, what answers here."""
        options = no_options(it.options, "local", "rev")
        name = _design_of(it)
        if options.get("local") == "true":
            return Reply(200, self._service.group(name, "rev" in options).design.text)
        try:
            design = await settled(self._service.get(name))
        except Refused as refused:
            if self._scatter is None or refused.status != 404:
                raise
            design = await self._scatter.design(name)
        return Reply(200, design.text)

    async def _put(self, request: Request, it: Asked) -> Reply:
        local = no_options(it.options, "local").get("local") == "true"
        name = _design_of(it)
        if not it.body:
            raise bad_request("the body is the design, a JSON object with views")
        if len(it.body) > self._settings.max_definition_bytes:
            raise Refused(413, "too_large", "the design is larger than index.max_definition_bytes")
        if self._scatter is not None and not local:
            await self._scatter.put(name, it.body)
        else:
            await settled(self._service.put(name, it.body))
        return json_reply(201, {"ok": True, "id": f"_design/{name}"})

    async def _delete(self, request: Request, it: Asked) -> Reply:
        local = no_options(it.options, "local").get("local") == "true"
        name = _design_of(it)
        if self._scatter is not None and not local:
            await self._scatter.delete(name)
        else:
            await settled(self._service.delete(name))
        return json_reply(200, {"ok": True, "id": f"_design/{name}"})

    async def _undo(self, request: Request, it: Asked) -> Reply:
        local = no_options(it.options, "local").get("local") == "true"
        name = _design_of(it)
        if self._scatter is not None and not local:
            await self._scatter.undo(name)
        else:
            await settled(self._service.undo(name))
        return json_reply(200, {"ok": True, "id": f"_design/{name}"})

    # --- their indexes ------------------------------------------------------------------------

    def _group(self, it: Asked) -> Group:
        new = no_options(it.options, "rev", "connection_timeout", "local").get("rev")
        if new not in (None, "new"):
            raise bad_request("rev is new, or not given")
        return self._service.group(_design_of(it), new is not None)

    async def _info(self, request: Request, it: Asked) -> Reply:
        """Answer for this node; a merger without the design answers with what the others say."""
        try:
            return json_reply(200, self._group(it).info())
        except Refused as refused:
            options = dict(it.options)
            if self._scatter is None or "local" in options or refused.status != 404:
                raise
        return json_reply(200, await self._scatter.all.info(_design_of(it)))

    async def _vbuckets(self, request: Request, it: Asked) -> Reply:
        """What of a design a merger may ask this node for."""
        options = no_options(it.options, "design", "rev")
        name = checked_name("design", options.get("design", ""))
        group = self._service.group(name, "rev" in options)
        found = {**group.placement(), "signature": group.design.signature}
        return json_reply(200, found)

    async def _compact(self, request: Request, it: Asked) -> Reply:
        await settled(self._group(it).compact())
        return json_reply(202, {"ok": True})

    async def _set_states(self, request: Request, it: Asked) -> Reply:
        lists = ("active", "passive", "cleanup", "pause")
        given = json_object(it.body, *lists, "epoch")
        states: dict[str, Any] = {
            name: vbuckets(name, given[name]) if name in given else None for name in lists
        }
        if all(state is None for state in states.values()):
            raise bad_request(f"the body names none of {', '.join(lists)}")
        epoch = number("epoch", given["epoch"]) if "epoch" in given else None
        await settled(self._group(it).set_states(**states, epoch=epoch))
        return json_reply(200, {"ok": True})

    async def _monitor(self, request: Request, it: Asked) -> Reply:
        group = self._group(it)
        given = json_object(it.body, "vbucket", "seqno", "vb_uuid")
        if given.keys() != {"vbucket", "seqno", "vb_uuid"}:
            raise bad_request("the body names vbucket, seqno and vb_uuid")
        wanted = {name: number(name, value) for name, value in given.items()}
        timeout_ms = dict(it.options).get("connection_timeout")
        timeout_s = self._settings.connection_timeout_s
        if timeout_ms is not None:
            timeout_s = number("connection_timeout", timeout_ms, 86_400_000) / 1_000
        await group.monitor(
            wanted["vbucket"], wanted["seqno"], wanted["vb_uuid"], timeout_s=timeout_s
        )
        return json_reply(200, {"ok": True, **wanted, "vb_uuid": str(wanted["vb_uuid"])})


def _design_of(it: Asked) -> str:
    return checked_name("design", it.path[2])


async def settled(result: Any) -> Any:
    """Return what a call came to, whether it was done at once or not."""
    return await result if isawaitable(result) else result


class _Root(Resource):
    """Every path ends here."""

    isLeaf = True

    def __init__(self, pages: Pages, origins: str) -> None:
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
        it = asked(request)
        shared = self._share(request)
        handlers = self._pages.handlers(it.path)
        if it.method == "OPTIONS" and shared:
            return _preflight(request, [*handlers])
        handler = handlers.get("GET" if it.method == "HEAD" else it.method)
        if it.method not in ("GET", "HEAD") and request.getHeader("origin") and not shared:
            reason = "web pages may change nothing here unless index.cors_origins names them"
            raise Refused(403, "forbidden", reason)
        if handler is None:
            allowed = [*handlers, *(["HEAD"] if "GET" in handlers else [])]
            request.setHeader(b"Allow", ", ".join(allowed).encode())
            reason = f"only {' and '.join(handlers)} work here"
            raise Refused(405, "method_not_allowed", reason)
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
        if not isinstance(error, Refused):
            _LOG.error("request failed: %r", request.path, exc_info=traceback_of(failure))
            error = Refused(500, "internal_error", "this request failed; the log says why")
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


class _Channel(LimitedChannel):
    """A connection that holds little of what its client does not read."""

    def connectionMade(self) -> None:
        from uprmc.index.answering import UNSENT_MAX_BYTES

        super().connectionMade()
        cast(Any, self.transport).bufferSize = UNSENT_MAX_BYTES


class ViewsSite(LimitedSite):
    """The site of an index."""

    protocol = _Channel


def views_site(
    service: Service,
    settings: IndexSettings,
    reactor: Any,
    pool: Any,
    addresses: Callable[[], list[str]],
    scatter: Scatter | None = None,
) -> ViewsSite:
    """Return the site; see `Pages`. The caller starts and stops the pool."""
    pages = Pages(service, settings, reactor, pool, addresses, scatter)
    return ViewsSite(
        cast(IResource, _Root(pages, settings.cors_origins)),
        reactor,
        hint=lambda: _WRONG_LISTENER,
        request_s=REQUEST_S,
        clients_max=settings.connections,
        body_max=max(settings.max_definition_bytes, settings.max_request_bytes),
    )
