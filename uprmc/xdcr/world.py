"""What a link needs of the node that it runs in, and work on many vBuckets in slices of time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from uprmc.login.credentials import Credentials
from uprmc.ports import Dialled, Session
from uprmc.upr.hub import Hub
from uprmc.xdcr.received import ReceivedRecords
from uprmc.xdcr.spec import LinkSpec

#: Makes the session of a connection, given who to log in as and what wakes it.
MakeLinkSession = Callable[[Credentials | None, Callable[[], None]], Session]

#: As `ports.Dial`, and the last argument gets what is wrong with the files that the link names;
#: then there is no connection.
LinkDial = Callable[[str, MakeLinkSession, Callable[[str], None], Callable[[str], None]], Dialled]


@dataclass(frozen=True, slots=True)
class World:
    """The surroundings of a link."""

    hub: Hub  # of the node
    bucket_uuid: int  # of the node's data
    received: ReceivedRecords  # checkpoints that it has as a target
    dial: Callable[[LinkSpec], LinkDial]  # returns how to reach the nodes of a link's target
    # called with a link and what takes the reason why its files cannot be used, empty = they can.
    check: Callable[[LinkSpec, Callable[[str], None]], None]
    # calls something after a number of seconds.
    later: Callable[[float, Callable[[], None]], object]
    # called with the name of an event and its fields.
    on_event: Callable[[str, dict[str, object]], None]
    # called with the name of a link and what keeps it from its work.
    on_trouble: Callable[[str, str], None]


# --- slices ---------------------------------------------------------------------------------------
# Work on many vBuckets in slices of time, so that the node's other connections do not wait.


#: Seconds that one slice may take.
SLICE_S = 0.002


class Slices:
    """Runs work in slices of time."""

    def __init__(
        self,
        later: Callable[[float, Callable[[], None]], object],
        monotonic: Callable[[], float],
    ) -> None:
        self._later = later
        self._monotonic = monotonic
        self._work: dict[str, tuple[Iterator[None], Callable[[], None]]] = {}

    def run(
        self, name: str, steps: Iterator[None], done: Callable[[], None] = lambda: None
    ) -> None:
        """Carry out steps, the first slice at once.

        Args:
            name: of the work; earlier work of this name is given up.
            steps: others may run between any two of them.
            done: called at the end, or when the work is given up for later work.
        """
        earlier = self._work.pop(name, None)
        if earlier is not None:
            earlier[1]()
        self._work[name] = steps, done
        self._go_on(name, steps)

    def __contains__(self, name: str) -> bool:
        return name in self._work

    def close(self) -> None:
        """Give up everything."""
        self._work.clear()

    def _go_on(self, name: str, steps: Iterator[None]) -> None:
        work = self._work.get(name)
        if work is None or work[0] is not steps:
            return
        until = self._monotonic() + SLICE_S
        for _ in steps:
            if self._monotonic() >= until:
                self._later(0.0, lambda: self._go_on(name, steps))
                return
        if self._work.get(name) is work:
            del self._work[name]
            work[1]()
