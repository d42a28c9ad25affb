"""The consumer without sockets, threads and clocks: nodes, streams, batches, handlers.

The loop that owns sockets and time calls these methods, one at a time, never one within another:

- `due` tells which nodes to dial; `connected` and `ended` say what came of it;
- `received` takes bytes, `turn` the time, `idle` that nothing more is there to be read;
- after each, every session's `data_to_send` is written and sessions with an `error` are closed.

`received`, `turn` and `idle` are generators: each thing they yield was returned by a handler and is
to be waited for; its result is sent back in. Nothing else may be called meanwhile. So the same
rules serve handlers that block and handlers that return Deferreds.

A batch is what one piece of received data holds. Positions and ring entries are written, then its
changes are handed over, then its bytes are acknowledged (`position.PositionWriter` says why, and
when it is the other way round).

Rows D04, D16, D33, D44 to D49, P15.
"""

from __future__ import annotations

import gc
import logging
import math
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, cast

from uprmc.client.decoder import Accepted, Event, StreamEnded
from uprmc.client.errors import (
    ClientError,
    ConnectionLost,
    MisuseError,
    NodeUnavailable,
    NodeUnreachable,
)
from uprmc.client.follow import Follower
from uprmc.client.handler import SET, Handler
from uprmc.client.node_session import NodeSession, Task
from uprmc.client.options import Options, Start
from uprmc.client.position import Position, PositionWriter
from uprmc.client.state import Saved, StateStore
from uprmc.client.streams import ClientNode, ClientNodes, ClientStreams, Route
from uprmc.protocol.header import RequestFrame, ResponseFrame
from uprmc.protocol.opcodes import EndReason, MarkerFlag, Opcode, Status
from uprmc.protocol.upr_extensions import COOKIE_MAX_BYTES
from uprmc.remote.batch import Batch, Run
from uprmc.remote.registering import REPORT_INTERVAL_S, Registering
from uprmc.remote.stream import StreamState

# --- metrics --------------------------------------------------------------------------------------
# What a consumer can tell about itself, in numbers.


class VBucketMetrics(NamedTuple):
    """One vBucket."""

    node: str  # whom it is streamed from, ``""`` = no node at present
    seqno: int  # last change that was handed over
    whole_seqno: int  # end of the last snapshot that was handed over completely
    lag_items: int  # seqnos between that and the node's newest, as it said last
    lag_bytes: int  # the same in bytes, by the average size of what has come
    lag_s: float  # seconds since we were level with the node, 0 = we are
    ring_covers_seqnos: int  # so far back a rollback can be undone key by key
    rollbacks: int  # times that the node sent us back
    restarts: int  # times that we began again from zero
    undone: int  # keys whose changes were undone
    items: int  # changes that were handed over
    # why it is not streamed, in the words of the node that refuses, ``""`` = it is, or no
    # node has refused.
    refusal: str = ""


class NodeMetrics(NamedTuple):
    """One node."""

    connected: bool  # whether streams can be asked for
    attempts: int  # dialled in vain since the last good connection
    last_error: str  # why the last connection ended or did not come about, ``""`` = never
    items: int  # changes received on this connection
    bytes: int  # bytes received on this connection


class Metrics(NamedTuple):
    """All of it: by vBucket number, by HOST:PORT, and the sums."""

    vbuckets: dict[int, VBucketMetrics]
    nodes: dict[str, NodeMetrics]

    @property
    def lag_items(self) -> int:
        """How far we are behind, over all vBuckets."""
        return sum(each.lag_items for each in self.vbuckets.values())

    @property
    def lag_bytes(self) -> int:
        """The same in bytes, roughly."""
        return sum(each.lag_bytes for each in self.vbuckets.values())

    @property
    def lag_s(self) -> float:
        """The longest time since a vBucket was level with its node."""
        return max((each.lag_s for each in self.vbuckets.values()), default=0.0)


__all__ = ["Options", "Start", "UprCore"]

#: A loop that listens to its nodes tells the time more often than this.
_LISTENING_S = 1.0

#: What was reached is saved with the next batch; by itself when none has come for this long.
_SAVE_AFTER_S = 1.0

