"""The store on LMDB: the contract, its file's limits, and what damage looks like."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from pathlib import Path
from random import Random

import lmdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.contents import change_of
from tests.contracts.store_contract import StoreContract
from tests.contracts.store_values import (
    by_id,
    by_seq,
    contents,
    header,
    live,
    tombstone,
    write,
)
from tests.storage.processes import run_python
from uprmc.config import StorageSettings
from uprmc.errors import StoreCorrupt, StoreError, StoreFull, StoreMapFull
from uprmc.model import Item
from uprmc.record import RECORD_OVERHEAD_BYTES
from uprmc.storage import layout, segments
from uprmc.storage.directory import open_directory
from uprmc.storage.interface import CommitBatch, Store, StoreView
from uprmc.storage.layout import FORMAT_VERSION, Identity
from uprmc.storage.lmdb_files import DATA_FILE, LmdbFiles, freed_by_newest
from uprmc.storage.lmdb_store import LmdbStore

MIB = 1 << 20


class TestLmdbStore(StoreContract):
    """The contract, on files; commits are not synced, to be gentle to the device."""

    def create(self, path: Path) -> Store:
        """Return a store in a new directory."""
        self.path = path
        return open_directory(path, uuid=1, sync=False)

    def reopen(self, store: Store) -> Store:
        """Open the directory again."""
        store.close()
        return open_directory(self.path, uuid=2, sync=False)


class TestSyncedLmdbStore(TestLmdbStore):
    """The contract once more, with every commit forced to the device, as in production."""

    def create(self, path: Path) -> Store:
        """Return a store in a new directory."""
        self.path = path
        return open_directory(path, uuid=1)


def small_store(path: Path, map_max: int = 64 * MIB) -> LmdbStore:
    """Return a store whose map is full very soon."""
    settings = StorageSettings(map_initial=MIB, map_max=map_max)
    return open_directory(path, uuid=1, settings=settings, sync=False)


# --- growing ---


def test_a_full_map_changes_nothing_and_grows_as_often_as_it_must(tmp_path: Path) -> None:
    store, random, grown = small_store(tmp_path), Random(3), 0
    expected: dict[bytes, tuple[int, bytes]] = {}
    for number in range(60):
        keys = random.sample(range(400), 60)
        first = number * 100
        items = [
            live(b"key-%d" % key, first + at, random.randbytes(random.randint(0, 60_000)))
            for at, key in enumerate(keys, start=1)
        ]
        while True:
            try:
                store.commit(write(*items))
                break
            except StoreMapFull:
                view = store.view()
                assert dict(by_seq(view)) == {key: seqno for key, (seqno, _) in expected.items()}
                view.close()
                assert store.grow()
                grown += 1
        expected.update({item.key: (item.seqno, item.value or b"") for item in items})
    view = store.view()
    stored = {item.key: (item.seqno, item.value) for item in view.changes_after(0, 0)}
    view.close()
    assert stored == expected
    assert grown >= 5
    assert store.usage().map_bytes == MIB << grown
    store.close()


def test_a_store_that_has_grown_opens_with_room_for_its_file(tmp_path: Path) -> None:
    store = small_store(tmp_path)
    for _ in range(3):
        assert store.grow()
    store.commit(write(live(b"k", 1, bytes(3 * MIB))))
    store.close()
    store = small_store(tmp_path)
    assert store.usage().map_bytes > store.usage().file_bytes
    store.commit(write(live(b"j", 2)))
    store.close()


def test_the_map_stops_growing_at_its_limit_and_the_store_stays_open(tmp_path: Path) -> None:
    store = small_store(tmp_path, map_max=3 * MIB)
    assert store.grow()
    assert store.grow()
    assert store.usage().map_bytes == 3 * MIB
    with pytest.raises(StoreFull, match=r"storage\.map_max"):
        store.grow()
    store.commit(write(live(b"k", 1)))
    store.close()


def test_a_store_opens_and_keeps_working_with_little_address_space(tmp_path: Path) -> None:
    printed = run_python(
        """
        import resource, sys
        from pathlib import Path
        from tests.contracts.store_values import by_seq, live, write
        from uprmc.errors import StoreFull
        from uprmc.storage.directory import open_directory

        in_use = int(Path("/proc/self/statm").read_text().split()[0]) * 4096
        resource.setrlimit(resource.RLIMIT_AS, (in_use + (300 << 20),) * 2)
        store = open_directory(Path(sys.argv[1]), uuid=1)
        print(store.usage().map_bytes)
        store.commit(write(live(b"a", 1)))
        try:
            store.grow()
        except StoreFull as error:
            print(error)
        store.commit(write(live(b"a", 2)))
        print(by_seq(store.view()))
        """,
        str(tmp_path / "data"),
    )
    map_bytes, refusal, stored = printed.splitlines()
    assert int(map_bytes) == 256 * MIB
    assert "address space" in refusal
    assert stored == "[(b'a', 2)]"


# --- a full device ---


FILL = """
import resource, sys
from pathlib import Path
from tests.contracts.store_values import by_seq, live, write
from uprmc.errors import StoreFull
from uprmc.storage.directory import open_directory

