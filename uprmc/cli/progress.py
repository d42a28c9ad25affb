"""How warm-up shows that it gets on: a bar on a terminal, a log line now and then elsewhere."""

from __future__ import annotations

import sys
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from twisted.internet.task import LoopingCall

from uprmc.engine.warmup import Warmup
from uprmc.server.log import Log

_TERMINAL_REFRESH_S = 0.2
_LOG_EVERY_S = 5.0

_log = Log("warmup")


class WarmupProgress:
    """Watches one warm-up from `start` to `stop`."""

    def __init__(self, reactor: Any, warmup: Warmup) -> None:
        self._warmup = warmup
        self._bar: Progress | None = None
        self._task: Any = None
        self._call = LoopingCall(self._show)
        self._call.clock = reactor
        self._terminal = sys.stderr.isatty()

    def start(self) -> None:
        """Begin to show; a warm-up shorter than the first interval shows nothing."""
        self._call.start(_TERMINAL_REFRESH_S if self._terminal else _LOG_EVERY_S, now=False)

    def stop(self) -> None:
        """Cease; harmless twice."""
        if self._call.running:
            self._call.stop()
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def text(self) -> str:
        """Return how far it is, in words."""
        warmup = self._warmup
        done = warmup.values or warmup.keys
        return f"Warming up: {warmup.state.value}, {done} of {warmup.records} documents"

    def _show(self) -> None:
        warmup = self._warmup
        if not self._terminal:
            _log.info("progress", state=warmup.state.value, keys=warmup.keys, of=warmup.records)
            return
        if self._bar is None:
            self._bar = Progress(
                TextColumn("warming up: {task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._task = self._bar.add_task("", total=None)
            self._bar.start()
        done = warmup.values or warmup.keys
        self._bar.update(
            self._task, description=warmup.state.value, completed=done, total=warmup.records
        )
