"""One round: requests to one or several nodes at once, in windows, until each is answered or lost.

Requests are quiet: a node answers what it refuses, and a NOOP after each window tells that all
before it was looked at. One window is with the node while the next is on its way, so neither waits
for the other, and what is answered is read while sending: a node that refuses all of a large window
would otherwise stop reading when its answers are not taken, and both would wait for ever.

Note: when a connection is lost, nothing is known of windows whose NOOP was not answered,
not even of requests that were refused. They are unsettled as a whole.
TLS may have to read before it can send, or send before it can read: then that is waited for, and
not the thing that was wanted.
A node that answers more than half of a window with "later" is sent no more in this round.

Source: reference memcached, section 2.5; reference spark, section 7.
"""

from __future__ import annotations

import select
import socket
import ssl
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import count

from uprmc.columnar.connection import Connection
from uprmc.columnar.errors import SparkError, Unreachable, why
from uprmc.protocol.header import RESPONSE_HEADER, RequestFrame
from uprmc.protocol.opcodes import (
    FRAME_MAX_BYTES,
    HEADER_BYTES,
    MAGIC_REQUEST,
    MAGIC_RESPONSE,
    Opcode,
    Status,
)
from uprmc.remote.conversation import KEEP_ALIVES

#: Windows of a node that are under way.
WINDOWS_UNDER_WAY = 2

#: Statuses that time, or another node, makes good.
TEMPORARY = frozenset((Status.TEMPORARY_FAILURE, Status.BUSY, Status.LOCKED, Status.NOT_MY_VBUCKET))

#: Looks at an answer: place of the request, status, extras and value. What it returns is kept.
Reader = Callable[[int, int, bytes, bytes], int]

_READ_BYTES = 256 * 1024
_READS_AT_ONCE = 16
_WAIT = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
_unpack = RESPONSE_HEADER.unpack_from


def status_only(_place: int, status: int, _extras: bytes, _value: bytes) -> int:
    """Read an answer of which nothing but the status matters."""
    return status


