"""Changes as lines of JSON to an HTTP receiver, by POST. At least once.

A request has up to `batch_items` lines, see `records`, and is repeated until it is answered with
2xx. Its ``Idempotency-Key`` is made of its content: what is repeated has the same. After a restart
lines may come again in other requests; each line's `id` tells.

| answer | what is done |
|---|---|
| 2xx | the next request |
| 408, 425, 429, 5xx, none, or late | another attempt, later each time, for `patience_s` |
| 413 | the halves of the request |
| 3xx | an error: redirects are not followed |
| another 4xx | an error; or, if refusals are skipped, the halves, and one line alone is left out |
"""

from __future__ import annotations

import base64
import http.client
import logging
import random
import socket
import ssl
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import Literal, NamedTuple
from urllib.parse import unquote, urlsplit

from uprmc.client.handler import Document
from uprmc.remote.batch import Batch
from uprmc.remote.retry import Backoff, RetryPolicy
from uprmc.sinks.sink import (
    PATIENCE_S,
    Sink,
    SinkError,
    SinkRefused,
    change_line,
    rollback_line,
    undo_line,
)

#: What to do about a line that is refused.
Refused = Literal["stop", "skip"]

#: At most this much of an answer is read; a connection with more is given up.
_ANSWER_MAX_BYTES = 64 * 1024

#: A receiver may ask for a longer wait than ours, up to this.
_RETRY_AFTER_MAX_S = 60.0

_WAIT_MIN_S, _WAIT_MAX_S = 0.1, 5.0
_LATER = {408, 425, 429}
_TOO_LARGE = 413
_SHOWN = 200

_LOG = logging.getLogger("uprmc.client")


class _Answer(NamedTuple):
    status: int
    words: str
    retry_after_s: float


