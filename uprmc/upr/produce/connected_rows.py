"""Rows for clients that know nothing of watermarks: setting ``upr.register = connected``.

A connection with flow control acknowledges the bytes that it has dealt with. So each of its streams
gets a row under the connection's name, whose watermark is the end of the last snapshot that was
acknowledged as a whole. The row lives on after the connection, for as long as rows of kind other
do. A connection without flow control never says what it has, and gets none.

How far streams are is looked at now and then, and only again once all that was sent then is
acknowledged: so there is one number for each stream to remember, however many snapshots it sends.

Source: `reference/systems.md` a.2; contracts of the systems to come, section 2.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from hashlib import sha256

from uprmc.engine.watermarks.rows import Kind
from uprmc.errors import CommandError
from uprmc.protocol.upr import StreamRequest
from uprmc.protocol.watermarks import ID_MAX_BYTES, ReportExtras
from uprmc.upr.produce.feed import Feed
from uprmc.upr.produce.registration import Registration

#: How often streams are looked at, and how often all rows are renewed, in seconds.
_LOOK_S = 1.0
_RENEW_S = 10.0


class ConnectedRows:
    """The rows of one connection. Times are monotonic seconds."""

    def __init__(self, registration: Registration, feed: Feed, name: bytes) -> None:
        self._registration = registration
        self._feed = feed
        self._id = name if len(name) <= ID_MAX_BYTES else sha256(name).hexdigest().encode()
        self._acknowledged: dict[int, int] = {}
        self._sent: dict[int, int] | None = None
        self._sent_bytes = 0
        self._look_at = self._renew_at = 0.0

    def begin(self, number: int, request: StreamRequest) -> None:
        """A stream is asked for: register it, unless the client has named a row itself."""
        named = self._registration.name_of(number)
        if named is None or named == self._id:
            inside = request.snapshot_start < request.start_seqno < request.snapshot_end
            self._acknowledged[number] = request.snapshot_start if inside else request.start_seqno
            self._report([number])

    def tick(self, now: float, acked_bytes: int) -> None:
        """Report what has been acknowledged of what was sent at the last look."""
        if now < self._look_at or not self._acknowledged:
            return
        self._look_at = now + _LOOK_S
        if self._sent is not None and acked_bytes >= self._sent_bytes:
            moved = [n for n, end in self._sent.items() if end > self._acknowledged.get(n, end)]
            self._acknowledged |= {number: self._sent[number] for number in moved}
            self._report(moved)
            self._sent = None
        if self._sent is None:
            streams = self._feed.streams.items()
            self._sent = {number: stream.complete_seqno for number, stream in streams}
            self._sent_bytes = acked_bytes + self._feed.unacked_bytes
        if now >= self._renew_at:
            self._renew_at = now + _RENEW_S
            self._report(self._acknowledged)

    def close(self) -> None:
        """Let the rows live from now on for as long as rows of their kind do."""
        self._report(self._acknowledged)

    def _report(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            report = ReportExtras(self._acknowledged[number], 0, Kind.OTHER)
            with suppress(CommandError):  # purged, moved, or no room: there is no row then
                self._registration.take(number, self._id, report, b"", manages=False)
