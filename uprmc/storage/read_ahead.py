"""How the kernel reads the file that LMDB has mapped: far ahead, or just what is touched.

Reading ahead makes scans several times faster, and a single record of a cold file ten times dearer:
megabytes are read for it. A file that fits into memory is read once, so reading ahead is right for
it. For a larger one it is right during a scan, and wrong for everything else.

Note: LMDB does not say where its map is. The address is looked up in the list that Linux keeps;
where there is no such list, nothing is read ahead.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

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
