"""What clients did and what they were told, in the order in which it happened.

Every operation has the place of its invocation and of its end in one count of events: that order is
what judges reason about. An operation whose connection ended first has no reply: it may have
happened before that end, or never.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.sim.codec import Reply
from tests.sim.world import EPOCH_S, World


@dataclass(slots=True, eq=False)
class Op:
    """One operation of one client.

    Attributes:
        kind: ``set``, ``get``, ...; names of this simulation.
        opaque: the client's number for it.
        began, ended: places in the count of events; `ended` is ``None`` while it is under way.
        began_at, ended_at: Unix times of the same.
        reply: what came back; ``None`` for a silent or an unanswered one.
        silent: a quiet operation that, by a later reply, is known to have gone as hoped.
        life: in which life of the node it began.
    """

    kind: str
    key: bytes
    vbucket: int
    client: str
    connection: int
    opcode: int
    opaque: int
    value: bytes = b""
    cas: int = 0
    flags: int = 0
    exptime: int = 0
    delta: int = 0
    initial: int = 0
    quiet: bool = False
    lock_status: bool = False
    life: int = 0
    began: int = 0
    ended: int | None = None
    began_at: float = 0.0
    ended_at: float = 0.0
    reply: Reply | None = None
    silent: bool = False
    uuid: int = 0

    @property
    def answered(self) -> bool:
        """Whether its outcome is known."""
        return self.silent or self.reply is not None

    @property
    def status(self) -> int | None:
        """The outcome; ``None`` if it is not known."""
        if self.reply is not None:
            return self.reply.status
        if self.silent:
            return 0x01 if self.kind == "get" else 0x00
        return None

    def __repr__(self) -> str:
        outcome = f"{self.status:#04x}" if self.answered else "?"
        return (
            f"[{self.began}-{self.ended} {self.client}/{self.connection} {self.kind} {self.key!r} "
            f"{self.value[:24]!r} cas={self.cas} exptime={self.exptime} -> {outcome} {self.reply}]"
        )


class History:
    """All operations of a run, and who wants to know of them."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._count = 0
        self.ops: list[Op] = []
        self.on_begin: list[Callable[[Op], None]] = []
        self.on_end: list[Callable[[Op], None]] = []
        self.life = 0

    def begins(self, op: Op) -> None:
        """An operation is on its way."""
        self._count += 1
        op.began, op.began_at, op.life = self._count, EPOCH_S + self._world.now, self.life
        self.ops.append(op)
        for observer in self.on_begin:
            observer(op)

    def ends(self, op: Op) -> None:
        """Its outcome is known, or never will be."""
        self._count += 1
        op.ended, op.ended_at = self._count, EPOCH_S + self._world.now
        self._world.note(f"{op!r}")
        for observer in self.on_end:
            observer(op)

    def of_life(self, life: int) -> list[Op]:
        """Return the operations begun in one life of the node."""
        return [op for op in self.ops if op.life == life]
