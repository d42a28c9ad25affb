"""The directory of a backup: which increments there are, and that they fit together.

    DIR/repo.json                               makes it a backup; its id is in every manifest
    DIR/lock                                    held by the process that writes
    DIR/chain-0001/0000-full/manifest.json      written last: without it there is no increment
    DIR/chain-0001/0000-full/run.json           while it is being made
    DIR/chain-0001/0000-full/data/vbg=0003/part-*.parquet
    DIR/chain-0001/0001-incr/...

A full backup begins a chain, increments add to the newest one. What an interrupted run left is
known by its run.json, and only such a directory is ever removed.
"""

from __future__ import annotations

import fcntl
import json
import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from uprmc.backup.manifest import FILE_NAME, FULL, INCREMENTAL, Manifest, read_manifest
from uprmc.columnar.errors import (
    BackupBusy,
    BackupDamaged,
    BackupForeign,
    BackupIncomplete,
    BadFile,
    BadOption,
)
from uprmc.jobs.files import UNFINISHED, sync, sync_tree, write_note, write_whole
from uprmc.regular import read_regular

FORMAT = 1
KIND = "uprmc backup"
REPOSITORY_FILE = "repo.json"
LOCK_FILE = "lock"
RUN_FILE = "run.json"
#: Lines of what an interrupted run has done.
DONE_FILE = "run-done.jsonl"

#: Increments of one chain; a restore reads them all.
INCREMENTS_MAX = 10_000

_CHAIN_NAME = re.compile(r"chain-(\d{4,})")
_INCREMENT_NAME = re.compile(r"(\d{4,})-(full|incr)")


@dataclass(frozen=True)
class Increment:
    """A finished one."""

    path: Path  # its directory
    manifest: Manifest  # what it says of itself


class Chain:
    """A full backup and what was added, oldest first."""

    def __init__(self, path: Path, repository_id: str) -> None:
        self.path = path  # its directory
        self.increments = _linked(path, repository_id)  # the finished ones; they fit together

    @property
    def name(self) -> str:
        """Its directory's name."""
        return self.path.name

    def until(self, at: int | None = None) -> list[Increment]:
        """Return the increments up to a number, or all.

        Raises:
            BackupIncomplete: there is no such number.
        """
        last = len(self.increments) - 1 if at is None else at
        if not 0 <= last < len(self.increments):
            raise BackupIncomplete(
                f"{self.path}: there is no increment {last}: it has "
                f"{_numbers(len(self.increments))}"
            )
        return self.increments[: last + 1]


def increment_path(chain: Path, number: int) -> Path:
    """Return the directory of the increment with this number, there or not."""
    return chain / f"{number:04d}-{INCREMENTAL if number else FULL}"


class Repository:
    """The directory of one backup.

    Raises:
        BackupForeign: the directory is something else.
        BackupDamaged: repo.json is torn.
    """

    def __init__(self, path: Path) -> None:
        self.path = path  # the directory
        self.id = _repository_id(path)  # its own

    @classmethod
    def made(cls, path: Path) -> Repository:
        """Return the repository in a directory, making both if there is nothing.

        Raises:
            BackupForeign: the directory holds something else.
            BadFile: it cannot be made.
        """
        try:
            path.mkdir(parents=True, exist_ok=True)
            others = [each.name for each in path.iterdir() if not _is_leftover(each)]
            if not (path / REPOSITORY_FILE).exists():
                if others:
                    raise BackupForeign(
                        f"{path} is no backup and not empty: it has {sorted(others)[0]}"
                    )
                said = {"format": FORMAT, "kind": KIND, "id": uuid.uuid4().hex}
                write_whole(path / REPOSITORY_FILE, json.dumps(said) + "\n")
        except OSError as error:
            raise BadFile(f"{path}: {error}") from None
        return cls(path)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Be the only one that writes here, in this process or any other.

        Raises:
            BackupBusy: another process is.
        """
        with (self.path / LOCK_FILE).open("ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise BackupBusy(f"another backup to {self.path} is running") from None
            yield

    def chain_names(self) -> list[str]:
        """Return the names of all chains, oldest first; some may have nothing that is finished."""
        found = [each.name for each in self.path.iterdir() if _CHAIN_NAME.fullmatch(each.name)]
        return sorted(found, key=lambda name: int(name.partition("-")[2]))

    def chain(self, name: str | None = None) -> Chain:
        """Return a chain, or the newest that has something.

        Raises:
            BackupIncomplete: there is none, or an increment is missing.
            BackupDamaged, BackupForeign: a manifest is torn, or belongs elsewhere.
        """
        if name is not None:
            if name not in self.chain_names():
                names = ", ".join(self.chain_names()) or "nothing"
                raise BackupIncomplete(f"{self.path}: there is no {name}: it has {names}")
            chain = Chain(self.path / name, self.id)
            if not chain.increments:
                raise BackupIncomplete(f"{chain.path} was never finished")
            return chain
        for each in reversed(self.chain_names()):
            chain = Chain(self.path / each, self.id)
            if chain.increments:
                return chain
        raise BackupIncomplete(f"{self.path}: no backup in it was ever finished")

    def next_chain_name(self) -> str:
        """Return a name that no chain has."""
        names = self.chain_names()
        last = int(names[-1].partition("-")[2]) if names else 0
        return f"chain-{last + 1:04d}"

    def unfinished(self) -> list[Path]:
        """Return the directories of increments that an interrupted run left, oldest first."""
        found = []
        for name in self.chain_names():
            for _, path in _increment_paths(self.path / name):
                if not (path / FILE_NAME).exists() and _is_ours(path):
                    found.append(path)
        return found

    def remove_unfinished(self, *, but: Path | None = None) -> None:
        """Remove what interrupted runs left; of chains that were never begun, all."""
        for path in self.unfinished():
            if path != but:
                shutil.rmtree(path)
        for name in self.chain_names():
            chain = self.path / name
            for _, path in _increment_paths(chain):
                if (path / FILE_NAME).exists():
                    _forget_run(path)
            if not any(chain.iterdir()):
                chain.rmdir()


def begin_increment(path: Path, run: dict[str, Any]) -> None:
    """Make an increment's directory; `run` is what an interrupted run leaves to the next."""
    path.mkdir(parents=True)
    write_note(path / RUN_FILE, json.dumps(run, sort_keys=True) + "\n")


