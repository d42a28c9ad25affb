"""The data directory: made, guarded, recognised, or refused with one line that says what to do.

A directory holds LMDB's two files; ``uprmc.lock``, which its process keeps locked as long as the
store is open; and ``uprmc.place`` (see below). It can be copied or moved while nothing runs
on it. A copy begins a new history.

A lock may be granted to everybody, as some network file systems do. So the store itself names the
process that has opened it last, and the one before commits nothing any more.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import struct
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import NamedTuple

from uprmc.config import StorageSettings
from uprmc.errors import StoreCorrupt, StoreError, StoreRefused
from uprmc.model import ConflictRule
from uprmc.regular import open_regular, read_regular
from uprmc.storage import upgrade
from uprmc.storage.layout import FORMAT_VERSION, Identity
from uprmc.storage.lmdb_files import DATA_FILE, LOCK_FILE, NotOurs
from uprmc.storage.lmdb_pages import check_pages
from uprmc.storage.lmdb_store import LmdbStore

# --- whereabouts ----------------------------------------------------------------------------------
# Whether a data directory is the one that was left here, or a copy of it, or an older state.
#
# Two directories that continue the same history would give the same seqnos to different changes. So
# the store records which file it is in: device, inode and time of creation, which no copy has in
# common with its original. It also records a number that rises each time the store is opened, and
# that is kept in a file beside it: a store that was put back into its old file has a lower one.
#
# A directory that was moved within its file system is still the same. What cannot be recognised is
# a state that was put back together with the file beside it into the same files, or a disk that was
# copied entirely: for these there is ``uprmc data new-history``.
#
# Rows C06 to C08.


#: The file beside the store.
PLACE_FILE = "uprmc.place"

_PLACE = struct.Struct(">QQQQ")
assert _PLACE.size == 32
_NUMBER_MAX = 2**63 - 1

# What statx(2) is asked for and where it answers.
_AT_CURRENT_DIRECTORY, _BIRTH_TIME = -100, 0x800
_STATX_BYTES = 256
_STATX = struct.Struct("=I76xqI")


class File(NamedTuple):
    """Which file a store is in; `born` is 0 where the file system does not tell."""

    device: int
    inode: int
    born: int


class StorePlace(NamedTuple):
    """What a store records of where it is."""

    file: File  # its data file
    number: int  # how often a store of this line was opened
    path: str  # its directory; only for messages


def pack_place(place: StorePlace) -> bytes:
    """Return the record."""
    return _PLACE.pack(*place.file, place.number) + os.fsencode(place.path)


def unpack_place(data: bytes) -> StorePlace:
    """Read the record; raises `StoreCorrupt`."""
    if len(data) < _PLACE.size:
        raise StoreCorrupt(f"a place of {len(data)} bytes")
    *numbers, number = _PLACE.unpack_from(data)
    return StorePlace(File(*numbers), number, os.fsdecode(data[_PLACE.size :]))


def file_at(path: Path) -> File:
    """Return which file has this path."""
    found = path.stat()
    return File(found.st_dev, found.st_ino, _born(path))


def number_beside(directory: Path) -> int:
    """Return the number in the file beside the store; -1 if there is none that can be read."""
    try:
        file = directory / PLACE_FILE
        text = read_regular(file, 32).strip()
    except OSError:
        return -1
    return min(int(text), _NUMBER_MAX) if text.isdigit() else -1


def put_beside(directory: Path, number: int) -> None:
    """Write the number beside the store, all of it or nothing; raises `OSError`."""
    partial = directory / f".{PLACE_FILE}.partial"
    try:
        with partial.open("wb") as file:
            file.write(b"%d\n" % number)
            file.flush()
            os.fsync(file.fileno())
        partial.rename(directory / PLACE_FILE)
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def difference(recorded: StorePlace, file: File, beside: int) -> str:
    """Say why a directory is not the one that was left here; empty if it is.

    Args:
        recorded: what the store says.
        file: the file that it is in.
        beside: the number beside it. It is one lower if the last start was cut short in between.
    """
    if recorded.file != file:
        return f"it is a copy of {recorded.path}"
    if beside in (recorded.number, recorded.number - 1):
        return ""
    return "an older state was put back" if beside > recorded.number else f"{PLACE_FILE} is not its"


def _born(path: Path) -> int:
    """Return when a file was created, in nanoseconds; 0 if the system does not tell."""
    answer = ctypes.create_string_buffer(_STATX_BYTES)
    try:
        statx = ctypes.CDLL(None).statx
    except (OSError, AttributeError):
        return 0
    if statx(_AT_CURRENT_DIRECTORY, os.fsencode(path), 0, _BIRTH_TIME, answer):
        return 0
    mask, seconds, nanoseconds = _STATX.unpack_from(answer)
    return max(seconds, 0) * 1_000_000_000 + nanoseconds if mask & _BIRTH_TIME else 0


# --- directory ------------------------------------------------------------------------------------


GUARD_FILE = "uprmc.lock"
DEFAULT_VBUCKETS = 1_024


def _nobody_asks(_done: int, _total: int) -> None:
    """Be the default of `on_upgrade`."""


#: What may lie in a directory that has no store yet: a mount point's own folder, our own files.
_HARMLESS = frozenset({GUARD_FILE, LOCK_FILE, PLACE_FILE, "lost+found"})


def open_directory(
    path: Path,
    *,
    uuid: int,
    vbuckets: int | None = None,
    conflict_rule: ConflictRule | None = None,
    settings: StorageSettings | None = None,
    sync: bool = True,
    on_upgrade: upgrade.Progress = _nobody_asks,
    reason: str = "",
) -> LmdbStore:
    """Open the store in `path`; make both when they are absent. Closing the store unlocks it.

    Args:
        path: the data directory; missing parents are made too.
        uuid: a random number of at most 64 bits; the name of the directory if it is made now, or
            turns out to be a copy.
        vbuckets: how many it must have; ``None`` takes what it has (1,024 for a new one).
        conflict_rule: what it must have; ``None`` takes what it has (revisions for a new one).
        settings: sizes of the map.
        sync: whether a commit survives a power loss.
        on_upgrade: called with how an upgrade goes, if the directory has an older format.
        reason: why the store shall begin a new history in any case; empty = only if it must.

    Raises:
        StoreRefused: it cannot be used; the text is for the operator.
    """
    make(path)
    _refuse_foreign(path)
    guard = locked(path)
    try:
        _check_file(path, start_empty=settings is not None and settings.start_empty)
        rule = conflict_rule or ConflictRule.REVISION
        fresh = Identity(FORMAT_VERSION, vbuckets or DEFAULT_VBUCKETS, uuid, rule)
        return _opened(
            path, fresh, vbuckets, conflict_rule, settings, sync, guard, on_upgrade, reason
        )
    except BaseException:
        guard.close()
        raise


def make(path: Path) -> None:
    """Make a data directory and its parents, if they are absent; raises `StoreRefused`."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_dir():
            path.mkdir(mode=0o700)
            sync_directory(path.parent)
    except (FileExistsError, NotADirectoryError):
        raise StoreRefused(f"{path} is not a directory: choose another data directory") from None
    except OSError as error:
        raise StoreRefused(
            f"{path} cannot be made ({error.strerror}): choose another data directory"
        ) from None


