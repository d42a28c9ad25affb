"""A request as it came, taken apart: path, options, body; wrong ones get one sentence."""

# mypy: allow-untyped-calls
from __future__ import annotations

from typing import Any, NamedTuple, cast
from urllib.parse import parse_qsl, unquote_to_bytes

from twisted.web.server import Request

from uprmc.index.errors import Refused, bad_request
from uprmc.index.json_text import strict_json
from uprmc.index.paths import NAME_RULE, is_name

#: Body of a command, such as vBuckets and their states.
COMMAND_MAX_BYTES = 64 * 1024

#: Options of one URL.
_OPTIONS_MAX = 64


class HttpRequest(NamedTuple):
    """What a request asks for.

    Attributes:
        method: ``GET``, ...
        path: its parts, decoded.
        options: of the URL, in their order; bytes that are not UTF-8 as surrogates.
        body: as it came.
    """

    method: str
    path: tuple[str, ...]
    options: tuple[tuple[str, str], ...]
    body: bytes


def http_request(request: Request) -> HttpRequest:
    """Take a request apart; raise `Refused`."""
    query = request.uri.partition(b"?")[2]
    content = cast(Any, request.content)
    return HttpRequest(
        request.method.decode("ascii", "replace"),
        path_parts(request),
        _options(query),
        content.read(),
    )


def path_parts(request: Request) -> tuple[str, ...]:
    """Return the parts between slashes, decoded; a slash that is encoded is no separator.

    Raises:
        Refused: they are not UTF-8.
    """
    path = request.uri.partition(b"?")[0]
    if path.lower().startswith(b"http://"):
        path = path[7:]
    parts = path.split(b"/")[1:]
    if len(parts) > 1 and not parts[-1]:
        parts.pop()
    try:
        return tuple(unquote_to_bytes(part).decode() for part in parts)
    except UnicodeDecodeError:
        raise bad_request("the path is not UTF-8") from None


def _options(query: bytes) -> tuple[tuple[str, str], ...]:
    try:
        pairs = parse_qsl(
            query.decode("utf-8", "surrogateescape"),
            keep_blank_values=True,
            errors="surrogateescape",
            max_num_fields=_OPTIONS_MAX,
        )
    except ValueError:
        raise bad_request(f"the URL has more than {_OPTIONS_MAX} options") from None
    return tuple(pairs)


def checked_name(kind: str, name: str) -> str:
    """Return the name of a design or a view; raise `Refused` for what none can have."""
    if not is_name(name):
        raise bad_request(f"no {kind} has such a name: {name[:60]!a}; names are {NAME_RULE}")
    return name


def json_body(body: bytes) -> Any:
    """Return the JSON value of a body; raise `Refused`."""
    try:
        return strict_json(body)
    except ValueError as error:
        raise bad_request(f"the body {error}") from None


def json_object(body: bytes, *known: str) -> dict[str, Any]:
    """Return the members of a body; raise `Refused` if one is unknown."""
    if len(body) > COMMAND_MAX_BYTES:
        reason = f"the body of a command has {COMMAND_MAX_BYTES} bytes at most"
        raise Refused(413, "too_large", reason)
    found = json_body(body) if body else {}
    if not isinstance(found, dict):
        raise bad_request("the body is a JSON object")
    for name in found:
        if name not in known:
            raise bad_request(
                f"the body has the unknown member {name[:60]!a}; known are {', '.join(known)}"
            )
    return found


def url_options(options: tuple[tuple[str, str], ...], *known: str) -> dict[str, str]:
    """Return the options of a URL; raise `Refused` if one is unknown or there twice."""
    found: dict[str, str] = {}
    for name, text in options:
        if name not in known:
            raise bad_request(f"there is no option {name[:60]!a} here")
        if name in found:
            raise bad_request(f"{name} is given twice")
        found[name] = text
    return found


def number(name: str, value: Any, most: int = 2**64 - 1) -> int:
    """Return a whole number that a body names, as such or as text; raise `Refused`."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 20:
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most:
        return value
    raise bad_request(f"{name} is a whole number from 0 to {most}")


def vbuckets(name: str, value: Any) -> frozenset[int]:
    """Return the vBuckets that a body lists; raise `Refused`."""
    if not isinstance(value, list):
        raise bad_request(f"{name} is an array of vBuckets")
    return frozenset(number(name, each, 65_535) for each in value)
