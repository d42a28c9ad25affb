"""Backups: everything at one moment, then what has changed up to another one.

One lease over all vBuckets fixes the moment; tasks read their groups from it, write files, and the
manifest comes last. So an increment is exactly the state that its manifest names, whatever is
written meanwhile, or it does not exist.

A run that was interrupted is taken up again if its lease still lives: what was read is of the same
moment as what is missing. Otherwise its files are of no use and are removed.

Source: Spark reference 8; systems reference e.1; ``docs/spark.md``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from uprmc.backup.checking import check_increments
from uprmc.backup.group_reading import GroupDone, read_group
from uprmc.backup.manifest import FilePart, Manifest, VBucketPart
from uprmc.backup.parts import check_file
from uprmc.backup.plans import (
    Kind,
    Wish,
    chain_for,
    check_wish,
    draft_of,
    held,
    options_of,
    tasks_of,
    utc_now,
)
from uprmc.backup.registered import Registered
from uprmc.backup.repository import (
    Chain,
    Repository,
    begin_increment,
    finish_increment,
    increment_path,
    note_done,
    read_run,
)
from uprmc.backup.revision_floors import told_floors
from uprmc.columnar.access import Access
from uprmc.columnar.connection import reusing
from uprmc.columnar.errors import BackupDamaged, BadOption, LeaseEnded, RolledBack
from uprmc.columnar.lease import KeptLease, Lease, of_token
from uprmc.jobs.engines import Engine, LocalEngine
from uprmc.jobs.progress import Progress, Step, unseen

__all__ = ["Kind", "backup"]

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
        BadOption, BadFile, Unreachable, ...
    """
    wish = Wish(
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


def _rehearsed(wish: Wish, path: Path, engine: Engine, progress: Progress) -> Manifest:
    """Return what the manifest would begin with; makes and removes nothing."""
    repository = Repository(path) if path.is_dir() and any(path.iterdir()) else None
    chain = chain_for(wish, repository)
    _check_chain(wish, chain, engine, progress)
    with held(wish, chain) as (lease, nodes):
        return draft_of(wish, repository.id if repository else "", chain, lease, nodes)


def _check_chain(wish: Wish, chain: Chain | None, engine: Engine, progress: Progress) -> None:
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
        wish: Wish,
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

    def _finished(self, run: _Run, lease: Lease) -> Manifest:
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
    """An increment in the making, as far as it goes; an interrupted one leaves it in files.

    Attributes:
        path: the increment's directory.
        token: the lease.
        draft: the manifest without what only reading tells.
        done: groups that are read, by number.
    """

    path: Path
    token: str
    draft: Manifest
    done: dict[int, GroupDone]

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
