"""What was accepted where, in all clusters: the books of the judges of links.

After each step of the world each node's vBuckets are looked at. A version that came from elsewhere
says where it was first accepted; any other one was accepted there. So every version has one name,
its origin, and must look the same wherever it is found. Which of two versions is to survive is
told by a table of our own.

A node's failover log may be trimmed, so names do not depend on what it shows at present: each
history is noted when a log shows it first (`Histories`).

Nothing of this shares code with `uprmc`. Source: systems reference b.3; contracts, section 3.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.sim.judges import ACTIVE, Record, complain

Origin = tuple[int, int]
Name = tuple[int, int, bool]
Log = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Version:
    """One version of a document, as it is everywhere."""

    key: bytes
    rev: int
    cas: int
    expiry: int
    flags: int
    deleted: bool
    value: bytes
    origin: Origin

    @property
    def content(self) -> tuple[object, ...]:
        """Return all but its name."""
        return self.rev, self.cas, self.expiry, self.flags, self.deleted, self.value


def rank(version: Version, *, by_time: bool) -> tuple[object, ...]:
    """Return what decides between two versions of a key: the larger one survives."""
    first = (version.cas, version.rev) if by_time else (version.rev, version.cas)
    return (*first, version.expiry, version.flags, version.origin)


def origin_at(log: Log, seqno: int) -> Origin:
    """Return the name of what was accepted under a seqno, by the log of there, newest first."""
    for uuid, began in log:
        if began < seqno:
            return uuid, seqno
    return log[-1][0], seqno


def is_kept(origin: Origin, log: Log) -> bool:
    """Tell whether a history still contains what was accepted under a name of it."""
    upper: int | None = None
    for uuid, began in log:
        if uuid == origin[0]:
            return upper is None or origin[1] <= upper
        upper = began
    return False


def _shared(log: Log, both: set[tuple[int, int]]) -> int:
    """Return the place of the newest entry that two histories share."""
    return next((place for place, entry in enumerate(log) if entry in both), len(log))


class Histories:
    """All branches that any log has ever shown, each with everything that came before it.

    A log keeps a limited number of branches. What is older than all of them is sent with the name
    of the oldest one that is kept, so the same version may come under several names.
    """

    def __init__(self) -> None:
        self._logs: dict[int, Log] = {}

    def whole(self, log: Log) -> Log:
        """Return a log with the branches that it does not keep any more."""
        found: Log = ()
        for entry in reversed(log):
            found = self._logs.setdefault(entry[0], (entry, *found))
        return found

    def name(self, origin: Origin) -> Origin:
        """Return the name of what is said to come from here or there."""
        uuid, seqno = origin
        log = self._logs.get(uuid)
        return origin if log is None else origin_at(log, seqno)


class Book:
    """One vBucket of one node: its versions in the order of their seqnos, over all its lives.

    Attributes:
        log, high: its whole history and high seqno, as last seen.
        kept: the branches that its node still knows.
        held: by key, seqno and version of all that it has had in this history, newest last; not
            the deletions that it has dropped.
        purged: deletions that were dropped since somebody asked.
        gone: by key, all deletions that it has ever dropped.
        deleted_at: by key, the highest seqno that a deletion of it has ever had.
    """

    def __init__(
        self, known: dict[bytes, dict[Name, Version]], histories: Histories, where: str
    ) -> None:
        self.log: Log = ()
        self.kept: Log = ()
        self.high = 0
        self.held: dict[bytes, list[tuple[int, Version]]] = {}
        self.purged: list[Version] = []
        self.gone: dict[bytes, list[Version]] = {}
        self.deleted_at: dict[bytes, int] = {}
        self._known, self._histories = known, histories
        self._where = where
        self._stored: object = None

    def look(self, vbucket: Any, stored: Any) -> bool:
        """Look at it, and at what the disk has; return whether anything has changed."""
        high, newest = vbucket.high_seqno, stored.get(vbucket.id)
        if high == self.high and newest is self._stored and vbucket.failover_log is self._seen:
            return False
        self.kept = tuple((entry.uuid, entry.seqno) for entry in vbucket.failover_log)
        log = self._histories.whole(self.kept)
        bound = self.high
        renewed = log != self.log
        if renewed:
            both = set(log) & set(self.log)
            bound = min(
                [
                    bound,
                    *(
                        began
                        for each in (log, self.log)
                        for _, began in each[: _shared(each, both)]
                    ),
                ]
            )
        if min(bound, high) < self.high:
            self._cut(min(bound, high))
        self.log, self._seen = log, vbucket.failover_log
        if high != self.high or bound < high:
            self._scan(vbucket, newest, min(bound, high), renewed=renewed)
        self.high = high
        if newest is not self._stored:
            self._stored = newest
            if newest is not None:
                self._miss(*newest)
        return True

    _seen: object = None

    def _cut(self, seqno: int) -> None:
        """Forget what has gone from its history."""
        for key, versions in list(self.held.items()):
            self.held[key] = [each for each in versions if each[0] <= seqno]

    def _scan(self, vbucket: Any, newest: Any, after: int, *, renewed: bool) -> None:
        """Take note of what came after a seqno; in another history deletions are on disk only.

        What the disk has above the high seqno is of a history that was left, and goes with the next
        commit.
        """
        found = list(map(Record.of, vbucket.table.versions()))
        is_other = renewed or after < self.high
        if newest is not None and is_other and int(vbucket.state) == ACTIVE:
            found += newest[1].values()
        for record in sorted(found, key=lambda each: each.seqno):
            if after < record.seqno <= vbucket.high_seqno:
                self._add(record)

    def _add(self, record: Record) -> None:
        if record.value is None and not record.life:
            return
        deleted = bool(record.life)
        version = Version(
            record.key,
            record.rev,
            record.cas,
            0 if deleted else record.expiry,
            0 if deleted else record.flags,
            deleted,
            b"" if deleted else record.value or b"",
            self._histories.name(record.origin)
            if record.origin
            else origin_at(self.log, record.seqno),
        )
        # A deletion by `uprmc xdcr reconcile` has the origin of what it deletes.
        name = *version.origin, deleted
        known = self._known.setdefault(record.key, {}).setdefault(name, version)
        if known.content != version.content:
            complain(f"{self._where}: {version} has the origin of {known}")
        versions = self.held.setdefault(record.key, [])
        if not versions or versions[-1][0] < record.seqno:
            versions.append((record.seqno, version))
        if deleted:
            self.deleted_at[record.key] = max(record.seqno, self.deleted_at.get(record.key, 0))

    def _miss(self, header: Any, records: dict[bytes, Record]) -> None:
        """Take note of deletions that the disk has dropped."""
        for key, version in self.now():
            seqno = self.held[key][-1][0]
            if version.deleted and seqno <= header.high_seqno and key not in records:
                del self.held[key]
                self.purged.append(version)
                self.gone.setdefault(key, []).append(version)

    def deleted_after(self, seqno: int) -> list[bytes]:
        """Return the keys of which it has or had deletions above a seqno."""
        return [key for key, at in self.deleted_at.items() if at > seqno]

    def had_after(self, key: bytes, seqno: int) -> Iterator[Version]:
        """Return versions of a key that came after a seqno."""
        for at, version in self.held.get(key, ()):
            if at > seqno:
                yield version

    def now(self) -> Iterator[tuple[bytes, Version]]:
        """Return the newest version of each key, deletions included that are not dropped."""
        for key, versions in list(self.held.items()):
            if versions:
                yield key, versions[-1][1]

    def get(self, key: bytes) -> Version | None:
        """Return the newest version of a key, if there is one."""
        versions = self.held.get(key)
        return versions[-1][1] if versions else None

    def upto(self, seqno: int, end: int) -> Iterator[Version]:
        """Return the newest version of each key up to a seqno.

        A version is left out that has a newer one up to `end`: within a snapshot only that is sent.
        """
        for versions in self.held.values():
            before = [each for each in versions if each[0] <= end]
            if before and before[-1][0] <= seqno:
                yield before[-1][1]


@dataclass(slots=True)
class Truth:
    """All books.

    Attributes:
        by_time: the policy is `timestamp`.
        known: by key and name, each version that was ever accepted anywhere.
        books: by node and vBucket.
        histories: of all vBuckets.
    """

    by_time: bool
    known: dict[bytes, dict[Name, Version]] = field(default_factory=dict)
    books: dict[tuple[str, int], Book] = field(default_factory=dict)
    histories: Histories = field(default_factory=Histories)

    def book(self, name: str, number: int) -> Book:
        """Return the book of a vBucket of a node."""
        found = self.books.get((name, number))
        if found is None:
            found = self.books[name, number] = Book(self.known, self.histories, f"{name}/{number}")
        return found

    def rank(self, version: Version) -> tuple[object, ...]:
        """See `rank`."""
        return rank(version, by_time=self.by_time)

    def newest(self, versions: Iterable[Version]) -> Version | None:
        """Return which version survives."""
        return max(versions, key=self.rank, default=None)

    def has_had(self, book: Book, version: Version) -> bool:
        """Tell whether a vBucket has a version, or a newer one, or has dropped one."""
        found = book.get(version.key)
        all_of_them = [*book.gone.get(version.key, ()), *([] if found is None else [found])]
        return any(self.rank(each) >= self.rank(version) for each in all_of_them)

    def is_deleted(self, book: Book, version: Version) -> bool:
        """Tell whether a vBucket has, or had, a deletion that is newer than a version."""
        held = (each for _, each in book.held.get(version.key, ()) if each.deleted)
        deleted = [*book.gone.get(version.key, ()), *held]
        return any(self.rank(each) > self.rank(version) for each in deleted)
