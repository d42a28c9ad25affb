"""The site of an index: how requests are answered and refused, and which web pages may ask.

Every answer is JSON but that of ``/metrics``. What is refused has a status, a word for programs and
a sentence for people. What a client can make this process hold is bounded: by `uprmc.web` for what
comes in, by `http_request` for what goes out.
"""

# ruff: noqa: N802, N815  # Twisted's names
# mypy: allow-untyped-calls

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from itertools import count
from typing import Any, NamedTuple, cast

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.threads import deferToThreadPool
from twisted.python.failure import Failure
from twisted.web.resource import IResource, Resource
from twisted.web.server import NOT_DONE_YET, Request

from uprmc import __version__
from uprmc.config import IndexSettings
from uprmc.index.design import BUCKET, DESIGNS, Design
from uprmc.index.errors import (
    IndexDamaged,
    IndexRolledBack,
    QueryRefused,
    Replaced,
    bad_request,
    not_found,
    outdated,
)
from uprmc.index.group import Group
from uprmc.index.http_request import (
    UNSENT_MAX_BYTES,
    AnswerAccount,
    Holding,
    HttpAnswer,
    HttpRequest,
    Pieces,
    QueryTimes,
    ThreadPieces,
    checked_name,
    cost_of,
    http_request,
    json_body,
    json_object,
    kind_of,
    number,
    path_parts,
    url_options,
    vbuckets,
)
from uprmc.index.json_text import well_formed
from uprmc.index.model import Lost
from uprmc.index.query import PIECE_BYTES, run
from uprmc.index.query_options import OPTIONS, Query, partition_of
from uprmc.index.scatter import Scatter
from uprmc.index.service import Service
from uprmc.login.users import Role
from uprmc.metrics import Exposition, Metric
from uprmc.web import KnownHosts, LimitedChannel, LimitedRequest, LimitedSite, last_answer

# --- pages ----------------------------------------------------------------------------------------
# What there is by path and method: designs, their indexes, metrics.


#: Options of more than this are read by a thread: they may hold many keys.
_AT_ONCE_BYTES = 2 * 1024

#: What an answer may hold at a time: rows that are made, and those that are not sent yet.
ANSWER_BYTES = 2 * PIECE_BYTES + UNSENT_MAX_BYTES

#: A document is in memory as it came, in its row, and in the piece that is sent.
_DOCUMENT_COPIES = 3

#: Snapshots that one query takes, when rollbacks cut off what it reads.
_ATTEMPTS = 3

_LOG = logging.getLogger("uprmc.index")


def within(memory: Holding, bodies: Sequence[bytes | Lost | None]) -> Sequence[bytes | Lost | None]:
    """Return documents as far as there is memory for them, in place of those that were before."""
    size, found = ANSWER_BYTES, list(bodies)
    for place, body in enumerate(found):
        if isinstance(body, bytes):
            if memory.set(size + _DOCUMENT_COPIES * len(body)):
                size += _DOCUMENT_COPIES * len(body)
            else:
                found[place] = Lost("answers hold too much memory (index.request_memory)")
    memory.set(size)
    return found


def _view_of(design: Design, name: str) -> int:
    view_index = design.view_index(name)
    if view_index is None:
        raise not_found(f"design {design.name!r} has no view {name!r}")
    return view_index


def _wants_new(it: HttpRequest) -> bool:
    """Whether a request may be for the index that is being built; its options are not read yet."""
    return ("rev", "new") in it.options or b'"rev"' in it.body


def _of_merger(it: HttpRequest) -> bool:
    """Whether a request names the vBuckets itself: it is for this node alone."""
    return any(name == "partitions" for name, _ in it.options) or b'"partitions"' in it.body


def traceback_of(failure: Failure) -> Any:
    """Return what a log needs of an exception."""
    return type(failure.value), failure.value, failure.getTracebackObject()


_JSON = b"application/json"
_TIMEOUT = "connection_timeout"


class Reply(NamedTuple):
    """An answer that is there in one piece."""

    status: int
    body: bytes
    content_type: bytes = _JSON


def json_reply(status: int, value: object) -> Reply:
    """Return an answer of anything that JSON can say."""
    return Reply(status, well_formed(json.dumps(value, default=str).encode()) + b"\n")


#: Handles a request; ``None`` = the answer is under way already.
_NO_PAGE = f"there is no such page; designs are at {DESIGNS}/NAME"

_Handler = Callable[[Request, HttpRequest], Awaitable[Reply | None]]


