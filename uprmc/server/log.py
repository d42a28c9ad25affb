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
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import islice
from typing import Any, NamedTuple, TextIO, cast

from twisted.logger import LogEvent, Logger, LogLevel, formatEvent, globalLogBeginner
from twisted.python.failure import Failure

from uprmc.config import LogSettings

# --- the log --------------------------------------------------------------------------------------


LEVELS = ("debug", "info", "warn", "error")

_RANK = {"debug": 0, "info": 1, "warn": 2, "error": 3, "critical": 3}
_TWISTED_RANK = _RANK["warn"]
_DEFERRED_PRELUDE = "Unhandled error in Deferred:"
_BARE = re.compile(r"[!#-<>-~]+")  # printable ASCII without blanks, quotes and equals signs


class LogSink:
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

_sink = LogSink()
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


# --- what each event means ------------------------------------------------------------------------
# What each event of the log means: the table behind the reference page about the log.
#
# An event's name is the section of its `server.log.Log` and the word after it. A test compares the
# table with the calls in the code.


class EventInfo(NamedTuple):
    """An event's level, and what it means to an operator."""

    level: str
    meaning: str


def _debug(meaning: str) -> EventInfo:
    return EventInfo("debug", meaning)


def _info(meaning: str) -> EventInfo:
    return EventInfo("info", meaning)


def _warn(meaning: str) -> EventInfo:
    return EventInfo("warn", meaning)


def _error(meaning: str) -> EventInfo:
    return EventInfo("error", meaning)


_BUG = _error("A defect of uprmc, logged with a traceback. Please report it.")
_RATE = " At most one a second is logged; `unlogged` counts the others."

