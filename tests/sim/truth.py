"""What really happened: every vBucket's history as its table showed it, branch by branch.

After each step of the world the tables are looked at: what is new there was accepted, in the order
of seqnos. Nobody can take a reading inside a step, so a version that came and went within one was
never to be seen. At a restart the new branch begins with what the disk shows.

The truth also remembers how each vBucket looked (state, failover log, high and purge seqno) at
which step, for judges who must explain an answer that was given some time ago.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from tests.contents import table_of
from tests.sim.codec import ACTIVE, DEAD, REPLICA, Version
from tests.sim.judges import Stored, complain, last_complete, remembered

Log = tuple[tuple[int, int], ...]


class Look(NamedTuple):
    """A vBucket as it was from some step on; `state` 0 = there was none, or nobody served it."""

    step: int
    state: int
    log: Log
    high: int
    purge: int
    complete: int  # up to here its newest items are a consistent state

    @property
    def partial(self) -> bool:
        """Whether it holds half a snapshot: nobody can say what a reading of it is."""
        return self.complete < self.high


def _absent(step: int) -> Look:
    return Look(step, 0, (), 0, 0, 0)


class Branch:
    """One branch of history, from the very beginning on."""

    def __init__(self) -> None:
        self.high = 0  # seqno of its newest change
        self.purged = 0  # deletions up to here may have been dropped
        self._seqnos: list[int] = []
        self._versions: list[Version] = []

    def grown(self, upto: int, purged: int) -> Branch:
        """Return a branch that goes off after seqno `upto`."""
        branch = Branch()
        place = bisect_right(self._seqnos, upto)
        branch._seqnos, branch._versions = self._seqnos[:place], self._versions[:place]
        branch.high = upto
        branch.purged = purged
        return branch

    def add(self, version: Version) -> None:
        """Take in the next change."""
        assert not self._seqnos or version.seqno > self._seqnos[-1]
        self._seqnos.append(version.seqno)
        self._versions.append(version)
        self.high = max(self.high, version.seqno)

    def forget_after(self, seqno: int) -> dict[int, Version]:
        """Take back what is above `seqno`; return it."""
        place = bisect_right(self._seqnos, seqno)
        lost = dict(zip(self._seqnos[place:], self._versions[place:], strict=True))
        del self._seqnos[place:], self._versions[place:]
        self.high = seqno
        return lost

    def segment(self, after: int, end: int) -> list[Version]:
        """Return what a snapshot from `after` to `end` holds: each key's newest, by seqno."""
        first, last = bisect_right(self._seqnos, after), bisect_right(self._seqnos, end)
        newest = {version.key: version for version in self._versions[first:last]}
        return sorted(newest.values(), key=lambda version: version.seqno)

    def state(self, end: int) -> dict[bytes, Version]:
        """Return everything as of `end`, deletions included."""
        return {version.key: version for version in self.segment(0, end)}

    def versions_from(self, place: int) -> list[Version]:
        """Return all versions but the first so many, in the order of seqnos."""
        return self._versions[place:]

    def newest(self, key: bytes) -> Version | None:
        """Return the newest version of a key, dropped or not."""
        return next((each for each in reversed(self._versions) if each.key == key), None)

    def holds(self, version: Version) -> bool:
        """Tell whether this version is part of this history."""
        place = bisect_right(self._seqnos, version.seqno) - 1
        return place >= 0 and self._versions[place] == version


def disagreement(held: dict[bytes, Version], true: dict[bytes, Version], purged: int) -> str | None:
    """Return how a copy differs from the truth; a dropped deletion may be absent."""
    for key in held.keys() | true.keys():
        mine, theirs = held.get(key), true.get(key)
        if mine == theirs:
            continue
        dropped = theirs is not None and theirs.deleted and theirs.seqno <= purged
        if mine is None and dropped:
            continue
        return f"{key!r} is {mine}, not {theirs}"
    return None


