"""How a node wants to be served by a producer: the CONTROLs that it sends before its first stream.

Two send them: a `Link`, which this node has dialled, sends all; a spliced `Consumer`, whose
connection a manager has opened, sends those that say nothing about the manager's business. A
producer that does not know one refuses it, and the stream goes on without.

Source: UPR reference 2.11, 7.
"""

from __future__ import annotations

from typing import NamedTuple

from uprmc.config import UprSettings
from uprmc.protocol.upr_extensions import FACTS_KEY

#: The producer is to be heard so often within the time after which it is given up.
_SIGNS_OF_LIFE = 2

#: Shortest interval of keep-alives that old producers take.
_NOOP_MIN_S = 1.0


class Wish(NamedTuple):
    """One CONTROL.

    Attributes:
        key, value: as sent.
        needed: whether a link does without a producer that refuses it.
        spliced: whether a spliced consumer sends it.
        dialled: whether a link sends it.
    """

    key: bytes
    value: bytes
    needed: bool = False
    spliced: bool = False
    dialled: bool = True


def wishes(settings: UprSettings) -> tuple[Wish, ...]:
    """Return what is asked for, in the order in which it is sent."""
    interval_s = max(_NOOP_MIN_S, settings.dial_timeout_s / _SIGNS_OF_LIFE)
    buffer_bytes = b"%d" % settings.consumer_buffer
    return (
        Wish(b"connection_buffer_size", buffer_bytes, needed=True, spliced=True),
        Wish(b"enable_noop", b"true", needed=True, spliced=True),
        Wish(b"set_noop_interval", b"%g" % interval_s),
        Wish(b"enable_expiry_opcode", b"true"),
        Wish(b"max_marker_version", b"2.2", spliced=True),
        Wish(b"uprmc_versions", b"true"),
        Wish(b"uprmc_persisted", b"true"),
        Wish(b"uprmc_terms", b"true", spliced=True, dialled=False),  # a link's HELLO asks for it
        Wish(FACTS_KEY, b"true", spliced=True),
        Wish(b"send_stream_end_on_client_close_stream", b"true"),
    )
