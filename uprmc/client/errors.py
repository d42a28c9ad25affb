"""What a consumer may be told when it cannot go on; every text says what happened and what to do.

A consumer that has once been connected does not raise when a node is gone: it dials again. It
raises what dialling again does not help.
"""

from __future__ import annotations

from collections.abc import Sequence

from uprmc.errors import UprmcError


class ClientError(UprmcError):
    """Root of what the consumer's library raises by itself."""


class MisuseError(ClientError):
    """The program asked for something that cannot be."""


# --- nodes --------------------------------------------------------------------------------------


class NodeUnavailable(ClientError):
    """No node can be used."""


class NodeUnreachable(NodeUnavailable):
    """Nobody answers there: not running, another host or port, a network between."""


class NotANode(NodeUnavailable):
    """Something answers there, and it does not speak UPR."""


class TlsFailed(NodeUnavailable):
    """One side speaks TLS and the other does not, or the certificate is not trusted."""


class OpenRefused(NodeUnavailable):
    """The node does not want to stream to us."""


class NotActive(NodeUnavailable):
    """A vBucket that was asked for is active at none of the nodes, and all of them answer."""


def not_active(vbuckets: Sequence[int], places: Sequence[str]) -> NotActive:
    """Return what says so of one or several."""
    several = len(vbuckets) > 1
    numbers = ", ".join(map(str, vbuckets[:10])) + (", ..." if len(vbuckets) > 10 else "")
    return NotActive(
        f"vBucket{'s' * several} {numbers} {'are' if several else 'is'} active at none of "
        f"{', '.join(places)}: name the node that has {'them' if several else 'it'}, or leave "
        f"{'them' if several else 'it'} out"
    )


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
            f"vBucket {vbucket}: {reason}; going on means to undo what came after seqno {seqno} "
            f"of {held_seqno}: allow it with on_rollback='auto', or begin anew"
        )
        self.vbucket = vbucket
        self.held_seqno = held_seqno
        self.seqno = seqno
        self.reason = reason


class WaitedTooLong(ClientError):
    """What was waited for has not happened in time."""
