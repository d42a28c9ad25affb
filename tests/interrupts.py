"""A plugin: tests run with SIGINT as it is on a terminal, wherever they were started.

A shell in the background starts its processes with SIGINT ignored, which each process hands on to
those that it starts. Tests interrupt many of those, so it is put right here for all of them.
"""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
