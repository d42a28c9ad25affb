"""The wire of a dialled connection: frames out of bytes cut anywhere, handshake, signs of life.

`Link` is this with vBuckets. Here nothing is known of them but how their frames look: a frame that
breaks the protocol raises in whoever takes it, and ends the connection with `error`; nothing raises
out of a session's doors.

Source: UPR reference 2.1, 2.11, 2.13, 4.7.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from uprmc.errors import CommandError, ProtocolError, RemoteProtocolError
from uprmc.login.mechanisms import LoginRefused
from uprmc.places import parsed
from uprmc.ports import Session
from uprmc.protocol.header import RequestFrame, ResponseFrame, unpack_request
from uprmc.protocol.opcodes import HEADER_BYTES, MAGIC_REQUEST, MAGIC_RESPONSE, Opcode, status_text
from uprmc.protocol.shapes import shape_error
from uprmc.remote import features
from uprmc.remote.login import Login, login_in_turns, nonce_of
from uprmc.upr.hub import Hub
from uprmc.upr.peer import UprRequest
from uprmc.upr.receive.receiver import Receiver

_AGENT = b"uprmc"

#: A source is to be heard this often within the time after which it is given up, and not more often
#: than old ones can be asked for.
_SIGNS_OF_LIFE = 2
_KEEP_ALIVE_MIN_S = 1.0

#: A source has a second to be asked in, so silence means nothing before this.
_LEAST_PATIENCE_S = 4.0

_SHOWN_BYTES = 16


class LinkSession(Receiver):
    """A connection that this node has dialled, without streams.

    Implements `ports.Session`.

    Attributes:
        place: what was dialled.
        error: what the other node has done wrong, ``""`` while nothing.
        open: whether it may be asked for streams.
        granted: keys of CONTROL that it has accepted.
        terms: whether it knows terms.
    """

    successor: Session | None = None

    def __init__(self, hub: Hub, name: bytes, wake: Callable[[], None], place: str = "") -> None:
        """Begin a conversation on a connection that is made.

        Args:
            hub: of the node.
            name: of the connection.
            wake: as for other sessions.
            place: what was dialled; it matters to a login only.
        """
        super().__init__(hub, name, wake)
        self.error = ""
        self.place = place
        self.open = self.closing = self.input_full = False
        self.granted: set[bytes] = set()
        self.terms = False
        self._chunks: list[bytes] = []
        self._held = 0
        self._wanted = HEADER_BYTES
        self._max_body_bytes = hub.bucket.settings.kv.max_frame_bytes - HEADER_BYTES
        self._now = 0.0
        self._computing: Callable[[], None] | None = None  # the proof of a login, in turns
        if hub.credentials is None:
            self._greet()
        else:
            safe = bool(hub.settings.dial_ca) or parsed(place).is_local
            nonce = nonce_of(hub.bucket.entropy)
            self._log_in(login_in_turns(hub.credentials, nonce, safe=safe))

    # --- the handshake --------------------------------------------------------------------------

    def _log_in(self, steps: Login, reply: ResponseFrame | None = None) -> None:
        """Take an answer, or compute for a turn."""
        try:
            request = steps.send(reply)
        except StopIteration:
            self._greet()
        except LoginRefused as error:
            raise RemoteProtocolError(f"it {error}") from None
        else:
            go_on = partial(self._log_in, steps)
            if request is None:
                self._computing = go_on
                self._wake()
            else:
                self.ask(request.opcode, go_on, key=request.key, value=request.value)

    def _greet(self) -> None:
        settings = self.hub.settings
        wants = features.REGISTERED_REPLICA if self.hub.instance else features.REPLICA
        interval_s = max(_KEEP_ALIVE_MIN_S, settings.dial_timeout_s / _SIGNS_OF_LIFE)
        frames = [
            wants.hello(_AGENT),
            wants.open(self.name),
            *wants.controls(buffer_bytes=settings.consumer_buffer, interval_s=interval_s),
        ]
        self._unanswered = len(frames)
        for each in frames:
            answered = partial(self._greeted, each)
            self.ask(each.opcode, answered, extras=each.extras, key=each.key, value=each.value)

    def _greeted(self, asked: RequestFrame, reply: ResponseFrame) -> None:
        self._unanswered -= 1
        if features.REPLICA.is_fatal(asked, reply.status):
            what = f"{Opcode(asked.opcode).name.lower()} {asked.key.decode('latin-1')}"
            raise RemoteProtocolError(f"it refuses {what}: {reply.reason}")
        if asked.opcode == Opcode.HELLO:
            self.terms = features.tells_terms(reply.status, reply.value)
        elif asked.opcode == Opcode.UPR_CONTROL and not reply.status:
            self.granted.add(asked.key)
        if not self._unanswered:
            self.open = True
            self._opened()

    # --- the session's doors --------------------------------------------------------------------

    def receive_data(self, data: bytes) -> None:
        """See `ports.Session`."""
        if self.closing:
            return
        self.silence.broken = True
        if self._held:
            self._chunks.append(data)
            self._held += len(data)
            if self._held < self._wanted:
                return
            data = b"".join(self._chunks)
            self._chunks, self._held = [], 0
        try:
            self._run(data)
        except (CommandError, ProtocolError) as error:
            self._fail(str(error))
        self._settle_input()

    def data_to_send(self, budget: int) -> list[bytes]:
        """See `ports.Session`."""
        pieces: list[bytes] = []
        computing, self._computing = self._computing, None
        if computing is not None and not self.closing:
            try:
                computing()
            except ProtocolError as error:
                self._fail(str(error))
        self.fill(pieces, budget)
        return pieces

    def tick(self, now: float) -> None:
        """See `ports.Session`; the more often it is called, the fresher is what both sides know."""
        if self.closing or now < self._now:
            return
        if self.input_full:
            self.silence.heard(now)
        self._now = now
        patience_s = max(self.hub.settings.dial_timeout_s, _LEAST_PATIENCE_S)
        if self.silence.lasts(now, patience_s):
            self._fail(f"it has said nothing for {patience_s:g} s")
            return
        self._acknowledge(self.window.tick(now))
        self._settle_input()
        if self.open:
            self._due(now)

    def buffered(self) -> tuple[int, int]:
        """See `ports.Session`; what waits to be sent is a few requests."""
        return self._held, 0

    def connection_lost(self) -> None:
        """See `ports.Session`."""
        self.closing, self.open = True, False
        self._computing = None
        self._chunks, self._held = [], 0
        self.close()

    def disconnect(self, why: str) -> None:
        """Hang up."""
        super().disconnect(why)
        self.closing, self.open = True, False

    def _fail(self, error: str) -> None:
        """Hang up because of what the other node does."""
        self.error = self.error or error
        self._frames.clear()
        self.disconnect(error)

    def _settle_input(self) -> None:
        """Stop reading from a node that sends on although nothing is acknowledged."""
        window = self.window
        limit = self.hub.settings.consumer_buffer + self._max_body_bytes
        full = window.held_back and window.unacked_bytes > limit
        if full is not self.input_full:
            self.input_full = full
            self._wake()

    # --- frames ---------------------------------------------------------------------------------

    def _run(self, data: bytes) -> None:
        position, size, wanted = 0, len(data), HEADER_BYTES
        while size - position >= HEADER_BYTES:
            used = self._one(data, position, size)
            if self.closing:
                return
            if used < 0:
                wanted = -used
                break
            position += used
        if position < size:
            self._chunks.append(data[position:] if position else data)
            self._held, self._wanted = size - position, wanted

    def _one(self, data: bytes, position: int, size: int) -> int:
        """Take the frame at `position`, and those behind it that are like it; return their bytes.

        A number below 0 says how many are needed first.
        """
        magic, opcode, key_length, extras_length, datatype, number, body_length, opaque, cas = (
            unpack_request(data, position)
        )
        if opcode == Opcode.UPR_MUTATION and magic == MAGIC_REQUEST:
            stream = self.stream_of(number, opaque)
            if stream is not None:
                taken = self.take_run(data, position, stream) - position
                if taken:
                    return taken
        if magic not in (MAGIC_REQUEST, MAGIC_RESPONSE):
            shown = data[position : position + _SHOWN_BYTES]
            raise RemoteProtocolError(
                f"it says {shown!r}: is that the port for UPR, and is TLS on at both ends or none?"
            )
        if extras_length + key_length > body_length or body_length > self._max_body_bytes:
            raise RemoteProtocolError(f"a frame {opcode:#04x} with a body of {body_length} bytes")
        start = position + HEADER_BYTES
        end: int = start + body_length
        if end > size:
            return position - end
        middle = start + extras_length
        key_end = middle + key_length
        extras, key, value = data[start:middle], data[middle:key_end], data[key_end:end]
        if magic == MAGIC_RESPONSE:
            self.answered(ResponseFrame(opcode, number, b"", extras, value, opaque, cas, datatype))
        else:
            refusal = shape_error(opcode, extras_length, key_length, body_length)
            if refusal is not None:
                raise RemoteProtocolError(
                    f"a frame {opcode:#04x}: {status_text(refusal.status)} ({body_length} bytes)"
                )
            self._take(UprRequest(opcode, number, opaque, extras, key, value, cas, datatype))
        return end - position

    # --- for `Link` -----------------------------------------------------------------------------

    def _opened(self) -> None:
        """Learn that the handshake is over."""
        raise NotImplementedError  # abstract

    def _due(self, now: float) -> None:
        """Do what has become due while the connection is open."""
        raise NotImplementedError  # abstract

    def _take(self, request: UprRequest) -> None:
        """Take a frame; raises `CommandError` or `ProtocolError` for one that is wrong."""
        raise NotImplementedError  # abstract
