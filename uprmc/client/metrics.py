"""What a consumer can tell about itself, in numbers."""

from __future__ import annotations

from typing import NamedTuple


class VBucketMetrics(NamedTuple):
    """One vBucket."""

    node: str  # whom it is streamed from, ``""`` = no node at present
    seqno: int  # last change that was handed over
    whole_seqno: int  # end of the last snapshot that was handed over completely
    lag_items: int  # seqnos between that and the node's newest, as it said last
    lag_bytes: int  # the same in bytes, by the average size of what has come
    lag_s: float  # seconds since we were level with the node, 0 = we are
    ring_covers_seqnos: int  # so far back a rollback can be undone key by key
    rollbacks: int  # times that the node sent us back
    restarts: int  # times that we began again from zero
    undone: int  # keys whose changes were undone
    items: int  # changes that were handed over
    # why it is not streamed, in the words of the node that refuses, ``""`` = it is, or no
    # node has refused.
    refusal: str = ""


class NodeMetrics(NamedTuple):
    """One node."""

    connected: bool  # whether streams can be asked for
    attempts: int  # dialled in vain since the last good connection
    last_error: str  # why the last connection ended or did not come about, ``""`` = never
    items: int  # changes received on this connection
    bytes: int  # bytes received on this connection


class Metrics(NamedTuple):
    """All of it: by vBucket number, by HOST:PORT, and the sums."""

    vbuckets: dict[int, VBucketMetrics]
    nodes: dict[str, NodeMetrics]

    @property
    def lag_items(self) -> int:
        """How far we are behind, over all vBuckets."""
        return sum(each.lag_items for each in self.vbuckets.values())

    @property
    def lag_bytes(self) -> int:
        """The same in bytes, roughly."""
        return sum(each.lag_bytes for each in self.vbuckets.values())

    @property
    def lag_s(self) -> float:
        """The longest time since a vBucket was level with its node."""
        return max((each.lag_s for each in self.vbuckets.values()), default=0.0)
