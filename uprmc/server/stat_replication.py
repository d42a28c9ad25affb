"""The group about what this node gets from others: sources, their lag, followed vBuckets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from uprmc.kv.services import StatGroup, StatRows
from uprmc.server.observed import ObservedNode
from uprmc.upr.follow.replication import Replication
from uprmc.upr.follow.source import Followed, LineState, Source


class Totals(NamedTuple):
    """Sums over sources; `lag_s` is the worst."""

    sources: int
    open: int
    vbuckets: int
    streaming: int
    lag_items: int
    lag_s: float


def replication(node: ObservedNode) -> StatRows:
    """Return totals, each source, each followed vBucket."""
    return _rows(node.replication)


def totals(replication: Replication) -> Totals:
    """Return how all sources stand together."""
    sources = replication.sources.values()
    return Totals(
        len(sources),
        sum(source.state is LineState.OPEN for source in sources),
        sum(len(source.followed) for source in sources),
        sum(source.streaming for source in sources),
        sum(source.lag_items for source in sources),
        max((source.lag_s for source in sources), default=0.0),
    )


def _rows(replication: Replication) -> Iterator[tuple[str, str]]:
    """Yield them; there may be a thousand vBuckets."""
    for name, value in totals(replication)._asdict().items():
        yield name, f"{value:.3f}" if isinstance(value, float) else str(value)
    for name, value in replication.received._asdict().items():
        yield name, str(value)
    yield "takeovers", str(len(replication.handovers))
    yield "last_takeover_error", replication.last_handover_error
    sources = list(replication.sources.values())
    for source in sources:
        yield from _source(source)
    followed = [(source.place, one) for source in sources for one in source.followed.values()]
    for place, one in sorted(followed, key=lambda pair: pair[1].vbucket.id):
        yield from _followed(place, one)


def source_facts(source: Source) -> dict[str, object]:
    """Return what is told of a node that this one follows."""
    return {
        "state": source.state.value,
        "attempts": source.attempts,
        "last_error": source.last_error,
        "vbuckets": len(source.followed),
        "streaming": source.streaming,
        "lag_items": source.lag_items,
        "lag_s": round(source.lag_s, 3),
        **source.received._asdict(),
    }


def _source(source: Source) -> StatGroup:
    rows = {**source_facts(source), "lag_s": f"{source.lag_s:.3f}"}
    return [(f"source_{source.place}:{name}", str(value)) for name, value in rows.items()]


def _followed(place: str, one: Followed) -> StatGroup:
    rows = (
        ("source", place),
        ("state", one.standing.value),
        ("source_seqno", "" if one.source_seqno is None else str(one.source_seqno)),
        ("lag_items", str(one.lag_items)),
        ("error", one.error),
    )
    return [(f"vb_{one.vbucket.id}:{name}", value) for name, value in rows]
