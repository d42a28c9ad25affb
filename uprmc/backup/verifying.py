"""Comparing two nodes, a node and a backup, or two backups, document by document.

Digests of vBuckets come first, and rows are read only of those that differ. Both sides are held by
leases, so rows and digests are of the same moment. But the moments of two sides differ, and what is
written meanwhile, or is still on its way from one to the other, would look like a difference:
before anything is reported, those vBuckets are looked at once more, `lag_s` later. Keys that were
different both times, of which at least one side stood still, are differences.

Documents that have expired are left out on both sides, whether the node has noticed or not.
Deletions count only if that is asked for: nodes may forget them at different times.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from uprmc.backup.checking import check_increments
from uprmc.backup.comparing import (
    DIFFER,
    ONLY_A,
    ONLY_B,
    Compared,
    ComparedVersion,
    CompareRules,
    CompareTask,
    Difference,
    DigestTask,
    FileSource,
    NodeSource,
    OverwriteTask,
    Source,
    compare,
    overwrite,
    take_digests,
)
from uprmc.backup.digest import FIELDS, Digest, add_up, check_fields
from uprmc.backup.increments import Selection, layers_of
from uprmc.backup.repository import Increment, Repository
from uprmc.columnar.access import Access, Copies
from uprmc.columnar.connection import reusing
from uprmc.columnar.errors import BadOption
from uprmc.columnar.lease import KeptLease
from uprmc.columnar.nodes import BulkNodes
from uprmc.columnar.report import JsonReport, TaskReport
from uprmc.columnar.write_options import WriteOptions
from uprmc.jobs.engines import Engine, LocalEngine
from uprmc.jobs.files import whole_file
from uprmc.jobs.progress import Progress, Step, unseen
from uprmc.remote.json_fields import exact

__all__ = ["BackupSide", "Side", "VerifyReport", "verify"]

# --- differences ----------------------------------------------------------------------------------
# The file that lists differences: Parquet or JSON lines, by its name.


_VERSION = pa.struct(
    [
        ("deleted", pa.bool_()),
        ("rev", pa.uint64()),
        ("cas", pa.uint64()),
        ("flags", pa.int64()),
        ("exp", pa.int64()),
        ("size", pa.int64()),
        ("hash", pa.uint64()),
    ]
)
DIFFERENCES = pa.schema(
    [
        ("key", pa.binary()),
        ("vbucket", pa.int32()),
        ("what", pa.string()),
        ("a", _VERSION),
        ("b", _VERSION),
    ]
)


def write_differences(path: Path, differences: Sequence[Difference]) -> None:
    """Write differences to a file: Parquet if its name ends so, else JSON lines (key in base64)."""
    rows: list[dict[str, Any]] = [
        {
            "key": each.key,
            "vbucket": each.vbucket,
            "what": each.what,
            "a": _plain(each.a),
            "b": _plain(each.b),
        }
        for each in differences
    ]
    with whole_file(path) as unfinished:
        if path.suffix == ".parquet":
            pq.write_table(pa.Table.from_pylist(rows, schema=DIFFERENCES), unfinished)
            return
        with unfinished.open("w", encoding="utf-8") as file:
            for row in rows:
                key = base64.b64encode(row["key"]).decode()
                sides = {side: row[side] and exact(row[side]) for side in ("a", "b")}
                file.write(json.dumps(row | sides | {"key": key}, sort_keys=True) + "\n")


def _plain(version: ComparedVersion | None) -> dict[str, Any] | None:
    return None if version is None else version._asdict()


# --- endpoints ------------------------------------------------------------------------------------
# What can be compared: nodes, and a backup at one of its increments.
#
# A side says how its keys are spread over vBuckets, holds a moment, and gives the sources that
# tasks read. A backup is a moment already; nodes need a lease.


@dataclass(frozen=True)
class BackupSide:
    """A backup as one side."""

    directory: Path  # of the backup
    at: int | None = None  # number of the increment; ``None`` = the newest
    chain: str | None = None  # name of its directory; ``None`` = the newest
    checked: bool = False  # its files were found to be as its manifests say, a moment ago


Side = Access | BackupSide


class NodeSide:
    """Nodes; `copies` says which of their replicas are read, too."""

    has_values = True

    def __init__(self, access: Access, copies: Copies = "none") -> None:
        self._access = replace(access, copies=copies)
        with BulkNodes(self._access) as nodes:
            self.vbuckets = nodes.vbuckets
            self.owners = dict(nodes.owners)  # HOST:PORT of the node that each vBucket is read from
            kind = "replica" if nodes.copied.issuperset(range(self.vbuckets)) else "node"
        self.words = f"{kind} {', '.join(access.servers)}"
        self.there = frozenset(range(self.vbuckets))

    def by_itself(self) -> NodeSide:
        """Return the same nodes with what they have themselves, replicas included."""
        return NodeSide(self._access, "own")

    def shares_with(self, other: NodeSide) -> bool:
        """Tell whether some vBucket would be compared with itself."""
        named = set(self._access.servers) != set(other._access.servers)
        return named and not self.owners.items().isdisjoint(other.owners.items())

    @contextmanager
    def held(self, vbuckets: Iterable[int], lease_s: float) -> Iterator[FrozenNodes]:
        """Hold a moment of vBuckets."""
        with KeptLease(self._access, sorted(vbuckets), lease_s) as kept:
            yield FrozenNodes(self._access, kept.token)


@dataclass(frozen=True)
class FrozenNodes:
    """A moment of nodes, which sources read from."""

    access: Access
    token: str

    def sources(self, vbuckets: Iterable[int], parts: int) -> list[Source]:
        """Return what to read of vBuckets, in about this number of parts."""
        return [NodeSource(self.access, self.token, each) for each in parts_of(vbuckets, parts)]


class FileSide:
    """A backup, whose moment holds itself."""

    def __init__(self, side: BackupSide) -> None:
        chain = Repository(side.directory).chain(side.chain)
        self.checked = side.checked
        self.increments: list[Increment] = chain.until(side.at)
        newest = self.increments[-1].manifest
        self.words = f"backup {self.increments[-1].path}"
        self.vbuckets = newest.vbuckets
        self.there = frozenset(newest.vb)
        self.has_values = all(each.manifest.has_values for each in self.increments)

    @contextmanager
    def held(self, vbuckets: Iterable[int], lease_s: float) -> Iterator[FileSide]:
        """Hold a moment: nothing to do."""
        yield self

    def sources(self, vbuckets: Iterable[int], parts: int) -> list[Source]:
        """Return what to read of vBuckets."""
        selection = Selection(frozenset(vbuckets))
        groups = layers_of(self.increments, selection)
        return [FileSource(tuple(layers)) for layers in groups.values()]


OpenSide = NodeSide | FileSide


def open_sides(a: Side | Path | str, b: Side | Path | str) -> tuple[OpenSide, OpenSide]:
    """Return what is to be compared.

    Where a vBucket is active on no node, a replica of the named ones is read; of two nodes of one
    cluster, what each has itself.
    """
    one, other = open_side(a, "missing"), open_side(b, "missing")
    if isinstance(one, NodeSide) and isinstance(other, NodeSide) and one.shares_with(other):
        return one.by_itself(), other.by_itself()
    return one, other


def open_side(side: Side | Path | str, copies: Copies = "none") -> OpenSide:
    if isinstance(side, Access):
        return NodeSide(side, copies)
    return FileSide(side if isinstance(side, BackupSide) else BackupSide(Path(side)))


def parts_of(vbuckets: Iterable[int], parts: int) -> list[tuple[int, ...]]:
    """Return vBuckets in at most this number of parts of neighbours."""
    numbers = sorted(vbuckets)
    size = max(1, -(-len(numbers) // parts))
    return [tuple(numbers[at : at + size]) for at in range(0, len(numbers), size)]


# --- verifying ------------------------------------------------------------------------------------


#: Tasks of a look, for each that runs at the same time.
_TASKS_EACH = 4
#: Keys that a report names itself.
EXAMPLES_MAX = 10


@dataclass(frozen=True)
class VerifyReport(JsonReport):
    """What the comparison found."""

    a: str  # a, b: the sides, in words
    b: str
    by: tuple[str, ...]  # what counted, beside the key
    vbuckets: int  # compared; `differing`: of them had different digests at first
    differing: int = 0
    vbuckets_of: int = 0  # how many there are, compared or not
    documents_a: int = 0  # documents_a, documents_b: how many each side has, at the first look
    documents_b: int = 0
    # only_a, only_b, differ: keys that only one side has, or both in different versions
    only_a: int = 0
    only_b: int = 0
    differ: int = 0
    # of them are newer on side b; `behind`: of them are newer on side a, or undecided
    newer_b: int = 0
    behind: int = 0
    # documents of side a of which side b has a newer version, or a deletion; `deleted` of them are
    # deletions
    superseded: int = 0
    deleted: int = 0
    revived: int = 0  # documents of side b of which side a has an older deletion
    looks: int = 1  # 1, or 2 if differences were looked at again
    settled: int = 0  # keys that differed at the first look and not at the second
    out: str | None = None  # the file that lists the differences
    examples: tuple[str, ...] = field(default=())  # some of the keys

    @property
    def same(self) -> bool:
        """Whether no difference is left."""
        return not self.differences

    @property
    def differences(self) -> int:
        """How many there are."""
        return self.only_a + self.only_b + self.differ

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON knows it."""
        return asdict(self) | {"same": self.same}

    def summary(self) -> str:
        """Return a few lines for people."""
        part = f" of {self.vbuckets_of}" if self.vbuckets < self.vbuckets_of else ""
        compared = (
            f"{self.documents_a:,} documents of {self.a} and {self.documents_b:,} of {self.b}, "
            f"{self.vbuckets}{part} vBuckets"
        )
        if self.same:
            return f"no difference: {compared}"
        parts = [
            f"{number:,} {words}"
            for number, words in (
                (self.only_a, f"only in {self.a}"),
                (self.only_b, f"only in {self.b}"),
                (self.differ, "differ"),
            )
            if number
        ]
        shown = ", ".join(self.examples)
        return f"{'; '.join(parts)} ({compared}); such as {shown}"


