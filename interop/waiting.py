"""Waiting for what another process does: nothing tells when that is, so it is looked at again."""

from __future__ import annotations

import time
from collections.abc import Callable

#: The limit only ends a test that has failed.
LIMIT_S = 60.0

_LEAST_S, _MOST_S = 0.01, 1.0


def wait_until(
    true: Callable[[], object], what: str | Callable[[], str] = "it", limit_s: float = LIMIT_S
) -> None:
    """Look until it is so. Looking costs the other process time, too: so much, then three rests.

    Args:
        true: looks.
        what: says how things stand, if the time runs out.
        limit_s: seconds.

    Raises:
        AssertionError: the time has run out.
    """
    deadline = time.monotonic() + limit_s
    while True:
        began = time.monotonic()
        if true():
            return
        if began >= deadline:
            raise AssertionError(
                f"not within {limit_s:g} s: {what if isinstance(what, str) else what()}"
            )
        time.sleep(min(max(_LEAST_S, 3 * (time.monotonic() - began)), _MOST_S))
