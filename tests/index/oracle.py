"""A naive map/reduce index: every answer is made anew from all documents.

It shares no code with `uprmc`: own comparison of JSON values, own reading of declarative maps, own
reduces. What it says is what CouchDB's and Couchbase's documentation say, and contracts section 4
where they leave a point open.

Source: systems reference c.3 (collation), c.8 (options); CouchDB manual, "Views collation".
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cmp_to_key
from itertools import groupby
from typing import Any, NamedTuple

#: Printable ASCII in the order of the Unicode Collation Algorithm's table; letters follow.
_ASCII = " _-,;:!?.'\"()[]{}@*/\\&#%`^+<=>|~$0123456789"

_MISSING = object()


class Row(NamedTuple):
    """What a document emitted: its `number`-th row."""

    key: Any
    id: bytes
    number: int
    vbucket: int
    value: Any


# --- collation ------------------------------------------------------------------------------------


def compare(one: Any, other: Any, collation: str = "unicode") -> int:
    """Return -1, 0 or 1. Strings of `unicode` must be printable ASCII."""
    first, second = _kind(one), _kind(other)
    if first != second:
        return -1 if first < second else 1
    if first == _NUMBER:
        return (one > other) - (one < other)
    if first == _STRING:
        return _strings(one, other, collation)
    if first == _ARRAY:
        return _sequences(one, other, collation)
    if first == _OBJECT:
        return _sequences(_members(one), _members(other), collation)
    return 0


_NUMBER, _STRING, _ARRAY, _OBJECT = 3, 4, 5, 6


def _kind(value: Any) -> int:
    for number, plain in enumerate((None, False, True)):
        if value is plain:
            return number
    if isinstance(value, int | float):
        return _NUMBER
    return {str: _STRING, list: _ARRAY, dict: _OBJECT}[type(value)]


def _members(value: Mapping[str, Any]) -> list[Any]:
    """Return names and values in turn, in the order in which the object has them."""
    return [part for pair in value.items() for part in pair]


def _sequences(one: Sequence[Any], other: Sequence[Any], collation: str) -> int:
    for left, right in zip(one, other, strict=False):
        if order := compare(left, right, collation):
            return order
    return (len(one) > len(other)) - (len(one) < len(other))


def _strings(one: str, other: str, collation: str) -> int:
    left: Any
    right: Any
    if collation == "raw":
        left, right = one.encode("utf-8"), other.encode("utf-8")
    else:
        left, right = _weights(one), _weights(other)
    return (left > right) - (left < right)


def _weights(text: str) -> tuple[list[int], list[bool]]:
    """Return the primary and the tertiary weights: case decides only between equal letters."""
    return [_primary(letter) for letter in text], [letter.isupper() for letter in text]


def _primary(letter: str) -> int:
    place = _ASCII.find(letter)
    if place >= 0:
        return place
    if not (letter.isascii() and letter.isalpha()):
        raise ValueError(letter)
    return len(_ASCII) + ord(letter.lower())


# --- maps -----------------------------------------------------------------------------------------


def declared(
    definition: Mapping[str, Any], document: Any, collation: str = "unicode"
) -> list[tuple[Any, Any]]:
    """Return what a declarative map emits for a document, in order."""
    where = definition.get("where", {})
    if not all(_holds(_found(document, path), test, collation) for path, test in where.items()):
        return []
    rows = []
    for emit in definition["emit"]:
        key = _filled(emit.get("key"), document)
        if not _lacks(key):
            rows.append((key, _nulled(_filled(emit.get("value"), document))))
    return rows


def _found(document: Any, path: str) -> Any:
    for name in path.removeprefix("$.").split("."):
        if not isinstance(document, dict) or name not in document:
            return _MISSING
        document = document[name]
    return document


def _holds(value: Any, test: Any, collation: str) -> bool:
    if not (isinstance(test, dict) and test and all(name.startswith("$") for name in test)):
        return value is not _MISSING and _equal(value, test)
    return all(_passes(name, value, wanted, collation) for name, wanted in test.items())


def _passes(operator: str, value: Any, wanted: Any, collation: str) -> bool:
    if operator == "$exists":
        return (value is not _MISSING) is wanted
    if value is _MISSING:
        return False
    if operator == "$in":
        return any(_equal(value, each) for each in wanted)
    if operator == "$ne":
        return not _equal(value, wanted)
    if isinstance(value, bool) is not isinstance(wanted, bool):
        return False
    if not isinstance(value, bool) and _kind(value) != _kind(wanted):
        return False
    order = compare(value, wanted, collation)
    return {"$gt": order > 0, "$gte": order >= 0, "$lt": order < 0, "$lte": order <= 0}[operator]


def _equal(one: Any, other: Any) -> bool:
    """Whether both are the same JSON value; the order of an object's members does not count."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_equal(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_equal, one, other))
    return compare(one, other, "raw") == 0