def note_done(path: Path, done: dict[str, Any]) -> None:
    """Add to what an interrupted run leaves to the next."""
    with (path / DONE_FILE).open("a", encoding="utf-8") as file:
        file.write(json.dumps(done, sort_keys=True) + "\n")


def read_run(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]] | None:
    """Return what an interrupted run left: how it began, and what it has done.

    ``None`` if that makes no sense. The last line may be torn, then it was not done.
    """
    try:
        run = json.loads(read_regular(path / RUN_FILE))
        done = path / DONE_FILE
        lines = read_regular(done).decode().split("\n")[:-1] if done.exists() else []
        return run, [json.loads(line) for line in lines]
    except (OSError, ValueError, RecursionError):
        return None


def finish_increment(path: Path, manifest: Manifest) -> None:
    """Write the manifest, by which the increment comes into being."""
    sync_tree(path)
    sync(path.parent)
    sync(path.parent.parent)
    write_whole(path / FILE_NAME, manifest.to_json())
    _forget_run(path)


def _forget_run(path: Path) -> None:
    for name in (DONE_FILE, RUN_FILE):
        (path / name).unlink(missing_ok=True)


def _repository_id(path: Path) -> str:
    file = path / REPOSITORY_FILE
    try:
        found = json.loads(read_regular(file))
        kind, known, its_id = found["kind"], found["format"], found["id"]
    except (FileNotFoundError, NotADirectoryError):
        raise BackupForeign(f"{path} is no backup: it has no {REPOSITORY_FILE}") from None
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise BackupDamaged(f"{file}: {type(error).__name__}: {error}") from None
    if kind != KIND:
        raise BackupForeign(f"{path} is no backup: {file} says {kind!r}")
    if known != FORMAT:
        raise BackupForeign(f"{file}: format {known!r}; this program knows {FORMAT}")
    if not isinstance(its_id, str) or not its_id:
        raise BackupDamaged(f"{file}: {its_id!r} is no id")
    return its_id


def _linked(path: Path, repository_id: str) -> list[Increment]:
    """Return the finished increments of a chain, having seen that they follow one another."""
    found: list[Increment] = []
    places = _increment_paths(path)
    for place, (number, each) in enumerate(places):
        if not (each / FILE_NAME).exists():
            if place == len(places) - 1 and _is_ours(each):
                break  # the next run removes it
            raise BackupIncomplete(f"{each} has no {FILE_NAME}")
        if number != place:
            raise BackupIncomplete(f"{path}: increment {place} is missing, {number} is there")
        manifest = read_manifest(each / FILE_NAME)
        _check_link(each, manifest, found[-1].manifest if found else None, repository_id, place)
        found.append(Increment(each, manifest))
    return found


def _check_link(
    path: Path, manifest: Manifest, parent: Manifest | None, repository_id: str, place: int
) -> None:
    if manifest.repository != repository_id:
        raise BackupForeign(f"{path / FILE_NAME} belongs to another backup directory")
    if manifest.number != place:
        raise BackupForeign(f"{path / FILE_NAME} is of increment {manifest.number}, not {place}")
    if parent is None:
        return
    if manifest.chain != parent.chain:
        raise BackupForeign(f"{path / FILE_NAME} belongs to another chain")
    if (manifest.parent, manifest.parent_digest) != (parent.id, parent.digest):
        raise BackupForeign(f"{path / FILE_NAME} was added to another increment {place - 1}")
    if manifest.vbuckets != parent.vbuckets:
        raise BackupForeign(f"{path / FILE_NAME} has another number of vBuckets")


def _increment_paths(chain: Path) -> list[tuple[int, Path]]:
    found = []
    for each in chain.iterdir():
        match = _INCREMENT_NAME.fullmatch(each.name)
        if match and each.is_dir():
            found.append((int(match[1]), each))
    return sorted(found)


def _is_ours(path: Path) -> bool:
    """Return whether a run of ours was here, or had only just begun."""
    return (path / RUN_FILE).exists() or all(map(_is_leftover, path.iterdir()))


def _is_leftover(path: Path) -> bool:
    return path.name == LOCK_FILE or path.name.endswith(UNFINISHED)


def _numbers(count: int) -> str:
    return f"0 to {count - 1}" if count else "none that is finished"


def increments_of(chain: Chain) -> list[Manifest]:
    """Return the manifests of a chain, oldest first.

    Raises:
        BadOption: it has the most there may be; the next has to be a full one.
    """
    if len(chain.increments) >= INCREMENTS_MAX:
        raise BadOption(f"{chain.path} has {INCREMENTS_MAX} increments: make a full backup")
    return [each.manifest for each in chain.increments]
