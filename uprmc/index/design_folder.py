"""Designs on disk: one directory for each, with its texts, which one answers, and its index files.

    DATA/index/NAME.design/design.json   which signatures are current, new, old
    DATA/index/NAME.design/SIG.text      the text as it was put
    DATA/index/NAME.design/SIG.N.index   index files, see `index_file`

Names are quoted, so that none can leave the directory. A file is replaced as a whole, or not.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import quote, unquote

from uprmc.index.tree.disk import sync_directory

SUFFIX = ".design"
_FACTS = "design.json"
_TEXT = ".text"

#: Longer names are kept as their hash: file systems take 255 bytes.
_NAME_MAX = 180

_LOG = logging.getLogger("uprmc.index")


@dataclass(frozen=True)
class Kept:
    """What is kept of a design."""

    name: str  # of it
    current: str  # signature of the definition that answers
    new: str = ""  # of the one that is being built, empty = none
    old: str = ""  # of the one that answered before, empty = none
    old_until: float = 0.0  # when that is removed, in seconds of the epoch

    def __post_init__(self) -> None:
        texts = (self.name, self.current, self.new, self.old)
        if not all(isinstance(each, str) for each in texts) or not self.current:
            raise ValueError("a name or a signature is no text")
        if not isinstance(self.old_until, int | float):
            raise ValueError("its time is no number")


class DesignFolder:
    """The directory of one design."""

    def __init__(self, root: Path, name: str) -> None:
        quoted = quote(name, safe="")
        if len(quoted) > _NAME_MAX:
            quoted = "sha256-" + hashlib.sha256(name.encode()).hexdigest()
        self.path = root / (quoted + SUFFIX)

    def keep(self, kept: Kept) -> None:
        """Write which definitions there are; on disk when it returns."""
        self._write(_FACTS, json.dumps(asdict(kept)).encode())

    def keep_text(self, signature: str, text: bytes) -> None:
        """Write a definition."""
        self.path.mkdir(exist_ok=True)
        sync_directory(self.path.parent)
        self._write(signature + _TEXT, text)

    def text(self, signature: str) -> bytes:
        """Return a definition."""
        return (self.path / (signature + _TEXT)).read_bytes()

    def drop(self, signature: str) -> None:
        """Remove a definition with its index."""
        for path in self.path.glob(f"{signature}.*"):
            path.unlink(missing_ok=True)

    def drop_others(self, kept: Kept) -> None:
        """Remove what belongs to none of the definitions that are kept."""
        signatures = {kept.current, kept.new, kept.old}
        for path in self.path.iterdir():
            if path.name != _FACTS and path.name.partition(".")[0] not in signatures:
                path.unlink()

    def remove(self) -> None:
        """Remove all of it; without its facts it is no design any more."""
        (self.path / _FACTS).unlink(missing_ok=True)
        sync_directory(self.path)
        shutil.rmtree(self.path)

    def _write(self, name: str, data: bytes) -> None:
        unfinished = self.path / (name + ".unfinished")
        with unfinished.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        unfinished.rename(self.path / name)
        sync_directory(self.path)


class InUse(Exception):
    """Another process has these designs."""


def locked(root: Path) -> int:
    """Lock a directory of designs for this process; return the descriptor that holds the lock.

    Raises:
        InUse: another process has it.
        OSError: the system refuses.
    """
    descriptor = os.open(root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            raise InUse(f"{root} is in use by another process") from None
        raise
    return descriptor


def found_in(root: Path) -> Iterator[tuple[str, Kept | None]]:
    """Yield the designs that are there: name, and what is kept, ``None`` if it cannot be read.

    What is left of those that were not kept is removed.
    """
    for path in sorted(root.glob(f"*{SUFFIX}")):
        try:
            kept = Kept(**json.loads((path / _FACTS).read_bytes()))
            if DesignFolder(root, kept.name).path != path:
                raise ValueError(f"it names {kept.name!r}")
            yield kept.name, kept
        except FileNotFoundError:
            shutil.rmtree(path, ignore_errors=True)
        except (OSError, ValueError, TypeError) as error:
            _LOG.error("a design cannot be read: %s: %s", path, error)
            yield unquote(path.name.removesuffix(SUFFIX)), None
