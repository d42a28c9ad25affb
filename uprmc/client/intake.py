"""Handing over: what the streams have brought goes to the handler, and is noted as reached.

A handler that has `changes` is given batches as they are; any other one each change by itself.
Tasks yield whatever the handler returned to be waited for. What comes from a stream that its
vBucket has left in the meantime is dropped.

Source: systems reference g.1; acceptance rows D44, D45.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, cast

from uprmc.client.ask import Task
from uprmc.client.events import Accepted, Event
from uprmc.client.handler import SET, Handler
from uprmc.client.node_session import NodeSession
from uprmc.client.position_writer import PositionWriter
from uprmc.client.routes import Route
from uprmc.protocol.opcodes import MarkerFlag
from uprmc.remote.batch import Batch, Run
from uprmc.remote.stream import StreamState

_DISK = int(MarkerFlag.DISK)


class Intake:
    """See the module docstring.

    Attributes:
        routes: by vBucket.
        now: the time of what was received last.
    """

    def __init__(self, handler: Handler, positions: PositionWriter) -> None:
        self.routes: dict[int, Route] = {}
        self.now = 0.0
        self._handler = handler
        self._positions = positions
        self._take_batch: Callable[[Batch], Any] | None = None
        if callable(getattr(type(handler), "changes", None)):  # objects may keep a list there
            self._take_batch = partial(cast(Any, type(handler)).changes, handler)

    def wanted(self, events: Iterable[Event]) -> list[Batch]:
        """Return the batches that are to be handed over; streams that were accepted, begin."""
        batches = []
        for event in events:
            if type(event) is Batch:
                batches.append(event)
            elif type(event) is Accepted:
                self._accepted(event.stream)
        return batches

    def _accepted(self, stream: StreamState) -> None:
        """Take over the node's log, before anything of the stream is written or handed over."""
        route = self.routes[stream.vbucket]
        if route.stream is not stream:
            stream.dropped = True
        elif route.place.adopt(stream.log):
            route.log_term = stream.term
            route.place.term = max(route.place.term, stream.term)
            self._positions.adopted(route.place)
        else:
            stream.dropped = True

    def hand_over(self, session: NodeSession, batch: Batch) -> Task:
        """Hand over a batch, and note what was reached."""
        if self._take_batch is None:
            yield from self._one_by_one(batch)
        else:
            batch = batch.wanted()
            waited_for = self._take_batch(batch)
            if waited_for is not None:
                yield waited_for
            for run in batch.runs:
                self._took(batch, run)
        session.items += len(batch)

    def _one_by_one(self, batch: Batch) -> Task:
        handler = self._handler
        mutation, deletion = handler.mutation, handler.deletion
        for run in batch.runs:
            if run.stream.dropped:
                continue
            place = self.routes[run.stream.vbucket].place
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
        route = self.routes[run.stream.vbucket]
        place, count, begun, end = route.place, run.last - run.first, run.begun, run.done
        route.items += count
        if end is not None:
            place.complete(end, begun[3] if begun is not None else 0)
            if end >= route.high_seqno:
                route.high_seqno, route.level_at = end, self.now
            self._positions.complete(place)
            return
        if begun is not None:
            _, end_seqno, _, purge_seqno = begun
            place.begin(end_seqno, purge_seqno)
        if count:
            place.take(batch.seqnos[run.last - 1])
            self._positions.reached(place)
