"""Time and a voice for an adapter's clients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from twisted.internet.task import LoopingCall

from uprmc.server.log import Log, Throttle
from uprmc.tap_adapter.client_rows import text_of
from uprmc.tap_adapter.tap_registry import TapRegistry

#: How often it is looked which clients' time is over.
TICK_S = 1.0

_LOG_S = 1.0

_log = Log("tap")


class Driven(Protocol):
    """An adapter: that of a node, or the stand-alone one; see `NodeTap` for the attributes."""

    registry: TapRegistry
    trouble: list[str]


class TapDriver:
    """Drives one adapter from `start` to `stop`, and logs what becomes of it."""

    def __init__(self, reactor: Any, tap: Driven, monotonic: Callable[[], float]) -> None:
        self._tap = tap
        self._refused_log = Throttle(_LOG_S, monotonic)
        self._closed_log = Throttle(_LOG_S, monotonic)
        self._ticker = LoopingCall(self._tick)
        self._ticker.clock = reactor
        tap.registry.on_refused = self._refused
        tap.registry.on_closed = self._closed
        for reason in tap.trouble:
            _log.warn("damaged", reason=reason)

    def start(self) -> None:
        """Begin to forget who has been gone for too long."""
        self._ticker.start(TICK_S, now=True)

    def stop(self) -> None:
        """Cease; harmless when it was never started."""
        if self._ticker.running:
            self._ticker.stop()

    def _tick(self) -> None:
        try:
            self._tap.registry.tick()
        except Exception:  # a bug of ours must not end this for good
            _log.failure("tick_failed")

    def _refused(self, name: bytes, reason: str) -> None:
        held_back = self._refused_log.passed()
        if held_back is not None:
            _log.warn("refused", name=text_of(name), reason=reason, unlogged=held_back)

    def _closed(self, name: bytes, reason: str, done: bool) -> None:
        held_back = self._closed_log.passed()
        if held_back is not None:
            _log.info("closed", name=text_of(name), reason=reason, done=done, unlogged=held_back)
