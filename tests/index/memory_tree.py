"""A view's tree in memory, as a sorted list."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

from uprmc.index.collation import sort_key
from uprmc.index.model import Entry, Reductions
from uprmc.index.rows import row_key, row_value, split_row_value

Emitted = tuple[bytes, int, Any, Any]


def dumped(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def entries(rows: Iterable[Emitted], collation: Any = "unicode") -> list[Entry]:
    """Rows of a tree from (id, vBucket, key, value) in the order of emission."""
    found = []
    for n, (doc_key, vbucket, key, value) in enumerate(rows):
        place = row_key(sort_key(key, collation), doc_key, n, vbucket)
        found.append(Entry(place, vbucket, row_value(doc_key, dumped(key), dumped(value))))
    return sorted(found)


class MemoryTree:
    """A view's tree as a sorted list; `reduce` gets values and returns one, or raises."""

    def __init__(
        self, rows: Sequence[Entry], reduce: Callable[[list[Any]], Any] | None = None
    ) -> None:
        self._rows, self._reduce = list(rows), reduce
        self._keys = [row.key for row in rows]
        self.read = 0
        self.reducer: Any = None

    @property
    def count(self) -> int:
        return len(self._rows)

    def rows(
        self,
        start: bytes | None = None,
        end: bytes | None = None,
        *,
        descending: bool = False,
        wanted: int | None = None,
        inclusive_end: bool = True,
        skip: int = 0,
    ) -> Iterator[Entry]:
        low, high = (end, start) if descending else (start, end)
        first = 0 if low is None else bisect_left(self._keys, low)
        last = len(self._rows) if high is None else bisect_left(self._keys, high)
        chosen = range(first, last)
        for place in reversed(chosen) if descending else chosen:
            row = self._rows[place]
            if wanted is None or wanted >> row.vbucket & 1:
                if skip:
                    skip -= 1
                    continue
                self.read += 1
                yield row

    def reduce(
        self,
        start: bytes | None = None,
        end: bytes | None = None,
        wanted: int | None = None,
        *,
        inclusive_end: bool = True,
    ) -> Reductions:
        return self._reduced(list(self.rows(start, end, wanted=wanted)))

    def groups(
        self,
        start: bytes | None = None,
        end: bytes | None = None,
        wanted: int | None = None,
        group: Callable[[bytes], bytes] = bytes,
        descending: bool = False,
        *,
        inclusive_end: bool = True,
    ) -> Iterator[tuple[Entry, Reductions]]:
        rows = self.rows(start, end, descending=descending, wanted=wanted)
        for _, members in groupby(rows, lambda row: group(row.key)):
            run = list(members)
            yield run[0], self._reduced(run)

    def _reduced(self, rows: list[Entry]) -> Reductions:
        if not rows or self._reduce is None:
            return ()
        try:
            return (dumped(self._reduce([json.loads(split_row_value(r.value)[2]) for r in rows])),)
        except ZeroDivisionError:
            return (None,)
