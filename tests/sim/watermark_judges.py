"""Judges of watermarks: what a client was told of its row binds the node.

They share no code with `uprmc`. What a row says is known from what was answered on the wire, and
when it ends from the lifetime that was granted; what a replica shows, and what survives a crash, is
read from its table and from its disk. A row is called *sure* while it must be there.

I1: nothing is purged above what a sure row needs. I4: a replica is told of no row, and shows none,
that is ahead of the last complete snapshot on its own disk. (I2 is `StreamJudge`, I3
`truth`.) A replica that is promoted goes on with the rows that it was told, and with their
floors.

Source: `reference/systems.md` a.1 to a.7; rows X05, X16, X18, X21, X25.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from tests.sim import codec
from tests.sim.judges import complain, last_complete
from tests.sim.node import Node
from tests.sim.truth import Look, Truth
from tests.sim.world import EPOCH_S, World

Place = tuple[str, int, bytes]

#: A node has noticed by then that its clock was set.
_TICK_S = 1.0

_COUNTED = ("judged", "lived through a crash", "promoted", "shown", "told", "redated")

#: A floor that nobody outside of the node knows yet.
_UNKNOWN = codec.NEVER


class Moment(NamedTuple):
    """What the clocks show, how often they have been set, and when it is."""

    clock_s: float
    clock_steps: int
    now: float


@dataclass(slots=True)
class Row:
    """What is known of one row at one node."""

    watermark: int = 0  # the highest that was ever sent
    floor: int | None = None  # of a build, ``None`` = there is none
    until: float = 0  # Unix time up to which it is sure to live; 0 = it may be gone already
    stored: bool = False  # whether it must be on disk, because a report was accepted
    uuid: int = 0  # the history that it is of, 0 = a known one
    since: float = 0  # when it was first heard of here; reports that are older were for another one

    @property
    def reach(self) -> int:
        """Nothing above this may be purged; one who never had a stream needs nothing yet."""
        return max(self.watermark, self.floor or 0) or _UNKNOWN

    def end_at(self, begin: int) -> None:
        """A new history begins: nobody is ahead of that."""
        self.watermark = min(self.watermark, begin)
        if self.floor is not None and self.floor != _UNKNOWN:
            self.floor = min(self.floor, begin)


class Told(NamedTuple):
    """What a replica was told of a row, and in which history."""

    watermark: int
    uuid: int
    floor: int | None
    lifetime_s: int


class WatermarkJudge:
    """See the module docstring."""

    def __init__(self, world: World) -> None:
        self.counts = dict.fromkeys(_COUNTED, 0)  # what it has seen
        self._world = world
        self._rows: dict[Place, Row] = {}
        self._seen: dict[tuple[str, int], tuple[int, int]] = {}
        self._shown: dict[tuple[str, int], object] = {}
        self._told: dict[tuple[str, int], dict[bytes, Told]] = {}
        self._instances: set[bytes] = set()
        self._clock_offset_s = 0.0
        self._down: set[str] = set()

    @property
    def now_s(self) -> float:
        """What the clocks of all machines show."""
        return self.moment.clock_s

    @property
    def moment(self) -> Moment:
        """This moment, for `accepted`."""
        world = self._world
        clock_s = EPOCH_S + world.now + world.wall_clock_offset_s
        return Moment(clock_s, world.wall_clock_steps, world.now)

    # --- what a client says and is told -----------------------------------------------------------

    def sent(self, place: Place, watermark: int) -> None:
        """A client has sent a report; from now on it may count."""
        self._instances.add(place[2])
        row = self._row(place)
        row.watermark = max(row.watermark, watermark)

    def _row(self, place: Place) -> Row:
        if place not in self._rows:
            self._rows[place] = Row(since=self._world.now)
        return self._rows[place]

    def accepted(self, place: Place, node: Node, sent: Moment, lifetime_s: int) -> None:
        """A report that was sent at this moment was accepted.

        If the clocks were set meanwhile, the row may have expired before the answer came.
        """
        row, vbucket = self._rows.get(place), node.bucket.vbuckets.get(place[1])
        if row is None or vbucket is None or int(vbucket.state) != codec.ACTIVE:
            return  # it has come late
        if sent.now < row.since:
            return  # the vBucket was promoted meanwhile, and the row of that report is gone
        known_s = self._world.now - row.since
        if self.now_s > row.until if row.until else known_s > lifetime_s - 1:
            # It may have expired, and this is another one. Reports are dated by whole seconds.
            row.floor = None if row.watermark and row.floor != _UNKNOWN else _UNKNOWN
        row.stored, row.uuid = True, 0
        if sent.clock_steps == self._world.wall_clock_steps:
            row.until = int(sent.clock_s) + lifetime_s
        if row.floor is not None and row.floor <= row.watermark:
            row.floor = None
        name, number, instance = place
        if self.is_sure(place) and instance not in self._on_disk(node, number):
            complain(f"{name}: vBucket {number}: {instance!r} is registered, but not on disk")

    def refused(self, place: Place) -> None:
        """A report was refused: the row may be another's, or gone."""
        self.forget(place)

    def forget(self, place: Place) -> None:
        """A row is being removed."""
        self._rows.pop(place, None)

    def builds(self, place: Place) -> None:
        """A stream from zero is asked for: a floor is set, and once more for the first snapshot."""
        row = self._rows.get(place)
        if row is not None:
            row.floor = _UNKNOWN

    def goes_on(self, place: Place, seqno: int) -> None:
        """A stream was accepted from there; a row that has expired is registered again by that."""
        row = self._rows.get(place)
        if row is not None and not self.is_sure(place):
            row.watermark = max(row.watermark, seqno)

    def built_upto(self, place: Place, end: int) -> None:
        """The first item of a stream from zero has come, of a snapshot to there."""
        row = self._rows.get(place)
        if row is not None and row.floor == _UNKNOWN:
            row.watermark, row.floor = 0, end

    def is_sure(self, place: Place) -> bool:
        """Tell whether a row must be there now."""
        row = self._rows.get(place)
        return row is not None and self.now_s <= row.until

    def spares(self, place: Place, purge: int) -> tuple[bool, ...]:
        """Tell whether a floor excuses its client from having missed what was purged."""
        row = self._rows.get(place)
        if row is None or not self.is_sure(place) or row.floor == _UNKNOWN:
            return (False, True)
        return (row.floor is not None and row.floor >= purge,)

    # --- lives of nodes ---------------------------------------------------------------------------

    def went_down(self, node: Node) -> None:
        """A node's life has ended: the next one has the rows that are on disk now."""
        self._down.add(node.name)
        for place, row in self._of(node.name):
            stored = self._on_disk(node, place[1]).get(place[2])
            if stored is None:
                if self.is_sure(place) and row.stored and node.disk.sync:
                    complain(f"{place} was registered, and is lost in a crash")
                self.forget(place)
                continue
            self.counts["lived through a crash"] += self.is_sure(place)
            watermark, row.uuid, floor, at_s, lifetime_s = stored
            row.watermark, row.floor = watermark, floor
            header, _ = node.store_judge.newest.vbuckets.get(place[1], (None, {}))
            if header is not None and 0 < max(watermark, floor or 0) < header.purge_seqno:
                # As it was told before a promotion; see `_promoted`: its client is further on.
                row.watermark = header.purge_seqno
            row.until = min(row.until, at_s + lifetime_s)
        for key in [key for key in self._shown if key[0] == node.name]:
            del self._shown[key]
        for name, number in [key for key in self._seen if key[0] == node.name]:
            header, _ = node.store_judge.newest.vbuckets.get(number, (None, {}))
            self._seen[name, number] = (0, header.failover_log[0].uuid if header else 0)
        for name, number in [key for key in self._told if key[0] == node.name]:
            found = self._on_disk(node, number).items()
            self._told[name, number] = {instance: Told(*row[:3], row[4]) for instance, row in found}

    def _on_disk(
        self, node: Node, number: int
    ) -> dict[bytes, tuple[int, int, int | None, int, int]]:
        return codec.stored_rows(node.store_judge.newest.local.get(b"uprmc/watermarks/%d" % number))

    # --- what replicas are told -------------------------------------------------------------------

    def told(self, node: Node, vbucket: Any, rows: Iterable[Any]) -> None:
        """A replica is told of its source's rows."""
        header, _ = node.store_judge.newest.vbuckets.get(vbucket.id, (None, {}))
        whole = last_complete(header) if header is not None else 0
        uuid = vbucket.failover_log[0].uuid
        rows = list(rows)
        self._told[node.name, vbucket.id] = {
            row.id: Told(row.watermark, uuid, row.floor, row.lifetime_s) for row in rows
        }
        for row in rows:
            self.counts["told"] += 1
            if node.disk.sync and row.effective > whole:
                complain(
                    f"{node.name}: vBucket {vbucket.id} is told of {row.id!r} at {row.effective}, "
                    f"and has {whole} on disk"
                )

    def purging(self, node: Node) -> None:
        """A node is about to purge: its expired rows are gone."""
        for vbucket in node.bucket.vbuckets.values():
            if int(vbucket.state) == codec.ACTIVE:
                for row in node.bucket.watermarks.rows(vbucket):
                    noticed = self._world.now > self._world.wall_clock_set_at + _TICK_S
                    expires = row.reported_at + row.lifetime_s
                    if row.lifetime_s and noticed and self.now_s > expires:
                        complain(f"{node.name}: vBucket {vbucket.id} still has {row}")

    def _of(self, name: str, number: int | None = None) -> list[tuple[Place, Row]]:
        return [
            (place, row)
            for place, row in self._rows.items()
            if place[0] == name and number in (None, place[1])
        ]

    # --- looking ----------------------------------------------------------------------------------

    def look(self, node: Node, truth: Truth, vbuckets: Iterable[Any]) -> None:
        """Judge a node that serves, after a step."""
        self._let_expire()
        self._down.discard(node.name)
        for vbucket in vbuckets:
            look = truth.now(vbucket.id)
            if look.state == codec.ACTIVE:
                self._look_at_active(node.name, vbucket.id, look)
            else:
                self._rows_gone(node.name, vbucket.id)
                if look.state == codec.REPLICA:
                    self._look_at_replica(node, vbucket)

    def _let_expire(self) -> None:
        """A clock that is set ends no lifetime: the rows are dated by it from then on.

        A node that is down does not notice, and at its start the wall clock decides.
        """
        step_s = self._world.wall_clock_offset_s - self._clock_offset_s
        if step_s:
            self._clock_offset_s = self._world.wall_clock_offset_s
            self.counts["redated"] += len(self._rows)
            for (name, _, _), row in self._rows.items():
                row.until += min(step_s, 0) if name in self._down else step_s

    def _rows_gone(self, name: str, number: int) -> None:
        if self._seen.pop((name, number), None) is not None:
            for place, _ in self._of(name, number):
                del self._rows[place]

    def _look_at_active(self, name: str, number: int, look: Look) -> None:
        seen = (look.purge, look.log[0][0])
        if (name, number) not in self._seen:
            self._promoted(name, number, look)
        before = self._seen.get((name, number), (0, 0))
        if before == seen:
            return
        self._seen[name, number] = seen
        histories = {0, *(uuid for uuid, _ in look.log)}
        for place, row in self._of(name, number):
            if row.uuid not in histories:  # the log is short: its client will begin at zero
                self.forget(place)
                continue
            if before[1] != seen[1]:
                row.end_at(look.log[0][1])
            if self.is_sure(place):
                self.counts["judged"] += 1
                if look.purge > row.reach:
                    complain(f"{place} needs deletions above {row.reach}: {row}; {look}")

    def _promoted(self, name: str, number: int, look: Look) -> None:
        """A node has become active: it has the rows that it was told, up to where its history went.

        Each counts as reported now. They are on disk when that is said to the client.
        """
        ends = {older[0]: newer[1] for newer, older in pairwise(look.log)}
        for instance, told in self._told.pop((name, number), {}).items():
            end = ends.get(told.uuid)
            if end is None or instance not in self._instances:
                continue  # it was told in another history; or nobody here knows its reports
            if min(max(told.watermark, told.floor or 0), end) < look.purge:
                continue  # the purge of a newer snapshot came, and no rows since: it is further on
            row = self._row((name, number, instance))
            row.watermark = max(row.watermark, min(told.watermark, end))
            if row.floor != _UNKNOWN:
                row.floor = None if told.floor is None else min(told.floor, end)
            row.until = int(self.now_s) + told.lifetime_s if told.lifetime_s else math.inf
            self.counts["promoted"] += 1

    # --- replicas ---------------------------------------------------------------------------------

    def _look_at_replica(self, node: Node, vbucket: Any) -> None:
        header, _ = node.store_judge.newest.vbuckets.get(vbucket.id, (None, {}))
        seen = (node.bucket.watermarks.changes(vbucket.id), vbucket.failover_log, id(header))
        if header is None or self._shown.get((node.name, vbucket.id)) == seen:
            return
        self._shown[node.name, vbucket.id] = seen
        if not node.disk.sync or vbucket.rewinding:
            return
        whole = last_complete(header)
        for row in node.bucket.watermarks.rows(vbucket):
            self.counts["shown"] += 1
            if row.effective > whole:
                complain(
                    f"{node.name}: vBucket {vbucket.id} shows {row.id!r} at {row.effective}, "
                    f"and has {whole} on disk: {header}"
                )
