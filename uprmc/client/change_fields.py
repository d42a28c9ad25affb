"""Events of streams as fields of JSON: the same in ``uprmc tail --json`` and at ``/changes``."""

from __future__ import annotations

from typing import NamedTuple

from uprmc.client.handler import Change
from uprmc.remote.json_fields import exact, text_or_base64


class SnapshotBegin(NamedTuple):
    """Changes from `start` to `end` follow; only together are they consistent."""

    vbucket: int
    start: int
    end: int
    from_disk: bool


class SnapshotEnd(NamedTuple):
    """All changes of the snapshot were sent, `items` in number."""

    vbucket: int
    end: int
    items: int


class Rollback(NamedTuple):
    """The stream did not begin: the node shares our history only up to `seqno`."""

    vbucket: int
    seqno: int


Shown = Change | SnapshotBegin | SnapshotEnd | Rollback


def as_fields(event: Shown) -> dict[str, object]:
    """Return what a line of JSON says of an event."""
    if isinstance(event, Change):
        return {
            **exact(event._asdict()),
            **text_or_base64("key", event.key),
            **text_or_base64("value", event.value),
        }
    if isinstance(event, SnapshotBegin):
        return {"op": "snapshot-begin", **event._asdict()}
    if isinstance(event, SnapshotEnd):
        return {"op": "snapshot-end", **event._asdict()}
    return {"op": "rollback", **event._asdict()}
