"""How verbs reach nodes: the options that all of them share, and what these come to.

Each option may be an environment variable as well, so that a shell is set up once for all verbs.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import update_wrapper
from typing import Any, TypeVar

import click

from uprmc.cli.arguments import seconds
from uprmc.client.connection import NodeConnection
from uprmc.errors import ConfigError
from uprmc.login.credentials import Credentials, credentials_from
from uprmc.places import parsed

DEFAULT_NODE = "127.0.0.1:11210"

#: A node that says nothing for so long is given up.
ANSWER_S = 5.0

_Function = TypeVar("_Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class NodeAccess:
    """A node, and how to speak to it.

    Attributes:
        place: as it was given; of several the first.
        places: all of them.
        tls: ``None`` = no TLS.
        timeout_s: a node that says nothing for so long is given up.
        credentials: who logs in, ``None`` = nobody.
    """

    places: tuple[str, ...]
    tls: ssl.SSLContext | None = None
    timeout_s: float = ANSWER_S
    credentials: Credentials | None = None

    @property
    def place(self) -> str:
        return self.places[0]

    def at(self, place: str, timeout_s: float | None = None) -> NodeAccess:
        """Return access to another node, which is spoken to likewise."""
        return replace(self, places=(place,), timeout_s=timeout_s or self.timeout_s)

    def connected(self) -> NodeConnection:
        """Connect; raises `NodeError`, or `ConfigError` for what is no place."""
        return NodeConnection(self.place, self.timeout_s, self.tls, self.credentials)


def talks_to_a_node(
    json_help: str, *, several: bool = False, timeout: bool = True, own_tls_ca: bool = False
) -> Callable[[_Function], _Function]:
    """Add the options of every verb that asks a node; the verb gets `node` and `as_json`.

    Args:
        json_help: what ``--json`` prints.
        several: the verb can use several nodes.
        timeout: without it the verb has a ``--timeout`` of its own, for something else.
        own_tls_ca: the verb has a ``--tls-ca``, a ``--user`` and a ``--password-file`` of its own,
            for another node; those of the node begin with ``--node-``.
    """
    options = [
        click.option(
            "--node",
            "places",
            multiple=True,
            envvar="UPRMC_NODE",
            metavar="HOST:PORT",
            help="The node's upr listener: HOST:PORT or unix:/path"
            + ("; repeat it for several nodes." if several else ".")
            + f"  [default: {DEFAULT_NODE}]",
        ),
        *(_NODE_OPTIONS if own_tls_ca else (*TLS_OPTIONS, *LOGIN_OPTIONS)),
    ]
    if timeout:
        options.append(
            click.option(
                "--timeout",
                "answer_s",
                type=seconds(0.001),
                default=f"{ANSWER_S:g}s",
                show_default=True,
                help="Give up when a node is silent for this long.",
            )
        )
    options += [
        click.option("--json", "as_json", is_flag=True, help=json_help),
        click.option(
            "--debug", is_flag=True, expose_value=False, help="Show the traceback of an error."
        ),
    ]

    def decorate(function: _Function) -> _Function:
        def verb(
            places: tuple[str, ...],
            tls: bool,
            tls_ca: str | None,
            no_tls_verify: bool,
            login_user: str | None,
            login_file: str | None,
            answer_s: float = ANSWER_S,
            **given: Any,
        ) -> Any:
            found = NodeAccess(
                _named(places, several),
                tls_context(tls, tls_ca, not no_tls_verify),
                answer_s,
                credentials_from(login_user, login_file),
            )
            return function(node=found, **given)

        decorated: Any = update_wrapper(verb, function)
        for option in reversed(options):
            decorated = option(decorated)
        typed: _Function = decorated
        return typed

    return decorate


def _tls_options(*ca_names: str) -> tuple[Callable[[_Function], _Function], ...]:
    return (
        click.option("--tls", is_flag=True, envvar="UPRMC_TLS", help="Use TLS."),
        click.option(
            *ca_names,
            "tls_ca",
            type=click.Path(exists=True, dir_okay=False),
            envvar="UPRMC_TLS_CA",
            metavar="FILE",
            help="Use TLS, and trust the certificates in this PEM file instead of the system's.",
        ),
        click.option(
            "--no-tls-verify",
            is_flag=True,
            envvar="UPRMC_NO_TLS_VERIFY",
            help="Use TLS, and accept any certificate.",
        ),
    )


def _login_options(prefix: str) -> tuple[Callable[[_Function], _Function], ...]:
    return (
        click.option(
            f"{prefix}user",
            "login_user",
            envvar="UPRMC_USER",
            metavar="NAME",
            help="Log in to the node as this user.",
        ),
        click.option(
            f"{prefix}password-file",
            "login_file",
            type=click.Path(exists=True, dir_okay=False),
            envvar="UPRMC_PASSWORD_FILE",
            metavar="FILE",
            help="The first line of this file is the user's password.",
        ),
    )


LOGIN_OPTIONS = _login_options("--")

#: `debug` of a verb is the affair of `main.run`.
TLS_OPTIONS = _tls_options("--tls-ca", "--tls-ca-file")
_NODE_OPTIONS = (*_tls_options("--node-tls-ca"), *_login_options("--node-"))


def _named(given: tuple[str, ...], several: bool) -> tuple[str, ...]:
    places = [each.strip() for one in given for each in one.split(",")] or [DEFAULT_NODE]
    found = tuple(dict.fromkeys(places))
    if len(found) > 1 and not several:
        raise ConfigError(f"{', '.join(found)}: this verb asks one node, say --node with one")
    for place in found:
        try:
            parsed(place)
        except ValueError as error:
            raise ConfigError(f"{place!r} is no node: say {error}") from None
    return found


def tls_context(tls: bool, ca_file: str | None, verify: bool) -> ssl.SSLContext | None:
    """Return what options say of TLS, ``None`` = none; raises `ConfigError`."""
    if verify and not (tls or ca_file):
        return None
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        why = getattr(error, "reason", None) or error.strerror or error
        raise ConfigError(f"--tls-ca {ca_file}: {why}") from None
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
