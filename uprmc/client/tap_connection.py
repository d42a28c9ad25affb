"""The UPR connection behind one TAP client: what it is called, and its frames as they come.

Source: UPR reference 2.1; TAP reference 7.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from uprmc.client.events import Event
from uprmc.client.node_session import NodeSession
from uprmc.client.tap_frames import FramePasser
from uprmc.client.tap_questions import NOOP_INTERVAL_S
from uprmc.login.credentials import Credentials
from uprmc.protocol.header import RequestFrame, ResponseFrame
from uprmc.remote.conversation import keep_alive_answer

#: Before the client's name, as ep-engine has it and a node of ours.
PREFIX = b"eq_tapq:"

#: Producers of today take no longer name of a connection.
NAME_MAX_BYTES = 200

_DIGEST_CHARS = 32


def connection_name(name: bytes, suffix: bytes = b"") -> bytes:
    """Return what the UPR connection of a TAP client is called; long names end in a digest."""
    whole = PREFIX + name + suffix
    if len(whole) <= NAME_MAX_BYTES:
        return whole
    digest = hashlib.sha256(whole).hexdigest()[:_DIGEST_CHARS].encode()
    return whole[: NAME_MAX_BYTES - _DIGEST_CHARS - 1] + b"~" + digest


class ProducerSession(NodeSession):
    """A `NodeSession` whose streams are passed on as frames."""

    ack_share = 1 / 4

    def __init__(
        self,
        place: str,
        buffer_bytes: int,
        credentials: Credentials | None = None,
        *,
        tls: bool = False,
    ) -> None:
        super().__init__(
            place,
            "",
            buffer_bytes=buffer_bytes,
            noop_interval_s=NOOP_INTERVAL_S,
            credentials=credentials,
            tls=tls,
        )
        self.passer = FramePasser(place)
        self.decoder = self.passer

    def take(self, data: bytes) -> Iterator[Event]:
        """Return what `FramePasser.take` yields; keep-alives are answered."""
        for event in self.passer.take(data):
            if type(event) is RequestFrame:
                self._to_send.append(keep_alive_answer(event.opcode, event.opaque))
            else:
                yield event

    def send(self, frame: RequestFrame | ResponseFrame) -> None:
        """Have a frame sent that is not a question of a task."""
        self._to_send.append(frame.encode())
