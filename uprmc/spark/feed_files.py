"""Batches of a local feed into files, each batch completely or not at all.

Tasks write under names that readers ignore. When all of a batch are done the files get their
names, and what an earlier attempt at the same batch may have left is removed; then the batch is
committed. A batch's number is in the names, so an attempt replaces what another one wrote.

Rows are written as Spark's writers do: Parquet as it is; JSON lines with binary columns in base64
and without fields that are NULL.
"""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from uprmc.columnar.errors import BadFile
from uprmc.jobs.files import UNFINISHED, sync
from uprmc.spark.options import ReadOptions
from uprmc.spark.stream_task import BatchTask, run

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
class Written:
    """What a task wrote; an empty name = it had no rows."""

    name: str
    rows: int
    bytes: int


def write(task: FileTask) -> Written:
    """Run a task and write its rows to a file that is on disk when this returns."""
    batches = run(task.options, task.task)
    first = next(batches, None)
    while first is not None and not len(first):
        first = next(batches, None)
    if first is None:
        return Written("", 0, 0)
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
    return Written(path.name, rows, path.stat().st_size)


def _with(first: Any, rest: Iterable[Any]) -> Iterator[Any]:
    yield first
    yield from rest


def publish(directory: Path, number: int, format: str, written: Sequence[Written]) -> list[str]:
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
