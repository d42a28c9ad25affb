"""`feed`: changes into files, batch after batch, until there is nothing new or for ever.

Without Spark a loop of this module drives `following`, and checkpoint and files make it safe to
kill: every batch is in the directory once. With Spark the same options make a streaming
query with a file sink, which promises the same.

A node that is away is waited for while the feed runs for ever; one that looks once gives up.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import re
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from uprmc.columnar import errors
from uprmc.columnar.errors import BadFile, BadOption, TaskFailed
from uprmc.columnar.report import JsonReport
from uprmc.jobs.engines import Engine, LocalEngine
from uprmc.jobs.files import UNFINISHED, sync, write_whole
from uprmc.jobs.progress import Progress, Step, unseen
from uprmc.remote import errors as node_errors
from uprmc.remote.errors import ClientError, NodeUnreachable
from uprmc.spark.following import SparkFollower
from uprmc.spark.offsets import Offset, parsed
from uprmc.spark.options import ReadOptions, as_texts, read_options
from uprmc.spark.stream_task import BatchTask, run
from uprmc.units import seconds

# --- feed checkpoint ------------------------------------------------------------------------------


#: Goes up when an older program would misread what a newer one wrote.
VERSION = 1

#: Old offsets and commits that are kept, for people who want to see them.
KEPT_BATCHES = 100

MARKER = "_uprmc_feed.json"
BATCH_FILES = "batch-*"


@dataclass(frozen=True)
class FeedShape:
    """What a feed's files have in common: it cannot be changed half-way."""

    vbuckets: int
    format: str
    columns: dict[str, str]


class Checkpoint:
    """What a local feed keeps so that it may be killed at any moment: offsets, commits, whose
    files.

        CHECKPOINT/feed.json        what it is: id, vBuckets, format, columns
        CHECKPOINT/offsets/N        where batch N ends; written before it is read; 0 = the beginning
        CHECKPOINT/commits/N        batch N is over: its files are all there under their names
        CHECKPOINT/lock             held while a feed runs
        DIR/_uprmc_feed.json        the id: whose files these are

    A batch whose end is written but not its commit is read again: at most one. Each file is there
    whole or not at all (`files`). Use it in a ``with`` statement.

    Raises:
        BadFile: another feed uses it now, it is another kind of directory, or it is damaged.
    """

    def __init__(self, directory: Path, data: Path) -> None:
        self._directory, self._data = directory, data
        self._offsets, self._commits = directory / "offsets", directory / "commits"

    def __enter__(self) -> Checkpoint:
        try:
            for each in (self._directory, self._offsets, self._commits, self._data):
                each.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self._directory / "lock", os.O_CREAT | os.O_RDWR, 0o644)
        except OSError as error:
            raise BadFile(f"{error.filename}: {error.strerror}") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise BadFile(f"{self._directory}: another feed is running with it") from None
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._lock)

    def claim(self, shape: FeedShape) -> None:
        """Make the directories this feed's, or see that they are.

        Raises:
            BadFile: they belong to another feed, or to one that was begun in another way.
        """
        path = self._directory / "feed.json"
        if not path.exists():
            if any(self._directory.glob("offsets/*")):
                raise BadFile(f"{self._directory}: offsets, but no feed.json: it is damaged")
            if self._owner() is not None or any(self._data.glob(BATCH_FILES)):
                raise BadFile(
                    f"{self._data} has the files of another feed; name its checkpoint, or an empty "
                    "directory"
                )
            found = {"v": VERSION, "id": uuid.uuid4().hex, **_plain(shape)}
            write_whole(path, json.dumps(found, indent=1) + "\n")
        found = _read(path)
        if found.get("v") != VERSION:
            raise BadFile(f"{path}: version {found.get('v')!r}; this program knows {VERSION}")
        for name, value in _plain(shape).items():
            if found.get(name) != value:
                raise BadFile(
                    f"{path}: this feed was begun with {name} {found.get(name)}, not {value}"
                )
        if self._owner() not in (None, found["id"]):
            raise BadFile(f"{self._data} has the files of another feed than {self._directory}")
        if self._owner() is None:
            if self.number is not None and any((self._commits).iterdir()):
                raise BadFile(f"{self._data} has lost {MARKER}: are the files of this feed there?")
            write_whole(self._data / MARKER, json.dumps({"id": found["id"]}) + "\n")

    def _owner(self) -> str | None:
        path = self._data / MARKER
        return str(_read(path).get("id")) if path.exists() else None

    # --- batches --------------------------------------------------------------------------------

    @property
    def number(self) -> int | None:
        """Number of the newest batch; 0 = only the beginning is known, ``None`` = nothing is."""
        return max(_numbers(self._offsets), default=None)

    def offset(self, number: int) -> Offset:
        """Return where a batch ends."""
        path = self._offsets / str(number)
        try:
            return parsed(path.read_text(encoding="utf-8"), str(path))
        except (OSError, UnicodeError) as error:
            raise BadFile(f"{path}: {error}") from None

    def begin(self, number: int, end: Offset) -> None:
        """A batch is going to be read."""
        write_whole(self._offsets / str(number), end.to_json() + "\n")

    def is_over(self, number: int) -> bool:
        """Return whether a batch was committed."""
        return number == 0 or (self._commits / str(number)).exists()

    def commit(self, number: int, facts: dict[str, Any]) -> None:
        """A batch is over; what is noted of it is for people."""
        write_whole(self._commits / str(number), json.dumps(facts) + "\n")
        for directory in (self._offsets, self._commits):
            for old in _numbers(directory):
                if old <= number - KEPT_BATCHES:
                    (directory / str(old)).unlink(missing_ok=True)


