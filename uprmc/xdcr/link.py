"""One link: reads this node's active vBuckets, and keeps the target up to date with them.

Job: connect to the target's nodes, find out which of them has each vBucket, go on where both ends
agree, send, and write checkpoints. Whatever goes wrong with a node or a vBucket drops that
vBucket's stream; it begins again from what has arrived, once the target was asked again what it
has. So there is one way back, whatever the reason.

What the parts share is here; each knows the link. `nodes` has the connections, `resuming` decides
where streams begin, `sender` sends, `checkpointing` writes checkpoints, `reading` has the streams,
`shipment` is one vBucket. Time comes by `tick`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from uprmc.engine.vbucket import VBucket
from uprmc.errors import CommandError, InvalidArguments, KeyExists, TemporaryFailure
from uprmc.protocol.opcodes import Feature
from uprmc.xdcr import checkpoint
from uprmc.xdcr.checkpoint import CheckpointStore, Record
from uprmc.xdcr.checkpointing import Checkpointing
from uprmc.xdcr.nodes import TargetNodes
from uprmc.xdcr.reading import LinkReading
from uprmc.xdcr.reconcile import Reconciliation
from uprmc.xdcr.resuming import Resuming
from uprmc.xdcr.sender import Outbound, Sender
from uprmc.xdcr.shipment import Counters, Debts, Errors, Shipment, position_of
from uprmc.xdcr.spec import LinkSpec
from uprmc.xdcr.target import Target
from uprmc.xdcr.world import Slices, World

# --- lag ------------------------------------------------------------------------------------------
# How many seconds a link is behind: the age of the oldest change that has not arrived.
#
# The sum of all high seqnos is noted with its time a few times a second. What has arrived, summed
# in the same way, was the high then: so the newest note that has been passed says how old the next
# change is at most.


#: Notes that are kept; a link that is further behind is as far behind as the oldest one.
_NOTES = 4_096


class Lag:
    """The lag of one link."""

    def __init__(self, now: float) -> None:
        """Begin at this monotonic time: nothing is known of before."""
        self._notes: deque[tuple[float, int]] = deque()
        self._level_at = now

    def note(self, now: float, high: int, through: int) -> None:
        """Take note of the sums at this monotonic time."""
        notes = self._notes
        while notes and notes[0][1] <= through:
            self._level_at = notes.popleft()[0]
        if high <= through:
            notes.clear()
            self._level_at = now
        elif not notes or notes[-1][1] < high:
            if len(notes) == _NOTES:
                self._notes = notes = deque(list(notes)[::2])  # half as fine, twice as far back
            notes.append((now, high))

    def seconds(self, now: float) -> float:
        """Return how long ago everything that had happened by then has arrived."""
        return max(0.0, now - self._level_at) if self._notes else 0.0


# --- progress -------------------------------------------------------------------------------------
# How far a link has come: what has not arrived, for how long, and how fast it goes.


#: How often the rate is measured.
_RATE_S = 1.0


class Progress:
    """Sums over the vBuckets of one link."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._active = link.bucket.active
        self._clock = link.clock
        self.rate = 0.0  # items per second
        self.left_at_last = 0  # `changes_left` as of the last `measure`; costs nothing
        now = self._clock.monotonic()
        self._lag = Lag(now)
        self._rated_at = now
        self._rated_items = 0

    def measure(self, now: float) -> None:
        """Take note of how far the link is at this monotonic time."""
        high, through = self._totals()
        self.left_at_last = high - through + self._link.debts.count
        self._lag.note(now, high, through)
        if now - self._rated_at >= _RATE_S:
            items = self._link.counters.docs_written
            self.rate = round((items - self._rated_items) / (now - self._rated_at), 1)
            self._rated_at, self._rated_items = now, items

    def _totals(self) -> tuple[int, int]:
        """Return the sums of all high seqnos, and of how far each vBucket is but for its debts."""
        high = through = 0
        shipment_of = self._link.shipments.get
        for number, vbucket in self._active.items():
            shipment, top = shipment_of(number), vbucket.high_seqno
            arrived = self._link.through(number) if shipment is None else shipment.front[0]
            high += top
            through += arrived if arrived < top else top
        return high, through

    @property
    def changes_left(self) -> int:
        """Number of seqnos that have not arrived."""
        high, through = self._totals()
        return high - through + self._link.debts.count

    @property
    def lag_seconds(self) -> float:
        """Age of the oldest change that has not arrived."""
        now, debts = self._clock.monotonic(), self._link.debts
        return max(self._lag.seconds(now), now - debts.oldest if debts.count else 0.0)

    @property
    def bytes_left(self) -> int:
        """Bytes of changes that have not arrived, estimated by the mean of what was sent.

        As of the last `measure`.
        """
        counters = self._link.counters
        items = counters.docs_written
        return self.left_at_last * counters.data_bytes // items if items else 0


