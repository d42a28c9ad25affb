"""One account of the memory that requests and answers hold, of all clients together.

Each client has limits of its own, and there may be many of them. Who asks for more than is left is
refused, and told so; what a client does not read cannot be refused any more, so it is cut off.
Sizes of what Python makes of a text are estimates.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Protocol

from uprmc.index.errors import QueryRefused
from uprmc.metrics import Metric

#: What a text costs when it is read: for each of its bytes, and for each value in it.
_BYTE_COST, _VALUE_COST = 4, 200


class Reader(Protocol):
    """What the account needs of a connection."""

    def shed(self) -> None:
        """Close now, and let go of everything."""


class AnswerAccount:
    """See the module docstring. Any thread may use it, but for `note` and `forget`.

    Attributes:
        limit: bytes.
        held: bytes that are held.
        refused: how often something was.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = self.refused = 0
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
    """What one request, or one answer, holds; one thread at a time uses it.

    Attributes:
        size: in bytes.
    """

    def __init__(self, account: AnswerAccount) -> None:
        self._account, self.size = account, 0

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
