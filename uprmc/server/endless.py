"""The answers of the http listener that have no end: samples for the page, events, changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from twisted.web.server import Request

from uprmc.server.outflow import wants_events

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
    """Who answers without an end, by path.

    Attributes:
        always: at paths that have no other answer.
        events: at paths whose answer has an end, unless server-sent events are asked for.
    """

    always: Mapping[bytes, Readers]
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
