"""A program whose handler is a ready-made sink, with many lives; see `replica_client`."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.sim.judges import complain
from tests.sim.replica_client import WHOLE_LOG, Program
from tests.sim.replica_mirror import of_version
from tests.sim.replica_node import address
from tests.sim.sink_readers import Docs
from tests.sim.sink_targets import TARGETS
from tests.sim.upr_truth import Log
from uprmc.client.core import Options, UprCore


class SinkProgram(Program):
    """See the module docstring.

    A judge looks at what a reader has at the beginning of each life, where positions say what it
    must be, and at the end, where it is what the active nodes have.

    Attributes:
        judged: how many vBuckets were judged by their positions.
    """

    def __init__(self, *given: Any, directory: Path, **more: Any) -> None:
        self._place = directory
        self._target: Any = None
        self._sink: Any = None
        self.judged = 0
        super().__init__(*given, **more)

    # --- lives ------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self.points.count = 0
        self.points.dies = self._dies
        if self._target is None:
            self._target = TARGETS[self.kind](self._place, self._world, self.points)
        self._sink = self._target.open()
        state: Any = self._state
        if self._target.exact:
            state = self._sink.state
            self._judge_positions(state)
            self._let_it_die_at_commits(state)
        options = Options(
            name=f"sink-{self.kind}-{self.deaths}",
            ring_items=self._ring_items,
            noop_interval_s=1.0,
            poll_s=0.3,
            jitter=self._world.random.random,
        )
        places = [address(node.name) for node in self._cluster.nodes.values()]
        self.core = UprCore(places, self._sink, state, options)
        self._turn(self.core)

    def _let_it_die_at_commits(self, state: Any) -> None:
        commit = state.commit

        def commit_with_points(saved: Mapping[int, Any], *rest: Any) -> None:
            self.points.point()
            for number, one in saved.items():
                self._judge_saved(number, one)
            commit(saved, *rest)
            self.points.point()

        state.commit = commit_with_points

    def _die(self) -> None:
        super()._die()
        self._close()
        self._target.tear()

    def leave(self) -> None:
        """Go for good."""
        super().leave()
        self._close()

    def _close(self) -> None:
        self._sink.close()
        if self._target.exact:
            self._sink.state.close()

    def _count(self) -> None:
        """It has no mirror."""

    def settled(self) -> bool:
        """See `Program.settled`; what has come is written, too."""
        return not self._idle_planned and super().settled()

    # --- judging ----------------------------------------------------------------------------------

    def _judge_positions(self, state: Any) -> None:
        """What is there is the history up to the position.

        What a snapshot that is not whole still brings may be missing, and what was received above
        the position is there until it is undone.
        """
        docs = self._target.docs()
        for number, saved in state.load().items():
            branch = saved.log and self._histories.branches.get((number, saved.log[0].uuid))
            if not saved.seqno or not branch:
                continue
            _, end = saved.snapshot
            open_keys = {v.key for v in branch.segment(saved.seqno, end)}
            open_keys.update(key for _, key in state.ring_after(number, saved.seqno))
            true = {k: of_version(v) for k, v in branch.state(saved.seqno).items() if not v.deleted}
            self._compare(docs, number, true, f"position {saved.seqno} says", open_keys)
            self.judged += 1

    def judge(self) -> None:
        """Hold what a reader has to what is true, key by key."""
        docs = self._target.docs()
        for number in self._histories.numbers():
            for name in self._histories.active_at(number):
                held = self._histories.node(name).held.get(number, {})
                true = {k: of_version(v) for k, v in held.items() if not v.deleted}
                self._compare(docs, number, true, f"{name} has")
                self._judge_changes(number, self._histories.node(name).now(number).log)

    def _judge_changes(self, number: int, log: Log) -> None:
        """What a reader holds to be true is of the history that goes on."""
        if self._histories.max_entries < WHOLE_LOG:
            return
        ends = {log[0][0]: 2**64} | {old: end for (_, end), (old, _) in pairwise(log)}
        for uuid, seqno in self._target.changes.get(number, ()):
            if seqno > ends.get(uuid, 0):
                complain(
                    f"vBucket {number}: a reader of {self.kind} was never told that {seqno} of "
                    f"{uuid:x} is void: the history is {log}"
                )

    def _compare(
        self,
        docs: Docs,
        number: int,
        true: Mapping[bytes, tuple[object, ...]],
        whose: str,
        open_keys: set[bytes] = frozenset(),  # type: ignore[assignment]
    ) -> None:
        mine = docs.get(number, {})
        for key in sorted((true.keys() | mine.keys()) - open_keys):
            expected = true[key][: self._target.fields] if key in true else None
            if mine.get(key) != expected:
                complain(
                    f"vBucket {number}: a reader of {self.kind} has {key!r} as {mine.get(key)}; "
                    f"{whose} {expected}"
                )

    def account(self) -> dict[str, int]:
        """Return what it went through."""
        return {
            f"{self.kind} deaths": self.deaths,
            f"{self.kind} judged": self.judged,
            f"{self.kind} again": self._target.again,
        }
