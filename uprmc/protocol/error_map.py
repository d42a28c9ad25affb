"""The answer to GET_ERROR_MAP: what each status means for a program, as JSON.

Clients of Couchbase that were granted XERROR ask for it when they connect, and do without the
connection if it is refused. Keys are statuses in hexadecimal.
"""

from __future__ import annotations

import json
from functools import cache

from uprmc.protocol.opcodes import STATUS_TEXT, Status

#: Versions of the format that we can write; a client gets the newest one that it can read.
VERSION_MAX = 2

_REVISION = 1

#: Attributes of each error. Those that tell whether and when to try again decide something.
_ATTRIBUTES: dict[Status, tuple[str, ...]] = {
    Status.KEY_NOT_FOUND: ("item-only",),
    Status.KEY_EXISTS: ("item-only",),
    Status.TOO_LARGE: ("item-only", "invalid-input"),
    Status.INVALID_ARGUMENTS: ("invalid-input",),
    Status.NOT_STORED: ("item-only",),
    Status.DELTA_BAD_VALUE: ("item-only", "invalid-input"),
    Status.NOT_MY_VBUCKET: ("fetch-config", "invalid-input"),
    Status.LOCKED: ("item-locked", "item-only", "retry-now"),
    Status.STREAM_NOT_FOUND: ("dcp", "item-only"),
    Status.NOT_LOCKED: ("item-only",),
    Status.AUTH_ERROR: ("conn-state-invalidated", "auth"),
    Status.AUTH_CONTINUE: ("special-handling",),
    Status.RANGE_ERROR: ("invalid-input",),
    Status.ROLLBACK: ("dcp", "special-handling"),
    Status.ACCESS_DENIED: ("support", "auth"),
    Status.UNKNOWN_COMMAND: ("support",),
    Status.OUT_OF_MEMORY: ("temp", "retry-later"),
    Status.NOT_SUPPORTED: ("support",),
    Status.INTERNAL_ERROR: ("internal",),
    Status.BUSY: ("temp", "retry-later"),
    Status.TEMPORARY_FAILURE: ("temp", "retry-later"),
}


def error_map(version: int) -> bytes:
    """Return the map in the newest version up to this one, which is 1 at least."""
    return _written(min(version, VERSION_MAX))


@cache
def _written(version: int) -> bytes:
    errors = {
        f"{status:x}": {
            "name": status.name,
            "desc": STATUS_TEXT[status].decode() or status.name,
            "attrs": attributes,
        }
        for status, attributes in _ATTRIBUTES.items()
    }
    found = {"version": version, "revision": _REVISION, "errors": errors}
    return json.dumps(found, separators=(",", ":")).encode()
