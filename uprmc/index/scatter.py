"""Queries over several index nodes, and designs on all of them.

Every node is asked for the vBuckets that the map gives to it, by the epoch of that map. A node that
does not have one of them says so; then the map is fetched again and all are asked again, a few
times (row I14). What a node cannot do for other reasons becomes an entry in the answer's errors.

Source: systems reference c.7, c.9; contracts section 4.
"""

# mypy: allow-untyped-calls
from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from itertools import count
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote

from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater
from twisted.internet.threads import deferToThreadPool

from uprmc.config import IndexSettings
from uprmc.index.design import Design
from uprmc.index.errors import Refused, bad_request, outdated
from uprmc.index.interfaces import Service
from uprmc.index.mapping import make_reducer
from uprmc.index.merge import Merged, NodeRows, Order
from uprmc.index.node_client import NodeClient, NodeFailed, dumped, refusal
from uprmc.index.placement import Holdings, Placement, placed
from uprmc.index.query_options import Query, strict_json
from uprmc.metrics import Metric

#: Pauses before the map is fetched again, in seconds; after the last one the query fails.
PAUSES_S = (0.05, 0.1, 0.2, 0.4, 0.4)

#: A map, or a design of other nodes, is used for this long.
_KNOWN_S = 5.0

#: A node says within this time what it has.
_ASK_S = 5.0

#: How much longer than a node itself waits the merger waits for it.
_GRACE_S = 1.0

_KEPT = 256

#: Options that the merger sees to, and does not pass on.
_OWN = frozenset({"skip", "limit", "partitions", "epoch", "connection_timeout", "at", "full_set"})

_Result = TypeVar("_Result")


class Known(NamedTuple):
    """A map, and which nodes did not answer when it was made."""

    placement: Placement
    silent: dict[str, str]


class _Lately:
    """Values that are good for a while; the oldest go first."""

    def __init__(self, seconds: Callable[[], float]) -> None:
        self._seconds = seconds
        self._found: OrderedDict[Any, tuple[float, Any]] = OrderedDict()

    def get(self, key: Any) -> Any:
        at, value = self._found.get(key, (float("-inf"), None))
        return value if self._seconds() - at < _KNOWN_S else None

    def put(self, key: Any, value: Any) -> None:
        self._found.pop(key, None)
        self._found[key] = self._seconds(), value
        if len(self._found) > _KEPT:
            self._found.popitem(last=False)

    def forget(self) -> None:
        self._found.clear()


class Reducing:
    """The reduce of a view, for groups that several nodes have.

    Args:
        reducer: of the view.
        reactor, pool: for calls that block.
    """

    def __init__(self, reducer: Any, reactor: Any, pool: Any) -> None:
        self._reducer, self._reactor, self._pool = reducer, reactor, pool

    async def rereduce(self, groups: Sequence[Sequence[bytes]]) -> Sequence[bytes | None]:
        """Return the reduction of each group's reductions; ``None`` = it failed."""

        def reduced() -> list[bytes | None]:
            return [self._reducer.rereduce([(value,) for value in values])[0] for values in groups]

        found: Sequence[bytes | None] = await deferToThreadPool(self._reactor, self._pool, reduced)
        return found

    def finish(self, reduction: bytes) -> bytes:
        """Return what is shown of a reduction."""
        shown: bytes = self._reducer.finish(0, reduction)
        return shown