@reusing()
def verify(
    a: Side | Path | str,
    b: Side | Path | str,
    *,
    engine: Engine | None = None,
    by: Iterable[str] | None = None,
    vbuckets: Iterable[int] | None = None,
    key_prefix: bytes | str = b"",
    deletes: bool = False,
    lag_s: float | None = 2.0,
    lease_s: float = 600,
    out: Path | str | None = None,
    progress: Progress | None = None,
    now: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
) -> VerifyReport:
    """Compare two sides.

    Args:
        a, b: access to nodes, or a backup (a path is one).
        engine: where tasks run; this machine if none is given.
        by: what counts beside the key, of value, rev, cas, flags, exp; all that both sides have if
            nothing is given.
        vbuckets: only those, as side a numbers them.
        key_prefix: only keys that begin so.
        deletes: whether deletions count.
        lag_s: seconds until the second look; ``None`` = what the first look finds is reported.
        lease_s: how long nodes keep a moment when it is not renewed any more.
        out: file for the differences: Parquet if its name ends so, else JSON lines.
        progress: called after every task.
        now, sleep: the clock (Unix time in seconds), and waiting.

    Raises:
        BadOption: the sides cannot be compared so.
        BackupDamaged, BackupForeign, BackupIncomplete, NoVBucket, NodeUnreachable, ...
    """
    prefix = key_prefix.encode() if isinstance(key_prefix, str) else key_prefix
    sides = open_sides(a, b)
    for side in sides:
        if isinstance(side, FileSide) and not side.checked:
            check_increments(side.increments, engine or LocalEngine(), progress or unseen)
    fields = _fields(by, sides)
    rules = CompareRules(fields, 0.0, deletes, prefix)
    work = _Verify(sides, rules, vbuckets, engine or LocalEngine(), progress or unseen)
    work.lease_s, work.now = lease_s, now
    differing, report, first = work.first_look()
    if first.total and lag_s is not None and any(isinstance(s, NodeSide) for s in sides):
        sleep(lag_s)
        second = work.look_again(differing)
        found = second.unsettled_since(first)
        settled = max(0, first.total - found.total)
        report = replace(report, looks=2, settled=settled)
    else:
        found = first
    report = _counted(found, report)
    if out is not None:
        write_differences(Path(out), found.listed)
        report = replace(report, out=str(out))
    return report


