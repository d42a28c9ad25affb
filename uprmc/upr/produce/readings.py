"""The readings that streams of one connection have open, and who waits to read the disk.

Disk readings are rationed (`Hub.backfills`), and given up when they are open too long or keep too
much (`tick`). A stream that gets no permit is *parked*: it tries again when one is free.
"""

from __future__ import annotations

from collections.abc import Callable

from uprmc.engine.reading import Reading, needs_disk
from uprmc.errors import StoreError
from uprmc.protocol.opcodes import EndReason
from uprmc.upr.hub import Hub
from uprmc.upr.produce.options import Options
from uprmc.upr.produce.stream import Stream


class Readings:
    """Opens and closes the readings of one connection.

    Attributes:
        from_disk: streams that are reading the disk.
    """

    def __init__(self, hub: Hub, options: Options, ready: Callable[[Stream], None]) -> None:
        """Begin with none; `ready` is called with a stream that may try again."""
        self._hub = hub
        self._options = options
        self._ready = ready
        self.from_disk = 0
        self._parked: dict[Stream, None] = {}
        self._open_since: dict[Stream, float] = {}
        self._from_disk_since: dict[Stream, float] = {}
        self._now = 0.0

    def open(self, stream: Stream) -> Reading | None:
        """Take a reading; ``None`` = the stream has ended, or is parked until there is a permit."""
        vbucket = stream.vbucket
        if not needs_disk(vbucket, stream.last_seqno):
            reading = Reading(vbucket, None)
        elif self._may_read_disk():
            try:
                reading = Reading(vbucket, self._hub.bucket.store.view())
            except StoreError:
                self._give_permit_back()
                stream.end(EndReason.BACKFILL_FAILED)
                return None
        else:
            self._parked[stream] = None
            return None
        self._open_since[stream] = self._now
        if reading.from_disk:
            self._from_disk_since[stream] = self._hub.bucket.clock.monotonic()
        return reading

    def close(self, stream: Stream, reading: Reading) -> None:
        """Close a stream's reading."""
        reading.close()
        del self._open_since[stream]
        if reading.from_disk:
            bucket = self._hub.bucket
            took_s = bucket.clock.monotonic() - self._from_disk_since.pop(stream)
            bucket.timings.backfill.add(took_s)
            self._give_permit_back()

    def _give_permit_back(self) -> None:
        self.from_disk -= 1
        self._hub.backfills.free(self._unpark)

    @property
    def _has_place(self) -> bool:
        """Whether one more stream of this connection may read the disk."""
        limit = 1 if self._options.sequential else self._hub.settings.backfills_per_connection
        return self.from_disk < limit

    def _may_read_disk(self) -> bool:
        if not self._has_place or not self._hub.backfills.take(self._unpark):
            return False
        self.from_disk += 1
        self._unpark()  # there may be permits for more of us
        return True

    def is_parked(self, stream: Stream) -> bool:
        """Tell whether a stream waits for a permit."""
        return stream in self._parked

    def _unpark(self) -> bool:
        """Let the stream that has waited longest try again; says whether there is one."""
        if not self._parked or not self._has_place:
            return False
        stream = next(iter(self._parked))
        del self._parked[stream]
        self._ready(stream)
        return True

    def forget(self, stream: Stream) -> None:
        """Park a stream no more: it has ended."""
        self._parked.pop(stream, None)
        self._unpark()  # it may have been called for a permit that it does not take now

    def clear(self) -> None:
        """Park no stream any more."""
        self._parked.clear()

    def leave(self) -> None:
        """Wait for no permit any more, and forget the connection, which knows this object."""
        self._hub.backfills.forget(self._unpark)
        self._ready = _ignore

    def tick(self, now: float) -> None:
        """Give up readings that are open too long or keep too much."""
        if not self._now:  # the first tick: for all we know, what is open is open since now
            self._open_since = dict.fromkeys(self._open_since, now)
        self._now = now
        if self._hub.backfills.used < self._hub.backfills.limit:
            self._unpark()  # a stream that was called before us may not have taken the permit
        settings = self._hub.settings
        for stream, since in list(self._open_since.items()):
            too_long = now - since > settings.reading_max_s
            if too_long or stream.vbucket.queue.held > settings.reading_items:
                stream.release()

    def release_all(self) -> None:
        """Give up every reading: they are in the way, for instance of a store that must grow."""
        for stream in list(self._open_since):
            stream.release()


def _ignore(_: Stream) -> None:
    """Stand in for the callback of a connection that is gone."""
