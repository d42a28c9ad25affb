"""One run of the process that answers for `server.views`: ``uprmc index serve``.

It gets five descriptors and nothing else: a pipe as standard input, whose other end closes when the
node ends, however that happens; a pipe for its ready line; the node's standard error for its log;
the listening socket; and a pipe for its events (`index_events`). It reaches the node over a unix
socket in a directory that only the node's user may enter. That needs neither a password nor a
certificate, and is the same on nodes whose listeners speak TLS: their certificates are for names
that this host may not even know.
"""

# ruff: noqa: N802, N803  # Twisted's names
# mypy: allow-untyped-calls
from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.error import ProcessExitedAlready
from twisted.internet.protocol import ProcessProtocol
from twisted.python.failure import Failure

from uprmc import children
from uprmc.config import ServerSettings, Settings, values_of
from uprmc.server.index_events import EventsFromIndex
from uprmc.server.listener import Listener

#: What is started, before its options.
COMMAND = tuple(children.command("uprmc", "index", "serve"))

#: Sections whose settings it gets.
_SECTIONS = ("index", "log")

#: Other settings that it gets: who may log in, and how it reaches and enters other nodes.
_SETTINGS = frozenset(
    {
        *("server.users", "server.http_tls", "server.login_timeout_s"),
        *("server.http_hosts", "server.http", "server.views"),
        *("upr.dial_ca", "upr.dial_user", "upr.dial_password_file"),
    }
)

_READY = b"uprmc index ready "
_READY_MAX_BYTES = 4_096

_LISTEN_FD, _EVENTS_FD = 3, 4

#: Where the node listens for it, in the data directory.
_ROOM, _SOCKET = "sockets", "upr"

#: Names there of the files of TLS, which are those of settings.
_CERT, _KEY = "tls_cert", "tls_key"

#: Paths of unix sockets are not longer.
_PATH_MAX_BYTES = 107

#: Opens a listener for UPR at a path.
OpenUpr = Callable[[str], Listener]


