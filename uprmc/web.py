"""A site over HTTP with limits: what a stranger can make it hold or wait for is bounded.

There are a limit for headers, one for the body, a time for a request however
slowly it trickles in, and a limit of connections, above which the oldest idle one goes. What a
client does not read is counted where the site has an account: there it may be closed so that all
stay within a limit. What speaks another protocol gets one line that names the listeners it may have
meant.

A site answers only who calls it by a name that it knows. A web page can let its own name mean
another machine once a browser has loaded it, and would read there what it likes; but the browser
still sends the page's name.
"""

# ruff: noqa: N802, N815  # Twisted's names
# mypy: allow-untyped-calls
from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from ipaddress import ip_address
from typing import Any, Protocol, cast

from twisted.internet.interfaces import IAddress, ITCPTransport
from twisted.internet.protocol import connectionDone
from twisted.python.failure import Failure
from twisted.web import http
from twisted.web.resource import IResource
from twisted.web.server import Request, Site

#: The longest URL, or header, where nothing else is said.
LINE_MAX_BYTES = 16 * 1024

#: What a client goes on sending after a refusal is read, and dropped, for this long.
LINGER_S = 2.0

#: Connections above the limit that are accepted by a site with pages for probes, for these.
SPARE_CLIENTS = 16

#: Of a name that is not known, no more is repeated.
_NAME_MAX_LETTERS = 255

#: A target with the name of a server, and what follows.
_FULL_URL = re.compile(rb"(?i:https?)://([^/?#]*)(.*)", re.DOTALL)

#: First bytes of requests of the binary protocol and of TLS.
_NO_HTTP = b"\x80\x81\x16"
_HEAD = "HTTP/1.1 {}\r\nContent-Type: {}\r\nConnection: close\r\n\r\n"
_BAD_REQUEST = _HEAD.format("400 Bad Request", "text/plain").encode()

#: What a client of plain HTTP reads where HTTPS is spoken.
NOT_HTTPS = _BAD_REQUEST + b"This listener speaks HTTPS: begin the URL with https://\n"


def last_answer(status: str, reason: str, error: str = "too_large") -> bytes:
    """Return an answer that is the last one of a connection."""
    body = json.dumps({"error": error, "reason": reason})
    return f"{_HEAD.format(status, 'application/json')}{body}\n".encode()


class KnownHosts:
    """The names by which clients may call a site.

    Addresses, ``localhost`` and names below it are always among them: no other site has those.

    Args:
        names: others; ``*`` = any.
        setting: that has them, for the message.
    """

    def __init__(self, names: Iterable[str], setting: str) -> None:
        self._names = frozenset(_plain(name) for name in names if name.strip())
        self._setting = setting

    def refusal(self, hosts: Iterable[bytes]) -> str:
        """Return what to tell a client that sent these headers Host, empty = nothing.

        Browsers always send one; a client that sends none is none.
        """
        for host in hosts:
            name = _plain(host.decode("latin-1"))
            if not (self._knows(name) or "*" in self._names):
                shown = name[:_NAME_MAX_LETTERS]
                return (
                    f"this node is not known as {shown!r}: use its address or localhost, or add "
                    f"the name to its setting {self._setting}"
                )
        return ""

    def _knows(self, name: str) -> bool:
        if name in self._names or name == "localhost" or name.endswith(".localhost"):
            return True
        try:
            ip_address(name.partition("%")[0])
        except ValueError:
            return False
        return True


def _plain(host: str) -> str:
    """Return a name as it is compared: without a port, and as DNS sees it."""
    name = host.strip().lower()
    if name.startswith("["):
        name = name[1:].partition("]")[0]
    elif name.count(":") == 1:
        name = name.partition(":")[0]
    return name.removesuffix(".")


