"""Restoring: the newest row of every key of a chain, written with its own metadata.

Documents go where their keys belong now, so the target may have another number of vBuckets, other
nodes, and documents of its own: a version that is newer there wins, which also makes it harmless to
do all of it twice. Deletions are restored as deletions: they win over what is older. With `force`
the backup wins over newer versions, too: what it has in place of them is written anew, with a new
revision, because with its own one it would lose against the newer version in every other cluster,
and stay different for good. Of deletions that were dropped before the backup only the highest
revision is known; the target gets it last, so that their keys begin above it (`revision_floors`).

Nothing is written before all files of the chain were found to be as their manifests say. At the
end the target is compared with the backup; a journal remembers what is done until that is over.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from uprmc.backup.checking import check_increments
from uprmc.backup.increments import Layer, Selection, layers_of, newest_rows
from uprmc.backup.repository import Increment, Repository
from uprmc.backup.revision_floors import floors_in, raise_floors
from uprmc.backup.verifying import BackupSide, VerifyReport, overwrite_differing, verify
from uprmc.columnar.access import Access
from uprmc.columnar.connection import reusing
from uprmc.columnar.errors import BackupForeign, BadOption
from uprmc.columnar.lease import acquire
from uprmc.columnar.nodes import BulkNodes
from uprmc.columnar.report import JsonReport, Report, TaskReport, merge
from uprmc.columnar.requests import ORIGIN_COLUMN
from uprmc.columnar.write_options import WriteOptions
from uprmc.columnar.writing import Writer
from uprmc.jobs.engines import Engine, LocalEngine, current_attempt
from uprmc.jobs.journal import Journal
from uprmc.jobs.progress import Progress, Step, unseen
from uprmc.protocol.opcodes import FRAME_MAX_BYTES
from uprmc.protocol.origins import ORIGIN_META_BYTES, ORIGIN_META_HEAD

# --- origins --------------------------------------------------------------------------------------
# Where the rows of a backup were first accepted: what came with them, or their place in the log.
#
# A row has extended metadata only if its version had come to the node from elsewhere. For any other
# one, the failover log in the manifest and its seqno say the same. A restore sends both, so that a
# restored document is known as the same version in every cluster that has it.
#
# See `docs/extensions.md`, Origins.


#: (vb_uuid, seqno after which the branch begins), newest first.
Log = Sequence[tuple[int, int]]

_META = np.dtype([("head", f"S{len(ORIGIN_META_HEAD)}"), ("uuid", ">u8"), ("seqno", ">u8")])
assert _META.itemsize == ORIGIN_META_BYTES


def with_origins(batch: pa.RecordBatch, logs: Mapping[int, Log]) -> pa.RecordBatch:
    """Return rows with a column of their origins as extended metadata, instead of ``_meta``."""
    found = _of_logs(np.asarray(batch.column("_vb")), np.asarray(batch.column("_seq")), logs)
    if "_meta" in batch.schema.names:
        metas = batch.column("_meta")
        _put_in(found, metas)
        batch = batch.drop_columns(["_meta"])
    column = pa.Array.from_buffers(
        pa.binary(ORIGIN_META_BYTES), len(found), [None, pa.py_buffer(found.tobytes())]
    )
    return batch.append_column(ORIGIN_COLUMN, column)


def _of_logs(vbuckets: np.ndarray, seqnos: np.ndarray, logs: Mapping[int, Log]) -> np.ndarray:
    """Do what `rollback.origin_here` does, for all rows at once."""
    found: np.ndarray = np.zeros(len(seqnos), _META)
    found["head"], found["seqno"] = ORIGIN_META_HEAD, seqnos
    for number in np.unique(vbuckets).tolist():
        rows = np.flatnonzero(vbuckets == number)
        oldest_first = list(reversed(logs[number]))
        begins = np.array([begin for _, begin in oldest_first], np.int64)
        uuids = np.array([uuid for uuid, _ in oldest_first], np.uint64)
        branches = np.searchsorted(begins, seqnos[rows], side="left") - 1
        found["uuid"][rows] = uuids[np.maximum(branches, 0)]
    return found


def _put_in(found: np.ndarray, metas: pa.Array) -> None:
    """Put in the origins that came with rows; other extended metadata says nothing of them."""
    plain = pc.and_(
        pc.equal(pc.binary_length(metas), ORIGIN_META_BYTES),
        pc.starts_with(metas, ORIGIN_META_HEAD),
    )
    mask = plain.fill_null(False).to_numpy(zero_copy_only=False)
    if mask.any():
        brought = b"".join(metas.filter(pa.array(mask)).to_pylist())
        found[mask] = np.frombuffer(brought, _META)


# --- restoring ------------------------------------------------------------------------------------


Mode = Literal["append-meta", "upsert"]
MODES: tuple[Mode, ...] = ("append-meta", "upsert")

#: A lease that only shows whether there can be one.
_TRIAL_S = 5

#: What makes two versions the same, and what makes two documents the same that are not.
_VERSION = ("value", "rev", "cas", "flags", "exp")
_DOCUMENT = ("value", "flags", "exp")


@dataclass
class RestoreReport(JsonReport):
    """What a restore has done."""

    backup: str  # id of the newest increment that was restored; `chain` and `at` are where it is
    chain: str
    at: int
    groups: int  # how many there were; `resumed`: of them were done by an earlier run
    resumed: int = 0
    written: Report = field(default_factory=Report)  # counts of all rows
    overwritten: int = 0  # of those that were written, how many took the place of a newer version
    force: bool = False  # the backup was to win over newer versions
    prefix: str = ""  # of the keys that were wanted
    # nodes that do not take the floor of revisions.
    without_floor: list[str] = field(default_factory=list)
    # how the target compares with the backup, in a dry run before anything was written; ``None`` =
    # it was not compared.
    check: VerifyReport | None = None

    @property
    def errors(self) -> int:
        """Rows that could not be written."""
        return self.written.errors

    @property
    def complete(self) -> bool:
        """Whether the target has everything, or something newer."""
        return not self.errors and not self.lacking

    @property
    def lacking(self) -> int:
        """What the target does not have and has nothing newer of, after all was written."""
        return self.check.behind if self.check and not self.written.dry_run else 0

    @property
    def superseded(self) -> int:
        """Documents of the backup that the target has in a newer version, which stays."""
        foreseen = self.force and self.written.dry_run
        return 0 if self.check is None or foreseen else self.check.superseded

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON knows it."""
        plain = asdict(replace(self, written=Report(), check=None))
        check = self.check.to_dict() if self.check else None
        return plain | {"written": self.written.to_dict(), "check": check}

    def summary(self) -> str:
        """Return a few lines for people."""
        lines = [f"increment {self.at} of {self.chain}: {self.written.summary()}"]
        if self.prefix and not self.written.rows:
            lines.append(f"no key of the backup begins with {self.prefix!r}")
        if self.overwritten:
            verb = "would replace" if self.written.dry_run else "replaced"
            lines.append(f"{self.overwritten:,} of them {verb} a newer version")
        if self.resumed:
            lines.append(f"{self.resumed} of {self.groups} groups were done before")
        if self.check and self.superseded:
            changed = self.superseded - self.check.deleted
            why = "they changed meanwhile" if self.force else "to have the backup win, say --force"
            lines.append(
                f"{self.superseded:,} documents of the backup are newer at the nodes ({changed:,} "
                f"changed and {self.check.deleted:,} deleted since then) and win: {why}"
            )
        if self.without_floor:
            lines.append(
                f"{', '.join(self.without_floor)}: the revision floor could not be set: a key "
                "whose deletion was dropped before the backup may begin below its old revision"
            )
        if self.check:
            when = "now: " if self.written.dry_run else ""
            lines.append(when + self.check.summary())
        return "\n".join(lines)


