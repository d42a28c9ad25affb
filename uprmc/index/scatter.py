"""Queries over several index nodes, and designs on all of them.

Every node is asked for the vBuckets that the map gives to it, by the epoch of that map. A node that
does not have one of them says so; then the map is fetched again and all are asked again, a few
times (row I14). What a node cannot do for other reasons becomes an entry in the answer's errors.
"""

# mypy: allow-untyped-calls

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import quote

from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater
from twisted.internet.threads import deferToThreadPool

from uprmc.config import IndexSettings
from uprmc.index.design import BUCKET, DESIGNS, Design, design_path
from uprmc.index.errors import QueryRefused, bad_request, outdated
from uprmc.index.http_request import AnswerAccount, Holding
from uprmc.index.json_text import strict_json
from uprmc.index.mapping import make_reducer
from uprmc.index.merge import Merged, NodeRows, Order
from uprmc.index.node_client import NodeClient, NodeFailed, dumped, refusal
from uprmc.index.query_options import Query
from uprmc.metrics import Metric

if TYPE_CHECKING:
    from uprmc.index.service import Service


# --- placement ------------------------------------------------------------------------------------
# Which node answers for which vBucket of a design: one for each, however many have it.
#
# Rows I11, I14, I29.


#: Most vBuckets of a map that a node sends.
_VBUCKETS_MAX = 65_536


class Holdings(NamedTuple):
    """What one node says it has of a design."""

    num_vbuckets: int  # of the bucket; 0 = it does not know yet
    epoch: int  # of the newest map that it has seen
    # vBuckets that it answers for, with the term in which each became active.
    active: Mapping[int, int]
    pending: frozenset[int]  # vBuckets that are on their way to it
    signature: str = ""  # of the definition that it answers with

    @classmethod
    def parse(cls, answer: Any) -> Holdings:
        """Read what a node sent; raise `ValueError` for what makes no sense."""
        try:
            found = cls(
                int(answer["num_vbuckets"]),
                int(answer["epoch"] or 0),
                {int(vbucket): int(term or 0) for vbucket, term in answer["active"].items()},
                frozenset(map(int, answer["pending"])),
                str(answer.get("signature", "")),
            )
        except (TypeError, KeyError, AttributeError, OverflowError):
            raise ValueError("it does not say which vBuckets it has") from None
        if not 0 <= found.num_vbuckets <= _VBUCKETS_MAX:
            raise ValueError(f"it has {found.num_vbuckets} vBuckets")
        return found


class Placement(NamedTuple):
    """Who answers for what."""

    total: int  # of the bucket's vBuckets, as far as any node knows
    nodes: Mapping[str, frozenset[int]]  # vBuckets of each node that has any
    epoch: int  # the highest of all nodes
    missing: frozenset[int]  # vBuckets that no node has
    coming: frozenset[int]  # those of them that are on their way to one
    signatures: Mapping[str, str]  # of the definition that each node answers with

    @property
    def is_whole(self) -> bool:
        """Whether it is known how many vBuckets there are, and each has a node."""
        return bool(self.total) and not self.missing


def placed(holdings: Mapping[str, Holdings], known: Mapping[int, int] | None = None) -> Placement:
    """Give each vBucket to the node that has it in the highest term; equals take turns.

    Args:
        holdings: of each node that answers.
        known: the highest terms that were ever heard of: who has a vBucket in a lower one was
            deposed, and is not asked, whether its successor answers or not.
    """
    terms = known or {}
    total = max((each.num_vbuckets for each in holdings.values()), default=0)
    newest: dict[int, tuple[int, list[str]]] = {}
    for node, each in sorted(holdings.items()):
        for vbucket, term in each.active.items():
            best = newest.get(vbucket)
            if term < terms.get(vbucket, 0):
                continue
            if best is None or term > best[0]:
                newest[vbucket] = term, [node]
            elif term == best[0]:
                best[1].append(node)
    nodes: dict[str, set[int]] = {}
    for vbucket in sorted(newest.keys() & range(total)):
        chosen = newest[vbucket][1]
        nodes.setdefault(chosen[vbucket % len(chosen)], set()).add(vbucket)
    missing = frozenset(range(total)) - newest.keys()
    pending = frozenset[int]().union(*(each.pending for each in holdings.values()))
    return Placement(
        total,
        {node: frozenset(vbuckets) for node, vbuckets in nodes.items()},
        max((each.epoch for each in holdings.values()), default=0),
        missing,
        pending & missing,
        {node: each.signature for node, each in holdings.items()},
    )


