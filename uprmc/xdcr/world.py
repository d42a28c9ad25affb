"""What a link needs of the node that it runs in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from uprmc.ports import Dial
from uprmc.upr.hub import Hub
from uprmc.xdcr.received import Received


@dataclass(frozen=True, slots=True)
class World:
    """The surroundings of a link.

    Attributes:
        hub: of the node.
        bucket_uuid: of the node's data.
        received: checkpoints that it has as a target.
        dial: returns how to reach nodes, with TLS by the authorities of a file, empty = without.
        later: calls something after a number of seconds.
        password: reads a password file.
        on_event: called with the name of an event and its fields.
        on_trouble: called with the name of a link and what keeps it from its work.
    """

    hub: Hub
    bucket_uuid: int
    received: Received
    dial: Callable[[str], Dial]
    later: Callable[[float, Callable[[], None]], object]
    password: Callable[[str], str]
    on_event: Callable[[str, dict[str, object]], None]
    on_trouble: Callable[[str, str], None]
