"""A simulated node that speaks TAP: everything of `replica_node`, and the adapter at its door."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tests.sim.judges import complain
from tests.sim.link import Link
from tests.sim.node import Pace
from tests.sim.replica_node import Cluster, ReplicaNode
from uprmc.config import Settings, TapSettings
from uprmc.kv.services import Services
from uprmc.protocol.tap import Connect
from uprmc.tap_adapter.node_tap import NodeTap
from uprmc.tap_adapter.producer import TapProducer
from uprmc.tap_adapter.session import TapOpened


class TapNode(ReplicaNode):
    """See the module docstring.

    Attributes:
        tap: of the present life.
        producers: of streams that were begun, by the wake-up of their connections: only whether a
            server says that it has sent everything, which its client cannot see.
    """

    tap: NodeTap

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        settings: Settings,
        pace: Pace,
        *,
        sync: bool,
        tap: TapSettings,
    ) -> None:
        self.producers: dict[Callable[[], None], TapProducer] = {}
        super().__init__(cluster, name, replace(settings, tap=tap), pace, sync=sync)

    def _life_began(self) -> None:
        super()._life_began()
        self.tap = NodeTap(self.upr, self.settings.tap, lambda: self._world.now, lambda: b"the map")
        door_open = self.tap.registry.open

        def noted(connect: Connect, wake: Callable[[], None]) -> TapOpened:
            opened = door_open(connect, wake)
            self.producers[wake] = opened.producer
            return opened

        self.tap.registry.open = noted  # type: ignore[method-assign]

    def _services(self) -> Services:
        return replace(super()._services(), tap=self.tap)

    def said_done(self, link: Link) -> bool:
        """Tell whether the stream of a connection that is over said that it was complete."""
        producer = self.producers.pop(link._wake, None)
        return producer is not None and producer.done

    def _tick(self) -> None:
        self.tap.registry.tick()
        super()._tick()

    def judge_freed(self) -> None:
        """See `Node.judge_freed`; nobody holds a stream of TAP either."""
        super().judge_freed()
        connected = [known.name for known in self.tap.registry.names if known.producer is not None]
        if connected:
            complain(f"{self.name}: TAP clients are still connected: {connected}")
        if self.tap.pushes.pushers:
            complain(f"{self.name}: {self.tap.pushes} still pushes")