def _filled(template: Any, document: Any) -> Any:
    if isinstance(template, str) and template.startswith("$."):
        return _found(document, template)
    if isinstance(template, list):
        return [_filled(each, document) for each in template]
    if isinstance(template, dict):
        if list(template) == ["const"]:
            return template["const"]
        return {name: _filled(each, document) for name, each in template.items()}
    return template


def _lacks(value: Any) -> bool:
    if isinstance(value, list):
        return any(map(_lacks, value))
    if isinstance(value, dict):
        return any(map(_lacks, value.values()))
    return value is _MISSING


def _nulled(value: Any) -> Any:
    if isinstance(value, list):
        return [_nulled(each) for each in value]
    if isinstance(value, dict):
        return {name: _nulled(each) for name, each in value.items()}
    return None if value is _MISSING else value


# --- reduces --------------------------------------------------------------------------------------


def count(values: Sequence[Any]) -> Any:
    """``_count``"""
    return len(values)


def total(values: Sequence[Any]) -> Any:
    """``_sum``: of numbers, or of arrays element by element."""
    if not any(isinstance(value, list) for value in values):
        return sum(values)
    arrays = [value if isinstance(value, list) else [value] for value in values]
    longest = max(map(len, arrays))
    return [sum(each[place] for each in arrays if place < len(each)) for place in range(longest)]


def stats(values: Sequence[Any]) -> Any:
    """``_stats``"""
    return {
        "sum": sum(values),
        "count": len(values),
        "min": min(values),
        "max": max(values),
        "sumsqr": sum(value * value for value in values),
    }


Reduce = Callable[[Sequence[Any]], Any]
REDUCES: dict[str, Reduce] = {"_count": count, "_sum": total, "_stats": stats}


# --- the index ------------------------------------------------------------------------------------

Map = Callable[[Any], Iterable[tuple[Any, Any]]]


