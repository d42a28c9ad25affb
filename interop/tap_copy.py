"""What a TAP client makes of a stream: a copy of the documents, and what else it was told.

`TapCopy` applies messages as a legacy replica does and judges their order; `TapReader` is a
connection with the habits of a client: what it asks for and how it acknowledges, if it does.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple

from interop import tap_wire as t
from interop import wire as w
from interop.server_process import Address
from interop.tap_wire import TapFrame, TapWire
from interop.wire import ClosedError

#: How a client acknowledges: the bytes that answer a message.
Ack = Callable[[TapFrame], bytes]

_UNTIL_S = 30.0


class Document(NamedTuple):
    """What TAP tells of a document."""

    value: bytes
    flags: int
    expiration: int
    cas: int
    rev: int | None


Documents = dict[tuple[int, bytes], Document]


def swapped(flags: int) -> int:
    """Item flags in the other byte order."""
    return int.from_bytes(flags.to_bytes(4, "big"), "little")


class TapCopy:
    """A copy of everything a TAP stream told.

    Attributes:
        documents: by vBucket and key.
        kinds: how many messages of each kind came; of OPAQUE, by (opcode, code).
        raw_flags: take item flags as they stand on the wire, as clients that never swap them do.
        open: vBucket -> checkpoint that was started and not ended.
        states: what VBUCKET_SET told, in order: vBucket, state.
    """

    def __init__(self, *, raw_flags: bool = False) -> None:
        self.documents: Documents = {}
        self.kinds: Counter[int | tuple[int, int]] = Counter()
        self.raw_flags = raw_flags
        self.open: dict[int, int] = {}
        self.last_checkpoint: dict[int, int] = {}
        self.backfilling: set[int] = set()
        self.states: list[tuple[int, int]] = []
        self.last_sequence = 0

    def begin(self) -> None:
        """Another connection: sequence numbers and checkpoints start anew, the copy stays."""
        self.last_sequence = 0
        self.open.clear()

    def take(self, frame: TapFrame) -> None:
        """Take the next frame of the producer."""
        assert not frame.is_reply, frame
        code = frame.opcode, frame.code if frame.opcode == t.OPAQUE else 0
        self.kinds[code if frame.opcode == t.OPAQUE else frame.opcode] += 1
        if frame.opcode == t.NOOP:
            assert (frame.opaque, frame.rest) == (0, b""), frame
            return
        assert frame.opaque > self.last_sequence, f"{frame} after {self.last_sequence}"
        assert frame.ttl == 255, frame
        self.last_sequence = frame.opaque
        self._TAKE[frame.opcode](self, frame)

    def of(self, vbuckets: Iterable[int]) -> Documents:
        """The documents of some vBuckets."""
        wanted = set(vbuckets)
        return {name: found for name, found in self.documents.items() if name[0] in wanted}

    def _mutation(self, frame: TapFrame) -> None:
        flags, expiration = frame.item
        if not (frame.flags & t.NETWORK_ORDER or self.raw_flags):
            flags = swapped(flags)
        found = Document(frame.value, flags, expiration, frame.cas, frame.rev)
        self.documents[frame.number, frame.key] = found

    def _delete(self, frame: TapFrame) -> None:
        assert frame.value == b"", frame
        self.documents.pop((frame.number, frame.key), None)

    def _flush(self, frame: TapFrame) -> None:
        self.documents.clear()

    def _opaque(self, frame: TapFrame) -> None:
        if frame.code == t.INITIAL:
            self.backfilling.add(frame.number)
            self.open.pop(frame.number, None)
            self.last_checkpoint.pop(frame.number, None)
            for name in [each for each in self.documents if each[0] == frame.number]:
                del self.documents[name]
        elif frame.code == t.CLOSE_BACKFILL:
            assert frame.number in self.backfilling, frame
            self.backfilling.remove(frame.number)

    def _state(self, frame: TapFrame) -> None:
        self.states.append((frame.number, frame.code))

    def _started(self, frame: TapFrame) -> None:
        assert frame.key == b"checkpoint_start", frame
        assert frame.number not in self.open, f"{frame} while {self.open[frame.number]} is open"
        last = self.last_checkpoint.get(frame.number)
        assert last is None or frame.checkpoint in (last, last + 1), f"{frame} after {last}"
        self.open[frame.number] = self.last_checkpoint[frame.number] = frame.checkpoint

    def _ended(self, frame: TapFrame) -> None:
        assert frame.key == b"checkpoint_end", frame
        assert self.open.pop(frame.number, frame.checkpoint) == frame.checkpoint, frame

    _TAKE = {  # noqa: RUF012
        t.MUTATION: _mutation,
        t.DELETE: _delete,
        t.FLUSH: _flush,
        t.OPAQUE: _opaque,
        t.VBUCKET_SET: _state,
        t.CHECKPOINT_START: _started,
        t.CHECKPOINT_END: _ended,
    }


class TapReader(TapWire):
    """A client that reads one stream into a copy.

    Args:
        request: the TAP_CONNECT.
        ack: makes the answer to a message that asks for one; ``None`` for a client that never does.
        copy: what it has from connections before.
    """

    def __init__(
        self,
        address: Address,
        request: bytes,
        *,
        ack: Ack | None = t.answer,
        copy: TapCopy | None = None,
        timeout_s: float = 20.0,
    ) -> None:
        super().__init__(address, timeout_s)
        self.copy = copy or TapCopy()
        self.copy.begin()
        self._ack = ack
        self.send(request)

    def step(self) -> TapFrame:
        """Read one message, apply it unless it is refused, and answer as this client does."""
        found = self.frame()
        reply = b""
        if self._ack and found.opcode != t.NOOP and found.wants_ack:
            reply = self._ack(found)
        if not reply or TapFrame.of(reply).number == w.OK:
            self.copy.take(found)
        # The node may have hung up behind this message; whoever reads on will see.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.send(reply)
        return found

    def until(self, true: Callable[[], bool], timeout_s: float = _UNTIL_S) -> None:
        """Read until it is so."""
        deadline = time.monotonic() + timeout_s
        while not true():
            assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {self.copy.kinds}"
            self.step()

    def until_opaque(self, code: int) -> TapFrame:
        """Read up to an OPAQUE of this kind."""
        while not (found := self.step()).is_opaque(code):
            pass
        return found

    def until_closed(self) -> TapCopy:
        """Read up to the end of the connection, which must come between two messages."""
        deadline = time.monotonic() + _UNTIL_S
        try:
            while True:
                self.step()
                assert time.monotonic() < deadline, f"it is not closed: {self.copy.kinds}"
        except ClosedError:
            assert self.held == b"", self.held
        return self.copy
