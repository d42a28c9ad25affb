"""What a consumer can tell about itself, in numbers."""

from __future__ import annotations

from typing import NamedTuple


class VBucketMetrics(NamedTuple):
    """One vBucket.

    Attributes:
        node: whom it is streamed from, ``""`` = nobody at present.
        seqno: last change that was handed over.
        whole_seqno: end of the last snapshot that was handed over completely.
        lag_items: seqnos between that and the node's newest, as it told last.
        lag_bytes: the same in bytes, by the average size of what has come.
        lag_s: seconds since we were level with the node, 0 = we are.
        ring_covers_seqnos: so far back a rollback can be undone key by key.
        rollbacks: times that the node sent us back.
        restarts: times that we began anew from zero.
        undone: keys whose changes were undone.
        items: changes that were handed over.
        refusal: why it is not streamed, in the words of the node that refuses, ``""`` = it is, or
            nobody has refused.
    """

    node: str
    seqno: int
    whole_seqno: int
    lag_items: int
    lag_bytes: int
    lag_s: float
    ring_covers_seqnos: int
    rollbacks: int
    restarts: int
    undone: int
    items: int
    refusal: str = ""


class NodeMetrics(NamedTuple):
    """One node.

    Attributes:
        connected: whether streams can be asked for.
        attempts: dialled in vain since the last good connection.
        last_error: why the last connection ended or did not come about, ``""`` = never.
        items: changes received on this connection.
        bytes: bytes received on this connection.
    """

    connected: bool
    attempts: int
    last_error: str
    items: int
    bytes: int


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