#: A piece of this size may make so many objects that the collector has to wait.
_MANY_BYTES = 4_096

_DISK = int(MarkerFlag.DISK)

_LOG = logging.getLogger("uprmc.client")


class UprCore:
    """One consumer: gives bytes of nodes to a handler as changes.

    Raises:
        MisuseError: nodes, vBuckets or the start make no sense.
        StateError: the state cannot be read.
    """

    def __init__(
        self, nodes: Iterable[str], handler: Handler, state: StateStore, options: Options
    ) -> None:
        options.check()
        self.options = options  # how it behaves
        self.nodes = ClientNodes(nodes)  # the nodes that it knows
        self.writer = PositionWriter(state, handler, options.ring_items)  # keeps positions
        # What `received` has raised, if the connection is not to blame for it.
        self.failure: ClientError | None = None
        self._follower = Follower(handler, self.writer, options.on_rollback, options.on_purged)
        self._barriers = ClientBarriers()
        # Which vBuckets come from which of them.
        self.streams = ClientStreams(
            self.nodes, self.writer, self._follower, self._barriers, options
        )
        self._handler = handler
        self._take_batch: Callable[[Batch], Any] | None = None
        if callable(getattr(type(handler), "changes", None)):  # objects may keep a list there
            self._take_batch = partial(cast(Any, type(handler)).changes, handler)
        self._collector = PatientCollector()
        self._turned = self._received_at = self._reported_at = 0.0

    # --- nodes come and go ----------------------------------------------------------------------

    def due(self, now: float) -> list[str]:
        """Return HOST:PORT of nodes to dial now, each once until `connected` or `ended`."""
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
            instance=self.options.instance,
            credentials=self.options.credentials,
            tls=self.options.tls,
        )
        node.connected(session, now)
        yield from session.advance(self.streams.opening(session))
        return session

    def failed(self, place: str, error: ClientError, now: float) -> None:
        """Learn that a node could not be reached."""
        self.nodes.lost(place, error, now, self.options.jitter())

    def lost(self, session: NodeSession, error: ClientError, now: float) -> None:
        """Learn that a connection has ended; its streams are asked for again, here or elsewhere."""
        if self.nodes.session_at(session.place) is not session:
            return
        self.streams.now = now
        self.nodes.lost(session.place, error, now, self.options.jitter())
        self._leave_collector()
        self._barriers.broken(session.place, ConnectionLost(str(error)))
        for task in session.close():
            task.close()
        self.streams.lost(session)

    def ended(
        self, place: str, session: NodeSession | None, error: ClientError, now: float
    ) -> None:
        """Learn that a connection has ended, or (``None``) did not come about, and log it.

        A node that stays away is logged once.

        Raises:
            ClientError: the same error, if another connection would be no better; whatever the
                program raised is.
        """
        if error is self.failure or not self.options.redial:
            raise error
        if session is not None or str(self.nodes.named(place).error) != str(error):
            _LOG.warning("%s", error)
        if session is None:
            self.failed(place, error, now)
        else:
            self.lost(session, error, now)
        if isinstance(error, ConnectionLost | NodeUnreachable):
            return
        if not isinstance(error, NodeUnavailable) or self.nodes.never_reached() is not None:
            raise error

    # --- time -----------------------------------------------------------------------------------

    def turn(self, now: float) -> Task:
        """Learn the (monotonic) time: poll, ask for streams, send barriers, gather no longer."""
        deaf_s = now - self._turned if self._turned else 0.0
        self.streams.now = self._turned = now
        sessions = self.nodes.sessions()
        self.nodes.look(now)
        for node in self.nodes.all():
            if node.session is not None:
                if deaf_s > _LISTENING_S:
                    node.session.was_not_listened_to(deaf_s)
                node.session.tick(now)
        for session in sessions:
            if session.bursts.is_overdue(now):
                yield from self.received(session, b"", now)
        yield from self.streams.turn(now, sessions)
        if self.options.instance is not None and now - self._reported_at >= REPORT_INTERVAL_S:
            self._reported_at = now
            self._note_watermarks()
            for session in sessions:
                session.report(now)
        if self._barriers:
            yield from self._send_barriers()

    def check_patience(self, patience_s: float | None, waited_s: float, now: float) -> None:
        """Raise why nothing will come of it, if the program's patience is over.

        Raises:
            ClientError: no node was ever reached; or see `ClientStreams.hopeless`.
        """
        if patience_s is None:
            return
        self.streams.give_up_barriers(now, patience_s)
        error = self.nodes.never_reached() if waited_s > patience_s else None
        error = error or self.streams.hopeless(now, patience_s)
        if error is not None:
            raise error

    def report_rest(self) -> bool:
        """Report all that the state has; return whether an answer is to be waited for."""
        self._note_watermarks()
        for session in self.nodes.sessions():
            session.report_rest()
        telling = [each.decoder.questions.opcodes() for each in self.nodes.sessions()]
        told = all(Opcode.TELL_TERMS not in opcodes for opcodes in telling)
        return not told or any(registered.unanswered for registered in self._registered())

    def _note_watermarks(self) -> None:
        """Have ready for the nodes up to where the state has the vBuckets registered there."""
        for registered in self._registered():
            for vbucket in registered.vbuckets:
                place = self.streams.routes[vbucket].place
                registered.reached(vbucket, *self.writer.watermark(place))

    def _registered(self) -> list[Registering]:
        found = [session.registered for session in self.nodes.sessions()]
        return [registered for registered in found if registered is not None]

    # --- batches --------------------------------------------------------------------------------

    def received(self, session: NodeSession, data: bytes, now: float) -> Task:
        """Deal with what a node has sent; without data, with what waited for more.

        Raises:
            ClientError: it makes no sense, or the program does not want to go on.
            StateError: the state could not be written.
        """
        self.streams.now = self._received_at = now
        try:
            if len(data) >= _MANY_BYTES:
                self._collector.hold()
            try:
                events = session.receive(data, now)
            except ClientError as error:
                session.error = error
                raise
            if session.bursts.until is not None:
                self._collector.hold()
            yield from self._deal_with(session, events)
        except ClientError as error:
            if error is not session.error:
                self.failure = error
            raise
        finally:
            if self._collector.is_held:
                self._leave_collector()
        session.dealt_with()

    def _leave_collector(self) -> None:
        """Have the collector work again, unless what has come is still to be dealt with."""
        if self._collector.is_held and not self.is_gathering:
            self._collector.release()

    @property
    def is_gathering(self) -> bool:
        """Whether something has come that waits for more, `GATHER_MAX_S` at most."""
        sessions = self.nodes.sessions()
        return any(session.bursts.until is not None for session in sessions)

    def _deal_with(self, session: NodeSession, events: list[Event]) -> Task:
        """Write batches and hand them over, in the order that is right; deal with all else."""
        batches, writer = [], self.writer
        for event in events:
            if type(event) is Batch:
                batches.append(event)
            elif type(event) is Accepted:
                self._accepted(event.stream)
        if batches and not writer.writes_after:
            yield from writer.write(batches)
        for event in events:
            if type(event) is not Batch:
                yield from self._deal_with_other(session, event)
            elif writer.writes_after:
                yield from self._hand_over_and_write(session, event)
            else:
                yield from self._hand_over(session, event)

    def _hand_over_and_write(self, session: NodeSession, batch: Batch) -> Task:
        """Write a batch at once: what comes next may send its stream back."""
        handed_over = False
        try:
            yield from self._hand_over(session, batch)
            handed_over = True
        finally:
            if handed_over or not self.writer.shared:
                yield from self.writer.write((batch,))

    def _accepted(self, stream: StreamState) -> None:
        """Take over the node's log, before anything of the stream is written or handed over."""
        route = self.streams.routes[stream.vbucket]
        if route.stream is not stream:
            stream.dropped = True
        elif self.streams.accepted(route, stream):
            self.writer.adopted(route.place)
        else:
            stream.dropped = True

    def _hand_over(self, session: NodeSession, batch: Batch) -> Task:
        """Hand over a batch, and note what was reached; what its stream has left is dropped."""
        if self._take_batch is None:
            yield from self._one_by_one(batch)
        else:
            batch = batch.wanted()
            waited_for = self._take_batch(batch)
            if waited_for is not None:
                yield waited_for
            for run in batch.runs:
                self._took(batch, run)
        session.items += len(batch.seqnos)

    def _one_by_one(self, batch: Batch) -> Task:
        handler = self._handler
        mutation, deletion = handler.mutation, handler.deletion
        for run in batch.runs:
            if run.stream.dropped:
                continue
            place = self.streams.routes[run.stream.vbucket].place
            if run.begun is not None:
                start, place.end, kind, _ = run.begun
                if not place.inside:
                    place.inside, from_disk = True, bool(kind & _DISK)
                    waited_for = handler.snapshot_begin(place.vbucket, start, place.end, from_disk)
                    if waited_for is not None:
                        yield waited_for
            for change in batch.changes_of(run):
                waited_for = mutation(change) if change[0] is SET else deletion(change)
                if waited_for is not None:
                    yield waited_for
            if run.done is not None:
                place.inside = False
                waited_for = handler.snapshot_end(place.vbucket, run.done)
                if waited_for is not None:
                    yield waited_for
            self._took(batch, run)

    def _took(self, batch: Batch, run: Run) -> None:
        """Note that a run was handed over."""
        route = self.streams.routes[run.stream.vbucket]
        place, count, begun, end = route.place, run.last - run.first, run.begun, run.done
        route.items += count
        if end is not None:
            place.complete(end, begun[3] if begun is not None else 0)
            if end >= route.high_seqno:
                route.high_seqno, route.level_at = end, self._received_at
            self.writer.complete(place)
            return
        if begun is not None:
            _, end_seqno, _, purge_seqno = begun
            place.begin(end_seqno, purge_seqno)
        if count:
            place.take(batch.seqnos[run.last - 1])
            self.writer.reached(place)

    def _deal_with_other(self, session: NodeSession, event: Event) -> Task:
        if isinstance(event, Accepted | ResponseFrame):
            ask = session.answered(event.answer if isinstance(event, Accepted) else event)
            if ask is not None and ask.task is not None:
                yield from session.advance(ask.task, ask.answers)
        elif isinstance(event, RequestFrame):
            if event.opcode == Opcode.BARRIER_REACHED:
                self._returned(event.key, session.place, "cookie")
        elif isinstance(event, StreamEnded):
            route = self.streams.routes[event.stream.vbucket]
            if route.stream is not event.stream:
                return
            if event.reason == EndReason.OK and self.options.until_now:
                route.done = True
                self.streams.off(route)
            else:
                words = f"the stream of vBucket {route.place.vbucket} ended with reason"
                if event.reason == EndReason.BACKFILL_FAILED:
                    self.streams.broken(route)
                self.streams.ended(route, f"{words} {event.reason}")

    def idle(self, now: float = math.inf) -> Task:
        """Save what was reached: nothing more is there to be read, nor was for a while.

        Raises:
            StateError: it could not be written.
        """
        if self.writer.is_behind and (
            self.writer.shared or now - self._received_at >= _SAVE_AFTER_S
        ):
            yield from self.writer.write(())

    # --- barriers -------------------------------------------------------------------------------
    #
    # "Tell me when I have everything up to now", over all nodes. Once every vBucket has its stream,
    # each node is asked in one go what it has, and for the return of a cookie, if it streams. By
    # the time both have come from all of them, everything before was handed over, because events
    # are dealt with in order. If it then turns out that a vBucket has come or moved meanwhile, it
    # begins again. A connection or a stream that ends breaks it: ask again.

    def barrier(self, text: str | None = None) -> ClientBarrier:
        """Return a barrier; it is done when all that was acknowledged before is handed over.

        Raises:
            MisuseError: its text is in use, empty or too long, or too many wait.
        """
        return self._barriers.add(text, self.streams.now)

    def forget_barrier(self, barrier: ClientBarrier) -> None:
        """Drop a barrier for which nothing waits any more."""
        self._barriers.drop(barrier)

    def _send_barriers(self) -> Task:
        barriers, sessions = self._barriers.unsent(), self.nodes.sessions()
        settled = self.nodes.directory.settled
        if not barriers or not sessions or not settled or self.streams.lacking():
            return
        streaming = {route.session for route in self.streams.routes.values() if route.streaming}
        for barrier in barriers:
            barrier.sent, barrier.opened = True, self.streams.opened
            barrier.waiting = {(session.place, "seqnos") for session in sessions}
            barrier.waiting |= {(each.place, "cookie") for each in sessions if each in streaming}
        for session in sessions:
            adding = barriers if session in streaming else []
            yield from session.advance(self._ask_for(barriers, adding, session))

    def _ask_for(
        self, barriers: list[ClientBarrier], adding: list[ClientBarrier], session: NodeSession
    ) -> Task:
        """Ask a node in one go what it has, and for the return of cookies."""
        cookies = [RequestFrame(Opcode.BARRIER_ADD, key=barrier.cookie) for barrier in adding]
        answers = yield from self.streams.poll(session, cookies)
        for barrier in barriers:
            self._returned(barrier.cookie, session.place, "seqnos")
        for barrier, answer in zip(adding, answers, strict=True):
            if answer.status == Status.KEY_NOT_FOUND:  # no stream is open there
                self._returned(barrier.cookie, session.place, "cookie")
            elif answer.status:
                words = f"the node at {session.place} takes no barrier: {answer.reason}"
                self._barriers.fail(barrier, MisuseError(words))

    def _returned(self, cookie: bytes, place: str, what: str) -> None:
        barrier = self._barriers.named(cookie)
        if barrier is None or not barrier.sent:
            return
        barrier.waiting.discard((place, what))
        if not barrier.waiting:
            if self.streams.lacking() or self.streams.opened != barrier.opened:
                barrier.sent = False
            else:
                barrier.done = True
                self._barriers.drop(barrier)

    def close(self) -> None:
        """End: nothing more is handed over, and waiting barriers are broken."""
        self._collector.release()
        self._barriers.close(ConnectionLost("the consumer was stopped"))

    # --- looking --------------------------------------------------------------------------------

    def positions(self) -> dict[int, Position]:
        """Return the last whole snapshot of each vBucket, a place to begin from."""
        routes = self.streams.routes
        return {number: route.place.position for number, route in routes.items()}

    def places(self, handed: Mapping[int, int]) -> dict[int, Saved]:
        """Return where each vBucket stands, also inside of a snapshot, as a state keeps it.

        Args:
            handed: the last seqnos that the handler knows of; places are noted later.
        """
        places = {number: route.place for number, route in self.streams.routes.items()}
        return {
            number: place.saved_at(max(place.seqno, handed.get(number, 0)))
            for number, place in places.items()
        }

    def metrics(self, now: float) -> Metrics:
        """Return the consumer's figures."""
        routes = self.streams.routes
        return Metrics(
            {number: self._vbucket_metrics(route, now) for number, route in routes.items()},
            {node.place: _node_metrics(node) for node in self.nodes.all()},
        )

    def _vbucket_metrics(self, route: Route, now: float) -> VBucketMetrics:
        place, session, follower = route.place, route.session, self._follower
        vbucket, behind = place.vbucket, max(0, route.high_seqno - place.seqno)
        size = session.bytes_received / session.items if session and session.items else 0
        return VBucketMetrics(
            session.place if session and route.streaming else "",
            place.seqno,
            place.whole,
            behind,
            int(behind * size),
            now - route.level_at if behind else 0.0,
            place.seqno - place.ring_from,
            follower.rollbacks.get(vbucket, 0),
            follower.restarts.get(vbucket, 0),
            follower.undone.get(vbucket, 0),
            route.items,
            "" if route.streaming and not route.stuck else route.refusal,
        )