store = open_directory(Path(sys.argv[1]), uuid=1)
store.commit(write(live(b"a", 1)))
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), hard))
batch = write(*[live(b"k%d" % n, n, bytes([n % 251]) * int(sys.argv[3])) for n in range(2, 900)])
for _ in range(3):
    try:
        store.commit(batch)
    except StoreFull as error:
        print("full")
    assert by_seq(store.view()) == [(b"a", 1)]
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
store.commit(batch)
assert [seqno for _, seqno in by_seq(store.view())] == list(range(1, 900))
store.close()
store = open_directory(Path(sys.argv[1]), uuid=1)
assert [seqno for _, seqno in by_seq(store.view())] == list(range(1, 900))
"""


@pytest.mark.parametrize("limit", [128 * 1024, 300_001, 256 * 4096])
@pytest.mark.parametrize("value_bytes", [1_500, 20_000])
def test_a_full_device_refuses_a_commit_until_there_is_room(
    tmp_path: Path, limit: int, value_bytes: int
) -> None:
    printed = run_python(FILL, str(tmp_path / "data"), str(limit), str(value_bytes))
    assert printed.split() == ["full"] * 3


def test_an_io_error_on_a_device_with_room_is_not_taken_for_a_full_one(tmp_path: Path) -> None:
    store = small_store(tmp_path)
    error = lmdb.Error("mdb_txn_commit")
    error.code = errno.EIO  # as LMDB's own errors have it
    assert type(store._files.failure(error)) is StoreError
    store.commit(write(live(b"k", 1)))
    store.close()


# --- damage ---


def damaged_files(path: Path) -> LmdbFiles:
    """Open what is left of a directory."""
    identity = Identity(FORMAT_VERSION, 1024, 1)
    return LmdbFiles(path, map_initial=MIB, map_max=64 * MIB, sync=False, fresh=identity)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.99])
def test_a_file_that_was_cut_short_is_refused_and_not_touched(tmp_path: Path, share: float) -> None:
    printed = run_python(
        """
        import os, sys
        from pathlib import Path
        from tests.contracts.store_values import live, write
        from tests.storage.test_lmdb_store import damaged_files
        from uprmc.errors import StoreCorrupt
        from uprmc.storage.directory import open_directory

        path = Path(sys.argv[1])
        store = open_directory(path, uuid=1, sync=False)
        for first in (1, 1000, 2000):
            store.commit(write(*[live(b"%d" % n, first + n, bytes(3000)) for n in range(900)]))
        store.commit(write(live(b"last", 9000)))
        store.close()
        size = int(os.path.getsize(path / "data.mdb") * float(sys.argv[2]))
        os.truncate(path / "data.mdb", size)
        for _ in range(2):
            try:
                damaged_files(path)
            except StoreCorrupt:
                print("refused")
            assert os.path.getsize(path / "data.mdb") == size
        """,
        str(tmp_path),
        str(share),
    )
    assert printed.split() == ["refused", "refused"]


def test_a_file_that_lmdb_left_a_little_short_is_opened(tmp_path: Path) -> None:
    store = small_store(tmp_path)
    store.commit(write(live(b"k", 1, bytes(200_000))))
    store.commit(CommitBatch(reset_all=True))
    store.commit(write(live(b"a", 2)))
    store.close()
    file = tmp_path / DATA_FILE
    size = file.stat().st_size
    environment = lmdb.open(str(tmp_path), max_dbs=4)
    databases = environment.open_db(layout.META)
    with environment.begin(databases, write=True) as txn:
        txn.put(layout.EXTENT_KEY, layout.pack_extent(size - 4096))
    environment.close()
    os.truncate(file, size - 4096)
    store = small_store(tmp_path)
    assert file.stat().st_size >= size
    view = store.view()
    assert by_id(view) == [(0, b"a", 2)]
    view.close()
    store.close()


def spoil(store: LmdbStore, database: str, key: bytes, data: bytes | None) -> None:
    """Write something wrong behind the store's back."""
    with store._files.env.begin(getattr(store._files.databases, database), write=True) as txn:
        if data is None:
            txn.delete(key)
        else:
            txn.put(key, data)


