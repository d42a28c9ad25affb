"""The group about links to other clusters."""

from __future__ import annotations

from collections.abc import Iterator

from uprmc.kv.services import StatRows
from uprmc.server.observed import ObservedNode
from uprmc.xdcr.link import Link


def xdcr(node: ObservedNode) -> StatRows:
    """Return the number of links, and what each has done."""
    return _rows(list(node.links.by_name.values()))


def _rows(links: list[Link]) -> Iterator[tuple[str, str]]:
    yield "links", str(len(links))
    for link in links:
        name = f"link_{link.spec.name}"
        yield f"{name}:state", link.state
        yield f"{name}:to", link.spec.to
        yield f"{name}:error", link.error
        yield f"{name}:changes_left", str(link.progress.changes_left)
        yield f"{name}:bytes_left", str(link.progress.bytes_left)
        yield f"{name}:lag_s", f"{link.progress.lag_seconds:.3f}"
        yield f"{name}:rate", f"{link.progress.rate:g}"
        for what, value in link.counters.shown().items():
            yield f"{name}:{what}", str(value)
