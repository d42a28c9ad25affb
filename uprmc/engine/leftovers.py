"""Discarded objects that are freed a little at a time.

To free a table of a million items takes a fifth of a second, all at once, in the turn in which the
last reference goes. So code that discards a large table or list puts it here, and housekeeping runs
`steps` while others have their turns.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

#: Entries freed between two looks at the clock.
_STEP_ENTRIES = 500


class Leftovers:
    """Discarded objects that wait to be freed.

    What is put here must not be referenced elsewhere.
    """

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: list[dict[Any, Any] | list[Any]] = []

    def __bool__(self) -> bool:
        """Tell whether there is something to free."""
        return bool(self._kept)

    def add(self, thing: dict[Any, Any] | list[Any]) -> None:
        """Schedule something to be freed; O(1)."""
        if thing:
            self._kept.append(thing)

    def steps(self) -> Iterator[None]:
        """Free everything that is here or is added in the meantime, a step at a time."""
        while self._kept:
            thing = self._kept[-1]
            if isinstance(thing, dict):
                for _ in range(min(len(thing), _STEP_ENTRIES)):
                    thing.popitem()
            else:
                del thing[-_STEP_ENTRIES:]
            if not thing:
                self._kept.pop()
            yield
