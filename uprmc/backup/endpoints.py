"""What can be compared: nodes, and a backup at one of its increments.

A side says how its keys are spread over vBuckets, holds a moment, and gives the sources that tasks
read. A backup is a moment already; nodes need a lease.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from uprmc.backup.comparing import FileSource, NodeSource, Source
from uprmc.backup.latest import Selection, layers_of
from uprmc.backup.repository import Increment, Repository
from uprmc.columnar.access import Access, Copies
from uprmc.columnar.lease import KeptLease
from uprmc.columnar.nodes import Nodes


@dataclass(frozen=True)
class BackupSide:
    """A backup as one side.

    Attributes:
        directory: of the backup.
        at: number of the increment; ``None`` = the newest.
        chain: name of its directory; ``None`` = the newest.
        checked: its files were found to be as its manifests say, a moment ago.
    """

    directory: Path
    at: int | None = None
    chain: str | None = None
    checked: bool = False


Side = Access | BackupSide


class NodeSide:
    """Nodes.

    Args:
        access: to them.
        copies: which of their replicas are read, too.

    Attributes:
        owners: HOST:PORT of the node that each vBucket is read from.
    """

    has_values = True

    def __init__(self, access: Access, copies: Copies = "none") -> None:
        self._access = replace(access, copies=copies)
        with Nodes(self._access) as nodes:
            self.vbuckets = nodes.vbuckets
            self.owners = dict(nodes.owners)
            kind = "replica" if nodes.copied.issuperset(range(self.vbuckets)) else "node"
        self.words = f"{kind} {', '.join(access.servers)}"
        self.there = frozenset(range(self.vbuckets))

    def by_itself(self) -> NodeSide:
        """Return the same nodes with what they have themselves, replicas included."""
        return NodeSide(self._access, "own")

    def shares_with(self, other: NodeSide) -> bool:
        """Tell whether some vBucket would be compared with itself."""
        named = set(self._access.servers) != set(other._access.servers)
        return named and not self.owners.items().isdisjoint(other.owners.items())

    @contextmanager
    def held(self, vbuckets: Iterable[int], lease_s: float) -> Iterator[Held]:
        """Hold a moment of vBuckets."""
        with KeptLease(self._access, sorted(vbuckets), lease_s) as kept:
            yield Held(self._access, kept.token)


@dataclass(frozen=True)
class Held:
    """A moment of nodes, which sources read from."""

    access: Access
    token: str

    def sources(self, vbuckets: Iterable[int], parts: int) -> list[Source]:
        """Return what to read of vBuckets, in about this number of parts."""
        return [NodeSource(self.access, self.token, each) for each in parts_of(vbuckets, parts)]


class FileSide:
    """A backup, whose moment holds itself."""

    def __init__(self, side: BackupSide) -> None:
        chain = Repository(side.directory).chain(side.chain)
        self.checked = side.checked
        self.increments: list[Increment] = chain.until(side.at)
        newest = self.increments[-1].manifest
        self.words = f"backup {self.increments[-1].path}"
        self.vbuckets = newest.vbuckets
        self.there = frozenset(newest.vb)
        self.has_values = all(each.manifest.has_values for each in self.increments)

    @contextmanager
    def held(self, vbuckets: Iterable[int], lease_s: float) -> Iterator[FileSide]:
        """Hold a moment: nothing to do."""
        yield self

    def sources(self, vbuckets: Iterable[int], parts: int) -> list[Source]:
        """Return what to read of vBuckets."""
        selection = Selection(frozenset(vbuckets))
        groups = layers_of(self.increments, selection)
        return [FileSource(tuple(layers)) for layers in groups.values()]


OpenSide = NodeSide | FileSide


def open_sides(a: Side | Path | str, b: Side | Path | str) -> tuple[OpenSide, OpenSide]:
    """Return what is to be compared.

    Where a vBucket is active on no node, a replica of the named ones is read; of two nodes of one
    cluster, what each has itself.
    """
    one, other = open_side(a, "missing"), open_side(b, "missing")
    if isinstance(one, NodeSide) and isinstance(other, NodeSide) and one.shares_with(other):
        return one.by_itself(), other.by_itself()
    return one, other


def open_side(side: Side | Path | str, copies: Copies = "none") -> OpenSide:
    if isinstance(side, Access):
        return NodeSide(side, copies)
    return FileSide(side if isinstance(side, BackupSide) else BackupSide(Path(side)))


def parts_of(vbuckets: Iterable[int], parts: int) -> list[tuple[int, ...]]:
    """Return vBuckets in at most this number of parts of neighbours."""
    numbers = sorted(vbuckets)
    size = max(1, -(-len(numbers) // parts))
    return [tuple(numbers[at : at + size]) for at in range(0, len(numbers), size)]