@dataclass(frozen=True)
class _GroupTask:
    """One group: what to read, how to write it; by which logs rows get origins, if the target
    takes them.
    """

    group: int
    layers: tuple[Layer, ...]
    prefix: bytes
    options: WriteOptions
    logs: Mapping[int, Log] | None


@reusing()
def restore(
    directory: Path | str,
    access: Access,
    *,
    at: int | None = None,
    chain: str | None = None,
    mode: Mode = "append-meta",
    engine: Engine | None = None,
    vbuckets: Iterable[int] | None = None,
    key_prefix: bytes | str = b"",
    force: bool = False,
    dry_run: bool = False,
    rate: float | None = None,
    check: bool = True,
    state: Path | str | None = None,
    options: WriteOptions | None = None,
    progress: Progress | None = None,
) -> RestoreReport:
    """Write what a backup has to a bucket; returns what was done.

    Args:
        directory: of the backup; workers must see it, too.
        access: the target.
        at: number of the increment in its chain; the newest if none is given.
        chain: name of its directory; the newest if none is given.
        mode: append-meta keeps revision and CAS and lets newer versions of the target win; upsert
            writes documents as new ones, and deletes what the backup has as deleted.
        engine: where tasks run; this machine if none is given.
        vbuckets: only those, as the backup numbers them.
        key_prefix: only keys that begin so.
        force: the backup wins over newer versions, too, which get a new one.
        dry_run: read, check, compare and count, write nothing.
        rate: rows a second, over all tasks.
        check: compare the target with the backup at the end.
        state: file that remembers the groups that are done, for a run that is interrupted; it is
            removed when the target was compared.
        options: how rows are written otherwise: windows, errors, retries; if none are given, a
            group is done when its rows are on the nodes' disks.
        progress: called after every group.

    Raises:
        BackupDamaged, BackupForeign, BackupIncomplete: nothing was written.
        BadRow, TooManyErrors, NodeUnreachable, ...: some groups may have been written.
    """
    prefix = key_prefix.encode() if isinstance(key_prefix, str) else key_prefix
    chosen = options or WriteOptions(access, durability="persist")
    writing = _write_options(chosen, access, mode, force, dry_run, rate)
    runner, tell = engine or LocalEngine(), progress or unseen
    repository = Repository(Path(directory))
    found = repository.chain(chain)
    increments = found.until(at)
    _check_values(increments)
    wanted = None if vbuckets is None else frozenset(vbuckets)
    newest = increments[-1].manifest
    if wanted is not None and (not wanted or wanted - newest.vb.keys()):
        foreign = min(wanted - newest.vb.keys(), default="nothing")
        raise BadOption(f"vbuckets: {foreign} is not in {found.path}")
    selection = Selection(wanted, prefix)
    check_increments(increments, runner, tell)
    side = BackupSide(Path(directory), newest.number, found.name, checked=True)
    about: dict[str, Any] = {"engine": runner, "vbuckets": wanted, "key_prefix": prefix}
    about["progress"] = tell
    with BulkNodes(access) as nodes:  # an unreachable target is an error before any work
        origins = mode == "append-meta" and not dry_run and _takes_origins(nodes)
        if (check or force) and nodes.owners:
            # so is a user who may write, and may not read for the comparison
            acquire(access, [min(nodes.owners)], _TRIAL_S).release()
    logs = {n: part.log for n, part in newest.vb.items()} if origins else None
    facts = {
        "backup": newest.id,
        "servers": list(access.servers),
        "mode": mode,
        "force": force,
        "vbuckets": sorted(wanted) if wanted is not None else None,
        "prefix": prefix.hex(),
    }
    with Journal(None if state is None or dry_run else Path(state), facts, "restore") as journal:
        layers = layers_of(increments, selection)
        report = RestoreReport(
            newest.id, found.name, newest.number, len(layers), len(journal.done), force=force
        )
        report.prefix = prefix.decode("utf-8", "backslashreplace")
        _write_groups(layers, selection, writing, runner, journal, tell, logs)
        report.written = merge(journal.done.values())
        report.written.dry_run = dry_run
        if dry_run:
            _foresee(report, side, access, mode, check, about)
            return report
        if force:
            upsert = replace(writing, mode="upsert")
            again = merge(overwrite_differing(side, access, upsert, by=_DOCUMENT, **about))
            _count_overwritten(report, again.applied)
            report.written.errors += again.errors
            report.written.error_files += again.error_files
        floors = floors_in([each.manifest for each in increments], wanted)
        report.without_floor = raise_floors(access, floors, newest.vbuckets)
        if check:
            report.check = _compared(side, access, mode == "append-meta" and not force, about)
        journal.remove()
    return report


