"""What goes wrong in a run, and when: faults of links, processes, machines and disks, at random."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.sim.disk import Disk
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


class FaultyRun:
    """A run of one node among faults; `_begin_faults` begins them, `_faulty` = False ends them.

    Attributes:
        crashes, cuts: how many there were.
    """

    world: World
    disk: Disk
    node: Node

    def __init__(self, absences_s: tuple[float, ...]) -> None:
        """Make it.

        Args:
            absences_s: how long a node may be down. Sometimes not at all: a clock with seconds does
                not see such a short absence.
        """
        self.crashes = self.cuts = 0
        self._faulty = False
        self._absences_s = absences_s

    def _begin_faults(self, faults: Faults) -> None:
        self._faulty = True
        disk = self.disk
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

    def _again(self, mean_s: float, happen: Callable[[], None]) -> None:
        def act() -> None:
            if self._faulty:
                happen()
                self._again(mean_s, happen)

        self.world.after(self.world.random.expovariate(1 / mean_s), act)

    def _cut(self) -> None:
        if self.node.links:
            self.cuts += 1
            self.world.note("cut")
            self.world.random.choice(self.node.links).cut()

    def _set_clock(self) -> None:
        self.world.set_wall_clock(self.world.random.choice(_CLOCK_STEPS_S))

    def _crash(self, *, power: bool) -> None:
        if not self.node.up:
            return
        self.crashes += 1
        self.node.crash(power=power)
        self._start_later()

    def _stop(self) -> None:
        if self.node.serving and not self.node.stopping:
            self.node.stop()
            self._start_later()

    def _start_later(self) -> None:
        def start() -> None:
            if self.node.up:
                if self.node.stopping:
                    self._start_later()
                return
            disk = self.disk
            disk.full = disk.broken = disk.map_full = disk.unreadable = False  # it could not start
            self.node.start()

        self.world.after(self.world.random.choice(self._absences_s), start)

    def _for_a_while(self, fault: str) -> None:
        self.world.note(f"disk {fault}")
        setattr(self.disk, fault, True)
        self.world.after(self.world.between(0.05, 0.3), lambda: setattr(self.disk, fault, False))


class NodeFaults(FaultyRun):
    """What goes wrong with one node of several."""

    def __init__(self, world: World, node: Node, absences_s: tuple[float, ...]) -> None:
        super().__init__(absences_s)
        self.world, self.node, self.disk = world, node, node.disk

    def begin(self, faults: Faults) -> None:
        """From now on."""
        self._begin_faults(faults)

    def heal(self) -> None:
        """No more, and mend what is broken."""
        self._faulty = False
        disk = self.disk
        disk.full = disk.broken = disk.unreadable = disk.map_full = False
