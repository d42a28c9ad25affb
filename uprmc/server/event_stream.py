"""``/events`` as server-sent events: those that are kept, then each when it happens.

An event's id is its number in the life of the node, behind the number of that life, so a client
that comes back gets what it has missed as far as that is kept.
"""

# mypy: allow-untyped-calls
from __future__ import annotations

import json
from typing import Any

from twisted.web.server import Request

from uprmc.config import HttpSettings
from uprmc.server.events import Events
from uprmc.server.outflow import Outflow

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
