"""Where the checkpoints of a link are kept: local documents, and its watermark rows.

A replica gets the rows of its source and not the documents. So after a failover, a link of the same
name finds the newest checkpoint that the replica had got in the row.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from uprmc.engine.bucket import Bucket
from uprmc.xdcr import checkpoint
from uprmc.xdcr.checkpoint import Record, Records
from uprmc.xdcr.reading import PREFIX


class CheckpointStore:
    """Keeps the checkpoints of one link.

    Attributes:
        records: newest first, by vBucket, of those that were asked for.
    """

    def __init__(self, bucket: Bucket, link: str, trouble: Callable[[str], None]) -> None:
        """Prepare it; `trouble` is called with what cannot be read."""
        self.records: dict[int, Records] = {}
        self._bucket = bucket
        self._link = link.encode()
        self._trouble = trouble

    def known(self, number: int) -> Records:
        """Return the checkpoints of a vBucket, that of its watermark row included."""
        records = self.records.get(number)
        if records is None:
            records = self._read(number)
        records = self.records[number] = checkpoint.merged(records, self._in_row(number))
        return records

    def newest(self, number: int) -> Record | None:
        """Return the newest one that was asked for, ``None`` if there is none."""
        return next(iter(self.records.get(number, ())), None)

    def _read(self, number: int) -> Records:
        try:
            return checkpoint.decode(self._bucket.store.local(self._name(number)))
        except ValueError as error:
            self._trouble(f"vBucket {number}: its checkpoints are not read: {error}")
            return ()

    def _in_row(self, number: int) -> Record | None:
        rows = self._bucket.watermarks.rows(self._bucket.vbuckets[number])
        metas = [row.meta for row in rows if row.id == PREFIX + self._link]
        return checkpoint.decode_one(metas[0]) if metas and metas[0] else None

    def add(self, number: int, record: Record) -> None:
        """Keep a checkpoint more; it is on disk with the next commit."""
        self._keep(number, checkpoint.added(self.known(number), record))

    def forget_above(self, number: int, seqno: int) -> None:
        """Forget checkpoints that one of the ends has lost."""
        records = self.known(number)
        kept = tuple(record for record in records if record.seqno <= seqno)
        if kept != records:
            self._keep(number, kept)

    def forget(self) -> None:
        """Forget all of them: the link is deleted."""
        for number in list(self.records):
            self._keep(number, ())
        self.records.clear()

    def _keep(self, number: int, records: Records) -> None:
        self.records[number] = records
        self._bucket.flusher.keep_local(self._name(number), partial(self._document, number))

    def _document(self, number: int) -> bytes | None:
        return checkpoint.encode(self.records.get(number, ()))

    def _name(self, number: int) -> bytes:
        return b"uprmc/xdcr/%s/%d" % (self._link, number)
