"""The documents of nodes in a table of an SQLite database. Exactly once.

The table ``documents`` and the positions are written in the same transactions. Keys and values are
TEXT where they are UTF-8, so that a person can ask for them, and BLOB where they are not. Others
may read meanwhile.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from typing import Any

from uprmc.client.handler import SET, Change, Document
from uprmc.client.sqlite_state import SqliteState, in_plain_words
from uprmc.client.state import StateRefused
from uprmc.remote.batch import Batch
from uprmc.sinks.sink import Sink

_COLUMNS = "vbucket, key, value, rev, cas, flags, expiry, datatype"
_TABLE = f"CREATE TABLE IF NOT EXISTS documents ({_COLUMNS}, PRIMARY KEY (vbucket, key))"
_PUT = "REPLACE INTO documents VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
_DROP = "DELETE FROM documents WHERE vbucket = ? AND key = ?"
_LOCK_TIMEOUT_S = 5.0
_SIGNED = 2**63


class SqliteMirror(Sink):
    """Keeps a table equal to the documents, see the module docstring.

    Args:
        path: of the database, which is made if need be.
        name: of the consumer; the positions belong to it.

    Raises:
        StateRefused: the database is not this consumer's, or cannot be used.
    """

    state: SqliteState

    def __init__(self, path: str | os.PathLike[str], *, name: str = "sqlite-mirror") -> None:
        super().__init__()
        place = os.path.abspath(path)
        with in_plain_words(place, StateRefused):
            self._database = sqlite3.connect(
                place, timeout=_LOCK_TIMEOUT_S, check_same_thread=False
            )
        try:
            with in_plain_words(place, StateRefused):
                self._database.execute("PRAGMA journal_mode = WAL")
                self._database.execute(_TABLE)
                self._database.execute(f"SELECT {_COLUMNS} FROM documents LIMIT 0")
            self.state = SqliteState(self._database, name=name, called=place)
        except BaseException:
            self.close()
            raise

    def changes(self, batch: Batch) -> None:
        newest = {(change.vbucket, change.key): change for change in batch}
        gone = [_key(*place) for place, change in newest.items() if change.op != SET]
        rows = [_row(change.vbucket, change) for change in newest.values() if change.op == SET]
        self._database.executemany(_DROP, gone)
        self._database.executemany(_PUT, rows)

    def rollback(self, vbucket: int, seqno: int) -> None:
        if seqno == 0:
            self._database.execute("DELETE FROM documents WHERE vbucket = ?", (vbucket,))

    def undo(self, vbucket: int, key: bytes, document: Document | None) -> None:
        if document is None:
            self._database.execute(_DROP, _key(vbucket, key))
        else:
            self._database.execute(_PUT, _row(vbucket, document))

    def close(self) -> None:
        self._database.close()


def _key(vbucket: int, key: bytes) -> tuple[int, str | bytes]:
    return vbucket, _readable(key)


def _row(vbucket: int, found: Change | Document) -> Sequence[Any]:
    return (
        *_key(vbucket, found.key),
        _readable(found.value or b""),
        _signed(found.rev),
        _signed(found.cas),
        found.flags,
        found.expiry,
        found.datatype,
    )


def _readable(data: bytes) -> str | bytes:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def _signed(number: int) -> int:
    return number if number < _SIGNED else number - 2 * _SIGNED
