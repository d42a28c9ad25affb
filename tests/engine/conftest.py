"""Fixtures of the engine's tests."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from tests.engine.support import Node


@pytest.fixture
def node() -> Node:
    """A warmed-up node with one empty active vBucket, everything flushed."""
    return Node()


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Whatever is freed in this test is freed by reference counting."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()
