"""Maps that are JavaScript functions: batches of documents to child processes and rows back.

A document that runs too long, takes too much memory or ends its process is found and named, and
costs the process; the others are mapped by the next one. JavaScript's numbers are floats: integers
beyond 2^53 lose their last digits.
"""

from __future__ import annotations

import json
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

from uprmc.config import IndexSettings
from uprmc.index.collation import Collation
from uprmc.index.design import Design, View
from uprmc.index.errors import GivenUp, bad_request
from uprmc.index.javascript.process import MISSING, Child, ChildFailed, Config, available
from uprmc.index.json_text import Unreadable, dumps, loads
from uprmc.index.mapping.documents import Encoder, Limits, MapError, request
from uprmc.index.mapping.reduces import ReduceError
from uprmc.index.model import Emission, Entry, IndexedDocument
from uprmc.index.rows import id_text, split_row_value

__all__ = [
    "Fault",
    "JavaScriptMaps",
    "JavaScriptReduce",
    "ReduceProcess",
    "check",
    "failure",
    "harness_limits",
    "refuse_faults",
]

#: Documents and bytes of one request.
_BATCH_DOCUMENTS = 250
_BATCH_BYTES = 1024 * 1024

#: Requests that a process has at a time: it computes one while the next is in its pipe.
_AHEAD = 2

#: Characters of an answer, after which the harness leaves the rest of the batch undone.
_ANSWER = 8 * 1024 * 1024

#: Share of the time limit that a document must have run alone to be the one that is too slow.
_GUILTY = 0.8

#: A document is named after it ended this many processes; one could have been killed for another
#: reason.
_DEATHS = 2

_new = tuple.__new__

#: What a document gives: for each view its rows, or why it has none.
Outcome = list[Sequence[Emission] | str]


def harness_limits(settings: IndexSettings) -> dict[str, int]:
    """Return the limits by the names that the harness knows."""
    return {
        "key": settings.max_key_bytes,
        "value": settings.max_row_bytes,
        "rows": settings.max_document_rows,
        "document": settings.max_document_bytes,
        "reduction": settings.max_reduction_bytes,
        "log": settings.map_log,
        "answer": _ANSWER,
    }


@dataclass(slots=True)
class _Batch:
    """Documents by their places, and the text of each as the harness reads it.

    `deaths` = how often a process that did nothing else ended over its only document.
    """

    places: list[int]
    texts: list[bytes]
    deaths: int = 0

    def payload(self) -> bytes:
        return b"m[" + b",".join(self.texts) + b"]"

    def rest(self, done: int) -> _Batch:
        return _Batch(self.places[done:], self.texts[done:])

    def halves(self) -> tuple[_Batch, _Batch]:
        middle = len(self.places) // 2
        return _Batch(self.places[:middle], self.texts[:middle]), self.rest(middle)


@dataclass(slots=True)
class _Worker:
    """A process and what it was asked, oldest first.

    `fresh` = it has answered nothing yet: what fails now is not the fault of what came before.
    """

    child: Child
    asked: deque[_Batch]
    fresh: bool = True


