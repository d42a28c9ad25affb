"""Judges of replicas: what a command answered is true, and everybody ends equal.

They share no code with `uprmc`. What each node holds at every moment is judged in `truth`.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from tests.sim import codec
from tests.sim.codec import ACTIVE, DEAD
from tests.sim.judges import LIVE, Record, complain, last_complete
from tests.sim.net import FAST, Link, Net, address
from tests.sim.node import Node
from tests.sim.truth import Histories


class HandOverJudge:
    """What a takeover or a failover promised is on disk when it is answered."""

    def __init__(self, net: Net, histories: Histories) -> None:
        self._net = net
        self._histories = histories
        self._lives: dict[str, int] = {}

    def begins(self, numbers: Iterable[int]) -> None:
        """A takeover is asked for."""
        self._lives = {node.name: node.life for node in self._net.nodes.values()}

    def answered(self, number: int, source: str, target: str, outcome: int) -> None:
        """A takeover has this outcome, says the target."""
        truth = self._histories.node(target).now(number)
        if outcome != codec.TAKEN:
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
        node = self._net.nodes[address(source)]
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
        node = self._net.nodes[address(name)]
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
        node = self._net.nodes[address(name)]
        header, _ = node.store_judge.newest.vbuckets.get(number, (None, {}))
        if header is None or int(header.state) != ACTIVE:
            complain(f"{name}: vBucket {number} {what}, but on disk it is {header}")
        log = self._histories.node(name).now(number).log
        if log and header.failover_log[0].uuid != log[0][0]:
            complain(f"{name}: vBucket {number} {what}, but its history is not on disk: {header}")
        return header

    def _same_life(self, name: str) -> bool:
        node = self._net.nodes[address(name)]
        return node.serving and self._lives.get(name) == node.life


# --- at rest --------------------------------------------------------------------------------------


def stored(node: Node, number: int) -> tuple[object, dict[bytes, Record]]:
    """Return what is on a node's disk of a vBucket."""
    header, records = node.store_judge.newest.vbuckets.get(number, (None, {}))
    if header is None:
        complain(f"{node.name} has no vBucket {number} on disk")
    return header, records


def judge_equal(active: Node, replica: Node, number: int) -> None:
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


# --- terms ----------------------------------------------------------------------------------------


_TERMS = 0x5501
_PRODUCER = 1


class _Seen(NamedTuple):
    term: int
    known: int
    active: bool


class TermJudge:
    """Terms in the simulation of replicas: who is told of a promotion, and what must be true of
    terms.

    They share no code with `uprmc`. A `Herald` comes to a node as a client would that has seen a
    later promotion of the same history; the judge holds the node to it from the answer on.

    Source: ``docs/extensions.md``, "Terms".
    """

    def __init__(self) -> None:
        # promotions: how many it has seen; deposed: of how many vBuckets a node was told that it
        # was deposed
        self.promotions = self.deposed = 0
        self._seen: dict[tuple[str, int], _Seen] = {}
        self._judged: dict[tuple[str, int], tuple[object, ...]] = {}  # nothing has changed since
        self._told: dict[tuple[str, int], int] = {}
        self._branches: set[tuple[int, int]] = set()
        self._began: dict[tuple[int, int], int] = {}

    def came_up(self, name: str, stored: Mapping[int, tuple[Any, Any]], found: Any) -> None:
        """A node has started: its terms are those of its disk, whatever ended it."""
        for each in [key for key in self._seen if key[0] == name]:
            del self._seen[each]
            self._told.pop(each, None)
            self._judged.pop(each, None)
        for vbucket in found:
            header = stored.get(vbucket.id, (None, None))[0]
            if header is not None and (vbucket.term, vbucket.known_term) != (
                header.term,
                header.known_term,
            ):
                complain(
                    f"{name}: vBucket {vbucket.id} has the term {vbucket.term} after a restart, "
                    f"and {header} on disk"
                )

    def told(self, name: str, number: int, term: int) -> None:
        """A node was told of a promotion of its own history, and has answered."""
        seen = self._seen.get((name, number))
        if seen is not None and seen.term < term:
            self.deposed += (name, number) not in self._told
            self._told[name, number] = term
            self._judged.pop((name, number), None)

    def look(self, name: str, vbuckets: Iterable[Any]) -> None:
        """Judge what a node has now."""
        for vbucket in vbuckets:
            number, state = vbucket.id, vbucket.state
            shown = (state, vbucket.term, vbucket.known_term, vbucket.failover_log)
            if self._judged.get((name, number)) == shown:
                continue
            self._judged[name, number] = shown
            now = _Seen(vbucket.term, vbucket.known_term, int(state) == codec.ACTIVE)
            before = self._seen.get((name, number))
            if before is not None and before != now:
                self._changed(name, vbucket, before, now)
            self._seen[name, number] = now
            if now.active and now.term < max(now.known, self._told.get((name, number), 0)):
                complain(f"{name}: vBucket {number} is active in {now} and was told of more")
            self._judge_log(name, vbucket)

    def _changed(self, name: str, vbucket: Any, before: _Seen, now: _Seen) -> None:
        what = f"{name}: vBucket {vbucket.id} goes from {before} to {now}"
        if now.known < before.known:
            complain(f"{what}: what was known is forgotten")
        if now.active and not before.active:
            self.promotions += 1
            if now.term <= max(before.term, before.known):
                complain(f"{what}: a promotion is not above all that was known")
            branch = (vbucket.id, vbucket.failover_log[0].uuid)
            if branch not in self._branches:  # a hand-over goes on with the one that there is
                self._began[branch] = now.term
        elif now.active and now.term != before.term:
            complain(f"{what}: a term changed without a promotion")

    def _judge_log(self, name: str, vbucket: Any) -> None:
        """Who has the history of a promotion has its term, or a later one."""
        for entry in vbucket.failover_log:
            branch = (vbucket.id, entry.uuid)
            self._branches.add(branch)
            term = self._began.get(branch, 0)
            if vbucket.term < term:
                complain(
                    f"{name}: vBucket {vbucket.id} has the history {entry.uuid:x} of the term "
                    f"{term}, and the term {vbucket.term}"
                )


class Herald:
    """See the module docstring. It asks once for one stream and goes."""

    def __init__(self, node: Any, number: int, term: int, uuid: int) -> None:
        self._node, self._number, self._term, self._uuid = node, number, term, uuid
        self._reader = codec.FrameReader()
        self._settle: Callable[[int], None] | None = None
        self._link: Link | None = None

    def ask(self, settle: Callable[[int], None]) -> None:
        """Connect and ask; `settle` gets the status if an answer comes."""
        self._settle = settle
        self._link = self._node.connect(self, FAST, False)
        if self._link is None:
            return
        value = json.dumps({"term": self._term}).encode()
        extras = struct.pack(">IIQQQQQ", 0, 0, 0, 2**64 - 1, self._uuid, 0, 0)
        self._link.send(
            codec.frame(codec.HELLO, value=struct.pack(">H", _TERMS), vbucket=0, opaque=1)
            + codec.open_connection(b"herald", _PRODUCER, 2)
            + codec.frame(
                codec.STREAM_REQUEST, extras=extras, value=value, vbucket=self._number, opaque=3
            )
        )

    def receive(self, data: bytes) -> None:
        """Wait for the answer to the stream request, then hang up."""
        for reply in self._reader.feed(data):
            if reply.opcode == codec.STREAM_REQUEST and self._settle is not None:
                settle, self._settle = self._settle, None
                settle(reply.status)
                if self._link is not None:
                    self._link.cut()
                return

    def disconnected(self) -> None:
        self._link = None
