"""Whether a data directory is the one that was left here, or a copy of it, or an older state.

Two directories that continue the same history would give the same seqnos to different changes. So
the store records which file it is in: device, inode and time of creation, which no copy has in
common with its original. It also records a number that rises each time the store is opened, and
that is kept in a file beside it: a store that was put back into its old file has a lower one.

A directory that was moved within its file system is still the same. What cannot be recognised is a
state that was put back together with the file beside it into the same files, or a disk that was
copied entirely: for these there is ``uprmc data new-history``.

Source: contracts of the systems to come, section 3, "Identity"; rows C06 to C08.
"""

from __future__ import annotations

import ctypes
import os
import struct
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from uprmc.errors import StoreCorrupt

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


class Place(NamedTuple):
    """What a store records of where it is.

    Attributes:
        file: its data file.
        number: how often a store of this line was opened.
        path: its directory; only for messages.
    """

    file: File
    number: int
    path: str


def pack_place(place: Place) -> bytes:
    """Return the record."""
    return _PLACE.pack(*place.file, place.number) + os.fsencode(place.path)


def unpack_place(data: bytes) -> Place:
    """Read the record; raises `StoreCorrupt`."""
    if len(data) < _PLACE.size:
        raise StoreCorrupt(f"a place of {len(data)} bytes")
    *numbers, number = _PLACE.unpack_from(data)
    return Place(File(*numbers), number, os.fsdecode(data[_PLACE.size :]))


def file_at(path: Path) -> File:
    """Return which file has this path."""
    found = path.stat()
    return File(found.st_dev, found.st_ino, _born(path))


def number_beside(directory: Path) -> int:
    """Return the number in the file beside the store; -1 if there is none that can be read."""
    try:
        file = directory / PLACE_FILE
        text = file.read_bytes()[:32].strip() if file.is_file() else b""
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


def difference(recorded: Place, file: File, beside: int) -> str:
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
