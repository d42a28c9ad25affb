"""The LMDB environment under a store: opening, checking, growing, and what its errors mean.

Three things surprise. LMDB reads through a memory map, so a file that was cut short would kill the
process with a bus error; `LmdbFiles` finds that out before it reads. A write that the device took
only in part is reported as an input/output error, although the device is just full. And the map is
made larger by opening the environment anew: unlike LMDB's own call, that can fall back to the old
size when the process may not have more address space.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import lmdb

from uprmc.errors import StoreCorrupt, StoreError, StoreFull, StoreMapFull
from uprmc.storage import layout
from uprmc.storage.interface import StoreUsage, Trees
from uprmc.storage.layout import Identity
from uprmc.storage.lmdb_pinned import freed_by_newest
from uprmc.storage.read_ahead import ReadAhead

DATA_FILE = "data.mdb"
LOCK_FILE = "lock.mdb"

#: Readings that may be open at a time; each costs 64 bytes in the lock file.
MAX_READERS = 4_096

_Result = TypeVar("_Result")

_LEAST_MAP_BYTES = 1 << 20
_PROBE_BYTES = 1 << 20
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class NotOurs(StoreError):
    """The LMDB file belongs to another program."""


class Databases(NamedTuple):
    """Handles, valid as long as the environment is open."""

    by_id: lmdb._Database
    by_seq: lmdb._Database
    stale: lmdb._Database
    meta: lmdb._Database
    local: lmdb._Database


def store_error(error: lmdb.Error) -> StoreError:
    """Translate what LMDB reports; `EIO` needs `LmdbFiles.failure` to be told apart."""
    if isinstance(error, lmdb.MapFullError):
        return StoreMapFull(str(error))
    if isinstance(error, (lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.InvalidError)):
        return StoreCorrupt(str(error))
    if isinstance(error, lmdb.DiskError) or getattr(error, "code", 0) in _NO_ROOM:
        return StoreFull(str(error))
    return StoreError(str(error))


class LmdbFiles:
    """One open environment and its databases.

    Attributes:
        env: changes when the map grows; do not keep it.
        databases, read_ahead: change when the map grows, too.
    """

    def __init__(
        self, directory: Path, *, map_initial: int, map_max: int, sync: bool, fresh: Identity
    ) -> None:
        """Open the environment in `directory`, an existing one; an empty store becomes `fresh`.

        Raises:
            StoreCorrupt: the file is damaged.
            NotOurs: the file is another program's.
            StoreError: it cannot be opened.
        """
        self._directory = directory
        self._data_file = directory / DATA_FILE
        self._map_max = map_max
        self._sync = sync
        self._fresh = fresh
        self._open(_fitting(map_initial, map_max, self.file_bytes()))

    def _open(self, map_bytes: int) -> None:
        try:
            self.env = _environment(self._directory, map_bytes, self.file_bytes(), self._sync)
        except lmdb.Error as error:
            raise store_error(error) from error
        try:
            self._open_checked()
        except BaseException:
            self.env.close()
            raise
        self.read_ahead = ReadAhead(self._data_file)
        self.read_ahead.file_is(self.file_bytes())

    def _open_checked(self) -> None:
        """Open the databases of a file that may have been cut short.

        LMDB itself can leave a file a little shorter than it says, when the last pages of a commit
        came to nothing. So a short file is lengthened by a hole, which turns bus errors into
        errors; what it had reached before its newest commit tells whether something is missing.
        """
        size = self.file_bytes()
        missing = missing_bytes(self.env, size)
        if missing > 0:
            os.truncate(self._data_file, size + missing)
        try:
            self.databases = self._databases()
            check_extent(self.env, self.databases.meta, size)
        except BaseException as error:
            if missing > 0:
                os.truncate(self._data_file, size)
            if isinstance(error, lmdb.Error):
                raise store_error(error) from error
            raise

    def _databases(self) -> Databases:
        """Return the databases, made with their identity when the environment is empty.

        In a write transaction even if they exist: handles from a read transaction end with it.
        """
        empty = not self.env.stat()["entries"]
        try:
            with self.env.begin(write=True) as txn:
                databases = self._handles(txn, create=empty)
                if empty:
                    identity = layout.pack_identity(self._fresh)
                    txn.put(layout.IDENTITY_KEY, identity, db=databases.meta)
        except (lmdb.NotFoundError, lmdb.IncompatibleError):
            raise NotOurs("it is an LMDB file of another program") from None
        return databases

    def _handles(self, txn: lmdb.Transaction[bytes], *, create: bool) -> Databases:
        by_id, by_seq, meta, local = [
            self.env.open_db(name, txn=txn, create=create)
            for name in (layout.BY_ID, layout.BY_SEQ, layout.META, layout.LOCAL)
        ]
        stale = self.env.open_db(layout.STALE, txn=txn)  # older formats have none
        return Databases(by_id, by_seq, stale, meta, local)

    def write(self, work: Callable[[lmdb.Transaction[bytes]], _Result]) -> _Result:
        """Do work in a transaction of its own; again with a larger map when that is full."""
        while True:
            try:
                with self.env.begin(write=True) as txn:
                    extent = layout.pack_extent(self.file_bytes())
                    txn.put(layout.EXTENT_KEY, extent, db=self.databases.meta)
                    return work(txn)
            except lmdb.MapFullError:
                self.grow()

    def grow(self) -> None:
        """Double the map; no transaction may be open.

        Raises:
            StoreFull: it cannot be made larger; it is open as before.
        """
        before = self.map_bytes()
        self.check_growable()
        self.env.close()
        self._open(min(before * 2, self._map_max))
        if self.map_bytes() <= before:
            raise StoreFull(f"no address space to map more than {before} bytes (ulimit -v)")

    def check_growable(self) -> None:
        """Raise `StoreFull` if the map is as large as it may be."""
        if self.map_bytes() >= self._map_max:
            raise StoreFull(f"the store has reached storage.map_max, {self._map_max} bytes")

    def failure(self, error: lmdb.Error) -> StoreError:
        """Translate a failed commit; asks the device when LMDB's words are ambiguous."""
        if getattr(error, "code", 0) == errno.EIO and self._device_is_full():
            return StoreFull(f"{error} (no room on the device)")
        return store_error(error)

    def _device_is_full(self) -> bool:
        """Ask for a little more room at the end of the file, and give it back."""
        size = self.file_bytes()
        try:
            with self._data_file.open("r+b") as file:
                try:
                    os.posix_fallocate(file.fileno(), size, _PROBE_BYTES)
                finally:
                    os.ftruncate(file.fileno(), size)
        except OSError as error:
            return error.errno in _NO_ROOM
        return False

    def file_bytes(self) -> int:
        """Return the size of the data file, 0 when there is none yet."""
        try:
            return self._data_file.stat().st_size
        except FileNotFoundError:
            return 0

    def map_bytes(self) -> int:
        """Return the size that the file may reach before the map must grow."""
        return self.env.info()["map_size"]

    def freed_by_newest(self) -> tuple[int, int]:
        """Return the newest commit's number and how many pages it freed; between two commits."""
        descriptor = os.open(self._data_file, os.O_RDONLY)
        try:
            return freed_by_newest(descriptor, self.env.stat()["psize"])
        finally:
            os.close(descriptor)

    def usage(self, pinned_pages: int) -> StoreUsage:
        """Return sizes; pages that LMDB needs to list the free ones are counted as free."""
        file_bytes = self.file_bytes()
        with self.env.begin() as txn:
            stats = [self.env.stat(), *(txn.stat(database) for database in self.databases)]
        page_bytes = stats[0]["psize"]
        pages = sum(s["branch_pages"] + s["leaf_pages"] + s["overflow_pages"] for s in stats)
        used = (pages + 2) * page_bytes  # two more for LMDB's own heads
        unused = max(0, file_bytes - used)
        pinned = min(pinned_pages * page_bytes, unused)
        trees = _trees(page_bytes, *stats[1:4])
        return StoreUsage(file_bytes, self.map_bytes(), unused - pinned, pinned, trees)


