"""A node's rules without a node: bucket, memory store, a clock that is set by hand.

Nothing happens by itself. A test says when the flusher and the fetcher work, so every moment in
which a session waits can be looked at.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from random import Random
from typing import Any

from uprmc.config import build
from uprmc.engine.bucket import Bucket
from uprmc.engine.fetcher import Fetch
from uprmc.errors import StoreFull
from uprmc.kv.services import Services, StatGroup
from uprmc.kv.text import TextSession
from uprmc.model import Item, VBucketState
from uprmc.ports import Session
from uprmc.storage.memory import MemoryStore
from uprmc.upr.hub import Hub

#: Monday, 15 January 2024, noon: an ordinary time of day for the clock to start at.
NOON = 1_705_320_000.0

PULL_BYTES = 64 * 1024


class ManualClock:
    """Stands still until a test moves it.

    Attributes:
        time: what passes.
        set_by: by how much the wall clock was set since it was right.
    """

    def __init__(self) -> None:
        self.time = NOON
        self.set_by = 0.0

    def now(self) -> float:
        return self.time + self.set_by

    def monotonic(self) -> float:
        return self.time


class CountingEntropy:
    """Hands out 1, 2, 3."""

    def __init__(self) -> None:
        self.last = 0

    def uuid48(self) -> int:
        self.last += 1
        return self.last


class SeededEntropy:
    """The port `Entropy` from a seed."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def uuid48(self) -> int:
        return self._random.getrandbits(48) or 1


class Rig:
    """Everything that a session is made from. See the module docstring.

    Attributes:
        groups: what ``stats`` answers, by the words after it.
        misuse: what was reported by `Services.report_misuse`.
        verbosity: what was set last.
        wakes: how often a session asked to be looked at.
        resets: how often statistics were reset.
    """

    def __init__(self, *, warm: bool = True, **changes: Any) -> None:
        names = {name.replace("__", "."): value for name, value in changes.items()}
        self.settings = build({"engine.vbuckets": 4, **names})
        self.clock = ManualClock()
        self.store = MemoryStore()
        self.bucket = Bucket(self.settings, self.store, self.clock, CountingEntropy())
        for number in range(self.settings.engine.vbuckets):
            self.bucket.create(number, VBucketState.ACTIVE)
        if warm:
            self.bucket.let_traffic_in()
        self.groups: dict[str, StatGroup | None] = {"": [("version", "1.2.3"), ("blank", "")]}
        self.misuse: list[str] = []
        self.verbosity = -1
        self.wakes = 0
        self.resets = 0
        self.services = Services(
            bucket=self.bucket,
            settings=self.settings.kv,
            version=b"1.2.3",
            stats=lambda words: self.groups.get(words),
            reset_stats=self._reset,
            set_verbosity=self._set_verbosity,
            report_misuse=self.misuse.append,
            upr=Hub(self.bucket, self.settings.upr),
        )

    def _reset(self) -> None:
        self.resets += 1

    def _set_verbosity(self, level: int) -> None:
        self.verbosity = level

    def wake(self) -> None:
        self.wakes += 1

    def text(self) -> TextSession:
        """Begin a text conversation."""
        return TextSession(self.services, self.wake)

    # --- the world ------------------------------------------------------------------------------

    def flush(self) -> None:
        """Persist everything that is queued."""
        flusher = self.bucket.flusher
        while flush := flusher.begin():
            flusher.commit(flush)
            flusher.finish(flush)

    def fail_flush(self, reason: str = "no space left") -> None:
        """Let one commit fail, as on a full disk."""
        flush = self.bucket.flusher.begin()
        assert flush is not None
        self.bucket.flusher.failed(flush, StoreFull(reason))

    def fetch(self, *, ok: bool = True) -> int:
        """Carry out one round of reading; return how many values it was asked for."""
        fetcher = self.bucket.fetcher
        fetch = fetcher.begin()
        if fetch is None:
            return 0
        if ok:
            fetcher.commit(fetch)
            fetcher.finish(fetch)
        else:
            fetcher.failed(fetch)
        return len(fetch.wanted)

    def fetch_all(self) -> int:
        """Read until nobody wants anything; return the number of rounds."""
        rounds = 0
        while self.fetch():
            rounds += 1
        return rounds

    def fetch_at_once(self) -> None:
        """From now on answer every wish in the very call that makes it.

        The command runs again after that call, so what was read of tombstones stays.
        """
        fetcher = self.bucket.fetcher
        known = fetcher._answers

        def tell(fetch: Fetch) -> None:
            known.update(fetcher._answers)
            fetcher._answers = known
            while fetch.answers:
                done, ok = fetch.answers.popleft()
                done(ok)

        fetcher.tell = tell  # type: ignore[method-assign]
        fetcher.on_wanted = lambda: (self.fetch(), None)[1]

    def eject(self, *keys: bytes) -> None:
        """Leave the values of these documents to the disk."""
        self.flush()
        for key in keys:
            item = self.item(key)
            assert item is not None
            self.bucket.of_key(key).eject(item.key)

    # --- looking --------------------------------------------------------------------------------

    def item(self, key: bytes) -> Item | None:
        """Return what the table holds, without counting as a read."""
        item = self.bucket.of_key(key).table.find(key)
        return None if item is None or item.life else item

    def resident(self, key: bytes) -> bool:
        item = self.item(key)
        return item is not None and item.value is not None

    def check(self) -> None:
        """Verify the invariants of every vBucket."""
        for vbucket in self.bucket.vbuckets.values():
            vbucket.check()


def drained(session: Session, budget: int = PULL_BYTES) -> bytes:
    """Take everything the session has to say now."""
    taken: list[bytes] = []
    while pieces := session.data_to_send(budget):
        taken += pieces
    return b"".join(taken)


def drained_with_waits(session: Session) -> bytes:
    """Take everything from a session that pauses to let others have their turn."""
    taken = drained(session)
    while session.input_full:
        taken += drained(session)
    return taken


def talk(session: Session, data: bytes) -> bytes:
    """Send `data` and take the replies."""
    session.receive_data(data)
    return drained(session)


def talk_in_pieces(
    session: Session,
    data: bytes,
    cuts: list[int],
    way: Callable[[Any, bytes], bytes] = talk,
) -> bytes:
    """Send `data` cut at these places, taking the replies after each part, as an adapter does."""
    places = [0, *sorted({cut for cut in cuts if cut < len(data)}), len(data)]
    return b"".join(way(session, data[start:end]) for start, end in pairwise(places))
