"""Which streams there are: the vBuckets that are followed, at which nodes, and what is lacking.

Nodes are asked what they have as often as the options say. A vBucket that is wanted gets its stream
as soon as a node has a good claim to it, and leaves that node for one that has a better one. Each
has a `Route`.

Rows D16, D33.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from uprmc.client.ask import Ask, Task
from uprmc.client.errors import ClientError, ConnectionLost, MisuseError, not_active
from uprmc.client.follow import Follower, NotNow
from uprmc.client.nodes import DELAY_MAX_S, DELAY_MIN_S, ClientNodes
from uprmc.client.options import Options
from uprmc.client.position import Position, PositionWriter, VBucketPlace
from uprmc.client.state import Saved
from uprmc.model import FailoverEntry, FailoverLog, SnapshotRange
from uprmc.protocol.opcodes import StreamFlag
from uprmc.remote.directory import telling
from uprmc.remote.retry import Backoff
from uprmc.remote.stream import StreamState

if TYPE_CHECKING:
    from uprmc.client.core import ClientBarriers
    from uprmc.client.node_session import NodeSession

#: While a vBucket is nowhere, nodes are asked this often.
SEARCH_S = 0.25

#: At most this many reasons of refusals are remembered as logged.
_LOGGED_MAX = 100

_LOG = logging.getLogger("uprmc.client")


@dataclass(slots=True, eq=False)
class Route:
    """Where the changes of one vBucket come from."""

    place: VBucketPlace  # where we stand
    level_at: float  # when we were last level with the node
    off_at: float  # since when there has been no stream, if there is none
    session: NodeSession | None = None  # the node that is asked, or streams
    stream: StreamState | None = None  # once it is asked for
    streaming: bool = False  # it was accepted
    done: bool = False  # everything has come that was there
    high_seqno: int = 0  # how far the node is, as it said last
    items: int = 0  # changes that were handed over
    log_term: int = 0  # of the node that the place's failover log is of, 0 = of an earlier life
    lost_at: float = 0.0  # when the last stream ended, or was refused; 0 = there was none
    refusal: str = ""  # why there is none, in words, "" = nothing was refused
    stuck_at: int = -1  # the seqno after which the node could not read on, -1 = it could
    backoff: Backoff = field(default_factory=lambda: Backoff(DELAY_MIN_S, DELAY_MAX_S))

    @property
    def stuck(self) -> bool:
        """Whether nothing has come since the node could not read on."""
        return self.stuck_at == self.place.seqno

    def opening(self, stream: StreamState) -> None:
        """A stream is about to be asked for."""
        self.stream = stream


class ClientStreams:
    """The routes of one consumer, and what brings their streams about.

    Raises:
        StateError: the state cannot be read.
    """

    def __init__(
        self,
        nodes: ClientNodes,
        writer: PositionWriter,
        follower: Follower,
        barriers: ClientBarriers,
        options: Options,
    ) -> None:
        self.routes: dict[int, Route] = {}
        self.waiting: set[int] = set()  # vBuckets for which a stream is to be asked for
        self.opened = 0  # how many streams were accepted
        self.now = 0.0  # the time of the last turn
        self._began = 0.0  # when it began to run, 0 = it has not
        self._nodes, self._writer, self._follower = nodes, writer, follower
        self._barriers, self._options = barriers, options
        self._unanswered: dict[NodeSession, int] = {}  # streams that are asked for, by connection
        # Nodes that do not know yet that another one was promoted, which is followed now.
        self._late: set[NodeSession] = set()
        self._logged: set[str] = set()
        self._total = 0  # vBuckets, as the first node says
        wanted = options.vbuckets
        known = writer.load()
        self._known = {n: place for n, place in known.items() if wanted is None or n in wanted}
        for vbucket in sorted(self._known if wanted is None else wanted):
            self._add(vbucket)

    # --- routes ---------------------------------------------------------------------------------

    def _add(self, vbucket: int) -> None:
        """Follow a vBucket, from where the state or the program says."""
        if vbucket in self.routes:
            return
        start, place = self._options.start, self._known.get(vbucket)
        given = vbucket in start if isinstance(start, Mapping) else start != "checkpoint"
        if given and place is not None:
            if start == "beginning":  # kept, at zero: the handler has to drop it
                place.seqno = place.whole = place.end = 0
            else:
                self._writer.start_over(place)
                place = None
        if place is None:
            place = VBucketPlace(vbucket)
            if isinstance(start, Mapping) and vbucket in start:
                place.stand_at(*_standing(start[vbucket]))
            place.at_now = start == "now" or isinstance(start, int)
            place.begin_at = start if isinstance(start, int) else None
        self._writer.places[vbucket] = place
        self.routes[vbucket] = Route(place, self.now, self.now)
        self.waiting.add(vbucket)

    def off(self, route: Route, *, pause: bool = False) -> None:
        """There is no stream any more; `pause` = wait before the next is asked for."""
        if route.streaming and not route.stuck:
            route.off_at = self.now
        route.lost_at = self.now
        if route.stream is not None:
            route.stream.dropped = True
        route.session, route.stream, route.streaming = None, None, False
        if pause:
            route.backoff.failed(self.now, self._options.jitter())
        if not route.done:
            self.waiting.add(route.place.vbucket)

    def ended(self, route: Route, words: str) -> None:
        """A node has ended a stream."""
        session = route.session
        if session is not None:
            session.gone(route.place.vbucket)
            session.facts.poll_at = self.now
            if not self._options.redial:
                raise ConnectionLost(f"{session.place}: {words}")
            self._barriers.broken(session.place, ConnectionLost(words))
        self.off(route, pause=True)

    def _move(self, route: Route) -> Task:
        """Leave a node for the one that has better reason to call itself active."""
        session, stream = route.session, route.stream
        self.off(route)
        if session is not None and stream is not None:
            yield from session.advance(_closing(session, stream))

    # --- connections ----------------------------------------------------------------------------

    def opening(self, session: NodeSession) -> Task:
        """Return the task that opens a connection; the handshake ends with a poll."""
        self._unanswered[session] = 0
        session.facts.asks()
        return self._open(session)

    def _open(self, session: NodeSession) -> Task:
        try:
            yield from session.handshake()
        except ClientError as error:
            session.error = error
            raise
        self._check_count(session)
        self._polled(session, self._nodes.named(session.place).asked_at)
        self._nodes.learn(session.facts.servers)

    def _check_count(self, session: NodeSession) -> None:
        """Refuse a node with another number of vBuckets: other documents would be in them."""
        if session.facts.map is None:
            return
        there, state = session.facts.map.vbuckets, self._writer.state
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

    def lost(self, session: NodeSession) -> None:
        """A connection is gone."""
        self._unanswered.pop(session, None)
        self._late.discard(session)
        for route in self.routes.values():
            if route.session is session:
                self.off(route)

    # --- what nodes have ------------------------------------------------------------------------

    def turn(self, now: float, sessions: Sequence[NodeSession]) -> Task:
        """Poll the nodes whose time has come, and ask for the streams that are wanted."""
        if not self._began:
            self._began = now
            for route in self.routes.values():
                route.level_at = route.off_at = now
        self.now = now
        for session in sessions:
            if session.facts.poll_at <= now and not session.facts.polling:
                yield from session.advance(self.poll(session))
        yield from self._start_all(sessions)
        yield from self.tell_late()

    def poll(self, session: NodeSession) -> Task:
        """Ask a node what it has, and for the history of disputed vBuckets; act upon it.

        Another question of the kind may be under way: it does not know of what happened since.
        """
        asked_at = self._nodes.named(session.place).asked_at = self.now
        session.facts.asks()
        yield from session.poll(sorted(session.facts.active.keys() & self._nodes.disputed()))
        self._polled(session, asked_at)
        self._late.add(session)
        yield from self.tell_late()
        for vbucket, route in list(self.routes.items()):
            if not route.streaming:
                continue
            if route.session is session and not session.facts.has(vbucket):
                yield from self._move(route)  # it is active no more, and did not say so
            elif route.session is not session and vbucket in session.facts.active:
                better = self._nodes.choice(route.place).place
                if better and self._nodes.session_at(better) is not route.session:
                    yield from self._move(route)

    def _polled(self, session: NodeSession, asked_at: float) -> None:
        """Take over what a node says."""
        facts, now = session.facts, self.now
        self._nodes.named(session.place).told(asked_at, failed=not facts.polls)
        pause_s = SEARCH_S if self.waiting or self._barriers else self._options.poll_s
        facts.asked(now + min(pause_s, self._options.poll_s))
        if self._options.vbuckets is None:
            there = (facts.active or facts.replicas).keys()
            everything = self._nodes.numbers() if self._options.until_now else frozenset()
            for vbucket in sorted((there | everything) - self.routes.keys()):
                self._add(vbucket)
        for vbucket, term in facts.terms.items():
            known = self.routes.get(vbucket)
            if known is not None and known.place.term < term:
                known.place.term = term
        for vbucket, high_seqno in (facts.replicas | facts.active).items():
            known = self.routes.get(vbucket)
            if known is not None and known.session in (session, None):
                known.high_seqno = high_seqno
                if high_seqno <= known.place.seqno:
                    known.level_at = now

    def tell_late(self) -> Task:
        """Tell nodes of the promotions that they have missed."""
        late, self._late = self._late, set()
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
            route = self.routes.get(vbucket)
            newest = 0 if route is None else route.place.term
            if route is None or not 0 < term < newest or route.log_term != newest:
                continue
            if facts.told.get(vbucket) != newest and route.place.log:
                facts.told[vbucket] = newest
                rows.append((vbucket, newest, route.place.log))
        if rows:
            yield Ask(telling(rows))

    # --- asking for streams ---------------------------------------------------------------------

    def _start_all(self, sessions: Sequence[NodeSession]) -> Task:
        """Ask for streams of the vBuckets that wait for one, as many as there is room for."""
        if not self._nodes.all_asked():
            return  # a node that has not answered yet may have what another only believes to have
        connected = [self._nodes.named(session.place).since for session in sessions]
        if not any(self._nodes.asked_since(since, self.now) for since in connected):
            return  # see `_start`
        room = sum(map(self._room, sessions))
        for vbucket in sorted(self.waiting) if room else ():
            route = self.routes[vbucket]
            yield from self._start(route)
            room -= route.session is not None
            if not room:
                break

    def _room(self, session: NodeSession) -> int:
        """Return how many streams may be asked for now."""
        most = min(session.starts_max, self._options.starts_max)
        return most - self._unanswered[session]

    def _start(self, route: Route) -> Task:
        if route.backoff.at > self.now:
            return
        session = self._session_for(route)
        if session is None or self._room(session) <= 0:
            return
        # An old active may say so again although another was promoted since the others answered.
        claimed_at = self._nodes.named(session.place).since
        if not self._nodes.asked_since(max(route.lost_at, claimed_at), self.now):
            return
        self.waiting.discard(route.place.vbucket)
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
            self.opened += 1
            if not route.stuck:
                route.backoff.good()
                route.refusal = ""
            vbucket, term = route.place.vbucket, route.place.term
            self._late |= {
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
            session.facts.poll_at = min(session.facts.poll_at, self.now + SEARCH_S)
            self.off(route, pause=True)
        finally:
            if session in self._unanswered:
                self._unanswered[session] -= 1

    def broken(self, route: Route) -> None:
        """A node could not read what it has on disk; it is asked again, but not for ever."""
        if route.session is not None:
            number, seqno = route.place.vbucket, route.place.seqno
            route.stuck_at = seqno
            self._refused(
                route,
                f"vBucket {number} at {route.session.place}: it cannot read what follows seqno "
                f"{seqno} on its disk, see its log and event damaged_record",
            )

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

    # --- is it everything? ----------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        """Whether everything has come that was there, if that is the end."""
        return (
            self._options.until_now
            and bool(self.routes)
            and self._nodes.all_asked()
            and bool(self._nodes.sessions())
            and all(route.done for route in self.routes.values())
        )

    def hopeless(self, now: float, patience_s: float) -> ClientError | None:
        """Return why what was there will not come, if it is to be waited for no longer.

        Only a consumer that is to end asks too much of a vBucket that can be had nowhere: for
        others a node may be promoted one day.
        """
        ends = self._options.until_now or not self._options.redial
        if not ends or not self._nodes.all_asked():
            return None
        if not self.routes and self._began and self._began + patience_s < now:
            return self._not_active([])
        late = [n for n in self.waiting if self.routes[n].off_at + patience_s < now]
        found = [number for number in sorted(late) if self._why_absent(number) is not None]
        return self._not_active(found) if found else None

    def give_up_barriers(self, now: float, patience_s: float) -> None:
        """Break the barriers that wait for vBuckets which can be had nowhere."""
        late = [each for each in self._barriers.unsent() if each.since + patience_s < now]
        if late and self._nodes.all_asked():
            found = [number for number in self.lacking() if self._why_absent(number) is not None]
            for barrier in late if found else ():
                self._barriers.fail(barrier, self._not_active(found))

    def lacking(self) -> list[int]:
        """Return the vBuckets that are wanted and neither stream nor are done."""
        named = self._options.vbuckets
        wanted = self._nodes.numbers() if named is None else named
        lacking = {n for n, route in self.routes.items() if not (route.streaming or route.done)}
        return sorted(lacking | (wanted - self.routes.keys()))

    def _why_absent(self, vbucket: int) -> str | None:
        """Return why a vBucket is not streamed, ``""`` = it is nowhere; ``None`` = it soon is."""
        route = self.routes.get(vbucket)
        place = route.place if route is not None else VBucketPlace(vbucket)
        choice = self._nodes.choice(place)
        if route is not None and route.refusal:
            return route.refusal
        if choice.place or self._nodes.replica(vbucket) is not None:
            return None
        return choice.why if choice.claimed else ""

    def _not_active(self, vbuckets: list[int]) -> ClientError:
        why = {number: self._why_absent(number) for number in vbuckets}
        return not_active(
            [number for number, each in why.items() if not each],
            {number: each for number, each in why.items() if each},
            [node.place for node in self._nodes.all()],
            self._nodes.why_silent(),
        )


def _closing(session: NodeSession, stream: StreamState) -> Task:
    yield Ask([session.close_stream(stream)])


def _standing(position: Position | Saved) -> tuple[int, FailoverLog, SnapshotRange]:
    """Return the seqno of a position, the log of its history, and its snapshot."""
    if isinstance(position, Saved):
        return position.seqno, position.log, position.snapshot
    seqno, uuid = position
    log = (FailoverEntry(uuid, 0),) if uuid else ()
    return seqno, log, SnapshotRange(seqno, seqno)
