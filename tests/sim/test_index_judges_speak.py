"""Each rule of the index broken on purpose is noticed, by the right judge where only one can.

See `test_upr_judges_speak`; a break that no longer breaks fails here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.sim.faults import NO_FAULTS, Faults
from tests.sim.index_program import Desk
from tests.sim.index_run import IndexPlan, IndexRun
from tests.sim.noticing import notice
from tests.sim.test_index_converges import RUNS
from uprmc.client.core import UprCore
from uprmc.index import group
from uprmc.index import store as store_module
from uprmc.index.index_file import Files
from uprmc.index.store import IndexStore
from uprmc.index.tree import Tree
from uprmc.index.updater import IndexState

pytestmark = pytest.mark.sim

Patch = Callable[[pytest.MonkeyPatch], None]

_SEEDS = 40


def _leave_old_rows(patch: pytest.MonkeyPatch) -> None:
    """Do not look up which rows a document had."""
    whole = store_module.edits
    patch.setattr(store_module, "edits", lambda known, *more: whole({}, *more))


def _ignore_deletions(patch: pytest.MonkeyPatch) -> None:
    """Index only what documents become, not that they go."""
    whole = store_module.latest_of

    patch.setattr(store_module, "latest_of", lambda batches: whole(batches)._replace(gone=()))


def _never_return(patch: pytest.MonkeyPatch) -> None:
    """Say that it is done, and do nothing."""
    patch.setattr(IndexStore, "roll_back", lambda store, vbucket, seqno: True)


def _take_the_newest_header(patch: pytest.MonkeyPatch) -> None:
    """Fall back to the newest header instead of one at or below the seqno."""
    whole = Files.header_below

    def header_below(files: Files, *asked: Any) -> Any:
        found = whole(files, *asked)
        newest = files.current.file.header
        return found and newest and (files.current, newest)

    patch.setattr(Files, "header_below", header_below)


def _keep_rows_of_dropped_vbuckets(patch: pytest.MonkeyPatch) -> None:
    """Forget where a vBucket stands, and leave its rows."""

    def drop(store: IndexStore, vbuckets: Any) -> None:
        for vbucket in vbuckets:
            store._standings.positions.pop(vbucket, None)
            store._standings.facts.pop(vbucket, None)
        store._publish()

    patch.setattr(IndexStore, "drop", drop)


def _call_everything_durable(patch: pytest.MonkeyPatch) -> None:
    """Tell nodes where the trees stand, not where the newest header on disk does."""
    patch.setattr(IndexStore, "durable_of", lambda store, vbucket: store.positions().get(vbucket))


def _answer_at_once(patch: pytest.MonkeyPatch) -> None:
    """Let a query wait for nothing."""
    whole = UprCore.barrier

    def barrier(core: UprCore, text: str | None = None) -> Any:
        made = whole(core, text)
        if core._turned:  # not the one that a run begins with
            made.done = True
        return made

    patch.setattr(UprCore, "barrier", barrier)


def _answer_for_what_is_paused(patch: pytest.MonkeyPatch) -> None:
    """Answer a query from all that is shown, whatever it has waited for."""
    patch.setattr(group, "_check", lambda *_: None)


def _reduce_all_vbuckets(patch: pytest.MonkeyPatch) -> None:
    """Use reductions of inner nodes although not all vBuckets below are wanted."""
    whole = Tree.reduced
    patch.setattr(Tree, "reduced", lambda tree, low, high, wanted: whole(tree, low, high, None))


def _stay_behind_the_header(patch: pytest.MonkeyPatch) -> None:
    """Write a header that says more than its trees hold."""
    whole = IndexStore.write_header

    def write_header(store: IndexStore) -> None:
        trees, store._trees = store._trees, getattr(store, "stale", store._trees)
        whole(store)
        store._trees = trees
        store.stale = trees  # type: ignore[attr-defined]

    patch.setattr(IndexStore, "write_header", write_header)


def _skip_a_batch(patch: pytest.MonkeyPatch) -> None:
    """Lose the last of several batches that are applied together."""
    whole = Desk.apply_some

    def apply_some(desk: Desk) -> None:
        if len(desk._queue) > 1 and not callable(desk._queue[0]):
            store, apply = desk.store, desk.store.apply
            store.apply = lambda batches: apply(batches[:1])  # type: ignore[method-assign]
            whole(desk)
            store.apply = apply  # type: ignore[method-assign]
        else:
            whole(desk)

    patch.setattr(Desk, "apply_some", apply_some)


def _forget_the_log(patch: pytest.MonkeyPatch) -> None:
    """Keep the failover log that was learned first."""
    whole = IndexStore.learn

    def learn(store: IndexStore, saved: Any) -> None:
        whole(store, {vb: each for vb, each in saved.items() if vb not in store._standings.facts})

    patch.setattr(IndexStore, "learn", learn)
    patch.setattr(IndexState, "load", lambda state: state._updates.positions())


_CALM = IndexPlan("pair", NO_FAULTS, {}, keys=8, writer_s=0.02, steps=3_000, index_death=0.0)
_OPERATED = replace(_CALM, operating={"failover": 1, "takeover": 1}, operator_s=0.3)
_CRASHED = replace(_CALM, faults=Faults(crash_s=0.5, cut_s=0.5), writer_s=0.01, compacts=False)
_ONE_KILLED = RUNS["one vBucket, killed"]
_DYING = replace(_CALM, index_death=0.05, purge_s=0.01)

#: Breaks, runs in which the rule is needed often, and what is then said.
_BREAKS: dict[Patch, tuple[IndexPlan, str]] = {
    _leave_old_rows: (_CALM, "stands at"),
    _ignore_deletions: (_CALM, "stands at"),
    _never_return: (_CRASHED, "stands at|is shown|gives up|never come to rest"),
    _take_the_newest_header: (
        RUNS["one vBucket, killed"],
        "stands at|is shown|gives up|never come to rest",
    ),
    _keep_rows_of_dropped_vbuckets: (_CALM, "stands at|not indexed"),
    _call_everything_durable: (_DYING, "was durable"),
    _answer_at_once: (_CALM, "is to contain"),
    _answer_for_what_is_paused: (RUNS["vBuckets paused"], "is to contain"),
    _reduce_all_vbuckets: (_CALM, "rows of"),
    _stay_behind_the_header: (_DYING, "stands at|was durable"),
    _skip_a_batch: (_CALM, "stands at|is to contain|is shown|never come"),
    _forget_the_log: (_OPERATED, "stands at|nobody's history|never come to rest|its history ends"),
}


@pytest.mark.parametrize("break_it", list(_BREAKS))
@pytest.mark.acceptance("I08", "I13", "I16", "I19", "I24", "I28", "D16")
def test_a_broken_rule_of_the_index_is_noticed(
    break_it: Patch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a judge, and by the right one where there is only one who can."""
    break_it(monkeypatch)
    plan, verdict = _BREAKS[break_it]
    notice(break_it, lambda seed: IndexRun.random(seed, plan), verdict, _SEEDS)
