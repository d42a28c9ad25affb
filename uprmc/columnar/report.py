"""What came of a write: counts of a task, of all tasks together, and rows with errors.

A task's report is its commit message (`sink`), is kept by resumable loads (`load`) and compared by
`restore`: plain values only, and the same through JSON.

Every row is in exactly one of `OUTCOMES`. Note: after a task was tried again its earlier
attempt has written already; those rows are `applied` once more (upsert), `conflicts` (append-meta),
`existed` (insert) or `missing` (delete) in the report of the later one.
"""

from __future__ import annotations

import json
import os
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import IO, Any, Self

from uprmc.columnar.errors import BadFile

#: Texts of errors that are kept; the error files have all.
FIRST_ERRORS_MAX = 5

#: The counters that each row is in one of.
OUTCOMES = ("applied", "conflicts", "existed", "missing", "skipped", "errors")


class JsonReport:
    """A dataclass that says what work came to, for programs."""

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON knows it."""
        return asdict(self)  # type: ignore[call-overload, no-any-return]

    def to_json(self) -> str:
        """Return it as one line of JSON."""
        return json.dumps(self.to_dict(), sort_keys=True)


@dataclass
class Counts(JsonReport):
    """What tasks and whole writes count."""

    rows: int = 0  # rows seen
    applied: int = 0  # the node took them; in a dry run: it would be asked to
    # append-meta: the version that the node has wins, or is the same one; casColumn: the document
    # has another CAS, or is gone.
    conflicts: int = 0
    existed: int = 0  # insert, casColumn: the same document is there already
    missing: int = 0  # a document to be deleted or replaced is not there
    skipped: int = 0  # no value, and such rows are to be left out
    errors: int = 0  # could not be written
    # requests sent once more: temporary failures, moved vBuckets, lost connections.
    retried: int = 0
    resent: int = 0  # requests sent once more because a node lost what it had answered for
    bytes: int = 0  # of keys and values, of all rows that were not errors in themselves
    seconds: float = 0.0  # from the first row to the end; summed up over tasks
    dry_run: bool = False  # nothing was sent
    first_errors: list[str] = field(default_factory=list)  # what was wrong with the first ones

    @property
    def balanced(self) -> bool:
        """Tell whether each row has come to something."""
        return self.rows == sum(int(getattr(self, name)) for name in OUTCOMES)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Read what `to_dict` gave; raises `BadFile` when it is something else."""
        try:
            return cls(**values)
        except TypeError as error:
            raise BadFile(f"that is no {cls.__name__}: {error}") from None

    def summary(self) -> str:
        """Return one line for people; what is nought is left out."""
        verb = "would be written" if self.dry_run else "written"
        words = [f"{self.rows:,} rows, {self.applied:,} {verb}"]
        for name, text in _SUMMARY.items():
            number = getattr(self, name)
            if number:
                words.append(f"{number:,} {text}")
        return ", ".join(words)


_SUMMARY = {
    "conflicts": "the same as what is there, or older",
    "existed": "there already",
    "missing": "not there to delete",
    "skipped": "without value passed over",
    "errors": "with errors",
    "retried": "requests tried again",
    "resent": "requests sent again after a node lost them",
}


@dataclass
class TaskReport(Counts):
    """One task's counts."""

    partition: int = 0  # which task
    attempt: int = 0  # which attempt at it, from 0
    error_file: str | None = None  # where its error rows are; ``None`` if it has no such file


@dataclass
class Report(Counts):
    """The counts of all tasks."""

    tasks: int = 0  # how many there were
    error_files: list[str] = field(default_factory=list)  # where error rows are


_ADDED = tuple(each.name for each in fields(Counts) if each.name not in ("dry_run", "first_errors"))


def merge(reports: Iterable[TaskReport]) -> Report:
    """Return what all tasks did together."""
    whole = Report()
    for each in sorted(reports, key=lambda report: report.partition):
        whole.tasks += 1
        for name in _ADDED:
            setattr(whole, name, getattr(whole, name) + getattr(each, name))
        whole.dry_run = whole.dry_run or each.dry_run
        room = FIRST_ERRORS_MAX - len(whole.first_errors)
        whole.first_errors += each.first_errors[:room]
        if each.error_file:
            whole.error_files.append(each.error_file)
    return whole


