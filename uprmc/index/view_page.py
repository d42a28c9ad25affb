"""A query as it is served: options read, a snapshot waited for, rows sent as they are read."""

# mypy: allow-untyped-calls
from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, cast

from twisted.internet.threads import deferToThreadPool
from twisted.python.failure import Failure
from twisted.web.server import Request

from uprmc.config import IndexSettings
from uprmc.index.account import Account, Holding
from uprmc.index.answering import UNSENT_MAX_BYTES, Answer, Pieces, ThreadPieces
from uprmc.index.design import Design
from uprmc.index.errors import Damaged, Refused, Replaced, RolledBack, not_found, outdated
from uprmc.index.http_request import HttpRequest, checked_name, json_body
from uprmc.index.interfaces import Group, Service
from uprmc.index.model import Lost
from uprmc.index.query import PIECE_BYTES, run
from uprmc.index.query_options import Query, partition_of
from uprmc.index.query_times import QueryTimes, kind_of
from uprmc.index.scatter import Scatter

#: Options of more than this are read by a thread: they may hold many keys.
_AT_ONCE_BYTES = 2 * 1024

#: What an answer may hold at a time: rows that are made, and those that are not sent yet.
ANSWER_BYTES = 2 * PIECE_BYTES + UNSENT_MAX_BYTES

#: A document is held as it came, in its row, and in the piece that is sent.
_DOCUMENT_COPIES = 3

#: Snapshots that one query takes, when rollbacks cut off what it reads.
_ATTEMPTS = 3

_LOG = logging.getLogger("uprmc.index")


class ViewPage:
    """Queries; see `pages.Pages` for the arguments."""

    def __init__(
        self,
        service: Service,
        settings: IndexSettings,
        reactor: Any,
        pool: Any,
        addresses: Callable[[], list[str]],
        times: QueryTimes,
        memory: Account,
        scatter: Scatter | None,
    ) -> None:
        self._service, self._settings, self._reactor = service, settings, reactor
        self._pool, self._addresses, self._times = pool, addresses, times
        self._memory, self._scatter = memory, scatter

    async def answer(self, request: Request, it: HttpRequest) -> None:
        """Answer a query; raise `Refused` before anything is sent.

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
        memory.need(ANSWER_BYTES * (1 + len(scatter.all.nodes)))
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
            raise Refused(413, "too_large", "the body is larger than index.max_request_bytes")
        if len(it.body) + sum(len(text) for _, text in it.options) <= _AT_ONCE_BYTES:
            return read()
        return cast(Query, await deferToThreadPool(self._reactor, self._pool, read))

    async def _answer(
        self, request: Request, group: Group, view_index: int, query: Query, began: float
    ) -> None:
        for attempt in count(1):
            try:
                await self._attempt(request, group, view_index, query, began)
            except RolledBack:
                if request.startedWriting or attempt == _ATTEMPTS:
                    raise
            else:
                return

    async def _attempt(
        self, request: Request, group: Group, view_index: int, query: Query, began: float
    ) -> None:
        """Answer from one snapshot; raise `RolledBack` if what it reads was cut off meanwhile."""
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
            if isinstance(error, Damaged) and not isinstance(error, RolledBack):
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
        await Answer(
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
                if failure.check(Damaged, OSError):
                    _LOG.error("answer failed: %s", failure.value)
                else:
                    _LOG.error("answer failed", exc_info=traceback_of(failure))
                self._times.failed += 1
            elif not sent:
                self._times.unread += 1
            else:
                self._times.add(kind_of(query), self._reactor.seconds() - began)

        return ended


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
