"""One document per registered TAP client, one write of it at a time.

Saves of the same name follow one another, so that what was asked for last is what stays: a client
that is deregistered and comes back at once must not lose its new document to the old one's removal.
What is asked for while a write is under way shares the next one.
"""

from __future__ import annotations

from collections.abc import Callable

from uprmc.tap_adapter.upstream import Keeper

#: At most this many wait for the next write of one name; for others it has failed.
WAITING_MAX = 16

Done = Callable[[bool], None]
MakeDocument = Callable[[], bytes | None]


class _Line:
    """Who waits for the write that follows the one under way, and what it is to write."""

    def __init__(self) -> None:
        self.make: MakeDocument | None = None
        self.waiting: list[Done] = []


class Saves:
    """The documents of one adapter.

    Attributes:
        found: documents by name, as they were at the start.
        stored: names that have a document, or may have one.
    """

    def __init__(self, keeper: Keeper) -> None:
        """Load all documents."""
        self._keeper = keeper
        self._lines: dict[bytes, _Line] = {}
        self.found = keeper.load()
        self.stored = set(self.found)

    def save(self, name: bytes, make: MakeDocument, done: Done) -> None:
        """Write what `make` returns when its turn comes; `done` hears whether it is on disk."""
        line = self._lines.get(name)
        if line is None:
            self._start(name, make, [done])
        elif len(line.waiting) >= WAITING_MAX:
            done(False)
        else:
            line.make = make
            line.waiting.append(done)

    def drop(self, name: bytes, done: Done | None = None) -> None:
        """Remove a document; saves that wait are told that they failed."""
        line = self._lines.get(name)
        heard = [done] if done else []
        if line is None:
            self._start(name, _nothing, heard)
            return
        line.make = _nothing
        failed, line.waiting = line.waiting, heard
        for waiting in failed:
            waiting(False)

    def _start(self, name: bytes, make: MakeDocument, waiting: list[Done]) -> None:
        line = self._lines[name] = _Line()
        document = make()
        if document is not None:
            self.stored.add(name)

        def finished(kept: bool) -> None:
            if kept and document is None:
                self.stored.discard(name)
            del self._lines[name]
            if line.make is not None:
                self._start(name, line.make, line.waiting)
            for done in waiting:
                done(kept)

        self._keeper.save(name, document, finished)


def _nothing() -> None:
    return None
