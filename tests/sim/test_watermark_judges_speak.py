"""Each rule of watermarks broken on purpose is noticed, by the right judge where only one can.

See `test_upr_judges_speak`; a break that no longer breaks fails here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tests.sim import upr_codec as codec
from tests.sim.faults import NO_FAULTS, Faults
from tests.sim.judges import Verdict
from tests.sim.noticing import notice
from tests.sim.upr_kinds import SLOW
from tests.sim.upr_truth import Truth
from tests.sim.watermark_judges import WatermarkJudge
from tests.sim.watermark_plan import WatermarkPlan
from tests.sim.watermark_run import WatermarkRun
from tests.sim.world import World
from uprmc.engine.purge import PurgeLimits
from uprmc.engine.vbucket import VBucket
from uprmc.engine.watermarks import rows as rows_module
from uprmc.engine.watermarks import table as table_module
from uprmc.engine.watermarks.registry import Reported, Watermarks
from uprmc.model import SEQNO_MAX, FailoverEntry, SnapshotRange, VBucketHeader
from uprmc.upr.stream import Stream

pytestmark = pytest.mark.sim

Patch = Callable[[pytest.MonkeyPatch], None]

_SEEDS = 60


# --- the limit ------------------------------------------------------------------------------------


def _ignore_the_slowest(patch: pytest.MonkeyPatch) -> None:
    """Leave one row out of the limit."""
    whole = table_module.limit_of

    def limit_of(judged: Iterable[Any], held: Any, durable: int) -> Any:
        return whole(sorted(judged, key=lambda row: row.effective)[1:], held, durable)

    patch.setattr(table_module, "limit_of", limit_of)


def _ignore_builders(patch: pytest.MonkeyPatch) -> None:
    """Leave those out that build from zero, as the seed's figure does."""
    whole = table_module.limit_of
    patch.setattr(
        table_module,
        "limit_of",
        lambda judged, *more: whole([row for row in judged if row.floor is None], *more),
    )


def _keep_expired_rows(patch: pytest.MonkeyPatch) -> None:
    """Never let one expire."""
    patch.setattr(rows_module.Row, "is_expired", lambda row, now: False)


# --- floors ---------------------------------------------------------------------------------------


def _drop_the_floor(patch: pytest.MonkeyPatch) -> None:
    """Let a builder have one only as long as its connection."""
    whole = table_module._reported
    patch.setattr(
        table_module, "_reported", lambda *arguments: whole(*arguments)._replace(floor=None)
    )


def _raise_the_floor(patch: pytest.MonkeyPatch) -> None:
    """Take a repeated registration for the beginning of another build."""
    whole = table_module._reported

    def reported(row: Any, asked: Any, held: Any, *more: Any) -> Any:
        made = whole(row, asked, held, *more)
        return made if asked.watermark else made._replace(floor=held.high_seqno)

    patch.setattr(table_module, "_reported", reported)


def _ask_once_only(patch: pytest.MonkeyPatch) -> None:
    """Do not look again when the snapshot is opened."""
    whole = Stream._lacks_deletions
    patch.setattr(Stream, "_lacks_deletions", lambda *given: bool(whole(*given) and False))


# --- what is on disk ------------------------------------------------------------------------------


def _with_header(patch: pytest.MonkeyPatch, **changes: int) -> None:
    made = VBucket.header

    def header(vbucket: VBucket, high_seqno: int, snapshot: SnapshotRange) -> VBucketHeader:
        return made(vbucket, high_seqno, snapshot)._replace(**changes)

    patch.setattr(VBucket, "header", header)


def _store_no_purge_seqno(patch: pytest.MonkeyPatch) -> None:
    """Leave it out of the header."""
    _with_header(patch, purge_seqno=0)


def _store_no_revision_floor(patch: pytest.MonkeyPatch) -> None:
    """Leave it out of the header."""
    _with_header(patch, max_deleted_rev=0)