# --- all nodes ------------------------------------------------------------------------------------


#: A node says within this time what it has.
ASK_S = 5.0

_Result = TypeVar("_Result")


async def all_of(coroutines: Iterable[Coroutine[Any, Any, _Result]]) -> list[_Result]:
    """Await several at once; if that is cancelled, so are they."""
    begun = [Deferred.fromCoroutine(each) for each in coroutines]
    try:
        return [await each for each in begun]
    except BaseException:
        for each in begun:
            each.addErrback(lambda _: None)
            each.cancel()
        raise


def _status(error: Exception) -> int:
    return error.status if isinstance(error, QueryRefused) else 0


def _not_everywhere(failed: dict[str, Exception], nodes: int, what: str) -> QueryRefused:
    """Return the nodes' own refusal if all agree that the request is wrong."""
    first = next(iter(failed.values()))
    same = len(failed) == nodes and len({_status(error) for error in failed.values()}) == 1
    if isinstance(first, QueryRefused) and same and first.status < 500:
        return first
    reasons = "; ".join(f"{node}: {error}" for node, error in failed.items())
    return QueryRefused(503, "not_everywhere", f"these nodes {what}: {reasons}", nodes=[*failed])


def first_refusal(outcomes: Iterable[Any], silent: dict[str, str]) -> QueryRefused:
    """Return why no node answers: their own refusal if all refuse."""
    refusals = [each for each in outcomes if isinstance(each, QueryRefused)]
    if len(refusals) == len(silent):
        return refusals[0]
    reasons = "; ".join(f"{node}: {reason}" for node, reason in silent.items())
    return QueryRefused(503, "unavailable", f"no index node answers: {reasons}", nodes=[*silent])


# --- scatter attempt ------------------------------------------------------------------------------


#: How much longer than a node itself waits the merger waits for it.
_GRACE_S = 1.0

#: Options that the merger sees to, and does not pass on.
_OWN = frozenset(
    ["skip", "limit", "partitions", "epoch", "signature", "connection_timeout", "at", "full_set"]
)


class Known(NamedTuple):
    """A map, and which nodes did not answer when it was made."""

    placement: Placement
    silent: dict[str, str]


