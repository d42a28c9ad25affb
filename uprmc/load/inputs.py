"""Which files a load reads, and how they are cut into tasks. Reading them: `input_rows`.

A task is a run of one file: lines that begin in a range of bytes (JSON lines, and CSV whose
fields hold no line ends), row groups (Parquet), or a whole file (compressed ones, CSV with line
ends in fields). The cut depends on the files and `task_bytes` alone, not on how many processes
work: so an interrupted load that begins again has the same tasks, and can skip those that are done.
Every file has one task at least: what is empty is known by reading it, not by its size.

Standard input, a pipe, or anything else whose size says nothing is a **stream**: one task, read
once from its beginning, by the process that began the load. No other could, and none could again.

Note: a CSV file that is larger than a task is read once on the driver, to learn whether a
field holds a line end. A line with an odd number of quotes is where one begins or ends; without
such a line, every line is a row.
"""

from __future__ import annotations

import csv
import glob
import hashlib
import io
import json
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from uprmc.columnar.errors import BadFile, BadOption, MissingFile
from uprmc.errors import why

FORMATS = ("csv", "jsonl", "parquet")

#: A task is about so large; a load that is interrupted repeats at most one per process.
TASK_BYTES = 8 * 1024 * 1024

#: With more data tasks grow, so that there are never many more than this.
TASKS_MAX = 10_000

FILES_MAX = 100_000

#: A longer line is a bad one: a document in JSON can be longer than its value.
LINE_BYTES_MAX = 64 * 1024 * 1024

#: The path that stands for standard input.
STDIN = "-"

#: What is below these need not be the same file, or any, in another process.
_OWN_TO_PROCESS = ("/dev/", "/proc/")

_FORMAT_OF_SUFFIX = {
    ".csv": "csv",
    ".tsv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
}
_COMPRESSED = (".gz", ".bz2", ".zst", ".lz4")
_SCAN_BYTES = 1024 * 1024
_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True)
class Dialect:
    """How a CSV file is written."""

    delimiter: str | None = None  # between fields; ``None`` = a tab for ``.tsv``, a comma otherwise
    quote: str = '"'  # around fields; doubled inside of them
    # before a quote inside of a field, in files that do so instead of doubling it.
    escape: str | None = None
    header: bool = True  # the first line names the columns
    columns: tuple[str, ...] = ()  # the columns of a file without header
    # a field with this text is NULL; ``None`` = no field is, an empty one is empty text.
    null: str | None = None
    # a field that reads as a JSON number, true, false or null is one in JSON documents.
    infer: bool = False


@dataclass(frozen=True)
class LoadTask:
    """A run of a file; all plain values, so it travels to any worker."""

    number: int  # its place in the plan, from 0
    path: str
    format: str
    first: int  # first, last: bytes of the file from `first` below `last`, or row groups of Parquet
    last: int
    size_bytes: int  # how much of the input it is, for progress
    file_bytes: int  # file_bytes, modified_ns: what the file was when the plan was made
    modified_ns: int
    dialect: Dialect
    # of CSV, from its header or the dialect; of Parquet, from its schema
    columns: tuple[str, ...] = ()
    # columns that are the same in all rows, from names of directories
    constants: tuple[tuple[str, str | None], ...] = ()
    # it is read once, here, to its end; `last`, sizes and columns are not known before
    stream: bool = False

    @property
    def name(self) -> str:
        """What people call it."""
        return "standard input" if self.path == STDIN else self.path

    @property
    def repeatable(self) -> bool:
        """Whether it has the same rows when it is read again."""
        return not _is_pipe(self.path)

    @property
    def compressed(self) -> bool:
        return self.format != "parquet" and self.path.endswith(_COMPRESSED)

    def check_unchanged(self) -> None:
        """Raise `BadFile` when the file is not the one that the plan was made for."""
        if self.stream:
            return
        try:
            facts = os.stat(self.path)
        except OSError as error:
            raise BadFile(f"cannot read {self.path}: {error.strerror}") from None
        if (facts.st_size, facts.st_mtime_ns) != (self.file_bytes, self.modified_ns):
            raise BadFile(f"{self.path} has changed since the load began: start it again")


