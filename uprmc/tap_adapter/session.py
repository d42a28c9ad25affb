"""A conversation with a client that speaks TAP: TAP_CONNECT in, the stream out, answers in.

Job: find the frames, check the connect, hand the client's answers to its `TapProducer` and pull
what that has to send. In a node a `kv` session hands over from the TAP_CONNECT on; in the
stand-alone process this is a connection's first session, so it answers what tools ask before.

Note: a client's answer may have any key and body (spymemcached sends a text of 36 bytes); the
session skips them. A connect that succeeds gets no answer but the stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from uprmc import MEMCACHED_VERSION
from uprmc.config import TapSettings
from uprmc.errors import CommandError, InvalidArguments, RemoteProtocolError, TemporaryFailure
from uprmc.ports import Clock, Session
from uprmc.protocol.header import encode_response, unpack_request
from uprmc.protocol.opcodes import (
    HEADER_BYTES,
    MAGIC_REQUEST,
    MAGIC_RESPONSE,
    STATUS_TEXT,
    Opcode,
    Status,
    shape_error,
)
from uprmc.protocol.tap import (
    PUSHED,
    TAP_BACKFILL_DATA,
    TAP_CONNECT_EXTRAS,
    Connect,
    ConnectFlag,
    decode_connect,
    decode_filter,
)
from uprmc.tap_adapter.names import Names, TapName
from uprmc.tap_adapter.producer import TapProducer
from uprmc.tap_adapter.upstream import MakeUpstream

# --- tap registry ---------------------------------------------------------------------------------
# Where clients that speak TAP come in. One for each process, in a node or in front of another.
#
# Job: make sessions, join a TAP_CONNECT with what is known of its name and with an upstream, and
# carry out what others ask about a client by its name. What it stands on is handed in.


#: Carries out ``stats WORDS``; ``None`` = there is no such group.
Statistics = Callable[[str], Iterable[tuple[str, str] | None] | None]


class TapOpened(NamedTuple):
    """A client's stream, and what is known of its name."""

    known: TapName
    producer: TapProducer


def _no_statistics(_words: str) -> None:
    """Stand in where there are none."""


def _no_pulls(*_: object) -> None:
    """Do nothing."""


@dataclass(slots=True)
class Past:
    """Sums over streams that are over; see `producer` for the names."""

    messages: int = 0
    items: int = 0
    nacks: int = 0
    sent_bytes: int = 0

    def add(self, producer: TapProducer) -> None:
        """Add one more."""
        found = producer.statistics()
        self.messages += found.messages
        self.items += found.items
        self.nacks += found.nacks
        self.sent_bytes += found.sent_bytes


