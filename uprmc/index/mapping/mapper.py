"""The maps of one design, whatever they are written in, over batches of documents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from uprmc.config import IndexSettings
from uprmc.index.design import Design, View
from uprmc.index.errors import bad_request
from uprmc.index.mapping import documents as shown
from uprmc.index.mapping.declarative import compile_rules
from uprmc.index.mapping.limits import MapError
from uprmc.index.mapping.python_functions import (
    NoFunction,
    compile_function,
    named_modules,
    resolve,
)
from uprmc.index.model import Document, Emission, Mapped, Mapper

__all__ = ["DesignMapper", "make_mapper"]

_Map = Callable[..., list[Emission]]

_NONE: tuple[Emission, ...] = ()


def make_mapper(design: Design, settings: IndexSettings) -> Mapper:
    """Return the mapper of a design; raise `Refused` where it cannot run here."""
    return DesignMapper(design, settings)


class DesignMapper:
    """Maps documents with functions of this process."""

    def __init__(self, design: Design, settings: IndexSettings) -> None:
        self._names = [view.name for view in design.views]
        self._maps: list[tuple[int, _Map]] = []
        self._pythons: list[tuple[int, _Map]] = []
        for place, view in enumerate(design.views):
            self._add(place, view, design, settings)

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

    def map(self, documents: Sequence[Document]) -> list[Mapped]:
        """Return what each document gives, in their order."""
        return [self._map_one(document) for document in documents]

    def _map_one(self, document: Document) -> Mapped:
        rows: list[Sequence[Emission]] = [_NONE] * len(self._names)
        try:
            value, is_json = shown.value(document)
        except MapError as error:
            return Mapped(rows, str(error))
        errors: list[str] = []
        for place, run in self._maps:
            try:
                rows[place] = run(value)
            except Exception as error:
                errors.append(self._named(place, error))
        if self._pythons:
            self._map_python(value, shown.meta(document, is_json), rows, errors)
        return Mapped(rows, "; ".join(errors) or None)

    def _map_python(
        self,
        value: Any,
        meta: dict[str, Any],
        rows: list[Sequence[Emission]],
        errors: list[str],
    ) -> None:
        for place, run in self._pythons:
            try:
                rows[place] = run(value, meta)
            except Exception as error:
                errors.append(self._named(place, error))

    def _named(self, place: int, error: Exception) -> str:
        return f"view {self._names[place]!r}: {explain(error)}"

    def close(self) -> None:
        """Nothing runs outside of this process."""


def explain(error: Exception) -> str:
    """Return why a map failed, as one line of bounded length."""
    if isinstance(error, MapError):
        return str(error)
    if isinstance(error, RecursionError):
        return "it emitted what is nested too deeply"
    return f"{type(error).__name__}: {error}".partition("\n")[0][:500]
