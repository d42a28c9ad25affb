"""Leases for programs that block: a node's vBuckets as they are at one moment, read repeatedly.

    with client.lease([0, 1], lifetime_s=60) as lease:
        for change in lease.read():
            ...

Each `read` gives the same documents, whatever is written meanwhile, until the lease ends.

See `docs/extensions.md`, leases.
"""

from __future__ import annotations

import selectors
import ssl
import time
from collections.abc import Generator, Iterable, Sequence
from contextlib import ExitStack, suppress
from typing import Any, Self

from uprmc.client.decoder import Event, StreamEnded
from uprmc.client.errors import ClientError, ConnectionLost, MisuseError, NodeUnreachable
from uprmc.client.handler import Change
from uprmc.client.node_session import Ask, NodeSession, Task
from uprmc.client.options import check_place
from uprmc.client.position import Asked
from uprmc.client.wire import Wire, running
from uprmc.connecting import own_name
from uprmc.login.credentials import Credentials
from uprmc.model import SnapshotRange
from uprmc.protocol import control
from uprmc.protocol.header import ResponseFrame
from uprmc.protocol.opcodes import EndReason, Status
from uprmc.protocol.upr_extensions import LeasedVBucket
from uprmc.remote import lease as messages
from uprmc.remote.batch import Batch
from uprmc.remote.blocking import NodeConnection, acquired_lease, renewed_lease
from uprmc.remote.errors import LeaseRefused

__all__ = ["Lease", "LeaseRefused"]

_TIMEOUT_S = 30.0

#: A node sends a keep-alive after so long without a frame.
NOOP_INTERVAL_S = 120.0

_BEGINNING = Asked(0, SnapshotRange(0, 0), 0, ())


