"""The store on LMDB: one environment for all vBuckets, one write transaction for each batch.

Neighbours: `lmdb_files` opens the environment, `lmdb_commit` writes a batch, `lmdb_view` reads.
Note: a view pins every page that later commits replace. So the file grows while a view is open, and
the map cannot grow at all.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from weakref import WeakSet

import lmdb

from uprmc.config import StorageSettings
from uprmc.errors import StoreError, StoreTaken
from uprmc.storage import layout, upgrade
from uprmc.storage.damage import Damage
from uprmc.storage.interface import CLEAN_MARK, Batch, Damaged, StoreUsage
from uprmc.storage.layout import Identity
from uprmc.storage.lmdb_commit import BatchWriter, Sweep
from uprmc.storage.lmdb_files import LmdbFiles, store_error
from uprmc.storage.lmdb_pinned import PinnedPages
from uprmc.storage.lmdb_view import LmdbView

TAKEN = (
    "another process has opened the data directory: this one ends, so that they do not both write"
)

#: Damaged records that are told of in one call.
NAMED_AT_ONCE = 256


def _nothing() -> None:
    """Be the default of `on_close`."""


class LmdbStore:
    """See `interface.Store`. Open it by `directory.open_directory`, which guards the directory.

    Without `sync` a commit survives the death of the process, but a power loss may damage the file
    if the file system wrote its pages in another order; `sync` ends that danger until the next
    commit.

    Attributes:
        damage: records that were found damaged.
        new_history: why the store began a new history when it was opened; empty = it did not.
    """

    def __init__(
        self,
        path: Path,
        *,
        fresh: Identity,
        settings: StorageSettings | None = None,
        sync: bool = True,
        on_close: Callable[[], None] = _nothing,
    ) -> None:
        """Open the environment in the directory `path`; an empty one becomes `fresh`.

        Raises:
            StoreError: it is damaged, another program's, or cannot be opened.
        """
        settings = settings or StorageSettings()
        self._files = LmdbFiles(
            path,
            map_initial=settings.map_initial,
            map_max=settings.map_max,
            sync=sync,
            fresh=fresh,
        )
        self._views: WeakSet[LmdbView] = WeakSet()
        self._pinned = PinnedPages()
        self._sweep = Sweep()
        self.damage = Damage()
        self._owner = b""
        self._on_close = on_close
        self.new_history = ""

    def identity(self) -> Identity:
        """Return what the directory says that it is."""
        data = self._read(layout.IDENTITY_KEY, self._files.databases.meta)
        return layout.unpack_identity(data or b"")

    def place(self) -> bytes | None:
        """Return the record of where the store is."""
        stored = self._read(layout.PLACE_KEY, self._files.databases.meta)
        return None if stored is None else layout.unsealed(layout.PLACE_KEY, stored)

    def settle(self, place: bytes, owner: bytes, uuid: int | None) -> None:
        """Record where the store is and whose; with a `uuid`, it also begins a new history.

        A new history is one that was not left in order: each active vBucket will begin a branch.

        Args:
            place: where it is.
            owner: names this process; as soon as another one is recorded, nothing is committed.
            uuid: the store's new name.
        """
        databases = self._files.databases

        def work(txn: lmdb.Transaction[bytes]) -> None:
            sealed = layout.sealed(layout.PLACE_KEY, place)
            txn.put(layout.PLACE_KEY, sealed, db=databases.meta)
            sealed = layout.sealed(layout.OWNER_KEY, owner)
            txn.put(layout.OWNER_KEY, sealed, db=databases.meta)
            if uuid is not None:
                packed = txn.get(layout.IDENTITY_KEY, db=databases.meta) or b""
                renamed = layout.pack_identity(layout.unpack_identity(packed)._replace(uuid=uuid))
                txn.put(layout.IDENTITY_KEY, renamed, db=databases.meta)
                txn.delete(layout.local_key(CLEAN_MARK), db=databases.local)

        try:
            self._files.write(work)
        except lmdb.Error as error:
            raise self._files.failure(error) from error
        self._owner = layout.sealed(layout.OWNER_KEY, owner)

    def check(self) -> None:
        """Read all that is sealed; raises `StoreCorrupt` if something is not what was written."""
        databases = self._files.databases
        try:
            with self._files.env.begin() as txn:
                for database in (databases.meta, databases.local):
                    for key, stored in txn.cursor(database):
                        layout.unsealed(key, stored)
                for key, stored in txn.cursor(databases.meta):
                    if layout.HEADER_PREFIX <= key < layout.HEADER_END:
                        layout.unpack_header(layout.unsealed(key, stored))
        except lmdb.Error as error:
            raise store_error(error) from error

    def check_owner(self) -> None:
        """Raise `StoreTaken` if another process has opened the store since."""
        if self._owner and self._read(layout.OWNER_KEY, self._files.databases.meta) != self._owner:
            raise StoreTaken(TAKEN)

    def upgrade(self, progress: upgrade.Progress) -> None:
        """Bring a directory of an older format up to the present one, before anything else."""
        try:
            if upgrade.needed(self._files):
                upgrade.run(self._files, progress)
        except lmdb.Error as error:
            raise self._files.failure(error) from error

    def commit(self, batch: Batch) -> None:
        """Write `batch` atomically."""
        files = self._files
        try:
            with files.env.begin(write=True) as txn:
                owner = txn.get(layout.OWNER_KEY, db=files.databases.meta)
                if self._owner not in (b"", owner):
                    raise StoreTaken(TAKEN)
                size = files.file_bytes()
                files.read_ahead.file_is(size)
                extent = layout.pack_extent(size)
                txn.put(layout.EXTENT_KEY, extent, db=files.databases.meta)
                BatchWriter(txn, files.databases, self._sweep, self.damage).write(batch)
            if self._views:
                self._pinned.freed(*files.freed_by_newest())
        except lmdb.Error as error:
            raise files.failure(error) from error
        except struct.error as error:
            raise StoreError(f"the batch does not fit the record layout: {error}") from error

    def grow(self) -> bool:
        """Make room after `StoreMapFull`.

        Raises:
            StoreFull: the map has reached its limit, or the process may not map more.
        """
        try:
            self._files.check_growable()
            if self._views:
                return False
            self._files.grow()
        except lmdb.Error as error:
            raise store_error(error) from error
        return True

    def view(self) -> LmdbView:
        """Open a reading of the newest commit."""
        view = LmdbView(self._files, self.damage, self._views.discard)
        self._views.add(view)
        self._pinned.opened(view.transaction)
        return view

    def local(self, name: bytes) -> bytes | None:
        """Return a local document as of the newest commit."""
        key = layout.local_key(name)
        stored = self._read(key, self._files.databases.local)
        return None if stored is None else layout.unsealed(key, stored)

    def take_damaged(self) -> list[Damaged]:
        """Return some of the damaged records that were met and not returned yet, each once."""
        news = self.damage.news
        return [news.popleft() for _ in range(min(len(news), NAMED_AT_ONCE))]

    def healed(self, record: Damaged) -> None:
        """Learn that a damaged record was healed, so that it is named again if it is met again."""
        self.damage.healed(record)

    def _read(self, key: bytes, database: lmdb._Database) -> bytes | None:
        try:
            with self._files.env.begin(database) as txn:
                return txn.get(key)
        except lmdb.Error as error:
            raise store_error(error) from error

    def usage(self) -> StoreUsage:
        """Return sizes for statistics."""
        try:
            return self._files.usage(self._pinned_pages())
        except lmdb.Error as error:
            raise store_error(error) from error

    def _pinned_pages(self) -> int:
        oldest = min((view.transaction for view in self._views), default=None)
        return self._pinned.count(oldest)

    def sync(self) -> None:
        """Force what was committed without syncing to the device."""
        try:
            self._files.env.sync(True)
        except lmdb.Error as error:
            raise self._files.failure(error) from error

    def close(self) -> None:
        """Close files and release the directory."""
        self._files.env.close()
        self._on_close()
