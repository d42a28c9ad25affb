"""Restoring: the newest row of every key of a chain, written with its own metadata.

Documents go where their keys belong now, so the target may have another number of vBuckets, other
nodes, and documents of its own: a version that is newer there wins (unless `force`), which also
makes it harmless to do all of it twice. Deletions are restored as deletions: they win over what is
older. Of deletions that were dropped before the backup only the highest revision is known; the
target gets it last, so that their keys begin above it (`revision_floors`).

Nothing is written before all files of the chain were found to be as their manifests say. At the
end the target is compared with the backup.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from uprmc.backup.latest import Layer, Selection, layers_of, newest_rows
from uprmc.backup.manifest import FilePart
from uprmc.backup.origins import Log, with_origins
from uprmc.backup.parts import check_file
from uprmc.backup.repository import Chain, Increment, Repository
from uprmc.backup.revision_floors import floors_in, raise_floors
from uprmc.backup.verifying import BackupSide, VerifyReport, verify
from uprmc.columnar.access import Access
from uprmc.columnar.errors import BackupDamaged, BackupForeign, BadOption
from uprmc.columnar.nodes import Nodes
from uprmc.columnar.report import JsonReport, Report, TaskReport, merge
from uprmc.columnar.write_options import WriteOptions
from uprmc.columnar.writing import Writer
from uprmc.jobs.engines import Engine, LocalEngine, current_attempt
from uprmc.jobs.journal import Journal
from uprmc.jobs.progress import Progress, Step, unseen
from uprmc.protocol.opcodes import FRAME_MAX_BYTES

Mode = Literal["append-meta", "upsert"]
MODES: tuple[Mode, ...] = ("append-meta", "upsert")

#: Files that one task looks at before the next one does.
_FILES_AT_A_TIME = 16


@dataclass
class RestoreReport(JsonReport):
    """What a restore has done.

    Attributes:
        backup: id of the newest increment that was restored; `chain` and `at` are where it is.
        groups: how many there were; `resumed`: of them were done by an earlier run.
        written: counts of all rows.
        without_floor: nodes that do not take the floor of revisions.
        check: how the target compares with the backup; ``None`` = it was not compared.
    """

    backup: str
    chain: str
    at: int
    groups: int
    resumed: int = 0
    written: Report = field(default_factory=Report)
    without_floor: list[str] = field(default_factory=list)
    check: VerifyReport | None = None

    @property
    def errors(self) -> int:
        """Rows that could not be written."""
        return self.written.errors

    @property
    def complete(self) -> bool:
        """Whether the target has everything, or something newer."""
        return not self.errors and (self.check is None or not self.check.behind)

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON knows it."""
        plain = asdict(replace(self, written=Report(), check=None))
        check = self.check.to_dict() if self.check else None
        return plain | {"written": self.written.to_dict(), "check": check}

    def summary(self) -> str:
        """Return a few lines for people."""
        lines = [f"increment {self.at} of {self.chain}: {self.written.summary()}"]
        if self.resumed:
            lines.append(f"{self.resumed} of {self.groups} groups were done before")
        if self.without_floor:
            lines.append(
                f"{', '.join(self.without_floor)}: the revision floor could not be set: a key "
                "whose deletion was dropped before the backup may begin below its old revision"
            )
        if self.check:
            lines.append(self.check.summary())
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
        force: the backup wins over newer versions, too.
        dry_run: read, check and count, write nothing.
        rate: rows a second, over all tasks.
        check: compare the target with the backup at the end.
        state: file that remembers the groups that are done, for a run that is interrupted; it is
            removed at the end.
        options: how rows are written otherwise: windows, errors, retries; if none are given, a
            group is done when its rows are on the nodes' disks.
        progress: called after every group.

    Raises:
        BackupDamaged, BackupForeign, BackupIncomplete: nothing was written.
        BadRow, TooManyErrors, Unreachable, ...: some groups may have been written.
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
    selection = Selection(wanted, prefix)
    check_files(increments, runner, tell)
    logs = None
    if not dry_run:
        with Nodes(access) as nodes:  # an unreachable target is an error before any work
            if mode == "append-meta" and _takes_origins(nodes):
                logs = {n: part.log for n, part in increments[-1].manifest.vb.items()}
    report = _written(found, increments, selection, writing, runner, state, tell, logs)
    if not dry_run:
        manifests = [each.manifest for each in increments]
        floors = floors_in(manifests, wanted)
        report.without_floor = raise_floors(writing.access, floors, manifests[-1].vbuckets)
    if check and not dry_run:
        side = BackupSide(Path(directory), at=increments[-1].manifest.number, chain=found.name)
        report.check = verify(
            side,
            writing.access,
            engine=runner,
            by=("value", "rev", "cas", "flags", "exp")
            if mode == "append-meta"
            else ("value", "flags", "exp"),
            vbuckets=wanted,
            key_prefix=prefix,
            lag_s=None,
            progress=progress,
        )
    return report


def _takes_origins(nodes: Nodes) -> bool:
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
        force=force,
        dry_run=dry_run,
        rate=rate or options.rate,
        value_limit_bytes=FRAME_MAX_BYTES,  # what a node held, a node judges
    ).patient()


def _check_values(increments: Sequence[Increment]) -> None:
    for each in increments:
        if not each.manifest.has_values:
            raise BackupForeign(f"{each.path} was made without values: it is for comparing only")


def _written(
    chain: Chain,
    increments: Sequence[Increment],
    selection: Selection,
    options: WriteOptions,
    engine: Engine,
    state: Path | str | None,
    progress: Progress,
    logs: Mapping[int, Log] | None,
) -> RestoreReport:
    newest = increments[-1].manifest
    layers = layers_of(increments, selection)
    facts = {
        "backup": newest.id,
        "servers": list(options.access.servers),
        "mode": options.mode,
        "force": options.force,
        "vbuckets": sorted(selection.vbuckets) if selection.vbuckets is not None else None,
        "prefix": selection.prefix.hex(),
    }
    path = None if state is None or options.dry_run else Path(state)
    with Journal(path, facts, "restore") as journal:
        resumed = len(journal.done)
        _write_groups(layers, selection, options, engine, journal, progress, logs)
        journal.remove()
    return RestoreReport(
        newest.id, chain.name, newest.number, len(layers), resumed, merge(journal.done.values())
    )


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


# --- files ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _FilesTask:
    """Files to look at."""

    files: tuple[tuple[str, FilePart], ...]


def check_files(increments: Sequence[Increment], engine: Engine, progress: Progress) -> None:
    """See that all files of increments are as their manifests say.

    Raises:
        BackupDamaged: one is missing, torn or exchanged.
    """
    files = [(str(each.path), file) for each in increments for file in each.manifest.files]
    tasks = [
        _FilesTask(tuple(files[at : at + _FILES_AT_A_TIME]))
        for at in range(0, len(files), _FILES_AT_A_TIME)
    ]
    checked = 0

    def noted(_: int, wrong: list[str]) -> None:
        nonlocal checked
        checked += 1
        progress(Step("checking", checked, len(tasks)))
        if wrong:
            more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
            raise BackupDamaged(wrong[0] + more)

    engine.run(find_damage, tasks, noted)


def find_damage(task: _FilesTask) -> list[str]:
    """Return what is wrong with files."""
    found = (check_file(Path(increment), file) for increment, file in task.files)
    return [wrong for wrong in found if wrong]
