"""Fixtures for the tests of the index."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from twisted.python.threadpool import ThreadPool

from interop.server_process import ServerProcess, start_uprmc


@pytest.fixture
def pool() -> Iterator[ThreadPool]:
    """Two threads that make pieces of answers."""
    made = ThreadPool(1, 2, "queries")
    made.start()
    yield made
    made.stop()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[ServerProcess]:
    """A node with eight vBuckets."""
    with start_uprmc(tmp_path / "node", "--vbuckets", "8") as server:
        yield server
