"""A consumer and nodes in one process: real rules on both sides, no sockets, time set by hand.

`World` does what `client.blocking` does with sockets: dial, carry bytes, turn, idle. Each node is a
`Rig` with the server's own sessions. `Mirror` is a handler that keeps a copy, like a database that
commits each call; it survives `World.restart`, which is a crash when something was raised before.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Any

from tests.contents import receive_all, table_of
from tests.kv.harness import Rig
from uprmc.client.core import Options, UprCore
from uprmc.client.errors import ClientError, ConnectionLost, NodeUnreachable
from uprmc.client.handler import Change, Document, Handler
from uprmc.client.node_session import NodeSession
from uprmc.client.state import MemoryState, RingChunk, Saved, StateStore
from uprmc.engine.replica import take_history
from uprmc.kv.session import Negotiation
from uprmc.model import SnapshotRange, VBucketState
from uprmc.remote.batch import SET, Batch

ACTIVE, REPLICA, DEAD = VBucketState.ACTIVE, VBucketState.REPLICA, VBucketState.DEAD

_ROUNDS_MAX = 5_000
_PULL_BYTES = 64 * 1024


class Crash(Exception):
    """The consumer's process dies here."""


class Mirror(Handler):
    """Keeps a copy of everything, and a diary of what it was told.

    Attributes:
        docs: key -> value, by vBucket.
        diary: every call but mutations and deletions: name and arguments.
        changes: every change.
        seen: key -> seqno of its last change, for those of vBucket 0 that were not undone.
        calls: how many calls came.
        crash_at: the call at which the process dies, 0 = none; `crash_after` = with its effect.
    """

    def __init__(self) -> None:
        self.docs: dict[int, dict[bytes, bytes]] = {}
        self.diary: list[tuple[Any, ...]] = []
        self.changes: list[Change] = []
        self.seen: dict[bytes, int] = {}
        self.calls = 0
        self.crash_at = 0
        self.crash_after = False

    def _do(self, effect: Callable[[], object]) -> None:
        self.calls += 1
        dies = self.calls == self.crash_at
        if dies and not self.crash_after:
            raise Crash
        effect()
        if dies:
            raise Crash

    def _note(self, change: Change) -> None:
        self.changes.append(change)
        if not change.vbucket:
            self.seen[change.key] = change.seqno

    def told(self, name: str) -> list[tuple[Any, ...]]:
        """Return the arguments of all calls of this name."""
        return [entry[1:] for entry in self.diary if entry[0] == name]

    def of(self, vbucket: int) -> dict[bytes, bytes]:
        return self.docs.setdefault(vbucket, {})

    def mutation(self, change: Change) -> None:
        def effect() -> None:
            assert change.value is not None
            self._note(change)
            self.of(change.vbucket)[change.key] = change.value

        self._do(effect)

    def deletion(self, change: Change) -> None:
        def effect() -> None:
            self._note(change)
            self.of(change.vbucket).pop(change.key, None)

        self._do(effect)

    def snapshot_begin(self, vbucket: int, start: int, end: int, from_disk: bool) -> None:
        self._do(lambda: self.diary.append(("snapshot_begin", vbucket, start, end, from_disk)))

    def snapshot_end(self, vbucket: int, end: int) -> None:
        self._do(lambda: self.diary.append(("snapshot_end", vbucket, end)))

    def rollback(self, vbucket: int, seqno: int) -> Any:
        def effect() -> None:
            self.diary.append(("rollback", vbucket, seqno))
            if not seqno:
                self.of(vbucket).clear()
                self.seen.clear()

        self._do(effect)

    def undo(self, vbucket: int, key: bytes, document: Document | None) -> None:
        def effect() -> None:
            self.diary.append(("undo", vbucket, key, document and document.value))
            self.seen.pop(key, None)
            if document is None:
                self.of(vbucket).pop(key, None)
            else:
                self.of(vbucket)[key] = document.value

        self._do(effect)

    def branch(self, vbucket: int, uuid: int, lost_from: int, lost_to: int) -> None:
        self._do(lambda: self.diary.append(("branch", vbucket, uuid, lost_from, lost_to)))


class DurableMirror(Mirror):
    """Can make durable what it holds at any time."""

    def durable(self) -> None:
        self._do(lambda: None)