EVENTS = {
    "storage.upgrade_began": _info(
        "The data directory has an older format and is rewritten: how many entries it has."
    ),
    "storage.upgrade_progress": _info("Entries rewritten so far; every 5 seconds."),
    "storage.upgraded": _info("The data directory has the present format: seconds it took."),
    "storage.new_history": _warn(
        "The data directory is a copy, or an older state that was put back: the reason, and the "
        "new uuid of the bucket. Each active vBucket begins a new branch."
    ),
    "node.core_interpreted": _warn(
        "The compiled core cannot be used: the reason. The node works, and is slower."
    ),
    "warmup.progress": _info("Warm-up is running: its state, and the keys loaded so far."),
    "node.warmed_up": _info(
        "The node serves clients: keys and values loaded, seconds it took, and whether the last "
        "stop was clean."
    ),
    "node.misuse": _warn("A peer broke the protocol and was disconnected: the reason." + _RATE),
    "node.vbucket_deposed": _warn(
        "An active vBucket was made dead because another node was promoted: the vBucket, its term, "
        "and the highest known term."
    ),
    "node.reloaded": _info(
        "After SIGHUP, the log level, the TLS files and the users were read again, and the audit "
        "log was opened again."
    ),
    "access.login_refused": _warn("A login failed: the name and the reason." + _RATE),
    "access.login_timeout": _debug(
        "A connection was closed that had not logged in within `server.login_timeout_s`."
    ),
    "audit.failed": _error(
        "The audit log cannot be written; lines are lost until it can be. Said once."
    ),
    "audit.works_again": _info("The audit log is written again; how many lines were lost so far."),
    "node.reload_failed": _warn(
        "After SIGHUP, the new settings could not be used: the reason. The node keeps the old ones."
    ),
    "buffers.shed": _warn(
        "All connections together used more than `server.buffer_bytes`, and the oldest were "
        "closed. At most one in ten seconds is logged."
    ),
    "connection.shed": _debug("Which connection was closed because of `server.buffer_bytes`."),
    "connection.idle": _debug("A connection was closed after `server.idle_timeout_s`."),
    "connection.session_failed": _BUG,
    "connections.rejected": _warn(
        "A connection above `server.max_connections` was refused. At most one in ten seconds is "
        "logged."
    ),
    "connections.file_limit_low": _warn(
        "The limit of open files allows fewer connections than `server.max_connections`."
    ),
    "flush.failed": _error(
        "A commit failed: the reason. Changes are refused until a commit succeeds."
    ),
    "flush.works_again": _info("A commit succeeded after earlier ones had failed."),
    "flush.commit_broke": _BUG,
    "flush.waiter_broke": _BUG,
    "flush.map_grown": _info("The address space reserved for the store was doubled."),
    "fetch.unread": _error(
        "The value of one document could not be read, for example because its record is damaged: "
        "vBucket, key, reason. Its readers got a temporary failure." + _RATE
    ),
    "fetch.failed": _error(
        "Evicted values could not be read from disk; their readers got a temporary failure."
    ),
    "fetch.waiter_broke": _BUG,
    "compaction.failed": _error(
        "Deletions could not be read from disk; the compaction was answered temporary failure."
    ),
    "compaction.waiter_broke": _BUG,
    "event.damaged_record": _error(
        "A record on disk is not what was written: vBucket, seqno, key. It is never served: its "
        "readers get an error, and streams end there, until it is healed or the document is "
        "written again."
    ),
    "event.healed_record": _info(
        "A damaged record was written again, as memory or another node had it: vBucket, seqno, key."
    ),
    "event.source_lost_history": _error(
        "A source has nothing of the history that this replica holds, as if it had lost its data, "
        "and is not followed: vBucket, source, and up to which seqno the replica holds changes. "
        "Fail over to the replica, or let it give up what it holds by `uprmc replicate --demote`."
    ),
    "event.watermark_expired": _warn(
        "A registered client was forgotten because it had not reported for too long or, with `why` "
        "`max_pinned_bytes`, because it kept too much: the first of the vBuckets and all of them, "
        "id, kind, its lowest watermark, how many deletions only it has kept, and their bytes. "
        "These may be purged now."
    ),
    "event.watermark_outpaced": _warn(
        "A client must begin at zero because deletions were purged that it had not seen: vBucket, "
        "id, its seqno, the purge seqno, how many deletions it missed (`exact`: whether more are "
        "unknown), and the newest 100 of their keys."
    ),
    "event.watermark_managed": _info(
        "A registered client was set or removed by `uprmc watermarks`: the first of the vBuckets "
        "and all of them, id, what was done."
    ),
    "event.clock_set": _warn(
        "The wall clock of this machine was set, and by how many seconds: documents keep the rest "
        "of the time that they were given, and what is stored from then on has the new time."
    ),
    "event.purge": _info(
        "Deletions of a vBucket were purged: its purge seqno before and after that, how many were "
        "dropped, and what keeps the others: the id of a watermark, `disk`, `source`, or nothing."
    ),
    "event.purge_forced": _warn(
        "`uprmc compact --force` dropped deletions that registered clients may have to see: the "
        "vBucket, its purge seqno before and after that, and the ids of those that must start over."
    ),
    "event.xdcr_branch": _warn(
        "Changes that a link had sent are lost at this node: the link, the vBucket, and the first "
        "and last seqno. The target still has them."
    ),
    "event.xdcr_needs_reconcile": _warn(
        "A link has stopped sending a vBucket: deletions were purged that the target may not have "
        "got, and documents may come back from there. The link, the vBucket, up to where it had "
        "arrived, and the purge seqno. Run `uprmc xdcr reconcile`."
    ),
    "event.xdcr_reconciled": _info(
        "`uprmc xdcr reconcile` has repaired a vBucket: the link, the vBucket, how many documents "
        "were deleted at the target, and how many it has that were changed elsewhere."
    ),
    "event.index_failed": _error(
        "An index cannot go on, for example because its disk is full: the design and the reason. "
        "It is opened again after a pause, until it works; what it had indexed is shown meanwhile."
    ),
    "event.index_works_again": _info("An index that had failed has written its file: the design."),
    "event.index_damaged": _error(
        "The file of an index could not be read time and again, and the index is built from the "
        "beginning: the design and the reason."
    ),
    "event.index_built": _info(
        "The first build of an index is over: the design, and how many documents have rows in it."
    ),
    "event.index_rolled_back": _warn(
        "An index has taken back changes that its source has lost: the design, how (`kind`: "
        "`header` or `old_file`, all of it fell back to an older header; `vbucket`, the rows of a "
        "vBucket were dropped; `build`, the first build started over), and how often."
    ),
    "event.index_compacted": _info(
        "The file of an index was compacted: the design, and how long its files are now."
    ),
    "event.design_added": _info("A design was put, and its index is being built: its name."),
    "event.design_changed": _info(
        "The new definition of a design has caught up, and answers in place of the former one: its "
        "name."
    ),
    "event.design_removed": _info("A design was deleted with its index: its name."),
    "event.design_unusable": _error(
        "A design cannot be opened, and is not indexed until it is put again: its name and the "
        "reason."
    ),
    "housekeeping.tick_failed": _BUG,
    "preread.failed": _error(
        "The next pages of a stream could not be read ahead in a worker thread; the stream reads "
        "them itself."
    ),
    "slices.failed": _error(
        "A defect of uprmc in expiry, eviction or the check of connections, logged with a "
        "traceback; the task starts over. Please report it."
    ),
    "replication.connected": _info("A connection to a source is open."),
    "replication.changed": _info(
        "Replication changed: which vBuckets follow which source, takeovers, failovers."
    ),
    "replication.trouble": _warn(
        "A source cannot be reached, or refuses what it is asked for: the reason." + _RATE
    ),
    "replication.tick_failed": _BUG,
    "tap.refused": _warn("A TAP CONNECT was refused: name and reason." + _RATE),
    "tap.closed": _info(
        "The stream of a TAP client ended: name, reason, and whether it was complete (a dump, a "
        "takeover)." + _RATE
    ),
    "tap.damaged": _warn(
        "At the start, the stored position of a registered TAP client, or the list of these "
        "clients, could not be read. What was lost starts from the beginning."
    ),
    "tap.tick_failed": _BUG,
    "index.event": _info("The index process has done what `text` says."),
    "index.trouble": _warn(
        "Something failed in the index process, and it goes on: `text` says what and why; it tries "
        "again."
    ),
    "index.failed": _error(
        "An index, or a design, cannot go on: `text` says which and why. It is opened again after "
        "a pause."
    ),
    "tap_adapter.upstream_reached": _info("`uprmc tap-adapter` has reached its upstream."),
    "tap_adapter.upstream_unreachable": _warn(
        "`uprmc tap-adapter` could not reach its upstream at the start: the reason. It tries again "
        "for each client."
    ),
    "tap_adapter.misuse": _warn(
        "A TAP peer of `uprmc tap-adapter` broke the protocol and was disconnected." + _RATE
    ),
    "tap_adapter.state_failed": _error(
        "The file of `--state` cannot be written: the reason. Registered clients get no data until "
        "it can."
    ),
    "tap_adapter.keeper_failed": _BUG,
    "xdcr.trouble": _warn(
        "A link cannot reach its target, or the target refuses something: the link and the reason."
        + _RATE
    ),
    "xdcr.tick_failed": _BUG,
    "index.no_listener": _warn(
        "The node has no views, because another process listens at the default address of "
        "`server.views`: the address, the process if it is known, and what to say."
    ),
    "index.started": _info("The process that answers for `server.views` was started: its pid."),
    "index.ended": _error(
        "That process has ended by itself, or could not be started: its pid, the reason, and in "
        "how many seconds it is started again. Its own lines above say more."
    ),
    "index.stopped": _info("That process has ended with the node: its pid, and how."),
    "http.changes_ended": _warn(
        "The stream behind a reader of `/changes` failed, and its answer was ended: the reason."
    ),
    "http.page_failed": _BUG,
    "twisted.message": _warn("A warning or an error of a library."),
    "twisted.failure": _error("An exception in a library, logged with a traceback."),
}


