"""A file that is larger than memory is not read ahead, but while somebody scans it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from uprmc.storage import lmdb_files
from uprmc.storage.directory import open_directory
from uprmc.storage.interface import CommitBatch, Store

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="only Linux tells what it was advised"
)

#: What the kernel calls a map that is read at random.
RANDOM = "rr"


def flags_of(file: Path) -> set[str]:
    """Return how the kernel treats the map of a file."""
    found: set[str] = set()
    ours = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split()[0] and not line.split()[0].endswith(":"):
            ours = line.endswith(str(file))
        elif ours and line.startswith("VmFlags:"):
            found |= set(line.split()[1:])
    assert found, "it is not mapped"
    return found


@contextmanager
def opened(path: Path) -> Iterator[Store]:
    """A store on LMDB."""
    store = open_directory(path, uuid=1, vbuckets=1, sync=False)
    try:
        yield store
    finally:
        store.close()


@pytest.fixture
def small_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that next to nothing fits into memory."""
    monkeypatch.setattr(lmdb_files, "memory_bytes", lambda: 100)


def test_a_file_that_fits_into_memory_is_read_ahead(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        view = store.view()
        assert view.get(0, b"k") is None
        assert RANDOM not in flags_of(tmp_path / "data.mdb")
        view.close()


@pytest.mark.usefixtures("small_memory")
@pytest.mark.parametrize(
    "scan",
    [
        lambda view: view.changes_after(0, 0),
        lambda view: view.records_after(0, 0),
    ],
)
def test_a_larger_one_only_while_somebody_scans(
    tmp_path: Path, scan: Callable[..., Iterator[object]]
) -> None:
    file = tmp_path / "data.mdb"
    with opened(tmp_path) as store:
        assert RANDOM in flags_of(file)
        reader, scanner = store.view(), store.view()
        reader.get(0, b"k")
        assert RANDOM in flags_of(file)
        list(scan(scanner))
        assert RANDOM not in flags_of(file)
        reader.close()
        assert RANDOM not in flags_of(file)
        scanner.close()
        scanner.close()
        assert RANDOM in flags_of(file)


def test_a_file_that_outgrows_memory_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lmdb_files, "memory_bytes", lambda: 200_000)
    with opened(tmp_path) as store:
        assert RANDOM not in flags_of(tmp_path / "data.mdb")
        for _ in range(2):
            store.commit(CommitBatch(local={b"large": bytes(300_000)}))
        assert RANDOM in flags_of(tmp_path / "data.mdb")


def test_where_the_system_tells_nothing_all_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lmdb_files, "_MAPS", tmp_path / "nowhere")
    monkeypatch.setattr(lmdb_files, "memory_bytes", lambda: 100)
    with opened(tmp_path / "data") as store:
        view = store.view()
        assert list(view.records_after(0, 0)) == []
        view.close()


def test_a_limit_of_the_group_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(lmdb_files, "_CGROUP_LIMITS", (tmp_path / "absent", limit))
    limit.write_text("max\n")
    machine = lmdb_files.memory_bytes()
    limit.write_text("5000000\n")
    assert lmdb_files.memory_bytes() == 5_000_000 < machine
