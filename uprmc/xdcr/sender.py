"""What a link sends to the nodes of its target, and what their answers to items mean.

Items are read for all nodes together, and each node takes what is its own when it has room for it.

Neighbours: `outbound` makes requests and has what waits, `target` is one connection, `link`
connects and decides what is sent at all. What these share is in `run`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from uprmc.errors import InvalidArguments
from uprmc.model import ConflictRule
from uprmc.protocol.opcodes import Feature, Opcode, Status, status_text
from uprmc.remote.retry import Backoff
from uprmc.xdcr.frames import WITH_META_FRAME, LinkMeta, document_wins, key_of, with_opaque
from uprmc.xdcr.outbound import OutboundPart, OutboundRules, ship
from uprmc.xdcr.run import LinkRun
from uprmc.xdcr.shipment import NOWHERE, Debt, Shipment, shown
from uprmc.xdcr.spec import SKIP
from uprmc.xdcr.target import Target
from uprmc.xdcr.windows import Item, LinkWindow

#: Seconds that sending takes at a time; then others have their turn.
FILL_S = 0.001

#: Bytes that are read at a time.
_PULL_BYTES = 64 * 1024

#: What the target refuses is tried again after a pause of this length, which doubles.
_AGAIN_MIN_S = 0.25

_ACCESS = frozenset({Status.AUTH_ERROR, Status.ACCESS_DENIED})
_UNKNOWN = frozenset({Status.UNKNOWN_COMMAND, Status.NOT_SUPPORTED})


class Sender:
    """Sends the items of one link.

    Implements `target.ItemSource`.

    Attributes:
        rules: how items are sent.
    """

    def __init__(
        self, run: LinkRun, stop: Callable[[str], None], is_halted: Callable[[], bool]
    ) -> None:
        """Prepare it; `apply_settings` comes before the first `fill`.

        Args:
            run: of the link.
            stop: called with the reason why nothing can be sent any more.
            is_halted: tells whether nothing is to be sent now.
        """
        self.rules = OutboundRules()
        self._run = run
        self._stop = stop
        self._is_halted = is_halted
        self._bucket = run.hub.bucket
        self._clock = run.hub.bucket.clock
        self._paid_until = 0.0
        self._again = Backoff(_AGAIN_MIN_S, run.hub.bucket.settings.xdcr.redial_max_s)
        self._due: set[str] = set()

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
        if settings.on_refused == SKIP:
            for number, key, _ in list(self._run.debts):
                self._run.shipments[number].paid(key)

    def fill(self, target: Target, out: list[bytes], budget: int) -> int:
        """See `ItemSource`."""
        if self._run.reading is None or self._run.spec.paused or self._is_halted():
            return 0
        budget = self._affordable(target, budget)
        sent, windows = 0, target.windows
        outbound, place, monotonic = self._run.outbound, target.place, self._clock.monotonic
        until, late, most = monotonic() + FILL_S, False, self.rules.most_items
        if place in self._due:
            self._due.discard(place)
            sent += self._try_again(target, out)
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
        if self._run.outbound.is_full or self._run.debts.is_full:
            return False
        pulled = self._run.reading.pull(min(budget, _PULL_BYTES))
        for batch in pulled.batches:
            for run in batch.runs:
                shipment = self._run.shipments.get(run.stream.vbucket)
                if shipment is not None and shipment.stream is run.stream:
                    part = OutboundPart(
                        pulled.data,
                        batch,
                        run.first,
                        run.last,
                        run.done,
                        pulled.snapshots.get(run, NOWHERE.snapshot),
                    )
                    self._run.outbound.add(shipment, part)
        for stream in pulled.ended:
            shipment = self._run.shipments.get(stream.vbucket)
            if shipment is not None and shipment.stream is stream:
                self._run.drop([shipment])
        return bool(pulled.data)

    def _ship(
        self, target: Target, shipment: Shipment, part: OutboundPart, out: list[bytes]
    ) -> int:
        if shipment.dead:
            return 0
        return ship(self.rules, self._run.counters, target.windows, out, shipment, part)

    # --- what the target refuses ----------------------------------------------------------------

    def tick(self, now: float, targets: Iterable[Target]) -> None:
        """Have what was refused tried again when it is time."""
        if self._run.debts.count and self._again.at <= now:
            self._again.failed(now)
            for target in targets:
                self._due.add(target.place)
                target.wake()

    def try_again_soon(self) -> None:
        """Try again at once what was refused: somebody says that it may work now."""
        self._again.good()
        self._again.at = 0.0

    def _try_again(self, target: Target, out: list[bytes]) -> int:
        """Send what a node has refused once more, in batches of its own; return the bytes."""
        windows, sent = target.windows, target.windows.close(out)
        shipments, rules = self._run.shipments, self.rules
        for number, _, debt in self._run.debts:
            if shipments[number].place != target.place or debt.trial or debt.replaced_in:
                continue
            window = debt.trial = windows.current
            window.is_trial = True
            frame = with_opaque(debt.frame, windows.opaque)
            windows.add(window, frame)
            out.append(frame)
            sent += len(frame)
            if len(window.frames) >= rules.batch_items or window.bytes >= rules.batch_bytes:
                sent += windows.close(out)
        self._run.counters.data_bytes += sent
        return sent + windows.close(out)

    def _owe(self, target: Target, item: Item, number: int, status: int) -> None:
        """Take note of a refusal for good: the vBucket does not arrive beyond it."""
        window, frame = item[0], target.windows.frame(item)
        shipment, key, why = self._run.shipments.get(number), key_of(frame), status_text(status)
        if shipment is None or shipment.place != target.place:
            return  # it begins again further back
        owed = shipment.debts.get(key)
        if window.is_trial:
            if owed is not None and owed.trial is window:
                owed.trial, owed.why = None, why
            return
        now = self._clock.monotonic()
        if not self._run.debts.count:
            self._again.good()
            self._again.failed(now)
        shipment.owe(key, Debt(frame, why, now, window, window.first + item[1]))
        self._given_up(frame, why)

    def _given_up(self, frame: bytes, why: str) -> None:
        self._run.counters.docs_refused += 1
        self._run.trouble(f"{shown(key_of(frame))}: the target refuses it: {why}")

    def _tried(self, window: LinkWindow) -> None:
        """What was tried again and not refused again is a debt no more."""
        debts = self._run.debts
        done = [(number, key) for number, key, debt in debts if debt.trial is window]
        for number, key in done:
            self._run.shipments[number].paid(key)
        if done:
            self._again.good()
            self._again.failed(self._clock.monotonic())

    # --- answers --------------------------------------------------------------------------------

    def looked_up(self, target: Target, item: Item, theirs: tuple[bool, LinkMeta] | None) -> bool:
        """See `ItemSource`."""
        if theirs is None:
            return True
        fields = WITH_META_FRAME.unpack_from(target.windows.frame(item))
        flags, expiry, rev, cas = fields[-4:]
        ours = LinkMeta(rev, cas, expiry, flags)
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

    def refused(self, target: Target, item: Item, status: int) -> bool:
        """See `ItemSource`."""
        frame = target.windows.frame(item)
        number = int.from_bytes(frame[6:8], "big")
        if status == Status.KEY_EXISTS:
            self._run.counters.docs_failed_cr_target += 1
        elif status == Status.NOT_MY_VBUCKET:
            shipment = self._run.shipments.get(number)
            if shipment is not None and shipment.place == target.place:
                self._run.doubted.add(number)  # the nodes are asked again who has it
                return True
        elif status in _ACCESS:
            needed = ": needs replicate" if status == Status.ACCESS_DENIED else ""
            self._stop(f"{target.place} gives no access: {status_text(status)}{needed}")
        elif status in _UNKNOWN:
            self._stop(f"{target.place} does not know {Opcode(frame[1]).name}: it is no target")
        elif not (status == Status.KEY_NOT_FOUND and frame[1] == Opcode.DELQ_WITH_META):
            if status == Status.TOO_LARGE or self._run.spec.settings.on_refused == SKIP:
                self._given_up(frame, status_text(status))
            else:
                self._owe(target, item, number, status)
        return False

    def settled(self, window: LinkWindow) -> None:
        """See `ItemSource`."""
        self._run.counters.docs_written += window.written
        self._run.counters.deletions_written += window.deleted
        if window.is_trial:
            self._tried(window)
