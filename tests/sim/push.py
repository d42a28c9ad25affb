"""A legacy master: it pushes into one node by TAP, and another node follows that one by UPR.

The master has documents, CAS and revisions of its own, and no seqnos. It sends each key's newest
state, keeps the window and the gates, sends again what was refused or not answered when a
connection ended, and begins again when the node has died, because an answer means "in memory" only.
At the end everything heals, and both nodes must hold what the master holds.

Source: TAP reference, sections 5, 6, 9 and 11.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from tests.contents import table_of
from tests.sim import codec
from tests.sim import tap_codec as tap
from tests.sim.cluster_run import ABSENCES_S
from tests.sim.codec import Frame
from tests.sim.faults import Faults
from tests.sim.judges import complain
from tests.sim.net import FAR_AWAY, FAST, SLOW_READER, Link, Net, address
from tests.sim.node import Node, small_settings
from tests.sim.plan import FAULTS, TAP
from tests.sim.replica_judges import judge_equal, stored
from tests.sim.run import Run, Simulation
from tests.sim.tap_codec import Message, MessageReader
from tests.sim.truth import Truth
from tests.sim.world import EPOCH_S, STEPS_MAX, World
from tests.sim.writer import Clerk

_THINK_S = 0.02
_PAUSE_S = 0.05

#: What may be sent of (opcode, vBucket, key or number).
Work = tuple[int, int, bytes | int]

#: A state of a vBucket: keys, and their flags, which are as good as a name of the version.
State = frozenset[tuple[bytes, int]]


@dataclass(frozen=True, slots=True)
class Manners:
    """How a master pushes."""

    acks: bool = True  # it asks for answers; else it begins anew on each connection
    checkpoints: bool = True  # it tells them
    # bytes of the section of mutations: 9, 8, or 0, where CAS and revision are the node's
    specific: int = 9
    network_order: bool = True  # item flags are big-endian, and it says so
    interval: int = 4  # interval, window: as the adapter's
    window: int = 2
    flushes: float = 0.0  # chance of a change to be a flush of everything
    anew: float = 0.2  # chance to begin anew when a connection was lost


class Held:
    """A document of the master."""

    def __init__(self, value: bytes, flags: int, expiry: int, cas: int, rev: int) -> None:
        self.value, self.flags, self.expiry, self.cas, self.rev = value, flags, expiry, cas, rev


class TapMaster:
    """See the module docstring."""

    def __init__(self, world: World, node: Node, vbuckets: int, keys: int, manners: Manners):
        self.manners = manners
        # by vBucket and key, what it holds
        self.docs: dict[int, dict[bytes, Held]] = {number: {} for number in range(vbuckets)}
        self.counts: Counter[str] = Counter()  # what happened
        self.working = True  # whether its documents go on changing
        # by vBucket, the states at which it said that a snapshot is whole; see `shown`
        self.boundaries: dict[int, set[State]] = {n: {frozenset()} for n in range(vbuckets)}
        self._told: dict[int, dict[bytes, int]] = {number: {} for number in range(vbuckets)}
        self._world = world
        self._node = node
        self._keys = keys
        self._revs: dict[tuple[int, bytes], int] = {}
        self._cas = int(EPOCH_S) * 1_000_000_000
        self._link: Link | None = None
        self._reader = MessageReader()
        self._queue: deque[Work] = deque()
        self._unacked: deque[tuple[int, Work]] = deque()
        self._due: deque[int] = deque()
        self._sequence = self._acked = self._confirmed = self._asked = 0
        self._paused_until = 0.0
        self._life = -1
        self._open: dict[int, int] = {}
        self._changed: dict[int, dict[bytes, None]] = {number: {} for number in range(vbuckets)}
        self._filled: set[int] = set()
        for number in self.docs:
            for _ in range(keys):
                self._change(number)
        self._think()

    # --- its documents ----------------------------------------------------------------------------

    def _change(self, number: int) -> None:
        random = self._world.random
        key = b"m%d" % random.randrange(self._keys)
        self._cas += random.randint(1, 1_000)
        rev = self._revs[number, key] = self._revs.get((number, key), 0) + 1
        if random.random() < 0.25:
            self.docs[number].pop(key, None)
        else:
            value = b"%d;" % self._cas + b"." * random.choice((0, 5, 100))
            expiry = random.choice((0, 0, int(EPOCH_S) + 900_000))
            self.docs[number][key] = Held(value, random.getrandbits(32), expiry, self._cas, rev)
        self._queue_item(number, key)

    def _queue_item(self, number: int, key: bytes) -> None:
        work = (tap.MUTATION, number, key)
        self._changed[number][key] = None
        flushed = max((i for i, each in enumerate(self._queue) if each[0] == tap.FLUSH), default=-1)
        if self._link is not None and work not in list(self._queue)[flushed + 1 :]:
            self._queue.append(work)

    def _flush(self) -> None:
        for docs in self.docs.values():
            docs.clear()
        if self._link is not None:
            self._queue.append((tap.FLUSH, 0, b""))
        self.counts["flushes"] += 1

    def _flush_again(self) -> None:
        """What was told after the flush that was refused goes with it: tell everything."""
        self._queue.appendleft((tap.FLUSH, 0, b""))
        for number, docs in self.docs.items():
            for key in docs:
                self._queue_item(number, key)

    # --- a will of its own ------------------------------------------------------------------------

    def _think(self) -> None:
        if self._link is None:
            self._connect()
        if self.working:
            self._work()
        self._pump()
        self._world.after(self._world.between(0, _THINK_S), self._think)

    def _work(self) -> None:
        random = self._world.random
        number = random.randrange(len(self.docs))
        if random.random() < self.manners.flushes:
            self._flush()
            return
        for _ in range(random.choice((0, 1, 1, 3))):
            self._change(number)
        if self.manners.checkpoints and number in self._open and random.random() < 0.2:
            self._rotate(number)

    def _rotate(self, number: int) -> None:
        if any(work[:2] == (tap.END, number) for work in self._queue):
            return
        self._queue.append((tap.END, number, self._open[number]))
        self._open[number] += 1
        self._queue.append((tap.START, number, self._open[number]))

    def promote(self, number: int) -> None:
        """Make the node's vBucket the active one."""
        self._queue.append((tap.VBUCKET_SET, number, tap.ACTIVE))
        self._pump()

    def close_checkpoints(self) -> None:
        """End those that are open: what was told by now is a state."""
        for number in self._open:
            self._rotate(number)
        self._pump()

    # --- connections ------------------------------------------------------------------------------

    def _connect(self) -> None:
        if not self._node.serving:
            return
        profile = self._world.random.choice((FAST, FAST, SLOW_READER, FAR_AWAY))
        self._link = self._node.connect(self, profile, False)
        if self._link is None:
            return
        self.counts["connected"] += 1
        self._reader = MessageReader()
        self._sequence = self._acked = self._confirmed = self._asked = 0
        unacked = [work for _, work in self._unacked if work[0] in (tap.MUTATION, tap.FLUSH)]
        pending = [work for work in self._queue if work[0] in (tap.MUTATION, tap.FLUSH)]
        self._unacked.clear()
        self._due.clear()
        self._queue.clear()
        self._queue.append((tap.OPAQUE, 0, tap.AUTO_NACK))
        if self.manners.checkpoints:
            self._queue.append((tap.OPAQUE, 0, tap.CHECKPOINT_SYNC))
        for work in (*unacked, *pending):
            if work[0] == tap.FLUSH and work not in self._queue:
                self._queue.append(work)
        anew = self._life != self._node.life or not self.manners.acks
        self._life = self._node.life
        for number in self.docs:
            if anew or number not in self._filled or self._world.chance(self.manners.anew):
                self._begin(number)
            else:
                self._resume(number, [*unacked, *pending])

    def _begin(self, number: int) -> None:
        self.counts["begun"] += 1
        self._filled.discard(number)
        self._open.pop(number, None)
        self._changed[number].clear()
        self._queue.append((tap.OPAQUE, number, tap.INITIAL))
        keys = list(self.docs[number])
        self._world.random.shuffle(keys)
        self._queue.extend((tap.MUTATION, number, key) for key in keys)
        self._queue.append((tap.OPAQUE, number, tap.CLOSE_BACKFILL))
        if self.manners.checkpoints:
            self._open[number] = 1
            self._queue.append((tap.START, number, 1))

    def _resume(self, number: int, left: list[Work]) -> None:
        """Tell again what may not have arrived: since the checkpoint's beginning, if it has one."""
        self.counts["resumed"] += 1
        keys = dict.fromkeys(work[2] for work in left if work[:2] == (tap.MUTATION, number))
        if self.manners.checkpoints:
            self._queue.append((tap.START, number, self._open[number]))
            keys = {**dict.fromkeys(self._changed[number]), **keys}  # type: ignore[dict-item]
        self._queue.extend((tap.MUTATION, number, key) for key in keys)

    def disconnected(self) -> None:
        self._link = None

    # --- sending ----------------------------------------------------------------------------------

    def _pump(self) -> None:
        while self._link is not None and self._queue and self._may_send(self._queue[0]):
            self._send(self._queue.popleft())

    def _may_send(self, work: Work) -> bool:
        if self._world.now < self._paused_until:
            return False
        if not self.manners.acks:
            return True
        if self._sequence - self._acked > self.manners.interval * self.manners.window:
            return False
        if work[0] in (tap.OPAQUE, tap.VBUCKET_SET):
            return work[2] in (tap.AUTO_NACK, tap.CHECKPOINT_SYNC) or not self._unacked
        gates = {each[0] for _, each in self._unacked}
        if tap.OPAQUE in gates or (work[0] == tap.END and gates):
            return False
        return not gates & {tap.START, tap.END} or work[0] not in (tap.MUTATION, tap.FLUSH)

    def _send(self, work: Work) -> None:
        opcode, number, what = work
        self._sequence += 1
        command = opcode not in (tap.MUTATION, tap.FLUSH)
        waits = not self._queue or self._queue[0][0] != tap.MUTATION  # for this to be answered
        due = command or waits or not self._sequence % self.manners.interval
        flags = tap.ACK if self.manners.acks and due else 0
        assert self._link is not None
        if self.manners.acks:
            self._unacked.append((self._sequence, work))
            if flags:
                self._due.append(self._sequence)
        self._remember(work)
        self._link.send(self._message(opcode, number, what, flags))
        if not self.manners.acks:
            self._arrived(work)

    def _remember(self, work: Work) -> None:
        """Keep book of what the node holds when everything has arrived, at each boundary."""
        opcode, number, what = work
        if opcode == tap.FLUSH:
            for told in self._told.values():
                told.clear()
        elif opcode == tap.MUTATION:
            assert isinstance(what, bytes)
            held = self.docs[number].get(what)
            if held is None:
                self._told[number].pop(what, None)
            else:
                self._told[number][what] = held.flags
        elif opcode == tap.OPAQUE and what == tap.INITIAL:
            self._told[number].clear()
        elif opcode in (tap.START, tap.END) or what == tap.CLOSE_BACKFILL:
            self.boundaries[number].add(frozenset(self._told[number].items()))

    def _message(self, opcode: int, number: int, what: bytes | int, flags: int) -> bytes:
        if opcode == tap.MUTATION:
            assert isinstance(what, bytes)
            return self._item(number, what, flags)
        if opcode == tap.FLUSH:
            return tap.pushed(opcode, self._sequence, flags=flags)
        assert isinstance(what, int)
        if opcode in (tap.OPAQUE, tap.VBUCKET_SET):
            specific = tap.number32(what)
            return tap.pushed(
                opcode, self._sequence, vbucket=number, specific=specific, flags=flags
            )
        start = opcode == tap.START
        return tap.pushed(
            opcode,
            self._sequence,
            vbucket=number,
            specific=bytes(8) if start else b"",
            flags=flags,
            key=b"checkpoint_start" if start else b"checkpoint_end",
            value=tap.number64(what),
            item=(0, 0),
        )

    def _item(self, number: int, key: bytes, flags: int) -> bytes:
        held, plain = self.docs[number].get(key), not self.manners.specific
        self.counts["items"] += 1
        rev = tap.number64(self._revs.get((number, key), 1))
        if held is None:
            specific = b"" if plain else rev
            cas = self._world.random.choice((0, self._cas))
            return tap.pushed(
                tap.DELETE,
                self._sequence,
                vbucket=number,
                specific=specific,
                flags=flags,
                key=key,
                cas=cas,
            )
        item_flags = held.flags if self.manners.network_order else tap.swapped(held.flags)
        order = tap.NETWORK_ORDER if self.manners.network_order else 0
        return tap.pushed(
            tap.MUTATION,
            self._sequence,
            vbucket=number,
            specific=(rev + b"\2")[: self.manners.specific],
            flags=flags | order,
            key=key,
            value=held.value,
            cas=held.cas,
            item=(item_flags, held.expiry),
        )

    # --- answers ----------------------------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        """Take answers from the link."""
        for reply in self._reader.feed(data):
            if self._link is not None:
                self._answered(reply)
        self._pump()

    def _answered(self, reply: Message) -> None:
        if not reply.is_reply:
            complain(f"a consumer sends {reply}")
        if not self.manners.acks:
            if reply.opcode == tap.NOOP:
                self._confirmed = reply.sequence
                return
            if reply.place not in (tap.BUSY, tap.TRY_AGAIN):
                complain(f"{reply} was not asked for")
            assert self._link is not None
            self._link.cut()  # without answers there is no sending again: it begins anew
            return
        if self._due and reply.sequence == self._due[0]:
            self._due.popleft()
        elif reply.place == tap.OK or (self._due and reply.sequence > self._due[0]):
            complain(f"{reply} comes, {list(self._due)} are due")
        while self._unacked and self._unacked[0][0] < reply.sequence:
            self._arrived(self._unacked.popleft()[1])
        if not self._unacked or self._unacked[0][0] != reply.sequence:
            complain(f"{reply} answers nothing: {self._unacked}")
        _, work = self._unacked.popleft()
        self._acked = reply.sequence
        if reply.place == tap.OK:
            self._arrived(work)
        elif reply.place in (tap.BUSY, tap.TRY_AGAIN):
            self.counts["refused"] += 1
            self._paused_until = self._world.now + _PAUSE_S
            if work[0] == tap.FLUSH:
                self._flush_again()
            else:
                self._queue.appendleft(work)  # before the end of its checkpoint
        else:
            complain(f"{work} is refused: {reply}")

    def _arrived(self, work: Work) -> None:
        opcode, number, what = work
        if opcode == tap.OPAQUE and what == tap.CLOSE_BACKFILL:
            self._filled.add(number)
        elif opcode == tap.END:
            queued = {w[2] for w in self._queue if w[:2] == (tap.MUTATION, number)}
            self._changed[number] = {k: None for k in self._changed[number] if k in queued}

    # --- at rest ----------------------------------------------------------------------------------

    def settled(self) -> bool:
        """Tell whether everything was told and answered."""
        alive = self._link is not None and self._life == self._node.life
        if alive and not self.manners.acks and self._confirmed != self._sequence:
            self._ask_whether_all_arrived()
            return False
        return (
            alive and not self._queue and not self._unacked and len(self._filled) == len(self.docs)
        )

    def _ask_whether_all_arrived(self) -> None:
        if self._asked != self._sequence and self._link is not None:
            self._asked = self._sequence
            self._link.send(tap.frame(tap.NOOP, opaque=self._sequence))

    def standing(self) -> str:
        """Tell what is missing, for a failure."""
        return f"{self.manners}: queued {list(self._queue)[:5]}, unanswered {self._unacked}"

    def judge(self, number: int, records: dict[bytes, object]) -> None:
        """Hold what the node has on disk to what the master has."""
        plain = not self.manners.specific
        true = {key: self._numbers(held, plain=plain) for key, held in self.docs[number].items()}
        found = {
            key: self._numbers(record, plain=plain)
            for key, record in records.items()
            if not record.life  # type: ignore[attr-defined]
        }
        for key in true.keys() | found.keys():
            if true.get(key) != found.get(key):
                complain(
                    f"{self._node.name}: vBucket {number} holds {key!r} as {found.get(key)}; "
                    f"its master has {true.get(key)}; {self.manners}"
                )

    @staticmethod
    def _numbers(held: object, *, plain: bool) -> tuple[object, ...]:
        names = ("value", "flags", "expiry") + (() if plain else ("cas", "rev"))
        return tuple(getattr(held, name) for name in names)

    def shown(self, who: str, number: int, state: State) -> None:
        """Judge what somebody calls whole who follows the node: it must be a boundary."""
        told = self.manners.checkpoints and self.manners.acks  # else refusals go unheard
        if told and state not in self.boundaries[number]:
            complain(f"{who}: vBucket {number} shows {sorted(state)}, no boundary of its master")


