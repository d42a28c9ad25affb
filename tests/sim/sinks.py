"""What somebody reads out of the targets of sinks, written from their documentation.

Nothing here comes from `uprmc`. Documents are tuples ``(value, rev, cas, flags, expiry)``; those of
a topic have only the value, as the record of an undo has no more.

Source: docs/client.md, "Ready-made sinks"; issue 18.
"""

from __future__ import annotations

import base64
import json
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any
from zlib import crc32

from tests.sim.judges import complain
from tests.sim.program import WHOLE_LOG, Points, Program, of_version
from tests.sim.truth import Log
from tests.sim.world import World
from uprmc.sinks.http_post import HttpPost, _Answer
from uprmc.sinks.json_file import JsonFile
from uprmc.sinks.kafka import Kafka
from uprmc.sinks.sink import Sink
from uprmc.sinks.sqlite_mirror import SqliteMirror

Docs = dict[int, dict[bytes, tuple[Any, ...]]]

#: Key, value, headers.
Record = tuple[bytes, bytes | None, dict[str, bytes]]

_U64 = 2**64


class Lines:
    """Applies lines of JSON."""

    def __init__(self) -> None:
        self.docs: Docs = {}  # what they come to
        self.again = 0  # how many came that were known by their id
        # by vBucket, of each change that no line has made void, its history and seqno
        self.changes: dict[int, set[tuple[int, int]]] = {}
        self._ids: dict[int, dict[str, int]] = {}

    def take(self, data: bytes) -> None:
        """Apply lines, each of which is complete."""
        for line in data.splitlines(keepends=True):
            if not line.endswith(b"\n"):
                complain(f"a torn line is delivered: {line!r}")
            self._one(json.loads(line))

    def _one(self, row: dict[str, Any]) -> None:
        number = row["vbucket"]
        here, ids = self.docs.setdefault(number, {}), self._ids.setdefault(number, {})
        if row["op"] == "rollback":
            self._ids[number] = {
                each: seqno for each, seqno in ids.items() if seqno <= row["seqno"]
            }
            self.changes[number] = {
                each for each in self.changes.get(number, ()) if each[1] <= row["seqno"]
            }
            if not row["seqno"]:
                here.clear()
            return
        if "id" in row:
            if row["id"] in ids:
                self.again += 1
                return
            ids[row["id"]] = row["seqno"]
            self.changes.setdefault(number, set()).add((int(row["vb_uuid"]), row["seqno"]))
        key = _bytes(row, "key")
        if row["op"] == "set":
            numbers = (int(row[name]) for name in ("rev", "cas", "flags", "expiry"))
            here[key] = (_bytes(row, "value"), *numbers)
        else:
            here.pop(key, None)


def _bytes(row: dict[str, Any], name: str) -> bytes:
    text: str = row[name]
    return base64.b64decode(text) if row.get(f"{name}_encoding") == "base64" else text.encode()


def of_files(paths: Iterable[Path]) -> Lines:
    """Read files of lines, the oldest first."""
    lines = Lines()
    for path in paths:
        lines.take(path.read_bytes())
    return lines


def of_table(path: Path) -> Docs:
    """Read the table of a database."""
    found: Docs = {}
    columns = "vbucket, key, value, rev, cas, flags, expiry"
    with closing(sqlite3.connect(path)) as database:
        for number, key, value, rev, cas, *rest in database.execute(
            f"SELECT {columns} FROM documents"
        ):
            row = (_stored(value), rev % _U64, cas % _U64, *rest)
            found.setdefault(number, {})[_stored(key)] = row
    return found


def _stored(data: str | bytes) -> bytes:
    return data.encode() if isinstance(data, str) else data


def of_topic(partitions: Iterable[Iterable[Record]]) -> Docs:
    """Read a topic; the order of partitions does not matter."""
    found: Docs = {}
    for records in partitions:
        part: Docs = {}
        for key, value, headers in records:
            here = part.setdefault(int(headers["vbucket"]), {})
            if headers["op"] == b"rollback":
                here.clear()
            elif value is None:
                here.pop(key, None)
            else:
                here[key] = (value,)
        for number, docs in part.items():
            found.setdefault(number, {}).update(docs)
    return found


# --- targets --------------------------------------------------------------------------------------


_ROTATE_BYTES = 4_000
_BATCH_ITEMS = 5
_TOO_MANY_LINES = 4
_QUEUE_MAX = 8
_PARTITIONS = 3