class TapRegistry:
    """All TAP clients of one process."""

    def __init__(
        self,
        settings: TapSettings,
        names: Names,
        make_upstream: MakeUpstream,
        clock: Clock,
        monotonic: Callable[[], float],
    ) -> None:
        """See the class; `monotonic` returns seconds."""
        self.names = names  # all clients
        self.connects = 0  # TAP_CONNECTs that were accepted
        self.refusals = 0  # TAP_CONNECTs that were not
        self.pushes_refused = 0  # messages of masters on connections that are not for them
        self.past = Past()  # what streams that are over have sent
        #: What a session answers to ``stats``; at first there is no group.
        self.statistics: Statistics = _no_statistics
        #: Returns why no client can be served for now, ``""`` = all can.
        self.obstacle: Callable[[], str] = str
        #: Called with the name and the reason of each refusal.
        self.on_refused: Callable[[bytes, str], None] = _no_pulls
        #: Called with the name of a client whose stream is over, the reason, and whether the stream
        #: ended in good order.
        self.on_closed: Callable[[bytes, str, bool], None] = _no_pulls
        self._settings = settings
        self._make_upstream = make_upstream
        self._clock = clock
        self._monotonic = monotonic

    def tick(self) -> None:
        """Forget names whose time is over; call it about once a second."""
        self.names.tick(self._monotonic(), self._clock.now())

    @property
    def unix_minus_monotonic_s(self) -> float:
        """What turns monotonic times into Unix times now."""
        return self._clock.now() - self._monotonic()

    # --- streams --------------------------------------------------------------------------------

    def open(self, connect: Connect, wake: Callable[[], None]) -> TapOpened:
        """Begin a client's stream; one that it had is disconnected.

        Raises:
            CommandError: refused.
        """
        if obstacle := self.obstacle():
            raise TemporaryFailure(obstacle)
        now, unix_now = self._monotonic(), self._clock.now()
        known = self.names.connect(connect, now, unix_now)
        values = not known.connect.has(ConnectFlag.REQUEST_KEYS_ONLY)
        try:
            upstream = self._make_upstream(known.name, values, wake)
        except CommandError:
            self.names.left(known, now, unix_now, finished=False)
            raise
        producer = TapProducer(known.connect, known, upstream, self._settings, wake, now, unix_now)
        known.producer = producer
        self.connects += 1
        return TapOpened(known, producer)

    def close(self, opened: TapOpened) -> None:
        """Learn that a stream is over, no matter which side ended it."""
        known, producer = opened
        now, unix_now = self._monotonic(), self._clock.now()
        self.past.add(producer)
        why = producer.closed or "the client has hung up"
        producer.close()
        self.names.left(known, now, unix_now, finished=producer.finished)
        self.on_closed(known.name, why, producer.done)

    def refused(self, name: bytes, why: str) -> None:
        """Learn that a TAP_CONNECT was refused."""
        self.refusals += 1
        self.on_refused(name, why)

    # --- what others ask ------------------------------------------------------------------------

    def deregister(self, name: bytes) -> None:
        """Forget a client, and end its stream; harmless if there is none."""
        self.names.deregister(name)

    def change_filter(self, name: bytes, wanted: dict[int, int]) -> None:
        """Have a connected client get other vBuckets, each with its last closed checkpoint's id.

        Raises:
            InvalidArguments: no client of that name is connected.
        """
        known = self.names.find(name)
        if known is None or not isinstance(known.producer, TapProducer):
            raise InvalidArguments(f"no TAP client {name!r} is connected")
        known.producer.change_filter(wanted)

    def reset_chain(self) -> None:
        """Have every connected client begin again."""
        for known in list(self.names):
            if isinstance(known.producer, TapProducer):
                known.producer.reset()
        self.names.start_over()


# --- session --------------------------------------------------------------------------------------


Report = Callable[[str], None]
Over = Callable[[float], bool]

#: No client sends a longer frame: hang up.
FRAME_MAX_BYTES = 64 * 1024

#: While more than this waits to be sent, besides the stream, no command is carried out.
UNSENT_MAX_BYTES = 64 * 1024

_MAGICS = frozenset({MAGIC_REQUEST, MAGIC_RESPONSE})
_KNOWN_FLAGS = sum(ConnectFlag)
_ANSWERS = frozenset({*PUSHED})


def _ignore(_reason: str) -> None:
    """Do nothing."""


def never(_now: float) -> bool:
    """Stand in where there are no logins."""
    return False


