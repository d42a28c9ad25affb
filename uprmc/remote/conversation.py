"""What every connection to a producer keeps count of: questions, acknowledgements, silence.

- `Questions`: who waits for which answer, by opaque.
- `FlowControl`: when to acknowledge what was processed, so that the producer sends on.
- `Silence`: whether a producer has said nothing for too long.
- `keep_alive_answer`: what to say to its keep-alives.
- `take_frames`: what is sent next.

Nothing here reads a clock or a socket: times are monotonic seconds that callers pass in.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Generic, TypeVar

from uprmc.errors import RemoteProtocolError
from uprmc.protocol.header import encode_request, encode_response
from uprmc.protocol.opcodes import Opcode
from uprmc.protocol.upr import BUFFER_ACK_EXTRAS

#: Requests of a producer that only ask whether we are still there.
KEEP_ALIVES = frozenset({Opcode.UPR_NOOP, Opcode.NOOP})

#: Most bytes that one frame can acknowledge.
_ACK_MAX_BYTES = 2**32 - 1

_OPAQUE_MAX = 0xFFFFFFFF

Waiting = TypeVar("Waiting")


class Questions(Generic[Waiting]):
    """Questions of one connection that have no answer yet, each with what waits for it.

    An answer to what was not asked is nobody's: streams may have ended meanwhile. One with another
    opcode than its question's breaks the protocol: a strict connection ends then, a tolerant one
    goes on waiting.
    """

    __slots__ = ("_last", "_strict", "_waiting")

    def __init__(self, *, strict: bool) -> None:
        self._strict = strict
        self._last = 0
        self._waiting: dict[int, tuple[int, Waiting]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def new_opaque(self) -> int:
        """Return a number that no other request of this connection has: 1, 2, 3, ..."""
        self._last = self._last % _OPAQUE_MAX + 1
        return self._last

    def gave(self, opaque: int) -> bool:
        """Return whether `new_opaque` may have returned this number."""
        return 0 < opaque <= self._last

    def expect(self, opcode: int, waiting: Waiting, opaque: int = 0) -> int:
        """Note a question; returns its opaque, a new one unless it is given."""
        opaque = opaque or self.new_opaque()
        self._waiting[opaque] = (opcode, waiting)
        return opaque

    def answered(self, opcode: int, opaque: int) -> Waiting | None:
        """Return who waits for this answer, and wait no longer; ``None`` if nobody does.

        Raises:
            RemoteProtocolError: the question was another one, and the connection is strict.
        """
        found = self._waiting.get(opaque)
        if found is None:
            return None
        if found[0] != opcode:
            if self._strict:
                raise RemoteProtocolError(f"opcode {opcode:#04x} answers {found[0]:#04x}")
            return None
        del self._waiting[opaque]
        return found[1]

    def waiting_for(self, opcode: int, opaque: int) -> Waiting | None:
        """Return who waits for this answer, and go on waiting: there is more than one."""
        found = self._waiting.get(opaque)
        return found[1] if found is not None and found[0] == opcode else None

    def forget(self, opaque: int) -> None:
        """Ignore the answer to this question, if it was asked at all."""
        self._waiting.pop(opaque, None)

    def opcodes(self) -> list[int]:
        """Return the opcodes of all that wait, oldest first."""
        return [opcode for opcode, _ in self._waiting.values()]

    def clear(self) -> list[Waiting]:
        """Forget all of them and return who waited, oldest first."""
        waiting = [each for _, each in self._waiting.values()]
        self._waiting.clear()
        return waiting


def take_frames(frames: deque[bytes], out: list[bytes], budget: int) -> int:
    """Move frames to `out` until they have `budget` bytes; return how many bytes."""
    sent = 0
    while frames and sent < budget:
        frame = frames.popleft()
        out.append(frame)
        sent += len(frame)
    return sent


class FlowControl:
    """When to acknowledge what a producer has sent.

    It sends no more than its buffer ahead of what was acknowledged. A share of the buffer is
    acknowledged at a time, so that it goes on with the rest meanwhile; less than that only when it
    is old enough.
    """

    def __init__(self, buffer_bytes: int, share: float, after_s: float = math.inf) -> None:
        """Begin with nothing processed.

        Args:
            buffer_bytes: see the class; 0 = the producer has no flow control.
            share: of the buffer, from 0 to 1.
            after_s: seconds after which less than that is acknowledged, too.
        """
        self.buffer_bytes = buffer_bytes  # how far the producer may be ahead
        # unacked_bytes: processed and not yet acknowledged.
        # acked_bytes: acknowledged in all.
        self.unacked_bytes = self.acked_bytes = 0
        self.held_back = False  # whether what is due was put off
        self._share = share
        self._after_s = after_s
        self._acked_at = 0.0

    def processed(self, size: int) -> int:
        """Count bytes of frames; returns how many are to be acknowledged now."""
        self.unacked_bytes += size
        due = 0 < self._share * self.buffer_bytes <= self.unacked_bytes
        return self._acknowledge() if due else 0

    def tick(self, now: float) -> int:
        """Return how many bytes are to be acknowledged because of their age."""
        if not self.unacked_bytes:
            self._acked_at = now
            return 0
        if now - self._acked_at < self._after_s and not self.held_back:
            return 0
        self._acked_at = now
        return self._acknowledge()

    def _may_go_on(self) -> bool:
        """Tell whether the producer may send more; if not, the next tick asks again."""
        return True

    def _acknowledge(self) -> int:
        self.held_back = not self._may_go_on()
        if self.held_back:
            return 0
        size = min(self.unacked_bytes, _ACK_MAX_BYTES)
        self.unacked_bytes -= size
        self.acked_bytes += size
        return size


class Silence:
    """How long a producer has said nothing."""

    __slots__ = ("_since", "broken")

    def __init__(self) -> None:
        self.broken = True  # it has said something since the last look, or need not have
        self._since = 0.0

    def heard(self, now: float) -> None:
        """Note a sign of life at this time."""
        self.broken, self._since = False, now

    def excuse(self, seconds: float) -> None:
        """Do not count time in which nobody listened."""
        self._since += seconds

    def lasts(self, now: float, limit_s: float) -> bool:
        """Return whether it lasts longer than this by now."""
        if self.broken:
            self.heard(now)
        return now - self._since > limit_s


def acknowledgement(size: int) -> bytes:
    """Return the frame that acknowledges this many bytes."""
    return encode_request(Opcode.UPR_BUFFER_ACK, extras=BUFFER_ACK_EXTRAS.pack(size))


def keep_alive_answer(opcode: int, opaque: int) -> bytes:
    """Return the answer to one of `KEEP_ALIVES`."""
    return encode_response(opcode, opaque=opaque)
