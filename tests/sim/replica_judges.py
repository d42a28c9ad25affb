"""Judges of replicas: what a command answered is true, and everybody ends equal.

They share no code with `uprmc`. What each node holds at every moment is judged in `replica_truth`.
"""

from __future__ import annotations

from collections.abc import Iterable

from tests.sim import replica_codec as rc
from tests.sim.judges import LIVE, Record, complain, last_complete
from tests.sim.replica_node import Cluster, ReplicaNode, address
from tests.sim.replica_truth import Histories
from tests.sim.upr_codec import ACTIVE, DEAD


class HandOverJudge:
    """What a takeover or a failover promised is on disk when it is answered."""

    def __init__(self, cluster: Cluster, histories: Histories) -> None:
        self._cluster = cluster
        self._histories = histories
        self._lives: dict[str, int] = {}

    def begins(self, numbers: Iterable[int]) -> None:
        """A takeover is asked for."""
        self._lives = {node.name: node.life for node in self._cluster.nodes.values()}

    def answered(self, number: int, source: str, target: str, outcome: int) -> None:
        """A takeover has this outcome, says the target."""
        truth = self._histories.node(target).now(number)
        if outcome != rc.TAKEN:
            if truth.state == ACTIVE and self._same_life(target):
                complain(f"{target}: vBucket {number} is active, but the answer is {outcome}")
            return
        if not self._same_life(target):
            return  # it has died since; what it left on disk counts, which is judged there
        if truth.state != ACTIVE:
            complain(f"{target}: vBucket {number} was taken over, but is {truth}")
        self._on_disk(target, number, "was taken over")
        self._source_is_dead(number, source, target)
        before = self._histories.node(source).now(number).log
        if self._same_life(source) and before != truth.log:
            complain(f"vBucket {number} goes on at {target} with another history: {truth}")

    def _source_is_dead(self, number: int, source: str, target: str) -> None:
        node = self._cluster.nodes[address(source)]
        header, _ = node.store_judge.newest.vbuckets.get(number, (None, {}))
        if not node.disk.sync:
            return  # a loss of power may undo it
        if header is not None and int(header.state) == ACTIVE:
            complain(
                f"vBucket {number} was handed over from {source} to {target}; a crash of {source} "
                "now makes it active again, its death is not on disk"
            )

    def failed_over(
        self, name: str, branches: dict[int, tuple[int, int]], numbers: Iterable[int]
    ) -> None:
        """A failover was answered with these branches."""
        if sorted(branches) != sorted(numbers):
            complain(f"{name} was asked to fail over {numbers} and answers {branches}")
        node = self._cluster.nodes[address(name)]
        if not node.serving:
            return
        for number, branch in branches.items():
            stored, _ = node.store_judge.newest.vbuckets.get(number, (None, {}))
            if stored is not None and int(stored.state) == DEAD and stored.known_term > stored.term:
                continue  # deposed while the answer was on its way
            header = self._on_disk(name, number, "failed over")
            if branch not in [tuple(entry) for entry in header.failover_log]:
                complain(f"{name}: vBucket {number} failed over to {branch}; stored is {header}")

    def _on_disk(self, name: str, number: int, what: str) -> object:
        node = self._cluster.nodes[address(name)]
        header, _ = node.store_judge.newest.vbuckets.get(number, (None, {}))
        if header is None or int(header.state) != ACTIVE:
            complain(f"{name}: vBucket {number} {what}, but on disk it is {header}")
        log = self._histories.node(name).now(number).log
        if log and header.failover_log[0].uuid != log[0][0]:
            complain(f"{name}: vBucket {number} {what}, but its history is not on disk: {header}")
        return header

    def _same_life(self, name: str) -> bool:
        node = self._cluster.nodes[address(name)]
        return node.serving and self._lives.get(name) == node.life


# --- at rest --------------------------------------------------------------------------------------


def stored(node: ReplicaNode, number: int) -> tuple[object, dict[bytes, Record]]:
    """Return what is on a node's disk of a vBucket."""
    header, records = node.store_judge.newest.vbuckets.get(number, (None, {}))
    if header is None:
        complain(f"{node.name} has no vBucket {number} on disk")
    return header, records


def judge_equal(active: ReplicaNode, replica: ReplicaNode, number: int) -> None:
    """Two nodes at rest hold the same on disk: keys, metadata, seqnos, history."""
    head, theirs = stored(active, number)
    other, ours = stored(replica, number)
    for name in ("failover_log", "high_seqno"):
        if getattr(head, name) != getattr(other, name):
            complain(f"vBucket {number}: {name}: {active.name} has {head}, {replica.name} {other}")
    if last_complete(other) != other.high_seqno:  # type: ignore[attr-defined]
        complain(f"vBucket {number}: {replica.name} is not whole: {other}")
    purged = (head.purge_seqno, other.purge_seqno)  # type: ignore[attr-defined]
    for key in theirs.keys() | ours.keys():
        if not _equal(theirs.get(key), ours.get(key), purged):
            complain(
                f"vBucket {number}: {active.name} has {theirs.get(key)}, "
                f"{replica.name} {ours.get(key)}; purged {purged}"
            )


def _equal(one: Record | None, other: Record | None, purged: tuple[int, int]) -> bool:
    if one is None or other is None:
        there, limit = (other, purged[0]) if one is None else (one, purged[1])
        return there is not None and there.life != LIVE and there.seqno <= limit
    return _told(one) == _told(other)


def _told(record: Record) -> Record | tuple[object, ...]:
    if record.life == LIVE:
        return record
    return (record.key, record.cas, record.seqno, record.rev, record.life, record.expiry)
