"""Asking for the streams that are wanted: when, and at which node."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from uprmc.client.ask import Ask, Task
from uprmc.client.barriers import Barriers
from uprmc.client.documents import NotNow
from uprmc.client.errors import ConnectionLost
from uprmc.client.follow import Follower
from uprmc.client.node_session import NodeSession
from uprmc.client.nodes import Nodes
from uprmc.client.options import Options
from uprmc.client.route_table import RouteTable
from uprmc.client.routes import Route
from uprmc.protocol.opcodes import StreamFlag
from uprmc.remote.stream import StreamState

#: At most this many reasons of refusals are remembered as logged.
_LOGGED_MAX = 100

#: While a vBucket is nowhere, nodes are asked this often.
SEARCH_S = 0.25

_LOG = logging.getLogger("uprmc.client")


class StreamStarts:
    """Gives each route that waits a stream, as soon as a node has a good claim to its vBucket.

    Attributes:
        late: nodes that do not know yet that another one was promoted, which is followed now.
    """

    def __init__(
        self,
        nodes: Nodes,
        table: RouteTable,
        follower: Follower,
        barriers: Barriers,
        options: Options,
    ) -> None:
        self._nodes = nodes
        self._table = table
        self._follower = follower
        self._barriers = barriers
        self._options = options
        #: By connection, how many streams are asked for and not answered.
        self._unanswered: dict[NodeSession, int] = {}
        self._logged: set[str] = set()
        self.late: set[NodeSession] = set()

    def connected(self, session: NodeSession) -> None:
        """Use a new connection."""
        self._unanswered[session] = 0

    def lost(self, session: NodeSession) -> None:
        """Use a connection no more."""
        self._unanswered.pop(session, None)
        self.late.discard(session)

    def try_all(self, sessions: Sequence[NodeSession]) -> Task:
        """Ask for streams of the vBuckets that wait for one, as many as there is room for."""
        table, now = self._table, self._table.now
        if not self._nodes.all_asked():
            return  # a node that has not told yet may have what another only believes to have
        connected = [self._nodes.named(session.place).since for session in sessions]
        if not any(self._nodes.asked_since(since, now) for since in connected):
            return  # see `_try`
        room = sum(map(self._room, sessions))
        for vbucket in sorted(table.waiting) if room else ():
            route = table.routes[vbucket]
            yield from self._try(route, now)
            room -= route.session is not None
            if not room:
                break

    def _room(self, session: NodeSession) -> int:
        """Return how many streams may be asked for now."""
        most = min(session.starts_max, self._options.starts_max)
        return most - self._unanswered[session]

    def _try(self, route: Route, now: float) -> Task:
        if route.backoff.at > now:
            return
        session = self._session_for(route)
        if session is None or self._room(session) <= 0:
            return
        # An old active may say so again although another one was promoted since the others told.
        claimed_at = self._nodes.named(session.place).since
        if not self._nodes.asked_since(max(route.lost_at, claimed_at), now):
            return
        self._table.waiting.discard(route.place.vbucket)
        self._unanswered[session] += 1
        route.session = session
        yield from session.advance(self._follow(session, route))

    def _session_for(self, route: Route) -> NodeSession | None:
        choice = self._nodes.choice(route.place)
        if choice.disputed:
            self._refused(route, choice.why)
        session = self._nodes.session_at(choice.place or choice.deposed)
        session = session or self._nodes.replica(route.place.vbucket)
        if choice.deposed and session is not None and not session.facts.knows_terms:
            return None  # it would stream although it was deposed
        return session

    def _follow(self, session: NodeSession, route: Route) -> Task:
        flags = 0 if self._options.replicas else StreamFlag.ACTIVE_ONLY
        flags |= StreamFlag.LATEST if self._options.until_now else 0
        try:
            yield from self._follower.follow(session, route.place, flags, route.opening)
            route.streaming = True
            route.backoff.good()
            route.refusal = ""
            vbucket, term = route.place.vbucket, route.place.term
            self.late |= {
                other
                for other in self._unanswered
                if 0 < other.facts.terms.get(vbucket, 0) < term and other is not session
            }
        except NotNow as error:
            if not self._options.redial:
                raise ConnectionLost(str(error)) from None
            if session.facts.terms.get(route.place.vbucket, 0) >= route.place.term:
                self._refused(route, str(error))  # else it was said why it is not followed
            session.gone(route.place.vbucket)
            session.facts.poll_at = min(session.facts.poll_at, self._table.now + SEARCH_S)
            self._table.off(route, pause=True)
        finally:
            if session in self._unanswered:
                self._unanswered[session] -= 1

    def _refused(self, route: Route, why: str) -> None:
        """Keep why a vBucket is not streamed; what many have in common is logged for one."""
        if route.refusal == why:
            return
        route.refusal = why
        common = why.partition(": ")[2]
        if common not in self._logged:
            if len(self._logged) >= _LOGGED_MAX:
                self._logged.clear()
            self._logged.add(common)
            _LOG.warning("%s", why)

    def move(self, route: Route) -> Task:
        """Leave a node for the one that has better reason to call itself active."""
        session, stream = route.session, route.stream
        self._table.off(route)
        if session is not None and stream is not None:
            self._barriers.broken(session.place, ConnectionLost("a vBucket has moved"))
            yield from session.advance(_closing(session, stream))


def _closing(session: NodeSession, stream: StreamState) -> Task:
    yield Ask([session.close_stream(stream)])
