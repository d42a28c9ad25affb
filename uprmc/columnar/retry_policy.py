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
from uprmc.remote.retry import Backoff, RetryPolicy

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


class Attempts:
    """Counts attempts that failed in a row, and waits between them."""

    def __init__(self, access: Access) -> None:
        patience_s = access.patience_s
        self._policy = RetryPolicy(
            Backoff(access.retry_backoff_s, BACKOFF_MAX_S),
            retries=access.retries if patience_s is None else None,
            patience_s=patience_s,
        )
        self.worked()

    def worked(self) -> None:
        """Something went well: what fails from now on counts from one again."""
        self._policy.good(time.monotonic())
        self._silences = 0

    def wait(self, error: SparkError) -> None:
        """Wait before the next attempt; raises the error if there was enough of them."""
        self._silences += isinstance(error, Silent)
        wait_s = self._policy.wait_s(time.monotonic(), random.random())
        if wait_s is None or self._silences > _SILENCES:
            raise error
        time.sleep(wait_s)


def patiently(access: Access, attempt: Callable[[], T]) -> T:
    """Return what `attempt` returns, trying again while that may help.

    Raises:
        Unreachable, Busy: it has failed too often. Whatever else it raises ends it at once.
    """
    attempts = Attempts(access)
    while True:
        try:
            return attempt()
        except (Unreachable, Busy) as error:
            attempts.wait(error)
