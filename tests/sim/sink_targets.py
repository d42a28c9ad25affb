"""Where sinks of the simulation write: files, and a receiver and brokers that are none.

A target makes its sink again and again, as processes do, and tells what a reader has. Everything
that comes and goes in between is a point at which the process may die.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zlib import crc32

from tests.sim.judges import complain
from tests.sim.replica_mirror import Points
from tests.sim.sink_readers import Docs, Lines, Record, of_files, of_table, of_topic
from tests.sim.world import World
from uprmc.sinks.http_post import HttpPost, _Answer
from uprmc.sinks.json_file import JsonFile
from uprmc.sinks.kafka import Kafka
from uprmc.sinks.sink import Sink
from uprmc.sinks.sqlite_mirror import SqliteMirror

_ROTATE_BYTES = 4_000
_BATCH_ITEMS = 5
_TOO_MANY_LINES = 4
_QUEUE_MAX = 8
_PARTITIONS = 3


class Target(ABC):
    """See the module docstring.

    Attributes:
        exact: its sink keeps positions with the data: what is there is what they say.
        fields: how many fields of a document it has.
    """

    exact = False
    fields = 5

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
