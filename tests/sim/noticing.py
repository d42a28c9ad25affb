"""A rule that is broken on purpose is noticed by a judge, by the right one where only one can.

A net that was never seen to catch anything is no net. If the product is changed so that a rule
lives elsewhere, the break has to move with it: one that no longer breaks anything fails its test.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import pytest

from tests.sim.judges import Verdict

Patch = Callable[[pytest.MonkeyPatch], None]


class Break(NamedTuple):
    """A rule that is broken, and how that shows."""

    what: str  # what is done instead
    patches: tuple[Patch, ...]
    said: str  # what a judge says then: a pattern
    plan: Any = None  # of a run in which the rule is needed often; None = each seed draws one
    seed: int = 0  # it noticed the break when somebody last looked; a hint that saves time


def broken(what: str, *patches: Patch, said: str, plan: Any = None, seed: int = 0) -> Break:
    """Return a break."""
    return Break(what, patches, said, plan, seed)


def swap(owner: Any, name: str, value: Any) -> Patch:
    """Have something else in the place of an attribute."""
    return lambda patch: patch.setattr(owner, name, value)


def skip(owner: Any, name: str) -> Patch:
    """Have a function do nothing."""
    return swap(owner, name, lambda *_, **__: None)


def instead(owner: Any, name: str, other: Callable[..., Any]) -> Patch:
    """Have `other` called in the place of a function, with that one before its arguments."""

    def apply(patch: pytest.MonkeyPatch) -> None:
        whole = getattr(owner, name)
        patch.setattr(owner, name, lambda *given, **more: other(whole, *given, **more))

    return apply


def cases(breaks: Iterable[Break]) -> pytest.MarkDecorator:
    """Return the mark of a test that gets one break after the other."""
    return pytest.mark.parametrize("case", breaks, ids=lambda case: case.what)


def notice(
    case: Break, patch: pytest.MonkeyPatch, run: Callable[[int, Any], object], seeds: int
) -> None:
    """Break a rule, then run one seed after the other until a judge complains in the right words.

    Fails when `seeds` seeds notice nothing.
    """
    for apply in case.patches:
        apply(patch)
    for seed in (case.seed, *range(seeds)):
        try:
            run(seed, case.plan)
        except Verdict as verdict:
            said = str(verdict).split("\nthe last events", maxsplit=1)[0]
            assert re.search(case.said, said), said
            return
    pytest.fail(f"{seeds} seeds noticed nothing")


def happens(wanted: Iterable[str], accounts: Iterable[Mapping[str, int]]) -> None:
    """Run one after the other until everything wanted has happened; fails when something never has.

    Judges that have nothing to judge find no fault.
    """
    lacking = set(wanted)
    for account in accounts:
        lacking -= {name for name, count in account.items() if count}
        if not lacking:
            return
    pytest.fail(f"never happened: {sorted(lacking)}")
