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
from functools import partial
from itertools import count
from typing import Any
from urllib.parse import quote

from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater
from twisted.internet.threads import deferToThreadPool

from uprmc.config import IndexSettings
from uprmc.index.account import Account
from uprmc.index.all_nodes import ASK_S, AllNodes, first_refusal
from uprmc.index.design import Design
from uprmc.index.errors import Refused
from uprmc.index.interfaces import Service
from uprmc.index.mapping import make_reducer
from uprmc.index.merge import Merged
from uprmc.index.node_client import NodeClient, NodeFailed
from uprmc.index.paths import BUCKET, design_path
from uprmc.index.placement import Holdings, placed
from uprmc.index.query_options import Query
from uprmc.index.scatter_attempt import Attempt, Known, common_options
from uprmc.metrics import Metric

#: Pauses before the map is fetched again, in seconds; after the last one the query fails.
PAUSES_S = (0.05, 0.1, 0.2, 0.4, 0.4)

#: A map, or a design of other nodes, is used for this long.
_KNOWN_S = 5.0

_KEPT = 256

#: Reducers that were used last and are kept; each may have a process of its own.
REDUCERS_KEPT = 16


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
        in_thread: for calls that block.
    """

    def __init__(self, reducer: Any, in_thread: Callable[..., Deferred[Any]]) -> None:
        self._reducer, self._in_thread = reducer, in_thread

    async def rereduce(self, groups: Sequence[Sequence[bytes]]) -> Sequence[bytes | None]:
        """Return the reduction of each group's reductions; ``None`` = it failed."""

        def reduced() -> list[bytes | None]:
            return [self._reducer.rereduce([(value,) for value in values])[0] for values in groups]

        found: Sequence[bytes | None] = await self._in_thread(reduced)
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
        self._client = client or NodeClient(reactor)
        self.all = AllNodes(nodes, self._client, settings.connection_timeout_s)
        self._service, self._settings = service, settings
        self._reactor, self._source = reactor, source
        self._in_thread: Callable[..., Deferred[Any]] = partial(deferToThreadPool, reactor, pool)
        self._maps = _Lately(reactor.seconds)
        self._designs = _Lately(reactor.seconds)
        self._reducers: dict[tuple[str, int], Any] = {}
        self._terms: dict[int, int] = {}
        self.retries = 0

    def close(self) -> Deferred[None]:
        """Hang up on all nodes."""
        for reducer in self._reducers.values():
            reducer.close()
        self._reducers.clear()
        return self._client.close()

    def metrics(self) -> Iterator[Metric]:
        """Yield what it counts."""
        yield Metric(
            "index_merge_retries_total",
            "counter",
            "Attempts to ask index nodes again because a map of vBuckets was outdated.",
            [({}, self.retries)],
        )

    # --- designs ------------------------------------------------------------------------------

    async def put(self, name: str, body: bytes) -> None:
        """Put a design on all nodes; raise `Refused`, naming those that lack it."""
        await self._changed(self.all.put(name, body))

    async def delete(self, name: str) -> None:
        """Delete a design on all nodes; raise `Refused`, naming those that still have it."""
        await self._changed(self.all.delete(name))

    async def undo(self, name: str) -> None:
        """Undo the last change on all nodes; raise `Refused`, naming those that still have it."""
        await self._changed(self.all.undo(name))

    async def _changed(self, changing: Coroutine[Any, Any, None]) -> None:
        try:
            await changing
        finally:
            self._designs.forget()
            self._maps.forget()
            self._reducers.clear()  # of a definition that may be gone

    async def design(self, name: str, new: bool = False) -> Design:
        """Return a definition, of this node or of another; raise `Refused`."""
        try:
            return self._service.group(name, new).design
        except Refused as error:
            refused = error
        found: Design | None = self._designs.get((name, new))
        if found is not None:
            return found
        for node in self.all.nodes:
            try:
                path = f"{design_path(name)}?local=true{'&rev=new' if new else ''}"
                text = await self._client.fetch(node, "GET", path, None, ASK_S)
            except Refused as error:
                refused = error
            except NodeFailed as failed:
                refused = Refused(503, "unavailable", f"{node}: {failed}")
            else:
                found = await self._parsed(name, text)
                self._designs.put((name, new), found)
                return found
        raise refused

    async def _parsed(self, name: str, text: bytes) -> Design:
        modules = _AnyModule()
        found: Design = await self._in_thread(
            Design.parse, name, text, modules, settings=self._settings
        )
        return found

    def _reducing(self, design: Design, view_index: int) -> Reducing | None:
        if not design.views[view_index].reduces:
            return None
        key = design.signature, view_index
        reducer = self._reducers.pop(key, None)
        if reducer is None:
            reducer = make_reducer(design, view_index, self._settings)
        self._reducers[key] = reducer  # the newest is the last
        # One that goes ends with the last answer that needs it, and its process with it.
        while len(self._reducers) > REDUCERS_KEPT:
            del self._reducers[next(iter(self._reducers))]
        return Reducing(reducer, self._in_thread)

    # --- the map ------------------------------------------------------------------------------

    async def _map(self, design: str, query: Query, *, again: bool) -> Known:
        key = design, query.new
        found: Known | None = None if again else self._maps.get(key)
        if found is None:
            found = await self._fetched_map(design, query)
            if not found.silent and found.placement.is_whole:
                self._maps.put(key, found)
        return found

    async def _fetched_map(self, design: str, query: Query) -> Known:
        path = f"/{BUCKET}/_vbuckets?design={quote(design, safe='')}"
        outcomes = await self.all.asked(path + ("&rev=new" if query.new else ""))
        holdings, silent = {}, {}
        for node, answer in outcomes.items():
            try:
                holdings[node] = Holdings.parse(answer)
            except ValueError as error:
                silent[node] = str(answer if isinstance(answer, Exception) else error)
        if not holdings:
            raise first_refusal(outcomes.values(), silent)
        for each in holdings.values():
            for vbucket in each.active.keys() & range(each.num_vbuckets):
                self._terms[vbucket] = max(each.active[vbucket], self._terms.get(vbucket, 0))
        return Known(placed(holdings, self._terms), silent)

    # --- queries ------------------------------------------------------------------------------

    async def merged(
        self, design: Design, view_index: int, query: Query, memory: Account
    ) -> Merged:
        """Return the answer of all nodes, which has begun; raise `Refused`."""
        timeout_s = query.timeout_s or self._settings.connection_timeout_s
        ends = self._reactor.seconds() + timeout_s
        options = await self._options(query)
        for number in count():
            known = await self._map(design.name, query, again=number > 0)
            attempt = Attempt(
                self._client,
                self._reactor,
                design,
                view_index,
                query,
                options,
                known,
                ends,
                timeout_s,
                memory,
            )
            refused = attempt.lacking() or await attempt.begin()
            if refused is None:
                return self._merged(design, view_index, query, attempt)
            left_s = ends - self._reactor.seconds()
            waits = number < len(PAUSES_S) or attempt.coming()
            if left_s <= 0 or not waits:
                raise refused
            self.retries += 1
            pause_s = PAUSES_S[min(number, len(PAUSES_S) - 1)]
            await deferLater(self._reactor, min(pause_s, left_s), lambda: None)
        raise AssertionError("the loop has no end")

    async def _options(self, query: Query) -> bytes:
        """Return what all nodes are asked alike; many keys are written by a thread."""
        if query.keys is None:
            return common_options(query)
        found: bytes = await self._in_thread(common_options, query)
        return found

    def _merged(self, design: Design, view_index: int, query: Query, attempt: Attempt) -> Merged:
        if attempt.errors:
            self._maps.forget()
        return Merged(
            attempt.rows,
            attempt.order,
            skip=query.skip,
            limit=query.limit,
            stop=query.stop,
            update_seq=query.update_seq,
            view=design.views[view_index].name,
            source=self._source(),
            errors=attempt.errors,
            reducing=self._reducing(design, view_index),
            pause=partial(deferLater, self._reactor, 0),
        )


class _AnyModule(frozenset[str]):
    """Python modules that another node's settings name; none is imported here."""

    def __contains__(self, name: object) -> bool:
        return True
