"""An index in the simulated world: the client library's core, the index's store, a real file.

It is driven as `uprmc.index.following` drives it, but for its thread: what is queued is applied at
some later time. It dies anywhere, also in the middle of a write: then its file ends somewhere
behind what was synced, perhaps in bytes that were never written there.
"""

from __future__ import annotations

import json
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from zlib import crc32

from tests.sim.index_judges import Asked, IndexJudge
from tests.sim.judges import complain
from tests.sim.net import Net
from tests.sim.program import Program, ProgramDied
from tests.sim.truth import Histories
from uprmc.client.core import UprCore
from uprmc.config import IndexSettings
from uprmc.index import group
from uprmc.index.collation import sort_key
from uprmc.index.errors import WentBack
from uprmc.index.following import Level, has_all
from uprmc.index.index_file import Files
from uprmc.index.model import Emission, Entry, IndexedDocument, Mapped, Reductions
from uprmc.index.rows import split_row_value
from uprmc.index.store import IndexStore
from uprmc.index.updater import IndexHandler, IndexState
from uprmc.index.vbucket_sets import (
    States,
    Wish,
    bitmap,
    caught_up,
    follow_source,
    numbers,
    wished,
)
from uprmc.remote.registering import Instance

#: Kind of watermark of an index.
KIND = 2

_APPLY_S = 0.02
_THINK_S = 0.08
_BACK_S = 0.1

#: What it does besides following, by weight.
_DEEDS = {"header": 4, "work": 6, "compact": 1, "query": 6, "drop": 1}

#: How often vBuckets are paused where they are, in the same measure.
_PAUSING = 1

#: vBuckets are paused for so long at most.
_PAUSE_S = 2.0


def emitted(key: bytes, value: bytes) -> list[tuple[Any, int]]:
    """Return the rows of a document: a key that documents share, and a number; none for some."""
    shared = crc32(value) % 5
    return [([shared, number], len(value)) for number in range(crc32(key + value) % 3)]


class MapDocuments:
    """The mapper."""

    log = ()

    def map(self, documents: Iterable[IndexedDocument]) -> list[Mapped]:
        return [Mapped([self._rows(document)]) for document in documents]

    def _rows(self, document: IndexedDocument) -> list[Emission]:
        return [
            Emission(sort_key(key, "unicode"), json.dumps(key).encode(), b"%d" % value)
            for key, value in emitted(document.key, bytes(document.value))
        ]

    def close(self) -> None:
        """See `Mapper`."""


class AddUp:
    """The reducer: number and sum of all values."""

    def reduce(self, entries: Iterable[Entry]) -> Reductions:
        values = [int(split_row_value(entry.value)[2]) for entry in entries]
        return (b"%d" % len(values), b"%d" % sum(values))

    def rereduce(self, reductions: Iterable[Reductions]) -> Reductions:
        columns = zip(*reductions, strict=True)
        return tuple(b"%d" % sum(int(each or b"0") for each in column) for column in columns)


class Desk:
    """What the library hands on, until it is applied: `Updates`."""

    def __init__(self, program: IndexProgram, store: IndexStore) -> None:
        self.store = store
        self._program = program
        self._queue: deque[Any] = deque()

    @property
    def is_level(self) -> bool:
        """Whether everything was applied."""
        return not self._queue

    def take(self, batch: Any) -> None:
        self._put(batch)

    def learn(self, saved: Mapping[int, Any]) -> None:
        found = dict(saved)
        self._put(lambda: self.store.learn(found))

    def forget(self, vbuckets: Iterable[int]) -> None:
        found = list(vbuckets)
        self._put(lambda: self.store.forget(found))

    def roll_back(self, vbucket: int, seqno: int) -> bool:
        stands = self.positions().get(vbucket)
        if seqno and self.is_level and stands is not None and stands.seqno == seqno:
            return True
        self._program.apply_all()
        return self._program.rolled_back(self.store, vbucket, seqno)

    def positions(self) -> dict[int, Any]:
        return self.store.positions()

    def durable_of(self, vbucket: int) -> Any:
        return self.store.durable_of(vbucket)

    def _put(self, item: Any) -> None:
        self._queue.append(item)
        self._program.apply_later()

    def apply_some(self) -> None:
        """Apply the next thing: a job, or a few batches together."""
        if not self._queue:
            return
        first = self._queue.popleft()
        if callable(first):
            first()
            return
        batches = [first]
        while self._queue and not callable(self._queue[0]) and len(batches) < 3:
            batches.append(self._queue.popleft())
        self.store.apply(batches)

    def apply_all(self) -> None:
        """Apply everything."""
        while self._queue:
            self.apply_some()


