"""Changes as lines of JSON in a file. Exactly once: what a crash left beyond the position is cut.

``FILE.position`` is an SQLite database with the positions in the streams and the length of the file
that belongs to them, written in one transaction after the file was synced. A file that is opened is
cut to that length.

With `rotate_bytes` a file that has grown so large is renamed at the next commit: ``FILE.1`` is the
oldest. A crash between renaming and the next commit shows by the name that is there already.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from uprmc.client.handler import Document
from uprmc.client.sqlite_state import SqliteState, in_plain_words
from uprmc.client.state import StateRefused
from uprmc.jobs.files import sync
from uprmc.remote.batch import Batch
from uprmc.sinks.sink import Sink, SinkError, SinkRefused, change_line, rollback_line, undo_line

_TABLE = """CREATE TABLE IF NOT EXISTS json_file
    (id INTEGER PRIMARY KEY CHECK (id = 1), number INTEGER NOT NULL, length INTEGER NOT NULL)"""

_LOCK_TIMEOUT_S = 1.0


class JsonFile(Sink):
    """Appends lines to a file, see `records` and the module docstring.

    Args:
        path: the file.
        name: of the consumer; the positions belong to it.
        rotate_bytes: a file of this size gets a number, and a new one is begun; 0 = never.

    Raises:
        SinkRefused: the file cannot be written, or is not what the position knows.
        StateRefused: the position cannot be used.
    """

    state: SqliteState

    def __init__(
        self, path: str | os.PathLike[str], *, name: str = "json-file", rotate_bytes: int = 0
    ) -> None:
        super().__init__()
        self._path = Path(os.path.abspath(path))
        self._rotate_bytes = rotate_bytes
        self._out: BinaryIO | None = None
        self._kept = self._there = (1, 0)
        position = f"{self._path}.position"
        if not os.path.exists(position):
            self._check_new()
        with in_plain_words(position, StateRefused):
            self._database = _opened(position)
        try:
            with in_plain_words(position, StateRefused):
                self._learn()
            with self._told(SinkRefused):
                self._cut()
            steps = self._sync, self._synced, self._cut
            self.state = _FileState(self._database, name, position, *steps)
        except BaseException:
            self.close()
            raise

    # --- what comes -----------------------------------------------------------------------------

    def changes(self, batch: Batch) -> None:
        self._append(b"".join(map(change_line, batch)))

    def rollback(self, vbucket: int, seqno: int) -> None:
        self._append(rollback_line(vbucket, seqno))

    def undo(self, vbucket: int, key: bytes, document: Document | None) -> None:
        self._append(undo_line(vbucket, key, document))

    def close(self) -> None:
        """See `Sink.close`; what belongs to no position yet is cut when it is opened again."""
        if self._out is not None:
            with suppress(OSError):
                self._out.close()
        self._database.close()

    def _append(self, lines: bytes) -> None:
        assert self._out is not None
        with self._told():
            self._out.write(lines)
        number, length = self._there
        self._there = number, length + len(lines)

    # --- commits --------------------------------------------------------------------------------

    def _sync(self) -> None:
        """Before a commit: have the file on the disk, and its length in the same transaction."""
        if self._there == self._kept:
            return
        assert self._out is not None
        with self._told():
            self._out.flush()
            os.fsync(self._out.fileno())
        self._database.execute("UPDATE json_file SET number = ?, length = ?", self._there)

    def _synced(self) -> None:
        """After a commit: begin another file if this one is large enough."""
        self._kept = number, length = self._there
        if not self._rotate_bytes or length < self._rotate_bytes:
            return
        assert self._out is not None
        with self._told():
            self._out.close()
            os.rename(self._path, self._numbered(number))
            self._out = open(self._path, "ab")  # noqa: SIM115
            sync(self._path.parent)
        self._there = number + 1, 0

    # --- beginning, and beginning again ---------------------------------------------------------

    def _learn(self) -> None:
        """Read which file the position knows, and its length; of a new one, that it is empty."""
        self._database.execute(_TABLE)
        row = self._database.execute("SELECT number, length FROM json_file").fetchone()
        if row is None:
            self._check_new()
            self._database.execute("INSERT INTO json_file VALUES (1, 1, 0)")
        self._database.commit()
        self._kept = row or (1, 0)

    def _check_new(self) -> None:
        """Refuse what cannot be a file that no position knows."""
        if not self._path.exists():
            return
        if not self._path.is_file():
            raise SinkRefused(f"{self._path} is no file: name one, or say - for standard output")
        if self._path.stat().st_size:
            raise SinkRefused(
                f"{self._path} has lines in it that {self._path}.position does not know: "
                "give another path, or move it away"
            )

    def _cut(self) -> None:
        """Drop what belongs to no position."""
        number, length = self._kept
        while self._numbered(number).exists():  # it was renamed, and no commit has followed
            number, length = number + 1, 0
        if self._out is not None:
            with suppress(OSError):
                self._out.close()
        with self._told():
            self._out = open(self._path, "ab")  # noqa: SIM115
            size = os.fstat(self._out.fileno()).st_size
            if size < length:
                raise SinkRefused(
                    f"{self._path} has {size} bytes, {self._path}.position knows {length}: put "
                    "the file back, or move both away to start over"
                )
            self._out.truncate(length)
        self._there = number, length

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")

    @contextmanager
    def _told(self, kind: type[SinkError] = SinkError) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise kind(f"{self._path}: {error.strerror}") from None


class _FileState(SqliteState):
    """Positions that are committed with the length of a file."""

    def __init__(
        self,
        database: sqlite3.Connection,
        name: str,
        called: str,
        before: Callable[[], None],
        after: Callable[[], None],
        undone: Callable[[], None],
    ) -> None:
        self._before, self._after, self._undone = before, after, undone
        super().__init__(database, name=name, called=called)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._before()
        with super()._transaction():
            yield
        self._after()

    def abandon(self) -> None:
        super().abandon()
        self._undone()


def _opened(path: str) -> sqlite3.Connection:
    """Return a connection to a database that this process alone uses."""
    database = sqlite3.connect(path, timeout=_LOCK_TIMEOUT_S, check_same_thread=False)
    try:
        database.execute("PRAGMA locking_mode = EXCLUSIVE")
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("BEGIN EXCLUSIVE")
        database.commit()
    except BaseException:
        database.close()
        raise
    return database
