"""Rows that could not be written: what is said of each, and the file they are put into.

The file has a line of JSON for each row. Keys and values are base64, because they need not be text,
and of a value there is only the beginning: enough to recognise the row. Lines are written
 as they come, so a task that is killed leaves what it had found.

Note: files of attempts that failed stay. An attempt that is given up because of its
errors would otherwise take the explanation with it. Nor does a later write into the same directory
touch them, such as the next micro-batch, whose tasks have the same numbers: its files have a number
more. The report names the files that count.
"""

from __future__ import annotations

import json
import os
from base64 import b64encode
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from uprmc.columnar.errors import BadFile

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

    Attributes:
        path: where it is, ``None`` before there is one.

    Raises:
        BadFile: it cannot be written.
    """

    def __init__(self, directory: str, partition: int, attempt: int) -> None:
        self.path: str | None = None
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
