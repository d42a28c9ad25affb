"""Batches under way to one node of the target, and what their answers mean.

Requests are quiet: the node answers only what it refuses, and a NOOP behind each batch tells that
everything before it was looked at. What is refused for now is sent again after a pause that
doubles, followed by a NOOP of its own. A batch is settled when each of its items has been stored,
or refused for good; then the positions that it carries have arrived.

Opaques of items count up, so an answer finds its item. A NOOP has the number of its group.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from uprmc.config import XdcrSettings
from uprmc.protocol.header import encode_request
from uprmc.protocol.opcodes import Opcode
from uprmc.remote.retry import Backoff

#: Pauses before what was refused for now is sent again.
PAUSE_MIN_S, PAUSE_MAX_S = 0.01, 1.0

OPAQUES = 2**32

_DELETE = int(Opcode.DELQ_WITH_META)

#: A batch, and the place of an item in it.
Item = tuple["LinkWindow", int]


class LinkWindow:
    """One batch."""

    __slots__ = ("arrivals", "bytes", "closed", "deleted", "first", "frames", "is_trial", "open",
                 "written")  # fmt: skip

    def __init__(self, first: int) -> None:
        self.first = first  # opaque of its first item
        self.frames: list[bytes | None] = []  # requests; ``None`` = that item is settled
        self.open = 1  # groups and look-ups that are still to be answered
        self.bytes = 0  # of all requests
        self.written = self.deleted = 0  # items that were stored
        self.arrivals: list[Callable[[LinkWindow], None]] = []  # called when it is settled
        self.closed = False  # no more items are added
        self.is_trial = False  # it has what was refused before, and nothing else


class Windows:
    """The batches under way to one node."""

    def __init__(self, settled: Callable[[LinkWindow], None], settings: XdcrSettings) -> None:
        """Begin with none; `settled` is called with each batch that is."""
        self._settled = settled
        self._settings = settings
        self.paused_until = 0.0  # what was refused for now is sent again then; 0 = nothing waits
        self._under_way: deque[LinkWindow] = deque()
        self._current: LinkWindow | None = None
        self._answered: LinkWindow | None = None
        self._next = 0
        self._bytes = 0
        self._groups: dict[int, list[Item] | LinkWindow] = {}
        self._grouped: dict[Item, int] = {}  # the newest group that an item was sent in
        self._group = 0
        self._again: dict[Item, None] = {}
        self._backoff = Backoff(PAUSE_MIN_S, PAUSE_MAX_S)

    def __bool__(self) -> bool:
        return bool(self._under_way)

    @property
    def has_room(self) -> bool:
        """Whether another batch may be begun, or the present one be continued."""
        ended = len(self._under_way) - (self._current is not None)
        if ended >= self._settings.batches:
            return False
        return self._bytes < self._settings.unanswered_bytes and not self._again

    # --- filling --------------------------------------------------------------------------------

    @property
    def current(self) -> LinkWindow:
        """The batch that is being filled."""
        window = self._current
        if window is None:
            window = self._current = LinkWindow(self._next)
            self._under_way.append(window)
        return window

    @property
    def is_filling(self) -> bool:
        """Whether there is a batch that has not ended."""
        return self._current is not None

    @property
    def opaque(self) -> int:
        """The opaque of the next item."""
        return self._next

    def add(self, window: LinkWindow, frame: bytes, *, looked_up: bool = False) -> None:
        """Add an item to the batch that is being filled.

        Args:
            window: `current`.
            frame: its request, with `opaque`.
            looked_up: the request waits for the answer to a look-up of the same opaque.
        """
        self._next = (self._next + 1) % OPAQUES
        window.frames.append(frame)
        window.bytes += len(frame)
        self._bytes += len(frame)
        window.open += looked_up

    def close(self, out: list[bytes]) -> int:
        """End the batch that is being filled, if there is one; return the bytes of its NOOP."""
        window, self._current = self._current, None
        if window is None:
            return 0
        window.closed = True
        if not window.frames:  # nothing was sent, so nothing is to be answered
            self._settle_one(window)
            return 0
        return self._fence(window, out)

    def _fence(self, group: list[Item] | LinkWindow, out: list[bytes]) -> int:
        self._group = (self._group + 1) % OPAQUES
        if isinstance(group, list):
            self._grouped.update(dict.fromkeys(group, self._group))
        self._groups[self._group] = group
        frame = encode_request(Opcode.NOOP, opaque=self._group)
        out.append(frame)
        return len(frame)

    # --- answers --------------------------------------------------------------------------------

    def fence_answered(self, group: int) -> bool:
        """Take the answer to a NOOP; return whether it was one of ours."""
        found = self._groups.pop(group, None)
        if found is None:
            return False
        if isinstance(found, LinkWindow):
            self._settle_one(found)
            return True
        left = [
            item for item in found if self._grouped.get(item) == group and item not in self._again
        ]
        if left:  # there is progress, even if others were refused once more
            self._backoff.good()
        for item in left:
            del self._grouped[item]
            self._settle_one(item[0])
        return True

    def find(self, opaque: int) -> Item | None:
        """Return the item with an opaque: its batch and place.

        Answers come in the order of the requests, mostly: so it is in the same batch as the last
        one, or in the next.
        """
        window = self._answered
        if window is None or (opaque - window.first) % OPAQUES >= len(window.frames):
            window = self._answered = self._window_of(opaque)
            if window is None:
                return None
        place = (opaque - window.first) % OPAQUES
        return (window, place) if window.frames[place] is not None else None

    def _window_of(self, opaque: int) -> LinkWindow | None:
        for window in self._under_way:
            if (opaque - window.first) % OPAQUES < len(window.frames):
                return window
        return None

    def frame(self, item: Item) -> bytes:
        """Return the request of an item."""
        window, place = item
        frame = window.frames[place]
        assert frame is not None
        return frame

    def send_again(self, item: Item, now: float, *, counted: bool = False) -> None:
        """Send an item again later, because it was refused for now.

        Args:
            item: the item.
            now: monotonic seconds.
            counted: its batch waits for it already.
        """
        if item in self._again:
            return
        if not self._again or not self.paused_until:
            self._backoff.failed(now)
            self.paused_until = self._backoff.at
        if not (counted or item in self._grouped):
            item[0].open += 1
        self._again[item] = None

    def send_after_look_up(self, item: Item, out: list[bytes]) -> int:
        """Send an item whose look-up says that it wins; return how many bytes."""
        frame = self.frame(item)
        out.append(frame)
        return len(frame) + self._fence([item], out)

    def refused(self, item: Item) -> None:
        """Give an item up: it is not stored, and need not be."""
        window, place = item
        window.frames[place] = None

    def look_up_lost(self, item: Item) -> None:
        """Give an item up that was never sent."""
        self.refused(item)
        self._settle_one(item[0])

    def retry(self, out: list[bytes], now: float) -> int:
        """Send again what is due; return how many bytes."""
        if not self._again or now < self.paused_until:
            return 0
        items, self._again = list(self._again), {}
        self.paused_until = 0.0
        frames = [self.frame(item) for item in items if item[0].frames[item[1]] is not None]
        out += frames
        return sum(map(len, frames)) + self._fence(items, out)

    def _settle_one(self, window: LinkWindow) -> None:
        window.open -= 1
        if window.open or not window.closed:
            return
        self._under_way.remove(window)
        if self._answered is window:
            self._answered = None
        self._bytes -= window.bytes
        for frame in window.frames:
            if frame is not None:
                window.written += 1
                window.deleted += frame[1] == _DELETE
        self._settled(window)
        for arrived in window.arrivals:
            arrived(window)
