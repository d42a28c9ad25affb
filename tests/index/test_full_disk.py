"""A disk that takes nothing more: no row is lost or wrong, and the index goes on by itself.

The limit of a process for the size of its files stands for the disk: it can be changed while the
process runs.
"""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

import uprmc.index.tree.file as tree_file
from interop.server_process import ServerProcess, start_uprmc
from interop.waiting import wait_until
from tests.index.running import BY_CITY, IndexServer, cities, index_server, store
from tests.index.test_store_histories import KEYS, Histories
from uprmc.index.errors import IndexDamaged
from uprmc.index.tree import IndexFile, Room
from uprmc.index.tree.disk import OsDisk

FAILED = "event.index_failed"
SETTINGS = {"index.update_interval_s": "0"}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[ServerProcess]:
    with start_uprmc(tmp_path / "node", "--vbuckets", "8") as server:
        yield server


def limit(server: IndexServer, size: int) -> None:
    """Let no file of the index grow beyond this many bytes."""
    _, hard = resource.prlimit(server.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (size, hard))


def no_limit(server: IndexServer) -> None:
    limit(server, resource.prlimit(server.pid, resource.RLIMIT_FSIZE)[1])


def index_size(data: Path) -> int:
    return max(path.stat().st_size for path in data.rglob("*.index"))


def lines_of(data: Path, text: str) -> list[str]:
    return [line for line in data.with_suffix(".log").read_text().splitlines() if text in line]


def test_an_index_that_cannot_write_shows_sound_rows_and_goes_on_when_there_is_room(
    node: ServerProcess, tmp_path: Path
) -> None:
    data = tmp_path / "index"
    with index_server(data, node.upr, settings=SETTINGS) as server:
        views = server.views
        views.put("d", BY_CITY)
        store(node, cities(range(200)))
        assert views.count() == 200
        wait_until(lambda: views.info()["headers_written"])
        limit(server, index_size(data))
        store(node, cities(range(200, 250)))
        views.until("it has failed more than once", lambda info: info.get("faults", 0) > 2)
        assert "File too large" in views.info()["error"]
        for _ in range(20):
            assert len(views.ids(stale="ok")) in (200, 250)
        assert views.metric("uprmc_index_faulty") == 1
        assert views.metric("uprmc_index_faults_total") > 2
        no_limit(server)
        views.until("it is well", lambda info: not info["error"])
        assert views.count() == 250
        assert views.metric("uprmc_index_faulty") == 0
        assert len(lines_of(data, FAILED)) == 1
        assert len(lines_of(data, "event.index_works_again")) == 1
        assert not lines_of(data, "Traceback")
        server.stop()
    with index_server(data, node.upr, settings=SETTINGS) as server:
        assert server.views.count() == 250


@pytest.mark.parametrize("memory", ["1MiB", "64MiB"])
def test_a_first_build_without_room_begins_again_until_there_is_room(
    node: ServerProcess, tmp_path: Path, memory: str
) -> None:
    """With little memory there is no room for rows that are to be sorted, else for the trees."""
    data = tmp_path / "index"
    store(node, cities(range(3_000)))
    settings = {**SETTINGS, "index.sort_bytes": memory, "index.batch_changes": "100"}
    with index_server(data, node.upr, settings=settings) as server:
        limit(server, 30_000)
        views = server.views
        views.put("d", BY_CITY)
        views.until("it has failed more than once", lambda info: info.get("faults", 0) > 2)
        for _ in range(5):
            answer = views.query(stale="false", reduce="false", connection_timeout="200")
            if answer.status == 200:  # it is all in memory
                assert len(answer.body["rows"]) == 3_000
            else:
                assert answer.body["error"] in ("unavailable", "timeout")
        no_limit(server)
        assert views.count() == 3_000
        views.until("it is well", lambda info: not info["error"])
        assert len(lines_of(data, FAILED)) == 1
        assert not lines_of(data, "Traceback")


class _Full(OsDisk):
    """A disk without room for files whose names end so, or for none while it is empty."""

    suffix = "nothing"

    def write_at(self, offset: int, data: bytes) -> None:
        if str(self._path).endswith(self.suffix):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
        super().write_at(offset, data)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Histories]:
    monkeypatch.setattr(tree_file, "OsDisk", _Full)
    monkeypatch.setattr(_Full, "suffix", "nothing")
    machine = Histories()
    yield machine
    monkeypatch.setattr(_Full, "suffix", "nothing")
    machine.teardown()


