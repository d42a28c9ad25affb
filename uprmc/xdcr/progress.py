"""How far a link has come: what has not arrived, for how long, and how fast it goes."""

from __future__ import annotations

from uprmc.xdcr.lag import Lag
from uprmc.xdcr.run import Run

#: How often the rate is measured.
_RATE_S = 1.0


class Progress:
    """Sums over the vBuckets of one link.

    Attributes:
        rate: items per second.
        left_at_last: `changes_left` as of the last `measure`; costs nothing.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._active = run.hub.bucket.active
        self._clock = run.hub.bucket.clock
        self.rate = 0.0
        self.left_at_last = 0
        now = self._clock.monotonic()
        self._lag = Lag(now)
        self._rated_at = now
        self._rated_items = 0

    def measure(self, now: float) -> None:
        """Take note of how far the link is at this monotonic time."""
        high, through = self._totals()
        self.left_at_last = high - through + self._run.debts.count
        self._lag.note(now, high, through)
        if now - self._rated_at >= _RATE_S:
            items = self._run.counters.docs_written
            self.rate = round((items - self._rated_items) / (now - self._rated_at), 1)
            self._rated_at, self._rated_items = now, items

    def _totals(self) -> tuple[int, int]:
        """Return the sums of all high seqnos, and of how far each vBucket is but for its debts."""
        high = through = 0
        shipment_of = self._run.shipments.get
        for number, vbucket in self._active.items():
            shipment, top = shipment_of(number), vbucket.high_seqno
            arrived = self._run.through(number) if shipment is None else shipment.front[0]
            high += top
            through += arrived if arrived < top else top
        return high, through

    @property
    def changes_left(self) -> int:
        """Number of seqnos that have not arrived."""
        high, through = self._totals()
        return high - through + self._run.debts.count

    @property
    def lag_seconds(self) -> float:
        """Age of the oldest change that has not arrived."""
        now, debts = self._clock.monotonic(), self._run.debts
        return max(self._lag.seconds(now), now - debts.oldest if debts.count else 0.0)

    @property
    def bytes_left(self) -> int:
        """Bytes of changes that have not arrived, estimated by the mean of what was sent.

        As of the last `measure`.
        """
        counters = self._run.counters
        items = counters.docs_written
        return self.left_at_last * counters.data_bytes // items if items else 0
