"""Events of the index process at the node's ``/events``: both ends of the pipe between them.

An event is a line of JSON. Neither end can hurt the other: the process never waits for the node,
it logs what the pipe does not take; and the node takes only events of the index, with a few short
values, so many a second. It reads no further meanwhile, and skips what is no such line.
"""

from __future__ import annotations

import json
import os
import re
import select
from collections.abc import Callable
from typing import Any, Protocol

from uprmc.server.log_events import EVENTS

Tell = Callable[[str, dict[str, object]], None]

#: A longer line is no event; a pipe takes a line of this length as a whole or not at all.
LINE_MAX_BYTES = select.PIPE_BUF

#: Events that are taken in a second.
PER_SECOND = 20

#: The fields of an event; more make it none. Longer texts are cut.
_FIELDS_MAX, _TEXT_MAX, _NUMBER_MAX = 8, 500, 2**53
_NAME = re.compile(r"[a-z_]{1,32}")

#: Names of events that an index process may tell begin so.
_NAMES = tuple(f"event.{word}_" for word in ("index", "design"))


class Pipe(Protocol):
    """What is read: Twisted's reader of a child's descriptor."""

    def pauseProducing(self) -> None:  # noqa: N802  # Twisted's name
        """Read no further."""

    def resumeProducing(self) -> None:  # noqa: N802  # Twisted's name
        """Read on."""


class EventsToNode:
    """The end of the index process.

    Args:
        fd: the pipe.
        otherwise: is told what the pipe does not take.
    """

    def __init__(self, fd: int, otherwise: Tell) -> None:
        os.set_blocking(fd, False)
        os.set_inheritable(fd, False)
        self._fd, self._otherwise = fd, otherwise

    def tell(self, name: str, fields: dict[str, object]) -> None:
        """Tell the node, which logs it, too."""
        line = json.dumps({"event": name, **fields}).encode() + b"\n"
        try:
            if len(line) <= LINE_MAX_BYTES and os.write(self._fd, line):
                return
        except OSError:
            pass  # it is full, or the node is gone
        self._otherwise(name, fields)


class EventsFromIndex:
    """The node's end.

    Args:
        reactor: calls later.
        tell: takes events.
    """

    def __init__(self, reactor: Any, tell: Tell) -> None:
        self._reactor, self._tell = reactor, tell
        self._unread = b""
        self._skipping = False
        self._left = PER_SECOND
        self._timer: Any = None
        self._pipe: Pipe | None = None

    def received(self, data: bytes, pipe: Pipe) -> None:
        """Take what was read from the pipe."""
        self._unread += data
        self._pipe = pipe
        if self._timer is None:
            self._timer = self._reactor.callLater(1.0, self._next_second)
        self._take()

    def close(self) -> None:
        """Take nothing any more."""
        self._pipe, self._unread = None, b""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _take(self) -> None:
        """Take lines as long as this second has room, then have the pipe wait."""
        while self._left and b"\n" in self._unread:
            line, _, self._unread = self._unread.partition(b"\n")
            self._left -= 1
            found = None if self._skipping else event_of(line)
            self._skipping = False
            if found is not None:
                self._tell(*found)
        if b"\n" not in self._unread and len(self._unread) > LINE_MAX_BYTES:
            self._unread, self._skipping = b"", True
            self._left = max(0, self._left - 1)
        if not self._left and self._pipe is not None:
            self._pipe.pauseProducing()

    def _next_second(self) -> None:
        self._timer = None
        was_full, self._left = not self._left, PER_SECOND
        if was_full and self._pipe is not None:
            self._timer = self._reactor.callLater(1.0, self._next_second)
            self._pipe.resumeProducing()
            self._take()


def event_of(line: bytes) -> tuple[str, dict[str, object]] | None:
    """Return the name and the fields of an event, ``None`` = the line has none of an index."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or len(found) > _FIELDS_MAX:
        return None
    name = found.pop("event", None)
    known = isinstance(name, str) and f"event.{name}" in EVENTS
    if not known or not f"event.{name}".startswith(_NAMES):
        return None
    if "time" in found or not all(_NAME.fullmatch(key) for key in found):
        return None
    fields = {key: _plain(value) for key, value in found.items()}
    return None if None in fields.values() else (name, fields)


def _plain(value: object) -> object:
    """Return a text or number that every reader of events understands, ``None`` = it is none."""
    if isinstance(value, str):
        return value[:_TEXT_MAX].encode(errors="replace").decode()
    return value if isinstance(value, int) and abs(value) < _NUMBER_MAX else None