def plan(
    paths: Sequence[str],
    *,
    format: str | None = None,
    dialect: Dialect | None = None,
    task_bytes: int = TASK_BYTES,
) -> list[LoadTask]:
    """Return the tasks that read all files, in the order of the paths.

    Args:
        paths: files, pipes, `STDIN`, directories (all files below, but those whose names begin
            with ``.`` or ``_``), or patterns with ``*``, ``?``, ``[...]``, ``**``.
        format: one of `FORMATS`; ``None`` = by the end of each name.
        dialect: of CSV files.
        task_bytes: about how much of a file a task reads.

    Raises:
        BadOption: nothing is there, or a file's format is not known.
        BadFile: a file cannot be read.
    """
    dialect = dialect or Dialect()
    _check_dialect(dialect)
    if list(paths).count(STDIN) > 1:
        raise BadOption(f"standard input ({STDIN}) can be read once only")
    found = list(_files(paths, format))
    total = sum(os.path.getsize(path) for path, _, _ in found if path != STDIN)
    task_bytes = max(task_bytes, total // TASKS_MAX)
    tasks: list[LoadTask] = []
    for path, kind, constants in found:
        for task in _tasks_of(path, kind, dialect, task_bytes):
            tasks.append(replace(task, number=len(tasks), constants=constants))
    return tasks


def fingerprint(tasks: Iterable[LoadTask]) -> str:
    """Return a text that differs when the files or the way they are cut differ."""
    digest = hashlib.sha256()
    for task in tasks:
        digest.update(json.dumps(asdict(task), sort_keys=True).encode())
    return digest.hexdigest()[:32]


# --- which files ----------------------------------------------------------------------------------

_Found = tuple[str, str, tuple[tuple[str, str | None], ...]]


def _files(paths: Sequence[str], format: str | None) -> Iterator[_Found]:
    count = 0
    for path in paths:
        for file, kind, constants in _files_of(path, format):
            count += 1
            if count > FILES_MAX:
                raise BadOption(f"more than {FILES_MAX:,} files: load them in several runs")
            yield file, kind, constants


def _files_of(path: str, format: str | None) -> Iterator[_Found]:
    if "://" in path:
        raise BadOption(
            f"{path} is no file of this machine: mount it, or read it with Spark and write with"
            ' df.write.format("uprmc")'
        )
    if path == STDIN:
        if format is None:
            raise BadOption(
                "standard input has no name that tells its format: say --format csv or jsonl"
            )
        yield path, format, ()
    elif os.path.isdir(path):
        yield from _files_below(Path(path), format)
    elif os.path.exists(path):
        yield path, format or _format_of(path), ()
    else:
        matching = sorted(glob.glob(path, recursive=True)) if glob.has_magic(path) else []
        if not matching:
            raise MissingFile(f"no file at {path}")
        for one in matching:
            if os.path.isdir(one):
                yield from _files_below(Path(one), format)
            else:
                yield one, format or _format_of(one), ()


def _files_below(directory: Path, format: str | None) -> Iterator[_Found]:
    found = False
    for folder, folders, names in os.walk(directory):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "_")))
        constants = tuple(_constants(Path(folder).relative_to(directory)))
        for name in sorted(names):
            if not name.startswith((".", "_")):
                file = os.path.join(folder, name)
                found = True
                yield file, format or _format_of(file), constants
    if not found:
        raise MissingFile(f"no file in {directory}")


def _constants(below: Path) -> Iterator[tuple[str, str | None]]:
    for part in below.parts:
        name, equals, text = part.partition("=")
        if equals and name:
            yield unquote(name), None if text == _HIVE_NULL else unquote(text)


def _format_of(path: str) -> str:
    name = path.lower()
    for end in _COMPRESSED:
        name = name.removesuffix(end)
    format = _FORMAT_OF_SUFFIX.get(os.path.splitext(name)[1])
    if format is None:
        raise BadOption(f"the name of {path} does not say its format: say one of {_words(FORMATS)}")
    return format


def _words(names: Sequence[str]) -> str:
    return ", ".join(names[:-1]) + " or " + names[-1]


# --- tasks of a file ------------------------------------------------------------------------------


def _tasks_of(path: str, format: str, dialect: Dialect, task_bytes: int) -> Iterator[LoadTask]:
    try:
        if format == "csv" and dialect.delimiter is None:
            tabs = ".tsv" in os.path.basename(path).lower()
            dialect = replace(dialect, delimiter="\t" if tabs else ",")
        facts = None if path == STDIN else os.stat(path)
        size = 0 if facts is None else facts.st_size
        whole = LoadTask(
            number=0,
            path=path if facts is None else os.path.abspath(path),
            format=format,
            first=0,
            last=size,
            size_bytes=size,
            file_bytes=size,
            modified_ns=0 if facts is None else facts.st_mtime_ns,
            dialect=dialect,
            stream=not size or _is_pipe(path),
        )
        if format == "parquet":
            if _is_pipe(path):
                raise BadOption(
                    f"{whole.name}: Parquet is read from its end, which a pipe does not have yet: "
                    "load it from a file"
                )
            yield from _row_groups(whole, task_bytes)
        elif whole.stream:
            yield whole
        elif format == "csv":
            yield from _csv_ranges(whole, task_bytes)
        else:
            yield from _ranges(whole, 0, task_bytes if not whole.compressed else whole.last)
    except (OSError, pa.ArrowException) as error:
        raise BadFile(f"cannot read {path}: {why(error)}") from None


def _is_pipe(path: str) -> bool:
    """Return whether it can be read once only, and only by this process."""
    if path == STDIN or path.startswith(_OWN_TO_PROCESS):
        return True
    return not stat.S_ISREG(os.stat(path).st_mode)


def _ranges(whole: LoadTask, first: int, task_bytes: int) -> Iterator[LoadTask]:
    for start in range(first, whole.last, task_bytes):
        end = min(start + task_bytes, whole.last)
        yield replace(whole, first=start, last=end, size_bytes=end - start)