class Attempt:
    """One attempt to ask all index nodes a query by one map, and what came of it.

    Row I14.

    Args:
        client: speaks to nodes.
        reactor: whose clock counts.
        design, view_index: the view.
        query: the question.
        options: of it, as `common_options` returns them.
        known: the map.
        ends: when the query's time is over, by that clock.
        timeout_s: a node that sends nothing for this long is given up.
        memory: what answers hold.
    """

    def __init__(
        self,
        client: NodeClient,
        reactor: Any,
        design: Design,
        view_index: int,
        query: Query,
        options: bytes,
        known: Known,
        ends: float,
        timeout_s: float,
        memory: AnswerAccount,
    ) -> None:
        self._client, self._reactor, self._memory = client, reactor, memory
        self._design, self._view_index = design, view_index
        self._query, self._known, self._timeout_s = query, known, timeout_s
        self._ends, self._common = ends, options
        self.order = Order(design.options.collation, query.descending, query.reduce)  # of rows
        self.rows: list[NodeRows] = []  # of each node whose answer has begun
        # What went wrong at which node.
        self.errors = [
            {"from": node, "reason": reason}
            for node, reason in known.silent.items()
            if not known.placement.is_whole
        ]
        self.errors += self._differing()

    def _differing(self) -> list[dict[str, str]]:
        """Return an error for each node whose rows are made by another definition than ours.

        Nodes build a changed design at their own speed, and for a while some still have the old.
        """
        placement = self._known.placement
        reason = "it answers with another definition of the design"
        return [
            {"from": node, "reason": reason}
            for node in placement.nodes
            if placement.signatures.get(node) not in (self._design.signature, "", None)
        ]

    def lacking(self) -> QueryRefused | None:
        """Return the refusal if nodes that are well do not have all vBuckets together."""
        placement = self._known.placement
        for token in self._query.at:
            if placement.total and token.vbucket >= placement.total:
                raise bad_request(f"at: there is no vBucket {token.vbucket}")
        if placement.is_whole or self._known.silent:
            return None
        if not placement.total:
            reason = "no index node knows yet what its source has"
            return QueryRefused(503, "unavailable", reason)
        return outdated(sorted(placement.missing), "no node has them", placement.epoch)

    def coming(self) -> bool:
        """Return whether all that is missing is on its way to a node."""
        placement = self._known.placement
        return bool(placement.missing) and placement.missing <= placement.coming

    async def begin(self) -> QueryRefused | None:
        """Ask all nodes; return the refusal if one says that the map is outdated.

        Raises:
            Refused: a node says so for another reason that concerns the query itself.
        """
        placement = self._known.placement
        try:
            outcomes = await all_of(
                self._one(node, vbuckets) for node, vbuckets in placement.nodes.items()
            )
            return self._judged([each for each in outcomes if each is not None])
        except BaseException:
            self._close()
            raise

    def _judged(self, refusals: list[tuple[str, QueryRefused]]) -> QueryRefused | None:
        for _, refused in refusals:
            if refused.error == "set_view_outdated":
                self._close()
                return refused
        for _, refused in refusals:
            if refused.status in (400, 409):
                raise refused
        if refusals and len(refusals) == len(self._known.placement.nodes):
            raise refusals[0][1]
        self.errors += [{"from": node, "reason": each.reason} for node, each in refusals]
        return None

    async def _one(self, node: str, vbuckets: frozenset[int]) -> tuple[str, QueryRefused] | None:
        """Ask one node; its rows, or why there are none, are kept."""
        left_s = max(self._ends - self._reactor.seconds(), 0.001)
        view = self._design.views[self._view_index].name
        path = design_path(self._design.name, "_view", view)
        body = self._common[:-1] + b"," + dumped(self._options(node, vbuckets, left_s))[1:]
        try:
            answer = await self._client.ask(node, "POST", path, body, left_s + _GRACE_S)
            if answer.status >= 400:
                content = await self._client.content(answer, ASK_S)
                return node, refusal(answer.status, content)
        except NodeFailed as failed:
            self.errors.append({"from": node, "reason": str(failed)})
            return None
        answer.lines.memory = Holding(self._memory)
        rows = NodeRows(node, _Timed(answer.lines, self._reactor, self._timeout_s), self.order)
        self.rows.append(rows)
        await rows.begin()
        return None

    def _options(self, node: str, vbuckets: frozenset[int], left_s: float) -> dict[str, Any]:
        """Return what this node alone is asked."""
        placement = self._known.placement
        options: dict[str, Any] = {
            "partitions": {node: sorted(vbuckets)},
            "epoch": placement.epoch,
            "connection_timeout": max(int(left_s * 1_000), 1),
        }
        if signature := placement.signatures.get(node):
            options["signature"] = signature
        tokens = [token for token in self._query.at if token.vbucket in vbuckets]
        if tokens:
            options["at"] = [":".join(map(str, token)) for token in tokens]
        return options

    def _close(self) -> None:
        for rows in self.rows:
            rows.close()


def common_options(query: Query) -> bytes:
    """Return the options that all nodes get, as a JSON object with at least one member."""
    options = {name: each for name, each in query.given.items() if name not in _OWN}
    if query.limit is not None:
        options["limit"] = query.skip + query.limit
    return dumped({**options, "merge": True})


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


