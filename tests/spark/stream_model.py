"""A world of small nodes, leases and crashes in which a stream's rules are tried, and a judge.

The world shares nothing with the rules it tries but plain values. It keeps the whole truth: every
change of the present history, also those that a by-seq index forgets. The sink is a table of rows
that knows two things to do: put a row, and remove what a control row undoes.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

SET, DELETE = "set", "delete"


class Row(NamedTuple):
    vbucket: int
    uuid: int
    seqno: int
    key: str
    op: str
    value: int


class Control(NamedTuple):
    """What is above `seqno` is undone; `truth` is what the node holds up to there."""

    vbucket: int
    seqno: int
    truth: tuple[Row, ...]


def newest(rows: Iterable[Row]) -> dict[str, Row]:
    """The last row of each key."""
    found: dict[str, Row] = {}
    for row in sorted(rows, key=lambda row: row.seqno):
        found[row.key] = row
    return found


def documents(rows: Iterable[Row]) -> dict[str, int]:
    return {key: row.value for key, row in newest(rows).items() if row.op == SET}


@dataclass
class VBucket:
    """One vBucket at its present owner: `rows` is its history, nothing forgotten."""

    number: int
    log: tuple[tuple[int, int], ...]
    rows: list[Row] = field(default_factory=list)
    persisted: int = 0
    purged: int = 0

    @property
    def high(self) -> int:
        return self.rows[-1].seqno if self.rows else 0

    def by_seqno(self, start: int = 0) -> list[Row]:
        """What the index holds above a seqno: superseded rows and purged deletions are gone."""
        kept = newest(self.rows).values()
        return sorted(
            (row for row in kept if row.seqno > start and not self._dropped(row)),
            key=lambda row: row.seqno,
        )

    def _dropped(self, row: Row) -> bool:
        return row.op == DELETE and row.seqno <= self.purged

    def undone(self, seqno: int) -> Control:
        return Control(self.number, seqno, tuple(row for row in self.rows if row.seqno <= seqno))

    def write(self, key: str, op: str, value: int) -> None:
        self.rows.append(Row(self.number, self.log[0][0], self.high + 1, key, op, value))

    def branch(self, seqno: int, uuid: int) -> None:
        """Everything above `seqno` is lost; another history begins there."""
        self.rows = [row for row in self.rows if row.seqno <= seqno]
        older = tuple(entry for entry in self.log if entry[1] <= seqno)
        self.log = ((uuid, seqno), *older)
        self.persisted = min(self.persisted, self.high)

    def copy(self) -> VBucket:
        return VBucket(self.number, self.log, list(self.rows), self.persisted, self.purged)


@dataclass
class World:
    """All vBuckets at one node at a time; a failover moves them all to another one.

    No node gets its role back: one that lost it and got it back between two looks of the driver,
    and lost changes, cannot be told from one that was killed (`batch_planner` says so).
    """

    chance: random.Random
    vbuckets: list[VBucket]
    place: str = "node"
    leases: dict[str, tuple[str, list[VBucket]]] = field(default_factory=dict)
    counter: int = 100

    def next(self) -> int:
        self.counter += 1
        return self.counter

    def write_some(self) -> None:
        for _ in range(self.chance.randint(1, 12)):
            vbucket = self.chance.choice(self.vbuckets)
            op = SET if self.chance.random() < 0.8 else DELETE
            vbucket.write(self.chance.choice("abcdef"), op, self.next())

    def persist_some(self) -> None:
        for vbucket in self.vbuckets:
            if self.chance.random() < 0.6:
                vbucket.persisted = self.chance.randint(vbucket.persisted, vbucket.high)

    def purge_some(self) -> None:
        vbucket = self.chance.choice(self.vbuckets)
        dropped = [
            row.seqno
            for row in newest(vbucket.rows).values()
            if row.op == DELETE and row.seqno <= vbucket.persisted
        ]
        vbucket.purged = max([vbucket.purged, *dropped])

    def crash(self) -> None:
        """The node dies and comes back with what was on its disk."""
        for vbucket in self.vbuckets:
            seqno = self.chance.randint(vbucket.persisted, vbucket.high)
            vbucket.branch(max(vbucket.persisted, min(seqno, vbucket.persisted + 1)), self.next())
            vbucket.persisted = vbucket.high
        self.leases = {t: each for t, each in self.leases.items() if each[0] != self.place}

    def fail_over(self) -> None:
        """A replica, which may be behind, takes over. The old node may live on with its leases."""
        behind = self.chance.random() < 0.7
        for vbucket in self.vbuckets:
            most = vbucket.high
            seqno = self.chance.randint(max(0, most - 8), most) if behind else most
            vbucket.branch(seqno, self.next())
            vbucket.persisted = self.chance.randint(0, vbucket.high)
            vbucket.purged = min(vbucket.purged, vbucket.persisted)
        if self.chance.random() < 0.7:
            self.leases = {t: each for t, each in self.leases.items() if each[0] != self.place}
        self.place = f"node{self.next()}"

    def flush_all(self) -> None:
        vbucket = self.chance.choice(self.vbuckets)
        vbucket.rows, vbucket.log = [], ((self.next(), 0),)
        vbucket.persisted = vbucket.purged = 0

    def lose_leases(self) -> None:
        self.leases.clear()

    def acquire(self) -> str:
        token = f"L{self.next()}"
        self.leases[token] = (self.place, [each.copy() for each in self.vbuckets])
        return token

    def everything_on_disk(self, number: int) -> None:
        vbucket = self.vbuckets[number]
        vbucket.persisted = vbucket.high


class Wrong(AssertionError):
    """The judge's word."""


class Sink:
    """Rows by (vBucket, history, seqno), as files of changes or a table of them hold."""

    def __init__(self) -> None:
        self.rows: dict[tuple[int, int, int], Row] = {}
        self.origin: dict[int, int] = {}
        self.seen_twice = 0

    def apply(self, batch: list[Row | Control]) -> None:
        """Take a batch in: first what it undoes, then what it brings."""
        for each in batch:
            if isinstance(each, Control):
                self._undo(each)
        for each in batch:
            if isinstance(each, Row):
                identity = (each.vbucket, each.uuid, each.seqno)
                self.seen_twice += identity in self.rows
                if self.rows.setdefault(identity, each) != each:
                    raise Wrong(f"{identity} has two contents")

    def _undo(self, control: Control) -> None:
        number, seqno, truth = control
        self.rows = {
            identity: row
            for identity, row in self.rows.items()
            if row.vbucket != number or row.seqno <= seqno
        }
        self.origin[number] = min(self.origin.get(number, 0), seqno)
        self.compare(number, list(truth), f"going back to {seqno}")

    def compare(self, number: int, truth: list[Row], when: str) -> None:
        """Raise `Wrong` unless the sink's vBucket is exactly what a node held."""
        begin = self.origin.get(number, 0)
        held = documents(row for row in self.rows.values() if row.vbucket == number)
        expected = documents(truth)
        expected = {
            key: value for key, value in expected.items() if newest(truth)[key].seqno > begin
        }
        if held != expected:
            raise Wrong(f"{when}: vb {number} holds {held}, the node {expected}")
