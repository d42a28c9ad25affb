"""The index beside a node: its listener, and the life of the process that answers there.

The process is started when the first connection comes, or with the node if there are designs. Who
uses no views pays for a socket. It is started again when it ends by itself, and then connections
wait meanwhile. Whatever goes wrong in it costs the node neither time nor memory.
"""

# mypy: allow-untyped-calls
from __future__ import annotations

import os
import signal
from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any
from urllib.parse import unquote

from twisted.internet.defer import Deferred, inlineCallbacks, succeed
from twisted.internet.task import deferLater

from uprmc.config import VIEWS_AUTO, VIEWS_DEFAULT, ServerSettings, Settings
from uprmc.remote.retry import Backoff
from uprmc.server.index_child import COMMAND, IndexChild, OpenUpr, directory
from uprmc.server.index_events import EventsFromIndex, Tell
from uprmc.server.listener import in_use
from uprmc.server.log import Log
from uprmc.server.views_listener import SETTING, InUse, ViewsListener, listen_views

#: Waits before it is started again.
_FIRST_WAIT_S = 0.1
_LONGEST_WAIT_S = 15.0

#: After having answered for this long it may end again before waits become longer.
_STEADY_S = 30.0

#: How long it may take to end when the node stops.
GRACE_S = 10.0

#: How long the process of a node that was killed may still have the address.
_LEFTOVER_S = 5.0
_LOOK_AGAIN_S = 0.1

#: What the directory of a design is called behind its name, and how many the page lists.
_DESIGN = ".design"
_DESIGNS_TOLD = 50

_log = Log("index")


def _reason() -> str:
    return f"address already in use{in_use(SETTING, VIEWS_DEFAULT)}, or --views off for no views"


class IndexDriver:
    """Drives one node's index from `listen` and `start` to `stop`.

    Attributes:
        restarts: how often the process was started again after it had ended by itself.
        error: why it ended last, empty = it has not, or it answers again.
        command: what is started.
        grace_s: how long it may take to end.
    """

    command = COMMAND
    grace_s = GRACE_S

    def __init__(
        self,
        reactor: Any,
        settings: Settings,
        open_upr: OpenUpr,
        tell: Tell,
        monotonic: Callable[[], float],
    ) -> None:
        self.restarts = 0
        self.error = ""
        self._reactor, self._settings, self._open_upr = reactor, settings, open_upr
        self._tell, self._monotonic = tell, monotonic
        self._backoff = Backoff(_FIRST_WAIT_S, _LONGEST_WAIT_S)
        self._listener: ViewsListener | None = None
        self._process: IndexChild | None = None
        self._ready_at: float | None = None
        self._timer: Any = None
        self._gone: Deferred[None] | None = None
        self._stopped = False
        self._is_outdated = False  # something was reloaded while the process started

    # --- what others may ask --------------------------------------------------------------------

    @property
    def address(self) -> str:
        """Where it listens, ``off`` = nowhere."""
        return "off" if self._listener is None else self._listener.address

    @property
    def https(self) -> bool:
        """Whether it speaks HTTPS."""
        server = self._settings.server
        return bool(server.tls_cert) and server.http_tls

    @property
    def pid(self) -> int:
        """The number of the process, 0 = there is none."""
        return 0 if self._process is None else self._process.pid

    @property
    def state(self) -> str:
        """``off``; ``idle``: it has not been needed so far; ``starting``; ``up``; ``down``."""
        if self._listener is None:
            return "off"
        if self._process is not None:
            return "starting" if self._ready_at is None else "up"
        return "down" if self.error else "idle"

    # --- life -----------------------------------------------------------------------------------

    @inlineCallbacks
    def listen(self) -> Generator[Deferred[None], None, None]:
        """Bind the address; fails as `listen_views`.

        A process whose node was killed has the address for a little longer, so it is waited for.
        """
        server = self._settings.server
        now, had_one = self._reactor.seconds, directory(self._settings).exists()
        give_up_at = now() + (_LEFTOVER_S if had_one else 0)
        while self._listener is None and server.views != "off" and not self._stopped:
            try:
                self._listener = listen_views(self._reactor, server.views, server.listen_backlog)
            except InUse:
                if now() < give_up_at:
                    yield deferLater(self._reactor, _LOOK_AGAIN_S)
                elif server.views == VIEWS_AUTO:
                    _log.warn("no_listener", address=VIEWS_DEFAULT, reason=_reason())
                    return
                else:
                    raise

    def start(self) -> None:
        """Start the process as soon as it is needed; call it when warm-up is over."""
        if self._listener is None:
            return
        if self._has_designs():
            self._begin()
        else:
            self._listener.watch(self._begin)

    def stop(self) -> Deferred[None]:
        """Listen no more; fires when the process has ended."""
        self._stopped = True
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()
        self._cancel()
        if self._process is None:
            return succeed(None)
        self._gone = Deferred()
        self._process.signal(signal.SIGTERM)
        self._timer = self._reactor.callLater(self.grace_s, self._process.signal, signal.SIGKILL)
        return self._gone

    def reload(self, server: ServerSettings) -> None:
        """Have the process read the users, the certificate and the key again."""
        own = self._settings.server
        server = replace(own, tls_cert=server.tls_cert, tls_key=server.tls_key)
        self._settings = replace(self._settings, server=server)
        if self._process is not None:
            self._process.link(server)
            self._is_outdated = self._ready_at is None
            if not self._is_outdated:
                self._process.signal(signal.SIGHUP)

    def _has_designs(self) -> bool:
        try:
            return bool(os.listdir(directory(self._settings)))
        except OSError:
            return False

    @property
    def designs(self) -> list[str]:
        """Names of the designs that are kept, some if there are many."""
        try:
            found = sorted(os.listdir(directory(self._settings)))
        except OSError:
            return []
        names = [unquote(each.removesuffix(_DESIGN)) for each in found if each.endswith(_DESIGN)]
        return names[:_DESIGNS_TOLD]

    def _begin(self) -> None:
        self._timer = None
        if self._listener is None:
            return
        events = EventsFromIndex(self._reactor, self._tell)
        process = IndexChild(self._is_ready, self._ended, events)
        try:
            process.start(
                self._reactor, self._settings, self._listener.fileno(), self._open_upr, self.command
            )
        except Exception as error:  # no memory, no descriptors, no room for a socket
            self._failed(str(error))
            return
        self._process = process
        _log.info("started", pid=process.pid)

    def _is_ready(self) -> None:
        self._ready_at = self._monotonic()
        self.error = ""
        if self._is_outdated and self._process is not None:
            self._is_outdated = False
            self._process.signal(signal.SIGHUP)

    def _ended(self, reason: str) -> None:
        pid, self._process = self.pid, None
        ready_at, self._ready_at = self._ready_at, None
        self._cancel()
        if self._gone is not None:
            _log.info("stopped", pid=pid, reason=reason)
            self._gone.callback(None)
            return
        if ready_at is not None and self._monotonic() - ready_at >= _STEADY_S:
            self._backoff.good()
        self._failed(reason, pid)

    def _failed(self, reason: str, pid: int = 0) -> None:
        wait_s = self._backoff.next()
        self.error = reason
        self.restarts += 1
        _log.error("ended", pid=pid, reason=reason, retry_s=round(wait_s, 3))
        self._timer = self._reactor.callLater(wait_s, self._begin)

    def _cancel(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None and timer.active():
            timer.cancel()
