"""The answer to a query, as pieces of JSON made from the rows of a tree, one after another.

Nothing is parsed and nothing is collected: keys and values are JSON texts in the tree and go into
the answer as they are. One row stands in each line, so that a merger can read an answer by lines.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from json.encoder import encode_basestring_ascii
from typing import TYPE_CHECKING, Any, cast

from uprmc.index.collation import HIGHEST, LOWEST, group_prefix
from uprmc.index.json_text import well_formed
from uprmc.index.model import Entry, Lost, Reductions
from uprmc.index.query_options import Bound, Query
from uprmc.index.rows import id_bytes, id_text, row_bounds, split_row_value

if TYPE_CHECKING:
    from uprmc.index.tree import Tree

__all__ = ["Documents", "run", "span"]

#: About the size of a piece.
PIECE_BYTES = 16 * 1024

#: Documents that are asked for at a time.
DOCUMENTS_AT_ONCE = 100

#: Those that are asked for first; then as many as have about so many bytes together.
FIRST_DOCUMENTS, DOCUMENTS_BYTES = 4, 1024 * 1024

#: Errors that an answer lists.
ERRORS_MAX = 100

#: How much of a key an error shows.
_SHOWN = 100

#: Most ids that an error lists.
_IDS_MAX = 5

#: Returns the present JSON texts of documents, ``None`` for what is not there; it blocks.
Documents = Callable[[Sequence[bytes]], Sequence[bytes | Lost | None]]


class _LostOnes:
    """Documents that cannot be had for one reason: the first ids, and how many there are."""

    def __init__(self) -> None:
        self._ids: list[str] = []
        self._count = 0

    def add(self, key: bytes) -> None:
        self._count += 1
        if len(self._ids) < _IDS_MAX:
            self._ids.append(id_text(key))

    def named(self) -> str:
        more = self._count - len(self._ids)
        return json.dumps(self._ids)[1:-1] + (f" and {more} more" if more else "")


class QueryRun:
    """One answer in the making.

    Args:
        query: the question.
        tree: of the view.
        wanted: bitmap of the vBuckets whose rows count; ``None`` = all.
        view: its name, for errors.
        source: the node's address, for errors.
        documents: fetches documents, for `include_docs`.
    """

    def __init__(
        self,
        query: Query,
        tree: Tree,
        wanted: int | None,
        *,
        view: str,
        source: str = "local",
        documents: Documents | None = None,
    ) -> None:
        self._query, self._tree, self._wanted = query, tree, wanted
        self._view, self._source, self._documents = view, source, documents
        self._reducer: Any = getattr(tree, "reducer", None)
        self._errors: list[dict[str, str]] = []
        #: Which of the `keys` is read, which the next row belongs to, and the one before it.
        self._position = self._next = self._last = 0

    def pieces(
        self, total_rows: int, update_seq: Mapping[int, int] | None
    ) -> Generator[bytes, None, None]:
        """Yield the answer."""
        head = b'{"total_rows":%d,' % total_rows
        if self._query.update_seq:
            head += b'"update_seq":' + json.dumps(update_seq or {}).encode() + b","
        before = self._separators if self._query.merge else None
        yield from framed(head + b'"rows":[', self._texts(), self._errors, before)

    def _separators(self) -> bytes:
        """Return an empty line for each of the `keys` that was begun since the last row."""
        at = self._next if self._query.include_docs else self._position
        count, self._last = at - self._last, at
        return b"\n" * count

    def _texts(self) -> Iterator[bytes]:
        query = self._query
        if query.limit == 0:
            return
        texts = self._reduced() if query.reduce else self._mapped()
        # Of one range of rows those that are skipped are not even read.
        skip = 0 if self._skips_in_tree() else query.skip
        stop = None if query.limit is None else skip + query.limit
        if query.include_docs:
            rows = islice(self._entries(), skip, stop)
            yield from self._with_documents(rows)
        else:
            yield from islice(texts, skip, stop)

    # --- rows of a map ------------------------------------------------------------------------

    def _entries(self) -> Iterator[Entry]:
        for low, high in self._spans():
            yield from self._rows(low, high, self._query.skip if self._skips_in_tree() else 0)

    def _skips_in_tree(self) -> bool:
        return self._query.keys is None and not self._query.reduce

    def _rows(self, low: bytes, high: bytes, skip: int = 0) -> Iterator[Entry]:
        # No row's key is a bound: a bound begins with a key and does not go on as a row does.
        if self._query.descending:
            return self._tree.rows(high, low, descending=True, wanted=self._wanted, skip=skip)
        return self._tree.rows(low, high, wanted=self._wanted, skip=skip)

    def _spans(self) -> Iterable[tuple[bytes, bytes]]:
        query = self._query
        if query.keys is None:
            return (span(query),)
        return (row_bounds(sort_key) for sort_key in self._each_key(query.keys))

    def _each_key(self, keys: Sequence[tuple[Any, bytes]]) -> Iterator[bytes]:
        for position, (_, sort_key) in enumerate(keys):
            self._position = position
            yield sort_key

    def _mapped(self) -> Iterator[bytes]:
        for entry in self._entries():
            doc_key, key, value = split_row_value(entry.value)
            yield _row(doc_key, key, value)

    def _with_documents(self, rows: Iterator[Entry]) -> Iterator[bytes]:
        lost: dict[str, _LostOnes] = {}
        try:
            yield from self._documented(rows, lost)
        finally:
            for why, documents in lost.items():
                reason = f"{documents.named()}: {' '.join(why.split())[:200]}"
                self._fail(f"documents cannot be read: {reason}")

    def _documented(self, rows: Iterator[Entry], lost: dict[str, _LostOnes]) -> Iterator[bytes]:
        """Yield rows with documents; note those that may be there and cannot be had."""
        placed = ((self._position, *split_row_value(row.value)) for row in rows)
        count = FIRST_DOCUMENTS
        while some := list(islice(placed, count)):
            wanted = [_document_of(row[1], row[3]) for row in some]
            bodies = self._fetched(wanted)
            size = sum(len(body) for body in bodies if isinstance(body, bytes))
            most = DOCUMENTS_BYTES * len(some) // max(size, 1)
            count = max(1, min(DOCUMENTS_AT_ONCE, most))
            for (position, doc_key, key, value), named, body in zip(
                some, wanted, bodies, strict=True
            ):
                self._next = position
                if isinstance(body, Lost):
                    lost.setdefault(body.why, _LostOnes()).add(named)
                    if self._query.stop:
                        return
                    body = None
                yield _row(doc_key, key, value)[:-1] + b',"doc":' + (body or b"null") + b"}"

    def _fetched(self, keys: list[bytes]) -> Sequence[bytes | Lost | None]:
        why = "there is no way to them here"
        try:
            if self._documents is not None:
                return self._documents(keys)
        except Exception as error:  # whatever the way to the documents raises
            why = str(error)
        return [Lost(why)] * len(keys)

    # --- rows of a reduce ---------------------------------------------------------------------

    def _reduced(self) -> Iterator[bytes]:
        for key, low, high, reductions in self._groups():
            value = self._finished(reductions[0])
            if value is not None:
                yield b'{"key":' + key + b',"value":' + value + b"}"
                continue
            self._fail(
                f"view {self._view!r}: the reduce failed for {_key_range(low, high)}{self._why()}"
            )
            if self._query.stop:
                return

    def _finished(self, reduction: bytes | None) -> bytes | None:
        """Return what is shown of a reduction; a merger goes on with what is stored."""
        if reduction is None or self._query.merge or self._reducer is None:
            return reduction
        return cast(bytes, self._reducer.finish(0, reduction))

    def _why(self) -> str:
        """Return what the reducer says of its last failure."""
        errors = getattr(self._reducer, "errors", None)
        return f": {' '.join(str(errors[0]).split())[:300]}" if errors and errors[0] else ""

    def _groups(self) -> Iterator[tuple[bytes, bytes, bytes, Reductions]]:
        """Yield (key as JSON, first and last key for errors, reductions)."""
        query = self._query
        if query.keys is not None:
            yield from self._groups_of_keys(query.keys)
        elif query.group_level == 0:
            yield from self._one_group(*span(query))
        else:
            yield from self._groups_of_range(*span(query), query.group_level)

    def _groups_of_keys(
        self, keys: Sequence[tuple[Any, bytes]]
    ) -> Iterator[tuple[bytes, bytes, bytes, Reductions]]:
        for sort_key in self._each_key(keys):
            low, high = row_bounds(sort_key)
            first = next(self._rows(low, high), None)
            if first is not None:
                key = _json_key(first)
                yield key, key, key, self._tree.reduce(low, high, self._wanted)

    def _one_group(
        self, low: bytes, high: bytes
    ) -> Iterator[tuple[bytes, bytes, bytes, Reductions]]:
        reductions = self._tree.reduce(low, high, self._wanted)
        if reductions:
            query = self._query
            start, end = _shown(query.start, b"the first"), _shown(query.end, b"the last")
            yield b"null", start, end, reductions

    def _groups_of_range(
        self, low: bytes, high: bytes, level: int | None
    ) -> Iterator[tuple[bytes, bytes, bytes, Reductions]]:
        start, end = (high, low) if self._query.descending else (low, high)
        groups = self._tree.groups(
            start,
            end,
            self._wanted,
            lambda key: group_prefix(key, level),
            self._query.descending,
        )
        for entry, reductions in groups:
            key = _json_key(entry)
            if level is not None:
                key = first_elements(key, level)
            yield key, key, key, reductions

    def _fail(self, reason: str) -> None:
        if len(self._errors) < ERRORS_MAX:
            self._errors.append({"from": self._source, "reason": reason})


def run(
    query: Query,
    snapshot: Any,
    view_index: int,
    *,
    view: str,
    source: str = "local",
    documents: Documents | None = None,
) -> Generator[bytes, None, None]:
    """Yield the answer to a query over a snapshot of the view's index, piece by piece.

    Making a piece reads the index file and blocks. Releasing the snapshot is the caller's affair.
    """
    making = QueryRun(
        query,
        snapshot.tree(view_index),
        snapshot.wanted,
        view=view,
        source=source,
        documents=documents,
    )
    yield from making.pieces(snapshot.total_rows(view_index), snapshot.update_seq)


def framed(
    head: bytes,
    rows: Iterator[bytes],
    errors: Sequence[Mapping[str, str]],
    before: Callable[[], bytes] | None = None,
) -> Generator[bytes, None, None]:
    """Yield an answer in pieces: its head, a line for each row, and the errors that came up.

    `before` returns what stands before a row's line.
    """
    piece, size, between = [head], len(head), b"\n"
    for row in rows:
        piece += (between, row) if before is None else (between, before(), row)
        size += len(row)
        between = b",\n"
        if size >= PIECE_BYTES:
            yield b"".join(piece)
            piece, size = [], 0
    yield b"".join([*piece, b"\n", tail(errors)])


def tail(errors: Sequence[Mapping[str, str]]) -> bytes:
    """Return the end of an answer."""
    lines = b",\n".join(well_formed(json.dumps(error).encode()) for error in errors)
    return b'],"errors":[' + lines + b"]}\n"


def span(query: Query) -> tuple[bytes, bytes]:
    """Return the range of row keys that a query reads, lower end first; the end is not in it."""
    first, last = query.start, query.end
    if query.descending:
        low = _below(last, query.inclusive_end)
        return low, max(low, _above(first, inclusive=True))
    low = _below(first, inclusive=True)
    return low, max(low, _above(last, query.inclusive_end))


def _below(bound: Bound | None, inclusive: bool) -> bytes:
    """Return the least row key of a range that begins at a key; exclusive = after all its rows."""
    if bound is None:
        return LOWEST
    if not inclusive:
        return row_bounds(bound.sort_key)[1]
    return row_bounds(bound.sort_key, bound.docid)[0]


def _above(bound: Bound | None, inclusive: bool) -> bytes:
    """Return the end of a range that ends at a key; exclusive = before all its rows."""
    if bound is None:
        return HIGHEST
    if not inclusive:
        return row_bounds(bound.sort_key)[0]
    return row_bounds(bound.sort_key, bound.docid)[1]


def first_elements(key: bytes, level: int) -> bytes:
    """Return the key of a group: the first elements of an array, another key as it is."""
    if not key.startswith(b"["):
        return key
    return json.dumps(json.loads(key)[:level], separators=(",", ":")).encode()


def _row(doc_key: bytes, key: bytes, value: bytes) -> bytes:
    if doc_key.isalnum():  # ASCII letters and digits: nothing is escaped
        return b'{"id":"%b","key":%b,"value":%b}' % (doc_key, key, value)
    text = id_text(doc_key)
    is_shown = doc_key.isascii() or text.encode() == doc_key
    exact = b"" if is_shown else b',"id_base64":"%b"' % b64encode(doc_key)
    shown = encode_basestring_ascii(text).encode()
    return b'{"id":%b,"key":%b,"value":%b%b}' % (shown, key, value, exact)


def _document_of(doc_key: bytes, value: bytes) -> bytes:
    """Return which document belongs to a row; a value may name another one by ``_id``."""
    if not (value.startswith(b"{") and b'"_id"' in value):
        return doc_key
    named = json.loads(value).get("_id")
    try:
        return id_bytes(named) if isinstance(named, str) else doc_key
    except UnicodeError:
        return b""  # no document has such an id


def _json_key(entry: Entry) -> bytes:
    return split_row_value(entry.value)[1]


def _shown(bound: Bound | None, instead: bytes) -> bytes:
    return instead if bound is None else json.dumps(bound.key).encode()


def _key_range(low: bytes, high: bytes) -> str:
    first, last = _cut(low), _cut(high)
    return f"key {first}" if low == high else f"the keys from {first} to {last}"


def _cut(key: bytes) -> str:
    text = key.decode("utf-8", "replace")
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
