"""Tasks over two sides: digests of one side's vBuckets, the rows in which two sides differ, and
writing these.

Only rows whose hash the other side does not have become Python objects: of two sides that differ in
ten documents, ten are looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from uprmc.backup.digest import Digest, add_up, digests, is_deleted, row_hashes
from uprmc.backup.increments import Layer, newest_rows
from uprmc.columnar.access import Access
from uprmc.columnar.read_state import Range
from uprmc.columnar.reading import read
from uprmc.columnar.report import TaskReport
from uprmc.columnar.requests import vbuckets_of
from uprmc.columnar.schema import Columns
from uprmc.columnar.write_options import WriteOptions
from uprmc.columnar.writing import Writer
from uprmc.jobs.engines import current_attempt

#: Differences that one task lists; the rest it counts.
LISTED_MAX = 100_000

_META = ("key", "_op", "_vb", "_rev", "_cas", "_flags", "_exp")
ONLY_A, ONLY_B, DIFFER = "only_a", "only_b", "differ"


@dataclass(frozen=True)
class NodeSource:
    """vBuckets of a lease."""

    access: Access
    token: str
    vbuckets: tuple[int, ...]

    def batches(self, names: tuple[str, ...], prefix: bytes) -> Iterator[pa.RecordBatch]:
        """Yield the newest row of each key."""
        columns = Columns(names, key_type="binary")
        ranges = [Range(vbucket) for vbucket in self.vbuckets]
        no_value = "value" not in names
        for batch in read(self.access, ranges, columns, lease=self.token, no_value=no_value):
            if prefix:
                batch = batch.filter(pc.starts_with(batch.column("key"), prefix))
            yield batch


@dataclass(frozen=True)
class FileSource:
    """A group of a backup."""

    layers: tuple[Layer, ...]

    def batches(self, names: tuple[str, ...], prefix: bytes) -> Iterator[pa.RecordBatch]:
        """Yield the newest row of each key."""
        yield from newest_rows(self.layers, names, prefix)


Source = NodeSource | FileSource


@dataclass(frozen=True)
class CompareRules:
    """What counts."""

    fields: tuple[str, ...]  # see `digest.FIELDS`
    now: float  # Unix time; documents that had expired then are as if they were not there
    deletes: bool = False  # whether deletions count
    prefix: bytes = b""  # of the keys
    wanted: frozenset[int] | None = None  # vBuckets by the common number; ``None`` = all

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that have to be read."""
        return (*_META, "value") if "value" in self.fields else _META


@dataclass(frozen=True)
class DigestTask:
    """Take digests. `vbuckets`: the number that keys are spread over for this; 0 = as they are."""

    source: Source
    rules: CompareRules
    vbuckets: int = 0


def take_digests(task: DigestTask) -> dict[int, Digest]:
    """Return the digest of each vBucket that has something."""
    found: dict[int, Digest] = {}
    for batch, vbuckets in _rows(task.source, task.rules, task.vbuckets):
        if not task.rules.deletes:
            alive = ~is_deleted(batch)
            batch, vbuckets = batch.filter(pa.array(alive)), vbuckets[alive]
        hashes = row_hashes(batch, task.rules.fields)
        add_up(found, digests(batch, hashes, vbuckets=vbuckets))
    return found


def _rows(source: Source, rules: CompareRules, spread: int) -> Iterator[tuple[pa.RecordBatch, Any]]:
    """Yield rows that count, with their vBuckets."""
    for batch in source.batches(rules.columns, rules.prefix):
        expires = np.asarray(batch.column("_exp").fill_null(0))
        mask = is_deleted(batch) | (expires <= 0) | (expires > rules.now)
        keys = batch.column("key")
        vbuckets = (
            vbuckets_of(keys.to_pylist(), spread) if spread else np.asarray(batch.column("_vb"))
        )
        if rules.wanted is not None:
            mask &= np.isin(vbuckets, list(rules.wanted))
        if not mask.all():
            batch, vbuckets = batch.filter(pa.array(mask)), vbuckets[mask]
        yield batch, vbuckets