def _node_metrics(node: ClientNode) -> NodeMetrics:
    session = node.session
    return NodeMetrics(
        session is not None and session.open,
        node.backoff.attempts,
        str(node.error or ""),
        session.items if session else 0,
        session.bytes_received if session else 0,
    )


# --- barriers that wait ---------------------------------------------------------------------------

#: So many barriers may wait.
BARRIERS_MAX = 1000


@dataclass(slots=True, eq=False)
class ClientBarrier:
    """One question, see `UprCore.barrier`."""

    cookie: bytes  # its name
    since: float  # when it was asked for
    done: bool = False  # it is reached, or broken
    error: ClientError | None = None  # why it is broken
    sent: bool = False  # the nodes are asked
    waiting: set[tuple[str, str]] = field(default_factory=set)  # nodes, and what they owe
    opened: int = 0  # how many streams had been opened when the nodes were asked


class ClientBarriers:
    """The barriers that wait."""

    def __init__(self) -> None:
        self._waiting: dict[bytes, ClientBarrier] = {}
        self._last = 0
        self._closed: ClientError | None = None

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, text: str | None, now: float) -> ClientBarrier:
        """Return a new barrier, which is broken already if `close` was called.

        Raises:
            MisuseError: one of that name waits, or too many do, or the name is empty or too long.
        """
        self._last += 1
        cookie = (f"barrier-{self._last}" if text is None else text).encode()
        if not 0 < len(cookie) <= COOKIE_MAX_BYTES:
            raise MisuseError(f"a barrier's text has 1 to {COOKIE_MAX_BYTES} bytes")
        if cookie in self._waiting:
            raise MisuseError(f"a barrier {text!r} waits already")
        if len(self._waiting) >= BARRIERS_MAX:
            raise MisuseError(f"{BARRIERS_MAX} barriers wait already")
        barrier = self._waiting[cookie] = ClientBarrier(cookie, now)
        if self._closed is not None:
            self.fail(barrier, self._closed)
        return barrier

    def named(self, cookie: bytes) -> ClientBarrier | None:
        """Return the barrier of this name, ``None`` if none waits."""
        return self._waiting.get(cookie)

    def unsent(self) -> list[ClientBarrier]:
        """Return those that no node was asked for, or all have to be again."""
        return [barrier for barrier in self._waiting.values() if not barrier.sent]

    def broken(self, place: str, error: ClientError) -> None:
        """A node was lost, or a stream of it: its cookies say nothing any more."""
        for barrier in list(self._waiting.values()):
            if any(place == owes for owes, _ in barrier.waiting):
                self.fail(barrier, error)

    def fail(self, barrier: ClientBarrier, error: ClientError) -> None:
        """It will not be reached."""
        barrier.done, barrier.error = True, error
        self.drop(barrier)

    def drop(self, barrier: ClientBarrier) -> None:
        """Nothing waits for it any more."""
        self._waiting.pop(barrier.cookie, None)

    def close(self, error: ClientError) -> None:
        """Break those that wait, and all that are asked for later: nothing comes any more."""
        self._closed = error
        for barrier in list(self._waiting.values()):
            self.fail(barrier, error)


# --- many objects ---------------------------------------------------------------------------------

#: New objects that the collector waits for; a batch of the smallest changes has fewer.
PATIENCE = 50_000


class PatientCollector:
    """Building thousands of values at a time without the cyclic collector looking at each.

    It runs when so many objects are new, whether or not there is anything to collect. The changes
    of a batch are in no cycle and die with the batch; looking through them again and again costs a
    third of all CPU. So between `hold` and `release` it waits for more. It stays on: what handlers
    and other threads throw away meanwhile is collected, a little later. Several at a time do no
    harm. A program that changes the threshold meanwhile has the last word.
    """

    __slots__ = ("_before", "is_held")

    def __init__(self) -> None:
        self.is_held = False  # it waits
        self._before = (0, 0, 0)

    def hold(self) -> None:
        """Have the collector wait; harmless if it does already."""
        young, *older = before = gc.get_threshold()
        if 0 < young < PATIENCE:
            self._before, self.is_held = before, True
            gc.set_threshold(PATIENCE, *older)

    def release(self) -> None:
        """Have it work as before; harmless if it does already."""
        if self.is_held and gc.get_threshold()[0] == PATIENCE:
            gc.set_threshold(*self._before)
        self.is_held = False
