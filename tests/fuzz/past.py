"""What really happened in one vBucket of a node that exists only here: plain dicts, no `uprmc`.

Histories branch at will, deletions are purged at will. Who asks is told the truth: where it may go
on, and what it then has to be sent.

Source: UPR reference, section 3.
"""

from __future__ import annotations

from random import Random
from typing import NamedTuple

Log = list[tuple[int, int]]

KEYS = [b"k%d" % number for number in range(12)]


class Version(NamedTuple):
    """One version; `value` is None of one that is deleted, `life` says how."""

    seqno: int
    key: bytes
    value: bytes | None
    rev: int
    cas: int
    flags: int
    expiry: int
    life: int


class Past:
    """See the module docstring.

    Attributes:
        log: (vb_uuid, seqno), newest first.
        versions: all of this history, by rising seqno, but deletions that were purged.
        high: the last seqno.
        purged: deletions up to here may be gone.
        active: whether the vBucket is active here.
    """

    def __init__(self, random: Random, number: int) -> None:
        self.random = random
        self.number = number
        self.active = True
        self.start_over()

    def start_over(self) -> None:
        """Begin a history that has nothing to do with the one before."""
        self.log: Log = [(self._uuid(), 0)]
        self.versions: list[Version] = []
        self.high = self.purged = 0

    def _uuid(self) -> int:
        return self.random.getrandbits(48) or 1

    def write(self, count: int) -> None:
        """Let clients change documents."""
        for _ in range(count):
            random, key = self.random, self.random.choice(KEYS)
            before = self.newest().get(key)
            rev = before.rev + 1 if before else 1
            self.high += 1
            cas = 1_000 * self.high + random.randrange(1_000)
            value = random.randbytes(random.choice((0, 5, 40, 300)))
            now = random.choice((0, 0, 2_000_000_000))
            alive = Version(self.high, key, value, rev, cas, random.getrandbits(32), now, 0)
            if random.random() < 0.3:
                alive = alive._replace(value=None, flags=0, expiry=1_705_320_000, life=1)
            self.versions.append(alive)

    def branch(self) -> None:
        """Lose the end of this history, and go on with another one."""
        if self.high <= self.purged:
            return
        self.high = self.random.randint(max(self.purged + 1, self.high // 2), self.high)
        self.versions = [version for version in self.versions if version.seqno <= self.high]
        kept = [entry for entry in self.log if entry[1] <= self.high]
        self.log = [(self._uuid(), self.high), *kept][:25]

    def purge(self) -> None:
        """Drop old deletions, as a compaction does; never the newest change of all."""
        deaths = [version for version in self.newest().values() if version.life]
        limit = self.random.randint(0, self.high)
        gone = {version.key for version in deaths if version.seqno <= limit < self.high}
        if gone:
            self.purged = max(self.purged, limit)
            self.versions = [version for version in self.versions if version.key not in gone]

    # --- what is so -----------------------------------------------------------------------------

    def newest(self, upto: int = 2**64) -> dict[bytes, Version]:
        """Return the newest version of each key at a seqno, tombstones too."""
        return {version.key: version for version in self.versions if version.seqno <= upto}

    def documents(self) -> dict[bytes, Version]:
        """Return what is alive."""
        return {key: version for key, version in self.newest().items() if not version.life}

    def changes(self, after: int) -> list[Version]:
        """Return each key's newest version above a seqno, by rising seqno."""
        newest = self.newest()
        return sorted(version for version in newest.values() if version.seqno > after)

    def rollback(self, start: int, low: int, end: int, known: Log) -> int | None:
        """Return where one must go back to that holds `start`; ``None`` = it may go on.

        Args:
            start: the last seqno it has.
            low, end: of the snapshot that it lies in.
            known: its failover log, or the newest entry of it.
        """
        if not start:
            return None
        if start < self.purged:
            return 0
        shared = self._shared(known)
        if shared is None:
            return 0
        if start in (low, end):
            low = end = start
        return None if end <= shared else min(low, shared)

    def _shared(self, known: Log) -> int | None:
        ours = {uuid: place for place, (uuid, _) in enumerate(self.log)}
        for place, (uuid, _) in enumerate(known):
            if uuid in ours:
                mine = ours[uuid]
                our_end = self.log[mine - 1][1] if mine else self.high
                return min(our_end, known[place - 1][1]) if place else our_end
        return None
