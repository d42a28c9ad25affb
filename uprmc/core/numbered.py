"""Things of vBuckets by the vBucket's number."""

from __future__ import annotations

from typing import TypeVar, overload

Thing = TypeVar("Thing")
Other = TypeVar("Other")


class Numbered(dict[int, Thing]):
    """A dict whose values are in a list, too: the compiled core reads that without a look-up.

    Change it by assignment, deletion, `pop` and `clear` only.

    Attributes:
        slots: the value of each number, ``None`` for those that have none or are beyond it.
    """

    __slots__ = ("slots",)

    def __init__(self) -> None:
        super().__init__()
        self.slots: list[Thing | None] = []

    def __setitem__(self, number: int, thing: Thing) -> None:
        super().__setitem__(number, thing)
        missing = number + 1 - len(self.slots)
        if missing > 0:
            self.slots += [None] * missing
        self.slots[number] = thing

    def __delitem__(self, number: int) -> None:
        super().__delitem__(number)
        self.slots[number] = None

    @overload
    def pop(self, number: int, /) -> Thing: ...
    @overload
    def pop(self, number: int, default: Thing, /) -> Thing: ...
    @overload
    def pop(self, number: int, default: Other, /) -> Thing | Other: ...
    def pop(self, number: int, /, *default: object) -> object:
        """Take out a number's value, as of a dict."""
        found = super().pop(number, *default)
        if number < len(self.slots):
            self.slots[number] = None
        return found

    def clear(self) -> None:
        """Take out everything."""
        super().clear()
        self.slots[:] = [None] * len(self.slots)
