"""A `Keeper` in a dict: at once, or when the test says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Write(NamedTuple):
    """One that has not ended."""

    name: bytes
    document: bytes | None
    done: Callable[[bool], None]


class FakeKeeper:
    """Keeps documents; `patient`: a write ends with `finish`, else at once."""

    def __init__(
        self, documents: dict[bytes, bytes] | None = None, *, patient: bool = False
    ) -> None:
        self.documents = dict(documents or {})
        self.patient = patient
        self.works = True
        self.pending: list[Write] = []
        self.writes = 0

    def load(self) -> dict[bytes, bytes]:
        return dict(self.documents)

    def save(self, name: bytes, document: bytes | None, done: Callable[[bool], None]) -> None:
        self.writes += 1
        self.pending.append(Write(name, document, done))
        if not self.patient:
            self.finish(self.works)

    def finish(self, ok: bool = True) -> None:
        """End the oldest write."""
        name, document, done = self.pending.pop(0)
        if ok and document is None:
            self.documents.pop(name, None)
        elif ok and document is not None:
            self.documents[name] = document
        done(ok)

    def finish_all(self) -> None:
        while self.pending:
            self.finish()
