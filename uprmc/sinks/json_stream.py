"""Changes as lines of JSON to an open file such as standard output. At least once."""

from __future__ import annotations

from typing import BinaryIO

from uprmc.client.handler import Document
from uprmc.remote.batch import Batch
from uprmc.sinks.sink import Sink, change_line, rollback_line, undo_line


class JsonStream(Sink):
    """Writes lines, see `records`; what was written once cannot be taken back, only corrected.

    Args:
        out: where; it stays open.
    """

    def __init__(self, out: BinaryIO) -> None:
        super().__init__()
        self._out = out

    def changes(self, batch: Batch) -> None:
        self._out.write(b"".join(map(change_line, batch)))
        self._out.flush()

    def rollback(self, vbucket: int, seqno: int) -> None:
        self._out.write(rollback_line(vbucket, seqno))

    def undo(self, vbucket: int, key: bytes, document: Document | None) -> None:
        self._out.write(undo_line(vbucket, key, document))

    def durable(self) -> None:
        self._out.flush()
