"""The answers of the http listener that have no end: samples for the page, events, changes."""

# ruff: noqa: N802  # Twisted's names
# mypy: allow-untyped-calls
from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, cast

import orjson
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IPushProducer
from twisted.web.server import Request
from zope.interface import implementer  # type: ignore[import-untyped]

from uprmc.config import HttpSettings
from uprmc.server.log import Events
from uprmc.server.work.turns import InSlices, LongWork

# --- one answer -----------------------------------------------------------------------------------
# One endless answer: what leaves waits while the client does not read, so little is kept.
#
# An answer is server-sent events or lines of JSON. When nothing else is said for `KEEPALIVE_S`, a
# comment or an empty line is. A client that leaves unread what was sent, for a time that is set, is
# disconnected.


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
        self.paused = False  # the client does not read for now
        self.open = True  # the answer goes on
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
        """See `connections.Holder`."""
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


# --- all of them ----------------------------------------------------------------------------------


#: Lets a request be a reader until it is gone; ``False`` = there are too many.
Admit = Callable[[Request], bool]


class Readers(Protocol):
    """All readers of one kind."""

    def admit(self, request: Request) -> bool:
        """Let a request be a reader until it is gone; ``False`` = there are too many."""

    def stop(self) -> None:
        """Let everybody go."""


@dataclass
class Endless:
    """Who answers without an end, by path."""

    always: Mapping[bytes, Readers]  # at paths that have no other answer
    # at paths whose answer has an end, unless server-sent events are asked for.
    events: Mapping[bytes, Readers]

    @property
    def paths(self) -> Iterable[bytes]:
        """Paths that have no other answer."""
        return self.always

    def find(self, request: Request) -> Admit | None:
        """Return what answers a request, ``None`` if its answer has an end."""
        found = self.always.get(request.path)
        if found is None and wants_events(request):
            found = self.events.get(request.path)
        return None if found is None else found.admit

    def stop(self) -> None:
        """Let everybody go."""
        for readers in (*self.always.values(), *self.events.values()):
            readers.stop()


# --- /events --------------------------------------------------------------------------------------
# ``/events`` as server-sent events: those that are kept, then each when it happens.
#
# An event's id is its number in the life of the node, behind the number of that life, so a client
# that comes back gets what it has missed as far as that is kept.


#: Events that are sent in one turn.
_AT_ONCE = 64


class EventStream:
    """Sends the events of one node.

    Args:
        life: names this life of the node.
        settings: how many readers there may be.
    """

    def __init__(self, reactor: Any, events: Events, life: str, settings: HttpSettings) -> None:
        self._settings = settings
        self._reactor = reactor
        self._events = events
        self._life = life
        self._next: dict[Outflow, int] = {}
        events.on_event = self._pump_all

    def admit(self, request: Request) -> bool:
        """Answer a request with events until it ends; ``False`` = there are too many readers."""
        if len(self._next) >= self._settings.event_readers:
            return False
        last = request.getHeader("last-event-id") or ""
        life, _, number = last.partition("-")
        known = life == self._life and number.isdecimal() and len(number) < 20
        timeout_s = self._settings.reader_timeout_s
        reader = Outflow(self._reactor, request, self._left, events=True, timeout_s=timeout_s)
        self._next[reader] = int(number) + 1 if known else 0
        reader.on_room = lambda: self._pump(reader)
        self._pump(reader)
        return True

    def stop(self) -> None:
        """End all answers."""
        for reader in list(self._next):
            reader.close()

    def _left(self, reader: Outflow) -> None:
        self._next.pop(reader, None)

    def _pump_all(self) -> None:
        for reader in list(self._next):
            self._pump(reader)

    def _pump(self, reader: Outflow) -> None:
        """Send what a reader has not got, while it reads."""
        if reader not in self._next or reader.paused:
            return
        found = self._events.since(self._next[reader], _AT_ONCE)
        for number, event in found:
            self._next[reader] = number + 1
            text = json.dumps(event, default=str).encode()
            reader.say(text, token=f"{self._life}-{number}".encode())
        if len(found) == _AT_ONCE:
            self._reactor.callLater(0, self._pump, reader)


