"""One link: reads this node's active vBuckets, and keeps the target up to date with them.

Job: connect to the target's nodes, find out which of them has each vBucket, go on where both ends
agree, send, and write checkpoints. Whatever goes wrong with a node or a vBucket drops that
vBucket's stream; it begins again from what has arrived, once the target was asked again what it
has. So there is one way back, whatever the reason.

Neighbours: `nodes` has the connections, `resuming` decides where streams begin,
`checkpointing` writes checkpoints, `reading` has the streams, `shipment` is one vBucket, `sender`
sends the items. What these share is in `run`. Time comes by `tick`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator

from uprmc.errors import InvalidArguments, KeyExists, TemporaryFailure
from uprmc.protocol.opcodes import Feature
from uprmc.remote.ranges import named
from uprmc.remote.retry import Backoff
from uprmc.xdcr.checkpoint import Records
from uprmc.xdcr.checkpointing import Checkpointing
from uprmc.xdcr.nodes import TargetNodes
from uprmc.xdcr.outbound import Outbound
from uprmc.xdcr.reading import LinkReading
from uprmc.xdcr.reconcile import Reconciliation
from uprmc.xdcr.resuming import Resuming
from uprmc.xdcr.run import LinkRun, World
from uprmc.xdcr.sender import Sender
from uprmc.xdcr.shipment import Debts
from uprmc.xdcr.spec import LinkSpec
from uprmc.xdcr.target import Target

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
    """Sums over the vBuckets of one link.

    Attributes:
        rate: items per second.
        left_at_last: `changes_left` as of the last `measure`; costs nothing.
    """

    def __init__(self, run: LinkRun) -> None:
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


# --- placing --------------------------------------------------------------------------------------
# Which node of the target has which vBucket: streams of vBuckets that have none begin here.


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
        run: LinkRun,
        nodes: TargetNodes,
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
            self._nodes.survey()
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


# --- link -----------------------------------------------------------------------------------------


RUNNING, PAUSED, ERROR = "running", "paused", "error"
WAITING, NEEDS_RECONCILE = "waiting", "needs_reconcile"

#: How often the link's rows at the target and here are renewed.
_RENEW_S = 300.0

#: A pause waits this long for answers, and then for its checkpoint.
_SETTLE_S, _PAUSE_S = 2.0, 4.0

#: The newest histories of a vBucket that a target is asked about.
_HISTORIES = 8

#: Features from this number on are our extensions.
_OURS = 0x5500


class Link:
    """One link of this node. Implements `target.TargetOwner`.

    Attributes:
        counters, errors, progress: of this run.
        shipments: vBuckets that are being sent, by number.
        branches: what was sent and is lost at the source, newest last.
        forwarded_from: by vBucket, where a checkpoint of others let it begin.
        reconciliation: the last one, which may be running.
    """

    def __init__(self, world: World, spec: LinkSpec) -> None:
        self._nodes = TargetNodes(world, self, spec.places, self._node_failed, self._stop)
        self._outbound = Outbound(world.hub, self._nodes.wake_other, self._nodes.wake)
        self._run = LinkRun(world, spec, self._outbound)
        self._resuming = Resuming(self._run)
        self._checkpointing = Checkpointing(self._run, self._nodes)
        self._placing = Placing(
            self._run,
            self._nodes,
            self._resuming,
            may_send=self._may_send,
            stop=self._stop,
            write_checkpoint=self.write_checkpoint,
        )
        self.progress = Progress(self._run)
        self.sender = Sender(self._run, self._stop, self._is_halted)
        self.counters, self.errors = self._run.counters, self._run.errors
        self.shipments = self._run.shipments
        self.branches = self._resuming.branches
        self.forwarded_from = self._resuming.forwarded_from
        self.reconciliation: Reconciliation | None = None
        self._halted = ""
        self._world = world
        self._bucket = world.hub.bucket
        self._clock = world.hub.bucket.clock
        self._pausing: list[Callable[[], None]] = []
        self._pausing_since = 0.0
        self._closed = False
        self._renewed_at = self._checked_at = self._clock.monotonic()
        self.sender.apply_settings()

    @property
    def spec(self) -> LinkSpec:
        """What the link is to do."""
        return self._run.spec

    def _is_halted(self) -> bool:
        return bool(self._halted or self._resuming.stops)

    def _may_send(self) -> bool:
        halted = self._halted or self.spec.paused or self._closed
        return not halted and self._run.reading is not None

    def change(self, spec: LinkSpec) -> None:
        """Take over other settings while it runs."""
        self._run.spec = spec
        self.sender.apply_settings()
        self._checkpointing.look_at_all()  # another filter admits other checkpoints
        self._nodes.wake()

    # --- what is so -----------------------------------------------------------------------------

    @property
    def state(self) -> str:
        """One of the states of the contract."""
        if self.spec.paused and not self._pausing:
            return PAUSED
        if self._halted:
            return ERROR
        if self.needs_reconcile:
            return NEEDS_RECONCILE
        if not self._bucket.active:
            return WAITING
        return ERROR if self.error else RUNNING

    @property
    def error(self) -> str:
        """What keeps it from its work, wholly or in part; empty = nothing does.

        It goes on by itself, unless it was halted: then somebody has to resume it.
        """
        return self._halted or self._nodes.unreachable or self._run.debts.why

    @property
    def refused(self) -> Debts:
        """What the target refuses."""
        return self._run.debts

    @property
    def needs_reconcile(self) -> list[int]:
        """The vBuckets that are not sent before they are reconciled."""
        return sorted(self._run.stopped)

    @property
    def records(self) -> dict[int, Records]:
        """Checkpoints, newest first, by vBucket."""
        return self._run.store.records

    def through(self, number: int) -> int:
        """Return up to which seqno a vBucket has arrived, as far as is known."""
        return self._run.through(number)

    def write_checkpoint(self, done: Callable[[str], None] = lambda _: None) -> None:
        """See `Checkpointing.write`."""
        self._checkpointing.write(done)

    @property
    def bucket_uuid(self) -> str:
        """See `TargetOwner`."""
        return f"{self._world.bucket_uuid:032x}"

    def histories(self, numbers: Iterable[int]) -> dict[int, list[str]]:
        """See `TargetOwner`."""
        active = self._bucket.active
        return {
            number: [str(entry.uuid) for entry in active[number].failover_log[:_HISTORIES]]
            for number in numbers
            if number in active
        }

    @property
    def numbers(self) -> list[int]:
        """The vBuckets that the link sends, or would send."""
        return list(self._bucket.active)

    def high_seqno(self, number: int) -> int:
        """Return the high seqno of one of `numbers`."""
        return self._bucket.active[number].high_seqno

    def nodes_shown(self) -> list[dict[str, object]]:
        """Return the target's nodes and how they are."""
        return self._nodes.shown()

    @property
    def targets(self) -> list[Target]:
        """Connections that have told what their nodes have."""
        return self._nodes.ready

    @property
    def features(self) -> list[str]:
        """What the target's nodes grant of our extensions."""
        granted = {number for target in self.targets for number in target.granted}
        return [each.name.lower() for each in Feature if each in granted and each > _OURS]

    # --- life -----------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Do what is due; call it about ten times a second."""
        if self._closed or not self._bucket.traffic or not self._open_reading():
            return
        assert self._run.reading is not None
        self._run.reading.tick(now)
        self._checkpointing.register()
        if now - self._renewed_at >= _RENEW_S:
            self._renewed_at = now
            for target in self.targets:
                target.ask_for_links()
            self._checkpointing.renew()
        if self._pausing:
            self._go_on_pausing(now)
        elif not (self.spec.paused or self._halted):
            self._nodes.dial(self.spec, now)
            self.sender.tick(now, self.targets)
            self._placing.tick(now)
            if now - self._checked_at >= self.spec.settings.checkpoint_interval_s:
                self._checked_at = now
                self.write_checkpoint()
            if self._outbound.withheld:
                self._nodes.wake()
            self._checkpointing.pass_on()
        self.progress.measure(now)

    def _open_reading(self) -> bool:
        if self._run.reading is not None and not self._run.reading.closed:
            return True
        if self._run.reading is not None:
            self._run.drop_all()
            self._run.reading.close()
            self._run.reading = None
        name = self.spec.name.encode()
        try:
            self._run.reading = LinkReading(self._world.hub, name, name, self._nodes.wake)
        except TemporaryFailure:
            return False
        self._run.reading.keep_rows(lasting=self._run.two_way)
        self._renewed_at = self._clock.monotonic()
        self._checkpointing.registered.clear()
        self._checkpointing.renew()
        return True

    def register(self, done: Callable[[], None]) -> None:
        """Register with all vBuckets, then call `done`: from then on no deletion is missed."""
        self._open_reading()
        self._checkpointing.renew(done)

    def close(self) -> None:
        """Hang up. What is written down stays."""
        self._closed = True
        self._run.slices.close()
        self._hang_up()
        self._checkpointing.close()
        if self._run.reading is not None:
            self._run.reading.close()
            self._run.reading = None
        self._settle_pause()

    def _hang_up(self) -> None:
        if self.reconciliation is not None:
            self.reconciliation.abort("the link has hung up")
        self._run.drop_all()
        self._nodes.hang_up()

    def forget(self) -> None:
        """Remove its rows and checkpoints; call it before `close` when the link is deleted."""
        numbers = {*self.records, *self._bucket.active}
        if self._run.reading is not None:
            for number in numbers:
                self._run.reading.unregister(number)
        self._run.store.forget()

    def pause(self, spec: LinkSpec, done: Callable[[], None]) -> None:
        """Stop sending; `done` is called when what was sent is settled, or after `_PAUSE_S`."""
        self._run.spec = spec
        self._pausing.append(done)
        if len(self._pausing) == 1:
            self._pausing_since = self._clock.monotonic()
            self._checkpointing.is_writing = False

    def _go_on_pausing(self, now: float) -> None:
        waited_s = now - self._pausing_since
        under_way = any(target.windows for target in self.targets)
        if under_way and waited_s < _SETTLE_S:
            return
        if not self._checkpointing.is_writing and self.targets and waited_s < _SETTLE_S:
            self.write_checkpoint(lambda _why: self._settle_pause())
        elif waited_s >= _PAUSE_S or not self.targets:
            self._settle_pause()

    def _settle_pause(self) -> None:
        waiting, self._pausing = self._pausing, []
        if waiting and not self._closed:
            self._hang_up()
        for done in waiting:
            done()

    def resume(self, spec: LinkSpec) -> None:
        """Send again, also after an error."""
        self._run.spec, self._halted = spec, ""
        self._settle_pause()
        self.sender.try_again_soon()
        self._nodes.dial_soon()
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
        if not self.targets or self._halted or self.spec.paused:
            raise TemporaryFailure(f"the link is {self.state} and has no connection")
        if self.reconciliation is not None and self.reconciliation.running:
            raise KeyExists("the link is being reconciled already")
        self.reconciliation = Reconciliation(
            self._run,
            self._nodes,
            self.needs_reconcile or sorted(self._bucket.active),
            self._resuming.release,
            dry_run=dry_run,
        )
        self.reconciliation.go_on()
        return self.reconciliation

    # --- connections ----------------------------------------------------------------------------

    def _node_failed(self, place: str, why: str) -> None:
        if not self._closed:
            self._run.trouble(f"{place}: {why}")
            self._placing.place()

    def _stop(self, why: str) -> None:
        """Go to state `error`, until the link is resumed."""
        self._halted = why
        self._run.trouble(why)
        self._hang_up()

    def surveyed(self, target: Target) -> None:
        """See `TargetOwner`."""
        why = self._nodes.unfit(target)
        if why:
            self._stop(why)
            return
        self._nodes.tell_promotions()
        self._learn_way()
        self._placing.place()

    def _learn_way(self) -> None:
        """Find out whether what is sent may come back, and let the rows expire accordingly."""
        two_way, reading = self._nodes.lead_on, self._run.reading
        if two_way != self._run.two_way and reading is not None:
            self._run.two_way = two_way
            reading.keep_rows(lasting=two_way)
            self._checkpointing.renew()

    def failed(self, target: Target, why: str, *, final: bool) -> None:
        """See `TargetOwner`."""
        self._nodes.blame(target, why)
        if final:
            self._stop(f"{target.place}: {why}")
        else:
            self._run.trouble(f"{target.place}: {why}")

    def lost(self, target: Target) -> None:
        """See `TargetOwner`."""
        self._nodes.lost(target)
        if self.reconciliation is not None:
            self.reconciliation.lost(target)
        self._run.drop([s for s in self.shipments.values() if s.place == target.place])
        self._outbound.forget_node(target.place)

    def pause_target(self, target: Target, seconds: float) -> None:
        """Wake a connection after a while."""
        self._world.later(max(0.0, seconds), target.wake)
