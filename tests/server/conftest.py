"""Fixtures for the tests of the server package."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pytest
from twisted.logger import globalLogPublisher

from uprmc.server import log


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    """What would be on standard error, at level debug."""
    sink = log.LogSink("debug")
    sink.stream = io.StringIO()
    before = log.level()
    log.set_level("debug")
    globalLogPublisher.addObserver(sink)
    yield sink.stream
    globalLogPublisher.removeObserver(sink)
    log.set_level(before)
