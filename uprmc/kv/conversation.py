"""What the binary and the text session have in common: buffers, backpressure, waiting.

A session takes bytes, carries out commands one after the other, and collects the replies as pieces.
It stops carrying out commands, and keeps the rest of its input, in two cases:

* **stalled**: replies of `max_unsent_bytes` wait for a peer that does not read them;
* **waiting**: a command needs something that is not there yet (a value on disk, a flush that is to
  be durable). Commands after it wait too, so replies keep the order of requests.

In both cases `input_full` asks the adapter to stop reading, so one connection uses at most the
memory of what it had sent, the unsent limit and one reply.

Subclasses implement `_run`, which carries out commands from the given bytes, returns unused bytes
by `_keep`, and stops when `_halted` is true.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol, cast

from uprmc.core.serving import Serving
from uprmc.errors import NotResident
from uprmc.kv.services import Services
from uprmc.ports import Session

#: An answer that is given at once begins no reply beyond this many bytes.
ANSWER_BYTES = 32 * 1024


class Pending(Protocol):
    """A command that waits for something that may never come."""

    def tick(self, now: float) -> None:
        """Take the monotonic time in seconds, about once a second; time out eventually."""

    def abandon(self) -> None:
        """Release the session, because the peer is gone."""


class Heir(Session, Protocol):
    """A session that can take over from another one."""

    def inherit(self, replies: list[bytes], unsent: int) -> None:
        """Take over replies that were not sent yet: pieces, and their number of bytes."""


class Conversation:
    """Base of both sessions; implements `ports.Session` except for `_run`."""

    __slots__ = (
        "_answer_limit",
        "_chunks",
        "_discard",
        "_fetch_failed",
        "_held",
        "_lost",
        "_max_unsent",
        "_out",
        "_pending",
        "_resting",
        "_running",
        "_serving",
        "_source",
        "_unsent",
        "_waiting",
        "_wake",
        "_wanted",
        "closing",
        "input_full",
        "services",
        "successor",
    )

    def __init__(self, services: Services, wake: Callable[[], None]) -> None:
        self.closing = False
        self.input_full = False
        self.successor: Session | None = None
        self.services = services
        self._wake = wake
        self._max_unsent = services.settings.max_unsent_bytes
        self._answer_limit = min(self._max_unsent, ANSWER_BYTES)
        self._serving: Serving | None = None
        self._out: list[bytes] = []
        self._unsent = 0
        self._chunks: list[bytes] = []
        self._held = 0
        self._wanted = 1
        self._discard = 0
        self._waiting = False
        self._pending: Pending | None = None
        self._source: Iterator[bytes] | None = None
        self._resting = False
        self._running = False
        self._fetch_failed = False
        self._lost = False

    # --- the four doors -------------------------------------------------------------------------

    def receive_data(self, data: bytes) -> None:
        """Take the next bytes from the peer; see `ports.Session`."""
        bucket = self.services.bucket
        bucket.account.tell_time(bucket.clock.now())  # once for all changes that are in `data`
        if self._held or self._discard or self.closing or self.input_full:
            self._receive_slowly(data)
        else:
            self._run(data)

    @property
    def answers(self) -> bool:
        """See `ports.Answering`."""
        return self._serving is not None

    def answer(self, data: bytes) -> bytes | None:
        """See `ports.Answering`."""
        bucket, serving = self.services.bucket, self._serving
        if (
            serving is None
            or self._held
            or self._unsent
            or self.input_full
            or self._waiting
            or self._discard
            or self.closing
            or not bucket.account.unlocked(bucket.clock)
        ):
            self.receive_data(data)
            return None
        bucket.account.tell_time(bucket.clock.now())
        out: list[bytes] = []
        serving.unsent = 0
        position = self._serve(serving, data, 0, out, self._answer_limit)
        self._count_served(serving)
        if position == len(data):
            return out[0] if len(out) == 1 else b"".join(out)
        self.go_on(out, serving.unsent, data[position:])
        return None

    def go_on(self, out: list[bytes], unsent: int, rest: bytes) -> None:
        """Carry out the rest of a chunk, behind what the core has served of it."""
        self._out, self._unsent = out, unsent
        self._run(rest)

    def tick(self, now: float) -> None:
        """Pass the time to the command that waits; end the conversation of a user who is gone."""
        door = self.services.door
        if door is not None and not self.closing and door.over(now):
            self.close()
        if self._pending is not None:
            self._pending.tick(now)

    def data_to_send(self, budget: int) -> list[bytes]:
        """Return reply pieces; see `ports.Session`."""
        if self._source is not None:
            if self._resting:
                self._resting = False
                self._wake()
                return []
            self._draw(self._source, budget)
        if self.input_full and not self._waiting and self._unsent <= self._max_unsent:
            self._continue()
        pieces = self._out
        if self._unsent <= budget:
            self._out = []
            self._unsent = 0
            return pieces
        return self._take_pieces(budget)

    def buffered(self) -> tuple[int, int]:
        """See `ports.Session`."""
        return self._held, self._unsent

    def connection_lost(self) -> None:
        """Release everything; later results for this peer are dropped."""
        self._lost = self.closing = True
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.abandon()
        self._source = None
        self._out, self._chunks = [], []
        self._unsent = self._held = 0

    def inherit(self, replies: list[bytes], unsent: int) -> None:
        """Take over replies that the previous session has not sent yet."""
        self._out = replies
        self._unsent = unsent

    # --- for subclasses -------------------------------------------------------------------------

    @property
    def lost(self) -> bool:
        """Whether the peer is gone."""
        return self._lost

    def _become(self, successor: Heir) -> None:
        """Let another session carry the conversation on, now or at the end of the present run."""
        self.successor = successor
        if not self._running:
            self._hand_over(self._take_input())
            self._wake()

    def _hand_over(self, rest: bytes) -> None:
        """Pass replies and input to the successor."""
        successor = cast(Heir, self.successor)
        successor.inherit(self._out, self._unsent)
        self._out, self._unsent = [], 0
        successor.receive_data(rest)

    def _run(self, data: bytes) -> None:
        raise NotImplementedError  # abstract: both sessions define it

    def _serve(
        self, serving: Serving, data: bytes, position: int, out: list[bytes], limit: int
    ) -> int:
        """Let the core carry out what it can from `position` on; returns as `Serving.serve`."""
        raise NotImplementedError  # abstract: both sessions define it

    def _count_served(self, serving: Serving) -> None:
        stats = self.services.bucket.stats
        if hits := serving.hits:
            stats.cmd_get += hits
            stats.get_hits += hits
            serving.hits = 0
        if misses := serving.misses:
            stats.cmd_get += misses
            stats.get_misses += misses
            serving.misses = 0
        if sets := serving.sets:
            stats.cmd_set += sets
            stats.total_items += sets
            stats.cas_hits += serving.swaps
            serving.sets = serving.swaps = 0
        if versions := serving.versions:
            stats.ops_set_meta += versions
            stats.cas_ahead += serving.ahead
            stats.cas_behind += serving.behind
            serving.versions = serving.ahead = serving.behind = 0
        if lost := serving.lost:
            stats.ops_set_meta_res_fail += lost
            serving.lost = 0

    def _keep(self, rest: bytes, wanted: int) -> None:
        """Keep unused input, and do not try again before `wanted` bytes are there."""
        if rest:
            self._chunks.append(rest)
            self._held = len(rest)
        self._wanted = wanted

    def _halted(self) -> bool:
        """Tell whether no further command may be carried out now; if so, stop reading input."""
        if self._waiting or self.closing or self._unsent > self._max_unsent:
            self.input_full = not self.closing
            return True
        return False

    def _send(self, *pieces: bytes) -> None:
        for piece in pieces:
            self._out.append(piece)
            self._unsent += len(piece)

    def close(self, misuse: str = "") -> None:
        """Close after the replies so far; `misuse` describes the peer's error, for the log."""
        self.closing = True
        if misuse:
            self.services.report_misuse(misuse)

    def _fetch(self, missing: NotResident) -> None:
        """Wait for values from disk; then the command that needs them is carried out again."""
        self._waiting = True
        wanted = [(missing.vbucket, key) for key in missing.keys]
        self.services.bucket.fetcher.want(wanted, self._fetched)

    def suspend(self) -> Callable[[], None]:
        """Stop after the present command; returns a function that resumes (call it once)."""
        self._waiting = True
        return self.resume

    def wait(self, pending: Pending) -> None:
        """Stop after the present command until `pending`, which may time out, calls `resume`."""
        self._waiting = True
        self._pending = pending

    def send_from(self, source: Iterator[bytes]) -> None:
        """Create the reply to the present command while it is being sent.

        An empty piece means that it has taken a while: it continues after others have had their
        turn.
        """
        self._waiting = True
        self._source = source

    # --- inside ---------------------------------------------------------------------------------

    def _receive_slowly(self, data: bytes) -> None:
        if self.closing:
            return
        if self._discard:
            dropped = min(self._discard, len(data))
            self._discard -= dropped
            data = data[dropped:]
            if not data:
                return
        self._chunks.append(data)
        self._held += len(data)
        if self._held >= self._wanted and not self.input_full:
            self._run(self._take_input())

    def _take_input(self) -> bytes:
        chunks, self._chunks, self._held = self._chunks, [], 0
        self._wanted = 1  # the size of the next frame is known when its first bytes are there
        data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        if self._discard:
            dropped = min(self._discard, len(data))
            self._discard -= dropped
            data = data[dropped:]
        return data

    def _draw(self, source: Iterator[bytes], budget: int) -> None:
        for piece in source:
            if not piece:
                self._resting = True
                self._wake()
                return
            self._send(piece)
            if self._unsent >= budget:
                return
        self._source = None
        self.resume()

    def _continue(self) -> None:
        """Continue with the input that was kept."""
        self.input_full = False
        if self._held >= self._wanted:
            self._run(self._take_input())

    def _take_pieces(self, budget: int) -> list[bytes]:
        out = self._out
        count = size = 0
        while count < len(out) and size < budget:
            size += len(out[count])
            count += 1
        pieces, self._out = out[:count], out[count:]
        self._unsent -= size
        return pieces

    def _fetched(self, ok: bool) -> None:
        self._fetch_failed = not ok
        self.resume()

    def resume(self) -> None:
        self._waiting = False
        self._pending = None
        if self._lost or self._running:
            return
        if self._unsent <= self._max_unsent:
            self._continue()
        self._wake()