@pytest.mark.parametrize(
    "data", [b"", b"\x01", bytes(60), b"\x01" * 60, b"\xff" * 60], ids=lambda data: repr(data[:2])
)
def test_records_that_cannot_be_read_back_are_reported_as_such(tmp_path: Path, data: bytes) -> None:
    store = small_store(tmp_path)
    store.commit(write(live(b"k", 1)))
    spoil(store, "by_seq", layout.by_seq_key(0, 1), data)
    view = store.view()
    with pytest.raises(StoreCorrupt):
        view.get(0, b"k")
    with pytest.raises(StoreCorrupt):
        list(view.changes_after(0, 0))
    with pytest.raises(StoreCorrupt):
        list(view.changes_before(0, 1))
    view.close()
    spoil(store, "meta", layout.header_key(0), data)
    view = store.view()
    with pytest.raises(StoreCorrupt):
        view.header(0)
    view.close()
    store.close()


def test_an_index_entry_without_its_record_is_reported(tmp_path: Path) -> None:
    store = small_store(tmp_path)
    store.commit(write(live(b"k", 1)))
    spoil(store, "by_seq", layout.by_seq_key(0, 1), None)
    view = store.view()
    with pytest.raises(StoreCorrupt, match="no record"):
        view.get(0, b"k")
    view.close()
    store.close()


def test_free_space_inside_the_file_is_told(tmp_path: Path) -> None:
    store = small_store(tmp_path)
    store.commit(write(live(b"k", 1, bytes(500_000))))
    assert store.usage().free_bytes < 100_000
    store.commit(write(live(b"k", 2)))
    assert store.usage().free_bytes > 500_000
    store.close()


def roomy_store(path: Path) -> LmdbStore:
    """Return a store that need not grow."""
    settings = StorageSettings(map_initial=64 * MIB)
    return open_directory(path, uuid=1, settings=settings, sync=False)


def test_what_views_pin_is_told_apart_from_free_space(tmp_path: Path) -> None:
    store = roomy_store(tmp_path)
    items = [live(b"%d" % number, number, bytes(3_000)) for number in range(1, 101)]
    store.commit(write(*items))
    view = store.view()
    for number in range(1, 5):
        newer = [
            live(b"%d" % key, number * 100 + key, bytes(3_000 if number % 2 else 300_000))
            for key in range(1, 4)
        ]
        store.commit(write(*newer))
    usage = store.usage()
    assert usage.pinned_bytes > 1_000_000, "what the second and third commit replaced"
    assert usage.used_bytes + usage.free_bytes + usage.pinned_bytes == usage.file_bytes
    later = store.view()
    view.close()
    assert store.usage().pinned_bytes == 0, "the later view reads the newest state"
    store.commit(write(live(b"1", 1_000, bytes(100))))
    assert 300_000 < store.usage().pinned_bytes < 400_000
    later.close()
    assert store.usage().pinned_bytes == 0
    size = store.usage().file_bytes
    for number in range(2_000, 2_003):
        store.commit(write(live(b"1", number, bytes(300_000))))
    assert store.usage().file_bytes == size, "what was pinned is used again"
    store.close()


