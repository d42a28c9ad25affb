"""A run led by the hand: a node, a writer and a consumer that do what a test tells them."""

from __future__ import annotations

from tests.sim import codec
from tests.sim.codec import Reply
from tests.sim.faults import NO_FAULTS
from tests.sim.upr_consumer import Consumer
from tests.sim.upr_kinds import Kind
from tests.sim.upr_plan import Plan
from tests.sim.upr_run import UprRun
from tests.sim.upr_writer import Commander


class Clerk(Commander):
    """A writer that writes what it is told, and waits for the answer."""

    def _command(self) -> None:
        """Think of nothing."""

    def done(self, opcode: int, **parts: object) -> Reply:
        """Send a command; return its reply."""
        replies: list[Reply] = []
        if self._link is None:
            self._connect()
        self.send(opcode, settle=replies.append, **parts)  # type: ignore[arg-type]
        self._world.run_until(lambda: bool(replies))
        return replies[0]


class Desk:
    """See the module docstring.

    Attributes:
        run: the run.
        consumer: the first one; it is calm.
    """

    def __init__(self, kind: Kind, *, vbuckets: int = 2, seed: int = 0) -> None:
        plan = Plan((kind,), NO_FAULTS, {}, vbuckets=vbuckets, writers=0)
        self.run = UprRun(seed, plan)
        self.run.start()
        self.world = self.run.world
        self.consumer: Consumer = self.run.consumers[0]
        self.consumer.calm = True
        self.clerk = Clerk(self.world, self.run.node, self.run.truth, vbuckets, 1.0)

    def put(self, key: bytes, value: bytes = b"v") -> None:
        """Set a document."""
        extras = codec.store_extras(0, 0)
        assert self.clerk.done(codec.SET, key=key, value=value, extras=extras).status == codec.OK

    def delete(self, key: bytes) -> None:
        """Delete it."""
        assert self.clerk.done(codec.DELETE, key=key).status == codec.OK

    def set_state(self, vbucket: int, state: int) -> None:
        """Give a vBucket another state."""
        extras = state.to_bytes(4, "big")
        assert self.clerk.done(0x3D, vbucket=vbucket, extras=extras).status == codec.OK

    def settle(self) -> None:
        """Wait until the consumer holds everything and everything is on disk."""
        self.world.run_until(self.consumer.settled)
        self.world.run_until(lambda: self.run.node.quiet)

    def hang_up(self) -> None:
        """End the consumer's connection; it comes back by itself."""
        connection = self.consumer.connection
        assert connection is not None
        connection.hang_up()

    def crash(self) -> None:
        """End the node's life, and begin another."""
        self.run.node.crash()
        self._start()

    def stop(self) -> None:
        """End it in order, and begin another."""
        self.run.node.stop()
        self.world.run_until(lambda: not self.run.node.up)
        self._start()

    def _start(self) -> None:
        self.run.node.start()
        self.world.run_until(lambda: self.run.node.serving)

    def log(self, vbucket: int) -> tuple[tuple[int, int], ...]:
        """Return a vBucket's failover log, as the consumer was told it."""
        return self.consumer.copies[vbucket].log

    def finish(self) -> None:
        """Judge everything."""
        self.clerk.working = False
        self.run.rest()
        self.run.finish()
