"""How verbs reach the views listener of a node: HTTP with answers in JSON."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import update_wrapper
from http import HTTPStatus
from typing import Any, TypeVar

import click

from uprmc.cli.node_access import NodeAccess, talks_to_a_node
from uprmc.client.connection import NodeError
from uprmc.errors import ConfigError
from uprmc.login.credentials import Credentials, basic_auth
from uprmc.places import WITH_LOGIN, WITH_TLS, parsed, tls_refusal

_Function = TypeVar("_Function", bound=Callable[..., Any])

#: Addresses that mean all of a machine's; it is reached as the node was.
_WILDCARDS = ("0.0.0.0:", "[::]:")

#: The longest answer that is read at once, in bytes.
_ANSWER_MAX = 256 * 1024 * 1024

_BAD_REQUEST = 400

#: What a listener for HTTPS says to a client of HTTP.
_HTTPS = b"This listener speaks HTTPS"


@dataclass(frozen=True)
class ViewsAccess:
    """A views listener.

    Attributes:
        place: HOST:PORT.
        timeout_s: a listener that is silent for so long is given up.
        credentials: who logs in, ``None`` = as a stranger. Without TLS no password is sent to
            another machine.
        tls: ``None`` = no TLS.
    """

    place: str
    timeout_s: float
    credentials: Credentials | None = None
    tls: ssl.SSLContext | None = None

    def ask(self, method: str, path: str, body: bytes | None = None) -> bytes:
        """Return an answer in one piece; raise `NodeError`, or `ConfigError` for a refusal."""
        with self.asking(method, path, body) as response:
            return bytes(response.read(_ANSWER_MAX))

    def fetch(self, method: str, path: str, body: bytes | None = None) -> Any:
        """Return the JSON value of an answer."""
        return self._understood(self.ask(method, path, body))

    @contextmanager
    def asking(
        self, method: str, path: str, body: bytes | None = None
    ) -> Iterator[http.client.HTTPResponse]:
        """Open an answer that is no refusal."""
        connection = self._connection()
        headers = {"Content-Type": "application/json"} if body is not None else {}
        if self.credentials is not None and self._is_safe:
            headers["Authorization"] = basic_auth(self.credentials)
        try:
            with suppress(BrokenPipeError, ConnectionResetError):
                connection.request(method, path, body, headers)  # it may have been refused already
            response = connection.getresponse()
            if response.status >= _BAD_REQUEST:
                self._refuse(response)
            yield response
        except TimeoutError:
            raise NodeError(
                f"the views listener at {self.place} was silent for {self.timeout_s:g} s"
            ) from None
        except http.client.HTTPException as error:
            raise NodeError(self._stranger(error)) from None
        except ssl.SSLError as error:
            reason = getattr(error, "verify_message", "") or error.reason or str(error)
            raise NodeError(tls_refusal(self.place, reason)) from None
        except (ConnectionError, OSError) as error:
            if isinstance(error, BrokenPipeError):
                raise
            why = error.strerror or str(error)
            raise NodeError(f"no views listener answers at {self.place}: {why}") from None
        finally:
            connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        host, port, _ = parsed(self.place)
        if self.tls is None:
            return http.client.HTTPConnection(host, port, timeout=self.timeout_s)
        return http.client.HTTPSConnection(host, port, timeout=self.timeout_s, context=self.tls)

    @property
    def _is_safe(self) -> bool:
        """Whether a password may be sent."""
        return self.tls is not None or parsed(self.place).is_local

    def _not_let_in(self) -> str:
        if self.credentials is None:
            return f"wants a login: {WITH_LOGIN}"
        if not self._is_safe:
            return f"wants a login, and a password is not sent without TLS: {WITH_TLS}"
        return f"does not let {self.credentials.username!r} in: wrong name or password"

    def _refuse(self, response: http.client.HTTPResponse) -> None:
        if response.status == HTTPStatus.UNAUTHORIZED:
            raise NodeError(f"the views listener at {self.place} {self._not_let_in()}")
        answer = response.read(_ANSWER_MAX)
        if _HTTPS in answer:
            raise NodeError(f"the listener at {self.place} speaks TLS: {WITH_TLS}")
        try:
            found = json.loads(answer)
        except ValueError:
            found = None
        reason = found.get("reason") if isinstance(found, dict) else None
        if not isinstance(reason, str):
            status = f"{response.status} {response.reason}".strip()
            raise NodeError(f"{self.place} answers with status {status}")
        if response.status == _BAD_REQUEST:
            raise ConfigError(reason)
        raise NodeError(reason)

    def _understood(self, answer: bytes) -> Any:
        try:
            return json.loads(answer)
        except ValueError:
            raise NodeError(f"what answers at {self.place} is no views listener") from None

    def _stranger(self, error: http.client.HTTPException) -> str:
        if isinstance(error, http.client.IncompleteRead):
            return f"the answer of {self.place} broke off"
        return f"what answers at {self.place} is no views listener"


def talks_to_views(json_help: str, *, timeout: bool = True) -> Callable[[_Function], _Function]:
    """Add the options of verbs that ask a views listener; the verb gets `views` and `as_json`.

    Args:
        json_help: what ``--json`` prints.
        timeout: without it the verb has a ``--timeout`` of its own, and gets `node` and `place` as
            arguments for `found_views`.
    """
    option = click.option(
        "--views",
        "place",
        envvar="UPRMC_VIEWS",
        metavar="HOST:PORT",
        help="The views listener.  [default: what the node says]",
    )

    def decorate(function: _Function) -> _Function:
        def verb(place: str | None, node: NodeAccess, **given: Any) -> Any:
            if not timeout:
                return function(place=place, node=node, **given)
            return function(views=found_views(place, node, node.timeout_s), **given)

        decorated: Any = update_wrapper(verb, function)
        typed: _Function = option(talks_to_a_node(json_help, timeout=timeout)(decorated))
        return typed

    return decorate


def found_views(place: str | None, node: NodeAccess, timeout_s: float) -> ViewsAccess:
    """Return the views listener that was named, or else the node's own."""
    place, tls = (place, node.tls) if place else _told(node)
    try:
        if parsed(place).path:
            raise ConfigError(f"{place}: views have no unix socket, say HOST:PORT")
    except ValueError as error:
        raise ConfigError(f"{place}: say {error}") from None
    return ViewsAccess(place, timeout_s, node.credentials, tls)


def _told(node: NodeAccess) -> tuple[str, ssl.SSLContext | None]:
    with node.connected() as connection:
        found = dict(connection.statistics("index"))
    place = found.get("views", "")
    if found.get("state") == "off" or not place:
        raise NodeError(f"the node at {node.place} has no views listener; name one with --views")
    if place.startswith(_WILDCARDS):
        host = node.place.rpartition(":")[0]
        place = f"{host or '127.0.0.1'}:{place.rpartition(':')[2]}"
    return place, None if found.get("views_tls") == "no" else node.tls
