"""Real nodes on one reactor, with links between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.contents import table_of
from tests.system.test_replication import Cluster, write
from uprmc.errors import CommandError
from uprmc.server.node import Node
from uprmc.xdcr.link import Link

__all__ = ["DataCentres", "documents", "write"]


class DataCentres(Cluster):
    """Nodes by name that are clusters of their own."""

    def directory(self, name: str) -> Path:
        """Return where a node keeps its data."""
        return self._directory / name

    def command(self, node: Node, verb: str, limit_s: float = 30.0, **given: object) -> Any:
        """Carry out a verb as ``uprmc xdcr`` does; return its answer."""
        told: list[Any] = []
        refused: list[CommandError] = []
        node.links.command(verb, given, told.append, refused.append)
        self.loop.until(lambda: told or refused, limit_s)
        if refused:
            raise refused[0]
        return told[0]

    def link(self, source: Node, target: Node | str, name: str = "west", **given: object) -> Link:
        """Make a link from one node to another one, or to a place."""
        to = target if isinstance(target, str) else target.addresses()["upr"]
        self.command(source, "create", name=name, to=to, **given)
        return source.links.by_name[name]

    def until_level(self, *links: Link, limit_s: float = 30.0) -> None:
        """Wait until everything has arrived, and stays so."""
        self.loop.until(lambda: all(is_level(link) for link in links), limit_s)

    def until_same(self, *nodes: Node, limit_s: float = 30.0) -> None:
        """Wait until nodes hold the same documents."""
        self.loop.until(lambda: all_equal(map(documents, nodes)), limit_s)


def is_level(link: Link) -> bool:
    return link.state == "running" and not link.progress.changes_left


def documents(node: Node) -> dict[bytes, tuple[Any, ...]]:
    """Return every document of a node with all that its copies must have as well."""
    return {
        item.key: (item.value, item.rev, item.cas, item.flags, item.expiry, item.datatype)
        for vbucket in node.bucket.vbuckets.values()
        for item in table_of(vbucket).values()
        if not item.life
    }


def all_equal(found: Iterator[object] | Callable[[], object] | Any) -> bool:
    first, *rest = found
    return all(each == first for each in rest)
