"""The rows of who reads now and then in the watermark tables of the nodes: Spark streams, backups.

The driver reports, tasks do not: only the driver knows what is durable. The rows' id lives as long
as the checkpoint of a stream, or the directory of a backup; `remote.registering` makes the frames.

A connection is made for a few reports and closed after them, so that no node waits for us between
batches, and the next driver of the same checkpoint may name the rows at once. A node that cannot
be reached gets its reports with the next batch: until then it keeps too much, never too little.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial

from uprmc.columnar.access import Access
from uprmc.columnar.connection import lent
from uprmc.columnar.errors import NoVBucket
from uprmc.columnar.nodes import BulkNodes
from uprmc.protocol.header import RequestFrame
from uprmc.remote.blocking import NodeConnection, open_registrar, remove_rows, report
from uprmc.remote.errors import ClientError
from uprmc.remote.registering import Instance, Registering, vbuckets_of

#: The newest complete state of a vBucket that is durable, and its history; 0 and 0 = there is none.
Durable = Callable[[int], tuple[int, int]]


class BulkRegistration:
    """The rows of one reader in the watermark tables of the nodes.

    Used by one thread. With `restarts` a vBucket whose deletions are gone is read from zero, and
    registered so.
    """

    def __init__(self, access: Access, instance: Instance, *, restarts: bool) -> None:
        self._access, self._restarts, self._instance = access, restarts, instance
        self._nodes: dict[str, Registering] = {}
        self._places: dict[int, str] = {}

    def begin(self, durable: Durable, places: Mapping[int, str]) -> None:
        """Register the vBuckets that are not registered where they are; report the others.

        `places` has the node of each that is read.
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
        return "" if purged is None else str(purged)

    def close(self) -> None:
        """Report all that has not been reported; the rows stay."""
        for place, rows in self._nodes.items():
            frames = rows.rest()
            if frames:
                with suppress(ClientError), self._lent(place) as connection:
                    rows.begin(self._open(connection))
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
            with self._lent(place) as connection:
                rows.begin(self._open(connection))
                frames += rows.register_all({number: durable(number) for number in new})
                self._places.update(dict.fromkeys(new, place))
                self._send(connection, rows, frames)
                outpaced = rows.to_restart & {*new}
                if self._restarts and outpaced:
                    again = rows.register_all(dict.fromkeys(outpaced, (0, 0)))
                    self._send(connection, rows, again)
        except ClientError:
            self._forget(place)

    def _forget(self, place: str) -> None:
        """Begin again with a node that may not have heard what was sent last."""
        self._nodes.pop(place, None)
        self._places = {n: where for n, where in self._places.items() if where != place}

    def _send(
        self, connection: NodeConnection, rows: Registering, frames: Sequence[RequestFrame]
    ) -> None:
        """Send reports, take their answers; forget where vBuckets are that are not there."""
        report(connection, frames, rows.answered)
        for number in {n for asked in frames for n in vbuckets_of(asked)}.difference(rows.vbuckets):
            self._places.pop(number, None)

    def _open(self, connection: NodeConnection) -> set[bytes]:
        """Make it a connection that may report; return what the node grants."""
        if connection.opened is None:
            return open_registrar(connection, b"registers " + self._instance.id)
        granted: set[bytes] = connection.opened
        return granted

    def _lent(self, place: str) -> AbstractContextManager[NodeConnection]:
        return lent(place, self._access, f"registers {self._instance.id.hex()}")


def unregister(access: Access, name: bytes) -> list[int]:
    """Remove the rows of an instance from all nodes; return the vBuckets that had one.

    Raises:
        NoVBucket: some are active on no node; of the others the rows are removed.
        NodeUnreachable, Refused, ...: a node does not answer, or refuses; the others may be done.
    """
    removed: list[int] = []
    with BulkNodes(access) as nodes:
        for place, numbers in nodes.by_place(nodes.owners).items():
            removed += nodes.at(place, partial(remove_rows, name=name, numbers=numbers))
        if missing := sorted(set(range(nodes.vbuckets)).difference(nodes.owners)):
            raise NoVBucket(nodes.absent(missing))
    return sorted(removed)
