"""A disk in memory that records what is done to it, and replays it as far as a crash lets it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

Write = tuple[int, bytes]


class Operation(NamedTuple):
    """A write (`data` at `offset`), a truncation (`data` is None), or a sync (`offset` is None)."""

    offset: int | None
    data: bytes | None


class MemoryDisk:
    """A file in memory."""

    def __init__(self, content: bytes = b"") -> None:
        self.content = bytearray(content)
        self.operations: list[Operation] = []
        self.closed = False

    def read_at(self, offset: int, size: int) -> bytes:
        return bytes(self.content[offset : offset + size])

    def write_at(self, offset: int, data: bytes) -> None:
        self.operations.append(Operation(offset, bytes(data)))
        self._put(offset, data)

    def _put(self, offset: int, data: bytes) -> None:
        if len(self.content) < offset:
            self.content += bytes(offset - len(self.content))
        self.content[offset : offset + len(data)] = data

    def truncate(self, size: int) -> None:
        self.operations.append(Operation(size, None))
        del self.content[size:]

    def sync(self) -> None:
        self.operations.append(Operation(None, None))

    def size(self) -> int:
        return len(self.content)

    def close(self) -> None:
        self.closed = True


def replayed(operations: Iterable[Operation]) -> MemoryDisk:
    """Return the disk after these."""
    disk = MemoryDisk()
    for offset, data in operations:
        if offset is None:
            continue
        if data is None:
            del disk.content[offset:]
        else:
            disk._put(offset, data)
    return disk
