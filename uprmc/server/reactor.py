"""Twisted's epoll reactor without a log context around every event, and with an end to its turns.

Twisted wraps each readiness event in `log.callWithLogger`, so that old-style log lines carry a
prefix. Nothing here uses that prefix, and at one request for each event the wrapping is a fifth of
the cost of a request (measured: 8.6 against 6.8 us with 50 connections, no pipelining). Errors take
the same way as before: `_doReadOrWrite` has its own handler.

Connections of our listeners that have something to read, and nothing else, are read at once: what
Twisted asks before each event is settled for them.

What was woken by the events of a turn is served when all of them have been dealt with, in the same
turn (`WakeList`): by `callLater(0)` it would cost a timer, and another look at the sockets.

A turn handles a limited number of events. The rest is still there when the sockets are looked at
next, first those that have waited longest; meanwhile timers and long work have their share. Without
the limit, nine thousand clients that hung up at once took a turn of a third of a second.

Timers count monotonic time. Twisted's own reactors count the wall clock's, so a clock that is set
back an hour would keep every timer waiting for an hour.

It looks at `_poller`, `_selectables`, `_doReadOrWrite` and `_disconnectSelectable`, which Twisted
does not promise to keep: ``tests/server/test_reactor.py`` fails when they move.
"""

# ruff: noqa: N802, N815  # Twisted's names
# mypy: allow-untyped-calls
from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from twisted.internet.main import installReactor
from twisted.python import log

from uprmc.server.transport import Direct

if TYPE_CHECKING:
    from uprmc.server.wake_list import WakeList

try:
    from select import EPOLLIN

    from twisted.internet.epollreactor import EPollReactor
except ImportError:  # not Linux: Twisted's own choice serves as well
    EPollReactor = None  # type: ignore[assignment,misc]


#: Events handled in one turn; to close a connection takes 40 us, to answer a request 7.
EVENTS_MAX = 64


def install() -> Any:
    """Make this process's reactor and return it; call it before anything imports the reactor."""
    if EPollReactor is not None:
        installReactor(LeanReactor())
    from twisted.internet import reactor

    return count_monotonic_time(reactor)


def count_monotonic_time(reactor: Any) -> Any:
    """Let the timers of a reactor that has none yet ignore steps of the wall clock; return it."""
    reactor.seconds = time.monotonic
    return reactor


if EPollReactor is not None:

    class LeanReactor(EPollReactor):
        """An epoll reactor that does less for each event, and knows when a turn ends."""

        seconds = staticmethod(time.monotonic)
        _wake_lists: tuple[WakeList, ...] = ()

        def end_turns_with(self, wake_list: WakeList) -> None:
            """Run `wake_list` at the end of each turn in which a call waits in it."""
            self._wake_lists += (wake_list,)

        def end_turns_without(self, wake_list: WakeList) -> None:
            """Run it no more."""
            self._wake_lists = tuple(each for each in self._wake_lists if each is not wake_list)

        def doPoll(self, timeout: float | None) -> None:
            """Wait for events at most `timeout` seconds (``None``: for ever) and handle them."""
            selectables = self._selectables
            for wake_list in self._wake_lists:
                if wake_list.waiting:
                    timeout = 0
            try:
                ready = self._poller.poll(-1 if timeout is None else timeout, EVENTS_MAX)
            except InterruptedError:
                ready = []
            for wake_list in self._wake_lists:
                wake_list.alone = len(ready) == 1
            for descriptor, event in ready:
                selectable = selectables.get(descriptor)
                if event == EPOLLIN and isinstance(selectable, Direct):
                    self._read(selectable)
                elif selectable is not None:
                    self._doReadOrWrite(selectable, descriptor, event)
            for wake_list in self._wake_lists:
                if wake_list.waiting:
                    wake_list.run()

        def _read(self, connection: Direct) -> None:
            why: BaseException | None
            try:
                why = connection.read()
            except BaseException as error:
                why = error
                log.err()
            if why is not None:
                self._disconnectSelectable(connection, why, True)

        doIteration = doPoll
