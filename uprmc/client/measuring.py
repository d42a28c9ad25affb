"""What a consumer's nodes and routes look like in numbers."""

from __future__ import annotations

from collections.abc import Iterable

from uprmc.client.follow import Follower
from uprmc.client.metrics import Metrics, NodeMetrics, VBucketMetrics
from uprmc.client.nodes import Node, Nodes
from uprmc.client.routes import Route


def measured(nodes: Nodes, routes: Iterable[Route], follower: Follower, now: float) -> Metrics:
    """Return all of it."""
    return Metrics(
        {route.place.vbucket: _vbucket(route, follower, now) for route in routes},
        {node.place: _node(node) for node in nodes.all()},
    )


def _node(node: Node) -> NodeMetrics:
    session = node.session
    return NodeMetrics(
        session is not None and session.open,
        node.backoff.attempts,
        str(node.error or ""),
        session.items if session else 0,
        session.bytes_received if session else 0,
    )


def _vbucket(route: Route, follower: Follower, now: float) -> VBucketMetrics:
    place, session = route.place, route.session
    vbucket, behind = place.vbucket, max(0, route.high_seqno - place.seqno)
    size = session.bytes_received / session.items if session and session.items else 0
    return VBucketMetrics(
        session.place if session and route.streaming else "",
        place.seqno,
        place.whole,
        behind,
        int(behind * size),
        now - route.level_at if behind else 0.0,
        place.seqno - place.ring_from,
        follower.rollbacks.get(vbucket, 0),
        follower.restarts.get(vbucket, 0),
        follower.undone.get(vbucket, 0),
        route.items,
        route.refusal,
    )
