"""Flow control of a replica: while memory is short nothing is acknowledged.

What is not acknowledged slows the producer down.

Source: UPR reference 4.6.
"""

from __future__ import annotations

from uprmc.engine.memory import MemoryAccount
from uprmc.remote.conversation import FlowControl

#: Acknowledge when this share of the buffer was processed, or after this many seconds.
_ACK_SHARE = 0.2
_ACK_AFTER_S = 5.0


class Window(FlowControl):
    """Decides what is acknowledged on one connection.

    Attributes:
        backoffs: how often acknowledging was put off for lack of memory.
        held_back: whether it is put off at present.
    """

    def __init__(self, account: MemoryAccount, buffer_bytes: int) -> None:
        super().__init__(buffer_bytes, _ACK_SHARE, _ACK_AFTER_S)
        self.backoffs = 0
        self._account = account

    def _may_go_on(self) -> bool:
        account = self._account
        if account.used <= account.write_limit:
            return True
        self.backoffs += not self.held_back
        if not account.disk_reason:
            account.on_pressure()
        return False
