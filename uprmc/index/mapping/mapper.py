"""The maps of one design, no matter what they are written in, over batches of documents."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from copy import deepcopy
from typing import Any

from uprmc.config import IndexSettings
from uprmc.index.collation import Collation, sort_key
from uprmc.index.design import (
    BUILT_IN_REDUCES,
    Design,
    Function,
    NoFunction,
    View,
    named_modules,
    resolve,
)
from uprmc.index.errors import bad_request
from uprmc.index.javascript.process import MISSING, available
from uprmc.index.json_text import dumps, loads
from uprmc.index.mapping import documents as shown
from uprmc.index.mapping.declarative import compile_rules
from uprmc.index.mapping.documents import Limits, MapError
from uprmc.index.mapping.javascript import JavaScriptMaps, JavaScriptReduce, Outcome, ReduceProcess
from uprmc.index.mapping.reduces import NO_SKETCHES, Reduce, ReduceError, built_in, has_sketches
from uprmc.index.model import Emission, Entry, IndexedDocument, Mapped, Mapper, Reductions
from uprmc.index.versions import bodies

__all__ = ["DesignMapper", "ViewReducer", "compile_function", "make_mapper", "make_reducer"]

# --- python functions -----------------------------------------------------------------------------
# Maps that are Python functions, of modules that only the operator can name.
#
# ``def by_city(doc, meta): yield doc["city"], None``: a function gets the document and its `meta`,
# and gives pairs of key and value, or ``None`` for no row. It is trusted: there is no sandbox for
# Python.


def compile_function(
    function: Function, collation: Collation, settings: IndexSettings
) -> Callable[[Any, dict[str, Any]], list[Emission]]:
    """Return what gives the rows of a document and its `meta`; raises `MapError` if too much."""
    limits = Limits(settings)

    def run(document: Any, meta: dict[str, Any]) -> list[Emission]:
        rows: list[Emission] = []
        size = 0
        for key, value in function(document, meta) or ():
            key_text, value_text = dumps(key), dumps(value)
            limits.check_row(key_text, value_text)
            size += len(key_text) + len(value_text)
            if len(rows) >= limits.rows:
                raise MapError(f"it emitted more than {limits.rows} rows")
            if size > limits.document:
                raise MapError(f"its rows have more than {limits.document} bytes")
            rows.append(Emission(sort_key(key, collation), key_text, value_text))
        return rows

    return run


# --- mapper ---------------------------------------------------------------------------------------


_Map = Callable[..., Sequence[Emission]]

_NONE: tuple[Emission, ...] = ()
_NO_OUTCOME: Outcome = []
_NO_DOCUMENT = IndexedDocument(b"", 0, 0, b"", 0, 0, 0, 0)

_new = tuple.__new__


def make_mapper(design: Design, settings: IndexSettings) -> Mapper:
    """Return the mapper of a design; raise `Refused` where it cannot run here."""
    return DesignMapper(design, settings)


class DesignMapper:
    """Maps documents with functions of this process and of child processes."""

    def __init__(self, design: Design, settings: IndexSettings) -> None:
        self._names = [view.name for view in design.views]
        self._maps: list[tuple[int, _Map]] = []
        self._pythons: list[tuple[int, _Map]] = []
        self._scripts = [i for i, view in enumerate(design.views) if view.kind == "javascript"]
        self._javascript: JavaScriptMaps | None = None
        self.log: Collection[tuple[str, str]] = ()
        for place, view in enumerate(design.views):
            self._add(place, view, design, settings)
        if self._scripts:
            if not available():
                raise bad_request(MISSING)
            views = [design.views[place] for place in self._scripts]
            self._javascript = JavaScriptMaps(views, design.options.collation, settings)
            self.log = self._javascript.log

    def _add(self, place: int, view: View, design: Design, settings: IndexSettings) -> None:
        collation = design.options.collation
        if view.kind == "declarative":
            self._maps.append((place, compile_rules(view.rules, collation, settings)))
        elif view.kind == "python":
            try:
                function = resolve(view.text, named_modules(settings.python_modules))
            except NoFunction as error:
                raise bad_request(f"view {view.name!r}: {error}") from None
            self._pythons.append((place, compile_function(function, collation, settings)))

    def map(self, documents: Sequence[IndexedDocument]) -> list[Mapped]:
        """Return what each document gives, in their order."""
        if len(self._maps) == len(self._names):
            return self._map_declarative(documents)
        if self._javascript is None:
            return [self._map_one(document) for document in documents]
        outcomes = self._javascript.map(documents)
        if len(self._scripts) == len(self._names):
            return [self._mapped(outcome) for outcome in outcomes]
        return [
            self._map_one(document, outcome)
            for document, outcome in zip(documents, outcomes, strict=True)
        ]

    def _map_declarative(self, documents: Sequence[IndexedDocument]) -> list[Mapped]:
        """Map with as few calls as possible; whatever is not plain takes the general way."""
        runs = [run for _, run in self._maps]
        first = runs[0] if len(runs) == 1 else None
        made: list[Mapped] = []
        for body in bodies(documents):
            try:
                value = loads(body)
                rows = (first(value),) if first else [run(value) for run in runs]
                made.append(_new(Mapped, (rows, None)))
            except Exception:
                made.append(self._map_one(documents[len(made)]))
        return made

    def _mapped(self, outcome: Outcome) -> Mapped:
        """Return what a document gives to a design that is JavaScript alone."""
        for made in outcome:
            if type(made) is str:
                return self._map_one(_NO_DOCUMENT, outcome)
        return _new(Mapped, (outcome, None))

    def _map_one(self, document: IndexedDocument, outcome: Outcome = _NO_OUTCOME) -> Mapped:
        rows: list[Sequence[Emission]] = [_NONE] * len(self._names)
        errors: list[str] = []
        for place, made in zip(self._scripts, outcome, strict=True):
            if isinstance(made, str):
                errors.append(f"view {self._names[place]!r}: {made}")
            else:
                rows[place] = made
        if self._maps or self._pythons:
            self._map_here(document, rows, errors)
        return Mapped(rows, "; ".join(errors) or None)

    def _map_here(
        self, document: IndexedDocument, rows: list[Sequence[Emission]], errors: list[str]
    ) -> None:
        try:
            value, is_json = shown.value(document)
        except MapError as error:
            errors.append(str(error))
            return
        for place, run in self._maps:
            try:
                rows[place] = run(value)
            except Exception as error:
                errors.append(self._named(place, error))
        if self._pythons:
            self._map_python(value, shown.meta(document, is_json), rows, errors)

    def _map_python(
        self,
        value: Any,
        meta: dict[str, Any],
        rows: list[Sequence[Emission]],
        errors: list[str],
    ) -> None:
        for place, run in self._pythons:
            try:
                given = value if len(self._names) == 1 else deepcopy(value)
                rows[place] = run(given, dict(meta))
            except Exception as error:
                errors.append(self._named(place, error))

    def _named(self, place: int, error: Exception) -> str:
        return f"view {self._names[place]!r}: {explain(error)}"

    def give_up(self) -> None:
        """See `model.Mapper.give_up`."""
        if self._javascript is not None:
            self._javascript.give_up()

    def close(self) -> None:
        """End child processes."""
        if self._javascript is not None:
            self._javascript.close()


def explain(error: Exception) -> str:
    """Return why a map failed, as one line of bounded length."""
    if isinstance(error, MapError):
        return str(error)
    if isinstance(error, RecursionError):
        return "a key or value that it emitted is nested too deeply"
    return f"{type(error).__name__}: {error}".partition("\n")[0][:500]


# --- reducer --------------------------------------------------------------------------------------
# The reduces of one view, as its tree uses them: one that fails is ``None``, never an error.


def make_reducer(design: Design, view_index: int, settings: IndexSettings) -> ViewReducer:
    """Return the reducer of a view; raise `Refused` where it cannot run here."""
    view = design.views[view_index]
    if "_approx_count_distinct" in view.reduces and not has_sketches():
        raise bad_request(f"view {view.name!r}: {NO_SKETCHES}")
    if not available() and any(reduce not in BUILT_IN_REDUCES for reduce in view.reduces):
        raise bad_request(f"view {view.name!r}: {MISSING}")
    reduces = [_reduce(reduce, design, settings) for reduce in view.reduces]
    return ViewReducer(reduces, settings.max_reduction_bytes)


def _reduce(reduce: str, design: Design, settings: IndexSettings) -> Reduce:
    if reduce in BUILT_IN_REDUCES:
        return built_in(reduce)
    sources = design.javascript_reduces
    process = ReduceProcess.shared(design.signature, sources, settings)
    return JavaScriptReduce(sources.index(reduce), process)


class ViewReducer:
    """Makes reductions. May be used by several threads."""

    def __init__(self, reduces: Sequence[Reduce], max_bytes: int) -> None:
        self._reduces = tuple(reduces)
        self._max_bytes = max_bytes
        # For each reduce, why the last reduction that failed could not be made.
        self.errors: list[str | None] = [None] * len(reduces)

    def reduce(self, entries: Sequence[Entry]) -> Reductions:
        """Return the reductions of rows."""
        if not self._reduces:
            return ()
        return tuple(
            self._try(place, lambda reduce=reduce: reduce.reduce(entries))  # type: ignore[misc]
            for place, reduce in enumerate(self._reduces)
        )

    def rereduce(self, reductions: Sequence[Reductions]) -> Reductions:
        """Return the reductions of reductions, at least one."""
        return tuple(
            self._rereduce(place, reduce, [each[place] for each in reductions])
            for place, reduce in enumerate(self._reduces)
        )

    def _rereduce(self, place: int, reduce: Reduce, texts: list[bytes | None]) -> bytes | None:
        known = [text for text in texts if text is not None]
        if len(known) < len(texts):
            return None
        return self._try(place, lambda: reduce.rereduce(known))

    def finish(self, place: int, reduction: bytes) -> bytes:
        """Return what is shown for a stored reduction of one of the reduces, as JSON."""
        return self._reduces[place].finish(reduction)

    def _try(self, place: int, make: Callable[[], bytes]) -> bytes | None:
        try:
            made = make()
            if len(made) > self._max_bytes:
                raise ReduceError(
                    f"a reduction has {len(made)} bytes; the most are {self._max_bytes}"
                )
        except Exception as error:
            self.errors[place] = str(error)
            return None
        return made

    def close(self) -> None:
        """End child processes."""
        for reduce in self._reduces:
            reduce.close()
