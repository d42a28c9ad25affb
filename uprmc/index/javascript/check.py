"""Whether texts are JavaScript functions, found out by compiling them in a child process."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from uprmc.index.design import Design
from uprmc.index.errors import bad_request
from uprmc.index.javascript.process import MISSING, Child, ChildFailed, available

__all__ = ["Fault", "check", "refuse_faults"]

#: Bytes of an answer: a few hundred for each function.
_ANSWER_BYTES = 1024 * 1024

#: Memory of the process, in bytes, and seconds for each function.
_MEMORY = 256 * 1024 * 1024
_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a text is no function.

    Attributes:
        message: the engine's words.
        line, column: where, from 1; ``None`` if it is not a place.
    """

    message: str
    line: int | None = None
    column: int | None = None


def check(sources: Sequence[str]) -> list[Fault | None]:
    """Return for each text why it is no function, ``None`` where it is one. Blocks."""
    first = {"check": list(sources), "memory": _MEMORY, "timeout_s": _TIMEOUT_S}
    child = Child(json.dumps(first).encode(), _TIMEOUT_S * len(sources), _ANSWER_BYTES)
    try:
        answer = child.receive(60.0)
        if answer[:1] == b"!":
            raise ChildFailed(answer[1:].decode(errors="replace"))
        faults = json.loads(answer)
    except ChildFailed as error:
        return [Fault(f"it could not be compiled: {error}")] * len(sources)
    finally:
        child.end()
    return [None if fault is None else Fault(**fault) for fault in faults]


def refuse_faults(design: Design) -> None:
    """Raise `Refused` for what is no JavaScript function, with its line and column. Blocks."""
    functions = design.javascript()
    if not functions:
        return
    if not available():
        raise bad_request(MISSING)
    faults = check([source for _, source in functions])
    for (what, _), fault in zip(functions, faults, strict=True):
        if fault is not None and fault.line is not None:
            at = {"line": fault.line, "column": fault.column}
            where = f"line {fault.line}, column {fault.column}"
            raise bad_request(f"{what}: {fault.message} ({where})", **at)
        if fault is not None:
            raise bad_request(f"{what}: {fault.message}")
