"""What a TAP client holds of one vBucket: documents, and the checkpoint that is open.

It is what a server of that time keeps: it is emptied by an initial stream, its checkpoints outlive
the connection, and it has no place in any history that the producer could ask for.

Source: TAP reference, sections 4, 6 and 9.
"""

from __future__ import annotations

from typing import NamedTuple

from tests.sim import tap_codec as tap
from tests.sim.judges import complain
from tests.sim.tap_codec import Message


class Doc(NamedTuple):
    """A document; `value` is ``None`` where values are not wanted."""

    value: bytes | None
    flags: int
    expiry: int
    cas: int


class TapCopy:
    """See the module docstring.

    Attributes:
        docs: by key.
        filled: whether it began empty, so that it is to hold everything.
        backfilling: between the beginning and the end of a backfill.
        open: id of the checkpoint that is open, 0 = none.
        closed: id of the last one that was closed, 0 = none.
        anywhere: whether checkpoints may begin with any id: it was thrown away, which the producer
            does not know.
    """

    def __init__(self, owner: str, number: int, *, anywhere: bool = False) -> None:
        self._owner = f"{owner}: vBucket {number}"
        self.docs: dict[bytes, Doc] = {}
        self.filled = self.backfilling = False
        self.open = self.closed = 0
        self.anywhere = anywhere

    def begin(self) -> None:
        """Be emptied: a backfill follows."""
        self.docs = {}
        self.filled = self.backfilling = True
        self.open = self.closed = 0
        self.anywhere = False

    def flush(self) -> None:
        """Be emptied with all others: no backfill follows."""
        self.begin()
        self.backfilling = False

    def backfilled(self) -> None:
        """The backfill has ended."""
        if not self.backfilling:
            complain(f"{self._owner}: a backfill ends that never began")
        self.backfilling = False

    def take(self, message: Message) -> None:
        """Take an item."""
        if message.opcode == tap.DELETE:
            self.docs.pop(message.key, None)
            return
        value = None if message.flags & tap.NO_VALUE else message.value
        self.docs[message.key] = Doc(value, message.true_flags, message.expiry, message.cas)

    def start(self, number: int, *, first: bool) -> None:
        """A checkpoint begins, and so a backfill has ended; it may be told again.

        Args:
            number: its id.
            first: whether it is the first one on this connection. What ends the one before it may
                have been lost with the last connection; servers of that time bear it.
        """
        self.backfilling = False
        if number == self.open:
            return
        if first and self.open and number == self.open + 1:
            self.closed, self.open = self.open, 0
        if self.anywhere:
            self.anywhere, self.closed = False, number - 1
        if self.open or number != self.closed + 1:
            complain(
                f"{self._owner}: checkpoint {number} begins; {self.open} is open, "
                f"{self.closed} was the last one"
            )
        self.open = number

    def end(self, number: int) -> None:
        """A checkpoint ends; one that has ended already may be told again."""
        if not self.open and (number == self.closed or self.anywhere):
            return
        if number != self.open or not number:
            complain(
                f"{self._owner}: checkpoint {number} ends; {self.open} is open, "
                f"{self.closed} was the last one"
            )
        self.closed, self.open = number, 0
