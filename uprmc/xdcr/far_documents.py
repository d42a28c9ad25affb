"""Reads which documents the target has, and where each was first accepted: one vBucket at a time.

It is an ordinary UPR stream without values, from zero up to what the vBucket has when it begins.
What was read is acknowledged only when the owner is through with it, so no more than `BUFFER_BYTES`
of a vBucket are in memory.

Source: UPR reference 2; systems reference a.8.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from uprmc.config import Settings
from uprmc.errors import RemoteProtocolError
from uprmc.model import SEQNO_MAX, Origin
from uprmc.ports import Clock
from uprmc.protocol.header import Frame, RequestFrame, ResponseFrame
from uprmc.protocol.opcodes import HEADER_BYTES, Opcode, Status, StreamFlag
from uprmc.protocol.origins import ORIGIN_META, ORIGIN_META_BYTES, ORIGIN_META_HEAD, decode_origin
from uprmc.protocol.upr import MUTATION_EXTRAS, STREAM_END_EXTRAS, StreamRequest
from uprmc.remote import features
from uprmc.remote.conversation import acknowledgement
from uprmc.remote.login import Login
from uprmc.xdcr.node_session import NodeSession

#: As much as is read in one turn at most.
BUFFER_BYTES = 16 * 1024

_FLAGS = int(StreamFlag.LATEST | StreamFlag.ACTIVE_ONLY)


class FarDocument(NamedTuple):
    """A document of the target.

    Attributes:
        key: its key.
        rev, cas: of the version there.
        origin: where that was first accepted; ``None`` = at the target.
    """

    key: bytes
    rev: int
    cas: int
    origin: Origin | None


class FarOwner(Protocol):
    """Who reads."""

    def ready(self, far: FarDocuments) -> None:
        """Take note that `FarDocuments.read` may be called."""

    def take(self, far: FarDocuments, documents: list[FarDocument], *, done: bool) -> None:
        """Look at documents, and call `FarDocuments.go_on` then; `done` = there are no more."""

    def far_failed(self, place: str, why: str, *, final: bool = False) -> None:
        """Take note that no more can be read, and why.

        Args:
            place: of the node.
            why: in words.
            final: another connection would not be better.
        """


class FarDocuments(NodeSession):
    """A connection that reads the keys of one node of the target."""

    def __init__(
        self,
        place: str,
        owner: FarOwner,
        name: bytes,
        login: Login | None,
        settings: Settings,
        clock: Clock,
        wake: Callable[[], None],
    ) -> None:
        self._owner = owner
        self._name = name
        self._stream = 0
        self._documents: list[FarDocument] = []
        self._unacknowledged = 0
        self._owner_is_busy = self._ended = self._hung_up = False
        handshake = features.COMPARER
        super().__init__(place, handshake.features, login, settings, clock, wake)

    # --- the handshake --------------------------------------------------------------------------

    def _welcomed(self) -> None:
        handshake = features.COMPARER
        self._shake(handshake.open(self._name))
        for control in handshake.controls(buffer_bytes=BUFFER_BYTES):
            self._shake(control)

    def _shake(self, asked: RequestFrame) -> None:
        def answered(reply: ResponseFrame) -> None:
            if features.COMPARER.is_fatal(asked, reply.status):
                why = "it tells no origins of documents, so nothing can be compared"
                if reply.status == Status.ACCESS_DENIED:
                    why = f"it refuses: {reply.reason}"
                self._fail(why, final=True)
            elif asked.key == features.COMPARER.asks[-1]:
                self._owner.ready(self)

        self._ask(asked.opcode, answered, extras=asked.extras, key=asked.key, value=asked.value)

    # --- a vBucket ------------------------------------------------------------------------------

    def read(self, number: int) -> None:
        """Begin with a vBucket; the one before is done."""
        request = StreamRequest(_FLAGS, 0, SEQNO_MAX, 0, 0, 0)
        self._ended = False
        self._stream = self._ask(
            Opcode.UPR_STREAM_REQUEST, self._begun, vbucket=number, extras=request.encode()
        )

    def _begun(self, reply: ResponseFrame) -> None:
        if reply.status:
            self._fail(f"it does not let its vBucket be read: {reply.reason}")

    def go_on(self) -> None:
        """Take note that the owner is through with what it was given."""
        self._owner_is_busy = False
        if not self.closing:
            self._acknowledge()
            self._hand_over()

    def receive_data(self, data: bytes) -> None:
        """See `ports.Session`."""
        super().receive_data(data)
        if not self.closing:
            self._hand_over()

    def _hand_over(self) -> None:
        if self._owner_is_busy or not (self._documents or self._ended):
            if not self._owner_is_busy:
                self._acknowledge()
            return
        documents, self._documents = self._documents, []
        done, self._ended = self._ended, False
        self._owner_is_busy = True
        self._owner.take(self, documents, done=done)

    def _acknowledge(self) -> None:
        size, self._unacknowledged = self._unacknowledged, 0
        if size:
            self._frames.append(acknowledgement(size))
            self.wake()

    def _take(self, frame: Frame) -> None:
        if isinstance(frame, ResponseFrame):
            super()._take(frame)
            return
        if frame.opcode in _COUNTED:
            size = HEADER_BYTES + len(frame.extras) + len(frame.key) + len(frame.value)
            self._unacknowledged += size
        if frame.opaque != self._stream:
            super()._take(frame)
        elif frame.opcode == Opcode.UPR_MUTATION:
            self._documents.append(_document(frame))
        elif frame.opcode == Opcode.UPR_STREAM_END:
            (reason,) = STREAM_END_EXTRAS.unpack(frame.extras)
            if reason:
                self._fail("its vBucket has moved or has changed its history meanwhile")
            self._ended = True

    # --- the end --------------------------------------------------------------------------------

    def hang_up(self) -> None:
        """See `NodeSession`; nothing more is told."""
        self._hung_up = True
        super().hang_up()

    def _fail(self, why: str, *, final: bool = False) -> None:
        self.hang_up()
        self._owner.far_failed(self.place, why, final=final)

    def _lost(self) -> None:
        if not self._hung_up:
            self._owner.far_failed(self.place, "the connection is lost")


#: Frames that flow control counts.
_COUNTED = frozenset(
    {
        Opcode.UPR_SNAPSHOT_MARKER,
        Opcode.UPR_MUTATION,
        Opcode.UPR_DELETION,
        Opcode.UPR_EXPIRATION,
        Opcode.UPR_STREAM_END,
    }
)


def _document(frame: RequestFrame) -> FarDocument:
    """Read a mutation; raises `RemoteProtocolError`."""
    if len(frame.extras) != MUTATION_EXTRAS.size:
        raise RemoteProtocolError(f"a mutation with {len(frame.extras)} bytes of extras")
    _, rev, _, _, _, nmeta, _ = MUTATION_EXTRAS.unpack(frame.extras)
    meta = frame.value[len(frame.value) - nmeta :] if nmeta else b""
    if len(meta) == ORIGIN_META_BYTES and meta.startswith(ORIGIN_META_HEAD):
        origin: Origin | None = Origin(*ORIGIN_META.unpack(meta)[3:])
    else:
        origin = decode_origin(meta)
    return FarDocument(frame.key, rev, frame.cas, origin)