class JavaScriptMaps:
    """The JavaScript views of one design."""

    def __init__(
        self, views: Sequence[View], collation: Collation, settings: IndexSettings
    ) -> None:
        self._encode = Encoder(collation).encode
        self._limits = Limits(settings)
        self._timeout_s = settings.map_timeout_s
        self._views = len(views)
        self._names = [view.name for view in views]
        self._config = Config(
            maps=tuple(view.text for view in views),
            reduces=(),
            limits=harness_limits(settings),
            memory=settings.worker_memory,
            timeout_s=settings.map_timeout_s,
        )
        self._idle: list[_Worker] = []
        self._working: list[_Worker] = []
        self._heard: list[_Worker] = []
        self._is_given_up = False
        self._most_workers = settings.workers
        self.restarts = 0
        self.log: deque[tuple[str, str]] = deque(maxlen=settings.map_log)

    def map(self, documents: Sequence[IndexedDocument]) -> list[Outcome]:
        """Return what each document gives, in their order.

        Raises:
            GivenUp: `give_up` was called.
        """
        outcomes: list[Outcome] = [[] for _ in documents]
        todo = self._batches(documents, outcomes)
        working = self._working = []
        try:
            while todo or working:
                if self._is_given_up:
                    raise GivenUp
                self._ask(todo, working)
                self._heard = [working.pop(0)]
                self._hear(self._heard[0], working, todo, outcomes)
        except BaseException:
            for worker in working:
                worker.child.end()
            raise
        return outcomes

    def give_up(self) -> None:
        """Have `map` end soon, whatever the functions do; any thread may call this."""
        self._is_given_up = True
        for worker in [*self._heard, *self._working]:
            worker.child.kill()

    def close(self) -> None:
        """End the processes."""
        for worker in self._idle:
            worker.child.end()
        self._idle.clear()

    def _batches(
        self, documents: Sequence[IndexedDocument], outcomes: list[Outcome]
    ) -> deque[_Batch]:
        batches: deque[_Batch] = deque()
        batch, size = _Batch([], []), 0
        for place, document in enumerate(documents):
            try:
                text = request(document)
            except MapError as error:
                outcomes[place] = [str(error)] * self._views
                continue
            if batch.texts and (
                len(batch.texts) >= _BATCH_DOCUMENTS or size + len(text) > _BATCH_BYTES
            ):
                batches.append(batch)
                batch, size = _Batch([], []), 0
            batch.places.append(place)
            batch.texts.append(text)
            size += len(text)
        if batch.texts:
            batches.append(batch)
        return batches

    def _ask(self, todo: deque[_Batch], working: list[_Worker]) -> None:
        """Give the processes what they can take."""
        while todo and len(working) < self._most_workers:
            working.append(self._idle.pop() if self._idle else self._start())
            if not working[-1].asked:
                self._send(working[-1], todo)
        for worker in working:
            while todo and len(worker.asked) < _AHEAD:
                self._send(worker, todo)

    def _start(self) -> _Worker:
        return _Worker(Child.start(self._config), deque())

    def _send(self, worker: _Worker, todo: deque[_Batch]) -> None:
        batch = todo.popleft()
        worker.asked.append(batch)
        worker.child.send(batch.payload())

    def _hear(
        self,
        worker: _Worker,
        working: list[_Worker],
        todo: deque[_Batch],
        outcomes: list[Outcome],
    ) -> None:
        """Take one answer of a process, and put it back where it belongs."""
        batch = worker.asked[0]
        try:
            answer = worker.child.receive()
            kind, text = answer[:1], answer[1:]
            if kind == b"=":
                done = self._take(batch, text, outcomes)
                self._go_on(worker, working, todo, done)
                return
            self._stopped(worker, batch, kind, text, todo, outcomes)
        except ChildFailed as error:
            self._died(worker, batch, str(error), todo, outcomes)

    def _go_on(
        self, worker: _Worker, working: list[_Worker], todo: deque[_Batch], done: int
    ) -> None:
        batch = worker.asked.popleft()
        worker.fresh = False
        if done < len(batch.places):
            todo.appendleft(batch.rest(done))
        if worker.asked or todo:
            working.append(worker)
        else:
            self._idle.append(worker)

    def _take(self, batch: _Batch, text: bytes, outcomes: list[Outcome]) -> int:
        """Note the rows of an answer; return how many documents it was about."""
        if text[:1] == b"l":
            logged, _, text = text[1:].partition(b"\n")
            self._note(logged)
        lines = _lines(text)
        if not 0 < len(lines) <= len(batch.places):
            raise ChildFailed("the process wrote nonsense")
        for place, line in zip(batch.places, lines, strict=False):
            outcomes[place] = self._outcome(line)
        return len(lines)

    def _note(self, logged: bytes) -> None:
        """Keep what functions have logged."""
        try:
            self.log.extend((str(key), str(line)) for key, line in loads(logged))
        except (ValueError, TypeError):
            raise ChildFailed("the process wrote nonsense") from None

    def _outcome(self, line: Any) -> Outcome:
        if isinstance(line, str):
            return [line] * self._views
        if not isinstance(line, list) or len(line) != self._views:
            raise ChildFailed("the process wrote nonsense")
        return [rows if isinstance(rows, str) else self._rows(rows) for rows in line]

    def _rows(self, pairs: Any) -> Sequence[Emission] | str:
        rows = []
        limits, encode = self._limits, self._encode
        try:
            for key, value in pairs:
                sort_key, key_text = encode(key)
                value_text = dumps(value)
                limits.check_row(key_text, value_text)
                rows.append(_new(Emission, (sort_key, key_text, value_text)))
            if len(rows) > 1:
                limits.check(rows)
        except MapError as error:
            return str(error)
        except RecursionError:
            return "it emitted what is nested too deeply"
        except ValueError as error:
            return f"it emitted what cannot be kept: {error}"
        except TypeError:
            raise ChildFailed("the process wrote nonsense") from None
        return rows

    def _stopped(
        self,
        worker: _Worker,
        batch: _Batch,
        kind: bytes,
        text: bytes,
        todo: deque[_Batch],
        outcomes: list[Outcome],
    ) -> None:
        """A process stopped a document and said how far it came."""
        if kind not in (b"t", b"o"):
            raise ChildFailed(failure(kind, text))
        ran_ms, view, lines = _progress(text)
        done = self._take(batch, lines, outcomes) if lines else 0
        batch = batch.rest(done)
        if kind == b"t":
            reason = f"it ran for more than {self._timeout_s:g} s"
            guilty = ran_ms >= 1_000 * self._timeout_s * _GUILTY
        else:
            reason = f"it needs more than {self._config.memory} bytes of memory"
            guilty = False
        if batch.places and (guilty or (worker.fresh and done == 0)):
            outcomes[batch.places[0]] = self._without(view, reason)
            batch = batch.rest(1)
        self._replace(worker, [batch], todo)

    def _without(self, view: int, reason: str) -> Outcome:
        """Return the outcome of a document that was stopped in the map of one view."""
        if view >= self._views:
            raise ChildFailed("the process wrote nonsense")
        outcome: Outcome = [f"stopped with view {self._names[view]!r}"] * self._views
        outcome[view] = reason
        return outcome

    def _died(
        self,
        worker: _Worker,
        batch: _Batch,
        reason: str,
        todo: deque[_Batch],
        outcomes: list[Outcome],
    ) -> None:
        """A process ended without a word: the document is sought in ever smaller batches."""
        if len(batch.places) > 1:
            self._replace(worker, batch.halves(), todo)
            return
        batch.deaths += worker.fresh
        if batch.deaths >= _DEATHS:
            outcomes[batch.places[0]] = [f"it ended its process: {reason}"] * self._views
            batch = batch.rest(1)
        self._replace(worker, [batch], todo)

    def _replace(self, worker: _Worker, batches: Sequence[_Batch], todo: deque[_Batch]) -> None:
        worker.child.end()
        self.restarts += 1
        worker.asked.popleft()
        again = [batch for batch in (*batches, *worker.asked) if batch.places]
        todo.extendleft(reversed(again))


