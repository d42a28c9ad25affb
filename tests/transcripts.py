"""Cases written as text: a sentence and the commands that follow it, a few lines each.

``== its sentence`` begins a case; what stands before the first one is done for every case. Commands
stand on a line each or between semicolons, comments after ``#``. ``for X: a | b`` repeats a case
with each value in place of ``$X``. What every `Script` knows:

    check EXPRESSION                it is true
    call EXPRESSION                 it is evaluated
    let NAME EXPRESSION             its value is noted under a name
    put THING FIELD EXPRESSION      a field of a thing is set
    refused KIND words: COMMAND     the command raises that error of `uprmc.errors` with these words
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from uprmc import errors

_BUILTINS = {"len": len, "list": list, "range": range, "set": set, "sorted": sorted, "bool": bool}


class Script:
    """Carries out the commands of a case; a subclass has a method ``do_NAME`` for each of its own.

    Attributes:
        noted: values by name.
    """

    def __init__(self) -> None:
        self.noted: dict[str, Any] = {}

    def names(self) -> dict[str, Any]:
        """What expressions may name."""
        return {}

    def value(self, expression: str) -> Any:
        return eval(expression, {"__builtins__": _BUILTINS, **self.names(), **self.noted})

    def do(self, command: str) -> None:
        name, _, rest = command.partition(" ")
        if name == "check":
            assert self.value(rest), rest
        elif name == "call":
            self.value(rest)
        elif name == "let":
            noted, _, rest = rest.partition(" ")
            self.noted[noted] = self.value(rest)
        elif name == "put":
            thing, field, rest = rest.split()
            setattr(self.value(thing), field, self.value(rest))
        elif name == "refused":
            kind, _, rest = rest.partition(" ")
            words, _, inner = rest.rpartition(": ")
            with pytest.raises(getattr(errors, kind)) as refusal:
                self.do(inner)
            assert words in str(refusal.value)
            assert "\n" not in str(refusal.value)
        else:
            getattr(self, f"do_{name}")(*rest.split())


def cases(folder: Path, pattern: str) -> list[Any]:
    """Return the commands of each case; its sentence is its name."""
    found = [each for path in sorted(folder.glob(pattern)) for each in _cases_in(path)]
    assert found, f"no cases in {folder}"
    return found


def _cases_in(path: Path) -> Iterator[Any]:
    prelude, *rest = f"\n{path.read_text()}".split("\n== ")
    for case in rest:
        title, _, body = case.partition("\n")
        lines = [line for line in body.splitlines() if line and not line.startswith("#")]
        wheres = [line[4:].partition(":") for line in lines if line.startswith("for ")]
        for choice in product(*(values.split("|") for _, _, values in wheres)):
            every = [line for line in prelude.splitlines() if not line.startswith("#")]
            for line in lines:
                for (name, _, _), chosen in zip(wheres, choice, strict=True):
                    line = line.replace(f"${name}", chosen.strip())
                every += [] if line.startswith("for ") else [line]
            commands = [one.strip() for line in every for one in line.split(";") if one.strip()]
            number = " ".join(each.strip() for each in choice)
            yield pytest.param(commands, id=f"{path.stem}: {title} {number}".strip())
