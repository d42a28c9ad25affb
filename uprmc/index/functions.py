"""Python functions that may be maps: of modules that the operator has named, and of no others."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Iterable
from typing import Any

__all__ = ["Function", "NoFunction", "named_modules", "resolve"]

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
