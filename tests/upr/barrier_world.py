"""Tiny producers with real numbers of writes, that drive any number of barrier rules at once.

They judge on their own: a cookie that returns before a write that was acknowledged before it is a
lie, a cookie that is still pending when everything was sent is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from uprmc.upr.barrier import ByCycle, ByVector

AnyBarriers = ByVector | ByCycle
LIMIT = 10_000
VBUCKETS = 4


class Lie(AssertionError):
    """A cookie returned too early."""


class Lost(AssertionError):
    """A cookie did not return."""


class Judge:
    """Asks one rule for its cookies and knows what must have been sent before each.

    Attributes:
        returned: the cookies, each with the number of snapshots that were complete by then.
    """

    def __init__(self, barriers: AnyBarriers) -> None:
        self.barriers = barriers
        self.pending: list[tuple[bytes, dict[int, int]]] = []
        self.returned: list[tuple[bytes, int]] = []

    def ended(self, vbucket: int) -> None:
        for _, acknowledged in self.pending:
            acknowledged.pop(vbucket, None)

    def look(self, snapshots: int, complete: dict[int, int]) -> None:
        for barrier in self.barriers.reached():
            cookie, acknowledged = self.pending.pop(0)
            assert barrier.cookie == cookie, "out of order"
            for vbucket, seqno in acknowledged.items():
                if complete[vbucket] < seqno:
                    raise Lie(f"{cookie!r}: vBucket {vbucket} at {complete[vbucket]} of {seqno}")
            self.returned.append((cookie, snapshots))


class Streams:
    """What is common to both producers: vBuckets that are written to, streams that come and go."""

    def __init__(self, *rules: AnyBarriers) -> None:
        self.judges = [Judge(barriers) for barriers in rules]
        self.highs = dict.fromkeys(range(VBUCKETS), 0)
        self.complete: dict[int, int] = {}
        self.snapshots = 0
        self.cookies = 0

    def report(self, tell: Callable[[AnyBarriers], None]) -> None:
        for judge in self.judges:
            tell(judge.barriers)
            judge.look(self.snapshots, self.complete)

    def write(self, vbucket: int) -> None:
        self.highs[vbucket] += 1

    def open(self, vbucket: int) -> None:
        if vbucket not in self.complete:
            held = self.complete[vbucket] = self.highs[vbucket] // 2
            self.report(lambda barriers: barriers.opened(vbucket, held))

    def end(self, vbucket: int) -> None:
        if self.complete.pop(vbucket, None) is not None:
            for judge in self.judges:
                judge.ended(vbucket)
            self.report(lambda barriers: barriers.ended(vbucket))

    def cookie(self) -> None:
        if not self.complete:
            return
        self.cookies += 1
        cookie = b"%d" % self.cookies
        for judge in self.judges:
            judge.pending.append((cookie, {vb: self.highs[vb] for vb in self.complete}))
        self.report(lambda barriers: barriers.add(cookie, self.cookies, dict(self.highs)))

    def finish(self) -> None:
        """No more writes: each item, a few rounds, and every cookie is back."""
        for _ in range(sum(self.highs.values()) + 5 * VBUCKETS):
            self.turn()
        for judge in self.judges:
            if judge.pending or len(judge.barriers):
                raise Lost(f"{judge.pending}")

    def turn(self) -> None:
        raise NotImplementedError


class Rounds(Streams):
    """Rounds over the vBuckets in order; one item a turn; vBuckets without changes are skipped."""

    def __init__(self, *rules: AnyBarriers) -> None:
        super().__init__(*rules)
        self.next = 0
        self.current: int | None = None
        self.snapshot_end = 0
        self.sent = 0

    def turn(self) -> None:
        if self.current is not None:
            self.send_item(self.current)
        elif all(self.highs[vb] <= sent for vb, sent in self.complete.items()):
            self.report(lambda barriers: barriers.idle())
        else:
            self.go_on()

    def go_on(self) -> None:
        for vbucket in range(self.next, VBUCKETS):
            if self.highs[vbucket] > self.complete.get(vbucket, self.highs[vbucket]):
                self.begin(vbucket)
                return
        self.next = 0
        self.report(lambda barriers: barriers.round_complete())

    def begin(self, vbucket: int) -> None:
        self.current, self.next = vbucket, vbucket + 1
        self.snapshot_end = self.highs[vbucket]
        self.sent = self.complete[vbucket]
        self.report(lambda barriers: barriers.begun(vbucket))

    def send_item(self, vbucket: int) -> None:
        self.sent += 1
        if self.sent == self.snapshot_end:
            self.current = None
            self.complete[vbucket] = self.sent
            self.snapshots += 1
            self.report(lambda barriers: barriers.passed(vbucket, self.sent))

    def end(self, vbucket: int) -> None:
        if vbucket == self.current:
            self.current = None
        super().end(vbucket)


class Plain(Streams):
    """Streams without an order: snapshots of all vBuckets are sent item by item, interleaved."""

    def __init__(self, *rules: AnyBarriers) -> None:
        super().__init__(*rules)
        self.ends: dict[int, int] = {}
        self.sent: dict[int, int] = {}

    def turn(self) -> None:
        for vbucket in list(self.complete):
            end = self.ends.get(vbucket)
            if end is None and self.highs[vbucket] > self.complete[vbucket]:
                self.ends[vbucket] = self.highs[vbucket]
                self.sent[vbucket] = self.complete[vbucket]
            elif end is not None:
                self.send_item(vbucket, end)

    def send_item(self, vbucket: int, end: int) -> None:
        self.sent[vbucket] += 1
        if self.sent[vbucket] == end:
            del self.ends[vbucket]
            self.complete[vbucket] = end
            self.snapshots += 1
            self.report(lambda barriers: barriers.passed(vbucket, end))

    def end(self, vbucket: int) -> None:
        self.ends.pop(vbucket, None)
        super().end(vbucket)


def story(random: Random, streams: Streams, steps: int = 60) -> None:
    """Anything at any time, then quiet."""
    for vbucket in range(VBUCKETS):
        streams.open(vbucket)
    anything = {"write": 8, "turn": 8, "cookie": 3, "end": 1, "open": 2}
    for what in random.choices([*anything], [*anything.values()], k=steps):
        action = getattr(streams, what)
        if what in ("write", "end", "open"):
            action(random.randrange(VBUCKETS))
        else:
            action()
    streams.finish()


def busy_story(random: Random, streams: Rounds, steps: int = 20) -> None:
    """Whenever a cookie comes, every vBucket has something that no snapshot under way holds."""
    for vbucket in range(VBUCKETS):
        streams.open(vbucket)
    for _ in range(steps):
        for vbucket in range(VBUCKETS):
            streams.write(vbucket)
        if random.random() < 0.5:
            streams.cookie()
        for _ in range(random.randrange(12)):
            streams.turn()
    streams.finish()


def agree(streams: Streams, *, exactly: bool = False) -> None:
    by_vector, by_cycle = (judge.returned for judge in streams.judges)
    assert [cookie for cookie, _ in by_vector] == [cookie for cookie, _ in by_cycle]
    for (_, early), (_, late) in zip(by_vector, by_cycle, strict=True):
        assert early <= late
        assert early == late or not exactly