def _answer_before_it_is_on_disk(patch: pytest.MonkeyPatch) -> None:
    """Call a client registered that a crash forgets."""
    report = Watermarks.report

    def hasty(watermarks: Watermarks, *arguments: Any) -> Reported:
        return report(watermarks, *arguments)._replace(on_disk=True)

    patch.setattr(Watermarks, "report", hasty)


# --- replicas -------------------------------------------------------------------------------------


def _tell_replicas_everything(patch: pytest.MonkeyPatch) -> None:
    """Also of rows that are ahead of them."""
    whole = table_module.shown_to
    patch.setattr(table_module, "shown_to", lambda reports, reach: whole(reports, SEQNO_MAX))


def _forget_rows_at_promotion(patch: pytest.MonkeyPatch) -> None:
    """Begin without those that the replica was told."""
    whole = table_module.WatermarkTable.promote

    def promote(table: Any, held: Any, now: float) -> None:
        whole(table, held, now)
        table._rows.clear()

    patch.setattr(table_module.WatermarkTable, "promote", promote)


def _raise_floors_at_promotion(patch: pytest.MonkeyPatch) -> None:
    """Take builders for clients that begin now."""
    whole = table_module.WatermarkTable.promote

    def promote(table: Any, held: Any, now: float) -> None:
        whole(table, held, now)
        for name, row in table._rows.items():
            if row.floor is not None:
                table._rows[name] = row._replace(floor=held.high_seqno)

    patch.setattr(table_module.WatermarkTable, "promote", promote)


def _purge_replicas_freely(patch: pytest.MonkeyPatch) -> None:
    """Drop at a replica what its source has not dropped."""
    patch.setattr(PurgeLimits, "_not_beyond_source", lambda limits, vbucket, limit: limit)


_ALONE = WatermarkPlan(
    "pair", NO_FAULTS, {}, vbuckets=1, keys=6, writer_s=0.02, purge_s=0.01, steps=4_000
)
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

#: Runs in which a rule is needed often.
_PLANS: dict[Patch, WatermarkPlan] = {
    _ignore_the_slowest: replace(_ALONE, lifetime_s=30, clients=("backup", "index")),
    _keep_expired_rows: replace(_ALONE, lifetime_s=1, clients=("backup",)),
    _ignore_builders: _BUILDERS,
    _drop_the_floor: _REBUILDERS,
    _raise_the_floor: _BUILDERS,
    _ask_once_only: _LATE,
    _store_no_purge_seqno: replace(_KILLED, lifetime_s=1),
    _store_no_revision_floor: _KILLED,
    _answer_before_it_is_on_disk: _KILLED,
    _purge_replicas_freely: replace(_ALONE, topology="star", clients=(), purge_s=0.05),
    _tell_replicas_everything: replace(_ALONE, report_s=0.01),
    _forget_rows_at_promotion: _PROMOTED,
    _raise_floors_at_promotion: _PROMOTED_BUILDERS,
}


@pytest.mark.parametrize(
    ("break_it", "verdict"),
    [
        (_ignore_the_slowest, "needs deletions above"),
        (_ignore_builders, "needs deletions above"),
        (_keep_expired_rows, "still has"),
        (_drop_the_floor, "was answered 0x23 0|was answered 35 0"),
        (_raise_the_floor, "needs deletions above"),
        (_ask_once_only, "was dropped|stands at|may go on at"),
        (_store_no_purge_seqno, "drops deletions up to"),
        (_store_no_revision_floor, "the revision falls from|new documents begin above"),
        (_answer_before_it_is_on_disk, "is registered, but not on disk"),
        (_tell_replicas_everything, "is told of"),
        (_forget_rows_at_promotion, "needs deletions above"),
        (_raise_floors_at_promotion, "needs deletions above"),
        (_purge_replicas_freely, "is purged further than any active"),
    ],
)
def test_a_broken_rule_of_watermarks_is_noticed(
    break_it: Patch, verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a judge, and by the right one where there is only one who can."""
    break_it(monkeypatch)
    plan = _PLANS.get(break_it, _ALONE)
    notice(break_it, lambda seed: WatermarkRun.random(seed, plan), verdict, _SEEDS)


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