# --- events that are kept -------------------------------------------------------------------------
# What happened to data that an operator may want to look up: in the log, and at ``/events``.


#: Events that are kept for ``/events``.
KEPT_EVENTS = 4_096

_SECTION = "event"
_logger = Log(_SECTION)


class Events:
    """The newest events, oldest first; `tell` is a bucket's `on_event`."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._kept: deque[dict[str, object]] = deque(maxlen=KEPT_EVENTS)
        self.told = 0  # events since the start; the first has number 0
        self.on_event: Callable[[], None] = lambda: None  # called after each

    def tell(self, name: str, fields: dict[str, object]) -> None:
        """Log an event and keep it."""
        self._kept.append({"time": time_text(self._now()), "event": name, **fields})
        emit = getattr(_logger, EVENTS[f"{_SECTION}.{name}"].level)
        emit(name, **fields)
        self.told += 1
        self.on_event()

    def newest(self) -> list[dict[str, object]]:
        """Return what is kept."""
        return list(self._kept)

    def since(self, number: int, most: int) -> list[tuple[int, dict[str, object]]]:
        """Return the oldest kept events from a number on, each with its number."""
        first = self.told - len(self._kept)
        begin = max(number, first)
        found = islice(self._kept, begin - first, begin - first + most)
        return list(enumerate(found, begin))
