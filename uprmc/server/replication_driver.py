"""Time and a voice for what this node gets from others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.task import LoopingCall

from uprmc.server.log import Log, Throttle
from uprmc.upr.follow.replication import Replication

#: How often it is looked what is due: a lost source is dialled again after that long at best.
TICK_S = 0.1

_TROUBLE_LOG_S = 1.0

_log = Log("replication")


class ReplicationDriver:
    """Drives one node's replication from `start` to `stop`, and logs what becomes of it."""

    def __init__(
        self, reactor: Any, replication: Replication, monotonic: Callable[[], float]
    ) -> None:
        self._replication = replication
        self._monotonic = monotonic
        self._trouble_log = Throttle(_TROUBLE_LOG_S, monotonic)
        self._ticker = LoopingCall(self._tick)
        self._ticker.clock = reactor
        replication.on_open = self._open
        replication.on_trouble = self._trouble
        replication.on_change = self._change

    def start(self) -> None:
        """Go on with what was followed before; call it when warm-up is over."""
        self._replication.tick(self._monotonic())
        self._replication.resume()
        self._ticker.start(TICK_S, now=False)

    def stop(self) -> None:
        """Hang up everywhere; harmless when it was never started."""
        if self._ticker.running:
            self._ticker.stop()
        self._replication.close()

    def _tick(self) -> None:
        try:
            self._replication.tick(self._monotonic())
        except Exception:  # a bug of ours must not end replication for good
            _log.failure("tick_failed")

    def _open(self, source: str, _: str) -> None:
        _log.info("connected", source=source)

    def _change(self, source: str, what: str) -> None:
        _log.info("changed", source=source, what=what)

    def _trouble(self, source: str, reason: str) -> None:
        held_back = self._trouble_log.passed()
        if held_back is not None:
            _log.warn("trouble", source=source, reason=reason, unlogged=held_back)
