"""Barriers: "tell me when I have everything up to now", over all nodes.

A cookie goes to every node that streams to us, once every vBucket has its stream and each node has
told once more what it has. It is reached when it came back from all of them; by then everything
before it was handed over, because events are dealt with in order. A connection or stream that ends
meanwhile breaks it: ask again.

Source: systems reference g.4; ``docs/extensions.md``, barriers; acceptance row D16.
"""

from __future__ import annotations

from collections.abc import Iterable

from uprmc.client.ask import Ask, Task
from uprmc.client.errors import ClientError, MisuseError
from uprmc.client.node_session import NodeSession
from uprmc.protocol.header import RequestFrame
from uprmc.protocol.opcodes import Opcode, Status
from uprmc.protocol.upr_extensions import COOKIE_MAX_BYTES

#: So many barriers may wait.
BARRIERS_MAX = 1000


class Barrier:
    """One question.

    Attributes:
        cookie: its name, as bytes.
        done: it is reached, or broken.
        error: why it is broken.
        sent: the cookies are on their way.
        waiting: places of nodes that have not returned it.
        polls: how often each node must have told what it has before it is sent.
        since: when it was asked for.
    """

    __slots__ = ("cookie", "done", "error", "polls", "sent", "since", "waiting")

    def __init__(self, cookie: bytes, since: float) -> None:
        self.cookie = cookie
        self.since = since
        self.done = self.sent = False
        self.error: ClientError | None = None
        self.waiting: set[str] = set()
        self.polls: dict[str, int] = {}

    def fail(self, error: ClientError) -> None:
        """It will not be reached."""
        self.done, self.error = True, error


class Barriers:
    """The barriers that wait."""

    def __init__(self) -> None:
        self._waiting: dict[bytes, Barrier] = {}
        self._last = 0
        self._closed: ClientError | None = None

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, text: str | None, now: float) -> Barrier:
        """Return a new barrier, which is broken already if `close` was called.

        Raises:
            MisuseError: one of that name waits, or too many do, or the name is empty or too long.
        """
        self._last += 1
        cookie = (f"barrier-{self._last}" if text is None else text).encode()
        if not 0 < len(cookie) <= COOKIE_MAX_BYTES:
            raise MisuseError(f"a barrier's text has 1 to {COOKIE_MAX_BYTES} bytes")
        if cookie in self._waiting:
            raise MisuseError(f"a barrier {text!r} waits already")
        if len(self._waiting) >= BARRIERS_MAX:
            raise MisuseError(f"{BARRIERS_MAX} barriers wait already")
        barrier = self._waiting[cookie] = Barrier(cookie, now)
        if self._closed is not None:
            self._fail(barrier, self._closed)
        return barrier

    def unsent(self) -> list[Barrier]:
        """Return those whose cookies are not on their way."""
        return [barrier for barrier in self._waiting.values() if not barrier.sent]

    def send(self, barrier: Barrier, sessions: Iterable[NodeSession]) -> list[Task]:
        """Return the tasks that ask the nodes."""
        found = list(sessions)
        barrier.sent = True
        barrier.waiting = {session.place for session in found}
        self._look(barrier)
        return [self._ask(barrier, session) for session in found]

    def _ask(self, barrier: Barrier, session: NodeSession) -> Task:
        (answer,) = yield Ask([RequestFrame(Opcode.BARRIER_ADD, key=barrier.cookie)])
        if answer.status == Status.KEY_NOT_FOUND:  # no stream is open there
            self.reached(session, barrier.cookie)
        elif answer.status:
            words = f"the node at {session.place} takes no barrier: {answer.reason}"
            self._fail(barrier, MisuseError(words))

    def reached(self, session: NodeSession, cookie: bytes) -> None:
        """A node has returned a cookie."""
        barrier = self._waiting.get(cookie)
        if barrier is not None and barrier.sent:
            barrier.waiting.discard(session.place)
            self._look(barrier)

    def broken(self, place: str, error: ClientError) -> None:
        """A node was lost, or a stream of it: its cookies say nothing any more."""
        for barrier in list(self._waiting.values()):
            if place in barrier.waiting:
                self._fail(barrier, error)

    def give_up(self, barrier: Barrier, error: ClientError) -> None:
        """What it waits for cannot be had."""
        self._fail(barrier, error)

    def drop(self, barrier: Barrier) -> None:
        """Nobody waits for it any more."""
        self._waiting.pop(barrier.cookie, None)

    def close(self, error: ClientError) -> None:
        """Break those that wait, and all that are asked for later: nothing comes any more."""
        self._closed = error
        for barrier in list(self._waiting.values()):
            self._fail(barrier, error)

    def _look(self, barrier: Barrier) -> None:
        if not barrier.waiting:
            barrier.done = True
            self.drop(barrier)

    def _fail(self, barrier: Barrier, error: ClientError) -> None:
        barrier.fail(error)
        self.drop(barrier)
