"""A consumer whose nodes lie, a handler that looks closely, and all that must hold meanwhile.

Node 0 has vBuckets 0 and 1, node 1 has 2 and, of another history, 1 as well.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from random import Random
from typing import Any

from tests.fuzz.lies import Liar
from tests.fuzz.past import Past, Version
from tests.fuzz.said import Said
from tests.fuzz.source import Source
from uprmc.client.core import Options, UprCore
from uprmc.client.errors import ClientError, ConnectionLost, MisuseError, RollbackRefused
from uprmc.client.handler import Change, Document, Handler
from uprmc.client.node_session import NodeSession
from uprmc.client.position import Position
from uprmc.client.state import MemoryState
from uprmc.protocol.opcodes import FRAME_MAX_BYTES

PLACES = ("node0:1", "node1:1")
HOSTED = ((0, 1), (1, 2))
VBUCKETS = frozenset({0, 1, 2})

_LIVES = {"set": 0, "delete": 1, "expire": 2}

#: Requests of a connection that wait for answers: a rollback asks for 256 documents at a time.
_ASKED_MAX = 1_600

_STEPS = (10, 60, 200)


class Disk(MemoryState):
    """What outlives the consumer, so that everything is written before it is handed over."""


class Judge(Handler):
    """Keeps a copy, and sees to it that it is told nothing that was not said, or out of turn.

    Attributes:
        docs: key -> value, by vBucket.
        last: up to where each vBucket was handed over.
        touched: key -> seqno of its last change that was not undone, by vBucket.
        inside: vBuckets in the middle of a snapshot.
    """

    def __init__(self, said: Said, state: MemoryState) -> None:
        self.said = said
        self.state = state
        self.docs: dict[int, dict[bytes, bytes]] = defaultdict(dict)
        self.last: dict[int, int] = defaultdict(int)
        self.touched: dict[int, dict[bytes, int]] = defaultdict(dict)
        self.inside: set[int] = set()
        self.seen: set[str] = set()

    def restart(self) -> None:
        """The process has died: what comes next goes on from what is saved."""
        saved = self.state.load()
        self.inside.clear()
        for number in list(self.last):
            self.last[number] = saved[number].seqno if number in saved else 0

    def snapshot_begin(self, vbucket: int, start: int, end: int, from_disk: bool) -> None:
        assert vbucket not in self.inside, "a snapshot within another"
        assert end in self.said.ends[vbucket], f"a snapshot to {end}, which nobody has announced"
        self.inside.add(vbucket)

    def snapshot_end(self, vbucket: int, end: int) -> None:
        assert vbucket in self.inside, "an end of no snapshot"
        assert end in self.said.ends[vbucket], f"{end} is no end of a snapshot"
        assert end >= self.last[vbucket], "a snapshot ends before it has begun"
        self.inside.remove(vbucket)
        self.last[vbucket] = end
        self.seen.add("whole")

    def _take(self, change: Change) -> None:
        number, seqno = change.vbucket, change.seqno
        assert number in self.inside, "data outside of a snapshot"
        assert seqno > self.last[number], f"seqno {seqno} after {self.last[number]}"
        assert seqno <= max(self.said.ends[number])
        assert _version(change) in self.said.items[number], f"made up: {change}"
        assert (seqno, change.key) in self.state.ring_after(number, seqno - 1), "not in the ring"
        self.last[number] = seqno
        self.touched[number][change.key] = seqno

    def mutation(self, change: Change) -> None:
        self._take(change)
        assert change.value is not None
        self.docs[change.vbucket][change.key] = change.value

    def deletion(self, change: Change) -> None:
        self._take(change)
        self.docs[change.vbucket].pop(change.key, None)

    def rollback(self, vbucket: int, seqno: int) -> None:
        assert seqno <= max(self.last[vbucket], seqno)
        self.inside.discard(vbucket)
        self.last[vbucket] = seqno
        self.seen.add("rolled back")
        if not seqno:
            self.docs[vbucket].clear()
            self.touched[vbucket].clear()

    def undo(self, vbucket: int, key: bytes, document: Document | None) -> None:
        self.touched[vbucket].pop(key, None)
        self.seen.add("undone")
        if document is None:
            self.docs[vbucket].pop(key, None)
        else:
            assert document.key == key
            assert document.value in self.said.values
            self.docs[vbucket][key] = document.value

    def branch(self, vbucket: int, uuid: int, lost_from: int, lost_to: int) -> None:
        assert any(uuid == entry[0] for log in self.said.logs for entry in log)
        assert lost_from <= lost_to


class DurableJudge(Judge):
    """Can make durable what it holds: then places within snapshots are saved, too."""

    def durable(self) -> None:
        """It is."""


def _version(change: Change) -> Version:
    life = _LIVES[change.op]
    time = change.deleted_at if life else change.expiry
    return Version(
        *(change.seqno, change.key, change.value, change.rev, change.cas, change.flags or 0),
        *(time or 0, life),
    )


class ClientFuzz:
    """One consumer with one state, through many lives.

    Attributes:
        frames: times that something was received.
        errors: what ended its lives.
    """

    def __init__(self, seed: int, share: float) -> None:
        self.random = random = Random(seed)
        self.said = Said()
        self.liars = [Liar(random, share) for _ in PLACES]
        self.pasts = [{n: Past(random, n) for n in numbers} for numbers in HOSTED]
        self.state = Disk()
        self.judge = random.choice((Judge, DurableJudge))(self.said, self.state)
        self.old = [random.random() < 0.3 for _ in PLACES]
        self.share = share
        self.now = 1_000.0
        self.frames = 0
        self.errors: list[str] = []
        self.started_at: set[int] = {0}
        if not share:
            self.pasts[1][1].active = False
        self._be_born()

    def _be_born(self) -> None:
        random = self.random
        self.judge.restart()
        self.sources: dict[NodeSession, Source] = {}
        options = Options(
            vbuckets=random.choice((None, VBUCKETS)) if self.share else VBUCKETS,
            start=self._start(),
            on_rollback="rewind" if not self.share or random.random() < 0.9 else "fail",
            ring_items=random.choice((1, 4, 1_000)),
            buffer_bytes=random.choice((300, 1 << 20)),
            noop_interval_s=5.0,
            jitter=random.random,
        )
        self.core = UprCore(PLACES, self.judge, self.state, options)

    def _start(self) -> Any:
        """Return where to begin; what the program skips it does not hold."""
        kind = self.random.random() if self.share else 0.0
        if kind < 0.9:
            return "checkpoint"
        if kind < 0.94:
            return "beginning"
        self.judge.touched.clear()  # what it has of before is nobody's business any more
        self.judge.docs.clear()
        self.judge.last.clear()
        if kind < 0.97:
            self.started_at |= self.said.seqnos
            return "now"
        seqno = self.random.randrange(30)
        self.started_at.add(seqno)
        return {number: Position(seqno, self.random.getrandbits(48)) for number in VBUCKETS}

    # --- its lives ------------------------------------------------------------------------------

    def run(self, lives: int) -> None:
        """Live so many times."""
        for _ in range(lives):
            for _ in range(self.random.choice(_STEPS)):
                if not self._guarded(self._step):
                    break
                self._check()
            self._be_born()

    def _guarded(self, act: Callable[[], None]) -> bool:
        """Act; an error that a program may be told ends this life."""
        try:
            act()
        except RollbackRefused as error:
            self.errors.append(str(error))
            return False
        except ClientError as error:
            self.errors.append(str(error))
            self._check()
            return False
        return True

    def _step(self) -> None:
        random = self.random
        self._turn()
        action = random.random()
        if action < 0.75 and self.sources:
            self._talk(random.choice(list(self.sources)))
        elif action < 0.86:
            self._write()
        elif action < 0.93:
            self.now += random.choice((0.05, 0.3, 0.3, 1.0))
            self._drive(self.core.idle())
        elif action < 0.96 and self.sources:
            self._lose(random.choice(list(self.sources)))
        elif action < 0.97 and self.share:
            self.now += 30.0
        elif action < 0.98:
            self._drive(self.core.idle())
            places = self.core.positions()
            assert places.keys() == self.core.metrics(self.now).vbuckets.keys()
        elif action < 0.99 and self.share:
            self._barrier()

    def _barrier(self) -> None:
        try:
            self.core.barrier(self.random.choice((None, "text")))
        except MisuseError:
            self.judge.seen.add("barriers in vain")

    def _turn(self) -> None:
        self._drive(self.core.turn(self.now))
        for place in self.core.due(self.now):
            if self.random.random() < 0.1:
                self.core.failed(place, ConnectionLost(f"the node at {place} is away"), self.now)
            elif place in PLACES:
                number = PLACES.index(place)
                session = self._drive(self.core.connected(place, self.now))
                liar, old = self.liars[number], self.old[number]
                self.sources[session] = Source(
                    self.random, self.pasts[number], self.said, liar, old=old
                )
        for session in list(self.sources):
            if session.error is not None:
                self._lose(session, session.error)

    def _talk(self, session: NodeSession) -> None:
        source = self.sources[session]
        pieces = source.take(session.data_to_send())
        for _ in range(self.random.choice((0, 1, 2, 8))):
            pieces += source.push()
        data = b"".join(pieces)
        while data:
            size = self.random.choice((1, 24, 60, len(data), len(data), len(data)))
            self.frames += 1
            self._drive(self.core.received(session, data[:size], self.now))
            data = data[size:]

    def _lose(self, session: NodeSession, error: ClientError | None = None) -> None:
        del self.sources[session]
        self.core.lost(session, error or ConnectionLost("the node is gone"), self.now)

    def _write(self) -> None:
        past = self.random.choice([past for pasts in self.pasts for past in pasts.values()])
        change = self.random.random()
        if change < 0.8:
            past.write(self.random.randint(1, 6))
        elif change < 0.93:
            past.branch()
        elif change < 0.96:
            past.purge()
        else:
            past.start_over()

    def _drive(self, task: Any) -> Any:
        try:
            next(task)
        except StopIteration as ended:
            return ended.value
        raise AssertionError("somebody waits")

    # --- what must hold -------------------------------------------------------------------------

    def _check(self) -> None:
        for session in self.sources:
            assert len(session.decoder.streams) <= 2 * len(self.core.streams.routes) + 1
            waiting = len(session.decoder.questions)
            assert waiting <= _ASKED_MAX, f"{waiting} requests wait"
            assert len(session.decoder._rest) <= FRAME_MAX_BYTES
        assert len(self.core.nodes.all()) <= 256
        for number, saved in self.state.load().items():
            self._check_saved(number, saved)

    def _check_saved(self, number: int, saved: Any) -> None:
        """What a reload gives was said, handed over, and can be undone."""
        low, end = saved.snapshot
        seqno, said = saved.seqno, self.said
        assert low <= seqno <= end, f"{seqno} is saved of a snapshot from {low} to {end}"
        places = self.started_at | said.ends[number] | said.points | said.seqnos
        places |= {item.seqno for item in said.items[number]}
        places |= {entry[1] for log in said.logs for entry in log}
        assert seqno in places, f"vBucket {number}: nobody was ever at {seqno}"
        assert low in places, f"vBucket {number}: nobody was ever at {low}"
        log = tuple(map(tuple, saved.log))
        known = not log or log in said.logs or (len(log) == 1 and not log[0][1])
        assert known, f"a log that nobody has: {log}"
        judge = self.judge
        ahead = seqno <= max(judge.last[number], *self.started_at, *said.seqnos, 0)
        assert ahead, f"{seqno} is saved, {judge.last[number]} was handed over"
        ring = set(self.state.ring_after(number, 0))
        for key, at in judge.touched[number].items():
            kept = (at, key) in ring or at <= min(saved.ring_from, seqno) or not seqno
            assert kept, f"{key!r} at {at} cannot be undone"
        keys = {item.key for item in said.items[number]} | {b""}
        assert {key for _, key in ring} <= keys

    # --- told the truth, it ends equal ----------------------------------------------------------

    def settle(self) -> None:
        """Tell nothing but the truth until all is at rest, and compare."""
        for past in (past for pasts in self.pasts for past in pasts.values()):
            if self.share:  # what was believed, or skipped, is not seen by those who have told it
                past.start_over()
                past.write(10)
        for liar in self.liars:
            liar.share = 0.0
        self.pasts[1][1].active = False
        self.share = 0.0
        self._be_born()
        for _ in range(3_000):
            self._turn()
            for session in list(self.sources):
                self._talk(session)
            if self._equal():
                return
            self.now += 0.05
            self._drive(self.core.idle())
        raise AssertionError("they never get equal")

    def _equal(self) -> bool:
        truth = {number: past for pasts in self.pasts for number, past in pasts.items()
                 if past.active}  # fmt: skip
        for number, past in truth.items():
            true = {key: version.value for key, version in past.documents().items()}
            if self.judge.docs[number] != true or self.judge.last[number] != past.high:
                return False
        return True


def run(seed: int, lives: int, share: float = 0.03) -> ClientFuzz:
    """Run, and tell how to see it again when it fails; arguments as of `link_harness.run`."""
    fuzz = ClientFuzz(seed, share)
    try:
        fuzz.run(lives)
        fuzz.settle()
    except Exception as error:
        what = f"seed {seed}, share {share}, {fuzz.frames}: {type(error).__name__}: {error}"
        raise AssertionError(what) from error
    return fuzz