def _refuse_foreign(path: Path) -> None:
    """Keep out of a directory that has other files and no store."""
    try:
        names = sorted(entry.name for entry in path.iterdir())
    except OSError as error:
        raise _unusable(path, error) from None
    if DATA_FILE in names or PLACE_FILE in names:
        return
    foreign = [name for name in names if name not in _HARMLESS and not name.startswith(".")]
    if foreign:
        raise StoreRefused(
            f"{path} holds no uprmc store but other files ({foreign[0]!r}): "
            "choose an empty or new data directory"
        )


def _check_file(path: Path, *, start_empty: bool) -> None:
    """Look at the store's file before LMDB does, and refuse what is damaged or has gone."""
    file = path / DATA_FILE
    if file.exists() and not file.is_file():
        raise StoreRefused(f"{file} is no regular file: choose another data directory")
    try:
        is_there = file.exists() and check_pages(file)
    except StoreCorrupt as error:
        raise _damaged(file, error) from None
    except OSError as error:
        raise _unusable(path, error) from None
    # The file beside the store is written after the store: there, it says that there was one,
    # whatever has become of what it says.
    if not is_there and not start_empty and (path / PLACE_FILE).exists():
        gone = "is empty" if file.exists() else "is gone"
        raise StoreRefused(
            f"{file} {gone}, but a node has used {path} before: mount the right disk, put the file "
            "back, restore a backup, or start with nothing (uprmc serve --start-empty)"
        )


def _damaged(file: Path, error: StoreCorrupt) -> StoreRefused:
    return StoreRefused(
        f"{file} is damaged ({error}): restore a backup, or move the directory away and start empty"
    )


