"""A plugin: how tests start processes.

SIGINT is as it is on a terminal, wherever the tests were started. A shell in the background starts
its processes with SIGINT ignored, which each process hands on to those that it starts. Tests
interrupt many of those, so it is put right here for all of them.

Nodes and verbs come from a nursery, see `interop.nursery`.
"""

from __future__ import annotations

import signal

from interop import nursery


def pytest_configure() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    nursery.keep()


def pytest_unconfigure() -> None:
    nursery.end()
