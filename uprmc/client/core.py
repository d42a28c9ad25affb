"""The consumer without sockets, threads and clocks: nodes, streams, batches, handlers.

Whoever owns sockets and time calls these doors, one at a time, never one within another:

- `due` tells which nodes to dial; `connected`, `failed`, `lost` say what came of it;
- `received` takes bytes, `turn` the time, `idle` that nothing more is there to be read;
- after each, every session's `data_to_send` is written and sessions with an `error` are closed.

`received`, `turn` and `idle` are generators: each thing they yield was returned by a handler and is
to be waited for; its result is sent back in. Nothing else may be called meanwhile. So the same
rules serve handlers that block and handlers that return Deferreds.

A batch is what one piece of received data holds. Positions and ring entries are written, then its
changes are handed over one by one, then its bytes are acknowledged (`position_writer` says why). A
batch that comes alone is handed over first where what is written dies with the process.

Source: systems reference g; acceptance rows D04, D16, D33, D44 to D49, P15.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Generator, Iterable, Mapping
from typing import Any, cast

from uprmc.client.ask import Ask, Task
from uprmc.client.barriers import Barrier, Barriers
from uprmc.client.completeness import Completeness
from uprmc.client.documents import NotNow
from uprmc.client.errors import ClientError, ConnectionLost, MisuseError
from uprmc.client.events import Accepted, Event, StreamEnded
from uprmc.client.follow import Follower
from uprmc.client.handler import Handler
from uprmc.client.intake import Intake
from uprmc.client.measuring import measured
from uprmc.client.metrics import Metrics
from uprmc.client.node_session import NodeSession
from uprmc.client.nodes import Nodes
from uprmc.client.options import Options, Start
from uprmc.client.position import Position
from uprmc.client.position_writer import PositionWriter
from uprmc.client.quiet import PatientCollector
from uprmc.client.route_table import RouteTable
from uprmc.client.routes import Route
from uprmc.client.state import Saved, StateStore
from uprmc.consume.batch import Batch
from uprmc.consume.registering import REPORT_INTERVAL_S, Registering
from uprmc.consume.stream import StreamState
from uprmc.protocol.header import RequestFrame, ResponseFrame
from uprmc.protocol.opcodes import EndReason, Opcode, StreamFlag

__all__ = ["Options", "Start", "UprCore"]

#: So many reasons of refusals are remembered as logged.
_LOGGED_MAX = 100

#: Who listens tells the time more often than this.
_LISTENING_S = 1.0

#: What was reached is saved with the next batch; by itself when none has come for this long.
_SAVE_AFTER_S = 0.1

#: While a vBucket is nowhere, nodes are asked so often.
_SEARCH_S = 0.25

#: A piece of this size may make so many objects that the collector is told to wait.
_MANY_BYTES = 4_096

_LOG = logging.getLogger("uprmc.client")


class UprCore:
    """See the module docstring.

    Attributes:
        nodes: those it knows.
        writer: what is kept.
        options: how it behaves.
        completeness: what of "everything up to now" is lacking.
        failure: what `received` has raised, if the connection is not to blame for it.

    Raises:
        MisuseError: nodes, vBuckets or the start make no sense.
        StateError: the state cannot be read.
    """

    def __init__(
        self, nodes: Iterable[str], handler: Handler, state: StateStore, options: Options
    ) -> None:
        self.options = options
        self.nodes = Nodes(nodes)
        self.writer = PositionWriter(state, handler, options.ring_items)
        self._intake = Intake(handler, self.writer)
        self._routes = self._intake.routes
        self._follower = Follower(handler, self.writer, options.on_rollback, options.on_purged)
        self._barriers = Barriers()
        self.failure: ClientError | None = None
        self._collector = PatientCollector()
        self._following: dict[NodeSession, int] = {}
        self._logged: set[str] = set()
        self._now = self._turned = self._reported = 0.0
        self._total = 0
        options.check()
        self._table = RouteTable(self._routes, self.writer, options)
        self.completeness = Completeness(self.nodes, self._table, self._barriers, options)

    # --- nodes come and go ----------------------------------------------------------------------

    def due(self, now: float) -> list[str]:
        """Return HOST:PORT of nodes to dial now, each once until `connected` or `failed`."""
        return self.nodes.due(now)

    def connected(self, place: str, now: float) -> Generator[Any, Any, NodeSession]:
        """Return the session of a new connection to a node."""
        session = NodeSession(
            place,
            self.options.name,
            wants_values=self.options.values,
            buffer_bytes=self.options.buffer_bytes,
            noop_interval_s=self.options.noop_interval_s,
            wants_replicas=self.options.replicas,
            instance=self.options.instance,
            credentials=self.options.credentials,
            tls=self.options.tls,
        )
        self.nodes.named(place).connected(session, now)
        self._following[session] = 0
        session.facts.polling = True
        yield from self._advance(session, self._open(session), None)
        return session

    def failed(self, place: str, error: ClientError, now: float) -> None:
        """A node could not be reached."""
        self.nodes.named(place).lost(error, now, self.options.jitter())

    def lost(self, session: NodeSession, error: ClientError, now: float) -> None:
        """A connection has ended; its streams are asked for again, here or elsewhere."""
        node = self.nodes.named(session.place)
        if node.session is not session:
            return
        self._now = now
        self._following.pop(session, None)
        node.lost(error, now, self.options.jitter())
        self._leave_collector()
        self._barriers.broken(session.place, ConnectionLost(str(error)))
        for task in session.close():
            task.close()
        for route in self._routes.values():
            if route.session is session:
                self._table.off(route, self._now)

    # --- time -----------------------------------------------------------------------------------

    def turn(self, now: float) -> Task:
        """Learn the (monotonic) time: poll, ask for streams, send barriers, gather no longer."""
        if not self.completeness.began:
            self.completeness.began = now
            for route in self._routes.values():
                route.level_at = route.off_at = now
        deaf_s = now - self._turned if self._turned else 0.0
        self._now = self._turned = now
        sessions = self.nodes.sessions()
        for node in self.nodes.all():
            node.look(now)
            if node.session is not None:
                if deaf_s > _LISTENING_S:
                    node.session.was_not_listened_to(deaf_s)
                node.session.tick(now)
        for session in sessions:
            if session.bursts.is_overdue(now):
                yield from self.received(session, b"", now)
        disputed = self.nodes.disputed()
        for session in sessions:
            if session.facts.poll_at <= now and not session.facts.polling:
                session.facts.polling = True
                self.nodes.named(session.place).asked_at = now
                wanted = sorted(disputed & session.facts.active.keys())
                yield from self._advance(session, self._poll(session, wanted), None)
        yield from self._try_all(sessions, now)
        if self.options.instance is not None and now - self._reported >= REPORT_INTERVAL_S:
            self._reported = now
            self._note_watermarks()
            for session in sessions:
                session.report(now)
        for barrier in self._barriers.unsent():
            yield from self._send_barrier(barrier)

    def _note_watermarks(self) -> None:
        """Have reported what the state has of the vBuckets that are registered."""
        for registered in self._registered():
            for vbucket in registered.vbuckets:
                place = self._routes[vbucket].place
                registered.reached(vbucket, *self.writer.watermark(place))

    def report_rest(self) -> bool:
        """Report all that the state has; return whether an answer is to be waited for."""
        self._note_watermarks()
        for session in self.nodes.sessions():
            session.report_rest()
        return any(registered.unanswered for registered in self._registered())

    def _registered(self) -> list[Registering]:
        found = [session.registered for session in self.nodes.sessions()]
        return [registered for registered in found if registered is not None]

    def _open(self, session: NodeSession) -> Task:
        try:
            yield from session.handshake()
        except ClientError as error:
            session.error = error
            raise
        self._check_count(session)
        self._polled(session)
        self.nodes.learn(session.facts.servers)

    def _check_count(self, session: NodeSession) -> None:
        """Refuse a node with another number of vBuckets: other documents would be in them."""
        if session.facts.map is None:
            return
        there, state = session.facts.map.vbuckets, self.writer.state
        for known, whose in (
            (self.options.total_vbuckets, "as total_vbuckets says"),
            (getattr(state, "vbuckets", 0), "as the state: it belongs to another node"),
            (self._total, "as another node"),
        ):
            if known and known != there:
                raise MisuseError(
                    f"the node at {session.place} has {there} vBuckets, not {known} {whose}"
                )
        self.options.check_numbers(there)
        self._total = there
        if getattr(state, "vbuckets", there) != there:
            cast(Any, state).name_vbuckets(there)

    def _poll(self, session: NodeSession, disputed: list[int]) -> Task:
        yield from session.poll(disputed)
        self._polled(session)
        for vbucket, route in list(self._routes.items()):
            if not route.streaming:
                continue
            if route.session is session and not session.facts.has(vbucket):
                yield from self._move(route)  # it is active no more, and did not say so
            elif route.session is not session and vbucket in session.facts.active:
                better = self.nodes.choice(route.place).place
                if better and self.nodes.session_at(better) is not route.session:
                    yield from self._move(route)

    def _polled(self, session: NodeSession) -> None:
        session.facts.polling = False
        node = self.nodes.named(session.place)
        node.told(failed=not session.facts.polls)
        pause = _SEARCH_S if self._table.waiting or self._barriers else self.options.poll_s
        session.facts.poll_at = self._now + min(pause, self.options.poll_s)
        if self.options.vbuckets is None:
            there = (session.facts.active or session.facts.replicas).keys()
            everything = self.nodes.numbers() if self.options.until_now else frozenset()
            for vbucket in sorted((there | everything) - self._routes.keys()):
                self._table.add(vbucket, self._now)
        for vbucket, term in session.facts.terms.items():
            route = self._routes.get(vbucket)
            if route is not None and route.place.term < term:
                route.place.term = term
        for vbucket, high_seqno in (session.facts.replicas | session.facts.active).items():
            route = self._routes.get(vbucket)
            if route is not None and route.session in (session, None):
                route.high_seqno = high_seqno
                if high_seqno <= route.place.seqno:
                    route.level_at = self._now

    def _move(self, route: Route) -> Task:
        """Leave a node for the one that has better reason to call itself active."""
        session, stream = route.session, route.stream
        self._table.off(route, self._now)
        if session is not None and stream is not None:
            self._barriers.broken(session.place, ConnectionLost("a vBucket has moved"))
            yield from self._advance(session, _closing(session, stream), None)

    # --- streams come about ---------------------------------------------------------------------

    def _try_all(self, sessions: list[NodeSession], now: float) -> Task:
        if not self.nodes.all_asked():
            return  # one that has not told yet may have what another only believes to have
        connected = [self.nodes.named(session.place).since for session in sessions]
        if not any(self.nodes.asked_since(since, now) for since in connected):
            return  # see `_try`
        room = sum(session.starts_max - self._following[session] for session in sessions)
        for vbucket in sorted(self._table.waiting) if room else ():
            route = self._routes[vbucket]
            yield from self._try(route, now)
            room -= route.session is not None
            if not room:
                break

    def _try(self, route: Route, now: float) -> Task:
        if route.backoff.at > now:
            return
        choice = self.nodes.choice(route.place)
        if choice.disputed:
            self._refused(route, choice.why)
        session = self.nodes.session_at(choice.place or choice.deposed)
        session = session or self.nodes.replica(route.place.vbucket)
        if choice.deposed and session is not None and not session.facts.knows_terms:
            return  # it would stream
        if session is None or self._following[session] >= session.starts_max:
            return
        # An old active may say so again although another one was promoted since the others told.
        claimed_at = self.nodes.named(session.place).since
        if not self.nodes.asked_since(max(route.lost_at, claimed_at), now):
            return
        self._table.waiting.discard(route.place.vbucket)
        self._following[session] += 1
        route.session = session
        yield from self._advance(session, self._follow(session, route), None)

    def _follow(self, session: NodeSession, route: Route) -> Task:
        flags = 0 if self.options.replicas else StreamFlag.ACTIVE_ONLY
        flags |= StreamFlag.LATEST if self.options.until_now else 0
        try:
            yield from self._follower.follow(session, route.place, flags, route.opening)
            route.streaming = True
            route.backoff.good()
            route.refusal = ""
        except NotNow as error:
            if not self.options.redial:
                raise ConnectionLost(str(error)) from None
            if session.facts.terms.get(route.place.vbucket, 0) >= route.place.term:
                self._refused(route, str(error))  # else it was said why it is not followed
            session.gone(route.place.vbucket)
            session.facts.poll_at = min(session.facts.poll_at, self._now + _SEARCH_S)
            self._table.off(route, self._now, pause=True)
        finally:
            if session in self._following:
                self._following[session] -= 1

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

    # --- batches --------------------------------------------------------------------------------

    def received(self, session: NodeSession, data: bytes, now: float) -> Task:
        """Deal with what a node has sent; without data, with what waited for more.

        Raises:
            ClientError: it makes no sense, or the program does not want to go on.
            StateError: the state could not be written; nothing of it was handed over.
        """
        self._now = now
        self._intake.now = now
        try:
            if len(data) >= _MANY_BYTES:
                self._collector.hold()
            yield from self._deal_with_batch(session, data)
        except ClientError as error:
            if error is not session.error:
                self.failure = error
            raise
        finally:
            self._leave_collector()
        session.dealt_with()

    def _leave_collector(self) -> None:
        """Have the collector work again, unless what has come is still to be dealt with."""
        if self._collector.is_held and not self.is_gathering:
            self._collector.release()

    def _deal_with_batch(self, session: NodeSession, data: bytes) -> Task:
        try:
            events = session.receive(data, self._now)
        except ClientError as error:
            session.error = error
            raise
        if session.bursts.until is not None:
            self._collector.hold()
        if len(events) == 1 and self.writer.may_follow:
            event = events[0]
            if type(event) is Batch:
                try:
                    yield from self._intake.hand_over(session, event)
                finally:
                    self.writer.before((event,))
                return
        batches = self._intake.wanted(events)
        if batches and self.writer.waits_for_handler:
            yield from self.writer.make_durable()
        self.writer.before(batches)
        for event in events:
            if type(event) is Batch:
                yield from self._intake.hand_over(session, event)
            else:
                yield from self._deal_with(session, event)

    @property
    def is_gathering(self) -> bool:
        """Whether something has come that waits for more, `GATHER_MAX_S` at most."""
        sessions = self.nodes.sessions()
        return any(session.bursts.until is not None for session in sessions)

    def idle(self, now: float = math.inf) -> Task:
        """Save what was reached: nothing more is there to be read, nor was for a while.

        What the handler wrote in a transaction that it shares with the state is committed at once.

        Raises:
            StateError: it could not be written.
        """
        if self.writer.shared or now - self._intake.now >= _SAVE_AFTER_S:
            yield from self.writer.idle()

    def _deal_with(self, session: NodeSession, event: Event) -> Task:
        if isinstance(event, Accepted):
            yield from self._answered(session, event.answer)
        elif isinstance(event, ResponseFrame):
            yield from self._answered(session, event)
        elif isinstance(event, RequestFrame):
            if event.opcode == Opcode.BARRIER_REACHED:
                self._barriers.reached(session, event.key)
        elif isinstance(event, StreamEnded):
            route = self._routes[event.stream.vbucket]
            if route.stream is event.stream:
                self._ended(route, event.reason)

    def _ended(self, route: Route, why: int) -> None:
        if why == EndReason.OK and self.options.until_now:
            route.done = True
            self._table.off(route, self._now)
            return
        session, vbucket = route.session, route.place.vbucket
        if session is not None:
            session.gone(vbucket)
            session.facts.poll_at = self._now
            words = f"the stream of vBucket {vbucket} ended with reason {why}"
            if not self.options.redial:
                raise ConnectionLost(f"{session.place}: {words}")
            self._barriers.broken(session.place, ConnectionLost(words))
        self._table.off(route, self._now, pause=True)

    def _answered(self, session: NodeSession, answer: ResponseFrame) -> Task:
        ask = session.answered(answer)
        if ask is not None and ask.task is not None:
            yield from self._advance(session, ask.task, ask.answers)

    def _advance(self, session: NodeSession, task: Task, value: Any) -> Task:
        """Run a task until it asks the node, or ends."""
        while True:
            try:
                wanted = task.send(value)
            except StopIteration:
                return
            if type(wanted) is Ask:
                wanted.task = task
                session.ask(wanted)
                return
            value = yield wanted

    # --- barriers -------------------------------------------------------------------------------

    def barrier(self, text: str | None = None) -> Barrier:
        """Return a barrier; it is done when all that was acknowledged before is handed over.

        Raises:
            MisuseError: its text is in use, empty or too long, or too many wait.
        """
        barrier = self._barriers.add(text, self._now)
        for session in self.nodes.sessions():
            barrier.polls[session.place] = session.facts.polls + (2 if session.facts.polling else 1)
            session.facts.poll_at = 0.0
        return barrier

    def forget_barrier(self, barrier: Barrier) -> None:
        """Nobody waits for it any more."""
        self._barriers.drop(barrier)

    def _send_barrier(self, barrier: Barrier) -> Task:
        sessions = self.nodes.sessions()
        ready = (
            bool(sessions)
            and self.nodes.all_asked()
            and all(each.facts.polls >= barrier.polls.get(each.place, 1) for each in sessions)
            and not self.completeness.lacking()
        )
        if not ready:
            return
        streaming = {route.session for route in self._routes.values() if route.streaming}
        found = [session for session in sessions if session in streaming]
        tasks = self._barriers.send(barrier, found)
        for session, task in zip(found, tasks, strict=True):
            yield from self._advance(session, task, None)

    def close(self) -> None:
        """Nothing more is handed over; whoever waits is told."""
        self._collector.release()
        self._barriers.close(ConnectionLost("the consumer was stopped"))

    # --- looking --------------------------------------------------------------------------------

    def positions(self) -> dict[int, Position]:
        """Return the last whole snapshot of each vBucket, a place to begin from."""
        return {number: route.place.position for number, route in self._routes.items()}

    def places(self, handed: Mapping[int, int]) -> dict[int, Saved]:
        """Return where each vBucket stands, also inside of a snapshot, as a state keeps it.

        Args:
            handed: the last seqnos that the handler knows of; places are noted later.
        """
        places = {number: route.place for number, route in self._routes.items()}
        return {
            number: place.saved_at(max(place.seqno, handed.get(number, 0)))
            for number, place in places.items()
        }

    def metrics(self, now: float) -> Metrics:
        """Return what can be told in numbers."""
        return measured(self.nodes, self._routes.values(), self._follower, now)


def _closing(session: NodeSession, stream: StreamState) -> Task:
    yield Ask([session.close_stream(stream)])
