"""Files that are there whole or not at all, also after a power cut.

A file is written under a name that readers ignore, synced, and renamed; the directory is synced
after it. The name has a random part, so two attempts of one task never write into the same file.
"""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from uprmc.regular import open_regular

#: End of names of files that are not finished, or never will be.
UNFINISHED = ".tmp"

_PIECE_BYTES = 1 << 20


@contextmanager
def whole_file(path: Path, *, lasting: bool = True) -> Iterator[Path]:
    """Give a name to write to; when the block ends, the file there is synced and gets its name.

    If the block raises there is no file. The directory is made if it is missing.

    Args:
        path: the name.
        lasting: also sync the directory; if not, the name may be gone after a power cut, and the
            caller syncs the directories of many files at once.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{uuid.uuid4().hex}{UNFINISHED}")
    try:
        yield unfinished
        sync(unfinished)
        unfinished.replace(path)
    except BaseException:
        with suppress(OSError):
            unfinished.unlink()
        raise
    if lasting:
        sync(path.parent)


def write_whole(path: Path, text: str) -> None:
    """Write or replace a text file."""
    with whole_file(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8")


def write_note(path: Path, text: str) -> None:
    """Replace a text file that may be lost in a power cut: complete or old, but not synced."""
    unfinished = path.with_name(f".{path.name}.{uuid.uuid4().hex}{UNFINISHED}")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path)


def sync_tree(path: Path) -> None:
    """Sync a directory and all directories in it: names of files that are synced themselves."""
    for each, _, _ in os.walk(path, topdown=False):
        sync(Path(each))


def sync(path: Path) -> None:
    """Wait until a file's bytes, or a directory's names, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256_of(path: Path) -> str:
    """Return the digest of a file's bytes, as text."""
    found = hashlib.sha256()
    with os.fdopen(open_regular(path), "rb") as file:
        while piece := file.read(_PIECE_BYTES):
            found.update(piece)
    return found.hexdigest()
