"""Fixtures for the tests of the index."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from twisted.python.threadpool import ThreadPool


@pytest.fixture
def pool() -> Iterator[ThreadPool]:
    """Two threads that make pieces of answers."""
    made = ThreadPool(1, 2, "queries")
    made.start()
    yield made
    made.stop()
