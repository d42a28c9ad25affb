"""Random histories: writes, replicas that lag, failovers, crashes of the consumer; all ends equal.

Small on purpose: one vBucket, six keys, three nodes, a ring of a few keys, a small buffer so that
snapshots are seen in the middle. A failure names its seed.
"""

from __future__ import annotations

import contextlib
from random import Random

import pytest

from tests.client.consumer_world import (
    ACTIVE,
    DEAD,
    REPLICA,
    Crash,
    CrashingState,
    DurableMirror,
    Mirror,
    World,
    live,
    node,
    replicate,
    standby,
    write,
)
from tests.contents import table_of
from tests.kv.harness import Rig
from tests.seeds import seeds

_STEPS = 40
_KEYS = "abcdef"


class _History:
    """One run; the seed decides everything."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.mirror = self.random.choice([Mirror, DurableMirror])()
        self.state = CrashingState()
        self.rigs = [node(), standby(1000), standby(2000)]
        self.active = 0
        self.world = World(
            self.mirror,
            *self.rigs,
            state=self.state,
            vbuckets=frozenset({0}),
            ring_items=self.random.choice([1, 4, 1000]),
            buffer_bytes=self.random.choice([300, 1 << 20]),
        )

    @property
    def rig(self) -> Rig:
        return self.rigs[self.active]

    def step(self) -> None:
        actions = [self.write] * 4 + [self.copy] * 2 + [self.follow] * 4
        self.random.choice([*actions, self.fail_over, self.crash, self.cut, self.purge])()

    def write(self) -> None:
        for _ in range(self.random.randrange(1, 6)):
            key = self.random.choice(_KEYS)
            held = live(self.rig)
            gone = key.encode() in held and self.random.random() < 0.4
            write(self.rig, 0, **{key: "" if gone else f"{self.active}-{self.random.random()}"})

    def copy(self) -> None:
        target = self.rigs[self.random.choice([n for n in range(3) if n != self.active])]
        if target.bucket.vbuckets[0].state != REPLICA:
            return
        if not _may_go_on(target, self.rig):
            target.bucket.vbuckets[0].reset(target.bucket.entropy.uuid48())
        replicate(self.rig, target)

    def fail_over(self) -> None:
        """To a node that lags, perhaps, in a term above all; the old one comes back empty."""
        old = self.active
        self.active = self.random.choice([n for n in range(3) if n != old])
        self.rigs[old].bucket.set_state(0, DEAD)
        part = self.rig.bucket.vbuckets[0]
        part.known_term = max(rig.bucket.vbuckets[0].term for rig in self.rigs)
        self.rig.bucket.set_state(0, ACTIVE)
        for number, rig in enumerate(self.rigs):
            if number != self.active and self.random.random() < 0.5:
                rig.bucket.vbuckets[0].reset(rig.bucket.entropy.uuid48())
                rig.bucket.set_state(0, REPLICA)

    def purge(self) -> None:
        """Forget all deletions, as a compaction may."""
        part = self.rig.bucket.vbuckets[0]
        self.rig.flush()
        dead = [item for item in table_of(part).values() if item.life]
        if not dead:
            part.purge_seqno = max(part.purge_seqno, part.high_seqno)

    def follow(self) -> None:
        if self.random.random() < 0.3:
            self.mirror.crash_at = self.mirror.calls + self.random.randrange(1, 12)
            self.mirror.crash_after = self.random.random() < 0.5
        elif self.random.random() < 0.2:
            self.state.crash_at = self.state.commits + self.random.randrange(1, 5)
            self.state.crash_after = self.random.random() < 0.5
        try:
            self.world.settle(self.random.choice([0, 0, 0.3, 2]))
        except Crash:
            self.restart()
        self.mirror.crash_at = self.state.crash_at = 0

    def restart(self) -> None:
        self.mirror.crash_at = self.state.crash_at = 0
        self.world.restart()

    def crash(self) -> None:
        self.restart()

    def cut(self) -> None:
        self.world.cut()

    def end(self) -> None:
        with contextlib.suppress(Crash):
            self.world.settle(10)
        assert self.mirror.of(0) == live(self.rig)
        saved = self.state.load().get(0)
        if saved is not None:
            part = self.rig.bucket.vbuckets[0]
            assert (saved.seqno, saved.log) == (part.high_seqno, part.failover_log)


def _may_go_on(replica: Rig, active: Rig) -> bool:
    """Whether all that a replica has is of the active's history."""
    ours, theirs = replica.bucket.vbuckets[0], active.bucket.vbuckets[0]
    known = len(ours.failover_log)
    if ours.high_seqno < theirs.purge_seqno or theirs.failover_log[-known:] != ours.failover_log:
        return False
    newer = theirs.failover_log[:-known]
    return ours.high_seqno <= (newer[-1].seqno if newer else theirs.high_seqno)


@pytest.mark.parametrize("seed", seeds(60))
def test_the_copy_ends_like_the_active_node(seed: int) -> None:
    history = _History(seed)
    for _ in range(_STEPS):
        history.step()
    history.end()
