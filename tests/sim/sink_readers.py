"""What somebody reads out of the targets of sinks, written from their documentation.

Nothing here comes from `uprmc`. Documents are tuples ``(value, rev, cas, flags, expiry)``; those of
a topic have only the value, as the record of an undo has no more.

Source: docs/client.md, "Ready-made sinks"; issue 18.
"""

from __future__ import annotations

import base64
import json
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.sim.judges import complain

Docs = dict[int, dict[bytes, tuple[Any, ...]]]

#: Key, value, headers.
Record = tuple[bytes, bytes | None, dict[str, bytes]]

_U64 = 2**64


class Lines:
    """Applies lines of JSON.

    Attributes:
        docs: what they come to.
        again: how many came that were known by their id.
        changes: by vBucket, of each change that no line has made void, its history and seqno.
    """

    def __init__(self) -> None:
        self.docs: Docs = {}
        self.again = 0
        self.changes: dict[int, set[tuple[int, int]]] = {}
        self._ids: dict[int, dict[str, int]] = {}

    def take(self, data: bytes) -> None:
        """Apply lines, each of which is complete."""
        for line in data.splitlines(keepends=True):
            if not line.endswith(b"\n"):
                complain(f"a torn line is delivered: {line!r}")
            self._one(json.loads(line))

    def _one(self, row: dict[str, Any]) -> None:
        number = row["vbucket"]
        here, ids = self.docs.setdefault(number, {}), self._ids.setdefault(number, {})
        if row["op"] == "rollback":
            self._ids[number] = {
                each: seqno for each, seqno in ids.items() if seqno <= row["seqno"]
            }
            self.changes[number] = {
                each for each in self.changes.get(number, ()) if each[1] <= row["seqno"]
            }
            if not row["seqno"]:
                here.clear()
            return
        if "id" in row:
            if row["id"] in ids:
                self.again += 1
                return
            ids[row["id"]] = row["seqno"]
            self.changes.setdefault(number, set()).add((int(row["vb_uuid"]), row["seqno"]))
        key = _bytes(row, "key")
        if row["op"] == "set":
            numbers = (int(row[name]) for name in ("rev", "cas", "flags", "expiry"))
            here[key] = (_bytes(row, "value"), *numbers)
        else:
            here.pop(key, None)


def _bytes(row: dict[str, Any], name: str) -> bytes:
    text: str = row[name]
    return base64.b64decode(text) if row.get(f"{name}_encoding") == "base64" else text.encode()


def of_files(paths: Iterable[Path]) -> Lines:
    """Read files of lines, the oldest first."""
    lines = Lines()
    for path in paths:
        lines.take(path.read_bytes())
    return lines


def of_table(path: Path) -> Docs:
    """Read the table of a database."""
    found: Docs = {}
    columns = "vbucket, key, value, rev, cas, flags, expiry"
    with closing(sqlite3.connect(path)) as database:
        for number, key, value, rev, cas, *rest in database.execute(
            f"SELECT {columns} FROM documents"
        ):
            row = (_stored(value), rev % _U64, cas % _U64, *rest)
            found.setdefault(number, {})[_stored(key)] = row
    return found


def _stored(data: str | bytes) -> bytes:
    return data.encode() if isinstance(data, str) else data


def of_topic(partitions: Iterable[Iterable[Record]]) -> Docs:
    """Read a topic; the order of partitions does not matter."""
    found: Docs = {}
    for records in partitions:
        part: Docs = {}
        for key, value, headers in records:
            here = part.setdefault(int(headers["vbucket"]), {})
            if headers["op"] == b"rollback":
                here.clear()
            elif value is None:
                here.pop(key, None)
            else:
                here[key] = (value,)
        for number, docs in part.items():
            found.setdefault(number, {}).update(docs)
    return found