def _numbers(directory: Path) -> list[int]:
    return [int(each.name) for each in directory.iterdir() if each.name.isdecimal()]


def _plain(shape: FeedShape) -> dict[str, Any]:
    return asdict(shape)


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadFile(f"{path}: {error}") from None
    if not isinstance(found, dict):
        raise BadFile(f"{path}: not what a feed writes")
    return found


# --- feed files -----------------------------------------------------------------------------------
# Batches of a local feed into files, each batch completely or not at all.
#
# Tasks write under names that readers ignore. When all of a batch are done the files get their
# names, and what an earlier attempt at the same batch may have left is removed; then the batch is
# committed. A batch's number is in the names, so an attempt replaces what another one wrote.
#
# Rows are written as Spark's writers do: Parquet as it is; JSON lines with binary columns in base64
# and without fields that are NULL.


FORMATS = {"parquet": ".parquet", "jsonl": ".jsonl"}

_UNFINISHED = f".batch-*{UNFINISHED}"


@dataclass(frozen=True)
class FileTask:
    """One task of a batch, and where its rows go."""

    options: ReadOptions
    task: BatchTask
    directory: str
    format: str


@dataclass(frozen=True)
class FeedWritten:
    """What a task wrote; an empty name = it had no rows."""

    name: str
    rows: int
    bytes: int


def write(task: FileTask) -> FeedWritten:
    """Run a task and write its rows to a file that is on disk when this returns."""
    batches = run(task.options, task.task)
    first = next(batches, None)
    while first is not None and not len(first):
        first = next(batches, None)
    if first is None:
        return FeedWritten("", 0, 0)
    path = Path(task.directory) / f".batch-{uuid.uuid4().hex}{UNFINISHED}"
    writer = _WRITERS[task.format]
    try:
        rows = writer(path, _with(first, batches), task.options.columns.schema)
        sync(path)
    except BaseException as error:
        path.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise BadFile(f"{path}: {error.strerror or error}") from None
        raise
    return FeedWritten(path.name, rows, path.stat().st_size)


def _with(first: Any, rest: Iterable[Any]) -> Iterator[Any]:
    yield first
    yield from rest


def publish(directory: Path, number: int, format: str, written: Sequence[FeedWritten]) -> list[str]:
    """Give a batch's files their names, and remove those of an earlier attempt; returns names."""
    names: list[str] = []
    for each in written:
        if each.name:
            name = f"batch-{number:09d}-{len(names):04d}{FORMATS[format]}"
            (directory / each.name).replace(directory / name)
            names.append(name)
    for old in directory.glob(f"batch-{number:09d}-*"):
        if old.name not in names:
            old.unlink()
    sync(directory)
    return names


def sweep(directory: Path) -> None:
    """Remove what attempts that were killed have left."""
    for each in directory.glob(_UNFINISHED):
        each.unlink(missing_ok=True)


# --- formats --------------------------------------------------------------------------------------


def _write_parquet(path: Path, batches: Iterable[Any], schema: Any) -> int:
    rows = 0
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for batch in batches:
            writer.write_batch(batch)
            rows += len(batch)
    return rows


def _write_lines(path: Path, batches: Iterable[Any], schema: Any) -> int:
    rows = 0
    with path.open("w", encoding="utf-8") as file:
        for batch in batches:
            file.writelines(f"{line}\n" for line in _lines(batch))
            rows += len(batch)
    return rows


def _lines(batch: Any) -> Iterator[str]:
    for row in batch.to_pylist():
        plain = {name: value for name, value in row.items() if value is not None}
        yield json.dumps(plain, ensure_ascii=False, separators=(",", ":"), default=_text)


def _text(value: object) -> object:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, Decimal):
        return int(value)
    raise TypeError(type(value).__name__)


_WRITERS = {"parquet": _write_parquet, "jsonl": _write_lines}


# --- feeding --------------------------------------------------------------------------------------


