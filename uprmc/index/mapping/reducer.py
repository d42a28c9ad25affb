"""The reduces of one view, as its tree uses them: one that fails is ``None``, never an error."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from uprmc.config import IndexSettings
from uprmc.index.design import BUILT_IN_REDUCES, Design
from uprmc.index.errors import bad_request
from uprmc.index.javascript.process import MISSING, available
from uprmc.index.mapping import sketches
from uprmc.index.mapping.javascript_reduce import JavaScriptReduce, ReduceProcess
from uprmc.index.mapping.reduces import Reduce, ReduceError, built_in
from uprmc.index.model import Entry, Reductions

__all__ = ["ViewReducer", "make_reducer"]


def make_reducer(design: Design, view_index: int, settings: IndexSettings) -> ViewReducer:
    """Return the reducer of a view; raise `Refused` where it cannot run here."""
    view = design.views[view_index]
    if "_approx_count_distinct" in view.reduces and not sketches.available():
        raise bad_request(f"view {view.name!r}: {sketches.MISSING}")
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
    """Makes reductions. May be used by several threads.

    Attributes:
        errors: for each reduce, why the last reduction that failed could not be made.
    """

    def __init__(self, reduces: Sequence[Reduce], max_bytes: int) -> None:
        self._reduces = tuple(reduces)
        self._max_bytes = max_bytes
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