class Truth:
    """See the module docstring; `look` and `came_up` are called by the run."""

    def __init__(self, max_entries: int) -> None:
        self.step = 0  # count of steps of the world
        self.looks: dict[int, list[Look]] = {}
        self._branches: dict[tuple[int, int], Branch] = {}
        self._lost: dict[tuple[int, int], dict[int, Version]] = {}
        self._partial: dict[int, Branch] = {}
        self._max_entries = max_entries

    def branch(self, vbucket: int, uuid: int) -> Branch:
        """Return a branch by its name."""
        found = self._branches.get((vbucket, uuid))
        if found is None:
            complain(f"vBucket {vbucket} never had a branch {uuid:x}")
        return found

    def knows(self, vbucket: int, uuid: int) -> bool:
        """Tell whether a branch of this name was ever seen."""
        return (vbucket, uuid) in self._branches

    def now(self, vbucket: int) -> Look:
        """Return how a vBucket looks now."""
        looks = self.looks.get(vbucket)
        return looks[-1] if looks else _absent(0)

    def since(self, vbucket: int, step: int) -> list[Look]:
        """Return how it looked at `step` and from then on."""
        looks = self.looks.get(vbucket, [])
        first = bisect_right(looks, step, key=lambda look: look.step)
        return [_absent(0), *looks][first:]

    def was_busy(self, vbucket: int, step: int) -> bool:
        """Tell whether it could show nothing for a while since then."""
        return False

    # --- looking ----------------------------------------------------------------------------------

    def came_up(self, stored: Stored, vbuckets: Iterable[Any]) -> None:
        """Take in what a new life begins with, and hold it to what was."""
        for vbucket in vbuckets:
            if vbucket.id in stored.vbuckets:
                self._restored(vbucket, *stored.vbuckets[vbucket.id])

    def _restored(self, vbucket: Any, header: Any, records: dict[bytes, Any]) -> None:
        number, uuid = vbucket.id, vbucket.failover_log[0].uuid
        old, high, at = header.failover_log[0].uuid, header.high_seqno, last_complete(header)
        versions = sorted(map(Version.of_item, records.values()), key=lambda each: each.seqno)
        if (number, old) not in self._branches:
            self._branches[number, old] = self._of_unseen_life(number, header, versions)
        parent = self.branch(number, old)
        branch = parent.grown(at, max(parent.purged, header.purge_seqno))
        for version in versions:
            if version.seqno > at:
                branch.add(version)
        branch.high = high
        if at == high:
            found = {version.key: version for version in versions}
            wrong = disagreement(found, branch.state(high), branch.purged)
            if wrong:
                complain(f"vBucket {number} came up at {at} of {old:x} with another past: {wrong}")
        if uuid != old:
            self._branches[number, uuid] = branch
        elif at == high:
            self._lost.setdefault((number, old), {}).update(parent.forget_after(high))
        else:
            self._partial[number] = branch

    def _of_unseen_life(self, number: int, header: Any, versions: list[Version]) -> Branch:
        """Return the branch of a life that ended before it served: nothing was written in it."""
        branch, begin = Branch(), 0
        for entry in header.failover_log:
            if self.knows(number, entry.uuid):
                branch = self.branch(number, entry.uuid).grown(begin, header.purge_seqno)
                break
            begin = entry.seqno
        for version in versions:
            if version.seqno > branch.high:
                branch.add(version)
        branch.high = header.high_seqno
        return branch

    def look(self, vbuckets: Iterable[Any], *, serving: bool) -> None:
        """Look at a node after a step."""
        self.step += 1
        seen = set()
        if serving:
            for vbucket in vbuckets:
                seen.add(vbucket.id)
                self._look_at(vbucket)
        for number, looks in self.looks.items():
            if number not in seen and looks[-1].state:
                looks.append(_absent(self.step))

    def _look_at(self, vbucket: Any) -> None:
        number = vbucket.id
        looks = self.looks.setdefault(number, [])
        log: Log = tuple((entry.uuid, entry.seqno) for entry in vbucket.failover_log)
        high, (start, end) = vbucket.high_seqno, vbucket.snapshot
        complete = high if high >= end else start
        now = Look(self.step, int(vbucket.state), log, high, vbucket.purge_seqno, complete)
        before = looks[-1] if looks else _absent(0)
        if now[1:] == before[1:]:
            return
        self._check_log(number, before, now)
        self._take_new(number, before, now, table_of(vbucket))
        looks.append(now)

    def _check_log(self, number: int, before: Look, now: Look) -> None:
        """A failover makes one entry, nothing else does; restarts are judged elsewhere."""
        began_anew = len(now.log) == 1 and now.log[0] not in before.log
        if not before.state or began_anew:
            return
        promoted = before.state != ACTIVE and now.state == ACTIVE
        if not promoted:
            if now.log != before.log:
                complain(f"vBucket {number}: without failover {before} became {now}")
            return
        kept = tuple(entry for entry in before.log if entry[1] <= before.complete)
        expected = remembered((now.log[0], *kept), self._max_entries)
        if now.log != expected or now.log[0][1] != before.complete:
            complain(f"vBucket {number}: a failover made {now} of {before}")

    def _take_new(self, number: int, before: Look, now: Look, table: dict[bytes, Any]) -> None:
        if now.partial:
            return
        uuid = now.log[0][0]
        branch = self._branches.get((number, uuid))
        if branch is None:
            branch = self._branches[number, uuid] = self._new_branch(number, before, now)
        branch.purged = max(branch.purged, now.purge)
        if now.high <= branch.high:
            return
        new = [item for item in table.values() if item.seqno > branch.high]
        for item in sorted(new, key=lambda item: item.seqno):
            version = Version.of_item(item)
            lost = self._lost.get((number, uuid), {}).get(version.seqno)
            if lost is not None and lost != version:
                complain(f"vBucket {number}: {uuid:x} names two histories: {lost}, {version}")
            branch.add(version)
        branch.high = now.high

    def _new_branch(self, number: int, before: Look, now: Look) -> Branch:
        if len(now.log) == 1:
            return Branch()
        parent = self._partial.get(number) if before.partial else None
        parent = parent or self.branch(number, before.log[0][0])
        return parent.grown(before.high, max(parent.purged, now.purge))