# --- rows -----------------------------------------------------------------------------------------


class ComparedVersion(NamedTuple):
    """One side's version of a key. `size`: bytes of the value; -1 where that was not read."""

    hash: int
    deleted: bool
    rev: int
    cas: int
    flags: int
    exp: int
    size: int

    @property
    def rank(self) -> tuple[int, int]:
        """What decides which of two versions is newer."""
        return self.rev, self.cas


class Difference(NamedTuple):
    """A key of which the sides have different documents, or only one has any."""

    key: bytes  # as bytes
    vbucket: int  # by the common number
    what: str  # only_a, only_b or differ
    # a, b: the sides' versions, perhaps deletions; ``None`` = nothing is known of the key
    a: ComparedVersion | None
    b: ComparedVersion | None

    @property
    def b_is_newer(self) -> bool:
        """Whether b's version wins over a's."""
        return self.b is not None and (self.a is None or self.b.rank > self.a.rank)


@dataclass(frozen=True)
class CompareTask:
    """Compare rows. `spread_a`, `spread_b`: as in `DigestTask`."""

    a: tuple[Source, ...]
    b: tuple[Source, ...]
    rules: CompareRules
    spread_a: int = 0
    spread_b: int = 0


@dataclass(frozen=True)
class Compared:
    """Differences: how many, and as many of them as are listed."""

    counts: Mapping[str, int]  # of only_a, only_b and differ
    behind: int
    newer_b: int  # of them are newer on side b; `behind`: of them are newer on side a, or undecided
    # documents of side a of which side b has a newer version, or a deletion; `deleted` of them are
    # deletions.
    superseded: int
    deleted: int
    revived: int  # documents of side b of which side a has an older deletion
    listed: tuple[Difference, ...]  # by vBucket and key

    @classmethod
    def of(cls, found: Iterable[Difference]) -> Compared:
        """Count some differences, and list as many as there is room for."""
        counts = dict.fromkeys((ONLY_A, ONLY_B, DIFFER), 0)
        listed: list[Difference] = []
        behind = newer_b = superseded = deleted = revived = 0
        for each in found:
            counts[each.what] += 1
            newer_b += each.b_is_newer
            behind += each.a is not None and not each.b_is_newer
            if each.a is not None and each.b is not None and each.b_is_newer:
                superseded += each.what != ONLY_B
                deleted += each.what != ONLY_B and each.b.deleted
                revived += each.what == ONLY_B
            if len(listed) < LISTED_MAX:
                listed.append(each)
        listed.sort(key=lambda each: (each.vbucket, each.key))
        return cls(counts, behind, newer_b, superseded, deleted, revived, tuple(listed))

    @classmethod
    def together(cls, parts: Sequence[Compared]) -> Compared:
        """Return what tasks found of different vBuckets."""
        return cls(
            {what: sum(each.counts[what] for each in parts) for what in (ONLY_A, ONLY_B, DIFFER)},
            sum(each.behind for each in parts),
            sum(each.newer_b for each in parts),
            sum(each.superseded for each in parts),
            sum(each.deleted for each in parts),
            sum(each.revived for each in parts),
            tuple(difference for each in parts for difference in each.listed),
        )

    @property
    def total(self) -> int:
        """How many there are."""
        return sum(self.counts.values())

    def unsettled_since(self, first: Compared) -> Compared:
        """Return those that were there at the first look, too, with a side that stood still.

        If not all of them are listed, nothing is left out.
        """
        if first.total > len(first.listed) or self.total > len(self.listed):
            return self
        before = {each.key: each for each in first.listed}
        return Compared.of(
            each
            for each in self.listed
            if (old := before.get(each.key)) and (old.a == each.a or old.b == each.b)
        )


def compare(task: CompareTask) -> Compared:
    """Return the differences of some vBuckets."""
    a = _gathered(task.a, task.rules, task.spread_a)
    b = _gathered(task.b, task.rules, task.spread_b)
    different_a = _versions(a, ~np.isin(a.column("hash"), b.column("hash")))
    different_b = _versions(b, ~np.isin(b.column("hash"), a.column("hash")))
    found = (
        _difference(key, different_a.get(key), different_b.get(key), task.rules.deletes)
        for key in different_a.keys() | different_b.keys()
    )
    return Compared.of(each for each in found if each is not None)


