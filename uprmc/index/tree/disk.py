"""The edge of index files: what they need of a disk, and a real one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

__all__ = ["Disk", "OsDisk"]


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
        self._descriptor = os.open(path, flags | os.O_CLOEXEC, 0o640)

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
            while view:
                written = os.pwrite(self._descriptor, view, offset)
                offset, view = offset + written, view[written:]

    def truncate(self, size: int) -> None:
        """Cut the file to this many bytes."""
        with _naming(self._path):
            os.ftruncate(self._descriptor, size)

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
