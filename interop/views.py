"""A plain client of the views listener: HTTP and JSON, nothing of `uprmc`."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Mapping
from types import TracebackType
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from interop.server_process import Address

_LIMIT_S = 120.0


class Answer(NamedTuple):
    """What came back; `body` is parsed where it is JSON."""

    status: int
    headers: Mapping[str, str]
    body: Any


def strictly(text: bytes) -> Any:
    """Return a JSON value; refuse what only Python takes for one, and halves of characters."""

    def refuse(name: str) -> Any:
        raise ValueError(f"{name} is no JSON")

    parsed = json.loads(text.decode(), parse_constant=refuse)
    json.dumps(parsed, ensure_ascii=False).encode()
    return parsed


class Views:
    """One kept connection. Use it in a ``with`` statement."""

    def __init__(
        self, address: Address, limit_s: float = _LIMIT_S, tls: ssl.SSLContext | None = None
    ) -> None:
        host, port = address.host, address.port
        self._connection = (
            http.client.HTTPConnection(host, port, timeout=limit_s)
            if tls is None
            else http.client.HTTPSConnection(host, port, timeout=limit_s, context=tls)
        )

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: Mapping[str, str] | None = None,
        **options: Any,
    ) -> Answer:
        """Send a request below ``/default``. `body` that is neither bytes nor ``None`` is JSON."""
        query = "?" + urlencode(options) if options else ""
        given = dict(headers or {})
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
            given.setdefault("Content-Type", "application/json")
        self._connection.request(method, f"/default{path}{query}", body, given)
        answer = self._connection.getresponse()
        content = answer.read()
        kind = answer.headers.get("Content-Type", "")
        parsed = strictly(content) if "json" in kind and content else content
        return Answer(answer.status, dict(answer.headers.items()), parsed)

    def put(self, name: str, views: Mapping[str, Any], **more: Any) -> Answer:
        """Store a design; `more` are members beside ``views``."""
        return self.ask("PUT", f"/_design/{quote(name)}", {"views": views, **more})

    def query(self, view: str, **options: Any) -> Answer:
        """Ask ``DESIGN/VIEW``. Options are JSON text where the contract says so."""
        design, _, name = view.rpartition("/")
        return self.ask("GET", f"/_design/{quote(design)}/_view/{quote(name)}", **options)

    def rows(self, view: str, **options: Any) -> list[dict[str, Any]]:
        """Return the rows of a query that must succeed, up to date unless `stale` says else."""
        answer = self.query(view, **{"stale": "false", **options})
        assert answer.status == 200, answer
        assert not answer.body.get("errors"), answer
        found: list[dict[str, Any]] = answer.body["rows"]
        return found

    def info(self, name: str) -> dict[str, Any]:
        """Return ``_info`` of a design."""
        answer = self.ask("GET", f"/_design/{quote(name)}/_info")
        assert answer.status == 200, answer
        found: dict[str, Any] = answer.body
        return found

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        self._connection.close()

    def __enter__(self) -> Views:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
