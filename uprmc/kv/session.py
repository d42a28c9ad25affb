"""Picking the protocol of a connection by its first byte, once and for good.

0x80 starts a binary conversation, anything else is text (memcached reference, section 1). A client
that begins with TLS gets an error at once: no line begins so, and both would wait for each other.
"""

from __future__ import annotations

from collections.abc import Callable

from uprmc.kv.services import Services
from uprmc.kv.text import TextSession, TextStranger
from uprmc.kv.upr_session import ClientSession
from uprmc.ports import Session
from uprmc.protocol.opcodes import MAGIC_REQUEST
from uprmc.protocol.text_replies import ERROR

#: First byte of a TLS connection: a record of its handshake.
_TLS_HANDSHAKE = 0x16


class Negotiation:
    """The session of a connection that has not sent anything yet; see `ports.Session`."""

    def __init__(self, services: Services, wake: Callable[[], None], *, by_key: bool) -> None:
        self.closing = False
        self.input_full = False
        self.successor: Session | None = None
        self._services = services
        self._wake = wake
        self._by_key = by_key
        self._out: list[bytes] = []

    def receive_data(self, data: bytes) -> None:
        """Choose by the first byte and pass everything on."""
        if self.closing:
            return
        if self.successor is None and data:
            if data[0] == _TLS_HANDSHAKE:
                self._refuse_tls()
                return
            if data[0] == MAGIC_REQUEST:
                self.successor = ClientSession(self._services, self._wake, by_key=self._by_key)
            elif self._services.door is None:
                self.successor = TextSession(self._services, self._wake)
            else:
                self.successor = TextStranger(self._services, self._wake)
        if self.successor is not None:
            self.successor.receive_data(data)

    def _refuse_tls(self) -> None:
        self._out.append(ERROR)
        self.closing = True
        self._services.report_misuse("TLS at a listener without it")

    def tick(self, now: float) -> None:
        """End a connection that stays silent where users log in."""
        door = self._services.door
        if door is not None and self.successor is None and door.over(now):
            self.closing = True

    def data_to_send(self, budget: int) -> list[bytes]:
        """Return nothing, unless the client is refused: it sends first."""
        out, self._out = self._out, []
        return out

    def buffered(self) -> tuple[int, int]:
        """Nothing is buffered yet."""
        return 0, 0

    def connection_lost(self) -> None:
        """Nothing is buffered yet."""
