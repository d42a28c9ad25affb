"""Options and profiles shared by all tests.

``--acceptance`` (in `tests.acceptance_report`), ``--seeds N`` (in `tests.seeds`), and
``--crash-rounds N`` / ``--crash-seed N`` (used by ``tests/crash``). Hypothesis runs the same
examples every time, so a red build is red for everyone; ``--hypothesis-profile explore`` looks for
new ones.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

from tests.seeds import ask_for, seeds

__all__ = ["seeds"]

pytest_plugins = ["tests.acceptance_report", "tests.interrupts"]

settings.register_profile(
    "uprmc",
    derandomize=True,
    database=None,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("explore", deadline=None, max_examples=1_000, print_blob=True)
settings.load_profile("uprmc")


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
        default=20,
        metavar="N",
        help="how often the crash test kills the server (20)",
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
