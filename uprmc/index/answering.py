"""Long answers to slow readers: an answer is made in pieces, each when the one before is gone.

An answer is an iterator of pieces. Making a piece may block, so it is made by a few threads that
all answers share, and only when the connection has room for it: a reader that does not read costs
its iterator and one piece, no thread. A reader that takes nothing for too long is disconnected,
and an answer without a reader is closed, with what it holds.
"""

# ruff: noqa: N802  # Twisted's names
# mypy: allow-untyped-calls
from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Protocol, cast

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IPushProducer
from twisted.internet.threads import deferToThreadPool
from twisted.python.failure import Failure
from twisted.web.server import Request
from zope.interface import implementer  # type: ignore[import-untyped]

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
class Answer:
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
