"""Fixtures: data centres on one reactor."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.support import Loop
from tests.xdcr.cluster import DataCentres


@pytest.fixture
def centres(loop: Loop, tmp_path: Path) -> Iterator[DataCentres]:
    made = DataCentres(loop, tmp_path)
    yield made
    made.close()
