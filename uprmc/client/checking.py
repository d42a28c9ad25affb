"""What is wrong with a handler, told before a consumer begins: pure rules, nothing is called.

A method with a misspelt name would never be called, and one with other parameters would fail at
its first call, perhaps days later.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from functools import partial
from typing import Any

from uprmc.client.errors import MisuseError
from uprmc.client.handler import BatchHandler, DurableHandler, Handler

#: What is called, and with what.
_SIGNATURES: dict[str, tuple[str, ...]] = {
    name: tuple(inspect.signature(getattr(owner, name)).parameters)[1:]
    for owner, names in (
        (
            Handler,
            (
                "snapshot_begin",
                "mutation",
                "deletion",
                "snapshot_end",
                "rollback",
                "undo",
                "branch",
            ),
        ),
        (BatchHandler, ("changes",)),
        (DurableHandler, ("durable",)),
    )
    for name in names
}

_NAMES = {
    each.replace("_", ""): each for each in (*_SIGNATURES, "native_rollback", "returns_anywhere")
}

#: What other libraries put before the names of methods that are called.
_PREFIXES = ("on", "handle")

#: How much of a name must be right to be taken for a misspelt one. A prefix says what is meant.
_ALIKE = 0.8
_ALIKE_WITH_PREFIX = 0.6


def check_handler(handler: object, *, blocks: bool) -> None:
    """Raise `MisuseError` if this is no handler, or one that cannot be what its author means.

    Args:
        handler: what a program gives.
        blocks: methods are to return when they are done; otherwise they may return an awaitable.
    """
    if isinstance(handler, type):
        raise MisuseError(
            f"handler {handler.__name__} is a class: give an object, {_made(handler)}"
        )
    if not isinstance(handler, Handler):
        raise MisuseError(
            f"handler {_short(handler)} is no handler: give an object of a subclass of "
            "uprmc.client.Handler"
        )
    for name, expected in _SIGNATURES.items():
        found = getattr(handler, name, None)
        if name == "changes":  # objects may keep a list there
            found = getattr(type(handler), name, None)
            found = partial(found, handler) if callable(found) else None
        if found is not None or hasattr(Handler, name):
            _check_method(type(handler), name, found, expected, blocks=blocks)
    for name in _own_names(type(handler)):
        _check_name(type(handler), name)


def _made(kind: type) -> str:
    return f"{kind.__name__}()" if issubclass(kind, Handler) else "of a subclass of Handler"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else type(value).__name__


def _check_method(
    kind: type, name: str, method: Any, expected: tuple[str, ...], *, blocks: bool
) -> None:
    called = f"{name}({', '.join(expected)})"
    if not callable(method):
        raise MisuseError(f"{kind.__name__}.{name} is no method: define {called}")
    if blocks and inspect.iscoroutinefunction(method):
        raise MisuseError(
            f"{kind.__name__}.{name} is a coroutine: UprClient waits for none; use "
            "TwistedUprClient, or define it without async"
        )
    try:
        signature = inspect.signature(method)
    except ValueError:  # of some methods that are not written in Python nothing is known
        return
    try:
        signature.bind(*expected)
    except TypeError:
        raise MisuseError(
            f"{kind.__name__}.{name}{signature} cannot be called with {len(expected)} "
            f"argument{'s' if len(expected) > 1 else ''}: define {called}"
        ) from None


def _own_names(kind: type) -> Iterator[str]:
    """Yield the public names that a program's own classes define."""
    for each in kind.__mro__[: kind.__mro__.index(Handler)]:
        if not each.__module__.startswith("uprmc."):
            yield from (name for name in vars(each) if not name.startswith("_"))


def _check_name(kind: type, name: str) -> None:
    """Refuse a name that is nearly one of ours, unless that one is there as well."""
    meant = _meant(name)
    if not meant or _defines(kind, meant):
        return
    if meant == "changes" and (_defines(kind, "mutation") or _defines(kind, "deletion")):
        return  # a helper of theirs
    raise MisuseError(
        f"{kind.__name__}.{name} is never called: did you mean {meant}? If not, give it another "
        "name, for example one that begins with _"
    )


def _meant(name: str) -> str:
    plain = name.lower().replace("_", "")
    if name in _NAMES.values():
        return ""
    begins = next((each for each in _PREFIXES if plain.startswith(each)), "")
    alike = _ALIKE_WITH_PREFIX if begins else _ALIKE
    found = get_close_matches(plain.removeprefix(begins), list(_NAMES), n=1, cutoff=alike)
    return _NAMES[found[0]] if found else ""


def _defines(kind: type, name: str) -> bool:
    ours: Callable[..., Any] | bool | None = getattr(Handler, name, None)
    return getattr(kind, name, None) is not ours
