"""Nodes for tests of the bulk side: fixtures, imported by each directory's conftest."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from interop.server_process import ServerProcess, start_uprmc

VBUCKETS = 64


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server process of the module's own, empty, with `VBUCKETS` vBuckets."""
    with start_uprmc(tmp_path_factory.mktemp("data"), "--vbuckets", str(VBUCKETS)) as found:
        yield found


@pytest.fixture(scope="module")
def servers(node: ServerProcess) -> str:
    """HOST:PORT of the node's upr listener, as option `servers` wants it."""
    return str(node.upr)


@pytest.fixture
def fresh_node(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server process for one test: to count what is in it, to kill it."""
    with start_uprmc(tmp_path / "data", "--vbuckets", str(VBUCKETS)) as found:
        yield found
