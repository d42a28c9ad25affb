"""Where the node accepts connections: reading the setting, binding it, naming what was bound.

A listener setting is ``HOST:PORT`` (``127.0.0.1:11211``, ``[::1]:11211``; port 0 picks a free one),
a unix socket (``unix:/run/uprmc.sock``, ``unix:/run/uprmc.sock:mode=660``), or any Twisted endpoint
description (``ssl:...``). Listening on every address of the machine must be written down
(``0.0.0.0:11211``), so it never happens by omission.
"""

# mypy: allow-untyped-calls
from __future__ import annotations

import errno
import os
import re
import socket
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from OpenSSL import SSL
from twisted.internet import address
from twisted.internet.defer import Deferred, fail, maybeDeferred, succeed
from twisted.internet.endpoints import serverFromString
from twisted.internet.error import CannotListenError
from twisted.internet.interfaces import IOpenSSLContextFactory
from twisted.internet.protocol import Protocol
from twisted.internet.ssl import CertificateOptions, TLSVersion
from twisted.protocols.policies import WrappingFactory
from twisted.protocols.tls import BufferingTLSTransport, TLSMemoryBIOFactory
from twisted.python.failure import Failure
from zope.interface import implementer  # type: ignore[import-untyped]

from uprmc.config import UNIX_MODE, ServerSettings, unix_mode
from uprmc.errors import ConfigError
from uprmc.places import Place, parsed
from uprmc.server.net.adapter import peer_text
from uprmc.server.net.transport import listen_direct, listen_unix, send_directly
from uprmc.web import NOT_HTTPS, LimitedSite

# --- who has an address ---------------------------------------------------------------------------
# Which process has an address that another one wants, as far as Linux tells us in /proc.
#
# The kernel lists listening sockets by inode; a process that has one has a link to it among its
# file descriptors. Those of other users can be read by root alone.


_PROC = Path("/proc")
_LISTENING = "0A"
_NAME_MAX = 64
_ANY = ("0.0.0.0", "::")


def who_has_port(host: str, port: int, proc: Path = _PROC) -> str:
    """Return ``memcached (pid 17)``, or who else it may be; empty = it cannot be known at all."""
    return _named(_port_inodes(host, port, proc), proc)


def who_has_path(path: str, proc: Path = _PROC) -> str:
    """Return the same of a unix socket."""
    return _named(_path_inodes(os.path.abspath(path), proc), proc)


def _named(inodes: set[str], proc: Path) -> str:
    if not inodes:
        return ""
    links = {f"socket:[{inode}]" for inode in inodes}
    for process in _processes(proc):
        if links & set(_links(process)):
            return f"{_program(process)} (pid {process.name})"
    return "a process of another user"


def _processes(proc: Path) -> Iterator[Path]:
    with suppress(OSError):
        yield from sorted(
            (each for each in proc.iterdir() if each.name.isdecimal()), key=lambda p: int(p.name)
        )


def _links(process: Path) -> Iterator[str]:
    with suppress(OSError):
        for each in (process / "fd").iterdir():
            with suppress(OSError):  # it is closed meanwhile
                yield os.readlink(each)


