"""``uprmc index``: designs of views, what is in them, and how their indexes are."""

from __future__ import annotations

import http.client
import json
import ssl
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import update_wrapper
from http import HTTPStatus
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeVar

import click

from uprmc.cli.arguments import Read, seconds, whole
from uprmc.cli.node_access import NodeAccess, talks_to_a_node
from uprmc.cli.shown import fitting, printable, row_line, show, table
from uprmc.client.connection import NodeError
from uprmc.errors import ConfigError, UprmcError
from uprmc.index.design import DESIGNS, NAME_RULE, design_path, is_name
from uprmc.login.credentials import Credentials, basic_auth
from uprmc.places import WITH_LOGIN, WITH_TLS, parsed, tls_refusal
from uprmc.units import in_ranges

# --- the views listener ---------------------------------------------------------------------------


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
    """A views listener."""

    place: str  # HOST:PORT
    timeout_s: float  # a listener that is silent for so long is given up
    # who logs in, ``None`` = as a stranger. Without TLS no password is sent to another machine.
    credentials: Credentials | None = None
    tls: ssl.SSLContext | None = None  # ``None`` = no TLS

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
        found = connection.statistics("index")
    place = found.get("views", "")
    if found.get("state") == "off" or not place:
        raise NodeError(f"the node at {node.place} has no views listener; name one with --views")
    if place.startswith(_WILDCARDS):
        host = node.place.rpartition(":")[0]
        place = f"{host or '127.0.0.1'}:{place.rpartition(':')[2]}"
    return place, None if found.get("views_tls") == "no" else node.tls


# --- the verbs ------------------------------------------------------------------------------------


#: How long an answer may take beyond what the listener itself waits.
_GRACE_S = 5.0

#: Rows whose widths make the columns of a table; it goes on with these.
_WIDE_ROWS = 500

#: Characters of a cell.
_CELL = 80


class _Index(click.Group):
    """Imports ``serve`` when it is used: the other verbs need no Twisted."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), "serve"])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name == "serve":
            from uprmc.cli.index_serve import serve

            return serve
        return super().get_command(ctx, cmd_name)


@click.group(cls=_Index)
@click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an error.")
def index() -> None:
    """Store, query and describe views."""


def _named(_: click.Context, __: click.Parameter, name: str) -> str:
    if not is_name(name):
        raise click.BadParameter(f"no design has such a name: {name!r}; names are {NAME_RULE}")
    return name


_NAME = click.argument("name", metavar="NAME", callback=_named)


@index.command()
@_NAME
@click.argument("file", metavar="FILE")
@talks_to_views("Print one JSON object.")
def put(name: str, file: str, views: ViewsAccess, as_json: bool) -> None:
    """Store a design and build its index.

    FILE is JSON, and - is the standard input. A changed design is built beside the old one, which
    answers until the new one is complete.
    """
    found = views.fetch("PUT", design_path(name), _content(file))
    show(found, as_json, lambda _: f"{name}: stored")


def _content(file: str) -> bytes:
    if file == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from None


@index.command()
@_NAME
@talks_to_views("Print the design, which is JSON anyway.")
def get(name: str, views: ViewsAccess, as_json: bool) -> None:
    """Print a design as it was put."""
    click.echo(views.ask("GET", design_path(name)), nl=False)


@index.command(name="list")
@talks_to_views("Print one JSON object.")
def list_(views: ViewsAccess, as_json: bool) -> None:
    """List the designs."""
    found = views.fetch("GET", DESIGNS)
    rows = [
        {"name": row["name"], "state": row["state"], "views": ", ".join(row["views"])}
        for row in found["rows"]
    ]
    show(found, as_json, lambda _: _table(("name", "state", "views"), rows))


@index.command()
@_NAME
@talks_to_views("Print one JSON object.")
def delete(name: str, views: ViewsAccess, as_json: bool) -> None:
    """Delete a design with its index."""
    found = views.fetch("DELETE", design_path(name))
    show(found, as_json, lambda _: f"{name}: deleted")


@index.command()
@_NAME
@talks_to_views("Print one JSON object.")
def compact(name: str, views: ViewsAccess, as_json: bool) -> None:
    """Begin to rewrite an index file without what is no longer used."""
    found = views.fetch("POST", design_path(name, "_compact"))
    show(found, as_json, lambda _: f"{name}: compaction has begun")


@index.command()
@_NAME
@talks_to_views("Print one JSON object.")
def undo(name: str, views: ViewsAccess, as_json: bool) -> None:
    """Bring back the design before the last change, with its index."""
    found = views.fetch("POST", design_path(name, "_undo"))
    show(found, as_json, lambda _: f"{name}: the design before the last change is back")


# --- status -------------------------------------------------------------------------------------

_COLUMNS = (
    "name",
    "state",
    "progress",
    "rows",
    "disk_bytes",
    "fragmentation",
    "map_errors",
    "error",
)


@index.command()
@click.argument("name", metavar="[NAME]", required=False, default="")
@talks_to_views("Print one JSON object.")
def status(name: str, views: ViewsAccess, as_json: bool) -> None:
    """Show how far an index is and what it takes.

    Without NAME it shows all designs.
    """
    if name:
        found = views.fetch("GET", design_path(name, "_info"))
        show(found, as_json, _pairs)
        return
    listed = {row["name"]: row for row in views.fetch("GET", DESIGNS)["rows"]}
    infos = {
        each: row if row["state"] == "failed" else views.fetch("GET", design_path(each, "_info"))
        for each, row in listed.items()
    }
    rows = [_summary(each, info) for each, info in infos.items()]
    show(infos, as_json, lambda _: _table(_COLUMNS, rows))


def _summary(name: str, info: dict[str, Any]) -> dict[str, Any]:
    rows = info.get("rows", {})
    errors = info.get("map_errors", [])
    return {
        **{column: info.get(column, "") for column in _COLUMNS},
        "name": name,
        "rows": sum(rows.values()) if isinstance(rows, dict) else rows,
        "map_errors": len(errors) if isinstance(errors, list) else errors,
    }


def _pairs(info: dict[str, Any]) -> str:
    shown = {name: _brief(name, value) for name, value in info.items()}
    errors = shown.pop("map_errors", [])
    lines = [f"{name:<24}{_plain(value)}" for name, value in shown.items()]
    lines += [f"{'map_errors':<24}{len(errors)}", *(f"  {_plain(error)}" for error in errors)]
    return "\n".join(lines)


def _brief(name: str, value: Any) -> Any:
    """Return a value without what it says of each vBucket; a merger's is nested, by nodes."""
    if not isinstance(value, dict):
        return value
    if name in ("seqnos", "partition_versions"):
        return f"{len(value)} vBuckets"
    return {each: _brief(each, inner) for each, inner in value.items()}


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}: {_plain(each)}" for name, each in value.items()) or "none"
    if isinstance(value, list):
        is_vbuckets = all(type(each) is int for each in value)
        return (in_ranges(value) if is_vbuckets else ", ".join(map(_plain, value))) or "none"
    return str(value)


