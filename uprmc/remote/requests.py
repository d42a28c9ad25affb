"""Many requests to a node: what is sent next, what answers mean, and what a lost connection leaves.

A `Window` is one node's share of a round. It is answered or quiet:

- Answered: each request gets its answer, in order. So many are under way at a time. When the
  connection ends, a request whose last byte had not left us has surely not been carried out; one
  that had left and was not answered may have been.
- Quiet: a node answers what it refuses, and a NOOP behind each batch, the fence, tells that all
  before it was looked at. One batch is with the node while the next is on its way, so neither waits
  for the other. When the connection ends, nothing is known of batches whose fence was not answered,
  not even of requests that were refused: they are unsettled as a whole. A node that answers more
  than half of a batch with a status that time or another node makes good is sent no more.

What is answered is read while sending: a node that refuses all of a large batch would otherwise
stop reading when its answers are not taken, and both would wait for ever.

No socket and no clock: bytes in, bytes out.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Generic, NamedTuple, TypeVar

from uprmc.protocol.header import RESPONSE_HEADER, encode_request
from uprmc.protocol.opcodes import (
    FRAME_MAX_BYTES,
    HEADER_BYTES,
    MAGIC_REQUEST,
    MAGIC_RESPONSE,
    Opcode,
    Status,
)
from uprmc.remote.conversation import KEEP_ALIVES, keep_alive_answer

# --- statuses -------------------------------------------------------------------------------------


class Verdict(Enum):
    """What follows from a status."""

    DONE = auto()
    AGAIN = auto()  # the node has no time now: ask it again soon
    ELSEWHERE = auto()  # another node has the vBucket: find out which
    LATER = auto()  # somebody else is in the way for a while: who loads many asks again
    FULL = auto()  # there is no room: who must get it there, however long it takes, asks again
    NEVER = auto()  # asking again does not change it


_VERDICTS: dict[int, Verdict] = {
    Status.SUCCESS: Verdict.DONE,
    Status.BUSY: Verdict.AGAIN,
    Status.TEMPORARY_FAILURE: Verdict.AGAIN,
    Status.NOT_MY_VBUCKET: Verdict.ELSEWHERE,
    Status.LOCKED: Verdict.LATER,
    Status.OUT_OF_MEMORY: Verdict.FULL,
}


def _with(*verdicts: Verdict) -> frozenset[int]:
    return frozenset(status for status, each in _VERDICTS.items() if each in verdicts)


#: What one who waits for the answer repeats, at the same node or at another one.
AGAIN = _with(Verdict.AGAIN, Verdict.ELSEWHERE)

#: What a load repeats.
REPEATED = _with(Verdict.AGAIN, Verdict.ELSEWHERE, Verdict.LATER)

#: What a link repeats at the node that it sends to.
IN_TIME = _with(Verdict.AGAIN, Verdict.LATER, Verdict.FULL)


def verdict(status: int) -> Verdict:
    """Return what follows from a status, a `Status` number or one without a name."""
    return _VERDICTS.get(status, Verdict.NEVER)


# --- answers --------------------------------------------------------------------------------------


class NodeReply(NamedTuple):
    """What was answered."""

    status: int
    cas: int
    datatype: int
    extras: bytes
    value: bytes


_T = TypeVar("_T")

#: Makes of an answer what is kept: called with the number of the request, and the answer.
Reader = Callable[[int, NodeReply], _T]

#: Batches of quiet requests that are under way.
BATCHES_UNDER_WAY = 2

_OPAQUES = 2**32
_unpack = RESPONSE_HEADER.unpack_from
_NOOP, _REQUEST, _RESPONSE = int(Opcode.NOOP), int(MAGIC_REQUEST), int(MAGIC_RESPONSE)


class Window(Generic[_T]):
    """See the module docstring.

    Args:
        frames: whole requests; the opaque of each is its number among them.
        order: the numbers of those that the node gets, ascending.
        limit: requests of a batch; of answered ones, those that are under way.
        limit_bytes: of a batch; of answered ones, of what is put together before it is sent. There
            is one request at least, however large.
        read: see `Reader`; ``None`` = the status is kept, and nothing else matters.
        quiet: see above.
        first_opaque: opaques count on from here, so that what belongs to others is noticed.
    """

    __slots__ = (
        "_batches", "_fences", "_first_opaque", "_frames", "_fresh", "_have", "_limit",
        "_limit_bytes", "_order", "_packed", "_pieces", "_quiet", "_read", "_settled", "_stopping",
        "_want", "answers", "nonsense", "replies",
    )  # fmt: skip

    def __init__(
        self,
        frames: Sequence[bytes],
        order: Sequence[int],
        limit: int,
        limit_bytes: int,
        read: Reader[_T] | None = None,
        *,
        quiet: bool,
        first_opaque: int = 0,
    ) -> None:
        # By number, what `read` made of the answer; of quiet ones, in settled batches.
        self.answers: dict[int, _T] = {}
        self.nonsense = ""  # what the node has sent that no node may; empty = nothing
        self.replies = b""  # to what the node has asked meanwhile
        self._frames, self._order, self._read = frames, order, read
        self._limit, self._limit_bytes = limit, limit_bytes
        self._quiet, self._first_opaque = quiet, first_opaque
        self._packed = self._settled = 0  # places in the order
        self._fences: deque[tuple[int, int]] = deque()  # number, and the place behind its batch
        self._batches = 0
        self._stopping = False
        self._fresh: dict[int, _T] = {}
        self._pieces: list[bytes] = []
        self._have, self._want = 0, HEADER_BYTES

    # --- how far it is --------------------------------------------------------------------------

    @property
    def has_room(self) -> bool:
        """Whether there is something to send, and room for it under way."""
        if self._packed == len(self._order) or self._stopping:
            return False
        if self._quiet:
            return len(self._fences) < BATCHES_UNDER_WAY
        return self._packed - self._settled < self._limit

    @property
    def done(self) -> bool:
        """Whether nothing is to be sent or waited for any more."""
        return self._settled == self._packed and (
            self._stopping or self._packed == len(self._order)
        )

    def unsettled(self) -> Sequence[int]:
        """Return the numbers of requests that have no answer, or whose fence has none."""
        return self._order[self._settled :]

    def left(self, sent_bytes: int) -> Sequence[int]:
        """Return those of `unsettled` that had left us whole, by how many bytes were sent."""
        place = end = 0
        for place in range(self._packed):
            end += len(self._frames[self._order[place]])
            if end > sent_bytes:
                return self._order[self._settled : max(place, self._settled)]
        return self._order[self._settled : self._packed]

    # --- sending --------------------------------------------------------------------------------

    def next_piece(self) -> bytes:
        """Return what is to be sent next; call it when there is `has_room`."""
        order, frames, begin = self._order, self._frames, self._packed
        most = begin + self._limit if self._quiet else self._settled + self._limit
        end, size, most = begin, 0, min(most, len(order))
        while end < most:
            size += len(frames[order[end]])
            if end > begin and size > self._limit_bytes:
                break
            end += 1
        self._packed = end
        if order[end - 1] - order[begin] == end - 1 - begin:
            pieces = list(frames[order[begin] : order[end - 1] + 1])
        else:
            pieces = [frames[number] for number in order[begin:end]]
        if self._quiet:
            self._fences.append((self._batches, end))
            pieces.append(encode_request(Opcode.NOOP, opaque=self._batches))
            self._batches += 1
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    # --- receiving ------------------------------------------------------------------------------

    def take(self, data: bytes) -> None:
        """Take what has arrived."""
        self._pieces.append(data)
        self._have += len(data)
        if self._have < self._want:
            return
        data = b"".join(self._pieces)
        position = self._taken(data)
        rest = data[position:]
        self._pieces = [rest] if rest else []
        self._have = len(rest)

    def _taken(self, data: bytes) -> int:
        """Take whole frames; return where the first begins that is not whole."""
        position, size, read, quiet = 0, len(data), self._read, self._quiet
        fresh, order, first_opaque = self._fresh, self._order, self._first_opaque
        self._want = HEADER_BYTES
        while position + HEADER_BYTES <= size:
            magic, opcode, key_bytes, extras_bytes, datatype, status, body_bytes, opaque, cas = (
                _unpack(data, position)
            )
            if (
                magic != _RESPONSE
                or body_bytes > FRAME_MAX_BYTES
                or key_bytes + extras_bytes > body_bytes
            ):
                if magic == _REQUEST and opcode in KEEP_ALIVES and not body_bytes:
                    self.replies += keep_alive_answer(opcode, opaque)  # a node may ask us, too
                    position += HEADER_BYTES
                    continue
                return self._refuse(magic, opcode, opaque, body_bytes, position)
            start = position + HEADER_BYTES
            end = start + body_bytes
            if end > size:
                self._want = end - position
                break
            if not quiet:
                place = self._settled
                number = order[place] if place < self._packed else -1
                if number < 0 or opaque != (first_opaque + number) % _OPAQUES:
                    return self._refuse(magic, opcode, opaque, body_bytes, position)
                self._settled = place + 1
            elif opcode == _NOOP:
                if not self._settle(opaque):
                    return self._refuse(magic, opcode, opaque, body_bytes, position)
                position = end
                continue
            elif not self._under_way(opaque):
                return self._refuse(magic, opcode, opaque, body_bytes, position)
            else:
                number = opaque
            if read is None:
                fresh[number] = status
            else:
                middle = start + extras_bytes
                extras, value = data[start:middle], data[middle + key_bytes : end]
                fresh[number] = read(number, NodeReply(status, cas, datatype, extras, value))
            position = end
        if not quiet and fresh:
            self.answers |= fresh
            fresh.clear()
        return position

    def _refuse(self, magic: int, opcode: int, opaque: int, size: int, position: int) -> int:
        self.nonsense = (
            f"an unexpected frame with magic {magic:#04x}, opcode {opcode:#04x}, opaque "
            f"{opaque:#x}, {size} bytes"
        )
        return position

    def _under_way(self, number: int) -> bool:
        """Tell whether a request was sent and not settled."""
        begin, end, order = self._settled, self._packed, self._order
        if begin == end or not order[begin] <= number <= order[end - 1]:
            return False
        if order[end - 1] - order[begin] == end - 1 - begin:  # nothing is left out between them
            return True
        return order[bisect_left(order, number, begin, end)] == number

    def _settle(self, fence: int) -> bool:
        """Take the answer to a fence; return whether it was the one that was to come."""
        if not self._fences or self._fences[0][0] != fence:
            return False
        _, end = self._fences.popleft()
        impatient = sum(each in REPEATED for each in self._fresh.values())
        self._stopping = self._stopping or 2 * impatient > end - self._settled
        self._settled = end
        self.answers |= self._fresh
        self._fresh.clear()
        return True
