"""One endless answer: what leaves waits while the client does not read, so little is kept.

An answer is server-sent events or lines of JSON. When nothing else is said for `KEEPALIVE_S`, a
comment or an empty line is. A client that leaves unread what was sent, for a time that is set, is
disconnected.
"""

# ruff: noqa: N802  # Twisted's names
# mypy: allow-untyped-calls
from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IPushProducer
from twisted.web.server import Request
from zope.interface import implementer  # type: ignore[import-untyped]

KEEPALIVE_S = 15.0

EVENT_STREAM = "text/event-stream"
JSON_LINES = "application/x-ndjson"


class BadQuestion(Exception):
    """The question makes no sense; the text says why."""


def wants_events(request: Request) -> bool:
    """Tell whether the client asks for server-sent events."""
    return EVENT_STREAM in (request.getHeader("accept") or "")


@implementer(IPushProducer)
class Outflow:
    """One endless answer.

    Args:
        gone: called once when the client is gone or the answer has ended.
        events: send server-sent events.
        timeout_s: a client may leave unread what was sent for this long.

    Attributes:
        paused: the client does not read for now.
        open: the answer goes on.
    """

    def __init__(
        self,
        reactor: Any,
        request: Request,
        gone: Callable[[Outflow], None],
        *,
        events: bool,
        timeout_s: float,
    ) -> None:
        self.events = events
        self.paused = False
        self.open = True
        self.on_room: Callable[[], None] = _nothing
        self._reactor = reactor
        self._request = request
        self._gone = gone
        self._waiting: list[Deferred[None]] = []
        self._said = False
        request.setHeader(b"Content-Type", (EVENT_STREAM if events else JSON_LINES).encode())
        request.setHeader(b"Cache-Control", b"no-store")
        request.setHeader(b"X-Accel-Buffering", b"no")
        request.notifyFinish().addBoth(lambda _: self._ended())
        request.registerProducer(self, True)
        self._timeout_s, self._stuck_at = timeout_s, 0.0
        self._look_s = min(KEEPALIVE_S, timeout_s)
        self._timer = reactor.callLater(self._look_s, self._look)
        if events:
            self.write(b"retry: 2000\n\n")
        else:
            request.write(b"")  # the head, so that the client knows that it is connected

    def write(self, data: bytes) -> None:
        """Send complete events or lines."""
        if self.open:
            self._said = True
            self._request.write(data)

    def say(self, data: bytes, name: bytes = b"", token: bytes = b"") -> None:
        """Send one event, or one line, of JSON."""
        self.write(framed(data, name, token) if self.events else data + b"\n")

    def room(self) -> Deferred[None]:
        """Fire when the client reads again, or is gone."""
        waiting: Deferred[None] = Deferred()
        self._waiting.append(waiting)
        return waiting

    def close(self) -> None:
        """End the answer."""
        if self.open:
            self._request.unregisterProducer()
            self._request.finish()
            self._ended()

    def abort(self) -> None:
        """Disconnect the client; what it has not read is dropped."""
        if self.open:
            cast(Any, self._request.transport).abortConnection()

    def shed(self) -> None:
        """See `buffers.Holder`."""
        self.abort()

    # --- what Twisted calls ---------------------------------------------------------------------

    def pauseProducing(self) -> None:
        """The client reads too slowly."""
        self.paused = True
        self._stuck_at = self._reactor.seconds() + self._timeout_s

    def resumeProducing(self) -> None:
        """The client has read."""
        self.paused = False
        self._tell_room()
        self.on_room()

    def stopProducing(self) -> None:
        """The connection is lost; `notifyFinish` tells."""

    def _look(self) -> None:
        self._timer = self._reactor.callLater(self._look_s, self._look)
        if self.paused:
            if self._reactor.seconds() >= self._stuck_at:
                self.abort()
        elif not self._said:
            self.write(b":\n\n" if self.events else b"\n")
        self._said = False

    def _ended(self) -> None:
        if not self.open:
            return
        self.open = self.paused = False
        if self._timer.active():
            self._timer.cancel()
        self._tell_room()
        self._gone(self)

    def _tell_room(self) -> None:
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            each.callback(None)


def framed(data: bytes, name: bytes = b"", token: bytes = b"") -> bytes:
    """Return a server-sent event; `data` has no line breaks, as `json.dumps` writes."""
    head = b"event: %s\n" % name if name else b""
    mark = b"id: %s\n" % token if token else b""
    return b"%s%sdata: %s\n\n" % (head, mark, data)


def _nothing() -> None:
    pass
