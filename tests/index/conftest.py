"""Fixtures for the tests of the index."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from twisted.python.threadpool import ThreadPool

from interop.server_process import ServerProcess, start_uprmc
from tests.index.running import emptied


@pytest.fixture
def pool() -> Iterator[ThreadPool]:
    """Two threads that make pieces of answers."""
    made = ThreadPool(1, 2, "queries")
    made.start()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def shared_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with start_uprmc(tmp_path_factory.mktemp("node"), "--vbuckets", "8") as server:
        yield server


@pytest.fixture
def node(shared_node: ServerProcess) -> ServerProcess:
    """The file's node with eight vBuckets, without documents, designs and registered indexes."""
    emptied(shared_node)
    return shared_node


@pytest.fixture
def own_node(tmp_path: Path) -> Iterator[ServerProcess]:
    """A node with eight vBuckets for a test that stops it."""
    with start_uprmc(tmp_path / "node", "--vbuckets", "8") as server:
        yield server
