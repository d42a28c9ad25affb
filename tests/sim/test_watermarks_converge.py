"""Whatever goes wrong, no registered client misses a deletion, and no purge runs ahead of anybody.

Judges look after every step (`watermark_judges`, `truth`), at every answer, and at rest; a
seed that fails says how to run it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tests.seeds import seeds
from tests.sim import codec
from tests.sim.cluster_run import WATERMARKS
from tests.sim.consumer import SLOW
from tests.sim.faults import NO_FAULTS, Faults
from tests.sim.judges import Verdict
from tests.sim.noticing import Break, Patch, broken, cases, happens, instead, notice, swap
from tests.sim.plan import Plan
from tests.sim.registered import NAMES
from tests.sim.truth import Truth
from tests.sim.watermark_judges import WatermarkJudge
from tests.sim.world import World
from uprmc.engine.purge import PurgeLimits
from uprmc.engine.vbucket import VBucket
from uprmc.engine.watermarks import rows as rows_module
from uprmc.engine.watermarks import table as table_module
from uprmc.engine.watermarks.registry import Watermarks
from uprmc.model import SEQNO_MAX, FailoverEntry
from uprmc.upr.stream import Stream

pytestmark = pytest.mark.sim


@pytest.mark.parametrize("seed", seeds(default=3))
@pytest.mark.acceptance("X05", "X21", "X22", "X23", "X24", "X25", "X26")
def test_no_registered_client_misses_a_deletion_whatever_goes_wrong(seed: int) -> None:
    """Random topologies, faults, failovers, hand-overs, clients; see `plan`."""
    WATERMARKS.random(seed)


_SHORT = Plan(
    "chain", NO_FAULTS, {}, clients=NAMES, purge_s=0.01, writer_s=0.02, keys=6, steps=3_000
)

#: What a run is for -> its plan.
_RUNS: dict[str, Plan] = {
    "links of a chain cut": replace(_SHORT, faults=Faults(cut_s=0.1)),
    "a star whose actives change": replace(
        _SHORT, topology="star", operating={"failover": 2, "takeover": 2}, operator_s=0.2
    ),
    "rows that end soon, nodes killed": replace(_SHORT, faults=Faults(crash_s=0.7), lifetime_s=1),
    "deposed actives come back": replace(
        _SHORT,
        topology="star",
        operating={"failover": 3, "part": 3, "herald": 3},
        operator_s=0.2,
    ),
}


@pytest.mark.parametrize("what", list(_RUNS))
@pytest.mark.acceptance("X05", "X18", "X22", "X23", "X24", "X25", "X26")
def test_registered_clients_bear(what: str) -> None:
    WATERMARKS.random(0, _RUNS[what])


def test_the_runs_do_what_they_are_for() -> None:
    """Every kind of event happens within the first seeds; else the judges have nothing to judge."""
    wanted = {
        "clients moved",
        "clients refused",
        "clients removed",
        "consumer from_zero",
        "purged",
        "rows judged",
        "rows lived through a crash",
        "rows promoted",
        "rows told",
    }
    plan = replace(_RUNS["rows that end soon, nodes killed"], operating={"failover": 1})
    happens(wanted, (WATERMARKS.random(seed, plan).account() for seed in range(10)))


def test_the_same_seed_gives_the_same_run() -> None:
    plan = replace(_SHORT, faults=Faults(crash_s=0.5), steps=1_500)
    first, second = (WATERMARKS.random(1, plan).world.log for _ in range(2))
    assert first == second


# --- judges speak ---------------------------------------------------------------------------------

_SEEDS = 60


def _limit(choose: Callable[[Iterable[Any]], list[Any]]) -> Patch:
    return instead(table_module, "limit_of", lambda whole, rows, *more: whole(choose(rows), *more))


def _reported(change: Callable[[Any, Any, Any], Any]) -> Patch:
    return instead(
        table_module,
        "_reported",
        lambda whole, row, asked, held, *more: change(whole(row, asked, held, *more), asked, held),
    )


def _promoted(change: Callable[[dict[Any, Any], Any], None]) -> Patch:
    def promote(whole: Any, table: Any, held: Any, now: float) -> None:
        whole(table, held, now)
        change(table._rows, held)

    return instead(table_module.WatermarkTable, "promote", promote)


def _raise_floors(rows: dict[Any, Any], held: Any) -> None:
    for name, row in rows.items():
        if row.floor is not None:
            rows[name] = row._replace(floor=held.high_seqno)


def _header(**changes: int) -> Patch:
    return instead(VBucket, "header", lambda whole, *given: whole(*given)._replace(**changes))


_ALONE = replace(_SHORT, topology="pair", vbuckets=1, steps=4_000)
_KILLED = replace(_ALONE, faults=Faults(cut_s=0.3, crash_s=0.5))
_BUILDERS = replace(_KILLED, lifetime_s=30, keys=14, faults=Faults(cut_s=0.1))
_REBUILDERS = replace(
    _BUILDERS, clients=("rebalance",), keys=60, writer_s=0.05, loses=0.1, faults=Faults(cut_s=0.1)
)
_PROMOTED = replace(
    _KILLED, faults=Faults(cut_s=0.3), operating={"failover": 1}, report_s=0.01, lifetime_s=30
)
_PROMOTED_BUILDERS = replace(
    _REBUILDERS,
    clients=("index",),
    operating={"failover": 1},
    operator_s=0.6,
    writer_s=0.1,
    purge_s=0.02,
    report_s=0.01,
    replica_lifetime_s=100,
    loses=0.05,
    steps=6_000,
    faults=Faults(cut_s=0.3),
)
_LATE = replace(
    _ALONE,
    kinds=(SLOW,),
    clients=("index", "backup", "rebalance"),
    writer_s=0.01,
    purge_s=0.005,
    lifetime_s=1,
    faults=Faults(cut_s=0.2),
    upr=replace(_ALONE.upr, backfills=1),
)

_BREAKS = (
    # The limit.
    broken(
        "leave one row out of the limit",
        _limit(lambda rows: sorted(rows, key=lambda row: row.effective)[1:]),
        said="needs deletions above",
        plan=replace(_ALONE, lifetime_s=30, clients=("backup", "index")),
        seed=2,
    ),
    broken(
        "leave those out of the limit that build from zero",
        _limit(lambda rows: [row for row in rows if row.floor is None]),
        said="needs deletions above",
        plan=_BUILDERS,
        seed=2,
    ),
    broken(
        "let no row expire",
        swap(rows_module.Row, "is_expired", lambda row, now: False),
        said="still has",
        plan=replace(_ALONE, lifetime_s=1, clients=("backup",)),
    ),
    # Floors.
    broken(
        "let a builder have a floor only as long as its connection",
        _reported(lambda made, asked, held: made._replace(floor=None)),
        said="was answered 0x23 0|was answered 35 0",
        plan=_REBUILDERS,
        seed=1,
    ),
    broken(
        "take a repeated registration for the beginning of another build",
        _reported(
            lambda made, asked, held: (
                made if asked.watermark else made._replace(floor=held.high_seqno)
            )
        ),
        said="needs deletions above",
        plan=_BUILDERS,
        seed=3,
    ),
    broken(
        "do not look again when the snapshot is opened",
        instead(Stream, "_lacks_deletions", lambda whole, *given: bool(whole(*given) and False)),
        said="was dropped|stands at|may go on at",
        plan=_LATE,
        seed=8,
    ),
    # What is on disk.
    broken(
        "leave the purge seqno out of the header",
        _header(purge_seqno=0),
        said="drops deletions up to",
        plan=replace(_KILLED, lifetime_s=1),
    ),
    broken(
        "leave the floor of revisions out of the header",
        _header(max_deleted_rev=0),
        said="the revision falls from|new documents begin above",
        plan=_KILLED,
    ),
    broken(
        "call a client registered that a crash forgets",
        instead(Watermarks, "report", lambda whole, *given: whole(*given)._replace(on_disk=True)),
        said="is registered, but not on disk",
        plan=_KILLED,
    ),
    # Replicas.
    broken(
        "tell replicas of rows that are ahead of them",
        instead(table_module, "shown_to", lambda whole, rows, reach: whole(rows, SEQNO_MAX)),
        said="is told of",
        plan=replace(_ALONE, report_s=0.01),
    ),
    broken(
        "forget at a promotion the rows that the replica was told",
        _promoted(lambda rows, held: rows.clear()),
        said="needs deletions above",
        plan=_PROMOTED,
    ),
    broken(
        "take builders for clients that begin at a promotion",
        _promoted(_raise_floors),
        said="needs deletions above",
        plan=_PROMOTED_BUILDERS,
    ),
    broken(
        "drop at a replica what its source has not dropped",
        swap(PurgeLimits, "_not_beyond_source", lambda limits, vbucket, limit: limit),
        said="is purged further than any active",
        plan=replace(_ALONE, topology="star", clients=(), purge_s=0.05),
        seed=9,
    ),
)


@cases(_BREAKS)
def test_a_broken_rule_of_watermarks_is_noticed(
    case: Break, monkeypatch: pytest.MonkeyPatch
) -> None:
    notice(case, monkeypatch, WATERMARKS.random, _SEEDS)


# --- the judge alone ------------------------------------------------------------------------------


def test_nothing_is_promised_by_an_answer_that_was_late_while_the_clocks_were_set() -> None:
    world = World(0)
    judge, node, place = WatermarkJudge(world), _node_without_rows(), ("a", 0, b"client")
    judge.sent(place, 0)
    sent = judge.moment
    world.set_wall_clock(3_600)  # its row expires, and is forgotten
    world.set_wall_clock(-3_600)
    judge.accepted(place, node, sent, 30)
    assert not judge.is_sure(place)
    with pytest.raises(Verdict, match="not on disk"):
        judge.accepted(place, node, judge.moment, 30)


def test_a_row_that_was_never_answered_for_may_have_expired_with_its_floor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(0)
    judge, node, place = WatermarkJudge(world), _node_without_rows(), ("a", 0, b"client")
    monkeypatch.setattr(judge, "_on_disk", lambda *_: {b"client"})
    judge.sent(place, 0)
    judge.builds(place)
    judge.built_upto(place, 49)
    judge.accepted(place, node, judge.moment, 3)
    assert judge.spares(place, 49) == (True,)
    other = ("b", 0, b"client")
    judge.sent(other, 0)
    judge.builds(other)
    judge.built_upto(other, 49)
    world.run_for(3.0)
    judge.accepted(other, node, judge.moment, 3)
    assert judge.is_sure(other)
    assert judge.spares(other, 49) == (False, True)


_LOG = (FailoverEntry(1, 0),)


def test_a_node_that_is_down_does_not_date_its_rows_again(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(0)
    judge, node, place = WatermarkJudge(world), _node_without_rows(), ("a", 0, b"client")
    node.name, node.store_judge.newest.vbuckets = "a", {}
    at_s = int(judge.now_s)
    monkeypatch.setattr(judge, "_on_disk", lambda *_: {b"client": (5, 1, None, at_s, 30)})
    judge.sent(place, 5)
    judge.accepted(place, node, judge.moment, 30)
    world.set_wall_clock(3_600)
    judge.look(node, Truth(1), ())
    assert judge.is_sure(place), "it has noticed"
    monkeypatch.setattr(judge, "_on_disk", lambda *_: {b"client": (5, 1, None, at_s + 3_600, 30)})
    node.store_judge.newest.vbuckets = {0: (SimpleNamespace(purge_seqno=7, failover_log=_LOG), {})}
    judge.went_down(node)
    assert judge.is_sure(place)
    assert judge._rows[place].reach == 7, "it was told of the row before the purge"
    world.set_wall_clock(3_600)
    judge.look(node, Truth(1), ())
    assert not judge.is_sure(place)


def _node_without_rows() -> Any:
    vbucket = SimpleNamespace(state=codec.ACTIVE)
    disk = SimpleNamespace(newest=SimpleNamespace(local={}))
    return SimpleNamespace(bucket=SimpleNamespace(vbuckets={0: vbucket}), store_judge=disk)
