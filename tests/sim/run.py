"""One run of the simulation: a world, a node, some clients, faults, and all the judges.

`Run.random` is the long walk with everything on; `Run.directed` is a node that a test leads by the
hand. Both end with `finish`, where the judges that need whole histories have their say.
"""

from __future__ import annotations

from tests.sim import linearity
from tests.sim.client import Client, Habits
from tests.sim.disk import Disk
from tests.sim.faults import Faults, FaultyRun
from tests.sim.history import History, Op
from tests.sim.judges import (
    CasJudge,
    PromiseJudge,
    Record,
    SeqnoJudge,
    Stored,
    StoreJudge,
    naming,
)
from tests.sim.link import FAR_AWAY, FAST, SLOW_READER, LinkProfile
from tests.sim.node import Node, Pace, small_settings
from tests.sim.world import World

EVERYTHING = {
    "get": 30,
    "set": 30,
    "add": 4,
    "replace": 4,
    "append": 5,
    "incr": 6,
    "delete": 6,
    "touch": 4,
    "getl": 3,
    "unlock": 3,
    "observe": 8,
    "observe_seqno": 4,
    "flush": 1,
}


class Run(FaultyRun):
    """See the module docstring."""

    def __init__(
        self,
        seed: int,
        *,
        sync: bool = True,
        quota: int = 5_500,
        pace: Pace | None = None,
    ) -> None:
        super().__init__(absences_s=(0.0, 0.1, 1.0))
        self.world = World(seed)
        self.history = History(self.world)
        self.store_judge = StoreJudge()
        self.disk = Disk(self.world, self.store_judge, sync=sync)
        settings = small_settings(quota=quota, sync=sync)
        self.node = Node(self.world, self.disk, settings, pace or Pace())
        self.clients: list[Client] = []
        self.cas = CasJudge()
        self.seqnos = SeqnoJudge()
        self.promises = PromiseJudge(self.node.branches, self.cas)
        self._high_at_start = 0
        self._on_disk: dict[bytes, Record] = {}  # when the present life began
        self.history.on_begin += [self.seqnos.began, self.promises.began]
        self.history.on_end += [self.seqnos.ended, self.cas.ended, self.promises.ended]
        self.node.journal.on_up.append(self._came_up)
        self.node.journal.on_clean.append(self.promises.stopped_clean)
        self.node.journal.on_down.append(self._went_down)

    # --- the two ways ---------------------------------------------------------------------------

    @classmethod
    def directed(cls, *, sync: bool = True, quota: int = 1_000_000) -> Run:
        """Return a node that serves, flushes only by hand, and one client of it."""
        run = cls(0, sync=sync, quota=quota, pace=Pace(automatic=False))
        run.start()
        run.client(Habits(EVERYTHING)).connect()
        return run

    @classmethod
    def random(
        cls,
        seed: int,
        *,
        steps: int,
        faults: Faults,
        weights: dict[str, int] | None = None,
        clients: int = 3,
        sync: bool = True,
        short_lives: bool = False,
        quota: int = 5_500,
    ) -> Run:
        """Run for so many steps, heal, come to rest, and have everything judged.

        Raises:
            Verdict: with the seed in its text.
        """
        run = cls(seed, sync=sync, quota=quota)
        with naming(seed, run.world.log, "--seeds, seed"):
            run.start()
            for place in range(clients):
                run.client(run.habits(place, weights or EVERYTHING, short_lives=short_lives))
            run.go(steps, faults)
        return run

    def habits(self, place: int, weights: dict[str, int], *, short_lives: bool) -> Habits:
        """Return different habits for each client."""
        profiles: tuple[LinkProfile, ...] = (FAST, SLOW_READER, FAR_AWAY)
        return Habits(
            weights,
            depth=(4, 6, 3)[place % 3],
            by_key=place % 2 == 1,
            hello=place % 4 != 3,
            quiet=(0.0, 0.2, 0.1)[place % 3],
            short_lives=short_lives,
            profile=profiles[place % 3],
        )

    def go(self, steps: int, faults: Faults) -> None:
        """Let everybody work among faults; then heal, come to rest, be judged."""
        self._begin_faults(faults)
        for client in self.clients:
            client.work()
        self.world.run(steps)
        self.heal()
        self.rest()
        self.finish()

    # --- steps of a run -------------------------------------------------------------------------

    def start(self) -> None:
        """Start the node and wait until it serves."""
        self.node.start()
        self.serving()

    def serving(self) -> None:
        """Wait until the node serves."""
        self.world.run_until(lambda: self.node.serving)

    def client(self, habits: Habits) -> Client:
        """Add a client; it is not connected yet."""
        client = Client(
            f"c{len(self.clients)}",
            self.world,
            self.history,
            self.node.connect,
            self.node.settings.engine.vbuckets,
            habits,
        )
        self.clients.append(client)
        return client

    def done(self, op: Op) -> Op:
        """Wait until an operation has ended."""
        self.world.run_until(lambda: op.ended is not None)
        return op

    def heal(self) -> None:
        """Let no new fault happen and mend what is broken."""
        self._faulty = False
        disk = self.disk
        disk.full = disk.broken = disk.unreadable = disk.map_full = False
        self.world.run_until(lambda: self.node.serving and not self.node.stopping)

    def rest(self) -> None:
        """Let everything end: every request has its reply, everything accepted is on disk."""
        self.rest_of_clients()
        self.world.run_until(lambda: self.node.quiet)

    def rest_of_clients(self) -> None:
        """Let every request have its reply."""
        for client in self.clients:
            client.rest()
        self.world.run_until(lambda: not any(client.under_way for client in self.clients))

    def restart(self, *, power: bool = False) -> None:
        """Crash and come back."""
        self.node.crash(power=power)
        self.start()

    def stop_and_start(self) -> None:
        """Stop in order and come back."""
        self.node.stop()
        self.world.run_until(lambda: not self.node.up)
        self.start()

    # --- judgement ------------------------------------------------------------------------------

    def _came_up(self, clean: bool) -> None:
        self._high_at_start = self._high()

    def _high(self) -> int:
        return sum(vbucket.high_seqno for vbucket in self.node.bucket.vbuckets.values())

    def _went_down(self, stored: Stored, promises_hold: bool) -> None:
        """Judge the life that has ended, and what the disk shows of it."""
        self._judge_life()
        self.promises.reopened(stored, promises_hold=promises_hold)
        self.history.life += 1
        self._on_disk = {
            key: record
            for _, records in stored.vbuckets.values()
            for key, record in records.items()
        }

    def _judge_life(self) -> None:
        ops = self.history.of_life(self.history.life)
        flushes = [op for op in ops if op.kind == "flush"]
        by_key: dict[bytes, list[Op]] = {}
        for op in ops:
            if op.key:
                by_key.setdefault(op.key, []).append(op)
        for key, of_key in by_key.items():
            begin = linearity.stored(self._on_disk.get(key))
            linearity.judge_key(key, begin, sorted(of_key + flushes, key=lambda op: op.began))

    def finish(self) -> None:
        """Judge the life that goes on, and that a crash now would find everything on disk."""
        stats = self.node.bucket.stats
        ops = self.history.of_life(self.history.life)
        if not any(op.kind == "flush" for op in ops):
            expired = stats.expired_access + stats.expired_pager
            self.seqnos.count(ops, self._high() - self._high_at_start, expired)
        if self.node.quiet:
            self.promises.stopped_clean()
        self.node.crash()
