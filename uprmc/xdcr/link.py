"""One link: reads this node's active vBuckets, and keeps the target up to date with them.

Job: connect to the target's nodes, find out which of them has each vBucket, go on where both ends
agree, send, and write checkpoints. Whatever goes wrong with a node or a vBucket drops that
vBucket's stream; it begins again from what has arrived, once the target was asked again what it
has. So there is one way back, whatever the reason.

Neighbours: `target` is a connection, `reading` the streams, `shipment` one vBucket, `checkpoint`
the records and their rules, `shipping` makes requests. Time comes by `tick`.

Source: systems reference b; contracts, section 3.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from uprmc.consume.placement import NODES_MAX, Claim, chosen
from uprmc.consume.ranges import named
from uprmc.consume.retry import Backoff
from uprmc.consume.stream import StreamState
from uprmc.engine.vbucket import VBucket
from uprmc.errors import CommandError, RollbackRequired, TemporaryFailure
from uprmc.model import SEQNO_MAX, ConflictRule
from uprmc.places import of_cluster_map
from uprmc.ports import Dial, Dialled, Session
from uprmc.protocol.opcodes import HEADER_BYTES, Feature, Opcode, Status, status_text
from uprmc.rollback import ends_of_branches
from uprmc.upr.hub import Hub
from uprmc.xdcr import checkpoint
from uprmc.xdcr.checkpoint import Record, Records
from uprmc.xdcr.checkpoint_store import CheckpointStore
from uprmc.xdcr.counters import Counters, Errors
from uprmc.xdcr.frames import WITH_META_FRAME, Meta, document_wins
from uprmc.xdcr.lag import Lag
from uprmc.xdcr.outbound import Outbound
from uprmc.xdcr.reading import Reading
from uprmc.xdcr.received import Received, due, row_of
from uprmc.xdcr.settings import STOP
from uprmc.xdcr.shipment import NOWHERE, Position, Shipment, position_of, start_of
from uprmc.xdcr.shipping import Part, Rules, ship
from uprmc.xdcr.slices import Slices
from uprmc.xdcr.spec import LinkSpec
from uprmc.xdcr.target import Held, Login, Target
from uprmc.xdcr.windows import Item, Window

RUNNING, PAUSED, ERROR = "running", "paused", "error"
WAITING = "waiting"

#: A lost node is dialled again after a pause of this length, which doubles.
_DIAL_MIN_S, _DIAL_MAX_S = 0.1, 5.0
_GOOD_S = 10.0
_ANSWER_S = 15.0

#: How often vBuckets without a stream are looked at, rows are renewed, and rates are measured.
_LOOK_S = 0.5
_RENEW_S = 300.0
_RATE_S = 1.0

#: A pause waits this long for answers, and then for its checkpoint.
_SETTLE_S, _PAUSE_S = 2.0, 4.0

#: Bytes that are read at a time.
_PULL_BYTES = 64 * 1024

_FROM_ZERO = Record(0, 0, 0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class World:
    """What a link needs of the node that it runs in.

    Attributes:
        hub: of the node.
        bucket_uuid: of the node's data.
        received: checkpoints that it has as a target.
        dial: returns how to reach nodes, with TLS by the authorities of a file, empty = without.
        later: calls something after so many seconds.
        password: reads a password file.
        on_event: called with the name of an event and its fields.
        on_trouble: called with the name of a link and what keeps it from its work.
    """

    hub: Hub
    bucket_uuid: int
    received: Received
    dial: Callable[[str], Dial]
    later: Callable[[float, Callable[[], None]], object]
    password: Callable[[str], str]
    on_event: Callable[[str, dict[str, object]], None]
    on_trouble: Callable[[str, str], None]


class Node:
    """A node of the target."""

    __slots__ = ("backoff", "began_at", "dialled", "dialling", "error", "failed", "place", "target")

    def __init__(self, place: str) -> None:
        self.place = place
        self.target: Target | None = None
        self.dialled: Dialled | None = None
        self.dialling = self.failed = False
        self.error = ""
        self.began_at = 0.0
        self.backoff = Backoff(_DIAL_MIN_S, _DIAL_MAX_S)

    @property
    def ready(self) -> Target | None:
        """The connection, if it has told what the node has."""
        return self.target if self.target is not None and self.target.ready else None


class Link:
    """See the module docstring. Implements `target.TargetOwner`.

    Attributes:
        spec: what it is.
        counters, errors, lag: of this run.
        error: why it is in state `error`; empty = it is not.
        shipments: vBuckets that are being sent, by number.
        rate: items per second.
        branches: what was sent and is lost at the source, newest last.
        forwarded_from: by vBucket, where a checkpoint of others let it begin.
    """

    def __init__(self, world: World, spec: LinkSpec) -> None:
        self.spec = spec
        self.counters = Counters()
        self.errors = Errors()
        self.lag = Lag()
        self.error = ""
        self.shipments: dict[int, Shipment] = {}
        self.branches: deque[dict[str, object]] = deque(maxlen=1_000)
        self.forwarded_from: dict[int, int] = {}
        self.rate = 0.0
        self._world = world
        self._bucket = world.hub.bucket
        self._clock = world.hub.bucket.clock
        self._nodes = {place: Node(place) for place in spec.places}
        self._reading: Reading | None = None
        self._memory: dict[int, Record] = {}
        self._store = CheckpointStore(world.hub.bucket, spec.name, self._trouble)
        self._outbound = Outbound(world.hub, self._queued, self._wake)
        self._pausing: list[Callable[[], None]] = []
        self._pausing_since = 0.0
        self._closed = False
        self._slices = Slices(world.later, self._clock.monotonic)
        self._asking = Backoff(_LOOK_S, _DIAL_MAX_S)
        self._stops = ""
        self._forwarded = False
        self._session = f"{world.hub.bucket.entropy.uuid48():012x}"
        self._checking = False
        self._paid_until = 0.0
        now = self._clock.monotonic()
        self._looked_at = self._renewed_at = now
        self._checked_at = self._rated = now
        self._rated_items = 0
        self._rules = Rules()
        self._apply_settings()

    def _apply_settings(self) -> None:
        settings, rules = self.spec.settings, self._rules
        rules.pattern = self.spec.pattern()
        rules.batch_items, rules.batch_bytes = settings.batch_items, settings.batch_bytes
        rules.optimistic_bytes = settings.optimistic_bytes
        self._outbound.ship = settings.ship
        rules.deletions = not settings.filter_deletions
        rules.expirations = not settings.filter_expirations

    def change(self, spec: LinkSpec) -> None:
        """Take over other settings while it runs."""
        self.spec = spec
        self._apply_settings()
        self._wake()

    # --- what is so -----------------------------------------------------------------------------

    @property
    def state(self) -> str:
        """One of the states of the contract."""
        if self.spec.paused and not self._pausing:
            return PAUSED
        if self.error:
            return ERROR
        return RUNNING if self._bucket.active else WAITING

    @property
    def records(self) -> dict[int, Records]:
        """Checkpoints, newest first, by vBucket."""
        return self._store.records

    def through(self, number: int) -> int:
        """Return up to which seqno a vBucket has arrived, as far as is known."""
        shipment = self.shipments.get(number)
        if shipment is not None:
            return shipment.through.seqno
        known = [*self.records.get(number, ())[:1]]
        if number in self._memory:
            known.append(self._memory[number])
        return max((each.seqno for each in known), default=0)

    def _totals(self) -> tuple[int, int]:
        """Return the sums of all high seqnos, and of how far each vBucket has arrived."""
        high = through = 0
        shipments = self.shipments
        for number, vbucket in self._bucket.active.items():
            shipment = shipments.get(number)
            arrived = self.through(number) if shipment is None else shipment.through.seqno
            high += vbucket.high_seqno
            through += min(arrived, vbucket.high_seqno)
        return high, through

    @property
    def changes_left(self) -> int:
        """Number of seqnos that have not arrived."""
        high, through = self._totals()
        return high - through

    @property
    def bucket_uuid(self) -> str:
        """See `TargetOwner`."""
        return f"{self._world.bucket_uuid:032x}"

    @property
    def lag_seconds(self) -> float:
        """Age of the oldest change that has not arrived."""
        return self.lag.seconds(self._clock.monotonic())

    @property
    def bytes_left(self) -> int:
        """Bytes of changes that have not arrived, estimated by the mean of what was sent."""
        items = self.counters.docs_written
        return self.changes_left * self.counters.data_bytes // items if items else 0

    @property
    def numbers(self) -> list[int]:
        """The vBuckets that the link sends, or would send."""
        return list(self._bucket.active)

    def high_seqno(self, number: int) -> int:
        """Return the high seqno of one of `numbers`."""
        return self._bucket.active[number].high_seqno

    def nodes_shown(self) -> list[dict[str, object]]:
        """Return the target's nodes and how they are."""
        return [
            {"place": node.place, "connected": node.ready is not None, "error": node.error}
            for node in self._nodes.values()
        ]

    @property
    def targets(self) -> list[Target]:
        """Connections that have told what their nodes have."""
        found = [node.ready for node in self._nodes.values()]
        return [target for target in found if target is not None]

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
        assert self._reading is not None
        self._reading.tick(now)
        if now - self._renewed_at >= _RENEW_S:
            self._renewed_at = now
            self._renew()
        if self._pausing:
            self._go_on_pausing(now)
        elif not (self.spec.paused or self.error):
            self._dial(now)
            if now - self._looked_at >= _LOOK_S:
                self._looked_at = now
                self._look(now)
            if now - self._checked_at >= self.spec.settings.checkpoint_interval_s:
                self._checked_at = now
                self.write_checkpoint()
            if self._outbound.withheld:
                self._wake()
            self._pass_on()
        self._measure(now)

    def _measure(self, now: float) -> None:
        high, through = self._totals()
        self.lag.note(now, high, through)
        if now - self._rated >= _RATE_S:
            items = self.counters.docs_written
            self.rate = round((items - self._rated_items) / (now - self._rated), 1)
            self._rated, self._rated_items = now, items

    def _open_reading(self) -> bool:
        if self._reading is not None and not self._reading.closed:
            return True
        if self._reading is not None:
            self._drop_all()
            self._reading.close()
            self._reading = None
        name = self.spec.name.encode()
        try:
            self._reading = Reading(self._world.hub, name, name, self._wake)
        except TemporaryFailure:
            return False
        self._renewed_at = self._clock.monotonic()
        self._renew()
        return True

    def close(self) -> None:
        """Hang up. What is written down stays."""
        self._closed = True
        self._slices.close()
        self._hang_up()
        if self._reading is not None:
            self._reading.close()
            self._reading = None
        self._settle_pause()

    def _hang_up(self) -> None:
        self._drop_all()
        for node in self._nodes.values():
            target, dialled = node.target, node.dialled
            node.target = node.dialled = None
            node.dialling = node.failed = False
            if target is not None:
                target.hang_up()
            if dialled is not None:
                dialled.abandon()

    def forget(self) -> None:
        """Remove its rows and checkpoints; call it before `close` when the link is deleted."""
        numbers = {*self.records, *self._bucket.active}
        if self._reading is not None:
            for number in numbers:
                self._reading.unregister(number)
        self._store.forget()

    def pause(self, spec: LinkSpec, done: Callable[[], None]) -> None:
        """Stop sending; `done` is called when what was sent is settled, or after `_PAUSE_S`."""
        self.spec = spec
        self._pausing.append(done)
        if len(self._pausing) == 1:
            self._pausing_since = self._clock.monotonic()
            self._checking = False

    def _go_on_pausing(self, now: float) -> None:
        waited_s = now - self._pausing_since
        under_way = any(target.windows for target in self.targets)
        if under_way and waited_s < _SETTLE_S:
            return
        if not self._checking and self.targets and waited_s < _SETTLE_S:
            self.write_checkpoint(self._settle_pause)
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
        self.spec, self.error = spec, ""
        self._settle_pause()
        for node in self._nodes.values():
            node.backoff = Backoff(_DIAL_MIN_S, _DIAL_MAX_S)
        self._apply_settings()

    # --- connections ----------------------------------------------------------------------------

    def _dial(self, now: float) -> None:
        for node in list(self._nodes.values()):
            if node.target is None and not node.dialling and node.backoff.at <= now:
                self._call(node, now)
            elif node.ready is None and node.dialled and now - node.began_at > _ANSWER_S:
                dialled, node.dialled = node.dialled, None
                dialled.abandon()
                self._failed_node(node, f"no answer for {_ANSWER_S:g} s")

    def _call(self, node: Node, now: float) -> None:
        try:
            login = self._login()
            dial = self._world.dial(self.spec.tls_ca)
        except Exception as error:  # files that cannot be read; the text says which
            self._stop(str(error))
            return
        node.dialling, node.began_at = True, now
        node.dialled = dial(
            node.place, partial(self._make, node, login), partial(self._failed_node, node)
        )

    def _login(self) -> Login | None:
        spec = self.spec
        return Login(spec.user, self._world.password(spec.password_file)) if spec.user else None

    def _make(self, node: Node, login: Login | None, wake: Callable[[], None]) -> Session:
        limit = self._bucket.settings.kv.max_frame_bytes
        node.dialling = False
        target = node.target = Target(node.place, self, login, limit, self._clock, wake)
        return target

    def _failed_node(self, node: Node, why: str) -> None:
        if self._closed:
            return
        node.dialling, node.failed, node.error = False, True, why
        if node.target is None:
            node.backoff.failed(self._clock.monotonic())
        self._trouble(f"{node.place}: {why}")
        self._place()

    def _trouble(self, text: str) -> None:
        self.errors.add(text)
        self._world.on_trouble(self.spec.name, text)

    def _stop(self, why: str) -> None:
        """Go to state `error`, until somebody resumes the link."""
        self.error = why
        self._trouble(why)
        self._hang_up()

    def surveyed(self, target: Target) -> None:
        """See `TargetOwner`."""
        node = self._nodes[target.place]
        node.failed, node.error = False, ""
        ours = _POLICIES[self._bucket.account.conflict_rule]
        if target.policy and target.policy != ours:
            self._stop(
                f"{target.place} resolves conflicts by {target.policy} and this node by {ours}: "
                "both ends of a link need the same engine.conflict_resolution"
            )
            return
        if target.map is not None:
            count = self._bucket.settings.engine.vbuckets
            if target.map.vbuckets != count:
                self._stop(
                    f"{target.place} has {target.map.vbuckets} vBuckets and this node {count}: a "
                    "link needs the same number at both ends"
                )
                return
            for place in of_cluster_map(target.map.servers, target.place):
                if place not in self._nodes and len(self._nodes) < NODES_MAX:
                    self._nodes[place] = Node(place)
        self._place()

    def failed(self, target: Target, why: str, *, final: bool) -> None:
        """See `TargetOwner`."""
        if final:
            self._stop(f"{target.place}: {why}")
        else:
            self._trouble(f"{target.place}: {why}")

    def lost(self, target: Target) -> None:
        """See `TargetOwner`."""
        node = self._nodes[target.place]
        if node.target is target:
            node.target, node.dialled, node.failed = None, None, True
            now = self._clock.monotonic()
            if now - node.began_at > _GOOD_S:
                node.backoff.good()
            node.backoff.failed(now)
        self._drop([s for s in self.shipments.values() if s.place == target.place])
        self._outbound.forget_node(target.place)

    def pause_target(self, target: Target, seconds: float) -> None:
        """Wake a connection after a while."""
        self._world.later(max(0.0, seconds), target.wake)

    def _wake(self) -> None:
        for node in self._nodes.values():
            if node.target is not None:
                node.target.wake()

    # --- which node has which vBucket -----------------------------------------------------------

    def _look(self, now: float) -> None:
        """Begin what has no stream, after the nodes were asked again what they have."""
        missing = self._bucket.active.keys() - self.shipments.keys()
        if not missing:
            self._asking.good()
        elif self._asking.at <= now and "place" not in self._slices:
            self._asking.failed(now)
            for target in self.targets:
                target.survey()
        gone = [s for s in self.shipments.values() if s.vbucket.id not in self._bucket.active]
        self._drop(gone)

    def _place(self) -> None:
        if self.error or self.spec.paused or self._closed or self._reading is None:
            return
        if not all(node.failed or node.ready for node in self._nodes.values()):
            return
        targets = self.targets
        if not targets:
            return
        self._slices.run("place", self._placements(targets))

    def _placements(self, targets: list[Target]) -> Iterator[None]:
        """Begin what has no stream; others may run between any two vBuckets."""
        absent, why = [], ""
        for number, vbucket in list(self._bucket.active.items()):
            if self.error or self.spec.paused or self._reading is None:
                return
            if number in self.shipments or self._bucket.active.get(number) is not vbucket:
                continue
            ready = {target.place: target for target in targets if target.ready}
            claims = [_claim(target, number) for target in ready.values()]
            choice = chosen(number, [each for each in claims if each is not None])
            if choice.place:
                self._begin(vbucket, ready[choice.place])
                yield
            else:
                absent.append(number)
                why = choice.why
        stops, self._stops = self._stops, ""
        if stops:
            self._stop(stops)
            return
        if self._forwarded:
            self._forwarded = False
            self.write_checkpoint()  # its own records take the place of those of others
        if absent:
            self._trouble(why if len(absent) == 1 else f"{named(absent)}: {why}")
        self._wake()

    # --- where to go on -------------------------------------------------------------------------

    def _begin(self, vbucket: VBucket, target: Target) -> None:
        """Begin the stream of a vBucket where both ends agree."""
        number = vbucket.id
        held = Held() if target.held is None else target.held[number]
        candidates = self._candidates(number, held)
        forwards = not candidates
        if forwards:
            candidates = self._transitive(number, held, target)
        began: list[StreamState] = []
        purged = False

        def rolled_back_to(record: Record) -> int | None:
            nonlocal purged
            try:
                began.append(self._start(vbucket, record))
            except RollbackRequired as error:
                purged = purged or 0 < record.seqno < vbucket.purge_seqno
                return error.seqno
            return None

        try:
            record, lowest = checkpoint.acceptable(candidates, rolled_back_to)
            if record is None:
                began.append(self._start(vbucket, _FROM_ZERO))
        except CommandError as error:
            self._trouble(f"vBucket {number}: {error or type(error).__name__}")
            return
        newest = held.log[0].uuid if held.log else 0
        through = NOWHERE if record is None else position_of(record)
        shipment = self.shipments[number] = Shipment(
            vbucket, target.place, began[0], (newest, held.seqno), through
        )
        shipment.tells_origins = Feature.ORIGINS in target.granted
        shipment.tells_expirations = Feature.TERMS in target.granted
        shipment.clean = self._is_clean(vbucket, record, held)
        shipment.theirs = ends_of_branches(held.log, SEQNO_MAX)  # its newest history goes on
        self._memory.pop(number, None)
        self._store.forget_above(number, through.seqno)
        if record is not None and forwards:
            self.forwarded_from[number] = record.seqno
            self._forwarded = True
        if lowest is not None and not purged and not forwards:
            self._tell_branch(vbucket, candidates, max(lowest, through.seqno))

    def _is_clean(self, vbucket: VBucket, record: Record | None, held: Held) -> bool | None:
        """Tell whether the target has missed no deletion; ``None`` = not known before a snapshot.

        Deletions that were purged before the link began would be missed by a target that had
        documents then. Later ones are kept by the link's watermark.
        """
        if record is not None:
            return bool(record.clean)
        if not held.seqno:
            return True
        return None if not vbucket.purge_seqno else False

    def _candidates(self, number: int, held: Held) -> list[Record]:
        """Return the records that the target still has, the most advanced first."""
        records = self._store.known(number)
        valid = checkpoint.at_target(records, held.log, held.seqno)
        memory = self._memory.get(number)
        if memory is not None and memory.target_uuid == (held.log[0].uuid if held.log else 0):
            return [memory, *valid]
        return valid

    def _transitive(self, number: int, held: Held, target: Target) -> list[Record]:
        """Return where others have brought the target, the most advanced place first."""
        newest = held.log[0].uuid if held.log else 0
        found = [
            Record(told.uuid, told.seqno, told.seqno, told.seqno, newest, told.here_seqno)
            for told in target.records.get(number, ())
            if told.filter_hash == self.spec.filter_hash
        ]
        return sorted(found, key=lambda record: record.seqno, reverse=True)

    def _start(self, vbucket: VBucket, record: Record) -> StreamState:
        """Register and request the stream; raises as `Reading.begin`."""
        assert self._reading is not None
        start = start_of(record)
        whole = position_of(record).whole
        written = [each for each in self._store.known(vbucket.id) if each.seqno <= record.seqno]
        meta = checkpoint.encode_one(written[0]) if written else b""
        self._reading.report(vbucket.id, whole, record.uuid if whole else 0, meta)
        return self._reading.begin(vbucket, start)

    def _tell_branch(self, vbucket: VBucket, candidates: Iterable[Record], agreed: int) -> None:
        """Say what was sent and is not in the source's history any more."""
        sent = max((record.seqno for record in candidates), default=0)
        if sent <= agreed:
            return
        fields: dict[str, object] = {
            "link": self.spec.name,
            "vbucket": vbucket.id,
            "from": agreed + 1,
            "to": sent,
        }
        self.branches.append(fields)
        self._world.on_event("xdcr_branch", dict(fields))
        if self.spec.settings.on_branch == STOP:
            text = f"vBucket {vbucket.id}: changes {agreed + 1} to {sent} were sent and are lost"
            self._stops = self._stops or text

    # --- dropping -------------------------------------------------------------------------------

    def _drop(self, shipments: Iterable[Shipment], *, remember: bool = True) -> None:
        """End streams; what has arrived is remembered, and what has not is sent again."""
        created = int(self._clock.now())
        for shipment in list(shipments):
            number = shipment.vbucket.id
            shipment.dead = True
            if self.shipments.get(number) is shipment:
                del self.shipments[number]
            if remember and shipment.through.seqno:
                self._memory[number] = shipment.record(
                    shipment.through, shipment.target_seqno, created
                )
            else:
                self._memory.pop(number, None)
            self._outbound.withheld.pop(number, None)
            if self._reading is not None:
                self._reading.end(shipment.stream)

    def _drop_all(self) -> None:
        self._drop(list(self.shipments.values()))
        self._outbound.clear()

    # --- sending --------------------------------------------------------------------------------

    def fill(self, target: Target, out: list[bytes], budget: int) -> int:
        """See `TargetOwner`."""
        reading = self._reading
        if reading is None or self.spec.paused or self.error or self._stops:
            return 0
        budget = self._affordable(target, budget)
        sent, windows = 0, target.windows
        queue = self._outbound.queue(target.place)
        while sent < budget and windows.has_room:
            if queue:
                sent += self._ship(target, *queue.popleft(), out)
            elif not (self._outbound.release() or self._pull(budget - sent)):
                break
        if not (queue and windows.has_room):
            sent += windows.close(out)
        self._pay(sent)
        return sent

    def _affordable(self, target: Target, budget: int) -> int:
        """Return how much of the budget the bandwidth allows now."""
        limit = self.spec.settings.bandwidth
        if not limit:
            return budget
        wait_s = self._paid_until - self._clock.monotonic()
        if wait_s <= 0:
            return min(budget, max(1, limit // 10))
        self._world.later(wait_s, target.wake)
        return 0

    def _pay(self, sent: int) -> None:
        limit = self.spec.settings.bandwidth
        if limit and sent:
            now = self._clock.monotonic()
            self._paid_until = max(now, self._paid_until) + sent / limit

    def _pull(self, budget: int) -> bool:
        """Read items into the queues of their nodes; return whether there were any."""
        assert self._reading is not None
        if self._outbound.is_full:
            return False
        pulled = self._reading.pull(min(budget, _PULL_BYTES))
        for batch in pulled.batches:
            for run in batch.runs:
                shipment = self.shipments.get(run.stream.vbucket)
                if shipment is not None and shipment.stream is run.stream:
                    part = Part(pulled.data, batch, run.first, run.last, run.done)
                    self._outbound.add(shipment, part)
        for stream in pulled.ended:
            shipment = self.shipments.get(stream.vbucket)
            if shipment is not None and shipment.stream is stream:
                self._drop([shipment])
        return bool(pulled.data)

    def _queued(self, place: str) -> None:
        """Wake the node that something waits for, if it is not the one that reads."""
        target = self._nodes[place].target
        if len(self._nodes) > 1 and target is not None:
            target.wake()

    def _ship(self, target: Target, shipment: Shipment, part: Part, out: list[bytes]) -> int:
        if shipment.dead:
            return 0
        return ship(self._rules, self.counters, target.windows, out, shipment, part)

    # --- answers --------------------------------------------------------------------------------

    def looked_up(self, target: Target, item: Item, theirs: tuple[bool, Meta] | None) -> bool:
        """See `TargetOwner`."""
        if theirs is None:
            return True
        fields = WITH_META_FRAME.unpack_from(target.windows.frame(item))
        flags, expiry, rev, cas = fields[-4:]
        wins = document_wins(Meta(rev, cas, expiry, flags), theirs[1], by_time=self._by_time)
        if not wins:
            self.counters.docs_failed_cr_source += 1
        return wins

    @property
    def _by_time(self) -> bool:
        return self._bucket.account.conflict_rule is ConflictRule.TIMESTAMP

    def sent_later(self, size: int) -> None:
        """See `TargetOwner`."""
        self.counters.data_bytes += size
        self._pay(size)

    def refused(self, target: Target, item: Item, status: int) -> None:
        """See `TargetOwner`."""
        frame = target.windows.frame(item)
        number = int.from_bytes(frame[6:8], "big")
        if status == Status.KEY_EXISTS:
            self.counters.docs_failed_cr_target += 1
        elif status == Status.NOT_MY_VBUCKET:
            shipment = self.shipments.get(number)
            if shipment is not None and shipment.place == target.place:
                self._drop([shipment])
        elif status in _ACCESS:
            self._stop(f"{target.place} gives no access: {status_text(status)}")
        elif status in _UNKNOWN:
            self._stop(f"{target.place} does not know {Opcode(frame[1]).name}: it is no target")
        elif not (status == Status.KEY_NOT_FOUND and frame[1] == Opcode.DELQ_WITH_META):
            self.counters.docs_refused += 1
            self._trouble(f"{_key_of(frame)}: the target refuses it: {status_text(status)}")

    def settled(self, window: Window) -> None:
        """See `TargetOwner`."""
        self.counters.docs_written += window.written
        self.counters.deletions_written += window.deleted

    # --- checkpoints ----------------------------------------------------------------------------

    def write_checkpoint(self, done: Callable[[], None] | None = None) -> None:
        """Write checkpoints of all vBuckets that have got on; `done` is called afterwards.

        Where the source stands is noted before the target is asked, so the target's seqno covers
        everything that had arrived.
        """
        self._checking = True
        noted = {
            number: (shipment, shipment.through)
            for number, shipment in self.shipments.items()
            if shipment.through.seqno and self._has_moved(number, shipment)
        }
        asked = {
            t.place for t in self.targets if any(self.shipments[n].place == t.place for n in noted)
        }
        left = set(asked)

        def answered(place: str, held: dict[int, Held] | None) -> None:
            def finished() -> None:
                left.discard(place)
                if not left and done is not None:
                    done()

            self._slices.run(place, self._checkpoint_of(place, noted, held), finished)

        for target in self.targets:
            if target.place in asked:
                target.ask_seqnos(partial(answered, target.place))
        if not asked and done is not None:
            done()

    def _has_moved(self, number: int, shipment: Shipment) -> bool:
        records = self.records.get(number, ())
        return not records or records[0].seqno != shipment.through.seqno

    def _checkpoint_of(
        self,
        place: str,
        noted: dict[int, tuple[Shipment, Position]],
        held: dict[int, Held] | None,
    ) -> Iterator[None]:
        """Write the checkpoints of a node; others may run between any two vBuckets."""
        written = failed = 0
        told: list[dict[str, object]] = []
        for number, (shipment, position) in noted.items():
            if self.shipments.get(number) is not shipment or shipment.place != place:
                continue  # it has begun again, perhaps further back
            yield
            theirs = Held() if held is None else held.get(number)
            newest = theirs.log[0].uuid if theirs is not None and theirs.log else 0
            if theirs is None or newest != shipment.target_uuid:
                failed += 1
                self._drop([shipment], remember=False)  # what it has now is found out first
                continue
            shipment.target_seqno = theirs.seqno
            self._may_pass_on(shipment)
            if position.is_whole:
                told.append(self._full_record(number, shipment, position))
            self._write(number, shipment.record(position, theirs.seqno, int(self._clock.now())))
            written += 1
        for target in self.targets:
            if target.place == place and told and Feature.CHECKPOINTS in target.granted:
                target.tell_records(told)
        self.counters.checkpoints += bool(written)
        self.counters.failed_checkpoints += failed

    def _full_record(
        self, number: int, shipment: Shipment, position: Position
    ) -> dict[str, object]:
        """Return what the target is to remember: it has everything of ours up to a position."""
        return {
            "vbucket": number,
            "source_bucket_uuid": self.bucket_uuid,
            "via": [],
            "source_vb_uuid": str(shipment.stream.history_of(position.seqno)),
            "source_seqno": position.seqno,
            "filter_hash": self.spec.filter_hash,
            "link_id": self.spec.id,
            "session_id": self._session,
        }

    # --- checkpoints of others ------------------------------------------------------------------

    def _pass_on(self) -> None:
        """Tell the target checkpoints of others that it has passed, at the end of a snapshot."""
        received = self._world.received
        for target in self.targets:
            if Feature.CHECKPOINTS not in target.granted:
                continue
            rows: list[dict[str, object]] = []
            for shipment in self.shipments.values():
                if shipment.place == target.place and self._may_pass_on(shipment):
                    rows += self._rows_for(received, target, shipment)
            if rows:
                target.tell_records(rows)

    def _may_pass_on(self, shipment: Shipment) -> bool:
        """Tell whether what holds for this vBucket up to its position holds for the target, too."""
        position = shipment.through
        if not position.is_whole or not position.seqno:
            return False
        if shipment.clean is None:  # of the first snapshot no deletion was purged meanwhile
            shipment.clean = not shipment.vbucket.purge_seqno
        return shipment.clean

    def _rows_for(
        self, received: Received, target: Target, shipment: Shipment
    ) -> list[dict[str, object]]:
        records = received.valid(shipment.vbucket)
        if not records:
            return []
        upto, mine = shipment.through.seqno, self.bucket_uuid
        rows = []
        for record in due(records, upto, self.spec.filter_hash, target.bucket_uuid):
            if shipment.told.get(record.source) == (record.uuid, record.seqno):
                continue
            shipment.told[record.source] = record.uuid, record.seqno
            row = row_of(record._replace(via=(*record.via, mine)))
            floor = shipment.vbucket.max_deleted_rev
            rows.append({**row, "vbucket": shipment.vbucket.id, "rev_floor": floor})
        return rows

    def _write(self, number: int, record: Record) -> None:
        self._store.add(number, record)
        self._report(number, record)

    def _report(self, number: int, record: Record) -> None:
        if self._reading is None or number not in self._bucket.active:
            return
        whole, meta = position_of(record).whole, checkpoint.encode_one(record)
        try:
            self._reading.report(number, whole, record.uuid if whole else 0, meta)
        except CommandError as error:
            self._trouble(f"vBucket {number}: its watermark is refused: {error}")

    def _renew(self) -> None:
        """Report again, so that rows do not expire while nothing arrives."""
        self._slices.run("renew", self._renewals())

    def _renewals(self) -> Iterator[None]:
        for number in list(self._bucket.active):
            yield
            known = self._store.known(number)
            if known:
                self._report(number, known[0])


_OURS = 0x5500

#: Policies of conflict resolution as statistics name them.
_POLICIES = {ConflictRule.REVISION: "seqno", ConflictRule.TIMESTAMP: "lww"}
_ACCESS = frozenset({Status.AUTH_ERROR, Status.ACCESS_DENIED})
_UNKNOWN = frozenset({Status.UNKNOWN_COMMAND, Status.NOT_SUPPORTED})


def _claim(target: Target, number: int) -> Claim | None:
    if target.held is None:
        return Claim(target.place)
    held = target.held.get(number)
    return None if held is None else Claim(target.place, held.term, held.log)


def _key_of(frame: bytes) -> str:
    start = HEADER_BYTES + frame[4]
    key = frame[start : start + int.from_bytes(frame[2:4], "big")]
    return f"key {key[:80].decode('utf-8', 'backslashreplace')!r}"
