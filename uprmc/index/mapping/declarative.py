"""Declarative maps, compiled once into closures: paths, conditions, rows.

A missing path is null in a value; in a key the document does not emit that row. A missing path
satisfies no condition but ``{"$exists": false}``, as in CouchDB's Mango. Comparisons are of values
of one kind, in the order of the view.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, Final

from uprmc.config import IndexSettings
from uprmc.index.collation import Collation, sort_key
from uprmc.index.design import (
    ArrayOf,
    Condition,
    Constant,
    DeclaredRules,
    ObjectOf,
    Path,
    RowRule,
    Template,
)
from uprmc.index.json_text import dumps
from uprmc.index.mapping.documents import Encoder, Limits
from uprmc.index.model import Emission

__all__ = ["MISSING", "Map", "compile_path", "compile_rules"]


class _Missing:
    """What a path gives where the document has nothing."""


MISSING: Final = _Missing()

#: Gives what a document emits; raises `MapError` where it is too much.
Map = Callable[[Any], Sequence[Emission]]

_Get = Callable[[Any], Any]
_Test = Callable[[Any], bool]

_new = tuple.__new__

_COMPARE = {
    "$gt": operator.gt,
    "$gte": operator.ge,
    "$lt": operator.lt,
    "$lte": operator.le,
}


def compile_rules(rules: DeclaredRules, collation: Collation, settings: IndexSettings) -> Map:
    """Return the map that does what the rules say."""
    limits = Limits(settings)
    encoder = Encoder(collation)
    emits = [_compile_row(row, encoder, limits) for row in rules.emit]
    emit = emits[0] if len(emits) == 1 else _several(emits, limits)
    tests = [_compile_condition(condition, collation) for condition in rules.where]
    return _where(_all(tests), emit) if tests else emit


def _where(test: _Test, emit: Map) -> Map:
    def run(document: Any) -> Sequence[Emission]:
        return emit(document) if test(document) else ()

    return run


def _all(tests: list[_Test]) -> _Test:
    if len(tests) == 1:
        return tests[0]

    def every(document: Any) -> bool:
        return all(test(document) for test in tests)

    return every


def _several(emits: list[Map], limits: Limits) -> Map:
    def run(document: Any) -> Sequence[Emission]:
        rows = [row for emit in emits for row in emit(document)]
        limits.check(rows)
        return rows

    return run


def _compile_row(row: RowRule, encoder: Encoder, limits: Limits) -> Map:
    """Return what emits one row, or none."""
    get_key, get_text = _compile_template(row.key, MISSING), _compile_value(row.value)
    encode = encoder.encode
    most_key, most_value = limits.key, limits.value

    def emit(document: Any) -> Sequence[Emission]:
        key = get_key(document)
        if key is MISSING:
            return ()
        sort_key, key_text = encode(key)
        value_text = get_text(document)
        if len(key_text) > most_key or len(value_text) > most_value:
            limits.check_row(key_text, value_text)
        return (_new(Emission, (sort_key, key_text, value_text)),)

    return emit


def _compile_value(template: Template) -> Callable[[Any], bytes]:
    """Return what makes the text of a row's value."""
    if isinstance(template, Constant):
        text = dumps(template.value)
        return lambda document: text
    get = _compile_template(template, None)
    return lambda document: dumps(get(document))


def _compile_template(template: Template, missing: Any) -> _Get:
    """Return what makes a value of a document; a missing path is `missing`.

    An array or object with a missing part is missing itself where `missing` is `MISSING`.
    """
    match template:
        case Constant(value):
            return lambda document: value
        case Path():
            return compile_path(template, missing)
        case ArrayOf(items):
            return _array([_compile_template(each, missing) for each in items])
        case ObjectOf(members):
            return _object({name: _compile_template(each, missing) for name, each in members})


def _array(gets: list[_Get]) -> _Get:
    def make(document: Any) -> Any:
        values = []
        for get in gets:
            value = get(document)
            if value is MISSING:
                return MISSING
            values.append(value)
        return values

    return make