@pytest.mark.parametrize("commits", [1, 3, 40])
def test_pages_pinned_are_those_that_come_back_when_the_view_is_closed(
    tmp_path: Path, commits: int
) -> None:
    store = roomy_store(tmp_path)
    store.commit(write(*[live(b"%d" % n, n, bytes(2_000)) for n in range(1, 200)]))
    before = store.usage()
    view = store.view()
    for number in range(commits):
        store.commit(write(live(b"%d" % (number % 7), 1_000 + number, bytes(2_000))))
    after = store.usage()
    assert after.pinned_bytes >= commits * 3 * 4_096, "at least a path of pages each"
    assert after.free_bytes <= before.free_bytes + 20 * 4_096
    view.close()
    assert store.usage().free_bytes == after.free_bytes + after.pinned_bytes
    store.close()


def test_a_file_that_is_not_as_expected_pins_nothing(tmp_path: Path) -> None:
    for content in (bytes(8_192), b"\xff" * 8_192):
        (tmp_path / "file").write_bytes(content)
        with (tmp_path / "file").open("rb") as file:
            assert freed_by_newest(file.fileno(), 4_096)[1] == 0


# --- the room that replaced records take ---


def live_bytes(view: StoreView, vbuckets: int) -> int:
    """Return what is stored, without any slack."""
    return sum(len(each) for number in range(vbuckets) for each in view.records_after(number, 0))