def _program(process: Path) -> str:
    """Return what it was started as; of Python the program that it runs."""
    try:
        words = (process / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
    except OSError:
        return "a process"
    names = [os.path.basename(word) for word in words if word and not word.startswith("-")]
    if len(names) > 1 and names[0].startswith("python"):
        names.pop(0)
    name = names[0] if names else "a process"
    return "".join(each for each in name if each.isprintable())[:_NAME_MAX]


def _port_inodes(host: str, port: int, proc: Path) -> set[str]:
    wanted = _addresses(host)
    found = set()
    for words in (*_rows(proc / "net" / "tcp"), *_rows(proc / "net" / "tcp6")):
        address, _, its_port = words[1].partition(":")
        if words[3] != _LISTENING or int(its_port, 16) != port:
            continue
        there = _address(address)
        if there in wanted or there in _ANY or wanted & set(_ANY):
            found.add(words[9])
    return found


def _addresses(host: str) -> set[str]:
    """Return the addresses that a name has, or the one that it is; it is bound already."""
    try:
        return {str(each[4][0]) for each in socket.getaddrinfo(host, None)}
    except OSError:
        return {host}


def _address(text: str) -> str:
    """Read the kernel's form: words of 32 bits in this machine's order."""
    words = [int(text[start : start + 8], 16) for start in range(0, len(text), 8)]
    packed = b"".join(word.to_bytes(4, sys.byteorder) for word in words)
    family = socket.AF_INET if len(packed) == 4 else socket.AF_INET6
    return socket.inet_ntop(family, packed).removeprefix("::ffff:")


def _path_inodes(path: str, proc: Path) -> set[str]:
    return {words[6] for words in _rows(proc / "net" / "unix") if words[7:] == [path]}


def _rows(path: Path) -> Iterator[list[str]]:
    with suppress(OSError), path.open(encoding="utf-8", errors="surrogateescape") as lines:
        next(lines, "")
        for line in lines:
            yield line.split()


# --- TLS ------------------------------------------------------------------------------------------
# The certificate and key that listeners show when they serve TLS; they may be renewed.


_CERT = "server.tls_cert"
_KEY = "server.tls_key"

#: First byte of what a client says that speaks TLS.
_TLS_HANDSHAKE = 0x16


@implementer(IOpenSSLContextFactory)
class ServedTls:
    """What listeners show: the certificate and key that were loaded last."""

    def __init__(self, settings: ServerSettings) -> None:
        """Load what the settings name, checked so that no client is the first to find out.

        Raises:
            ConfigError: a file is missing, unreadable or no PEM, or they do not belong together.
        """
        self._options = _loaded(settings)

    def reload(self, settings: ServerSettings) -> None:
        """Show what these settings name to connections to come; raises as the constructor.

        What was shown before stays when it raises.
        """
        self._options = _loaded(settings)

    def getContext(self) -> SSL.Context:  # noqa: N802  # Twisted asks for each connection
        """Return what the next connection is made with."""
        return self._options.getContext()


def tls_options(settings: ServerSettings) -> ServedTls | None:
    """Return what `listener.listen` wants, None when TLS is not asked for; raises `ConfigError`."""
    return ServedTls(settings) if settings.tls_cert or settings.tls_key else None


def https_options(settings: ServerSettings, tls: ServedTls | None) -> ServedTls | None:
    """Return what the listeners for HTTP want: `tls`, None when they are to stay without."""
    return tls if settings.http_tls else None


def over_tls(reactor: Any, tls: ServedTls, factory: Any) -> Any:
    """Return a factory whose connections speak TLS below those of `factory`."""
    wrapped = _OverTls(cast(Any, tls), False, factory, reactor)
    if isinstance(factory, LimitedSite):
        wrapped.protocol = _Https
    return wrapped


class _OverTls(TLSMemoryBIOFactory):
    """Turns away at once whom the factory above turns away."""

    def buildProtocol(self, addr: Any) -> Any:  # noqa: N802  # Twisted's name
        """Make the protocol of a connection, ``None`` = there is no room."""
        above = self.wrappedFactory.buildProtocol(addr)
        return None if above is None else self.protocol(self, above)


class _Closed(Protocol):
    """A connection that is over at once."""

    def connectionMade(self) -> None:  # noqa: N802  # Twisted's name
        """Close it."""
        cast(Any, self.transport).abortConnection()


class AlwaysConnected(WrappingFactory[Any]):
    """A factory for an endpoint that adds TLS itself, and cannot bear that one is turned away."""

    noisy = False

    def buildProtocol(self, addr: Any) -> Any:  # noqa: N802  # Twisted's name
        """Make the protocol of a connection."""
        found = self.wrappedFactory.buildProtocol(addr)
        return _Closed() if found is None else found


class _Https(BufferingTLSTransport):
    """A connection of a site; a client that speaks plain HTTP reads what it should do instead."""

    _first = True

    def dataReceived(self, data: bytes) -> None:  # noqa: N802  # Twisted's name
        """Look at the first byte."""
        first, self._first = self._first, False
        if first and data[0] != _TLS_HANDSHAKE:
            transport = cast(Any, self.transport)
            transport.write(NOT_HTTPS)
            transport.loseConnection()
        else:
            super().dataReceived(data)


def _loaded(settings: ServerSettings) -> CertificateOptions:
    """Return TLS 1.2 and newer with the certificate and key that the settings name."""
    options = CertificateOptions(raiseMinimumTo=TLSVersion.TLSv1_2)
    context = options.getContext()  # made once and kept by the options
    _use_certificate(context, settings.tls_cert)
    _use_key(context, settings.tls_key, settings.tls_cert)
    return options


def _use_certificate(context: Any, path: str) -> None:
    _read(_CERT, path)
    try:
        context.use_certificate_chain_file(path)
    except SSL.Error:
        raise ConfigError(f"{_CERT}: {path} holds no PEM certificate") from None


def _use_key(context: Any, path: str, certificate: str) -> None:
    key = _load_key(path)
    try:
        context.use_privatekey(key)
        context.check_privatekey()
    except SSL.Error:
        raise ConfigError(
            f"{_KEY}: {path} does not belong to the certificate in {certificate}"
        ) from None


def _load_key(path: str) -> Any:
    """Load a key without ever asking for a password on the terminal, as OpenSSL would."""
    try:
        return load_pem_private_key(_read(_KEY, path), password=None)
    except TypeError:
        raise ConfigError(f"{_KEY}: {path} is encrypted; that is not supported") from None
    except (ValueError, UnsupportedAlgorithm):
        raise ConfigError(f"{_KEY}: {path} holds no PEM private key") from None


def _read(setting: str, path: str) -> bytes:
    if not path:
        raise ConfigError(f"{_CERT} and {_KEY} go together; {setting} is missing")
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"{setting}: {path} cannot be read: {error.strerror}") from None


