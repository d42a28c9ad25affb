"""What a local feed keeps so that it may be killed at any moment: offsets, commits, whose files.

    CHECKPOINT/feed.json        what it is: id, vBuckets, format, columns
    CHECKPOINT/offsets/N        where batch N ends; written before it is read; 0 = the beginning
    CHECKPOINT/commits/N        batch N is over: its files are all there under their names
    CHECKPOINT/lock             held while a feed runs
    DIR/_uprmc_feed.json        the id: whose files these are

A batch whose end is written but not its commit is read again: at most one. Each file is there whole
or not at all (`files`).
"""

from __future__ import annotations

import fcntl
import json
import os
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from uprmc.columnar.errors import BadFile
from uprmc.jobs.files import write_whole
from uprmc.spark.offsets import Offset, parsed

#: Goes up when an older program would misread what a newer one wrote.
VERSION = 1

#: Old offsets and commits that are kept, for people who want to see them.
KEPT_BATCHES = 100

MARKER = "_uprmc_feed.json"
BATCH_FILES = "batch-*"


@dataclass(frozen=True)
class Shape:
    """What a feed's files have in common: it cannot be changed half-way."""

    vbuckets: int
    format: str
    columns: dict[str, str]


class Checkpoint:
    """See the module docstring. Use it in a ``with`` statement.

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

    def claim(self, shape: Shape) -> None:
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


def _plain(shape: Shape) -> dict[str, Any]:
    return asdict(shape)


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadFile(f"{path}: {error}") from None
    if not isinstance(found, dict):
        raise BadFile(f"{path}: not what a feed writes")
    return found