class Target(ABC):
    """Where sinks of the simulation write: files, and a receiver and brokers that are none.

    A target makes its sink again and again, as processes do, and tells what a reader has.
    Everything that comes and goes in between is a point at which the process may die.
    """

    exact = False  # its sink keeps positions with the data: what is there is what they say
    fields = 5  # how many fields of a document it has

    def __init__(self, directory: Path, world: World, points: Points) -> None:
        self._directory, self._world, self._points = directory, world, points

    @abstractmethod
    def open(self) -> Sink:
        """Return a sink, as a new process makes it."""

    @abstractmethod
    def docs(self) -> Docs:
        """Return what a reader has."""

    def tear(self) -> None:
        """Leave what a write that was cut short leaves."""
        return

    @property
    def again(self) -> int:
        """How many changes a reader had before."""
        return 0

    @property
    def changes(self) -> dict[int, set[tuple[int, int]]]:
        """The changes of each vBucket that a reader holds to be true; see `Lines`."""
        return {}


class Files(Target):
    """Lines in files."""

    exact = True

    def open(self) -> Sink:
        return JsonFile(self._path, rotate_bytes=_ROTATE_BYTES)

    def docs(self) -> Docs:
        found = self._read()
        if found.again:
            complain(f"{found.again} lines came twice")
        return found.docs

    @property
    def changes(self) -> dict[int, set[tuple[int, int]]]:
        return self._read().changes

    def _read(self) -> Lines:
        numbered = [each for each in self._directory.glob("x.*.*") if each.suffix[1:].isdigit()]
        oldest_first = sorted(numbered, key=lambda each: int(each.suffix[1:]))
        return of_files([*oldest_first, self._path])

    def tear(self) -> None:
        if self._world.chance(0.5):
            with self._path.open("ab") as file:
                file.write(b'{"op": "set", "vbu')

    @property
    def _path(self) -> Path:
        return self._directory / "x.jsonl"


class Table(Target):
    """A table of a database."""

    exact = True

    def open(self) -> Sink:
        return SqliteMirror(self._directory / "x.db")

    def docs(self) -> Docs:
        return of_table(self._directory / "x.db")


class _Post(HttpPost):
    """A sink whose requests go to a receiver of the world."""

    def __init__(self, receive: Callable[[bytes], tuple[int, str, float]]) -> None:
        super().__init__("http://receiver/", batch_items=_BATCH_ITEMS)
        self._receive = receive

    def _post(self, body: bytes) -> Any:
        return _Answer(*self._receive(body))

    def wait(self, seconds: float) -> None:
        """Time passes in the world only."""


class Receiver(Target):
    """A receiver that takes requests or not, and whose answers may be lost."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._lines = Lines()

    def open(self) -> Sink:
        return _Post(self._receive)

    def docs(self) -> Docs:
        return self._lines.docs

    @property
    def again(self) -> int:
        return self._lines.again

    @property
    def changes(self) -> dict[int, set[tuple[int, int]]]:
        return self._lines.changes

    def _receive(self, body: bytes) -> tuple[int, str, float]:
        self._points.point()
        chance = self._world.chance
        if chance(0.05):
            raise ConnectionRefusedError("nobody listens")
        if chance(0.05):
            return 503, "503 not now", 0.0
        if body.count(b"\n") > _TOO_MANY_LINES:
            return 413, "413 too large", 0.0
        self._lines.take(body)
        self._points.point()
        if chance(0.05):
            raise ConnectionResetError("the answer is lost")
        return 200, "200 OK", 0.0


class _Produced(Kafka):
    """A sink that produces to brokers of the world."""

    def __init__(self, producer: _Producer) -> None:
        Sink.__init__(self)
        self._where, self._topic, self._error = "the topic", "topic", None
        self._errors = ()
        self._producer = producer
        self._partitions = list(range(_PARTITIONS))


class _Producer:
    """As much of librdkafka's producer as the sink uses: records wait, and arrive in order."""

    def __init__(self, topic: list[list[Record]], world: World, points: Points) -> None:
        self._topic, self._world, self._points = topic, world, points
        self._queue: list[tuple[int, Record, Callable[[Any, Any], None]]] = []

    def __len__(self) -> int:
        return len(self._queue)

    def produce(
        self,
        topic: str,
        value: bytes | None,
        key: bytes,
        *,
        headers: list[tuple[str, bytes]],
        on_delivery: Callable[[Any, Any], None],
        partition: int | None = None,
    ) -> None:
        self._points.point()
        if len(self._queue) >= _QUEUE_MAX:
            raise BufferError
        place = crc32(key) % _PARTITIONS if partition is None else partition
        self._queue.append((place, (key, value, dict(headers)), on_delivery))

    def poll(self, _: float) -> None:
        for _number in range(self._world.random.randint(0, len(self._queue))):
            place, record, on_delivery = self._queue.pop(0)
            self._topic[place].append(record)
            self._points.point()
            on_delivery(None, record)

    def purge(self) -> None:
        self._queue.clear()

    def flush(self, _: float) -> None:
        """Nothing is left to send."""


