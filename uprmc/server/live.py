"""Live pages: one sample of the node a second for all who look, over server-sent events.

Nothing is computed while nobody looks. A sample is made in slices and encoded once. Panels that
have not changed since the sample before are left out, and of the vBuckets only rows that have; a
new viewer gets everything first. A viewer that does not read skips samples, so it holds back
nothing; when it reads again it gets everything first, like a new one.
"""

# mypy: allow-untyped-calls
from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any

import orjson
from twisted.web.server import Request

from uprmc.config import HttpSettings
from uprmc.server.outflow import Outflow
from uprmc.server.slices import InSlices, LongWork

#: Samples are so far apart.
EVERY_S = 1.0

#: The panel of which only changed rows are sent; its rows begin with a number.
_BY_ROW = "vbuckets"

Panels = Mapping[str, Callable[[], Any]]


class Live:
    """The source of all live pages.

    Args:
        reactor: calls later.
        work: the node's long work.
        panels: by name, what makes each.
        settings: how many viewers there may be.
    """

    def __init__(
        self, reactor: Any, work: LongWork, panels: Panels, settings: HttpSettings
    ) -> None:
        self._reactor = reactor
        self._settings = settings
        self._panels = panels
        self._making = InSlices(work, self._sample)
        self._viewers: dict[Outflow, bool] = {}  # whether it gets everything next
        self._timer: Any = None
        self._last: dict[str, Any] = {}

    def admit(self, request: Request) -> bool:
        """Let a request be a viewer until it is gone; ``False`` = there are too many."""
        settings = self._settings
        if len(self._viewers) >= settings.viewers:
            return False
        timeout_s = settings.reader_timeout_s
        viewer = Outflow(self._reactor, request, self._gone, events=True, timeout_s=timeout_s)
        self._viewers[viewer] = True
        if self._timer is None:
            self._tick()
        else:
            self._making.start()
        return True

    def stop(self) -> None:
        """Let everybody go."""
        for viewer in list(self._viewers):
            viewer.close()

    def _gone(self, viewer: Outflow) -> None:
        self._viewers.pop(viewer, None)
        if not self._viewers and self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._making.stop()
            self._last = {}

    def _tick(self) -> None:
        self._timer = self._reactor.callLater(EVERY_S, self._tick)
        self._making.start()

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
        for viewer in self._viewers:
            if viewer.paused:
                self._viewers[viewer] = True
        reading = [viewer for viewer in self._viewers if not viewer.paused]
        whole = _event(found) if any(map(self._viewers.get, reading)) else b""
        part = _event(changed)
        for viewer in reading:
            is_new, self._viewers[viewer] = self._viewers[viewer], False
            viewer.write(whole if is_new else part)


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(value, default=str) + b"\n\n"


def _changed_rows(before: list[Any], after: list[Any]) -> list[Any]:
    known = {row[0]: row for row in before}
    return [row for row in after if known.get(row[0]) != row]


def _gone_rows(before: list[Any], after: list[Any]) -> list[int]:
    left = {row[0] for row in after}
    return [row[0] for row in before if row[0] not in left]