# --- query --------------------------------------------------------------------------------------


def _json_value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("JSON; a string needs quotes, such as '\"Berlin\"'") from None


_JSON = Read(lambda text: (_json_value(text),), "JSON")


@index.command()
@click.argument("view", metavar="NAME/VIEW")
@click.option("--key", type=_JSON, help="Only rows with this key.")
@click.option("--keys", type=_JSON, help="Only rows with these keys, an array, in its order.")
@click.option("--start", "startkey", type=_JSON, help="From this key on.")
@click.option("--end", "endkey", type=_JSON, help="Up to this key.")
@click.option("--start-docid", "startkey_docid", metavar="ID", help="Where among equal keys.")
@click.option("--end-docid", "endkey_docid", metavar="ID", help="Where among equal keys.")
@click.option("--exclusive-end", is_flag=True, help="Leave out rows with the key of --end.")
@click.option("--descending", is_flag=True, help="From high to low; --start is the higher key.")
@click.option("--limit", type=whole(), help="At most this many rows.")
@click.option("--skip", type=whole(), help="Leave out this many rows first.")
@click.option("--reduce/--no-reduce", default=None, help="Reductions or rows.")
@click.option("--group", is_flag=True, help="Reduce the rows of each key.")
@click.option("--group-level", type=whole(), help="Reduce rows whose first N elements are equal.")
@click.option(
    "--stale",
    type=click.Choice(["ok", "update_after", "false"]),
    help="How fresh: as it is, as it is and updated afterwards, or with every write so far.",
)
@click.option("--at", metavar="VB:UUID:SEQNO,...", help="Wait for these versions.")
@click.option(
    "--on-error",
    type=click.Choice(["continue", "stop"]),
    help="Whether rows of other nodes are shown when one fails.",
)
@click.option("--include-docs", is_flag=True, help="With the documents as they are now.")
@click.option("--update-seq", is_flag=True, help="With the seqnos that the answer stands for.")
@click.option("--new", is_flag=True, help="Ask the index that is built for a changed design.")
@click.option(
    "--timeout",
    "timeout_s",
    type=seconds(0.001),
    default="60s",
    show_default=True,
    help="Give up when the index is not fresh enough after this long.",
)
@talks_to_views("Print the answer as it comes.", timeout=False)
def query(
    view: str,
    timeout_s: float,
    place: str | None,
    node: NodeAccess,
    as_json: bool,
    **given: Any,
) -> int:
    """Print the rows of a view, or their reductions."""
    name, slash, view_name = view.rpartition("/")
    if not (slash and name and view_name):
        raise ConfigError(f"{view!r} names no view: say NAME/VIEW")
    options = {"connection_timeout": max(int(timeout_s * 1_000), 1), **_given_options(given)}
    views = found_views(place, node, timeout_s + _GRACE_S)
    path = design_path(name, "_view", view_name)
    with views.asking("POST", path, json.dumps(options).encode()) as answer:
        lines = iter(answer.readline, b"")
        code = _print_answer(lines) if as_json else _print_rows(lines, views.place)
    _tell_map_errors(name, views)
    return code


