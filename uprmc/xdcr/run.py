"""What the parts of a link share: its vBuckets that are being sent, and what is known of others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from uprmc.engine.vbucket import VBucket
from uprmc.errors import CommandError
from uprmc.login.credentials import Credentials
from uprmc.ports import Dialled, Session
from uprmc.upr.hub import Hub
from uprmc.xdcr import checkpoint
from uprmc.xdcr.checkpoint import CheckpointStore, Record
from uprmc.xdcr.outbound import Outbound
from uprmc.xdcr.reading import LinkReading
from uprmc.xdcr.received import ReceivedRecords
from uprmc.xdcr.shipment import Counters, Debts, Errors, Shipment, position_of
from uprmc.xdcr.spec import LinkSpec

# --- world ----------------------------------------------------------------------------------------
# What a link needs of the node that it runs in.


#: Makes the session of a connection, given who to log in as and what wakes it.
MakeLinkSession = Callable[[Credentials | None, Callable[[], None]], Session]

#: As `ports.Dial`, and the last argument is told what is wrong with the files that the link names;
#: then there is no connection.
LinkDial = Callable[[str, MakeLinkSession, Callable[[str], None], Callable[[str], None]], Dialled]


@dataclass(frozen=True, slots=True)
class World:
    """The surroundings of a link."""

    hub: Hub  # of the node
    bucket_uuid: int  # of the node's data
    received: ReceivedRecords  # checkpoints that it has as a target
    dial: Callable[[LinkSpec], LinkDial]  # returns how to reach the nodes of a link's target
    # called with a link and what takes the reason why its files cannot be used, empty = they can.
    check: Callable[[LinkSpec, Callable[[str], None]], None]
    # calls something after a number of seconds.
    later: Callable[[float, Callable[[], None]], object]
    # called with the name of an event and its fields.
    on_event: Callable[[str, dict[str, object]], None]
    # called with the name of a link and what keeps it from its work.
    on_trouble: Callable[[str, str], None]


# --- slices ---------------------------------------------------------------------------------------
# Work on many vBuckets in slices of time, so that the node's other connections do not wait.


#: Seconds that one slice may take.
SLICE_S = 0.002


class Slices:
    """Runs work in slices of time."""

    def __init__(
        self,
        later: Callable[[float, Callable[[], None]], object],
        monotonic: Callable[[], float],
    ) -> None:
        self._later = later
        self._monotonic = monotonic
        self._work: dict[str, tuple[Iterator[None], Callable[[], None]]] = {}

    def run(
        self, name: str, steps: Iterator[None], done: Callable[[], None] = lambda: None
    ) -> None:
        """Carry out steps, the first slice at once.

        Args:
            name: of the work; earlier work of this name is given up.
            steps: others may run between any two of them.
            done: called at the end, or when the work is given up for later work.
        """
        earlier = self._work.pop(name, None)
        if earlier is not None:
            earlier[1]()
        self._work[name] = steps, done
        self._go_on(name, steps)

    def __contains__(self, name: str) -> bool:
        return name in self._work

    def close(self) -> None:
        """Give up everything."""
        self._work.clear()

    def _go_on(self, name: str, steps: Iterator[None]) -> None:
        work = self._work.get(name)
        if work is None or work[0] is not steps:
            return
        until = self._monotonic() + SLICE_S
        for _ in steps:
            if self._monotonic() >= until:
                self._later(0.0, lambda: self._go_on(name, steps))
                return
        if self._work.get(name) is work:
            del self._work[name]
            work[1]()


# --- run ------------------------------------------------------------------------------------------


class LinkRun:
    """What the parts of one link share.

    Attributes:
        world: the node.
        spec: what the link is.
        counters, errors: of this run.
        shipments: vBuckets that are being sent, by number.
        memory: where others had arrived when their streams ended.
        echoes: the lowest seqno at the target of deletions of others that were not sent back and
            may be needed there, see `Shipment.lacks`.
        store: checkpoints.
        slices: work on many vBuckets.
        outbound: what was read and is not sent yet.
        reading: the streams, ``None`` = there is no producer.
        two_way: whether what arrives at the target may come back, as far as is known. The rows of
            such a link do not expire by time.
        stopped: vBuckets that are not sent before they are reconciled.
        doubted: vBuckets of which a node has said that it does not have them, although it had.
        debts: what the target refuses of all vBuckets.
        moved: vBuckets for which checkpoints of others may have become due, the oldest first.
    """

    def __init__(self, world: World, spec: LinkSpec, outbound: Outbound) -> None:
        self.world = world
        self.spec = spec
        self.counters = Counters()
        self.errors = Errors()
        self.shipments: dict[int, Shipment] = {}
        self.memory: dict[int, Record] = {}
        self.echoes: dict[int, int] = {}
        self.store = CheckpointStore(world.hub.bucket, spec.name, self.trouble)
        self.slices = Slices(world.later, world.hub.bucket.clock.monotonic)
        self.outbound = outbound
        self.reading: LinkReading | None = None
        self.two_way = True
        self.stopped: set[int] = set()
        self.moved: dict[int, None] = {}
        self.doubted: set[int] = set()
        limits = world.hub.bucket.settings.xdcr
        self.debts = Debts(limits.refused_items, limits.refused_bytes)

    @property
    def hub(self) -> Hub:
        """The node's."""
        return self.world.hub

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
        if self.reading is None or number not in self.hub.bucket.active:
            return
        whole, meta = position_of(record).whole, checkpoint.encode_one(record)
        try:
            self.reading.report(number, whole, record.uuid if whole else 0, meta)
        except CommandError as error:
            self.trouble(f"vBucket {number}: its watermark is refused: {error}")

    def register(self, vbucket: VBucket) -> None:
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
        uuid, created = vbucket.failover_log[0].uuid, int(self.hub.bucket.clock.now())
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
        if self.reading is None or number not in self.hub.bucket.active:
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
        created = int(self.hub.bucket.clock.now())
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

    def drop_all(self) -> None:
        """End all streams."""
        self.drop(list(self.shipments.values()))
        self.outbound.clear()