@dataclass
class Oracle:
    """The documents that are there; a query maps all of them.

    Attributes:
        map: of one document (parsed JSON).
        reduce: ``None`` = the view has none.
        collation: ``unicode`` or ``raw``.
        documents: (vBucket, id) to its body.
    """

    map: Map
    reduce: Reduce | None = None
    collation: str = "unicode"
    documents: dict[tuple[int, bytes], Any] = field(default_factory=dict)

    def rows(self, vbuckets: Iterable[int] | None = None) -> list[Row]:
        """Return all rows in order, of these vBuckets only."""
        wanted = None if vbuckets is None else set(vbuckets)
        rows = [
            Row(key, document_id, number, vbucket, value)
            for (vbucket, document_id), body in self.documents.items()
            if wanted is None or vbucket in wanted
            for number, (key, value) in enumerate(self.map(body))
        ]
        rows.sort(key=lambda row: (row.id, row.number))
        rows.sort(key=self._ordered(lambda row: row.key))
        return rows

    def _ordered(self, of: Callable[[Any], Any]) -> Callable[[Any], Any]:
        place = cmp_to_key(lambda one, other: compare(one, other, self.collation))
        return lambda row: place(of(row))

    def answer(
        self, options: Mapping[str, Any], vbuckets: Iterable[int] | None = None
    ) -> list[dict[str, Any]]:
        """Return the rows of a query; options are values, not JSON text."""
        rows = self.rows(vbuckets)
        if options.get("descending"):
            rows.reverse()
        reduced = self.reduce is not None and options.get("reduce", True)
        found = self._reduced(rows, options) if reduced else self._plain(rows, options)
        skip = options.get("skip", 0)
        limit = options.get("limit")
        return found[skip:] if limit is None else found[skip : skip + limit]

    def _plain(self, rows: list[Row], options: Mapping[str, Any]) -> list[dict[str, Any]]:
        chosen = [row for part in self._parts(rows, options) for row in part]
        return [
            {"id": shown_id(row.id), "key": row.key, "value": row.value, **exact_id(row.id)}
            for row in chosen
        ]

    def _reduced(self, rows: list[Row], options: Mapping[str, Any]) -> list[dict[str, Any]]:
        assert self.reduce is not None
        return [
            {"key": key, "value": self.reduce([row.value for row in members])}
            for part in self._parts(rows, options)
            for key, members in self._groups(part, options)
        ]

    def _groups(
        self, rows: list[Row], options: Mapping[str, Any]
    ) -> Iterator[tuple[Any, list[Row]]]:
        level = options.get("group_level", 0)

        def of(row: Row) -> Any:
            if options.get("group"):
                return row.key
            if not level:
                return None
            return row.key[:level] if isinstance(row.key, list) else row.key

        for _, group in groupby(rows, key=self._ordered(of)):
            members = list(group)
            yield of(members[0]), members

    def _parts(self, rows: list[Row], options: Mapping[str, Any]) -> Iterator[list[Row]]:
        """Yield the chosen rows: one part for each of `keys`, in their order, else one part."""
        if "keys" in options:
            for key in options["keys"]:
                yield [row for row in rows if compare(row.key, key, self.collation) == 0]
        elif "key" in options:
            yield [row for row in rows if compare(row.key, options["key"], self.collation) == 0]
        else:
            yield [row for row in rows if self._in_range(row, options)]

    def _in_range(self, row: Row, options: Mapping[str, Any]) -> bool:
        sign = -1 if options.get("descending") else 1
        if "startkey" in options:
            order = sign * compare(row.key, options["startkey"], self.collation)
            if order < 0:
                return False
            first = options.get("startkey_docid")
            if order == 0 and first is not None and sign * _ids(row.id, first) < 0:
                return False
        if "endkey" in options:
            order = sign * compare(row.key, options["endkey"], self.collation)
            if order > 0:
                return False
            if order == 0:
                last = options.get("endkey_docid")
                if not options.get("inclusive_end", True):
                    return False
                return last is None or sign * _ids(row.id, last) <= 0
        return True


def _ids(one: bytes, other: str) -> int:
    second = b"".join(
        bytes([ord(each) & 255]) if 0xEF80 <= ord(each) <= 0xEFFF else each.encode()
        for each in other
    )
    return (one > second) - (one < second)


def shown_id(key: bytes) -> str:
    """Return an id as views.md says that it is shown."""
    found, rest = "", key
    while rest:
        size = next((n for n in range(1, 5) if _is_character(rest[:n])), 0)
        found += rest[:size].decode() if size else chr(0xEF00 + rest[0])
        rest = rest[size or 1 :]
    return found


def exact_id(key: bytes) -> dict[str, str]:
    """Return the member of a row that has the bytes of an id that is shown otherwise."""
    is_plain = shown_id(key).encode() == key
    return {} if is_plain else {"id_base64": b64encode(key).decode()}


def _is_character(some: bytes) -> bool:
    try:
        text = some.decode()
    except UnicodeDecodeError:
        return False
    return len(text) == 1 and not 0xEF80 <= ord(text) <= 0xEFFF


def parameters(options: Mapping[str, Any]) -> dict[str, str]:
    """Return options as they stand in a request: JSON, but ids and numbers bare."""
    bare = {"startkey_docid", "endkey_docid"}
    return {
        name: value if name in bare else json.dumps(value, ensure_ascii=False)
        for name, value in options.items()
    }
