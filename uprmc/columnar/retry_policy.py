"""How often and how long something is tried again: lost connections and nodes that are busy.

A node that is silent is worth one more attempt only: each costs the whole read timeout.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

from uprmc.columnar.access import Access
from uprmc.columnar.errors import Refused, SparkError, TlsFailed, Unreachable

#: The longest wait between two attempts, in seconds.
BACKOFF_MAX_S = 5.0

#: How often a node that said nothing in time is asked again.
_SILENCES = 1

T = TypeVar("T")


class Silent(Unreachable):
    """A node accepted the connection and then said nothing for `read_timeout_s`."""


class TlsCut(TlsFailed, Unreachable):
    """The connection was lost while the two ends agreed on TLS: one of them may not speak it, or
    the node goes down at this moment.
    """


class Busy(Refused):
    """A node warms up, or has too much to do: trying again helps."""


class RetryPolicy:
    """Counts attempts that failed in a row."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self.worked()

    def worked(self) -> None:
        """Something went well: what fails from now on is counted anew."""
        self._failures = self._silences = 0

    def wait(self, error: SparkError) -> None:
        """Wait before the next attempt; raises the error if there was enough of them."""
        self._silences += isinstance(error, Silent)
        if self._failures >= self._access.retries or self._silences > _SILENCES:
            raise error
        wait_s = min(BACKOFF_MAX_S, self._access.retry_backoff_s * 2**self._failures)
        self._failures += 1
        time.sleep(wait_s * random.uniform(0.75, 1.0))


def patiently(access: Access, attempt: Callable[[], T]) -> T:
    """Return what `attempt` returns, trying again while that may help.

    Raises:
        Unreachable, Busy: it has failed too often. Whatever else it raises ends it at once.
    """
    policy = RetryPolicy(access)
    while True:
        try:
            return attempt()
        except (Unreachable, Busy) as error:
            policy.wait(error)
