"""Replication without a network: a dialler and links that do what a test says."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from tests.kv.harness import Rig
from uprmc.model import VBucketState
from uprmc.upr import link
from uprmc.upr.replication import Replication

A, B = "10.0.0.1:11210", "10.0.0.2:11210"


class FakeLink:
    """Keeps what it was asked for; the test says what comes of it through `owner`."""

    def __init__(
        self, hub: Any, name: bytes, wake: Callable[[], None], owner: Any, place: str
    ) -> None:
        self.name = name
        self.owner = owner
        self.open = False
        self.error = ""
        self.closing = self.input_full = False
        self.successor = None
        self.streams: dict[int, object] = {}
        self.source_seqnos: dict[int, int] = {}
        self.asked: list[list[int]] = []
        self.left: list[list[int]] = []
        self.taking: list[list[int]] = []
        self.items = self.rollbacks = self.steps = 0
        self.window = SimpleNamespace(backoffs=0)
        self.ticks: list[float] = []
        self.granted: set[bytes] = set()
        self.questions: list[tuple[int, Callable[[Any], None]]] = []

    def tick(self, now: float) -> None:
        self.ticks.append(now)

    def ask(self, opcode: int, answered: Callable[[Any], None], **_: object) -> None:
        self.questions.append((opcode, answered))

    def follow(self, numbers: list[int]) -> None:
        self.asked.append(list(numbers))
        self.streams.update((number, object()) for number in numbers)

    def leave(self, numbers: list[int]) -> None:
        self.left.append(list(numbers))
        for number in numbers:
            del self.streams[number]

    def take_over(self, numbers: list[int]) -> None:
        self.taking.append(list(numbers))
        self.streams.update((number, object()) for number in numbers)

    # --- what the test says ---------------------------------------------------------------------

    def opens(self) -> None:
        self.open = True
        if self.owner is not None:
            self.owner.opened()

    def begins(self, *numbers: int) -> None:
        for number in numbers:
            if self.owner is not None:
                self.owner.began(number)

    def ends(self, number: int, why: str = "gone", *, retry: bool = True) -> None:
        self.streams.pop(number, None)
        if self.owner is not None:
            self.owner.ended(number, why, retry)

    def closes(self, why: str = "connection lost") -> None:
        self.open = False
        owner, self.owner = self.owner, None
        if owner is not None:
            owner.closed(why)


class FakeCall:
    """One attempt to reach a place."""

    def __init__(
        self, place: str, make_session: Callable[..., Any], failed: Callable[[str], None]
    ) -> None:
        self.place = place
        self.failed = failed
        self.abandoned = False
        self._make_session = make_session

    def connects(self) -> FakeLink:
        return self._make_session(lambda: None)

    def opens(self) -> FakeLink:
        link = self.connects()
        link.opens()
        return link

    def abandon(self) -> None:
        assert not self.abandoned
        self.abandoned = True


class World:
    """A node's rules, and every call that its replication makes."""

    def __init__(self, monkeypatch: Any, **changes: Any) -> None:
        monkeypatch.setattr(link, "ReplicaLink", FakeLink)
        self.rig = Rig(**changes)
        self.bucket = self.rig.bucket
        self.calls: list[FakeCall] = []
        self.now = 100.0
        self.troubles: list[tuple[str, str]] = []
        self.changes: list[tuple[str, str]] = []
        self.restart()

    def restart(self) -> None:
        """Let another replication go on with the same store and vBuckets."""
        self.replication = Replication(self.rig.services.upr, self._dial)
        self.replication.on_trouble = lambda place, why: self.troubles.append((place, why))
        self.replication.on_change = lambda place, what: self.changes.append((place, what))
        self.rig.services.replication = self.replication
        self.replication.tick(self.now)

    def _dial(self, place: str, make_session: Any, failed: Any) -> FakeCall:
        self.calls.append(FakeCall(place, make_session, failed))
        return self.calls[-1]

    # --- time -----------------------------------------------------------------------------------

    def wait(self, seconds: float) -> None:
        """Let time pass, a tenth of a second at a time."""
        until = self.now + seconds
        while self.now < until:
            self.now += 0.1
            self.replication.tick(self.now)

    def redialled_after(self, most_s: float = 60.0) -> float:
        """Return how long it takes until the next call."""
        before, began = len(self.calls), self.now
        while len(self.calls) == before:
            assert self.now - began < most_s, "never dialled again"
            self.now += 0.01
            self.replication.tick(self.now)
        return self.now - began

    # --- commands -------------------------------------------------------------------------------

    def follow(self, place: str = A, numbers: Any = None, *, demote: bool = False) -> list[bool]:
        """Follow, and return what the waiter was told once all is on disk."""
        told: list[bool] = []
        self.replication.follow(place, numbers, demote=demote, done=told.append)
        self.rig.flush()
        return told

    def stop(self, numbers: Any = None) -> list[bool]:
        told: list[bool] = []
        self.replication.stop(numbers, told.append)
        self.rig.flush()
        return told

    def take_over(self, place: str = A, numbers: Any = (0, 1)) -> list[Any]:
        told: list[Any] = []
        self.replication.take_over(place, numbers, lambda *said: told.append(said))
        return told

    def fail_over(self, *numbers: int) -> list[Any]:
        told: list[Any] = []
        self.replication.fail_over(numbers, lambda *said: told.append(said))
        self.rig.flush()
        return told

    def write(self, number: int, count: int = 1) -> None:
        """Change an active vBucket."""
        for key in range(count):
            self.bucket.vbuckets[number].store(b"%d" % key, b"v", 0, 0)

    # --- looking --------------------------------------------------------------------------------

    def states(self) -> list[VBucketState | None]:
        """The states of all vBuckets that there can be."""
        count = self.bucket.settings.engine.vbuckets
        found = map(self.bucket.vbuckets.get, range(count))
        return [vbucket and vbucket.state for vbucket in found]

    def followed(self) -> dict[str, list[int]]:
        return {place: sorted(s.followed) for place, s in self.replication.sources.items()}

    def standing(self, number: int) -> str:
        source = self.replication.source_of(number)
        assert source is not None
        return source.followed[number].standing.value
