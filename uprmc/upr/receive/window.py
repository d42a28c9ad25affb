"""Flow control as a consumer: when to acknowledge what a producer has sent.

A fifth of the buffer is acknowledged at a time, the rest after five seconds. While memory is short
nothing is: what is not acknowledged slows the producer down.

Source: UPR reference 4.6.
"""

from __future__ import annotations

from uprmc.engine.memory_account import MemoryAccount

#: Acknowledge when this share of the buffer was processed, or after so long.
_ACK_SHARE = 0.2
_ACK_AFTER_S = 5.0

#: Most bytes that one frame can acknowledge.
_ACK_MAX_BYTES = 2**32 - 1


class Window:
    """See the module docstring. Times are monotonic seconds.

    Attributes:
        acked_bytes: acknowledged in all.
        backoffs: how often acknowledging was put off for lack of memory.
        held_back: whether it is put off at present.
        unacked_bytes: processed and not yet acknowledged.
    """

    def __init__(self, account: MemoryAccount, buffer_bytes: int) -> None:
        self.acked_bytes = self.backoffs = self.unacked_bytes = 0
        self.held_back = False
        self._account = account
        self._ack_at = _ACK_SHARE * buffer_bytes
        self._acked_at = 0.0

    def processed(self, size: int) -> int:
        """Count bytes of frames; return how many are to be acknowledged now."""
        self.unacked_bytes += size
        return self._acknowledge() if self.unacked_bytes >= self._ack_at else 0

    def tick(self, now: float) -> int:
        """Return how many bytes are to be acknowledged because of their age."""
        if not self.unacked_bytes:
            self._acked_at = now
            return 0
        if now - self._acked_at < _ACK_AFTER_S and not self.held_back:
            return 0
        self._acked_at = now
        return self._acknowledge()

    def _acknowledge(self) -> int:
        account = self._account
        short = account.used > account.write_limit
        if short:
            self.backoffs += not self.held_back
            self.held_back = True
            if not account.disk_reason:
                account.on_pressure()
            return 0
        self.held_back = False
        size = min(self.unacked_bytes, _ACK_MAX_BYTES)
        self.unacked_bytes -= size
        self.acked_bytes += size
        return size
