"""The rows of a stream in the watermark tables of the nodes: what keeps deletions for it.

The driver reports, tasks do not: only the driver knows what Spark has committed. The row's id is
in the offsets, so it lives as long as the checkpoint; `consume.registering` makes the frames.

A connection is made for a few reports and closed after them, so that no node waits for us between
batches, and the next driver of the same checkpoint may name the rows at once. A node that cannot
be reached gets its reports with the next batch: until then it keeps too much, never too little.

Source: `reference/systems.md` a.1 to a.4; Spark reference, section 3.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime

from uprmc.columnar.access import Access
from uprmc.columnar.connection import Connection
from uprmc.columnar.errors import SparkError
from uprmc.consume import features
from uprmc.consume.registering import Instance, Purged, Registering, kind_number
from uprmc.protocol.header import RequestFrame
from uprmc.protocol.opcodes import Status
from uprmc.spark.offsets import Offset, Position

_KIND = kind_number("spark")


class Registration:
    """See the module docstring. Used by one thread.

    Args:
        access: where the nodes are.
        instance: the id of the rows.
        lifetime_s: how long they outlive the last report; 0 = the node's default.
        restarts: a vBucket whose deletions are gone is read from zero, and registered so.
    """

    def __init__(self, access: Access, instance: str, lifetime_s: int, *, restarts: bool) -> None:
        self._access, self._restarts = access, restarts
        self._instance = Instance(instance.encode(), _KIND, lifetime_s)
        self._nodes: dict[str, Registering] = {}
        self._places: dict[int, str] = {}

    def begin(self, offset: Offset, places: Mapping[int, str]) -> None:
        """Register the vBuckets that are not registered where they are; report the others.

        Args:
            offset: what is committed.
            places: the node of each vBucket that is read.
        """
        new: dict[str, list[int]] = {place: [] for place in self._nodes}
        for number, place in places.items():
            if self._places.get(number) != place:
                self._leave(number)
                new.setdefault(place, []).append(number)
        self._note(offset)
        for place, numbers in new.items():
            self._tell(place, numbers, offset)

    def committed(self, offset: Offset) -> None:
        """Report what is durable now, as often as the interval of reports allows."""
        self._note(offset)
        for place in [*self._nodes]:
            self._tell(place, (), offset)

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

    def _note(self, offset: Offset) -> None:
        for number, place in self._places.items():
            self._nodes[place].reached(number, *_durable(offset.at(number)))

    def _leave(self, number: int) -> None:
        place = self._places.pop(number, None)
        if place is not None:
            self._nodes[place].gone(number)

    def _tell(self, place: str, new: Sequence[int], offset: Offset) -> None:
        rows = self._nodes.setdefault(place, Registering(self._instance))
        frames = rows.due(time.monotonic())
        if not frames and not new:
            return
        try:
            with Connection(place, self._access) as connection:
                rows.granted = self._open(connection)
                for number in new:
                    frames += rows.register(number, *_durable(offset.at(number)))
                    self._places[number] = place
                outpaced = self._send(connection, rows, frames)
                if self._restarts:
                    again = [each for n in outpaced & {*new} for each in rows.register(n, 0)]
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
        opening = features.REGISTRAR.open(b"spark " + self._instance.id)
        asked = [opening, *features.REGISTRAR.controls()]
        answers = connection.ask(asked)
        return features.WATERMARKS in features.granted(asked, answers)


def _durable(position: Position) -> tuple[int, int]:
    """Return the newest complete state of a position, and its history."""
    return (position.boundary, position.uuid) if position.boundary else (0, 0)


def _words(purged: Purged) -> str:
    if purged.registered_at is None:
        return "it was not registered"
    text = f"it was registered at {purged.registered_at}"
    if purged.expired_at is not None:
        text += f" until {datetime.fromtimestamp(purged.expired_at, UTC):%Y-%m-%d %H:%M:%S} UTC"
    return text
