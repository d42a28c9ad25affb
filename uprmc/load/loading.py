"""Loads files into nodes: `inputs` cuts them, `row_rules` makes documents, `writing` writes them.

An engine runs the tasks, each of them perhaps more than once. The driver adds up their reports,
keeps the journal of what is done (`jobs.journal`), and ends the work when too many rows were bad.

Note: a key that is in the input several times ends with any of its values, because tasks
run side by side; within one task the last one wins.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from uprmc.columnar.errors import BadFile, BadOption, TooManyErrors
from uprmc.columnar.nodes import BulkNodes
from uprmc.columnar.report import ErrorRow, JsonReport, Report, TaskReport, merge
from uprmc.columnar.write_options import WINDOW_MAX, WriteOptions
from uprmc.columnar.writing import Writer
from uprmc.errors import why
from uprmc.jobs.engines import Engine, current_attempt
from uprmc.jobs.journal import Journal
from uprmc.jobs.progress import Progress, Step, unseen
from uprmc.load.inputs import (
    TASK_BYTES,
    BadLine,
    Dialect,
    LoadTask,
    Numbering,
    fingerprint,
    open_bytes,
    plan,
    with_header,
)
from uprmc.load.row_rules import FLAGS, KEY, TTL, VALUE, LoadRun, RowRules, runs
from uprmc.units import nearest


@dataclass(frozen=True)
class Job:
    """What a worker gets: one task and how to do it."""

    task: LoadTask
    rules: RowRules
    write: WriteOptions


@dataclass
class LoadReport(JsonReport):
    """What a load has done."""

    counts: Report  # of all rows, those of earlier runs with the same journal included
    files: int  # how many were read
    tasks: int  # how many there were
    tasks_before: int  # how many of them an earlier run had done
    seconds: float  # that this run took
    mode: str  # of writing

    @property
    def errors(self) -> int:
        """Rows that could not be written."""
        return self.counts.errors

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON knows it."""
        own = {name: value for name, value in asdict(self).items() if name != "counts"}
        return {"verb": "load", **self.counts.to_dict(), **own}

    def summary(self) -> str:
        """Return a few lines for people."""
        counts = self.counts
        per_s = f", {counts.rows / self.seconds:,.0f} rows/s" if self.seconds else ""
        lines = [
            f"{counts.summary()}",
            f"{_counted(self.files, 'file')}, {counts.bytes / 1e6:,.1f} MB of keys and values"
            f" in {self.seconds:.1f} s" + ("" if self.tasks_before else per_s),
        ]
        if self.tasks_before:
            lines.append(f"{self.tasks_before:,} of {self.tasks:,} tasks were done before")
        lines += [f"error: {text}" for text in counts.first_errors]
        lines += [f"error rows: {path}" for path in counts.error_files]
        return "\n".join(lines)


def _counted(number: int, word: str) -> str:
    return f"{number:,} {word}" + ("" if number == 1 else "s")


def load(
    paths: Sequence[str],
    *,
    write: WriteOptions,
    engine: Engine,
    rules: RowRules | None = None,
    format: str | None = None,
    dialect: Dialect | None = None,
    resume: Path | None = None,
    rate: float | None = None,
    progress: Progress | None = None,
    task_bytes: int = TASK_BYTES,
) -> LoadReport:
    """Write all rows of files to the nodes.

    Args:
        paths: files, directories or patterns (see `inputs.plan`).
        write: how; columns and rate are set here, `max_errors` holds for all tasks together.
        engine: runs the tasks.
        rules: what of a row is key, value, time to live; ``None`` = columns ``key`` and ``value``.
        format: of all files; ``None`` = by their names.
        dialect: of CSV.
        resume: journal; tasks that it names as done are passed over.
        rate: rows a second of all tasks together.
        progress: gets a `Step` for each task that is done.
        task_bytes: see `inputs.plan`; a journal holds for one size only.

    Raises:
        ClientError: the first that a task or the driver failed for.
    """
    began = time.monotonic()
    rules = replace(rules or RowRules(), meta=write.mode == "append-meta")
    if write.mode == "delete":
        rules = replace(rules, value=None)
    rules.check()
    tasks = plan(paths, format=format, dialect=dialect, task_bytes=task_bytes)
    check_columns(tasks, rules)
    if resume is not None:
        for task in tasks:
            if not task.repeatable:
                raise BadOption(
                    f"{task.name} is gone once it was read: nothing could be resumed; load it "
                    "without a journal, or from a file"
                )
    facts = {
        "files": fingerprint(tasks),
        "mode": write.mode,
        "servers": sorted(write.access.servers),
        "bucket": write.access.bucket,
        **{name: value for name, value in asdict(rules).items() if name != "meta"},
    }
    with Journal(resume, facts, read_only=write.dry_run) as journal:
        before = len(journal.done)
        left = [task for task in tasks if task.number not in journal.done]
        streams = [task for task in left if task.stream]
        files = [task for task in left if not task.stream]
        together = min(engine.parallelism, len(files)) or 1
        if resume is not None:
            # What a journal calls done must not be lost with a node.
            write = replace(write, durability="persist")
        write = _with_columns(replace(write, rate=rate), rules)
        if left and not write.dry_run:
            BulkNodes(write.access).close()  # a node that is away is an error at once, and only one
        watch = _Watch(journal, [*streams, *files], len(tasks), write, progress or unseen)
        for index, task in enumerate(streams):
            watch.done(index, _load_stream(Job(task, rules, write.patient())))
        shared = replace(write, rate=rate and rate / together).patient()
        engine.run(
            load_task,
            [Job(task, rules, shared) for task in files],
            lambda index, report: watch.done(len(streams) + index, report),
        )
        return LoadReport(
            counts=merge(journal.done.values()),
            files=len({task.path for task in tasks}),
            tasks=len(tasks),
            tasks_before=before,
            seconds=time.monotonic() - began,
            mode=write.mode,
        )


