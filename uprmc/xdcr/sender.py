"""What a link sends to the nodes of its target, and what their answers to items mean.

Items are read for all nodes together, and each node takes what is its own when it has room for it.

Neighbours: `shipping` makes requests, `outbound` has what waits, `target` is one connection, `link`
connects and decides what is sent at all. What these share is in `run`.

Source: systems reference b.2, steps 3 to 7.
"""

from __future__ import annotations

from collections.abc import Callable

from uprmc.errors import InvalidArguments
from uprmc.model import ConflictRule
from uprmc.protocol.opcodes import HEADER_BYTES, Feature, Opcode, Status, status_text
from uprmc.xdcr.frames import WITH_META_FRAME, Meta, document_wins
from uprmc.xdcr.run import Run
from uprmc.xdcr.shipment import Shipment
from uprmc.xdcr.shipping import Part, Rules, ship
from uprmc.xdcr.target import Target
from uprmc.xdcr.windows import Item, Window

#: Seconds that sending takes at a time; then others have their turn.
FILL_S = 0.001

#: Bytes that are read at a time.
_PULL_BYTES = 64 * 1024

_ACCESS = frozenset({Status.AUTH_ERROR, Status.ACCESS_DENIED})
_UNKNOWN = frozenset({Status.UNKNOWN_COMMAND, Status.NOT_SUPPORTED})


class Sender:
    """Sends the items of one link.

    Implements `target.ItemSource`.

    Attributes:
        rules: how items are sent.
    """

    def __init__(
        self, run: Run, stop: Callable[[str], None], is_halted: Callable[[], bool]
    ) -> None:
        """Prepare it; `apply_settings` comes before the first `fill`.

        Args:
            run: of the link.
            stop: called with the reason why nothing can be sent any more.
            is_halted: tells whether nothing is to be sent now.
        """
        self.rules = Rules()
        self._run = run
        self._stop = stop
        self._is_halted = is_halted
        self._bucket = run.hub.bucket
        self._clock = run.hub.bucket.clock
        self._paid_until = 0.0

    def apply_settings(self) -> None:
        """Take over the settings of the link, which may have changed."""
        spec, rules = self._run.spec, self.rules
        settings = spec.settings
        try:
            rules.pattern = spec.pattern()
        except InvalidArguments as error:  # an older version took it
            self._stop(str(error))
        rules.batch_items, rules.batch_bytes = settings.batch_items, settings.batch_bytes
        rules.optimistic_bytes = settings.optimistic_bytes
        rules.deletions = not settings.filter_deletions
        rules.expirations = not settings.filter_expirations
        self._run.outbound.ship = settings.ship

    def fill(self, target: Target, out: list[bytes], budget: int) -> int:
        """See `ItemSource`."""
        if self._run.reading is None or self._run.spec.paused or self._is_halted():
            return 0
        budget = self._affordable(target, budget)
        sent, windows = 0, target.windows
        outbound, place, monotonic = self._run.outbound, target.place, self._clock.monotonic
        until, late, most = monotonic() + FILL_S, False, self.rules.most_items
        while sent < budget and windows.has_room and not late:
            if outbound.has(place):
                sent += self._ship(target, *outbound.take(place, most), out)
            elif not (outbound.release() or self._pull(budget - sent)):
                break
            late = monotonic() >= until
        if late:
            target.wake()  # what is filtered makes no bytes, and still takes its time
        elif not (outbound.has(place) and windows.has_room):
            sent += windows.close(out)
        self._pay(sent)
        return sent

    def _affordable(self, target: Target, budget: int) -> int:
        """Return how much of the budget the bandwidth allows now."""
        limit = self._run.spec.settings.bandwidth
        if not limit:
            return budget
        wait_s = self._paid_until - self._clock.monotonic()
        if wait_s <= 0:
            return min(budget, max(1, limit // 10))
        self._run.world.later(wait_s, target.wake)
        return 0

    def _pay(self, sent: int) -> None:
        limit = self._run.spec.settings.bandwidth
        if limit and sent:
            now = self._clock.monotonic()
            self._paid_until = max(now, self._paid_until) + sent / limit

    def _pull(self, budget: int) -> bool:
        """Read items into the queues of their nodes; return whether there were any."""
        assert self._run.reading is not None
        if self._run.outbound.is_full:
            return False
        pulled = self._run.reading.pull(min(budget, _PULL_BYTES))
        for batch in pulled.batches:
            for run in batch.runs:
                shipment = self._run.shipments.get(run.stream.vbucket)
                if shipment is not None and shipment.stream is run.stream:
                    part = Part(pulled.data, batch, run.first, run.last, run.done)
                    self._run.outbound.add(shipment, part)
        for stream in pulled.ended:
            shipment = self._run.shipments.get(stream.vbucket)
            if shipment is not None and shipment.stream is stream:
                self._run.drop([shipment])
        return bool(pulled.data)

    def _ship(self, target: Target, shipment: Shipment, part: Part, out: list[bytes]) -> int:
        if shipment.dead:
            return 0
        return ship(self.rules, self._run.counters, target.windows, out, shipment, part)

    # --- answers --------------------------------------------------------------------------------

    def looked_up(self, target: Target, item: Item, theirs: tuple[bool, Meta] | None) -> bool:
        """See `ItemSource`."""
        if theirs is None:
            return True
        fields = WITH_META_FRAME.unpack_from(target.windows.frame(item))
        flags, expiry, rev, cas = fields[-4:]
        ours = Meta(rev, cas, expiry, flags)
        # If they are equal the origin decides, which the answer does not have: the target knows it.
        equal = ours == theirs[1] and Feature.ORIGINS in target.granted
        wins = equal or document_wins(ours, theirs[1], by_time=self._by_time)
        if not wins:
            self._run.counters.docs_failed_cr_source += 1
        return wins

    @property
    def _by_time(self) -> bool:
        return self._bucket.account.conflict_rule is ConflictRule.TIMESTAMP

    def sent_later(self, size: int) -> None:
        """See `ItemSource`."""
        self._run.counters.data_bytes += size
        self._pay(size)

    def refused(self, target: Target, item: Item, status: int) -> None:
        """See `ItemSource`."""
        frame = target.windows.frame(item)
        number = int.from_bytes(frame[6:8], "big")
        if status == Status.KEY_EXISTS:
            self._run.counters.docs_failed_cr_target += 1
        elif status == Status.NOT_MY_VBUCKET:
            shipment = self._run.shipments.get(number)
            if shipment is not None and shipment.place == target.place:
                self._run.drop([shipment])
        elif status in _ACCESS:
            self._stop(f"{target.place} gives no access: {status_text(status)}")
        elif status in _UNKNOWN:
            self._stop(f"{target.place} does not know {Opcode(frame[1]).name}: it is no target")
        elif not (status == Status.KEY_NOT_FOUND and frame[1] == Opcode.DELQ_WITH_META):
            self._run.counters.docs_refused += 1
            self._run.trouble(f"{_key_of(frame)}: the target refuses it: {status_text(status)}")

    def settled(self, window: Window) -> None:
        """See `ItemSource`."""
        self._run.counters.docs_written += window.written
        self._run.counters.deletions_written += window.deleted


def _key_of(frame: bytes) -> str:
    start = HEADER_BYTES + frame[4]
    key = frame[start : start + int.from_bytes(frame[2:4], "big")]
    return f"key {key[:80].decode('utf-8', 'backslashreplace')!r}"