class IndexPages:
    """What there is by path and method.

    Args:
        service: all designs.
        settings: limits.
        reactor, pool: for answers in pieces, and what takes longer than a turn should.
        addresses: by which this listener is reached.
        memory: what requests and answers hold.
        scatter: asks other nodes, too; ``None`` = this one only.
    """

    def __init__(
        self,
        service: Service,
        settings: IndexSettings,
        reactor: Any,
        pool: Any,
        addresses: Callable[[], list[str]],
        memory: AnswerAccount,
        scatter: Scatter | None = None,
    ) -> None:
        self._service, self._settings, self._scatter = service, settings, scatter
        self._memory = memory
        self._reactor, self._pool, self._addresses = reactor, pool, addresses
        self.times = QueryTimes()
        self._exposition = Exposition(self._metrics)
        self._in_thread: Callable[..., Deferred[Any]] = partial(deferToThreadPool, reactor, pool)

    def handlers(self, path: tuple[str, ...]) -> dict[str, _Handler]:
        """Return what each method does with a path; raise `QueryRefused` if there is none such."""
        match path:
            case ("",):
                return {"GET": self._root}
            case ("metrics",):
                return {"GET": self._metrics_page}
            case (bucket, *rest) if bucket == BUCKET:
                return self._in_bucket(rest)
            case (_, _, *_):
                raise not_found(f"there is one bucket, {BUCKET!r}")
        raise not_found(_NO_PAGE)

    def _in_bucket(self, path: list[str]) -> dict[str, _Handler]:
        match path:
            case ("_design",):
                return {"GET": self._list}
            case ("_vbuckets",):
                return {"GET": self._vbuckets}
            case ("_design", _):
                return {"GET": self._get, "PUT": self._put, "DELETE": self._delete}
            case ("_design", _, "_view", _):
                return {"GET": self._view, "POST": self._view}
            case ("_design", _, "_info"):
                return {"GET": self._info}
            case ("_design", _, verb) if verb in self._verbs():
                return {"POST": self._verbs()[verb]}
        raise not_found(_NO_PAGE)

    def _verbs(self) -> dict[str, _Handler]:
        return {
            "_compact": self._compact,
            "_set_states": self._set_states,
            "_monitor": self._monitor,
            "_undo": self._undo,
        }

    # --- the listener -------------------------------------------------------------------------

    async def _root(self, request: Request, it: HttpRequest) -> Reply:
        found = {"uprmc": __version__, "bucket": BUCKET, "designs": DESIGNS}
        return json_reply(200, found)

    async def _metrics_page(self, request: Request, it: HttpRequest) -> Reply:
        accept = request.getHeader("accept") or ""
        page, content_type = await self._in_thread(self._exposition.render, accept)
        return Reply(200, page, content_type.encode())

    def _metrics(self) -> Iterator[Metric]:
        yield from self._service.metrics()
        yield from self.times.metrics()
        yield from self._memory.metrics()
        if self._scatter is not None:
            yield from self._scatter.metrics()

    # --- queries ------------------------------------------------------------------------------
    # Options are read, a snapshot is waited for, rows are sent as they are read.

    async def _view(self, request: Request, it: HttpRequest) -> None:
        """Answer a query; raise `QueryRefused` before anything is sent.

        A query that waits for an index that ends waits for the one in its place.
        """
        began = self._reactor.seconds()
        design, view = checked_name("design", it.path[2]), checked_name("view", it.path[4])
        if self._scatter is not None and not _of_merger(it):
            await self._scattered(self._scatter, request, it, began)
            return
        ended: Group | None = None
        while True:
            group = self._service.group(design, _wants_new(it))
            try:
                await self._asked(request, it, group, view, began)
                return
            except Replaced:
                if group is ended:  # the process is about to stop
                    raise
                ended = group

    async def _asked(
        self, request: Request, it: HttpRequest, group: Group, view: str, began: float
    ) -> None:
        """Answer from one index; raise `Replaced` if that ends before anything is sent."""
        new = _wants_new(it)
        view_index = _view_of(group.design, view)
        reduces = bool(group.design.views[view_index].reduces)
        query = await self._query(it, group.design.options.collation, reduces)
        if query.new != new:  # a body can hold that word elsewhere
            group = self._service.group(group.design.name, query.new)
        await self._answer(request, group, view_index, query, began)

    async def _scattered(
        self, scatter: Scatter, request: Request, it: HttpRequest, began: float
    ) -> None:
        design = await scatter.design(it.path[2], _wants_new(it))
        view_index = _view_of(design, it.path[4])
        query = await self._query(
            it, design.options.collation, bool(design.views[view_index].reduces)
        )
        memory = Holding(self._memory)
        memory.need(ANSWER_BYTES * (1 + len(scatter.nodes)))
        try:
            merged = await scatter.merged(design, view_index, query, self._memory)
        except BaseException:
            memory.release()
            raise
        await self._send(
            request, merged, self._ended(request, query, began, lambda _: memory.release())
        )

    async def _query(self, it: HttpRequest, collation: Any, reduces: bool) -> Query:
        def read() -> Query:
            body = json_body(it.body) if it.body and it.method == "POST" else None
            return Query.parse(it.options, body, reduces=reduces, collation=collation)

        if len(it.body) > self._settings.max_request_bytes:
            raise QueryRefused(413, "too_large", "the body is larger than index.max_request_bytes")
        if len(it.body) + sum(len(text) for _, text in it.options) <= _AT_ONCE_BYTES:
            return read()
        return cast(Query, await self._in_thread(read))

    async def _answer(
        self, request: Request, group: Group, view_index: int, query: Query, began: float
    ) -> None:
        for attempt in count(1):
            try:
                await self._once(request, group, view_index, query, began)
            except IndexRolledBack:
                if request.startedWriting or attempt == _ATTEMPTS:
                    raise
            else:
                return

    async def _once(
        self, request: Request, group: Group, view_index: int, query: Query, began: float
    ) -> None:
        """Answer from one snapshot; raise `IndexRolledBack` if that was cut off meanwhile."""
        timeout_s = query.timeout_s or self._settings.connection_timeout_s
        vbuckets = partition_of(query, self._addresses())
        if query.signature not in ("", group.design.signature):
            raise outdated(vbuckets or (), "another definition answers now", query.epoch or 0)
        memory = Holding(self._memory)
        memory.need(ANSWER_BYTES)
        try:
            snapshot = await group.snapshot(query.stale, query.at, vbuckets, query.epoch, timeout_s)
        except BaseException:
            memory.release()
            raise

        def released(failure: Failure | None) -> None:
            snapshot.release()
            memory.release()
            error = None if failure is None else failure.value
            if isinstance(error, IndexDamaged) and not isinstance(error, IndexRolledBack):
                group.damaged(snapshot, error)

        pieces = run(
            query,
            snapshot,
            view_index,
            view=group.design.views[view_index].name,
            source=next(iter(self._addresses()), "local"),
            documents=lambda keys: within(memory, self._service.documents(keys)),
        )
        await self._send(
            request,
            ThreadPieces(pieces, self._reactor, self._pool),
            self._ended(request, query, began, released),
        )

    async def _send(
        self, request: Request, pieces: Pieces, ended: Callable[[bool, Failure | None], None]
    ) -> None:
        """Send an answer in pieces; `ended` is called when it is over."""
        request.setHeader(b"Content-Type", b"application/json")
        request.setHeader(b"Cache-Control", b"no-store")
        await HttpAnswer(
            request,
            pieces,
            reactor=self._reactor,
            stall_s=self._settings.stall_timeout_s,
            ended=ended,
        ).start()

    def _ended(
        self,
        request: Request,
        query: Query,
        began: float,
        release: Callable[[Failure | None], None] | None = None,
    ) -> Callable[..., None]:
        def ended(sent: bool, failure: Failure | None) -> None:
            if release is not None:
                release(failure)
            if failure is not None and not request.startedWriting:
                return  # it is answered, and counted, as a refusal
            if failure is not None:
                if failure.check(IndexDamaged, OSError):
                    _LOG.error("answer failed: %s", failure.value)
                else:
                    _LOG.error("answer failed", exc_info=traceback_of(failure))
                self.times.failed += 1
            elif not sent:
                self.times.unread += 1
            else:
                self.times.add(kind_of(query), self._reactor.seconds() - began)

        return ended

    # --- designs ------------------------------------------------------------------------------

    async def _list(self, request: Request, it: HttpRequest) -> Reply:
        local = url_options(it.options, "local").get("local") == "true"
        rows = {name: self._listed(name) for name in self._service.names()}
        if self._scatter is not None and not local:
            rows = await self._scatter.listed() | rows
        found = [rows[name] for name in sorted(rows)]
        return json_reply(200, {"total_rows": len(found), "rows": found})

    def _listed(self, name: str) -> dict[str, Any]:
        try:
            group = self._service.group(name)
        except QueryRefused as refused:  # it is on disk, and cannot be opened
            failed = {"id": f"_design/{name}", "name": name, "views": [], "rows": {}}
            return {**failed, "state": "failed", "signature": "", "error": refused.reason}
        return {
            "id": f"_design/{name}",
            "name": name,
            "views": [view.name for view in group.design.views],
            "signature": group.design.signature,
            "state": group.state,
            "rows": group.rows(),
        }

    async def _get(self, request: Request, it: HttpRequest) -> Reply:
        """Return what was put last; to a merger, what answers here."""
        options = url_options(it.options, "local", "rev")
        name = _design_of(it)
        if options.get("local") == "true":
            return Reply(200, self._service.group(name, "rev" in options).design.text)
        try:
            design = self._service.get(name)
        except QueryRefused as refused:
            if self._scatter is None or refused.status != 404:
                raise
            design = await self._scatter.design(name)
        return Reply(200, design.text)

    async def _put(self, request: Request, it: HttpRequest) -> Reply:
        designs, name = self._designs(it), _design_of(it)
        if not it.body:
            raise bad_request("the body is the design, a JSON object with views")
        if len(it.body) > self._settings.max_definition_bytes:
            raise QueryRefused(
                413, "too_large", "the design is larger than index.max_definition_bytes"
            )
        await designs.put(name, it.body)
        return _done(201, name)

    async def _delete(self, request: Request, it: HttpRequest) -> Reply:
        name = _design_of(it)
        await self._designs(it).delete(name)
        return _done(200, name)

    async def _undo(self, request: Request, it: HttpRequest) -> Reply:
        name = _design_of(it)
        await self._designs(it).undo(name)
        return _done(200, name)

    def _designs(self, it: HttpRequest) -> Service | Scatter:
        """Return what changes designs: all nodes, or this one if the request says so."""
        local = url_options(it.options, "local").get("local") == "true"
        return self._service if local or self._scatter is None else self._scatter

    # --- their indexes ------------------------------------------------------------------------

    def _group(self, it: HttpRequest) -> Group:
        new = url_options(it.options, "rev", _TIMEOUT, "local").get("rev")
        if new not in (None, "new"):
            raise bad_request("rev is new, or not given")
        return self._service.group(_design_of(it), new is not None)

    async def _info(self, request: Request, it: HttpRequest) -> Reply:
        """Answer for this node; a merger without the design answers with what the others say."""
        try:
            group = self._group(it)
        except QueryRefused as refused:
            options = dict(it.options)
            if self._scatter is None or "local" in options or refused.status != 404:
                raise
            return json_reply(200, await self._scatter.info(_design_of(it)))
        reply: Reply = await self._in_thread(lambda: json_reply(200, group.info()))
        return reply

    async def _vbuckets(self, request: Request, it: HttpRequest) -> Reply:
        """What of a design a merger may ask this node for."""
        options = url_options(it.options, "design", "rev")
        name = checked_name("design", options.get("design", ""))
        group = self._service.group(name, "rev" in options)
        found = {**group.placement(), "signature": group.design.signature}
        return json_reply(200, found)

    async def _compact(self, request: Request, it: HttpRequest) -> Reply:
        await self._group(it).compact()
        return json_reply(202, {"ok": True})

    async def _set_states(self, request: Request, it: HttpRequest) -> Reply:
        lists = ("active", "passive", "cleanup", "pause")
        given = json_object(it.body, *lists, "epoch")
        states: dict[str, Any] = {
            name: vbuckets(name, given[name]) if name in given else None for name in lists
        }
        if all(state is None for state in states.values()):
            raise bad_request(f"the body names none of {', '.join(lists)}")
        epoch = number("epoch", given["epoch"]) if "epoch" in given else None
        await self._group(it).set_states(**states, epoch=epoch)
        return json_reply(200, {"ok": True})

    async def _monitor(self, request: Request, it: HttpRequest) -> Reply:
        group = self._group(it)
        given = json_object(it.body, "vbucket", "seqno", "vb_uuid")
        if given.keys() != {"vbucket", "seqno", "vb_uuid"}:
            raise bad_request("the body names vbucket, seqno and vb_uuid")
        wanted = {name: number(name, value) for name, value in given.items()}
        timeout_ms = dict(it.options).get(_TIMEOUT)
        timeout_s = self._settings.connection_timeout_s
        if timeout_ms is not None:
            timeout_s = OPTIONS[_TIMEOUT](_TIMEOUT, timeout_ms) / 1_000
        await group.monitor(**wanted, timeout_s=timeout_s)
        return json_reply(200, {"ok": True, **wanted, "vb_uuid": str(wanted["vb_uuid"])})


def _design_of(it: HttpRequest) -> str:
    return checked_name("design", it.path[2])


def _done(status: int, name: str) -> Reply:
    return json_reply(status, {"ok": True, "id": f"_design/{name}"})


# --- http -----------------------------------------------------------------------------------------


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
        path = ()  # it is refused to all who may come in
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
    """The site of an index."""

    protocol = _Channel

    def __init__(self, root: IResource, reactor: Any, memory: AnswerAccount, **named: Any) -> None:
        super().__init__(root, reactor, account=memory, **named)
        self.memory = memory  # what requests and answers hold
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