def locked(path: Path) -> FileIO:
    """Lock a directory for as long as the returned file is open; raises `StoreRefused`."""
    try:
        guard_file = open_regular(path / GUARD_FILE, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
        guard = FileIO(guard_file, "a+")
    except OSError as error:
        raise _unusable(path, error) from None
    try:
        fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = _owner(guard)
        guard.close()
        raise StoreRefused(
            f"{path} is in use by another uprmc process{owner}: "
            "stop that one or choose another data directory"
        ) from None
    except OSError as error:
        guard.close()
        raise _unusable(path, error) from None
    with suppress(OSError):  # the number is a help for the reader of a message, no more
        guard.truncate(0)
        guard.write(b"%d\n" % os.getpid())
    return guard


def _owner(guard: FileIO) -> str:
    guard.seek(0)
    pid = guard.read(20).strip()
    return f" (pid {pid.decode()})" if pid.isdigit() else ""


def _opened(
    path: Path,
    fresh: Identity,
    vbuckets: int | None,
    conflict_rule: ConflictRule | None,
    settings: StorageSettings | None,
    sync: bool,
    guard: FileIO,
    on_upgrade: upgrade.Progress,
    reason: str,
) -> LmdbStore:
    try:
        store = LmdbStore(path, fresh=fresh, settings=settings, sync=sync, on_close=guard.close)
        try:
            _check_identity(path, store, vbuckets, conflict_rule)
            store.upgrade(on_upgrade)
            store.check()
            store.new_history = _settle(path, store, fresh.uuid, reason)
            sync_directory(path)
        except BaseException:
            store.close()
            raise
    except NotOurs as error:
        raise StoreRefused(f"{path / DATA_FILE}: {error}: choose another data directory") from None
    except StoreCorrupt as error:
        raise _damaged(path / DATA_FILE, error) from None
    except StoreRefused:
        raise
    except StoreError as error:
        raise StoreRefused(f"{path} cannot be opened: {error}") from None
    except OSError as error:
        raise _unusable(path, error) from None
    return store


def _settle(path: Path, store: LmdbStore, uuid: int, reason: str) -> str:
    """Record where the store is, and begin a new history if it was somewhere else or is older.

    Returns:
        why it begins one, or nothing.
    """
    data, file, beside = store.place(), file_at(path / DATA_FILE), number_beside(path)
    known = 0
    if data is not None:
        recorded = unpack_place(data)
        reason, known = reason or difference(recorded, file, beside), recorded.number
    place = StorePlace(file, max(known, beside, 0) + 1, str(path.absolute()))
    owner = b"%016x %d" % (uuid, os.getpid())
    store.settle(pack_place(place), owner, uuid if reason else None)
    put_beside(path, place.number)
    return reason


def begin_new_history(path: Path, uuid: int) -> None:
    """Let a data directory begin a new history, with another uuid, when a node starts on it.

    Raises:
        StoreRefused: it is no data directory, is in use, or cannot be used.
    """
    if not (path / DATA_FILE).is_file():
        raise StoreRefused(f"{path} holds no uprmc store: name the data directory of a node")
    open_directory(path, uuid=uuid, reason="it was asked for").close()


def _check_identity(
    path: Path, store: LmdbStore, vbuckets: int | None, conflict_rule: ConflictRule | None
) -> None:
    identity = store.identity()
    if identity.format_version > FORMAT_VERSION:
        raise StoreRefused(
            f"{path} was written by a newer uprmc (format {identity.format_version}, this one "
            f"knows up to {FORMAT_VERSION}): install that version or choose another data directory"
        )
    if vbuckets is not None and vbuckets != identity.vbuckets:
        raise StoreRefused(
            f"{path} was made with {identity.vbuckets} vBuckets and {vbuckets} are asked for: "
            f"ask for {identity.vbuckets} or choose another data directory"
        )
    if conflict_rule not in (None, identity.conflict_rule):
        raise StoreRefused(
            f"{path} was made with engine.conflict_resolution={identity.conflict_rule} and "
            f"{conflict_rule} is asked for: ask for {identity.conflict_rule} or choose another "
            "data directory"
        )


def _unusable(path: Path, error: OSError) -> StoreRefused:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    do = "make room" if full else "make it readable and writable for this user"
    return StoreRefused(
        f"{path} cannot be used ({error.strerror}): {do} or choose another data directory"
    )


def sync_directory(path: Path) -> None:
    """Make the names of new files in `path` survive a power loss."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
