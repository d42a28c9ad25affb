"""Reduces that are JavaScript functions: those of one design share a child process.

``function (keys, values, rereduce)``: `keys` is ``[[key, id], ...]``, null when reductions are
reduced. A reduction that runs too long or ends the process fails; after some in a row the function
is not asked again for a minute, so that a tree of many nodes is not kept waiting by each.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Self

from uprmc.config import IndexSettings
from uprmc.index.javascript.process import Child, ChildFailed, Config
from uprmc.index.json_text import Unreadable, dumps, loads
from uprmc.index.mapping.javascript import failure, harness_limits
from uprmc.index.mapping.reduces import ReduceError
from uprmc.index.model import Entry
from uprmc.index.rows import id_text, split_row_value

__all__ = ["JavaScriptReduce", "ReduceProcess"]

#: Processes in a row that a function may cost before it is left alone, and for how many seconds.
_MOST_FAILURES = 3
_REST_S = 60.0


class JavaScriptReduce:
    """One reduce function. May be used by several threads; its process serves one at a time."""

    def __init__(self, place: int, process: ReduceProcess) -> None:
        """`place` is that of the function among those of the process."""
        self._place = place
        self._process: ReduceProcess | None = process

    def reduce(self, entries: Sequence[Entry]) -> bytes:
        """Return what the function makes of rows."""
        rows = [split_row_value(entry.value) for entry in entries]
        keys = b",".join([b"[%s,%s]" % (key, dumps(id_text(doc))) for doc, key, _ in rows])
        values = b",".join([value for _, _, value in rows])
        return self._ask(b"r[%d,[%s],[%s],false]" % (self._place, keys, values))

    def rereduce(self, reductions: Sequence[bytes]) -> bytes:
        """Return what the function makes of reductions."""
        return self._ask(b"r[%d,null,[%s],true]" % (self._place, b",".join(reductions)))

    def _ask(self, request: bytes) -> bytes:
        process = self._process
        if process is None:
            raise ReduceError("the index is closed")
        return process.ask(self._place, request)

    def finish(self, reduction: bytes) -> bytes:
        """Return the reduction: it is shown as it is stored."""
        return reduction

    def close(self) -> None:
        """Give up the process, which ends when the last reduce of the design has done so."""
        self._process = None


class ReduceProcess:
    """The process that runs the reduces of a design; it is started when it is needed first."""

    def __init__(
        self,
        sources: tuple[str, ...],
        settings: IndexSettings,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = Config(
            maps=(),
            reduces=sources,
            limits=harness_limits(settings),
            memory=settings.worker_memory,
            timeout_s=settings.map_timeout_s,
        )
        self._clock = clock
        self._lock = threading.Lock()
        self._child: Child | None = None
        self._failures = [0] * len(sources)
        self._rests_until = [0.0] * len(sources)

    @classmethod
    def shared(cls, signature: str, sources: Sequence[str], settings: IndexSettings) -> Self:
        """Return the process of a design, which all its reduces use."""
        key = (signature, settings)
        with _SHARED_LOCK:
            found = _SHARED.get(key)
            if found is None:
                found = _SHARED[key] = cls(tuple(sources), settings)
        assert isinstance(found, cls)
        return found

    def ask(self, place: int, request: bytes) -> bytes:
        """Return the reduction; raise `ReduceError`."""
        with self._lock:
            if self._clock() < self._rests_until[place]:
                raise ReduceError("it was stopped too often and rests for a minute")
            try:
                made = self._answer(request)
            except ChildFailed as error:
                self._failed(place)
                raise ReduceError(f"it ended its process: {error}") from None
            except _Stopped as error:
                self._failed(place)
                raise ReduceError(str(error)) from None
            self._failures[place] = 0
        if made[:1] == b"!":
            raise ReduceError(made[1:].decode())
        return _checked(made[1:])

    def _answer(self, request: bytes) -> bytes:
        if self._child is None:
            self._child = Child.start(self._config)
        self._child.send(request)
        answer = self._child.receive()
        kind, text = answer[:1], answer[1:]
        if kind in (b"t", b"o"):
            raise _Stopped(self._stopped(kind))
        if kind != b"=" or text[:1] not in (b"=", b"!"):
            raise ChildFailed(failure(kind, text))
        return text

    def _stopped(self, kind: bytes) -> str:
        if kind == b"t":
            return f"it ran for more than {self._config.timeout_s:g} s"
        return f"it needs more than {self._config.memory} bytes of memory"

    def _failed(self, place: int) -> None:
        if self._child is not None:
            self._child.end()
            self._child = None
        self._failures[place] += 1
        if self._failures[place] >= _MOST_FAILURES:
            self._failures[place] = 0
            self._rests_until[place] = self._clock() + _REST_S


class _Stopped(Exception):
    """A function was stopped; the text says why."""


_SHARED: weakref.WeakValueDictionary[tuple[str, IndexSettings], ReduceProcess]
_SHARED = weakref.WeakValueDictionary()
_SHARED_LOCK = threading.Lock()


def _checked(text: bytes) -> bytes:
    """Return a reduction in our own spelling of JSON; it came from a process that may lie."""
    try:
        return dumps(loads(text))
    except Unreadable as error:
        raise ReduceError(f"it returned what cannot be read: {error}") from None
    except ValueError:
        raise ReduceError("its process wrote nonsense") from None
