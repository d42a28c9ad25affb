"""What statistics read of a node."""

from __future__ import annotations

from typing import Protocol

from twisted.python.threadpool import ThreadPool

from uprmc.config import Settings
from uprmc.engine.bucket import Bucket
from uprmc.engine.warmup import Warmup
from uprmc.kv.control import Crawler
from uprmc.server.audit import Audit
from uprmc.server.connections import Connections
from uprmc.server.consumer_lag import ConsumerLags
from uprmc.server.events import Events
from uprmc.server.health import Health
from uprmc.server.index_driver import IndexDriver
from uprmc.tap_adapter.node_tap import NodeTap
from uprmc.upr.follow.replication import Replication
from uprmc.upr.hub import Hub
from uprmc.xdcr.links import Links


class ObservedNode(Protocol):
    """A running node; see `node.Node`.

    Attributes:
        uuid: of its data directory.
        warmup_s: how long warm-up took.
        verbosity: how much it logs, 0 to 2.
        crawler: what ``lru_crawler`` has set.
        origins: setting -> where its value comes from; those that are missing are defaults.
        events: what ``/events`` shows.
        consumer_lags: how far each consumer was behind when it was looked at last.
        health: what is wrong.
        tap: ``None`` = TAP is not spoken here.
    """

    uuid: int
    settings: Settings
    bucket: Bucket
    upr: Hub
    tap: NodeTap | None
    replication: Replication
    links: Links
    index: IndexDriver
    connections: Connections
    audit: Audit
    consumer_lags: ConsumerLags
    health: Health
    crawler: Crawler
    warmup: Warmup
    warmup_s: float
    verbosity: int
    origins: dict[str, str]
    events: Events

    @property
    def disk_pool(self) -> ThreadPool:
        """The threads that do all work on the disk."""

    def addresses(self) -> dict[str, str]:
        """Return where each listener really listens."""

    def uptime_s(self) -> float:
        """Return seconds since the node was made."""
