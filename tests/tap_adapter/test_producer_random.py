"""Whatever a client does, in the end it holds what the upstream holds.

The client acknowledges late, refuses, hangs up in the middle of anything and comes back by name;
the upstream is written to, loses changes, forgets deletions, ends streams; the process restarts.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.tap_adapter.fake_upstream import FakeNode
from tests.tap_adapter.tap_peer import ACK, CHECKPOINT, IN_ORDER, REGISTERED, Line, Peer, Rig
from uprmc.protocol.opcodes import EndReason, Opcode

pytestmark = pytest.mark.acceptance("D56")

NUMBERS = (0, 1, 2)
KEYS = [b"k%d" % index for index in range(8)]
VARIANTS = [
    0,
    ACK,
    CHECKPOINT,
    ACK | CHECKPOINT,
    ACK | REGISTERED,
    ACK | CHECKPOINT | REGISTERED,
    REGISTERED,
]


class World:
    """One node, one client, and everything that may befall them."""

    def __init__(self, seed: int, flags: int, **tap: Any) -> None:
        self.dice = random.Random(seed)
        self.flags = flags | IN_ORDER
        self.node = FakeNode(*NUMBERS)
        self.rig = Rig(self.node, backoff_s=1.0, **tap)
        self.rig.keeper.patient = self.dice.random() < 0.5
        self.peer = Peer()
        self.uuid = 0xF000
        self.line = self.connected()

    def connected(self) -> Line:
        self.peer.open_checkpoints.clear()
        dice = self.dice
        return self.rig.connect(
            self.flags,
            vbuckets=NUMBERS,
            patient=dice.random() < 0.5,
            pieces=dice.choice((1, 2, 3)),
            snapshot_items=dice.choice((1, 3, 1_000)),
            window_bytes=dice.choice((200, 2**40)),
        )

    # --- what may happen ---

    def write(self) -> None:
        for _ in range(self.dice.randrange(1, 6)):
            vbucket = self.node[self.dice.choice(NUMBERS)]
            key = self.dice.choice(KEYS)
            if self.dice.random() < 0.3:
                vbucket.delete(key, expired=self.dice.random() < 0.3)
            else:
                value = b"%d" % self.dice.randrange(10**6)
                vbucket.set(key, value, flags=self.dice.getrandbits(32), expiry=2**31)

    def lose_changes(self) -> None:
        number = self.dice.choice(NUMBERS)
        vbucket = self.node[number]
        self.uuid += 1
        kept = max(vbucket.purge_seqno, vbucket.high_seqno - self.dice.randrange(6))
        vbucket.fail_over(kept, self.uuid)
        if number in self.line.upstream.streams:
            self.line.upstream.end(number, EndReason.STATE_CHANGED)

    def end_a_stream(self) -> None:
        streams = self.line.upstream.streams
        if streams:
            self.line.upstream.end(self.dice.choice(list(streams)), EndReason.TOO_SLOW)

    def forget_deletions(self) -> None:
        vbucket = self.node[self.dice.choice(NUMBERS)]
        vbucket.purge(self.dice.randint(0, vbucket.high_seqno))
        stream = self.line.upstream.streams.get(vbucket.number)
        if stream is not None and 0 < stream.position < vbucket.purge_seqno:
            self.line.upstream.end(vbucket.number, EndReason.ROLLBACK)

    def read(self) -> None:
        for message in self.line.fill(self.dice.choice((1, 100, 10_000))):
            self.peer.take(message)

    def acknowledge(self) -> None:
        waiting = self.line.unanswered
        for _ in range(self.dice.randrange(len(waiting) + 1)):
            self.line.answer(waiting.pop(0))

    def refuse(self) -> None:
        """Refuse any message; who refuses the end of a checkpoint has not closed it."""
        if self.line.unanswered and self.flags & ACK:
            message = self.dice.choice(self.line.unanswered)
            if message.opcode == Opcode.TAP_CHECKPOINT_END:
                self.peer.open_checkpoints[message.vbucket] = int.from_bytes(message.value, "big")
            self.line.refuse(message)

    def deliver(self) -> None:
        self.line.upstream.deliver(self.dice.randrange(1, 4))
        if self.rig.keeper.pending:
            self.rig.keeper.finish(ok=self.dice.random() < 0.8)

    def wait(self) -> None:
        self.line.tick(self.dice.choice((0.1, 1.0, 2.0)))

    def reset(self) -> None:
        self.line.producer.reset()

    def change_filter(self) -> None:
        """Leave out a vBucket for a while; who does so drops his copy."""
        number = self.dice.choice(NUMBERS)
        self.line.producer.change_filter({n: 0 for n in NUMBERS if n != number})
        self.line.producer.change_filter(dict.fromkeys(NUMBERS, 0))

    def hang_up(self) -> None:
        """What the client has taken and not acknowledged, it has all the same."""
        self.line.leave()
        self.line = self.connected()

    def crash(self) -> None:
        self.rig.restart()
        self.rig.keeper = self.rig.names._saves._keeper  # type: ignore[assignment]
        if not self.flags & REGISTERED:
            self.peer = Peer()
        self.line = self.connected()

    def everything(self) -> None:
        """Let all settle: every answer comes, everything is read and acknowledged."""
        for _ in range(5_000):
            self.line.upstream.deliver()
            while self.rig.keeper.pending:
                self.rig.keeper.finish()
            messages = self.line.drain()
            for message in messages:
                self.peer.take(message)
            quiet = not messages and not self.line.unanswered and not self.rig.keeper.pending
            self.line.ack_all()
            if self.line.producer.closed:
                assert not self.line.producer.finished
                self.hang_up()
            elif quiet and not self.line.upstream.undelivered and not self.is_waiting:
                return
            self.line.tick(1.1)
        raise AssertionError("it never settles")

    @property
    def is_waiting(self) -> bool:
        """Whether only time will bring more."""
        producer = self.line.producer
        batch = producer._batch
        return producer.statistics().paused or (batch is not None and batch.waits)

    def check(self) -> None:
        for number in NUMBERS:
            held = self.peer.documents.get(number, {})
            assert held == self.node[number].documents(), f"vBucket {number}"
        upstream = self.line.upstream
        assert upstream.acked_bytes == upstream.pulled_bytes, "bytes that nobody will acknowledge"

    def run(self, steps: int) -> None:
        chances = {
            self.write: 20,
            self.read: 30,
            self.acknowledge: 20,
            self.deliver: 20,
            self.wait: 10,
            self.refuse: 4,
            self.lose_changes: 2,
            self.end_a_stream: 2,
            self.forget_deletions: 2,
            self.hang_up: 3,
            self.crash: 1,
            self.reset: 1,
            self.change_filter: 1,
        }
        acts, weights = list(chances), list(chances.values())
        for _ in range(steps):
            self.dice.choices(acts, weights)[0]()
            if self.line.producer.closed:
                self.hang_up()
        self.everything()
        self.check()


@pytest.mark.parametrize("flags", VARIANTS, ids=lambda flags: f"{int(flags):#x}")
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 2**32),
    tap=st.fixed_dictionaries(
        {
            "ack_interval": st.sampled_from([1, 2, 5, 1_000]),
            "ack_window": st.sampled_from([1, 3]),
            "undo_keys": st.sampled_from([0, 4, 1_000]),
            "rollback": st.sampled_from(["rewind", "restart"]),
        }
    ),
)
def test_in_the_end_the_client_holds_what_the_upstream_holds(
    flags: int, seed: int, tap: dict[str, Any]
) -> None:
    World(seed, flags, **tap).run(60)
