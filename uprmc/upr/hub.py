"""What all UPR connections of a node share: names, disk slots, totals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from uprmc.config import UprSettings
from uprmc.engine.bucket import Bucket
from uprmc.engine.reading import Leases, ViewGate
from uprmc.engine.vbucket import VBucket
from uprmc.login.credentials import Credentials
from uprmc.model import Item
from uprmc.upr.peer import Peer


class Slots:
    """A number of permits; who gets none is called once when one is free.

    All who wait are called then: the first may not want it any more, or may not be
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
        """Give a permit back; `giver` is called, too, if no other has a use for it."""
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


class DiskReader(Protocol):
    """A stream that reads from disk, as who reads ahead of it sees it."""

    vbucket: VBucket  # whose changes it reads
    last_seqno: int  # up to where it has read
    touched_seqno: int  # up to where the disk was read ahead

    def tell_ready(self) -> None:
        """Learn that reading may go on."""


class Preread(Protocol):
    """Reads the disk ahead of streams, where that may take long."""

    def may_read_on(self, stream: DiskReader) -> bool:
        """Tell whether `stream` may read on now; if not, its `tell_ready` is called when it may."""


class Hub:
    """What all UPR connections of a node share."""

    def __init__(self, bucket: Bucket, settings: UprSettings) -> None:
        self.bucket = bucket
        self.settings = settings
        self.backfills = Slots(settings.backfills, bucket.gate)  # permits to read the disk
        self.leases = Leases(bucket, settings)  # snapshots for repeated reading
        # Open connections by name; a name is used once among all.
        self.producers: dict[bytes, Peer] = {}
        self.consumers: dict[bytes, Peer] = {}
        self.preread: Preread | None = None  # ``None`` = streams read the disk by themselves
        #: Whether this node dials another one to fill a vBucket, by number.
        self.follows: Callable[[int], bool] = _never
        #: This node's name in the watermarks of its sources, empty = it registers nowhere; and
        #: what people know it by there, see `registering.name_tag`.
        self.instance = self.tag = b""
        self.credentials: Credentials | None = None  # with which it logs in to its sources
        self._unregistered: set[Peer] = set()
        self.items_sent = self.bytes_sent = 0  # by connections that are closed
        bucket.view_holders.append(self)

    def tick(self) -> None:
        """Do what has become due; call it a few times a second."""
        self.leases.tick()
        if self._unregistered:
            self.bucket.purge_policy.serve_unregistered()

    def join_producer(self, producer: Peer) -> None:
        """Take a connection in; an older one of the same name is disconnected."""
        self._disconnect_older(producer.name)
        self.producers[producer.name] = producer

    def serve_unregistered(self, producer: Peer) -> None:
        """Take note that a connection has a stream that no watermark speaks for, until it leaves.

        Its client may come back for deletions that it lacks without our knowing.
        """
        self._unregistered.add(producer)
        self.bucket.purge_policy.serve_unregistered()

    def leave_producer(self, producer: Peer, items_sent: int, bytes_sent: int) -> None:
        """Forget a connection that has sent so much."""
        if self.producers.get(producer.name) is producer:
            del self.producers[producer.name]
        self._unregistered.discard(producer)
        self.items_sent += items_sent
        self.bytes_sent += bytes_sent

    def join_consumer(self, consumer: Peer) -> None:
        """Take a connection in; an older one of the same name is disconnected."""
        self._disconnect_older(consumer.name)
        self.consumers[consumer.name] = consumer

    def leave_consumer(self, consumer: Peer) -> None:
        """Forget a connection."""
        if self.consumers.get(consumer.name) is consumer:
            del self.consumers[consumer.name]

    def _disconnect_older(self, name: bytes) -> None:
        """End what has a name: its connection may last, if its peer reads nothing any more."""
        older = self.producers.get(name) or self.consumers.get(name)
        if older is not None:
            older.disconnect("another connection has taken its name")

    def release_views(self) -> None:
        """Have all connections give up what they keep of the store."""
        self.leases.release_views()
        for producer in self.producers.values():
            producer.release_views()

    def ask_version(self, number: int, key: bytes, done: Callable[[Item | None], None]) -> bool:
        """Ask a replica for a key's newest version; says whether there is one to ask."""
        return any(each.ask_version(number, key, done) for each in self.producers.values())

    def is_filled(self, number: int) -> bool:
        """Tell whether a vBucket gets its content from another node, or is to get it."""
        return self.follows(number) or any(each.fills(number) for each in self.consumers.values())


def _never(_number: int) -> bool:
    return False