class BatchMirror(Mirror):
    """Takes batches, and each as one effect."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[Batch] = []

    def changes(self, batch: Batch) -> None:  # type: ignore[override]
        def effect() -> None:
            self.batches.append(batch)
            for change in batch:
                self._note(change)
                if change.op == SET:
                    assert change.value is not None
                    self.of(change.vbucket)[change.key] = change.value
                else:
                    self.of(change.vbucket).pop(change.key, None)

        self._do(effect)


class CrashingState(MemoryState):
    """A state in memory before or after one of whose commits the process dies.

    Attributes:
        commits: how many there were.
        crash_at: the commit at which the process dies, 0 = none; `crash_after` = when it is done.
        failure: raised by the next commits.
        history: all positions that were ever written, by vBucket.
    """

    def __init__(self) -> None:
        super().__init__()
        self.commits = 0
        self.crash_at = 0
        self.crash_after = False
        self.failure: Exception | None = None
        self.history: list[tuple[int, Saved]] = []

    def commit(
        self,
        saved: Mapping[int, Saved],
        ring: Any,
        trims: Mapping[int, int],
        cuts: Mapping[int, int],
    ) -> None:
        if self.failure is not None:
            raise self.failure
        for chunk in ring:
            assert isinstance(chunk, RingChunk)
            assert [seqno for seqno, _ in chunk.entries] == sorted(s for s, _ in chunk.entries)
        self._at(lambda: super(CrashingState, self).commit(saved, ring, trims, cuts))
        self.history += saved.items()

    def forget(self, vbuckets: Iterable[int]) -> None:
        self._at(lambda: super(CrashingState, self).forget(vbuckets))

    def _at(self, effect: Callable[[], object]) -> None:
        self.commits += 1
        if self.commits == self.crash_at and not self.crash_after:
            raise Crash
        effect()
        if self.commits == self.crash_at:
            raise Crash

    def ring(self, vbucket: int = 0) -> list[tuple[int, bytes]]:
        """Return the ring without boundaries."""
        return [entry for entry in self.ring_after(vbucket, 0) if entry[1]]


class ServerEnd:
    """A node's session, pulled as the adapter does."""

    def __init__(self, rig: Rig) -> None:
        self.woken = False
        self.session: Any = Negotiation(rig.services, self._wake, by_key=False)

    def _wake(self) -> None:
        self.woken = True

    def take(self, data: bytes) -> bytes:
        self.woken = False
        if data:
            self.session.receive_data(data)
        taken = []
        while True:
            pieces = self.session.data_to_send(_PULL_BYTES)
            if self.session.successor is not None:
                self.session = self.session.successor
            elif not pieces:
                return b"".join(taken)
            taken += pieces


