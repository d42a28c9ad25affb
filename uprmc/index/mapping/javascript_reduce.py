"""A reduce that is a JavaScript function, asked in a child process of its own.

``function (keys, values, rereduce)``: `keys` is ``[[key, id], ...]``, null when reductions are
reduced. A reduction that runs too long or ends the process fails; after some in a row the function
is not asked again for a minute, so that a tree of many nodes is not kept waiting by each.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from uprmc.config import IndexSettings
from uprmc.index.javascript.process import Child, ChildFailed, Config
from uprmc.index.json_text import Unreadable, dumps, loads
from uprmc.index.mapping.javascript import failure, harness_limits
from uprmc.index.mapping.reduces import ReduceError
from uprmc.index.model import Entry
from uprmc.index.rows import id_text, split_row_value

__all__ = ["JavaScriptReduce"]

#: Processes in a row that a function may cost before it is left alone, and for how many seconds.
_MOST_FAILURES = 3
_REST_S = 60.0


class JavaScriptReduce:
    """One reduce function. May be used by several threads; it serves one at a time."""

    def __init__(
        self, source: str, settings: IndexSettings, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._config = Config(
            maps=(),
            reduces=(source,),
            limits=harness_limits(settings),
            memory=settings.worker_memory,
            timeout_s=settings.map_timeout_s,
        )
        self._clock = clock
        self._lock = threading.Lock()
        self._child: Child | None = None
        self._failures = 0
        self._rests_until = 0.0
        self._closed = False

    def reduce(self, entries: Sequence[Entry]) -> bytes:
        """Return what the function makes of rows."""
        rows = [split_row_value(entry.value) for entry in entries]
        keys = b",".join([b"[%s,%s]" % (key, dumps(id_text(doc))) for doc, key, _ in rows])
        values = b",".join([value for _, _, value in rows])
        return self._ask(b"r[0,[%s],[%s],false]" % (keys, values))

    def rereduce(self, reductions: Sequence[bytes]) -> bytes:
        """Return what the function makes of reductions."""
        return self._ask(b"r[0,null,[%s],true]" % b",".join(reductions))

    def finish(self, reduction: bytes) -> bytes:
        """Return the reduction: it is shown as it is stored."""
        return reduction

    def close(self) -> None:
        """End the process; later calls fail."""
        with self._lock:
            self._closed = True
            self._end()

    def _ask(self, request: bytes) -> bytes:
        with self._lock:
            if self._closed:
                raise ReduceError("the index is closed")
            if self._clock() < self._rests_until:
                raise ReduceError("it was stopped too often and rests for a minute")
            try:
                return self._answer(request)
            except ChildFailed as error:
                self._failed()
                raise ReduceError(f"it ended its process: {error}") from None

    def _answer(self, request: bytes) -> bytes:
        if self._child is None:
            self._child = Child.start(self._config)
        self._child.send(request)
        answer = self._child.receive()
        kind, text = answer[:1], answer[1:]
        if kind in (b"t", b"o"):
            self._failed()
            raise ReduceError(self._stopped(kind))
        if kind != b"=" or text[:1] not in (b"=", b"!"):
            raise ChildFailed(failure(kind, text))
        self._failures = 0
        if text[:1] == b"!":
            raise ReduceError(text[1:].decode())
        return _checked(text[1:])

    def _stopped(self, kind: bytes) -> str:
        if kind == b"t":
            return f"it ran for more than {self._config.timeout_s:g} s"
        return f"it needs more than {self._config.memory} bytes of memory"

    def _failed(self) -> None:
        self._end()
        self._failures += 1
        if self._failures >= _MOST_FAILURES:
            self._failures = 0
            self._rests_until = self._clock() + _REST_S

    def _end(self) -> None:
        if self._child is not None:
            self._child.end()
            self._child = None


def _checked(text: bytes) -> bytes:
    """Return a reduction in our own spelling of JSON; it came from a process that may lie."""
    try:
        return dumps(loads(text))
    except Unreadable as error:
        raise ReduceError(f"it returned what cannot be read: {error}") from None
    except ValueError:
        raise ChildFailed("the process wrote nonsense") from None