def overwrite_differing(
    a: BackupSide,
    b: Access,
    options: WriteOptions,
    *,
    engine: Engine,
    by: tuple[str, ...],
    vbuckets: Iterable[int] | None = None,
    key_prefix: bytes = b"",
    progress: Progress = unseen,
) -> list[TaskReport]:
    """Give nodes what a backup has and they have in another version, as new versions.

    Args:
        a, b: the backup, and the nodes.
        options: how rows are written, in mode ``upsert``.
        engine, by, vbuckets, key_prefix, progress: as for `verify`.

    Raises:
        As `verify`, and as `Writer`.
    """
    rules = CompareRules(by, 0.0, deletes=False, prefix=key_prefix)
    work = _Verify((open_side(a), open_side(b)), rules, vbuckets, engine, progress)
    return work.overwrite(options)


def _fields(by: Iterable[str] | None, sides: Sequence[OpenSide]) -> tuple[str, ...]:
    values = all(side.has_values for side in sides)
    if by is None:
        return FIELDS if values else FIELDS[1:]
    fields = check_fields(by)
    if "value" in fields and not values:
        raise BadOption("by=value: a side is a backup that was made without values")
    return fields


# --- looking --------------------------------------------------------------------------------------


class _Verify:
    """One comparison: which vBuckets have which number, and the looks."""

    def __init__(
        self,
        sides: tuple[OpenSide, OpenSide],
        rules: CompareRules,
        vbuckets: Iterable[int] | None,
        engine: Engine,
        progress: Progress,
    ) -> None:
        self.lease_s = 600.0
        self.now = time.time
        self._sides, self._rules = sides, rules
        self._engine, self._progress = engine, progress
        self._count = self._common_count()
        self._wanted = self._common_vbuckets(vbuckets)
        if not self._wanted:
            raise BadOption(f"{sides[0].words} and {sides[1].words} have no vBucket in common")

    def _common_count(self) -> int:
        """Return the number of vBuckets that both sides' keys are spread over for comparing."""
        a, b = self._sides
        if a.vbuckets == b.vbuckets or not self._is_part(b):
            return a.vbuckets
        if self._is_part(a):
            raise BadOption("two backups of some vBuckets, and of different numbers of them")
        return b.vbuckets

    def _common_vbuckets(self, vbuckets: Iterable[int] | None) -> frozenset[int]:
        there = frozenset(range(self._count))
        for side in self._sides:
            if side.vbuckets == self._count:
                there &= side.there
        if vbuckets is None:
            return there
        wanted = frozenset(vbuckets)
        absent = wanted - there
        if absent:
            raise BadOption(f"vbuckets: {min(absent)} is not on both sides")
        return wanted

    @staticmethod
    def _is_part(side: OpenSide) -> bool:
        return len(side.there) < side.vbuckets

    def first_look(self) -> tuple[frozenset[int], VerifyReport, Compared]:
        """Return the vBuckets whose digests differ, and in which rows they do."""
        a, b = self._sides
        with self._looking(self._wanted) as (held, rules):
            totals = self._totals(held, rules)
            differing = self._differing(totals)
            report = VerifyReport(
                a.words,
                b.words,
                rules.fields,
                len(self._wanted),
                len(differing),
                self._count,
                sum(digest.rows for digest in totals[0].values()),
                sum(digest.rows for digest in totals[1].values()),
            )
            return differing, report, self._compared(held, differing, rules)

    def _totals(self, held: list[Any], rules: CompareRules) -> list[dict[int, Digest]]:
        return [self._digests(at, held[at], rules) for at in (0, 1)]

    def _differing(self, totals: list[dict[int, Digest]]) -> frozenset[int]:
        a, b = totals
        return frozenset(n for n in self._wanted if a.get(n, Digest()) != b.get(n, Digest()))

    def overwrite(self, options: WriteOptions) -> list[TaskReport]:
        """Write what side a has in other versions than side b."""
        with self._looking(self._wanted) as (held, rules):
            differing = self._differing(self._totals(held, rules))
            pairs = self._pairs(held, differing, rules)
            tasks = [OverwriteTask(pair, options, number) for number, pair in enumerate(pairs)]
            return self._engine.run(overwrite, tasks, self._telling("overwriting", len(tasks)))

    def look_again(self, differing: frozenset[int]) -> Compared:
        """Return the rows in which vBuckets differ now."""
        with self._looking(differing) as (held, rules):
            return self._compared(held, differing, rules)

    @contextmanager
    def _looking(self, vbuckets: frozenset[int]) -> Iterator[tuple[list[Any], CompareRules]]:
        """Hold both sides. What has expired by then is left out on both."""
        with ExitStack() as stack:
            held = [
                stack.enter_context(side.held(self._of(side, vbuckets), self.lease_s))
                for side in self._sides
            ]
            # a second more: a node that has just deleted what expired may be ahead of this clock
            yield held, replace(self._rules, now=self.now() + 1, wanted=self._wanted)

    def _of(self, side: OpenSide, vbuckets: frozenset[int]) -> frozenset[int]:
        """Return what to read of a side: all of it, where keys are spread in another way."""
        return vbuckets if side.vbuckets == self._count else side.there

    def _spread(self, at: int) -> int:
        return 0 if self._sides[at].vbuckets == self._count else self._count

    def _digests(self, at: int, held: Any, rules: CompareRules) -> dict[int, Digest]:
        parts = self._engine.parallelism * _TASKS_EACH
        sources = held.sources(self._of(self._sides[at], self._wanted), parts)
        tasks = [DigestTask(source, rules, self._spread(at)) for source in sources]
        told = self._telling(f"reading {'ab'[at]}", len(tasks))
        found: dict[int, Digest] = {}
        for each in self._engine.run(take_digests, tasks, told):
            add_up(found, each)
        return found

    def _compared(self, held: list[Any], vbuckets: frozenset[int], rules: CompareRules) -> Compared:
        tasks = self._pairs(held, vbuckets, rules)
        told = self._telling("comparing", len(tasks))
        return Compared.together(self._engine.run(compare, tasks, told))

    def _pairs(
        self, held: list[Any], vbuckets: frozenset[int], rules: CompareRules
    ) -> list[CompareTask]:
        tasks = []
        for part in parts_of(vbuckets, self._engine.parallelism * _TASKS_EACH):
            numbers = frozenset(part)
            a, b = (tuple(held[at].sources(self._of(self._sides[at], numbers), 1)) for at in (0, 1))
            here = replace(rules, wanted=numbers)
            tasks.append(CompareTask(a, b, here, self._spread(0), self._spread(1)))
        return tasks

    def _telling(self, what: str, total: int) -> Callable[[int, object], None]:
        done = 0

        def tell(_: int, result: object) -> None:
            nonlocal done
            done += 1
            self._progress(Step(what, done, total))

        return tell


def _counted(found: Compared, report: VerifyReport) -> VerifyReport:
    """Return the report with these differences."""
    return replace(
        report,
        only_a=found.counts[ONLY_A],
        only_b=found.counts[ONLY_B],
        differ=found.counts[DIFFER],
        behind=found.behind,
        newer_b=found.newer_b,
        superseded=found.superseded,
        deleted=found.deleted,
        revived=found.revived,
        examples=tuple(_text(each.key) for each in found.listed[:EXAMPLES_MAX]),
    )


def _text(key: bytes) -> str:
    return key.decode("utf-8", "backslashreplace")
