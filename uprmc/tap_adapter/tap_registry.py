"""Where clients that speak TAP come in. One for each process, in a node or in front of another.

Job: make sessions, join a TAP_CONNECT with what is known of its name and with an upstream, and
carry out what others ask about a client by its name. What it stands on is handed in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from uprmc.config import TapSettings
from uprmc.errors import CommandError, InvalidArguments, TemporaryFailure
from uprmc.ports import Clock
from uprmc.protocol.tap import Connect, ConnectFlag
from uprmc.tap_adapter.names import Names, TapName
from uprmc.tap_adapter.producer import TapProducer
from uprmc.tap_adapter.upstream import MakeUpstream

#: Carries out ``stats WORDS``; ``None`` = there is no such group.
Statistics = Callable[[str], Iterable[tuple[str, str] | None] | None]


class Opened(NamedTuple):
    """A client's stream, and what is known of its name."""

    known: TapName
    producer: TapProducer


def _no_statistics(_words: str) -> None:
    """Stand in where nobody has any."""


def _ignore(*_: object) -> None:
    """Stand in where nobody wants to know."""


@dataclass(slots=True)
class Past:
    """Sums over streams that are over; see `tap_statistics` for the names."""

    messages: int = 0
    items: int = 0
    nacks: int = 0
    sent_bytes: int = 0

    def add(self, producer: TapProducer) -> None:
        """Add one more."""
        found = producer.statistics()
        self.messages += found.messages
        self.items += found.items
        self.nacks += found.counts.nacks
        self.sent_bytes += found.counts.sent_bytes


class TapRegistry:
    """All TAP clients of one process.

    Attributes:
        names: all clients.
        connects: TAP_CONNECTs that were accepted.
        refusals: TAP_CONNECTs that were not.
        pushes_refused: messages of masters on connections that are not for them.
        past: what streams that are over have sent.
        statistics: what a session answers to ``stats``; at first there is no group.
        obstacle: returns why nobody can be served for now, ``""`` = everybody can.
        on_refused: called with the name and the reason of each refusal.
        on_closed: called with the name of a client whose stream is over, the reason, and whether
            the stream ended in good order.
    """

    def __init__(
        self,
        settings: TapSettings,
        names: Names,
        make_upstream: MakeUpstream,
        clock: Clock,
        monotonic: Callable[[], float],
    ) -> None:
        """See the class; `monotonic` returns seconds."""
        self.names = names
        self.connects = 0
        self.refusals = 0
        self.pushes_refused = 0
        self.past = Past()
        self.statistics: Statistics = _no_statistics
        self.obstacle: Callable[[], str] = str
        self.on_refused: Callable[[bytes, str], None] = _ignore
        self.on_closed: Callable[[bytes, str, bool], None] = _ignore
        self._settings = settings
        self._make_upstream = make_upstream
        self._clock = clock
        self._monotonic = monotonic

    def tick(self) -> None:
        """Forget names whose time is over; call it about once a second."""
        self.names.tick(self._monotonic(), self._clock.now())

    @property
    def unix_minus_monotonic_s(self) -> float:
        """What turns monotonic times into Unix times now."""
        return self._clock.now() - self._monotonic()

    # --- streams --------------------------------------------------------------------------------

    def open(self, connect: Connect, wake: Callable[[], None]) -> Opened:
        """Begin a client's stream; one that it had is disconnected.

        Raises:
            CommandError: refused.
        """
        if obstacle := self.obstacle():
            raise TemporaryFailure(obstacle)
        now, unix_now = self._monotonic(), self._clock.now()
        known = self.names.connect(connect, now, unix_now)
        values = not known.connect.has(ConnectFlag.REQUEST_KEYS_ONLY)
        try:
            upstream = self._make_upstream(known.name, values, wake)
        except CommandError:
            self.names.left(known, now, unix_now, finished=False)
            raise
        producer = TapProducer(known.connect, known, upstream, self._settings, wake, now, unix_now)
        known.producer = producer
        self.connects += 1
        return Opened(known, producer)

    def close(self, opened: Opened) -> None:
        """Learn that a stream is over, no matter which side ended it."""
        known, producer = opened
        now, unix_now = self._monotonic(), self._clock.now()
        self.past.add(producer)
        why = producer.closed or "the client has hung up"
        producer.close()
        self.names.left(known, now, unix_now, finished=producer.finished)
        self.on_closed(known.name, why, producer.done)

    def refused(self, name: bytes, why: str) -> None:
        """Learn that a TAP_CONNECT was refused."""
        self.refusals += 1
        self.on_refused(name, why)

    # --- what others ask ------------------------------------------------------------------------

    def deregister(self, name: bytes) -> None:
        """Forget a client, and end its stream; nobody minds if there is none."""
        self.names.deregister(name)

    def change_filter(self, name: bytes, wanted: dict[int, int]) -> None:
        """Have a connected client get other vBuckets, each with its last closed checkpoint's id.

        Raises:
            InvalidArguments: no client of that name is connected.
        """
        known = self.names.find(name)
        if known is None or not isinstance(known.producer, TapProducer):
            raise InvalidArguments(f"no TAP client {name!r} is connected")
        known.producer.change_filter(wanted)

    def reset_chain(self) -> None:
        """Have every connected client begin anew."""
        for known in list(self.names):
            if isinstance(known.producer, TapProducer):
                known.producer.reset()
        self.names.start_over()
