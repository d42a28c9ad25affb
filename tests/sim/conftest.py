"""What all simulations need."""

from __future__ import annotations

import pytest

from tests.sim.node import SMALL


@pytest.fixture(autouse=True)
def small_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the engine's portions small; see `tests.sim.node.SMALL`."""
    for module, name, value in SMALL:
        monkeypatch.setattr(f"{module}.{name}", value)
