"""Everybody who pushes into this node by TAP, for statistics; and which checkpoints are whole here.

Names and meaning of the counters are those of ep-engine's consumers: each message counts once,
under its kind or, if it was refused, under its kind's ``_failed``.

Source: ep-engine's `TapConsumer` statistics; TAP reference, section 7 (LAST_CLOSED_CHECKPOINT).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Protocol

from uprmc.engine.vbucket import VBucket
from uprmc.model import VBucketState
from uprmc.protocol.opcodes import Opcode


@dataclass(slots=True)
class PushCounters:
    """Messages of a master, by kind.

    Attributes:
        num_unknown: messages that mean nothing here: malformed ones, which end the connection, and
            OPAQUE codes that nobody knows (these are in `num_opaque`, too).
    """

    num_mutation: int = 0
    num_mutation_failed: int = 0
    num_delete: int = 0
    num_delete_failed: int = 0
    num_flush: int = 0
    num_flush_failed: int = 0
    num_opaque: int = 0
    num_opaque_failed: int = 0
    num_vbucket_set: int = 0
    num_vbucket_set_failed: int = 0
    num_checkpoint_start: int = 0
    num_checkpoint_start_failed: int = 0
    num_checkpoint_end: int = 0
    num_checkpoint_end_failed: int = 0
    num_unknown: int = 0

    def count(self, opcode: int, *, failed: bool) -> None:
        """Count a message of 0x41 to 0x47."""
        name = _NAMES[opcode][failed]
        setattr(self, name, getattr(self, name) + 1)

    def add(self, other: PushCounters) -> None:
        """Add another connection's counters."""
        for name, number in other.rows():
            setattr(self, name, getattr(self, name) + number)

    def rows(self) -> list[tuple[str, int]]:
        """Return names and numbers, in ep-engine's spelling."""
        return [(each.name, getattr(self, each.name)) for each in fields(self)]


_NAMES: dict[int, tuple[str, str]] = {
    opcode: (f"num_{word}", f"num_{word}_failed")
    for opcode, word in (
        (Opcode.TAP_MUTATION, "mutation"),
        (Opcode.TAP_DELETE, "delete"),
        (Opcode.TAP_FLUSH, "flush"),
        (Opcode.TAP_OPAQUE, "opaque"),
        (Opcode.TAP_VBUCKET_SET, "vbucket_set"),
        (Opcode.TAP_CHECKPOINT_START, "checkpoint_start"),
        (Opcode.TAP_CHECKPOINT_END, "checkpoint_end"),
    )
}


class Pusher(Protocol):
    """One connection.

    Attributes:
        name: for statistics; nobody tells a name when he pushes.
        counters: its messages.
    """

    name: str
    counters: PushCounters


class Pushes:
    """All connections that push into this node by TAP.

    One for each node; connections are bounded by its listeners.

    Attributes:
        pushers: connections that have pushed something and are open, oldest first.
        past: what was counted by those that are gone.
        connections: how many there have been.
    """

    def __init__(self) -> None:
        self.pushers: list[Pusher] = []
        self.past = PushCounters()
        self.connections = 0
        self._closed: dict[int, tuple[int, int]] = {}

    def join(self, pusher: Pusher) -> None:
        """Take a connection in and give it a name."""
        self.connections += 1
        pusher.name = f"push_{self.connections}"
        self.pushers.append(pusher)

    def leave(self, pusher: Pusher) -> None:
        """Forget a connection; harmless when it is forgotten."""
        if pusher in self.pushers:
            self.pushers.remove(pusher)
            self.past.add(pusher.counters)

    @property
    def total(self) -> PushCounters:
        """What has been counted since the start."""
        total = PushCounters()
        total.add(self.past)
        for pusher in self.pushers:
            total.add(pusher.counters)
        return total

    def checkpoint_closed(self, vbucket: VBucket, checkpoint_id: int) -> None:
        """A checkpoint of the master is whole here."""
        self._closed[vbucket.id] = (vbucket.failover_log[0].uuid, checkpoint_id)

    def last_closed(self, vbucket: VBucket) -> int:
        """Return the id of the master's last checkpoint that is whole here, 0 = not known.

        A master that is told so goes on after it. It is known as long as nothing has happened to
        the vBucket in between, in this process only: what it held before a restart may not all
        have been on disk.
        """
        uuid, checkpoint_id = self._closed.get(vbucket.id, (0, 0))
        same = uuid == vbucket.failover_log[0].uuid and vbucket.state != VBucketState.ACTIVE
        return checkpoint_id if same else 0