AVAILABLE_NOW = "available-now"

#: How long a feed that runs for ever waits for nodes that are away.
AWAY_MAX_S = 3600.0

#: What is asked to stop waits no longer than this.
_NAP_S = 0.1
_AWAY_NAP_S = 1.0

_CODE_WORD = re.compile(r"(UPRMC_[A-Z0-9_]+) ([^\n]+)")


@dataclass
class FeedReport(JsonReport):
    """What a feed did while it ran."""

    batches: int = 0  # with rows or without
    rows: int = 0  # all, control rows included
    files: int = 0  # files, bytes: with rows; 0 if Spark writes them, which does not say
    bytes: int = 0
    repeated: int = 0  # a batch that an earlier run had not finished was read again
    seconds: float = 0.0  # since it was begun

    def summary(self) -> str:
        """Return a line for people."""
        again = ", one of them begun by an earlier run" if self.repeated else ""
        files = f" in {self.files:,} files of {self.bytes:,} bytes" if self.files else ""
        return (
            f"{self.rows:,} changes{files}, {self.batches:,} batches{again}, {self.seconds:.1f} s"
        )


def never() -> bool:
    """Return ``False``: it is not stopped."""
    return False


def feed(
    servers: str | Iterable[str],
    to: str | Path,
    checkpoint: str | Path,
    *,
    format: str = "parquet",
    trigger: str | float = AVAILABLE_NOW,
    spark: Any = None,
    engine: Engine | None = None,
    stop: Callable[[], bool] = never,
    progress: Progress = unseen,
    **options: Any,
) -> FeedReport:
    """Write every change to files of a directory, each batch once, from where it stopped last.

    Args:
        servers: HOST:PORT of one or several nodes' ``upr`` listeners.
        to: directory of the files; of this feed only.
        checkpoint: directory where it keeps how far it is.
        format: ``parquet`` or ``jsonl``.
        trigger: ``available-now``: what there is now, then return; seconds: look at this interval.
        spark: a session: run it there; otherwise in processes of this machine.
        engine: the processes, or a `SparkEngine`, whose session is used.
        stop: asked now and then; ``True`` ends the feed after the present batch.
        progress: called after each batch.
        **options: of the streaming source, for instance ``starting_offsets``, ``on_rollback``,
            ``max_rows_per_trigger``, ``columns``.

    Raises:
        BadOption, BadFile: an option or a directory is wrong.
        RolledBack, DataLost, NodeUnreachable, ...: as the stream.
    """
    texts = as_texts({"servers": servers, **options})
    read = read_options(texts, kind="stream")
    if format not in FORMATS:
        raise BadOption(f"format={format}: say {' or '.join(FORMATS)}")
    interval_s = _interval_s(trigger)
    session = spark or getattr(engine, "spark", None)
    if session is not None:
        return _by_spark(
            session, texts, Path(to), Path(checkpoint), format, interval_s, stop, progress
        )
    with Checkpoint(Path(checkpoint), Path(to)) as kept:
        running = _Feed(read, Path(to), kept, format, engine or LocalEngine(), stop, progress)
        return running.run(interval_s)


def _interval_s(trigger: str | float) -> float | None:
    if trigger == AVAILABLE_NOW:
        return None
    try:
        found = seconds(str(trigger))
    except ValueError:
        found = -1.0
    if found < 0:
        raise BadOption(f"trigger={trigger}: say {AVAILABLE_NOW} or seconds, like 10s")
    return found


