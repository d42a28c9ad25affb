"""The audit log: one line of JSON for each login, command for managers and refusal.

    {"time":"2026-11-26T12:00:00.123Z","peer":"10.0.0.7:50312","listener":"upr","user":"ann",
     "action":"SET_VBUCKET","outcome":"allowed"}

A disk that takes no more lines stops neither the node nor a login: lines are counted as lost, and
the log of the node says so once, and once more when lines are written again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable

from uprmc.errors import ConfigError
from uprmc.server.log import Log, time_text

_log = Log("audit")

#: Refusals that are written in a second; a stranger can cause as many as he likes.
REFUSALS_A_SECOND = 1_000

#: A pipe that takes no more must not keep the node.
_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK

#: Outcome of what no stranger can cause, which is always written.
ALLOWED = "allowed"


class Audit:
    """Writes the lines; without a path it does nothing.

    Attributes:
        lost: lines that could not be written.
        dropped: refusals that were too many.
    """

    def __init__(self, path: str, now: Callable[[], float]) -> None:
        """Open the file.

        Raises:
            ConfigError: it cannot be written.
        """
        self.lost = self.dropped = 0
        self._path = path
        self._now = now
        self._file = -1
        self._second = 0
        self._lines = 0
        self._failing = self._torn = False
        self.reopen(path)

    def reopen(self, path: str) -> None:
        """Go on in the file of this name, which may have been rotated away; raises likewise."""
        file = -1
        if path:
            try:
                file = os.open(path, _FLAGS, 0o600)
            except OSError as error:
                raise ConfigError(f"log.audit: {path}: {error.strerror}") from None
        self.close()
        self._path, self._file = path, file
        self._failing = self._torn = False

    def close(self) -> None:
        """Write no more."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1

    def note(self, peer: str, listener: str, user: str, action: str, outcome: str) -> None:
        """Write one line."""
        if self._file < 0:
            return
        now = self._now()
        if outcome != ALLOWED and not self._has_room(now):
            self.dropped += 1
            return
        line = {
            "time": time_text(now),
            "peer": peer,
            "listener": listener,
            "user": user,
            "action": action,
            "outcome": outcome,
        }
        self._write(json.dumps(line, separators=(",", ":")).encode() + b"\n")

    def _has_room(self, now: float) -> bool:
        """Count a line that strangers can cause; tell whether it is not one too many."""
        if int(now) != self._second:
            self._second, self._lines = int(now), 0
        self._lines += 1
        return self._lines <= REFUSALS_A_SECOND

    def _write(self, line: bytes) -> None:
        if self._torn:
            line = b"\n" + line
        try:
            written = os.write(self._file, line)
        except OSError as error:
            self._lose(error.strerror)
            return
        self._torn = written != len(line)
        if self._torn:
            self._lose("the file takes no more")
        elif self._failing:
            self._failing = False
            _log.info("works_again", path=self._path, lost=self.lost)

    def _lose(self, why: str | None) -> None:
        if not self._failing:
            _log.error("failed", path=self._path, error=why)
        self._failing = True
        self.lost += 1
