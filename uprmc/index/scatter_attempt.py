"""One attempt to ask all index nodes a query by one map, and what came of it.

Source: systems reference c.7, c.9; acceptance row I14.
"""

# mypy: allow-untyped-calls
from __future__ import annotations

from typing import Any, NamedTuple

from uprmc.index.account import Account, Holding
from uprmc.index.all_nodes import ASK_S, all_of
from uprmc.index.design import Design
from uprmc.index.errors import Refused, bad_request, outdated
from uprmc.index.merge import NodeRows, Order
from uprmc.index.node_client import NodeClient, NodeFailed, dumped, refusal
from uprmc.index.paths import design_path
from uprmc.index.placement import Placement
from uprmc.index.query_options import Query

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
    """See the module docstring.

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

    Attributes:
        order: of rows.
        rows: of each node whose answer has begun.
        errors: what went wrong at which node.
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
        memory: Account,
    ) -> None:
        self._client, self._reactor, self._memory = client, reactor, memory
        self._design, self._view_index = design, view_index
        self._query, self._known, self._timeout_s = query, known, timeout_s
        self._ends, self._common = ends, options
        self.order = Order(design.options.collation, query.descending, query.reduce)
        self.rows: list[NodeRows] = []
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

    def lacking(self) -> Refused | None:
        """Return the refusal if nodes that are well do not have all vBuckets together."""
        placement = self._known.placement
        for token in self._query.at:
            if placement.total and token.vbucket >= placement.total:
                raise bad_request(f"at: there is no vBucket {token.vbucket}")
        if placement.is_whole or self._known.silent:
            return None
        if not placement.total:
            reason = "no index node knows yet what its source has"
            return Refused(503, "unavailable", reason)
        return outdated(sorted(placement.missing), "no node has them", placement.epoch)

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
            outcomes = await all_of(
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
        self.errors += [{"from": node, "reason": each.reason} for node, each in refusals]
        return None

    async def _one(self, node: str, vbuckets: frozenset[int]) -> tuple[str, Refused] | None:
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