# --- what versions are called ---------------------------------------------------------------------
# Judges of what versions are called, over all nodes of a cluster and all their lives.
#
# A CAS names one content of one document for ever: whoever compares with it must not meet another.
# That is so wherever the document's history began with the same one: a node that lost its whole
# disk and begins anew is a stranger, and both follow the same clock. A revision only rises, over
# deletions too, dropped or not: else a document that begins anew would lose against the deletion
# wherever that is still known.
#
# Source: contracts of the systems to come, section 3; rows D04, X08.


Content = tuple[bytes, bool]


class CasNames:
    """What every CAS that was ever seen names."""

    def __init__(self) -> None:
        self._names: dict[tuple[int, bytes, int], tuple[Content, str]] = {}

    def saw(self, version: Version, origin: int, where: str) -> None:
        """A node holds this version in a history that began with this one."""
        if version.value is None:
            return  # its value has gone to the disk
        content = version.value, version.deleted
        known, there = self._names.setdefault((origin, version.key, version.cas), (content, where))
        if known != content:
            complain(
                f"CAS {version.cas} of {version.key!r} names {known} ({there}) "
                f"and {content} ({where})"
            )


def judge_revision(version: Version, before: Version | None, where: str) -> None:
    """A change follows the newest version of its key in the same history."""
    if before is not None and version.rev <= before.rev:
        complain(f"{where}: the revision falls from {before} to {version}")


