"""The edge of index files: what they need of a disk, a real one, and how much they may have."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from uprmc.regular import open_regular

__all__ = ["Disk", "OsDisk", "Room", "limit_disk", "room"]

#: The reserve is this part of the disk at most, so that small disks can be used, too.
_RESERVE_PART = 0.1


class Room:
    """How much index files may grow, all of them together; any thread may ask.

    Args:
        root: the directory of designs; ``None`` = there is no limit.
        most: bytes of all files below it, 0 = any number.
        reserve: bytes of the disk that stay free, for what else is on it.
        sizes: of these files.
        disk: bytes of a disk, and how many of them are free.
    """

    def __init__(
        self,
        root: Path | None = None,
        most: int = 0,
        reserve: int = 0,
        *,
        sizes: Callable[[Path], int] | None = None,
        disk: Callable[[Path], tuple[int, int]] | None = None,
    ) -> None:
        self._root, self._most, self._reserve = root, most, reserve
        self._sizes, self._disk = sizes or _sizes_below, disk or _disk_of
        self._lock = threading.Lock()
        self._seen: int | None = None  # when files were looked at, and what was taken since
        self._unnamed = 0

    def take(self, size: int, *, unnamed: bool = False) -> None:
        """Let files grow.

        Args:
            size: by how many bytes.
            unnamed: it is a file without a name; `give_back` says when it is gone.

        Raises:
            OSError: there is no room for it.
        """
        if self._root is None:
            return
        with self._lock:
            self._check_limit(self._root, size)
            total, free = self._disk(self._root)
            reserve = min(self._reserve, int(total * _RESERVE_PART))
            if free - size < reserve:
                raise OSError(
                    errno.ENOSPC,
                    f"index.disk_reserve leaves {reserve} bytes of the disk to what else is there",
                )
            self._seen = (self._seen or 0) + size
            self._unnamed += size if unnamed else 0

    def _check_limit(self, root: Path, size: int) -> None:
        if not self._most:
            return
        if self._seen is None or self._seen + size > self._most:
            self._seen = self._sizes(root) + self._unnamed  # files may have gone
        if self._seen + size > self._most:
            raise OSError(
                errno.ENOSPC, f"index.disk_bytes lets index files have {self._most} bytes"
            )

    def give_back(self, size: int) -> None:
        """A file without a name is gone."""
        with self._lock:
            self._unnamed -= size


def _sizes_below(root: Path) -> int:
    found = 0
    for path in root.glob("*/*"):
        try:
            found += path.stat().st_size
        except FileNotFoundError:
            continue  # it went meanwhile
    return found


def _disk_of(root: Path) -> tuple[int, int]:
    found = os.statvfs(root)
    return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize


_room = Room()


def limit_disk(room: Room) -> None:
    """Set what all index files of the process may have."""
    global _room
    _room = room


def room() -> Room:
    """Return what all index files of the process may have."""
    return _room


class Disk(Protocol):
    """A file that is read and written at offsets; reads may come from several threads."""

    def read_at(self, offset: int, size: int) -> bytes:
        """Return bytes, fewer at the end of the file."""

    def write_at(self, offset: int, data: bytes) -> None:
        """Write all bytes."""

    def truncate(self, size: int) -> None:
        """Cut the file to this many bytes."""

    def sync(self) -> None:
        """Return when everything that was written is on disk."""

    def size(self) -> int:
        """Return the size of the file in bytes."""

    def close(self) -> None:
        """Let go of the file."""


class OsDisk:
    """A file of the operating system.

    Raises:
        OSError: from every call, as the system says.
    """

    def __init__(self, path: Path, *, create: bool = False, write: bool = True) -> None:
        flags = os.O_RDWR if write or create else os.O_RDONLY
        if create:
            flags |= os.O_CREAT | os.O_EXCL
        self._path = path
        self._descriptor = open_regular(path, flags)
        self._end = self.size()

    def read_at(self, offset: int, size: int) -> bytes:
        """Return bytes, fewer at the end of the file."""
        parts = []
        while size:
            part = os.pread(self._descriptor, size, offset)
            if not part:
                break
            parts.append(part)
            offset, size = offset + len(part), size - len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def write_at(self, offset: int, data: bytes) -> None:
        """Write all bytes."""
        view = memoryview(data)
        with _naming(self._path):
            if (end := offset + len(data)) > self._end:
                room().take(end - self._end)
                self._end = end
            while view:
                written = os.pwrite(self._descriptor, view, offset)
                offset, view = offset + written, view[written:]

    def truncate(self, size: int) -> None:
        """Cut the file to this many bytes."""
        with _naming(self._path):
            os.ftruncate(self._descriptor, size)
            self._end = size

    def sync(self) -> None:
        """Return when everything that was written is on disk."""
        with _naming(self._path):
            os.fdatasync(self._descriptor)

    def size(self) -> int:
        """Return the size of the file in bytes."""
        return os.fstat(self._descriptor).st_size

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._descriptor)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Have an error name the file."""
    try:
        yield
    except OSError as error:
        error.filename = str(path)
        raise


def sync_directory(path: Path) -> None:
    """Return when names that were made or changed in a directory are on disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
