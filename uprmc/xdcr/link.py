"""One link: reads this node's active vBuckets, and keeps the target up to date with them.

Job: connect to the target's nodes, find out which of them has each vBucket, go on where both ends
agree, send, and write checkpoints. Whatever goes wrong with a node or a vBucket drops that
vBucket's stream; it begins again from what has arrived, once the target was asked again what it
has. So there is one way back, whatever the reason.

Neighbours: `nodes` has the connections, `placing` begins streams, `resuming` decides where,
`checkpointing` writes checkpoints, `reading` has the streams, `shipment` is one vBucket, `sender`
sends the items, `progress` measures. What these share is in `run`. Time comes by `tick`.

Source: systems reference b; contracts, section 3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from uprmc.errors import InvalidArguments, KeyExists, TemporaryFailure
from uprmc.protocol.opcodes import Feature
from uprmc.xdcr.checkpoint import Records
from uprmc.xdcr.checkpointing import Checkpointing
from uprmc.xdcr.nodes import Nodes
from uprmc.xdcr.outbound import Outbound
from uprmc.xdcr.placing import Placing
from uprmc.xdcr.progress import Progress
from uprmc.xdcr.reading import Reading
from uprmc.xdcr.reconcile import Reconciliation
from uprmc.xdcr.resuming import Resuming
from uprmc.xdcr.run import Run
from uprmc.xdcr.sender import Sender
from uprmc.xdcr.shipment import Debts
from uprmc.xdcr.spec import LinkSpec
from uprmc.xdcr.target import Target
from uprmc.xdcr.world import World

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
        self._nodes = Nodes(world, self, spec.places, self._node_failed, self._stop)
        self._outbound = Outbound(world.hub, self._nodes.wake_other, self._nodes.wake)
        self._run = Run(world, spec, self._outbound)
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
            self._run.reading = Reading(self._world.hub, name, name, self._nodes.wake)
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
