"""Directories of older formats are rewritten when they are opened, whatever interrupts it."""

from __future__ import annotations

import subprocess
from pathlib import Path
from random import Random

import lmdb
import pytest

from interop.nursery import popen
from tests.contents import got
from tests.contracts.store_values import header, live, tombstone, write
from tests.storage.old_directory import write_4, write_old
from tests.storage.processes import ROOT, python_command
from uprmc.config import StorageSettings
from uprmc.errors import StoreRefused
from uprmc.model import SEQNO_MAX, Item, Life, VBucketHeader, VBucketState
from uprmc.storage import layout, upgrade
from uprmc.storage.check import check_directory
from uprmc.storage.directory import open_directory
from uprmc.storage.lmdb_store import LmdbStore

VBUCKETS = (0, 1, 255, 1023)

Stored = dict[int, tuple[VBucketHeader, list[Item]]]


def some_items(count: int, seed: int = 1) -> list[Item]:
    """Return items of all kinds and sizes."""
    random = Random(seed)
    items = []
    for at in range(1, count + 1):
        seqno, key = 3 * at, b"key-%05d" % random.randrange(10**5) + b"-%d" % at
        if random.random() < 0.2:
            items.append(tombstone(key, seqno, random.choice([Life.DELETED, Life.EXPIRED])))
        else:
            size = random.choice([0, 1, 90, 300, 1_990, 2_000, 2_100, 9_000])
            items.append(live(key, seqno, random.randbytes(size)))
    return items


def some_stored(count: int = 150) -> Stored:
    return {
        number: (header(3 * count + number), some_items(count, number + 1)) for number in VBUCKETS
    }


def check(store: LmdbStore, stored: Stored) -> None:
    """Compare all that can be read with what was written."""
    view = store.view()
    assert store.identity() == layout.Identity(layout.FORMAT_VERSION, 1_024, 0xBEEF)
    assert store.local(b"note") == b"kept"
    assert view.count() == sum(len(items) for _, items in stored.values())
    for number, (_, items) in stored.items():
        back = [item.with_value(None) for item in items[::-1]]
        assert list(view.changes_after(number, 0)) == items
        assert list(view.changes_before(number, SEQNO_MAX)) == back
        assert [got(view, number, item.key) for item in items] == items
    view.close()


@pytest.mark.parametrize("format_version", [1, 2, 4])
def test_everything_of_an_older_format_is_there_afterwards(
    tmp_path: Path, format_version: int
) -> None:
    stored = some_stored()
    if format_version == 4:
        write_4(tmp_path / "data", stored)
    else:
        write_old(tmp_path / "data", stored, format_version=format_version)
    with pytest.raises(StoreRefused, match="start a node on it once"):
        check_directory(tmp_path / "data")
    store = open_directory(tmp_path / "data", uuid=1)
    check(store, stored)
    view = store.view()
    listed = sum(view.listed(number, list(view.records_after(number, 0))) for number in stored)
    assert sum(view.index()) == listed
    view.close()
    view = store.view()
    found = view.headers()
    view.close()
    for number, (old, _) in stored.items():
        term = 1 if format_version == 1 else old.term
        known_term = 1 if format_version == 1 else old.known_term
        assert found[number] == old._replace(term=term, known_term=known_term)
    store.close()


def test_a_replica_of_format_1_has_no_known_term(tmp_path: Path) -> None:
    replica = header(5)._replace(state=VBucketState.REPLICA)
    write_old(tmp_path / "data", {3: (replica, [])}, format_version=1)
    store = open_directory(tmp_path / "data", uuid=1)
    view = store.view()
    assert view.header(3) == replica
    view.close()
    store.close()


def test_an_upgraded_directory_is_written_and_reopened_as_any_other(tmp_path: Path) -> None:
    stored = some_stored()
    write_old(tmp_path / "data", stored)
    store = open_directory(tmp_path / "data", uuid=1)
    first = stored[0][1][7]
    store.commit(write(live(first.key, 10_000, b"new")))
    store.close()
    store = open_directory(tmp_path / "data", uuid=1)
    stored[0] = (
        stored[0][0],
        [item for item in stored[0][1] if item is not first] + [live(first.key, 10_000, b"new")],
    )
    check(store, stored)
    store.close()


def test_the_first_transaction_makes_older_versions_refuse_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_old(tmp_path / "data", some_stored())

    def broken(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(upgrade, "_go_on", broken)
    with pytest.raises(KeyboardInterrupt):
        open_directory(tmp_path / "data", uuid=1)
    with lmdb.open(str(tmp_path / "data"), max_dbs=5) as environment:
        meta = environment.open_db(layout.META)
        with environment.begin(meta) as txn:
            identity = layout.unpack_identity(txn.get(layout.IDENTITY_KEY) or b"")
    assert identity.format_version == layout.FORMAT_VERSION > 2


def test_it_tells_how_far_it_is_and_is_done_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upgrade, "_ENTRIES", 100)
    write_old(tmp_path / "data", some_stored())
    told: list[tuple[int, int]] = []
    for _ in range(2):
        open_directory(
            tmp_path / "data", uuid=1, on_upgrade=lambda *each: told.append(each)
        ).close()
    assert told[0] == (0, 1_200)
    assert told[-1] == (1_200, 1_200)
    assert told == sorted(told)
    assert len(told) > 12
    assert told.count((0, 1_200)) == 1


def test_a_full_map_grows_meanwhile(tmp_path: Path) -> None:
    stored = some_stored(400)
    write_old(tmp_path / "data", stored)
    small = StorageSettings(map_initial=1 << 20)
    store = open_directory(tmp_path / "data", uuid=1, settings=small, sync=False)
    check(store, stored)
    store.close()


@pytest.mark.parametrize("where", ["by-seq", "by-id"])
def test_what_cannot_be_read_is_refused(tmp_path: Path, where: str) -> None:
    path = tmp_path / "data"
    write_old(path, some_stored(5))
    with lmdb.open(str(path), max_dbs=4) as environment:
        database = environment.open_db(where.encode())
        with environment.begin(database, write=True) as txn:
            cursor = txn.cursor()
            cursor.first()
            cursor.put(cursor.key(), b"\x01nonsense")
    for _ in range(2):
        with pytest.raises(StoreRefused, match="damaged"):
            open_directory(path, uuid=1)


UPGRADE = """
import sys
from pathlib import Path
from uprmc.storage import upgrade
from uprmc.storage.directory import open_directory

upgrade._ENTRIES = 50

def told(done, total):
    print(done, total, flush=True)

open_directory(Path(sys.argv[1]), uuid=1, on_upgrade=told).close()
print("done", flush=True)
"""


@pytest.mark.crash
@pytest.mark.parametrize("seed", range(3))
def test_an_upgrade_that_is_killed_goes_on_when_the_directory_is_opened_again(
    tmp_path: Path, seed: int
) -> None:
    random, stored = Random(seed), some_stored(300)
    write_old(tmp_path / "data", stored)
    kills = 0
    for _ in range(100):
        command = python_command(UPGRADE, str(tmp_path / "data"))
        with popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            told = [process.stdout.readline() for _ in range(random.randint(1, 12))]
            process.kill()
            told += process.stdout.read().splitlines()
        if "done" in [line.strip() for line in told]:
            break
        kills += 1
    assert kills >= 3, "it was never interrupted"
    store = open_directory(tmp_path / "data", uuid=1)
    check(store, stored)
    store.close()
