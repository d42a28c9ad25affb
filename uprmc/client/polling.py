"""Opening connections and polling nodes: learning which vBuckets they have, with which terms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from uprmc.client.ask import Ask, Task
from uprmc.client.barriers import Barriers
from uprmc.client.errors import ClientError, MisuseError
from uprmc.client.node_session import NodeSession
from uprmc.client.nodes import Nodes
from uprmc.client.options import Options
from uprmc.client.route_table import RouteTable
from uprmc.client.state import StateStore
from uprmc.client.stream_starts import SEARCH_S, StreamStarts
from uprmc.remote.directory import telling


class Polling:
    """Asks each node as often as the options say, and keeps routes up to date with the answers."""

    def __init__(
        self,
        nodes: Nodes,
        table: RouteTable,
        starts: StreamStarts,
        barriers: Barriers,
        state: StateStore,
        options: Options,
    ) -> None:
        self._nodes = nodes
        self._table = table
        self._starts = starts
        self._barriers = barriers
        self._state = state
        self._options = options
        self._total = 0

    def open(self, session: NodeSession) -> Task:
        """Return the task that opens a connection; the handshake ends with a poll."""
        session.facts.asks()
        return self._open(session)

    def _open(self, session: NodeSession) -> Task:
        try:
            yield from session.handshake()
        except ClientError as error:
            session.error = error
            raise
        self._check_count(session)
        self._polled(session)
        self._nodes.learn(session.facts.servers)

    def _check_count(self, session: NodeSession) -> None:
        """Refuse a node with another number of vBuckets: other documents would be in them."""
        if session.facts.map is None:
            return
        there, state = session.facts.map.vbuckets, self._state
        for known, whose in (
            (self._options.total_vbuckets, "as total_vbuckets says"),
            (getattr(state, "vbuckets", 0), "as the state: it belongs to another node"),
            (self._total, "as another node"),
        ):
            if known and known != there:
                raise MisuseError(
                    f"the node at {session.place} has {there} vBuckets, not {known} {whose}"
                )
        self._options.check_numbers(there)
        self._total = there
        if getattr(state, "vbuckets", there) != there:
            cast(Any, state).name_vbuckets(there)

    def poll_due(self, sessions: Sequence[NodeSession]) -> Task:
        """Poll the nodes whose time has come."""
        disputed, now = self._nodes.disputed(), self._table.now
        for session in sessions:
            facts = session.facts
            if facts.poll_at <= now and not facts.polling:
                facts.asks()
                self._nodes.named(session.place).asked_at = now
                wanted = sorted(disputed & facts.active.keys())
                yield from session.advance(self._poll(session, wanted))

    def _poll(self, session: NodeSession, disputed: list[int]) -> Task:
        yield from session.poll(disputed)
        self._polled(session)
        self._starts.late.add(session)
        yield from self.tell_late()
        for vbucket, route in list(self._table.routes.items()):
            if not route.streaming:
                continue
            if route.session is session and not session.facts.has(vbucket):
                yield from self._starts.move(route)  # it is active no more, and did not say so
            elif route.session is not session and vbucket in session.facts.active:
                better = self._nodes.choice(route.place).place
                if better and self._nodes.session_at(better) is not route.session:
                    yield from self._starts.move(route)

    def tell_late(self) -> Task:
        """Tell nodes of the promotions that they have missed."""
        late, self._starts.late = self._starts.late, set()
        for session in late:
            if session.open:
                yield from session.advance(self._tell(session))

    def _tell(self, session: NodeSession) -> Task:
        """Tell a node that another one was promoted, which we have followed.

        Only a term and a history count that are of one node.
        """
        facts = session.facts
        rows = []
        for vbucket, term in facts.terms.items():
            route = self._table.routes.get(vbucket)
            newest = 0 if route is None else route.place.term
            if route is None or not 0 < term < newest or route.log_term != newest:
                continue
            if facts.told.get(vbucket) != newest and route.place.log:
                facts.told[vbucket] = newest
                rows.append((vbucket, newest, route.place.log))
        if rows:
            yield Ask(telling(rows))

    def _polled(self, session: NodeSession) -> None:
        facts, now = session.facts, self._table.now
        self._nodes.named(session.place).told(failed=not facts.polls)
        pause_s = SEARCH_S if self._table.waiting or self._barriers else self._options.poll_s
        facts.asked(now + min(pause_s, self._options.poll_s))
        if self._options.vbuckets is None:
            self._add_routes(session)
        for vbucket, term in facts.terms.items():
            route = self._table.routes.get(vbucket)
            if route is not None and route.place.term < term:
                route.place.term = term
        for vbucket, high_seqno in (facts.replicas | facts.active).items():
            route = self._table.routes.get(vbucket)
            if route is not None and route.session in (session, None):
                route.high_seqno = high_seqno
                if high_seqno <= route.place.seqno:
                    route.level_at = now

    def _add_routes(self, session: NodeSession) -> None:
        """Follow each vBucket that was found."""
        there = (session.facts.active or session.facts.replicas).keys()
        everything = self._nodes.numbers() if self._options.until_now else frozenset()
        for vbucket in sorted((there | everything) - self._table.routes.keys()):
            self._table.add(vbucket)