class HttpPost(Sink):
    """Posts lines to a URL, see the module docstring.

    Args:
        url: http or https; a user and password in it are sent as basic authentication.
        headers: more headers, such as ``Authorization``.
        tls: how to trust an https receiver, ``None`` = as the system does.
        batch_items, batch_bytes: the largest request.
        timeout_s: a request that takes longer is repeated.
        patience_s: how long a request is repeated before it is an error.
        refused: what to do about a line that the receiver refuses with 4xx: ``stop`` or ``skip``.

    Raises:
        SinkRefused: the URL or a header makes no sense.
    """

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
        batch_items: int = 500,
        batch_bytes: int = 1024 * 1024,
        timeout_s: float = 30.0,
        patience_s: float = PATIENCE_S,
        refused: Refused = "stop",
    ) -> None:
        super().__init__()
        self.skipped = 0  # how many lines were left out
        self._place, self._target, login = _parsed(url)
        self._headers = {"Content-Type": "application/x-ndjson", **login, **(headers or {})}
        _try(self._target, self._headers)
        secure = url.lower().startswith("https:")
        self._tls = tls or (ssl.create_default_context() if secure else None)
        self._secure = secure
        self._batch_items, self._batch_bytes = batch_items, batch_bytes
        self._timeout_s, self._patience_s = timeout_s, patience_s
        self._refused = refused
        self._pending: list[bytes] = []
        self._connection: http.client.HTTPConnection | None = None
        self._url = f"{'https' if secure else 'http'}://{self._place}{self._target}"

    # --- what comes -----------------------------------------------------------------------------

    def changes(self, batch: Batch) -> None:
        self._pending += map(change_line, batch)
        self.durable()

    def rollback(self, vbucket: int, seqno: int) -> None:
        self._pending.append(rollback_line(vbucket, seqno))

    def undo(self, vbucket: int, key: bytes, document: Document | None) -> None:
        self._pending.append(undo_line(vbucket, key, document))
        if len(self._pending) >= self._batch_items:
            self.durable()

    def durable(self) -> None:
        """Return when the receiver has everything.

        Raises:
            SinkError: it refuses, or was not to be had for too long.
            SinkStopped: the sink was stopped meanwhile.
        """
        pending, self._pending = self._pending, []
        first, size = 0, 0
        for number, line in enumerate(pending):
            full = size + len(line) > self._batch_bytes or number - first >= self._batch_items
            if full and number > first:
                self._deliver(pending[first:number])
                first, size = number, 0
            size += len(line)
        if pending[first:]:
            self._deliver(pending[first:])

    def stop(self) -> None:
        super().stop()
        connection = self._connection
        if connection is not None:
            _hang_up(connection)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # --- one request ----------------------------------------------------------------------------

    def _deliver(self, lines: Sequence[bytes]) -> None:
        body = b"".join(lines)
        backoff = Backoff(_WAIT_MIN_S, _WAIT_MAX_S)
        policy = RetryPolicy(backoff, time.monotonic(), patience_s=self._patience_s)
        while True:
            least_s = 0.0
            try:
                answer = self._post(body)
            except (OSError, http.client.HTTPException) as error:
                self.close()
                words = getattr(error, "strerror", None) or str(error) or type(error).__name__
                why = f"does not answer ({words})"
            else:
                if 200 <= answer.status < 300:
                    return
                why, least_s = f"answers {answer.words}", answer.retry_after_s
                if answer.status < 500 and answer.status not in _LATER:
                    self._turned_down(lines, answer)
                    return
            wait_s = policy.wait_s(time.monotonic(), random.random())
            if wait_s is None:
                raise SinkError(
                    f"{self._url} {why}; given up after {self._patience_s:g} s: nothing is lost, "
                    "start again when it works"
                )
            if backoff.attempts == 1:
                _LOG.warning("%s %s; trying again", self._url, why)
            self.wait(max(wait_s, least_s))

    def _turned_down(self, lines: Sequence[bytes], answer: _Answer) -> None:
        """Divide what is too large, or has something in it that is refused."""
        skips = self._refused == "skip" and answer.status >= 400
        if len(lines) > 1 and (skips or answer.status == _TOO_LARGE):
            middle = len(lines) // 2
            self._deliver(lines[:middle])
            self._deliver(lines[middle:])
        elif skips:
            self.skipped += 1
            _LOG.warning("%s answers %s; skipped %s", self._url, answer.words, _shown(lines[0]))
        else:
            raise SinkError(
                f"{self._url} answers {answer.words}: mend the receiver, or the URL; nothing of "
                f"the request that begins with {_shown(lines[0])} counts as delivered"
            )

    def _post(self, body: bytes) -> _Answer:
        if self._connection is None:
            self._connection = self._dialled()
        connection = self._connection
        key = sha256(body).hexdigest()[:32]
        late = threading.Timer(self._timeout_s, _hang_up, [connection])
        late.daemon = True
        late.start()
        try:
            headers = {**self._headers, "Idempotency-Key": key}
            connection.request("POST", self._target, body, headers)
            answer = connection.getresponse()
            text = answer.read(_ANSWER_MAX_BYTES)
            if not answer.isclosed():
                self.close()
        finally:
            late.cancel()
        words = f"{answer.status} {answer.reason}".strip()
        if answer.status >= 300 and text.strip():
            words += f" ({_shown(text)})"
        if 300 <= answer.status < 400:
            words += f", to {answer.getheader('Location', 'nowhere')}; redirects are not followed"
        return _Answer(answer.status, words, _retry_after(answer.getheader("Retry-After")))

    def _dialled(self) -> http.client.HTTPConnection:
        if self._secure:
            return http.client.HTTPSConnection(
                self._place, timeout=self._timeout_s, context=self._tls
            )
        return http.client.HTTPConnection(self._place, timeout=self._timeout_s)


def _hang_up(connection: http.client.HTTPConnection) -> None:
    """End a request that another thread waits for."""
    sock: socket.socket | None = connection.sock
    if sock is not None:
        with suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)


def _parsed(url: str) -> tuple[str, str, dict[str, str]]:
    """Return HOST:PORT, the path, and the header of a login."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise SinkRefused(f"{url!r} is no URL: {error}") from None
    if parts.scheme.lower() not in ("http", "https") or not host:
        raise SinkRefused(f"{url!r} is no URL: say http://HOST:PORT/PATH, or https")
    place = f"[{host}]" if ":" in host else host
    place += f":{port}" if port else ""
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if parts.username is None:
        return place, target, {}
    login = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
    return place, target, {"Authorization": f"Basic {base64.b64encode(login).decode()}"}


def _try(target: str, headers: Mapping[str, str]) -> None:
    """Refuse what cannot stand in a request; nothing is sent."""
    trial = http.client.HTTPConnection("localhost")
    try:
        trial.putrequest("POST", target)
    except (ValueError, http.client.HTTPException) as error:
        raise SinkRefused(f"{target!r} cannot be asked for: {error}") from None
    for name, value in headers.items():
        try:
            trial.putheader(name, value)
        except ValueError:
            raise SinkRefused(
                f"{name!r} is no header: its name has letters, digits and hyphens, "
                "its value is one line of Latin-1"
            ) from None


def _retry_after(text: str | None) -> float:
    if text is None or not (text.isascii() and text.isdecimal()):
        return 0.0
    return min(float(text), _RETRY_AFTER_MAX_S)


def _shown(data: bytes) -> str:
    text = " ".join(data[: _SHOWN * 4].decode(errors="replace").split())
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