class LimitedRequest(Request):
    """A request whose body is bounded and stays in memory."""

    def gotLength(self, length: int | None) -> None:
        most = self._body_max
        super().gotLength(min(length or 0, most))  # keeps the body in memory, not in a file
        if length is not None and length > most:
            self._too_large()

    def handleContentChunk(self, data: bytes) -> None:
        if cast(Any, self.content).tell() + len(data) > self._body_max:
            self._too_large()
        else:
            super().handleContentChunk(data)

    def requestReceived(self, command: bytes, path: bytes, version: bytes) -> None:
        if not cast(LimitedChannel, self.channel).refused:
            super().requestReceived(command, path, version)

    def process(self) -> None:
        """Answer, unless it is not for us or there are too many."""
        channel = cast(LimitedChannel, self.channel)
        site = cast(LimitedSite, channel.site)
        hosts = self.requestHeaders.getRawHeaders(b"host", [])
        full = _FULL_URL.match(self.uri)
        if full:  # what it names goes before the header, RFC 9112, section 3.2.2
            hosts = [full[1]]
            self.uri = b"/" + full[2].removeprefix(b"/")
            self.path = self.uri.partition(b"?")[0]
        if self.path in site.open_paths:
            super().process()
            return
        unknown = site.hosts.refusal(hosts) if site.hosts is not None else ""
        if unknown:
            self._refuse(http.FORBIDDEN, "unknown_host", unknown)
        elif site.clients > site.clients_max:
            self._refuse(
                http.SERVICE_UNAVAILABLE, "too_many_connections", "too many connections; try later"
            )
        else:
            channel.works(True)
            super().process()

    def _refuse(self, code: int, error: str, reason: str) -> None:
        body = json.dumps({"error": error, "reason": reason}).encode() + b"\n"
        self.setResponseCode(code)
        self.setHeader(b"Content-Type", b"application/json")
        self.setHeader(b"Content-Length", b"%d" % len(body))
        self.setHeader(b"Cache-Control", b"no-store")
        self.setHeader(b"Connection", b"close")
        cast(Any, self.channel).persistent = False
        if self.method != b"HEAD":
            self.write(body)
        self.finish()

    @property
    def _body_max(self) -> int:
        return cast(LimitedSite, cast(LimitedChannel, self.channel).site).body_max

    def _too_large(self) -> None:
        reason = f"the body is larger than {self._body_max} bytes"
        cast(LimitedChannel, self.channel).refuse(last_answer("413 Content Too Large", reason))


class Account(Protocol):
    """Counts what connections hold; see `uprmc.server.net.connections`."""

    def note(self, holder: Any, received: int, unsent: int, *, began: bool, took: bool) -> None:
        """Learn what a connection holds now; it may be shed."""

    def forget(self, holder: Any) -> None:
        """The connection is gone."""


