"""Everything in a data directory that no node runs on is read, and compared with its checksums.

Nothing is written, but for the name of this process in the lock file.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import lmdb

from uprmc.errors import StoreCorrupt, StoreRefused
from uprmc.storage import layout
from uprmc.storage.damage import Damage
from uprmc.storage.directory import PLACE_FILE, locked, number_beside, unpack_place
from uprmc.storage.interface import Damaged
from uprmc.storage.lmdb_files import (
    DATA_FILE,
    LOCK_FILE,
    Databases,
    ReadAhead,
    check_extent,
    store_error,
)
from uprmc.storage.lmdb_pages import check_pages
from uprmc.storage.lmdb_store import LmdbView

#: Address space beyond the file.
_SPARE_MAP_BYTES = 1 << 20


@dataclass(slots=True)
class CheckedFile:
    """One file of a data directory, and what is damaged in it beside records."""

    name: str
    bytes: int
    damage: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Checked:
    """What a check has found."""

    records: int = 0  # live records that were read, tombstones and damaged ones included
    damaged: list[Damaged] = field(default_factory=list)  # those that are not what was written
    files: list[CheckedFile] = field(default_factory=list)  # what was looked at

    @property
    def is_sound(self) -> bool:
        """Whether nothing is damaged."""
        return not self.damaged and not any(file.damage for file in self.files)


@dataclass(slots=True)
class _Opened:
    """What a view needs of a file that is open for reading only."""

    env: lmdb.Environment
    databases: Databases
    read_ahead: ReadAhead


def check_directory(path: Path) -> Checked:
    """Read everything.

    Raises:
        StoreRefused: it is no data directory, is in use, has another format, or cannot be read.
    """
    file = path / DATA_FILE
    if not file.is_file():
        if (path / PLACE_FILE).exists():
            raise StoreRefused(f"{file} is gone or no regular file, but a node has used {path}")
        raise StoreRefused(f"{path} holds no uprmc store: name the data directory of a node")
    with locked(path):
        found = Checked()
        for name in (DATA_FILE, LOCK_FILE, PLACE_FILE):
            if (path / name).is_file():
                found.files.append(CheckedFile(name, (path / name).stat().st_size))
        data = found.files[0]
        try:
            if not check_pages(file):
                data.damage.append("it is empty")
            else:
                _check_store(path, found, data)
        except StoreCorrupt as error:
            data.damage.append(str(error))
        except lmdb.Error as error:
            data.damage.append(str(store_error(error)))
        except OSError as error:
            raise StoreRefused(f"{file} cannot be read: {error.strerror}") from None
    return found


def _check_store(path: Path, found: Checked, data: CheckedFile) -> None:
    size = 2 * data.bytes + _SPARE_MAP_BYTES
    with lmdb.open(
        str(path), readonly=True, lock=False, max_dbs=len(Databases._fields), map_size=size
    ) as env:
        try:
            by_id, by_seq, meta, local = (
                env.open_db(name, create=False)
                for name in (layout.BY_ID, layout.BY_SEQ, layout.META, layout.LOCAL)
            )
        except lmdb.Error:
            raise StoreRefused(f"{path / DATA_FILE} is an LMDB file of another program") from None
        with env.begin(meta) as txn:
            identity = layout.unpack_identity(txn.get(layout.IDENTITY_KEY) or b"")
            unfinished = txn.get(layout.UPGRADE_KEY) is not None
        if identity.format_version != layout.FORMAT_VERSION or unfinished:
            raise StoreRefused(
                f"{path} has format {identity.format_version}, and only "
                f"{layout.FORMAT_VERSION} has checksums: start a node on it once"
            )
        stale = env.open_db(layout.STALE, create=False)
        opened = _Opened(env, Databases(by_id, by_seq, stale, meta, local), ReadAhead(path))
        try:
            check_extent(env, meta, data.bytes)
        except StoreCorrupt as error:
            data.damage.append(str(error))
        _check_sealed(env, opened.databases, data.damage)
        _check_place(path, env, meta, found)
        view = LmdbView(opened, Damage(), _ignore)
        try:
            _check_records(view, found, data.damage)
        finally:
            view.close()


def _check_sealed(env: lmdb.Environment, databases: Databases, damage: list[str]) -> None:
    """Read what is not a record."""
    with env.begin() as txn:
        for database in (databases.meta, databases.local):
            for key, stored in txn.cursor(database):
                try:
                    value = layout.unsealed(key, stored)
                    if layout.HEADER_PREFIX <= key < layout.HEADER_END:
                        layout.unpack_header(value)
                except StoreCorrupt as error:
                    damage.append(str(error))


def _check_place(path: Path, env: lmdb.Environment, meta: lmdb._Database, found: Checked) -> None:
    """Compare the number beside the store with that in it."""
    with env.begin(meta) as txn:
        stored = txn.get(layout.PLACE_KEY)
    try:
        place = unpack_place(layout.unsealed(layout.PLACE_KEY, stored)) if stored else None
    except StoreCorrupt:
        return  # it was named already
    for file in found.files:
        known = place is None or number_beside(path) in (place.number, place.number - 1)
        if file.name == PLACE_FILE and not known:
            file.damage.append("its number is not the store's: a node begins a new history")


def _check_records(view: LmdbView, found: Checked, damage: list[str]) -> None:
    """Read all records by seqno, and compare what is live with the index by id."""
    for number in view.numbers():
        records = listed = 0
        damaged: list[Damaged] = []
        for portion in view.portions_after(number, 0, damaged):
            records += len(portion)
            listed += view.listed(number, portion)
        listed += view.listed(number, (), damaged)
        entries, indexed = view.indexed(number)
        found.records += records + len(damaged)
        found.damaged += damaged
        if (entries, indexed) != (records + len(damaged), listed):
            damage.append(f"its indexes do not agree about vBucket {number}")


def _ignore(_: LmdbView) -> None:
    """Stand in where views are not counted."""
