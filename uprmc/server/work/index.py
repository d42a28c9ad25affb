"""The index beside a node: its listener, and the life of the process that answers there.

The process is started when the first connection comes, or with the node if there are designs. Who
uses no views pays for a socket. It is started again when it ends by itself, and then connections
wait meanwhile. Whatever goes wrong in it costs the node neither time nor memory.
"""

# ruff: noqa: N802, N803  # Twisted's names
# mypy: allow-untyped-calls

from __future__ import annotations

import errno
import json
import os
import re
import select
import shutil
import signal
import socket
import tempfile
from collections.abc import Callable, Generator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from twisted.internet.defer import Deferred, inlineCallbacks, succeed
from twisted.internet.error import ProcessExitedAlready
from twisted.internet.interfaces import IReadDescriptor
from twisted.internet.protocol import ProcessProtocol
from twisted.internet.task import deferLater
from twisted.python.failure import Failure
from zope.interface import implementer  # type: ignore[import-untyped]

from uprmc import children
from uprmc.config import VIEWS_AUTO, VIEWS_DEFAULT, ServerSettings, Settings, values_of
from uprmc.errors import ConfigError
from uprmc.places import Place
from uprmc.remote.retry import Backoff
from uprmc.server.log import EVENTS, Log
from uprmc.server.net.listener import CannotListen, Listener, in_use, parse_place

# --- events of the process ------------------------------------------------------------------------
# Events of the index process at the node's ``/events``: both ends of the pipe between them.
#
# An event is a line of JSON. Neither end can hurt the other: the process never waits for the node,
# it logs what the pipe does not take; and the node takes only events of the index, with a few short
# values, so many a second. It reads no further meanwhile, and skips what is no such line.


Tell = Callable[[str, dict[str, object]], None]

#: A longer line is no event; a pipe takes a line of this length as a whole or not at all.
LINE_MAX_BYTES = select.PIPE_BUF

#: Events that are taken in a second.
PER_SECOND = 20

#: The fields of an event; more make it none. Longer texts are cut.
_FIELDS_MAX, _TEXT_MAX, _NUMBER_MAX = 8, 500, 2**53
_NAME = re.compile(r"[a-z_]{1,32}")

#: Names of events that an index process may tell begin so.
_NAMES = tuple(f"event.{word}_" for word in ("index", "design"))


class EventsToNode:
    """The end of the index process.

    Args:
        fd: the pipe.
        otherwise: is told what the pipe does not take.
    """

    def __init__(self, fd: int, otherwise: Tell) -> None:
        os.set_blocking(fd, False)
        os.set_inheritable(fd, False)
        self._fd, self._otherwise = fd, otherwise

    def tell(self, name: str, fields: dict[str, object]) -> None:
        """Tell the node, which logs it, too."""
        line = json.dumps({"event": name, **fields}).encode() + b"\n"
        try:
            if len(line) <= LINE_MAX_BYTES and os.write(self._fd, line):
                return
        except OSError:
            pass  # it is full, or the node is gone
        self._otherwise(name, fields)


class EventsFromIndex:
    """The node's end.

    Args:
        reactor: calls later.
        tell: takes events.
    """

    def __init__(self, reactor: Any, tell: Tell) -> None:
        self._reactor, self._tell = reactor, tell
        self._unread = b""
        self._skipping = False
        self._left = PER_SECOND
        self._timer: Any = None
        self._pipe: Any = None  # Twisted's reader of a child's descriptor

    def received(self, data: bytes, pipe: Any) -> None:
        """Take what was read from the pipe."""
        self._unread += data
        self._pipe = pipe
        if self._timer is None:
            self._timer = self._reactor.callLater(1.0, self._next_second)
        self._take()

    def close(self) -> None:
        """Take nothing any more."""
        self._pipe, self._unread = None, b""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _take(self) -> None:
        """Take lines as long as this second has room, then have the pipe wait."""
        while self._left and b"\n" in self._unread:
            line, _, self._unread = self._unread.partition(b"\n")
            self._left -= 1
            found = None if self._skipping else event_of(line)
            self._skipping = False
            if found is not None:
                self._tell(*found)
        if b"\n" not in self._unread and len(self._unread) > LINE_MAX_BYTES:
            self._unread, self._skipping = b"", True
            self._left = max(0, self._left - 1)
        if not self._left and self._pipe is not None:
            self._pipe.pauseProducing()

    def _next_second(self) -> None:
        self._timer = None
        was_full, self._left = not self._left, PER_SECOND
        if was_full and self._pipe is not None:
            self._timer = self._reactor.callLater(1.0, self._next_second)
            self._pipe.resumeProducing()
            self._take()


