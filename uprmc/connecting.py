"""A blocking connection to a place, and what it needs of chance: nonces, a name of its own."""

from __future__ import annotations

import contextlib
import os
import socket
from base64 import b64encode

from uprmc.places import Place

_NONCE_BYTES = 18

#: Producers of today take no longer name of a connection.
_NAME_MAX_BYTES = 200


def new_nonce() -> bytes:
    """Return what nobody can guess, without commas."""
    return b64encode(os.urandom(_NONCE_BYTES))


def own_name(words: str) -> str:
    """Return a name that no other connection has: a node ends the older of two with one name."""
    rest = f":{socket.gethostname()}-{os.getpid()}-{os.urandom(4).hex()}"
    return words.encode()[: _NAME_MAX_BYTES - len(rest)].decode(errors="ignore") + rest


def connected(place: Place, timeout_s: float) -> socket.socket:
    """Connect; raises `OSError`, or `UnicodeError` for what is no host's name."""
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