class Lease:
    """See the module docstring.

    Args:
        place: HOST:PORT of the node.
        vbuckets: which, none = all that are active there.
        lifetime_s: for how long.
        tls: how to speak TLS, ``None`` = not at all.
        credentials: who logs in, ``None`` = nobody.
        reader: the id of the registered client that reads it: to the node it is then no consumer
            for which deletions must be kept by age.
        timeout_s: a node that says nothing for so long is given up.

    Attributes:
        id: the node's number for it.
        lifetime_s: seconds granted, by the acquiring or the last renewal.
        vbuckets: what it holds of each vBucket.

    Raises:
        ClientError: the node does not answer, or refuses.
    """

    def __init__(
        self,
        place: str,
        vbuckets: Iterable[int],
        lifetime_s: float,
        *,
        tls: ssl.SSLContext | None = None,
        credentials: Credentials | None = None,
        reader: bytes = b"",
        timeout_s: float = _TIMEOUT_S,
    ) -> None:
        self._place, self._tls, self._credentials = check_place(place), tls, credentials
        self._timeout_s = timeout_s
        self._wanted_s = lifetime_s
        with self._connected() as connection:
            granted = acquired_lease(connection, list(vbuckets), _seconds(lifetime_s), reader)
        self.id, self.lifetime_s, leased = granted
        self._renew_at = time.monotonic() + self.lifetime_s / messages.RENEWALS
        self.vbuckets: dict[int, LeasedVBucket] = {each.vbucket: each for each in leased}

    def read(
        self,
        vbuckets: Sequence[int] | None = None,
        *,
        values: bool = True,
        renews: bool = False,
    ) -> Generator[Change, None, None]:
        """Yield the newest version of each document, and deletions, as the lease holds them.

        The program may take its time: keep-alives are answered meanwhile.

        Args:
            vbuckets: which, ``None`` = all.
            values: whether changes carry the documents' values.
            renews: let the lease live for as long as it is read.

        Raises:
            LeaseRefused: it has ended, or does not hold one of the vBuckets.
            ClientError: the node does not answer, or makes no sense.
        """
        wanted = sorted(self.vbuckets) if vbuckets is None else list(vbuckets)
        with ExitStack() as stack:
            given = self._place, self._tls, self._credentials
            talk = _Talk(*given, values=values, timeout_s=self._timeout_s)
            stack.enter_context(talk)

            def look() -> None:
                talk.answer_keep_alives()
                if renews:
                    self._renew_if_due()

            talk.run(talk.session.handshake())
            talk.run(self._begin(talk.session, wanted))
            left = len(wanted)
            keeper = stack.enter_context(running(min(NOOP_INTERVAL_S, self.lifetime_s), look))
            while left:
                if renews:
                    self._renew_if_due()
                for event in talk.events():
                    if type(event) is Batch:
                        with keeper:
                            yield from event
                    elif type(event) is StreamEnded:
                        left -= 1
                        if event.reason != EndReason.OK:
                            raise LeaseRefused(self._why_ended(event))

    def _why_ended(self, event: StreamEnded) -> str:
        if event.reason == EndReason.BACKFILL_FAILED:
            number = event.stream.vbucket
            return (
                f"vBucket {number} at {self._place}: it cannot read what it has on its disk, see "
                "its log and event damaged_record"
            )
        return f"the lease at {self._place} has ended meanwhile"

    def _renew_if_due(self) -> None:
        if time.monotonic() < self._renew_at:
            return
        self._renew_at = time.monotonic() + self._wanted_s / messages.RENEWALS
        with suppress(ClientError):  # whoever reads is told
            self.renew(self._wanted_s)

    def renew(self, lifetime_s: float) -> None:
        """Let it live for so long from now."""
        with self._connected() as connection:
            self.lifetime_s = renewed_lease(connection, self.id, _seconds(lifetime_s))

    def release(self) -> None:
        """End it. One that has ended is no error."""
        with self._connected() as connection:
            answer = connection.ask(messages.release(self.id))
        if answer.status not in (Status.SUCCESS, Status.KEY_NOT_FOUND):
            raise LeaseRefused(f"the node at {self._place} refuses: {answer.reason}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _connected(self) -> NodeConnection:
        return NodeConnection(self._place, self._timeout_s, self._tls, self._credentials)

    def _begin(self, session: NodeSession, vbuckets: Sequence[int]) -> Task:
        if control.LEASES not in session.granted:
            raise LeaseRefused(f"the node at {self._place} has no leases")
        frames = [
            session.stream_request(number, _BEGINNING, 0, lease=self.id)[1] for number in vbuckets
        ]
        answers = yield Ask(frames)
        for number, answer in zip(vbuckets, answers, strict=True):
            if answer.status:
                raise LeaseRefused(f"vBucket {number} of the lease: {answer.reason}")


def _seconds(lifetime_s: float) -> int:
    try:
        return messages.whole_seconds(lifetime_s)
    except ValueError as error:
        raise MisuseError(f"a lease of {lifetime_s} s: {error}") from None


class _Talk:
    """One connection, used by one thread: run a task, wait for events."""

    def __init__(
        self,
        place: str,
        tls: ssl.SSLContext | None,
        credentials: Credentials | None,
        *,
        values: bool,
        timeout_s: float,
    ) -> None:
        self._timeout_s = timeout_s
        self.session = NodeSession(
            place,
            own_name("uprmc-lease"),
            wants_values=values,
            noop_interval_s=NOOP_INTERVAL_S,
            credentials=credentials,
            tls=tls is not None,
        )
        self._wire = Wire(place, tls, time.monotonic() + timeout_s)
        self._early: list[Event] = []

    def __enter__(self) -> Self:
        try:
            while not self._wire.ready:
                self._wait()
                self._wire.advance()
        except BaseException:
            self._wire.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._wire.close()

    def run(self, task: Task) -> Any:
        """Run a task to its end and return its result; other events are kept for `events`."""
        answers: Any = None
        while True:
            try:
                ask = task.send(answers)
            except StopIteration as ended:
                return ended.value
            self.session.ask(ask)
            while None in ask.answers:
                self._early += self._received(ask)
            answers = ask.answers

    def answer_keep_alives(self) -> None:
        """Answer those that come while the thread works; it must have dealt with what it read."""
        answers = b""
        while data := self._wire.read_ahead(self.session.room_ahead):
            answers += self.session.hear_ahead(data)
        with suppress(ClientError):  # told when it is read
            self._wire.write(answers)

    def events(self) -> list[Event]:
        """Wait for data and return what it says, perhaps nothing."""
        early, self._early = self._early, []
        return early or self._received(None)

    def _received(self, ask: Ask | None) -> list[Event]:
        self.session.dealt_with()
        self._wire.write(self.session.data_to_send())
        if not self._wire.pending:
            self._wait()
        rest: list[Event] = []
        for event in self.session.receive(self._wire.read(), time.monotonic()):
            answer = getattr(event, "answer", event)
            if isinstance(answer, ResponseFrame):
                self.session.answered(answer)
            else:
                rest.append(event)
        return rest

    def _wait(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._wire, self._wire.wants())
            if not selector.select(self._timeout_s):
                kind = ConnectionLost if self._wire.ready else NodeUnreachable
                raise kind(f"the node at {self._wire.place} says nothing for {self._timeout_s:g} s")
