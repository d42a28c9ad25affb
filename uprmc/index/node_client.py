"""Requests to other views listeners, and their answers line by line.

An answer is read only as fast as its lines are taken: beyond `BUFFER_BYTES` the connection is
paused. A node that is silent for too long, or goes away, fails with one sentence.
"""

# ruff: noqa: N802, N815  # Twisted's names
# mypy: allow-untyped-calls
from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from typing import Any, cast

from twisted.internet.abstract import isIPAddress
from twisted.internet.defer import CancelledError, Deferred, TimeoutError, succeed
from twisted.internet.endpoints import HostnameEndpoint, TCP4ClientEndpoint, wrapClientTLS
from twisted.internet.protocol import Protocol, connectionDone
from twisted.internet.ssl import optionsForClientTLS
from twisted.python.failure import Failure
from twisted.web.client import URI, Agent, HTTPConnectionPool, ResponseDone
from twisted.web.http_headers import Headers
from twisted.web.iweb import IAgent, IAgentEndpointFactory, IBodyProducer, IResponse
from zope.interface import implementer  # type: ignore[import-untyped]

from uprmc.index.errors import QueryRefused
from uprmc.index.http_request import Holding
from uprmc.index.json_text import strict_json
from uprmc.login.credentials import Credentials, basic_auth
from uprmc.places import parsed

CONNECT_S = 5.0

#: Connections to one node that are kept for the next request.
_KEPT = 16

#: Lines that wait to be taken; more are not read.
BUFFER_BYTES = 64 * 1024

#: Longest line: a row with its document.
LINE_MAX_BYTES = 192 * 1024 * 1024

#: Largest answer that is read at once.
BODY_MAX_BYTES = 16 * 1024 * 1024


class NodeFailed(Exception):
    """A node did not answer, or not to the end; the text says why in one sentence."""


class Lines(Protocol):
    """The body of an answer, as lines."""

    def __init__(self) -> None:
        #: Of what it holds beyond `BUFFER_BYTES`; ``None`` = it is not counted.
        self.memory: Holding | None = None
        self._lines: deque[bytes] = deque()
        self._part: list[bytes] = []
        self._part_bytes = self._bytes = 0
        self._waiting: Deferred[None] | None = None
        self._over: str | None = None
        self._paused = False

    def dataReceived(self, data: bytes) -> None:
        first, *more = data.split(b"\n")
        self._part.append(first)
        self._part_bytes += len(first)
        for part in more:
            self._add(b"".join(self._part))
            self._part, self._part_bytes = [part], len(part)
        if self._part_bytes > LINE_MAX_BYTES:
            self._end("its answer has a line that is too long")
            self.close()
        elif not self._has_room():
            self._end("answers hold too much memory here (index.request_memory)")
            self.close()
        elif self._bytes > BUFFER_BYTES and not self._paused:
            self._paused = True
            cast(Any, self.transport).pauseProducing()
        if self._lines:
            self._wake()

    def _has_room(self) -> bool:
        beyond = max(0, self._bytes + self._part_bytes - BUFFER_BYTES)
        return self.memory is None or self._over is not None or self.memory.set(2 * beyond)

    def _add(self, line: bytes) -> None:
        self._lines.append(line)
        self._bytes += len(line)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        if self._part_bytes:
            self._add(b"".join(self._part))
        self._end("" if reason.check(ResponseDone) else "its answer broke off")
        if self.memory is not None and not self._lines:
            self.memory.release()

    def _end(self, why: str) -> None:
        if self._over is None:
            self._over = why
        self._wake()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.callback(None)

    def close(self) -> None:
        """Read no more."""
        self._end("closed")
        if self.memory is not None:
            self.memory.release()
        transport = cast(Any, self.transport)
        if transport is not None:
            transport.stopProducing()

    async def line(self, reactor: Any, timeout_s: float) -> bytes | None:
        """Return the next line, ``None`` at the end of the answer.

        Raises:
            NodeFailed: there will be none.
        """
        while not self._lines:
            if self._over is not None:
                if self._over:
                    raise NodeFailed(self._over)
                return None
            self._waiting = Deferred()
            try:
                await self._waiting.addTimeout(timeout_s, reactor)
            except TimeoutError:
                raise NodeFailed(f"it sent nothing for {timeout_s:g} s") from None
        line = self._lines.popleft()
        self._bytes -= len(line)
        if self._over is None:
            self._has_room()
        elif self.memory is not None:
            self.memory.release()
        if self._paused and self._bytes <= BUFFER_BYTES // 2:
            self._paused = False
            if self._over is None:
                cast(Any, self.transport).resumeProducing()
        return line


class NodeAnswer:
    """The beginning of an answer: its status; the rest comes by `lines`."""

    def __init__(self, status: int, lines: Lines) -> None:
        self.status, self.lines = status, lines


@implementer(IBodyProducer)
class _Body:
    """The body of a request."""

    def __init__(self, body: bytes) -> None:
        self._body, self.length = body, len(body)

    def startProducing(self, consumer: Any) -> Deferred[None]:
        consumer.write(self._body)
        return succeed(None)

    def pauseProducing(self) -> None:
        """Nothing is left to be paused."""

    resumeProducing = stopProducing = pauseProducing


