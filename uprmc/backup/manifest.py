"""What one increment of a backup says of itself: the last file that is written of it.

An increment without a manifest does not exist. The manifest names every file with its size and
SHA-256, and of every vBucket the exact moment: history, first and last seqno, failover log, how
many rows, and a digest of them. It names its parent by id and digest, so an increment that is
missing, exchanged or of another chain is found before anything is restored; and it has a digest of
itself.

Of a vBucket whose history branched, the increment says what becomes of the ones before it: with a
`cut` only their rows up to that seqno count, with `reset` none do. Files never change.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from uprmc.backup.digest import FIELDS, Digest, add_up, digests, row_hashes
from uprmc.columnar.errors import BackupDamaged, BackupForeign, BadOption
from uprmc.errors import why
from uprmc.jobs.files import sha256_of, whole_file
from uprmc.regular import read_regular
from uprmc.remote.ranges import VBUCKETS_MAX

#: Goes up when an older program would misread what a newer one wrote.
FORMAT = 1
FILE_NAME = "manifest.json"
#: Larger ones are not read: 64 times what 65,536 vBuckets of one branch take.
MANIFEST_MAX_BYTES = 1 << 30

FULL, INCREMENTAL = "full", "incr"
_KINDS = (FULL, INCREMENTAL)

NO_ROWS = Digest()

_COUNTS = ("start", "end", "rows", "deletes", "bytes", "purge_seqno")


@dataclass(frozen=True)
class VBucketPart:
    """One vBucket in one increment."""

    uuid: int  # the history that `end` lies in
    start: int  # rows have seqnos above this; 0 = everything
    end: int  # high seqno at the increment's moment: with the rows before, this is the whole state
    rows: int = 0  # how many rows the increment has, deletions included
    deletes: int = 0  # how many of them are deletions
    bytes: int = 0  # of keys and values
    purge_seqno: int = 0  # newest deletion that the node had dropped for good
    log: tuple[tuple[int, int], ...] = ()  # failover log, newest first: pairs of vb_uuid and seqno
    digest: Digest = NO_ROWS  # of the rows
    # rows of older increments above this seqno are of a history that is no more.
    cut: int | None = None
    reset: bool = False  # rows of older increments do not count at all
    term: int = 0  # counts the vBucket's promotions; 0 = the node knew none
    rev_floor: int = 0  # no deletion of the vBucket had a higher revision, dropped ones included

    def to_dict(self) -> dict[str, Any]:
        """Return what the manifest has of it."""
        log = [[f"{uuid:016x}", seqno] for uuid, seqno in self.log]
        return vars(self) | {"uuid": f"{self.uuid:016x}", "log": log, "digest": str(self.digest)}

    @classmethod
    def of_dict(cls, found: Mapping[str, Any]) -> VBucketPart:
        """Read what `to_dict` wrote; raises whatever does not fit."""
        counts = {name: _count(found[name]) for name in _COUNTS}
        later = {name: _count(found.get(name, 0)) for name in ("term", "rev_floor")}
        part = cls(
            _uuid(found["uuid"]),
            **counts,
            **later,
            log=tuple((_uuid(uuid), _count(seqno)) for uuid, seqno in found["log"]),
            digest=Digest.parse(found["digest"]),
            cut=None if found["cut"] is None else _count(found["cut"]),
            reset=bool(found["reset"]),
        )
        if not part.start <= part.end or part.deletes > part.rows or part.digest.rows != part.rows:
            raise ValueError("a vBucket's numbers contradict one another")
        return part


@dataclass(frozen=True)
class FilePart:
    """One Parquet file."""

    path: str  # from the increment's directory, with slashes
    group: int  # number of the group of vBuckets
    rows: int  # how many
    bytes: int  # the file's
    sha256: str  # the file's

    def to_dict(self) -> dict[str, Any]:
        """Return what the manifest has of it."""
        return dict(vars(self))

    @classmethod
    def of_dict(cls, found: Mapping[str, Any]) -> FilePart:
        """Read what `to_dict` wrote; raises whatever does not fit."""
        path = PurePosixPath(found["path"])
        if path.is_absolute() or ".." in path.parts:
            raise ValueError(f"path {path} leads elsewhere")
        return cls(
            str(path),
            _count(found["group"]),
            _count(found["rows"]),
            _count(found["bytes"]),
            str(found["sha256"]),
        )


@dataclass(frozen=True)
class Manifest:
    """The contents of an increment's manifest."""

    repository: str  # id of the directory that the increment belongs to
    chain: str  # id of the full backup and its increments
    number: int  # place in the chain; 0 = the full backup
    id: str  # the increment's own
    parent: str | None  # id of the increment before, `parent_digest` the digest of its manifest
    parent_digest: str | None
    kind: str  # full or incr
    tool: str  # the program's name and version
    began: str  # began, ended: UTC. The moment of the data lies shortly after `began`.
    ended: str
    vbuckets: int  # how many vBuckets the keys are spread over
    hash: str = "crc32"  # how
    bucket: str = ""  # its name, if one was selected
    snapshot: str = "lease"  # how the moment was held
    # what was asked for, without secrets: ``values``, ``deletes``, ``compression``, ``groups``,
    # ``servers``
    options: Mapping[str, Any] = field(default_factory=dict)
    columns: Mapping[str, str] = field(default_factory=dict)  # names and Arrow types of the files
    vb: Mapping[int, VBucketPart] = field(default_factory=dict)  # by vBucket
    files: Sequence[FilePart] = ()  # all of them
    digest: str = ""  # of all of the above, as in the file

    @property
    def rows(self) -> int:
        """Rows in all files."""
        return sum(part.rows for part in self.vb.values())

    @property
    def deletes(self) -> int:
        """How many of the rows are deletions."""
        return sum(part.deletes for part in self.vb.values())

    @property
    def bytes(self) -> int:
        """Bytes of all keys and values."""
        return sum(part.bytes for part in self.vb.values())

    @property
    def file_bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.bytes for file in self.files)

    @property
    def totals(self) -> dict[str, int]:
        """Return its sums by their names."""
        return {name: getattr(self, name) for name in ("rows", "deletes", "bytes", "file_bytes")}

    @property
    def has_values(self) -> bool:
        """Whether it can be restored."""
        return bool(self.options.get("values", True))

    def sealed(self) -> Manifest:
        """Return the same with the digest of what it says."""
        return replace(self, digest=_digest_of(self.to_dict()))

    def to_dict(self) -> dict[str, Any]:
        """Return what the file has."""
        plain = {
            name: getattr(self, name)
            for name in self.__dataclass_fields__
            if name not in ("vb", "files", "options", "columns")
        }
        return plain | {
            "format": FORMAT,
            "options": dict(self.options),
            "columns": dict(self.columns),
            "totals": self.totals,
            "vb": {str(number): part.to_dict() for number, part in sorted(self.vb.items())},
            "files": [file.to_dict() for file in self.files],
        }

    @classmethod
    def of_dict(cls, found: Mapping[str, Any]) -> Manifest:
        """Read what `to_dict` wrote; raises whatever does not fit."""
        names = set(cls.__dataclass_fields__) - {"vb", "files"}
        manifest = cls(
            **{name: found[name] for name in names},
            vb={int(number): VBucketPart.of_dict(part) for number, part in found["vb"].items()},
            files=tuple(FilePart.of_dict(file) for file in found["files"]),
        )
        if manifest.kind not in _KINDS or (manifest.kind == FULL) != (manifest.number == 0):
            raise ValueError(f"kind {manifest.kind!r} at place {manifest.number!r}")
        if not 0 < _count(manifest.vbuckets) <= VBUCKETS_MAX:
            raise ValueError(f"{manifest.vbuckets} vBuckets")
        if not manifest.vb or not all(0 <= each < manifest.vbuckets for each in manifest.vb):
            raise ValueError(f"it is not about some of {manifest.vbuckets} vBuckets")
        if not 0 < _count(manifest.options["groups"]) <= manifest.vbuckets:
            raise ValueError(f"{manifest.options['groups']} groups")
        return manifest

    def to_json(self) -> str:
        """Return the file's text."""
        return json.dumps(self.to_dict(), indent=1, sort_keys=True) + "\n"

    def summary(self) -> str:
        """Return a few lines for people."""
        cut = sum(part.cut is not None for part in self.vb.values())
        reset = sum(part.reset for part in self.vb.values())
        what = "full backup" if self.kind == FULL else "increment"
        rows = f"{self.rows:,} rows ({self.deletes:,} deletions) of {len(self.vb)} vBuckets"
        size = f"{self.bytes:,} bytes in {len(self.files)} files of {self.file_bytes:,} bytes"
        lines = [f"{what} {self.number} of chain {self.chain}: {rows}, {size}"]
        if cut or reset:
            lines.append(f"history branched: {cut} vBuckets were cut, {reset} are complete again")
        return "\n".join(lines)


