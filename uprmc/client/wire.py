"""Sockets of the blocking client: connecting, TLS, and bytes to and fro, none of which blocks.

A `Wire` is one connection to one node. It is registered with a selector; `advance` is called when
the selector says so, until `ready`; then `read` and `write`. Failures are named: unreachable, TLS,
lost.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import selectors
import socket
import ssl
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

from uprmc.client.errors import ClientError, NodeUnreachable, ended
from uprmc.errors import why
from uprmc.places import Place, parsed
from uprmc.protocol.opcodes import HEADER_BYTES
from uprmc.remote.blocking import tls_failed

# --- keeper ---------------------------------------------------------------------------------------
# A second thread for the blocking client: it looks after sockets while a handler works.
#
# The client's thread enters the keeper around everything that may call a handler. Inside, the
# sockets are the keeper's; outside, they are the thread's.


#: The keeper looks so often in a keep-alive's interval: the node waits one for an answer.
_LOOKS = 4

_PERIOD_MIN_S = 0.01


class Keeper:
    """See the module docstring.

    Args:
        interval_s: of keep-alives.
        look: called in the second thread, now and then while a handler works.
    """

    def __init__(self, interval_s: float, look: Callable[[], None]) -> None:
        self._period_s = max(_PERIOD_MIN_S, interval_s / _LOOKS)
        self._look = look
        self._lock = threading.Lock()
        self._inside = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="uprmc keeper", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        self._stopping.set()
        self._thread.join()

    def __enter__(self) -> Self:
        self._inside = True
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:  # a look that is under way ends first
            self._inside = False

    def _run(self) -> None:
        while not self._stopping.wait(self._period_s):
            with self._lock:
                if self._inside:
                    self._look()


@contextmanager
def running(interval_s: float, look: Callable[[], None]) -> Iterator[Keeper]:
    """Give a keeper that looks until the ``with`` statement ends."""
    keeper = Keeper(interval_s, look)
    keeper.start()
    try:
        yield keeper
    finally:
        keeper.stop()


#: So much is read for a batch if it is there: a batch is one commit.
BATCH_BYTES = 1024 * 1024

#: A piece of this size and more may have another one behind it.
_SMALL_BYTES = 16 * 1024

_IN_PROGRESS = (0, errno.EINPROGRESS, errno.EWOULDBLOCK)
_WANTS = (ssl.SSLWantReadError, ssl.SSLWantWriteError, BlockingIOError, InterruptedError)


class Wire:
    """See the module docstring.

    Attributes:
        pending: whether bytes are waiting that a selector does not know of.

    Raises:
        NodeUnreachable: there is no such host.
    """

    def __init__(self, place: str, tls: ssl.SSLContext | None, deadline: float) -> None:
        self.place = place  # HOST:PORT
        self.ready = False  # connected, TLS agreed upon
        self.sockets = 0  # how many were made; a selector knows the last one only
        self.deadline = deadline  # until when that must be
        self._tls = tls
        self._where = parsed(place)
        self._socket: socket.socket | None = None
        self._shaking = self._heard = False
        self._buffer = memoryview(bytearray(BATCH_BYTES))
        self._to_send: deque[memoryview] = deque()
        self._ahead: deque[bytes] = deque()
        self._failure: ClientError | None = None
        self._addresses = deque(_addresses(self._where))
        self._next_address()

    def _next_address(self) -> None:
        self.close()
        family, address = self._addresses.popleft()
        found = socket.socket(family, socket.SOCK_STREAM)
        self._socket = found
        self.sockets += 1
        found.setblocking(False)
        if not self._where.path:
            found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        number = found.connect_ex(address)
        if number not in _IN_PROGRESS:
            self._refused(number)

    def _refused(self, number: int) -> None:
        if self._addresses:
            self._next_address()
            return
        self.close()
        raise NodeUnreachable(
            f"no node answers at {self.place}: {os.strerror(number)}; is it running, and is this "
            "its upr listener?"
        )

    def fileno(self) -> int:
        """Return the file descriptor, for a selector; it changes while connecting."""
        return -1 if self._socket is None else self._socket.fileno()

    def wants(self) -> int:
        """Return the selector's events that it waits for."""
        if not self.ready and not self._shaking:
            return selectors.EVENT_WRITE
        return selectors.EVENT_READ | (selectors.EVENT_WRITE if self._to_send else 0)

    # --- connecting -----------------------------------------------------------------------------

    def advance(self) -> bool:
        """Go on connecting; returns whether it is done.

        Raises:
            NodeUnreachable, TlsFailed: it will not be.
        """
        assert self._socket is not None
        if not self._shaking:
            number = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if number:
                self._refused(number)
                return False
            if self._tls is None:
                self.ready = True
                return True
            self._socket = self._tls.wrap_socket(
                self._socket, server_hostname=self._where.tls_name, do_handshake_on_connect=False
            )
            self._shaking = True
        return self._shake(self._socket)

    def _shake(self, found: Any) -> bool:
        try:
            found.do_handshake()
        except _WANTS:
            return False
        except (ssl.SSLError, OSError) as error:
            raise tls_failed(self.place, error) from None
        self.ready = True
        return True

    def too_late(self, now: float, *, ready: bool) -> None:
        """Raise `NodeUnreachable` if connecting, or the handshake, takes too long.

        An answer that waits to be read is in time: our handler may have kept us.
        """
        if not ready and now > self.deadline and not self._readable():
            late = NodeUnreachable(f"no node answers at {self.place} in time; see the network")
            raise late.doubting(self.place)

    def _readable(self) -> bool:
        poll = select.poll()
        poll.register(self, select.POLLIN)
        return self.ready and bool(poll.poll(0))

    # --- bytes ----------------------------------------------------------------------------------

    def read(self) -> bytes:
        """Return what is there, up to a batch, perhaps nothing; first what was read ahead.

        Raises:
            ConnectionLost: the node has closed it.
        """
        if self._ahead:
            return self._ahead.popleft()
        if self._failure is not None:
            raise self._failure
        return self._read(BATCH_BYTES)

    def read_ahead(self, limit_bytes: int) -> bytes:
        """Return what is there and keep it for `read`, too; an error is kept for it as well."""
        data = b""
        if self._failure is None and limit_bytes > 0:
            try:
                data = self._read(min(limit_bytes, BATCH_BYTES))
            except ClientError as error:
                self._failure = error
        if data:
            self._ahead.append(data)
        return data

    def _read(self, limit_bytes: int) -> bytes:
        first = self._receive(min(limit_bytes, _SMALL_BYTES))
        if first is None:
            return b""
        if not first:
            raise self._lost("it closed the connection")
        self._heard = self._heard or len(first) >= HEADER_BYTES
        if len(first) < _SMALL_BYTES and self._tls is None:
            return first  # nothing more is there, or so little that the next read may have it
        return self._read_on(first, limit_bytes)

    def _receive(self, limit_bytes: int) -> bytes | None:
        """Return what is there, nothing at the connection's end; ``None`` = later."""
        assert self._socket is not None
        try:
            return self._socket.recv(limit_bytes)
        except _WANTS:
            return None
        except (ssl.SSLError, OSError) as error:
            raise self._lost(why(error)) from None

    def _read_on(self, first: bytes, limit_bytes: int) -> bytes:
        """Return what has come first, and what else is there."""
        assert self._socket is not None
        size, buffer = len(first), self._buffer[:limit_bytes]
        buffer[:size] = first
        while size < limit_bytes:
            try:
                count = self._socket.recv_into(buffer[size:])
            except (*_WANTS, OSError):
                break  # of an error the next call tells
            if not count:
                break
            size += count
            if count < _SMALL_BYTES and self._tls is None:
                break
        return bytes(buffer[:size])

    @property
    def pending(self) -> bool:
        """Whether bytes are waiting that a selector does not know of: read ahead, or decrypted."""
        if self._ahead or self._failure is not None:
            return True
        return isinstance(self._socket, ssl.SSLSocket) and self._socket.pending() > 0

    def write(self, data: bytes) -> None:
        """Send as much as goes, keep the rest.

        Raises:
            ConnectionLost: the node has closed it.
        """
        if data:
            self._to_send.append(memoryview(data))
        while self._to_send:
            assert self._socket is not None
            first = self._to_send[0]
            try:
                sent = self._socket.send(first)
            except _WANTS:
                return
            except (ssl.SSLError, OSError) as error:
                raise self._lost(why(error)) from None
            if sent == len(first):
                self._to_send.popleft()
            else:
                self._to_send[0] = first[sent:]

    def close(self) -> None:
        """Hang up."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.close()
            self._socket = None

    def _lost(self, reason: str) -> ClientError:
        return ended(self.place, reason, doubtful=not (self._tls or self._heard))


def _addresses(place: Place) -> list[tuple[int, Any]]:
    """Return the address family and address of each that a place leads to."""
    if place.path:
        return [(socket.AF_UNIX, place.path)]
    try:
        found = socket.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise NodeUnreachable(
            f"there is no host {place.host!r}: {error}; see the node's address"
        ) from None
    return [(family, address) for family, _, _, _, address in found]