# --- error rows ----------------------------------------------------------------------------------
# Rows that could not be written: what is said of each, and the file they are put into.
#
# The file has a line of JSON for each row. Keys and values are base64, because they need not be
# text, and of a value there is only the beginning: enough to recognise the row. Lines are written
# as they come, so a task that is killed leaves what it had found.
#
# Note: files of attempts that failed stay. An attempt that is given up because of its errors
# would otherwise take the explanation with it. Nor does a later write into the same directory
# touch them, such as the next micro-batch, whose tasks have the same numbers: its files have a
# number more. The report names the files that count.


#: The beginning of a value that is shown.
VALUE_SHOWN_BYTES = 256

#: The beginning of a key that is shown: more than a key may have, to find one that is too long.
KEY_SHOWN_BYTES = 1024

#: Files of the same task and attempt, of different writes, that a directory may have.
FILES_MAX = 10_000

#: Why a row was not written; `code` of an error row. REFUSED: the node did not take it;
#: BAD_LINE: it was no row, see `Writer.reject`.
CODES = (
    "NO_KEY",
    "EMPTY_KEY",
    "KEY_TOO_LONG",
    "NO_VALUE",
    "VALUE_TOO_LARGE",
    "BAD_NUMBER",
    "BAD_OPERATION",
    "EXISTS",
    "CONFLICT",
    "REFUSED",
    "BAD_LINE",
)

#: Says of a row's number in its task where the row came from.
NameRow = Callable[[int], str]


@dataclass(frozen=True)
class ErrorRow:
    """One row that was not written."""

    row: int  # its number among the rows of its task, from 0
    code: str  # one of `CODES`
    reason: str  # what is wrong, for people
    key: bytes | None = None  # ``None`` if there is none
    value: bytes | None = None  # ``None`` if there is none, or it was not looked at
    vbucket: int | None = None  # ``None`` if it was not sent
    status: str | None = None  # name of the status that the node answered with

    def text(self, name_row: NameRow | None = None) -> str:
        """Return one line for people."""
        where = name_row(self.row) if name_row else f"row {self.row}"
        shown = "" if self.key is None else f" with key {self.key[:KEY_SHOWN_BYTES]!r}"
        return f"{where}{shown}: {self.code}: {self.reason}"

    def to_json(self, partition: int, attempt: int, name_row: NameRow | None = None) -> str:
        """Return it as a line of the file, without its end."""
        return json.dumps(
            {
                "row": self.row,
                "place": name_row(self.row) if name_row else None,
                "partition": partition,
                "attempt": attempt,
                "key": _base64(self.key, KEY_SHOWN_BYTES),
                "vb": self.vbucket,
                "code": self.code,
                "status": self.status,
                "reason": self.reason,
                "value": _base64(self.value, VALUE_SHOWN_BYTES),
            }
        )


class ErrorFile:
    """The error rows of one attempt at one task; the file is made with the first one.

    Raises:
        BadFile: it cannot be written.
    """

    def __init__(self, directory: str, partition: int, attempt: int) -> None:
        self.path: str | None = None  # where it is, ``None`` before there is one
        self._directory = Path(directory)
        self._partition, self._attempt = partition, attempt
        self._file: IO[str] | None = None

    def write(self, row: ErrorRow, name_row: NameRow | None = None) -> None:
        """Put a row at its end."""
        try:
            if self._file is None:
                self._file = self._opened()
            self._file.write(row.to_json(self._partition, self._attempt, name_row) + "\n")
        except OSError as error:
            raise BadFile(f"error rows cannot be written to {self._directory}: {error}") from None

    def close(self) -> None:
        """Have all of it on disk."""
        if self._file is None:
            return
        file, self._file = self._file, None
        try:
            with file:
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise BadFile(f"error rows cannot be written to {self.path}: {error}") from None

    def _opened(self) -> IO[str]:
        self._directory.mkdir(parents=True, exist_ok=True)
        name = f"errors-{self._partition:05}-{self._attempt}"
        for number in range(FILES_MAX):
            path = self._directory / (f"{name}-{number}.jsonl" if number else f"{name}.jsonl")
            with suppress(FileExistsError):
                file = path.open("x", encoding="utf-8", buffering=1)
                self.path = str(path)
                return file
        raise BadFile(f"{self._directory} has {FILES_MAX} files {name}-*.jsonl: tidy it up")


def _base64(data: bytes | None, most: int) -> str | None:
    return None if data is None else b64encode(data[:most]).decode()
