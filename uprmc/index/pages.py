"""What there is by path and method: designs, their indexes, metrics.

Source: contracts section 4.
"""

# mypy: allow-untyped-calls
from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

from twisted.internet.defer import Deferred
from twisted.internet.threads import deferToThreadPool
from twisted.web.server import Request

from uprmc import __version__
from uprmc.config import IndexSettings
from uprmc.index import paths
from uprmc.index.account import Account
from uprmc.index.errors import Refused, bad_request, not_found
from uprmc.index.http_request import (
    HttpRequest,
    checked_name,
    json_object,
    number,
    url_options,
    vbuckets,
)
from uprmc.index.interfaces import Group, Service
from uprmc.index.json_text import well_formed
from uprmc.index.option_values import OPTIONS
from uprmc.index.query_times import QueryTimes
from uprmc.index.scatter import Scatter
from uprmc.index.view_page import ViewPage
from uprmc.metrics import Exposition, Metric

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
_Handler = Callable[[Request, HttpRequest], Awaitable[Reply | None]]


class Pages:
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
        memory: Account,
        scatter: Scatter | None = None,
    ) -> None:
        self._service, self._settings, self._scatter = service, settings, scatter
        self._memory = memory
        self.times = QueryTimes()
        self._views = ViewPage(
            service, settings, reactor, pool, addresses, self.times, memory, scatter
        )
        self._exposition = Exposition(self._metrics)
        self._in_thread: Callable[..., Deferred[Any]] = partial(deferToThreadPool, reactor, pool)

    def handlers(self, path: tuple[str, ...]) -> dict[str, _Handler]:
        """Return what each method does with a path; raise `Refused` if there is no such path."""
        match path:
            case ("",):
                return {"GET": self._root}
            case ("metrics",):
                return {"GET": self._metrics_page}
            case (paths.BUCKET, "_design"):
                return {"GET": self._list}
            case (paths.BUCKET, "_vbuckets"):
                return {"GET": self._vbuckets}
            case (paths.BUCKET, "_design", _):
                return {"GET": self._get, "PUT": self._put, "DELETE": self._delete}
            case (paths.BUCKET, "_design", _, "_view", _):
                return {"GET": self._views.answer, "POST": self._views.answer}
            case (paths.BUCKET, "_design", _, "_info"):
                return {"GET": self._info}
            case (paths.BUCKET, "_design", _, verb) if verb in self._verbs():
                return {"POST": self._verbs()[verb]}
        if path[0] != paths.BUCKET and len(path) > 1:
            raise not_found(f"there is one bucket, {paths.BUCKET!r}")
        raise not_found(f"there is no such page; designs are at {paths.DESIGNS}/NAME")

    def _verbs(self) -> dict[str, _Handler]:
        return {
            "_compact": self._compact,
            "_set_states": self._set_states,
            "_monitor": self._monitor,
            "_undo": self._undo,
        }

    # --- the listener -------------------------------------------------------------------------

    async def _root(self, request: Request, it: HttpRequest) -> Reply:
        found = {"uprmc": __version__, "bucket": paths.BUCKET, "designs": paths.DESIGNS}
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

    # --- designs ------------------------------------------------------------------------------

    async def _list(self, request: Request, it: HttpRequest) -> Reply:
        local = url_options(it.options, "local").get("local") == "true"
        rows = {name: self._listed(name) for name in self._service.names()}
        if self._scatter is not None and not local:
            rows = await self._scatter.all.listed() | rows
        found = [rows[name] for name in sorted(rows)]
        return json_reply(200, {"total_rows": len(found), "rows": found})

    def _listed(self, name: str) -> dict[str, Any]:
        try:
            group = self._service.group(name)
        except Refused as refused:  # it is on disk, and cannot be opened
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
        except Refused as refused:
            if self._scatter is None or refused.status != 404:
                raise
            design = await self._scatter.design(name)
        return Reply(200, design.text)

    async def _put(self, request: Request, it: HttpRequest) -> Reply:
        designs, name = self._designs(it), _design_of(it)
        if not it.body:
            raise bad_request("the body is the design, a JSON object with views")
        if len(it.body) > self._settings.max_definition_bytes:
            raise Refused(413, "too_large", "the design is larger than index.max_definition_bytes")
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
        except Refused as refused:
            options = dict(it.options)
            if self._scatter is None or "local" in options or refused.status != 404:
                raise
            return json_reply(200, await self._scatter.all.info(_design_of(it)))
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
