"""The listening socket of `server.views`: the node binds it, another process accepts from it.

The node never accepts: it only sees that a client waits. So a connection that comes before the
process that answers is there, or while it is started again, waits in the kernel's queue.
"""

# ruff: noqa: N802  # Twisted's names
# mypy: allow-untyped-calls
from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from typing import Any

from twisted.internet.interfaces import IReadDescriptor
from twisted.python.failure import Failure
from zope.interface import implementer  # type: ignore[import-untyped]

from uprmc.config import VIEWS_AUTO, VIEWS_DEFAULT
from uprmc.errors import ConfigError
from uprmc.places import Place
from uprmc.server.listener import CannotListen, in_use, parse_place

SETTING = "server.views"


@implementer(IReadDescriptor)
class ViewsListener:
    """A socket that is listened on.

    Attributes:
        address: HOST:PORT, with the real port.
    """

    def __init__(self, reactor: Any, place: Place, backlog: int) -> None:
        """Bind it; raises `OSError`."""
        self._reactor = reactor
        self._found: Callable[[], None] | None = None
        is_ipv6 = ":" in place.host
        self._socket = socket.socket(socket.AF_INET6 if is_ipv6 else socket.AF_INET)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.setblocking(False)
            self._socket.bind((place.host, place.port))
            self._socket.listen(backlog)
        except OSError:
            self._socket.close()
            raise
        host, port = self._socket.getsockname()[:2]
        self.address = f"[{host}]:{port}" if is_ipv6 else f"{host}:{port}"

    def watch(self, found: Callable[[], None]) -> None:
        """Call `found` once, when a connection waits."""
        self._found = found
        self._reactor.addReader(self)

    def close(self) -> None:
        """Watch and listen no more; a process that has the socket still listens."""
        self._unwatch()
        self._socket.close()

    def _unwatch(self) -> None:
        if self._found is not None:
            self._found = None
            self._reactor.removeReader(self)

    # --- for the reactor ------------------------------------------------------------------------

    def fileno(self) -> int:
        """Return the number of the socket, -1 when it is closed."""
        return self._socket.fileno()

    def doRead(self) -> None:
        """A client waits."""
        found = self._found
        self._unwatch()
        if found is not None:
            found()

    def connectionLost(self, reason: Failure) -> None:
        """The reactor ends."""
        self._socket.close()

    def logPrefix(self) -> str:
        """Return what Twisted calls it."""
        return "views"


def chosen(text: str) -> str:
    """Return the address that the setting's `text` means."""
    return VIEWS_DEFAULT if text == VIEWS_AUTO else text


class InUse(CannotListen):
    """Another process has the address."""


def listen_views(reactor: Any, text: str, backlog: int) -> ViewsListener:
    """Listen at the place that the setting's `text` describes.

    Raises:
        ConfigError: it makes no sense; `CannotListen`: the address cannot be had.
    """
    place = parse_place(chosen(text), SETTING)
    if not isinstance(place, Place):
        raise ConfigError(f"{SETTING}: {text!r} is no HOST:PORT, which is all that views have")
    try:
        return ViewsListener(reactor, place, backlog)
    except OSError as error:
        taken = error.errno == errno.EADDRINUSE
        kind, more = (InUse, in_use(SETTING, chosen(text))) if taken else (CannotListen, "")
        raise kind(f"{SETTING}: cannot listen on {text}: {error.strerror}{more}") from None