class IndexChild(ProcessProtocol):
    """One run of the process that serves views.

    Args:
        ready: called when it answers.
        ended: called when it has ended, with the reason.
        events: takes what it tells.

    Attributes:
        pid: its number.
    """

    transport: Any
    pid = 0

    def __init__(
        self, ready: Callable[[], None], ended: Callable[[str], None], events: EventsFromIndex
    ) -> None:
        self._ready, self._ended, self._events = ready, ended, events
        self._head = b""
        self._over = False
        self._room: _Room | None = None

    def start(
        self,
        reactor: Any,
        settings: Settings,
        listen_fd: int,
        open_upr: OpenUpr,
        command: tuple[str, ...] = COMMAND,
    ) -> None:
        """Start it; raises `OSError`, or Twisted's `CannotListenError`."""
        path = _made_directory(Path(settings.storage.data))
        self._room = _Room(path, open_upr)
        try:
            self._room.link(settings.server)
            words = [*command, *_options(settings, self._room.place)]
            descriptors = {0: "w", 1: "r", 2: 2, _LISTEN_FD: listen_fd, _EVENTS_FD: "r"}
            environment = child_environment(children.environment(), settings, path)
            reactor.spawnProcess(self, words[0], words, environment, childFDs=descriptors)
            self.pid = self.transport.pid
            with suppress(OSError):  # it is not worth a process that only is not as polite
                level = os.getpriority(os.PRIO_PROCESS, self.pid) + settings.index.nice
                os.setpriority(os.PRIO_PROCESS, self.pid, level)
        except BaseException:
            self._room.close()
            raise

    def link(self, server: ServerSettings) -> None:
        """Have it find the files that TLS has now when it reads them again."""
        if self._room is not None:
            self._room.link(server)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; harmless when it has ended."""
        with suppress(ProcessExitedAlready):
            self.transport.signalProcess(number)

    def childDataReceived(self, childFD: int, data: bytes) -> None:
        """Events have a pipe of their own."""
        if childFD != _EVENTS_FD:
            super().childDataReceived(childFD, data)
        elif not self._over:
            self._events.received(data, self.transport.pipes[_EVENTS_FD])

    def outReceived(self, data: bytes) -> None:
        """Look for the ready line; the rest is of no interest."""
        if len(self._head) < _READY_MAX_BYTES:
            had = b"\n" in self._head
            self._head += data[:_READY_MAX_BYTES]
            if not had and b"\n" in self._head and self._head.startswith(_READY):
                self._ready()

    def processExited(self, reason: Failure) -> None:
        """Tell; what it has started itself may hold its pipes open for longer."""
        if not self._over and self._room is not None:
            self._over = True
            self._events.close()
            self.transport.loseConnection()
            self._room.close().addCallback(lambda _: self._ended(_told(reason.value)))


class _Room:
    """A private directory with a socket on which the node listens for UPR.

    Attributes:
        place: of the listener, as clients name it.
    """

    def __init__(self, path: Path, open_upr: OpenUpr) -> None:
        self._path = path
        try:
            self._listener = open_upr(str(path / _SOCKET))
        except BaseException:
            shutil.rmtree(self._path, ignore_errors=True)
            raise
        self.place = self._listener.address

    def link(self, server: ServerSettings) -> None:
        """Have names here stand for the files of TLS, wherever these are at the time."""
        for name, target in _tls_files(server).items():
            new = self._path / f"{name}.new"
            new.unlink(missing_ok=True)
            new.symlink_to(Path(target).absolute())
            new.replace(self._path / name)

    def close(self) -> Deferred[None]:
        """Fires when nothing is left of it; never fails."""
        stopping = self._listener.stop()
        return stopping.addBoth(lambda _: shutil.rmtree(self._path, ignore_errors=True))


def _made_directory(data: Path) -> Path:
    """Make a directory that only its owner may enter, with a path that a socket can have.

    It is in the data directory, where the next life of a node that was killed finds it again.
    """
    path = data.absolute() / _ROOM
    shutil.rmtree(path, ignore_errors=True)
    if len(os.fsencode(path / _SOCKET)) > _PATH_MAX_BYTES:
        return Path(tempfile.mkdtemp(prefix="uprmc-", dir="/tmp"))
    path.mkdir(mode=0o700, parents=True)
    return path


def directory(settings: Settings) -> Path:
    """Return where the index keeps its files."""
    return Path(settings.storage.data) / "index"


def _options(settings: Settings, source: str) -> list[str]:
    data = str(directory(settings))
    return [
        "--source",
        source,
        "--data",
        data,
        "--listen-fd",
        str(_LISTEN_FD),
        "--events-fd",
        str(_EVENTS_FD),
    ]


def _tls_files(server: ServerSettings) -> dict[str, str]:
    """Return the files of TLS by what they are called in the room; none if views have no TLS."""
    if not (server.tls_cert and server.http_tls):
        return {}
    return {_CERT: server.tls_cert, _KEY: server.tls_key}


def child_environment(
    environment: Mapping[str, str], settings: Settings, room: Path
) -> dict[str, str]:
    """Return an environment with the node's settings that the index needs.

    Other files may be used for TLS later, so the child knows those by their names in the room.
    """
    found = {
        name: value
        for name, value in environment.items()
        if name == "UPRMC_CORE" or not name.startswith("UPRMC_")
    }
    tls = {f"server.{name}": str(room / name) for name in _tls_files(settings.server)}
    for name, value in values_of(settings):
        if name.partition(".")[0] in _SECTIONS or name in _SETTINGS or name in tls:
            found[f"UPRMC_{name.replace('.', '_').upper()}"] = tls.get(name, _text(value))
    return found


def _text(value: object) -> str:
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def _told(ended: Any) -> str:
    """Say how a process ended."""
    number = getattr(ended, "signal", None)
    if number is not None:
        return f"signal {signal.Signals(number).name}"
    return f"exit code {getattr(ended, 'exitCode', 0) or 0}"
