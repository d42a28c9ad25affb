"""Damage on disk: it is noticed, named once, never served or written on, and healed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import lmdb
import pytest

from tests.contracts.store_values import header, live, tombstone, write
from tests.storage.processes import run_python
from uprmc.errors import StoreCorrupt, StoreRefused
from uprmc.model import SEQNO_MAX, Item
from uprmc.record import pack, seqno_of
from uprmc.storage import layout, segments
from uprmc.storage.check import check_directory
from uprmc.storage.directory import PLACE_FILE, open_directory
from uprmc.storage.interface import CommitBatch, Damaged, DamagedRecords, StoreView, VBucketChange
from uprmc.storage.lmdb_files import DATA_FILE
from uprmc.storage.lmdb_pages import check_pages
from uprmc.storage.lmdb_store import LmdbStore

ITEMS = [live(b"k%d" % seqno, seqno, b"value-%d" % seqno) for seqno in range(1, 9)]
KEYS = [item.key for item in ITEMS]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def store(path: Path) -> Iterator[LmdbStore]:
    """Return a store whose vBucket 0 has eight documents in one segment."""
    store = open_directory(path, uuid=1, sync=False)
    store.commit(write(*ITEMS))
    yield store
    store.close()


def damage(store: LmdbStore, item: Item, *, bit: int = -1, vbucket: int = 0) -> None:
    """Flip a bit of an item's record in its segment."""
    files = store._files
    with files.env.begin(files.databases.by_seq, write=True) as txn:
        cursor = txn.cursor()
        assert cursor.set_range(layout.by_seq_key(vbucket, item.seqno))
        key, segment = cursor.item()
        records = segments.split(segment)
        (place,) = (at for at, each in enumerate(records) if seqno_of(each) == item.seqno)
        begin = len(segment) - sum(map(len, records[place:]))
        at = begin + (bit // 8) % len(records[place])
        flipped = segment[:at] + bytes([segment[at] ^ 1 << bit % 8]) + segment[at + 1 :]
        txn.put(key, flipped)


def all_records(view: StoreView, vbucket: int = 0) -> tuple[list[bytes], list[Damaged]]:
    """Return the keys of what is sound, and what is not."""
    damaged: list[Damaged] = []
    found = [record for portion in view.portions_after(vbucket, 0, damaged) for record in portion]
    return found, damaged


def seqnos(view: StoreView) -> list[int]:
    found, _ = all_records(view)
    return list(map(seqno_of, found))


# --- reading --------------------------------------------------------------------------------------


@pytest.mark.parametrize("bit", [0, 7 * 8, 17 * 8, 24 * 8, 27 * 8, -1])
def test_a_damaged_record_is_never_read_and_others_are(store: LmdbStore, bit: int) -> None:
    """The bits are in the version, the length of the key, the seqno, the key, CAS and value."""
    damage(store, ITEMS[3], bit=bit)
    view = store.view()
    for item in ITEMS:
        if item is not ITEMS[3]:
            assert view.get(0, item.key) == pack(item)
    with pytest.raises(DamagedRecords, match=r"'k4' .*seqno 4"):
        view.get(0, b"k4")
    for reading in (
        lambda: list(view.records_after(0, 0)),
        lambda: list(view.changes_after(0, 3)),
        lambda: list(view.changes_before(0, SEQNO_MAX)),
    ):
        with pytest.raises(DamagedRecords):
            reading()
    assert [item.seqno for item in view.changes_after(0, 4)] == [5, 6, 7, 8]
    assert [item.seqno for item in view.changes_before(0, 3)] == [3, 2, 1]
    found, damaged = all_records(view)
    assert found == [pack(item) for item in ITEMS if item is not ITEMS[3]]
    assert damaged == [Damaged(0, 4, b"k4")]
    assert sum(view.index()) == view.listed(0, found, damaged)
    view.close()


def test_a_damaged_record_is_named_once(store: LmdbStore) -> None:
    damage(store, ITEMS[3])
    view = store.view()
    for _ in range(3):
        with pytest.raises(DamagedRecords):
            view.get(0, b"k4")
    view.close()
    assert store.take_damaged() == [Damaged(0, 4, b"k4")]
    assert store.take_damaged() == []


def test_a_damaged_record_that_is_replaced_is_nobodys_loss(store: LmdbStore) -> None:
    others = [live(b"o%d" % seqno, seqno, bytes(2_000)) for seqno in range(9, 14)]
    store.commit(write(*others, live(b"k4", 20)))  # it has a segment of its own
    damage(store, ITEMS[3])
    view = store.view()
    assert seqnos(view) == [1, 2, 3, 5, 6, 7, 8, 9, 10, 11, 12, 13, 20]
    assert view.get(0, b"k1") == pack(ITEMS[0])
    view.close()
    assert store.take_damaged() == []


def test_a_segment_whose_head_is_damaged_loses_all_its_records(store: LmdbStore) -> None:
    files = store._files
    with files.env.begin(files.databases.by_seq, write=True) as txn:
        cursor = txn.cursor()
        cursor.first()
        key, segment = cursor.item()
        txn.put(key, segment[:9] + b"\x77" + segment[10:])
    view = store.view()
    assert all_records(view) == ([], [Damaged(0, item.seqno, item.key) for item in ITEMS])
    view.close()


def test_a_segment_of_another_vbucket_is_not_taken_for_ones_own(store: LmdbStore) -> None:
    store.commit(write(*ITEMS, vbucket=1))
    files = store._files
    with files.env.begin(files.databases.by_seq, write=True) as txn:
        txn.put(layout.by_seq_key(1, 8), txn.get(layout.by_seq_key(0, 8)))
    view = store.view()
    assert all_records(view, 1)[0] == []
    view.close()


# --- writing on -----------------------------------------------------------------------------------


def test_small_commits_leave_a_damaged_segment_alone(store: LmdbStore) -> None:
    damage(store, ITEMS[3])
    store.commit(write(live(b"new", 9)))
    view = store.view()
    assert seqnos(view) == [1, 2, 3, 5, 6, 7, 8, 9]
    with pytest.raises(DamagedRecords):
        view.get(0, b"k4")
    view.close()


def test_what_is_dropped_from_a_damaged_segment_is_gone(store: LmdbStore) -> None:
    damage(store, ITEMS[3])
    store.commit(write(drop=[(key, seqno) for seqno, key in enumerate(KEYS, 1) if seqno != 8]))
    view = store.view()
    assert seqnos(view) == [8]
    assert view.get(0, b"k4") is None
    assert all_records(view)[1] == []
    view.close()


def test_a_rollback_keeps_what_is_damaged_below_and_drops_what_is_above(store: LmdbStore) -> None:
    damage(store, ITEMS[1])
    damage(store, ITEMS[6])
    store.commit(write(rewind=5))
    view = store.view()
    assert all_records(view) == (
        [pack(item) for item in (ITEMS[0], *ITEMS[2:5])],
        [Damaged(0, 2, b"k2")],
    )
    assert view.get(0, b"k7") is None
    assert view.count() == 5
    view.close()


def test_seqnos_that_are_written_anew_do_not_make_damage_sound(store: LmdbStore) -> None:
    damage(store, ITEMS[3])
    store.commit(write(live(b"other", 6), live(b"more", 9)))
    view = store.view()
    found, damaged = all_records(view)
    assert list(map(seqno_of, found)) == [1, 2, 3, 5, 6, 7, 8, 9]
    assert damaged == [Damaged(0, 4, b"k4")]
    assert sum(view.index()) == view.listed(0, found, damaged)
    view.close()


def test_many_overwrites_go_through_beside_damage(store: LmdbStore) -> None:
    """They sweep stale records out of segments, except of damaged ones."""
    damage(store, ITEMS[3])
    seqno = 9
    for _ in range(40):
        items = [live(b"w%d" % each, seqno + each, bytes(300)) for each in range(60)]
        seqno += 60
        store.commit(write(*items))
    view = store.view()
    assert all_records(view)[1] == [Damaged(0, 4, b"k4")]
    assert len(seqnos(view)) == 7 + 60
    view.close()


# --- healing --------------------------------------------------------------------------------------


def heal(store: LmdbStore, *items: Item) -> None:
    store.commit(CommitBatch([VBucketChange(0, header(8), heal=list(map(pack, items)))]))


def test_that_very_version_heals_a_record(store: LmdbStore) -> None:
    damage(store, ITEMS[3], bit=17 * 8)
    damage(store, ITEMS[5])
    heal(store, ITEMS[3])
    view = store.view()
    assert view.get(0, b"k4") == pack(ITEMS[3])
    assert all_records(view)[1] == [Damaged(0, 6, b"k6")]
    view.close()
    heal(store, ITEMS[5])
    view = store.view()
    assert all_records(view) == (list(map(pack, ITEMS)), [])
    view.close()


@pytest.mark.parametrize(
    "version",
    [
        live(b"k4", 9),
        live(b"k4", 4, b"made up"),
        live(b"k5", 5, b"wrong"),
        live(b"nobody", 4),
        tombstone(b"k4", 3),
    ],
)
def test_another_version_heals_nothing(store: LmdbStore, version: Item) -> None:
    damage(store, ITEMS[3])
    heal(store, version)
    view = store.view()
    assert all_records(view) == (
        [pack(item) for item in ITEMS if item is not ITEMS[3]],
        [Damaged(0, 4, b"k4")],
    )
    view.close()


def test_a_healed_record_is_named_again_when_it_is_damaged_again(store: LmdbStore) -> None:
    for _ in range(2):
        damage(store, ITEMS[3])
        view = store.view()
        all_records(view)
        view.close()
        (found,) = store.take_damaged()
        heal(store, ITEMS[3])
        store.healed(found)


# --- what is not a record -------------------------------------------------------------------------


def opened_and_changed(path: Path, change: Callable[[lmdb.Environment], None]) -> None:
    open_directory(path, uuid=1, sync=False).close()
    with lmdb.open(str(path), max_dbs=5) as env:
        change(env)


@pytest.mark.parametrize(
    ("database", "key"),
    [(b"meta", b"identity"), (b"meta", b"vbucket:\0\0"), (b"meta", b"place"), (b"local", b"=doc")],
)
def test_damaged_facts_make_the_directory_be_refused_in_one_line(
    path: Path, database: bytes, key: bytes
) -> None:
    store = open_directory(path, uuid=1, sync=False)
    store.commit(CommitBatch([VBucketChange(0, header(1))], local={b"doc": b"content"}))
    store.close()

    def flip(env: lmdb.Environment) -> None:
        with env.begin(env.open_db(database), write=True) as txn:
            stored = txn.get(key)
            txn.put(key, stored[:2] + bytes([stored[2] ^ 4]) + stored[3:])

    opened_and_changed(path, flip)
    with pytest.raises(StoreRefused, match=r"data.mdb is damaged \(.*\): restore a backup") as said:
        open_directory(path, uuid=1)
    assert "\n" not in str(said.value)
    assert not check_directory(path).is_sound


def test_indexes_that_do_not_agree_are_noticed(path: Path, store: LmdbStore) -> None:
    files = store._files
    with files.env.begin(files.databases.by_id, write=True) as txn:
        place = txn.pop(b"\0\0k4")
        txn.put(b"\0\0k5x", place)
    view = store.view()
    assert sum(view.index()) != view.listed(0, *all_records(view))
    view.close()
    store.close()
    assert check_directory(path).files[0].damage == ["its indexes do not agree about vBucket 0"]


def test_a_sound_directory_is_checked_without_a_change(path: Path, store: LmdbStore) -> None:
    store.close()
    before = {each.name: each.read_bytes() for each in (path / DATA_FILE, path / PLACE_FILE)}
    found = check_directory(path)
    assert found.is_sound
    assert found.records == len(ITEMS)
    assert {file.name for file in found.files} == {DATA_FILE, "lock.mdb", PLACE_FILE}
    assert before == {name: (path / name).read_bytes() for name in before}


def test_a_directory_in_use_is_not_checked(path: Path, store: LmdbStore) -> None:
    with pytest.raises(StoreRefused, match="in use"):
        check_directory(path)


# --- pages ----------------------------------------------------------------------------------------


def test_pages_of_many_sizes_of_stores_are_as_lmdb_writes_them(path: Path) -> None:
    store = open_directory(path, uuid=1, sync=False)
    file = path / DATA_FILE
    assert check_pages(file)
    for size in (1, 3, 50, 700):
        items = [live(b"k%d" % at, at, bytes(at * 37 % 9_000)) for at in range(1, size)]
        store.commit(write(*items, reset=True))
        check_pages(file)
    store.close()


def test_an_empty_file_passes_and_so_does_another_programs(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert not check_pages(tmp_path / "empty")
    with lmdb.open(str(tmp_path)) as env, env.begin(write=True) as txn:
        txn.put(b"key", b"value")
    assert check_pages(tmp_path / DATA_FILE)


@pytest.mark.parametrize(
    ("newest", "offset"),
    [
        *((False, at) for at in (16, 20, 144)),  # magic, version, transaction
        *((True, at) for at in (16, 20, 40, 44, 92, 96, 128, 142, 144)),
    ],
)
def test_a_damaged_head_is_noticed(path: Path, newest: bool, offset: int) -> None:
    open_directory(path, uuid=1).close()
    file = path / DATA_FILE
    content = bytearray(file.read_bytes())
    page = int(content[4_096 + 144 :][:8][::-1] > content[144:152][::-1])
    content[(page if newest else 1 - page) * 4_096 + offset] ^= 0x10
    file.write_bytes(content)
    with pytest.raises(StoreCorrupt):
        check_pages(file)
    with pytest.raises(StoreRefused, match="is damaged"):
        open_directory(path, uuid=1)


FLIPS = """
import random, shutil, sys
from pathlib import Path
from tests.storage.test_damage import what_is_read

path, flips = Path(sys.argv[1]), int(sys.argv[2])
chance = random.Random(int(sys.argv[3]))
before = what_is_read(path)
files = {name: (path / name).read_bytes() for name in ("data.mdb", "uprmc.place")}
told = dict.fromkeys(("refused", "lost", "same"), 0)
for _ in range(flips):
    for name, content in files.items():
        (path / name).write_bytes(content)
    content = bytearray(files["data.mdb"])
    bit = chance.randrange(8 * len(content))
    content[bit // 8] ^= 1 << bit % 8
    (path / "data.mdb").write_bytes(content)
    after = what_is_read(path)
    if after is None:
        told["refused"] += 1
        continue
    assert after.keys() == before.keys(), (bit, after.keys() ^ before.keys())
    wrong = [key for key, record in after.items() if record not in (None, before[key])]
    assert not wrong, (bit, wrong)
    told["lost" if None in after.values() else "same"] += 1
print(*told.values())
"""


def what_is_read(path: Path) -> dict[tuple[int, bytes], bytes | None] | None:
    """Return what a start reads: every record, ``None`` if it is damaged; ``None`` = refused."""
    checked = check_directory(path)
    try:
        store = open_directory(path, uuid=1, sync=False)
    except StoreRefused:
        assert not checked.is_sound
        return None
    view = store.view()
    found: dict[tuple[int, bytes], bytes | None] = {}
    listed = 0
    for number in range(4):
        records, damaged = all_records(view, number)
        listed += view.listed(number, records, damaged)
        for record in records:
            key = record[24 : 24 + record[7]]
            found[number, key] = record
            assert view.get(number, key) == record or not checked.is_sound
        found |= {(number, each.key): None for each in damaged}
        assert damaged == [each for each in checked.damaged if each.vbucket == number]
    agree = sum(view.index()) == listed
    view.close()
    store.close()
    assert checked.is_sound == (agree and None not in found.values())
    return found if agree else None


@pytest.mark.crash
def test_a_flipped_bit_anywhere_is_refused_or_its_record_is_lost_and_nothing_is_wrong(
    path: Path,
) -> None:
    store = open_directory(path, uuid=1, vbuckets=4, sync=False)
    for number in range(4):
        items = [live(b"k%d" % at, at, bytes([at]) * (at * 31 % 900)) for at in range(1, 90)]
        again = [live(b"k%d" % at, 90 + at, bytes(60)) for at in range(1, 30)]
        store.commit(write(*items, vbucket=number))
        store.commit(write(*again, vbucket=number))
    store.close()
    refused, lost, same = map(int, run_python(FLIPS, str(path), "60", "7").split())
    assert refused + lost + same == 60
    assert min(refused, lost, same) > 0
