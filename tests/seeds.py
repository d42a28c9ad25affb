"""``seeds()``: how many runs a simulation test gets.

``@pytest.mark.parametrize("seed", seeds(default=50))`` runs it with the seeds 0..49, or with
``pytest --seeds N`` with 0..N-1. The number is looked up when pytest expands the test, not when
the test file is imported; `tests.conftest` puts the option here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

DEFAULT = 20

_asked_for: int | None = None


def ask_for(count: int | None) -> None:
    """Set the number of seeds for every test; ``None`` leaves each test its own default."""
    global _asked_for
    _asked_for = count


class Seeds(Collection[int]):
    """The seeds from 0 up, as many as the option or the default says at the moment of looking."""

    def __init__(self, default: int) -> None:
        self._default = default

    @property
    def _range(self) -> range:
        return range(self._default if _asked_for is None else _asked_for)

    def __len__(self) -> int:
        return len(self._range)

    def __iter__(self) -> Iterator[int]:
        return iter(self._range)

    def __contains__(self, seed: object) -> bool:
        return seed in self._range


def seeds(default: int = DEFAULT) -> Seeds:
    """Seeds for ``parametrize``; ``default`` is their number when no option is given."""
    return Seeds(default)
