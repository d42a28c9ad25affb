"""Reporting to the nodes up to where the state has the vBuckets that are registered there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from uprmc.client.node_session import NodeSession
from uprmc.client.nodes import Nodes
from uprmc.client.position_writer import PositionWriter
from uprmc.client.routes import Route
from uprmc.remote.registering import REPORT_INTERVAL_S, Registering


class WatermarkReports:
    """Reports from time to time, and everything at the end."""

    def __init__(self, nodes: Nodes, routes: Mapping[int, Route], writer: PositionWriter) -> None:
        self._nodes = nodes
        self._routes = routes
        self._writer = writer
        self._reported_at = 0.0

    def report_due(self, sessions: Sequence[NodeSession], now: float) -> None:
        """Report what has changed, if the last report is some time ago."""
        if now - self._reported_at >= REPORT_INTERVAL_S:
            self._reported_at = now
            self._note()
            for session in sessions:
                session.report(now)

    def report_rest(self) -> bool:
        """Report all that the state has; return whether an answer is to be waited for."""
        self._note()
        for session in self._nodes.sessions():
            session.report_rest()
        return any(registered.unanswered for registered in self._registered())

    def _note(self) -> None:
        for registered in self._registered():
            for vbucket in registered.vbuckets:
                place = self._routes[vbucket].place
                registered.reached(vbucket, *self._writer.watermark(place))

    def _registered(self) -> list[Registering]:
        found = [session.registered for session in self._nodes.sessions()]
        return [registered for registered in found if registered is not None]