def _foresee(
    report: RestoreReport,
    side: BackupSide,
    access: Access,
    mode: Mode,
    check: bool,
    about: dict[str, Any],
) -> None:
    """Tell what a dry run has counted into what the run would come to."""
    if mode == "upsert":
        return
    # What has expired is written, too, so nothing is left out here for that reason.
    versions = verify(
        side, access, by=_VERSION, deletes=True, lag_s=None, now=lambda: -1.0, **about
    )
    report.written.conflicts = max(0, report.written.applied - versions.behind)
    report.written.applied -= report.written.conflicts
    if report.force:
        documents = verify(side, access, by=_DOCUMENT, lag_s=None, **about)
        _count_overwritten(report, documents.superseded + documents.revived)
        report.check = documents if check else None
    elif check:
        report.check = _compared(side, access, versions=True, about=about)


def _compared(
    side: BackupSide, access: Access, versions: bool, about: dict[str, Any]
) -> VerifyReport:
    """Compare the target, by versions if it can have those of the backup.

    Where all that it lacks are versions that it has newer ones of, only documents count: the same
    contents with a newer revision are no difference.
    """
    if versions:
        found = verify(side, access, by=_VERSION, lag_s=None, **about)
        if not found.superseded or found.behind:
            return found
    return verify(side, access, by=_DOCUMENT, lag_s=None, **about)


