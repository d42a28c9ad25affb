"""What the verbs that operate replicas ask of a node, and what it says about its replication."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple, Self

from uprmc.client.connection import NodeConnection, NodeError
from uprmc.model import VBucketState
from uprmc.protocol.header import RequestFrame, ResponseFrame
from uprmc.protocol.management import GET_VBUCKET_REPLY
from uprmc.protocol.opcodes import Opcode, Status
from uprmc.protocol.replication import REPLICATE_EXTRAS, ReplicateFlag, encode_vbuckets
from uprmc.remote.ranges import named


class NodeRefusal(NodeError):
    """The node has answered, and refused."""


class Following(NamedTuple):
    """One vBucket that follows a source, as the node's statistics have it."""

    source: str
    state: str
    lag_items: int
    known: bool
    error: str

    @property
    def level(self) -> bool:
        """Whether it streams and lacks nothing that its source is known to have."""
        return self.state == "streaming" and self.known and not self.lag_items


class Standing(NamedTuple):
    """A node's replication."""

    numbers: dict[str, str]
    following: dict[int, Following]

    @classmethod
    def of(cls, connection: NodeConnection) -> Self:
        """Ask the node; raises `NodeError`."""
        numbers = dict(connection.statistics("replication"))
        found = [
            int(name.removeprefix("vb_").removesuffix(":source"))
            for name in numbers
            if name.startswith("vb_") and name.endswith(":source")
        ]
        return cls(numbers, {number: _following(numbers, f"vb_{number}") for number in found})

    @property
    def last_takeover_error(self) -> str:
        """Why the last vBucket that was not taken was not."""
        return self.numbers.get("last_takeover_error", "")

    def of_source(self, place: str, name: str) -> str:
        """Return what is said of a source, ``""`` for one that is not followed."""
        return self.numbers.get(f"source_{place}:{name}", "")

    def trouble(self, place: str, vbuckets: Iterable[int]) -> str:
        """Return why vBuckets do not stream from a source, ``""`` if nothing is known."""
        errors = {one.error for number in vbuckets if (one := self.following.get(number))}
        line = "" if self.of_source(place, "state") == "open" else "last_error"
        return (line and self.of_source(place, line)) or min(errors - {""}, default="")


def _following(numbers: dict[str, str], name: str) -> Following:
    return Following(
        numbers[f"{name}:source"],
        numbers[f"{name}:state"],
        int(numbers[f"{name}:lag_items"]),
        bool(numbers[f"{name}:source_seqno"]),
        numbers[f"{name}:error"],
    )


def states(connection: NodeConnection) -> dict[int, VBucketState]:
    """Return the state of every vBucket that the node has."""
    return {
        int(name.removeprefix("vb_")): VBucketState[state.upper()]
        for name, state in connection.statistics("vbucket")
    }


def state(connection: NodeConnection, number: int) -> VBucketState | None:
    """Return one vBucket's state, ``None`` where it is not."""
    answer = connection.ask(RequestFrame(Opcode.GET_VBUCKET, vbucket=number))
    if answer.status == Status.NOT_MY_VBUCKET:
        return None
    if answer.status:
        raise NodeError(f"{connection.place}: asking for vBucket {number}: {answer.reason}")
    try:
        return VBucketState(*GET_VBUCKET_REPLY.unpack(answer.value))
    except (struct.error, ValueError):
        raise NodeError(f"{connection.place} says {answer.value!r} of vBucket {number}") from None


def replicate(
    connection: NodeConnection, source: str, numbers: Iterable[int], flags: ReplicateFlag
) -> None:
    """Have a node follow a source, or nobody; raises `NodeError`."""
    command(
        connection,
        RequestFrame(
            Opcode.REPLICATE,
            extras=REPLICATE_EXTRAS.pack(flags),
            key=source.encode(),
            value=encode_vbuckets(numbers),
        ),
    )


def command(connection: NodeConnection, request: RequestFrame) -> ResponseFrame:
    """Ask and return the answer; a refusal is a `NodeRefusal` in the node's own words."""
    answer = connection.ask(request)
    if answer.status == Status.UNKNOWN_COMMAND:
        raise NodeRefusal(f"{connection.place} does not know this command: is it an older uprmc?")
    if answer.status:
        raise NodeRefusal(f"{connection.place}: {answer.reason}")
    return answer


def must_be_there(numbers: Iterable[int], there: Iterable[int], place: str) -> None:
    """Raise `NodeError` if some vBuckets are not on a node."""
    absent = set(numbers) - set(there)
    if absent:
        raise NodeError(f"{place} does not have {named(absent)}")
