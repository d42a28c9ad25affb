"""Reads the rows of one task of a load: names and values, or why a line is none.

A line that cannot be read is a `BadLine` that names file and line, never an exception: the rows
after it are still read. Only a file that is gone, changed or cut in its middle ends a task.

Note: text of a CSV file that is not UTF-8 is kept as it is (surrogate escapes), because a
value may be any bytes; in a JSON document it is refused later. The number of a line in the middle
of a file is counted only when a bad line has to be named.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from uprmc.columnar.errors import BadFile
from uprmc.errors import why
from uprmc.load.inputs import LINE_BYTES_MAX, LoadTask, csv_options, open_bytes

#: The beginning of a bad line that is shown.
EXCERPT_BYTES = 256

_PARQUET_ROWS = 2048
_COUNT_BYTES = 1024 * 1024
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class InputRow:
    """One row."""

    number: int  # lines (of Parquet: rows) of the task before it; `Numbering` makes a file's of it
    fields: dict[str, Any]  # by column; ``None`` is NULL
    text: bytes | None = None  # the line itself, of JSON lines


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that is no row; `number` as in `InputRow`."""

    number: int
    reason: str
    excerpt: bytes


class Numbering:
    """Turns numbers within a task into those of the file, from 1; reads the file if it must."""

    def __init__(self, task: LoadTask) -> None:
        self._task = task
        self._before: int | None = None

    def __call__(self, number: int) -> int:
        if self._before is None:
            self._before = self._count()
        return self._before + number + 1

    def _count(self) -> int:
        task = self._task
        if task.stream:
            return int(task.format == "csv" and task.dialect.header)
        if task.format == "parquet":
            with pq.ParquetFile(task.path) as file:
                return sum(file.metadata.row_group(n).num_rows for n in range(task.first))
        lines, left, last = 0, task.first, b"\n"
        with open(task.path, "rb") as plain:
            while left and (chunk := plain.read(min(left, _COUNT_BYTES))):
                lines += chunk.count(b"\n")
                left -= len(chunk)
                last = chunk[-1:]
        # A line that the range's start tears is the affair of the range before.
        return lines + (last != b"\n")


def rows_of(
    task: LoadTask, columns: Sequence[str] | None = None, stream: IO[bytes] | None = None
) -> Iterator[InputRow | BadLine]:
    """Yield the rows of a task in the file's order.

    Args:
        task: of `inputs.plan`.
        columns: the only ones that are needed, where it costs less to read fewer; ``None`` = all.
        stream: the open file of a task that is a stream, behind its header.

    Raises:
        BadFile: the file is gone, has changed since the plan, or ends where it must not.
    """
    task.check_unchanged()
    constants = dict(task.constants)
    try:
        for row in _read(task, columns, stream):
            if constants and isinstance(row, InputRow):
                row.fields.update(constants)
            yield row
    except (OSError, EOFError, pa.ArrowException) as error:
        raise BadFile(f"cannot read {task.name}: {why(error)}") from None


def _read(
    task: LoadTask, columns: Sequence[str] | None, stream: IO[bytes] | None
) -> Iterator[InputRow | BadLine]:
    if task.format == "parquet":
        yield from _parquet(task, columns)
        return
    read = _csv if task.format == "csv" else _json_lines
    if stream is not None:
        yield from read(task, stream)
        return
    with open_bytes(task) as file:
        yield from read(task, file)


# --- lines ----------------------------------------------------------------------------------------


