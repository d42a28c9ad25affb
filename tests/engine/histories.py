"""Peers with plain lists of writes: they write, follow one another, crash, and take over.

Each peer keeps two lists: what it was really sent (a snapshot brings only the newest version of a
key), and the whole history that its last complete state stands for.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import NamedTuple

from uprmc.engine.failover_log import branched, last_complete_seqno, new_log
from uprmc.model import SEQNO_MAX, FailoverLog, SnapshotRange
from uprmc.rollback import ConsumerPosition, VBucketHoldings, check_range, check_versions

PEERS = 4
#: Small, so that logs lose their oldest entries too.
LOG_LIMIT = 4

Decide = Callable[[ConsumerPosition, VBucketHoldings], int | None]


class Write(NamedTuple):
    """One accepted change; no two are equal. `value` is ``None`` for a deletion."""

    uuid: int
    seqno: int
    key: str
    value: int | None


class Peer:
    """A node or a consumer: it differs only in whether it may write.

    Attributes:
        sent: what it holds, by rising seqno, without what a snapshot left out.
        history: every write that its last complete state stands for, left out or not.
        boundaries: seqnos at which it held a complete state; it can go back to those.
    """

    def __init__(self, log_limit: int) -> None:
        self.sent: list[Write] = []
        self.history: list[Write] = []
        self.boundaries = [0]
        self.snapshot = SnapshotRange(0, 0)
        self.log: FailoverLog = ()
        self.purge_seqno = 0
        self.active = False
        self.log_limit = log_limit

    @property
    def high_seqno(self) -> int:
        return self.sent[-1].seqno if self.sent else 0

    @property
    def held(self) -> VBucketHoldings:
        return VBucketHoldings(self.log, self.high_seqno, self.purge_seqno)

    def position(self, *, every_version: bool) -> ConsumerPosition:
        """What it asks with; a consumer that falls back forgets younger branches."""
        uuid = self.log[0].uuid if self.log else 0
        versions = self.log if every_version else ()
        return ConsumerPosition(self.high_seqno, self.snapshot, uuid, versions)

    def documents(self) -> dict[str, int]:
        newest = {write.key: write.value for write in self.sent}
        return {key: value for key, value in newest.items() if value is not None}

    # --- as a node ------------------------------------------------------------------------------

    def take_over(self, uuid: int) -> None:
        """Become active after an unclean event: what is half received stays, as a new branch."""
        complete = last_complete_seqno(self.high_seqno, self.snapshot)
        self.log = branched(self.log, uuid, complete, self.log_limit) if self.log else new_log(uuid)
        kept = [write for write in self.sent if write.seqno > complete]
        self.history = upto(self.history, complete) + kept
        self.active = True
        self._settle()

    def write(self, key: str, value: int | None) -> None:
        write = Write(self.log[0].uuid, self.high_seqno + 1, key, value)
        self.sent.append(write)
        self.history.append(write)
        self._settle()

    def changes_after(self, seqno: int) -> list[Write]:
        """The newest version of each key, without dropped tombstones."""
        newest = {write.key: write for write in self.sent}
        return sorted(
            (
                write
                for write in newest.values()
                if write.seqno > seqno
                and (write.value is not None or write.seqno > self.purge_seqno)
            ),
            key=lambda write: write.seqno,
        )

    # --- as a consumer --------------------------------------------------------------------------

    def fall_back(self, point: int) -> None:
        """Go back to the newest own boundary that is not above `point` (reference 3.4)."""
        seqno = max(boundary for boundary in self.boundaries if boundary <= point)
        self.boundaries = [boundary for boundary in self.boundaries if boundary <= seqno]
        self.sent = upto(self.sent, seqno)
        self.history = upto(self.history, seqno)
        self.log = tuple(entry for entry in self.log if entry.seqno <= seqno) if seqno else ()
        self.snapshot = SnapshotRange(seqno, seqno)
        if seqno == 0:
            self.purge_seqno = 0

    def receive(self, server: Peer, count: int) -> None:
        """Take the log, a marker, and up to `count` items of the snapshot."""
        self.log = server.log
        self.purge_seqno = max(self.purge_seqno, server.purge_seqno)
        items = server.changes_after(self.high_seqno)
        if not items:
            return
        self.snapshot = SnapshotRange(self.snapshot.start, server.high_seqno)
        self.sent.extend(items[:count])
        if count >= len(items):
            self.history = list(server.history)
            self._settle()

    def _settle(self) -> None:
        self.snapshot = SnapshotRange(self.high_seqno, self.high_seqno)
        if self.high_seqno not in self.boundaries:
            self.boundaries.append(self.high_seqno)


def upto(writes: list[Write], seqno: int) -> list[Write]:
    return [write for write in writes if write.seqno <= seqno]


def copy_of(peer: Peer) -> Peer:
    other = Peer(peer.log_limit)
    other.__dict__.update(peer.__dict__)
    for name in ("sent", "history", "boundaries"):
        setattr(other, name, list(getattr(peer, name)))
    return other


def follow(peer: Peer, server: Peer, decide: Decide, *, every_version: bool) -> None:
    """Ask and fall back until told to go on; every answer must be lower than what was asked."""
    while True:
        position = peer.position(every_version=every_version)
        check_range(position, SEQNO_MAX)
        check_versions(position, server.log_limit)
        point = decide(position, server.held)
        if point is None:
            return
        assert point < position.start_seqno, "asking again would not end"
        peer.fall_back(point)


def judge_a_prefix(peer: Peer, server: Peer) -> None:
    """What a peer goes on from is the beginning of the server's history, write by write."""
    complete = last_complete_seqno(peer.high_seqno, peer.snapshot)
    assert upto(peer.history, complete) == upto(server.history, complete)
    for write in peer.sent:
        assert write.seqno <= complete or write in server.history


