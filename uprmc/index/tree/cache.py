"""Nodes that were read lately, of all trees of the process."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock

from uprmc.index.tree.nodes import Node

__all__ = ["NodeCache"]

#: What all cached nodes together may take, in bytes, where nothing else is configured.
DEFAULT_BYTES = 64 << 20


class NodeCache:
    """The nodes used last, up to a number of bytes; may be called from several threads.

    A node is known by (number of the file, offset). Files never use a number again for other
    contents, so nothing needs to be thrown out; it grows old.
    """

    def __init__(self, limit_bytes: int = DEFAULT_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = self.hits = self.misses = 0
        self._nodes: OrderedDict[tuple[int, int], tuple[Node, int]] = OrderedDict()
        self._lock = Lock()

    def get(self, place: tuple[int, int]) -> Node | None:
        """Return a node if it is still there."""
        with self._lock:
            found = self._nodes.get(place)
            if found is None:
                self.misses += 1
                return None
            self.hits += 1
            self._nodes.move_to_end(place)
            return found[0]

    def put(self, place: tuple[int, int], node: Node) -> None:
        """Keep a node, and let go of the oldest ones that are too many."""
        cost = node.cost()
        with self._lock:
            if place in self._nodes or cost > self.limit_bytes:
                return
            self._nodes[place] = node, cost
            self.used_bytes += cost
            while self.used_bytes > self.limit_bytes:
                _, (_, cost) = self._nodes.popitem(last=False)
                self.used_bytes -= cost
