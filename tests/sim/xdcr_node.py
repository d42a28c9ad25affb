"""A simulated node with links to other clusters, driven as `uprmc.server` drives them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

from tests.sim.disk import Disk
from tests.sim.judges import Stored
from tests.sim.node import Pace
from tests.sim.replica_node import Cluster, ReplicaNode
from tests.sim.world import World, WorldClock
from uprmc.config import Settings
from uprmc.errors import CommandError
from uprmc.kv.services import Services
from uprmc.model import VBucketState
from uprmc.xdcr.links import Links
from uprmc.xdcr.received import ReceivedRecords
from uprmc.xdcr.world import World as Surroundings

#: Sizes of links that are made small, as `tests.sim.node.SMALL` does for the engine.
SMALL = (
    ("uprmc.xdcr.sender", "_PULL_BYTES", 400),
    ("uprmc.xdcr.world", "SLICE_S", 0.0),
)


def shrink() -> None:
    """Make them small in a process of its own."""
    for module, name, value in SMALL:
        assert hasattr(import_module(module), name), (module, name)
        setattr(import_module(module), name, value)


@dataclass(slots=True)
class Drift:
    """How wrong the wall clock of a machine is.

    Attributes:
        offset_s: by so much, at the beginning.
        rate: and by so much more with each second.
        grain_s: it shows multiples of this; 0 = any time.
    """

    offset_s: float = 0.0
    rate: float = 0.0
    grain_s: float = 0.0


class DriftingClock(WorldClock):
    """The clock of one machine."""

    def __init__(self, world: World, drift: Drift) -> None:
        super().__init__(world)
        self._drift = drift

    def now(self) -> float:
        """See `WorldClock`."""
        drift = self._drift
        shown = super().now() + drift.offset_s + drift.rate * self.monotonic()
        return shown - shown % drift.grain_s if drift.grain_s else shown


class XdcrNode(ReplicaNode):
    """See the module docstring.

    Attributes:
        drift: of its clock.
        uuid: names its data; the restoration of an older copy gives it another one.
        xdcr: its links to other clusters, of the present life.
        events: what links told, in all lives.
        copies: states of its disk that were kept.
    """

    xdcr: Links

    def __init__(self, cluster: Cluster, name: str, settings: Settings, *, sync: bool) -> None:
        self.drift = Drift()
        self.uuid = cluster.world.random.getrandbits(128)
        self.events: list[tuple[str, dict[str, object]]] = []
        self.copies: list[tuple[Any, Stored]] = []
        self._restored = False
        super().__init__(cluster, name, settings, Pace(), sync=sync)
        self.journal.on_up.append(lambda _: self._begin_links())
        self.instance = b"replica:" + name.encode()

    def _clock(self) -> WorldClock:
        return DriftingClock(self._world, self.drift)

    def _life_began(self) -> None:
        super()._life_began()
        received = ReceivedRecords(self.bucket, lambda why: self._trouble("", why))
        life = self.life
        self.xdcr = Links(
            Surroundings(
                self.upr,
                self.uuid,
                received,
                lambda _spec: self._dial_for_link,
                lambda _spec, checked: checked(""),
                lambda delay_s, action: self._after_in(life, max(delay_s, 1e-5), action),
                lambda event, fields: self.events.append((event, fields)),
                self._trouble,
            )
        )

    def _dial_for_link(self, place: str, make: Any, failed: Any, _unusable: Any) -> Any:
        return self._dial(place, partial(make, None), failed)

    def _trouble(self, link: str, why: str) -> None:
        self._world.note(f"{self.name}: link {link}: {why}")

    def _begin_links(self) -> None:
        if self._restored:  # what `Node` of the server does with a copied directory
            self._restored = False
            for number in list(self.bucket.active):
                self.bucket.set_state(number, VBucketState.REPLICA)
                self.bucket.set_state(number, VBucketState.ACTIVE)
        self.xdcr.start()

    def _services(self) -> Services:
        services = super()._services()
        services.xdcr = self.xdcr
        policy = {"revision": "seqno", "timestamp": "lww"}
        rule = policy[self.bucket.account.conflict_rule.value]
        services.control.cluster_map.uuid = self.uuid
        services.stats = lambda _words: [("ep_conflict_resolution_type", rule)]
        return services

    def _tick(self) -> None:
        self.xdcr.tick(self._world.now)
        super()._tick()

    def stop(self) -> None:
        """See `Node.stop`; first its links hang up."""
        self.xdcr.close()
        super().stop()

    def command(
        self, verb: str, done: Callable[[object], None] | None = None, **given: object
    ) -> None:
        """Carry out a verb of ``uprmc xdcr``; raises as it does."""
        refused = partial(self._refused, verb)
        self.xdcr.command(verb, given, done or (lambda _: None), refused)

    def _refused(self, verb: str, error: CommandError) -> None:
        self._world.note(f"{self.name}: {verb}: {error!r}")

    # --- copies of the directory ------------------------------------------------------------------

    def keep_copy(self) -> None:
        """Copy the disk, as a backup of its file does."""
        disk: Disk = self.disk
        self.copies.append((disk._medium._state, self.store_judge.newest))

    def restore_copy(self) -> Stored:
        """Put a copy in the place of the disk; the node is down, and begins another history.

        Return what is on it.
        """
        assert not self.up
        state, stored = self.copies.pop()
        medium = self.disk._medium
        medium._state = medium._synced = state
        self.store_judge._states = [stored]
        self.store_judge.found = stored
        self.uuid = self._world.random.getrandbits(128)
        self._restored = True
        self._left_in_order = False
        return stored
