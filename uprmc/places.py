"""Where a node listens, as people write it: ``HOST:PORT``, ``[::1]:PORT`` or ``unix:/path``.

Every client reads such a place here, the library, the command line and Spark alike.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterable
from typing import NamedTuple

_PORT_MAX = 0xFFFF
_UNIX = "unix:"

#: What stands in a cluster map for the host by which the client reached the node.
_HOST = "$HOST"

#: First bytes of what answers in place of a node.
_HTTP, _TLS_ALERT = b"HTTP/", b"\x15\x03"

#: How a node's HTTP listener names the listener that was meant.
_UPR = b"upr="


class Place(NamedTuple):
    """A place, taken apart: of TCP, or a unix socket whose `path` is not empty."""

    host: str
    port: int
    path: str = ""

    @property
    def tls_name(self) -> str:
        """The name that its certificate must be for."""
        return self.host or "localhost"


def parsed(text: str) -> Place:
    """Take a place apart; raises `ValueError` with what was expected."""
    if text.startswith(_UNIX) and len(text) > len(_UNIX):
        return Place("", 0, text.removeprefix(_UNIX))
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"an IPv6 address in brackets: [{host}]:{port}")
    decimal = port.isascii() and port.isdecimal() and len(port) <= 5
    if not colon or not host or not decimal or not 0 < int(port) <= _PORT_MAX:
        raise ValueError("HOST:PORT, such as 127.0.0.1:11210 or [::1]:11210, or unix:/path")
    return Place(host, int(port))


def connected(place: Place, timeout_s: float) -> socket.socket:
    """Connect, blocking; raises `OSError`, or `UnicodeError` for what is no host's name."""
    if not place.path:
        found = socket.create_connection((place.host, place.port), timeout_s)
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return found
    found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with contextlib.ExitStack() as undo:
        undo.callback(found.close)
        found.settimeout(timeout_s)
        found.connect(place.path)
        undo.pop_all()
    return found


def of_cluster_map(servers: Iterable[str], place: str) -> list[str]:
    """Return the places that a cluster map names which the node at `place` has given.

    Over a unix socket ``$HOST`` names no host: what stands behind it is left out.
    """
    if place.startswith(_UNIX):
        return [each for each in servers if _HOST not in each]
    host = place.rpartition(":")[0]
    return [each.replace(_HOST, host) for each in servers]


def stranger(place: str, data: bytes) -> str:
    """Return what answers at a place with bytes that are no frame, in words; empty = not known."""
    if data.startswith(_TLS_ALERT):
        return f"the listener at {place} speaks TLS: connect with TLS"
    if not data.startswith(_HTTP):
        return ""
    meant = _meant(place, data)
    return f"an HTTP server answers at {place}, not an upr listener" + (
        f"; this node's upr listener is {meant}" if meant else ": name the node's upr listener"
    )


def _meant(place: str, data: bytes) -> str:
    """Return the upr listener that our HTTP listener names; a wildcard becomes the host dialled."""
    _, found, rest = data.partition(_UPR)
    words = rest.split(maxsplit=1)
    if not found or not words:
        return ""
    meant = words[0].decode("ascii", "replace")
    if meant.startswith(("0.0.0.0:", "[::]:")):
        meant = f"{place.rpartition(':')[0]}:{meant.rpartition(':')[2]}"
    return meant if meant.isprintable() else ""
