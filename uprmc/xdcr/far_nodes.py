"""The connections by which a reconciliation reads the target's documents, one for each node.

They are not those of the link: flow control would hold up what the link sends as well.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from uprmc.ports import Dialled, Session
from uprmc.remote.login import Login
from uprmc.xdcr.far_documents import FarDocuments, FarOwner
from uprmc.xdcr.nodes import Nodes
from uprmc.xdcr.reading import PREFIX
from uprmc.xdcr.run import Run


class FarNodes:
    """The connections of one reconciliation."""

    def __init__(self, run: Run, nodes: Nodes, owner: FarOwner) -> None:
        self._run = run
        self._nodes = nodes
        self._owner = owner
        self._fars: dict[str, FarDocuments] = {}
        self._dialled: dict[str, Dialled] = {}

    def read(self, place: str, number: int) -> None:
        """Read a vBucket of a node; `FarOwner.ready` is called first if there is no connection."""
        far = self._fars.get(place)
        if far is not None:
            far.read(number)
            return
        make, failed = partial(self._make, place), partial(self._owner.far_failed, place)
        unusable = partial(failed, final=True)
        self._dialled[place] = self._nodes.reach(self._run.spec, place, make, failed, unusable)

    def _make(self, place: str, login: Login | None, wake: Callable[[], None]) -> Session:
        settings, clock = self._run.hub.bucket.settings, self._run.hub.bucket.clock
        spec = self._run.spec  # links of other nodes may have the same name
        name = PREFIX + f"{spec.name}:{spec.id}:reconcile".encode()
        far = FarDocuments(place, self._owner, name, login, settings, clock, wake)
        self._fars[place] = far
        return far

    def hang_up(self, place: str) -> None:
        """End the connection to a node, if there is one; nothing more is told of it."""
        far, dialled = self._fars.pop(place, None), self._dialled.pop(place, None)
        if far is not None:
            far.hang_up()
        if dialled is not None:
            dialled.abandon()

    def hang_up_all(self) -> None:
        """End all connections."""
        for place in list(self._dialled):
            self.hang_up(place)
