"""A request as it came, taken apart: path, options, body; wrong ones get one sentence."""

# ruff: noqa: N802  # Twisted's names
# mypy: allow-untyped-calls

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterator
from typing import Any, NamedTuple, Protocol, cast
from urllib.parse import parse_qsl, unquote_to_bytes

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IPushProducer
from twisted.internet.threads import deferToThreadPool
from twisted.python.failure import Failure
from twisted.web.server import Request
from zope.interface import implementer  # type: ignore[import-untyped]

from uprmc.index.design import NAME_RULE, is_name
from uprmc.index.errors import QueryRefused, bad_request
from uprmc.index.json_text import strict_json
from uprmc.index.query_options import Query
from uprmc.metrics import Metric

# --- what answers hold ----------------------------------------------------------------------------
# One account of the memory that requests and answers hold, of all clients together.
#
# Each client has limits of its own, and there may be many of them. Who asks for more than is left
# is refused; what a client does not read cannot be refused any more, so it is cut off.
# Sizes of what Python makes of a text are estimates.


#: What a text costs when it is read: for each of its bytes, and for each value in it.
_BYTE_COST, _VALUE_COST = 4, 200


class Reader(Protocol):
    """What the account needs of a connection."""

    def shed(self) -> None:
        """Close now, and let go of everything."""


class AnswerAccount:
    """See the module docstring. Any thread may use it, but for `note` and `forget`."""

    def __init__(self, limit: int) -> None:
        self.limit = limit  # bytes
        self.held = 0  # bytes
        self.refused = 0  # how often something was
        self._lock = threading.Lock()
        self._unread: dict[Reader, Holding] = {}

    def take(self, size: int) -> bool:
        """Hold more, or less; ``False`` = that would be too much, and nothing has changed."""
        with self._lock:
            if size > 0 and self.held + size > self.limit:
                self.refused += 1
                return False
            self.held += size
            return True

    def busy(self) -> QueryRefused:
        """Return the refusal of a request for which nothing is left."""
        reason = (
            f"requests and answers hold {self.held} of {self.limit} bytes (index.request_memory); "
            "ask again later"
        )
        return QueryRefused(503, "busy", reason)

    # --- what clients do not read, see `uprmc.web.Account` --------------------------------------

    def note(self, holder: Reader, received: int, unsent: int, *, began: bool, took: bool) -> None:
        """A client has left this much unread; if that is too much, who left most is cut off."""
        holding = self._unread.setdefault(holder, Holding(self))
        while not holding.set(unsent):
            most = max(self._unread, key=lambda each: self._unread[each].size)
            if self._unread[most].size < unsent:
                most = holder
            self.forget(most)
            most.shed()
            if most is holder:
                return

    def forget(self, holder: Reader) -> None:
        """A client has read everything, or is gone."""
        holding = self._unread.pop(holder, None)
        if holding is not None:
            holding.release()

    def metrics(self) -> Iterator[Metric]:
        """Yield what it counts."""
        yield Metric(
            "index_request_memory_bytes",
            "gauge",
            "Memory that requests and answers hold; index.request_memory is the limit.",
            [({}, self.held)],
        )
        yield Metric(
            "index_request_memory_refused_total",
            "counter",
            "How often a request, a document of an answer, or a client that did not read was "
            "refused for lack of memory.",
            [({}, self.refused)],
        )


class Holding:
    """What one request, or one answer, holds; one thread at a time uses it."""

    def __init__(self, account: AnswerAccount) -> None:
        self._account, self.size = account, 0  # in bytes

    def set(self, size: int) -> bool:
        """Hold this much; ``False`` = that is too much, and nothing has changed."""
        taken = self._account.take(size - self.size)
        if taken:
            self.size = size
        return taken

    def grow(self, size: int) -> bool:
        """Hold more; returns the same."""
        return self.set(self.size + size)

    def need(self, size: int) -> None:
        """Hold more; raise `QueryRefused` where that is too much."""
        if not self.grow(size):
            raise self._account.busy()

    def release(self) -> None:
        """Hold nothing; twice is no error."""
        self.set(0)


def cost_of(texts: list[bytes]) -> int:
    """Return about what Python makes of JSON texts."""
    size, values = sum(map(len, texts)), sum(text.count(b",") for text in texts)
    return _BYTE_COST * size + _VALUE_COST * values


# --- requests and answers -------------------------------------------------------------------------


#: Body of a command, such as vBuckets and their states.
COMMAND_MAX_BYTES = 64 * 1024

#: Options of one URL.
_OPTIONS_MAX = 64


class HttpRequest(NamedTuple):
    """What a request asks for."""

    method: str  # ``GET``,
    path: tuple[str, ...]  # its parts, decoded
    # of the URL, in their order; bytes that are not UTF-8 as surrogates.
    options: tuple[tuple[str, str], ...]
    body: bytes  # as it came


