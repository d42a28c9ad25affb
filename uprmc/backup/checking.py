"""Is a chain what its manifests say, and can they be true? Asked before anything is done with it.

A manifest's digest finds what was torn, and not what was changed on purpose or by a wrong program
and sealed again. So nothing is believed that the rest of the directory contradicts: every file has
the size and SHA-256 that its manifest names, and no file is there that it does not name; the rows
in the files are those of the vBuckets, as many, within their seqnos, and in the group where they
are looked for; and a vBucket begins where its own failover log and the increments before say that
it must. What would keep rows from counting is damage, not an empty answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from uprmc.backup.increments import Beginning, beginning, parts_of
from uprmc.backup.manifest import FILE_NAME, FilePart, Manifest, check_file, group_of, read_parts
from uprmc.backup.repository import Chain, Increment, Repository
from uprmc.columnar.errors import BackupDamaged, BackupForeign, BackupIncomplete
from uprmc.columnar.report import JsonReport
from uprmc.jobs.engines import Engine
from uprmc.jobs.progress import Progress, Step
from uprmc.model import FailoverEntry
from uprmc.rollback import VBucketHoldings

#: Files that one task looks at before the next one does.
_FILES_AT_A_TIME = 16


@dataclass
class Tally:
    """What files have of one vBucket: how many rows, and the least and greatest seqno of them."""

    rows: int = 0
    deletes: int = 0
    least: int = 2**63 - 1
    greatest: int = 0

    def add(self, other: Tally) -> None:
        """Take in what another file has."""
        self.rows += other.rows
        self.deletes += other.deletes
        self.least = min(self.least, other.least)
        self.greatest = max(self.greatest, other.greatest)


@dataclass(frozen=True)
class _FilesTask:
    """Files to look at."""

    # of each the number of its increment, that one's directory, and what is said of it
    files: tuple[tuple[int, str, FilePart], ...]
    vbuckets: int  # vbuckets, groups: how many the chain has, by which rows are in a file's group
    groups: int


#: By increment and vBucket.
_Found = dict[tuple[int, int], Tally]


def check_increments(
    increments: Sequence[Increment], engine: Engine, progress: Progress, *, contents: bool = True
) -> None:
    """See that increments of a chain are as their manifests say, and that these can be true.

    Without `contents` only manifests, names and sizes are looked at.

    Raises:
        BackupDamaged: something is missing, torn, exchanged, or contradicts something else.
    """
    check_manifests(increments)
    if not increments:
        return
    files = [
        (number, str(each.path), file)
        for number, each in enumerate(increments)
        for file in each.manifest.files
    ]
    if not contents:
        for _, path, file in files:
            if wrong_size := check_file(Path(path), file, contents=False):
                raise BackupDamaged(wrong_size)
        return
    newest = increments[-1].manifest
    shape = newest.vbuckets, newest.options["groups"]
    tasks = [
        _FilesTask(tuple(files[at : at + _FILES_AT_A_TIME]), *shape)
        for at in range(0, len(files), _FILES_AT_A_TIME)
    ]
    totals: _Found = {}
    checked = 0

    def noted(_: int, result: tuple[list[str], _Found]) -> None:
        nonlocal checked
        checked += 1
        progress(Step("checking", checked, len(tasks)))
        wrong, found = result
        if wrong:
            more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
            raise BackupDamaged(wrong[0] + more)
        for place, tally in found.items():
            totals.setdefault(place, Tally()).add(tally)

    engine.run(look_at, tasks, noted)
    for number, each in enumerate(increments):
        for vbucket in {*each.manifest.vb, *(n for i, n in totals if i == number)}:
            tally = totals.get((number, vbucket), Tally())
            if said := _against(each.manifest, vbucket, tally):
                raise BackupDamaged(f"{each.path / FILE_NAME}: vBucket {vbucket}: {said}")
        if said := _unnamed_rows(each):
            raise BackupDamaged(said)


def check_manifests(increments: Sequence[Increment]) -> None:
    """Raise `BackupDamaged` if manifests contradict themselves or one another."""
    for wrong in _contradictions(increments):
        raise BackupDamaged(wrong)


def look_at(task: _FilesTask) -> tuple[list[str], _Found]:
    """Return what is wrong with files, and what those have that nothing is wrong with."""
    wrong: list[str] = []
    totals: _Found = {}
    for number, directory, file in task.files:
        problem = check_file(Path(directory), file)
        if problem is not None:
            wrong.append(problem)
            continue
        for vbucket, tally in _tallies(Path(directory), file).items():
            if group_of(vbucket, task.vbuckets, task.groups) != file.group:
                wrong.append(f"{directory}/{file.path} has rows of another group than {file.group}")
            totals.setdefault((number, vbucket), Tally()).add(tally)
    return wrong, totals


def _tallies(increment: Path, file: FilePart) -> dict[int, Tally]:
    found: dict[int, Tally] = {}
    rows = 0
    for batch in read_parts(increment, [file], ["_vb", "_seq", "_op"]):
        rows += len(batch)
        vbuckets = np.asarray(batch.column("_vb"))
        seqnos = np.asarray(batch.column("_seq"))
        # a document's operation is "set", everything else takes one away
        deleted = np.asarray(batch.column("_op").cast("string")) != "set"
        for vbucket in np.unique(vbuckets).tolist():
            here = vbuckets == vbucket
            its = seqnos[here]
            tally = Tally(len(its), int(deleted[here].sum()), int(its.min()), int(its.max()))
            found.setdefault(vbucket, Tally()).add(tally)
    if rows != file.rows:
        raise BackupDamaged(f"{increment / file.path} has {rows} rows, not {file.rows}")
    return found


def _against(manifest: Manifest, vbucket: int, found: Tally) -> str | None:
    """Return how a manifest and the rows of its files contradict each other."""
    part = manifest.vb.get(vbucket)
    if part is None:
        return f"its files have {found.rows} rows of it, which it does not name"
    if (part.rows, part.deletes) != (found.rows, found.deletes):
        return (
            f"its files have {found.rows} rows, {found.deletes} of them deletions, and it says "
            f"{part.rows} and {part.deletes}"
        )
    if found.rows and not part.start < found.least <= found.greatest <= part.end:
        return (
            f"its files have seqnos {found.least} to {found.greatest}, and it says {part.start} to "
            f"{part.end}"
        )
    return None


# --- manifests ------------------------------------------------------------------------------------


def _contradictions(increments: Sequence[Increment]) -> Iterator[str]:
    manifests = [each.manifest for each in increments]
    for number, increment in enumerate(increments):
        where = increment.path / FILE_NAME
        manifest, before = increment.manifest, manifests[:number]
        if before and manifest.vb.keys() != before[0].vb.keys():
            yield f"{where} has other vBuckets than the full backup"
        if before and manifest.options.get("groups") != before[0].options.get("groups"):
            yield f"{where} has another number of groups than the full backup"
        for vbucket in manifest.vb:
            if said := _not_from_there(manifest, vbucket, before):
                yield f"{where}: vBucket {vbucket}: {said}"
        if len({file.path for file in manifest.files}) < len(manifest.files):
            yield f"{where} names a file twice"


def _not_from_there(manifest: Manifest, vbucket: int, before: Sequence[Manifest]) -> str | None:
    """Return why a vBucket cannot begin where it says."""
    part = manifest.vb[vbucket]
    log = tuple(FailoverEntry(*each) for each in part.log)
    now = VBucketHoldings(log, part.end, part.purge_seqno)
    must = beginning(parts_of(before, vbucket), now)
    said = Beginning(part.start, must.uuid, part.cut, part.reset)
    if said == must:
        return None
    return f"by its failover log it has {_words(must)}, and it says {_words(said)}"


def _words(begin: Beginning) -> str:
    if begin.reset:
        return "all rows, and those before do not count"
    cut = "" if begin.cut is None else f", and those before count up to {begin.cut}"
    return f"the rows after seqno {begin.start}{cut}"


# --- files that no manifest names -----------------------------------------------------------------


def _unnamed_rows(increment: Increment) -> str | None:
    """Return which file has rows that the manifest keeps quiet about.

    What an attempt at a task left that was too many, and came too late to be removed, has the same
    rows as the files that count.
    """
    named = {file.path for file in increment.manifest.files}
    for path in sorted(increment.path.rglob("*.parquet")):
        name = path.relative_to(increment.path).as_posix()
        if name in named:
            continue
        stray = _seqnos(increment.path, [FilePart(name, 0, 0, 0, "")])
        counted = _seqnos(increment.path, increment.manifest.files)
        for vbucket, seqnos in stray.items():
            if not np.isin(seqnos, counted.get(vbucket, [])).all():
                return f"{increment.path / FILE_NAME} does not name {name}, which has rows"
    return None


def _seqnos(increment: Path, files: Sequence[FilePart]) -> dict[int, Any]:
    found: dict[int, list[Any]] = {}
    for batch in read_parts(increment, files, ["_vb", "_seq"]):
        vbuckets, seqnos = np.asarray(batch.column("_vb")), np.asarray(batch.column("_seq"))
        for vbucket in np.unique(vbuckets).tolist():
            found.setdefault(vbucket, []).append(seqnos[vbuckets == vbucket])
    return {vbucket: np.concatenate(each) for vbucket, each in found.items()}


# --- the whole directory --------------------------------------------------------------------------


@dataclass(frozen=True)
class Listed:
    """An increment, or a chain of which nothing can be said."""

    chain: str  # its directory's name
    # number, kind, began, rows, deletes, bytes, file_bytes: as in the manifest; nothing in a chain
    # that cannot be used
    number: int | None = None
    kind: str = ""
    began: str = ""
    rows: int = 0
    deletes: int = 0
    bytes: int = 0
    file_bytes: int = 0
    problem: str = ""  # why the chain cannot be used; empty = nothing was found


@dataclass(frozen=True)
class Listing(JsonReport):
    """What a directory has."""

    id: str  # the directory's own, under which nodes know it
    increments: tuple[Listed, ...]  # oldest first
    unfinished: tuple[str, ...]  # directories of increments that an interrupted run has left
    contents: bool  # files were read; otherwise only their sizes were looked at

    @property
    def unusable(self) -> list[str]:
        """Chains that cannot be restored."""
        return list(dict.fromkeys(each.chain for each in self.increments if each.problem))


def listed(directory: Path, engine: Engine, progress: Progress, *, contents: bool) -> Listing:
    """Return what a backup's directory has, and what is wrong with it.

    Raises:
        BackupForeign, BackupDamaged: it is none, or its repo.json is torn.
    """
    repository = Repository(directory)
    found: list[Listed] = []
    for name in repository.chain_names():
        increments: Sequence[Increment] = ()
        problem = ""
        try:
            increments = Chain(directory / name, repository.id).increments
            check_increments(increments, engine, progress, contents=contents)
        except (BackupDamaged, BackupForeign, BackupIncomplete) as error:
            problem = error.text
        if problem and not increments:
            found.append(Listed(name, problem=problem))
        for each in increments:
            what = each.manifest
            found.append(
                Listed(name, what.number, what.kind, what.began, **what.totals, problem=problem)
            )
    unfinished = tuple(str(path) for path in repository.unfinished())
    return Listing(repository.id, tuple(found), unfinished, contents)