def _progress(text: bytes) -> tuple[int, int, bytes]:
    """Return milliseconds of the stopped document, the map that was stopped, the lines before."""
    head, _, lines = text.partition(b"\n")
    try:
        ran_ms, view = map(int, head.split())
    except ValueError:
        raise ChildFailed("the process wrote nonsense") from None
    return ran_ms, max(0, view), lines


def failure(kind: bytes, text: bytes) -> str:
    """Return the words for an answer that is none."""
    if kind == b"s":
        return "it goes on after its end"
    if kind == b"!":
        return text.decode(errors="replace")
    return "the process wrote nonsense"


def _lines(text: bytes) -> list[Any]:
    """Return the values of lines that end in commas; one that cannot be read gives a text."""
    try:
        lines = loads(b"[" + text + b"]")
    except ValueError:
        return [_line(line) for line in text.split(b",\n")]
    return lines if isinstance(lines, list) else []


def _line(line: bytes) -> Any:
    try:
        return loads(line)
    except Unreadable as error:
        return f"it emitted what cannot be read: {error}"
    except ValueError:
        raise ChildFailed("the process wrote nonsense") from None


# --- check ----------------------------------------------------------------------------------------
# Whether texts are JavaScript functions, found out by compiling them in a child process.


#: Bytes of an answer: a few hundred for each function.
_ANSWER_BYTES = 1024 * 1024

#: Memory of the process, in bytes, and seconds for each function.
_MEMORY = 256 * 1024 * 1024
_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a text is no function."""

    message: str  # the engine's words
    line: int | None = None  # where, from 1; ``None`` if it is not a place
    column: int | None = None


def check(sources: Sequence[str]) -> list[Fault | None]:
    """Return for each text why it is no function, ``None`` where it is one. Blocks."""
    first = {"check": list(sources), "memory": _MEMORY, "timeout_s": _TIMEOUT_S}
    child = Child(json.dumps(first).encode(), _TIMEOUT_S * len(sources), _ANSWER_BYTES)
    try:
        answer = child.receive(60.0)
        if answer[:1] == b"!":
            raise ChildFailed(answer[1:].decode(errors="replace"))
        faults = json.loads(answer)
    except ChildFailed as error:
        return [Fault(f"it could not be compiled: {error}")] * len(sources)
    finally:
        child.end()
    return [None if fault is None else Fault(**fault) for fault in faults]


def refuse_faults(design: Design) -> None:
    """Raise `Refused` for what is no JavaScript function, with its line and column. Blocks."""
    functions = design.javascript()
    if not functions:
        return
    if not available():
        raise bad_request(MISSING)
    faults = check([source for _, source in functions])
    for (what, _), fault in zip(functions, faults, strict=True):
        if fault is not None and fault.line is not None:
            at = {"line": fault.line, "column": fault.column}
            where = f"line {fault.line}, column {fault.column}"
            raise bad_request(f"{what}: {fault.message} ({where})", **at)
        if fault is not None:
            raise bad_request(f"{what}: {fault.message}")


# --- javascript reduce ----------------------------------------------------------------------------
# Reduces that are JavaScript functions: those of one design share a child process.
#
# ``function (keys, values, rereduce)``: `keys` is ``[[key, id], ...]``, null when reductions are
# reduced. A reduction that runs too long or ends the process fails; after some in a row the
# function is not asked again for a minute, so that a tree of many nodes is not kept waiting by
# each.


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


_SHARED: weakref.WeakValueDictionary[tuple[str, IndexSettings], ReduceProcess] = (
    weakref.WeakValueDictionary()
)
_SHARED_LOCK = threading.Lock()


def _checked(text: bytes) -> bytes:
    """Return a reduction in our own spelling of JSON; it came from a process that may lie."""
    try:
        return dumps(loads(text))
    except Unreadable as error:
        raise ReduceError(f"it returned what cannot be read: {error}") from None
    except ValueError:
        raise ReduceError("its process wrote nonsense") from None
