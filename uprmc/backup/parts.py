"""Rows into Parquet files and out of them again.

A file is sorted by vBucket and seqno, so that a reader of one vBucket reads few row groups. Rows
come mixed, as the node's streams do: they are gathered up to `PART_BYTES`, sorted, and written as
one file. Digests of the rows are taken on the way, from the very buffers that are written.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from uprmc.backup.digest import FIELDS, Digest, add_up, digests, row_hashes
from uprmc.backup.manifest import FilePart
from uprmc.columnar.errors import BackupDamaged, BadOption
from uprmc.errors import why
from uprmc.jobs.files import sha256_of, whole_file

#: Rows are gathered in memory up to this size; then they are a file.
PART_BYTES = 64 << 20
#: What is read from a file at a time, about.
ROW_GROUP_BYTES = 8 << 20

COMPRESSIONS = ("zstd", "snappy", "lz4", "gzip", "none")

#: Columns of which neighbours are often the same, or differ little.
_REPEATED = ["_op", "_vb", "_rev", "_flags", "_exp", "_datatype"]
_RISING = {"_seq": "DELTA_BINARY_PACKED", "_cas": "DELTA_BINARY_PACKED"}


def check_compression(name: str) -> None:
    """Raise `BadOption` if files cannot be compressed so."""
    if name not in COMPRESSIONS:
        raise BadOption(f"compression={name}: say {', '.join(COMPRESSIONS)}")


class PartWriter:
    """Writes one group's files.

    Attributes:
        files: written so far.
        digests: of their rows, by vBucket.
    """

    def __init__(self, increment: Path, group: int, compression: str) -> None:
        self.files: list[FilePart] = []
        self.digests: dict[int, Digest] = {}
        self._increment, self._group, self._compression = increment, group, compression
        self._batches: list[pa.RecordBatch] = []
        self._bytes = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Take rows in; they may stay in memory."""
        self._batches.append(batch)
        self._bytes += batch.nbytes
        if self._bytes >= PART_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what is in memory to a file."""
        if not self._batches:
            return
        table = _sorted(pa.Table.from_batches(self._batches))
        self._batches, self._bytes = [], 0
        if table.num_rows:
            self._digest(table)
            self._write_file(table)

    def _digest(self, table: pa.Table) -> None:
        fields = FIELDS if "value" in table.schema.names else FIELDS[1:]
        for batch in table.to_batches():
            add_up(self.digests, digests(batch, row_hashes(batch, fields)))

    def _write_file(self, table: pa.Table) -> None:
        path = (
            self._increment / "data" / f"vbg={self._group:04d}" / f"part-{uuid.uuid4().hex}.parquet"
        )
        with whole_file(path, lasting=False) as unfinished:
            _write_parquet(table, unfinished, self._compression)
            size, sha256 = unfinished.stat().st_size, sha256_of(unfinished)
        name = path.relative_to(self._increment).as_posix()
        self.files.append(FilePart(name, self._group, table.num_rows, size, sha256))


def _sorted(table: pa.Table) -> pa.Table:
    """Return rows by vBucket; within one, seqnos rise already."""
    vbuckets = np.concatenate([np.asarray(chunk) for chunk in table.column("_vb").chunks])
    if not (np.diff(vbuckets) < 0).any():
        return table
    return table.take(pa.array(np.argsort(vbuckets, kind="stable")))


def _write_parquet(table: pa.Table, path: Path, compression: str) -> None:
    rows = max(1, table.num_rows * ROW_GROUP_BYTES // max(1, table.nbytes))
    names = set(table.schema.names)
    pq.write_table(
        table,
        path,
        row_group_size=rows,
        compression=compression,
        use_dictionary=[name for name in _REPEATED if name in names],
        column_encoding={name: how for name, how in _RISING.items() if name in names},
        write_statistics=[name for name in ("_vb", "_seq", "_op", "_exp") if name in names],
        store_schema=True,
    )


def read_parts(
    increment: Path, files: Sequence[FilePart], columns: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of files, as they are.

    Raises:
        BackupDamaged: a file is missing, torn, or has other columns.
    """
    for file in files:
        path = increment / file.path
        try:
            with pq.ParquetFile(path) as parquet:
                wanted = None if columns is None else list(columns)
                for group in range(parquet.num_row_groups):
                    yield from parquet.read_row_group(group, columns=wanted).to_batches()
        except (OSError, pa.ArrowException, KeyError) as error:
            raise damaged(path, error) from None


def check_file(increment: Path, file: FilePart, *, contents: bool = True) -> str | None:
    """Return what is wrong with a file, ``None`` if it is as its manifest says.

    Args:
        increment: its directory.
        file: what the manifest says.
        contents: read it; otherwise only its size is looked at.
    """
    path = increment / file.path
    try:
        size = path.stat().st_size
        if size != file.bytes:
            return f"{path} has {size} bytes, not {file.bytes}"
        if contents and sha256_of(path) != file.sha256:
            return f"{path} is not the file that the manifest names: its SHA-256 differs"
    except FileNotFoundError:
        return f"{path} is missing"
    except OSError as error:
        return f"{path}: {error}"
    return None


def damaged(path: Path, error: Exception) -> BackupDamaged:
    """Return the error that says so."""
    return BackupDamaged(f"{path}: {why(error)}")


def column_types(schema: Any) -> dict[str, str]:
    """Return what a manifest says of a schema."""
    return {field.name: str(field.type) for field in schema}