class Share:
    """What one node gets of a round.

    Args:
        connection: to the node.
        frames: requests; the opaque of each is its place among them.
        order: the places of those that the node gets, ascending.
        window, window_bytes: limits of a window.
        read: looks at each answer.

    Attributes:
        answers: place -> what `read` made of the answer, for settled windows.
        lost: why the connection cannot be used any more, or ``None``.
    """

    def __init__(
        self,
        connection: Connection,
        frames: Sequence[bytes],
        order: Sequence[int],
        window: int,
        window_bytes: int,
        read: Reader = status_only,
    ) -> None:
        self.answers: dict[int, int] = {}
        self.lost: SparkError | None = None
        self.connection = connection
        self._frames = frames
        self._order = order
        self._read = read
        self._windows = list(_windows(frames, order, window, window_bytes))
        self._packed = 0
        self._settled = 0
        self._stopping = False
        self._out = memoryview(b"")
        self._deaf: SparkError | None = None
        self._must_read = self._must_write = False
        self._fresh: dict[int, int] = {}
        self._pieces: list[bytes] = []
        self._have_bytes = 0
        self._want_bytes = HEADER_BYTES
        self._socket = connection.socket

    # --- how far it is --------------------------------------------------------------------------

    def fileno(self) -> int:
        """Return the socket to wait for."""
        return self._socket.fileno()

    @property
    def done(self) -> bool:
        """Whether nothing is to be waited for any more."""
        if self.lost is not None:
            return True
        more = self._packed < len(self._windows) and not self._stopping
        return not more and not self._out and self._settled == self._packed

    @property
    def events(self) -> int:
        """What to wait for, in `select.poll`'s words."""
        wanted = self._must_write or (not self._must_read and (bool(self._out) or self._room()))
        return select.POLLIN | (select.POLLOUT if wanted and self._deaf is None else 0)

    def unsettled(self) -> Sequence[int]:
        """Return the places of requests that have to be sent again, or were never sent."""
        if self._settled == len(self._windows):
            return ()
        return self._order[self._windows[self._settled][0] :]

    def _room(self) -> bool:
        return (
            self._packed < len(self._windows)
            and self._packed - self._settled < WINDOWS_UNDER_WAY
            and not self._stopping
        )

    # --- sending --------------------------------------------------------------------------------

    def write(self) -> None:
        """Send what the socket takes."""
        if self._must_write:  # TLS could not read before
            self._must_write = False
            self.read()
        if self._must_read or self.lost is not None:
            return
        if not self._out:
            if not self._room():
                return
            self._pack()
        try:
            sent = self._socket.send(self._out)
        except ssl.SSLWantReadError:
            self._must_read = True
            return
        except _WAIT:
            return
        except OSError as error:
            self._deaf = self._failure(error)  # what was answered before can still be read
            return
        self._out = self._out[sent:]

    def _pack(self) -> None:
        begin, end = self._windows[self._packed]
        order, frames = self._order, self._frames
        if order[end - 1] - order[begin] == end - 1 - begin:
            pieces = list(frames[order[begin] : order[end - 1] + 1])
        else:
            pieces = [frames[place] for place in order[begin:end]]
        pieces.append(RequestFrame(Opcode.NOOP).encode(self._packed))
        self._packed += 1
        self._out = memoryview(b"".join(pieces))

    # --- receiving ------------------------------------------------------------------------------

    def read(self) -> None:
        """Take what has arrived."""
        self._must_read = False
        for number in count(1):
            try:
                data = self._socket.recv(_READ_BYTES)
            except ssl.SSLWantWriteError:
                self._must_write = True
                return
            except _WAIT:
                return
            except OSError as error:
                self.lost = self._deaf or self._failure(error)
                return
            if not data:
                place = self.connection.place
                self.lost = self._deaf or Unreachable(f"{place} closed the connection")
                return
            self._pieces.append(data)
            self._have_bytes += len(data)
            if self._have_bytes >= self._want_bytes:
                self._take(b"".join(self._pieces))
            if self.done or (number >= _READS_AT_ONCE and not self._pending()):
                return

    def _pending(self) -> bool:
        """Tell whether TLS holds bytes that no poll will tell of."""
        return isinstance(self._socket, ssl.SSLSocket) and self._socket.pending() > 0

    def give_up(self, why: str) -> None:
        """Treat the connection as lost."""
        self.lost = self._deaf or Unreachable(f"{self.connection.place} {why}")

    def _failure(self, error: OSError) -> Unreachable:
        return Unreachable(f"the connection to {self.connection.place} was lost: {why(error)}")

    def _take(self, data: bytes) -> None:
        position, size = 0, len(data)
        fresh, plain = self._fresh, self._read is status_only
        self._want_bytes = HEADER_BYTES
        while position + HEADER_BYTES <= size:
            magic, opcode, key_bytes, extras_bytes, _, status, body_bytes, opaque, _ = _unpack(
                data, position
            )
            if (
                magic != MAGIC_RESPONSE
                or body_bytes > FRAME_MAX_BYTES
                or key_bytes + extras_bytes > body_bytes
            ):
                if not self._asked(data, position):
                    self._protocol_error(opcode, opaque)
                    return
                position += HEADER_BYTES
                continue
            start = position + HEADER_BYTES
            end = start + body_bytes
            if end > size:
                self._want_bytes = end - position
                break
            if opcode == Opcode.NOOP:
                self._settle(opaque, opcode)
            elif not self._under_way(opaque):
                self._protocol_error(opcode, opaque)
            elif plain:
                fresh[opaque] = status
            else:
                middle = start + extras_bytes
                fresh[opaque] = self._read(
                    opaque, status, data[start:middle], data[middle + key_bytes : end]
                )
            if self.lost is not None:
                return
            position = end
        rest = data[position:]
        self._pieces = [rest] if rest else []
        self._have_bytes = len(rest)

    def _asked(self, data: bytes, position: int) -> bool:
        """Answer a keep-alive: a node may ask us, too."""
        magic, opcode, _, _, _, _, body_bytes, opaque, _ = _unpack(data, position)
        if magic != MAGIC_REQUEST or opcode not in KEEP_ALIVES or body_bytes:
            return False
        reply = RESPONSE_HEADER.pack(MAGIC_RESPONSE, opcode, 0, 0, 0, 0, 0, opaque, 0)
        self._out = memoryview(bytes(self._out) + reply)
        return True

    def _under_way(self, place: int) -> bool:
        """Tell whether a request was sent and not settled."""
        if self._settled == self._packed:
            return False
        begin, end = self._windows[self._settled][0], self._windows[self._packed - 1][1]
        order = self._order
        first, last = order[begin], order[end - 1]
        if not first <= place <= last:
            return False
        if last - first == end - 1 - begin:  # nothing is left out between them
            return True
        return order[bisect_left(order, place, begin, end)] == place

    def _settle(self, number: int, opcode: int) -> None:
        if self._settled == self._packed or number != self._settled:
            self._protocol_error(opcode, number)
            return
        begin, end = self._windows[number]
        self._settled += 1
        impatient = sum(status in TEMPORARY for status in self._fresh.values())
        self._stopping = self._stopping or 2 * impatient > end - begin
        self.answers.update(self._fresh)
        self._fresh.clear()

    def _protocol_error(self, opcode: int, opaque: int) -> None:
        what = f"an unexpected answer (opcode {opcode:#04x}, opaque {opaque:#x})"
        self.lost = self.connection.protocol_error(what)


def run(shares: Sequence[Share], silence_s: float) -> None:
    """Run all of them until each is done or lost; a node silent for `silence_s` is lost."""
    running = {share.fileno(): share for share in shares}
    poll = select.poll()
    heard: dict[int, float] = {}
    for number, share in running.items():
        share.connection.socket.settimeout(0)
        poll.register(number, share.events)
        heard[number] = time.monotonic()
    try:
        while running:
            events = poll.poll(1e3 * min(silence_s, 1.0))
            now = time.monotonic()
            for number, event in events:
                _turn(running[number], event)
                heard[number] = now
            for number, share in list(running.items()):
                if now - heard[number] >= silence_s and not share.done:
                    share.give_up(f"said nothing for {silence_s:g} s")
                if share.done:
                    poll.unregister(number)
                    del running[number]
                else:
                    poll.modify(number, share.events)
    finally:
        for share in shares:
            _blocking_again(share.connection.socket, silence_s)


def _turn(share: Share, event: int) -> None:
    if event & select.POLLOUT:
        share.write()
    if event & ~select.POLLOUT and not share.done:
        share.read()


def _blocking_again(line: socket.socket, timeout_s: float) -> None:
    if line.fileno() >= 0:
        line.settimeout(timeout_s)


def _windows(
    frames: Sequence[bytes], order: Sequence[int], window: int, window_bytes: int
) -> Iterator[tuple[int, int]]:
    """Cut the order into windows (begin, end); each has a request, however large."""
    begin, size = 0, 0
    for number, place in enumerate(order):
        size += len(frames[place])
        if number > begin and (number - begin >= window or size > window_bytes):
            yield begin, number
            begin, size = number, len(frames[place])
    if begin < len(order):
        yield begin, len(order)
