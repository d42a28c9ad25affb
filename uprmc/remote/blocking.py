"""Connections to nodes for programs that may wait: kept open, dialled once more when they fail.

A connection that was kept says nothing of its node when it fails: that may have been started again
meanwhile. So each question is put once more, over a new connection, before its node counts as
silent.
"""

from __future__ import annotations

import select
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import count
from typing import Any, Generic, Protocol, TypeVar

from uprmc.protocol.header import RequestFrame, ResponseFrame
from uprmc.remote.directory import Directory, Heard, NodeQuestion, Unanswered, conduct
from uprmc.remote.requests import Window


class Askable(Protocol):
    """One conversation with a node, after HELLO and login."""

    place: str
    knows_terms: bool

    def ask_all(self, requests: Sequence[RequestFrame]) -> Iterable[ResponseFrame]:
        """Send requests in a pipeline; return their answers in order."""

    def told(self, group: str) -> dict[str, str]:
        """Return a group of statistics, nothing if the node does not tell it."""

    def close(self) -> None:
        """Hang up."""


_C = TypeVar("_C", bound=Askable)
_T = TypeVar("_T")


def put(asked: NodeQuestion, connection: Askable) -> Heard:
    """Put a question to its node; raises what the connection does."""
    if asked.group:
        return Heard(statistics=connection.told(asked.group))
    answers = list(connection.ask_all(asked.requests))
    return Heard(answers, knows_terms=connection.knows_terms)


class KeptConnections(Generic[_C]):
    """See the module docstring; used by one thread at a time.

    Args:
        dial: returns a connection to a node.
        lost: what it and connections raise when the node does not answer.
        let_go: what becomes of connections at the end, in place of closing them.
    """

    def __init__(
        self,
        dial: Callable[[str], _C],
        *lost: type[Exception],
        let_go: Callable[[_C], None] | None = None,
    ) -> None:
        self._dial, self._lost, self._let_go = dial, lost, let_go
        self._open: dict[str, _C] = {}

    def get(self, place: str) -> _C | None:
        """Return the connection to a node, if there is one."""
        return self._open.get(place)

    def at(self, place: str) -> _C:
        """Return the connection to a node, dialled if need be."""
        found = self._open.get(place)
        if found is None:
            found = self._open[place] = self._dial(place)
        return found

    def drop(self, place: str) -> None:
        """Hang up on a node: an answer may still be on its way."""
        found = self._open.pop(place, None)
        if found is not None:
            found.close()

    def close(self) -> None:
        """Hang up on all."""
        while self._open:
            _, connection = self._open.popitem()
            connection.close()

    def end(self) -> None:
        """Let all go: none has an answer on its way."""
        while self._open:
            _, connection = self._open.popitem()
            (self._let_go or type(connection).close)(connection)

    def ask(self, place: str, question: Callable[[_C], _T]) -> _T:
        """Return what a question to a node gives; it may be put twice."""
        kept = place in self._open
        try:
            return question(self.at(place))
        except BaseException as error:
            self.drop(place)
            if not (kept and isinstance(error, self._lost)):
                raise
        return self.ask(place, question)

    def survey(self, directory: Directory, **what: Any) -> None:
        """Ask every node what it has, see `Directory.survey`."""
        try:
            conduct(directory.survey(**what), self._put)
        except BaseException:
            self.close()  # an answer is still on its way
            raise
        for place in directory.silent:
            self.drop(place)

    def _put(self, asked: NodeQuestion) -> Heard | Unanswered:
        try:
            return self.ask(asked.place, partial(put, asked))
        except self._lost as error:
            return Unanswered(error, getattr(error, "text", str(error)))  # without a code word


# --- many requests at once ------------------------------------------------------------------------

_READ_BYTES = 256 * 1024
_READS_AT_ONCE = 16
_WAIT = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Pipelined(Protocol):
    """A connection that can be waited for together with others."""

    place: str
    socket: socket.socket

    def failure(self, what: str) -> Exception:
        """Return what to raise when the connection cannot be used any more."""

    def protocol_error(self, what: str) -> Exception:
        """Return what to raise of bytes that make no sense."""


