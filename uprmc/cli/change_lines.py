"""Events of streams as lines: for people, and as JSON for programs."""

from __future__ import annotations

import json
from datetime import UTC, datetime

from uprmc.cli.shown import readable
from uprmc.client.change_fields import (
    Rollback,
    Shown,
    SnapshotBegin,
    SnapshotEnd,
    as_fields,
)
from uprmc.client.handler import Change

__all__ = ["Rollback", "Shown", "SnapshotBegin", "SnapshotEnd", "as_json_line", "plain"]


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
    return json.dumps(as_fields(event))
