"""How a metric is declared, and what a scrape of a node reads for it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from functools import cached_property
from typing import Literal, NamedTuple

from uprmc.engine.bucket import Bucket
from uprmc.engine.memory_account import MemoryAccount
from uprmc.engine.stats import Stats
from uprmc.engine.timings import Histogram
from uprmc.engine.tombstone_count import Amount
from uprmc.server import stat_node, stat_replication, stat_tap, stat_upr, stat_watermarks
from uprmc.server.audit import Audit
from uprmc.server.connections import Connections
from uprmc.server.consumer_lag import ConsumerLag, largest
from uprmc.server.index_driver import IndexDriver
from uprmc.server.memory_holders import Holder, holders
from uprmc.server.observed import ObservedNode
from uprmc.tap_adapter.node_tap import NodeTap
from uprmc.upr.follow.replication import Replication
from uprmc.upr.hub import Hub
from uprmc.xdcr.link import Link

#: Consumers that have their own value of a label; all others are one more.
CONSUMERS_MOST = 20

#: What one scrape reads: a number, or one for each value of the metric's labels.
Reading = float | Mapping[tuple[str, ...], float | Histogram]


class Scrape:
    """One scrape of a node; what several metrics share is worked out once."""

    bucket: Bucket
    stats: Stats
    account: MemoryAccount
    connections: Connections
    audit: Audit
    upr: Hub
    tap: NodeTap | None
    replication: Replication
    links: list[Link]
    index: IndexDriver
    uptime_s: float

    def __init__(self, node: ObservedNode) -> None:
        self._node = node
        self.bucket = node.bucket
        self.stats = node.bucket.stats
        self.account = node.bucket.account
        self.connections = node.connections
        self.audit = node.audit
        self.upr = node.upr
        self.tap = node.tap
        self.replication = node.replication
        self.links = list(node.links.by_name.values())
        self.index = node.index
        self.uptime_s = node.uptime_s()
        self.items_sent = 0

    def steps(self) -> Generator[None, None, None]:
        """Work out what takes long."""
        self.items_sent = yield from stat_upr.items_sent_in_steps(self.upr)

    @cached_property
    def replicated(self) -> stat_replication.Totals:
        """Return the sums over all sources."""
        return stat_replication.totals(self.replication)

    @cached_property
    def disk(self) -> dict[str, int]:
        """Return the sizes of the store."""
        return stat_node.disk(self.bucket)

    @cached_property
    def purge_lag(self) -> int:
        """Return the most changes between a vBucket's purge seqno and its newest one on disk."""
        found = [each for each in self.bucket.vbuckets.values() if each.max_deleted_rev]
        return max((each.persisted_seqno - each.purge_seqno for each in found), default=0)

    @cached_property
    def tombstones(self) -> Amount:
        """Return what is on disk."""
        return self.bucket.flusher.tombstones.total

    @cached_property
    def pinned(self) -> dict[tuple[str, str], Amount]:
        """Return what each registered client alone keeps, as (id, kind)."""
        return stat_watermarks.pinned_by_client(self.bucket.pinning.kept)

    @cached_property
    def holders(self) -> list[Holder]:
        """Return who has the memory."""
        return holders(self._node)

    @cached_property
    def consumers(self) -> list[ConsumerLag]:
        """Return the consumers that are furthest behind, and the rest as one."""
        return largest(self._node.consumer_lags.found, CONSUMERS_MOST)

    @cached_property
    def pushed(self) -> tuple[int, int]:
        """Return the messages of TAP masters, and those that were refused."""
        return stat_tap.messages_pushed(self.tap)


class MetricInfo(NamedTuple):
    """A metric as it is declared.

    Attributes:
        name: without ``uprmc_``.
        kind: see `Metric`.
        help: a sentence that says what is counted.
        read: gives the value; with labels one for each combination of their values.
        labels: names of the labels.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    read: Callable[[Scrape], Reading]
    labels: tuple[str, ...] = ()


def counter(name: str, help: str, read: Callable[[Scrape], Reading], *labels: str) -> MetricInfo:
    """Declare a counter; its name ends in ``_total``."""
    return MetricInfo(name, "counter", help, read, labels)


def gauge(name: str, help: str, read: Callable[[Scrape], Reading], *labels: str) -> MetricInfo:
    """Declare a gauge."""
    return MetricInfo(name, "gauge", help, read, labels)


def stat(name: str, help: str, attribute: str) -> MetricInfo:
    """Declare an attribute of `Stats`."""
    return counter(name, help, lambda scrape: getattr(scrape.stats, attribute))


def stats(
    name: str, help: str, labels: tuple[str, ...], attributes: Mapping[str, tuple[str, ...]]
) -> MetricInfo:
    """Declare several attributes of `Stats` as one metric, each with the values of its labels."""

    def read(scrape: Scrape) -> Mapping[tuple[str, ...], float]:
        return {values: getattr(scrape.stats, name) for name, values in attributes.items()}

    return counter(name, help, read, *labels)


def histogram(
    name: str,
    help: str,
    read: Callable[[Scrape], Mapping[tuple[str, ...], Histogram]],
    *labels: str,
) -> MetricInfo:
    """Declare a histogram of seconds."""
    return MetricInfo(name, "histogram", help, read, labels)