class _Feed:
    """A feed without Spark."""

    def __init__(
        self,
        options: ReadOptions,
        to: Path,
        kept: Checkpoint,
        format: str,
        engine: Engine,
        stop: Callable[[], bool],
        progress: Progress,
    ) -> None:
        self._options, self._to, self._kept, self._format = options, to, kept, format
        self._engine, self._stop, self._progress = engine, stop, progress
        self._report = FeedReport()
        self._follower = SparkFollower(options)

    def run(self, interval_s: float | None) -> FeedReport:
        """Run batches until there is nothing to wait for."""
        began = time.monotonic()
        try:
            self._patiently(interval_s, self._begin)
            if interval_s is None:
                self._follower.stop_at_now()
            while not self._stop():
                due = time.monotonic() + (interval_s or 0.0)
                if not self._patiently(interval_s, self._next):
                    if interval_s is None:
                        break
                    self._wait_until(max(due, time.monotonic() + _NAP_S))
                elif interval_s:
                    self._wait_until(due)
        finally:
            self._follower.close()
            self._report.seconds = round(time.monotonic() - began, 3)
        return self._report

    def _patiently(self, interval_s: float | None, work: Callable[[], bool]) -> bool:
        """Return what `work` returns; nodes that are away are waited for if there is time."""
        deadline = time.monotonic() + AWAY_MAX_S
        while True:
            try:
                return work()
            except NodeUnreachable:
                if interval_s is None or time.monotonic() > deadline:
                    raise
            self._wait_until(time.monotonic() + _AWAY_NAP_S)
            if self._stop():
                return False

    def _wait_until(self, due: float) -> None:
        while not self._stop() and (left := due - time.monotonic()) > 0:
            time.sleep(min(left, _NAP_S))

    def _begin(self) -> bool:
        """Find where to begin, and finish what an earlier run began."""
        sweep(self._to)
        columns = self._options.columns
        types = {name: str(columns.type_of(name)) for name in columns.names}
        number = self._kept.number
        initial = self._follower.initial() if number is None else self._kept.offset(number)
        self._kept.claim(FeedShape(initial.vbuckets, self._format, types))
        if number is None:
            self._kept.begin(0, initial)
        elif not self._kept.is_over(number):
            self._report.repeated += 1
            self._batch(number)
        return True

    def _next(self) -> bool:
        """Run a batch; returns whether there was one."""
        number = self._kept.number
        assert number is not None
        if not self._kept.is_over(number):  # nodes went away in its middle
            self._batch(number)
            return True
        start = self._kept.offset(number)
        end = self._follower.latest(start, self._rows())
        if end.to_json() == start.to_json():
            return False
        self._kept.begin(number + 1, end)
        self._batch(number + 1)
        return True

    def _rows(self) -> int | None:
        found = [] if self._options.max_rows is None else [self._options.max_rows]
        if self._options.max_bytes is not None:
            found.append(self._follower.rows_of(self._options.max_bytes))
        return min(found, default=None)

    def _batch(self, number: int) -> None:
        start, end = self._kept.offset(number - 1), self._kept.offset(number)
        tasks = [
            FileTask(self._options, each, str(self._to.absolute()), self._format)
            for each in self._follower.plan(start, end)
        ]
        written = self._engine.run(write, tasks) if tasks else []
        names = publish(self._to, number, self._format, written)
        rows = sum(each.rows for each in written)
        self._kept.commit(number, {"files": names, "rows": rows, "ended": time.time()})
        self._follower.committed(end)
        self._report.batches += 1
        self._report.rows += rows
        self._report.files += len(names)
        self._report.bytes += sum(each.bytes for each in written)
        self._progress(
            Step("following", self._report.batches, None, self._report.rows, self._report.bytes)
        )


# --- with Spark -----------------------------------------------------------------------------------


def _by_spark(
    spark: Any,
    texts: dict[str, str],
    to: Path,
    checkpoint: Path,
    format: str,
    interval_s: float | None,
    stop: Callable[[], bool],
    progress: Progress,
) -> FeedReport:
    """Run a streaming query into Spark's file sink."""
    from uprmc.spark.session import register

    register(spark)
    began = time.monotonic()
    changes = spark.readStream.format("uprmc").options(**texts).load()
    now = (
        {"availableNow": True}
        if interval_s is None
        else {"processingTime": f"{interval_s} seconds"}
    )
    writer = changes.writeStream.format("json" if format == "jsonl" else format)
    query = (
        writer.option("checkpointLocation", str(checkpoint.absolute()))
        .option("path", str(to.absolute()))
        .trigger(**now)
        .start()
    )
    counted = _Counted(progress)
    try:
        while not query.awaitTermination(_NAP_S * 5):
            counted.take(query.recentProgress)
            if stop():
                break
    except Exception as error:
        raise error_of(str(error)) or error from None
    finally:
        query.stop()
    counted.take(query.recentProgress)
    counted.report.seconds = round(time.monotonic() - began, 3)
    return counted.report


class _Counted:
    """Adds up what Spark tells of its batches."""

    def __init__(self, progress: Progress) -> None:
        self.report = FeedReport()
        self._progress = progress
        self._last = -1

    def take(self, told: Iterable[Any]) -> None:
        """Count the batches that are new."""
        for each in told:
            number = int(each["batchId"])
            if number > self._last and int(each["numInputRows"]) >= 0:
                self._last = number
                self.report.batches += 1
                self.report.rows += int(each["numInputRows"])
                self._progress(Step("following", self.report.batches, None, self.report.rows))


def error_of(text: str) -> ClientError | None:
    """Return our error that a text of Spark's is about, ``None`` if there is none in it."""
    found = _CODE_WORD.search(text)
    if found is None:
        return None
    kinds = {
        kind.code: kind
        for kind in [*vars(node_errors).values(), *vars(errors).values()]
        if isinstance(kind, type) and issubclass(kind, ClientError) and "code" in vars(kind)
    }
    kind = kinds.get(found[1], TaskFailed)
    error = kind.__new__(kind)
    ClientError.__init__(error, found[2].strip())
    return error
