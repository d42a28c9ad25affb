"""Where the stand-alone TAP adapter keeps positions of registered clients: a file, or memory.

`TapState` is the file: a SQLite database of its own, one row for each client, synchronised at each
commit. `FileKeeper` is the `upstream.PositionKeeper` over it: commits run in a worker thread, one
at a time, and what comes meanwhile goes into the next one together; of one client only the newest.

Note: a torn row makes the whole file unusable. If it only lost the position, the client would begin
again, and the damaged disk would stay unnoticed.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import suppress
from zlib import crc32

from uprmc.client.sqlite_state import in_plain_words, open_file
from uprmc.client.state import StateError, StateRefused

#: "UPRt", so that ``file`` and SQLite's tools can tell whose it is.
APPLICATION_ID = 0x55505274

VERSION = 1

_TABLES = (
    "CREATE TABLE tap_state (id INTEGER PRIMARY KEY CHECK (id = 1), version INTEGER NOT NULL)",
    """CREATE TABLE tap_client (
        name BLOB PRIMARY KEY, document BLOB NOT NULL, crc INTEGER NOT NULL)""",
)
_LOCK_TIMEOUT_S = 1.0

#: Runs a function elsewhere; tells later what went wrong, or ``None``.
InWorker = Callable[[Callable[[], None], Callable[[Exception | None], None]], None]

Done = Callable[[bool], None]


class TapState:
    """The file. Calls may come from any thread, one at a time.

    Args:
        path: of the file, which is made if need be and locked while it is open.

    Raises:
        StateRefused: it is another program's, torn, locked or not writable. Nothing was changed.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._place = os.path.abspath(path)
        self._connection = open_file(self._place, "full", _LOCK_TIMEOUT_S, APPLICATION_ID)
        try:
            with in_plain_words(self._place, StateRefused):
                self._recognise()
        except BaseException:
            self.close()
            raise

    def _recognise(self) -> None:
        connection = self._connection
        if not connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone():
            connection.execute("BEGIN IMMEDIATE")
            for table in _TABLES:
                connection.execute(table)
            connection.execute("INSERT INTO tap_state VALUES (1, ?)", (VERSION,))
            connection.execute("COMMIT")
        row = connection.execute("SELECT version FROM tap_state").fetchone()
        if row != (VERSION,):
            raise StateRefused(
                f"state {self._place}: its layout has version {row and row[0]}, this program knows "
                f"{VERSION}: use the program that made it, or give another path"
            )

    def load(self) -> dict[bytes, bytes]:
        """Return all documents by client name.

        Raises:
            StateRefused: one of them is torn.
        """
        with in_plain_words(self._place, StateRefused):
            rows = self._connection.execute("SELECT name, document, crc FROM tap_client").fetchall()
        for name, document, crc in rows:
            whole = isinstance(name, bytes) and isinstance(document, bytes)
            if not whole or crc != _crc(name, document):
                raise StateRefused(
                    f"state {self._place}: the saved position of a client is damaged: "
                    "restore a copy of the file, or move it away, and registered clients start over"
                )
        return {name: document for name, document, _ in rows}

    def commit(self, documents: Mapping[bytes, bytes | None]) -> None:
        """Keep documents, drop those that are ``None``; all of it is on disk then, or nothing.

        Raises:
            StateError: nothing was changed.
        """
        connection = self._connection
        gone = [(name,) for name, document in documents.items() if document is None]
        kept = [
            (name, document, _crc(name, document))
            for name, document in documents.items()
            if document is not None
        ]
        with in_plain_words(self._place):
            try:
                connection.execute("BEGIN IMMEDIATE")
                connection.executemany("DELETE FROM tap_client WHERE name = ?", gone)
                connection.executemany("INSERT OR REPLACE INTO tap_client VALUES (?, ?, ?)", kept)
                connection.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
                raise

    def close(self) -> None:
        """Unlock the file."""
        self._connection.close()


def _crc(name: bytes, document: bytes) -> int:
    return crc32(document, crc32(name))


class FileKeeper:
    """See the module docstring. Implements `upstream.PositionKeeper`."""

    def __init__(
        self,
        state: TapState,
        in_worker: InWorker,
        failed: Callable[[str], None] = lambda _: None,
    ) -> None:
        """See the class.

        Args:
            state: the file.
            in_worker: runs a commit in another thread.
            failed: called with what is wrong with the file, each time.
        """
        self.failures = 0  # commits that failed
        self._state = state
        self._in_worker = in_worker
        self._failed = failed
        self._documents: dict[bytes, bytes | None] = {}
        self._dones: list[Done] = []
        self._busy = False
        self._idle: list[Callable[[], None]] = []

    def load(self) -> dict[bytes, bytes]:
        """See `upstream.PositionKeeper`; raises `StateRefused`."""
        return self._state.load()

    def save(self, name: bytes, document: bytes | None, done: Done) -> None:
        """See `upstream.PositionKeeper`; a newer document does for an older one."""
        self._documents[name] = document
        self._dones.append(done)
        self._commit()

    def when_idle(self, done: Callable[[], None]) -> None:
        """Have it called when nothing is left to be written; at once, perhaps."""
        if self._busy:
            self._idle.append(done)
        else:
            done()

    def _commit(self) -> None:
        if self._busy or not self._dones:
            return
        documents, self._documents = self._documents, {}
        dones, self._dones = self._dones, []
        self._busy = True

        def ended(error: Exception | None) -> None:
            self._busy = False
            if error is not None:
                self.failures += 1
                self._failed(str(error))
            for done in dones:
                done(error is None)
            self._commit()
            self._tell_idle()

        self._in_worker(lambda: self._state.commit(documents), ended)

    def _tell_idle(self) -> None:
        if not self._busy:
            waiting, self._idle = self._idle, []
            for done in waiting:
                done()


class MemoryKeeper:
    """A `upstream.PositionKeeper` whose documents end with the process."""

    def __init__(self) -> None:
        self._documents: dict[bytes, bytes] = {}

    def load(self) -> dict[bytes, bytes]:
        """See `upstream.PositionKeeper`."""
        return dict(self._documents)

    def save(self, name: bytes, document: bytes | None, done: Done) -> None:
        """See `upstream.PositionKeeper`: nothing outlives the process: nothing is waited for."""
        if document is None:
            self._documents.pop(name, None)
        else:
            self._documents[name] = document
        done(True)


__all__ = ["FileKeeper", "MemoryKeeper", "StateError", "TapState"]
