"""Which node of the target has which vBucket: streams of vBuckets that have none begin here."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from uprmc.remote.ranges import named
from uprmc.remote.retry import Backoff
from uprmc.xdcr.nodes import Nodes
from uprmc.xdcr.resuming import Resuming
from uprmc.xdcr.run import Run

#: How often vBuckets without a stream are looked at.
_LOOK_S = 0.5


class Placing:
    """Begins the streams of one link.

    Args:
        run: the link's present run.
        nodes: the target's nodes.
        resuming: decides where a stream begins.
        may_send: tells whether the link may begin streams now.
        stop: puts the link into state `error`.
        write_checkpoint: writes checkpoints of all vBuckets.
    """

    def __init__(
        self,
        run: Run,
        nodes: Nodes,
        resuming: Resuming,
        *,
        may_send: Callable[[], bool],
        stop: Callable[[str], None],
        write_checkpoint: Callable[[], None],
    ) -> None:
        self._run = run
        self._nodes = nodes
        self._resuming = resuming
        self._may_send = may_send
        self._stop = stop
        self._write_checkpoint = write_checkpoint
        self._active = run.hub.bucket.active
        self._looked_at = run.hub.bucket.clock.monotonic()
        self._asked_for: set[int] = set()
        self._asking = Backoff(_LOOK_S, run.hub.bucket.settings.xdcr.redial_max_s)

    def tick(self, now: float) -> None:
        """Ask the nodes again what they have, if vBuckets have no stream."""
        if now - self._looked_at < _LOOK_S:
            return
        self._looked_at = now
        run = self._run
        run.stopped &= self._active.keys()
        run.doubted &= self._active.keys()
        missing = (self._active.keys() - run.shipments.keys() - run.stopped) | run.doubted
        if missing - self._asked_for:  # others than before: there is progress
            self._asking.good()
            self._asking.at = now
        self._asked_for &= missing
        if missing and self._asking.at <= now and "place" not in run.slices:
            self._asking.failed(now)
            self._asked_for = missing
            for target in self._nodes.ready:
                target.survey()
        run.drop([s for s in run.shipments.values() if s.vbucket.id not in self._active])

    def place(self) -> None:
        """Begin what has no stream, as soon as all nodes have told what they have."""
        if self._may_send() and self._nodes.are_settled and self._nodes.ready:
            self._run.slices.run("place", self._placements())

    def _drop_misplaced(self) -> None:
        """End the streams of vBuckets that were doubted and are elsewhere, or have changed."""
        doubted, run = self._run.doubted.copy(), self._run
        run.doubted.clear()
        for number in doubted & run.shipments.keys():
            shipment = run.shipments[number]
            target, _ = self._nodes.holder(number)
            held = None if target is None or target.held is None else target.held.get(number)
            uuid = 0 if held is None else held.uuid
            if target is None or (target.place, uuid) != (shipment.place, shipment.target_uuid):
                run.drop([shipment])

    def _placements(self) -> Iterator[None]:
        """Begin what has no stream; others may run between any two vBuckets."""
        absent, why = [], ""
        self._drop_misplaced()
        for number, vbucket in list(self._active.items()):
            if not self._may_send():
                return
            if number in self._run.shipments or self._active.get(number) is not vbucket:
                continue
            target, reason = self._nodes.holder(number)
            if target is not None:
                self._resuming.begin(vbucket, target)
                yield
            else:
                absent.append(number)
                why = reason
        stops, self._resuming.stops = self._resuming.stops, ""
        if stops:
            self._stop(stops)
            return
        if self._resuming.has_forwarded:
            self._resuming.has_forwarded = False
            self._write_checkpoint()  # its own records take the place of those of others
        if absent:
            self._run.trouble(why if len(absent) == 1 else f"{named(absent)}: {why}")
        self._nodes.wake()
