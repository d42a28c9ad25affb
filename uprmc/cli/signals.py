"""What signals do to a process that serves: they stop it in order, or have it read its settings."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from twisted.internet.error import ReactorNotRunning

from uprmc.config import Settings
from uprmc.errors import ConfigError
from uprmc.server.log import Log


def heed_signals(
    reactor: Any,
    read_settings: Callable[[], Settings],
    take_over: Callable[[Settings], None],
    events: Log,
) -> None:
    """Let SIGTERM, SIGINT and SIGUSR1 stop the reactor, and SIGHUP read the settings again.

    `take_over` gets them in the reactor's thread; it raises `ConfigError` for what it cannot use.

    Signals that whoever started the process had ignored count too: a background shell ignores
    SIGINT, ``nohup`` SIGHUP. Call it before the reactor runs; what comes earlier is served then.
    """

    def stop() -> None:
        with suppress(ReactorNotRunning):  # it is told to stop twice
            reactor.stop()

    def reload() -> None:
        try:
            settings = read_settings()
            take_over(settings)
        except ConfigError as error:
            events.warn("reload_failed", error=str(error), advice="everything stays as it was")
        else:
            events.info("reloaded", level=settings.log.level)

    def take_from_the_reactor() -> None:
        # Its own handlers fail when they are called twice: a terminal's Ctrl-C reaches a node and
        # its index, and then the node stops its index.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: reactor.callFromThread(stop))

    signal.signal(signal.SIGINT, signal.default_int_handler)  # the reactor replaces only this one
    reactor.callWhenRunning(take_from_the_reactor)
    signal.signal(signal.SIGUSR1, lambda *_: reactor.callFromThread(stop))
    signal.signal(signal.SIGHUP, lambda *_: reactor.callFromThread(reload))
