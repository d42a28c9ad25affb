"""How verbs reach nodes: the options that all of them share, and what these come to.

Each option may be an environment variable or stand in the user's client file, so that a shell or a
user is set up once for all verbs.

    # ~/.config/uprmc/client.toml
    node = "db1.example:11210"
    tls_ca = "/etc/ssl/uprmc-ca.pem"
    user = "alice"
    password_file = "/home/alice/.uprmc-password"
    timeout = "10s"

Options and environment variables come first. ``UPRMC_CLIENT_FILE`` names another file.
"""

from __future__ import annotations

import os
import ssl
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, update_wrapper
from pathlib import Path
from typing import Any, TypeVar

import click

from uprmc import units
from uprmc.cli.arguments import seconds
from uprmc.client.connection import NodeConnection
from uprmc.errors import ConfigError
from uprmc.login.credentials import Credentials, credentials_from
from uprmc.places import UPR_PORT, complete
from uprmc.units import nearest

# --- the client file ------------------------------------------------------------------------------


VARIABLE = "UPRMC_CLIENT_FILE"

#: What may stand in it, with what is expected.
_KINDS: dict[str, tuple[type | tuple[type, ...], str]] = {
    "node": (str, "text such as '127.0.0.1:11210'"),
    "tls": (bool, "true or false"),
    "tls_ca": (str, "the path of a PEM file"),
    "no_tls_verify": (bool, "true or false"),
    "user": (str, "a user's name"),
    "password_file": (str, "the path of a file"),
    "timeout": ((str, int, float), "a time such as '5s'"),
}
KEYS = tuple(_KINDS)


def default_path() -> Path:
    """Return where the file is unless the environment says something else."""
    home = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(home, "uprmc", "client.toml").expanduser()


def from_file(key: str, otherwise: Any = None) -> Callable[[], Any]:
    """Return what gives the default of an option: what the file says, or `otherwise`.

    The file is read when the verb runs, not for ``--help``. It raises `ConfigError`.
    """

    def default() -> Any:
        named = os.environ.get(VARIABLE)
        found = _read(Path(named) if named else default_path(), bool(named)).get(key, otherwise)
        return str(found) if isinstance(found, int | float) and key == "timeout" else found

    return default


@lru_cache(maxsize=1)
def _read(path: Path, must_exist: bool) -> dict[str, Any]:
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if must_exist:
            raise ConfigError(f"{VARIABLE}: {path}: there is no such file") from None
        return {}
    except NotADirectoryError:
        return {}
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:  # no TOML (which says the line), or no UTF-8
        raise ConfigError(f"{path}: {error}") from None
    for key, value in document.items():
        _check(path, key, value)
    return document


def _check(path: Path, key: str, value: Any) -> None:
    if key == "password":
        raise ConfigError(f"{path}: a password stands in a file of its own: say password_file")
    if key not in _KINDS:
        meant = nearest(key, list(KEYS))
        hint = f"did you mean {meant}?" if meant else f"it may have {', '.join(KEYS)}"
        raise ConfigError(f"{path}: there is no {key!r}: {hint}")
    kind, expected = _KINDS[key]
    right = isinstance(value, kind) and not (isinstance(value, bool) and kind is not bool)
    if right and key == "timeout":
        right = _is_time(value)
    if not right:
        raise ConfigError(f"{path}: {key} = {value!r}: say {expected}")


def _is_time(value: Any) -> bool:
    try:
        return units.seconds(str(value)) > 0
    except ValueError:
        return False


# --- the options ----------------------------------------------------------------------------------


DEFAULT_NODE = f"127.0.0.1:{UPR_PORT}"

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
        credentials: who logs in, ``None`` = nobody does.
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
        """Connect and log in; raises `NodeError`, or `ConfigError` for what is no place."""
        return NodeConnection(self.place, self.timeout_s, self.tls, self.credentials)


