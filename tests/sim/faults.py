"""What goes wrong in a run, and when: faults of links, processes, machines and disks, at random."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.sim.node import Node
from tests.sim.world import World

#: By how much the wall clock is set back or forward.
_CLOCK_STEPS_S = (-3_600, -2, 2, 3_600)


@dataclass(frozen=True, slots=True)
class Faults:
    """What may go wrong, each as the mean number of seconds between two; 0 = never."""

    cut_s: float = 0.0
    crash_s: float = 0.0
    power_s: float = 0.0
    stop_s: float = 0.0
    full_s: float = 0.0
    broken_s: float = 0.0
    unreadable_s: float = 0.0
    map_full_s: float = 0.0
    write_back_s: float = 0.0
    clock_s: float = 0.0


NO_FAULTS = Faults()
ALL_FAULTS = Faults(
    cut_s=0.5,
    crash_s=0.8,
    power_s=2.0,
    stop_s=2.0,
    full_s=1.5,
    broken_s=1.5,
    unreadable_s=1.0,
    map_full_s=1.0,
    write_back_s=0.3,
)


class NodeFaults:
    """What goes wrong with a node."""

    def __init__(self, world: World, node: Node, absences_s: tuple[float, ...]) -> None:
        """Make it.

        Args:
            absences_s: how long the node may be down. Sometimes not at all: a clock with seconds
                does not see such a short absence.
        """
        self.crashes = self.cuts = 0
        self._world, self._node, self._disk = world, node, node.disk
        self._absences_s = absences_s
        self._working = False

    def begin(self, faults: Faults) -> None:
        """From now on."""
        self._working = True
        disk = self._disk
        for mean_s, happen in (
            (faults.cut_s, self._cut),
            (faults.crash_s, lambda: self._crash(power=False)),
            (faults.power_s, lambda: self._crash(power=True)),
            (faults.stop_s, self._stop),
            (faults.full_s, lambda: self._for_a_while("full")),
            (faults.broken_s, lambda: self._for_a_while("broken")),
            (faults.unreadable_s, lambda: self._for_a_while("unreadable")),
            (faults.map_full_s, lambda: setattr(disk, "map_full", True)),
            (faults.write_back_s, disk.write_back),
            (faults.clock_s, self._set_clock),
        ):
            if mean_s:
                self._again(mean_s, happen)

    def heal(self) -> None:
        """No more, and mend what is broken."""
        self._working = False
        self._disk.mend()

    def _again(self, mean_s: float, happen: Callable[[], None]) -> None:
        def act() -> None:
            if self._working:
                happen()
                self._again(mean_s, happen)

        self._world.after(self._world.random.expovariate(1 / mean_s), act)

    def _cut(self) -> None:
        if self._node.links:
            self.cuts += 1
            self._world.note("cut")
            self._world.random.choice(self._node.links).cut()

    def _set_clock(self) -> None:
        self._world.set_wall_clock(self._world.random.choice(_CLOCK_STEPS_S))

    def _crash(self, *, power: bool) -> None:
        if not self._node.up:
            return
        self.crashes += 1
        self._node.crash(power=power)
        self._start_later()

    def _stop(self) -> None:
        if self._node.serving and not self._node.stopping:
            self._node.stop()
            self._start_later()

    def _start_later(self) -> None:
        def start() -> None:
            if self._node.up:
                if self._node.stopping:
                    self._start_later()
                return
            self._disk.mend()  # it could not start
            self._node.start()

        self._world.after(self._world.random.choice(self._absences_s), start)

    def _for_a_while(self, fault: str) -> None:
        self._world.note(f"disk {fault}")
        setattr(self._disk, fault, True)
        self._world.after(self._world.between(0.05, 0.3), lambda: setattr(self._disk, fault, False))
