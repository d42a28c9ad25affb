"""Declarative maps as they are written, checked: which documents emit what, without any code.

``{"where": {"type": "user"}, "emit": [{"key": ["$.city", "$.age"], "value": 1}]}``. A string that
begins with ``$.`` is a path into the document, everything else a constant; ``{"const": "$.x"}`` is
a constant that looks like a path. Source: contracts reference, section 4.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["ArrayOf", "Condition", "Constant", "ObjectOf", "Path", "Row", "Rules", "Template"]

#: Rows that one map may describe, and how deeply each may be nested.
MAX_ROWS = 64
MAX_DEPTH = 32

OPERATORS = ("$exists", "$ne", "$in", "$gt", "$gte", "$lt", "$lte")

_STEP = re.compile(r"(?:^|\.)([^.\[\]]+)|\[(0|[1-9][0-9]{0,8})\]")


class BadRules(ValueError):
    """A declarative map makes no sense; the text says where and why."""


@dataclass(frozen=True, slots=True)
class Path:
    """Where a value stands in a document: names of members, indices of arrays."""

    steps: tuple[str | int, ...]

    @classmethod
    def parse(cls, text: str, where: str) -> Path:
        """Return the path that `text` is, without or with its ``$.``; raise `BadRules`."""
        rest = text.removeprefix("$.")
        steps: list[str | int] = []
        at = 0
        while at < len(rest):
            found = _STEP.match(rest, at)
            if found is None:
                character = at + 1 + len(text) - len(rest)
                raise BadRules(f"{where}: path {text!r} is wrong at character {character}")
            name, index = found.groups()
            steps.append(name if index is None else int(index))
            at = found.end()
        if not steps:
            raise BadRules(f"{where}: path {text!r} names nothing")
        return cls(tuple(steps))


@dataclass(frozen=True, slots=True)
class Constant:
    """A value that is the same for all documents."""

    value: Any


@dataclass(frozen=True, slots=True)
class ArrayOf:
    """An array of what the templates give."""

    items: tuple[Template, ...]


@dataclass(frozen=True, slots=True)
class ObjectOf:
    """An object of what the templates give."""

    members: tuple[tuple[str, Template], ...]


Template = Path | Constant | ArrayOf | ObjectOf


@dataclass(frozen=True, slots=True)
class Condition:
    """What a document must satisfy: ``=`` or one of `OPERATORS`."""

    path: Path
    operator: str
    operand: Template


@dataclass(frozen=True, slots=True)
class Row:
    """What a document emits."""

    key: Template
    value: Template


@dataclass(frozen=True, slots=True)
class Rules:
    """A declarative map: all conditions must be true, then each row is emitted."""

    where: tuple[Condition, ...]
    emit: tuple[Row, ...]

    @classmethod
    def parse(cls, map_: Mapping[str, Any]) -> Rules:
        """Return the rules of a definition; raise `BadRules`."""
        _known(map_, ("where", "emit"), "map")
        where = map_.get("where", {})
        if not isinstance(where, dict):
            raise BadRules("where is an object of conditions")
        emit = map_.get("emit")
        if not isinstance(emit, list) or not emit:
            raise BadRules("emit is an array of at least one row")
        if len(emit) > MAX_ROWS:
            raise BadRules(f"emit has {len(emit)} rows; the most are {MAX_ROWS}")
        conditions = [each for name in where for each in _conditions(name, where[name])]
        return cls(tuple(conditions), tuple(_row(r, f"emit[{i}]") for i, r in enumerate(emit)))


def _row(row: Any, where: str) -> Row:
    if not isinstance(row, dict) or "key" not in row:
        raise BadRules(f'{where} is an object with a "key" and perhaps a "value"')
    _known(row, ("key", "value"), where)
    return Row(_template(row["key"], f"{where}.key"), _template(row.get("value"), f"{where}.value"))


def _template(value: Any, where: str, depth: int = 0) -> Template:
    if depth > MAX_DEPTH:
        raise BadRules(f"{where} is nested too deeply")
    if isinstance(value, str):
        return Path.parse(value, where) if value.startswith("$.") else Constant(value)
    if isinstance(value, list):
        items = tuple(_template(each, f"{where}[{i}]", depth + 1) for i, each in enumerate(value))
        if all(isinstance(each, Constant) for each in items):
            return Constant([each.value for each in items if isinstance(each, Constant)])
        return ArrayOf(items)
    if isinstance(value, dict):
        return _object(value, where, depth)
    return Constant(value)


def _object(value: dict[str, Any], where: str, depth: int) -> Template:
    if value.keys() == {"const"}:
        return Constant(value["const"])
    members = [
        (name, _template(each, f"{where}.{name}", depth + 1)) for name, each in value.items()
    ]
    if all(isinstance(each, Constant) for _, each in members):
        return Constant({n: each.value for n, each in members if isinstance(each, Constant)})
    return ObjectOf(tuple(members))


def _conditions(name: str, wanted: Any) -> list[Condition]:
    where = f"where.{name}"
    path = Path.parse(name, where)
    if not isinstance(wanted, dict) or not any(each.startswith("$") for each in wanted):
        return [Condition(path, "=", _template(wanted, where))]
    _known(wanted, OPERATORS, where)
    return [_condition(path, operator, wanted[operator], where) for operator in wanted]


def _condition(path: Path, operator: str, operand: Any, where: str) -> Condition:
    if operator == "$exists" and not isinstance(operand, bool):
        raise BadRules(f"{where}.$exists is true or false")
    template = _template(operand, f"{where}.{operator}")
    if operator == "$in" and not isinstance(operand, list) and not isinstance(template, Path):
        raise BadRules(f"{where}.$in is an array")
    return Condition(path, operator, template)


def _known(members: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    for name in members:
        if name not in known:
            raise BadRules(f"{where} has the unknown member {name!r}; known are {', '.join(known)}")