# --- the run
# ---------------------------------------------------------------------------------------

#: With a window of one item, hundreds of them take a round trip each.
_MASTERS_STEPS_MAX = 4 * STEPS_MAX


@dataclass(frozen=True, slots=True)
class PushPlan:
    """What one run is made of."""

    faults: Faults
    manners: Manners = field(default_factory=Manners)
    vbuckets: int = 2
    keys: int = 10
    sync: bool = True
    steps: int = 2_000
    promoted: bool = False


def draw_push(world: World) -> PushPlan:
    random = world.random
    drawn = {name: mean for name, mean in FAULTS.items() if random.random() < 0.3}
    drawn.pop("stop_s", None)
    sync = random.random() < 0.8
    if not sync:
        drawn.pop("power_s", None)  # it may take away what the nodes were told at the beginning
    return PushPlan(
        Faults(**drawn),
        Manners(
            acks=random.random() < 0.8,
            checkpoints=random.random() < 0.6,
            specific=random.choice((9, 9, 8, 0)),
            network_order=random.random() < 0.5,
            interval=random.choice((1, 4, 10)),
            window=random.choice((1, 3)),
            flushes=random.choice((0.0, 0.0, 0.02)),
            anew=random.choice((0.0, 0.2, 1.0)),
        ),
        vbuckets=random.choice((1, 2, 4)),
        keys=random.choice((3, 10, 40)),
        sync=sync,
        steps=random.choice((800, 2_000, 4_000)),
        promoted=random.random() < 0.3,
    )