@implementer(IAgentEndpointFactory)
class _Endpoints:
    """Where nodes are; an address needs no resolver."""

    def __init__(self, reactor: Any, trust: Any) -> None:
        self._reactor, self._trust = reactor, trust

    def endpointForURI(self, uri: URI) -> Any:
        host = uri.host.decode("ascii")
        kind = TCP4ClientEndpoint if isIPAddress(host) else HostnameEndpoint
        endpoint = kind(self._reactor, host, uri.port, CONNECT_S)
        if self._trust is None:
            return endpoint
        return wrapClientTLS(optionsForClientTLS(host, self._trust), cast(Any, endpoint))


class NodeClient:
    """Speaks to other nodes; keeps connections for the next request.

    Args:
        trust: whose certificates are trusted, ``None`` = it is HTTP.
        credentials: who logs in. Without TLS no password is sent to another machine.
    """

    def __init__(
        self,
        reactor: Any,
        agent: IAgent | None = None,
        *,
        trust: Any = None,
        credentials: Credentials | None = None,
    ) -> None:
        self._reactor = reactor
        self._scheme = "http" if trust is None else "https"
        self._credentials = credentials
        self._pool = HTTPConnectionPool(reactor)
        self._pool.maxPersistentPerHost = _KEPT
        self._pool.retryAutomatically = False
        self._agent: Any = agent or Agent.usingEndpointFactory(
            reactor, _Endpoints(reactor, trust), self._pool
        )

    def close(self) -> Deferred[None]:
        """Hang up on all."""
        return cast("Deferred[None]", self._pool.closeCachedConnections())

    async def ask(
        self, node: str, method: str, path: str, body: bytes | None, timeout_s: float
    ) -> NodeAnswer:
        """Send a request and return the beginning of the answer.

        Raises:
            NodeFailed: there is none.
        """
        headers = Headers({b"Content-Type": [b"application/json"]} if body is not None else {})
        # Another node need not know the name by which this one knows it; only browsers are deceived
        # by names.
        headers.addRawHeader("Host", "localhost")
        if self._credentials is not None and (self._scheme == "https" or parsed(node).is_local):
            headers.addRawHeader("Authorization", basic_auth(self._credentials))
        asking: Deferred[IResponse] = self._agent.request(
            method.encode(),
            f"{self._scheme}://{node}{path}".encode(),
            headers,
            None if body is None else _Body(body),
        )
        timer = self._reactor.callLater(timeout_s, asking.cancel)
        try:
            response: Any = await asking
        except Exception as error:  # whatever connecting and Twisted's parser raise
            if not _cancelled(error):
                raise NodeFailed(f"it cannot be reached: {_reason(error)}") from None
            if timer.active():
                raise CancelledError from None
            raise NodeFailed(f"it did not answer within {timeout_s:g} s") from None
        finally:
            if timer.active():
                timer.cancel()
        lines = Lines()
        response.deliverBody(lines)
        return NodeAnswer(response.code, lines)

    async def fetch(
        self, node: str, method: str, path: str, body: bytes | None, timeout_s: float
    ) -> bytes:
        """Send a request and return the answer in one piece.

        Raises:
            NodeFailed: there is none.
            Refused: the node refuses it.
        """
        answer = await self.ask(node, method, path, body, timeout_s)
        content = await self.content(answer, timeout_s)
        if answer.status >= 400:
            raise refusal(answer.status, content)
        return content

    async def content(self, answer: NodeAnswer, timeout_s: float) -> bytes:
        """Return the body of an answer; raise `NodeFailed`."""
        found, size = [], 0
        while (line := await answer.lines.line(self._reactor, timeout_s)) is not None:
            found.append(line)
            size += len(line)
            if size > BODY_MAX_BYTES:
                answer.lines.close()
                raise NodeFailed("its answer is too large")
        return b"\n".join(found)


def refusal(status: int, content: bytes) -> QueryRefused:
    """Return what a node refused with, as our own refusal."""
    try:
        said: Mapping[str, Any] = dict(strict_json(content))
        error, reason = str(said["error"]), str(said["reason"])
    except (ValueError, TypeError, KeyError):
        return QueryRefused(
            502, "bad_answer", f"a node answered with status {status} and no reason"
        )
    fields = {name: each for name, each in said.items() if name not in ("error", "reason")}
    refused = QueryRefused(status, error, reason)
    refused.fields = fields
    return refused


def dumped(value: Any) -> bytes:
    """Return the body of a request."""
    return json.dumps(value, separators=(",", ":")).encode()


def _cancelled(error: BaseException) -> bool:
    """Return whether a request was given up; Twisted may wrap what says so."""
    causes = [cause.value for cause in getattr(error, "reasons", ())]
    return isinstance(error, CancelledError) or any(map(_cancelled, causes))


def _reason(error: BaseException) -> str:
    cause: Any = getattr(error, "reasons", None)
    if cause:
        return _reason(cause[0].value)
    return " ".join(str(error).split())[:200] or type(error).__name__