class Topic(Target):
    """A topic of some partitions."""

    fields = 1

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._records: list[list[Record]] = [[] for _ in range(_PARTITIONS)]

    def open(self) -> Sink:
        return _Produced(_Producer(self._records, self._world, self._points))

    def docs(self) -> Docs:
        return of_topic(self._records)


TARGETS: dict[str, type[Target]] = {
    "jsonl": Files,
    "sqlite": Table,
    "http": Receiver,
    "kafka": Topic,
}


# --- programs -------------------------------------------------------------------------------------


class SinkProgram(Program):
    """A program whose handler is a ready-made sink, with many lives; see `program`.

    A judge looks at what a reader has at the beginning of each life, where positions say what it
    must be, and at the end, where it is what the active nodes have.
    """

    def __init__(self, *given: Any, directory: Path, **more: Any) -> None:
        self._place = directory
        self._target: Any = None
        self._sink: Any = None
        self.judged = 0  # how many vBuckets were judged by their positions
        super().__init__(*given, **more)

    # --- lives ------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self.points.count = 0
        self.points.dies = self._dies
        if self._target is None:
            self._target = TARGETS[self.kind](self._place, self._world, self.points)
        self._sink = self._target.open()
        state: Any = self._state
        if self._target.exact:
            state = self._sink.state
            self._judge_positions(state)
            self._let_it_die_at_commits(state)
        self._turn(self._follow_all(self._sink, state, ring_items=self._ring_items))

    def _let_it_die_at_commits(self, state: Any) -> None:
        commit = state.commit

        def commit_with_points(saved: Mapping[int, Any], *rest: Any) -> None:
            self.points.point()
            for number, one in saved.items():
                self._judge_saved(number, one)
            commit(saved, *rest)
            self.points.point()

        state.commit = commit_with_points

    def _die(self) -> None:
        super()._die()
        self._close()
        self._target.tear()

    def leave(self) -> None:
        super().leave()
        self._close()

    def _close(self) -> None:
        self._sink.close()
        if self._target.exact:
            self._sink.state.close()

    def _count(self) -> None:
        """It has no mirror."""

    def settled(self) -> bool:
        return not self._idle_planned and super().settled()

    # --- judging ----------------------------------------------------------------------------------

    def _judge_positions(self, state: Any) -> None:
        """What is there is the history up to the position.

        What a snapshot that is not whole still brings may be missing, and what was received above
        the position is there until it is undone.
        """
        docs = self._target.docs()
        for number, saved in state.load().items():
            branch = saved.log and self._histories.branches.get((number, saved.log[0].uuid))
            if not saved.seqno or not branch:
                continue
            _, end = saved.snapshot
            open_keys = {v.key for v in branch.segment(saved.seqno, end)}
            open_keys.update(key for _, key in state.ring_after(number, saved.seqno))
            true = {k: of_version(v) for k, v in branch.state(saved.seqno).items() if not v.deleted}
            self._compare(docs, number, true, f"position {saved.seqno} says", open_keys)
            self.judged += 1

    def judge(self) -> None:
        """Hold what a reader has to what is true, key by key."""
        docs = self._target.docs()
        for number in self._histories.numbers():
            for name in self._histories.active_at(number):
                held = self._histories.node(name).held.get(number, {})
                true = {k: of_version(v) for k, v in held.items() if not v.deleted}
                self._compare(docs, number, true, f"{name} has")
                self._judge_changes(number, self._histories.node(name).now(number).log)

    def _judge_changes(self, number: int, log: Log) -> None:
        """What a reader holds to be true is of the history that goes on."""
        if self._histories.max_entries < WHOLE_LOG:
            return
        ends = {log[0][0]: 2**64} | {old: end for (_, end), (old, _) in pairwise(log)}
        for uuid, seqno in self._target.changes.get(number, ()):
            if seqno > ends.get(uuid, 0):
                complain(
                    f"vBucket {number}: a reader of {self.kind} was never told that {seqno} of "
                    f"{uuid:x} is void: the history is {log}"
                )

    def _compare(
        self,
        docs: Docs,
        number: int,
        true: Mapping[bytes, tuple[object, ...]],
        whose: str,
        open_keys: set[bytes] = frozenset(),  # type: ignore[assignment]
    ) -> None:
        mine = docs.get(number, {})
        for key in sorted((true.keys() | mine.keys()) - open_keys):
            expected = true[key][: self._target.fields] if key in true else None
            if mine.get(key) != expected:
                complain(
                    f"vBucket {number}: a reader of {self.kind} has {key!r} as {mine.get(key)}; "
                    f"{whose} {expected}"
                )

    def counts(self) -> dict[str, int]:
        """Return what it went through."""
        return {
            f"{self.kind} deaths": self.deaths,
            f"{self.kind} judged": self.judged,
            f"{self.kind} again": self._target.again,
        }