# --- listening ------------------------------------------------------------------------------------


_NO_ADDRESS = re.compile(r"(?:\[\]|\*)?(:\d+)")

#: Endpoint kinds that could be mistaken for a host's name, or that bind to every address silently.
_ENDPOINT_KINDS = {"tcp", "tcp4", "tcp6", "ssl", "tls", "systemd", "fd", "haproxy", "stdio"}
_OWN_TLS = ("ssl:", "tls:")
_NEED_INTERFACE = {"tcp", "tcp4", "ssl"}


class CannotListen(ConfigError):
    """A listener's address cannot be used here; the text is one line for the operator."""


@dataclass(frozen=True, slots=True)
class UnixPlace:
    """A unix socket; fields that are ``None`` are as the settings say."""

    path: str
    mode: int | None = None
    backlog: int | None = None


@dataclass(frozen=True, slots=True)
class EndpointPlace:
    """A Twisted endpoint description."""

    description: str


def parse_place(text: str, setting: str) -> Place | UnixPlace | EndpointPlace:
    """Read a listener setting; `setting` is its name, for the message.

    Raises:
        ConfigError: it is neither an address with a port nor an endpoint, or names no address.
    """
    kind, colon, rest = text.partition(":")
    if kind == "unix" and colon:
        return _unix_place(rest, setting)
    if kind in _ENDPOINT_KINDS and colon:
        if kind in _NEED_INTERFACE and "interface=" not in rest:
            raise ConfigError(
                f"{setting}: {text!r} names no address: add interface=ADDRESS (0.0.0.0 for all)"
            )
        return EndpointPlace(text)
    matched = _NO_ADDRESS.fullmatch(text)
    if matched:
        raise ConfigError(
            f"{setting}: {text!r} names no address: say 127.0.0.1{matched[1]}, "
            "or 0.0.0.0 for all of them"
        )
    try:
        return parsed(text, least_port=0)
    except ValueError:
        # A plugin's endpoint always has a kind, a colon and something.
        if re.fullmatch(r"[A-Za-z][\w-]*:.*[^\d:].*", text):
            return EndpointPlace(text)
    raise ConfigError(
        f"{setting}: {text!r} is no listener: say HOST:PORT, such as 127.0.0.1:11211 or "
        "[::1]:11211, or an endpoint such as unix:/run/uprmc.sock"
    )


def several(text: str) -> list[str]:
    """Return the listeners that a setting names: addresses may be several, with commas between."""
    each = [one.strip() for one in text.split(",")]
    kinds = {one.partition(":")[0] for one in each[:1]}
    return [text] if kinds & {"unix", *_ENDPOINT_KINDS} else list(dict.fromkeys(each))


def _unix_place(rest: str, setting: str) -> UnixPlace:
    """Read what follows ``unix:``; a colon of the path is written ``\\:``."""
    path, *words = (each.replace("\\:", ":") for each in re.split(r"(?<!\\):", rest))
    options = dict(word.partition("=")[::2] for word in words)
    mode, backlog = options.pop("mode", None), options.pop("backlog", None)
    if not path or options or not (backlog is None or backlog.isdecimal()):
        raise ConfigError(
            f"{setting}: 'unix:{rest}' is no listener: say unix:/path, or unix:/path:mode=660"
        )
    return UnixPlace(
        path,
        None if mode is None else unix_mode(mode, setting),
        None if backlog is None else int(backlog),
    )


class Listener:
    """Something that accepts connections until it is stopped."""

    def __init__(self, port: Any) -> None:
        self._port = port
        where = port.getHost()
        if isinstance(where, address.UNIXAddress):
            name = where.name or b""
            # Where, in words: ``127.0.0.1:11211`` with the real port, ``unix:/path``.
            self.address = "unix:" + name.decode("utf-8", "backslashreplace")
        else:
            self.address = peer_text(where)

    def stop(self) -> Deferred[None]:
        """Accept no more; fires when the address is free again. Open connections go on."""
        stopping: Deferred[Any] = maybeDeferred(self._port.stopListening)
        return stopping.addCallback(lambda _: None)


