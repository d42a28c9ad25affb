"""What processes that serve have in common: a reactor, what signals do to it, and how it ends."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from twisted.internet.error import ReactorNotRunning

from uprmc.config import Settings
from uprmc.errors import ConfigError
from uprmc.server.log import Log


class Process:
    """A reactor, not running yet, and what went wrong first."""

    def __init__(self, reactor: Any) -> None:
        self.reactor = reactor
        self.error: BaseException | None = None

    def run(self, start: Callable[[], object], stop: Callable[[], object]) -> int:
        """Serve until stopped; returns the exit code or raises what went wrong."""
        self.reactor.callWhenRunning(start)
        self.reactor.addSystemEventTrigger("before", "shutdown", stop)
        self.reactor.run()
        if self.error is not None:
            raise self.error
        return 0

    def stop(self) -> None:
        """Stop in order; harmless twice."""
        with suppress(ReactorNotRunning):
            self.reactor.stop()

    def note(self, error: BaseException) -> None:
        """Have `run` raise an error at the end, unless there was one before."""
        self.error = self.error or error

    def fail(self, error: BaseException) -> None:
        """Stop because of an error."""
        self.note(error)
        self.stop()

    def failed(self, failure: Any) -> None:
        """Stop because a Deferred has failed."""
        self.fail(failure.value)

    def heed_signals(
        self,
        read_settings: Callable[[], Settings],
        take_over: Callable[[Settings], None],
        events: Log,
    ) -> None:
        """Let SIGTERM, SIGINT and SIGUSR1 stop the reactor, and SIGHUP read the settings again.

        `take_over` gets them in the reactor's thread; it raises `ConfigError` for what it cannot
        use. Signals that were ignored when the process was started count too: a background shell
        ignores SIGINT, ``nohup`` SIGHUP. Call it before the reactor runs; what comes earlier is
        served then.
        """
        reactor = self.reactor

        def reload() -> None:
            try:
                settings = read_settings()
                take_over(settings)
            except ConfigError as error:
                events.warn("reload_failed", error=str(error), advice="everything stays as it was")
            else:
                events.info("reloaded", level=settings.log.level)

        def stop_soon(*_: object) -> None:
            reactor.callFromThread(self.stop)

        def take_from_the_reactor() -> None:
            # Its own handlers fail when they are called twice: a terminal's Ctrl-C reaches a node
            # and its index, and then the node stops its index.
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, stop_soon)

        # The reactor replaces only this one.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        reactor.callWhenRunning(take_from_the_reactor)
        signal.signal(signal.SIGUSR1, stop_soon)
        signal.signal(signal.SIGHUP, lambda *_: reactor.callFromThread(reload))