# --- scatter --------------------------------------------------------------------------------------


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
        self.nodes = tuple(nodes)
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
        """Put a design on all nodes; raise `QueryRefused`, naming those that lack it."""
        await self._everywhere("PUT", design_path(name), body, f"lack design {name!r}")

    async def delete(self, name: str) -> None:
        """Delete a design on all nodes; raise `QueryRefused`, naming those that have it."""
        await self._everywhere("DELETE", design_path(name), None, f"still have design {name!r}")

    async def undo(self, name: str) -> None:
        """Undo the last change on all nodes; raise `QueryRefused`, naming those that have it."""
        what = f"still have the last change of design {name!r}"
        await self._everywhere("POST", design_path(name, "_undo"), b"", what)

    async def _everywhere(self, method: str, path: str, body: bytes | None, what: str) -> None:
        path = f"{path}?local=true"

        async def one(node: str) -> Exception | None:
            try:
                await self._client.fetch(
                    node, method, path, body, self._settings.connection_timeout_s
                )
            except (QueryRefused, NodeFailed) as error:
                return error
            return None

        try:
            outcomes = await all_of(one(node) for node in self.nodes)
        finally:
            self._designs.forget()
            self._maps.forget()
            self._reducers.clear()  # of a definition that may be gone
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

    async def listed(self) -> dict[str, Any]:
        """Return by name how nodes list their designs; raise `QueryRefused` if no node answers."""
        answers = await self.asked(f"{DESIGNS}?local=true")
        found: dict[str, Any] = {}
        for answer in answers.values():
            rows = answer.get("rows") if isinstance(answer, dict) else None
            if isinstance(rows, list):
                named = [row for row in rows if isinstance(row, dict) and "name" in row]
                found = {str(row["name"]): row for row in named} | found
        return found

    async def info(self, name: str) -> dict[str, Any]:
        """Return what each node says of a design; raise `QueryRefused` if none has it."""
        answers = await self.asked(f"{design_path(name, '_info')}?local=true")
        nodes = {
            node: answer if isinstance(answer, dict) else {"error": str(answer)}
            for node, answer in answers.items()
        }
        states = {str(each.get("state")) for each in nodes.values()}
        return {"name": name, "state": " ".join(sorted(states)), "nodes": nodes}

    async def asked(self, path: str) -> dict[str, Any]:
        """Return the answer of each node, or why not; raise `QueryRefused` if none has."""

        async def one(node: str) -> Any:
            try:
                return strict_json(await self._client.fetch(node, "GET", path, None, ASK_S))
            except (QueryRefused, NodeFailed, ValueError) as error:
                return error

        found = dict(zip(self.nodes, await all_of(one(node) for node in self.nodes), strict=True))
        silent = {node: str(each) for node, each in found.items() if isinstance(each, Exception)}
        if len(silent) == len(found):
            raise first_refusal(found.values(), silent)
        return found

    async def design(self, name: str, new: bool = False) -> Design:
        """Return a definition, of this node or of another; raise `QueryRefused`."""
        try:
            return self._service.group(name, new).design
        except QueryRefused as error:
            refused = error
        found: Design | None = self._designs.get((name, new))
        if found is not None:
            return found
        for node in self.nodes:
            try:
                path = f"{design_path(name)}?local=true{'&rev=new' if new else ''}"
                text = await self._client.fetch(node, "GET", path, None, ASK_S)
            except QueryRefused as error:
                refused = error
            except NodeFailed as failed:
                refused = QueryRefused(503, "unavailable", f"{node}: {failed}")
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
        outcomes = await self.asked(path + ("&rev=new" if query.new else ""))
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
        self, design: Design, view_index: int, query: Query, memory: AnswerAccount
    ) -> Merged:
        """Return the answer of all nodes, which has begun; raise `QueryRefused`."""
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
