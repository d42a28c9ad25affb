"""What a link needs of the node that it runs in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from uprmc.login.credentials import Credentials
from uprmc.ports import Dialled, Session
from uprmc.upr.hub import Hub
from uprmc.xdcr.received import Received
from uprmc.xdcr.spec import LinkSpec

#: Makes the session of a connection, given who to log in as and what wakes it.
MakeLinkSession = Callable[[Credentials | None, Callable[[], None]], Session]

#: As `ports.Dial`, and the last argument is told what is wrong with the files that the link names;
#: then there is no connection.
LinkDial = Callable[[str, MakeLinkSession, Callable[[str], None], Callable[[str], None]], Dialled]


@dataclass(frozen=True, slots=True)
class World:
    """The surroundings of a link.

    Attributes:
        hub: of the node.
        bucket_uuid: of the node's data.
        received: checkpoints that it has as a target.
        dial: returns how to reach the nodes of a link's target.
        check: called with a link and what takes the reason why its files cannot be used, empty =
            they can.
        later: calls something after a number of seconds.
        on_event: called with the name of an event and its fields.
        on_trouble: called with the name of a link and what keeps it from its work.
    """

    hub: Hub
    bucket_uuid: int
    received: Received
    dial: Callable[[LinkSpec], LinkDial]
    check: Callable[[LinkSpec, Callable[[str], None]], None]
    later: Callable[[float, Callable[[], None]], object]
    on_event: Callable[[str, dict[str, object]], None]
    on_trouble: Callable[[str, str], None]