class Scatter:
    """See the module docstring.

    Args:
        nodes: views listeners, HOST:PORT, as `index.nodes` has them.
        service: of this node, which may have the designs, too.
        settings: limits.
        reactor, pool: of the process.
        client: speaks to nodes.
        source: this node's address, for errors.
    """

    def __init__(
        self,
        nodes: Iterable[str],
        service: Service,
        settings: IndexSettings,
        reactor: Any,
        pool: Any,
        *,
        client: NodeClient | None = None,
        source: Callable[[], str] = lambda: "local",
    ) -> None:
        self.nodes = tuple(nodes)
        self._service, self._settings = service, settings
        self._reactor, self._pool, self._source = reactor, pool, source
        self._client = client or NodeClient(reactor)
        self._maps = _Lately(reactor.seconds)
        self._designs = _Lately(reactor.seconds)
        self._reducers: dict[tuple[str, int], Any] = {}
        self.retries = 0

    def close(self) -> Deferred[None]:
        """Hang up on all nodes."""
        for reducer in self._reducers.values():
            reducer.close()
        self._reducers.clear()
        return self._client.close()

    # --- designs ------------------------------------------------------------------------------

    async def put(self, name: str, body: bytes) -> None:
        """Put a design on all nodes; raise `Refused`, naming those that lack it."""
        await self._everywhere("PUT", _design_path(name), body, f"lack design {name!r}")

    async def delete(self, name: str) -> None:
        """Delete a design on all nodes; raise `Refused`, naming those that still have it."""
        await self._everywhere("DELETE", _design_path(name), None, f"still have design {name!r}")

    async def undo(self, name: str) -> None:
        """Undo the last change on all nodes; raise `Refused`, naming those that still have it."""
        what = f"still have the last change of design {name!r}"
        await self._everywhere("POST", f"{_design_path(name)}/_undo", b"", what)

    async def listed(self) -> dict[str, Any]:
        """Return by name how nodes list their designs; raise `Refused` if no node answers."""
        answers = await self._asked("/default/_design?local=true")
        found: dict[str, Any] = {}
        for answer in answers.values():
            if isinstance(answer, dict):
                found = {row["name"]: row for row in answer["rows"]} | found
        return found

    async def info(self, name: str) -> dict[str, Any]:
        """Return what each node says of a design; raise `Refused` if none has it."""
        answers = await self._asked(f"{_design_path(name)}/_info?local=true")
        nodes = {
            node: answer if isinstance(answer, dict) else {"error": str(answer)}
            for node, answer in answers.items()
        }
        states = {str(each.get("state")) for each in nodes.values()}
        return {"name": name, "state": " ".join(sorted(states)), "nodes": nodes}

    async def _asked(self, path: str) -> dict[str, Any]:
        """Return the answer of each node, or why it has none; raise `Refused` if all have none."""

        async def one(node: str) -> Any:
            try:
                return strict_json(await self._client.fetch(node, "GET", path, None, _ASK_S))
            except (Refused, NodeFailed, ValueError) as error:
                return error

        found = dict(zip(self.nodes, await _all(one(node) for node in self.nodes), strict=True))
        silent = {node: str(each) for node, each in found.items() if isinstance(each, Exception)}
        if len(silent) == len(found):
            raise _first_refusal(found.values(), silent)
        return found

    def metrics(self) -> Iterator[Metric]:
        """Yield what it counts."""
        yield Metric(
            "index_merge_retries_total",
            "counter",
            "Attempts to ask index nodes again because a map of vBuckets was outdated.",
            [({}, self.retries)],
        )

    async def _everywhere(self, method: str, path: str, body: bytes | None, what: str) -> None:
        path = f"{path}?local=true"
        timeout_s = self._settings.connection_timeout_s

        async def one(node: str) -> Exception | None:
            try:
                await self._client.fetch(node, method, path, body, timeout_s)
            except (Refused, NodeFailed) as error:
                return error
            return None

        outcomes = await _all(one(node) for node in self.nodes)
        self._designs.forget()
        self._maps.forget()
        failed = {
            node: error
            for node, error in zip(self.nodes, outcomes, strict=True)
            if error is not None
        }
        gone = [error for error in failed.values() if _status(error) == 404]
        if method == "DELETE" and len(gone) < len(self.nodes):
            failed = {node: error for node, error in failed.items() if _status(error) != 404}
        if failed:
            raise _not_everywhere(failed, len(self.nodes), what)

    async def design(self, name: str, new: bool = False) -> Design:
        """Return a definition, of this node or of another; raise `Refused`."""
        try:
            return self._service.group(name, new).design
        except Refused as error:
            refused = error
        found: Design | None = self._designs.get(name)
        if found is not None:
            return found
        for node in self.nodes:
            try:
                path = f"{_design_path(name)}?local=true"
                text = await self._client.fetch(node, "GET", path, None, _ASK_S)
            except Refused as error:
                refused = error
            except NodeFailed as failed:
                refused = Refused(503, "unavailable", f"{node}: {failed}")
            else:
                found = Design.parse(name, text, _AnyModule(), compile_javascript=False)
                self._designs.put(name, found)
                return found
        raise refused

    def _reducing(self, design: Design, view_index: int) -> Reducing | None:
        if not design.views[view_index].reduces:
            return None
        key = design.signature, view_index
        if key not in self._reducers:
            while len(self._reducers) >= _KEPT:
                self._reducers.pop(next(iter(self._reducers))).close()
            self._reducers[key] = make_reducer(design, view_index, self._settings)
        return Reducing(self._reducers[key], self._reactor, self._pool)

    # --- the map ------------------------------------------------------------------------------

    async def _map(self, design: str, query: Query, *, again: bool) -> Known:
        key = design, query.new
        found: Known | None = None if again else self._maps.get(key)
        if found is None:
            found = await self._fetched_map(design, query)
            if not found.silent and not found.placement.missing:
                self._maps.put(key, found)
        return found

    async def _fetched_map(self, design: str, query: Query) -> Known:
        path = f"/default/_vbuckets?design={quote(design, safe='')}"
        outcomes = await self._asked(path + ("&rev=new" if query.new else ""))
        holdings, silent = {}, {}
        for node, answer in outcomes.items():
            try:
                holdings[node] = Holdings.parse(answer)
            except ValueError as error:
                silent[node] = str(answer if isinstance(answer, Exception) else error)
        if not holdings:
            raise _first_refusal(outcomes.values(), silent)
        return Known(placed(holdings), silent)

    # --- queries ------------------------------------------------------------------------------

    async def merged(self, design: Design, view_index: int, query: Query) -> Merged:
        """Return the answer of all nodes, which has begun; raise `Refused`."""
        timeout_s = query.timeout_s or self._settings.connection_timeout_s
        ends = self._reactor.seconds() + timeout_s
        for attempt in count():
            known = await self._map(design.name, query, again=attempt > 0)
            asking = _Asking(self, design, view_index, query, known, ends, timeout_s)
            refused = asking.lacking() or await asking.begin()
            if refused is None:
                return asking.merged()
            left_s = ends - self._reactor.seconds()
            waits = attempt < len(PAUSES_S) or asking.coming()
            if left_s <= 0 or not waits:
                raise refused
            self.retries += 1
            pause_s = PAUSES_S[min(attempt, len(PAUSES_S) - 1)]
            await deferLater(self._reactor, min(pause_s, left_s), lambda: None)
        raise AssertionError("the loop has no end")


