"""Streams in a world of crashes: whatever happens, what a sink holds is what a node held.

Each seed is one life of a stream: writes, purges, crashes, failovers and lost leases between
batches, and between the planning of a batch and its tasks; batches that are limited, repeated later
or read in several attempts of which only the last counts.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest

from tests.spark.stream_model import Control, Row, Sink, VBucket, World, Wrong
from uprmc import rollback
from uprmc.model import SnapshotRange
from uprmc.spark import batch_planner
from uprmc.spark.batch_planner import RESTART, REWIND, PlanRules, Seen, Slice
from uprmc.spark.offsets import Offset, OffsetPosition, parsed

VBUCKETS = 2
STEPS = 25
LIVES = 60
LIVES_UNTIL_CAUGHT = 400


class Stream:
    """Spark and the driver: an offset log, batches that may be repeated, a sink."""

    def __init__(self, seed: int, on_rollback: str, purges: bool) -> None:
        self.seed = seed
        self.chance = random.Random(seed)
        self.world = World(self.chance, [VBucket(n, ((n + 1, 0),)) for n in range(VBUCKETS)])
        self.rules = PlanRules(on_rollback, fail_on_data_loss=not purges)
        self.purges = purges
        self.sink = Sink()
        self.offset = Offset(VBUCKETS)
        self.read_now: dict[int, list[Row]] = {}
        self.degraded = 0
        self.exact = 0

    # --- the driver ------------------------------------------------------------------------------

    def seen(self, vbuckets: list[VBucket], place: str) -> dict[int, Seen]:
        return {v.number: Seen(v.log, v.high, v.purged, place) for v in vbuckets}

    def latest(self, rows: int | None) -> Offset:
        start, world = self.offset, self.world
        place, held = world.leases.get(start.lease or "", ("", []))
        confirmed = bool(held) and place == world.place
        if start.under_way and confirmed:
            return batch_planner.carried_on(start, rows)
        places = dict.fromkeys(range(VBUCKETS), self.lease_place(start))
        here = batch_planner.settled(start, confirmed, places, self.rules)
        now = self.seen(world.vbuckets, world.place)
        if batch_planner.unchanged(here, now, self.rules):
            return batch_planner.at_rest(here)
        token = world.acquire()
        self.places[token] = world.place
        self.planned = {v.number: v.copy() for v in world.vbuckets}
        return batch_planner.advanced(here, now, token, self.rules, rows)

    places: dict[str, str]
    planned: dict[int, VBucket]

    def lease_place(self, offset: Offset) -> str:
        return self.places.get(offset.lease or "", "")

    def begin(self) -> None:
        self.places = {}
        if self.chance.random() < 0.2 and not self.purges:
            self.world.write_some()
            positions = {
                v.number: OffsetPosition(v.log[0][0], v.high, origin=v.high)
                for v in self.world.vbuckets
                if v.high
            }
            self.sink.origin = {n: each.seqno for n, each in positions.items()}
            self.offset = Offset(VBUCKETS, positions)

    # --- a task ----------------------------------------------------------------------------------

    def read(self, lease: str | None, part: Slice) -> tuple[list[Row | Control], bool]:
        control: list[Row | Control] = []
        if part.only_control:
            assert part.control is not None
            return [self.planned[part.vbucket].undone(part.control)], True
        _, held = self.world.leases.get(lease or "", ("", []))
        if held:
            if not part.resumed:
                self.accept(held[part.vbucket], part)
            rows = held[part.vbucket].by_seqno(part.start)
            if part.control is not None:
                control.append(held[part.vbucket].undone(part.control))
            return control + [row for row in rows if row.seqno <= part.end], True
        vbucket = self.world.vbuckets[part.vbucket]
        (seen,) = self.seen([vbucket], self.world.place).values()
        again = part.found_again(seen, self.rules)
        if again is None:
            undone = self.planned[part.vbucket].undone
            return [] if part.control is None else [undone(part.control)], False
        part = again
        self.accept(vbucket, part)
        if vbucket.log == self.planned[part.vbucket].log:  # else the next plan goes back
            self.read_now[part.vbucket] = list(vbucket.rows)
        if part.control is not None:
            control.append(vbucket.undone(part.control))
        self.world.everything_on_disk(part.vbucket)
        return control + list(vbucket.by_seqno(part.start)), False

    def point(self, vbucket: VBucket, part: Slice) -> int | None:
        place = rollback.ConsumerPosition(part.start, SnapshotRange(*part.snapshot), part.uuid)
        held = rollback.VBucketHoldings(tuple(vbucket.log), vbucket.high, vbucket.purged)
        return rollback.rollback_point(place, held)

    def accept(self, vbucket: VBucket, part: Slice) -> None:
        point = self.point(vbucket, part)
        if point is not None:
            raise Wrong(f"a node refuses {part}: back to {point}")

    # --- batches ---------------------------------------------------------------------------------

    def batch(self, rows: int | None, trouble: Callable[[], None]) -> bool:
        """Run one batch, perhaps several times; returns whether there was one."""
        end = self.latest(rows)
        assert parsed(end.to_json()).to_json() == end.to_json()
        if end.to_json() == self.offset.to_json():
            return False
        start, self.offset = self.offset, end
        exact, batch = True, []
        for _ in range(self.chance.choice((1, 1, 1, 2, 3))):
            exact, batch = True, []
            self.read_now = {}
            for part in batch_planner.slices(start, end):
                trouble()
                rows_of_it, live = self.read(end.lease, part)
                batch += rows_of_it
                exact = exact and live
        self.sink.apply(batch)
        self.degraded += not exact
        for number, truth in self.read_now.items():
            self.sink.compare(number, truth, "read without its lease")
        self.judge(end, exact)
        return True

    def judge(self, end: Offset, exact: bool) -> None:
        _, held = self.world.leases.get(end.lease or "", ("", []))
        if not (exact and held and not end.under_way):
            return
        self.exact += 1
        for vbucket in held:
            self.sink.compare(vbucket.number, vbucket.rows, f"after {end.to_json()}")

    # --- a life ----------------------------------------------------------------------------------

    def trouble(self) -> None:
        if self.chance.random() < 0.25:
            self.event()

    def event(self) -> None:
        world = self.world
        (what,) = self.chance.choices(
            (world.write_some, world.persist_some, world.crash, world.fail_over,
             world.lose_leases, world.purge_some, world.flush_all),
            (30, 20, 8, 5, 10, 3 * self.purges, 1),
        )  # fmt: skip
        what()

    def live(self) -> None:
        self.begin()
        for _ in range(STEPS):
            for _ in range(self.chance.randint(0, 4)):
                self.event()
            self.batch(self.chance.choice((None, None, 1, 3, 10)), self.trouble)
        for _ in range(500):
            if not self.batch(None, lambda: None):
                break
        else:
            raise Wrong("it never comes to rest")
        for vbucket in self.world.vbuckets:
            self.sink.compare(vbucket.number, vbucket.rows, "at rest")
        assert self.offset.lease is None
        assert not self.offset.under_way


def lives(streams: Iterable[Stream]) -> tuple[int, int]:
    """Live them; returns how many batches were read without their lease, and how many exactly."""
    degraded = exact = 0
    for stream in streams:
        try:
            stream.live()
        except Wrong as error:
            raise Wrong(f"seed {stream.seed}: {error}") from None
        degraded += stream.degraded
        exact += stream.exact
    return degraded, exact


@pytest.mark.acceptance("P10")
@pytest.mark.parametrize("purges", [False, True])
@pytest.mark.parametrize("on_rollback", [REWIND, RESTART])
def test_a_sink_holds_what_the_node_holds_at_every_complete_state(
    on_rollback: str, purges: bool
) -> None:
    degraded, exact = lives(Stream(seed, on_rollback, purges) for seed in range(LIVES))
    assert degraded > LIVES
    assert exact > LIVES


# --- the judge ------------------------------------------------------------------------------------


def caught(make: Callable[[int], Stream] = lambda seed: Stream(seed, REWIND, purges=False)) -> None:
    with pytest.raises(Wrong):
        lives(make(seed) for seed in range(LIVES_UNTIL_CAUGHT))


def test_the_judge_sees_a_stream_that_goes_back_into_a_snapshot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batch_planner, "newest_boundary", lambda point, boundaries: point)
    caught()


def test_the_judge_sees_a_limited_batch_that_counts_as_complete(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settled = batch_planner.settled

    def complete(start: Offset, *rest: Any) -> batch_planner.SettledBatch:
        positions = {
            number: each
            if each.snapshot is None
            else replace(each, snapshot=None, boundaries=each.whole[:5])
            for number, each in start.positions.items()
        }
        return settled(replace(start, positions=positions), *rest)

    monkeypatch.setattr(batch_planner, "settled", complete)
    caught()


def test_the_judge_sees_an_unproven_end_that_counts_as_complete(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settled = batch_planner.settled

    def sure(start: Offset, confirmed: bool, *rest: Any) -> batch_planner.SettledBatch:
        return settled(start, True, *rest)

    monkeypatch.setattr(batch_planner, "settled", sure)
    caught()


def test_the_judge_sees_rows_that_are_left_out_when_the_lease_is_gone() -> None:
    class Careless(Stream):
        def read(self, lease: str | None, part: Slice) -> tuple[list[Row | Control], bool]:
            rows, live = super().read(lease, part)
            return [row for row in rows if row.seqno <= part.end], live

    caught(lambda seed: Careless(seed, REWIND, purges=False))


def test_the_judge_sees_rows_that_are_not_on_the_disk_when_a_task_ends() -> None:
    class Hasty(Stream):
        def read(self, lease: str | None, part: Slice) -> tuple[list[Row | Control], bool]:
            persisted = [vbucket.persisted for vbucket in self.world.vbuckets]
            found = super().read(lease, part)
            for vbucket, seqno in zip(self.world.vbuckets, persisted, strict=True):
                vbucket.persisted = seqno
            return found

    caught(lambda seed: Hasty(seed, REWIND, purges=False))