@pytest.mark.parametrize("value_bytes", [100, 256, 1_500, 5_000])
def test_overwriting_never_takes_more_than_twice_the_room_of_what_is_there(
    tmp_path: Path, value_bytes: int
) -> None:
    vbuckets, documents, random = 4, 2_000_000 // value_bytes, Random(value_bytes)
    settings = StorageSettings(map_initial=256 * MIB)
    store = open_directory(tmp_path, uuid=1, settings=settings, sync=False)
    seqnos = [0] * vbuckets

    def put(numbers: Iterable[int]) -> None:
        items: list[list[Item]] = [[] for _ in seqnos]
        for number in numbers:
            vbucket = number % vbuckets
            seqnos[vbucket] += 1
            value = bytes(value_bytes)
            items[vbucket].append(live(b"%020d" % number, seqnos[vbucket], value))
        store.commit(
            CommitBatch([change_of(at, header(seqnos[at]), each) for at, each in enumerate(items)])
        )

    put(range(documents))
    for number in range(60):
        put(random.sample(range(documents), documents // 10))
        if number % 10 == 9:
            view = store.view()
            size = live_bytes(view, vbuckets)
            assert size == documents * (20 + value_bytes + RECORD_OVERHEAD_BYTES)
            view.close()
            always = 256 * (value_bytes + 100)
            assert store.usage().used_bytes < 2 * size + always
    store.close()


def test_a_sweep_that_a_view_sees_nothing_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "_STALE_FREE", 0)
    store = roomy_store(tmp_path)
    store.commit(write(*[live(b"%d" % at, at) for at in range(1, 400)]))
    view = store.view()
    expected = contents(view, [0])
    scan = view.changes_after(0, 0)
    seen = [next(scan)]
    for number in range(1, 30):
        first = 1_000 * number
        store.commit(write(*[live(b"%d" % at, first + at) for at in range(1, 400, 2)]))
        seen += [next(scan) for _ in range(3)]
    assert [*seen, *scan] == expected["changes"][0]  # type: ignore[index]
    assert contents(view, [0]) == expected
    view.close()
    with store._files.env.begin() as txn:
        found = txn.stat(store._files.databases.by_seq)["entries"]
        stale = txn.stat(store._files.databases.stale)["entries"]
    assert stale <= 399 / 4 + 1
    assert found < 40, "those that had nothing left are gone"
    store.close()


def test_a_document_that_is_written_all_the_time_leaves_no_trace(tmp_path: Path) -> None:
    store = roomy_store(tmp_path)
    for seqno in range(1, 300):
        store.commit(write(live(b"counter", seqno, b"%d" % seqno)))
    with store._files.env.begin() as txn:
        assert txn.stat(store._files.databases.by_seq)["entries"] == 1
        assert txn.stat(store._files.databases.stale)["entries"] == 0
    store.close()


@pytest.mark.parametrize("count", [1, 2, 63, 64, 65, 200])
def test_a_scan_touches_nothing_behind_its_vbucket(tmp_path: Path, count: int) -> None:
    store = small_store(tmp_path)
    store.commit(write(*[live(b"k%d" % seqno, seqno) for seqno in range(1, count + 1)]))
    store.commit(write(live(b"other", 1), vbucket=1))
    spoil(store, "by_seq", layout.by_seq_key(1, 1), b"nonsense")
    view = store.view()
    assert len(list(view.records_after(0, 0))) == count
    assert len(list(view.records_after(0, count // 2))) == count - count // 2
    assert list(view.records_after(0, count)) == []
    view.close()
    store.close()


# --- the room that dropped tombstones took ---


@settings(max_examples=40, deadline=None)
@given(data=st.data(), sizes=st.sampled_from([[10], [10, 10, 10, 3_000], [700]]))
def test_what_is_dropped_is_gone_and_nothing_else_in_whatever_order(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, sizes: list[int]
) -> None:
    """Some of a vBucket, most of it, all of it; keys in another order than seqnos; twice."""
    store = roomy_store(tmp_path_factory.mktemp("store") / "data")
    names = Random(data.draw(st.integers(0, 9))).sample(range(400), 400)
    items = [
        live(b"k-%03d" % name, seqno, bytes(sizes[seqno % len(sizes)]))
        for seqno, name in enumerate(names, 1)
    ]
    for vbucket in (0, 1, 2):
        store.commit(write(*items, vbucket=vbucket))
    left = items
    for _ in range(2):
        begin = data.draw(st.integers(0, len(left)))
        end = data.draw(st.integers(begin, len(left)))
        step = data.draw(st.sampled_from([1, 2, 5, 60]))
        gone = left[begin:end:step]
        drop = [(item.key, item.seqno) for item in gone] + [(b"no", 3)]
        drop += [(item.key, 999) for item in left if item not in gone][:3]
        store.commit(write(vbucket=1, drop=drop))
        left = [item for item in left if item not in gone]
    view = store.view()
    assert list(view.changes_after(1, 0)) == left
    assert all(view.get(1, item.key) is not None for item in left)
    assert view.get(1, b"no") is None
    assert list(view.changes_after(0, 0)) == list(view.changes_after(2, 0)) == items
    assert view.count() == 2 * len(items) + len(left)
    view.close()
    store.close()


@pytest.mark.acceptance("X03")
def test_dropped_tombstones_give_their_room_back_at_once(tmp_path: Path) -> None:
    store = roomy_store(tmp_path / "data")
    before = store.usage().used_bytes
    for vbucket in range(4):
        store.commit(
            write(*[tombstone(b"k-%d" % at, at) for at in range(1, 5_001)], vbucket=vbucket)
        )
    full = store.usage().used_bytes
    for vbucket in range(4):
        drop = [(b"k-%d" % at, at) for at in range(1, 5_000)]
        store.commit(write(vbucket=vbucket, drop=drop))
    assert store.usage().used_bytes - before < (full - before) // 50
    store.close()
