"""Opening the SQLite database of a consumer's state: made, recognised, locked, or refused.

A file that is not ours is told by its first bytes, before SQLite opens it: nothing is written to
what is refused. SQLite's words become one line that says what to do.

Ours carries an application id (offset 68 of the file). `TABLES` are all there is in it; in a user's
own database they stand beside the user's tables:

- ``uprmc_state``: one row: version of this layout, the consumer's name, how many vBuckets, a count
  of commits, by which two processes that use one state notice each other, and the id under which
  the consumer is registered with nodes;
- ``uprmc_position``: a `state.Saved` for each vBucket; ``crc`` is over the others, a term of 0 left
  out, `log` 16 bytes for each entry, newest first (uuid, seqno: little-endian u64);
- ``uprmc_ring``: chunks as `ring_chunk` packs them, with the range of their seqnos;
- ``uprmc_log``: the last commits, one `commit_record` each. Its numbers of a position are newer
  than those of the position's row.

u64 numbers are kept as SQLite's signed ones: 2**63 and above are negative. Version 1 of the layout
had no term, version 2 no log, version 3 no id; `UPGRADES` adds them. Version 4 had no compact
columns; those that it wrote are read as they are.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from uprmc.client.state import StateError, StateFull, StateRefused

#: "UPRm", so that ``file`` and SQLite's tools can tell whose it is.
APPLICATION_ID = 0x5550526D

VERSION = 5

TABLES = (
    """CREATE TABLE uprmc_state (
        id INTEGER PRIMARY KEY CHECK (id = 1), version INTEGER NOT NULL, name TEXT NOT NULL,
        vbuckets INTEGER NOT NULL, commits INTEGER NOT NULL, instance TEXT)""",
    """CREATE TABLE uprmc_position (
        vbucket INTEGER PRIMARY KEY, seqno INTEGER NOT NULL, snapshot_start INTEGER NOT NULL,
        snapshot_end INTEGER NOT NULL, ring_from INTEGER NOT NULL, purge_seqno INTEGER NOT NULL,
        log BLOB NOT NULL, crc INTEGER NOT NULL, term INTEGER NOT NULL DEFAULT 0)""",
    """CREATE TABLE uprmc_ring (
        id INTEGER PRIMARY KEY, vbucket INTEGER NOT NULL, first INTEGER NOT NULL,
        last INTEGER NOT NULL, entries INTEGER NOT NULL, keys BLOB NOT NULL)""",
    _LOG := "CREATE TABLE uprmc_log (id INTEGER PRIMARY KEY, data BLOB NOT NULL)",
)

#: By version of a layout, what makes the next one of it.
UPGRADES = {
    1: (
        "ALTER TABLE uprmc_position ADD COLUMN term INTEGER NOT NULL DEFAULT 0",
        "UPDATE uprmc_state SET version = 2",
    ),
    2: (_LOG, "UPDATE uprmc_state SET version = 3"),
    3: (
        "ALTER TABLE uprmc_state ADD COLUMN instance TEXT",
        "UPDATE uprmc_state SET version = 4",
    ),
    4: ("UPDATE uprmc_state SET version = 5",),
}

_MAGIC = b"SQLite format 3\0"
_HEADER_BYTES = 100
_APPLICATION_ID = struct.Struct(">68xI")
_START_OVER = "move it away to start over"
_NOT_WRITABLE = "it cannot be written: check the permissions of file and directory"
_IN_USE = "another process uses it: stop that one, or give this one its own"
_TORN = f"it is torn: {_START_OVER}, or put a copy back"
_NO_DATABASE = f"it is no SQLite file, or a torn one: give another path, or {_START_OVER}"

_ADVICE = {
    sqlite3.SQLITE_BUSY: _IN_USE,
    sqlite3.SQLITE_LOCKED: _IN_USE,
    sqlite3.SQLITE_READONLY: _NOT_WRITABLE,
    sqlite3.SQLITE_PERM: _NOT_WRITABLE,
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened: see that the directory exists and is writable",
    sqlite3.SQLITE_CORRUPT: _TORN,
    sqlite3.SQLITE_NOTADB: _NO_DATABASE,
    sqlite3.SQLITE_FULL: "there is no room: make some; what was kept before is intact",
    sqlite3.SQLITE_IOERR: "the disk does not take it: see to room, limits and the disk's health",
}

_KINDS: dict[int, type[StateError]] = {
    sqlite3.SQLITE_CORRUPT: StateRefused,
    sqlite3.SQLITE_NOTADB: StateRefused,
    sqlite3.SQLITE_FULL: StateFull,
}


def open_file(
    path: str, sync: str, lock_timeout_s: float, application_id: int = APPLICATION_ID
) -> sqlite3.Connection:
    """Return a connection that alone may use the file; a missing or empty one gets our id.

    Args:
        path: the file. ``-wal`` beside it belongs to it.
        sync: ``full`` = a commit is on the disk when it returns; ``normal`` = the operating
            system has it, and a power failure can undo the last commits.
        lock_timeout_s: so long is waited for another process to close it.
        application_id: tells files of one kind from those of another.

    Raises:
        StateRefused: it is not ours, or not to be had.
    """
    _recognise(path, application_id)
    with told(path, StateRefused):
        connection = sqlite3.connect(
            path, timeout=lock_timeout_s, isolation_level=None, check_same_thread=False
        )
        try:
            _claim(connection, application_id)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(f"PRAGMA synchronous = {sync}")
        except BaseException:
            connection.close()
            raise
    return connection


def _claim(connection: sqlite3.Connection, application_id: int) -> None:
    """Lock the file for as long as it is open, and put our id into a new one."""
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")
    connection.execute("BEGIN EXCLUSIVE")
    if not connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
        connection.execute(f"PRAGMA application_id = {application_id}")
    connection.execute("COMMIT")


def check_shared(connection: sqlite3.Connection, place: str) -> None:
    """Refuse a handler's connection that cannot have its writes in one transaction with ours."""
    mode = getattr(connection, "autocommit", -1)  # Python 3.12; -1: `isolation_level` decides
    if mode is True or (mode is not False and connection.isolation_level is None):
        raise StateRefused(
            f"state {place}: each statement of the connection is a transaction of its own: connect "
            "with sqlite3's default isolation_level"
        )
    if mode is not False and connection.in_transaction:
        raise StateRefused(
            f"state {place}: the connection is in a transaction: commit it first, or roll it back"
        )


