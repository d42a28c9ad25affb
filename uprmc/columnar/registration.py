"""The rows of who reads now and then in the watermark tables of the nodes: Spark streams, backups.

The driver reports, tasks do not: only the driver knows what is durable. The rows' id lives as long
as the checkpoint of a stream, or the directory of a backup; `consume.registering` makes the frames.

A connection is made for a few reports and closed after them, so that no node waits for us between
batches, and the next driver of the same checkpoint may name the rows at once. A node that cannot
be reached gets its reports with the next batch: until then it keeps too much, never too little.

Source: `reference/systems.md` a.1 to a.4; Spark reference, section 3.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial

from uprmc.columnar.access import Access
from uprmc.columnar.connection import Connection
from uprmc.columnar.errors import SparkError
from uprmc.columnar.nodes import Nodes
from uprmc.consume import features
from uprmc.consume.registering import Instance, Purged, Registering, removal
from uprmc.protocol.header import RequestFrame
from uprmc.protocol.opcodes import Status

#: The newest complete state of a vBucket that is durable, and its history; 0 and 0 = there is none.
Durable = Callable[[int], tuple[int, int]]


#: Answers that say that there is no row to remove any more.
_NOTHING_THERE = frozenset({Status.KEY_NOT_FOUND, Status.NOT_MY_VBUCKET})


class Registration:
    """See the module docstring. Used by one thread.

    Args:
        access: where the nodes are.
        instance: who is registered.
        restarts: a vBucket whose deletions are gone is read from zero, and registered so.
    """

    def __init__(self, access: Access, instance: Instance, *, restarts: bool) -> None:
        self._access, self._restarts, self._instance = access, restarts, instance
        self._nodes: dict[str, Registering] = {}
        self._places: dict[int, str] = {}

    def begin(self, durable: Durable, places: Mapping[int, str]) -> None:
        """Register the vBuckets that are not registered where they are; report the others.

        Args:
            durable: what is committed.
            places: the node of each vBucket that is read.
        """
        new: dict[str, list[int]] = {place: [] for place in self._nodes}
        for number, place in places.items():
            if self._places.get(number) != place:
                self._leave(number)
                new.setdefault(place, []).append(number)
        self._note(durable)
        for place, numbers in new.items():
            self._tell(place, numbers, durable)

    def committed(self, durable: Durable) -> None:
        """Report what is durable now, as often as the interval of reports allows."""
        self._note(durable)
        for place in [*self._nodes]:
            self._tell(place, (), durable)

    def told(self, vbucket: int) -> str:
        """Return what the node said of a position whose deletions are gone, as words; or ""."""
        rows = self._nodes.get(self._places.get(vbucket, ""))
        purged = None if rows is None else rows.purged.get(vbucket)
        return "" if purged is None else _words(purged)

    def close(self) -> None:
        """Report all that has not been reported; the rows stay."""
        for place, rows in self._nodes.items():
            frames = rows.rest()
            if frames:
                with suppress(SparkError), Connection(place, self._access) as connection:
                    self._open(connection)
                    self._send(connection, rows, frames)

    # --- one node -------------------------------------------------------------------------------

    def _note(self, durable: Durable) -> None:
        for number, place in self._places.items():
            self._nodes[place].reached(number, *durable(number))

    def _leave(self, number: int) -> None:
        place = self._places.pop(number, None)
        if place is not None:
            self._nodes[place].gone(number)

    def _tell(self, place: str, new: Sequence[int], durable: Durable) -> None:
        rows = self._nodes.setdefault(place, Registering(self._instance))
        frames = rows.due(time.monotonic())
        if not frames and not new:
            return
        try:
            with Connection(place, self._access) as connection:
                rows.granted = self._open(connection)
                frames += rows.register_all({number: durable(number) for number in new})
                self._places.update(dict.fromkeys(new, place))
                outpaced = self._send(connection, rows, frames) & {*new}
                if self._restarts and outpaced:
                    again = rows.register_all(dict.fromkeys(outpaced, (0, 0)))
                    self._send(connection, rows, again)
        except SparkError:
            self._forget(place)

    def _forget(self, place: str) -> None:
        """Begin again with a node that may not have heard what was sent last."""
        self._nodes.pop(place, None)
        self._places = {n: where for n, where in self._places.items() if where != place}

    def _send(
        self, connection: Connection, rows: Registering, frames: Sequence[RequestFrame]
    ) -> set[int]:
        """Send reports, take their answers; return the vBuckets that must begin at zero."""
        outpaced = set()
        for frame, answer in zip(frames, connection.ask(frames), strict=True):
            rows.answered(frame, answer)
            if answer.status == Status.NOT_MY_VBUCKET:
                self._places.pop(frame.vbucket, None)
            elif answer.status == Status.ROLLBACK and not any(answer.value):
                outpaced.add(frame.vbucket)
        return outpaced

    def _open(self, connection: Connection) -> bool:
        """Make it a connection that may report; return whether the node has watermarks."""
        return opened(connection, b"registers " + self._instance.id)


def opened(connection: Connection, name: bytes) -> bool:
    """Make it a connection that may report; return whether the node has watermarks."""
    asked = [features.REGISTRAR.open(name), *features.REGISTRAR.controls()]
    return features.WATERMARKS in features.granted(asked, connection.ask(asked))


def unregister(access: Access, name: bytes) -> list[int]:
    """Remove the rows of an instance from all nodes; return the vBuckets that had one.

    Raises:
        Unreachable, Refused, ...: a node does not answer, or refuses; the others may be done.
    """
    removed: list[int] = []
    with Nodes(access) as nodes:
        for place, numbers in nodes.by_place(nodes.owners).items():
            requests = [removal(name, number) for number in numbers]
            removed += nodes.at(place, partial(_removed, requests))
    return sorted(removed)


def _removed(requests: Sequence[RequestFrame], connection: Connection) -> list[int]:
    if not opened(connection, b"removes " + requests[0].key):
        return []
    found = []
    for request, answer in zip(requests, connection.ask(requests), strict=True):
        if answer.status == Status.SUCCESS:
            found.append(request.vbucket)
        elif answer.status not in _NOTHING_THERE:
            raise connection.refusal(answer, "HWT_REPORT")
    return found


def _words(purged: Purged) -> str:
    if purged.registered_at is None:
        return "it was not registered"
    text = f"it was registered at {purged.registered_at}"
    if purged.expired_at is not None:
        text += f" until {datetime.fromtimestamp(purged.expired_at, UTC):%Y-%m-%d %H:%M:%S} UTC"
    return text