def talks_to_a_node(
    json_help: str, *, several: bool = False, timeout: bool = True, own_target: bool = False
) -> Callable[[_Function], _Function]:
    """Add the options of every verb that asks a node; the verb gets `node` and `as_json`.

    Args:
        json_help: what ``--json`` prints.
        several: the verb can use several nodes.
        timeout: without it the verb has a ``--timeout`` of its own, for something else; that of
            the node is ``--node-timeout``.
        own_target: the verb has a ``--tls-ca``, ``--user`` and ``--password-file`` of its own;
            those of the node begin with ``--node``.
    """
    before = "--node-" if own_target else "--"
    options = [
        click.option(
            "--node",
            "places",
            multiple=True,
            envvar="UPRMC_NODE",
            default=lambda: tuple(filter(None, [from_file("node")()])),
            metavar="HOST:PORT",
            help="The node's upr listener: HOST:PORT or unix:/path"
            + ("; repeat it for several nodes." if several else ".")
            + f"  [default: {DEFAULT_NODE}]",
        ),
        *tls_options(before),
        *login_options(before),
        click.option(
            "--timeout" if timeout else "--node-timeout",
            "answer_s",
            type=seconds(0.001),
            envvar="UPRMC_TIMEOUT",
            default=from_file("timeout", f"{ANSWER_S:g}s"),
            help=f"Give up when a node is silent for this long.  [default: {ANSWER_S:g}s]",
        ),
        click.option("--json", "as_json", is_flag=True, help=json_help),
        click.option(
            "--debug", is_flag=True, expose_value=False, help="Show the traceback of an error."
        ),
    ]

    names = ("node_user", "node_password_file") if own_target else ("user", "password_file")

    def decorate(function: _Function) -> _Function:
        def verb(
            places: tuple[str, ...],
            tls: bool,
            tls_ca: str | None,
            no_tls_verify: bool,
            answer_s: float,
            **given: Any,
        ) -> Any:
            found = NodeAccess(
                _named(places, several),
                tls_context(tls, tls_ca, not no_tls_verify),
                answer_s,
                credentials_from(*[given.pop(name) for name in names]),
            )
            return function(node=found, **given)

        typed: _Function = with_options(update_wrapper(verb, function), options)
        return typed

    return decorate


def with_options(function: Any, options: Sequence[Any]) -> Any:
    """Return a verb with options, which its help shows in this order."""
    for option in reversed(options):
        function = option(function)
    return function


def tls_options(before: str = "--") -> list[Any]:
    """Return the options of TLS; the name of the one for authorities begins with `before`."""
    return [
        click.option(
            "--tls",
            is_flag=True,
            envvar="UPRMC_TLS",
            default=from_file("tls", otherwise=False),
            help="Use TLS.",
        ),
        click.option(
            f"{before}tls-ca",
            "tls_ca",
            type=click.Path(exists=True, dir_okay=False),
            envvar="UPRMC_TLS_CA",
            default=from_file("tls_ca"),
            metavar="FILE",
            help="Use TLS, and trust the certificates in this PEM file instead of the system's.",
        ),
        click.option(
            "--no-tls-verify",
            is_flag=True,
            envvar="UPRMC_NO_TLS_VERIFY",
            default=from_file("no_tls_verify", otherwise=False),
            help="Use TLS, and accept any certificate.",
        ),
    ]


def login_options(before: str = "--") -> list[Any]:
    """Return ``--user`` and ``--password-file``."""
    name = "" if before == "--" else "node_"
    return [
        click.option(
            f"{before}user",
            f"{name}user",
            envvar="UPRMC_USER",
            default=from_file("user"),
            metavar="NAME",
            help="Log in to the node as this user.",
        ),
        click.option(
            f"{before}password-file",
            f"{name}password_file",
            type=click.Path(dir_okay=False),
            envvar="UPRMC_PASSWORD_FILE",
            default=from_file("password_file"),
            metavar="FILE",
            help="File whose first line is the user's password.",
        ),
    ]


def _named(given: tuple[str, ...], several: bool) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for text in (",".join(given) or DEFAULT_NODE).split(","):
        try:
            found[complete(text)] = None
        except ValueError as error:
            raise ConfigError(f"{text.strip()!r} is no node: say {error}") from None
    if len(found) > 1 and not several:
        raise ConfigError(f"{', '.join(found)}: this verb asks one node, say --node with one")
    return tuple(found)


def tls_context(tls: bool, ca_file: str | None, verify: bool) -> ssl.SSLContext | None:
    """Return what options say of TLS, ``None`` = none; raises `ConfigError`."""
    if verify and not (tls or ca_file):
        return None
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        if getattr(error, "reason", None):
            raise ConfigError(f"--tls-ca {ca_file}: holds no PEM certificate") from None
        raise ConfigError(f"--tls-ca {ca_file}: {error.strerror or error}") from None
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