def http_request(request: Request) -> HttpRequest:
    """Take a request apart; raise `QueryRefused`."""
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
    """Return the name of a design or a view; raise `QueryRefused` for what none can have."""
    if not is_name(name):
        raise bad_request(f"no {kind} has such a name: {name[:60]!a}; names are {NAME_RULE}")
    return name


def json_body(body: bytes) -> Any:
    """Return the JSON value of a body; raise `QueryRefused`."""
    try:
        return strict_json(body)
    except ValueError as error:
        raise bad_request(f"the body {error}") from None


def json_object(body: bytes, *known: str) -> dict[str, Any]:
    """Return the members of a body; raise `QueryRefused` if one is unknown."""
    if len(body) > COMMAND_MAX_BYTES:
        reason = f"the body of a command has {COMMAND_MAX_BYTES} bytes at most"
        raise QueryRefused(413, "too_large", reason)
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
    """Return the options of a URL; raise `QueryRefused` if one is unknown or there twice."""
    found: dict[str, str] = {}
    for name, text in options:
        if name not in known:
            raise bad_request(f"there is no option {name[:60]!a} here")
        if name in found:
            raise bad_request(f"{name} is given twice")
        found[name] = text
    return found


def number(name: str, value: Any, most: int = 2**64 - 1) -> int:
    """Return a whole number that a body names, as such or as text; raise `QueryRefused`."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 20:
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most:
        return value
    raise bad_request(f"{name} is a whole number from 0 to {most}")


def vbuckets(name: str, value: Any) -> frozenset[int]:
    """Return the vBuckets that a body lists; raise `QueryRefused`."""
    if not isinstance(value, list):
        raise bad_request(f"{name} is an array of vBuckets")
    return frozenset(number(name, each, 65_535) for each in value)


# --- answering ------------------------------------------------------------------------------------
# Long answers to slow readers: an answer is made in pieces, each when the one before is gone.
#
# An answer is an iterator of pieces. Making a piece may block, so it is made by a few threads that
# all answers share, and only when the connection has room for it: a reader that does not read costs
# its iterator and one piece, no thread. A reader that takes nothing for too long is disconnected,
# and an answer without a reader is closed, with what it holds.


#: A connection with this much unsent output gets no more for now.
UNSENT_MAX_BYTES = 32 * 1024


class Pieces(Protocol):
    """An answer as it is made."""

    def make(self) -> Deferred[bytes | None]:
        """Make the next piece; ``None`` after the last one. Called again only when it is made."""

    def close(self) -> Deferred[None]:
        """Make no more; fires when nothing is read any more. A piece may be under way."""


class ThreadPieces:
    """Pieces that a generator makes, which blocks: by threads of a pool."""

    def __init__(self, generator: Generator[bytes, None, None], reactor: Any, pool: Any) -> None:
        self._generator, self._reactor, self._pool = generator, reactor, pool
        self._busy = False
        self._closing: Deferred[None] | None = None

    def make(self) -> Deferred[bytes | None]:
        """Make the next piece."""
        self._busy = True
        making: Deferred[bytes | None] = deferToThreadPool(
            self._reactor, self._pool, next, self._generator, None
        )
        return making.addBoth(self._made)

    def _made(self, result: Any) -> Any:
        self._busy = False
        if self._closing is not None:
            self._generator.close()
            self._closing.callback(None)
        return result

    def close(self) -> Deferred[None]:
        """Close the generator, when it does not run any more."""
        if self._busy:
            self._closing = Deferred()
            return self._closing
        self._generator.close()
        return succeed(None)


@implementer(IPushProducer)
class HttpAnswer:
    """Sends one answer.

    Args:
        request: to which nothing has been written.
        pieces: of the body.
        reactor: whose thread calls everything here.
        stall_s: a reader that makes no room for this long is disconnected.
        ended: called once, when nothing reads `pieces` any more: with whether all of them were
            sent, and the failure that ended it, if any.
    """

    def __init__(
        self,
        request: Request,
        pieces: Pieces,
        *,
        reactor: Any,
        stall_s: float,
        ended: Callable[[bool, Failure | None], None],
    ) -> None:
        self._request, self._pieces, self._reactor = request, pieces, reactor
        self._stall_s, self._ended = stall_s, ended
        self._paused = self._making = self._over = self._sent = False
        self._failure: Failure | None = None
        self._stalled: Any = None
        self._begun: Deferred[None] | None = Deferred(lambda _: self.stopProducing())

    def start(self) -> Deferred[None]:
        """Make the first piece.

        Returns:
            fires when it was written, and the others follow as there is room for them; fails with
            what went wrong before anything was written.
        """
        begun = self._begun
        assert begun is not None
        if cast(Any, self._request)._disconnected:
            begun.cancel()
            return begun
        self._request.notifyFinish().addErrback(lambda _: self.stopProducing())
        self._make()
        return begun

    def pauseProducing(self) -> None:
        """Wait: the connection is full."""
        self._paused = True
        if self._stalled is None and not self._over:
            self._stalled = self._reactor.callLater(self._stall_s, self._stall)

    def resumeProducing(self) -> None:
        """Go on: the connection is empty."""
        self._paused = False
        self._cancel_stall()
        self._make()

    def stopProducing(self) -> None:
        """Close the answer: its reader is gone."""
        if not self._over:
            self._end()

    def _make(self) -> None:
        if self._paused or self._making or self._over:
            return
        self._making = True
        self._pieces.make().addCallbacks(self._made, self._failed)

    def _made(self, piece: bytes | None) -> None:
        self._making = False
        if self._over:
            return
        if piece is None:
            self._finish()
        else:
            self._write(piece)
            self._make()

    def _write(self, piece: bytes) -> None:
        begun, self._begun = self._begun, None
        if begun is not None:
            self._request.registerProducer(cast(Any, self), True)
        self._request.write(piece)
        if begun is not None:
            begun.callback(None)
        if self._request.method == b"HEAD" and not self._over:
            self._finish()  # there is a status, and nothing more is read

    def _failed(self, failure: Failure) -> None:
        """Cut the connection: a part of an answer must not look like the whole."""
        self._making = False
        if self._over:
            return
        self._failure = failure
        begun, self._begun = self._begun, None
        if begun is not None:
            self._end()
            begun.errback(failure)
        else:
            self._end()
            cast(Any, self._request).channel.forceAbortClient()

    def _finish(self) -> None:
        self._sent = True
        self._end()
        self._request.unregisterProducer()
        self._request.finish()

    def _stall(self) -> None:
        self._stalled = None
        cast(Any, self._request).channel.forceAbortClient()
        self.stopProducing()

    def _end(self) -> None:
        self._over = True
        self._cancel_stall()
        self._pieces.close().addCallback(lambda _: self._ended(self._sent, self._failure))

    def _cancel_stall(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None


# --- query times ----------------------------------------------------------------------------------
# How long queries took, by what they asked for.


#: Upper ends of the classes, in seconds.
CLASSES_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)

_HELP = "Queries by what they ask for and by how many seconds it took to send the answer."


def kind_of(query: Query) -> tuple[str, str]:
    """Return what makes queries comparable: rows or reductions, and how fresh."""
    rows = "rows" if not query.reduce else "groups" if query.group_level != 0 else "reduction"
    if query.keys is not None:
        rows = "keys"
    fresh = "at" if query.at else query.stale.value
    return rows, fresh


class QueryTimes:
    """Histograms of answers that were sent in full, and counts of those that were not."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], list[int]] = {}
        self._sums: dict[tuple[str, str], float] = {}
        self._refused: dict[str, int] = {}
        self.unread = 0
        self.failed = 0

    def add(self, kind: tuple[str, str], seconds: float) -> None:
        """Count an answer."""
        counts = self._counts.setdefault(kind, [0] * (len(CLASSES_S) + 1))
        counts[bisect_left(CLASSES_S, seconds)] += 1
        self._sums[kind] = self._sums.get(kind, 0.0) + max(seconds, 0.0)

    def refuse(self, error: str) -> None:
        """Count a request that was refused, by the word for programs."""
        self._refused[error] = self._refused.get(error, 0) + 1

    def metrics(self) -> Iterator[Metric]:
        """Yield all of it."""
        yield Metric("index_query_seconds", "histogram", _HELP, [*self._samples()])
        yield Metric(
            "index_requests_refused_total",
            "counter",
            "Requests that were answered with an error, by the error's word.",
            [({"error": error}, count) for error, count in sorted(self._refused.items())],
        )
        yield Metric(
            "index_answers_unread_total",
            "counter",
            "Answers whose reader went away, or read nothing for too long.",
            [({}, self.unread)],
        )
        yield Metric(
            "index_answers_failed_total",
            "counter",
            "Answers that were cut off because of an error.",
            [({}, self.failed)],
        )

    def _samples(self) -> Iterator[tuple[dict[str, str], float]]:
        for kind, counts in sorted(self._counts.items()):
            labels = {"rows": kind[0], "stale": kind[1]}
            below = 0
            for end, count in zip((*map(str, CLASSES_S), "+Inf"), counts, strict=True):
                below += count
                yield {**labels, "le": end}, below
            yield {**labels, "le": "sum"}, self._sums[kind]
