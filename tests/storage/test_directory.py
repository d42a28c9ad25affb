"""Opening a data directory: made, guarded, recognised, or refused in one line that helps."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import lmdb
import pytest

from tests.contracts.store_values import by_seq, live, write
from tests.storage.processes import ROOT, claim, python_command, run_python
from uprmc.config import StorageSettings
from uprmc.errors import StoreRefused, StoreTaken
from uprmc.storage.directory import GUARD_FILE, PLACE_FILE, open_directory
from uprmc.storage.layout import FORMAT_VERSION, Identity
from uprmc.storage.lmdb_files import DATA_FILE


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data"


def refusal(path: Path, vbuckets: int | None = None) -> str:
    """Open `path`, which must be refused, and return the reason."""
    with pytest.raises(StoreRefused) as caught:
        open_directory(path, uuid=1, vbuckets=vbuckets)
    text = str(caught.value)
    assert "\n" not in text
    assert str(path) in text
    return text


def test_an_absent_directory_is_made_for_this_user_only(tmp_path: Path) -> None:
    path = tmp_path / "not" / "yet" / "there"
    open_directory(path, uuid=1).close()
    assert path.stat().st_mode & 0o777 == 0o700
    assert (path / DATA_FILE).stat().st_mode & 0o077 == 0


def test_the_directory_keeps_the_name_it_got_when_it_was_made(path: Path) -> None:
    store = open_directory(path, uuid=0xFEED)
    assert store.identity() == Identity(FORMAT_VERSION, 1024, 0xFEED)
    store.close()
    store = open_directory(path, uuid=0xBAD)
    assert store.identity().uuid == 0xFEED
    store.close()


def test_the_number_of_vbuckets_is_fixed_when_data_is_made(path: Path) -> None:
    open_directory(path, uuid=1, vbuckets=16).close()
    text = refusal(path, vbuckets=64)
    assert "16 vBuckets and 64 are asked for" in text
    for asked in (16, None):
        store = open_directory(path, uuid=1, vbuckets=asked)
        assert store.identity().vbuckets == 16
        store.close()


def test_a_directory_in_use_by_this_process_is_refused(path: Path) -> None:
    store = open_directory(path, uuid=1)
    assert f"in use by another uprmc process (pid {os.getpid()})" in refusal(path)
    store.commit(write(live(b"k", 1)))
    store.close()
    open_directory(path, uuid=1).close()


@pytest.mark.crash
def test_a_directory_in_use_by_another_process_is_refused_until_that_one_is_gone(
    path: Path,
) -> None:
    code = """
    import sys
    from pathlib import Path
    from uprmc.storage.directory import open_directory

    store = open_directory(Path(sys.argv[1]), uuid=1)
    print("open", flush=True)
    sys.stdin.read()
    """
    with subprocess.Popen(
        python_command(code, str(path)),
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "open\n"
        assert f"in use by another uprmc process (pid {other.pid})" in refusal(path)
        other.kill()
    open_directory(path, uuid=1).close()


def test_a_newer_format_is_refused(path: Path) -> None:
    store = open_directory(path, uuid=1)
    newer = FORMAT_VERSION + 1
    claim(store, Identity(newer, 1024, 1))
    store.close()
    expected = f"written by a newer uprmc (format {newer}, this one knows up to {FORMAT_VERSION})"
    assert expected in refusal(path)


def test_a_file_in_place_of_the_directory_is_refused(path: Path) -> None:
    path.write_bytes(b"text")
    assert "is not a directory" in refusal(path)
    assert path.read_bytes() == b"text"
    assert "is not a directory" in refusal(path / "below")


def test_a_directory_of_somebody_else_is_refused_and_left_as_it_is(path: Path) -> None:
    path.mkdir()
    (path / "letters.txt").write_text("dear all")
    assert "'letters.txt'" in refusal(path)
    assert [entry.name for entry in path.iterdir()] == ["letters.txt"]


def test_an_empty_directory_and_a_mount_point_are_fine(path: Path) -> None:
    (path / "lost+found").mkdir(parents=True)
    (path / ".keep").touch()
    open_directory(path, uuid=1).close()


def test_other_files_beside_a_store_do_not_matter(path: Path) -> None:
    open_directory(path, uuid=1).close()
    (path / "notes.txt").touch()
    open_directory(path, uuid=1).close()


def test_a_start_that_was_cut_off_before_the_store_was_made_can_be_repeated(path: Path) -> None:
    path.mkdir()
    (path / GUARD_FILE).write_text("123\n")
    (path / DATA_FILE).touch()
    store = open_directory(path, uuid=3, vbuckets=8)
    assert store.identity() == Identity(FORMAT_VERSION, 8, 3)
    store.close()


def test_an_lmdb_file_of_another_program_is_refused_and_left_as_it_is(path: Path) -> None:
    path.mkdir()
    with lmdb.open(str(path), max_dbs=1) as environment, environment.begin(write=True) as txn:
        txn.put(b"theirs", b"1")
    before = (path / DATA_FILE).read_bytes()
    assert "another program" in refusal(path)
    assert (path / DATA_FILE).read_bytes() == before


@pytest.mark.parametrize(
    "damage",
    [b"not an LMDB file at all", b"\0" * 40_000, b"\xff" * 8_192],
    ids=["text", "zeros", "ones"],
)
def test_a_damaged_file_is_refused(path: Path, damage: bytes) -> None:
    open_directory(path, uuid=1).close()
    (path / DATA_FILE).write_bytes(damage)
    text = refusal(path)
    assert "is damaged" in text
    assert "restore a backup" in text
    assert (path / DATA_FILE).read_bytes() == damage


def test_a_directory_that_may_not_be_written_is_refused(path: Path) -> None:
    path.mkdir()
    (path / GUARD_FILE).mkdir()
    assert "cannot be used" in refusal(path)


def test_a_refused_directory_is_not_left_locked(path: Path) -> None:
    open_directory(path, uuid=1, vbuckets=16).close()
    refusal(path, vbuckets=32)
    open_directory(path, uuid=1, vbuckets=16).close()


def test_a_copied_directory_and_a_moved_one_have_what_the_first_had(path: Path) -> None:
    store = open_directory(path, uuid=5)
    store.commit(write(live(b"k", 1)))
    store.close()
    copy, moved = path.with_name("copy"), path.with_name("moved")
    shutil.copytree(path, copy)
    path.rename(moved)
    stores = [open_directory(place, uuid=1) for place in (copy, moved)]
    for store in stores:
        view = store.view()
        assert by_seq(view) == [(b"k", 1)]
        view.close()
        store.close()


# --- what was a store once, and whose it is -------------------------------------------------------


@pytest.mark.parametrize("accident", ["gone", "empty", "as LMDB makes it"])
def test_a_directory_whose_data_are_gone_is_refused_unless_it_is_meant(
    path: Path, accident: str
) -> None:
    open_directory(path, uuid=1).close()
    (path / DATA_FILE).unlink()
    if accident == "empty":
        (path / DATA_FILE).touch()
    elif accident != "gone":
        lmdb.open(str(path)).close()
    text = refusal(path)
    assert "a node has used" in text
    assert "--start-empty" in text
    assert (path / DATA_FILE).exists() == (accident != "gone"), "nothing was made"
    store = open_directory(path, uuid=2, settings=StorageSettings(start_empty=True))
    assert store.identity().uuid == 2
    store.close()
    open_directory(path, uuid=3).close()


@pytest.mark.parametrize("beside", [b"", b"-5", b"\0\xff", b"9" * 100])
def test_a_file_beside_that_says_nothing_still_says_that_there_was_a_store(
    path: Path, beside: bytes
) -> None:
    open_directory(path, uuid=1).close()
    (path / DATA_FILE).unlink()
    (path / PLACE_FILE).write_bytes(beside)
    assert "a node has used" in refusal(path)


def test_the_index_of_a_store_that_is_gone_is_no_strangers_file(path: Path) -> None:
    open_directory(path, uuid=1).close()
    (path / "index").mkdir()
    (path / DATA_FILE).unlink()
    assert "--start-empty" in refusal(path)
    open_directory(path, uuid=2, settings=StorageSettings(start_empty=True)).close()


@pytest.mark.parametrize("name", [DATA_FILE, PLACE_FILE])
def test_a_pipe_in_the_place_of_a_file_does_not_hang_the_start(path: Path, name: str) -> None:
    open_directory(path, uuid=1).close()
    (path / name).unlink()
    os.mkfifo(path / name)
    if name == DATA_FILE:
        assert "is no regular file" in refusal(path)
    else:
        open_directory(path, uuid=1).close()


def test_a_start_that_never_came_to_a_store_may_be_repeated(path: Path) -> None:
    path.mkdir()
    (path / GUARD_FILE).touch()
    (path / "lock.mdb").touch()
    open_directory(path, uuid=1).close()


def test_the_process_that_opened_a_directory_before_commits_nothing_any_more(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some file systems grant a lock to everybody."""
    monkeypatch.setattr("fcntl.flock", lambda *_: None)
    first = open_directory(path, uuid=1)
    first.commit(write(live(b"k", 1)))
    first.check_owner()
    code = """
    import fcntl, sys
    from pathlib import Path
    from tests.contracts.store_values import live, write
    from uprmc.storage.directory import open_directory
    fcntl.flock = lambda *_: None
    store = open_directory(Path(sys.argv[1]), uuid=2)
    store.commit(write(live(b"theirs", 2)))
    store.close()
    """
    run_python(code, str(path))
    with pytest.raises(StoreTaken, match="another process"):
        first.check_owner()
    with pytest.raises(StoreTaken):
        first.commit(write(live(b"ours", 2)))
    view = first.view()
    assert by_seq(view) == [(b"k", 1), (b"theirs", 2)]
    view.close()
    first.close()
