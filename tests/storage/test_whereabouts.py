"""A data directory knows where it is: copies and older states begin a new history, moves do not."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from uprmc.errors import StoreCorrupt, StoreRefused
from uprmc.storage.directory import (
    PLACE_FILE,
    File,
    StorePlace,
    begin_new_history,
    difference,
    file_at,
    open_directory,
    pack_place,
    unpack_place,
)
from uprmc.storage.interface import CLEAN_MARK, CommitBatch
from uprmc.storage.layout import PLACE_KEY, Identity, pack_identity
from uprmc.storage.lmdb_files import DATA_FILE
from uprmc.storage.lmdb_store import LmdbStore

FILE = File(64_769, 2_252_971, 1_795_516_953_000_000_001)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A directory that was left in order, with the uuid 1."""
    path = tmp_path / "data"
    opened(path, 1)
    return path


def opened(path: Path, uuid: int) -> tuple[int, str, bool]:
    """Open a directory as a start does and leave it in order.

    Returns its uuid, why it began a new history, and whether it had been left in order.
    """
    store = open_directory(path, uuid=uuid)
    found = store.identity().uuid, store.new_history, store.local(CLEAN_MARK) is not None
    store.commit(CommitBatch(local={CLEAN_MARK: b"1"}))
    store.close()
    return found


def copied(path: Path, to: str) -> Path:
    target = path.parent / to
    subprocess.run(["cp", "-a", path, target], check=True)
    return target


@pytest.mark.parametrize(
    ("recorded", "file", "beside", "reason"),
    [
        (StorePlace(FILE, 7, "/data"), FILE, 7, ""),
        (StorePlace(FILE, 7, "/data"), FILE, 6, ""),
        (StorePlace(FILE, 7, "/data"), FILE, 8, "an older state was put back"),
        (StorePlace(FILE, 7, "/data"), FILE, 5, "uprmc.place is not its"),
        (StorePlace(FILE, 1, "/data"), FILE, 0, ""),
        (StorePlace(FILE, 1, "/data"), FILE, -1, "uprmc.place is not its"),
        (StorePlace(FILE, 7, "/data"), FILE._replace(device=1), 7, "it is a copy of /data"),
        (StorePlace(FILE, 7, "/data"), FILE._replace(inode=1), 7, "it is a copy of /data"),
        (StorePlace(FILE, 7, "/data"), FILE._replace(born=1), 7, "it is a copy of /data"),
    ],
)
def test_what_makes_a_directory_another_one(
    recorded: StorePlace, file: File, beside: int, reason: str
) -> None:
    assert difference(recorded, file, beside) == reason


def test_a_place_is_laid_out_as_documented() -> None:
    packed = pack_place(StorePlace(File(1, 2, 3), 4, "/d\udcff"))
    assert packed == b"".join(n.to_bytes(8) for n in (1, 2, 3, 4)) + b"/d\xff"
    assert unpack_place(packed) == StorePlace(File(1, 2, 3), 4, "/d\udcff")
    with pytest.raises(StoreCorrupt):
        unpack_place(packed[:31])


def test_a_directory_that_stays_keeps_its_uuid(path: Path) -> None:
    for uuid in (2, 3, 4):
        assert opened(path, uuid) == (1, "", True)


@pytest.mark.acceptance("C08")
def test_a_moved_directory_keeps_its_uuid(path: Path) -> None:
    moved = path.parent / "elsewhere"
    subprocess.run(["mv", path, moved], check=True)
    assert opened(moved, 2) == (1, "", True)


@pytest.mark.acceptance("C08")
def test_a_copied_directory_begins_a_new_history_once(path: Path) -> None:
    copy = copied(path, "copy")
    assert opened(copy, 2) == (2, f"it is a copy of {path}", False)
    assert opened(copy, 3) == (2, "", True)
    assert opened(path, 4) == (1, "", True)


@pytest.mark.acceptance("C06")
def test_a_directory_that_was_restored_in_its_place_begins_a_new_history(path: Path) -> None:
    """The file system may give the new file the number of the old one: the time tells them."""
    saved = copied(path, "saved")
    opened(path, 2)
    for uuid in (3, 4, 5):
        shutil.rmtree(path)
        subprocess.run(["cp", "-a", saved, path], check=True)
        assert opened(path, uuid) == (uuid, f"it is a copy of {path}", False)


@pytest.mark.acceptance("C06")
def test_an_older_store_in_the_same_file_begins_a_new_history(path: Path) -> None:
    older = (path / DATA_FILE).read_bytes()
    opened(path, 2)
    before = file_at(path / DATA_FILE)
    (path / DATA_FILE).write_bytes(older)
    assert file_at(path / DATA_FILE) == before
    assert opened(path, 3) == (3, "an older state was put back", False)
    assert opened(path, 4) == (3, "", True)


def test_a_directory_without_the_file_beside_it_begins_a_new_history(path: Path) -> None:
    (path / PLACE_FILE).unlink()
    assert opened(path, 2) == (2, f"{PLACE_FILE} is not its", False)


@pytest.mark.parametrize("content", [b"", b"\xff\xff", b"-1\n", b"9" * 40])
def test_nothing_in_the_file_beside_it_makes_a_start_fail(path: Path, content: bytes) -> None:
    (path / PLACE_FILE).write_bytes(content)
    uuid, reason, _ = opened(path, 2)
    assert (uuid, bool(reason)) == (2, True)
    assert opened(path, 3) == (2, "", True)


def test_a_start_that_was_cut_short_between_both_writes_is_no_copy(path: Path) -> None:
    beside = (path / PLACE_FILE).read_bytes()
    opened(path, 2)
    (path / PLACE_FILE).write_bytes(beside)
    assert opened(path, 3) == (1, "", True)


def test_a_directory_of_an_older_version_is_taken_as_it_is(path: Path) -> None:
    store = LmdbStore(path, fresh=Identity(3, 1_024, 1))
    files = store._files

    def age(txn: object) -> None:
        meta = files.databases.meta
        txn.delete(PLACE_KEY, db=meta)  # type: ignore[attr-defined]
        txn.put(b"identity", pack_identity(Identity(3, 1_024, 1))[:20], db=meta)  # type: ignore[attr-defined]

    files.write(age)
    store.close()
    (path / PLACE_FILE).unlink()
    assert opened(path, 2) == (1, "", True)
    assert opened(copied(path, "copy"), 3) == (3, f"it is a copy of {path}", False)


def test_a_history_begins_when_it_is_asked_for(path: Path) -> None:
    begin_new_history(path, 2)
    assert opened(path, 3) == (2, "", False)


def test_a_new_history_needs_a_store(tmp_path: Path) -> None:
    with pytest.raises(StoreRefused, match="holds no uprmc store"):
        begin_new_history(tmp_path, 2)
