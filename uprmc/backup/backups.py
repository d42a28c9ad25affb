"""Backups: everything at one moment, then what has changed up to another one.

One lease over all vBuckets fixes the moment; tasks read their groups from it, write files, and the
manifest comes last. So an increment is exactly the state that its manifest names, whatever is
written meanwhile, or it does not exist.

A run that was interrupted is taken up again if its lease still lives: what was read is of the same
moment as what is missing. Otherwise its files are of no use and are removed.

See `docs/spark.md`.
"""

from __future__ import annotations

import socket
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from uprmc import __version__
from uprmc.backup.checking import check_increments
from uprmc.backup.digest import Digest, is_deleted
from uprmc.backup.increments import beginning, check_same_bucket, parts_of
from uprmc.backup.manifest import (
    FULL,
    INCREMENTAL,
    FilePart,
    Manifest,
    PartWriter,
    VBucketPart,
    check_compression,
    check_file,
    column_types,
    group_of,
)
from uprmc.backup.repository import (
    Chain,
    Repository,
    begin_increment,
    finish_increment,
    increment_path,
    increments_of,
    note_done,
    read_run,
)
from uprmc.backup.revision_floors import told_floors
from uprmc.columnar.access import Access
from uprmc.columnar.connection import reusing
from uprmc.columnar.errors import (
    BackupDamaged,
    BackupForeign,
    BackupIncomplete,
    BadOption,
    LeaseEnded,
    RolledBack,
    VBucketsChanged,
)
from uprmc.columnar.lease import BulkLease, KeptLease, logs_of, of_token
from uprmc.columnar.nodes import BulkNodes
from uprmc.columnar.read_state import Range, ReadState
from uprmc.columnar.reading import read
from uprmc.columnar.registration import BulkRegistration, unregister
from uprmc.columnar.report import JsonReport
from uprmc.columnar.schema import Columns
from uprmc.jobs.engines import Engine, LocalEngine
from uprmc.jobs.progress import Progress, Step, unseen
from uprmc.remote.errors import NodeNonsense
from uprmc.remote.ranges import named
from uprmc.remote.registering import Instance, kind_number, name_tag
from uprmc.rollback import VBucketHoldings, history_of

# --- registration --------------------------------------------------------------------------------
# A backup directory is a registered client: nodes keep deletions until an increment has them.
#
# Its row has the directory's own id, so it lives as long as the directory. While a backup is
# made, the row says what the increment before has, and of a vBucket that has none, the moment of
# this one: what is deleted before that moment is not in the backup. When the manifest is written,
# the row is raised to that moment.
#
# A node that does not answer keeps too much until the next backup reports, never too little.


@dataclass
class Forgotten(JsonReport):
    """What ending a registration came to."""

    id: str  # the directory's own
    vbuckets: list[int]  # those that kept deletions for it

    def summary(self) -> str:
        """Return it as one line."""
        if not self.vbuckets:
            return f"{self.id}: no node keeps deletions for it"
        return f"{self.id}: removed in {named(self.vbuckets)}"


class Registered:
    """The rows of one directory, as long as one run lasts."""

    def __init__(self, access: Access, repository: Repository) -> None:
        place = f"{socket.gethostname()}:{repository.path.absolute()}"
        kind, tag = kind_number("backup"), name_tag(place)
        instance = Instance(repository.id.encode(), kind, meta=tag)
        self._rows = BulkRegistration(access, instance, restarts=False)

    def begin(self, lease: BulkLease, last: Manifest | None) -> None:
        """Have kept what this increment, at the moment of a lease, and the next ones need."""
        moment = {number: (each.high_seqno, each.uuid) for number, each in lease.held.items()}
        known = {} if last is None else _ends(last.vb)
        self._rows.begin(lambda number: known.get(number, moment[number]), lease.places)

    def finished(self, lease: BulkLease, manifest: Manifest) -> None:
        """Report what the directory has."""
        ends = _ends(manifest.vb)
        self._rows.begin(lambda number: ends[number], lease.places)
        self._rows.close()


def forget(access: Access, directory: Path) -> Forgotten:
    """Keep nothing for a directory any longer.

    Raises:
        BackupForeign: it is none.
        NodeUnreachable, ...: a node does not answer, or refuses.
    """
    name = Repository(directory).id
    return Forgotten(name, unregister(access, name.encode()))


def _ends(parts: Mapping[int, VBucketPart]) -> dict[int, tuple[int, int]]:
    return {number: (part.end, part.uuid if part.end else 0) for number, part in parts.items()}


__all__ = ["Kind", "backup"]