def group_of(vbucket: int, vbuckets: int, groups: int) -> int:
    """Return the group that a vBucket is in: neighbours are together."""
    return vbucket * groups // vbuckets


def read_manifest(path: Path) -> Manifest:
    """Read a manifest's file.

    Raises:
        BackupDamaged: it is torn or was changed.
        BackupForeign: a newer program wrote it.
    """
    try:
        if path.stat().st_size > MANIFEST_MAX_BYTES:
            raise ValueError(f"larger than {MANIFEST_MAX_BYTES} bytes")
        found = json.loads(read_regular(path))
        known = found["format"]
        if known == FORMAT:
            return _parsed(found)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise BackupDamaged(f"{path}: {type(error).__name__}: {error}") from None
    raise BackupForeign(f"{path}: format {known!r}; this program knows {FORMAT}")


def _parsed(found: dict[str, Any]) -> Manifest:
    if _digest_of(found) != found["digest"]:
        raise ValueError("its digest differs from what it says: it was changed")
    manifest = Manifest.of_dict(found)
    if sum(file.rows for file in manifest.files) != manifest.rows:
        raise ValueError("its files and its vBuckets have different numbers of rows")
    if found["totals"] != manifest.totals:
        raise ValueError("its totals are not the sums of its vBuckets and files")
    return manifest


def _digest_of(found: Mapping[str, Any]) -> str:
    said = {name: value for name, value in found.items() if name != "digest"}
    text = json.dumps(said, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _uuid(text: str) -> int:
    found = int(text, 16)
    if not 0 <= found < 1 << 64:
        raise ValueError(f"{text!r} names no history")
    return found


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 63:
        raise ValueError(f"{value!r} is no number of something")
    return value


# --- parts ---------------------------------------------------------------------------------------
# Rows into Parquet files and out of them again.
#
# A file is sorted by vBucket and seqno, so that a reader of one vBucket reads few row groups. Rows
# come mixed, as the node's streams do: they are gathered up to `PART_BYTES`, sorted, and written as
# one file. Digests of the rows are taken on the way, from the very buffers that are written.


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
    """Writes one group's files."""

    def __init__(self, increment: Path, group: int, compression: str) -> None:
        self.files: list[FilePart] = []  # written so far
        self.digests: dict[int, Digest] = {}  # of their rows, by vBucket
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

    Without `contents` only its size is looked at.
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