# --- several nodes --------------------------------------------------------------------------------
# What really happened in several nodes: one set of histories, and what each node holds of them.
#
# A branch of history is named by its vb_uuid, whoever holds it. Only an active vBucket adds to one;
# a replica may hold nothing that was not accepted. So each node is held to the branch that its own
# failover log names, at every state that it calls whole, key by key with metadata and seqnos.
#
# What a node holds is kept in books of our own (`NodeTruth.held`), made from what came into its
# tables, because tombstones leave a table when they are on disk.
#
# Source: UPR reference 3; rows D04, D50 to D54; ruling R11.


#: A whole state is compared with its history after every change of log or state, and so often else.
_EVERY = 4


class Seen:
    """A branch as one node knows it: deletions that this node dropped may be absent."""

    def __init__(self, branch: Branch, purged: Callable[[], int]) -> None:
        self._branch = branch
        self._purged = purged

    @property
    def purged(self) -> int:
        """Deletions up to here may have been dropped."""
        return max(self._purged(), self._branch.purged)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._branch, name)


class Histories:
    """All branches of a cluster, and who is active."""

    def __init__(self, max_entries: int) -> None:
        self.step = 0  # count of steps of the world
        self.nodes: dict[str, NodeTruth] = {}  # their truths, by name
        self.branches: dict[tuple[int, int], Branch] = {}
        self.max_entries = max_entries
        self.rollbacks = 0  # how often a node had to take something back
        # (vBucket, name) of those that became active without a branch
        self.hand_overs: list[tuple[int, str]] = []
        self.names = CasNames()  # what every CAS names
        # by vBucket and history, the highest purge seqno that it had where it was active
        self.purged: dict[tuple[int, int], int] = {}
        self._logs: set[tuple[int, Log]] = set()

    def node(self, name: str) -> NodeTruth:
        """Return the truth of one node, making it if there is none."""
        if name not in self.nodes:
            self.nodes[name] = NodeTruth(self, name)
        return self.nodes[name]

    def judge_actives(self, number: int) -> None:
        """One branch is written by one node at a time."""
        active: dict[int, str] = {}
        for name, truth in self.nodes.items():
            look = truth.now(number)
            if look.state == ACTIVE:
                uuid = look.log[0][0]
                if uuid in active:
                    complain(f"vBucket {number} is active at {active[uuid]} and {name}: {uuid:x}")
                active[uuid] = name

    def numbers(self) -> list[int]:
        """Return all vBuckets that ever were anywhere."""
        return sorted({number for truth in self.nodes.values() for number in truth.looks})

    def note_log(self, number: int, log: Log) -> None:
        """A node has this log."""
        for first in range(len(log)):
            self._logs.add((number, log[first:]))

    def had_log(self, number: int, log: Log) -> bool:
        """Tell whether a node ever had this log, or more branches in front of it."""
        return (number, log) in self._logs

    def active_at(self, number: int) -> list[str]:
        """Return the names of the nodes where a vBucket is active."""
        return [name for name, truth in self.nodes.items() if truth.now(number).state == ACTIVE]