# --- link -----------------------------------------------------------------------------------------


RUNNING, PAUSED, ERROR = "running", "paused", "error"
WAITING, NEEDS_RECONCILE = "waiting", "needs_reconcile"

#: How often the link's rows at the target and here are renewed.
_RENEW_S = 300.0

#: A pause waits this long for answers, and then for its checkpoint.
_SETTLE_S, _PAUSE_S = 2.0, 4.0

#: Features from this number on are our extensions.
_OURS = 0x5500


class Link:
    """One link of this node."""

    def __init__(self, world: World, spec: LinkSpec) -> None:
        self.world = world
        self.hub, self.bucket = world.hub, world.hub.bucket
        self.clock = self.bucket.clock
        self.spec = spec
        self.counters = Counters()
        self.errors = Errors()
        self.shipments: dict[int, Shipment] = {}  # vBuckets that are being sent, by number
        self.memory: dict[int, Record] = {}  # where others had arrived when their streams ended
        # The lowest seqno at the target of deletions of others that were not sent back and may be
        # needed there, see `Shipment.lacks`.
        self.echoes: dict[int, int] = {}
        self.store = CheckpointStore(self.bucket, spec.name, self.trouble)
        self.slices = Slices(world.later, self.clock.monotonic)
        self.reading: LinkReading | None = None  # the streams; ``None`` = there is no producer
        # Whether what arrives at the target may come back, as far as is known. The rows of such a
        # link do not expire by time.
        self.two_way = True
        self.stopped: set[int] = set()  # vBuckets that are not sent before they are reconciled
        self.moved: dict[int, None] = {}  # those to look at for checkpoints of others, oldest first
        self.doubted: set[int] = set()  # those that a node says it has not, although it had
        limits = self.bucket.settings.xdcr
        self.debts = Debts(limits.refused_items, limits.refused_bytes)  # what the target refuses
        self.halted = ""  # why it does nothing until it is resumed
        self.nodes = TargetNodes(self)
        self.outbound = Outbound(self)
        self.resuming = Resuming(self)
        self.checkpointing = Checkpointing(self)
        self.progress = Progress(self)
        self.sender = Sender(self)
        self.reconciliation: Reconciliation | None = None  # the last one, which may be running
        self._pausing: list[Callable[[], None]] = []
        self._pausing_since = 0.0
        self._closed = False
        self._renewed_at = self._checked_at = self.clock.monotonic()
        self.sender.apply_settings()

    @property
    def may_send(self) -> bool:
        """Whether streams may begin now."""
        halted = self.halted or self.spec.paused or self._closed
        return not halted and self.reading is not None

    def change(self, spec: LinkSpec) -> None:
        """Take over other settings while it runs."""
        self.spec = spec
        self.sender.apply_settings()
        self.checkpointing.look_at_all()  # another filter admits other checkpoints
        self.nodes.wake()

    # --- what is so -----------------------------------------------------------------------------

    @property
    def state(self) -> str:
        """One of the states of the contract."""
        if self.spec.paused and not self._pausing:
            return PAUSED
        if self.halted:
            return ERROR
        if self.needs_reconcile:
            return NEEDS_RECONCILE
        if not self.bucket.active:
            return WAITING
        return ERROR if self.failure else RUNNING

    @property
    def error(self) -> str:
        """What keeps it from its work, wholly or in part; empty = nothing does."""
        return self.failure or self.resuming.waiting

    @property
    def failure(self) -> str:
        """Why it is in state `error`; empty = it is not.

        It goes on by itself, unless it was halted: then it has to be resumed.
        """
        return self.halted or self.nodes.unreachable or self.debts.why

    @property
    def needs_reconcile(self) -> list[int]:
        """The vBuckets that are not sent before they are reconciled."""
        return sorted(self.stopped)

    @property
    def features(self) -> list[str]:
        """What the target's nodes grant of our extensions."""
        granted = {number for target in self.nodes.ready for number in target.granted}
        return [each.name.lower() for each in Feature if each in granted and each > _OURS]

    # --- life -----------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Do what is due; call it about ten times a second."""
        if self._closed or not self.bucket.traffic or not self._open_reading():
            return
        assert self.reading is not None
        self.reading.tick(now)
        self.checkpointing.register()
        if now - self._renewed_at >= _RENEW_S:
            self._renewed_at = now
            for target in self.nodes.ready:
                target.ask_for_links()
            self.checkpointing.renew()
        if self._pausing:
            self._go_on_pausing(now)
        elif not (self.spec.paused or self.halted):
            self.nodes.dial(now)
            self.sender.tick(now)
            self.resuming.tick(now)
            if now - self._checked_at >= self.spec.settings.checkpoint_interval_s:
                self._checked_at = now
                self.checkpointing.write()
            if self.outbound.withheld:
                self.nodes.wake()
            self.checkpointing.pass_on()
        self.progress.measure(now)

    def _open_reading(self) -> bool:
        if self.reading is not None and not self.reading.closed:
            return True
        if self.reading is not None:
            self._drop_all()
            self.reading.close()
            self.reading = None
        name = self.spec.name.encode()
        try:
            self.reading = LinkReading(self.hub, name, self.nodes.wake)
        except TemporaryFailure:
            return False
        self.reading.keep_rows(lasting=self.two_way)
        self._renewed_at = self.clock.monotonic()
        self.checkpointing.registered.clear()
        self.checkpointing.renew()
        return True

    def register(self, done: Callable[[], None]) -> None:
        """Register with all vBuckets, then call `done`: from then on no deletion is missed."""
        self._open_reading()
        self.checkpointing.renew(done)

    def close(self) -> None:
        """Hang up. What is written down stays."""
        self._closed = True
        self.slices.close()
        self._hang_up()
        self.checkpointing.close()
        if self.reading is not None:
            self.reading.close()
            self.reading = None
        self._settle_pause()

    def _hang_up(self) -> None:
        if self.reconciliation is not None:
            self.reconciliation.abort("the link has hung up")
        self._drop_all()
        self.nodes.hang_up()

    def forget(self) -> None:
        """Remove its rows and checkpoints; call it before `close` when the link is deleted."""
        numbers = {*self.store.records, *self.bucket.active}
        if self.reading is not None:
            for number in numbers:
                self.reading.unregister(number)
        self.store.forget()

    def pause(self, spec: LinkSpec, done: Callable[[], None]) -> None:
        """Stop sending; `done` is called when what was sent is settled, or after `_PAUSE_S`."""
        self.spec = spec
        self._pausing.append(done)
        if len(self._pausing) == 1:
            self._pausing_since = self.clock.monotonic()
            self.checkpointing.is_writing = False

    def _go_on_pausing(self, now: float) -> None:
        waited_s = now - self._pausing_since
        under_way = any(target.windows for target in self.nodes.ready)
        if under_way and waited_s < _SETTLE_S:
            return
        if not self.checkpointing.is_writing and self.nodes.ready and waited_s < _SETTLE_S:
            self.checkpointing.write(lambda _why: self._settle_pause())
        elif waited_s >= _PAUSE_S or not self.nodes.ready:
            self._settle_pause()

    def _settle_pause(self) -> None:
        waiting, self._pausing = self._pausing, []
        if waiting and not self._closed:
            self._hang_up()
        for done in waiting:
            done()

    def resume(self, spec: LinkSpec) -> None:
        """Send again, also after an error."""
        self.spec, self.halted = spec, ""
        self._settle_pause()
        self.sender.try_again_soon()
        self.nodes.dial_soon()
        self.sender.apply_settings()

    # --- repairing ------------------------------------------------------------------------------

    def reconcile(self, *, dry_run: bool) -> Reconciliation:
        """Compare the target with this node: the vBuckets that have stopped, or all if none has.

        Raises:
            CommandError: it cannot be done now; the text says why.
        """
        settings = self.spec.settings
        if settings.filter_deletions or settings.filter_expirations:
            raise InvalidArguments("the link leaves deletions out, so nothing is missing there")
        if not self.nodes.ready or self.halted or self.spec.paused:
            raise TemporaryFailure(f"the link is {self.state} and has no connection")
        if self.reconciliation is not None and self.reconciliation.running:
            raise KeyExists("the link is being reconciled already")
        numbers = self.needs_reconcile or sorted(self.bucket.active)
        self.reconciliation = Reconciliation(self, numbers, dry_run=dry_run)
        self.reconciliation.go_on()
        return self.reconciliation

    # --- connections ----------------------------------------------------------------------------

    def node_failed(self, place: str, why: str) -> None:
        """Take note that no connection came about, or that one has ended."""
        if not self._closed:
            self.trouble(f"{place}: {why}")
            self.resuming.place()

    def stop(self, why: str) -> None:
        """Go to state `error`, until the link is resumed."""
        self.halted = why
        self.trouble(why)
        self._hang_up()

    def surveyed(self, target: Target) -> None:
        """Take note that the node has said what it has."""
        why = self.nodes.unfit(target)
        if why:
            self.stop(why)
            return
        self.nodes.tell_promotions()
        self._learn_way()
        self.resuming.place()

    def _learn_way(self) -> None:
        """Find out whether what is sent may come back, and let the rows expire accordingly."""
        two_way, reading = self.nodes.lead_on, self.reading
        if two_way != self.two_way and reading is not None:
            self.two_way = two_way
            reading.keep_rows(lasting=two_way)
            self.checkpointing.renew()

    def failed(self, target: Target, why: str, *, final: bool) -> None:
        """Take note that a connection is of no use; `final` = another one would not be either."""
        self.nodes.blame(target, why)
        if final:
            self.stop(f"{target.place}: {why}")
        else:
            self.trouble(f"{target.place}: {why}")

    def lost(self, target: Target) -> None:
        """Take note that a connection has ended."""
        self.nodes.lost(target)
        if self.reconciliation is not None:
            self.reconciliation.lost(target)
        self.drop([s for s in self.shipments.values() if s.place == target.place])
        self.outbound.forget_node(target.place)

    # --- vBuckets -------------------------------------------------------------------------------

    def trouble(self, text: str) -> None:
        """Tell what keeps the link from its work."""
        self.errors.add(text)
        self.world.on_trouble(self.spec.name, text)

    def through(self, number: int) -> int:
        """Return up to which seqno a vBucket has arrived, as far as is known."""
        shipment = self.shipments.get(number)
        if shipment is not None:
            return shipment.through.seqno
        records, memory = self.store.records.get(number), self.memory.get(number)
        written = records[0].seqno if records else 0
        return written if memory is None else max(written, memory.seqno)

    def report(self, number: int, record: Record) -> None:
        """Report a checkpoint as the watermark of a vBucket."""
        if self.reading is None or number not in self.bucket.active:
            return
        whole, meta = position_of(record).whole, checkpoint.encode_one(record)
        try:
            self.reading.report(number, whole, record.uuid if whole else 0, meta)
        except CommandError as error:
            self.trouble(f"vBucket {number}: its watermark is refused: {error}")

    def register_one(self, vbucket: VBucket) -> None:
        """Register a vBucket, or renew its row: from now on no deletion is purged that is not sent.

        What was purged before is remembered, so that it shows if the row was lost meanwhile.
        """
        number = vbucket.id
        known = self.store.known(number)
        if not known:
            self.note_beginning(vbucket)
        elif vbucket.purge_seqno < known[0].purged:  # it has another history now
            self.store.add(number, known[0]._replace(purged=vbucket.purge_seqno))
        if number in self.stopped:
            self.keep_all(number)
        else:
            self.report(number, self.store.known(number)[0])

    def note_beginning(self, vbucket: VBucket) -> None:
        """Remember what was purged before the link begins a vBucket at zero."""
        uuid, created = vbucket.failover_log[0].uuid, int(self.clock.now())
        beginning = Record(uuid, 0, 0, 0, 0, 0, created, purged=vbucket.purge_seqno)
        self.store.add(vbucket.id, beginning)

    def purged_before(self, vbucket: VBucket) -> int:
        """Return what was purged before the link began a vBucket at zero."""
        known = self.store.known(vbucket.id)
        return known[0].purged if known else vbucket.purge_seqno

    def keep_all(self, number: int) -> None:
        """Register a vBucket, or renew its row, without saying that anything more has arrived.

        No deletion that the vBucket has now is purged if there was no row.
        """
        if self.reading is None or number not in self.bucket.active:
            return
        known = self.store.known(number)
        meta = checkpoint.encode_one(known[0]) if known else b""
        try:
            self.reading.report(number, 0, 0, meta)
        except CommandError as error:
            self.trouble(f"vBucket {number}: it is not registered: {error}")

    # --- dropping -------------------------------------------------------------------------------

    def drop(self, shipments: Iterable[Shipment], *, remember: bool = True) -> None:
        """End streams; what has arrived is remembered, and what has not is sent again."""
        created = int(self.clock.now())
        for shipment in list(shipments):
            number = shipment.vbucket.id
            shipment.end()
            if self.shipments.get(number) is shipment:
                del self.shipments[number]
            if remember and shipment.through.seqno:
                self.memory[number] = shipment.record(
                    shipment.through, shipment.target_seqno, created
                )
                self.echoes[number] = shipment.lowest_echo
            else:
                self.memory.pop(number, None)
            self.outbound.forget_vbucket(number)
            if self.reading is not None:
                self.reading.end(shipment.stream)

    def _drop_all(self) -> None:
        """End all streams."""
        self.drop(list(self.shipments.values()))
        self.outbound.clear()
