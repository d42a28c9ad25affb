"""A client's conversation in the binary protocol, one frame at a time.

Job: cut a frame out of the input, check its layout and whether the user may use it, carry it out by
`command_table.HANDLERS`, answer refusals. Messages of TAP go to the adapter.

Neighbours: `binary_session` calls this for all that it cannot do directly.

Note: no command is answered twice. A command whose value is only on disk raises before it changes
anything; its frame stays in the input and is carried out again once the value has been read.

Source: memcached reference, section 2.
"""

from __future__ import annotations

from collections.abc import Callable

from uprmc.errors import (
    AccessDenied,
    NotResident,
    OutOfPlace,
    RemoteProtocolError,
    TemporaryFailure,
)
from uprmc.kv.binary_conversation import BinaryConversation, Request
from uprmc.kv.change_commands import STORE_OPCODES, refuse_too_large
from uprmc.kv.command_table import HANDLERS
from uprmc.kv.door import STRANGER_MAX_BYTES
from uprmc.kv.refusals import REFUSALS, refusal_of
from uprmc.kv.roles import MANAGEMENT, denied_opcodes, needs_of
from uprmc.kv.services import Services, TapPush
from uprmc.protocol.header import pack_response, unpack_request
from uprmc.protocol.opcodes import (
    HEADER_BYTES,
    KEY_MAX_BYTES,
    MAGIC_REQUEST,
    MAGIC_RESPONSE,
    STATUS_TEXT,
    Opcode,
    Status,
    opcode_name,
    shape_error,
)
from uprmc.protocol.tap import PUSHED

#: Versions created elsewhere, which may have to be compared with tombstones on disk.
_WITH_META = frozenset(
    {
        *(Opcode.SET_WITH_META, Opcode.SETQ_WITH_META),
        *(Opcode.ADD_WITH_META, Opcode.ADDQ_WITH_META),
        *(Opcode.DEL_WITH_META, Opcode.DELQ_WITH_META),
    }
)
_NOTHING: frozenset[int] = frozenset()
#: Tombstones that are read in one round for one connection.
_AHEAD_MAX = 256

#: TAP_CONNECT and what producers of TAP send: the adapter judges their shapes.
TAP_OPCODES = frozenset({Opcode.TAP_CONNECT, *PUSHED})

#: Extras, section and key of a pushed message are no longer than this.
_PUSH_MOST_BESIDE_VALUE = HEADER_BYTES + 2 * KEY_MAX_BYTES


def _ignore(_: bool) -> None:
    """Ignore the result: the command that needs an unreadable value asks for it again."""


