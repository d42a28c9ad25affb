"""Where a node listens, as people write it: ``HOST:PORT``, ``[::1]:PORT`` or ``unix:/path``.

Settings, the command line, the client library, Spark and the node itself read a place here. A
reader raises `ValueError`, whose text names what was expected.
"""

from __future__ import annotations

import re
from contextlib import suppress
from ipaddress import ip_address
from typing import NamedTuple

_TCP = re.compile(r"(?:\[([0-9A-Za-z:.%]+)\]|([\w.-]+)):([0-9]{1,5})")
_PORT_MAX = 0xFFFF
_UNIX = "unix:"
_LOCAL = "localhost"

#: Where a node's listeners are unless it is told otherwise.
UPR_PORT, VIEWS_PORT = 11210, 8092

#: How an IPv6 address ends with which somebody means a port.
_WITH_PORT = re.compile(r"[]]|:[0-9]{4,}$")

#: A host without a port.
_ALONE = re.compile(r"\[[0-9A-Za-z:.%]+\]|[A-Za-z][\w.-]*|[0-9]+(?:\.[0-9]+){3}")

#: First bytes of what answers in place of a node.
_HTTP, _TLS_ALERT = b"HTTP/", b"\x15\x03"

#: OpenSSL's words of an answer that is no TLS, with blanks for underscores.
_NO_TLS = ("wrong version number", "record layer failure", "packet length too long", "http request")

#: First bytes of what some servers say to a line of text.
_OTHERS = {
    b"-ERR": "a Redis server",
    b"-NOAUTH": "a Redis server",
    b"ERROR\r\n": "a memcached server",
    b"SSH-": "an SSH server",
}

#: How the views listener of a node begins its answer.
_VIEWS = b'{"uprmc": '

#: What somebody has to do of whom a listener expects something else.
WITH_TLS, WITHOUT_TLS = "connect with TLS", "connect without TLS"
WITH_TRUST = "see whether its certificate is trusted here"
WITH_LOGIN = "log in with a user name and a password file"

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

    @property
    def is_local(self) -> bool:
        """Whether what is sent there does not leave the machine."""
        if self.path or self.host == _LOCAL:
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:  # a name, such as 127.example.org
            return False


def parsed(text: str, *, least_port: int = 1) -> Place:
    """Take a place apart.

    Args:
        least_port: 0 where a listener may pick a free port.

    Raises:
        ValueError: it is none.
    """
    if text.startswith(_UNIX) and len(text) > len(_UNIX):
        return Place("", 0, text.removeprefix(_UNIX))
    found = _TCP.fullmatch(text)
    if found and least_port <= int(found[3]) <= _PORT_MAX:
        return Place(found[1] or found[2], int(found[3]))
    host, _, port = text.rpartition(":")
    if ":" in host and "[" not in host:
        raise ValueError(f"an IPv6 address in brackets: [{host}]:{port}")
    raise ValueError("HOST:PORT, such as 127.0.0.1:11210 or [::1]:11210, or unix:/path")


def complete(text: str, port: int = UPR_PORT) -> str:
    """Return a place; a host alone has the usual port. Raises `ValueError`."""
    place = text.strip()
    if place.count(":") > 1 and not _WITH_PORT.search(place):
        with suppress(ValueError):
            place = f"[{ip_address(place)}]"
    if _ALONE.fullmatch(place):
        place = f"{place}:{port}"
    parsed(place)
    return place


def several(text: str, port: int = UPR_PORT) -> tuple[str, ...]:
    """Return places that are separated by commas, each once; raises as `complete`."""
    found: dict[str, None] = {}
    for each in text.split(","):
        try:
            found[complete(each, port)] = None
        except ValueError as error:
            raise ValueError(f"{error} ({each.strip()!r} is none)") from None
    return tuple(found)


def stranger(place: str, data: bytes) -> str:
    """Return what answers at a place with bytes that are no frame, in words; empty = not known."""
    if data.startswith(_TLS_ALERT):
        return f"the listener at {place} speaks TLS: {WITH_TLS}"
    for beginning, name in _OTHERS.items():
        if data.startswith(beginning):
            return f"{name} answers at {place}, not a node: name the node's upr listener"
    if not data.startswith(_HTTP):
        return ""
    if _VIEWS in data:
        return f"the views listener of a node answers at {place}: name the node's upr listener"
    meant = _meant(place, data)
    return f"an HTTP server answers at {place}, not an upr listener" + (
        f"; this node's upr listener is {meant}" if meant else ": name the node's upr listener"
    )


def speaks_no_tls(reason: str) -> bool:
    """Return whether OpenSSL's reason for a failure means that the other end speaks no TLS."""
    return any(words in reason.lower().replace("_", " ") for words in _NO_TLS)


def tls_refusal(place: str, reason: str) -> str:
    """Return why a listener does not agree on TLS, in words; `reason` is OpenSSL's."""
    if speaks_no_tls(reason):
        return f"the listener at {place} does not speak TLS: {WITHOUT_TLS}"
    return f"the node at {place} does not agree on TLS: {reason}; {WITH_TRUST}"


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
