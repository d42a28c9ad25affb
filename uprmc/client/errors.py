"""What a consumer may raise when it cannot go on; every text says what happened and what to do.

A consumer that has once been connected does not raise when a node is gone: it dials again. It
raises what dialling again does not help.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from uprmc.remote.errors import (
    ClientError,
    NodeUnavailable,
    NodeUnreachable,
    NotForgotten,
    TlsFailed,
)
from uprmc.remote.ranges import named
from uprmc.remote.registering import Purged

__all__ = [
    "ClientError", "ConnectionLost", "DeletionsPurged", "MisuseError", "NodeUnavailable",
    "NodeUnreachable", "NotANode", "NotActive", "NotForgotten", "OpenRefused", "ProducerError",
    "RollbackRefused", "TlsFailed", "WaitedTooLong", "ended", "not_active",
]  # fmt: skip

#: An error lists so many reasons.
_REASONS_MAX = 5


class MisuseError(ClientError):
    """The program asked for something that cannot be."""


# --- nodes --------------------------------------------------------------------------------------


class NotANode(NodeUnavailable):
    """Something answers there, and it does not speak UPR."""


class OpenRefused(NodeUnavailable):
    """The node does not want to stream to us."""


class NotActive(NodeUnavailable):
    """vBuckets that were asked for can be had from none of the nodes.

    Attributes:
        vbuckets: which.
    """

    def __init__(self, text: str, vbuckets: Sequence[int] = ()) -> None:
        super().__init__(text)
        self.vbuckets = tuple(vbuckets)


def not_active(
    nowhere: Sequence[int], refused: Mapping[int, str], places: Sequence[str], silent: Sequence[str]
) -> NotActive:
    """Return what says so.

    Args:
        nowhere: vBuckets that no node has active.
        refused: those that some node has, and why it is not used or what it answered.
        places: HOST:PORT of the nodes that were asked.
        silent: why nodes did not answer.
    """
    words = []
    if nowhere or not refused:
        several = len(nowhere) != 1
        it = "them" if several else "it"
        words.append(
            f"{named(nowhere)} {'are' if several else 'is'} active at none of {', '.join(places)}: "
            f"name the node that has {it}, or leave {it} out"
        )
    if refused:
        reasons = list(dict.fromkeys(refused.values()))
        words.append(f"{named(refused)} cannot be streamed: {reasons[0]}")
        words += reasons[1:_REASONS_MAX]
        if len(reasons) > _REASONS_MAX:
            words.append(f"and {len(reasons) - _REASONS_MAX} reasons more")
    return NotActive("; ".join([*words, *silent]), sorted([*nowhere, *refused]))


class ProducerError(ClientError):
    """The node sent what no producer may send. Nothing of it was applied; the state is intact."""


class ConnectionLost(ClientError):
    """The connection ended before what was asked for had come; ask again."""


# --- positions ----------------------------------------------------------------------------------


class RollbackRefused(ClientError):
    """The node's history has left ours, and the program does not want to follow.

    Attributes:
        vbucket: whose.
        held_seqno: how far we are.
        seqno: where we would have to go back to.
        reason: why, in words.
    """

    def __init__(self, vbucket: int, held_seqno: int, seqno: int, reason: str) -> None:
        super().__init__(
            f"vBucket {vbucket}: {reason}; to continue, the changes after seqno {seqno} "
            f"(you are at {held_seqno}) must be undone: "
            "allow it with on_rollback='rewind', or start over"
        )
        self.vbucket = vbucket
        self.held_seqno = held_seqno
        self.seqno = seqno
        self.reason = reason


class DeletionsPurged(ClientError):
    """The node has purged deletions that did not come yet, and the program does not start over.

    Attributes:
        vbucket: whose.
        held_seqno: how far we are.
        purged: how far the node has purged, and what it remembers of our registration.
    """

    def __init__(self, vbucket: int, held_seqno: int, purged: Purged) -> None:
        super().__init__(
            f"vBucket {vbucket}: deletions after seqno {held_seqno}, where you are, are {purged}; "
            "to continue, everything must come again: allow it with on_purged='restart'"
        )
        self.vbucket = vbucket
        self.held_seqno = held_seqno
        self.purged = purged


class WaitedTooLong(ClientError):
    """What was waited for has not happened in time."""


def ended(place: str, why: str, *, doubtful: bool) -> ClientError:
    """Return what to say of a connection that has ended.

    Args:
        place: of the node.
        why: in words.
        doubtful: without TLS, and nothing has come that a node would say: it may be no listener
            for us.
    """
    if not doubtful:
        return ConnectionLost(f"the connection to the node at {place} ended: {why}")
    words = f"the connection to the node at {place} ended: {why}; does its listener speak TLS?"
    return ConnectionLost(words).doubting(place)