class BinaryFrames(BinaryConversation):
    """Carries out single frames."""

    __slots__ = ("_denied", "_most_body_bytes", "_push")

    def __init__(self, services: Services, wake: Callable[[], None], *, by_key: bool) -> None:
        super().__init__(services, wake, by_key=by_key)
        self._push: TapPush | None = None
        door = services.door
        self._denied = denied_opcodes(door.roles) if door is not None else _NOTHING
        stranger = door is not None and door.roles is None
        self._most_body_bytes = STRANGER_MAX_BYTES if stranger else 2**32

    def _one(self, data: bytes, position: int, size: int) -> int:
        """Carry out the frame at `position`; return its length.

        0 means that the frame waits for something (or did) and must be carried out again; a
        negative number means that this many bytes are needed first.
        """
        magic, opcode, key_length, extras_length, datatype, number, body_length, opaque, cas = (
            unpack_request(data, position)
        )
        if magic != MAGIC_REQUEST:
            self._close(f"magic {magic:#04x} in a binary conversation")
            return size - position
        length = HEADER_BYTES + body_length
        if opcode in self._denied or body_length > self._most_body_bytes:
            self._deny(opcode, opaque)
            return self._skip(length, size - position)
        refusal = shape_error(opcode, extras_length, key_length, body_length)
        if opcode in TAP_OPCODES and self._speaks_tap and not (refusal and refusal.closes):
            if opcode == Opcode.TAP_CONNECT:
                return self._open_tap()
            return self._take_push(data, position, size)
        if refusal is not None:
            self._send_status(opcode, refusal.status, opaque)
            if refusal.closes:
                self._close(f"opcode {opcode:#04x}: {refusal.status.name.lower()}")
            return self._skip(length, size - position)
        middle = HEADER_BYTES + extras_length + key_length
        too_large = length - middle > self._services.settings.max_item_bytes
        needed: int = middle if too_large else length
        if size - position < needed:
            return -needed
        body = data[position + HEADER_BYTES : position + needed]
        key = body[extras_length : extras_length + key_length]
        request = Request(
            opcode,
            self._number_in(opcode, number, key),
            opaque,
            cas,
            datatype,
            body[:extras_length],
            key,
            body[extras_length + key_length :],
        )
        if too_large:
            return self._refuse_large_value(request, length, size - position)
        if self._carry_out(request):
            return int(length)
        if opcode in _WITH_META:
            self._want_ahead(data, position + length, size)
        return 0

    def _want_ahead(self, data: bytes, position: int, size: int) -> None:
        """Ask for the tombstones of the versions that follow one that waits for a tombstone.

        The answers are available while it and the versions behind it are carried out again.
        """
        wanted: list[tuple[int, bytes]] = []
        while position + HEADER_BYTES <= size and len(wanted) < _AHEAD_MAX:
            magic, opcode, key_length, extras_length, _, number, body_length, *_ = unpack_request(
                data, position
            )
            start = position + HEADER_BYTES + extras_length
            key = data[start : start + key_length]
            if magic != MAGIC_REQUEST or opcode not in _WITH_META or len(key) < key_length:
                break
            number = self._number_in(opcode, number, key)
            if 0 < key_length <= KEY_MAX_BYTES and self._may_have_tombstone(number, key):
                wanted.append((number, key))
            position += HEADER_BYTES + body_length
        if wanted:
            self.bucket.fetcher.want(wanted, _ignore)

    def _may_have_tombstone(self, number: int, key: bytes) -> bool:
        """Tell whether a key may have a tombstone that is only on disk."""
        vbucket = self.bucket.active.get(number)
        return vbucket is not None and vbucket.max_deleted_rev > 0 and key not in vbucket.table

    def _number_in(self, opcode: int, number: int, key: bytes) -> int:
        """Return the vBucket of a request."""
        return self.number_of(number, key)

    def _carry_out(self, request: Request) -> bool:
        """Run the command; ``False`` if it must be run again later."""
        door = self._services.door
        if door is not None and request.opcode in MANAGEMENT:
            door.managed(opcode_name(request.opcode))
        handler = HANDLERS.get(request.opcode)
        if handler is None:
            self._send_status(request.opcode, Status.UNKNOWN_COMMAND, request.opaque)
            return True
        try:
            handler(self, request)
        except NotResident as missing:
            if self._fetch_failed:
                self._fetch_failed = False
                self._refuse(request.opcode, request.opaque, TemporaryFailure("disk"))
                return True
            self._fetch(missing)
            return False
        except OutOfPlace as error:
            self._close(str(error))
        except REFUSALS as error:
            self._refuse(request.opcode, request.opaque, error)
        self._fetch_failed = False
        return True

    def _hand_over(self, rest: bytes) -> None:
        """See `Conversation`; also ends a push by TAP."""
        self._end_push()
        super()._hand_over(rest)

    # --- TAP ------------------------------------------------------------------------------------

    @property
    def _speaks_tap(self) -> bool:
        return self._services.tap is not None

    def _open_tap(self) -> int:
        """Let the adapter continue the conversation, beginning with the TAP_CONNECT."""
        assert self._services.tap is not None
        services = self._services
        over = None if services.door is None else services.door.over
        self.successor = self._services.tap.connect(self._wake, services.report_misuse, over)
        return 0

    def _take_push(self, data: bytes, position: int, size: int) -> int:
        """Pass a message of a TAP producer to the consumer; returns as `_one`."""
        _, opcode, key_length, extras_length, _, number, body_length, opaque, cas = unpack_request(
            data, position
        )
        length = int(HEADER_BYTES + body_length)
        if length > self._services.settings.max_item_bytes + _PUSH_MOST_BESIDE_VALUE:
            self._send_status(opcode, Status.TOO_LARGE, opaque)
            return self._skip(length, size - position)
        if size - position < length:
            return -length
        middle = position + HEADER_BYTES + extras_length
        extras, rest = data[middle - extras_length : middle], data[middle : position + length]
        if self._push is None:
            assert self._services.tap is not None
            self._push = self._services.tap.consumer()
        try:
            answer = self._push.take(opcode, number, opaque, cas, extras, key_length, rest)
        except (OutOfPlace, RemoteProtocolError) as error:
            self._close(str(error))
        else:
            if answer is not None:
                self._send(answer)
        return length

    def _end_push(self) -> None:
        push, self._push = self._push, None
        if push is not None:
            push.close()

    def connection_lost(self) -> None:
        """See `Conversation`; also ends a push by TAP."""
        super().connection_lost()
        self._end_push()

    def _refuse_large_value(self, request: Request, length: int, available: int) -> int:
        if request.opcode in STORE_OPCODES:
            refuse_too_large(self, request)
        else:
            self._send_status(request.opcode, Status.TOO_LARGE, request.opaque)
        return self._skip(length, available)

    def _skip(self, length: int, available: int) -> int:
        """Drop a frame of which only a part may have arrived; return the size of that part.

        A peer that exceeds the frame limit is disconnected, because reading on is not worth it.
        """
        if length > self._services.settings.max_frame_bytes and not self.closing:
            self._close(f"a frame of {length} bytes is announced")
        self._discard = max(0, length - available)
        return min(length, available)

    def _deny(self, opcode: int, opaque: int, wanted: int | None = None) -> None:
        """Refuse a command that the user may not use; who has not logged in is disconnected.

        `wanted` is the opcode whose roles it needs, ``None`` = its own.
        """
        door = self._services.door
        assert door is not None
        door.denied(opcode_name(opcode))
        if door.roles is None:
            self._send_status(opcode, Status.AUTH_ERROR, opaque)
            self.closing = True
        else:
            why = AccessDenied(needs_of(opcode if wanted is None else wanted))
            self._refuse(opcode, opaque, why)

    def _refuse(self, opcode: int, opaque: int, error: Exception) -> None:
        self._send(self._refusal(opcode, opaque, error))

    def _refusal(self, opcode: int, opaque: int, error: Exception) -> bytes:
        status, text = refusal_of(error, opcode, with_lock_errors=self.with_lock_errors)
        return _error_reply(opcode, status, opaque, text)

    def _send_status(self, opcode: int, status: Status, opaque: int) -> None:
        self._send(_error_reply(opcode, status, opaque, STATUS_TEXT[status]))


def _error_reply(opcode: int, status: Status, opaque: int, text: bytes) -> bytes:
    header = pack_response(MAGIC_RESPONSE, opcode, 0, 0, 0, status, len(text), opaque, 0)
    return header + text
