"""Whatever goes wrong with nodes and with the index itself, it shows what some state had.

Judges look at everything that it publishes (`index_judges`); a seed that fails says how to run it
again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from tests.seeds import seeds
from tests.sim.cluster_run import INDEX
from tests.sim.faults import NO_FAULTS, Faults
from tests.sim.index_program import Desk
from tests.sim.noticing import Break, broken, cases, happens, instead, notice, skip, swap
from tests.sim.plan import Plan
from uprmc.client.core import UprCore
from uprmc.index import group
from uprmc.index import store as store_module
from uprmc.index.index_file import Files
from uprmc.index.store import IndexStore
from uprmc.index.tree import Tree
from uprmc.index.updater import IndexState

pytestmark = pytest.mark.sim


@pytest.mark.parametrize("seed", seeds(default=6))
@pytest.mark.acceptance("I01", "I08", "I11", "I13", "I16", "I19", "I20", "I22", "I24", "I28", "D16")
def test_every_answer_of_an_index_was_true_whatever_goes_wrong(seed: int) -> None:
    """Random faults, failovers, takeovers, purges, deaths, vBuckets that come and go."""
    INDEX.story(seed)


_SHORT = Plan("pair", NO_FAULTS, {}, keys=14, writer_s=0.02, steps=3_000, index=True, purge_s=0.05)

#: What a run is for -> its plan.
RUNS: dict[str, Plan] = {
    "nodes killed": replace(_SHORT, faults=Faults(crash_s=0.5, cut_s=0.5), writer_s=0.01),
    "one vBucket, killed": replace(
        _SHORT,
        vbuckets=1,
        faults=Faults(crash_s=0.4),
        writer_s=0.01,
        steps=6_000,
        compacts=False,
        index_death=0.0,
    ),
    "failovers": replace(_SHORT, operating={"failover": 2, "takeover": 1}, operator_s=0.3),
    "purges and deaths": replace(_SHORT, index_death=0.05, purge_s=0.005, registered=False),
    "deaths": replace(_SHORT, index_death=0.05),
    "vBuckets paused": replace(_SHORT, pauses=True, writer_s=0.1, index_death=0.0),
}


@cache
def account(what: str, seed: int) -> Mapping[str, int]:
    """Run a plan, once for all tests."""
    return INDEX.random(seed, RUNS[what]).account()


@pytest.mark.parametrize("what", list(RUNS))
@pytest.mark.acceptance("I08", "I19", "I20", "I24", "I28")
def test_an_index_bears(what: str) -> None:
    account(what, 0)


def test_the_runs_do_what_they_are_for() -> None:
    """Every kind of event happens within the first seeds; else the judges have nothing to judge."""
    wanted = {
        "index answered",
        "index answered while paused",
        "index asked to wait again",
        "index compactions",
        "index deaths",
        "index dropped",
        "index fresh answers",
        "index headers",
        "index parts judged",
        "index paused",
        "index reductions judged",
        "index rollback header",
        "index rollback vbucket",
        "index torn",
        "purged",
    }
    happens(wanted, (account(what, seed) for seed in range(5) for what in RUNS))


def test_the_same_seed_gives_the_same_run() -> None:
    assert INDEX.random(1).world.digest() == INDEX.story(1).digest


# --- judges speak ---------------------------------------------------------------------------------

_SEEDS = 40


def _newest_header(whole: Any, files: Files, *asked: Any) -> Any:
    found = whole(files, *asked)
    newest = files.current.file.header
    return found and newest and (files.current, newest)


def _forget_places_only(store: IndexStore, vbuckets: Any) -> None:
    for vbucket in vbuckets:
        store._standings.positions.pop(vbucket, None)
        store._standings.facts.pop(vbucket, None)
    store._publish()


def _done_at_once(whole: Any, core: UprCore, text: str | None = None) -> Any:
    made = whole(core, text)
    if core._turned:  # not the one that a run begins with
        made.done = True
    return made


def _with_stale_trees(whole: Any, store: Any) -> None:
    trees, store._trees = store._trees, getattr(store, "stale", store._trees)
    whole(store)
    store._trees = trees
    store.stale = trees


def _only_the_first(whole: Any, desk: Desk) -> None:
    if len(desk._queue) > 1 and not callable(desk._queue[0]):
        store, apply = desk.store, desk.store.apply
        store.apply = lambda batches: apply(batches[:1])  # type: ignore[method-assign]
        whole(desk)
        store.apply = apply  # type: ignore[method-assign]
    else:
        whole(desk)


_CALM = replace(_SHORT, keys=8, index_death=0.0)
_DYING = replace(_CALM, index_death=0.05, purge_s=0.01)

_BREAKS = (
    broken(
        "do not look up which rows a document had",
        instead(store_module, "edits", lambda whole, known, *more: whole({}, *more)),
        said="stands at",
        plan=_CALM,
    ),
    broken(
        "index what documents become, not that they go",
        instead(store_module, "latest_of", lambda whole, batches: whole(batches)._replace(gone=())),
        said="stands at",
        plan=_CALM,
    ),
    broken(
        "say that it has rolled back, and do nothing",
        swap(IndexStore, "roll_back", lambda store, vbucket, seqno: True),
        said="stands at|is shown|gives up|never come to rest",
        plan=replace(_CALM, faults=Faults(crash_s=0.5, cut_s=0.5), writer_s=0.01, compacts=False),
        seed=8,
    ),
    broken(
        "fall back to the newest header instead of one at or below the seqno",
        instead(Files, "header_below", _newest_header),
        said="stands at|is shown|gives up|never come to rest",
        plan=RUNS["one vBucket, killed"],
        seed=6,
    ),
    broken(
        "forget where a vBucket stands, and leave its rows",
        swap(IndexStore, "drop", _forget_places_only),
        said="stands at|not indexed",
        plan=_CALM,
        seed=8,
    ),
    broken(
        "tell nodes where the trees stand, not where the newest header on disk does",
        swap(IndexStore, "durable_of", lambda store, vbucket: store.positions().get(vbucket)),
        said="was durable",
        plan=_DYING,
        seed=1,
    ),
    broken(
        "let a query wait for nothing",
        instead(UprCore, "barrier", _done_at_once),
        said="is to contain",
        plan=_CALM,
        seed=1,
    ),
    broken(
        "answer a query from all that is shown, whatever it has waited for",
        skip(group, "_check"),
        said="is to contain",
        plan=RUNS["vBuckets paused"],
        seed=7,
    ),
    broken(
        "use reductions of inner nodes although not all vBuckets below are wanted",
        instead(Tree, "reduced", lambda whole, tree, low, high, _: whole(tree, low, high, None)),
        said="rows of",
        plan=_CALM,
    ),
    broken(
        "write a header that says more than its trees hold",
        instead(IndexStore, "write_header", _with_stale_trees),
        said="stands at|was durable",
        plan=_DYING,
    ),
    broken(
        "lose all but the first of several batches that are applied together",
        instead(Desk, "apply_some", _only_the_first),
        said="stands at|is to contain|is shown|never come",
        plan=_CALM,
    ),
    broken(
        "keep the failover log that was learned first",
        instead(
            IndexStore,
            "learn",
            lambda whole, store, saved: whole(
                store, {vb: each for vb, each in saved.items() if vb not in store._standings.facts}
            ),
        ),
        swap(IndexState, "load", lambda state: state._updates.positions()),
        said="stands at|nobody's history|never come to rest|its history ends",
        plan=replace(_CALM, operating={"failover": 1, "takeover": 1}, operator_s=0.3),
        seed=1,
    ),
)


@cases(_BREAKS)
@pytest.mark.acceptance("I08", "I13", "I16", "I19", "I24", "I28", "D16")
def test_a_broken_rule_of_the_index_is_noticed(
    case: Break, monkeypatch: pytest.MonkeyPatch
) -> None:
    notice(case, monkeypatch, INDEX.random, _SEEDS)
