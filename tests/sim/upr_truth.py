"""What really happened: every vBucket's history as its table showed it, branch by branch.

After each step of the world the tables are looked at: what is new there was accepted, in the order
of seqnos. Nobody can take a reading inside a step, so a version that came and went within one was
never to be seen. At a restart the new branch begins with what the disk shows.

The truth also remembers how each vBucket looked (state, failover log, high and purge seqno) at
which step, for judges who must explain an answer that was given some time ago.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Any, NamedTuple

from tests.contents import table_of
from tests.sim.judges import Stored, complain, last_complete, remembered
from tests.sim.upr_codec import ACTIVE, Version

Log = tuple[tuple[int, int], ...]


class Look(NamedTuple):
    """A vBucket as it was from some step on; `state` 0 = there was none, or nobody served it.

    Attributes:
        complete: up to here its newest items are a consistent state.
    """

    step: int
    state: int
    log: Log
    high: int
    purge: int
    complete: int

    @property
    def partial(self) -> bool:
        """Whether it holds half a snapshot: nobody can say what a reading of it is."""
        return self.complete < self.high


def _absent(step: int) -> Look:
    return Look(step, 0, (), 0, 0, 0)


class Branch:
    """One branch of history, from the very beginning on.

    Attributes:
        high: seqno of its newest change.
        purged: deletions up to here may have been dropped.
    """

    def __init__(self) -> None:
        self.high = 0
        self.purged = 0
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
    """See the module docstring; `look` and `came_up` are called by the run.

    Attributes:
        step: count of steps of the world.
        vbuckets: how each vBucket looked, oldest first.
    """

    def __init__(self, max_entries: int) -> None:
        self.step = 0
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
