"""Who is connected, how many may be, and what all of them together may hold."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from twisted.internet.defer import Deferred, succeed

from uprmc.config import BUFFER_BYTES
from uprmc.engine.stats import Stats
from uprmc.server.log import Log, Throttle
from uprmc.server.net.transport import OpTimes
from uprmc.server.work.turns import InSlices, LongWork, Ticker

if TYPE_CHECKING:
    from uprmc.server.net.adapter import SessionProtocol, _Rejection


# --- what they hold -------------------------------------------------------------------------------
# One account of what all connections hold: input that is not carried out, replies not taken.
#
# A frame is carried out when it is complete, so a peer that holds back its last byte makes the node
# keep the rest of it; one that does not read makes it keep replies. Each connection has its own
# limits for both. This is the limit for all of them together. Above it the oldest is closed at
# once: of those who receive or of those who send, whichever hold more.
#
# Nobody is paused instead: a node full of frames that never end would then read nobody's frames.


_LOG_S = 10.0

_buffers_log = Log("buffers")


class Holder(Protocol):
    """What the account needs of a connection."""

    def shed(self) -> None:
        """Close now, and let go of everything."""


class Buffers:
    """The account of what all connections hold."""

    def __init__(self, limit: int, monotonic: Callable[[], float]) -> None:
        self.limit = limit  # bytes that may be held
        # received: bytes received and not carried out; unsent: bytes of replies that peers have not
        # taken.
        self.received = self.unsent = 0
        self.shed = 0  # connections closed to stay within the limit
        # Bytes of each, in the order in which the frames began or the last reply was taken.
        self._receiving: dict[Holder, int] = {}
        self._sending: dict[Holder, int] = {}
        self._log_throttle = Throttle(_LOG_S, monotonic)

    @property
    def total(self) -> int:
        """Bytes held."""
        return self.received + self.unsent

    @property
    def receiving(self) -> int:
        """Connections that have sent a part of a frame."""
        return len(self._receiving)

    @property
    def sending(self) -> int:
        """Connections that have not taken all their replies."""
        return len(self._sending)

    def note(self, holder: Holder, received: int, unsent: int, *, began: bool, took: bool) -> None:
        """Learn what a connection holds now; closes the oldest while it is too much.

        Args:
            holder: the connection.
            received: bytes of input that it keeps.
            unsent: bytes of replies that it keeps.
            began: the input is another frame than at the last call.
            took: its peer has taken replies since the last call.
        """
        self.received += received - _put(self._receiving, holder, received, anew=began)
        self.unsent += unsent - _put(self._sending, holder, unsent, anew=took)
        while self.total > self.limit:
            self._shed_oldest()

    def forget(self, holder: Holder) -> None:
        """The connection is gone."""
        self.received -= self._receiving.pop(holder, 0)
        self.unsent -= self._sending.pop(holder, 0)

    def _shed_oldest(self) -> None:
        holders = self._receiving if self.received >= self.unsent else self._sending
        self.shed += 1
        held_back = self._log_throttle.passed()
        if held_back is not None:
            _buffers_log.warn("shed", held=self.total, limit=self.limit, unlogged=held_back)
        oldest = next(iter(holders))
        self.forget(oldest)
        oldest.shed()


def _put(holders: dict[Holder, int], holder: Holder, size: int, *, anew: bool) -> int:
    """Put down what a connection holds of one kind; return what it held."""
    before = holders.pop(holder, 0) if anew or not size else holders.get(holder, 0)
    if size:
        holders[holder] = size
    return before


# --- the registry ---------------------------------------------------------------------------------
# Who is connected, how many may be, and the one clock that looks after all of them.
#
# There is no timer per connection: once in `TICK_S` every connection is told the time, in slices,
# and sees for itself whether it idles or its session has something to do.


TICK_S = 1.0
REJECTION_LOG_S = 10.0

#: Descriptors that every node needs beside client connections: its files and listeners (20), peers
#: that are told that there are too many (64), connections to other nodes, spare ones.
RESERVED_FILES = 160

_log = Log("connections")


@dataclass(frozen=True, slots=True)
class ConnectionInfo:
    """One line of ``stats conns``."""

    number: int  # counts up from 1 over the life of the node
    peer: str  # ``HOST:PORT`` of the other end, or ``unix``
    listener: str  # name of the listener that accepted it
    # ``open``, ``input-full`` (we do not read for now), ``output-full`` (the peer does not read) or
    # ``closing``.
    state: str
    age_s: float  # time since it was accepted
    idle_s: float  # time since bytes went in either direction, as exact as the tick
    bytes_read: int
    bytes_written: int


class Connections:
    """The registry of one node, shared by its listeners."""

    def __init__(
        self,
        limit: int,
        monotonic: Callable[[], float],
        buffer_bytes: int = BUFFER_BYTES,
        stats: Stats | None = None,
    ) -> None:
        self.limit = limit  # connections allowed at a time
        self.reserved_files = RESERVED_FILES  # descriptors that are kept for other things
        self.op_times = OpTimes(stats or Stats(), lambda: self.heard)  # how long commands took
        self.buffers = Buffers(buffer_bytes, monotonic)  # what they hold, all together
        # total: connections accepted since the start, or since the counters were reset; heard:
        # chunks received on all of them together.
        self.total = self.heard = self._numbered = 0
        # yields: times that a connection let others have their turn before all its replies were
        # sent; rejected: connections turned away because `limit` was reached.
        self.rejected = self.yields = 0
        self.session_errors = 0  # connections closed because of a bug of ours
        self.monotonic = monotonic
        self.rejections: dict[_Rejection, None] = {}  # those that are being told so
        # Those that have not finished the one of TLS, the oldest first.
        self.handshakes: dict[SessionProtocol, None] = {}
        self._live: dict[SessionProtocol, None] = {}
        self._gone_bytes_read = 0
        self._gone_bytes_written = 0
        self._rejection_log = Throttle(REJECTION_LOG_S, monotonic)
        self._ticker: Ticker | None = None
        self._ticking: InSlices | None = None
        self._emptied: Deferred[None] | None = None
        self._patience: Any = None

    def __iter__(self) -> Iterator[SessionProtocol]:
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

    def add(self, connection: SessionProtocol) -> int:
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

    def remove(self, connection: SessionProtocol) -> None:
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
        self._ticker = Ticker(clock, TICK_S, self._ticking.start)
        self._ticker.start()

    def stop(self) -> None:
        """Cease to tick; harmless when it does not."""
        if self._ticker is not None and self._ticking is not None:
            self._ticker.stop()
            self._ticking.stop()

    def tick(self) -> None:
        """Tell every connection the time, in one go."""
        for _ in self._tick_all():
            pass

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
