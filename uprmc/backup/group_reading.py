"""The task of a backup: read a group of vBuckets from the lease and write its files.

It may run several times, even side by side: every attempt writes files of its own names, and only
those that the driver hears of get into the manifest.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from uprmc.backup.digest import Digest, is_deleted
from uprmc.backup.manifest import FilePart, VBucketPart
from uprmc.backup.parts import PartWriter
from uprmc.columnar.access import Access
from uprmc.columnar.errors import LeaseEnded, ProtocolError
from uprmc.columnar.read_state import Range, ReadState
from uprmc.columnar.reading import read
from uprmc.columnar.schema import Columns
from uprmc.rollback import history_of

#: What files have; `value` is left out on request. Locks and places are the node's own affair.
COLUMNS = Columns(
    ("key", "value", "_op", "_vb", "_seq", "_rev", "_cas", "_flags", "_exp", "_datatype", "_meta"),
    key_type="binary",
)


@dataclass(frozen=True)
class GroupTask:
    """What to read.

    Attributes:
        access: the nodes.
        token: the lease.
        group: its number.
        parts: of each vBucket what is known before: from where to where.
        increment: directory to write to, seen from every worker.
        columns: of the files.
        deletes: whether deletions are kept.
        compression: of the files.
        rate: rows a second; ``None`` = as fast as it goes.
    """

    access: Access
    token: str
    group: int
    parts: Mapping[int, VBucketPart]
    increment: str
    columns: Columns = COLUMNS
    deletes: bool = True
    compression: str = "zstd"
    rate: float | None = None


@dataclass(frozen=True)
class GroupDone:
    """What was read: the task's parts with their counts, and the files."""

    group: int
    parts: Mapping[int, VBucketPart]
    files: tuple[FilePart, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return what an interrupted run leaves of it to the next."""
        return {
            "group": self.group,
            "vb": {str(number): part.to_dict() for number, part in self.parts.items()},
            "files": [file.to_dict() for file in self.files],
        }

    @classmethod
    def of_dict(cls, found: Mapping[str, Any]) -> GroupDone:
        """Read what `to_dict` wrote; raises whatever does not fit."""
        return cls(
            int(found["group"]),
            {int(number): VBucketPart.of_dict(part) for number, part in found["vb"].items()},
            tuple(FilePart.of_dict(file) for file in found["files"]),
        )


def read_group(task: GroupTask) -> GroupDone:
    """Do the task.

    Raises:
        LeaseEnded: the lease does not hold what the increment is to have.
        RolledBack, Unreachable, ...: as `reading.read`.
    """
    tally = _Tally(task)
    ranges = [
        Range(vbucket, part.start, history_of(part.log, part.start), part.start, part.start)
        for vbucket, part in task.parts.items()
        if part.start < part.end
    ]
    batches = read(
        task.access,
        ranges,
        task.columns,
        lease=task.token,
        no_value=not task.columns.wants_value,
        on_done=tally.done,
    )
    pace = Pace(task.rate)
    for batch in batches:
        tally.take(batch)
        pace.took(batch.num_rows)
    return tally.finished([each.vbucket for each in ranges])


class _Tally:
    """Writes rows, and counts what the manifest says of them."""

    def __init__(self, task: GroupTask) -> None:
        self._task = task
        self._writer = PartWriter(Path(task.increment), task.group, task.compression)
        self._parts = dict(task.parts)
        self._heard: set[int] = set()

    def take(self, batch: pa.RecordBatch) -> None:
        if not self._task.deletes:
            batch = batch.filter(pa.array(~is_deleted(batch)))
        self._writer.write(batch)

    def done(self, done: ReadState) -> None:
        """See that the lease held what the plan says, and note the counts."""
        part = self._parts[done.vbucket]
        if (done.uuid, done.end) != (part.uuid, part.end):
            raise LeaseEnded(
                f"vb={done.vbucket}: {done.place} gave history {done.uuid:016x} up to {done.end}, "
                f"not {part.uuid:016x} up to {part.end}"
            )
        self._heard.add(done.vbucket)
        self._parts[done.vbucket] = replace(
            part,
            rows=done.rows if self._task.deletes else done.rows - done.deletes,
            deletes=done.deletes if self._task.deletes else 0,
            bytes=done.bytes,
            log=done.log,
        )

    def finished(self, asked: list[int]) -> GroupDone:
        self._writer.flush()
        for vbucket in asked:
            digest = self._writer.digests.get(vbucket, Digest())
            part = self._parts[vbucket]
            if vbucket not in self._heard or digest.rows != part.rows:
                raise ProtocolError(
                    f"vb={vbucket}: {digest.rows} rows came and {part.rows} were announced"
                )
            self._parts[vbucket] = replace(part, digest=digest)
        return GroupDone(self._task.group, self._parts, tuple(self._writer.files))


class Pace:
    """Slows a task down to a number of rows a second."""

    def __init__(self, rate: float | None) -> None:
        self._rate = rate
        self._began = time.monotonic()
        self._rows = 0

    def took(self, rows: int) -> None:
        """Wait until this number of rows more is due."""
        self._rows += rows
        if self._rate:
            ahead_s = self._rows / self._rate - (time.monotonic() - self._began)
            if ahead_s > 0:
                time.sleep(ahead_s)
