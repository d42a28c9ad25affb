"""What is no regular file is refused at once, whoever opens it."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from uprmc.backup.manifest import read_manifest
from uprmc.backup.repository import RUN_FILE, read_run
from uprmc.columnar.errors import BackupDamaged, BadFile
from uprmc.errors import ConfigError, StoreRefused
from uprmc.index.tree.disk import OsDisk
from uprmc.jobs.files import sha256_of
from uprmc.jobs.journal import Journal
from uprmc.login.users_file import read_users
from uprmc.regular import NotRegular, open_regular, read_regular
from uprmc.storage.directory import GUARD_FILE, PLACE_FILE, locked, number_beside
from uprmc.storage.lmdb_pages import check_pages


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


KINDS: dict[str, Callable[[Path], None]] = {
    "pipe": lambda path: os.mkfifo(path),
    "directory": lambda path: path.mkdir(),
    "socket": _socket,
    "device": lambda path: path.symlink_to("/dev/zero"),
}


@pytest.fixture(params=KINDS)
def strange(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "strange"
    KINDS[request.param](path)
    return path


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_RDWR, os.O_RDWR | os.O_CREAT])
def test_it_is_not_opened(strange: Path, flags: int) -> None:
    with pytest.raises(NotRegular, match="Not a regular file"):
        open_regular(strange, flags)


def test_a_file_is_read_up_to_what_is_wanted(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    assert read_regular(path) == b"0123456789"
    assert read_regular(path, 3) == b"012"
    with pytest.raises(FileNotFoundError):
        read_regular(tmp_path / "none")
    os.close(open_regular(tmp_path / "new", os.O_RDWR | os.O_CREAT))
    assert (tmp_path / "new").read_bytes() == b""


#: What opens a file of a directory of ours, given its path, and how it refuses.
OPENERS: dict[str, tuple[str, Callable[[Path], object], type[Exception]]] = {
    "index file": ("d.1.index", OsDisk, NotRegular),
    "index file, to be read": ("d.1.index", lambda path: OsDisk(path, write=False), NotRegular),
    "users": ("users", lambda path: read_users(str(path)), ConfigError),
    "store": ("data.mdb", check_pages, NotRegular),
    "lock of the store": (GUARD_FILE, lambda path: locked(path.parent), StoreRefused),
    "manifest": ("manifest.json", read_manifest, BackupDamaged),
    "digest": ("part", sha256_of, NotRegular),
    "journal": ("journal", lambda path: Journal(path, {}), BadFile),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("opener", OPENERS)
def test_whoever_opens_it_refuses_it(opener: str, kind: str, tmp_path: Path) -> None:
    name, opens, refusal = OPENERS[opener]
    KINDS[kind](tmp_path / name)
    with pytest.raises(refusal, match=r"(?i)not a regular file|no regular file|too large|larger"):
        opens(tmp_path / name)


@pytest.mark.parametrize("kind", KINDS)
def test_where_nothing_can_be_read_there_is_nothing(kind: str, tmp_path: Path) -> None:
    KINDS[kind](tmp_path / PLACE_FILE)
    KINDS[kind](tmp_path / RUN_FILE)
    assert number_beside(tmp_path) == -1
    assert read_run(tmp_path) is None