class World:
    """See the module docstring.

    Attributes:
        rigs: nodes by HOST:PORT.
        down: those that cannot be reached.
        core: the consumer's present life.
    """

    def __init__(
        self,
        handler: Handler,
        *rigs: Rig,
        state: StateStore | None = None,
        tamper: Callable[[bytes], bytes] = lambda data: data,
        **options: Any,
    ) -> None:
        self.rigs = {f"node{number}:1": rig for number, rig in enumerate(rigs)}
        self.down: set[str] = set()
        self.state = CrashingState() if state is None else state
        self.handler = handler
        self.now = 1000.0
        self._tamper = tamper
        self._options = options
        self._ends: dict[NodeSession, ServerEnd] = {}
        self.core = self._born()

    def _born(self) -> UprCore:
        return UprCore(list(self.rigs), self.handler, self.state, Options(**self._options))

    def restart(self, **options: Any) -> None:
        """Begin a new life of the consumer with the same state and handler."""
        for end in self._ends.values():
            end.session.connection_lost()
        self._ends.clear()
        self._options |= options
        self.core = self._born()

    # --- what the adapter does ------------------------------------------------------------------

    def settle(self, seconds: float = 0.0) -> None:
        """Carry everything to and fro until nothing moves, now and then until time has passed."""
        end = self.now + seconds
        while True:
            self._quiet()
            if self.now >= end:
                return
            self.now += 0.05

    def until(self, reached: Callable[[], object], seconds: float = 30.0) -> None:
        """Let time pass until something is true."""
        end = self.now + seconds
        while not reached():
            assert self.now < end, "it never happens"
            self.settle()
            self.now += 0.05

    def _quiet(self) -> None:
        for _ in range(_ROUNDS_MAX):
            self.drive(self.core.turn(self.now))
            for place in self.core.due(self.now):
                self._dial(place)
            moved = sum(self._carry(session) for session in list(self._ends))
            moved += sum(rig.fetch() for rig in self.rigs.values())
            if not moved:
                self.drive(self.core.idle())
                return
        raise AssertionError("the conversation never comes to rest")

    def _dial(self, place: str) -> None:
        if place in self.down:
            self.core.failed(place, NodeUnreachable(f"{place} is down"), self.now)
        else:
            session = self.drive(self.core.connected(place, self.now))
            self._ends[session] = ServerEnd(self.rigs[place])

    def _carry(self, session: NodeSession) -> bool:
        end = self._ends[session]
        data = session.data_to_send()
        woken = end.woken
        answer = end.take(data)
        if answer:
            self.drive(self.core.received(session, self._tamper(answer), self.now))
        if end.session.closing:
            self.cut(session)
        return bool(data or answer or woken)

    def cut(self, session: NodeSession | None = None, error: ClientError | None = None) -> None:
        """Lose a connection, or all."""
        for each in [session] if session else list(self._ends):
            self._ends.pop(each).session.connection_lost()
            self.core.lost(each, error or ConnectionLost("cut"), self.now)

    def lose_node(self, place: str) -> None:
        """Let a node go down."""
        self.down.add(place)
        for session in [each for each in self._ends if each.place == place]:
            self.cut(session)

    def drive(self, task: Generator[Any, Any, Any]) -> Any:
        """Run rules to their end."""
        try:
            found = next(task)
        except StopIteration as ended:
            return ended.value
        raise AssertionError(f"somebody waits for {found!r}")


# --- nodes ----------------------------------------------------------------------------------------


def node(first_uuid: int = 0, **changes: Any) -> Rig:
    """Return a node; its histories have numbers above `first_uuid`."""
    rig = Rig(**changes)
    rig.bucket.entropy.last = first_uuid  # type: ignore[attr-defined]
    for number, vbucket in rig.bucket.vbuckets.items():
        vbucket.reset(first_uuid + 1 + number)
    rig.bucket.entropy.last = first_uuid + 100  # type: ignore[attr-defined]
    return rig


def standby(first_uuid: int, **changes: Any) -> Rig:
    """Return a node whose vBuckets are replicas."""
    rig = node(first_uuid, **changes)
    for number in rig.bucket.vbuckets:
        rig.bucket.set_state(number, REPLICA)
    return rig


def write(rig: Rig, vbucket: int = 0, **documents: str) -> int:
    """Store documents, or delete those with an empty text; return the high seqno."""
    part = rig.bucket.vbuckets[vbucket]
    for key, value in documents.items():
        if value:
            part.store(key.encode(), value.encode(), 0, 0)
        else:
            part.delete(key.encode())
    return part.high_seqno


def replicate(source: Rig, target: Rig, vbucket: int = 0) -> None:
    """Let a replica catch up with its active, in one snapshot."""
    ours, theirs = target.bucket.vbuckets[vbucket], source.bucket.vbuckets[vbucket]
    take_history(ours, theirs.failover_log)
    items = sorted(table_of(theirs).values(), key=lambda item: item.seqno)
    newer = [item for item in items if item.seqno > ours.high_seqno]
    if newer:
        bounds = SnapshotRange(ours.high_seqno + 1, theirs.high_seqno)
        receive_all(ours, newer, bounds, theirs.purge_seqno)


def fail_over(source: Rig, target: Rig, vbucket: int = 0) -> None:
    """Let a replica take over, whatever the old active has."""
    source.bucket.set_state(vbucket, DEAD)
    target.bucket.set_state(vbucket, ACTIVE)


def live(rig: Rig, vbucket: int = 0) -> dict[bytes, bytes | None]:
    """Return a node's documents."""
    table = table_of(rig.bucket.vbuckets[vbucket])
    return {key: item.value for key, item in table.items() if not item.life}
