"""A `Dial` without a network: calls that fail, hang, or reach a source that lies."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from tests.fuzz.lies import Liar
from tests.fuzz.past import Past
from tests.fuzz.said import Said
from tests.fuzz.source import Source
from uprmc.ports import Session

MakeSession = Callable[[Callable[[], None]], Session]


class Call:
    """One call; once it is connected it has a session here and a source there.

    Attributes:
        over: it has failed, was abandoned or cut.
    """

    def __init__(self, place: str, make: MakeSession, failed: Callable[[str], None]) -> None:
        self.place = place
        self.make = make
        self.failed = failed
        self.session: Session | None = None
        self.source: Source | None = None
        self.over = False

    def abandon(self) -> None:
        """End it; nobody is told of anything any more but the session."""
        if not self.over:
            self.over = True
            if self.session is not None:
                self.session.connection_lost()


class Dialler:
    """See the module docstring.

    Attributes:
        calls: those that are not over.
        connected: how many calls have reached somebody.
    """

    def __init__(self, random: Random) -> None:
        self.random = random
        self.calls: list[Call] = []
        self.connected = 0
        self._pasts = {number: Past(random, number) for number in range(4)}
        for past in self._pasts.values():
            past.write(10)

    def dial(self, place: str, make: MakeSession, failed: Callable[[str], None]) -> Call:
        """See `upr.follow.line.Dial`."""
        call = Call(place, make, failed)
        self.calls.append(call)
        return call

    def work(self) -> None:
        """Let something happen to each call."""
        for call in list(self.calls):
            chance = self.random.random()
            if call.over or (chance < 0.1 and self._end(call)):
                self.calls.remove(call)
            elif call.session is None:
                if chance < 0.7:
                    self._connect(call)
            else:
                self._talk(call)
        if self.random.random() < 0.1:
            past = self.random.choice(list(self._pasts.values()))
            self.random.choice((past.branch, past.purge, lambda: past.write(3)))()
            past.active = True

    def _end(self, call: Call) -> bool:
        call.over = True
        if call.session is None or self.random.random() < 0.5:
            call.failed("there is no route to it")
        if call.session is not None:
            call.session.connection_lost()
        return True

    def _connect(self, call: Call) -> None:
        self.connected += 1
        call.session = call.make(lambda: None)
        liar = Liar(self.random, self.random.choice((0.0, 0.0, 0.05)))
        call.source = Source(self.random, self._pasts, Said(), liar)

    def _talk(self, call: Call) -> None:
        session, source = call.session, call.source
        assert session is not None
        assert source is not None
        for _ in range(5):
            pieces = source.take(b"".join(session.data_to_send(65_536)))
            session.receive_data(b"".join(pieces + source.push()))
        if session.closing:
            call.over = True
            session.connection_lost()
