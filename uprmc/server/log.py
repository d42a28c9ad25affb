"""What the node says on standard error: one line per event, for people or for machines.

::

    2026-11-20T12:00:00.123Z info  listener.ready address=127.0.0.1:11211
    {"time":"2026-11-20T12:00:00.123Z","level":"info","event":"listener.ready","address":"..."}

Events travel through `twisted.logger`, so Twisted's own warnings and the errors of Deferreds that
nobody handled come out in the same form; what it says below warn is dropped. Nothing is ever
written to standard output. Line breaks and control characters in values are escaped, so what a
peer sends can neither forge a line nor steer a terminal.
"""

# mypy: allow-untyped-calls
from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TextIO, cast

from twisted.logger import LogEvent, Logger, LogLevel, formatEvent, globalLogBeginner
from twisted.python.failure import Failure

from uprmc.config import LogSettings

LEVELS = ("debug", "info", "warn", "error")

_RANK = {"debug": 0, "info": 1, "warn": 2, "error": 3, "critical": 3}
_TWISTED_RANK = _RANK["warn"]
_DEFERRED_PRELUDE = "Unhandled error in Deferred:"
_BARE = re.compile(r"[!#-<>-~]+")  # printable ASCII without blanks, quotes and equals signs


class Sink:
    """A log observer that writes lines; `format` and `level` may change at any time."""

    def __init__(self, level: str = "info", format: str = "text") -> None:
        self.stream: TextIO | None = None
        self.format = format
        self.rank = _RANK[level]

    def __call__(self, event: LogEvent) -> None:
        """Write one event, or nothing if it is not important enough. Never raises."""
        level = event.get("log_level", LogLevel.info).name
        ours = "uprmc_event" in event
        if _RANK[level] < (self.rank if ours else max(self.rank, _TWISTED_RANK)):
            return
        if event.get("log_format") == _DEFERRED_PRELUDE:
            return  # the failure itself comes as the next event
        time = time_text(event["log_time"])
        level = LEVELS[_RANK[level]]
        line = _LINES[self.format](time, level, *(_own(event) if ours else _foreign(event)))
        try:
            (self.stream or sys.stderr).write(line + "\n")
        except (OSError, ValueError):
            return  # the reader of our standard error is gone; that must not stop the node


def _own(event: LogEvent) -> tuple[str, dict[str, Any]]:
    fields = dict(event["uprmc_fields"])
    if "log_failure" in event:
        fields.update(_failure_fields(event["log_failure"]))
    return event["uprmc_event"], fields


def _foreign(event: LogEvent) -> tuple[str, dict[str, Any]]:
    """Describe an event that Twisted or another library logged."""
    fields: dict[str, Any] = {"source": event.get("log_namespace", "?")}
    if message := formatEvent(event):
        fields["message"] = message
    if "log_failure" not in event:
        return "twisted.message", fields
    return "twisted.failure", fields | _failure_fields(event["log_failure"])


def _failure_fields(failure: Failure) -> dict[str, str]:
    return {"error": failure.getErrorMessage(), "traceback": failure.getTraceback().rstrip()}


def time_text(seconds: float) -> str:
    """Return Unix time as ISO 8601 in UTC, to the millisecond."""
    moment = datetime.fromtimestamp(seconds, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _plain(value: object) -> Any:
    """Turn any value into one that JSON knows."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return str(value)


def _text_line(time: str, level: str, name: str, fields: dict[str, Any]) -> str:
    pairs = [f" {key}={_text_value(value)}" for key, value in fields.items()]
    return f"{time} {level:<5} {name}{''.join(pairs)}"


def _text_value(value: object) -> str:
    plain = _plain(value)
    if isinstance(plain, str):
        return plain if _BARE.fullmatch(plain) else json.dumps(plain).replace("\x7f", "\\u007f")
    return json.dumps(plain)


def _json_line(time: str, level: str, name: str, fields: dict[str, Any]) -> str:
    known = {"time": time, "level": level, "event": name}
    plain = {key: _plain(value) for key, value in fields.items() if key not in known}
    return json.dumps(known | plain, separators=(",", ":"))


_LINES: dict[str, Callable[[str, str, str, dict[str, Any]], str]] = {
    "text": _text_line,
    "json": _json_line,
}

_sink = Sink()
_begun = False


def start_logging(settings: LogSettings, stream: TextIO | None = None) -> None:
    """Send log lines to `stream` (standard error) from now on; calling it again changes the form.

    Before the first call events are kept by Twisted and shown then.
    """
    global _begun
    _sink.stream, _sink.format = stream, settings.format
    set_level(settings.level)
    if not _begun:
        _begun = True
        globalLogBeginner.beginLoggingTo([cast(Any, _sink)], redirectStandardIO=False)


def set_level(level: str) -> None:
    """Show events of `level` (one of `LEVELS`) and above from now on."""
    _sink.rank = _RANK[level]


def level() -> str:
    """Return the level in force."""
    return LEVELS[_sink.rank]


class Log:
    """A section's way to say something: ``Log("listener").info("ready", address=...)``.

    The event's name is the section and the word after it, ``listener.ready``. Values may be text,
    numbers, bytes, None or anything with a sensible `str`.
    """

    def __init__(self, section: str) -> None:
        self._section = section
        self._logger = Logger(namespace=f"uprmc.{section}")

    def debug(self, event: str, /, **fields: object) -> None:
        """Say what helps to follow a problem; costs next to nothing when it is not shown."""
        if _sink.rank == 0:
            self._emit(LogLevel.debug, event, fields)

    def info(self, event: str, /, **fields: object) -> None:
        """Say what an operator may want to have seen."""
        self._emit(LogLevel.info, event, fields)

    def warn(self, event: str, /, **fields: object) -> None:
        """Say what an operator should look at some day."""
        self._emit(LogLevel.warn, event, fields)

    def error(self, event: str, /, **fields: object) -> None:
        """Say what an operator must look at."""
        self._emit(LogLevel.error, event, fields)

    def failure(self, event: str, /, failure: Failure | None = None, **fields: object) -> None:
        """Say at error level what went wrong, with the traceback of `failure`.

        Without one the exception that is being handled is shown.
        """
        self._emit(LogLevel.error, event, fields, log_failure=failure or Failure())

    def _emit(self, level: Any, event: str, fields: dict[str, object], **more: object) -> None:
        name = f"{self._section}.{event}"
        self._logger.emit(level, "{uprmc_event}", uprmc_event=name, uprmc_fields=fields, **more)


class Throttle:
    """Lets one event in this many seconds be logged, and counts those in between.

    For events that strangers can cause as often as they like.
    """

    def __init__(self, every_s: float, monotonic: Callable[[], float]) -> None:
        self._every_s = every_s
        self._monotonic = monotonic
        self._next = float("-inf")
        self._held_back = 0

    def passed(self) -> int | None:
        """Return how many were held back since the last one logged; None holds this one back."""
        now = self._monotonic()
        if now < self._next:
            self._held_back += 1
            return None
        held_back, self._held_back = self._held_back, 0
        self._next = now + self._every_s
        return held_back
