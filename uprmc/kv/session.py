"""Picking the protocol of a connection by its first byte, once and for good.

0x80 starts a binary conversation, anything else is text (memcached reference, section 1).
"""

from __future__ import annotations

from collections.abc import Callable

from uprmc.kv.services import Services
from uprmc.kv.text_session import TextSession
from uprmc.kv.upr_session import ClientSession
from uprmc.ports import Session
from uprmc.protocol.opcodes import MAGIC_REQUEST


class Negotiation:
    """The session of a connection that has not sent anything yet; see `ports.Session`."""

    def __init__(self, services: Services, wake: Callable[[], None], *, by_key: bool) -> None:
        self.closing = False
        self.input_full = False
        self.successor: Session | None = None
        self._services = services
        self._wake = wake
        self._by_key = by_key

    def receive_data(self, data: bytes) -> None:
        """Choose by the first byte and pass everything on."""
        if self.successor is None and data:
            kind = ClientSession if data[0] == MAGIC_REQUEST else TextSession
            self.successor = kind(self._services, self._wake, by_key=self._by_key)
        if self.successor is not None:
            self.successor.receive_data(data)

    def tick(self, now: float) -> None:
        """Nothing to do before the first byte."""

    def data_to_send(self, budget: int) -> list[bytes]:
        """Return nothing: the client sends first."""
        return []

    def buffered(self) -> tuple[int, int]:
        """Nothing is buffered yet."""
        return 0, 0

    def connection_lost(self) -> None:
        """Nothing is buffered yet."""
