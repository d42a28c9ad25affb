"""The LMDB environment under a store: opening, checking, growing, and what its errors mean.

Three things surprise. LMDB reads through a memory map, so a file that was cut short would kill the
process with a bus error; `LmdbFiles` finds that out before it reads. A write that the device took
only in part is reported as an input/output error, although the device is just full. And the map is
made larger by opening the environment again: unlike LMDB's own call, that can fall back to the old
size when the process may not have more address space.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections import deque
from collections.abc import Callable
from pathlib import Path
from struct import Struct
from typing import NamedTuple, TypeVar

import lmdb

from uprmc.errors import StoreCorrupt, StoreError, StoreFull, StoreMapFull
from uprmc.storage import layout
from uprmc.storage.interface import StoreUsage
from uprmc.storage.layout import Identity

# --- read ahead -----------------------------------------------------------------------------------
# How the kernel reads the file that LMDB has mapped: far ahead, or just what is touched.
#
# Reading ahead makes scans several times faster, and a single record of a cold file ten times
# dearer: megabytes are read for it. A file that fits into memory is read once, so reading ahead is
# right for it. For a larger one it is right during a scan, and wrong for everything else.
#
# Note: LMDB does not say where its map is. The address is looked up in the list that Linux keeps;
# where there is no such list, nothing is read ahead.


_MADV_NORMAL, _MADV_RANDOM = 0, 1

_MAPS = Path("/proc/self/maps")
_CGROUP_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


def memory_bytes() -> int:
    """Return how much memory this process may have at most: the machine's, or its group's."""
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for path in _CGROUP_LIMITS:
        try:
            found.append(int(path.read_text()))
        except (OSError, ValueError):  # not there, or "max"
            continue
    return min(found)


class ReadAhead:
    """The advice for one mapped file. Advice never fails: without it reading is only slower."""

    def __init__(self, file: Path) -> None:
        self._places = _places_of(file)
        self._memory_bytes = memory_bytes()
        self._scans: set[int] = set()
        self._large = self._random = False

    def file_is(self, size: int) -> None:
        """Learn how large the file is."""
        self._large = size > self._memory_bytes
        self._settle()

    def scan_begins(self, scan: int) -> None:
        """Learn that one record after the other is being read; `scan` names the reader."""
        self._scans.add(scan)
        self._settle()

    def scan_ends(self, scan: int) -> None:
        """Learn that it is over; harmless when it never began."""
        self._scans.discard(scan)
        self._settle()

    def _settle(self) -> None:
        wanted = self._large and not self._scans
        if wanted is not self._random:
            self._random = wanted
            for start, length in self._places:
                _madvise(start, length, _MADV_RANDOM if wanted else _MADV_NORMAL)


def _places_of(file: Path) -> list[tuple[int, int]]:
    """Return address and length of each map of a file."""
    try:
        inode = str(file.stat().st_ino)
        lines = _MAPS.read_text().splitlines()
    except OSError:
        return []
    found = []
    for words in (line.split(maxsplit=5) for line in lines):
        if words[4] == inode and words[-1].endswith(file.name):
            start, end = (int(each, 16) for each in words[0].split("-"))
            found.append((start, end - start))
    return found


def _madvise(start: int, length: int, advice: int) -> None:
    ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(length), advice)


# --- lmdb pinned ----------------------------------------------------------------------------------
# How much of an LMDB file is pinned: pages that commits have replaced and a view still reads.
#
# LMDB keeps a list of the pages that each transaction has freed, and uses them again when no view
# is older than that transaction. It does not tell that list, but the file does: in the tree of
# freed pages the entry of the newest transaction is the last one and begins with the number of its
# pages. `freed_by_newest` reads that one entry; `PinnedPages` adds them up while views are open.


_PAGE_HEAD_BYTES = 16
#: A meta page: magic, address and map size are passed over; the two trees; last page; txnid.
_META = Struct("=I20x40xQ40xQQQ")
_MAGIC = 0xBEEFC0DE
#: The fields of any page: flags, then where its array of nodes ends.
_PAGE = Struct("=10xHH2x")
_BRANCH = 0x01
_NODE_PLACE = Struct("=H")
_NODE = Struct("=HHHH")
_ON_OWN_PAGES = 0x01
_NUMBER = Struct("=Q")
_NO_PAGE = 2**64 - 1
_DEPTH_MAX = 32

#: Sums that are kept apart; beyond it the oldest two become one, and the count is too low.
_SUMS_MAX = 4_096


def freed_by_newest(descriptor: int, page_bytes: int) -> tuple[int, int]:
    """Return the newest transaction's number and how many pages it has freed.

    To be called between two commits. 0 pages if the file is not as expected.
    """
    root, transaction = max(
        (_meta(os.pread(descriptor, page_bytes, place * page_bytes)) for place in (0, 1)),
        key=lambda meta: meta[1],
    )
    for _ in range(_DEPTH_MAX):
        if root == _NO_PAGE:
            break
        page = os.pread(descriptor, page_bytes, root * page_bytes)
        if len(page) < page_bytes:
            break
        flags, end = _PAGE.unpack_from(page)
        if end <= _PAGE_HEAD_BYTES or end > page_bytes:
            break
        (at,) = _NODE_PLACE.unpack_from(page, end - _NODE_PLACE.size)
        low, high, node_flags, key_bytes = _NODE.unpack_from(page, at)
        if flags & _BRANCH:
            root = low | high << 16 | node_flags << 32
            continue
        key, value = at + _NODE.size, at + _NODE.size + key_bytes
        if _NUMBER.unpack_from(page, key)[0] != transaction:
            break  # it has freed nothing
        (count,) = _NUMBER.unpack_from(page, value)
        if node_flags & _ON_OWN_PAGES:
            head = os.pread(descriptor, _PAGE_HEAD_BYTES + _NUMBER.size, count * page_bytes)
            (count,) = _NUMBER.unpack_from(head, _PAGE_HEAD_BYTES)
        return transaction, count
    return transaction, 0


def _meta(page: bytes) -> tuple[int, int]:
    """Return the root of the tree of freed pages and the transaction of a meta page."""
    magic, root, _, _, transaction = _META.unpack_from(page, _PAGE_HEAD_BYTES)
    return (root, transaction) if magic == _MAGIC else (_NO_PAGE, 0)


class PinnedPages:
    """Sums of freed pages by transaction. `freed` may be called in a worker."""

    def __init__(self) -> None:
        self._sums: deque[tuple[int, int]] = deque()
        self._newest_view = 0

    def opened(self, transaction: int) -> None:
        """Learn that a view of a transaction's state was opened."""
        self._newest_view = max(self._newest_view, transaction)

    def freed(self, transaction: int, pages: int) -> None:
        """Learn what a transaction has freed while views were open."""
        sums = self._sums
        if sums and self._newest_view < sums[-1][0]:  # who pins the one pins the other
            first, before = sums.pop()
            sums.append((first, before + pages))
        else:
            sums.append((transaction, pages))
        if len(sums) > _SUMS_MAX:
            _, lost = sums.popleft()
            first, before = sums.popleft()
            sums.appendleft((first, before + lost))

    def count(self, oldest_view: int | None) -> int:
        """Return how many pages are pinned, given the transaction of the oldest open view."""
        sums = self._sums
        while sums and (oldest_view is None or sums[0][0] <= oldest_view):
            sums.popleft()
        return sum(pages for _, pages in list(sums))


# --- lmdb files -----------------------------------------------------------------------------------


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
    """Translate what LMDB reports; `EIO` needs `LmdbFiles.failure` to be understood."""
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
        return StoreUsage(file_bytes, self.map_bytes(), unused - pinned, pinned)


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
