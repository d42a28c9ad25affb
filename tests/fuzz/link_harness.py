"""A node that fills replicas from a source that lies, and everything that must hold meanwhile.

vBuckets 0 and 1 are followed; 2 is a replica that nobody talks about, 3 is active and has clients.
"""

from __future__ import annotations

from random import Random
from typing import Any

from tests.contents import table_of
from tests.fuzz.lies import Liar
from tests.fuzz.past import Past
from tests.fuzz.said import Said
from tests.fuzz.source import Source
from tests.kv.harness import ManualClock, SeededEntropy
from uprmc.config import (
    EngineSettings,
    FlushSettings,
    KvSettings,
    MemorySettings,
    Settings,
    UprSettings,
)
from uprmc.engine.bucket import Bucket
from uprmc.engine.vbucket import VBucket
from uprmc.engine.warmup import Warmup
from uprmc.model import Item, VBucketState
from uprmc.protocol.opcodes import Opcode
from uprmc.storage.memory import MemoryStore
from uprmc.upr.hub import Hub
from uprmc.upr.link import ReplicaLink

FOLLOWED = (0, 1)
BYSTANDERS = (2, 3)

MAX_FRAME_BYTES = 65_536

SETTINGS = Settings(
    kv=KvSettings(max_item_bytes=4_096, max_frame_bytes=MAX_FRAME_BYTES),
    engine=EngineSettings(vbuckets=4),
    memory=MemorySettings(quota=400_000),
    flush=FlushSettings(batch_items=7),
    upr=UprSettings(rollback_keys=9, consumer_buffer=2_000),
)

REPLICA, ACTIVE, DEAD = VBucketState.REPLICA, VBucketState.ACTIVE, VBucketState.DEAD

#: Requests that wait for answers: two streams, their rollbacks, polls; a source may answer none.
_ASKED_MAX = 800

_STEPS = (5, 40, 150)


class Owner:
    """Who has dialled: it must be told nothing after the end, and sometimes ends the connection.

    Attributes:
        link: the connection.
        closed_times: how often it has told its end; nothing may be told after that.
        hasty: whether it sometimes ends the connection in the middle of being told something.
    """

    def __init__(self, random: Random) -> None:
        self.random = random
        self.link: Any = None
        self.closed_times = 0
        self.hasty = False

    def _perhaps_end(self) -> None:
        if self.hasty and self.random.random() < 0.02:
            self.link.connection_lost()

    def opened(self) -> None:
        self._perhaps_end()

    def began(self, number: int) -> None:
        assert not self.closed_times
        self._perhaps_end()

    def ended(self, number: int, why: str, retry: bool) -> None:
        assert not self.closed_times
        assert why
        self._perhaps_end()

    def taken(self, number: int) -> None:
        assert not self.closed_times
        self._perhaps_end()

    def closed(self, why: str) -> None:
        assert why
        self.closed_times += 1


