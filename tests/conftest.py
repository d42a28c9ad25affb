"""Options and profiles shared by all tests.

``--acceptance`` (in `tests.acceptance_report`), ``--seeds N`` (in `tests.seeds`), and
``--crash-rounds N`` / ``--crash-seed N`` (used by ``tests/crash``). Hypothesis runs the same
examples every time, so a red build is red for everyone; ``--hypothesis-profile explore`` looks for
new ones, ``quick`` is for those who wait.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from tests.seeds import ask_for, seeds

if TYPE_CHECKING:
    from tests.server.support import Loop

__all__ = ["seeds"]

pytest_plugins = ["tests.acceptance_report", "tests.interrupts", "tests.isolation"]

settings.register_profile(
    "uprmc",
    derandomize=True,
    database=None,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("explore", deadline=None, max_examples=1_000, print_blob=True)
settings.register_profile("quick", settings.get_profile("uprmc"), max_examples=20)
settings.load_profile("uprmc")

#: For tests that start a JVM, or kill servers for as long as `--crash-rounds` says.
_LONG_S = 600


@pytest.fixture
def loop() -> Iterator[Loop]:
    """A real reactor, driven by hand."""
    from tests.server.support import Loop  # most tests need no Twisted

    made = Loop()
    yield made
    made.close()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("uprmc")
    group.addoption(
        "--seeds",
        type=int,
        default=None,
        metavar="N",
        help="run every simulation test with N seeds instead of its own number",
    )
    group.addoption(
        "--crash-rounds",
        type=int,
        default=12,
        metavar="N",
        help="how often the crash test kills the server (12)",
    )
    group.addoption(
        "--crash-seed",
        type=int,
        default=None,
        metavar="N",
        help="seed of the crash test; a failure prints the one it used",
    )


def pytest_configure(config: pytest.Config) -> None:
    ask_for(config.getoption("--seeds"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("spark") or item.get_closest_marker("crash"):
            item.add_marker(pytest.mark.timeout(_LONG_S))