def _recognise(path: str, application_id: int) -> None:
    """Refuse what is there and not ours, without touching it."""
    try:
        with suppress(FileNotFoundError):
            if not stat.S_ISREG(os.stat(path).st_mode):
                raise StateRefused(f"state {path}: it is no file: give the path of one")
            if not os.access(path, os.W_OK):
                raise StateRefused(f"state {path}: {_NOT_WRITABLE}")
            with open(path, "rb") as file:
                _check_header(path, file.read(_HEADER_BYTES), application_id)
    except OSError as error:
        raise StateRefused(f"state {path}: it cannot be read: {error.strerror}") from None


def _check_header(path: str, header: bytes, application_id: int) -> None:
    if not header:
        return
    if len(header) < _HEADER_BYTES or not header.startswith(_MAGIC):
        raise StateRefused(f"state {path}: {_NO_DATABASE}; nothing was changed")
    if _APPLICATION_ID.unpack_from(header)[0] != application_id:
        raise StateRefused(
            f"state {path}: it is another application's database: give another path; "
            "nothing was changed"
        )


@contextmanager
def told(place: str, kind: type[StateError] = StateError) -> Iterator[None]:
    """Raise what SQLite complains about in words that say what to do.

    Raises:
        StateRefused: the file is torn.
        StateFull: no room, if `kind` is not more particular.
        StateError: or the `kind` given: anything else.
    """
    try:
        yield
    except (sqlite3.Error, sqlite3.Warning) as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        kind = _KINDS.get(code, kind) if kind is StateError else kind
        raise kind(f"state {place}: {_ADVICE.get(code, 'it does not work')} ({error})") from None
    except UnicodeDecodeError as error:  # SQLite's own words quote what it found in the file
        raise StateRefused(f"state {place}: {_TORN} ({error})") from None