class _Asking:
    """One attempt to ask all nodes by one map."""

    def __init__(
        self,
        scatter: Scatter,
        design: Design,
        view_index: int,
        query: Query,
        known: Known,
        ends: float,
        timeout_s: float,
    ) -> None:
        self._scatter, self._design, self._view_index = scatter, design, view_index
        self._query, self._known, self._timeout_s = query, known, timeout_s
        self._client, self._reactor = scatter._client, scatter._reactor
        self._ends = ends
        self._order = Order(design.options.collation, query.descending, query.reduce)
        self._rows: list[NodeRows] = []
        self._errors = [
            {"from": node, "reason": reason}
            for node, reason in known.silent.items()
            if known.placement.missing
        ]

    def lacking(self) -> Refused | None:
        """Return the refusal if nodes that are well do not have all vBuckets together."""
        placement = self._known.placement
        for token in self._query.at:
            if token.vbucket >= placement.total:
                raise bad_request(f"at: there is no vBucket {token.vbucket}")
        if placement.missing and not self._known.silent:
            return outdated(sorted(placement.missing), "no node has them", placement.epoch)
        return None

    def coming(self) -> bool:
        """Return whether all that is missing is on its way to a node."""
        placement = self._known.placement
        return bool(placement.missing) and placement.missing <= placement.coming

    async def begin(self) -> Refused | None:
        """Ask all nodes; return the refusal if one says that the map is outdated.

        Raises:
            Refused: a node says so for another reason that concerns the query itself.
        """
        placement = self._known.placement
        try:
            outcomes = await _all(
                self._one(node, vbuckets) for node, vbuckets in placement.nodes.items()
            )
            return self._judged([each for each in outcomes if each is not None])
        except BaseException:
            self._close()
            raise

    def _judged(self, refusals: list[tuple[str, Refused]]) -> Refused | None:
        for _, refused in refusals:
            if refused.error == "set_view_outdated":
                self._close()
                return refused
        for _, refused in refusals:
            if refused.status in (400, 409):
                raise refused
        if refusals and len(refusals) == len(self._known.placement.nodes):
            raise refusals[0][1]
        self._errors += [{"from": node, "reason": each.reason} for node, each in refusals]
        if self._errors:
            self._scatter._maps.forget()
        return None

    async def _one(self, node: str, vbuckets: frozenset[int]) -> tuple[str, Refused] | None:
        """Ask one node; its rows, or why there are none, are kept."""
        left_s = max(self._ends - self._reactor.seconds(), 0.001)
        path = _design_path(self._design.name) + "/_view/"
        path += quote(self._design.views[self._view_index].name, safe="")
        body = dumped(self._options(node, vbuckets, left_s))
        try:
            answer = await self._client.ask(node, "POST", path, body, left_s + _GRACE_S)
            if answer.status >= 400:
                content = await self._client.content(answer, _ASK_S)
                return node, refusal(answer.status, content)
        except NodeFailed as failed:
            self._errors.append({"from": node, "reason": str(failed)})
            return None
        rows = NodeRows(node, _Timed(answer.lines, self._reactor, self._timeout_s), self._order)
        self._rows.append(rows)
        await rows.begin()
        return None

    def _options(self, node: str, vbuckets: frozenset[int], left_s: float) -> dict[str, Any]:
        query = self._query
        options = {name: each for name, each in query.given.items() if name not in _OWN}
        options["merge"] = True
        options["partitions"] = {node: sorted(vbuckets)}
        options["epoch"] = self._known.placement.epoch
        options["connection_timeout"] = max(int(left_s * 1_000), 1)
        if query.limit is not None:
            options["limit"] = query.skip + query.limit
        tokens = [token for token in query.at if token.vbucket in vbuckets]
        if tokens:
            options["at"] = [":".join(map(str, token)) for token in tokens]
        return options

    def merged(self) -> Merged:
        """Return the answer."""
        query = self._query
        return Merged(
            self._rows,
            self._order,
            skip=query.skip,
            limit=query.limit,
            stop=query.stop,
            update_seq=query.update_seq,
            view=self._design.views[self._view_index].name,
            source=self._scatter._source(),
            errors=self._errors,
            reducing=self._scatter._reducing(self._design, self._view_index),
        )

    def _close(self) -> None:
        for rows in self._rows:
            rows.close()