class NodeTruth(Truth):
    """What one node holds; to consumers of that node the same as `Truth`."""

    def __init__(self, histories: Histories, name: str) -> None:
        super().__init__(histories.max_entries)
        self.flushes_asked = 0  # how often it was told to forget everything
        self.flushed: list[int] = []  # steps at which an active vBucket was seen that had
        self.name = name  # the node's
        # by vBucket, the newest version of each key, tombstones included
        self.held: dict[int, dict[bytes, Version]] = {}
        self._histories = histories
        self._branches = histories.branches
        self._purged: dict[int, int] = {}
        self._quick: dict[int, tuple[object, ...]] = {}
        self._busy: dict[int, int] = {}
        self._changes = 0

    def was_busy(self, vbucket: int, step: int) -> bool:
        return self._busy.get(vbucket, -1) >= step

    def branch(self, vbucket: int, uuid: int) -> Any:
        """Return a branch by its name, as this node may show it."""
        return Seen(super().branch(vbucket, uuid), lambda: self._purged.get(vbucket, 0))

    # --- a life begins ----------------------------------------------------------------------------

    def came_up(self, stored: Stored, vbuckets: Iterable[Any]) -> None:
        """Take in what a new life begins with, and hold it to what was."""
        self.held.clear()
        self._quick.clear()
        for vbucket in vbuckets:
            if vbucket.id in stored.vbuckets:
                self._restored(vbucket, *stored.vbuckets[vbucket.id])

    def _restored(self, vbucket: Any, header: Any, records: dict[bytes, Any]) -> None:
        number, uuid, old = vbucket.id, vbucket.failover_log[0].uuid, header.failover_log[0].uuid
        at, high = last_complete(header), header.high_seqno
        held = {key: Version.of_item(record) for key, record in records.items()}
        self.held[number] = held
        if uuid == old:
            return  # judged as any state when it is looked at
        if (number, old) not in self._branches:
            versions = sorted(held.values(), key=lambda version: version.seqno)
            self._branches[number, old] = self._of_unseen_life(number, header, versions)
        parent = self._branches[number, old]
        for entry in header.failover_log:  # of lives that ended before anybody looked, or wrote
            self._branches.setdefault((number, entry.uuid), parent)
        if at == high:
            wrong = disagreement(held, parent.state(at), header.purge_seqno)
            if wrong:
                complain(f"{self.name}: vBucket {number} came up at {at} of {old:x}, but {wrong}")
        self._begin_branch(number, uuid, parent, at, high)

    def _begin_branch(self, number: int, uuid: int, parent: Branch, at: int, high: int) -> None:
        """A branch goes off: what is shared, and what this node holds above that."""
        if (number, uuid) in self._branches:
            complain(f"{self.name}: vBucket {number}: a new branch has an old name: {uuid:x}")
        branch = self._branches[number, uuid] = parent.grown(at, parent.purged)
        held = self.held.get(number, {}).values()
        for version in sorted(held, key=lambda version: version.seqno):
            if version.seqno > at:
                branch.add(version)
        branch.high = high

    # --- looking ----------------------------------------------------------------------------------

    def look(self, vbuckets: Iterable[Any], *, serving: bool) -> None:
        """Look at the node after a step."""
        self.step = self._histories.step
        seen = set()
        if serving:
            for vbucket in vbuckets:
                seen.add(vbucket.id)
                self._look_at(vbucket)
        if len(seen) == len(self.looks):
            return
        for number, looks in self.looks.items():
            if number not in seen and looks[-1].state:
                looks.append(Look(self.step, 0, (), 0, 0, 0))
                if serving:  # removed
                    self.held.pop(number, None)
                    self._quick.pop(number, None)

    def _look_at(self, vbucket: Any) -> None:
        number, high = vbucket.id, vbucket.high_seqno
        if vbucket.rewinding:
            self._busy[number] = self.step
        receiving = vbucket.receiving
        log_of = vbucket.failover_log
        quick = (vbucket.state, log_of, high, vbucket.purge_seqno, receiving)
        if self._quick.get(number) == quick:
            return
        self._quick[number] = quick
        complete = high if receiving is None or high >= receiving[1] else receiving[0]
        if receiving is not None and complete == high:
            complete = receiving[0]
        log: Log = tuple((entry.uuid, entry.seqno) for entry in log_of)
        now = Look(self.step, int(vbucket.state), log, high, vbucket.purge_seqno, complete)
        looks = self.looks.setdefault(number, [])
        before = looks[-1] if looks else Look(0, 0, (), 0, 0, 0)
        looks.append(now)
        self._purged[number] = max(self._purged.get(number, 0), now.purge)
        self._judge_purge(number, before, now)
        self._follow(vbucket, before, now)
        self._judge_floor(vbucket, before, now)

    def _judge_purge(self, number: int, before: Look, now: Look) -> None:
        """A replica drops no deletion that its active still has.

        One that is dead is nobody's replica; what it has dropped is lacking in it when it becomes
        one again, and those who follow it say so, too.
        """
        purged, seen = self._histories.purged, [(number, uuid) for uuid, _ in now.log]
        if now.state in (ACTIVE, DEAD):
            purged[seen[0]] = max(purged.get(seen[0], 0), now.purge)
            return
        known = [purged.get(each, 0) for each in seen]
        further = now.purge > max(before.purge, *known)
        if further and before.state:
            complain(f"{self.name}: vBucket {number} is purged further than any active: {now}")

    def _judge_floor(self, vbucket: Any, before: Look, now: Look) -> None:
        """New documents outrank all deletions of the history, also those that never came here.

        It is looked at when a replica has become whole after deletions were dropped.
        """
        if now.state != REPLICA or not now.purge or now.partial or vbucket.rewinding:
            return
        if before.purge == now.purge and not before.partial:
            return
        branch = self._branches.get((vbucket.id, now.log[0][0]))
        versions = () if branch is None else branch.versions_from(0)
        highest = max((v.rev for v in versions if v.deleted and v.seqno <= now.high), default=0)
        if vbucket.max_deleted_rev < highest:
            complain(
                f"{self.name}: vBucket {vbucket.id}: there was a deletion with revision {highest}, "
                f"new documents begin above {vbucket.max_deleted_rev}"
            )

    def _follow(self, vbucket: Any, before: Look, now: Look) -> None:
        number = vbucket.id
        if not before.state:
            self.held.setdefault(number, {})
        elif now.log[-1][0] != before.log[-1][0] and not now.high:
            self._took_back(number, before, now, {})
        elif now.high < before.high:
            held = self.held[number]
            kept = {key: each for key, each in held.items() if each.seqno <= now.high}
            self._took_back(number, before, now, kept)
            self._install(number, table_of(vbucket), now)
        self._check_log(number, before, now)
        if now.log != before.log:
            self._histories.note_log(number, now.log)
        if before.state and before.state != ACTIVE and now.state == ACTIVE:
            self._became_active(number, before, now)
        self._take_new(number, before, now, table_of(vbucket))
        self._judge(vbucket, before, now)
        if now.state == ACTIVE:
            self._histories.judge_actives(number)

    def _took_back(self, number: int, before: Look, now: Look, kept: dict[bytes, Version]) -> None:
        """Something was undone; only replicas do that."""
        if before.high:
            self._histories.rollbacks += 1
        if before.state == ACTIVE and now.state == ACTIVE:
            if not self._is_flush(now):
                complain(f"{self.name}: vBucket {number} is active and went from {before} to {now}")
            self.flushed.append(now.step)
        self.held[number] = kept

    def _is_flush(self, now: Look) -> bool:
        """Whether this is what forgetting everything looks like, and it was told to."""
        return bool(self.flushes_asked) and not now.high and len(now.log) == 1

    def _install(self, number: int, table: dict[bytes, Any], now: Look) -> None:
        """Take in the versions that came with taking something back."""
        held = self.held[number]
        for key, item in table.items():
            mine = held.get(key)
            if mine is None or mine.seqno != item.seqno:
                held[key] = Version.of_item(item)

    def _check_log(self, number: int, before: Look, now: Look) -> None:
        """Who is no replica changes its log only by a branch; a replica takes over a known one."""
        if not before.state or now.log == before.log:
            return
        if before.state == ACTIVE and now.state == ACTIVE:
            if self._is_flush(now):
                return
            complain(f"{self.name}: vBucket {number}: without failover {before} became {now}")
        if now.state == ACTIVE:
            kept = tuple(entry for entry in before.log if entry[1] <= before.complete)
            expected = remembered((now.log[0], *kept), self._max_entries)
            if now.log != expected or now.log[0][1] != before.complete:
                complain(f"{self.name}: vBucket {number}: a failover made {now} of {before}")
        elif now.high and not self.knows(number, now.log[0][0]):
            complain(f"{self.name}: vBucket {number}: {now} follows nobody's history")

    def _became_active(self, number: int, before: Look, now: Look) -> None:
        uuid = now.log[0][0]
        if now.log != before.log:
            parent = self._branches.get((number, before.log[0][0])) or Branch()
            self._begin_branch(number, uuid, parent, before.complete, before.high)
            return
        self._histories.hand_overs.append((number, self.name))
        branch = self._branches.get((number, uuid)) or Branch()
        if now.partial or branch.high != now.high:
            complain(
                f"{self.name}: vBucket {number} was handed over at {now}, "
                f"but {branch.high} was accepted in {uuid:x}"
            )

    def _take_new(self, number: int, before: Look, now: Look, table: dict[bytes, Any]) -> None:
        uuid, held = now.log[0][0], self.held[number]
        branch = self._branches.get((number, uuid))
        if branch is None:
            branch = self._branches[number, uuid] = self._first_seen(number, before, now)
        known = max((each.seqno for each in held.values()), default=0)
        new = [item for item in table.values() if item.seqno > known]
        for item in sorted(new, key=lambda item: item.seqno):
            version = Version.of_item(item)
            self._accept(number, uuid, branch, now, version)
            held[version.key] = version
        if now.state == ACTIVE:
            branch.high = max(branch.high, now.high)

    def _first_seen(self, number: int, before: Look, now: Look) -> Branch:
        if len(now.log) > 1 or (now.high and now.state not in (ACTIVE, DEAD)):
            complain(f"{self.name}: vBucket {number}: {now} has a history of nobody's")
        return Branch()

    def _accept(self, number: int, uuid: int, branch: Branch, now: Look, version: Version) -> None:
        self._histories.names.saw(version, now.log[-1][0], self.name)
        if version.seqno > branch.high and now.state == ACTIVE:
            judge_revision(version, branch.newest(version.key), f"{self.name}: vBucket {number}")
            branch.add(version)
        elif not branch.holds(version):
            there = branch.segment(version.seqno - 1, version.seqno)
            complain(
                f"{self.name}: vBucket {number}: {uuid:x} names two histories: "
                f"{version} came, there is {there}; {now}"
            )

    # --- judging ----------------------------------------------------------------------------------

    def _judge(self, vbucket: Any, before: Look, now: Look) -> None:
        self._changes += 1
        other = (before.state, before.log) != (now.state, now.log)
        if other or now.high < before.high or not self._changes % _EVERY:
            self.judge(vbucket.id)
            self._judge_table(vbucket)

    def judge(self, number: int) -> None:
        """Hold what the node has to the history that it names."""
        now, held = self.now(number), self.held.get(number, {})
        branch = self._branches.get((number, now.log[0][0])) if now.state else None
        if branch is None:
            return
        if not now.partial:
            wrong = disagreement(held, branch.state(now.high), now.purge)
            if wrong:
                complain(f"{self.name}: vBucket {number} stands at {now}, but {wrong}")
            return
        for version in held.values():
            if not branch.holds(version):
                complain(f"{self.name}: vBucket {number} holds {version}, never so in {now}")
        for key, version in branch.state(now.complete).items():
            mine = held.get(key)
            dropped = version.deleted and version.seqno <= now.purge
            if (mine is None or mine.seqno < version.seqno) and not (mine is None and dropped):
                complain(f"{self.name}: vBucket {number} lacks {version}: {mine}; {now}")

    def _judge_table(self, vbucket: Any) -> None:
        shown = {key: item.seqno for key, item in table_of(vbucket).items() if not item.life}
        held = self.held[vbucket.id]
        known = {key: each.seqno for key, each in held.items() if not each.deleted}
        if shown != known:
            odd = sorted(shown.items() ^ known.items())
            complain(f"{self.name}: vBucket {vbucket.id} shows {odd}, which nobody sent or took")
