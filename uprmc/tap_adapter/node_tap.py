"""TAP in a node: the registry before the node itself, and the connections that push into it.

It is what `kv` sessions know of TAP; see `kv.services.TapGuest`.
"""

from __future__ import annotations

from collections.abc import Callable

from uprmc.config import TapSettings
from uprmc.tap_adapter.consumer import Pushes, TapConsumer
from uprmc.tap_adapter.local import LocalKeeper, LocalUpstream
from uprmc.tap_adapter.names import Names
from uprmc.tap_adapter.session import Over, Report, TapRegistry, TapSession, never
from uprmc.tap_adapter.upstream import Upstream
from uprmc.upr.hub import Hub


class NodeTap:
    """What the sessions of a node know of TAP."""

    def __init__(
        self,
        hub: Hub,
        settings: TapSettings,
        monotonic: Callable[[], float],
        cluster_map: Callable[[], bytes | None],
    ) -> None:
        """Find the clients that were registered; call it before anybody connects.

        Args:
            hub: the node's.
            settings: limits and times.
            monotonic: returns seconds.
            cluster_map: returns what a master gets that pushes into a vBucket that is not here.
        """
        self._hub = hub
        self._cluster_map = cluster_map
        keeper = LocalKeeper(hub.bucket)
        names = Names(settings, keeper)
        self.pushes = Pushes()  # connections that push
        #: Where clients come in.
        self.registry = TapRegistry(settings, names, self._upstream, hub.bucket.clock, monotonic)
        self.registry.obstacle = self._obstacle
        #: What was found damaged at the start, one line each.
        self.trouble = [*keeper.trouble, *names.refused_documents]

    def _obstacle(self) -> str:
        return "" if self._hub.bucket.traffic else "warming up"

    def _upstream(self, name: bytes, values: bool, wake: Callable[[], None]) -> Upstream:
        return LocalUpstream(self._hub, name, values, wake)

    # --- for conversations ----------------------------------------------------------------------

    def connect(
        self, wake: Callable[[], None], report: Report, over: Over | None = None
    ) -> TapSession:
        """See `kv.services.TapGuest`."""
        return TapSession(self.registry, wake, report, over or never)

    def consumer(self) -> TapConsumer:
        """See `kv.services.TapGuest`."""
        return TapConsumer(self._hub, self.pushes, self._cluster_map)

    def deregister(self, name: bytes) -> None:
        """See `kv.services.TapGuest`."""
        self.registry.deregister(name)

    def change_filter(self, name: bytes, wanted: dict[int, int]) -> None:
        """See `kv.services.TapGuest`."""
        self.registry.change_filter(name, wanted)

    def reset_chain(self) -> None:
        """See `kv.services.TapGuest`."""
        self.registry.reset_chain()

    def last_closed(self, number: int) -> int:
        """See `kv.services.TapGuest`."""
        return self.pushes.last_closed(self._hub.bucket.vbuckets[number])
