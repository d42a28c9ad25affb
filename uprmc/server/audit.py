"""The audit log: one line of JSON for each login, command for managers and refusal.

    {"time":"2026-11-26T12:00:00.123Z","peer":"10.0.0.7:50312","listener":"upr","user":"ann",
     "action":"SET_VBUCKET","outcome":"allowed"}

A disk that takes no more lines stops neither the node nor a login: lines are counted as lost, and
the log of the node says so once.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable

from uprmc.errors import ConfigError
from uprmc.server.log import Log, time_text

_log = Log("audit")

#: A refusal that a stranger can cause as often as he likes is written so often in a second.
LINES_A_SECOND = 1_000


class Audit:
    """Writes the lines; without a path it does nothing.

    Attributes:
        lost: lines that could not be written, or were too many.
    """

    def __init__(self, path: str, now: Callable[[], float]) -> None:
        """Open the file.

        Raises:
            ConfigError: it cannot be written.
        """
        self.lost = 0
        self._path = path
        self._now = now
        self._file = -1
        self._second = 0
        self._lines = 0
        self._failing = False
        self.reopen(path)

    def reopen(self, path: str) -> None:
        """Go on in the file of this name, which may have been rotated away; raises likewise."""
        file = -1
        if path:
            try:
                file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            except OSError as error:
                raise ConfigError(f"log.audit: {path}: {error.strerror}") from None
        self.close()
        self._path, self._file, self._failing = path, file, False

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
        if int(now) != self._second:
            self._second, self._lines = int(now), 0
        self._lines += 1
        if self._lines > LINES_A_SECOND:
            self.lost += 1
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

    def _write(self, line: bytes) -> None:
        try:
            whole = os.write(self._file, line) == len(line)
        except OSError as error:
            whole = False
            if not self._failing:
                _log.error("failed", path=self._path, error=error.strerror)
        self._failing = not whole
        if not whole:
            self.lost += 1