class TapSession:
    """One conversation with a TAP client.

    Implements `ports.Session`.
    """

    def __init__(
        self,
        registry: TapRegistry,
        wake: Callable[[], None],
        report: Report = _ignore,
        over: Over = never,
    ) -> None:
        """Begin; the first bytes may be a TAP_CONNECT, or any command that it knows.

        Args:
            registry: the adapter's.
            wake: called when there is something to send by itself.
            report: called with a short reason when the peer breaks the protocol.
            over: gets the time, and tells whether to hang up.
        """
        self.closing = False
        self.input_full = False
        self.successor: Session | None = None
        self._registry = registry
        self._wake = wake
        self._report = report
        self._over = over
        self._input = b""
        self._out: list[bytes] = []
        self._unsent = 0
        self._opened: TapOpened | None = None

    def inherit(self, replies: list[bytes], unsent: int) -> None:
        """Take over what the session before this one has not sent yet."""
        self._out = replies
        self._unsent = unsent

    # --- the session ---------------------------------------------------------------------------

    def receive_data(self, data: bytes) -> None:
        """See `ports.Session`."""
        if not self.closing:
            self._input += data
            self._run()

    def tick(self, now: float) -> None:
        """See `ports.Session`: NOOPs, and the patience with who does not acknowledge."""
        if not self.closing and self._over(now):
            self._end()
        if self._opened is not None and not self.closing:
            producer = self._opened.producer
            producer.tick(now)
            if producer.closed:  # who reads nothing is not pulled, so `data_to_send` is not called
                self._end()

    def data_to_send(self, budget: int) -> list[bytes]:
        """See `ports.Session`: replies, then the stream."""
        pieces, self._out = self._out, []
        room, self._unsent = budget - self._unsent, 0
        if self.input_full:
            self.input_full = False
            self._run()
        opened = self._opened
        if opened is not None and not self.closing:
            if room > 0:
                opened.producer.fill(pieces, room)
            if opened.producer.closed:
                self._end()
            elif opened.producer.ends_unasked:
                # A client that has closed its half takes any end for the dump's: not before it is.
                self.input_full = True
        return pieces

    def buffered(self) -> tuple[int, int]:
        """See `ports.Session`."""
        return len(self._input), self._unsent

    def connection_lost(self) -> None:
        """See `ports.Session`."""
        self._end()
        self._out, self._unsent = [], 0

    def _end(self) -> None:
        """Hang up after what was put out; the stream is over."""
        self.closing = True
        self.input_full = False
        self._input = b""
        opened, self._opened = self._opened, None
        if opened is not None:
            self._registry.close(opened)

    def _misuse(self, reason: str) -> None:
        self._report(reason)
        self._end()

    # --- frames ---------------------------------------------------------------------------------

    def _run(self) -> None:
        data, place = self._input, 0
        while not self.closing:
            if self._unsent > UNSENT_MAX_BYTES:
                self.input_full = True
                break
            length = self._one(data, place)
            if not length:
                break
            place += length
        self._input = b"" if self.closing else data[place:]

    def _one(self, data: bytes, place: int) -> int:
        """Deal with the frame at `place`; returns its length, 0 = it is not whole yet."""
        if place < len(data) and data[place] not in _MAGICS:
            # Not only when the header is whole: a client of text would wait for ever.
            self._misuse(f"magic {data[place]:#04x} on a TAP connection")
            return len(data) - place
        if len(data) - place < HEADER_BYTES:
            return 0
        magic, opcode, key_length, extras_length, _, status, body_length, opaque, _ = (
            unpack_request(data, place)
        )
        length = int(HEADER_BYTES + body_length)
        if length > FRAME_MAX_BYTES:
            self._misuse(f"a frame of {length} bytes on a TAP connection")
            return length
        if magic == MAGIC_REQUEST and not self._has_shape(
            opcode, extras_length, key_length, body_length, opaque
        ):
            return length
        if len(data) - place < length:
            return 0
        if magic == MAGIC_RESPONSE:
            self._answered(opcode, opaque, status)
        else:
            body = data[place + HEADER_BYTES : place + length]
            self._request(opcode, opaque, status, body, extras_length, key_length)
        return length

    def _has_shape(
        self, opcode: int, extras_length: int, key_length: int, body_length: int, opaque: int
    ) -> bool:
        refusal = shape_error(opcode, extras_length, key_length, body_length)
        if refusal is None or (opcode == Opcode.TAP_CONNECT and not refusal.closes):
            return True  # `_connect` judges by rules of its own
        if refusal.closes:
            self._reply(opcode, opaque, refusal.status)
            self._misuse(f"opcode {opcode:#04x}: {refusal.status.name.lower()}")
        return not refusal.closes

    def _answered(self, opcode: int, opaque: int, status: int) -> None:
        opened = self._opened
        if opened is not None and opcode in _ANSWERS and not opened.producer.closed:
            opened.producer.answered(opcode, opaque, status)

    def _request(
        self,
        opcode: int,
        opaque: int,
        vbucket: int,
        body: bytes,
        extras_length: int,
        key_length: int,
    ) -> None:
        extras = body[:extras_length]
        key = body[extras_length : extras_length + key_length]
        value = body[extras_length + key_length :]
        if opcode == Opcode.TAP_CONNECT:
            self._connect(opaque, extras, key, value)
            return
        if opcode in PUSHED:  # what is in front of a node takes nothing for it
            self._registry.pushes_refused += 1
            self._reply(opcode, opaque, Status.NOT_SUPPORTED)
            return
        command = _COMMANDS.get(opcode)
        refusal = shape_error(opcode, extras_length, key_length, len(body))
        if command is None or refusal is not None:
            self._reply(opcode, opaque, refusal.status if refusal else Status.UNKNOWN_COMMAND)
            return
        try:
            command(self, opcode, opaque, key, value)
        except (CommandError, RemoteProtocolError):  # the filter of no known client, or torn
            self._reply(opcode, opaque, Status.INVALID_ARGUMENTS)

    def _reply(
        self, opcode: int, opaque: int, status: int = 0, value: bytes = b"", key: bytes = b""
    ) -> None:
        if status and not value:
            value = STATUS_TEXT[Status(status)]
        reply = encode_response(opcode, status=status, key=key, value=value, opaque=opaque)
        self._out.append(reply)
        self._unsent += len(reply)

    # --- TAP_CONNECT ----------------------------------------------------------------------------

    def _connect(self, opaque: int, extras: bytes, name: bytes, value: bytes) -> None:
        if self._opened is not None:
            self._misuse("a second TAP connect")
            return
        if _lacks_backfill_data(extras, value):
            self._misuse("a TAP connect with BACKFILL and without its time")
            return
        try:
            connect = decode_connect(name, extras, value)
            _check_flags(connect)
            self._opened = self._registry.open(connect, self._wake)
        except (RemoteProtocolError, CommandError) as error:
            self._reply(Opcode.TAP_CONNECT, opaque, _refusal_of(error))
            self._registry.refused(name, str(error))
            self._end()

    # --- other commands -------------------------------------------------------------------------

    def _succeed(self, opcode: int, opaque: int, key: bytes, value: bytes) -> None:
        """NOOP, and HELLO, which is granted nothing."""
        self._reply(opcode, opaque)

    def _version(self, opcode: int, opaque: int, key: bytes, value: bytes) -> None:
        self._reply(opcode, opaque, value=MEMCACHED_VERSION.encode())

    def _quit(self, opcode: int, opaque: int, key: bytes, value: bytes) -> None:
        if opcode == Opcode.QUIT:
            self._reply(opcode, opaque)
        self._end()

    def _stat(self, opcode: int, opaque: int, key: bytes, value: bytes) -> None:
        rows = self._registry.statistics(" ".join(key.decode("latin-1").split()))
        if rows is None:
            self._reply(opcode, opaque, Status.KEY_NOT_FOUND)
            return
        for row in rows:
            if row is not None:
                self._reply(opcode, opaque, key=row[0].encode(), value=row[1].encode())
        self._reply(opcode, opaque)

    def _deregister(self, opcode: int, opaque: int, key: bytes, value: bytes) -> None:
        self._registry.deregister(key)
        self._reply(opcode, opaque)

    def _change_filter(self, opcode: int, opaque: int, key: bytes, value: bytes) -> None:
        self._registry.change_filter(key, decode_filter(value))
        self._reply(opcode, opaque)

    def _reset_chain(self, opcode: int, opaque: int, key: bytes, value: bytes) -> None:
        self._registry.reset_chain()
        self._reply(opcode, opaque)


