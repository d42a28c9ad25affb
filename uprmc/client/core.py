"""The consumer without sockets, threads and clocks: nodes, streams, batches, handlers.

The loop that owns sockets and time calls these methods, one at a time, never one within another:

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

import math
from collections.abc import Generator, Iterable, Mapping
from typing import Any

from uprmc.client.ask import Task
from uprmc.client.barriers import Barrier, Barriers
from uprmc.client.completeness import Completeness
from uprmc.client.errors import ClientError, ConnectionLost
from uprmc.client.events import Accepted, Event, StreamEnded
from uprmc.client.follow import Follower
from uprmc.client.handler import Handler
from uprmc.client.intake import Intake
from uprmc.client.measuring import measured
from uprmc.client.metrics import Metrics
from uprmc.client.node_session import NodeSession
from uprmc.client.nodes import Nodes
from uprmc.client.options import Options, Start
from uprmc.client.polling import Polling
from uprmc.client.position import Position
from uprmc.client.position_writer import PositionWriter
from uprmc.client.quiet import PatientCollector
from uprmc.client.route_table import RouteTable
from uprmc.client.routes import Route
from uprmc.client.state import Saved, StateStore
from uprmc.client.stream_starts import StreamStarts
from uprmc.client.watermark_reports import WatermarkReports
from uprmc.protocol.header import RequestFrame, ResponseFrame
from uprmc.protocol.opcodes import EndReason, Opcode
from uprmc.remote.batch import Batch

__all__ = ["Options", "Start", "UprCore"]

#: A loop that listens to its nodes tells the time more often than this.
_LISTENING_S = 1.0

#: What was reached is saved with the next batch; by itself when none has come for this long.
_SAVE_AFTER_S = 0.1

#: A piece of this size may make so many objects that the collector is told to wait.
_MANY_BYTES = 4_096


class UprCore:
    """One consumer: gives bytes of nodes to a handler as changes.

    Attributes:
        nodes: the nodes that it knows.
        writer: keeps positions.
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
        self._barriers = barriers = Barriers()
        self.failure: ClientError | None = None
        self._collector = PatientCollector()
        self._turned = 0.0
        options.check()
        self._table = table = RouteTable(self._routes, self.writer, options)
        self._starts = StreamStarts(self.nodes, table, self._follower, barriers, options)
        self._polling = Polling(self.nodes, table, self._starts, barriers, state, options)
        self._reports = WatermarkReports(self.nodes, self._routes, self.writer)
        self.completeness = Completeness(self.nodes, table, barriers, options)

    # --- nodes come and go ----------------------------------------------------------------------

    def due(self, now: float) -> list[str]:
        """Return HOST:PORT of nodes to dial now, each once until `connected` or `failed`."""
        return self.nodes.due(now)

    def connected(self, place: str, now: float) -> Generator[Any, Any, NodeSession]:
        """Return the session of a new connection to a node."""
        node = self.nodes.named(place)
        session = NodeSession(
            place,
            node.consumer_name(self.options.name),
            wants_values=self.options.values,
            buffer_bytes=self.options.buffer_bytes,
            noop_interval_s=self.options.noop_interval_s,
            wants_replicas=self.options.replicas,
            instance=self.options.instance,
            credentials=self.options.credentials,
            tls=self.options.tls,
        )
        node.connected(session, now)
        self._starts.connected(session)
        yield from session.advance(self._polling.open(session))
        return session

    def failed(self, place: str, error: ClientError, now: float) -> None:
        """Learn that a node could not be reached."""
        self.nodes.named(place).lost(error, now, self.options.jitter())

    def lost(self, session: NodeSession, error: ClientError, now: float) -> None:
        """Learn that a connection has ended; its streams are asked for again, here or elsewhere."""
        node = self.nodes.named(session.place)
        if node.session is not session:
            return
        self._table.now = now
        self._starts.lost(session)
        node.lost(error, now, self.options.jitter())
        self._leave_collector()
        self._barriers.broken(session.place, ConnectionLost(str(error)))
        for task in session.close():
            task.close()
        for route in self._routes.values():
            if route.session is session:
                self._table.off(route)

    # --- time -----------------------------------------------------------------------------------

    def turn(self, now: float) -> Task:
        """Learn the (monotonic) time: poll, ask for streams, send barriers, gather no longer."""
        if not self.completeness.began:
            self.completeness.began = now
            for route in self._routes.values():
                route.level_at = route.off_at = now
        deaf_s = now - self._turned if self._turned else 0.0
        self._table.now = self._turned = now
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
        yield from self._polling.poll_due(sessions)
        yield from self._starts.try_all(sessions)
        yield from self._polling.tell_late()
        if self.options.instance is not None:
            self._reports.report_due(sessions, now)
        for barrier in self._barriers.unsent():
            yield from self._send_barrier(barrier)

    def report_rest(self) -> bool:
        """Report all that the state has; return whether an answer is to be waited for."""
        return self._reports.report_rest()

    # --- batches --------------------------------------------------------------------------------

    def received(self, session: NodeSession, data: bytes, now: float) -> Task:
        """Deal with what a node has sent; without data, with what waited for more.

        Raises:
            ClientError: it makes no sense, or the program does not want to go on.
            StateError: the state could not be written; nothing of it was handed over.
        """
        self._table.now = self._intake.now = now
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
            events = session.receive(data, self._table.now)
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
        yield from self._polling.tell_late()
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
            self._table.off(route)
            return
        session, vbucket = route.session, route.place.vbucket
        if session is not None:
            session.gone(vbucket)
            session.facts.poll_at = self._table.now
            words = f"the stream of vBucket {vbucket} ended with reason {why}"
            if not self.options.redial:
                raise ConnectionLost(f"{session.place}: {words}")
            self._barriers.broken(session.place, ConnectionLost(words))
        self._table.off(route, pause=True)

    def _answered(self, session: NodeSession, answer: ResponseFrame) -> Task:
        ask = session.answered(answer)
        if ask is not None and ask.task is not None:
            yield from session.advance(ask.task, ask.answers)

    # --- barriers -------------------------------------------------------------------------------

    def barrier(self, text: str | None = None) -> Barrier:
        """Return a barrier; it is done when all that was acknowledged before is handed over.

        Raises:
            MisuseError: its text is in use, empty or too long, or too many wait.
        """
        barrier = self._barriers.add(text, self._table.now)
        for session in self.nodes.sessions():
            barrier.polls[session.place] = session.facts.polls + (2 if session.facts.polling else 1)
            session.facts.poll_at = 0.0
        return barrier

    def forget_barrier(self, barrier: Barrier) -> None:
        """Drop a barrier for which nothing waits any more."""
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
            yield from session.advance(task)

    def close(self) -> None:
        """End: nothing more is handed over, and waiting barriers are broken."""
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
        """Return the consumer's figures."""
        return measured(self.nodes, self._routes.values(), self._follower, now)
