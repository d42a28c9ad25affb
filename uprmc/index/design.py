"""A design document: the definitions of some views that one index file holds, parsed and checked.

The form is CouchDB's and Couchbase's: ``{"views": {NAME: {"map": ..., "reduce": ...}}}``.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn
from urllib.parse import quote

from uprmc.config import IndexSettings
from uprmc.index.collation import Collation
from uprmc.index.errors import bad_request

__all__ = [
    "BUILT_IN_REDUCES",
    "ArrayOf",
    "Condition",
    "Constant",
    "DeclaredRules",
    "Design",
    "DesignOptions",
    "Function",
    "NoFunction",
    "ObjectOf",
    "Path",
    "RowRule",
    "Template",
    "View",
    "named_modules",
    "resolve",
]

# --- paths ----------------------------------------------------------------------------------------
# Paths of designs over HTTP, and the names that fit into them.


#: The one bucket.
BUCKET = "default"

#: Where all designs are.
DESIGNS = f"/{BUCKET}/_design"

#: Longest name of a design or a view, in UTF-8.
NAME_MAX_BYTES = 200

#: What names must be, for messages.
NAME_RULE = (
    f"printable characters of 1 to {NAME_MAX_BYTES} bytes together, no slash or backslash, "
    "and neither . nor .."
)


def design_path(name: str, *more: str) -> str:
    """Return the path of a design, or of something below it."""
    return "/".join([DESIGNS, *(quote(part, safe="") for part in (name, *more))])


def is_name(name: str) -> bool:
    """Return whether a design or a view can have a name: what could not be asked for cannot."""
    if not name.isprintable() or "/" in name or "\\" in name or name in (".", ".."):
        return False  # half of a character is not printable either, so that it can be encoded
    return 0 < len(name.encode()) <= NAME_MAX_BYTES


# --- functions ------------------------------------------------------------------------------------
# Python functions that may be maps: of modules that the operator has named, and of no others.


#: Takes a document and its `meta`; gives pairs of key and value.
Function = Callable[[Any, dict[str, Any]], Iterable[tuple[Any, Any]] | None]


class NoFunction(ValueError):
    """The module or function cannot be used; the text says why."""


def named_modules(setting: str) -> frozenset[str]:
    """Return the modules that `index.python_modules` names."""
    return frozenset(name.strip() for name in setting.split(",") if name.strip())


def resolve(named: str, modules: Collection[str]) -> Function:
    """Return the function ``module:function``; raise `NoFunction`."""
    module, _, name = named.partition(":")
    if module not in modules:
        raise NoFunction(f"the setting index.python_modules does not name {module!r}")
    try:
        found = getattr(importlib.import_module(module), name, None)
    except Exception as error:
        raise NoFunction(f"module {module!r} cannot be imported: {error}") from None
    if not callable(found):
        raise NoFunction(f"module {module!r} has no function {name!r}")
    function: Function = found
    return function


# --- rules ----------------------------------------------------------------------------------------
# Declarative maps as they are written, checked: which documents emit what, without any code.
#
# ``{"where": {"type": "user"}, "emit": [{"key": ["$.city", "$.age"], "value": 1}]}``. A string that
# begins with ``$.`` is a path into the document, everything else a constant; ``{"const": "$.x"}``
# is a constant that looks like a path.


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
class RowRule:
    """What a document emits."""

    key: Template
    value: Template


@dataclass(frozen=True, slots=True)
class DeclaredRules:
    """A declarative map: all conditions must be true, then each row is emitted."""

    where: tuple[Condition, ...]
    emit: tuple[RowRule, ...]

    @classmethod
    def parse(cls, map_: Mapping[str, Any]) -> DeclaredRules:
        """Return the rules of a definition; raise `BadRules`."""
        _known(map_, ("where", "emit"), "map", BadRules)
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


def _row(row: Any, where: str) -> RowRule:
    if not isinstance(row, dict) or "key" not in row:
        raise BadRules(f'{where} is an object with a "key" and perhaps a "value"')
    _known(row, ("key", "value"), where, BadRules)
    return RowRule(
        _template(row["key"], f"{where}.key"), _template(row.get("value"), f"{where}.value")
    )


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
        return _template_of(value, where, depth)
    return Constant(value)


def _template_of(value: dict[str, Any], where: str, depth: int) -> Template:
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
    _known(wanted, OPERATORS, where, BadRules)
    return [_condition(path, operator, wanted[operator], where) for operator in wanted]


def _condition(path: Path, operator: str, operand: Any, where: str) -> Condition:
    if operator == "$exists" and not isinstance(operand, bool):
        raise BadRules(f"{where}.$exists is true or false")
    template = _template(operand, f"{where}.{operator}")
    if operator == "$in" and not isinstance(operand, list) and not isinstance(template, Path):
        raise BadRules(f"{where}.$in is an array")
    return Condition(path, operator, template)


# --- design ---------------------------------------------------------------------------------------


BUILT_IN_REDUCES = ("_count", "_sum", "_stats", "_approx_count_distinct")

_DEFAULTS = IndexSettings()

#: What CouchDB's own tools write beside the views; it is kept in the text and means nothing here.
_IGNORED = ("_id", "_rev", "language")


@dataclass(frozen=True, slots=True)
class View:
    """One view of a design."""

    name: str  # as in the request's path
    kind: Literal["declarative", "javascript", "python"]  # which of these it is
    # `DeclaredRules`, or the text of a JavaScript function, or ``module:function`` of Python.
    map: DeclaredRules | str
    # names of built-in reduces or texts of JavaScript functions; none or one.
    reduces: tuple[str, ...] = ()

    @property
    def rules(self) -> DeclaredRules:
        """The map of a declarative view."""
        assert isinstance(self.map, DeclaredRules)
        return self.map

    @property
    def text(self) -> str:
        """The function of a view that has one."""
        assert isinstance(self.map, str)
        return self.map


@dataclass(frozen=True, slots=True)
class DesignOptions:
    """What holds for all views of a design."""

    collation: Collation = "unicode"


@dataclass(frozen=True, slots=True)
class Design:
    """Definitions that are built together, in one file."""

    name: str  # without ``_design/``
    views: tuple[View, ...]  # in the order of their names: their places in the file
    options: DesignOptions
    signature: str  # equal for equal definitions and options, in hexadecimal
    text: bytes = field(repr=False)  # as it was put

    @classmethod
    def parse(
        cls,
        name: str,
        body: bytes,
        python_modules: Collection[str] = (),
        *,
        settings: IndexSettings = _DEFAULTS,
    ) -> Design:
        """Return the design that `body` defines; raise `Refused` with status 400.

        Whether its JavaScript is right is for `javascript.check.refuse_faults` to say.
        """
        _check_name("design", name)
        if len(body) > settings.max_definition_bytes:
            raise bad_request(
                f"the design has {len(body)} bytes; the most are {settings.max_definition_bytes}"
            )
        definition = _json(body)
        _known(definition, ("views", "options", *_IGNORED), "the design")
        if definition.get("language", "javascript") != "javascript":
            raise bad_request("the design's language is javascript, or not named")
        views = _views(definition.get("views"), python_modules, settings.views)
        options = _options(definition.get("options", {}))
        signature = _signature(definition["views"], options)
        return cls(name, views, options, signature, body)

    def view_index(self, name: str) -> int | None:
        """Return the place of a view, ``None`` if there is no such."""
        return next((i for i, view in enumerate(self.views) if view.name == name), None)

    def javascript(self) -> list[tuple[str, str]]:
        """Return each JavaScript function with words for it."""
        found = []
        for view in self.views:
            if view.kind == "javascript":
                found.append((f"view {view.name!r}: its map", view.text))
            found += [
                (f"view {view.name!r}: its reduce", reduce)
                for reduce in view.reduces
                if reduce not in BUILT_IN_REDUCES
            ]
        return found

    @property
    def javascript_reduces(self) -> tuple[str, ...]:
        """The JavaScript functions that are reduces, of all views."""
        reduces = [reduce for view in self.views for reduce in view.reduces]
        return tuple(reduce for reduce in reduces if reduce not in BUILT_IN_REDUCES)


def _json(body: bytes) -> dict[str, Any]:
    try:
        text = body.decode()
        value = json.loads(text, parse_constant=_no_constant, object_pairs_hook=_members)
        json.dumps(value, ensure_ascii=False).encode()  # no half surrogate pairs
    except json.JSONDecodeError as error:
        at = {"line": error.lineno, "column": error.colno}
        reason = f"the design is not JSON: {error.msg} (line {error.lineno}, column {error.colno})"
        raise bad_request(reason, **at) from None
    except RecursionError:
        raise bad_request("the design is nested too deeply") from None
    except UnicodeError:
        raise bad_request("the design is not UTF-8") from None
    except ValueError as error:
        raise bad_request(f"the design is not JSON: {error}") from None
    return _object(value, "the design")


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON value")


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"an object has the member {twice!r} twice")
    return members


def _object(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise bad_request(f"{what} is a JSON object")
    return value


def _known(
    members: Mapping[str, Any],
    known: tuple[str, ...],
    what: str,
    error: Callable[[str], Exception] = bad_request,
) -> None:
    for name in members:
        if name not in known:
            raise error(f"{what} has the unknown member {name!r}; known are {', '.join(known)}")


def _check_name(what: str, name: str) -> None:
    if not is_name(name):
        raise bad_request(f"the name of a {what} is {NAME_RULE}")
    if name.startswith("_"):
        raise bad_request(f"the name of a {what} does not begin with an underscore")


def _views(views: Any, python_modules: Collection[str], most: int) -> tuple[View, ...]:
    if not views:
        raise bad_request("the design has no views")
    if len(_object(views, "views")) > most:
        raise bad_request(f"the design has {len(views)} views; the most are {most}")
    return tuple(_view(name, views[name], python_modules) for name in sorted(views))


def _view(name: str, definition: Any, python_modules: Collection[str]) -> View:
    _check_name("view", name)
    what = f"view {name!r}"
    _known(_object(definition, what), ("map", "reduce"), what)
    reduces = _reduces(definition.get("reduce"), what)
    map_ = definition.get("map")
    if isinstance(map_, str):
        return View(name, "javascript", _function(map_, f"{what}: its map"), reduces)
    if not isinstance(map_, dict):
        raise bad_request(f"{what}: its map is a JavaScript function or an object")
    if "python" in map_:
        return View(name, "python", _python(map_, python_modules, what), reduces)
    try:
        return View(name, "declarative", DeclaredRules.parse(map_), reduces)
    except BadRules as error:
        raise bad_request(f"{what}: {error}") from None


def _python(map_: dict[str, Any], modules: Collection[str], what: str) -> str:
    _known(map_, ("python",), what)
    named = map_["python"]
    if not isinstance(named, str) or not all(named.partition(":")):
        raise bad_request(f"{what}: a Python map is named as module:function")
    try:
        resolve(named, modules)
    except NoFunction as error:
        raise bad_request(f"{what}: {error}") from None
    return named


def _reduces(reduce: Any, what: str) -> tuple[str, ...]:
    if reduce is None:
        return ()
    if not isinstance(reduce, str):
        raise bad_request(f"{what}: its reduce is the name of a built-in one or a function")
    if reduce.startswith("_") and reduce not in BUILT_IN_REDUCES:
        known = ", ".join(BUILT_IN_REDUCES)
        raise bad_request(f"{what}: there is no reduce {reduce!r}; built-in are {known}")
    if reduce in BUILT_IN_REDUCES:
        return (reduce,)
    return (_function(reduce, f"{what}: its reduce"),)


def _function(text: str, what: str) -> str:
    """Return a function's text without what CouchDB tolerates behind it."""
    function = text.rstrip().rstrip(";").rstrip()
    if not function:
        raise bad_request(f"{what} is empty")
    return function


def _options(options: Any) -> DesignOptions:
    _known(_object(options, "options"), ("collation",), "options")
    collation = options.get("collation", "unicode")
    if collation == "unicode":
        return DesignOptions("unicode")
    if collation == "raw":
        return DesignOptions("raw")
    raise bad_request("options.collation is 'unicode' or 'raw'")


def _signature(views: dict[str, Any], options: DesignOptions) -> str:
    """Return the hash: the order of views does not count, that of members of a constant does."""
    ordered = {name: views[name] for name in sorted(views)}
    text = json.dumps([ordered, {"collation": options.collation}], separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]
