"""Items that were read and are not sent yet: of other nodes, or not on the disks they must be on.

One producer feeds all nodes of a target, so what is read for one of them may belong to another.
And with ``ship=persisted`` or ``replicated``, what is read waits until no crash or failover of this
node can lose it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from uprmc.engine.vbucket import VBucket
from uprmc.upr.hub import Hub
from uprmc.xdcr.reading import replicated_seqno
from uprmc.xdcr.settings import ACCEPTED, PERSISTED
from uprmc.xdcr.shipment import Shipment
from uprmc.xdcr.shipping import Part

_Parts = deque[tuple[Shipment, Part]]


class Outbound:
    """The items of one link that are read and not sent.

    Attributes:
        ship: when a change may be sent, see `LinkSettings`.
        withheld: what must not be sent yet, by vBucket.
    """

    def __init__(self, hub: Hub, queued: Callable[[str], None], wake: Callable[[], None]) -> None:
        """Begin with nothing.

        Args:
            hub: of the node.
            queued: called with the place of a node that something waits for.
            wake: called when something may be sent by now.
        """
        self.ship = ACCEPTED
        self.withheld: dict[int, _Parts] = {}
        self._hub = hub
        self._queued = queued
        self._wake = wake
        self._queues: dict[str, _Parts] = {}
        self._settings = hub.bucket.settings.xdcr
        self._parts = self._bytes = 0
        self._waits_for_disk = False

    @property
    def is_full(self) -> bool:
        """Whether nothing more is to be read now."""
        settings = self._settings
        return self._parts >= settings.queued_parts or self._bytes >= settings.queued_bytes

    def has(self, place: str) -> bool:
        """Tell whether something may be sent to a node."""
        return bool(self._queues.get(place))

    def take(self, place: str, most_items: int | None = None) -> tuple[Shipment, Part]:
        """Return what may be sent next to a node that `has` something; the rest stays."""
        parts = self._queues[place]
        shipment, part = self._pop(parts)
        if most_items is not None:
            part, rest = part.split(most_items)
            if rest is not None:
                self._append(parts, shipment, rest)
                parts.rotate(1)
        return shipment, part

    def add(self, shipment: Shipment, part: Part) -> None:
        """Take items that were read."""
        number = shipment.vbucket.id
        if self.ship != ACCEPTED or number in self.withheld:
            self._append(self.withheld.setdefault(number, deque()), shipment, part)
        else:
            self._put(shipment, part)

    def _put(self, shipment: Shipment, part: Part) -> None:
        self._append(self._queues.setdefault(shipment.place, deque()), shipment, part)
        self._queued(shipment.place)

    def _append(self, parts: _Parts, shipment: Shipment, part: Part) -> None:
        self._parts += 1
        self._bytes += part.size
        parts.append((shipment, part))

    def _pop(self, parts: _Parts) -> tuple[Shipment, Part]:
        shipment, part = parts.popleft()
        self._parts -= 1
        self._bytes -= part.size
        return shipment, part

    def release(self) -> bool:
        """Queue what may be sent by now; return whether there was anything."""
        released = False
        for number, parts in list(self.withheld.items()):
            released = self._release(parts) or released
            if not parts:
                del self.withheld[number]
        if self.withheld and not released and not self._waits_for_disk:
            self._waits_for_disk = True
            self._hub.bucket.flusher.when_durable(self._on_disk)
        return released

    def _release(self, parts: _Parts) -> bool:
        released = False
        while parts:
            shipment, part = self._pop(parts)
            ready, rest = part.cut(self._safe_seqno(shipment.vbucket))
            if ready is not None:
                self._put(shipment, ready)
                released = True
            if rest is not None:
                self._append(parts, shipment, rest)
                parts.rotate(1)
                break
        return released

    def _on_disk(self, _: bool) -> None:
        self._waits_for_disk = False
        self._wake()

    def _safe_seqno(self, vbucket: VBucket) -> int:
        """Return up to where changes may be sent."""
        if self.ship == ACCEPTED:
            return vbucket.high_seqno
        durable = self._hub.bucket.flusher.durable_seqno(vbucket)
        if self.ship == PERSISTED:
            return durable
        return min(durable, replicated_seqno(self._hub, vbucket.id))

    def forget_node(self, place: str) -> None:
        """Forget what waits for a node: its streams have ended."""
        self._drop(self._queues.pop(place, deque()))

    def forget_vbucket(self, number: int) -> None:
        """Forget what must not be sent yet of a vBucket: its stream has ended."""
        self._drop(self.withheld.pop(number, deque()))

    def _drop(self, parts: _Parts) -> None:
        while parts:
            self._pop(parts)

    def clear(self) -> None:
        """Forget everything."""
        self._queues.clear()
        self.withheld.clear()
        self._parts = self._bytes = 0