class PushRun(Run):
    """See the module docstring."""

    plan: PushPlan
    master: TapMaster

    def __init__(self, world: World, plan: PushPlan) -> None:
        super().__init__(world, plan, ABSENCES_S)
        self.net = Net(world, varied=True)
        settings = small_settings(vbuckets=plan.vbuckets, quota=400_000, sync=plan.sync)
        self.first, self.second = (
            Node(self.net, name, replace(settings, tap=TAP), sync=plan.sync, speaks_tap=True)
            for name in ("a", "b")
        )
        self._add_nodes(self.first, self.second)
        self.desks = [Clerk(world, node, Truth(25), plan.vbuckets, 0.5) for node in self.nodes]
        self._seen: dict[int, tuple[object, ...]] = {}

    def start(self) -> None:
        self._start_nodes()
        self._order()
        self._until_quiet()
        self.master = TapMaster(
            self.world, self.first, self.plan.vbuckets, self.plan.keys, self.plan.manners
        )
        self.world.watchers.append(self._look)

    # --- steps of a run ---------------------------------------------------------------------------

    def _order(self) -> None:
        """The first node has replicas that nobody fills; the second follows the first."""
        for number in range(self.plan.vbuckets):
            self._command(
                0,
                lambda settle, n=number: self.desks[0].ask(  # type: ignore[misc]
                    codec.SET_VBUCKET, settle, vbucket=n, extras=tap.number32(codec.REPLICA)
                ),
            )
        self._command(
            1,
            lambda settle: self.desks[1].ask(
                codec.REPLICATE,
                settle,
                key=address("a").encode(),
                extras=codec.DEMOTE.to_bytes(4, "big"),
                value=codec.numbers(range(self.plan.vbuckets)),
                vbucket=0,
            ),
        )

    def _command(self, place: int, ask: Callable[[Callable[[Frame], None]], bool]) -> None:
        """Repeat a command until it is granted."""
        for _ in range(100):
            replies: list[Frame] = []
            if ask(replies.append):
                self._until(lambda: bool(replies), "an order")  # noqa: B023  # it is over then
                if replies[0].status == codec.OK:
                    return
            self.world.run_for(0.05)
        complain(f"{self.nodes[place].name} never does what it is told")

    def _look(self) -> None:
        """Look at the second node, which may show only what the master calls whole."""
        if not self.second.serving:
            return
        for number, vbucket in self.second.bucket.vbuckets.items():
            seen = (vbucket.high_seqno, vbucket.receiving, vbucket.failover_log)
            if self._seen.get(number) == seen:
                continue
            self._seen[number] = seen
            if vbucket.receiving is None and not vbucket.rewinding:
                live = [each for each in table_of(vbucket).values() if not each.life]
                state = frozenset((each.key, each.flags) for each in live)
                self.master.shown(self.second.name, number, state)

    def heal(self) -> None:
        self._heal_nodes()
        self._until_nodes_serve()
        self.world.run(100)
        self.master.working = False

    def rest(self) -> None:
        self._until_master_settled()
        self.master.close_checkpoints()
        self._until_master_settled()
        if self.plan.promoted:
            for number in range(self.plan.vbuckets):
                self.master.promote(number)
            self._until_master_settled()
        self._until(self._level, "nodes", self._standing)

    def finish(self) -> None:
        state = codec.ACTIVE if self.plan.promoted else codec.REPLICA
        for number in range(self.plan.vbuckets):
            header, records = stored(self.first, number)
            if int(header.state) != state:  # type: ignore[attr-defined]
                complain(f"vBucket {number} is {header}")
            self.master.judge(number, records)  # type: ignore[arg-type]
            judge_equal(self.first, self.second, number)
        for node in self.nodes:
            node.replication.close()
            for link in list(node.links):
                link.cut()
            node.judge_freed()

    def _until_master_settled(self) -> None:
        self._until(self.master.settled, "master", self.master.standing, _MASTERS_STEPS_MAX)

    def _level(self) -> bool:
        if not all(node.quiet for node in self.nodes):
            return False
        for number in range(self.plan.vbuckets):
            one, other = (node.bucket.vbuckets.get(number) for node in self.nodes)
            if one is None or other is None:
                return False
            same = one.high_seqno == other.high_seqno and one.failover_log == other.failover_log
            if not same or one.receiving is not None or other.receiving is not None:
                return False
        return True

    def _standing(self) -> str:
        return "; ".join(
            f"{node.name} {n}: {vb.high_seqno} {vb.failover_log} {vb.receiving} {node.quiet}"
            for node in self.nodes
            for n, vb in node.bucket.vbuckets.items()
        )

    def account(self) -> dict[str, int]:
        counts = {**self.master.counts, "crashes": super().account()["crashes"]}
        return {f"push {what}": count for what, count in counts.items()}


PUSH = Simulation("push", PushRun, draw_push, dice=0xA5A5)