def event_of(line: bytes) -> tuple[str, dict[str, object]] | None:
    """Return the name and the fields of an event, ``None`` = the line has none of an index."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or len(found) > _FIELDS_MAX:
        return None
    name = found.pop("event", None)
    known = isinstance(name, str) and f"event.{name}" in EVENTS
    if not known or not f"event.{name}".startswith(_NAMES):
        return None
    if "time" in found or not all(_NAME.fullmatch(key) for key in found):
        return None
    fields = {key: _plain(value) for key, value in found.items()}
    return None if None in fields.values() else (name, fields)


def _plain(value: object) -> object:
    """Return a text or number that every reader of events understands, ``None`` = it is none."""
    if isinstance(value, str):
        return value[:_TEXT_MAX].encode(errors="replace").decode()
    return value if isinstance(value, int) and abs(value) < _NUMBER_MAX else None


# --- the listening socket -------------------------------------------------------------------------
# The listening socket of `server.views`: the node binds it, another process accepts from it.
#
# The node never accepts: it only sees that a client waits. So a connection that comes before the
# process that answers is there, or while it is started again, waits in the kernel's queue.


SETTING = "server.views"


@implementer(IReadDescriptor)
class ViewsListener:
    """A socket that is listened on."""

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
        # HOST:PORT, with the real port.
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


class ViewsInUse(CannotListen):
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
        kind, more = (ViewsInUse, in_use(SETTING, chosen(text))) if taken else (CannotListen, "")
        raise kind(f"{SETTING}: cannot listen on {text}: {error.strerror}{more}") from None


# --- one run of the process -----------------------------------------------------------------------
# One run of the process that answers for `server.views`: ``uprmc index serve``.
#
# It gets five descriptors and nothing else: a pipe as standard input, whose other end closes when
# the node ends, however that happens; a pipe for its ready line; the node's standard error for its
# log; the listening socket; and a pipe for its events (`EventsFromIndex`). It reaches the node over
# a unix socket in a directory that only the node's user may enter. That needs neither a password
# nor a certificate, and is the same on nodes whose listeners speak TLS: their certificates are for
# names that this host may not even know.


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
    """

    transport: Any
    pid = 0  # its number

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
    """A private directory with a socket on which the node listens for UPR."""

    def __init__(self, path: Path, open_upr: OpenUpr) -> None:
        self._path = path
        try:
            self._listener = open_upr(str(path / _SOCKET))
        except BaseException:
            shutil.rmtree(self._path, ignore_errors=True)
            raise
        self.place = self._listener.address  # of the listener, as clients name it

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


# --- its life -------------------------------------------------------------------------------------


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
    """Drives one node's index from `listen` and `start` to `stop`."""

    command = COMMAND  # what is started
    grace_s = GRACE_S  # how long it may take to end

    def __init__(
        self,
        reactor: Any,
        settings: Settings,
        open_upr: OpenUpr,
        tell: Tell,
        monotonic: Callable[[], float],
    ) -> None:
        self.restarts = 0  # how often the process was started again after it had ended by itself
        self.error = ""  # why it ended last, empty = it has not, or it answers again
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
            except ViewsInUse:
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
