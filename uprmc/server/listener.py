"""Where the node accepts connections: reading the setting, binding it, naming what was bound.

A listener setting is ``HOST:PORT`` (``127.0.0.1:11211``, ``[::1]:11211``; port 0 picks a free one),
a unix socket (``unix:/run/uprmc.sock``, ``unix:/run/uprmc.sock:mode=660``), or any Twisted endpoint
description (``ssl:...``). Listening on every address of the machine must be written down
(``0.0.0.0:11211``), so it never happens by omission.
"""

# mypy: allow-untyped-calls
from __future__ import annotations

import errno
import re
from dataclasses import dataclass
from typing import Any

from twisted.internet import address
from twisted.internet.defer import Deferred, fail, maybeDeferred, succeed
from twisted.internet.endpoints import serverFromString
from twisted.internet.error import CannotListenError
from twisted.python.failure import Failure

from uprmc.config import UNIX_MODE, unix_mode
from uprmc.errors import ConfigError
from uprmc.places import Place, parsed
from uprmc.server.adapter import peer_text
from uprmc.server.address_holder import who_has_path, who_has_port
from uprmc.server.tls import AlwaysConnected, ServedTls, over_tls
from uprmc.server.transport import listen_direct, listen_unix, send_directly

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
    """Something that accepts connections until it is stopped.

    Attributes:
        address: where, in words: ``127.0.0.1:11211`` with the real port, ``unix:/path``.
    """

    def __init__(self, port: Any) -> None:
        self._port = port
        where = port.getHost()
        if isinstance(where, address.UNIXAddress):
            name = where.name or b""
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
