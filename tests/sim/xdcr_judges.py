"""Judges of links: what has arrived, what each cluster holds at the end, how much was sent.

They know the clusters and the links that there are to be, and keep to the books below.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.sim.judges import ACTIVE, Record, complain

if TYPE_CHECKING:
    from tests.sim.links import Plan, Route

# --- what was accepted where ----------------------------------------------------------------------
# What was accepted where, in all clusters: the books of the judges of links.
#
# After each step of the world each node's vBuckets are looked at. A version that came from
# elsewhere says where it was first accepted; any other one was accepted there. So every version has
# one name, its origin, and must look the same wherever it is found. Which of two versions is to
# survive is told by a table of our own.
#
# A node's failover log may be trimmed, so names do not depend on what it shows at present: each
# history is noted when a log shows it first (`Histories`).
#
# Nothing of this shares code with `uprmc`. Source: systems reference b.3; contracts, section 3.


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
    """One vBucket of one node: its versions in the order of their seqnos, over all its lives."""

    def __init__(
        self, known: dict[bytes, dict[Name, Version]], histories: Histories, where: str
    ) -> None:
        self.log: Log = ()  # log, high: its whole history and high seqno, as last seen
        self.kept: Log = ()  # the branches that its node still knows
        self.high = 0
        # by key, seqno and version of all that it has had in this history, newest last; not the
        # deletions that it has dropped
        self.held: dict[bytes, list[tuple[int, Version]]] = {}
        self.purged: list[Version] = []  # deletions that were dropped since somebody asked
        self.gone: dict[bytes, list[Version]] = {}  # by key, all deletions that it has ever dropped
        # by key, the highest seqno that a deletion of it has ever had
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
    """All books."""

    by_time: bool  # the policy is `timestamp`
    # by key and name, each version that was ever accepted anywhere
    known: dict[bytes, dict[Name, Version]] = field(default_factory=dict)
    books: dict[tuple[str, int], Book] = field(default_factory=dict)  # by node and vBucket
    histories: Histories = field(default_factory=Histories)  # of all vBuckets

    def book(self, name: str, number: int) -> Book:
        """Return the book of a vBucket of a node."""
        found = self.books.get((name, number))
        if found is None:
            found = self.books[name, number] = Book(self.known, self.histories, f"{name}/{number}")
        return found

    def rank(self, version: Version) -> tuple[object, ...]:
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


# --- judges ---------------------------------------------------------------------------------------


class Bounds(NamedTuple):
    """The first and last seqno of a snapshot."""

    start: int
    end: int


class Place(NamedTuple):
    """A place in a stream."""

    seqno: int
    snapshot: Bounds


class ArrivalJudge:
    """What a link says to have arrived up to a seqno is at the target, wherever it had begun.

    So a link that begins at a checkpoint, of its own or of others, leaves out nothing that it
    would have sent if it had begun at zero: for each key that the source has up to there, the
    target has that version or a newer one, or has dropped a newer deletion.
    """

    def __init__(self, truth: Truth) -> None:
        self.counts: Counter[str] = Counter()  # what was judged, by kind
        self._truth = truth
        self._seen: dict[tuple[str, str, int], tuple[object, int]] = {}
        self._level: dict[tuple[str, str, int], tuple[object, int, int]] = {}
        self._shown: dict[tuple[str, str], object] = {}  # all of it is judged

    def look(self, node: Any, route: Route, targets: Iterable[Any], changes: int) -> None:
        """Look at the streams of a link of a node; `changes` counts those of all books."""
        link = node.xdcr.by_name.get(route.name)
        if link is None:
            return
        streams = [(each, each.through.seqno) for each in link.shipments.values()]
        shown = link, changes, streams
        if self._shown.get((node.name, route.name)) == shown:
            return
        for number, shipment in link.shipments.items():
            through = shipment.through.seqno
            place = node.name, route.name, number
            before = self._seen.get(place)
            if before is not None and before == (shipment, through):
                continue
            self._seen[place] = shipment, through
            began = before is None or before[0] is not shipment
            target = self._target(targets, shipment, number)
            if target is not None and through:
                self.counts["began elsewhere" if began else "arrived"] += 1
                self.counts["forwarded"] += (
                    began and link.resuming.forwarded_from.get(number) == through
                )
                self._judge(node, route, target, number, shipment.through)
                start = shipment.through.snapshot.start
                if start < through:  # where its source loses the rest it goes on from there
                    self._judge(node, route, target, number, Place(start, Bounds(start, start)))

        if self._judge_level(node, link, route, targets):
            self._shown[node.name, route.name] = shown

    def _judge_level(self, node: Any, link: Any, route: Route, targets: Iterable[Any]) -> bool:
        """A link that runs and has nothing left has brought everything; says whether it has."""
        is_level: bool | None = None
        for number, vbucket in node.bucket.active.items():
            shipment, place = link.shipments.get(number), (node.name, route.name, number)
            target = shipment and self._target(targets, shipment, number)
            if target is None:
                continue
            high = vbucket.high_seqno
            seen = shipment, high, self._truth.book(target.name, number).high
            if self._level.get(place) != seen:
                if is_level is None:
                    is_level = link.state == "running" and not link.progress.changes_left
                if not is_level:
                    return False
                self._level[place] = seen
                self.counts["level"] += 1
                self._judge(node, route, target, number, Place(high, Bounds(high, high)))
        return True

    def _target(self, targets: Iterable[Any], shipment: Any, number: int) -> Any:
        """Return the node that the stream goes to, unless it has lost what it had meanwhile."""
        for target in targets:
            book = self._truth.book(target.name, number)
            is_it = shipment.place.startswith(f"{target.name}:") and target.serving
            if is_it and book.log and book.log[0][0] == shipment.target_uuid:
                return target
        return None

    def _judge(self, node: Any, route: Route, target: Any, number: int, through: Any) -> None:
        theirs, truth = self._truth.book(target.name, number), self._truth
        ours = truth.book(node.name, number)
        for version in ours.upto(through.seqno, through.snapshot.end):
            if not route.lets(version.key, deleted=version.deleted):
                continue
            if not route.deletions and truth.is_deleted(ours, version):
                continue  # it was replaced by something that is not sent
            found = theirs.get(version.key)
            absent = found is None and version.deleted
            if not (absent or truth.has_had(theirs, version)):
                complain(
                    f"{node.name} says that {target.name} has everything of vBucket {number} up "
                    f"to {through.seqno}, but {version} is newer than {found}"
                )


class StopJudge:
    """A link whose source has dropped a deletion that the target lacks sends it, or stops.

    If the target has links itself, its older version may come back one day. Once the link was
    reconciled, the target has no older version any more that was first accepted at the source, in a
    branch that its failover log still names.
    """

    def __init__(self, truth: Truth) -> None:
        self._truth = truth
        self._dropped: list[tuple[Route, int, Version, int]] = []

    def dropped(self, route: Route, theirs: Book, number: int, version: Version, told: int) -> None:
        """Take note of a deletion that was dropped; `told` is how often the link had stopped."""
        if not self._truth.has_had(theirs, version):
            self._dropped.append((route, number, version, told))

    def forget(self, route: Route) -> None:
        """Take note that a link is deleted, or its node is restored: it knows nothing of before."""
        self._dropped = [each for each in self._dropped if each[0] is not route]

    def judge(self, book: Callable[[int, int], Book], told: Callable[[Route, int], int]) -> None:
        """Judge all links; `told` returns how often a link has stopped with a vBucket."""
        for route, number, version, before in self._dropped:
            theirs = book(route.target, number)
            found = theirs.get(version.key)
            is_live = found is not None and not found.deleted
            lacks = is_live and not self._truth.has_had(theirs, version)
            if lacks and self._is_lost(version, number):
                continue
            if lacks and told(route, number) == before:
                complain(f"link {route.name} has not stopped, although {found} was to be {version}")
            if lacks and is_kept(found.origin, book(route.source, number).kept):
                complain(f"the repair of {route.name} has left {found}, which was to be {version}")

    def _is_lost(self, version: Version, number: int) -> bool:
        books = (book for (_, n), book in self._truth.books.items() if n == number)
        return not any(is_kept(version.origin, book.log) for book in books)


class Exemptions:
    """Keys for which less is promised, because a deletion could not reach everybody.

    A deletion that was dropped before a link was made is not sent by it. One that was dropped in a
    cluster protects it no longer: an older version is accepted then (row X02: as long as the
    tombstone lives). Where the deletion reaches the cluster that sends such a version, that is made
    good: the deletion follows. Elsewhere it is not, nor if it was dropped before it was sent: a
    repair takes away only what was first accepted where it was deleted (see `StopJudge`). A cluster
    that gets an old copy of its disk has lost what it has deleted since. And a source that had a
    newer version when the deletion was dropped, and has lost it since, may begin again below it.
    """

    def __init__(self, truth: Truth) -> None:
        self.keys: set[bytes] = set()  # these
        self.counts: Counter[str] = Counter()  # how often which of the reasons was given
        self._truth = truth
        self._dropped: list[tuple[Version, set[int], Callable[[int], Book]]] = []

    def add(self, key: bytes, why: str) -> None:
        self.keys.add(key)
        self.counts[why] += 1

    def dropped(
        self,
        version: Version,
        sources: set[int],
        book: Callable[[int], Book],
        coming: Iterable[Version],
        *,
        unsent: bool,
    ) -> None:
        """Take note of a deletion that was dropped.

        Args:
            version: the deletion.
            sources: all clusters from which changes of the key come there, unless deletions
                come there, too, and go back.
            book: returns that of the node which is active in a cluster at the time.
            coming: versions of the key that are on their way there, from these.
            unsent: whether a link from there does not exist for now, and its target lacks it.
        """
        if unsent:
            self.add(version.key, "dropped before a link was made")
        if self._all_have(version, map(book, sources)):
            self._dropped.append((version, sources, book))
        else:
            self.add(version.key, "dropped before the sources had it")
        if any(self._truth.rank(each) < self._truth.rank(version) for each in coming):
            self.add(version.key, "dropped while older ones were under way")

    def look_back(self) -> None:
        """Exempt the keys of deletions whose sources had something newer, and have lost it."""
        for version, sources, book in self._dropped:
            if not self._all_have(version, map(book, sources)):
                self.add(version.key, "dropped, and lost by the sources")

    def _all_have(self, version: Version, books: Iterable[Book]) -> bool:
        return all(self._truth.has_had(book, version) for book in books)

    def is_lost(self, version: Version, logs: Iterable[tuple[tuple[int, int], ...]]) -> bool:
        """Tell whether no history has a version any more."""
        return not any(is_kept(version.origin, log) for log in logs)


def reaching(
    routes: Iterable[Route], cluster: int, key: bytes, *, deleted: bool = False
) -> set[int]:
    """Return the clusters whose versions of a key, or deletions, come to one; itself included."""
    found, new = {cluster}, {cluster}
    while new:
        new = {
            route.source
            for route in routes
            if route.target in new
            and route.lets(key, deleted=deleted)
            and route.source not in found
        }
        found |= new
    return found


class ShipJudge:
    """Links that wait for disks or replicas send nothing that a crash or a failover then loses."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()  # what was judged
        self._clusters: dict[int, int] = {}
        self._sent: dict[tuple[int, int], Version] = {}

    def look(self, cluster: int, book: Book) -> None:
        """Look at what a vBucket of a cluster has got from others."""
        self._clusters.update((uuid, cluster) for uuid, _ in book.log)
        for _, version in book.now():
            if self._clusters.get(version.origin[0], cluster) != cluster:
                self._sent[version.origin] = version

    def judge(self, logs: Iterable[tuple[tuple[int, int], ...]]) -> None:
        """Judge, given the histories of all vBuckets of all clusters."""
        kept = list(logs)
        for version in self._sent.values():
            self.counts["sent safely"] += 1
            if not any(is_kept(version.origin, log) for log in kept):
                complain(f"{version} was sent before its link was to send it, and is lost")


