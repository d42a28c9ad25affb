"""Values of options and arguments, read as settings and the options of Spark are."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import click

from uprmc import places, units
from uprmc.errors import ConfigError
from uprmc.remote import ranges

if TYPE_CHECKING:
    _ParamType = click.ParamType[Any]
else:
    _ParamType = click.ParamType

_SECONDS_MAX = 1_000_000.0

#: What stands for anything in a pattern of keys; behind a backslash it stands for itself.
_ANYTHING = "*"
_LETTER = r"\\[\\*]|[^*]"


class Read(_ParamType):
    """Text that a reader such as those of `uprmc.units` understands.

    Args:
        reader: raises `ValueError` with what was expected.
        shown: how help shows such a value.
        least, most: of a number, both allowed.
        unit: of both, for messages.
    """

    def __init__(
        self,
        reader: Callable[[str], Any],
        shown: str,
        least: float | None = None,
        most: float | None = None,
        unit: str = "",
    ) -> None:
        self._reader, self.name = reader, shown
        self._least, self._most, self._unit = least, most, unit

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        return self.name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            found = self._reader(value)
        except ValueError as error:
            self.fail(f"{value!r} is not {error}", param, ctx)
        if self._least is not None and found < self._least:
            self.fail(f"{value!r} is less than {_shown(self._least)}{self._unit}", param, ctx)
        if self._most is not None and found > self._most:
            self.fail(f"{value!r} is more than {_shown(self._most)}{self._unit}", param, ctx)
        return found


def _shown(limit: float) -> str:
    return str(limit) if isinstance(limit, int) else f"{limit:.10g}"


def seconds(least: float = 0.0) -> Read:
    """Return the type of a time."""
    return Read(units.seconds, "TIME", least, _SECONDS_MAX, " s")


def whole(shown: str = "N", least: int = 0, most: int | None = None) -> Read:
    """Return the type of a whole number."""
    return Read(units.whole, shown, least, most)


def count_option(
    *names: str, help: str, default: str | None = None, most: int | None = None
) -> Callable[[Any], Any]:
    """Return an option that takes how many of something, at least 1; its help tells the default."""
    kind, shown = whole(least=1, most=most), default is not None
    return click.option(*names, type=kind, default=default, show_default=shown, help=help)


SIZE = Read(units.size, "SIZE", 1)
NAMES = Read(units.names, "NAME,...")
PLACE = Read(places.complete, "HOST:PORT")
PLACES = Read(places.several, "HOST:PORT,...")
VBUCKETS = Read(ranges.parsed, "N|A-B,...")


class KeyPattern:
    """A key as people name it: ``*`` stands for any bytes, also none, and ``\\*`` for a star.

    Args:
        text: as it was typed.
        whole: without a star it is one key; otherwise it is how keys begin.
    """

    def __init__(self, text: str, *, whole: bool) -> None:
        pieces = [""]
        for found in re.finditer(rf"{_LETTER}|[*]", text, re.DOTALL):
            if found[0] == _ANYTHING:
                pieces.append("")
            else:
                pieces[-1] += found[0] if len(found[0]) == 1 else found[0][1]
        if len(pieces) == 1 and not whole:
            pieces.append("")
        self._first, *self._others = map(os.fsencode, pieces)
        # The one key that it names, ``None`` = it may be several.
        self.key = None if self._others else self._first

    def matches(self, key: bytes) -> bool:
        """Tell whether a key is meant."""
        if self.key is not None:
            return key == self.key
        *inner, last = self._others
        at, end = len(self._first), len(key) - len(last)
        if not key.startswith(self._first) or not key.endswith(last):
            return False
        for piece in inner:
            at = key.find(piece, at, end)
            if at < 0:
                return False
            at += len(piece)
        return at <= end


def prefix_of(text: str) -> str:
    """Return how keys begin that ``TEXT`` or ``TEXT*`` means; raises `ValueError`."""
    begins = re.fullmatch(rf"((?:{_LETTER})*)[*]?", text, re.DOTALL)
    if begins is None:
        raise ValueError("how keys begin: a star may only be at its end")
    return re.sub(r"\\([\\*])", r"\1", begins[1])


PREFIX = Read(prefix_of, "TEXT")


def each_once(numbers: Iterable[Iterable[int]]) -> list[int]:
    """Return all numbers of several sets, in order."""
    return sorted({number for some in numbers for number in some})


def from_pairs(pairs: tuple[str, ...]) -> dict[str, str]:
    """Return what ``--set`` options say; raises `ConfigError` for one that says nothing."""
    changes = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise ConfigError(f"--set {pair!r}: say --set section.name=value")
        if name.strip() in changes:
            raise ConfigError(f"--set {name.strip()} is given twice: say it once")
        changes[name.strip()] = value.strip()
    return changes
