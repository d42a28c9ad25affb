"""A copy of a store without its free pages: how a file that has grown becomes small again.

The copy is one state of the data, also while a node runs on it. It is written beside its final name
and renamed when all of it is on the device, so a copy that was interrupted is never taken for one.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import lmdb

from uprmc.errors import StoreError, StoreRefused
from uprmc.storage import layout
from uprmc.storage.directory import make, sync_directory
from uprmc.storage.lmdb_files import DATA_FILE, MAX_READERS, store_error

_PARTIAL_FILE = f".{DATA_FILE}.partial"

#: Address space beyond twice the file, for a node that grows its store meanwhile.
_SPARE_MAP_BYTES = 1 << 30


class CopySizes(NamedTuple):
    """Sizes of the data files, before and after."""

    source_bytes: int
    copy_bytes: int


def copy_compacted(source: Path, target: Path) -> CopySizes:
    """Write a compacted copy of a data directory into another one, which is new or empty.

    Raises:
        StoreRefused: the source is no data directory, or the target cannot be used.
        StoreError: the copy could not be written; the target has none.
    """
    source_file, partial = source / DATA_FILE, target / _PARTIAL_FILE
    if not source_file.is_file():
        raise StoreRefused(f"{source} holds no uprmc store: name the data directory of a node")
    make(target)
    others = [entry.name for entry in target.iterdir() if entry.name != _PARTIAL_FILE]
    if others:
        raise StoreRefused(f"{target} is not empty ({others[0]!r}): choose a new directory")
    try:
        _write(source_file, partial)
        partial.rename(target / DATA_FILE)
        sync_directory(target)
    except lmdb.Error as error:
        raise store_error(error) from error
    except OSError as error:
        raise StoreError(f"{target} cannot be written: {error.strerror}") from error
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
    return CopySizes(source_file.stat().st_size, (target / DATA_FILE).stat().st_size)


def _write(source_file: Path, partial: Path) -> None:
    with lmdb.open(
        str(source_file.parent),
        readonly=True,
        max_dbs=1,
        max_readers=MAX_READERS,
        map_size=2 * source_file.stat().st_size + _SPARE_MAP_BYTES,
    ) as environment:
        _check(source_file, environment)
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            environment.copyfd(descriptor, compact=True)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _check(source_file: Path, environment: lmdb.Environment) -> None:
    """Refuse an LMDB file of another program."""
    try:
        meta = environment.open_db(layout.META, create=False)
    except lmdb.Error:
        raise StoreRefused(f"{source_file} is an LMDB file of another program") from None
    with environment.begin(meta) as txn:
        layout.unpack_identity(txn.get(layout.IDENTITY_KEY) or b"")