def check_columns(tasks: Sequence[LoadTask], rules: RowRules) -> None:
    """Raise `BadOption` when a file is known to lack a column that the rules name."""
    for task in {task.path: task for task in tasks if task.columns}.values():
        there = [*task.columns, *dict(task.constants)]
        for column in rules.named():
            if column not in there:
                meant = nearest(column, there)
                hint = f"did you mean {meant}?" if meant else f"there are {', '.join(there)}"
                raise BadOption(f"there is no column {column!r} in {task.name}: {hint}")


def _with_columns(write: WriteOptions, rules: RowRules) -> WriteOptions:
    return replace(
        write,
        key_column=KEY,
        value_column=VALUE,
        ttl_column=TTL if rules.ttl is not None else None,
        flags_column=FLAGS if rules.flags is not None else None,
    )


class _Watch:
    """Takes the reports of tasks on the driver."""

    def __init__(
        self,
        journal: Journal,
        tasks: Sequence[LoadTask],
        of: int,
        write: WriteOptions,
        progress: Progress,
    ) -> None:
        self._journal, self._tasks, self._of = journal, tasks, of
        self._write, self._progress = write, progress
        self._tell()

    def done(self, index: int, report: TaskReport) -> None:
        """Note a task; raises `TooManyErrors`."""
        self._journal.add(self._tasks[index].number, report)
        self._tell()
        most, errors = self._write.max_errors, self._journal.errors
        if most is not None and errors > most:
            reasons = merge(self._journal.done.values()).first_errors
            raise TooManyErrors(
                f"{errors:,} rows with errors, {most:,} are allowed; the first: {reasons[0]}"
            )

    def _tell(self) -> None:
        journal, verb = self._journal, "checking" if self._write.dry_run else "loading"
        self._progress(Step(verb, len(journal.done), self._of, journal.rows, journal.bytes))


# --- in a worker ----------------------------------------------------------------------------------


def _load_stream(job: Job) -> TaskReport:
    """Write the rows of a stream, here and once. Raises `ClientError`."""
    with ExitStack() as stack:
        try:
            stream = stack.enter_context(open_bytes(job.task))
            task = with_header(job.task, stream)
        except (OSError, EOFError, pa.ArrowException) as error:
            raise BadFile(f"cannot read {job.task.name}: {why(error)}") from None
        check_columns([task], job.rules)
        return load_task(replace(job, task=task), stream)


def load_task(job: Job, stream: IO[bytes] | None = None) -> TaskReport:
    """Write the rows of one task; `stream` as for `rows_of`. Raises `ClientError`."""
    places = _Places(job.task)
    writer = Writer(job.write, job.task.number, current_attempt(), name_row=places)
    try:
        for run in runs(job.task, job.rules, stream=stream):
            _give(run, writer, places)
        return writer.finish()
    except BaseException:
        writer.abort()
        raise


def _give(run: LoadRun, writer: Writer, places: _Places) -> None:
    for bad in run.bad:
        places.add([bad.number])
        writer.reject(_error_row(bad, places.last))
    if run.batch.num_rows:
        places.add(run.numbers)
        writer.write(run.batch)


def _error_row(bad: BadLine, row: int) -> ErrorRow:
    return ErrorRow(row=row, code="BAD_LINE", reason=bad.reason, value=bad.excerpt)


class _Places:
    """Names the file and line of a writer's row, of those that may still be asked about."""

    def __init__(self, task: LoadTask) -> None:
        self._name = os.path.relpath(task.path) if _is_near(task.path) else task.name
        self._numbering = Numbering(task)
        self._numbers: deque[int] = deque()
        self._first = 0

    @property
    def last(self) -> int:
        return self._first + len(self._numbers) - 1

    def add(self, numbers: Sequence[int]) -> None:
        self._numbers.extend(numbers)
        # A writer asks about no row before its window.
        while len(self._numbers) > 2 * WINDOW_MAX:
            self._numbers.popleft()
            self._first += 1

    def __call__(self, row: int) -> str:
        index = row - self._first
        if not 0 <= index < len(self._numbers):
            return self._name
        return f"{self._name}:{self._numbering(self._numbers[index])}"


def _is_near(path: str) -> bool:
    return path.startswith(os.getcwd() + os.sep)