def _count_overwritten(report: RestoreReport, rows: int) -> None:
    """Count rows as written that had lost against newer versions before."""
    report.overwritten = min(rows, report.written.conflicts)
    report.written.conflicts -= report.overwritten
    report.written.applied += report.overwritten


def _takes_origins(nodes: BulkNodes) -> bool:
    """Tell whether all nodes understand origins; others may refuse extended metadata."""
    places = set(nodes.owners.values())
    return all(nodes.at(place, lambda connection: connection.knows_origins) for place in places)


def _write_options(
    options: WriteOptions,
    access: Access,
    mode: Mode,
    force: bool,
    dry_run: bool,
    rate: float | None,
) -> WriteOptions:
    if mode not in MODES:
        raise BadOption(f"mode={mode}: say {', '.join(MODES)}")
    if force and mode != "append-meta":
        raise BadOption("force is for mode append-meta: upsert wins anyway")
    return replace(
        options,
        access=access,
        mode=mode,
        dry_run=dry_run,
        rate=rate or options.rate,
        value_limit_bytes=FRAME_MAX_BYTES,  # what a node held, a node judges
    ).patient()


def _check_values(increments: Sequence[Increment]) -> None:
    for each in increments:
        if not each.manifest.has_values:
            raise BackupForeign(f"{each.path} was made without values: it is for comparing only")


def _write_groups(
    layers: Mapping[int, Sequence[Layer]],
    selection: Selection,
    options: WriteOptions,
    engine: Engine,
    journal: Journal,
    progress: Progress,
    logs: Mapping[int, Log] | None,
) -> None:
    """Write the groups that are not done, the largest first."""
    done = journal.done
    left = sorted(set(layers) - set(done), key=lambda group: -_rows(layers[group]))
    shared = replace(
        options, rate=options.rate and options.rate / max(1, min(engine.parallelism, len(left)))
    )
    tasks = [
        _GroupTask(group, tuple(layers[group]), selection.prefix, shared, logs) for group in left
    ]

    def tell() -> None:
        progress(Step("restoring", len(done), len(layers), journal.rows, journal.bytes))

    def noted(index: int, result: TaskReport) -> None:
        journal.add(left[index], result)
        tell()

    tell()
    engine.run(restore_group, tasks, noted)


def restore_group(task: _GroupTask) -> TaskReport:
    """Write one group's rows."""
    with Writer(task.options, task.group, current_attempt()) as writer:
        for batch in newest_rows(task.layers, prefix=task.prefix):
            writer.write(batch if task.logs is None else with_origins(batch, task.logs))
        return writer.finish()


def _rows(layers: Sequence[Layer]) -> int:
    return sum(file.rows for layer in layers for file in layer.files)