def _tell_map_errors(name: str, views: ViewsAccess) -> None:
    """Say which documents the map function failed for: their rows are not in the answer."""
    try:
        errors = views.fetch("GET", design_path(name, "_info")).get("map_errors")
    except (UprmcError, AttributeError):  # the answer stands without it
        return
    if isinstance(errors, list) and errors:
        first = f"{len(errors)} documents" if len(errors) > 1 else "a document"
        click.echo(
            f"uprmc: {first} could not be mapped and may lack rows, the last one: "
            f"{_cell(_plain(errors[-1]))}; 'uprmc index status {name}' lists them",
            err=True,
        )


def _given_options(given: dict[str, Any]) -> dict[str, Any]:
    options = {
        name: value[0] if isinstance(value, tuple) else value
        for name, value in given.items()
        if value is not None and value is not False
    }
    if given["reduce"] is False:
        options["reduce"] = False
    if options.pop("exclusive_end", False):
        options["inclusive_end"] = False
    if options.pop("new", False):
        options["rev"] = "new"
    return options


def _print_answer(lines: Iterator[bytes]) -> int:
    """Print an answer as it comes; return the exit code."""
    tail = b""
    for line in lines:
        sys.stdout.buffer.write(line)
        tail = line
    sys.stdout.buffer.flush()
    if not tail.endswith(b"]}\n"):
        raise NodeError("the answer broke off")
    if tail.endswith(b'"errors":[]}\n'):
        return 0
    click.echo("uprmc: the answer is not complete; its errors say why", err=True)
    return 1


def _print_rows(lines: Iterator[bytes], place: str) -> int:
    """Print a table; return the exit code."""
    try:
        told = json.loads(next(lines, b"") + b"]}")
        errors = _print_table(_Rows(lines))
    except (ValueError, KeyError, TypeError):
        raise NodeError(f"what answers at {place} is no views listener") from None
    if errors is None:
        raise NodeError("the answer broke off")
    if "update_seq" in told:
        click.echo(f"update_seq: {_plain(told['update_seq'])}")
    for error in errors:
        click.echo(f"uprmc: {error['from']}: {error['reason']}", err=True)
    return 1 if errors else 0


class _Rows:
    """The rows of an answer; `errors` is known at their end."""

    def __init__(self, lines: Iterator[bytes]) -> None:
        self._lines = lines
        self.errors: list[dict[str, str]] | None = None

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for line in self._lines:
            text = line.strip()
            if text.startswith(b"{"):
                yield json.loads(text.removesuffix(b","))
            elif text:
                rest = b"".join([text, *self._lines])
                self.errors = json.loads(b'{"rows":[' + rest)["errors"]


def _print_table(rows: _Rows) -> list[dict[str, str]] | None:
    """Print rows in columns that fit the first of them; return the errors that came after them."""
    coming = iter(rows)
    some = list(islice(coming, _WIDE_ROWS))
    columns = [name for name in ("key", "id", "value", "doc") if some and name in some[0]]
    widths = fitting([columns, *([_cell(row[name]) for name in columns] for row in some)])
    if columns:
        click.echo(row_line(columns, widths))
    for row in chain(some, coming):
        click.echo(row_line([_cell(row[name]) for name in columns], widths))
    return rows.errors


def _cell(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text = printable(text)
    return text if len(text) <= _CELL else text[: _CELL - 3] + "..."


def _table(columns: Sequence[str], rows: Sequence[dict[str, Any]]) -> str:
    return table([columns, *([_cell(row[name]) for name in columns] for row in rows)])