def compact(machine: Histories) -> None:
    machine.compact()
    while machine.copying:
        machine.work()


def test_a_compaction_without_room_leaves_the_file_as_it_is(
    machine: Histories, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    kept = machine.store
    machine.change(0, [(key, 1) for key in KEYS], 100, header=True)
    monkeypatch.setattr(_Full, "suffix", ".unfinished")
    compact(machine)
    compact(machine)
    assert (kept.compacting.done, kept.compacting.failed) == (0, 2)
    assert "No space left" in str(kept.sizes()["compaction_error"])
    assert [record.getMessage() for record in caplog.records if "No space" in record.message] == [
        f"an index file is not compacted: {kept.compacting.error}"
    ]
    assert [path.suffix for path in machine.path.iterdir()] == [".index"]
    machine.change(1, [(key, 2) for key in KEYS], 100, header=True)
    machine.rows_are_those_of_where_it_stands()
    monkeypatch.setattr(_Full, "suffix", "nothing")
    compact(machine)
    assert (kept.compacting.done, kept.sizes()["compaction_error"]) == (1, "")
    machine.rows_are_those_of_where_it_stands()


def test_changes_that_came_since_and_find_no_room_in_the_copy_end_the_compaction(
    machine: Histories, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.change(0, [(key, 1) for key in KEYS], 100, header=True)
    machine.compact()  # the copy is there
    monkeypatch.setattr(_Full, "suffix", ".unfinished")
    machine.change(1, [(key, 3) for key in KEYS], 100)
    while machine.copying:
        machine.work()
    assert (machine.store.compacting.done, machine.store.compacting.failed) == (0, 1)
    assert [path.suffix for path in machine.path.iterdir()] == [".index"]
    machine.rows_are_those_of_where_it_stands()


def test_a_header_that_finds_no_room_is_written_later_or_leaves_the_one_before(
    machine: Histories, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.change(0, [(key, 1) for key in KEYS], 100, header=True)
    stands = machine.stands(0)
    machine.change(0, [(key, 2) for key in KEYS], 100)
    monkeypatch.setattr(_Full, "suffix", ".index")
    for _ in range(2):
        with pytest.raises(OSError, match="No space left"):
            machine.store.write_header()
        machine.rows_are_those_of_where_it_stands()  # read without being on disk
    monkeypatch.setattr(_Full, "suffix", "nothing")
    machine.store.write_header()
    machine.crash()
    assert machine.stands(0) == stands + len(KEYS)
    machine.rows_are_those_of_where_it_stands()


def test_an_index_with_a_block_that_cannot_be_read_is_built_again(
    node: ServerProcess, tmp_path: Path
) -> None:
    """Its header is sound, so it is found out when the block is needed."""
    data = tmp_path / "index"
    store(node, cities(range(300)))
    with index_server(data, node.upr) as server:
        server.views.put("d", BY_CITY)
        assert server.views.count() == 300
        server.stop()
    (path,) = data.rglob("*.index")
    content = bytearray(path.read_bytes())
    content[60:1_000] = bytes(940)  # in the id tree, which comes first
    path.write_bytes(content)
    with index_server(data, node.upr, settings=SETTINGS) as server:
        assert len(server.views.ids(stale="ok")) == 300
        store(node, cities(range(310), city="new"))
        rows = server.views.rows()
        assert {row["key"] for row in rows} == {"new"}
        assert len(rows) == 310
        assert len(lines_of(data, "event.index_damaged")) == 1
        assert not lines_of(data, "Traceback")


def test_a_block_that_only_readers_need_is_found_by_them_and_the_index_is_built_again(
    node: ServerProcess, tmp_path: Path
) -> None:
    data = tmp_path / "index"
    store(node, cities(range(2_000)))
    with index_server(data, node.upr) as server:
        server.views.put("d", BY_CITY)
        assert server.views.count() == 2_000
        server.stop()
    (path,) = data.rglob("*.index")
    damage(path, 1)
    with index_server(data, node.upr, settings=SETTINGS) as server:
        views = server.views
        views.until("it is ready", lambda info: info["state"] == "ready")
        damaged = views.query(reduce="false", stale="ok")
        assert (damaged.status, damaged.body["error"]) == (500, "unreadable")
        assert "built again" in damaged.body["reason"]
        views.until("it has a new file", lambda info: info["faults"])
        rows = views.rows()
        assert [row["key"] for row in rows].count("c3") == 286
        assert len(lines_of(data, "event.index_damaged")) == 1
        assert not lines_of(data, "Traceback")


def test_a_block_that_only_a_compaction_needs_is_found_by_it(machine: Histories) -> None:
    machine.change(0, [(b"%d" % number, number) for number in range(2_000)], 9_999, header=True)
    machine.store.close(orderly=True)
    (path,) = machine.path.glob("*.index")
    damage(path, 1)
    machine.store = machine.opened()
    machine.store.begin_compaction()
    machine.work()
    with pytest.raises(IndexDamaged, match="checksum"):
        machine.work()
    assert machine.store.compacting.failed == 1


def room_of(most: int = 0, reserve: int = 0, *, used: int = 0, disk: int = 10**9) -> Room:
    """Return the room of files that have `used` bytes, on a disk of which twice that is full."""
    return Room(
        Path(),
        most,
        reserve,
        sizes=lambda root: used,
        disk=lambda root: (disk, disk - 2 * used),
    )


def test_index_files_grow_up_to_their_limit_and_not_one_byte_more() -> None:
    used = 400
    room = Room(Path(), 1_000, sizes=lambda root: used, disk=lambda root: (10**9, 10**9))
    room.take(600)
    used = 1_000
    for _ in range(2):
        with pytest.raises(OSError, match=r"index\.disk_bytes"):
            room.take(1)
    used = 700  # another file is gone
    room.take(300)
    used = 1_000
    with pytest.raises(OSError, match=r"index\.disk_bytes"):
        room.take(1)


def test_files_without_a_name_count_until_they_are_gone() -> None:
    room = room_of(1_000)
    room.take(900, unnamed=True)
    with pytest.raises(OSError, match=r"index\.disk_bytes"):
        room.take(101)
    room.take(100)
    room.give_back(900)
    room.take(1_000)


@pytest.mark.parametrize(
    ("disk", "reserve", "left"), [(10_000, 500, 500), (10_000, 5_000, 1_000), (10_000, 0, 0)]
)
def test_the_reserve_of_the_disk_is_left_to_others(disk: int, reserve: int, left: int) -> None:
    room = room_of(reserve=reserve, used=2_000, disk=disk)
    free = disk - 4_000
    room.take(free - left)
    with pytest.raises(OSError, match=r"index\.disk_reserve"):
        room.take(free - left + 1)


def test_a_file_takes_room_for_what_it_grows_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []
    monkeypatch.setattr(Room, "take", lambda room, size, unnamed=False: taken.append(size))
    disk = OsDisk(tmp_path / "f", create=True)
    disk.write_at(0, bytes(10))
    disk.write_at(2, bytes(4))
    disk.write_at(8, bytes(4))
    disk.truncate(5)
    disk.write_at(5, bytes(1))
    disk.close()
    disk = OsDisk(tmp_path / "f")
    disk.write_at(6, bytes(1))
    disk.close()
    assert taken == [10, 2, 1, 1]


def test_a_design_that_grows_stands_still_at_the_limit_until_another_is_deleted(
    node: ServerProcess, tmp_path: Path
) -> None:
    data = tmp_path / "index"
    settings = {**SETTINGS, "index.disk_bytes": "400KiB"}
    with index_server(data, node.upr, settings=settings) as server:
        views = server.views
        store(node, cities(range(1_000)))
        views.put("other", BY_CITY)
        assert views.count(view="other/by_city") == 1_000
        views.put("d", BY_CITY)
        assert views.count() == 1_000
        firsts = iter(range(1_000, 1_000_000, 100))

        def has_failed() -> bool:
            first = next(firsts)  # a few at a time: the other's room has to do for what waits then
            store(node, cities(range(first, first + 100), city="c1"))
            return "index.disk_bytes" in views.info()["error"]

        wait_until(has_failed)
        assert sum(path.stat().st_size for path in data.rglob("*.index")) <= 400 * 1024
        assert len(views.ids(stale="ok")) >= 1_000
        assert views.ask("DELETE", "/_design/other").status == 200
        views.until("it goes on", lambda info: not info["error"])
        assert views.count() > 1_000


def damage(path: Path, tree: int) -> None:
    """Make a leaf of a tree unreadable; 0 = of the id tree. Roots are looked at with headers."""
    file = IndexFile.open(path)
    assert file.header is not None
    root = file.header.roots[tree]
    assert root is not None
    leaf = file.read(root, file.number).pointers[1]  # type: ignore[union-attr]
    file.close()
    content = bytearray(path.read_bytes())
    content[leaf.offset + leaf.size // 2] ^= 1
    path.write_bytes(content)