class LinkFuzz:
    """One node, one connection after the other to the same liars.

    Attributes:
        frames: sent to links so far.
        errors: what links complained of.
        seen: what happened that is worth wishing for.
    """

    def __init__(self, seed: int, share: float) -> None:
        self.random = Random(seed)
        self.said = Said()
        self.liar = Liar(self.random, share)
        self.pasts = {number: Past(self.random, number) for number in FOLLOWED}
        self.store = MemoryStore()
        self.frames = 0
        self.errors: list[str] = []
        self.seen: set[str] = set()
        self.clock = ManualClock()
        self.now = 0.0
        self.old = False
        self.taking: set[int] = set()
        self._boot()
        for number in (*FOLLOWED, 2):
            self.bucket.set_state(number, REPLICA)
        self._wholes = dict.fromkeys(FOLLOWED, 0)
        self.known_wholes = {number: {0} for number in FOLLOWED}
        self._work()
        self._bystanders = self._look_at_bystanders()

    def _boot(self) -> None:
        self.bucket = Bucket(SETTINGS, self.store, self.clock, SeededEntropy(self.random))
        for _ in Warmup(self.bucket).steps():
            pass
        for number in range(4):
            if number not in self.bucket.vbuckets:
                part = self.bucket.create(number, ACTIVE)
                for key in range(3) if number in BYSTANDERS else ():
                    part.store(b"own%d" % key, b"value", 0, 0)
        self.bucket.let_traffic_in()
        self.hub = Hub(self.bucket, SETTINGS.upr)
        self.hub.instance = b"node"

    def run(self, connections: int) -> None:
        """Dial so many times."""
        for _ in range(connections):
            self.one_connection(self.random.choice(_STEPS))

    # --- one connection -------------------------------------------------------------------------

    def one_connection(self, steps: int) -> None:
        """Talk for a while."""
        random = self.random
        self._dial()
        for _ in range(steps):
            self._step()
            self._check()
            if self.link.closing:
                self.seen.add("hung up")
                break
        self.link.tick(self.now)
        self.link.connection_lost()
        self.link.connection_lost()
        if self.link.error:
            self.errors.append(self.link.error)
        assert self.owner.closed_times == 1
        assert not any((self.link.streams, self.link.questions, self.link._frames, self.link._held))
        self._check()
        for number in FOLLOWED:
            vbucket = self.bucket.vbuckets[number]
            assert not vbucket.watchers
        if random.random() < 0.3:
            self._work()
        if random.random() < 0.1:
            self._crash()
        self._put_right()

    def _dial(self) -> None:
        self.said.points.clear()
        self.source = Source(self.random, self.pasts, self.said, self.liar, old=self.old)
        self.owner = Owner(self.random)
        self.taking = set()
        self.link = ReplicaLink(self.hub, b"fuzz", lambda: None, self.owner)
        self.owner.link = self.link
        self.owner.hasty = self.liar.share > 0

    def _step(self) -> None:
        random = self.random
        action = random.random()
        if action < 0.75:
            self._talk()
        elif action < 0.85:
            self._write()
        elif action < 0.95:
            self._ask()
        elif action < 0.98:
            self._pass_time()
        elif self.liar.share:
            self._interfere()

    def _talk(self) -> None:
        link, source = self.link, self.source
        budget = self.random.choice((1, 65_536))
        for piece in source.take(b"".join(link.data_to_send(budget))):
            self._hand(piece)
        for _ in range(self.random.choice((0, 1, 1, 5))):
            if not link.input_full:
                self._hand(b"".join(source.push()))

    def _hand(self, data: bytes) -> None:
        """Hand bytes over, cut anywhere, and look at what came of them."""
        self.frames += bool(data)
        while data:
            size = self.random.choice((1, 23, 24, 50, len(data), len(data), len(data)))
            self.link.receive_data(data[:size])
            data = data[size:]
        self._check_link()

    def _write(self) -> None:
        past = self.random.choice(list(self.pasts.values()))
        if past.active:
            change = self.random.random()
            if change < 0.85:
                past.write(self.random.randint(1, 6))
            elif change < 0.96:
                past.branch()
            elif change < 0.98:
                past.purge()
            else:
                past.start_over()

    def _ask(self) -> None:
        random, link = self.random, self.link
        number = random.choice(FOLLOWED)
        kind = random.random()
        if kind < 0.75:
            link.follow([number])
        elif kind < 0.87:
            link.leave([number])
        elif number not in link.streams:
            self.taking.add(number)
            link.take_over([number])

    def _pass_time(self) -> None:
        self.now += self.random.choice((0.1, 1.0, 1.0, 30.0 if self.liar.share else 1.0))
        self.clock.time += 1.0
        self.link.tick(self.now)
        if self.random.random() < 0.5:
            self._work()
        if self.random.random() < 0.3:
            self._eject()

    def _interfere(self) -> None:
        """Let somebody else change a vBucket."""
        number = self.random.choice(FOLLOWED)
        for state in (self.random.choice((ACTIVE, DEAD, REPLICA)), REPLICA):
            self.bucket.set_state(number, state)
            if self.random.random() < 0.3:
                self._work()
        self._learn_wholes()

    def _put_right(self) -> None:
        """Make replicas of what was taken over, so that it can be taken over again."""
        for number, past in self.pasts.items():
            self.bucket.set_state(number, REPLICA)
            past.active = True
        self._learn_wholes()

    def _crash(self) -> None:
        """Begin again with what is on disk."""
        self._boot()
        self._bystanders = self._look_at_bystanders()
        for number in FOLLOWED:
            vbucket = self.bucket.vbuckets[number]
            branched = vbucket.state == ACTIVE  # what lies above is of a history of its own
            whole = vbucket.failover_log[0].seqno if branched else vbucket.whole_seqno
            assert whole in self.known_wholes[number] | self.said.ends[number]
        self._learn_wholes()
        self.seen.add("crashed")

    # --- the node's work ------------------------------------------------------------------------

    def _work(self) -> None:
        flusher, random = self.bucket.flusher, self.random
        rounds = random.choice((1, 2, 100))
        while rounds and (flush := flusher.begin()):
            flusher.commit(flush)
            flusher.finish(flush)
            rounds -= 1
        while fetch := self.bucket.fetcher.begin():
            self.bucket.fetcher.commit(fetch)
            self.bucket.fetcher.finish(fetch)

    def _eject(self) -> None:
        for vbucket in self.bucket.vbuckets.values():
            if not vbucket.rewinding:
                for one in list(table_of(vbucket).values()):
                    clean = one.seqno <= vbucket.persisted_seqno
                    if one.value is not None and clean and self.random.random() < 0.3:
                        vbucket.eject(one.key)

    # --- what must hold -------------------------------------------------------------------------

    def _check_link(self) -> None:
        link = self.link
        assert link._held == sum(map(len, link._chunks))
        assert link._held <= MAX_FRAME_BYTES, "more than a frame is held"
        assert link._wanted <= MAX_FRAME_BYTES
        assert len(link.questions) <= _ASKED_MAX, f"{len(link.questions)} requests wait"
        assert len(link._frames) <= 2 * _ASKED_MAX + self.frames
        undos = link.undos
        opcodes = link.questions.opcodes()
        least = opcodes.count(Opcode.GET_VERSION)
        most = least + opcodes.count(Opcode.UPR_GET_FAILOVER_LOG)
        assert link.closing or least <= undos.asked <= most, f"{undos.asked} asked, {most} wait"
        assert undos.asked <= 256
        limit = max(self.bucket.account.quota, 0)
        assert 0 <= undos.held_bytes <= limit
        if not (undos._running or link.closing):
            assert not undos.held_bytes
        assert set(link.streams) <= set(FOLLOWED)

    def _check(self) -> None:
        self._check_link()
        for vbucket in self.bucket.vbuckets.values():
            vbucket.check()
        recounted = sum(vbucket.table.memory_bytes() for vbucket in self.bucket.vbuckets.values())
        assert recounted == self.bucket.account.used
        assert self._look_at_bystanders() == self._bystanders, "others were touched"
        for number in FOLLOWED:
            vbucket = self.bucket.vbuckets[number]
            self._check_whole(number, vbucket)
            self._check_items(number, vbucket)
            self._check_state(number, vbucket)
        self._learn_wholes()

    def _check_whole(self, number: int, vbucket: VBucket) -> None:
        """It rises to an end of a snapshot, falls by a rollback, or to nothing."""
        before, whole = self._wholes[number], vbucket.whole_seqno
        if whole not in (0, before):
            announced = whole in self.said.ends[number]
            sent_back = whole <= max(self.said.points, default=0)
            assert announced or sent_back, f"{whole} was never a whole state, {before} was"
            self.seen.add("whole" if whole > before else "back")
        entries = len(vbucket.failover_log)
        assert 0 < entries <= SETTINGS.engine.max_failover_entries, f"a failover log of {entries}"
        if vbucket.receiving is not None:
            assert vbucket.receiving.start <= vbucket.high_seqno

    def _check_items(self, number: int, vbucket: VBucket) -> None:
        """Nothing is held that was never said."""
        items = {one._replace(expiry=0) for one in self.said.items[number] if one.life}
        items |= {one for one in self.said.items[number] if not one.life}
        for one in table_of(vbucket).values():
            assert self._was_said(one, items), f"made up: {one}"

    def _was_said(self, one: Item, items: set[Any]) -> bool:
        if (one.seqno, one.rev, one.value if not one.life else None) in self.said.versions:
            return True
        if one.value is None and not one.life:
            found = {each[:2] for each in items} | {each[:2] for each in self.said.versions}
            return not found.isdisjoint({(one.seqno, one.key), (one.seqno, one.rev)})
        expiry = 0 if one.life else one.expiry
        return (
            *(one.seqno, one.key, one.value, one.rev, one.cas, one.flags, expiry),
            int(one.life),
        ) in items

    def _check_state(self, number: int, vbucket: VBucket) -> None:
        if vbucket.state == ACTIVE:
            assert number in self.taking, "it was handed over, and nobody has asked for that"
            assert 1 in self.said.states[number]
            assert vbucket.receiving is None
            self.seen.add("taken")

    def _learn_wholes(self) -> None:
        self._wholes = {n: self.bucket.vbuckets[n].whole_seqno for n in FOLLOWED}
        for number, whole in self._wholes.items():
            self.known_wholes[number].add(whole)

    def _look_at_bystanders(self) -> list[Any]:
        parts = [self.bucket.vbuckets[number] for number in BYSTANDERS]
        return [
            (
                part.state,
                part.failover_log,
                part.high_seqno,
                {k: i.cas for k, i in table_of(part).items()},
            )
            for part in parts
        ]

    # --- told the truth, it ends equal ----------------------------------------------------------

    def settle(self) -> None:
        """Tell nothing but the truth until both are at rest, and compare.

        What was believed of lies is not seen by who has told them: then all begins anew.
        """
        if self.liar.told:
            for past in self.pasts.values():
                past.start_over()
                past.write(10)
        self.liar.share = 0.0
        self._dial()
        for _ in range(2_000):
            self.link.follow([n for n in FOLLOWED if n not in self.link.streams])
            self._talk()
            self._work()
            if self._equal():
                break
            self.now += 0.1
            self.link.tick(self.now)
            if self.link.closing:
                self.link.connection_lost()
                self._dial()
        assert self._equal(), f"they never get equal: {self.link.error}"
        self.link.connection_lost()

    def _equal(self) -> bool:
        for number, past in self.pasts.items():
            part = self.bucket.vbuckets[number]
            if part.receiving is not None or part.high_seqno != past.high:
                return False
            if list(map(tuple, part.failover_log)) != past.log:
                return False
            held = {key: one for key, one in table_of(part).items() if not one.life}
            if held.keys() != past.documents().keys():
                return False
            for key, one in held.items():
                true = past.documents()[key]
                numbers = one.seqno, one.rev, one.cas, one.flags, one.expiry
                assert numbers == (true.seqno, true.rev, true.cas, true.flags, true.expiry)
                assert one.value in (None, true.value)
        return True


def run(seed: int, connections: int, share: float = 0.05) -> LinkFuzz:
    """Run, and tell how to see it again when it fails.

    Args:
        seed: decides everything.
        connections: how many.
        share: chance of a lie in each thing that is said.
    """
    fuzz = LinkFuzz(seed, share)
    fuzz.old = fuzz.random.random() < 0.2
    try:
        fuzz.run(connections)
        fuzz.settle()
    except Exception as error:
        what = f"seed {seed}, share {share}, frame {fuzz.frames}: {type(error).__name__}: {error}"
        raise AssertionError(what) from error
    return fuzz
