"""Handing over: what the streams have brought goes to the handler, and is noted as reached.

Tasks yield whatever the handler returned to be waited for. What comes from a stream that its
vBucket has left in the meantime is dropped.

Source: systems reference g.1; acceptance rows D44, D45.
"""

from __future__ import annotations

from collections.abc import Iterable

from uprmc.client.events import Accepted, Event, Inlet, Run, SnapshotBegun
from uprmc.client.handler import Change, Handler
from uprmc.client.ledger import Ledger
from uprmc.client.node_session import NodeSession, Task
from uprmc.client.routes import Route
from uprmc.protocol.opcodes import MarkerFlag


class Intake:
    """See the module docstring.

    Attributes:
        routes: by vBucket.
        now: the time of the batch.
    """

    def __init__(self, handler: Handler, ledger: Ledger) -> None:
        self.routes: dict[int, Route] = {}
        self.now = 0.0
        self._handler = handler
        self._ledger = ledger

    def wanted(self, events: Iterable[Event]) -> list[Run]:
        """Return the changes that are to be handed over; streams that were accepted, begin."""
        runs = []
        for event in events:
            if isinstance(event, Run):
                if not event.inlet.dropped:
                    runs.append(event)
            elif isinstance(event, Accepted):
                self._accepted(event.inlet)
        return runs

    def _accepted(self, inlet: Inlet) -> None:
        """Take over the node's log, before anything of the stream is written or handed over."""
        route = self.routes[inlet.vbucket]
        if route.inlet is not inlet:
            inlet.dropped = True
        elif route.place.adopt(inlet.log):
            route.place.term = max(route.place.term, inlet.term)
            self._ledger.adopted(route.place)
        else:
            inlet.dropped = True

    def hand_over(self, session: NodeSession, run: Run) -> Task:
        """Hand over changes, and perhaps the end of their snapshot."""
        inlet, changes, sets = run
        route = self.routes[inlet.vbucket]
        if route.inlet is not inlet or inlet.dropped:
            return
        for waited_for in map(self._handler.mutation if sets else self._handler.deletion, changes):
            if waited_for is not None:
                yield waited_for
        if self._took(session, route, changes):
            yield from self.complete(route, route.place.end)

    def _took(self, session: NodeSession, route: Route, changes: list[Change]) -> bool:
        """Note that changes were handed over; returns whether their snapshot is complete."""
        place, seqno = route.place, changes[-1][2]
        route.items += len(changes)
        session.items += len(changes)
        if seqno == place.end:
            return True
        place.take(seqno)
        self._ledger.reached(place)
        return False

    def complete(self, route: Route, end: int) -> Task:
        """The snapshot up to `end` was handed over completely."""
        place = route.place
        place.inside = False
        waited_for = self._handler.snapshot_end(place.vbucket, end)
        if waited_for is not None:
            yield waited_for
        place.complete(end)
        if end >= route.high_seqno:
            route.high_seqno, route.level_at = end, self.now
        self._ledger.complete(place)

    def begin(self, route: Route, event: SnapshotBegun) -> Task:
        """A snapshot was announced, perhaps the same again."""
        place = route.place
        place.begin(event.end, event.purge_seqno)
        if not place.inside:
            place.inside = True
            from_disk = bool(event.kind & MarkerFlag.DISK)
            waited_for = self._handler.snapshot_begin(
                place.vbucket, event.start, event.end, from_disk
            )
            if waited_for is not None:
                yield waited_for
