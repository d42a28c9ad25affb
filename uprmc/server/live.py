"""Live pages: one sample of the node a second for all who look, over server-sent events.

Nothing is computed while nobody looks. A sample is made in slices and encoded once. Panels that
have not changed since the sample before are left out, and of the vBuckets only rows that have; a
new viewer gets everything first. A viewer that does not read skips samples, so it holds back
nothing; when it reads again it begins anew, and after `PATIENCE_S` it is hung up on.
"""

# ruff: noqa: N802  # Twisted's names
# mypy: allow-untyped-calls
from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any

import orjson
from twisted.internet.interfaces import IPushProducer
from twisted.web import http
from twisted.web.server import Request
from zope.interface import implementer  # type: ignore[import-untyped]

from uprmc.server.slices import InSlices, LongWork

#: Samples are so far apart.
EVERY_S = 1.0

#: More viewers are refused.
VIEWERS_MAX = 32

#: A viewer that has not read for so long is hung up on.
PATIENCE_S = 30.0

CONTENT_TYPE = b"text/event-stream"

#: The panel of which only changed rows are sent; its rows begin with a number.
_BY_ROW = "vbuckets"

Panels = Mapping[str, Callable[[], Any]]


@implementer(IPushProducer)
class Viewer:
    """One page that is open."""

    def __init__(self, request: Request, gone: Callable[[Viewer], None]) -> None:
        self.request = request
        self.is_new = True
        self.blocked_since: float | None = None
        self._seconds: Callable[[], float] = lambda: 0.0
        request.notifyFinish().addBoth(lambda _: gone(self))

    def watch_pressure(self, seconds: Callable[[], float]) -> None:
        """Learn from the transport whether the viewer reads."""
        self._seconds = seconds
        self.request.registerProducer(self, True)

    def pauseProducing(self) -> None:
        """The viewer does not read: skip samples."""
        self.blocked_since = self._seconds()

    def resumeProducing(self) -> None:
        """The viewer reads again: it gets everything."""
        self.blocked_since, self.is_new = None, True

    def stopProducing(self) -> None:
        """The viewer is gone; `notifyFinish` tells so."""


class Live:
    """See the module docstring.

    Args:
        reactor: calls later.
        work: the node's long work.
        panels: by name, what makes each.
    """

    def __init__(self, reactor: Any, work: LongWork, panels: Panels) -> None:
        self._reactor = reactor
        self._panels = panels
        self._making = InSlices(work, self._sample)
        self._viewers: list[Viewer] = []
        self._timer: Any = None
        self._last: dict[str, Any] = {}

    def admit(self, request: Request) -> bool:
        """Let a request be a viewer until it is gone; ``False`` = there are too many."""
        if len(self._viewers) >= VIEWERS_MAX:
            return False
        request.setResponseCode(http.OK)
        request.setHeader(b"Content-Type", CONTENT_TYPE)
        request.setHeader(b"Cache-Control", b"no-store")
        request.write(b"retry: 2000\n\n")
        viewer = Viewer(request, self._gone)
        viewer.watch_pressure(self._reactor.seconds)
        self._viewers.append(viewer)
        if self._timer is None:
            self._tick()
        else:
            self._making.start()
        return True

    def stop(self) -> None:
        """Let everybody go."""
        self._making.stop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for viewer in list(self._viewers):
            viewer.request.finish()

    def _gone(self, viewer: Viewer) -> None:
        self._viewers.remove(viewer)

    def _tick(self) -> None:
        self._timer = None
        self._drop_deaf()
        if not self._viewers:
            self._last = {}
            return
        self._making.start()
        self._timer = self._reactor.callLater(EVERY_S, self._tick)

    def _drop_deaf(self) -> None:
        now = self._reactor.seconds()
        for viewer in list(self._viewers):
            since = viewer.blocked_since
            if since is not None and now - since > PATIENCE_S:
                viewer.request.loseConnection()

    def _sample(self) -> Generator[None, None, None]:
        """Make a sample, one panel after the other, and send it."""
        found: dict[str, Any] = {}
        for name, panel in self._panels.items():
            value = panel()
            found[name] = (yield from value) if isinstance(value, Generator) else value
            yield
        changed = {name: value for name, value in found.items() if value != self._last.get(name)}
        if _BY_ROW in changed and _BY_ROW in self._last:
            changed[_BY_ROW] = _changed_rows(self._last[_BY_ROW], found[_BY_ROW])
            changed["gone"] = _gone_rows(self._last[_BY_ROW], found[_BY_ROW])
        yield
        self._last = found
        self._send(found, changed)

    def _send(self, found: dict[str, Any], changed: dict[str, Any]) -> None:
        whole = _event(found) if any(viewer.is_new for viewer in self._viewers) else b""
        part = _event(changed)
        for viewer in list(self._viewers):
            if viewer.blocked_since is None:
                viewer.request.write(whole if viewer.is_new else part)
                viewer.is_new = False


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(value, default=str) + b"\n\n"


def _changed_rows(before: list[Any], after: list[Any]) -> list[Any]:
    known = {row[0]: row for row in before}
    return [row for row in after if known.get(row[0]) != row]


def _gone_rows(before: list[Any], after: list[Any]) -> list[int]:
    left = {row[0] for row in after}
    return [row[0] for row in before if row[0] not in left]