def listen(
    reactor: Any,
    text: str,
    factory: Any,
    *,
    setting: str,
    backlog: int,
    tls: ServedTls | None = None,
    mode: int = UNIX_MODE,
    alone: bool = True,
) -> Deferred[Listener]:
    """Accept connections for `factory` at the place that the setting's `text` describes.

    Args:
        reactor: the running reactor.
        setting: name of the setting, for messages.
        backlog: length of the accept queue; an endpoint description has its own.
        tls: serve TLS there, with this.
        mode: permissions of a unix socket that names none.
        alone: whether the setting names no other address; `::` takes IPv4, too, only then.

    Returns:
        fires with the listener; fails with `ConfigError` when the text makes no sense and with its
        subclass `CannotListen` when the address cannot be had.
    """
    try:
        place = parse_place(text, setting)
        if tls is not None:
            factory = _with_tls(reactor, place, factory, setting, tls)
        if isinstance(place, Place):
            port = listen_direct(reactor, place.port, factory, backlog, place.host, alone=alone)
            return succeed(Listener(port))
        if isinstance(place, UnixPlace):
            return succeed(Listener(_listen_unix(reactor, place, factory, backlog, mode)))
        opening = _listen_endpoint(reactor, place, factory, setting)
    except ConfigError:
        return fail()
    except (CannotListenError, OSError, ValueError) as error:
        return fail(_refusal(setting, text, error))
    return opening.addCallbacks(
        Listener, lambda failure: Failure(_refusal(setting, text, failure.value))
    )


def listen_private(reactor: Any, path: str, factory: Any) -> Listener:
    """Accept connections at a unix socket that only the node's user may use.

    Raises:
        CannotListenError: it cannot be made.
    """
    port = reactor.listenUNIX(path, factory, mode=0o600)
    send_directly(port)
    return Listener(port)


def _with_tls(
    reactor: Any,
    place: Place | UnixPlace | EndpointPlace,
    factory: Any,
    setting: str,
    tls: ServedTls,
) -> Any:
    if isinstance(place, EndpointPlace) and place.description.startswith(_OWN_TLS):
        raise ConfigError(
            f"{setting}: {place.description!r} brings its own TLS; leave server.tls_cert out"
        )
    return over_tls(reactor, tls, factory)


def _listen_unix(reactor: Any, place: UnixPlace, factory: Any, backlog: int, mode: int) -> Any:
    mode = mode if place.mode is None else place.mode
    return listen_unix(reactor, place.path, factory, place.backlog or backlog, mode)


def _listen_endpoint(
    reactor: Any, place: EndpointPlace, factory: Any, setting: str
) -> Deferred[Any]:
    try:
        endpoint = serverFromString(reactor, place.description)
    except Exception as error:  # whatever the endpoint's own parser raises
        raise ConfigError(
            f"{setting}: {place.description!r} is no usable endpoint: {_one_line(error)}"
        ) from None
    if place.description.startswith(_OWN_TLS):
        factory = AlwaysConnected(factory)
    listening: Deferred[Any] = endpoint.listen(factory)
    return listening.addCallback(_made_direct)


def _made_direct(port: Any) -> Any:
    send_directly(port)
    return port


def _refusal(setting: str, text: str, error: BaseException) -> CannotListen:
    cause = error.socketError if isinstance(error, CannotListenError) else error
    reason = getattr(cause, "strerror", None) or _one_line(cause)
    if getattr(cause, "errno", None) == errno.EADDRINUSE:
        reason += in_use(setting, text)
    return CannotListen(f"{setting}: cannot listen on {text}: {reason}")


def in_use(setting: str, text: str) -> str:
    """Return what to add about an address in use: who has it, and what to say instead."""
    option = f"--{setting.rpartition('.')[2]}" if "." in setting else setting
    holder, other = _holder(text)
    by = f" by {holder}" if holder else ""
    return f"{by}; say {option} with another {other}"


def _holder(text: str) -> tuple[str, str]:
    """Return who has the address, as far as it is known, and what distinguishes addresses."""
    try:
        place = parsed(text)
    except ValueError:
        return "", "address"
    if place.path:
        return who_has_path(place.path.partition(":")[0]), "path"
    return who_has_port(place.host, place.port), "port"


def _one_line(error: object) -> str:
    return " ".join(str(error).split()) or type(error).__name__