# --- group reading --------------------------------------------------------------------------------
# The task of a backup: read a group of vBuckets from the lease and write its files.
#
# It may run several times, even side by side: every attempt writes files of its own names, and only
# those that the driver hears of get into the manifest.


#: What files have; `value` is left out on request. Locks and places are the node's own affair.
COLUMNS = Columns(
    ("key", "value", "_op", "_vb", "_seq", "_rev", "_cas", "_flags", "_exp", "_datatype", "_meta"),
    key_type="binary",
)


@dataclass(frozen=True)
class GroupTask:
    """What to read."""

    access: Access  # the nodes
    token: str  # the lease
    group: int  # its number
    parts: Mapping[int, VBucketPart]  # of each vBucket what is known before: from where to where
    increment: str  # directory to write to, seen from every worker
    columns: Columns = COLUMNS  # of the files
    deletes: bool = True  # whether deletions are kept
    compression: str = "zstd"  # of the files
    rate: float | None = None  # rows a second; ``None`` = as fast as it goes


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
        RolledBack, NodeUnreachable, ...: as `reading.read`.
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
                raise NodeNonsense(
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


# --- plans ----------------------------------------------------------------------------------------
# What an increment will be, before it is read: which chain, which moment, what from where.
#
# `backups` carries it out. A plan is a manifest without what only reading tells (`draft`), and a
# task for each group of vBuckets. The moment is fixed first, by a lease over all of them; histories
# are looked at after that, so nothing can branch in between unnoticed.


Kind = Literal["auto", "full", "incremental"]
KINDS: tuple[Kind, ...] = ("auto", "full", "incremental")

#: vBuckets in a directory; with fewer than 256 vBuckets there are still 16 directories.
GROUP_VBUCKETS, GROUPS_MIN = 16, 16


@dataclass(frozen=True)
class BackupWish:
    """What was asked for; see `backup`."""

    access: Access
    kind: Kind
    vbuckets: tuple[int, ...] | None
    groups: int | None
    compression: str
    values: bool
    deletes: bool
    lease_s: float
    rate: float | None
    check: bool = True


def check_wish(wish: BackupWish) -> None:
    check_compression(wish.compression)
    if wish.kind not in KINDS:
        raise BadOption(f"kind={wish.kind}: say {', '.join(KINDS)}")
    if wish.vbuckets is not None and not wish.vbuckets:
        raise BadOption("vbuckets: name at least one")
    if wish.groups is not None and wish.groups < 1:
        raise BadOption(f"groups={wish.groups}: say 1 or more")
    if wish.rate is not None and not wish.rate > 0:
        raise BadOption(f"rate={wish.rate}: say rows a second, above 0")


def chain_for(wish: BackupWish, repository: Repository | None) -> Chain | None:
    """Return the chain to add to; ``None`` = begin one."""
    if wish.kind == "full":
        return None
    try:
        if repository is None:
            raise BackupIncomplete("there is no backup yet")
        chain = repository.chain()
    except BackupIncomplete as error:
        nothing_yet = repository is None or not _has_finished(repository)
        if wish.kind == "auto" and nothing_yet:
            return None
        if nothing_yet:
            raise BackupIncomplete(f"{error.text}: make a full backup first") from None
        raise
    last = increments_of(chain)[-1]
    _check_same_wish(wish, last)
    return chain


def _has_finished(repository: Repository) -> bool:
    return any(
        any((repository.path / name).glob("*/manifest.json")) for name in repository.chain_names()
    )


def _check_same_wish(wish: BackupWish, last: Manifest) -> None:
    """See that an increment can have what was asked for."""
    if wish.vbuckets is not None and wish.vbuckets != tuple(sorted(last.vb)):
        raise BadOption("vbuckets: an increment has those of its chain; make a full backup")
    if not wish.values and last.has_values:
        raise BadOption("noValue: the chain has values; make a full backup, best elsewhere")
    if not wish.deletes:
        raise BadOption("includeDeletes=false is for full backups: an increment needs deletions")
    if wish.groups is not None and wish.groups != last.options.get("groups"):
        raise BadOption("groups: an increment has those of its chain")
    if wish.access.bucket != last.bucket:
        raise BackupForeign(f"the chain is of bucket {last.bucket!r}, not {wish.access.bucket!r}")


@contextmanager
def held(
    wish: BackupWish, chain: Chain | None, reader: str = ""
) -> Iterator[tuple[BulkLease, BulkNodes]]:
    """Hold the moment of the increment for the length of the block.

    `reader` is the id under which the directory is registered, if it is.
    """
    terms = {n: part.term for n, part in chain.increments[-1].manifest.vb.items()} if chain else {}
    with BulkNodes(replace(wish.access, terms=terms)) as nodes:
        if chain is not None:
            last = chain.increments[-1].manifest
            if last.vbuckets != nodes.vbuckets:
                raise VBucketsChanged(
                    f"the backup has {last.vbuckets} vBuckets and the bucket {nodes.vbuckets}: a "
                    "full backup begins a new chain"
                )
            wanted: Iterable[int] = sorted(last.vb)
        elif wish.vbuckets is not None:
            wanted = wish.vbuckets
        else:
            wanted = range(nodes.vbuckets)
        nodes.by_place(wanted)  # a node that is down must not leave a hole unseen
        access = replace(wish.access, terms=nodes.terms)
        with KeptLease(access, wanted, wish.lease_s, reader=reader.encode()) as kept:
            yield kept.lease, nodes


def draft_of(
    wish: BackupWish, repository_id: str, chain: Chain | None, lease: BulkLease, nodes: BulkNodes
) -> Manifest:
    """Return the manifest as far as it is known before anything is read."""
    manifests = increments_of(chain) if chain else []
    logs = logs_of(nodes, lease.held)
    present = {
        number: VBucketHoldings(logs[number], each.high_seqno, each.purge_seqno)
        for number, each in lease.held.items()
    }
    if manifests:
        check_same_bucket(manifests, present, ", ".join(wish.access.servers))
    last = manifests[-1] if manifests else None
    vb = {}
    for vbucket, now in sorted(present.items()):
        begin = beginning(parts_of(manifests, vbucket), now)
        vb[vbucket] = VBucketPart(
            lease.held[vbucket].uuid,
            begin.start,
            now.high_seqno,
            purge_seqno=now.purge_seqno,
            log=now.failover_log,
            cut=begin.cut,
            reset=begin.reset,
            term=nodes.terms.get(vbucket, 0),
        )
    options = options_of(wish, last, nodes.vbuckets)
    columns = COLUMNS if options["values"] else without_value(COLUMNS)
    return Manifest(
        repository=repository_id,
        chain=last.chain if last else uuid.uuid4().hex,
        number=last.number + 1 if last else 0,
        id=uuid.uuid4().hex,
        parent=last.id if last else None,
        parent_digest=last.digest if last else None,
        kind=INCREMENTAL if last else FULL,
        tool=f"uprmc {__version__}",
        began=utc_now(),
        ended="",
        vbuckets=nodes.vbuckets,
        bucket=wish.access.bucket,
        options=options,
        columns=column_types(columns.schema),
        vb=vb,
    )


def options_of(wish: BackupWish, last: Manifest | None, vbuckets: int) -> dict[str, Any]:
    """Return what the manifest says of how it was made; what concerns readers is the chain's."""
    groups = wish.groups or max(GROUPS_MIN, vbuckets // GROUP_VBUCKETS)
    return {
        "values": last.has_values if last else wish.values,
        "deletes": wish.deletes,
        "compression": wish.compression,
        "groups": last.options["groups"] if last else min(groups, vbuckets),
        "servers": list(wish.access.servers),
    }


def without_value(columns: Columns) -> Columns:
    """Return columns without the value."""
    return replace(columns, names=tuple(name for name in columns.names if name != "value"))


def tasks_of(
    wish: BackupWish, draft: Manifest, done: Set[int], token: str, increment: str, parallelism: int
) -> list[GroupTask]:
    """Return a task for each group that is not done, those with most to read first."""
    groups: dict[int, dict[int, VBucketPart]] = {}
    for vbucket, part in draft.vb.items():
        group = group_of(vbucket, draft.vbuckets, draft.options["groups"])
        if group not in done:
            groups.setdefault(group, {})[vbucket] = part

    def seqnos(group: int) -> int:
        return sum(part.end - part.start for part in groups[group].values())

    return [
        GroupTask(
            wish.access,
            token,
            group,
            groups[group],
            increment,
            COLUMNS if draft.has_values else without_value(COLUMNS),
            wish.deletes,
            wish.compression,
            wish.rate and wish.rate / min(parallelism, len(groups)),
        )
        for group in sorted(groups, key=seqnos, reverse=True)
    ]


def utc_now() -> str:
    """Return the time as manifests have it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


# --- backups --------------------------------------------------------------------------------------


#: Attempts at an increment whose lease is lost in the middle, or whose history changes.
ATTEMPTS = 3


@reusing()
def backup(
    access: Access,
    directory: Path | str,
    *,
    kind: Kind = "auto",
    engine: Engine | None = None,
    vbuckets: Iterable[int] | None = None,
    groups: int | None = None,
    compression: str = "zstd",
    no_value: bool = False,
    include_deletes: bool = True,
    lease_s: float = 600,
    dry_run: bool = False,
    rate: float | None = None,
    register: bool = True,
    check: bool = True,
    progress: Progress | None = None,
) -> Manifest:
    """Add a backup to a directory; returns its manifest.

    Args:
        access: the nodes.
        directory: made if it is missing; workers must see it, too.
        kind: full begins a chain; incremental adds what has changed since the newest one; auto does
            the latter if it can, and the former in an empty directory.
        engine: where tasks run; this machine if none is given.
        vbuckets: which; all of the bucket, or of the chain.
        groups: directories of a full backup, each of some vBuckets; an increment has its chain's.
        compression: zstd, snappy, lz4, gzip or none.
        no_value: keys and metadata only: for comparing, cannot be restored.
        include_deletes: whether a full backup has the deletions that the nodes remember.
        lease_s: how long a node keeps the moment when it is not renewed any more.
        dry_run: say what would be read, touch nothing.
        rate: rows a second, over all tasks.
        register: the nodes keep deletions until the next increment has them.
        check: read the files of the chain that an increment is added to, and see that they are
            what their manifests say; otherwise only their sizes are looked at.
        progress: called after every group.

    Raises:
        BackupForeign: the directory is something else, or the chain is of another bucket.
        BackupIncomplete: there is no full backup to add to, or an increment is missing.
        BackupDamaged: the chain is not what its manifests say.
        BackupBusy: another backup writes there.
        VBucketsChanged: the bucket has another number of vBuckets than the chain.
        NoVBucket: a vBucket is active nowhere: the backup would have a gap.
        LeaseEnded: the lease was lost three times.
        BadOption, BadFile, NodeUnreachable, ...
    """
    wish = BackupWish(
        access,
        kind,
        None if vbuckets is None else tuple(sorted(set(vbuckets))),
        groups,
        compression,
        not no_value,
        include_deletes,
        lease_s,
        rate,
        check,
    )
    check_wish(wish)
    path, runner = Path(directory), engine or LocalEngine()
    if dry_run:
        return _rehearsed(wish, path, runner, progress or unseen)
    repository = Repository.made(path)
    with repository.locked():
        return _Backup(wish, repository, runner, progress or unseen, register=register).run()


def _rehearsed(wish: BackupWish, path: Path, engine: Engine, progress: Progress) -> Manifest:
    """Return what the manifest would begin with; makes and removes nothing."""
    repository = Repository(path) if path.is_dir() and any(path.iterdir()) else None
    chain = chain_for(wish, repository)
    _check_chain(wish, chain, engine, progress)
    with held(wish, chain) as (lease, nodes):
        return draft_of(wish, repository.id if repository else "", chain, lease, nodes)


def _check_chain(wish: BackupWish, chain: Chain | None, engine: Engine, progress: Progress) -> None:
    """See that what an increment is added to is whole: without it the increment is of no use."""
    if chain is None:
        return
    try:
        check_increments(chain.increments, engine, progress, contents=wish.check)
    except BackupDamaged as error:
        raise BackupDamaged(f"{error.text}; a full backup begins a new chain") from None


class _Backup:
    """One run, which holds the directory's lock."""

    def __init__(
        self,
        wish: BackupWish,
        repository: Repository,
        engine: Engine,
        progress: Progress,
        *,
        register: bool,
    ) -> None:
        self._wish, self._repository = wish, repository
        self._engine, self._progress = engine, progress
        self._registered = Registered(wish.access, repository) if register else None

    def run(self) -> Manifest:
        """Return the manifest of the finished increment."""
        for attempt in range(1, ATTEMPTS + 1):
            chain = chain_for(self._wish, self._repository)
            if attempt == 1:
                _check_chain(self._wish, chain, self._engine, self._progress)
            try:
                return self._resumed(chain) or self._begun(chain)
            except (LeaseEnded, RolledBack):
                self._repository.remove_unfinished()
                if attempt == ATTEMPTS:
                    raise
        raise AssertionError("unreachable")

    def _begun(self, chain: Chain | None) -> Manifest:
        self._repository.remove_unfinished()
        reader = self._repository.id if self._registered is not None else ""
        with held(self._wish, chain, reader) as (lease, nodes):
            draft = draft_of(self._wish, self._repository.id, chain, lease, nodes)
            name = chain.name if chain else self._repository.next_chain_name()
            path = increment_path(self._repository.path / name, draft.number)
            run = _Run(path, lease.token, draft, {})
            begin_increment(path, {"token": run.token, "draft": draft.to_dict()})
            if self._registered is not None:
                self._registered.begin(lease, chain.increments[-1].manifest if chain else None)
            return self._finished(run, lease)

    def _resumed(self, chain: Chain | None) -> Manifest | None:
        """Take up what an interrupted run left; ``None`` if there is nothing of use."""
        for path in self._repository.unfinished():
            run = _Run.left_at(path)
            if run is None or not self._continues(run, chain):
                continue
            try:
                lease = of_token(self._wish.access, run.token)
                lease.renew()
            except (LeaseEnded, BadOption):
                continue
            self._repository.remove_unfinished(but=path)
            with KeptLease(self._wish.access, lease=lease):
                return self._finished(run, lease)
        return None

    def _continues(self, run: _Run, chain: Chain | None) -> bool:
        """Return whether a run would make what is wished for now."""
        draft, parent = run.draft, chain.increments[-1].manifest if chain else None
        return (
            draft.repository == self._repository.id
            and (draft.parent, draft.parent_digest)
            == ((parent.id, parent.digest) if parent else (None, None))
            and (not parent or draft.number == parent.number + 1)
            and (self._wish.vbuckets is None or self._wish.vbuckets == tuple(sorted(draft.vb)))
            and dict(draft.options) == options_of(self._wish, parent, draft.vbuckets)
        )

    def _finished(self, run: _Run, lease: BulkLease) -> Manifest:
        """Read what is missing, and write the manifest."""
        tasks = tasks_of(
            self._wish,
            run.draft,
            run.done.keys(),
            run.token,
            str(run.path.absolute()),
            self._engine.parallelism,
        )
        total = len(tasks) + len(run.done)

        def noted(_: int, done: GroupDone) -> None:
            run.done[done.group] = done
            note_done(run.path, done.to_dict())
            self._progress(run.step(total))

        self._progress(run.step(total))
        self._engine.run(read_group, tasks, noted)
        # floors only rise: one asked for after the reading is above every deletion before it
        manifest = _manifest(run, told_floors(self._wish.access, lease))
        _remove_strays(run.path, manifest.files)
        finish_increment(run.path, manifest)
        if self._registered is not None:
            self._registered.finished(lease, manifest)
        return manifest


@dataclass
class _Run:
    """An increment in the making, as far as it goes; an interrupted one leaves it in files."""

    path: Path  # the increment's directory
    token: str  # the lease
    draft: Manifest  # the manifest without what only reading tells
    done: dict[int, GroupDone]  # groups that are read, by number

    @classmethod
    def left_at(cls, path: Path) -> _Run | None:
        """Return what an interrupted run has left; ``None`` if it is of no use."""
        found = read_run(path)
        if found is None:
            return None
        begun, lines = found
        try:
            done = [GroupDone.of_dict(each) for each in lines]
            draft = Manifest.of_dict(begun["draft"])
            whole = {each.group: each for each in done if _are_there(path, each.files)}
            return cls(path, str(begun["token"]), draft, whole)
        except (ValueError, LookupError, TypeError, AttributeError):
            return None

    def step(self, total: int) -> Step:
        """Return how far it is."""
        parts = [part for done in self.done.values() for part in done.parts.values()]
        rows, size = sum(part.rows for part in parts), sum(part.bytes for part in parts)
        return Step("backing up", len(self.done), total, rows, size)


# --- finishing ------------------------------------------------------------------------------------


def _manifest(run: _Run, floors: Mapping[int, int]) -> Manifest:
    """Return the manifest with what the tasks and the nodes have said."""
    vb: dict[int, VBucketPart] = {}
    files: list[FilePart] = []
    for _, done in sorted(run.done.items()):
        vb |= done.parts
        files += done.files
    assert vb.keys() == run.draft.vb.keys()
    ordered = {n: replace(part, rev_floor=floors.get(n, 0)) for n, part in sorted(vb.items())}
    return replace(run.draft, vb=ordered, files=tuple(files), ended=utc_now()).sealed()


def _are_there(path: Path, files: Sequence[FilePart]) -> bool:
    return all(check_file(path, file) is None for file in files)


def _remove_strays(path: Path, files: Sequence[FilePart]) -> None:
    """Remove what attempts left that failed or were too many."""
    wanted = {path / file.path for file in files}
    for file in (path / "data").rglob("*"):
        if file.is_file() and file not in wanted:
            file.unlink(missing_ok=True)
