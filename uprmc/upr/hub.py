"""What all UPR connections of a node share: names, disk slots, totals.

Source: UPR reference 2.1 (a name is used once); design, decision 16 (limits).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from uprmc.config import UprSettings
from uprmc.engine.bucket import Bucket
from uprmc.engine.leases import Leases
from uprmc.engine.view_gate import ViewGate

if TYPE_CHECKING:
    from uprmc.upr.follow.replication import Replication
    from uprmc.upr.peer import Peer
    from uprmc.upr.produce.producer import Producer
    from uprmc.upr.produce.stream import Stream
    from uprmc.upr.receive.consumer import Consumer


class Slots:
    """A number of permits; who gets none is called once when one is free.

    Everybody who waits is called then: whoever comes first may not want it any more, or may not be
    able to use it now. Those who come too late wait again. Who gave it back comes last, so that a
    connection with many backfills leaves room to others. While the gate is shut there are none.
    """

    def __init__(self, limit: int, gate: ViewGate) -> None:
        self.limit = limit
        self._gate = gate
        self.used = 0
        self._waiting: dict[Callable[[], bool], None] = {}

    def take(self, retry: Callable[[], bool]) -> bool:
        """Take a permit, or have `retry` called once when it is worth trying again.

        It says whether it will try.
        """
        if self.used < self.limit and not self._gate.is_shut:
            self.used += 1
            return True
        self._waiting[retry] = None
        if self._gate.is_shut:
            self._gate.when_open(self._call_all)
        return False

    def free(self, giver: Callable[[], bool]) -> None:
        """Give a permit back; `giver` is called, too, if nobody else has a use for it."""
        self.used -= 1
        self._waiting.pop(giver, None)
        if self._call_all():
            self._waiting[giver] = None
        else:
            giver()

    def _call_all(self) -> bool:
        waiting, self._waiting = self._waiting, {}
        wanted = [retry() for retry in waiting]
        return any(wanted)

    def forget(self, retry: Callable[[], bool]) -> None:
        """Call `retry` no more."""
        self._waiting.pop(retry, None)


class Preread(Protocol):
    """Somebody who reads the disk ahead of streams, where that may take long."""

    def may_read_on(self, stream: Stream) -> bool:
        """Tell whether `stream` may read on now; if not it is told `tell_ready` when it may."""


class Hub:
    """See the module docstring.

    Attributes:
        bucket: the data.
        settings: limits.
        backfills: permits to read the disk.
        leases: snapshots held for repeated reading.
        producers, consumers: open connections by name; a name is used once among all.
        preread: who reads ahead of streams; ``None`` = they read by themselves.
        replication: what this node gets from others; ``None`` where nobody can dial.
        items_sent, bytes_sent: by connections that are closed.
    """

    def __init__(self, bucket: Bucket, settings: UprSettings) -> None:
        self.bucket = bucket
        self.settings = settings
        self.backfills = Slots(settings.backfills, bucket.gate)
        self.leases = Leases(bucket, settings)
        self.producers: dict[bytes, Producer] = {}
        self.consumers: dict[bytes, Consumer] = {}
        self.preread: Preread | None = None
        self.replication: Replication | None = None
        self.items_sent = 0
        self.bytes_sent = 0
        bucket.view_holders.append(self)

    def tick(self) -> None:
        """Do what has become due; call it a few times a second."""
        self.leases.tick()

    def join_producer(self, producer: Producer) -> None:
        """Take a connection in; an older one of the same name is disconnected."""
        self._disconnect_older(producer.name)
        self.producers[producer.name] = producer

    def leave_producer(self, producer: Producer) -> None:
        """Forget a connection."""
        if self.producers.get(producer.name) is producer:
            del self.producers[producer.name]
        self.items_sent += producer.feed.items_sent
        self.bytes_sent += producer.feed.bytes_sent

    def join_consumer(self, consumer: Consumer) -> None:
        """Take a connection in; an older one of the same name is disconnected."""
        self._disconnect_older(consumer.name)
        self.consumers[consumer.name] = consumer

    def leave_consumer(self, consumer: Consumer) -> None:
        """Forget a connection."""
        if self.consumers.get(consumer.name) is consumer:
            del self.consumers[consumer.name]

    def _disconnect_older(self, name: bytes) -> None:
        older: Peer | None = self.producers.pop(name, None) or self.consumers.pop(name, None)
        if older is not None:
            older.disconnect("another connection has taken its name")

    def release_views(self) -> None:
        """Have everybody give up what is held of the store."""
        self.leases.release_views()
        for producer in self.producers.values():
            producer.feed.release_views()
