"""The same load from several processes at once: one alone uses one core."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection

from uprmc.cli.bench_load import Frames, Outcome, Plan, run
from uprmc.cli.node_access import NodeAccess


@dataclass(frozen=True)
class _Work:
    access: NodeAccess
    frames: Frames
    plan: Plan

    def __call__(self) -> Outcome:
        return run(self.access, self.plan, self.frames, self.plan.seed)


def run_all(access: NodeAccess, plans: list[Plan], frames: Frames) -> Outcome:
    """Run each plan in a process of its own, the first in this one, and add their outcomes."""
    forked = get_context("fork")  # credentials and TLS contexts cannot be sent to a process
    children = []
    for plan in plans[1:]:
        here, there = forked.Pipe(duplex=False)
        child = forked.Process(target=_sent, args=(there, _Work(access, frames, plan)), daemon=True)
        child.start()
        there.close()
        children.append((child, here))
    outcome = _Work(access, frames, plans[0])()
    for child, here in children:
        outcome.merge(_received(here))
        child.join()
    return outcome


def _sent(there: Connection, work: Callable[[], Outcome]) -> None:
    there.send(work())


def _received(here: Connection) -> Outcome:
    try:
        found: Outcome = here.recv()
    except EOFError:
        return Outcome(error="a process of the load generator was killed")
    return found