_P = TypeVar("_P", bound=Pipelined)


class Line(Generic[_P, _T]):
    """A connection and the window of requests that go over it.

    TLS may have to read before it can send, or send before it can read: then that is waited for,
    and not the thing that was wanted.

    Attributes:
        lost: why the connection cannot be used any more, or ``None``.
        sent_bytes: how many bytes have left us.
    """

    def __init__(self, connection: _P, window: Window[_T]) -> None:
        self.connection, self.window = connection, window
        self.lost: Exception | None = None
        self.sent_bytes = 0
        self._socket = connection.socket
        self._out = memoryview(b"")
        self._deaf: Exception | None = None
        self._must_read = self._must_write = False

    def fileno(self) -> int:
        """Return the socket to wait for."""
        return self._socket.fileno()

    @property
    def done(self) -> bool:
        """Whether nothing is to be waited for any more; some are refused before they are sent."""
        if self.lost is not None:
            return True
        return self.window.done and (not self._out or self._deaf is not None)

    @property
    def events(self) -> int:
        """What to wait for, in `select.poll`'s words."""
        more = bool(self._out) or self.window.has_room
        wanted = self._must_write or (not self._must_read and more)
        return select.POLLIN | (select.POLLOUT if wanted and self._deaf is None else 0)

    def write(self) -> None:
        """Send what the socket takes."""
        if self._must_write:  # TLS could not read before
            self._must_write = False
            self.read()
        if self._must_read or self.lost is not None:
            return
        if not self._out:
            if not self.window.has_room:
                return
            self._out = memoryview(self.window.next_piece())
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
        self.sent_bytes += sent
        self._out = self._out[sent:]

    def read(self) -> None:
        """Take what has arrived."""
        self._must_read = False
        window = self.window
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
                self.give_up("closed the connection")
                return
            window.take(data)
            if window.nonsense:
                self.lost = self.connection.protocol_error(window.nonsense)
                return
            if window.replies:
                self._out = memoryview(bytes(self._out) + window.replies)
                window.replies = b""
            if self.done or (number >= _READS_AT_ONCE and not self._pending()):
                return

    def _pending(self) -> bool:
        """Tell whether TLS holds bytes that no poll will tell of."""
        return isinstance(self._socket, ssl.SSLSocket) and self._socket.pending() > 0

    def give_up(self, what: str) -> None:
        """Treat the connection as lost."""
        self.lost = self._deaf or self.connection.failure(what)

    def _failure(self, error: OSError) -> Exception:
        return self.connection.failure(f"is gone: {error.strerror or error}")


def run(lines: Sequence[Line[Any, Any]], silence_s: float) -> None:
    """Run all of them until each is done or lost; a node silent for `silence_s` is lost."""
    running = {line.fileno(): line for line in lines if not line.done}
    poll = select.poll()
    waited: dict[int, int] = {}  # for which events
    looked_at = time.monotonic()
    heard = dict.fromkeys(running, looked_at)
    look_s = min(silence_s, 1.0)
    try:
        for number, line in list(running.items()):
            line.connection.socket.settimeout(0)
            line.write()
            if line.done:
                del running[number]
                continue
            waited[number] = line.events
            poll.register(number, waited[number])
        while running:
            events = poll.poll(1e3 * look_s)
            now = time.monotonic()
            for number, event in events:
                line = running[number]
                heard[number] = now
                if event & select.POLLOUT:
                    line.write()
                if event & ~select.POLLOUT and line.lost is None:
                    line.read()
                if line.done:
                    poll.unregister(number)
                    del running[number]
                elif waited[number] != (wanted := line.events):
                    waited[number] = wanted
                    poll.modify(number, wanted)
            if now - looked_at >= look_s:
                looked_at = now
                for number in [each for each in running if now - heard[each] >= silence_s]:
                    running.pop(number).give_up(f"said nothing for {silence_s:g} s")
                    poll.unregister(number)
    finally:
        for line in lines:
            if line.fileno() >= 0:
                line.connection.socket.settimeout(silence_s)
