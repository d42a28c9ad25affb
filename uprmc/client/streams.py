"""Which streams there are: the vBuckets that are followed, at which nodes, and what is lacking.

Nodes are asked what they have as often as the options say. A vBucket that is wanted gets its stream
as soon as a node has a good claim to it, and leaves that node for one that has a better one. Each
has a `Route`.

Rows D16, D33.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from uprmc.client.errors import (
    ClientError,
    ConnectionLost,
    MisuseError,
    NodeUnreachable,
    ProducerError,
    not_active,
)
from uprmc.client.follow import Follower, NotNow
from uprmc.client.node_session import Ask, NodeSession, Task
from uprmc.client.options import Options, check_places
from uprmc.client.position import Position, PositionWriter, VBucketPlace
from uprmc.client.state import Saved
from uprmc.model import FailoverEntry, FailoverLog, SnapshotRange, VBucketState
from uprmc.protocol.header import RequestFrame
from uprmc.protocol.opcodes import StreamFlag
from uprmc.remote.cluster_map import ClusterMap
from uprmc.remote.directory import (
    ANY_STATE,
    Directory,
    Heard,
    NodeQuestion,
    NotTold,
    OtherBucket,
    Survey,
    Unanswered,
    Why,
)
from uprmc.remote.retry import Backoff
from uprmc.remote.stream import StreamState

if TYPE_CHECKING:
    from uprmc.client.core import ClientBarriers
    from uprmc.client.node_session import NodeSession

# --- nodes ----------------------------------------------------------------------------------------
# Which nodes there are, when to dial them, and since when what they tell is known.
#
# Nodes are known by HOST:PORT: those the program named, and those that a cluster map of several
# names. One that cannot be reached or was lost is dialled again after 0.1 s, twice as long each
# time, 5 s at most; a connection that lived for ten seconds forgets that.
#
# Row D33. See `docs/streams.md`, steps 1 and 5.


DELAY_MIN_S = 0.1
DELAY_MAX_S = 5.0

#: Producers take no longer name of a connection.
_NAME_MAX_BYTES = 200

#: A connection that lived so long was a good one.
_GOOD_S = 10.0

#: A node that has not told what it has so long after it was connected counts as failed meanwhile.
_TELL_S = 5.0


class ClientNode:
    """One node."""

    __slots__ = ("_endings", "_tells", "asked_at", "backoff", "dialling", "error", "learnt",
                 "place", "polled", "session", "since", "told_at")  # fmt: skip

    def __init__(self, place: str, *, learnt: bool = False) -> None:
        self.place = place  # HOST:PORT
        # A map named it, and not the program. It may be a node that the program named otherwise:
        # such as by ``localhost``, or by the port of a tunnel.
        self.learnt = learnt
        self.session: NodeSession | None = None  # the connection
        self.since = 0.0  # when that was made
        self.dialling = False  # somebody is about to connect
        self.error: ClientError | None = None  # why the last one ended or did not come about
        self.polled = False  # it has once told what it has
        self.asked_at = 0.0  # when the last attempt to connect, or to hear what it has, began
        # When that began by which it told what it has, or failed: what it says is no older.
        self.told_at = 0.0
        self.backoff = Backoff(DELAY_MIN_S, DELAY_MAX_S)
        self._tells = False  # it has told what it has on this connection
        self._endings = 0

    def consumer_name(self, name: str) -> str:
        """Return what a consumer of this name is called here.

        A node takes a second connection of the same name for the successor of the first.
        """
        longer = f"{name}@{self.place}"
        fits = len(longer.encode()) <= _NAME_MAX_BYTES
        return longer if self.learnt and fits else name

    def connected(self, session: NodeSession, now: float) -> None:
        """There is a connection."""
        self.session, self.dialling, self.since, self._tells = session, False, now, False

    def lost(self, error: ClientError, now: float, jitter: float) -> bool:
        """There is none any more, or none came about; returns whether the node counts as failed.

        It does if it could not be reached, or if two connections in a row ended before it told what
        it has. One that was kept open and ended is the first of these.
        """
        session = self.session
        if session is not None and now - self.since > _GOOD_S:
            self.backoff.good()
        self._endings = 1 if session is not None and self._tells else self._endings + 1
        self.told_at = self.asked_at
        self.session, self.dialling, self.error = None, False, error
        self.backoff.failed(now, jitter)
        return session is None or self._endings > 1

    def has_not_told(self, now: float) -> bool:
        """Return whether it is too long ago that it was connected, and it has told nothing."""
        return self.session is not None and not self._tells and now - self.since > _TELL_S

    def told(self, asked_at: float, *, failed: bool) -> None:
        """It has answered what it has, or that it does not say."""
        self._tells = self._tells or not failed
        self.polled = self.polled or not failed
        self.told_at = asked_at

    def hasten(self, now: float) -> None:
        """Ask it soon: what it said is too old."""
        if self.session is not None:
            self.session.poll_at = min(self.session.poll_at, now)
        else:
            self.backoff.at = min(self.backoff.at, now + DELAY_MIN_S)


class ClientNodes:
    """See the module docstring; the `directory` says which of them has what."""

    def __init__(self, places: Iterable[str]) -> None:
        self.directory = Directory(check_places(places))
        self._nodes = {place: ClientNode(place) for place in self.directory.places}

    def all(self) -> list[ClientNode]:
        """Return the nodes."""
        return list(self._nodes.values())

    def sessions(self) -> list[NodeSession]:
        """Return the connections on which streams may be asked for."""
        found = [node.session for node in self._nodes.values()]
        return [session for session in found if session is not None and session.open]

    def named(self, place: str) -> ClientNode:
        """Return a node by its place."""
        return self._nodes[place]

    def session_at(self, place: str) -> NodeSession | None:
        """Return the connection to a node, ``None`` if there is none, or no such node."""
        node = self._nodes.get(place)
        return None if node is None else node.session

    def meet(self) -> None:
        """Take in the nodes that cluster maps name."""
        for place in self.directory.places[len(self._nodes) :]:
            self._nodes[place] = ClientNode(place, learnt=True)

    def due(self, now: float) -> list[str]:
        """Return the nodes that are to be dialled now; each is returned once."""
        found = [
            node
            for node in self._nodes.values()
            if node.session is None and not node.dialling and node.backoff.at <= now
        ]
        for node in found:
            node.dialling, node.asked_at = True, now
        return [node.place for node in found]

    def lost(self, place: str, error: ClientError, now: float, jitter: float) -> None:
        """A connection has ended, or none came about."""
        self.directory.lost(place, NotTold(Why.LOST, str(error), error))
        if not self._nodes[place].lost(error, now, jitter):
            self.directory.asks_again(place)

    def look(self, now: float) -> None:
        """Learn the time: who takes too long to tell what it has counts as failed meanwhile."""
        for node in self._nodes.values():
            if node.has_not_told(now):
                node.told_at = now
                if node.place not in self.directory.silent:
                    words = f"{node.place} said nothing of its vBuckets for {_TELL_S:g} s"
                    self.directory.lost(node.place, NotTold(Why.LOST, f"the node at {words}"))

    def never_reached(self) -> ClientError | None:
        """Return why no node was ever reached; ``None`` if one was."""
        if any(node.polled or node.session is not None for node in self._nodes.values()):
            return None
        errors = [node.error for node in self._nodes.values() if node.error is not None]
        return (
            errors[-1]
            if errors
            else NodeUnreachable(f"the node at {', '.join(self._nodes)} has not answered yet")
        )

    def asked_since(self, moment: float, now: float) -> bool:
        """Return whether every node has told or failed since a moment; the others are hastened."""
        known = self.directory.facts | self.directory.silent
        nodes = self._nodes.values()
        late = [node for node in nodes if node.place not in known or node.told_at < moment]
        for node in late:
            node.hasten(now)
        return not late


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
        self._nodes, self._directory = nodes, nodes.directory
        self._writer, self._follower = writer, follower
        self._barriers, self._options = barriers, options
        self._unanswered: dict[NodeSession, int] = {}  # streams that are asked for, by connection
        self._logged: set[str] = set()
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
        self._directory.heard_of({vbucket: place.term})
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
            self._gone(session, route.place.vbucket)
            session.poll_at = self.now
            if not self._options.redial:
                raise ConnectionLost(f"{session.place}: {words}")
            self._barriers.broken(session.place, ConnectionLost(words))
        self.off(route, pause=True)

    def _gone(self, session: NodeSession, vbucket: int) -> None:
        """A node does not stream a vBucket: it is not there any more, as far as is known."""
        self._directory.not_mine(session.place, vbucket, b"")
        session.gone(vbucket)

    def accepted(self, route: Route, stream: StreamState) -> bool:
        """Go on in the history of a node that streams; returns whether that can be."""
        place = route.place
        if not place.adopt(stream.log):
            return False
        place.term = max(place.term, stream.term)
        self._directory.heard_of({place.vbucket: stream.term})
        return True

    def _move(self, route: Route) -> Task:
        """Leave a node for the one that has better reason to call itself active."""
        session, stream = route.session, route.stream
        self.off(route)
        if session is not None and stream is not None:
            yield from session.advance(_closing(session, stream))

    # --- connections ----------------------------------------------------------------------------

    def opening(self, session: NodeSession) -> Task:
        """Return the task that opens a connection, and asks the node what it has."""
        self._unanswered[session] = 0
        session.poll_at, session.polling = math.inf, True
        return self._open(session)

    def _open(self, session: NodeSession) -> Task:
        try:
            yield from session.handshake()
        except ClientError as error:
            session.error = error
            raise
        if session.map is not None:
            self._take_map(session.place, session.map)
        yield from self.poll(session)

    def _take_map(self, place: str, found: ClusterMap) -> None:
        """Refuse a node with another number of vBuckets: other documents would be in them."""
        there, state = found.vbuckets, self._writer.state
        for known, whose in (
            (self._options.total_vbuckets, "as total_vbuckets says"),
            (getattr(state, "vbuckets", 0), "as the state: it belongs to another node"),
        ):
            if known and known != there:
                raise MisuseError(f"the node at {place} has {there} vBuckets, not {known} {whose}")
        self._options.check_numbers(there)
        try:
            self._directory.take_map(place, found)
        except OtherBucket as error:
            raise MisuseError(f"the node at {error}") from None
        self._nodes.meet()
        if getattr(state, "vbuckets", there) != there:
            cast(Any, state).name_vbuckets(there)

    def lost(self, session: NodeSession) -> None:
        """A connection is gone."""
        self._unanswered.pop(session, None)
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
            if session.poll_at <= now and not session.polling:
                yield from session.advance(self.poll(session))
        if self.waiting:
            yield from self._start_all(sessions)

    def poll(self, session: NodeSession, more: Sequence[RequestFrame] = ()) -> Task:
        """Ask a node what it has, and act upon it; return the answers to what is asked with that.

        Another question of the kind may be under way: it does not know of what happened since.

        Raises:
            ProducerError: the answer makes no sense.
            MisuseError: the node is of another bucket.
        """
        asked_at = self._nodes.named(session.place).asked_at = self.now
        session.poll_at, session.polling = math.inf, True  # who wants one sooner now wants another
        others: list[int] = [VBucketState.REPLICA] if self._options.replicas else []
        if session.map is None:  # else the map says how many there are
            others.append(ANY_STATE)
        asked = self._directory.ask(session.place, others, maps=False)
        answers = yield from session.put(asked, more)
        self._polled(session, asked_at)
        yield from self._conduct(self._directory.compare())
        yield from self._move_all(session)
        return answers

    def _polled(self, session: NodeSession, asked_at: float) -> None:
        """Take over what a node says."""
        silence, now = self._directory.silent.get(session.place), self.now
        if silence is not None and silence.why is Why.NONSENSE:
            raise ProducerError(silence.words)
        if silence is not None and silence.why is Why.FOREIGN:
            raise MisuseError(silence.words)
        self._nodes.named(session.place).told(asked_at, failed=silence is not None)
        pause_s = SEARCH_S if self.waiting or self._barriers else self._options.poll_s
        next_at = now + min(pause_s, self._options.poll_s)
        session.polling, session.poll_at = False, min(session.poll_at, next_at)
        if silence is not None:
            return
        facts = self._directory.facts[session.place]
        if self._options.vbuckets is None:
            there = (facts.active or facts.replicas).keys()
            everything = self._directory.numbers() if self._options.until_now else set()
            for vbucket in sorted((there | everything) - self.routes.keys()):
                self._add(vbucket)
        highs = facts.replicas | {number: seqno for number, (seqno, _) in facts.active.items()}
        for vbucket, high_seqno in highs.items():
            route = self.routes.get(vbucket)
            if route is None:
                continue
            route.place.term = max(route.place.term, facts.term(vbucket))
            if route.session in (session, None):
                route.high_seqno = high_seqno
                if high_seqno <= route.place.seqno:
                    route.level_at = now

    def _conduct(self, survey: Survey, heard: Heard | None = None) -> Task:
        """Put each question to its node when the one before is answered; who is lost ends it."""
        try:
            question = survey.send(cast(Heard, heard))
            while (session := self._nodes.session_at(question.place)) is None or not session.open:
                question = survey.send(Unanswered(ConnectionLost("it is away"), "it is away"))
        except StopIteration:
            return
        yield from session.advance(self._put(session, question, survey))

    def _put(self, session: NodeSession, question: NodeQuestion, survey: Survey) -> Task:
        answers = yield Ask(question.requests)
        yield from self._conduct(survey, Heard(answers, knows_terms=session.knows_terms))
        yield from self._move_all(session)

    def _move_all(self, session: NodeSession) -> Task:
        """Leave nodes that a vBucket has left, and this or another node for a better one."""
        facts = self._directory.facts.get(session.place)
        for vbucket, route in list(self.routes.items()):
            if facts is None or not route.streaming:
                continue
            here = vbucket in facts.active or vbucket in facts.replicas
            if route.session is session and not here:
                yield from self._move(route)  # it is active no more, and did not say so
            elif route.session is not session and vbucket in facts.active:
                better = self._directory.choice(vbucket).place
                if better and self._nodes.session_at(better) is not route.session:
                    yield from self._move(route)

    # --- asking for streams ---------------------------------------------------------------------

    def _start_all(self, sessions: Sequence[NodeSession]) -> Task:
        """Ask for streams of the vBuckets that wait for one, as many as there is room for."""
        # A node that has not answered yet may have what another only believes to have.
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
        vbucket = route.place.vbucket
        route.place.heard_of = self._directory.terms.get(vbucket, 0)
        self.waiting.discard(vbucket)
        self._unanswered[session] += 1
        route.session = session
        yield from session.advance(self._follow(session, route))

    def _session_for(self, route: Route) -> NodeSession | None:
        choice = self._directory.choice(route.place.vbucket)
        if choice.disputed:
            self._refused(route, choice.why)
        replica = self._directory.replica(route.place.vbucket)
        session = self._nodes.session_at(choice.place or choice.deposed or replica)
        if choice.deposed and session is not None and not session.knows_terms:
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
        except NotNow as error:
            if not self._options.redial:
                raise ConnectionLost(str(error)) from None
            facts = self._directory.facts.get(session.place)
            vbucket, known = route.place.vbucket, self._directory.terms
            if facts is None or facts.term(vbucket) >= known.get(vbucket, 0):
                self._refused(route, str(error))  # else it was said why it is not followed
            self._gone(session, vbucket)
            session.poll_at = min(session.poll_at, self.now + SEARCH_S)
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
            and self._directory.settled
            and bool(self._nodes.sessions())
            and all(route.done for route in self.routes.values())
        )

    def hopeless(self, now: float, patience_s: float) -> ClientError | None:
        """Return why what was there will not come, if it is to be waited for no longer.

        Only a consumer that is to end asks too much of a vBucket that can be had nowhere: for
        others a node may be promoted one day.
        """
        ends = self._options.until_now or not self._options.redial
        if not ends or not self._directory.settled:
            return None
        if not self.routes and self._began and self._began + patience_s < now:
            return self._not_active([])
        late = [n for n in self.waiting if self.routes[n].off_at + patience_s < now]
        found = [number for number in sorted(late) if self._why_absent(number) is not None]
        return self._not_active(found) if found else None

    def give_up_barriers(self, now: float, patience_s: float) -> None:
        """Break the barriers that wait for vBuckets which can be had nowhere."""
        late = [each for each in self._barriers.unsent() if each.since + patience_s < now]
        if late and self._directory.settled:
            found = [number for number in self.lacking() if self._why_absent(number) is not None]
            for barrier in late if found else ():
                self._barriers.fail(barrier, self._not_active(found))

    def lacking(self) -> list[int]:
        """Return the vBuckets that are wanted and neither stream nor are done."""
        named = self._options.vbuckets
        wanted = self._directory.numbers() if named is None else named
        lacking = {n for n, route in self.routes.items() if not (route.streaming or route.done)}
        return sorted(lacking | (wanted - self.routes.keys()))

    def _why_absent(self, vbucket: int) -> str | None:
        """Return why a vBucket is not streamed, ``""`` = it is nowhere; ``None`` = it soon is."""
        route = self.routes.get(vbucket)
        if route is not None and route.refusal:
            return route.refusal
        choice = self._directory.choice(vbucket)
        if choice.place or self._directory.replica(vbucket):
            return None
        return choice.why if choice.claimed else ""

    def _not_active(self, vbuckets: list[int]) -> ClientError:
        why = {number: self._why_absent(number) for number in vbuckets}
        return not_active(
            [number for number, each in why.items() if not each],
            {number: each for number, each in why.items() if each},
            self._directory.places,
            list(dict.fromkeys(each.words for each in self._directory.silent.values())),
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