class World:
    """Some peers, of which any number may be active; every step of a story changes something."""

    def __init__(
        self, random: Random, decide: Decide, *, purging: bool, whole: bool = False
    ) -> None:
        self.random = random
        self.portions = [SEQNO_MAX] if whole else [SEQNO_MAX, SEQNO_MAX, 0, 1, 2, 3]
        self.log_limit = 1_000 if whole else LOG_LIMIT
        self.decide = decide
        self.steps: list[Callable[[], None]] = [self.write] * 6 + [self.stream] * 8
        self.steps += [self.take_over, self.crash_and_lose]
        if purging:
            self.steps.append(self.purge)
        self.stamp = 0
        self.peers = [Peer(self.log_limit) for _ in range(PEERS)]
        self.peers[0].take_over(self.fresh())

    def tell(self, steps: int) -> None:
        for _ in range(steps):
            self.random.choice(self.steps)()

    def fresh(self) -> int:
        self.stamp += 1
        return self.stamp

    def one(self, *, active: bool) -> Peer:
        """Any peer of that kind; a replica is promoted, or any other demoted, if there is none."""
        among = [peer for peer in self.peers if peer.active is active]
        if among:
            return self.random.choice(among)
        peer = self.random.choice(self.peers)
        if active:
            peer.take_over(self.fresh())
        else:
            peer.active = False
        return peer

    def write(self) -> None:
        peer = self.one(active=True)
        for _ in range(self.random.randint(1, 4)):
            value = self.fresh() if self.random.random() < 0.6 else None
            peer.write(self.random.choice("abcde"), value)

    def stream(self) -> None:
        server = self.one(active=True)
        peer = self.random.choice([peer for peer in self.peers if peer is not server])
        peer.active = False
        judge_that_versions_never_hurt(peer, server, self.decide)
        follow(peer, server, self.decide, every_version=self.random.random() < 0.5)
        judge_a_prefix(peer, server)
        judge_that_nothing_is_omitted(peer, server)
        peer.receive(server, self.random.choice(self.portions))

    def take_over(self) -> None:
        self.one(active=False).take_over(self.fresh())

    def crash_and_lose(self) -> None:
        """An active peer comes back in an earlier state; what it told others stands there."""
        peer = self.one(active=True)
        back = [seqno for seqno in peer.boundaries if seqno >= peer.purge_seqno][-4:]
        log = peer.log
        if back:
            peer.fall_back(self.random.choice(back))
        peer.log = log
        peer.take_over(self.fresh())

    def purge(self) -> None:
        peer = self.one(active=True)
        peer.purge_seqno = max(peer.purge_seqno, peer.high_seqno - self.random.randint(1, 3))


def judge_that_nothing_is_omitted(peer: Peer, server: Peer) -> None:
    caught_up = copy_of(peer)
    caught_up.receive(server, SEQNO_MAX)
    assert caught_up.documents() == server.documents()


def judge_that_versions_never_hurt(peer: Peer, server: Peer, decide: Decide) -> None:
    one, every = copy_of(peer), copy_of(peer)
    follow(one, server, decide, every_version=False)
    follow(every, server, decide, every_version=True)
    assert every.high_seqno >= one.high_seqno
