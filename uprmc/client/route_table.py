"""Which vBuckets are followed: a `Route` for each, and those that have no stream at present."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from uprmc.client.options import Options
from uprmc.client.position import Place, Position
from uprmc.client.position_writer import PositionWriter
from uprmc.client.routes import Route
from uprmc.client.state import Saved
from uprmc.model import FailoverEntry, FailoverLog, SnapshotRange


class RouteTable:
    """The routes of one consumer.

    Attributes:
        now: monotonic seconds, as the consumer was told last.
        routes: by vBucket.
        waiting: vBuckets for which a stream is to be asked for.
    """

    def __init__(self, routes: dict[int, Route], writer: PositionWriter, options: Options) -> None:
        """Begin with what is named, or else with what the state knows.

        Raises:
            StateError: the state cannot be read.
        """
        self.now = 0.0
        self.routes = routes
        self.waiting: set[int] = set()
        self._writer = writer
        self._start = options.start
        self._jitter: Callable[[], float] = options.jitter
        wanted = options.vbuckets
        known = writer.load()
        self._known = {n: place for n, place in known.items() if wanted is None or n in wanted}
        for vbucket in sorted(self._known if wanted is None else wanted):
            self.add(vbucket)

    def add(self, vbucket: int) -> None:
        """Follow a vBucket, from where the state or the program says."""
        if vbucket in self.routes:
            return
        start, place = self._start, self._known.get(vbucket)
        given = vbucket in start if isinstance(start, Mapping) else start != "checkpoint"
        if given and place is not None:
            place = self._begun_anew(place)
        if place is None:
            place = Place(vbucket)
            if isinstance(start, Mapping) and vbucket in start:
                place.stand_at(*_standing(start[vbucket]))
            place.at_now = start == "now" or isinstance(start, int)
            place.begin_at = start if isinstance(start, int) else None
        self._writer.places[vbucket] = place
        self.routes[vbucket] = Route(place, self.now)
        self.waiting.add(vbucket)

    def _begun_anew(self, place: Place) -> Place | None:
        """Forget a place that the program does not want to go on from."""
        if self._start != "beginning":
            self._writer.start_over(place)
            return None
        place.seqno = place.whole = place.end = 0  # kept, at zero: the handler is told to drop it
        return place

    def off(self, route: Route, *, pause: bool = False) -> None:
        """Take a route's stream away; `pause` = wait before the next is asked for."""
        route.off(self.now)
        if pause:
            route.backoff.failed(self.now, self._jitter())
        if not route.done:
            self.waiting.add(route.place.vbucket)


def _standing(position: Position | Saved) -> tuple[int, FailoverLog, SnapshotRange]:
    """Return the seqno of a position, the log of its history, and its snapshot."""
    if isinstance(position, Saved):
        return position.seqno, position.log, position.snapshot
    seqno, uuid = position
    log = (FailoverEntry(uuid, 0),) if uuid else ()
    return seqno, log, SnapshotRange(seqno, seqno)