class LimitedChannel(http.HTTPChannel):
    """A connection whose time runs per request: trickling bytes in does not prolong it."""

    site: Any
    refused = False
    _first = True
    _blocked = _shed = _dropped = False
    _unsent = 0

    def connectionMade(self) -> None:
        self.works(False)
        super().connectionMade()

    def works(self, it_does: bool) -> None:
        """Take note whether it answers a request; one that does not may be dropped."""
        idle = cast(LimitedSite, self.site).idle
        idle.pop(self, None)
        if not (it_does or self._dropped):
            idle[self] = None

    def requestDone(self, request: Any) -> None:
        self.works(False)
        super().requestDone(request)

    def drop(self) -> None:
        """Close now: others need the room."""
        self._leave()
        self._shed = True
        cast(Any, self.transport).abortConnection()

    def _leave(self) -> None:
        """Count no more."""
        site = cast(LimitedSite, self.site)
        site.idle.pop(self, None)
        if not self._dropped:
            self._dropped = True
            site.clients -= 1

    def write(self, data: bytes) -> None:
        super().write(data)
        self._count(len(data))

    def writeSequence(self, iovec: Any) -> None:
        super().writeSequence(iovec)
        self._count(sum(map(len, iovec)))

    def pauseProducing(self) -> None:
        self._blocked = True
        super().pauseProducing()

    def resumeProducing(self) -> None:
        self._blocked = False
        self._forget()
        super().resumeProducing()

    def shed(self) -> None:
        """Close now: the node holds too much."""
        self._shed = True
        cast(Any, self.transport).abortConnection()

    def _count(self, size: int) -> None:
        """Tell the account what the client does not read; as long as it reads, that is little."""
        account = cast(LimitedSite, self.site).account
        if self._blocked and not self._shed and account is not None:
            self._unsent += size
            account.note(self, 0, self._unsent, began=False, took=False)

    def _forget(self) -> None:
        account = cast(LimitedSite, self.site).account
        if self._unsent and account is not None:
            self._unsent = 0
            account.forget(self)

    def resetTimeout(self) -> None:
        """Ignored: Twisted calls it for every received byte."""

    def dataReceived(self, data: bytes) -> None:
        if self._first and data[0] in _NO_HTTP:
            self.refuse(_BAD_REQUEST + cast(LimitedSite, self.site).hint() + b"\n")
        self._first = False
        if not self.refused:
            super().dataReceived(data)

    def lineLengthExceeded(self, line: bytes) -> None:
        reason = f"the URL, or a header, is longer than {self.MAX_LENGTH} bytes"
        self.refuse(last_answer("414 URI Too Long", reason))

    def refuse(self, answer: bytes) -> None:
        """Answer, hang up and hear no more."""
        if self.refused:
            return
        self.refused = True
        transport = cast(Any, self.transport)
        transport.write(answer)
        if self.isSecure() or not ITCPTransport.providedBy(transport):
            self.loseConnection()
        else:
            # A client that is still sending would lose the answer if what it sends met no reader.
            transport.loseWriteConnection()
            self.setTimeout(LINGER_S)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._leave()
        self._forget()
        if self.isSecure():
            cast(Any, self.transport).unregisterProducer()  # TLS would keep this for ever
        super().connectionLost(reason)
        self._transferDecoder = None  # of a body that never came; it knows this channel


class LimitedSite(Site):
    """A site without an access log.

    Attributes:
        clients: connections that are open.
        clients_max: for one more, the oldest idle one is closed, or itself.
        idle: those that answer nothing, the one that does so for longest first.
        hosts: the names by which it may be called, ``None`` = any.
        open_paths: pages for probes, which tell nothing: they are answered always, to everybody.
        body_max: bytes of the body of a request.
        line_max: bytes of the URL, and of each header; all of them may have twice as many.
        hint: what a client reads that speaks another protocol.
        account: counts what clients have not read, ``None`` = nobody does.
    """

    noisy = False
    displayTracebacks = False
    protocol = LimitedChannel  # type: ignore[assignment]  # Twisted declares a private class

    def __init__(
        self,
        root: IResource,
        reactor: Any,
        *,
        hint: Callable[[], bytes],
        request_s: float,
        clients_max: int,
        body_max: int,
        line_max: int = LINE_MAX_BYTES,
        account: Account | None = None,
        hosts: KnownHosts | None = None,
        open_paths: frozenset[bytes] = frozenset(),
    ) -> None:
        super().__init__(root, LimitedRequest, timeout=cast(Any, request_s), reactor=reactor)
        self.clients = 0
        self.account = account
        self.clients_max, self.body_max, self.hint = clients_max, body_max, hint
        self.line_max = line_max
        self.idle: dict[LimitedChannel, None] = {}
        self.hosts, self.open_paths = hosts, open_paths

    def buildProtocol(self, addr: IAddress | None) -> Any:
        if self.clients >= self.clients_max and self.idle:
            next(iter(self.idle)).drop()
        if self.clients >= self.clients_max + (SPARE_CLIENTS if self.open_paths else 0):
            return None
        self.clients += 1
        channel: Any = super().buildProtocol(addr)
        channel.MAX_LENGTH, channel.totalHeadersSize = self.line_max, 2 * self.line_max
        return channel

    def log(self, request: http.Request) -> None:
        """Say nothing: probes come every few seconds."""
