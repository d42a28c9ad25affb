"""How a batch becomes changes of the two indexes, inside of one write transaction.

For each vBucket: forget, rewind, drop, look up what the new versions replace, take that out of
by-seq, put the new ones. Everything old goes before anything new comes, because a replica that
rolled back gives seqnos out again that other versions still have.

LMDB lets go of the interpreter lock in each of its calls, also between the records of `putmulti`,
which is fed by a generator here so that no second copy of a batch's values is ever held.
"""

from __future__ import annotations

from collections.abc import Sequence

import lmdb

from uprmc.model import SEQNO_MAX
from uprmc.record import SEQNO, key_of
from uprmc.storage import layout
from uprmc.storage.batch_check import check_batch
from uprmc.storage.interface import Batch, VBucketChange
from uprmc.storage.lmdb_files import Databases


class BatchWriter:
    """Writes one batch into one transaction; the caller commits or aborts it."""

    def __init__(self, txn: lmdb.Transaction[bytes], databases: Databases) -> None:
        self._txn = txn
        self._databases = databases
        self._by_id = txn.cursor(databases.by_id)
        self._by_seq = txn.cursor(databases.by_seq)
        self._meta = txn.cursor(databases.meta)

    def write(self, batch: Batch) -> None:
        """Apply the whole batch, vBuckets by rising number: the order in which they are stored.

        Raises:
            StoreError: the batch is malformed.
            lmdb.Error: LMDB could not do it.
            struct.error: a number or key is too large for its field.
        """
        check_batch(batch)
        if batch.reset_all:
            self._forget_all()
        for change in sorted(batch.changes, key=lambda change: change.vbucket):
            self._write_change(change)
        for name, document in batch.local.items():
            self._write_local(layout.local_key(name), document)

    def _forget_all(self) -> None:
        self._txn.drop(self._databases.by_id, delete=False)
        self._txn.drop(self._databases.by_seq, delete=False)
        _delete_range(self._meta, layout.HEADER_PREFIX, layout.HEADER_END)

    def _write_local(self, key: bytes, document: bytes | None) -> None:
        if document is None:
            self._txn.delete(key, db=self._databases.local)
        else:
            self._txn.put(key, document, db=self._databases.local)

    def _write_change(self, change: VBucketChange) -> None:
        prefix = layout.vbucket_prefix(change.vbucket)
        if change.reset or change.header is None:
            end = layout.vbucket_end(change.vbucket)
            _delete_range(self._by_id, prefix, end)
            _delete_range(self._by_seq, prefix, end)
        header_key = layout.header_key(change.vbucket)
        if change.header is None:
            self._txn.delete(header_key, db=self._databases.meta)
            return
        if change.rewind is not None:
            self._rewind(change.vbucket, change.rewind)
        for key in change.forget:
            self._forget(prefix + key)
        for key, seqno in change.drop:
            self._drop(prefix + key, layout.by_seq_key(change.vbucket, seqno))
        if change.records:
            self._write_records(prefix, change.records)
        self._meta.put(header_key, layout.pack_header(change.header))

    def _rewind(self, vbucket: int, seqno: int) -> None:
        """Remove every record above `seqno`."""
        if seqno >= SEQNO_MAX:
            return
        prefix, end = layout.vbucket_prefix(vbucket), layout.vbucket_end(vbucket)
        cursor = self._by_seq
        cursor.set_range(layout.by_seq_key(vbucket, seqno + 1))
        while prefix <= cursor.key() < end:  # past the last entry the key is empty
            self._by_id.pop(prefix + key_of(layout.read_record(cursor.value())))
            cursor.delete()

    def _forget(self, by_id_key: bytes) -> None:
        by_seq_key = self._stored_at(by_id_key)
        if by_seq_key is not None:
            self._by_id.pop(by_id_key)
            self._by_seq.pop(by_seq_key)

    def _drop(self, by_id_key: bytes, by_seq_key: bytes) -> None:
        if self._stored_at(by_id_key) == by_seq_key:
            self._by_id.pop(by_id_key)
            self._by_seq.pop(by_seq_key)

    def _stored_at(self, by_id_key: bytes) -> bytes | None:
        """Return the by-seq key of what is stored under `by_id_key`."""
        entry = self._by_id.get(by_id_key)
        return None if entry is None else layout.by_seq_key_of(by_id_key[:2], entry)

    def _write_records(self, prefix: bytes, records: Sequence[bytes]) -> None:
        entry_of = layout.entry_of
        entries = sorted([(prefix + key_of(record), entry_of(record)) for record in records])
        self._delete_replaced(prefix, entries)
        self._by_id.putmulti(entries)
        consumed, added = self._by_seq.putmulti(
            ((prefix + record[SEQNO], record) for record in records), overwrite=False
        )
        if added != consumed:
            self._take_seqnos(prefix, records)

    def _delete_replaced(self, prefix: bytes, entries: Sequence[tuple[bytes, bytes]]) -> None:
        """Remove the by-seq entries of the versions that `entries` are about to replace."""
        found = self._by_id.getmulti([key for key, _ in entries])
        by_seq = self._by_seq
        for key in sorted([layout.by_seq_key_of(prefix, entry) for _, entry in found]):
            if by_seq.set_key(key):
                by_seq.delete()

    def _take_seqnos(self, prefix: bytes, records: Sequence[bytes]) -> None:
        """Put the records whose seqno belongs to one of another key, which goes for good.

        Two records with one seqno come from two histories, and the older history is not ours any
        more: this vBucket was rolled back below that seqno.
        """
        for record in records:
            by_seq_key = prefix + record[SEQNO]
            key = key_of(record)
            stored = self._by_seq.get(by_seq_key)
            holder = key if stored is None else key_of(layout.read_record(stored))
            if holder == key:
                continue
            if self._stored_at(prefix + holder) == by_seq_key:
                self._by_id.pop(prefix + holder)
            self._by_seq.put(by_seq_key, record)


def _delete_range(cursor: lmdb.Cursor[bytes], start: bytes, end: bytes) -> None:
    """Delete every entry from `start` to just before `end`."""
    cursor.set_range(start)
    while start <= cursor.key() < end:  # past the last entry the key is empty
        cursor.delete()
