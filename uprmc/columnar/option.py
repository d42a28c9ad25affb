"""Options as fields of dataclasses: each is declared once, with its name, default, limits and help.

From the declaration come the dataclass's field and the check of its value, the option of Spark's
source or sink, the option of the command line and the row in ``docs/spark-reference.md``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from uprmc import units
from uprmc.columnar.errors import BadOption

#: Where an option has a meaning.
BATCH, STREAM = "batch", "stream"


@dataclass(frozen=True)
class Option:
    """One option."""

    name: str  # in Spark's way of writing; case, ``_`` and ``-`` make no difference
    read: Callable[[str], Any]  # turns a text into the value; `ValueError` says what was expected
    default: str  # the text that counts when none is given; empty = the option has no default
    help: str  # one line
    least: float = -math.inf  # least, most: of a number, both allowed
    most: float = math.inf
    words: tuple[str, ...] = ()  # the values that it takes, if these are words
    secret: bool = False  # its text is never shown
    only: str = ""  # ``batch`` or ``stream``, if it has no meaning in the other one
    aliases: tuple[str, ...] = ()  # other names
    field: str = ""  # of the dataclass

    def known_as(self) -> tuple[str, ...]:
        """Return its names as they are looked up."""
        return tuple(plain(each) for each in (self.name, *self.aliases))

    def value(self, text: str | None) -> Any:
        """Return what a text means, ``None`` = what no text means; raises `BadOption`."""
        text = self.default if text is None else text.strip()
        if not text and not self.default:
            return None
        try:
            found = self.read(text)
        except ValueError as error:
            shown = "" if self.secret else f" {text!r}"
            raise BadOption(f"{self.name}:{shown} is not right: say {error}") from None
        self.check(found)
        return found

    def check(self, value: Any) -> None:
        """Raise `BadOption` if the value is none of its words, or out of range."""
        if self.words and value not in self.words:
            raise BadOption(f"{self.name}={value!r}: say one of {', '.join(self.words)}")
        if isinstance(value, int | float) and not self.least <= value <= self.most:
            raise BadOption(f"{self.name}: {value} is not {self._range()}")

    def _range(self) -> str:
        if self.most == math.inf:
            return f"{self.least:,.10g} or more"
        return f"from {self.least:,.10g} to {self.most:,.10g}"


def plain(name: str) -> str:
    """Return a name without what makes no difference."""
    return name.lower().replace("_", "").replace("-", "")


def option(
    name: str,
    read: Callable[[str], Any],
    default: str,
    help: str,
    *,
    absent: Any = None,
    **more: Any,
) -> Any:
    """Declare a field that is an option.

    Args:
        name, read, default, help, more: see `Option`.
        absent: the field's value where the option has neither text nor default.
    """
    made = Option(name, read, default, help, **more)
    value = read(default) if default else absent
    return field(default=value, repr=not made.secret, metadata={"option": made})


def choice(
    name: str,
    words: tuple[str, ...],
    help: str,
    *,
    former: Mapping[str, str] | None = None,
    **more: Any,
) -> Any:
    """Declare a field that is one of some words, or former words; the first is the default."""
    read = units.one_of(*words, aliases=former)
    return option(name, read, words[0], help, words=words, **more)


def table(kind: type) -> tuple[Option, ...]:
    """Return the options that a dataclass declares."""
    declared = ((each.name, each.metadata.get("option")) for each in fields(kind))
    return tuple(replace(each, field=name) for name, each in declared if each is not None)


def check(values: Any) -> None:
    """Raise `BadOption` if a field of a dataclass has a value that its option cannot have."""
    for each in table(type(values)):
        each.check(getattr(values, each.field))


def fields_of(kind: type, found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a dataclass from values by the names of options."""
    named = {each.field: found.get(each.name) for each in table(kind)}
    return {name: value for name, value in named.items() if value is not None}