class IndexProgram(Program):
    """See the module docstring."""

    def __init__(
        self,
        net: Net,
        histories: Histories,
        directory: Path,
        vbuckets: int,
        *,
        number: int = 0,
        death: float = 0.0,
        instance: Instance | None = None,
        compacts: bool = True,
        pauses: bool = False,
    ) -> None:
        self._compacts = compacts
        self._deeds = {**_DEEDS, "pause": _PAUSING} if pauses else _DEEDS
        # what nodes may have been told is durable, by vBucket, when it died last
        self.durable: dict[int, int] = {}
        self.done: Counter[str] = Counter()  # how often it did what
        self._all = (1 << vbuckets) - 1
        self._directory = directory / f"index{number}"
        self._directory.mkdir()
        self._synced: dict[Path, int] = {}
        self._judge = IndexJudge(histories, net.world)
        self._applying = self._thinking = False
        self._followed = 0
        self._asked: list[tuple[Any, dict[int, Asked], Level]] = []
        self.store: IndexStore | None = None
        super().__init__(net, histories, "index", number=number, death=death, instance=instance)

    # --- lives ------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self.points.count = 0
        self.points.dies = self._dies
        files = Files(self._directory, "d", [AddUp()])
        settings = IndexSettings(
            sort_bytes=1 << 20, compact_min_bytes=4_096 if self._compacts else 1 << 40
        )
        self.store = IndexStore(files, "signature", MapDocuments(), settings)
        self._judge_life(self.store)
        self.desk = Desk(self, self.store)
        self._take_source()
        if self.store.states.paused:
            self._go_on_later()
        self._follow()
        if not self._thinking:
            self._thinking = True
            self._think_later()

    def _judge_life(self, store: IndexStore) -> None:
        """A life begins where nodes were told that the index is safe, or further."""
        there = store.positions()
        for vbucket, seqno in self.durable.items():
            if there[vbucket].seqno < seqno if vbucket in there else seqno:
                complain(f"{seqno} of vBucket {vbucket} was durable; it comes back with {there}")
        self._look()

    def _take_source(self) -> None:
        self._index(self._all)

    def _index(self, vbuckets: int) -> None:
        """Have these indexed: because the source has them, or because an operator says so."""
        store = self.store
        assert store is not None
        if store.states.managed:
            store.change_states(lambda states: wished(states, Wish(active=vbuckets, passive=0)))
        else:
            first = not store.states.indexed
            store.change_states(lambda states: follow_source(states, vbuckets, 0, first=first))

    def _follow(self) -> None:
        """Begin a run of the client library where the trees stand."""
        store = self.store
        assert store is not None
        self._asked.clear()
        store.may_swap = False
        self._begin_streams(store)
        followed = self._followed = store.states.followed
        self._catching = None
        if not followed:
            return  # all are paused
        core = self._follow_all(
            IndexHandler(self.desk), IndexState(self.desk), vbuckets=frozenset(numbers(followed))
        )
        self._catching = core.barrier()
        self._turn(core)

    def _begin_streams(self, store: IndexStore) -> None:
        before = store.headers_written
        store.begin()
        if store.headers_written != before:
            self._note_synced(store)

    def _follow_again(self) -> None:
        """Hang up, and go on from where the trees stand now."""
        self.done["followed again"] += 1
        self._hang_up()
        self.apply_all()
        self._follow()

    def apply_all(self) -> None:
        """Apply everything that is queued."""
        store = self.store
        assert store is not None
        before = store.headers_written
        self.desk.apply_all()
        if store.headers_written != before:
            self._note_synced(store)

    def _hang_up(self) -> None:
        core, self.core = self.core, None
        if core is not None:
            core.close()
        wires, self._wires = self._wires, []
        for wire in wires:
            wire.over = True
        self._world.after(0, lambda: [wire.close() for wire in wires])

    def _die(self) -> None:
        self.deaths += 1
        self._world.note(f"the index dies after {self.points.count} points")
        self._hang_up()
        self._break_files()
        self._asked.clear()
        self._world.after(self._world.between(0, _BACK_S), self._begin)

    def leave(self) -> None:
        self._hang_up()
        if self.store is not None:
            self.store.compacting.abandon()
            self._close_files(self.store)
            self.store = None

    def _close_files(self, store: IndexStore) -> list[Path]:
        files = [each for each in (store.files.current, store.files.old) if each is not None]
        for each in files:
            each.file.close()
        return [each.path for each in files]

    def _break_files(self) -> None:
        """Leave of each file what was synced, and something of what was not."""
        assert self.store is not None
        store, self.store = self.store, None
        store.compacting.abandon()
        self.count_rollbacks(store)
        told = {vbucket: store.durable_of(vbucket) for vbucket in store.positions()}
        self.durable = {vbucket: each.seqno for vbucket, each in told.items() if each is not None}
        random = self._world.random
        for path in self._close_files(store):
            synced, size = self._synced.get(path, 0), path.stat().st_size
            if size > synced:
                kept = random.randint(synced, size)
                with path.open("r+b") as file:
                    file.truncate(kept)
                    if kept > synced and random.random() < 0.5:
                        file.seek(random.randint(synced, kept - 1))
                        file.write(random.randbytes(min(64, kept - file.tell())))
                self.done["torn"] += 1

    def count_rollbacks(self, store: IndexStore) -> None:
        """Add up what a life went through."""
        self.done.update({f"rollback {kind}": n for kind, n in store.rollbacks.items()})
        store.rollbacks.clear()
        self.done["compactions"] += store.compacting.done
        store.compacting.done = 0

    # --- applying ---------------------------------------------------------------------------------

    def apply_later(self) -> None:
        """Something is queued."""
        if not self._applying:
            self._applying = True
            self._world.after(self._world.between(0, _APPLY_S), self._apply)

    def _apply(self) -> None:
        self._applying = False
        if self.store is None:
            return
        if self._guarded(self._apply_some) and not self.desk.is_level:
            self.apply_later()

    def _apply_some(self) -> None:
        self._header(self.desk.apply_some)
        self._look()

    def _guarded(self, act: Callable[[], object]) -> bool:
        try:
            act()
        except ProgramDied:
            self._die()
            return False
        except WentBack:
            assert self.store is not None
            self._note_synced(self.store)
            self._look()
            self._follow_again()
            return False
        return True

    def rolled_back(self, store: IndexStore, vbucket: int, seqno: int) -> bool:
        """Have a vBucket return to a seqno; to begin at zero writes a header."""
        before = store.headers_written
        try:
            return bool(store.roll_back(vbucket, seqno))
        finally:
            if store.headers_written != before:
                self._note_synced(store)

    def _note_synced(self, store: IndexStore) -> None:
        file = store.files.current
        self._synced[file.path] = file.path.stat().st_size

    def _take_turn(self, core: UprCore) -> None:
        super()._take_turn(core)
        self._look_at_barriers()

    def _look_at_barriers(self) -> None:
        store = self.store
        if store is None or not self.desk.is_level:
            return
        if self._catching is not None and self._catching.done:
            if self._catching.error is None:
                self._header(store.finish_build)
                store.change_states(lambda states: caught_up(states, self._followed))
                store.may_swap = True
                self._catching = None
            elif self.core is not None:
                self._catching = self.core.barrier()
        for asked in [each for each in self._asked if each[0].done]:
            self._asked.remove(asked)
            barrier, wanted, level = asked
            if barrier.error is None:
                self._answer(store, wanted, level)

    def _answer(self, store: IndexStore, wanted: dict[int, Asked], level: Level) -> None:
        """Answer a query if what is shown is part of what it has waited for."""
        view = store.view
        level = level._replace(vbuckets=level.vbuckets | self._at_rest(store, wanted))
        try:
            group._check(view, view.states.active, level, ())
        except group._Again:
            self.done["asked to wait again"] += 1
            return
        self.done["answered"] += 1
        self.done["answered while paused"] += bool(view.states.paused)
        self._judge.fresh(view, wanted)

    def _at_rest(self, store: IndexStore, wanted: dict[int, Asked]) -> int:
        """Return which vBuckets are paused and have nothing new at their nodes."""
        positions, facts, paused = store.view.positions, store.view.facts, store.states.paused
        return bitmap(
            vbucket
            for vbucket, (_, high, log) in wanted.items()
            if paused >> vbucket & 1
            and has_all(positions.get(vbucket), facts.get(vbucket), log, high)
        )

    # --- what else it does ------------------------------------------------------------------------

    def _think_later(self) -> None:
        self._world.after(self._world.between(0, _THINK_S), self._think)

    def _think(self) -> None:
        if self.store is not None:
            deed = self._world.random.choices(list(self._deeds), list(self._deeds.values()))[0]
            self._guarded(getattr(self, f"_do_{deed}"))
        self._think_later()

    def _header(self, write: Callable[[], None]) -> None:
        """Do what may write a header; die before or after it."""
        store = self.store
        assert store is not None
        self.points.point()
        before = store.headers_written
        write()
        if store.headers_written != before:
            self.done["headers"] += 1
            self._note_synced(store)
        self.points.point()

    def _do_header(self) -> None:
        if self.store is not None:
            self._header(self.store.write_header)

    def _do_work(self) -> None:
        """Do some slices of what is done when nothing is queued."""
        if self.store is None or not self.desk.is_level:
            return
        store = self.store
        self._header(partial(self._work, store))
        compaction = store.compacting.current
        while compaction is not None and not compaction.has_ended:
            time.sleep(0.001)  # real time: what it copies depends on nothing that happens meanwhile
        self._look()

    def _work(self, store: IndexStore) -> None:
        slices: Iterator[None] | None = store.work()
        while slices is not None and next(slices, self) is not self:
            self.done["slices"] += 1

    def _do_compact(self) -> None:
        if self.store is not None and self._compacts and not self.calm:
            self._drop_old_file(self.store)
            self.store.begin_compaction()

    def _drop_old_file(self, store: IndexStore) -> None:
        """Drop the file before a compaction if no rollback can need it."""
        if store.files.old is not None:
            nodes = [node for node in self._net.nodes.values() if node.up and node.serving]
            persisted = {
                vbucket.id: vbucket.persisted_seqno
                for node in nodes
                for vbucket in node.bucket.active.values()
            }
            self.done["old files dropped"] += store.drop_old_file(persisted)

    def _do_query(self) -> None:
        """Ask what must contain everything that is acknowledged now."""
        core, store = self.core, self.store
        if core is not None and store is not None and not store.is_building:
            wanted = self._judge.acknowledged()
            level = Level(self._followed, store.view.course)
            self._asked.append((core.barrier(), wanted, level))

    def _do_drop(self) -> None:
        """Another node takes a vBucket, and gives it back later."""
        store = self.store
        if store is None or self.calm or self._all == 1:
            return
        gone = 1 << self._world.random.randrange(self._all.bit_length())
        self._index(self._all & ~gone)
        self.done["dropped"] += 1
        self._follow_again()
        self._world.after(self._world.between(0, 0.3), self._take_back)

    def _do_pause(self) -> None:
        """An operator pauses some vBuckets, or all, and goes on with them later."""
        store = self.store
        if store is None or self.calm:
            return
        paused = self._world.random.randint(1, self._all)
        self.done["paused"] += 1
        self._go_on_later()
        self._set_paused(store, paused)

    def _set_paused(self, store: IndexStore, paused: int) -> None:
        """Do what `_set_states` does."""
        store.change_states(lambda states: wished(states, Wish(pause=paused)))
        if store.states.followed != self._followed:
            self._follow_again()
        self._header(store.write_header)

    def _go_on_later(self) -> None:
        self._world.after(self._world.between(0, _PAUSE_S), self._go_on)

    def _go_on(self) -> None:
        store = self.store
        if store is not None and store.states.paused:
            self._guarded(partial(self._set_paused, store, 0))

    def _take_back(self) -> None:
        if self.store is None:
            return
        before = self.store.states.followed
        self._take_source()
        if self.store.states.followed != before:
            self._follow_again()

    # --- judging ----------------------------------------------------------------------------------

    def _look(self) -> None:
        if self.store is not None:
            self._judge.look(self.store.view)

    def _count(self) -> None:
        """It has no mirror."""

    def settled(self) -> bool:
        store = self.store
        if store is None or not super().settled() or not self.desk.is_level:
            return False
        states = store.states._replace(managed=False)
        return states == States(active=self._all) and not store.is_building

    def standing(self) -> str:
        states = None if self.store is None else self.store.states
        return f"{super().standing()} {states}"

    def judge(self) -> None:
        """Hold its rows to what active nodes have, and reopen its files once more."""
        store = self.store
        assert store is not None
        self._judge.final(store.view)
        self.count_rollbacks(store)
        self.done.update(self._judge.counts)