def _row_groups(whole: LoadTask, task_bytes: int) -> Iterator[LoadTask]:
    with pq.ParquetFile(whole.path) as file:
        sizes = [file.metadata.row_group(n).total_byte_size for n in range(file.num_row_groups)]
        whole = replace(whole, columns=tuple(file.schema_arrow.names), stream=False)
    if not sizes:
        yield replace(whole, last=0)
    first = gathered = 0
    for number, size in enumerate(sizes):
        gathered += size
        if gathered >= task_bytes or number == len(sizes) - 1:
            yield replace(whole, first=first, last=number + 1, size_bytes=gathered)
            first, gathered = number + 1, 0


# --- tasks of CSV ---------------------------------------------------------------------------------


def _check_dialect(dialect: Dialect) -> None:
    for name in ("delimiter", "quote", "escape"):
        text = getattr(dialect, name)
        if text is not None and (len(text) != 1 or text in "\r\n" or not text.isascii()):
            raise BadOption(f"{name}: one ASCII character, not {text!r}")
    if not dialect.header and not dialect.columns:
        raise BadOption("a CSV file without header needs the names of its columns")
    if len(set(dialect.columns)) < len(dialect.columns):
        raise BadOption("two columns have the same name")


def _csv_ranges(whole: LoadTask, task_bytes: int) -> Iterator[LoadTask]:
    with open_bytes(whole) as file:
        columns, rows_from = _header(whole, file)
    whole = replace(whole, first=rows_from, columns=columns)
    if whole.compressed or whole.last - rows_from <= task_bytes or _line_ends_in_fields(whole):
        yield whole
    else:
        yield from _ranges(whole, rows_from, task_bytes)


def with_header(stream: LoadTask, file: IO[bytes]) -> LoadTask:
    """Return a stream's task with the columns that its header names; the header is read then."""
    if stream.format != "csv":
        return stream
    return replace(stream, columns=_header(stream, file)[0])


def _header(whole: LoadTask, file: IO[bytes]) -> tuple[tuple[str, ...], int]:
    """Return the columns, and where the first row begins (0 in a compressed file)."""
    dialect = whole.dialect
    if not dialect.header:
        return dialect.columns, 0
    line = file.readline(LINE_BYTES_MAX)
    try:
        text = line.decode("utf-8-sig")
        names = next(csv.reader([text], **csv_options(dialect)), [])
    except (UnicodeDecodeError, csv.Error) as error:
        raise BadFile(f"the header of {whole.name} cannot be read: {error}") from None
    if not names:
        raise BadFile(f"{whole.name} begins without a header: name its columns")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise BadFile(f"{whole.name} has two columns named {twice[0]!r}")
    return dialect.columns or tuple(names), 0 if whole.compressed else len(line)


def _line_ends_in_fields(task: LoadTask) -> bool:
    """Tell whether a line has an odd number of quotes (see the module docstring)."""
    quote = task.dialect.quote.encode()
    odd = False
    with open(task.path, "rb") as file:
        file.seek(task.first)
        while chunk := file.read(_SCAN_BYTES):
            first, *others = (
                chunk.split(b"\n") if quote in chunk else [b"", *[b""] * (b"\n" in chunk)]
            )
            odd ^= first.count(quote) % 2 == 1
            for line in others:
                if odd:
                    return True
                odd = line.count(quote) % 2 == 1
    return odd


def csv_options(dialect: Dialect) -> dict[str, Any]:
    """Return the arguments of `csv.reader` for a dialect; anything torn is an error."""
    return {
        "delimiter": dialect.delimiter or ",",
        "quotechar": dialect.quote,
        "escapechar": dialect.escape,
        "doublequote": True,
        "strict": True,
    }


def open_bytes(task: LoadTask) -> IO[bytes]:
    """Open the file of a task for reading bytes, unpacked."""
    if task.path == STDIN:
        return open(0, "rb", closefd=False)
    if not task.compressed:
        return open(task.path, "rb")
    # a file of Python's, because pyarrow's own seek when they are opened, which a pipe does not do
    codec = pa.Codec.detect(task.path).name
    unpacked = pa.input_stream(open(task.path, "rb"), compression=codec)  # noqa: SIM115
    packed: IO[bytes] = io.BufferedReader(unpacked)
    return packed


# --- rows of inputs ------------------------------------------------------------------------------
# Reads the rows of one task of a load: names and values, or why a line is none.
#
# A line that cannot be read is a `BadLine` that names file and line, never an exception: the rows
# after it are still read. Only a file that is gone, changed or cut in its middle ends a task.
#
# Note: text of a CSV file that is not UTF-8 is kept as it is (surrogate escapes), because a
# value may be any bytes; in a JSON document it is refused later. The number of a line in the middle
# of a file is counted only when a bad line has to be named.


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
    """The lines that begin in a task's range, without marks of byte order; too long ones apart."""

    def __init__(self, task: LoadTask, file: IO[bytes]) -> None:
        self.number = 0  # lines that were read
        # numbers and beginnings of lines over the limit, until they are taken
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