_Found = tuple[int, ComparedVersion]


def _difference(key: bytes, a: _Found | None, b: _Found | None, deletes: bool) -> Difference | None:
    """Return how versions differ, one at least is known; ``None`` = in nothing that counts."""
    version_a, version_b = a and a[1], b and b[1]
    there_a = version_a is not None and (deletes or not version_a.deleted)
    there_b = version_b is not None and (deletes or not version_b.deleted)
    if not there_a and not there_b:
        return None
    what = DIFFER if there_a and there_b else ONLY_A if there_a else ONLY_B
    vbucket = a[0] if a else b[0] if b else 0
    return Difference(key, vbucket, what, version_a, version_b)


_GATHERED = pa.schema(
    [
        ("key", pa.binary()),
        ("vbucket", pa.int32()),
        ("hash", pa.uint64()),
        ("deleted", pa.bool_()),
        ("rev", pa.int64()),
        ("cas", pa.int64()),
        ("flags", pa.int64()),
        ("exp", pa.int64()),
        ("size", pa.int64()),
    ]
)


def _gathered(sources: Sequence[Source], rules: CompareRules, spread: int) -> pa.Table:
    """Return all rows without their values, each with its hash."""
    found = []
    for source in sources:
        for batch, vbuckets in _rows(source, rules, spread):
            found.append(_described(batch, vbuckets, rules.fields))
    return pa.Table.from_batches(found, schema=_GATHERED).combine_chunks()


def _described(batch: pa.RecordBatch, vbuckets: Any, fields: tuple[str, ...]) -> pa.RecordBatch:
    if "value" in fields:
        size = pc.binary_length(batch.column("value")).fill_null(0).cast(pa.int64())
    else:
        size = pa.array(np.full(len(batch), -1, np.int64))
    numbers = [batch.column(name).fill_null(0) for name in ("_rev", "_cas", "_flags", "_exp")]
    arrays = [
        batch.column("key"),
        pa.array(vbuckets, pa.int32()),
        pa.array(row_hashes(batch, fields)),
        pa.array(is_deleted(batch)),
        *numbers,
        size,
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=_GATHERED)


def _versions(table: pa.Table, mask: Any) -> dict[bytes, _Found]:
    """Return versions by key of the rows that a mask names."""
    found: dict[bytes, _Found] = {}
    rows = table.filter(pa.array(mask))
    columns = [rows.column(name).to_pylist() for name in rows.schema.names]
    for key, vbucket, number, deleted, rev, cas, flags, exp, size in zip(*columns, strict=True):
        unsigned = rev & 0xFFFFFFFFFFFFFFFF, cas & 0xFFFFFFFFFFFFFFFF
        found[key] = vbucket, ComparedVersion(number, deleted, *unsigned, flags, exp, size)
    return found


# --- overwriting ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class OverwriteTask:
    """Write anew what side b has in another version than side a; `number` is the task's own."""

    pair: CompareTask
    options: WriteOptions
    number: int


def overwrite(task: OverwriteTask) -> TaskReport:
    """Write side a's rows of which side b has other versions: documents as new ones, deletions
    where there is a document.
    """
    pair = task.pair
    there = _gathered(pair.b, pair.rules, pair.spread_b)
    documents = there.column("key").filter(pc.invert(there.column("deleted"))).combine_chunks()
    hashes = there.column("hash")
    with Writer(task.options, task.number, current_attempt()) as writer:
        for source in pair.a:
            for batch, _ in _rows(source, pair.rules, pair.spread_a):
                deleted = is_deleted(batch)
                other = ~np.isin(row_hashes(batch, pair.rules.fields), hashes)
                alive = np.asarray(pc.is_in(batch.column("key"), value_set=documents))
                found = batch.filter(pa.array(np.where(deleted, alive, other)))
                if len(found):
                    writer.write(found)
        return writer.finish()