class _Lines:
    """The lines that begin in a task's range, without marks of byte order; too long ones apart.

    Attributes:
        number: lines that were read.
        too_long: numbers and beginnings of lines over the limit, until they are taken.
    """

    def __init__(self, task: LoadTask, file: IO[bytes]) -> None:
        self.number = 0
        self.too_long: list[BadLine] = []
        self._file = file
        self._last = None if task.compressed or task.stream else task.last
        self._position = task.first
        self._at_start = task.first == 0
        if task.first:
            file.seek(task.first - 1)
            # The line that is torn here is the affair of the range before.
            self._position += len(file.readline()) - 1

    def __iter__(self) -> Iterator[bytes]:
        while self._last is None or self._position < self._last:
            line = self._file.readline(LINE_BYTES_MAX)
            if not line:
                return
            number, self.number = self.number, self.number + 1
            self._position += len(line)
            if len(line) == LINE_BYTES_MAX and not line.endswith(b"\n"):
                self._skip_rest()
                reason = f"a line of more than {LINE_BYTES_MAX:,} bytes"
                self.too_long.append(BadLine(number, reason, line[:EXCERPT_BYTES]))
                continue
            if self._at_start:
                line, self._at_start = line.removeprefix(_BYTE_ORDER_MARK), False
            yield line

    def _skip_rest(self) -> None:
        while rest := self._file.readline(LINE_BYTES_MAX):
            self._position += len(rest)
            if rest.endswith(b"\n"):
                return

    def take_too_long(self) -> list[BadLine]:
        taken, self.too_long = self.too_long, []
        return taken


def _json_lines(task: LoadTask, file: IO[bytes]) -> Iterator[InputRow | BadLine]:
    lines = _Lines(task, file)
    for line in lines:
        yield from lines.take_too_long()
        if text := line.strip():
            yield _json_row(lines.number - 1, text)
    yield from lines.take_too_long()


def _json_row(number: int, text: bytes) -> InputRow | BadLine:
    try:
        fields = json.loads(text, parse_constant=_no_number)
    except UnicodeDecodeError:
        return BadLine(number, "no UTF-8", text[:EXCERPT_BYTES])
    except (ValueError, RecursionError) as error:
        return BadLine(number, f"no JSON: {error}", text[:EXCERPT_BYTES])
    if not isinstance(fields, dict):
        return BadLine(number, "no JSON object", text[:EXCERPT_BYTES])
    return InputRow(number, fields, text)


def _no_number(word: str) -> None:
    raise ValueError(f"{word} is no number of JSON")


# --- CSV ------------------------------------------------------------------------------------------


def _csv(task: LoadTask, file: IO[bytes]) -> Iterator[InputRow | BadLine]:
    # The module's own limit is 128 KiB, for the whole process; a torn quote may not eat the file.
    csv.field_size_limit(LINE_BYTES_MAX)
    lines = _Lines(task, file)
    last_line = [b""]
    reader = csv.reader(_texts(lines, last_line), **csv_options(task.dialect))
    if task.compressed and not task.stream and task.dialect.header:
        next(reader, None)
    while True:
        began = lines.number
        try:
            fields = next(reader)
        except StopIteration:
            break
        except csv.Error as error:
            yield BadLine(began, f"no CSV: {error}", last_line[0][:EXCERPT_BYTES])
            continue
        yield from lines.take_too_long()
        if fields:
            yield _csv_row(task, began, fields)
    yield from lines.take_too_long()


def _texts(lines: _Lines, last_line: list[bytes]) -> Iterator[str]:
    for line in lines:
        last_line[0] = line
        yield line.decode("utf-8", "surrogateescape")


def _csv_row(task: LoadTask, number: int, fields: list[str]) -> InputRow | BadLine:
    if len(fields) != len(task.columns):
        reason = f"{len(fields)} fields, where there are {len(task.columns)} columns"
        excerpt = ",".join(fields).encode("utf-8", "surrogateescape")
        return BadLine(number, reason, excerpt[:EXCERPT_BYTES])
    null = task.dialect.null
    if null is None:
        return InputRow(number, dict(zip(task.columns, fields, strict=True)))
    values = (None if field == null else field for field in fields)
    return InputRow(number, dict(zip(task.columns, values, strict=True)))


# --- Parquet --------------------------------------------------------------------------------------


def _parquet(task: LoadTask, columns: Sequence[str] | None) -> Iterator[InputRow | BadLine]:
    number = 0
    with pq.ParquetFile(task.path) as file:
        wanted = None
        if columns is not None:
            wanted = [name for name in file.schema_arrow.names if name in columns]
        for batch in file.iter_batches(
            _PARQUET_ROWS, row_groups=range(task.first, task.last), columns=wanted
        ):
            for fields in batch.to_pylist():
                yield InputRow(number, fields)
                number += 1