def missing_bytes(env: lmdb.Environment, size: int) -> int:
    """Return by how much a file of this size is shorter than LMDB says that it is."""
    return (env.info()["last_pgno"] + 1) * env.stat()["psize"] - size


def check_extent(env: lmdb.Environment, meta: lmdb._Database, size: int) -> None:
    """Raise `StoreCorrupt` if the file has become shorter than it was before its newest commit."""
    with env.begin(meta) as txn:
        extent = layout.unpack_extent(txn.get(layout.EXTENT_KEY))
    missing = missing_bytes(env, size)
    if missing > 0 and size < extent:
        raise StoreCorrupt(f"{missing} bytes are missing at its end")


def _trees(page_bytes: int, by_id: Any, by_seq: Any, stale: Any) -> Trees:
    return Trees(
        by_id["leaf_pages"],
        by_seq["leaf_pages"],
        stale["leaf_pages"],
        sum(each["branch_pages"] for each in (by_id, by_seq, stale)),
        (by_seq["leaf_pages"] + by_seq["overflow_pages"]) * page_bytes,
        by_id["entries"],
        stale["entries"],
    )


def _fitting(map_initial: int, map_max: int, file_bytes: int) -> int:
    """Return the initial map size, doubled until a file that has grown before has room in it."""
    size = map_initial
    while size <= file_bytes and size < map_max:
        size *= 2
    return min(size, map_max)


def _environment(directory: Path, map_bytes: int, file_bytes: int, sync: bool) -> lmdb.Environment:
    """Open the environment with the largest map, by halving, that there is address space for."""
    least = max(file_bytes, _LEAST_MAP_BYTES)
    while True:
        try:
            return lmdb.open(
                str(directory),
                map_size=map_bytes,
                max_dbs=len(Databases._fields),
                max_readers=MAX_READERS,
                mode=0o700,
                sync=sync,
            )
        except lmdb.MemoryError:
            if map_bytes <= least:
                raise
            map_bytes = max(map_bytes // 2, least)