def _object(gets: dict[str, _Get]) -> _Get:
    def make(document: Any) -> Any:
        values = {}
        for name, get in gets.items():
            value = get(document)
            if value is MISSING:
                return MISSING
            values[name] = value
        return values

    return make


def compile_path(path: Path, missing: Any) -> _Get:
    """Return what reads a path in a document."""
    match path.steps:
        case (str(outer), str(inner)):
            return _two_members(outer, inner, missing)
        case (str(name),):
            pass
        case _:
            return _steps(path.steps, missing)

    def member(document: Any) -> Any:
        return document.get(name, missing) if type(document) is dict else missing

    return member


def _two_members(outer: str, inner: str, missing: Any) -> _Get:
    """Return what reads the most frequent path of more than one step."""

    def member(document: Any) -> Any:
        if type(document) is not dict:
            return missing
        value = document.get(outer)
        return value.get(inner, missing) if type(value) is dict else missing

    return member


def _steps(steps: tuple[str | int, ...], missing: Any) -> _Get:
    kinds = tuple((step, dict if isinstance(step, str) else list) for step in steps)

    def walk(document: Any) -> Any:
        value: Any = document
        try:
            for step, kind in kinds:
                if type(value) is not kind:
                    return missing
                value = value[step]  # type: ignore[index]
        except (KeyError, IndexError):
            return missing
        return value

    return walk


def _compile_condition(condition: Condition, collation: Collation) -> _Test:
    get = compile_path(condition.path, MISSING)
    operand = _compile_template(condition.operand, MISSING)
    match condition.operator:
        case "$exists":
            wanted = operand(None)
            return lambda document: (get(document) is not MISSING) is wanted
        case "=" if isinstance(condition.operand, Constant):
            return _equality_with(condition.path, condition.operand.value)
        case "=" | "$ne":
            return _equality(get, operand, condition.operator == "=")
        case "$in":
            return _membership(get, operand)
    return _comparison(get, operand, _COMPARE[condition.operator], collation)


def _equality_with(path: Path, wanted: Any) -> _Test:
    """Return the most frequent condition: a member is a constant, mostly a string."""
    get = compile_path(path, MISSING)
    if not isinstance(wanted, str):
        return lambda document: _same(get(document), wanted)
    name = path.steps[0]
    if len(path.steps) == 1 and isinstance(name, str):
        return lambda document: type(document) is dict and document.get(name) == wanted
    return lambda document: bool(get(document) == wanted)


def _equality(get: _Get, operand: _Get, equal: bool) -> _Test:
    def test(document: Any) -> bool:
        value, wanted = get(document), operand(document)
        if value is MISSING or wanted is MISSING:
            return False
        return _same(value, wanted) is equal

    return test


def _membership(get: _Get, operand: _Get) -> _Test:
    def test(document: Any) -> bool:
        value, wanted = get(document), operand(document)
        if value is MISSING or type(wanted) is not list:
            return False
        return any(_same(value, each) for each in wanted)

    return test


def _comparison(
    get: _Get, operand: _Get, compare: Callable[[Any, Any], bool], collation: Collation
) -> _Test:
    def test(document: Any) -> bool:
        value, wanted = get(document), operand(document)
        kind = _kind(value)
        if kind is None or _kind(wanted) != kind:
            return False
        if kind == "number":
            return compare(value, wanted)
        return compare(sort_key(value, collation), sort_key(wanted, collation))

    return test


def _kind(value: Any) -> str | None:
    """Return what kind of JSON value it is; ``None`` if it is missing."""
    return _KINDS.get(type(value))


_KINDS = {
    type(None): "null",
    bool: "boolean",
    int: "number",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
}


def _same(value: Any, other: Any) -> bool:
    """Whether two JSON values are equal: ``1`` is ``1.0`` and not ``true``."""
    if type(value) is str:
        return bool(value == other)
    if _kind(value) != _kind(other):
        return False
    if type(value) is list:
        return len(value) == len(other) and all(map(_same, value, other))
    if type(value) is dict:
        return value.keys() == other.keys() and all(_same(value[n], other[n]) for n in value)
    return bool(value == other)
