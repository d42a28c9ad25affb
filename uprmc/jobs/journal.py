"""Remembers which tasks of a load or restore are done: the same command goes on where it stopped.

A journal is a file of JSON lines: first what the work is, then the report of each task that is
done, written before it is reported. A driver that is killed leaves at most one torn line at
the end, which counts for nothing: that task runs again.

Note: a task that was under way is repeated in whole. Upserts and versions with their own
metadata come to the same; inserts find their own documents and count them as `existed`.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from uprmc.columnar.errors import BadFile
from uprmc.columnar.report import TaskReport
from uprmc.regular import open_regular

_VERSION = 1


class Journal:
    """The journal of one load or restore.

    A context manager: leaving it gives the file to others.

    Args:
        path: the file; it is made if there is none. ``None`` = remember nothing.
        facts: what the work is, as JSON knows it; the file of another one is refused by it.
        work: ``load`` or ``restore``.
        read_only: look, but write nothing: a dry run.

    Raises:
        BadFile: the file is something else, of another work, in use, or cannot be written.
    """

    def __init__(
        self,
        path: Path | None,
        facts: Mapping[str, Any],
        work: str = "load",
        *,
        read_only: bool = False,
    ) -> None:
        self.done: dict[int, TaskReport] = {}  # reports of the tasks that are done, by number
        self.rows = self.bytes = self.errors = 0  # rows, bytes, errors: of all of them
        self._path, self._work, self._read_only = path, work, read_only
        self._file: IO[bytes] | None = None
        if path is None or (read_only and not path.exists()):
            return
        try:
            flags = os.O_RDONLY if read_only else os.O_RDWR | os.O_APPEND | os.O_CREAT
            file = os.fdopen(open_regular(path, flags, 0o666), "rb" if read_only else "a+b")
        except OSError as error:
            raise BadFile(f"cannot use {path}: {error.strerror}") from None
        try:
            self._take(file, dict(facts))
        except BaseException:
            file.close()
            raise
        self._file = file

    def add(self, number: int, report: TaskReport) -> None:
        """Note a task as done; it is on disk when this returns. Raises `BadFile`."""
        self._note(number, report)
        self._append({"task": number, "report": report.to_dict()})

    def remove(self) -> None:
        """Forget, because all is done: what was written may be removed and written again."""
        if self._file is not None and self._path is not None:
            self._path.unlink(missing_ok=True)

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _take(self, file: IO[bytes], facts: dict[str, Any]) -> None:
        if not self._read_only:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise BadFile(
                    f"{self._path} is used by another {self._work} at this moment"
                ) from None
        file.seek(0)
        *lines, torn = file.read().split(b"\n")
        if not lines:
            if torn and not self._begins_a_journal(torn):
                raise BadFile(f"{self._path} is no journal of a {self._work}")
            if not self._read_only:
                file.truncate(0)
                self._file = file
                self._append({"format": self._format, "version": _VERSION, self._work: facts})
            return
        self._check_head(lines[0], facts)
        for line in lines[1:]:
            self._read(line)
        if torn and not self._read_only:
            file.truncate(file.tell() - len(torn))

    def _check_head(self, line: bytes, facts: dict[str, Any]) -> None:
        head = _object(line)
        if head.get("format") != self._format or not isinstance(head.get(self._work), dict):
            raise BadFile(f"{self._path} is no journal of a {self._work}")
        if head.get("version") != _VERSION:
            raise BadFile(f"{self._path} was written by another version: begin with a new file")
        then, now = head[self._work], json.loads(json.dumps(facts))
        for name in {**then, **now}:
            if then.get(name) != now.get(name):
                raise BadFile(
                    f"{self._path} belongs to another {self._work}, {_difference(name, then, now)}:"
                    " begin with a new file"
                )

    @property
    def _format(self) -> str:
        return f"uprmc {self._work}"

    def _begins_a_journal(self, torn: bytes) -> bool:
        head = json.dumps({"format": self._format}).encode()[:-1]
        return head.startswith(torn) or torn.startswith(head)

    def _read(self, line: bytes) -> None:
        entry = _object(line)
        number, report = entry.get("task"), entry.get("report")
        if not isinstance(number, int) or not isinstance(report, dict):
            raise BadFile(f"{self._path} is damaged: begin with a new file")
        self._note(number, TaskReport.from_dict(report))

    def _note(self, number: int, report: TaskReport) -> None:
        self.done[number] = report
        self.rows += report.rows
        self.bytes += report.bytes
        self.errors += report.errors

    def _append(self, entry: dict[str, Any]) -> None:
        if self._file is None or self._read_only:
            return
        try:
            self._file.write(json.dumps(entry, sort_keys=True).encode() + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise BadFile(f"cannot write {self._path}: {error.strerror}") from None


def _object(line: bytes) -> dict[str, Any]:
    try:
        entry = json.loads(line)
    except ValueError:
        entry = None
    return entry if isinstance(entry, dict) else {}


def _difference(name: str, then: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    if name == "files":
        return "its files were different or have changed"
    return f"its {name} was {then.get(name)!r} and is {now.get(name)!r} now"
