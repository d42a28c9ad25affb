"""Events of streams as lines: for people, and as JSON for programs."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import NamedTuple

from uprmc.cli.shown import readable
from uprmc.client.handler import Change
from uprmc.consume.json_fields import text_or_base64


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

#: A value is cut after so many characters on a line for people.
_VALUE_CHARACTERS = 60


def plain(event: Shown) -> str:
    """Return an event for people."""
    if isinstance(event, Change):
        details = ", ".join(_details(event))
        value = "" if event.value is None else f'  "{readable(event.value, _VALUE_CHARACTERS)}"'
        return _line(
            event.vbucket, event.seqno, event.op, f"{readable(event.key)}{value}  {details}"
        )
    if isinstance(event, SnapshotBegin):
        origin = "disk" if event.from_disk else "memory"
        return _line(event.vbucket, event.start, "begin", f"snapshot up to {event.end}, {origin}")
    if isinstance(event, SnapshotEnd):
        return _line(event.vbucket, event.end, "end", f"snapshot complete, {event.items} changes")
    return _line(event.vbucket, event.seqno, "rollback", "everything after it is void")


def _line(vbucket: int, seqno: int, op: str, rest: str) -> str:
    return f"{vbucket:>4}:{seqno:<8} {op:<8} {rest}"


def _details(change: Change) -> list[str]:
    found = [f"rev {change.rev}", f"CAS {change.cas}"]
    if change.flags:
        found.append(f"flags {change.flags}")
    if change.expiry:
        found.append(f"expires {time_text(change.expiry)}")
    if change.value is not None and len(change.value) > _VALUE_CHARACTERS:
        found.append(f"{len(change.value):,} bytes")
    return found


def time_text(seconds: int) -> str:
    """Return a Unix time as a person reads it."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def as_json_line(event: Shown) -> str:
    """Return an event as one line of JSON."""
    if isinstance(event, Change):
        fields = {
            **event._asdict(),
            **text_or_base64("key", event.key),
            **text_or_base64("value", event.value),
        }
    elif isinstance(event, SnapshotBegin):
        fields = {"op": "snapshot-begin", **event._asdict()}
    elif isinstance(event, SnapshotEnd):
        fields = {"op": "snapshot-end", **event._asdict()}
    else:
        fields = {"op": "rollback", **event._asdict()}
    return json.dumps(fields)