class _Timed:
    """Lines of an answer, each of which comes in time or not at all."""

    def __init__(self, lines: Any, reactor: Any, timeout_s: float) -> None:
        self._lines, self._reactor, self._timeout_s = lines, reactor, timeout_s

    async def line(self) -> bytes | None:
        """Return the next line; raise `NodeFailed`."""
        line: bytes | None = await self._lines.line(self._reactor, self._timeout_s)
        return line

    def close(self) -> None:
        """Take no more."""
        self._lines.close()


class _AnyModule(frozenset[str]):
    """Python modules that another node's settings name; none is imported here."""

    def __contains__(self, name: object) -> bool:
        return True


async def _all(coroutines: Iterable[Coroutine[Any, Any, _Result]]) -> list[_Result]:
    """Await several at once; if that is cancelled, so are they."""
    begun = [Deferred.fromCoroutine(each) for each in coroutines]
    try:
        return [await each for each in begun]
    except BaseException:
        for each in begun:
            each.addErrback(lambda _: None)
            each.cancel()
        raise


def _design_path(name: str) -> str:
    return f"/default/_design/{quote(name, safe='')}"


def _status(error: Exception) -> int:
    return error.status if isinstance(error, Refused) else 0


def _not_everywhere(failed: dict[str, Exception], nodes: int, what: str) -> Refused:
    """Return the nodes' own refusal if all agree that the request is wrong."""
    first = next(iter(failed.values()))
    same = len(failed) == nodes and len({_status(error) for error in failed.values()}) == 1
    if isinstance(first, Refused) and same and first.status < 500:
        return first
    reasons = "; ".join(f"{node}: {error}" for node, error in failed.items())
    return Refused(503, "not_everywhere", f"these nodes {what}: {reasons}", nodes=[*failed])


def _first_refusal(outcomes: Iterable[Any], silent: dict[str, str]) -> Refused:
    refusals = [each for each in outcomes if isinstance(each, Refused)]
    if len(refusals) == len(silent):
        return refusals[0]
    reasons = "; ".join(f"{node}: {reason}" for node, reason in silent.items())
    return Refused(503, "unavailable", f"no index node answers: {reasons}", nodes=[*silent])
