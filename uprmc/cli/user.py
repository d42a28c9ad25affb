"""``uprmc user``: who may log in to a node. Changes the users file; no node has to run."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import click

from uprmc.cli.shown import table
from uprmc.errors import ConfigError
from uprmc.login.credentials import Credentials, password_in
from uprmc.login.scram import ITERATIONS_DEFAULT, ITERATIONS_MAX, ITERATIONS_MIN, prepared
from uprmc.login.users import HASH_NAMES, SALT_BYTES, Role, User, new_user, roles_in
from uprmc.login.users_file import changing, read_users, write_users

_STDIN = "/dev/stdin"

_Command = Callable[..., Any]


@click.group()
@click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an error.")
def user() -> None:
    """Manage who may log in to a node.

    The users are in a file that a node reads when server.users names it, and again at SIGHUP. It
    contains salted keys, never a password.
    """


def _file(command: _Command) -> _Command:
    return click.option(
        "--users",
        "path",
        required=True,
        envvar="UPRMC_SERVER_USERS",
        metavar="FILE",
        help="The users file, as in the setting server.users.",
    )(command)


def _roles(command: _Command) -> _Command:
    return click.option(
        "--role",
        "roles",
        required=True,
        multiple=True,
        metavar="ROLES",
        help=f"What the user may do: some of {', '.join(Role)}, with commas between them.",
    )(command)


def _password(command: _Command) -> _Command:
    iterations = click.option(
        "--iterations",
        type=click.IntRange(ITERATIONS_MIN, ITERATIONS_MAX),
        default=ITERATIONS_DEFAULT,
        show_default=True,
        metavar="N",
        help="Rounds of PBKDF2, which each login costs the client.",
    )
    file = click.option(
        "--password-file",
        metavar="FILE",
        help="Read the password from the first line; '-' is the standard input. Without this "
        "option, ask on the terminal.",
    )
    return iterations(file(command))


# --- verbs --------------------------------------------------------------------------------------


@user.command()
@click.argument("name")
@_roles
@_password
@_file
def add(
    name: str, roles: tuple[str, ...], password_file: str | None, iterations: int, path: str
) -> None:
    """Add a user; the file is made if it is not there."""
    granted = roles_in(",".join(roles))
    _checked_name(name)
    with changing(path):
        users = read_users(path) if os.path.lexists(path) else []
        if _position(users, name) is not None:
            raise ConfigError(f"there is a user {name!r}: say 'uprmc user passwd' or 'roles'")
        made = _made(name, granted, password_file, iterations)
        write_users(path, [*users, made])
    click.echo(f"added {name}: {_listed(granted)}")


@user.command(name="list")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON list.")
@_file
def list_(as_json: bool, path: str) -> None:
    """Print each user's name and roles."""
    users = sorted(read_users(path), key=lambda each: each.name)
    if as_json:
        rows = [{"name": each.name, "roles": sorted(each.roles)} for each in users]
        click.echo(json.dumps(rows))
        return
    if users:
        click.echo(table([(each.name, _listed(each.roles)) for each in users]))


@user.command()
@click.argument("name")
@_file
def remove(name: str, path: str) -> None:
    """Remove a user."""
    with changing(path):
        users = read_users(path)
        del users[_found(users, name)]
        write_users(path, users)
    click.echo(f"removed {name}")


@user.command()
@click.argument("name")
@_password
@_file
def passwd(name: str, password_file: str | None, iterations: int, path: str) -> None:
    """Give a user another password."""
    with changing(path):
        users = read_users(path)
        at = _found(users, name)
        users[at] = _made(users[at].name, users[at].roles, password_file, iterations)
        write_users(path, users)
    click.echo(f"changed the password of {name}")


@user.command()
@click.argument("name")
@_roles
@_file
def roles(name: str, roles: tuple[str, ...], path: str) -> None:
    """Give a user other roles, in place of those before."""
    granted = roles_in(",".join(roles))
    with changing(path):
        users = read_users(path)
        at = _found(users, name)
        users[at] = replace(users[at], roles=granted)
        write_users(path, users)
    click.echo(f"changed {name}: {_listed(granted)}")


# --- inside -------------------------------------------------------------------------------------


def _made(name: str, granted: Iterable[Role], password_file: str | None, iterations: int) -> User:
    credentials = Credentials(name, _read_password(password_file))
    salts = [os.urandom(SALT_BYTES) for _ in HASH_NAMES]
    return new_user(credentials, granted, salts, iterations)


def _read_password(file: str | None) -> str:
    if file is not None:
        return password_in(_STDIN if file == "-" else file)
    if not sys.stdin.isatty():
        raise ConfigError("there is no terminal to ask for the password: say --password-file")
    return str(click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True))


def _checked_name(name: str) -> None:
    """Refuse a name that would be a nuisance in logs, or that no client could send."""
    if not name.isprintable() or name != name.strip():
        raise ConfigError(f"the user name {name!r} has blanks around it or does not print")
    Credentials(name, "-")


def _position(users: list[User], name: str) -> int | None:
    wanted = prepared(name)
    return next((at for at, each in enumerate(users) if prepared(each.name) == wanted), None)


def _found(users: list[User], name: str) -> int:
    at = _position(users, name)
    if at is None:
        raise ConfigError(f"there is no user {name!r}; 'uprmc user list' lists them")
    return at


def _listed(granted: Iterable[Role]) -> str:
    return ",".join(sorted(granted))