# --- samples for the page -------------------------------------------------------------------------
# Live pages: one sample of the node a second for all who look, over server-sent events.
#
# Nothing is computed while nobody looks. A sample is made in slices and encoded once. Panels that
# have not changed since the sample before are left out, and of the vBuckets only rows that have; a
# new viewer gets everything first. A viewer that does not read skips samples, so it holds back
# nothing; when it reads again it gets everything first, like a new one.


#: Samples are so far apart.
EVERY_S = 1.0

#: The panel of which only changed rows are sent; its rows begin with a number.
_BY_ROW = "vbuckets"

Panels = Mapping[str, Callable[[], Any]]


class Live:
    """The source of all live pages.

    Args:
        reactor: calls later.
        work: the node's long work.
        panels: by name, what makes each.
        settings: how many viewers there may be.
    """

    def __init__(
        self, reactor: Any, work: LongWork, panels: Panels, settings: HttpSettings
    ) -> None:
        self._reactor = reactor
        self._settings = settings
        self._panels = panels
        self._making = InSlices(work, self._sample)
        self._viewers: dict[Outflow, bool] = {}  # whether it gets everything next
        self._timer: Any = None
        self._last: dict[str, Any] = {}

    def admit(self, request: Request) -> bool:
        """Let a request be a viewer until it is gone; ``False`` = there are too many."""
        settings = self._settings
        if len(self._viewers) >= settings.viewers:
            return False
        timeout_s = settings.reader_timeout_s
        viewer = Outflow(self._reactor, request, self._gone, events=True, timeout_s=timeout_s)
        self._viewers[viewer] = True
        if self._timer is None:
            self._tick()
        else:
            self._making.start()
        return True

    def stop(self) -> None:
        """Let everybody go."""
        for viewer in list(self._viewers):
            viewer.close()

    def _gone(self, viewer: Outflow) -> None:
        self._viewers.pop(viewer, None)
        if not self._viewers and self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._making.stop()
            self._last = {}

    def _tick(self) -> None:
        self._timer = self._reactor.callLater(EVERY_S, self._tick)
        self._making.start()

    def _sample(self) -> Generator[None, None, None]:
        """Make a sample, one panel after the other, and send it."""
        found: dict[str, Any] = {}
        for name, panel in self._panels.items():
            value = panel()
            found[name] = (yield from value) if isinstance(value, Generator) else value
            yield
        changed = {name: value for name, value in found.items() if value != self._last.get(name)}
        if _BY_ROW in changed and _BY_ROW in self._last:
            changed[_BY_ROW] = _changed_rows(self._last[_BY_ROW], found[_BY_ROW])
            changed["gone"] = _gone_rows(self._last[_BY_ROW], found[_BY_ROW])
        yield
        self._last = found
        self._send(found, changed)

    def _send(self, found: dict[str, Any], changed: dict[str, Any]) -> None:
        for viewer in self._viewers:
            if viewer.paused:
                self._viewers[viewer] = True
        reading = [viewer for viewer in self._viewers if not viewer.paused]
        whole = _event(found) if any(map(self._viewers.get, reading)) else b""
        part = _event(changed)
        for viewer in reading:
            is_new, self._viewers[viewer] = self._viewers[viewer], False
            viewer.write(whole if is_new else part)


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(value, default=str) + b"\n\n"


def _changed_rows(before: list[Any], after: list[Any]) -> list[Any]:
    known = {row[0]: row for row in before}
    return [row for row in after if known.get(row[0]) != row]


def _gone_rows(before: list[Any], after: list[Any]) -> list[int]:
    left = {row[0] for row in after}
    return [row[0] for row in before if row[0] not in left]