class FinalJudge:
    """At rest each cluster holds the version of each key that the table says.

    The one that is to survive in a cluster is the newest of all that were accepted there, or in a
    cluster from which links lead there that let the key pass. Changes that a cluster has lost may
    have been sent before: they may have survived, where no newer one has come; a deletion among
    them may also have taken away an older version, and have been dropped then. If the newest one
    is a deletion that no link brings, the cluster keeps one of the versions that may reach it, or
    none: that depends on which of them was sent before it was replaced.
    """

    def __init__(self, plan: Plan, truth: Truth, exempt: Exemptions) -> None:
        self._plan = plan
        self._truth = truth
        self._exempt = exempt
        self.counts: Counter[str] = Counter()

    def judge(self, books: dict[int, Callable[[int], Book]]) -> None:
        """Judge all clusters; `books` returns the active one's of a vBucket, by cluster."""
        for number in range(self._plan.vbuckets):
            self._judge({cluster: book(number) for cluster, book in books.items()})

    def _judge(self, books: dict[int, Book]) -> None:
        keys = {key for book in books.values() for key in book.held}
        logs = {cluster: book.log for cluster, book in books.items()}
        for key in sorted(keys):
            known = list(self._truth.known.get(key, {}).values())
            weak = key in self._exempt.keys
            self.counts["weakly judged" if weak else "judged"] += 1
            if weak:
                continue
            lost = [v for v in known if self._exempt.is_lost(v, logs.values())]
            unknown = set()
            for cluster, book in books.items():
                due = self._due(known, logs, cluster, key, all_deletions=False)
                newest = self._truth.newest(self._due(known, logs, cluster, key))
                if newest is None or newest in due:
                    self._judge_key(cluster, book.get(key), due, lost)
                else:
                    unknown.add(cluster)
                    self._judge_left_alone(cluster, book.get(key), due, lost)
                if self._may_be_deleted(newest, lost):
                    unknown.add(cluster)
            self._judge_equal(key, books, unknown)

    def _may_be_deleted(self, wanted: Version | None, lost: Iterable[Version]) -> bool:
        """Tell whether a deletion that is lost may have taken away what is to survive."""
        rank = self._truth.rank
        return wanted is not None and any(v.deleted and rank(v) > rank(wanted) for v in lost)

    def _due(
        self,
        known: Iterable[Version],
        logs: dict[int, tuple[tuple[int, int], ...]],
        cluster: int,
        key: bytes,
        *,
        all_deletions: bool = True,
    ) -> list[Version]:
        """Return versions that links bring to a cluster, or that is accepted there.

        Args:
            known: all versions of the key.
            logs: histories, by cluster.
            cluster: where to.
            key: of the document.
            all_deletions: whether links that leave deletions out count as if they did not.
        """
        ways = {
            deleted: reaching(
                self._plan.routes, cluster, key, deleted=deleted and not all_deletions
            )
            for deleted in (False, True)
        }
        return [
            version
            for version in known
            if any(is_kept(version.origin, logs[each]) for each in ways[version.deleted])
        ]

    def _judge_left_alone(
        self, cluster: int, found: Version | None, due: list[Version], lost: list[Version]
    ) -> None:
        self.counts["left alone"] += 1
        if found is not None and found not in due and found not in lost:
            complain(f"cluster {cluster} has {found}, which must not reach it")

    def _judge_key(
        self, cluster: int, found: Version | None, due: list[Version], lost: list[Version]
    ) -> None:
        rank, wanted = self._truth.rank, self._truth.newest(due)
        if found is None:
            if self._may_be_deleted(wanted, lost):
                self.counts["deleted by what is lost"] += 1
            elif wanted is not None and not wanted.deleted:
                complain(f"cluster {cluster} does not have {wanted}")
            return
        if wanted is not None and rank(found) < rank(wanted):
            if found.deleted and wanted.deleted:
                return
            complain(f"cluster {cluster} has {found} although {wanted} is newer")
        if wanted is None or rank(found) > rank(wanted):
            if found not in lost:
                complain(f"cluster {cluster} has {found}, which must not reach it; due: {wanted}")
            self.counts["lost and kept"] += 1

    def _judge_equal(self, key: bytes, books: dict[int, Book], unknown: set[int]) -> None:
        """Clusters that reach each other hold the same, unless a deletion does not reach both."""
        for one in books.keys() - unknown:
            for other in reaching(self._plan.routes, one, key) - unknown:
                if one in reaching(self._plan.routes, other, key):
                    ours, theirs = books[one].get(key), books[other].get(key)
                    live = [None if v is None or v.deleted else v for v in (ours, theirs)]
                    if live[0] != live[1]:
                        complain(f"cluster {one} has {ours}, and {other} has {theirs}")


def judge_hops(plan: Plan, sent: int, accepted: int) -> None:
    """Without faults nothing is sent twice: each change once to each other cluster, at most."""
    most = accepted * len(plan.routes)
    if set(TWO_WAY_OR_RING) & {len(plan.routes)} and _is_ring(plan):
        most = accepted * (plan.clusters - 1)
    if sent > most:
        complain(f"{sent} documents were sent for {accepted} changes; at most {most} are needed")


TWO_WAY_OR_RING = (2, 3, 4)


def _is_ring(plan: Plan) -> bool:
    following = {route.source: route.target for route in plan.routes}
    return len(following) == len(plan.routes) == plan.clusters
