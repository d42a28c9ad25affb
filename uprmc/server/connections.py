"""Who is connected, how many may be, and the one clock that looks after all of them.

There is no timer per connection: once in `TICK_S` every connection is told the time, in slices, and
sees for itself whether it idles or its session has something to do.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import LoopingCall

from uprmc.config import BUFFER_BYTES
from uprmc.engine.stats import Stats
from uprmc.server.buffers import Buffers
from uprmc.server.log import Log, Throttle
from uprmc.server.op_times import OpTimes
from uprmc.server.slices import InSlices, LongWork

TICK_S = 1.0
REJECTION_LOG_S = 10.0

#: Descriptors that every node needs beside client connections: its files and listeners (20), peers
#: that are told that there are too many (64), connections to other nodes, spare ones.
RESERVED_FILES = 160

_log = Log("connections")


@dataclass(frozen=True, slots=True)
class ConnectionInfo:
    """One line of ``stats conns``.

    Attributes:
        number: counts up from 1 over the life of the node.
        peer: ``HOST:PORT`` of the other end, or ``unix``.
        listener: name of the listener that accepted it.
        state: ``open``, ``input-full`` (we do not read for now), ``output-full`` (the peer does
            not read) or ``closing``.
        age_s: time since it was accepted.
        idle_s: time since bytes went in either direction, as exact as the tick.
    """

    number: int
    peer: str
    listener: str
    state: str
    age_s: float
    idle_s: float
    bytes_read: int
    bytes_written: int


class Connection(Protocol):
    """What the registry needs of a connection."""

    bytes_read: int
    bytes_written: int

    def tick(self, now: float) -> None:
        """Learn the monotonic time. Never raises."""

    def info(self, now: float) -> ConnectionInfo:
        """Describe yourself."""

    def hang_up(self) -> None:
        """Close once everything already queued is sent."""

    def abort(self) -> None:
        """Close now."""


class Rejection(Protocol):
    """What the registry needs of a connection that is being turned away."""

    def tick(self, now: float) -> None:
        """Learn the monotonic time. Never raises."""

    def abort(self) -> None:
        """Close now."""


class Connections:
    """The registry of one node, shared by its listeners.

    Attributes:
        limit: connections allowed at a time.
        reserved_files: descriptors that are kept for other things.
        buffers: what they hold, all together.
        op_times: how long commands took.
        total: connections accepted since the start, or since the counters were reset.
        heard: chunks received on all of them together.
        yields: times that a connection let others have their turn before all its replies were sent.
        rejected: connections turned away because `limit` was reached.
        rejections: those that are being told so.
        handshakes: those that have not finished the one of TLS, the oldest first.
        session_errors: connections closed because of a bug of ours.
    """

    def __init__(
        self,
        limit: int,
        monotonic: Callable[[], float],
        buffer_bytes: int = BUFFER_BYTES,
        stats: Stats | None = None,
    ) -> None:
        self.limit = limit
        self.reserved_files = RESERVED_FILES
        self.op_times = OpTimes(stats or Stats(), lambda: self.heard)
        self.buffers = Buffers(buffer_bytes, monotonic)
        self.total = self.heard = self._numbered = 0
        self.rejected = self.yields = 0
        self.session_errors = 0
        self.monotonic = monotonic
        self.rejections: dict[Rejection, None] = {}
        self.handshakes: dict[Connection, None] = {}
        self._live: dict[Connection, None] = {}
        self._gone_bytes_read = 0
        self._gone_bytes_written = 0
        self._rejection_log = Throttle(REJECTION_LOG_S, monotonic)
        self._ticker = LoopingCall(self._begin_tick)
        self._ticking: InSlices | None = None
        self._emptied: Deferred[None] | None = None
        self._patience: Any = None

    def __iter__(self) -> Iterator[Connection]:
        """Iterate over a copy: connections may come and go meanwhile."""
        return iter(list(self._live))

    @property
    def current(self) -> int:
        """How many are connected now."""
        return len(self._live)

    @property
    def full(self) -> bool:
        """Whether the next one must be turned away."""
        return len(self._live) >= self.limit

    @property
    def bytes_read(self) -> int:
        """Bytes received since the start, over all connections. O(current)."""
        return self._gone_bytes_read + sum(one.bytes_read for one in self._live)

    @property
    def bytes_written(self) -> int:
        """Bytes handed to the transports since the start. O(current)."""
        return self._gone_bytes_written + sum(one.bytes_written for one in self._live)

    def infos(self) -> Iterator[ConnectionInfo]:
        """Describe every connection, oldest first."""
        now = self.monotonic()
        return (connection.info(now) for connection in self)

    def add(self, connection: Connection) -> int:
        """Take in a connection and return its number."""
        self._live[connection] = None
        self.total += 1
        self._numbered += 1
        return self._numbered

    def reset(self) -> None:
        """Set the counters to 0."""
        self.total = self.rejected = self.yields = self.session_errors = self.buffers.shed = 0
        self._gone_bytes_read -= self.bytes_read
        self._gone_bytes_written -= self.bytes_written

    def make_room(self) -> bool:
        """Close the oldest connection that has not finished its TLS handshake, if there is one."""
        if not self.handshakes:
            return False
        oldest = next(iter(self.handshakes))
        self.remove(oldest)
        oldest.abort()
        return True

    def remove(self, connection: Connection) -> None:
        """Forget a connection that is gone; one that was never added is ignored."""
        self.handshakes.pop(connection, None)
        if connection not in self._live:
            return
        del self._live[connection]
        self._gone_bytes_read += connection.bytes_read
        self._gone_bytes_written += connection.bytes_written
        if not self._live:
            self._all_gone()

    def reject(self, peer: str, listener: str) -> None:
        """Count one that was turned away, and say so without letting a flood fill the log."""
        self.rejected += 1
        held_back = self._rejection_log.passed()
        if held_back is not None:
            _log.warn(
                "rejected", peer=peer, listener=listener, limit=self.limit, unlogged=held_back
            )

    # --- time -------------------------------------------------------------------------------

    def start(self, clock: Any, work: LongWork) -> None:
        """Begin to tick, as a piece of `work`."""
        self._ticking = InSlices(work, self._tick_all)
        self._ticker.clock = clock
        self._ticker.start(TICK_S, now=False)

    def stop(self) -> None:
        """Cease to tick; harmless when it does not."""
        if self._ticker.running:
            self._ticker.stop()
        if self._ticking is not None:
            self._ticking.stop()

    def tick(self) -> None:
        """Tell every connection the time, in one go."""
        for _ in self._tick_all():
            pass

    def _begin_tick(self) -> None:
        if self._ticking is not None:
            self._ticking.start()

    def _tick_all(self) -> Iterator[None]:
        now = self.monotonic()
        for connection in (*self.rejections, *self):
            connection.tick(now)
            yield

    # --- the end ----------------------------------------------------------------------------

    def close_all(self, clock: Any, patience_s: float) -> Deferred[None]:
        """Hang up on all peers; those that have not taken their last bytes in time are cut off.

        Returns:
            fires when the last connection is gone. Call it once, after the listeners stopped.
        """
        if not self._live:
            return succeed(None)
        emptied: Deferred[None] = Deferred()
        self._emptied = emptied
        self._patience = clock.callLater(patience_s, self._abort_all)
        for connection in self:
            connection.hang_up()
        return emptied

    def _abort_all(self) -> None:
        for connection in (*self.rejections, *self):
            connection.abort()

    def _all_gone(self) -> None:
        if self._emptied is None:
            return
        emptied, self._emptied = self._emptied, None
        if self._patience is not None and self._patience.active():
            self._patience.cancel()
        emptied.callback(None)


def raise_file_limit(connections: int, reserved: int = RESERVED_FILES) -> int:
    """Raise this process's soft limit of open files towards what `connections` need.

    Args:
        connections: that may be open.
        reserved: descriptors for whatever else is switched on.

    Returns:
        how many connections fit now: `connections`, or fewer when the hard limit is in the way,
        which is also logged; half of few files are theirs all the same. It is the limit to give to
        `Connections`.
    """
    needed = connections + reserved
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if _at_least(soft, needed):
        return connections
    soft = needed if _at_least(hard, needed) else hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if _at_least(soft, needed):
        return connections
    fitting = max(1, soft - reserved, soft // 2)
    if fitting >= connections:
        return connections
    _log.warn("file_limit_low", files=soft, wanted=needed, max_connections=fitting)
    return fitting


def share_of_files(wanted: int, part: int) -> int:
    """Return how many of the wanted connections fit into one part in `part` of the open files.

    The soft limit is raised towards what that needs.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if not _at_least(soft, wanted * part):
        soft = wanted * part if _at_least(hard, wanted * part) else hard
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return wanted if _at_least(soft, wanted * part) else max(1, soft // part)


def _at_least(limit: int, needed: int) -> bool:
    return limit == resource.RLIM_INFINITY or limit >= needed