_COMMANDS: dict[int, Callable[[TapSession, int, int, bytes, bytes], None]] = {
    Opcode.NOOP: TapSession._succeed,
    Opcode.HELLO: TapSession._succeed,
    Opcode.VERSION: TapSession._version,
    Opcode.QUIT: TapSession._quit,
    Opcode.QUITQ: TapSession._quit,
    Opcode.STAT: TapSession._stat,
    Opcode.DEREGISTER_TAP_CLIENT: TapSession._deregister,
    Opcode.CHANGE_VB_FILTER: TapSession._change_filter,
    Opcode.RESET_REPLICATION_CHAIN: TapSession._reset_chain,
}


def _lacks_backfill_data(extras: bytes, value: bytes) -> bool:
    if len(extras) != TAP_CONNECT_EXTRAS.size or len(value) >= TAP_BACKFILL_DATA.size:
        return False
    return bool(TAP_CONNECT_EXTRAS.unpack(extras)[0] & ConnectFlag.BACKFILL)


def _check_flags(connect: Connect) -> None:
    """Refuse what cannot be: unknown bits, a dump that takes over, a takeover of nothing named.

    Raises:
        RemoteProtocolError: see the text.
    """
    if connect.flags & ~_KNOWN_FLAGS:
        raise RemoteProtocolError(f"unknown flags {connect.flags:#x}")
    if connect.has(ConnectFlag.TAKEOVER_VBUCKETS):
        if connect.has(ConnectFlag.DUMP):
            raise RemoteProtocolError("a dump cannot take over vBuckets")
        if not connect.has(ConnectFlag.LIST_VBUCKETS):
            raise RemoteProtocolError("a takeover that does not say of which vBuckets")


def _refusal_of(error: Exception) -> Status:
    if isinstance(error, TemporaryFailure):
        return Status.TEMPORARY_FAILURE
    if isinstance(error, InvalidArguments):
        return Status.INVALID_ARGUMENTS
    return Status.NOT_SUPPORTED
